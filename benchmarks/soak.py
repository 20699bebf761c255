"""Calls, cut streams and timeouts by the thousand, plain and async: descriptors, threads, tasks and memory must stay flat.

Usage: soak.py [CALLS]. A server of its own answers on loopback: at once, as a long stream, or never, as the model's name says.
"""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from multiprocessing.connection import Connection

import psutil

import llmbroker

ANSWER = {
    "id": "c",
    "object": "chat.completion",
    "model": "whole",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Paris"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
}
PIECE = {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "Paris "}}]}
MOST_MB = 8.0
MOST_DESCRIPTORS = 8


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection until the client leaves it."""
    body = json.dumps(ANSWER).encode()
    whole = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    line = b"data: " + json.dumps(PIECE).encode() + b"\n\n"
    chunk = b"%x\r\n%s\r\n" % (len(line), line)
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            (length,) = (int(row.split(b":")[1]) for row in head.split(b"\r\n") if row.lower().startswith(b"content-length"))
            model = json.loads(await reader.readexactly(length))["model"]
            if model == "whole":
                writer.write(whole)
            elif model == "stream":
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
                for _ in range(1000):
                    writer.write(chunk)
                    await writer.drain()
                    await asyncio.sleep(0.002)
            else:
                await reader.read()
                return
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


def serve(pipe: Connection) -> None:
    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=512)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


def held() -> dict[str, float]:
    """What this process holds now."""
    gc.collect()
    me = psutil.Process()
    return {"descriptors": me.num_fds(), "threads": threading.active_count(), "mb": me.memory_info().rss / 2**20}


def plain(url: str, count: int) -> Iterator[tuple[str, Callable[[], None]]]:
    def client(model: str) -> llmbroker.DirectClient:
        return llmbroker.DirectClient(base_url=url, model=model)

    def calls() -> None:
        with client("whole") as c:
            for _ in range(count):
                assert c.ask("?").text == "Paris"

    def cut() -> None:
        with client("stream") as c:
            for _ in range(count // 10):
                stream = c.stream("?")
                next(iter(stream))
                stream.close()

    def timeouts() -> None:
        with client("never") as c:
            for _ in range(count // 10):
                try:
                    c.chat("?", timeout=0.01)
                except llmbroker.LLMTimeoutError:
                    continue
                raise SystemExit("a call to a server that never answers came back")

    yield "calls", calls
    yield "cut streams", cut
    yield "timeouts", timeouts


def awaited(url: str, count: int) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
    def client(model: str) -> llmbroker.AsyncDirectClient:
        return llmbroker.AsyncDirectClient(base_url=url, model=model)

    async def calls() -> None:
        async with client("whole") as c:
            for _ in range(count // 50):
                await asyncio.gather(*(c.ask("?") for _ in range(50)))

    async def cut() -> None:
        async with client("stream") as c:
            for _ in range(count // 10):
                stream = c.stream("?")
                async for _ in stream:
                    break
                await stream.close()

    async def timeouts() -> None:
        async with client("never") as c:
            ended = await asyncio.gather(*(c.chat("?", timeout=0.05) for _ in range(count // 10)), return_exceptions=True)
            if not all(isinstance(error, llmbroker.LLMTimeoutError) for error in ended):
                raise SystemExit("a call to a server that never answers came back")

    yield "async calls", calls
    yield "async cut streams", cut
    yield "async timeouts", timeouts


def compare(name: str, before: dict[str, float], seconds: float) -> bool:
    after = held()
    grown = {key: after[key] - before[key] for key in after}
    flat = grown["descriptors"] <= MOST_DESCRIPTORS and grown["threads"] <= 0 and grown["mb"] <= MOST_MB
    shown = ", ".join(f"{key} {after[key]:.0f} ({change:+.1f})" for key, change in grown.items())
    print(f"{name:18} {seconds:6.1f} s   {shown}   {'flat' if flat else 'GREW'}", flush=True)
    return flat


async def run_awaited(url: str, count: int) -> bool:
    flat = True
    for name, work in awaited(url, count):
        await work()
        before, tasks, began = held(), len(asyncio.all_tasks()), time.perf_counter()
        await work()
        await asyncio.sleep(0.2)
        flat &= compare(name, before, time.perf_counter() - began)
        if len(asyncio.all_tasks()) > tasks:
            print(f"{name}: {len(asyncio.all_tasks()) - tasks} tasks are left")
            flat = False
    return flat


def main(count: int) -> int:
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{ours.recv()}/v1"
    flat = True
    try:
        for name, work in plain(url, count):
            work()
            before, began = held(), time.perf_counter()
            work()
            flat &= compare(name, before, time.perf_counter() - began)
        flat &= asyncio.run(run_awaited(url, count))
    finally:
        server.terminate()
        server.join()
    print("flat" if flat else "something is left behind")
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
