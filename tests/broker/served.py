"""Models on loopback that answer with a word, or as they are told to, and count who was asked."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Answer = tuple[int, dict[str, str]]


class Models:
    """Models on loopback. ``answers``: by model, what to do with a request; ``asked``: by model and key, how often."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[[], Answer]] = {}
        self.asked: dict[str, int] = {}
        self.lock = threading.Lock()
        models = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                name = json.loads(self.rfile.read(int(self.headers["content-length"])))["model"]
                with models.lock:
                    models.asked[name] = models.asked.get(name, 0) + 1
                    status, headers = models.answers.get(name, lambda: (200, {}))()
                body: dict[str, Any] = {"error": {"message": "no"}}
                if status == 200:
                    message = {"role": "assistant", "content": "hello"}
                    body = {"model": name, "choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
                data = json.dumps(body).encode()
                self.send_response(status)
                for key, value in {**headers, "content-type": "application/json", "content-length": str(len(data))}.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"


@contextmanager
def models() -> Iterator[Models]:
    made = Models()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
        thread.join()
