"""A thousand calls at once beside the provider's own time, and what a failover adds after a refusal.

Usage: concurrency.py calls [CALLS [SECONDS]] | failover [ROUNDS]. A server in a process of its own answers on loopback: after
SECONDS each, or at once with a refusal, as the model's name says. The journal is on.

The provider's own time is SECONDS: that is how long all calls would take if nothing were between. What a failover adds is seen
by the server: from the moment at which a refusal was sent to the moment at which the next model was asked.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import llmbroker
from llmbroker.journal import Journal, open_store
from llmbroker.journal.tidings import Since, Tidings
from llmbroker.transports.aio import AsyncIO
from llmbroker.transports.blocking import BlockingIO

MOST_RATIO = 1.3
MOST_MS = 5.0
REFUSALS = (429, 500, 503)
ANSWER = {
    "id": "c",
    "object": "chat.completion",
    "model": "well",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Paris"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
}


def http(status: int, body: dict[str, Any], more: bytes = b"") -> bytes:
    data = json.dumps(body).encode()
    return b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n%scontent-length: %d\r\n\r\n%s" % (
        status,
        more,
        len(data),
        data,
    )


def serve(pipe: Connection, seconds: float) -> None:
    """Answer until killed; at the word ``gaps``, say how long after each refusal the next request came."""
    whole = http(200, ANSWER)
    refusals = {status: http(status, {"error": {"message": "no"}}, b"retry-after: 3600\r\n") for status in REFUSALS}
    gaps: list[float] = []
    refused: list[float] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                rows = head.split(b"\r\n")
                (length,) = (int(row.split(b":")[1]) for row in rows if row.lower().startswith(b"content-length"))
                model = json.loads(await reader.readexactly(length))["model"]
                now = time.perf_counter()
                if refused:
                    gaps.append(now - refused.pop())
                kind, _, status = model.partition("-")
                if kind == "refuses":
                    refused.append(time.perf_counter())
                    writer.write(refusals[int(status.partition("-")[0])])
                else:
                    if kind == "slow":
                        await asyncio.sleep(seconds)
                    writer.write(whole)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=4096)
        asyncio.get_running_loop().add_reader(pipe.fileno(), lambda: (pipe.recv(), pipe.send(gaps)))
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


@contextmanager
def server(seconds: float = 0.0) -> Iterator[tuple[str, Connection]]:
    """Run the server; give its address and the pipe to it."""
    mine, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, seconds), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{mine.recv()}/v1", mine
    finally:
        process.kill()
        process.join()


def model(name: str, url: str, weight: float) -> llmbroker.LLMConfig:
    return llmbroker.LLMConfig(name=name, model=name, base_url=url, weight=weight, api_key_ref="")


def calls(count: int, seconds: float) -> int:
    """Time calls that are all in flight at once; the number of bounds that were broken."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * count)), hard))

    async def measured(url: str, folder: Path) -> tuple[float, float]:
        pool = [model("slow", url, 0.9)]
        async with llmbroker.AsyncBroker(pool=pool, journal=folder / "calls.db") as broker:
            await broker.ask("warm-up")
            began, cpu = time.perf_counter(), time.process_time()
            replies = await asyncio.gather(*(broker.ask("?") for _ in range(count)))
            took, cpu = time.perf_counter() - began, time.process_time() - cpu
            rows = await broker.calls(limit=count + 2)
            assert len({reply.call_id for reply in replies}) == count
            assert [row.status for row in rows] == ["ok"] * (count + 1)
        return took, cpu

    with server(seconds) as (url, _), tempfile.TemporaryDirectory() as folder:
        took, cpu = asyncio.run(measured(url, Path(folder)))
    ratio = took / seconds
    print(
        f"{count} calls at once to a provider that takes {seconds:.1f} s: {took:.2f} s, {ratio:.2f} (at most {MOST_RATIO}); "
        f"{cpu:.2f} s of CPU here"
    )
    return int(ratio > MOST_RATIO)


def forgotten(journal: Journal) -> Journal:
    """Let the store forget who rests: a new broker would begin with what the last one found out."""
    store = journal.store
    assert store is not None
    store.tell(Tidings(0.0, dict.fromkeys(store.look(Since()).notes, b"")))
    return journal


def plainly(pool: list[llmbroker.LLMConfig], where: Path, rounds: int) -> None:
    """Fail over in each round: a new broker does not know yet who refuses; connections and journal stay open."""
    port, journal = BlockingIO(), Journal(open_store(where))
    for _ in range(rounds):
        reply = llmbroker.Broker(pool=pool, journal=forgotten(journal), io=port).ask("?")
        assert len(reply.attempts) == len(pool), reply.explain()
    journal.close()
    port.close()


async def awaited(pool: list[llmbroker.LLMConfig], where: Path, rounds: int) -> None:
    """The same over asyncio."""
    port, journal = AsyncIO(), Journal(open_store(where))
    for _ in range(rounds):
        reply = await llmbroker.AsyncBroker(pool=pool, journal=forgotten(journal), io=port).ask("?")
        assert len(reply.attempts) == len(pool), reply.explain()
    journal.close()
    await port.aclose()


def failover(rounds: int) -> int:
    """Time what comes after a refusal; the number of bounds that were broken."""
    broken = 0
    for kind in ("plain", "async"):
        with server() as (url, pipe), tempfile.TemporaryDirectory() as folder:
            refusing = [model(f"refuses-{status}-{at}", url, 0.95 - 0.1 * at) for at, status in enumerate(REFUSALS)]
            pool = [*refusing, model("well", url, 0.1)]
            where = Path(folder) / "calls.db"
            if kind == "plain":
                plainly(pool, where, rounds + 1)
            else:
                asyncio.run(awaited(pool, where, rounds + 1))
            pipe.send("gaps")
            gaps = sorted(1000.0 * gap for gap in pipe.recv()[len(REFUSALS) :])  # without the round that warms up
        p95 = gaps[int(0.95 * (len(gaps) - 1))]
        print(
            f"{kind}: {len(gaps)} failovers after a refusal: median {statistics.median(gaps):.2f} ms, "
            f"95 % within {p95:.2f} ms (at most {MOST_MS}), longest {gaps[-1]:.2f} ms"
        )
        broken += p95 > MOST_MS
    return broken


def main(what: str, *numbers: str) -> int:
    if what == "calls":
        count, seconds = int(numbers[0]) if numbers else 1000, float(numbers[1]) if len(numbers) > 1 else 2.0
        return calls(count, seconds)
    return failover(int(numbers[0]) if numbers else 100)


if __name__ == "__main__":
    sys.exit(main(*(sys.argv[1:] or ["calls"])))
