"""A provider on loopback and the command line as a process, for the tests of this folder."""

from __future__ import annotations

import http.server
import io
import json
import os
import subprocess
import sys
import threading
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from llmbroker.faces.cli import main


class Served:
    """An OpenAI-compatible server on loopback that answers as each test wants."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.text = "Hello there."
        self.finish: str | None = "stop"
        self.status = 200
        self.pause = 0.0
        self.calls: list[dict[str, Any]] = []
        self.stopping = threading.Event()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def _handler(served: Served) -> type[http.server.BaseHTTPRequestHandler]:  # noqa: N805 - the handler's self is another
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

            def do_GET(self) -> None:
                self._send({"data": [{"id": "small"}, {"id": "large"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                served.requests.append({**body, "authorization": self.headers.get("authorization")})
                if served.status != 200:
                    self._send({"error": {"message": "Broken today.", "type": "server_error"}})
                elif body.get("stream"):
                    self._stream()
                else:
                    self._send(served.whole())

            def _send(self, body: Any) -> None:
                data = json.dumps(body).encode()
                self.send_response(served.status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _stream(self) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("connection", "close")
                self.end_headers()
                self.close_connection = True
                try:
                    for word in served.text.split(" "):
                        self._event({"choices": [{"delta": {"content": word + " "}}]})
                        served.stopping.wait(served.pause)
                    if served.finish is not None:
                        self._event({"choices": [{"delta": {}, "finish_reason": served.finish}]})
                        self.wfile.write(b"data: [DONE]\n\n")
                except OSError:
                    pass

            def _event(self, body: Any) -> None:
                self.wfile.write(b"data: " + json.dumps({"model": "small", **body}).encode() + b"\n\n")
                self.wfile.flush()

        return Handler

    def whole(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        finish = self.finish
        if self.calls:
            call = self.calls.pop(0)
            function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
            message = {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c1", "type": "function", "function": function}],
            }
            finish = "tool_calls"
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        return {"model": "small", "choices": [{"message": message, "finish_reason": finish}], "usage": usage}


class Done(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


def called(*words: str) -> Done:
    """Run a command in this process, which costs no start; its stdout is no terminal."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(list(words))
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
    return Done(code, out.getvalue(), err.getvalue())


def run(
    *words: str, stdin: bytes | None = b"", cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """Run the command line; no stdin is an empty pipe."""
    variables = {**os.environ, "LLMBROKER_DEBUG": "", "PYTHONPATH": "", **environment}
    return subprocess.run(
        [sys.executable, "-m", "llmbroker", *words],
        input=stdin,
        capture_output=True,
        cwd=cwd,
        env=variables,
        timeout=60,
        check=False,
    )


def without_engine(*words: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command line as where the embedded engine is not installed."""
    hide = (
        "import importlib.util as u, sys; real = u.find_spec; "
        "u.find_spec = lambda name, *a: None if name == 'xllamacpp' else real(name, *a); "
        "from llmbroker.faces.cli import main; sys.exit(main())"
    )
    variables = {**os.environ, "LLMBROKER_DEBUG": "", **environment}
    return subprocess.run(
        [sys.executable, "-c", hide, *words], input=b"", capture_output=True, env=variables, timeout=60, check=False
    )
