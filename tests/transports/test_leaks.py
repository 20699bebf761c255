"""Nothing piles up: descriptors, threads, tasks and memory are flat over many calls, aborted streams and timeouts."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import psutil
import pytest
from tests.transports.conftest import Face, post
from tests.transports.server import Link, Server

from llmbroker.errors import LLMTimeoutError
from llmbroker.io import Port, gather

HEAD = b"HTTP/1.1 200 OK\r\n"


def mixed(link: Link) -> None:
    """Answer, begin a stream that never ends, or say nothing, as the body of the request asks for."""
    while (asked := link.ask()) is not None:
        if asked.body == b"call":
            link.answer(b"x" * 2000)
            continue
        if asked.body == b"stream":
            link.say(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        link.until_closed()
        return


async def call(port: Port, server: Server) -> None:
    assert len((await port.send(post(server.url(), b"call"), port.now() + 30)).body) == 2000


async def aborted(port: Port, server: Server) -> None:
    stream = await port.open(post(server.url(), b"stream"), port.now() + 30)
    assert await stream.read(port.now() + 30) == b"a"
    await stream.close()


async def timed_out(port: Port, server: Server) -> None:
    with pytest.raises(LLMTimeoutError):
        await port.send(post(server.url(), b"silence"), port.now() + 0.02)


async def cancelled(port: Port, server: Server) -> None:
    job = port.start(port.send(post(server.url(), b"silence"), port.now() + 30))
    await port.sleep(0.002)
    job.cancel()
    await port.wait([job])


def tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0


async def flat(face: Face, port: Port, server: Server, counts: dict[Any, int]) -> None:
    """Run each kind often; afterwards there is no more of anything than after a few rounds of it."""
    process = psutil.Process()
    before: tuple[int, int, int, int] = (0, 0, 0, 0)
    for rounds in (dict.fromkeys(counts, 10), counts):
        for kind, count in rounds.items():
            await gather(port, [kind(port, server) for _ in range(count)], limit=8)
        for _ in range(200):  # the server's side of what was aborted ends in its own time
            gc.collect()
            now = (process.num_fds(), threading.active_count(), tasks(), process.memory_info().rss)
            if not before[0] or all(here <= there for here, there in zip(now[:3], before[:3], strict=True)):
                break
            await port.sleep(0.05)
            time.sleep(0.01)
        if before[0]:
            assert now[0] <= before[0] + 8, "descriptors"
            assert now[1] <= before[1] + 8, "threads"
            assert now[2] <= before[2], "tasks"
            assert now[3] <= before[3] + 30_000_000, "memory"
        before = now


def test_hundreds_of_calls_aborts_timeouts_and_cancellations_leave_nothing(face: Face) -> None:
    with Server(mixed) as server:
        face.run(lambda port: flat(face, port, server, {call: 500, aborted: 100, timed_out: 60, cancelled: 60}))


FORGETFUL = """
    import asyncio, gc, sys
    from llmbroker.transports import AsyncIO, BlockingIO
    from llmbroker.wire import HTTPRequest

    kind, url = sys.argv[1:]
    ask = lambda what: HTTPRequest(url, {}, what)

    async def flow(port):
        await port.send(ask(b"call"), port.now() + 10)
        stream = await port.open(ask(b"stream"), port.now() + 10)
        await stream.read(port.now() + 10)
        job = port.start(port.send(ask(b"call"), port.now() + 10))
        await port.wait([job])
        await port.call(len, "x")
        await port.call(asyncio.sleep, 0)
        return stream

    port = BlockingIO() if kind == "blocking" else AsyncIO()
    run = port.drive if kind == "blocking" else asyncio.run
    first = run(flow(port))
    second = run(flow(port))
    del first
    gc.collect()
"""


def test_a_program_that_closes_nothing_ends_in_time_and_without_a_warning(face: Face) -> None:
    with Server(mixed) as server:
        options = ["-X", "dev", "-W", "error::ResourceWarning"]
        command = [sys.executable, *options, "-c", textwrap.dedent(FORGETFUL), face.kind, server.url()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_ten_thousand_calls_a_thousand_aborts_and_timeouts_leave_nothing(face: Face) -> None:
    with Server(mixed) as server:
        face.run(lambda port: flat(face, port, server, {call: 10_000, aborted: 1_000, timed_out: 1_000, cancelled: 500}))


def test_hundreds_of_calls_at_once_are_answered() -> None:
    together = threading.Semaphore(0)

    def handle(link: Link) -> None:
        link.ask()
        together.acquire(timeout=20)
        link.answer(headers="Connection: close\r\n")

    async def flow(port: Port) -> None:
        async def open_the_gate() -> None:
            while len(server.asked) < 300:
                await port.sleep(0.01)
            for _ in range(300):
                together.release()

        job = port.start(open_the_gate())
        replies = await gather(port, [port.send(post(server.url()), port.now() + 20) for _ in range(300)])
        assert [getattr(reply, "body", reply) for reply in replies] == [b"ok"] * 300
        await port.wait([job])

    with Server(handle) as server:
        Face("asyncio").run(flow)
