"""The replay port: what a script can say, and a clock that jumps only when everything waits."""

from __future__ import annotations

import asyncio
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.transports.conftest import post

from llmbroker.errors import (
    ConnectionFailedError,
    InvalidProviderResponseError,
    LLMTimeoutError,
    RateLimitError,
)
from llmbroker.io import Port, gather
from llmbroker.transports._virtual import Deadlock
from llmbroker.transports.replay import Answer, Exchange, Replay, UnexpectedRequest, sse
from llmbroker.wire import HTTPReply

URL = "http://host/v1/chat?key=SECRET"


class Runner:
    """Runs a flow under ``drive``, or awaits it on one of two event loops."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, port: Replay, flow: Any) -> Any:
        if self.kind == "drive":
            return port.drive(flow)
        if self.kind == "asyncio":
            return asyncio.run(flow)
        return pytest.importorskip("uvloop").run(flow)


@pytest.fixture(params=["drive", "asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Runner:
    return Runner(request.param)


async def read_all(port: Port, deadline: float | None = None) -> list[tuple[float, bytes]]:
    stream = await port.open(post(URL), deadline)
    out = []
    try:
        while part := await stream.read(deadline):
            out.append((port.now(), part))
    finally:
        await stream.close()
    return out


# -- scripts -------------------------------------------------------------------------------------------------------------


def test_answers_come_in_the_order_of_the_script(run: Runner) -> None:
    port = Replay().on("/chat", b"one", "two", {"three": 3}, HTTPReply(418, {"X": "y"}, b"four"))

    async def flow() -> list[tuple[int, bytes]]:
        replies = [await port.send(post(URL)) for _ in range(4)]
        return [(reply.status, reply.body) for reply in replies]

    assert run(port, flow()) == [(200, b"one"), (200, b"two"), (200, b'{"three":3}'), (418, b"four")]
    port.check()


def test_the_first_line_that_matches_and_is_not_used_up_answers() -> None:
    port = Replay([Exchange("/models", b"models"), Exchange(lambda request: request.body == b"hi", b"hello", 2)])
    port.on(None, b"any", times=None)

    def ask(url: str, body: bytes = b"") -> bytes:
        return port.drive(port.send(post(url, body))).body

    assert [ask("http://h/models"), ask("http://h/models"), ask("http://h/"), ask("http://h/", b"hi")] == [
        b"models",
        b"any",
        b"any",
        b"hello",
    ]
    with pytest.raises(AssertionError, match="1 x"):
        port.check()
    assert ask("http://h/", b"hi") == b"hello"
    port.check()


def test_an_answer_may_be_a_function_of_the_request_or_an_exception() -> None:
    port = Replay().on("chat", lambda request: Answer(body=request.body * 2), RateLimitError("no", status=429))
    assert port.drive(port.send(post(URL, b"ab"))).body == b"abab"
    with pytest.raises(RateLimitError):
        port.drive(port.send(post(URL)))


def test_requests_are_recorded_with_their_times() -> None:
    port = Replay().on(None, b"", times=None)
    port.drive(port.send(post(URL, b"1")))
    port.advance(5)
    port.drive(port.send(post(URL, b"2")))
    assert [request.body for request in port.requests] == [b"1", b"2"]
    assert port.times == [0.0, 5.0]
    quiet = Replay(record=False).on(None, b"")
    quiet.drive(quiet.send(post(URL)))
    assert quiet.requests == []


def test_a_request_that_is_not_in_the_script_is_no_error_of_the_provider() -> None:
    port = Replay()
    with pytest.raises(UnexpectedRequest, match=r"no \(more\) answer for POST http://host/v1/chat\.") as caught:
        port.drive(port.send(post(URL)))
    assert "SECRET" not in str(caught.value)
    with pytest.raises(AssertionError, match="not in the script"):
        port.check()


def test_check_says_what_was_never_asked_for_and_what_was_left_open() -> None:
    port = Replay().on("/a", b"").on(lambda request: True, b"", times=3)
    stream = port.drive(port.open(post("http://h/a")))
    with pytest.raises(AssertionError, match=r"3 x <lambda>: never asked for; 1 streams were left open"):
        port.check()
    port.drive(stream.close())
    assert port.open_streams == 0


def test_headers_are_lower_case_and_json_says_so() -> None:
    port = Replay().on(None, Answer(headers={"X-A": "b"}, body={"a": 1}))
    assert port.drive(port.send(post(URL))).headers == {"x-a": "b", "content-type": "application/json"}


def test_server_sent_events_are_made_of_mappings() -> None:
    assert sse({"a": 1}, "raw") == [b'data: {"a":1}\n\n', b"data: raw\n\n", b"data: [DONE]\n\n"]
    assert sse(done=False) == []


@given(st.lists(st.one_of(st.binary(max_size=9), st.floats(0, 3)), max_size=6), st.integers(1, 5))
def test_cutting_into_pieces_changes_only_the_borders(steps: list[bytes | float], size: int) -> None:
    port = Replay().on(None, Answer(body=steps), Answer(body=steps, pieces=size))
    whole = port.drive(read_all(port))
    took, begin = port.now(), port.now()
    pieces = port.drive(read_all(port))
    assert b"".join(part for _, part in pieces) == b"".join(part for _, part in whole)
    assert all(0 < len(part) <= size for _, part in pieces)
    assert math.isclose(port.now() - begin, took, abs_tol=1e-9)


def test_a_body_over_the_limit_is_refused() -> None:
    port = Replay(max_body=5).on(None, [b"abc", b"def"])  # type: ignore[arg-type]
    with pytest.raises(InvalidProviderResponseError, match="too large"):
        port.drive(port.send(post(URL)))
    port.check()


# -- time ----------------------------------------------------------------------------------------------------------------


def test_pauses_move_the_clock_and_nothing_else(run: Runner) -> None:
    port = Replay(start=100.0, wall=5000.0).on(None, Answer(delay=3600, body=[b"a", 60, b"b", b"c"], every=1))
    assert run(port, read_all(port)) == [(3701.0, b"a"), (3762.0, b"b"), (3763.0, b"c")]
    assert (port.now(), port.time()) == (3763.0, 8663.0)


@pytest.mark.parametrize(
    ("answer", "at"),
    [
        pytest.param(Answer(delay=11), 10.0, id="headers too late"),
        pytest.param(Answer(delay=math.inf), 10.0, id="no headers"),
        pytest.param(Answer(body=[b"a", 11.0, b"b"]), 10.0, id="chunk too late"),
        pytest.param(Answer(body=[b"a"], fault="stall"), 10.0, id="stall"),
        pytest.param(Answer(body=[b"a"] * 1000, every=0.3), 10.0, id="dripping"),
    ],
)
def test_the_deadline_ends_a_slow_answer(run: Runner, answer: Answer, at: float) -> None:
    port = Replay().on(None, answer)
    with pytest.raises(LLMTimeoutError) as caught:
        run(port, port.send(post(URL), 10.0))
    assert caught.value.sent is True
    assert port.now() == at
    assert port.open_streams == 0


def test_a_deadline_that_has_passed_asks_for_nothing() -> None:
    port = Replay(start=5.0)
    with pytest.raises(LLMTimeoutError) as caught:
        port.drive(port.send(post(URL), 5.0))
    assert caught.value.sent is False
    port.check()


@pytest.mark.parametrize(
    ("answer", "kind", "sent"),
    [
        (Answer(fault="refuse", delay=2), ConnectionFailedError, False),
        (Answer(fault="unreachable"), LLMTimeoutError, False),
        (Answer(fault="reset"), ConnectionFailedError, True),
        (Answer(fault="cut", body=[b"abc"]), ConnectionFailedError, True),
        (Answer(fault="garbage"), InvalidProviderResponseError, None),
    ],
)
def test_every_fault_is_that_of_the_real_ports(run: Runner, answer: Answer, kind: type[Exception], sent: bool | None) -> None:
    port = Replay().on(None, answer)
    with pytest.raises(kind) as caught:
        run(port, port.send(post(URL), 10.0))
    assert getattr(caught.value, "sent", None) is sent
    assert "host:80" in str(caught.value)
    assert "SECRET" not in str(caught.value)
    port.check()


def test_the_engine_of_this_process_may_be_scripted_too() -> None:
    port = Replay().on("local:", Answer(fault="reset"))
    with pytest.raises(ConnectionFailedError):
        port.drive(port.send(post("local:model/v1/chat")))


def test_flows_side_by_side_share_the_clock(run: Runner) -> None:
    port = Replay().on(None, lambda request: Answer(delay=float(request.body), body=request.body), times=None)
    order: list[tuple[float, bytes]] = []

    async def one(seconds: bytes) -> bytes:
        reply = await port.send(post(URL, seconds))
        order.append((port.now(), reply.body))
        return reply.body

    async def flow() -> list[Any]:
        return await gather(port, [one(s) for s in (b"3", b"1", b"2", b"1")])

    assert run(port, flow()) == [b"3", b"1", b"2", b"1"]
    assert order == [(1.0, b"1"), (1.0, b"1"), (2.0, b"2"), (3.0, b"3")]


@given(st.lists(st.lists(st.integers(0, 5), max_size=5), max_size=6))
def test_drive_and_asyncio_give_the_same_history(plans: list[list[int]]) -> None:
    def history(run: Runner) -> list[tuple[float, int]]:
        port = Replay()
        seen: list[tuple[float, int]] = []

        async def one(number: int, naps: list[int]) -> None:
            for nap in naps:
                await port.sleep(nap)
                seen.append((port.now(), number))

        async def flow() -> None:
            await gather(port, [one(number, naps) for number, naps in enumerate(plans)])

        run(port, flow())
        port.check()
        return seen

    by_drive = history(Runner("drive"))
    assert [when for when, _ in by_drive] == sorted(when for when, _ in by_drive)
    assert sorted(by_drive) == sorted(history(Runner("asyncio")))
    assert by_drive == history(Runner("drive"))


def test_ordinary_tasks_of_a_loop_may_share_the_port() -> None:
    port = Replay().on(None, Answer(delay=10), times=None)

    async def main() -> float:
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(port.send(post(URL)))  # type: ignore[arg-type]
        await asyncio.gather(*[port.sleep(5) for _ in range(20)])
        return port.now()

    assert asyncio.run(main()) == 15.0


def test_two_ports_on_one_loop_do_not_hold_each_other_up() -> None:
    ports = [Replay(), Replay()]

    async def main() -> None:
        await asyncio.gather(*[port.sleep(5) for port in ports for _ in range(3)])

    asyncio.run(main())
    assert [port.now() for port in ports] == [5.0, 5.0]


def test_a_plain_function_takes_no_virtual_time(run: Runner) -> None:
    port = Replay()
    gate = threading.Event()

    def function() -> float:
        threading.Timer(0.1, gate.set).start()
        gate.wait(5)
        return port.now()

    async def flow() -> list[Any]:
        return await gather(port, [port.call(function), port.sleep(1000)])

    assert run(port, flow()) == [0.0, None]


def test_functions_that_drive_the_port_run_side_by_side_in_virtual_time(run: Runner) -> None:
    port = Replay().on(None, Answer(delay=2, body=b"x"), times=None)

    async def flow() -> float:
        results = await gather(port, [port.call(lambda: port.drive(port.send(post(URL))).body) for _ in range(20)])
        assert results == [b"x"] * 20
        return port.now()

    assert run(port, flow()) == 2.0
    port.close()


def test_an_async_function_under_drive_may_use_the_port_on_its_own_loop() -> None:
    port = Replay().on(None, Answer(delay=2, body=b"x"), times=None)

    async def function() -> bytes:
        replies = await asyncio.gather(*[port.send(post(URL)) for _ in range(3)])
        return b"".join(reply.body for reply in replies)

    async def flow() -> bytes:
        body: bytes = await port.call(function)
        return body

    assert (port.drive(flow()), port.now()) == (b"xxx", 2.0)


def test_sync_code_inside_a_running_loop_uses_the_same_clock() -> None:
    port = Replay().on(None, Answer(delay=2, body=b"x"), times=None)

    async def main() -> float:
        other = asyncio.create_task(port.sleep(7))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert port.drive(port.send(post(URL))).body == b"x"
        assert port.now() == 2.0
        await other
        return port.now()

    assert asyncio.run(main()) == 7.0


def test_several_threads_share_one_clock() -> None:
    port = Replay().on(None, Answer(delay=2, body=b"x"), times=None)
    ready = threading.Barrier(8)

    def caller() -> float:
        ready.wait(10)
        for _ in range(5):
            port.drive(port.send(post(URL)))
        return port.now()

    with ThreadPoolExecutor(8) as pool:
        ends = list(pool.map(lambda _: caller(), range(8)))
    assert len(port.requests) == 40
    assert 10.0 <= max(ends) <= 80.0
    assert port.now() == max(ends)


def test_a_function_may_wait_for_threads_of_its_own_that_use_the_port() -> None:
    port = Replay().on(None, Answer(delay=2, body=b"x"), times=None)

    def function() -> int:
        with ThreadPoolExecutor(3) as pool:
            return len(list(pool.map(lambda _: port.drive(port.send(post(URL))), range(3))))

    async def flow() -> int:
        count: int = await port.call(function)
        return count

    assert port.drive(flow()) == 3


def test_when_nothing_can_ever_happen_that_is_said() -> None:
    port = Replay()

    async def flow() -> None:
        await port.signal().wait()

    with pytest.raises(Deadlock):
        port.drive(flow())


def test_a_flow_that_waits_for_something_else_is_an_error() -> None:
    port = Replay()

    class Foreign:
        def __await__(self) -> Any:
            yield "something"

    async def flow() -> None:
        await Foreign()

    with pytest.raises(RuntimeError, match="something else than its port"):
        port.drive(flow())


def test_a_job_that_nobody_waited_for_is_reported() -> None:
    port = Replay()
    cleaned: list[str] = []

    async def child() -> None:
        try:
            await port.sleep(100)
        finally:
            cleaned.append("yes")

    async def flow() -> None:
        port.start(child())
        await port.sleep(1)

    port.drive(flow())
    assert cleaned == ["yes"]
    with pytest.raises(AssertionError, match="1 jobs were left running"):
        port.check()


def test_advancing_by_hand_wakes_who_waits_on_the_way() -> None:
    port = Replay()
    woken: list[float] = []

    async def main() -> None:
        async def nap(seconds: float) -> None:
            await port.sleep(seconds)
            woken.append(seconds)

        tasks = [asyncio.ensure_future(nap(s)) for s in (3.0, 1.0, 9.0)]
        blocker = threading.Event()
        busy = asyncio.ensure_future(port.call(blocker.wait, 5))  # keeps the clock from jumping by itself
        await asyncio.sleep(0.02)
        assert port.now() == 0.0
        port.advance(5.0)
        await asyncio.sleep(0.02)
        assert (port.now(), woken) == (5.0, [1.0, 3.0])
        blocker.set()
        await busy
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert (port.now(), woken) == (9.0, [1.0, 3.0, 9.0])
    port.close()


def test_a_day_of_waiting_costs_nothing(run: Runner) -> None:
    port = Replay().on(None, Answer(delay=1, body={"ok": True}), times=None)

    async def flow() -> float:
        for _ in range(1000):
            reply = await port.send(post(URL), port.now() + 60)
            assert msgspec.json.decode(reply.body) == {"ok": True}
            await port.sleep(85.4)
        return port.now()

    assert run(port, flow()) == pytest.approx(86_400)
