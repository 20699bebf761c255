"""``broker.run``: the streamed loop from the broker itself, on both faces, as one user, with its rows."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
from tests.broker.worlds import ladder

import llmbroker
from llmbroker.errors import BudgetError, InvalidRequestError, ServerError
from llmbroker.exchange import TextDelta
from llmbroker.loop import LoopFinished, Paused, StepStarted, ToolFinished, ToolStarted
from llmbroker.testing import Answer, Replay, made_reply, stream

KINDS = ["blocking", "asyncio"]
CALL = made_reply("I look. ", [("weather", {"city": "Paris"})])


def weather(city: str) -> str:
    """Tell the weather."""
    return f"20 in {city}"


def world(*replies: Any) -> Replay:
    port = Replay()
    for reply in replies:
        body = stream(reply, "openai-chat")
        port.on(None, Answer(headers={"content-type": "text/event-stream"}, body=body))
    return port


def broker(kind: str, port: Replay) -> Any:
    make = llmbroker.Broker if kind == "blocking" else llmbroker.AsyncBroker
    return make(pool=ladder("a"), io=port, journal=":memory:")


def watched(kind: str, caller: Any, *given: Any, **more: Any) -> tuple[list[Any], Any, list[Any]]:
    """Run to the end; return events, reply and the caller's rows, the oldest first."""
    if kind == "blocking":
        face = caller.run(*given, **more)
        return list(face), face.reply, caller.calls()[::-1]

    async def read() -> Any:
        face = caller.run(*given, **more)
        return [event async for event in face], face.reply, (await caller.calls())[::-1]

    return asyncio.run(read())


@pytest.mark.parametrize("kind", KINDS)
def test_a_broker_runs_a_streamed_loop_and_journals_its_steps(kind: str) -> None:
    port = world(CALL, made_reply("It is 20 degrees."))
    caller = broker(kind, port)
    events, reply, rows = watched(kind, caller, "How warm?", tools=[weather], operation="sky", trace_id="t", wait=30)
    assert reply.text == "It is 20 degrees."
    assert [row.result for row in reply.tool_history] == ["20 in Paris"]
    kinds = [type(event) for event in events if not isinstance(event, TextDelta)]
    assert (kinds[0], kinds[-1]) == (StepStarted, LoopFinished)
    assert kinds.index(ToolStarted) < kinds.index(ToolFinished)
    assert [(row.operation, row.trace_id, row.scope, row.step) for row in rows] == [
        ("sky", "t", None, 1),
        ("sky", "t", None, 2),
    ]
    port.check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_scoped_broker_runs_it_as_its_user(kind: str) -> None:
    seen: list[Any] = []

    def who(ctx: llmbroker.ToolContext) -> str:
        seen.append(ctx.scope)
        return "you"

    caller = broker(kind, world(made_reply("", [("who", {})]), made_reply("You.")))
    _, reply, rows = watched(kind, caller.for_scope("alice"), "Who am I?", tools=[who])
    assert reply.text == "You."
    assert seen == ["alice"]
    assert [row.scope for row in rows] == ["alice", "alice"]


@pytest.mark.parametrize("kind", KINDS)
def test_it_pauses_goes_on_and_is_bounded_like_the_function(kind: str) -> None:
    @llmbroker.tool(approval=True)
    def risky() -> str:
        return "done"

    caller = broker(kind, world(made_reply("", [("risky", {})]), made_reply("Good."), CALL))
    _, paused, _ = watched(kind, caller, "Go.", tools=[risky])
    assert isinstance(paused, Paused)
    _, reply, _ = watched(kind, caller, paused, tools=[risky], answers=paused.approve_all())
    assert (reply.text, reply.tool_history[0].result) == ("Good.", "done")
    with pytest.raises(BudgetError):
        watched(kind, caller, "Go.", tools=[weather], budget=llmbroker.Budget(steps=1))


@pytest.mark.parametrize("kind", KINDS)
def test_leaving_it_early_leaves_nothing_behind(kind: str) -> None:
    port = world(CALL)
    caller = broker(kind, port)

    async def leave() -> None:
        async with caller.run("Go.", tools=[weather]) as face:
            async for _ in face:
                break

    if kind == "blocking":
        with caller.run("Go.", tools=[weather]) as face:
            next(iter(face))
            for event in face:
                if isinstance(event, TextDelta):
                    break
        assert face.reply is None
    else:
        asyncio.run(leave())
    assert port.open_streams == 0
    assert all(member.running == 0 for member in caller._engine.lanes.members)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_wrong_is_said_before_anything_is_sent_and_what_fails_while_it_is_read(kind: str) -> None:
    port = Replay().on(None, Answer(status=500, body={"error": {"message": "down"}}), times=None)
    caller = broker(kind, port)
    with pytest.raises(InvalidRequestError, match="max_steps"):
        caller.run("Go.", max_steps=0)
    assert port.requests == []
    with pytest.raises(llmbroker.LLMBrokerError) as caught:
        watched(kind, caller, "Go.", tools=[weather], wait=0)
    assert isinstance(caught.value, ServerError | llmbroker.NoLLMAvailableError)
    assert caught.value.messages == [{"role": "user", "content": "Go."}]


def test_its_arguments_are_those_of_the_loop_and_of_chat() -> None:
    """Names, order and defaults: whoever adds one to the loop or to chat adds it here."""
    pairs = (
        (llmbroker.Broker, llmbroker.stream_tool_loop),
        (llmbroker.AsyncBroker, llmbroker.astream_tool_loop),
    )
    for face, function in pairs:
        run = {name: p.default for name, p in inspect.signature(face.run).parameters.items()}
        loop = {name: p.default for name, p in inspect.signature(function).parameters.items() if p.kind is not p.VAR_KEYWORD}
        chat = {name: p.default for name, p in inspect.signature(face.chat).parameters.items()}
        assert run == {"self": inspect.Parameter.empty, **{k: v for k, v in loop.items() if k != "caller"}, **chat}
