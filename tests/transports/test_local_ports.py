"""Requests to the engine of this process, through the ports: cancelled like any other."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from tests.transports.conftest import Face

from llmbroker.errors import LLMTimeoutError
from llmbroker.io import Port
from llmbroker.transports import local
from llmbroker.transports._threads import Cancelled
from llmbroker.wire import HTTPRequest

CANCELLATION = (Cancelled, asyncio.CancelledError)


class Slow:
    """An engine that gives a token whenever it is let, until it is told to stop."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.stopped = threading.Event()
        self.tokens = 3

    def handle_chat_completions(self, body: dict[str, Any], take: Callable[[dict[str, Any]], bool]) -> None:
        self.began.set()
        count = 0
        while not take({"choices": [{"index": 0, "delta": {"content": "x"}}]} if count < self.tokens else {"choices": []}):
            count += 1
            if self.tokens < 1000 and count > self.tokens:
                return
            time.sleep(0.01)
        self.stopped.set()


@pytest.fixture
def engine() -> Iterator[Slow]:
    slow = Slow()
    made = local._Engine(MODEL)
    made._server = slow
    before = local._engines.pop(MODEL, None)
    local._engines[MODEL] = made
    yield slow
    del local._engines[MODEL]
    if before is not None:
        local._engines[MODEL] = before


MODEL = next(iter(local.MODELS))  # a known name: it needs no file
REQUEST = HTTPRequest(f"local:{MODEL}", {}, msgspec.json.encode({"model": MODEL, "messages": []}))


def test_a_whole_answer_comes(face: Face, engine: Slow) -> None:
    reply = face.run(lambda port: port.send(REQUEST, port.now() + 10))
    assert msgspec.json.decode(reply.body)["choices"][0]["message"]["content"] == "xxx"


def test_a_stream_comes(face: Face, engine: Slow) -> None:
    async def flow(port: Port) -> bytes:
        stream = await port.open(REQUEST, port.now() + 10)
        parts = []
        while part := await stream.read(port.now() + 10):
            parts.append(part)
        await stream.close()
        return b"".join(parts)

    assert face.run(flow).count(b'"content":"x"') == 3


def test_a_deadline_ends_it(face: Face, engine: Slow) -> None:
    engine.tokens = 10**9
    with pytest.raises(LLMTimeoutError):
        face.run(lambda port: port.send(REQUEST, port.now() + 0.1))
    assert engine.stopped.wait(5)


@pytest.mark.parametrize("way", ["send", "read"])
def test_cancelling_ends_the_wait_and_the_computation(face: Face, engine: Slow, way: str) -> None:
    engine.tokens = 10**9

    async def request(port: Port) -> None:
        if way == "send":
            await port.send(REQUEST, port.now() + 20)
        stream = await port.open(REQUEST, port.now() + 20)
        try:
            while True:
                await stream.read(port.now() + 20)
        finally:
            await stream.close()

    async def flow(port: Port) -> None:
        job = port.start(request(port))
        while not engine.began.is_set():
            await port.sleep(0.01)
        await port.sleep(0.05)
        job.cancel()
        assert await port.wait([job], timeout=5) == [job]
        with pytest.raises(CANCELLATION):
            job.result()

    face.run(flow)
    assert engine.stopped.wait(5)
