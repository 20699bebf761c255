"""What the asyncio port leaves on a loop: nothing once it is closed, though it serves on; open answers are read to the end."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

from tests.transports.conftest import post
from tests.transports.server import Link, Server, chunked, steadily

from llmbroker.transports.aio import AsyncIO


def suspended() -> int:
    """Count the asynchronous generators that the running loop would have to close at its end."""
    return len(asyncio.get_running_loop()._asyncgens)  # type: ignore[attr-defined]


def test_a_closed_port_leaves_no_generator_and_no_task_on_the_loop() -> None:
    async def main(url: str) -> None:
        for _ in range(3):
            port = AsyncIO()
            for _ in range(2):  # it serves on after it was closed, and is closed again
                assert (await port.send(post(url), port.now() + 10)).body == b"ok"
                assert suspended() == 1
                await port.aclose()
                assert suspended() == 0
            await port.aclose()
            del port
            gc.collect()
            assert len(asyncio.all_tasks()) == 1

    with Server(steadily()) as server:
        asyncio.run(main(server.url()))


def test_an_answer_that_is_open_while_the_port_closes_is_read_to_its_end_and_cut_with_the_loop() -> None:
    closed = threading.Event()

    def handle(link: Link) -> None:
        link.ask()
        link.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        if link.number == 1:
            closed.wait(10)
            link.say(chunked(b"b"))
        else:
            link.until_closed()

    kept: list[Any] = []

    async def main(url: str) -> None:
        port = AsyncIO()
        first, second = [await port.open(post(url), port.now() + 10) for _ in range(2)]
        await port.aclose()
        closed.set()
        parts = []
        while part := await first.read(port.now() + 10):
            parts.append(part)
        assert b"".join(parts) == b"ab"
        assert await second.read(port.now() + 10) == b"a"
        assert suspended() == 1
        kept.extend((port, second))

    with Server(handle) as server:
        asyncio.run(main(server.url()))
        assert server.left.wait(5)
