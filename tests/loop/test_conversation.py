"""Conversations: kept from question to question, saved, loaded, forked, whole after a fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.loop.scripted import AsyncScripted, Scripted, calls, says

from llmbroker.conversation import Conversation
from llmbroker.errors import InvalidRequestError, ServerError
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
