"""Jobs, flags, waiting and users' functions behave alike over the blocking, the asyncio and the replay port."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from tests.transports.conftest import Face, post
from tests.transports.server import Link, Server

from llmbroker.io import Port, gather
from llmbroker.transports import AsyncIO, BlockingIO, Replay
from llmbroker.transports._threads import Cancelled
from llmbroker.transports.replay import Answer

T = TypeVar("T")
var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="unset")
CANCELLATION = (Cancelled, asyncio.CancelledError)


class AnyFace(Face):
    def run(self, flow: Callable[[Port], Awaitable[T]], **options: Any) -> T:
        if not self.kind.startswith("replay"):
            return super().run(flow, **options)
        port = Replay(**options)
        if self.kind == "replay":
            out: T = port.drive(flow(port))  # type: ignore[arg-type]
        else:
            out = asyncio.run(flow(port))  # type: ignore[arg-type]
        port.check()
        return out


@pytest.fixture(params=["blocking", "asyncio", "replay", "replay-asyncio"])
def face(request: pytest.FixtureRequest) -> AnyFace:
    return AnyFace(request.param)


# -- jobs ----------------------------------------------------------------------------------------------------------------


def test_a_job_that_is_cancelled_before_its_async_function_begins_leaves_nothing_that_was_never_awaited(face: AnyFace) -> None:
    began: list[int] = []

    async def function() -> None:
        began.append(1)
        await asyncio.sleep(0.01)

    async def flow(port: Port) -> list[Any]:
        async def one() -> None:
            jobs[0].cancel()
            await port.call(function)

        jobs: list[Any] = []
        gate = port.signal()

        async def later() -> None:
            await gate.wait()
            await one()

        jobs.append(port.start(later()))
        gate.set()
        while not jobs[0].done():
            await port.wait(jobs, 1.0)
        return jobs

    (job,) = face.run(flow)
    with contextlib.suppress(*CANCELLATION):  # the virtual port tells it at the next wait, and there is none
        job.result()
    del job
    gc.collect()  # a coroutine that was never awaited is reported here, and fails the test


def test_jobs_run_side_by_side_and_keep_their_results(face: AnyFace) -> None:
    async def one(port: Port, number: int) -> int:
        await port.sleep(0.1)
        return number

    async def flow(port: Port) -> tuple[list[Any], float]:
        begin = port.now()
        return await gather(port, [one(port, number) for number in range(5)]), port.now() - begin

    results, took = face.run(flow)
    assert results == [0, 1, 2, 3, 4]
    assert 0.1 <= took < 0.4


def test_no_more_jobs_run_at_once_than_allowed(face: AnyFace) -> None:
    running, most = 0, 0

    async def one(port: Port) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await port.sleep(0.02)
        running -= 1

    async def flow(port: Port) -> None:
        await gather(port, [one(port) for _ in range(7)], limit=3)

    face.run(flow)
    assert most == 3


def test_the_exception_of_a_job_comes_with_its_result(face: AnyFace) -> None:
    async def bad(port: Port) -> None:
        await port.sleep(0.01)
        raise ValueError("bad")

    async def flow(port: Port) -> None:
        job = port.start(bad(port))
        assert await port.wait([job]) == [job]
        assert job.done()
        with pytest.raises(ValueError, match="bad"):
            job.result()

    face.run(flow)


def test_a_job_sees_the_context_variables_of_its_parent(face: AnyFace) -> None:
    async def child() -> str:
        return var.get()

    async def flow(port: Port) -> str:
        token = var.set("parent")
        try:
            job = port.start(child())
        finally:
            var.reset(token)
        await port.wait([job])
        return job.result()

    assert face.run(flow) == "parent"


def test_waiting_ends_with_its_timeout(face: AnyFace) -> None:
    async def flow(port: Port) -> None:
        job = port.start(port.sleep(5))
        assert await port.wait([job], timeout=0.05) == []
        job.cancel()
        assert await port.wait([job]) == [job]
        assert await port.wait([]) == []

    face.run(flow)


def test_only_the_finished_jobs_are_returned(face: AnyFace) -> None:
    async def flow(port: Port) -> None:
        slow, quick = port.start(port.sleep(5)), port.start(port.sleep(0.01))
        assert await port.wait([slow, quick]) == [quick]
        slow.cancel()
        await port.wait([slow])

    face.run(flow)


# -- cancelling --------------------------------------------------------------------------------------------------------------


def test_a_cancelled_sleep_ends_at_once_and_cleaning_up_may_wait(face: AnyFace) -> None:
    seen: list[str] = []

    async def sleeper(port: Port) -> None:
        try:
            await port.sleep(30)
        except CANCELLATION:
            seen.append("told")
            await port.sleep(0.01)
            seen.append("cleaned")
            raise

    async def flow(port: Port) -> float:
        begin = port.now()
        job = port.start(sleeper(port))
        await port.sleep(0.05)
        job.cancel()
        await port.wait([job])
        with pytest.raises(CANCELLATION):
            job.result()
        job.cancel()
        return port.now() - begin

    assert face.run(flow) < 5
    assert seen == ["told", "cleaned"]


def test_a_job_cancelled_before_it_began_does_nothing(face: AnyFace) -> None:
    began = []

    async def child(port: Port) -> None:
        await port.sleep(0.02)
        began.append(1)

    async def flow(port: Port) -> None:
        job = port.start(child(port))
        job.cancel()
        await port.wait([job])
        with pytest.raises(CANCELLATION):
            job.result()

    face.run(flow)
    assert began == []


def test_a_cancelled_wait_for_jobs_cancels_nothing_else(face: AnyFace) -> None:
    async def parent(port: Port, child: Any) -> None:
        await port.wait([child])

    async def flow(port: Port) -> None:
        child = port.start(port.sleep(0.1))
        job = port.start(parent(port, child))
        await port.sleep(0.02)
        job.cancel()
        assert await port.wait([job, child]) == [job]
        assert await port.wait([child]) == [child]
        assert child.result() is None

    face.run(flow)


def test_a_fault_that_is_no_exception_cancels_the_others(face: AnyFace) -> None:
    ended: list[str] = []

    class Stop(BaseException):
        pass

    async def stopper(port: Port) -> None:
        await port.sleep(0.02)
        raise Stop

    async def sleeper(port: Port) -> None:
        try:
            await port.sleep(30)
        except CANCELLATION:
            ended.append("cancelled")
            raise

    async def flow(port: Port) -> None:
        await gather(port, [sleeper(port), stopper(port), sleeper(port)])

    with pytest.raises(Stop):
        face.run(flow)
    assert ended == ["cancelled"] * 2


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
@pytest.mark.parametrize("way", ["send", "read", "read encrypted", "handshake"])
def test_cancelling_a_request_cuts_its_connection(kind: str, way: str, client_tls: Any, server_tls: Any) -> None:
    arrived = threading.Event()

    def handle(link: Link) -> None:
        if way == "handshake":
            link.sock.recv(100)
        else:
            link.ask()
        if "read" in way:
            link.say(b"HTTP/1.1 200 OK\r\n\r\nx")
        arrived.set()
        link.until_closed()

    async def request(port: Port) -> None:
        if way == "handshake":
            await port.send(post(server.url(scheme="https")), port.now() + 20)
        if way == "send":
            await port.send(post(server.url()), port.now() + 20)
        stream = await port.open(post(server.url(host="localhost")), port.now() + 20)
        try:
            while await stream.read(port.now() + 20):
                pass
        finally:
            await stream.close()

    async def flow(port: Port) -> None:
        job = port.start(request(port))
        while not arrived.is_set():
            await port.sleep(0.01)
        await port.sleep(0.05)
        job.cancel()
        assert await port.wait([job], timeout=5) == [job]
        with pytest.raises(CANCELLATION):
            job.result()

    with Server(handle, tls=server_tls if "encrypted" in way else None) as server:
        Face(kind).run(flow, verify=client_tls)
        assert server.left.wait(5)


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_cancelling_never_cuts_the_connection_of_another_request(kind: str) -> None:
    """A connection that went back to the pool belongs to its next user, however late the cancellation comes."""

    def handle(link: Link) -> None:
        while link.ask() is not None:
            link.answer()

    async def victim(port: Port) -> None:
        while True:
            assert (await port.send(post(server.url()), port.now() + 20)).body == b"ok"

    async def flow(port: Port) -> None:
        for _ in range(60):
            jobs = [port.start(victim(port)) for _ in range(3)]
            await port.sleep(0.003)
            jobs[0].cancel()
            await port.wait(jobs[:1])
            for job in jobs[1:]:
                assert not job.done(), job.result()
                job.cancel()
            for job in jobs:
                await port.wait([job])

    with Server(handle) as server:
        Face(kind).run(flow)


# -- flags -------------------------------------------------------------------------------------------------------------------


def test_a_flag_wakes_its_waiter(face: AnyFace) -> None:
    async def flow(port: Port) -> list[bool]:
        flag = port.signal()
        late = await flag.wait(0.01)

        async def setter() -> None:
            await port.sleep(0.02)
            flag.set()

        job = port.start(setter())
        out = [late, await flag.wait(10), await flag.wait(), await flag.wait(0)]
        await port.wait([job])
        return out

    assert face.run(flow) == [False, True, True, True]


def test_a_flag_may_be_set_by_any_thread(face: AnyFace) -> None:
    async def flow(port: Port) -> bool:
        flag = port.signal()
        threading.Timer(0.05, flag.set).start()
        return await flag.wait()

    assert face.run(flow)


def test_a_cancelled_wait_for_a_flag_ends(face: AnyFace) -> None:
    async def flow(port: Port) -> None:
        flag = port.signal()
        job = port.start(flag.wait())
        await port.sleep(0.02)
        job.cancel()
        assert await port.wait([job], timeout=5) == [job]
        with pytest.raises(CANCELLATION):
            job.result()

    face.run(flow)


# -- users' functions ----------------------------------------------------------------------------------------------------------


def plain(value: str) -> str:
    return f"{value} {var.get()}"


async def coroutine(value: str) -> str:
    await asyncio.sleep(0)
    return f"{value} {var.get()}"


class Callable1:
    async def __call__(self, value: str) -> str:
        return await coroutine(value)

    async def method(self, value: str) -> str:
        return await coroutine(value)

    def plain_method(self, value: str) -> str:
        return plain(value)


FUNCTIONS: dict[str, Callable[[str], Any]] = {
    "def": plain,
    "async def": coroutine,
    "partial": functools.partial(plain),
    "async partial": functools.partial(coroutine),
    "method": Callable1().plain_method,
    "async method": Callable1().method,
    "async __call__": Callable1(),
    "lambda": lambda value: plain(value),
    "lambda of a coroutine": lambda value: coroutine(value),
    "decorated": functools.wraps(coroutine)(lambda value: coroutine(value)),
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_every_kind_of_function_is_run_with_the_context(face: AnyFace, kind: str) -> None:
    async def flow(port: Port) -> list[Any]:
        var.set("seen")
        alone = await port.call(FUNCTIONS[kind], "x")
        return [alone, *await gather(port, [port.call(FUNCTIONS[kind], "x") for _ in range(2)])]

    assert contextvars.copy_context().run(face.run, flow) == ["x seen"] * 3


@pytest.mark.parametrize("error", [ValueError, KeyError, SystemExit, KeyboardInterrupt, asyncio.TimeoutError])
@pytest.mark.parametrize("is_async", [False, True])
def test_exceptions_of_functions_pass_unchanged(face: AnyFace, error: type[BaseException], is_async: bool) -> None:
    raised = error("from the function")

    def fail() -> None:
        raise raised

    async def afail() -> None:
        raise raised

    async def flow(port: Port) -> BaseException:
        try:
            await port.call(afail if is_async else fail)
        except BaseException as caught:  # noqa: BLE001
            return caught
        raise AssertionError

    assert face.run(flow) is raised


def test_plain_functions_of_several_jobs_run_at_the_same_time() -> None:
    for kind in ("blocking", "asyncio"):
        together = threading.Barrier(3)

        async def flow(port: Port) -> None:
            calls = [port.call(together.wait, 10) for _ in range(3)]  # noqa: B023
            assert sorted(await gather(port, calls)) == [0, 1, 2]  # type: ignore[type-var]

        Face(kind).run(flow)


def test_many_plain_functions_at_once_do_not_stand_in_line() -> None:
    together = threading.Barrier(100)

    async def flow(port: Port) -> None:
        assert len(await gather(port, [port.call(together.wait, 20) for _ in range(100)])) == 100

    Face("asyncio").run(flow)


def test_async_functions_of_a_sync_caller_share_one_loop() -> None:
    async def flow(port: Port) -> set[int]:
        async def loop_id() -> int:
            return id(asyncio.get_running_loop())

        return {await port.call(loop_id) for _ in range(3)}

    assert len(Face("blocking").run(flow)) == 1


def test_sync_code_inside_a_running_loop_works() -> None:
    async def notebook() -> list[Any]:
        port = BlockingIO()

        async def flow() -> list[Any]:
            return await gather(port, [port.call(coroutine, "x"), port.call(plain, "y")])

        try:
            return port.drive(flow())
        finally:
            port.close()

    assert asyncio.run(notebook()) == ["x unset", "y unset"]


def test_a_cancelled_async_function_of_a_sync_caller_is_cancelled() -> None:
    ended: list[str] = []

    async def function() -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def flow(port: Port) -> None:
        job = port.start(port.call(function))
        await port.sleep(0.1)
        job.cancel()
        assert await port.wait([job], timeout=5) == [job]

    Face("blocking").run(flow)
    assert ended == ["cancelled"]


def test_a_function_may_drive_the_port_again(face: AnyFace) -> None:
    if face.kind == "asyncio":
        pytest.skip("the asyncio port has no synchronous face")

    async def inner(port: Port) -> str:
        await port.sleep(0.01)
        return "inner"

    async def flow(port: Port) -> list[Any]:
        calls = [port.call(lambda: port.drive(inner(port))) for _ in range(3)]
        return await gather(port, calls)

    assert face.run(flow) == ["inner"] * 3


def test_one_port_serves_several_event_loops_in_turn_and_in_threads() -> None:
    port = AsyncIO()

    def handle(link: Link) -> None:
        while link.ask() is not None:
            link.answer()

    async def flow() -> None:
        for _ in range(3):
            assert (await port.send(post(server.url()), port.now() + 10)).body == b"ok"

    with Server(handle) as server:
        for _ in range(3):
            asyncio.run(flow())
        threads = [threading.Thread(target=asyncio.run, args=(flow(),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        port.close()
    assert (server.connections, len(server.asked)) == (7, 21)


def test_one_blocking_port_serves_many_threads() -> None:
    port = BlockingIO()
    bodies: list[bytes] = []

    def handle(link: Link) -> None:
        while (asked := link.ask()) is not None:
            link.answer(asked.body)

    def caller(number: int) -> None:
        for turn in range(20):
            body = b"%d %d" % (number, turn)
            reply = port.drive(port.send(post(server.url(), body), port.now() + 20))
            assert reply.body == body
            bodies.append(body)

    with Server(handle) as server:
        threads = [threading.Thread(target=caller, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        port.close()
    assert len(bodies) == 320
    assert server.connections <= 16


def test_a_port_is_usable_after_it_was_closed(face: AnyFace) -> None:
    async def flow(port: Port) -> list[Any]:
        await gather(port, [port.sleep(0), port.sleep(0)])
        await port.aclose()
        return await gather(port, [port.call(plain, "x"), port.call(plain, "y")])

    assert face.run(flow) == ["x unset", "y unset"]


def test_the_asyncio_port_refuses_to_be_driven() -> None:
    port = AsyncIO()
    with pytest.raises(RuntimeError, match="BlockingIO"):
        port.drive(port.sleep(1))


def test_time_is_monotonic_and_wall(face: AnyFace) -> None:
    async def flow(port: Port) -> None:
        begin, wall = port.now(), port.time()
        await port.sleep(0.05)
        assert port.now() - begin >= 0.049
        assert port.time() - wall >= 0.04
        if not isinstance(port, Replay):
            assert abs(port.time() - time.time()) < 1

    face.run(flow)


def test_the_answer_of_the_replay_port_is_that_of_the_others() -> None:
    port = Replay().on("/x", Answer(status=201, headers={"X-Y": "z"}, body=[b"a", b"b"]))
    reply = port.drive(port.send(post("http://h/x")))
    assert (reply.status, reply.headers, reply.body) == (201, {"x-y": "z"}, b"ab")
