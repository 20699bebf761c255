"""Random walks: whatever a model, its provider and the tools do, the promises of the loop hold."""

from __future__ import annotations

import asyncio
import json
import os
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.loop.scripted import AsyncScripted, Scripted, calls, declare, says

from llmbroker.errors import MalformedCallError, ServerError, ToolLoopLimitError
from llmbroker.exchange import Usage
from llmbroker.loop import Transcript, arun_tool_loop, run_tool_loop
from llmbroker.messages import validate

WALKS = int(os.environ.get("LLMBROKER_WALKS", "250"))
"""Walks on each port; ``make walks`` takes thousands."""

TOOLS = [
    declare("good", {"n": {"type": "integer"}}),
    declare("bad", {}),
    declare("slow", {"n": {"type": "integer"}}),
    declare("none"),
]
WHOLE = ["{}", '{"n": 1}', '{"n": "2"}', "", "null", "{'n': 3,}", '"{\\"n\\": 4}"', "```json\n{}\n```"]
BROKEN = [
    '{"n": ',
    '{"n": 1',
    "[1]",
    "nonsense",
    '{"n": 1, "n": 2}',
    '{"n": NaN}',
    '{"n": "x"}',
    '{"m": 1}',
    '{"n": {}}',
    '"\\ud83d"',
]

names = st.sampled_from(["good", "good", "bad", "slow", "none", "nobody", "", "go od", "__class__", "x" * 90])
texts = st.sampled_from(WHOLE + BROKEN) | st.text(max_size=6)
ids = st.sampled_from(["a", "a", "b", "", "c d", "é" * 70]) | st.uuids().map(str)
given_calls = st.lists(st.tuples(names, texts, ids), min_size=1, max_size=4)
finishes = st.sampled_from(["tool_calls"] * 6 + ["stop", "unknown", "length", "content_filter", "refusal", "error"])
raws = st.sampled_from([None, None, "pause_turn", "MALFORMED_FUNCTION_CALL"])
usages = st.sampled_from([None, Usage(3, 4), Usage(5)])


def foreign(parts: Any) -> Any:
    made = [SimpleNamespace(id=identity or None, function={"name": name, "arguments": text}) for name, text, identity in parts]
    return SimpleNamespace(text="", tool_calls=made)


turns = st.one_of(
    st.builds(
        lambda parts, finish, raw, usage: calls(*parts, finish=finish, raw=raw, usage=usage),
        given_calls,
        finishes,
        raws,
        usages,
    ),
    st.builds(foreign, given_calls),
    st.builds(lambda finish, raw, usage: says("part", finish, raw, usage), finishes, raws, usages),
    st.sampled_from([MalformedCallError("no", generation="<x>"), ServerError("down")]),
)
scripts = st.lists(turns, max_size=6).map(lambda given: [*given, *[says("end")] * 12])


class World:
    """The tools, and what they were called with."""

    def __init__(self, interrupt: int) -> None:
        self.ran: list[Any] = []
        self.interrupt = interrupt

    def good(self, n: int = 0) -> str:
        self.ran.append(n)
        if len(self.ran) == self.interrupt:
            raise KeyboardInterrupt
        return f"good {n}"

    def bad(self) -> str:
        self.ran.append(None)
        raise ValueError("bad")

    async def slow(self, n: int = 0) -> str:
        self.ran.append(n)
        await asyncio.sleep(0)
        return ""

    def dispatch(self) -> dict[str, Any]:
        return {"good": self.good, "bad": self.bad, "slow": self.slow}


def check(messages: list[dict[str, Any]], *, left: bool) -> None:
    """The history is valid; only where the loop was left may calls be open, and only those of the last turn."""
    faults = validate(messages)
    assert left or faults == []
    assert all(fault.startswith("at the end: call ") for fault in faults)
    for index, message in enumerate(messages):
        wanted = [call["id"] for call in message.get("tool_calls") or ()]
        got = []
        for later in messages[index + 1 :]:
            if later["role"] != "tool":
                break
            got.append(later["tool_call_id"])
        if wanted:
            assert got == (
                wanted if not (left and faults) or index + len(got) + 1 < len(messages) else [i for i in wanted if i in got]
            )


@pytest.mark.parametrize("face", ["blocking", "asyncio"])
@settings(max_examples=WALKS, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(script=scripts, steps=st.integers(1, 6), interrupt=st.sampled_from([0, 0, 0, 1, 2]))
def test_the_promises_hold_on_every_walk(face: str, script: list[Any], steps: int, interrupt: int) -> None:
    world = World(interrupt)
    messages: Any = "go"
    rows = model_calls = 0
    for _ in range(30):
        caller = (Scripted if face == "blocking" else AsyncScripted)(*script)
        transcript = Transcript()
        more: dict[str, Any] = {"tools": TOOLS, "dispatch": world.dispatch(), "max_steps": steps, "transcript": transcript}
        left = True
        try:
            if face == "blocking":
                run_tool_loop(caller, messages, **more)
            else:
                asyncio.run(arun_tool_loop(caller, messages, **more))
            left = False
        except (ToolLoopLimitError, MalformedCallError, ServerError, KeyboardInterrupt) as error:
            assert getattr(error, "messages", transcript.messages) == transcript.messages
        check(transcript.messages, left=left)
        for sent in caller.sent:
            check(sent, left=False)
        rows += len(transcript.tool_history)
        model_calls += len(caller.sent)
        assert transcript.tool_loop.model_calls == len(caller.sent) <= steps
        assert transcript.tool_loop.tool_calls == len(transcript.tool_history)
        messages, script = transcript.messages, caller.turns
        if not left:
            break
    else:
        raise AssertionError("the walk does not end")
    assert sum(message["role"] == "tool" for message in messages) == rows
    assert all(isinstance(n, int) or n is None for n in world.ran)
    for message in messages:
        for call in message.get("tool_calls") or ():
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
        if message["role"] == "tool":
            assert message["content"]
