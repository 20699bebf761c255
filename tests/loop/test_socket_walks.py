"""The same random walks over real sockets: threads and an event loop, against a scripted server that breaks connections.

Beside what the walks of ``test_long_walks`` do, runs are cancelled, dropped without a word, and interrupted in the middle of a
tool. Nothing may be left between two lives: no task, no connection that is still in use, no thread at work.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.loop import test_long_walks as long

import llmbroker
from llmbroker.testing import FAULTS, ScriptedModel
from llmbroker.testing.server import Server
from llmbroker.transports.aio import AsyncIO
from llmbroker.transports.blocking import BlockingIO
from llmbroker.wire import HTTPRequest

WALKS = int(os.environ.get("LLMBROKER_WALKS", "40"))
PATIENT, HASTY = 10.0, 0.4
"""Seconds for an answer; the second where a stream stalls."""

quick = sorted(set(FAULTS) - {"stall", "never", "slow"})
faults = st.lists(st.none() | st.sampled_from(quick), max_size=6)
leaves = st.lists(st.none() | st.integers(0, 12), min_size=2, max_size=8)
manners = st.lists(st.sampled_from(["close", "cancel", "drop"]), min_size=2, max_size=8)


class Many(ScriptedModel):
    """One server for all walks: each has a path of its own, so that a request that comes late reaches no other walk."""

    def __init__(self) -> None:
        super().__init__()
        self.walks: dict[str, ScriptedModel] = {}

    def answer(self, request: HTTPRequest) -> Any:
        return self.walks[request.url.split("/")[1]].answer(request)


class SocketWalk(long.Walk):
    """One run over all its lives, on a real port."""

    numbers = itertools.count()
    server: Server
    many: Many

    def __init__(self, *given: Any, manners: Any, interrupt: int, stall: int | None) -> None:
        turns, faults, *others = given
        faults = list(faults)
        if stall is not None:
            faults[stall:stall] = ["stall" if stall % 2 else "never"]
        self.timeout = PATIENT if stall is None else HASTY
        self.manners, self.interrupt = list(manners), interrupt
        super().__init__(turns, faults, *others)

    def connect(self, make: Any, dialect: str) -> None:
        name = f"walk{next(self.numbers)}"
        self.many.walks[name] = self.model
        self.real = BlockingIO() if make is llmbroker.DirectClient else AsyncIO()
        self.name = name
        url = f"{self.server.url}/{name}/v1"
        self.caller = make(base_url=url, model="m", dialect=dialect, io=self.real, timeout=self.timeout)

    def tools(self) -> list[Any]:
        made = super().tools()
        plain = made[0]

        def interrupted(n: int, ctx: llmbroker.ToolContext) -> str:
            said: str = plain(n, ctx)
            self.interrupt -= 1
            if self.interrupt == 0:
                raise KeyboardInterrupt
            return said

        return [llmbroker.tool(interrupted, name="plain"), *made[1:]]

    def life(self, begun: Any, answers: Any) -> Any:
        self.manner = self.manners.pop(0) if self.manners else "close"
        try:
            return super().life(begun, answers)
        except (KeyboardInterrupt, asyncio.CancelledError):
            return None

    def _read(self, begun: Any, how: Any, leave: int | None) -> Any:
        if self.manner == "close":
            return super()._read(begun, how, leave)
        face = llmbroker.stream_tool_loop(self.caller, begun, **how)
        for number, _ in enumerate(face):
            if number == leave:
                return None  # nobody closes it
        return face.reply

    async def _aread(self, begun: Any, how: Any, leave: int | None) -> Any:
        if self.manner == "close":
            return await super()._aread(begun, how, leave)
        if self.manner == "cancel":
            return await self._cancelled(begun, how, leave)
        face = llmbroker.astream_tool_loop(self.caller, begun, **how)
        number = 0
        async for _ in face:
            if number == leave:
                break
            number += 1
        else:
            return face.reply
        del face
        for _ in range(1000):  # it closes itself as soon as the event loop runs
            if len(asyncio.all_tasks()) == 1:
                break
            await asyncio.sleep(0.005)
        assert len(asyncio.all_tasks()) == 1
        return None

    async def _cancelled(self, begun: Any, how: Any, leave: int | None) -> Any:
        async def read() -> Any:
            face = llmbroker.astream_tool_loop(self.caller, begun, **how)
            number = 0
            async for _ in face:
                if number == leave:
                    task.cancel()  # whatever it waits for next is ended: a model, a tool, or nothing at all
                number += 1
            return face.reply

        task = asyncio.create_task(read())
        try:
            return await task
        finally:
            assert len(asyncio.all_tasks()) == 1

    def left(self) -> None:
        """Nothing is at work between two lives."""

    def walk(self) -> None:
        try:
            super().walk()
        finally:
            if isinstance(self.real, BlockingIO):
                self.real.close()
            else:
                asyncio.run(self.real.aclose())
            del self.many.walks[self.name]


@pytest.fixture(scope="module")
def served() -> Iterator[Server]:
    before = threading.active_count()
    SocketWalk.many = Many()
    with SocketWalk.many.serve() as server:
        SocketWalk.server = server
        yield server
    for _ in range(1500):
        if threading.active_count() <= before:
            break
        time.sleep(0.01)
    assert threading.active_count() <= before, [thread.name for thread in threading.enumerate()]
    assert server.failures == []


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
@settings(max_examples=WALKS, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    long.turns.filter(bool),
    faults,
    leaves,
    st.lists(st.booleans(), max_size=6),
    long.budgets,
    st.sampled_from(long.DIALECTS),
    manners,
    st.sampled_from([0, 0, 0, 1, 2, 3]),
    st.sampled_from([*[None] * 17, 0, 1, 2]),
)
def test_a_run_over_sockets_that_is_left_in_any_way_goes_on_to_its_end(
    served: Server, kind: str, turns: Any, faults: Any, leaves: Any, verdicts: Any, budget: Any, dialect: str,
    manners: Any, interrupt: int, stall: int | None,
) -> None:  # fmt: skip
    walk = SocketWalk(turns, faults, leaves, verdicts, budget, dialect, kind, manners=manners, interrupt=interrupt, stall=stall)
    walk.walk()
