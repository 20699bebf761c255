"""Virtual days with random faults, many callers, real threads and sockets: nothing is left, nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from tests.broker.worlds import Face, World, hang, member, ok, refuse, streamed

from llmbroker import AsyncBroker, Broker, LLMBrokerError, LLMConfig, NoLLMAvailableError
from llmbroker.transports.replay import Answer


def faults(dice: random.Random) -> Any:
    """One model's luck: spells of health and of each kind of fault."""
    kinds = [
        lambda: ok("fine", delay=dice.uniform(0.1, 4)),
        lambda: ok("fine", delay=dice.uniform(0.1, 4)),
        lambda: refuse(500, delay=0.1),
        lambda: refuse(503, retry_after=str(dice.randint(1, 90))),
        lambda: refuse(429, retry_after=str(dice.randint(0, 120))),
        lambda: refuse(429, delay=0.2),
        lambda: refuse(401),
        lambda: refuse(404),
        lambda: Answer(fault="reset", delay=0.3),
        lambda: Answer(fault="refuse"),
        lambda: Answer(body="nonsense"),
        lambda: ok(""),
        hang,
    ]
    spell = {"left": 0, "kind": kinds[0]}

    def behave(body: dict[str, Any]) -> Answer:
        if spell["left"] <= 0:
            spell["kind"] = kinds[0] if dice.random() < 0.6 else dice.choice(kinds)
            spell["left"] = dice.randint(1, 60)
        spell["left"] -= 1
        answer: Answer = spell["kind"]()
        if body.get("stream") and answer.status == 200 and answer.body and not answer.fault and isinstance(answer.body, dict):
            text = answer.body["choices"][0]["message"]["content"]
            return streamed(*([text] if text else []), delay=answer.delay)
        return answer

    return behave


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_day_of_random_faults_leaves_nothing_and_keeps_every_promise(kind: str, seed: int) -> None:
    dice = random.Random(seed)
    world = World(**{name: faults(random.Random(f"{seed}{name}")) for name in "abcde"})
    pool = [
        member("a", 0.9, parallel=2, api_key_ref="K1"),
        member("b", 0.8, api_key_ref="K1"),
        member("c", 0.6, parallel=1, api_key_ref="K2"),
        member("d", 0.6),
        member("e", 0.1, parallel=3),
    ]
    broker = Face(kind, world, pool, secrets={"K1": "one-key", "K2": "two-key"})
    outcomes: Counter[str] = Counter()
    replies: list[Any] = []

    async def one(n: int) -> None:
        wait = dice.choice([None, 0, 1, 5, 25, 60])
        began = world.port.now()
        try:
            if dice.random() < 0.3:
                source = broker.broker._engine.source(request(stream=True), None, None, {"wait": wait})
                leave = dice.random() < 0.2
                while await source.next_events() and not leave:
                    pass
                await source.close()
                outcomes["stream"] += 1
            else:
                options = {"wait": wait, "fastest_of": dice.choice([None, None, None, 2]), "trace_id": f"t{n}"}
                replies.append(await broker.broker._engine.chat(request(), None, None, options))
                outcomes["ok"] += 1
        except LLMBrokerError as error:
            outcomes[type(error).__name__] += 1
            if isinstance(error, NoLLMAvailableError):
                assert error.reason in {"timeout", "failed", "no_keys"}, error
        spent = world.port.now() - began
        assert spent <= (wait or 600) + 1e-6, (wait, spent)

    def request(stream: bool = False) -> Any:
        from llmbroker.broker.engine import request_of

        return request_of(None, "hi", None, None, None, None, stream=stream)

    async def caller(lane: int) -> None:
        for n in range(60):
            await one(lane * 1000 + n)
            await world.port.sleep(dice.expovariate(1 / 240))

    async def day() -> None:
        jobs = [world.port.start(caller(lane)) for lane in range(5)]
        while left := [job for job in jobs if not job.done()]:
            await world.port.wait(left)
        for job in jobs:
            job.result()

    if kind == "sync":
        world.port.drive(day())
    else:
        asyncio.run(day())

    assert world.port.now() > 3600
    assert outcomes["ok"] > 100, outcomes
    assert broker.idle()
    rows = broker.rows()
    assert len(rows) == len(world.hits), "one row an attempt, one attempt a hit"
    by_id = {row.id: row for row in rows}
    for reply in replies:
        assert by_id[reply.call_id].status == "ok"
        assert [by_id[a.id].status for a in reply.attempts] == [a.status for a in reply.attempts]
    world.port.advance(100_000)
    for name in "abcde":
        world.then(name, ok(name))
    for _ in range(40):
        broker.chat("hi", wait=5)
    assert all(broker.snapshot()[name].available for name in "abcde" if name in {h[1] for h in world.hits[-40:]})
    broker.close()


def test_ten_times_out_and_then_one_answers(face: Any) -> None:
    world = World(a=hang())
    broker = face(world, [member("a", parallel=1)])
    for _ in range(10):
        with pytest.raises(NoLLMAvailableError):
            broker.chat("hi", wait=1)
    world.then("a", ok("A"))
    assert broker.chat("hi", wait=1).text == "A"


def test_a_thousand_callers_of_one_slot_are_all_served(face: Any) -> None:
    world = World(a=ok("A", delay=0.01))
    broker = face(world, [member("a", parallel=5)])
    replies = broker.together(*[{"wait": 60}] * 1000)
    assert all(reply.text == "A" for reply in replies)
    assert world.port.now() == pytest.approx(2.0)


def test_a_storm_of_refusals_does_not_lock_the_pool(face: Any) -> None:
    world = World()
    world.models = {
        "a": [lambda _: refuse(429, retry_after="1") if world.port.now() < 5 else ok("A", delay=0.1)],
        "b": [lambda _: refuse(503) if world.port.now() < 9 else ok("B", delay=0.1)],
    }
    broker = face(world, [member("a", 0.9, parallel=4), member("b", 0.5, parallel=4)])
    replies = broker.together(*[{"wait": 300}] * 200)
    assert {reply.text for reply in replies} <= {"A", "B"}
    assert world.port.now() < 30
    assert len(world.hits) < 260, "a storm is met with few attempts"


# -- real threads, real sockets ------------------------------------------------------------------------------------------


class Server(BaseHTTPRequestHandler):
    """A provider with three models: one works, one fails, one hangs up."""

    protocol_version = "HTTP/1.1"
    hits: ClassVar[Counter[str]] = Counter()
    lock: ClassVar[threading.Lock] = threading.Lock()

    def log_message(self, *args: Any) -> None:
        """Be quiet."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.lock:
            self.hits[body["model"]] += 1
        if body["model"] == "drop":
            self.close_connection = True
            return
        if body["model"] == "fail":
            self.answer(500, b'{"error": {"message": "boom"}}', "application/json")
        elif body.get("stream"):
            data = (
                b"".join(b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n' for _ in range(50))
                + b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
            )
            self.answer(200, data, "text/event-stream")
        else:
            message = {"role": "assistant", "content": "fine"}
            reply = {"id": "x", "model": "m", "choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
            self.answer(200, json.dumps(reply).encode(), "application/json")

    def answer(self, status: int, data: bytes, kind: str) -> None:
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n\r\n".encode()
        self.wfile.write(head + data)


class QuietServer(ThreadingHTTPServer):
    """A client that leaves is no news."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing."""


@pytest.fixture
def pool() -> Iterator[list[LLMConfig]]:
    Server.hits.clear()
    server = QuietServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    base = f"http://127.0.0.1:{server.server_address[1]}/v1"
    yield [
        LLMConfig(name=name, model=name, base_url=base, api_key_ref="", weight=weight)
        for name, weight in [("fail", 0.9), ("drop", 0.8), ("good", 0.5)]
    ]
    server.shutdown()
    server.server_close()
    thread.join()


def test_many_threads_share_one_broker(pool: list[LLMConfig], tmp_path: Path) -> None:
    texts: list[str] = []
    with Broker(pool=pool, journal=tmp_path / "j.db") as broker:

        def work() -> None:
            for _ in range(25):
                texts.append(broker.chat("hi").text)
                texts.append("".join(broker.stream("hi"))[:4])

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert Counter(texts) == {"fine": 200, "xxxx": 200}
        assert all(m.running == 0 for m in broker._engine.lanes.members)
        total = broker.stats(by="all")["all"].total
    assert total == sum(Server.hits.values())


def test_many_tasks_share_one_broker_and_it_outlives_its_loop(pool: list[LLMConfig]) -> None:
    broker = AsyncBroker(pool=pool, journal=":memory:")

    async def work() -> list[str]:
        async def one() -> str:
            reply = await broker.chat("hi")
            pieces = [piece async for piece in broker.stream("hi")]
            return str(reply.text) + "".join(pieces)[:4]

        return await asyncio.gather(*(one() for _ in range(60)))

    for _ in range(3):
        assert Counter(asyncio.run(work())) == {"finexxxx": 60}
    asyncio.run(broker.close())
    assert all(m.running == 0 for m in broker._engine.lanes.members)


def test_abandoned_streams_give_connections_and_threads_back(pool: list[LLMConfig]) -> None:
    import psutil

    with Broker(pool=pool[2:], journal=":memory:") as broker:
        me = psutil.Process()
        for piece in broker.stream("hi"):
            assert piece
            break
        before = me.num_fds(), me.num_threads()
        for _ in range(100):
            for _piece in broker.stream("hi"):
                break
        assert me.num_fds() <= before[0] + 4
        assert me.num_threads() <= before[1] + 2 + sum(t.name.startswith("Thread") for t in threading.enumerate())


def test_a_plain_caller_inside_a_running_loop_is_served(pool: list[LLMConfig]) -> None:
    async def notebook() -> str:
        with Broker(pool=pool, journal=":memory:") as broker:
            return broker.chat("hi").text

    assert asyncio.run(notebook()) == "fine"


def test_a_forked_child_begins_with_free_slots(pool: list[LLMConfig]) -> None:
    import os

    one = msgspec.structs.replace(pool[2], parallel=1)
    with Broker(pool=[one], journal=":memory:") as broker:
        stream = broker.stream("hi")
        next(iter(stream.events()))
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            try:
                os.write(writing, broker.chat("hi", wait=3).text.encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(writing)
        assert os.read(reading, 100) == b"fine"
        os.close(reading)
        stream.close()


async def lonely_server(seen: list[str]) -> asyncio.Server:
    """A provider that takes a request and never answers, but notes when its client leaves."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = False
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            seen.append("asked")
            asked = True
            while await reader.read(65536):
                pass
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        if asked:
            seen.append("left")

    return await asyncio.start_server(serve, "127.0.0.1", 0)


def test_upstream_sees_within_a_second_that_its_caller_left() -> None:
    async def run() -> list[str]:
        seen: list[str] = []
        server = await lonely_server(seen)
        base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with AsyncBroker(pool=[LLMConfig(name="a", model="a", base_url=base, api_key_ref="")], journal=False) as broker:
            stream = broker.stream("hi")
            for call in (broker.chat("hi"), stream._source.next_events()):
                task = asyncio.ensure_future(call)
                while seen.count("asked") == seen.count("left"):
                    await asyncio.sleep(0.01)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                async with asyncio.timeout(1.0):
                    while seen.count("asked") != seen.count("left"):
                        await asyncio.sleep(0.01)
        server.close()
        await server.wait_closed()
        return seen

    assert asyncio.run(run()) == ["asked", "left"] * 2


def test_the_loser_of_a_race_is_hung_up_on(pool: list[LLMConfig]) -> None:
    async def run() -> list[str]:
        seen: list[str] = []
        server = await lonely_server(seen)
        base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        slow = LLMConfig(name="slow", model="slow", base_url=base, api_key_ref="", weight=0.9)

        def race() -> None:
            with Broker(pool=[slow, pool[2]], journal=":memory:") as broker:
                for _ in range(3):
                    assert broker.chat("hi", fastest_of=2).llm_name == "good"
                statuses = [row.status for row in broker.calls()]
                # On a busy machine a lane may come too late to be asked at all; then it has no row.
                assert statuses.count("ok") == 3
                assert set(statuses) == {"ok", "superseded"}

        await asyncio.to_thread(race)
        async with asyncio.timeout(1.0):
            while seen.count("left") < seen.count("asked"):
                await asyncio.sleep(0.01)
        server.close()
        await server.wait_closed()
        return seen

    seen = asyncio.run(run())
    assert seen.count("left") == seen.count("asked") <= 3


def test_a_stream_collected_while_the_desk_is_locked_does_not_lock_up() -> None:
    world = World(a=streamed(*["x"] * 10))
    broker = Face("sync", world, [member("a", parallel=1)])
    stream = broker.broker.stream("hi")
    broker.port.drive(stream._source.next_events())
    with broker.broker._engine.desk.lock:
        del stream
    assert broker.idle()
    broker.close()
