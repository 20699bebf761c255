"""A provider on this machine that fails now and then, in every way, and counts what it did.

What fails is decided by the text of the question, so that a run can be checked afterwards: of a hundred rows five meet a fault,
four at their first request only, one for good.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections import Counter
from typing import Any

PASSING = ("429", "500", "503", "cut", "reset", "garbage", "empty")
LASTING = ("400", "401")


def fault_of(text: str) -> str | None:
    """Return how a question fails: a fault of its first request, or ``400``/``401`` each time."""
    digest = hashlib.sha256(text.encode()).digest()
    place = int.from_bytes(digest[:4], "big") % 100
    if place == 0:
        return LASTING[digest[4] % len(LASTING)]
    return PASSING[digest[4] % len(PASSING)] if place <= 4 else None


def tokens_of(text: str) -> tuple[int, int]:
    """Return the tokens that a question and its answer count."""
    return len(text), 1 + hashlib.sha256(text.encode()).digest()[5]


def http(status: int, body: bytes, more: str = "") -> bytes:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


ERRORS = {
    "400": http(400, b'{"error":{"message":"This question is not taken.","code":"not_taken"}}'),
    "401": http(401, b'{"error":{"message":"This question needs another key.","code":"invalid_api_key"}}'),
    "429": http(429, b'{"error":{"message":"Slow down."}}', "retry-after: 0.05\r\n"),
    "500": http(500, b'{"error":{"message":"It broke."}}'),
    "503": http(503, b'{"error":{"message":"Overloaded."}}'),
    "garbage": http(200, b"<html>a proxy's page</html>"),
    "empty": http(200, b"{}"),
}


def answer_of(text: str) -> bytes:
    sent, made = tokens_of(text)
    body = {
        "id": "a",
        "object": "chat.completion",
        "model": "local",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": f"Answer to {text}"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": sent, "completion_tokens": made, "total_tokens": sent + made},
    }
    return http(200, json.dumps(body).encode())


class Provider:
    """The server, in a thread of its own.

    Attributes:
        requests: requests by question. answered: complete answers by question. most: requests at once at most.
    """

    def __init__(self, *, delay: float = 0.0, faults: bool = True) -> None:
        self.delay = delay
        self.faults = faults
        self.requests: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.running = self.most = 0
        self.port = 0
        self.lines: set[Line] = set()
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Provider:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: Any) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = await self._loop.create_server(lambda: Line(self), "127.0.0.1", 0, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for line in list(self.lines):
            line.transport.abort()
        await asyncio.sleep(0)


class Line(asyncio.Protocol):
    """One connection: a request at a time, found by its content-length."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self.data = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.provider.lines.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.provider.lines.discard(self)

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, found, rest = self.data.partition(b"\r\n\r\n")
        if not found:
            return
        at = head.lower().index(b"content-length:") + 15
        size = int(head[at:].split(b"\r\n", 1)[0])
        if len(rest) < size:
            return
        self.data = rest[size:]
        text = json.loads(rest[:size])["messages"][-1]["content"]
        provider = self.provider
        provider.requests[text] += 1
        provider.running += 1
        provider.most = max(provider.most, provider.running)
        asyncio.get_running_loop().call_later(provider.delay, self.answer, text)

    def answer(self, text: str) -> None:
        provider = self.provider
        provider.running -= 1
        fault = fault_of(text) if provider.faults else None
        if fault is not None and (fault in LASTING or provider.requests[text] == 1):
            if fault == "reset":
                self.transport.abort()
            elif fault == "cut":
                self.transport.write(answer_of(text)[:-20])
                self.transport.close()
            else:
                self.transport.write(ERRORS[fault])
            return
        provider.answered[text] += 1
        self.transport.write(answer_of(text))
