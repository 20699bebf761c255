"""Providers on loopback, one address a model: each speaks a dialect, knows one tool, and fails as it is told to.

A server calls ``get_weather`` until it sees the tool's result, then answers. Each answer states its own usage, no two alike, so
that a sum over a journal can be held against what was really sent.
"""

from __future__ import annotations

import http.server
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llmbroker import LLMConfig, Usage
from llmbroker.exchange import Reply
from llmbroker.testing import wires

PATHS = {
    "openai-chat": "/v1",
    "openai-responses": "/v1",
    "anthropic": "/v1",
    "gemini": "/v1beta",
    "ollama": "",
}
RESULT = "It is 20"
Fault = Callable[[http.server.BaseHTTPRequestHandler], None]


def refused(status: int, **headers: str) -> Fault:
    """An answer with an error status."""

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        body = json.dumps({"error": {"message": "not now", "type": "error"}}).encode()
        _send(handler, status, "application/json", body, {key.replace("_", "-"): value for key, value in headers.items()})

    return answer


def garbled(handler: http.server.BaseHTTPRequestHandler) -> None:
    """A page where an answer was expected."""
    _send(handler, 200, "text/html", b"<html>It works!</html>")


def hung_up(handler: http.server.BaseHTTPRequestHandler) -> None:
    """No answer at all."""
    handler.close_connection = True


def _send(handler: Any, status: int, kind: str, body: bytes, headers: dict[str, str] | None = None) -> None:
    handler.send_response(status)
    handler.send_header("content-type", kind)
    handler.send_header("content-length", str(len(body)))
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


class Provider:
    """One provider. ``faults``: what the next requests get instead of an answer; ``sent``: the usage of each answer."""

    def __init__(self, name: str, dialect: str, weight: float, numbers: Iterator[int]) -> None:
        self.name = name
        self.dialect = dialect
        self.weight = weight
        self.faults: Iterator[Fault | None] = iter(())
        self.sent: list[Usage] = []
        self.keys: list[str] = []
        self._numbers = numbers
        provider = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                text = self.rfile.read(int(self.headers["content-length"])).decode()
                fault = next(provider.faults, None)
                if fault is not None:
                    fault(self)
                else:
                    provider._answer(self, text)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True

    @property
    def config(self) -> LLMConfig:
        """The model as a pool member."""
        url = f"http://127.0.0.1:{self.server.server_address[1]}{PATHS[self.dialect]}"
        return LLMConfig(
            name=self.name, model=self.name, base_url=url, dialect=self.dialect, weight=self.weight, api_key_ref="LOCAL_KEY"
        )

    def _answer(self, handler: Any, text: str) -> None:
        body = json.loads(text)
        self.keys.append(str({**handler.headers}))
        number = next(self._numbers)
        usage = Usage(input_tokens=100 + number, output_tokens=7 * number, total_tokens=100 + 8 * number)
        if body.get("tools") and RESULT not in text:
            reply: Reply = wires.made_reply("", [("get_weather", {"city": "Paris"})], usage=usage, model=self.name)
        else:
            reply = wires.made_reply("It is mild in Paris.", usage=usage, model=self.name)
        self.sent.append(usage)
        stream = body.get("stream") is True or "streamGenerateContent" in handler.path
        data = b"".join(wires.stream(reply, self.dialect)) if stream else wires.whole(reply, self.dialect)
        _send(handler, 200, wires.content_type(self.dialect, stream=stream), data)


@contextmanager
def providers(*wanted: tuple[str, str]) -> Iterator[dict[str, Provider]]:
    """Run providers, given as (name, dialect), the best first."""
    numbers = itertools.count(1)
    made = {name: Provider(name, dialect, 0.95 - 0.05 * at, numbers) for at, (name, dialect) in enumerate(wanted)}
    threads = [
        threading.Thread(target=one.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True) for one in made.values()
    ]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        for one in made.values():
            one.server.shutdown()
            one.server.server_close()
        for thread in threads:
            thread.join()
