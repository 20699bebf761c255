"""Random walks through streamed, bounded, paused, broken loops: a run left in any way goes on, promises kept."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import llmbroker
from llmbroker.budget import Budget
from llmbroker.errors import BudgetError, LLMBrokerError
from llmbroker.loop import Paused
from llmbroker.messages import validate
from llmbroker.testing import FAULTS, ScriptedModel, made_reply
from llmbroker.testing.faults import applicable
from llmbroker.tools import ToolContext, tool

WALKS = int(os.environ.get("LLMBROKER_WALKS", "120"))
LIVES = 25
DIALECTS = ["openai-chat", "openai-responses", "anthropic", "gemini", "ollama"]

calls = st.lists(
    st.tuples(st.sampled_from(["plain", "plain", "asks", "fails", "slow", "queue", "nobody"]), st.integers(0, 99)),
    min_size=1,
    max_size=4,
)
turns = st.lists(calls, max_size=5)
faults = st.lists(st.none() | st.sampled_from(sorted(FAULTS)), max_size=6)
leaves = st.lists(st.none() | st.integers(0, 12), max_size=8)
budgets = st.none() | st.builds(
    Budget,
    steps=st.none() | st.integers(1, 4),
    tool_calls=st.none() | st.integers(0, 4),
    result_characters=st.none() | st.integers(10, 60),
    at_limit=st.sampled_from(["raise", "stop", "answer"]),
)


class Walk:
    """One run over all its lives."""

    def __init__(self, turns: Any, faults: Any, leaves: Any, verdicts: Any, budget: Any, dialect: str, kind: str) -> None:
        usable = [name if name is None or applicable(FAULTS[name], dialect, True) else None for name in faults]
        steps = [made_reply("I look. ", [(name, {"n": n}) for name, n in turn]) for turn in turns]
        self.model = ScriptedModel(*steps, *[made_reply("The end.")] * 80, faults=usable)
        self.connect(llmbroker.DirectClient if kind == "blocking" else llmbroker.AsyncDirectClient, dialect)
        self.kind, self.leaves, self.verdicts, self.budget = kind, list(leaves), list(verdicts), budget
        self.finished: set[str] = set()
        self.kept: dict[str, Any] = {}
        self.ran = 0

    def connect(self, make: Any, dialect: str) -> None:
        """Make the caller."""
        self.port = self.model.port()
        self.caller = make(base_url="http://walk.example/v1", model="m", dialect=dialect, io=self.port, timeout=5)

    def left(self) -> None:
        """Nothing is open between two lives."""
        assert self.port.open_streams == 0

    def tools(self) -> list[Any]:
        def begun(ctx: ToolContext) -> None:
            assert ctx.call_id not in self.finished, "a call that has its result ran again"
            self.ran += 1

        def plain(n: int, ctx: ToolContext) -> str:
            begun(ctx)
            ctx.progress(n)
            return f"plain {n}"

        async def slow(n: int, ctx: ToolContext) -> int:
            begun(ctx)
            await asyncio.sleep(0)
            return n

        def fails(n: int, ctx: ToolContext) -> str:
            begun(ctx)
            raise ValueError(str(n))

        @tool(approval=lambda n: n % 2 == 0)
        def asks(n: int, ctx: ToolContext) -> str:
            begun(ctx)
            return f"asked {n}"

        @tool(group="g", retries=1, backoff=0.0)
        def queue(n: int, ctx: ToolContext) -> str:
            begun(ctx)
            return f"queue {n}"

        return [plain, slow, fails, asks, queue]

    def life(self, begun: Any, answers: Any) -> Any:
        """Run until it ends, is left or breaks; return a reply, a ``Paused``, or None where it was cut short."""
        leave = self.leaves.pop(0) if self.leaves else None
        before = self.ran
        how = {"tools": self.tools(), "answers": answers, "transcript": self.kept, "budget": self.budget, "max_steps": 30}
        try:
            if self.kind == "blocking":
                return self._read(begun, how, leave)
            return asyncio.run(self._aread(begun, how, leave))
        except BudgetError:
            self.budget = None
            return None
        except LLMBrokerError:
            return None
        finally:
            if self.budget is not None and self.budget.tool_calls is not None:
                assert self.ran - before <= self.budget.tool_calls * 2  # a retry is a second run of one call

    def _read(self, begun: Any, how: Any, leave: int | None) -> Any:
        with llmbroker.stream_tool_loop(self.caller, begun, **how) as face:
            for number, _ in enumerate(face):
                if number == leave:
                    return None
        return face.reply

    async def _aread(self, begun: Any, how: Any, leave: int | None) -> Any:
        async with llmbroker.astream_tool_loop(self.caller, begun, **how) as face:
            number = 0
            async for _ in face:
                if number == leave:
                    return None
                number += 1
        assert len(asyncio.all_tasks()) == 1
        return face.reply

    def walk(self) -> None:
        begun: Any = "Go."
        answers: Any = None
        for _ in range(LIVES):
            end = self.life(begun, answers)
            messages = self.kept["messages"]
            self.check(messages)
            answers = None
            if isinstance(end, Paused):
                end = begun = Paused.from_json(end.to_json())
                verdicts = [self.verdicts.pop(0) if self.verdicts else True for _ in end.pending]
                answers = [c.approve() if yes else c.reject("no") for c, yes in zip(end.pending, verdicts, strict=True)]
            elif end is not None:
                assert end.text in ("The end.", "I look. ") or end.tool_loop.stop == "budget" or end.finish_reason == "length"
                assert validate(messages) == []
                return
            else:
                begun = messages
        raise AssertionError("the run never ended")

    def check(self, messages: Any) -> None:
        assert [fault for fault in validate(messages) if not fault.startswith("at the end:")] == []
        results = [m["tool_call_id"] for m in messages if m["role"] == "tool"]
        assert len(results) == len(set(results))
        self.finished = set(results)
        self.left()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
@settings(max_examples=WALKS, deadline=None, suppress_health_check=list(HealthCheck))
@given(turns, faults, leaves, st.lists(st.booleans(), max_size=6), budgets, st.sampled_from(DIALECTS))
def test_a_run_that_is_left_in_any_way_goes_on_to_its_end(
    kind: str, turns: Any, faults: Any, leaves: Any, verdicts: Any, budget: Any, dialect: str
) -> None:
    Walk(turns, faults, leaves, verdicts, budget, dialect, kind).walk()
