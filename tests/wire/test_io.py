"""``drive`` runs a flow to its end without a loop; ``gather`` keeps order and cap, and leaves no flow alive after a failure."""

from __future__ import annotations

import contextlib
import gc
import inspect
import random
from collections.abc import Iterator
from typing import Any

import pytest

from llmbroker import io
from llmbroker.loop.watch import Watch
from llmbroker.transports._threads import Cancelled, ThreadJob
from llmbroker.transports.blocking import BlockingIO
from llmbroker.transports.replay import Replay


class Forever:
    """An await that suspends: no port does that to plain code."""

    def __await__(self) -> Iterator[None]:
        yield


async def value(of: int) -> int:
    return of


async def broken(text: str) -> int:
    raise ValueError(text)


def test_drive_returns_what_the_flow_returns() -> None:
    assert io.drive(value(3)) == 3


def test_drive_raises_what_the_flow_raises() -> None:
    with pytest.raises(ValueError, match="gone"):
        io.drive(broken("gone"))


def test_a_flow_that_suspends_under_a_port_that_cannot_wait_is_closed_and_named() -> None:
    closed = []

    async def flow() -> None:
        try:
            await Forever()
        finally:
            closed.append(True)

    with pytest.raises(RuntimeError, match="only methods of the port"):
        io.drive(flow())
    assert closed == [True]


@pytest.fixture(params=["blocking", "replay"])
def port(request: pytest.FixtureRequest) -> Iterator[io.Port]:
    made: io.Port = BlockingIO() if request.param == "blocking" else Replay()
    yield made
    made.close()


@pytest.mark.parametrize("limit", [None, 1, 3, 100])
def test_results_come_in_the_order_given_whoever_ends_first(limit: int | None) -> None:
    port = Replay()
    dice = random.Random(7)

    async def flow(number: int) -> int:
        await port.sleep(dice.random())
        return number

    async def all_of_them() -> list[int | BaseException]:
        return await io.gather(port, [flow(number) for number in range(20)], limit)

    assert port.drive(all_of_them()) == list(range(20))
    port.close()


def test_no_more_run_at_once_than_the_cap_allows() -> None:
    port = Replay()
    running, most = 0, 0

    async def flow() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await port.sleep(1.0)
        running -= 1

    port.drive(io.gather(port, [flow() for _ in range(9)], 3))
    assert most == 3
    port.close()


def test_a_failure_is_a_value_beside_the_others(port: io.Port) -> None:
    results = port.drive(io.gather(port, [value(1), broken("two"), value(3)]))
    assert (results[0], str(results[1]), results[2]) == (1, "two", 3)
    assert isinstance(results[1], ValueError)


def test_one_flow_alone_behaves_as_many(port: io.Port) -> None:
    (result,) = port.drive(io.gather(port, [broken("alone")]))
    assert isinstance(result, ValueError)


def test_nothing_to_do_is_done_at_once(port: io.Port) -> None:
    assert port.drive(io.gather(port, [])) == []


class Stop(BaseException):
    """What must not be swallowed, as KeyboardInterrupt must not."""


def test_an_interruption_ends_the_others_and_comes_out(port: io.Port) -> None:
    ended = []

    async def slow() -> None:
        try:
            await port.sleep(3600.0)
        finally:
            ended.append(True)

    async def stop() -> None:
        await port.sleep(0.01)
        raise Stop

    with pytest.raises(Stop):
        port.drive(io.gather(port, [slow(), stop(), slow()], 2))
    assert ended == [True]


class Late(BlockingIO):
    """Its jobs are cancelled before their first step, as on a machine whose threads wait long for their turn."""

    def start(self, flow: Any) -> Any:
        job: ThreadJob[Any] = ThreadJob(flow)
        job.cancel()
        job.run()
        return job


class Busy(BlockingIO):
    """The first of its jobs is interrupted; the others begin when all is over."""

    def __init__(self) -> None:
        super().__init__()
        self.late: list[ThreadJob[Any]] = []

    def start(self, flow: Any) -> Any:
        job: ThreadJob[Any] = ThreadJob(flow)
        if self.late:
            self.late.append(job)
        else:
            self.late.append(job)
            job.run()
        return job


async def interrupted() -> int:
    raise KeyboardInterrupt


@pytest.mark.parametrize("watched", [False, True], ids=["gathered", "gathered for somebody who watches"])
def test_flows_whose_jobs_never_began_are_closed(watched: bool) -> None:
    """Else they would be reported as never awaited, which fails this test."""
    port = Late()
    flows = [value(n) for n in range(3)]
    gathering = Watch(port).gather(flows, 8) if watched else io.gather(port, flows)
    with contextlib.suppress(Cancelled):
        port.drive(gathering)
    assert [inspect.getcoroutinestate(flow) for flow in flows] == ["CORO_CLOSED"] * 3
    del flows, gathering
    gc.collect()
    port.close()


def test_a_job_that_begins_after_all_is_over_finds_its_flow_closed() -> None:
    port = Busy()
    flows = [interrupted(), value(1), value(2)]
    with pytest.raises(KeyboardInterrupt):
        port.drive(io.gather(port, flows))
    assert [inspect.getcoroutinestate(flow) for flow in flows] == ["CORO_CLOSED"] * 3
    for job in port.late[1:]:
        job.run()
    del flows, job
    port.late.clear()
    gc.collect()
    port.close()
