"""Conversations: kept from question to question, saved, loaded, forked, whole after a fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.loop.scripted import AsyncScripted, Scripted, calls, says

from llmbroker.conversation import Conversation
from llmbroker.errors import InvalidRequestError, ServerError, ToolLoopLimitError
from llmbroker.tools import tool


def echo(n: int) -> int:
    return n


def test_each_question_sees_what_was_said_before() -> None:
    talk = Conversation(system="Be short.", tools=[echo])
    caller = Scripted(calls(("echo", '{"n": 1}')), says("one"), says("two"))
    assert talk.ask(caller, "First?").text == "one"
    assert talk.ask(caller, "Second?").text == "two"
    assert [m["role"] for m in caller.sent[-1]] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert [m["role"] for m in talk.messages][-1] == "assistant"
    assert talk.faults() == []


async def test_the_awaited_twin_does_the_same() -> None:
    talk = Conversation(tools=[echo])
    caller = AsyncScripted(calls(("echo", '{"n": 1}')), says("one"))
    assert (await talk.aask(caller, "First?")).text == "one"
    assert len(talk) == 4


def test_a_stream_is_kept_when_it_was_read() -> None:
    talk = Conversation(tools=[echo])
    events = list(talk.stream(Scripted(calls(("echo", '{"n": 1}')), says("one")), "First?"))
    assert events
    assert len(talk) == 4


def test_a_fault_leaves_it_whole_and_the_next_question_goes_on() -> None:
    talk = Conversation(tools=[echo])
    caller = Scripted(calls(("echo", '{"n": 1}')), ServerError("down"), says("one"))
    with pytest.raises(ServerError):
        talk.ask(caller, "First?")
    assert [m["role"] for m in talk.messages] == ["user", "assistant", "tool"]
    assert talk.ask(caller).text == "one"
    assert talk.faults() == []


def test_it_is_saved_and_loaded_with_a_run_that_waits(tmp_path: Path) -> None:
    @tool(approval=True)
    def risky(n: int) -> str:
        return "done"

    talk = Conversation(tools=[risky])
    talk.ask(Scripted(calls(("risky", '{"n": 1}'))), "Do it.")
    assert talk.paused is not None
    talk.save(tmp_path / "talk.json")
    again = Conversation.load(tmp_path / "talk.json", tools=[risky])
    assert again.paused == talk.paused
    assert again.paused is not None
    assert again.ask(Scripted(says("ok")), answers=again.paused.approve_all()).text == "ok"
    assert again.paused is None
    assert [p.name for p in tmp_path.iterdir()] == ["talk.json"]


def test_a_fork_goes_its_own_way() -> None:
    talk = Conversation("Hi")
    fork = talk.fork()
    fork.ask(Scripted(says("hello")))
    assert (len(talk), len(fork)) == (1, 2)


@pytest.mark.parametrize("text", ["", "[]", '{"messages": 3}', '{"messages": [], "format": 99}'])
def test_what_is_no_conversation_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        Conversation.from_json(text)


def test_it_says_what_it_is() -> None:
    made: Any = Conversation("Hi")
    assert repr(made) == "Conversation(1 messages)"


def _left_open(tools: list[Any]) -> Conversation:
    talk = Conversation(tools=tools)
    with pytest.raises(ToolLoopLimitError):
        talk.ask(Scripted(calls(("echo", '{"n": 1}'))), "First?", max_steps=1)
    return talk


def test_the_next_question_comes_after_the_calls_that_were_left_open_and_they_are_run() -> None:
    talk = _left_open([echo])
    caller = Scripted(says("one"))
    assert talk.ask(caller, "And now?").text == "one"
    assert [(m["role"], m.get("content")) for m in caller.sent[0]] == [
        ("user", "First?"), ("assistant", None), ("tool", "1"), ("user", "And now?"),
    ]  # fmt: skip
    assert talk.faults() == []


async def test_open_calls_are_run_before_the_question_awaited_and_streamed_too() -> None:
    talk = _left_open([echo])
    assert (await talk.fork().aask(AsyncScripted(says("one")), "And now?")).text == "one"
    caller = Scripted(says("one"))
    list(talk.stream(caller, "And now?"))
    assert [m["role"] for m in caller.sent[0]] == ["user", "assistant", "tool", "user"]
    assert talk.faults() == []


def test_a_question_to_a_conversation_that_waits_for_a_decision_needs_the_decision() -> None:
    @tool(approval=True)
    def risky(n: int) -> str:
        return "done"

    talk = Conversation(tools=[risky])
    talk.ask(Scripted(calls(("risky", '{"n": 1}'))), "Do it.")
    with pytest.raises(InvalidRequestError, match=r"1 call\(s\) wait for a decision: risky.*answers="):
        talk.ask(Scripted(), "And then?")
    assert talk.paused is not None
    caller = Scripted(says("ok"))
    assert talk.ask(caller, "And then?", answers=talk.paused.approve_all()).text == "ok"
    assert [m.get("content") for m in caller.sent[0]] == ["Do it.", None, "done", "And then?"]
    assert talk.faults() == []


def test_caller_and_question_the_wrong_way_round_are_told_apart() -> None:
    with pytest.raises(InvalidRequestError, match="the caller comes first"):
        Conversation().ask("Hi", Scripted())


async def test_a_stream_that_pauses_leaves_the_paused_run_with_the_conversation() -> None:
    @tool(approval=True)
    def risky(n: int) -> str:
        return "done"

    for awaited in (False, True):
        talk = Conversation(tools=[risky])
        turn = calls(("risky", '{"n": 1}'))
        if awaited:
            assert [event async for event in talk.astream(AsyncScripted(turn), "Do it.")]
        else:
            assert list(talk.stream(Scripted(turn), "Do it."))
        assert talk.paused is not None
        assert talk.ask(Scripted(says("ok")), answers=talk.paused.approve_all()).text == "ok"
        assert talk.faults() == []
