"""Loops that stream: the events, the same reply at the end, and that leaving early stops everything."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import llmbroker
from llmbroker.errors import ServerError, StreamInterruptedError, ToolLoopLimitError
from llmbroker.exchange import TextDelta, Usage
from llmbroker.loop import (
    CallReady,
    FailedOver,
    LoopFinished,
    StepFinished,
    StepStarted,
    StepUsage,
    ToolFinished,
    ToolProgress,
    ToolStarted,
)
from llmbroker.testing import Answer, Replay, content_type, made_reply, stream
from llmbroker.tools import ToolContext, tool

DIALECTS = ["openai-chat", "openai-responses", "anthropic", "gemini", "ollama"]


def scripted(dialect: str, *replies: Any, fault: Any = None) -> Replay:
    port = Replay()
    for number, reply in enumerate(replies):
        body = stream(reply, dialect, size=4)
        last = number == len(replies) - 1
        how = {"content-type": content_type(dialect, stream=True)}
        port.on(
            None, Answer(headers=how, body=body[: len(body) // 2] if last and fault else body, fault=fault if last else None)
        )
    return port


def client(port: Replay, dialect: str, kind: str = "blocking") -> Any:
    make = llmbroker.DirectClient if kind == "blocking" else llmbroker.AsyncDirectClient
    return make(base_url="http://scripted.example/v1", model="m", dialect=dialect, io=port)


def weather(city: str) -> str:
    """Tell the weather."""
    return f"20 in {city}"


def watched(kind: str, caller: Any, messages: Any, events: list[Any], **more: Any) -> Any:
    """Run a streamed loop to its end on one face; return its reply."""
    if kind == "blocking":
        face = llmbroker.stream_tool_loop(caller, messages, **more)
        events.extend(face)
        return face.reply

    async def read() -> Any:
        face = llmbroker.astream_tool_loop(caller, messages, **more)
        async for event in face:
            events.append(event)
        return face.reply

    return asyncio.run(read())


KINDS = ["blocking", "asyncio"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_events_come_in_order_and_the_reply_is_that_of_the_whole_loop(dialect: str, kind: str) -> None:
    replies = [made_reply("I look.", [("weather", {"city": "Paris"})]), made_reply("It is 20 degrees.")]
    port, events = scripted(dialect, *replies), []
    reply = watched(kind, client(port, dialect, kind), "How warm is it?", events, tools=[weather])
    assert reply.text == "It is 20 degrees."
    assert [type(e) for e in events if not isinstance(e, TextDelta)] == [
        StepStarted, StepUsage, CallReady, ToolStarted, ToolFinished, StepFinished, StepStarted, StepUsage, StepFinished,
        LoopFinished,
    ]  # fmt: skip
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "I look.It is 20 degrees."
    assert sum(isinstance(e, TextDelta) for e in events) >= 4
    (ready,) = [e for e in events if isinstance(e, CallReady)]
    assert (ready.name, ready.arguments, ready.step) == ("weather", {"city": "Paris"}, 1)
    (done,) = [e for e in events if isinstance(e, ToolFinished)]
    assert (done.result, done.error) == ("20 in Paris", None)
    assert [row.result for row in reply.tool_history] == ["20 in Paris"]
    assert reply.tool_loop.model_calls == 2
    port.check()


def test_the_same_history_is_sent_whole_and_streamed() -> None:
    replies = [made_reply("", [("weather", {"city": "Paris"})]), made_reply("Done.")]
    port = scripted("openai-chat", *replies)
    reply = watched("blocking", client(port, "openai-chat"), "Hi", [], tools=[weather])
    whole = Replay()
    for made in replies:
        whole.on(None, Answer(headers={"content-type": "application/json"}, body=llmbroker.testing.whole(made, "openai-chat")))
    other = llmbroker.run_tool_loop(client(whole, "openai-chat"), "Hi", tools=[weather])
    assert list(reply.messages) == other.messages
    assert reply.tool_loop == other.tool_loop


@pytest.mark.parametrize("kind", KINDS)
def test_a_running_tool_tells_how_far_it_is_while_it_runs(kind: str) -> None:
    """On real threads and a real loop: the event comes before the tool has ended."""
    seen, go = [], threading.Event()

    def slow(n: int, ctx: ToolContext) -> str:
        ctx.progress({"done": 50})
        assert go.wait(5)
        return "ready"

    class Caller:
        def __init__(self) -> None:
            self.turns = [made_reply("", [("slow", {"n": 1})]), made_reply("Done.")]

        def chat(self, messages: Any, *, tools: Any = None) -> Any:
            return self.turns.pop(0)

    def note(event: Any) -> None:
        seen.append(event)
        if isinstance(event, ToolProgress):
            assert not go.is_set()
            go.set()

    if kind == "blocking":
        for event in llmbroker.stream_tool_loop(Caller(), "Hi", tools=[slow]):
            note(event)
    else:

        async def read() -> None:
            async for event in llmbroker.astream_tool_loop(Caller(), "Hi", tools=[slow]):
                note(event)

        asyncio.run(read())
    assert [type(e) for e in seen if isinstance(e, (ToolStarted, ToolProgress, ToolFinished))] == [
        ToolStarted, ToolProgress, ToolFinished
    ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", [StepStarted, TextDelta, CallReady, ToolStarted, ToolFinished, StepFinished])
def test_leaving_after_any_event_leaves_nothing_behind(kind: str, after: type) -> None:
    replies = [made_reply("I look around first.", [("weather", {"city": "Paris"})]), made_reply("It is 20 degrees.")]
    port = scripted("openai-chat", *replies)
    caller = client(port, "openai-chat", kind)
    if kind == "blocking":
        face = llmbroker.stream_tool_loop(caller, "Hi", tools=[weather])
        for event in face:
            if isinstance(event, after):
                break
        face.close()
    else:

        async def read() -> None:
            face = llmbroker.astream_tool_loop(caller, "Hi", tools=[weather])
            async for event in face:
                if isinstance(event, after):
                    break
            await face.close()
            assert len(asyncio.all_tasks()) == 1

        asyncio.run(read())
    assert port.open_streams == 0
    assert port._clock.abandoned == 0


@pytest.mark.parametrize("kind", KINDS)
def test_leaving_while_tools_run_cancels_them_and_waits_for_them(kind: str) -> None:
    ended: list[str] = []
    began = threading.Semaphore(0)

    async def forever(n: int) -> str:
        began.release()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(str(n))
        return ""

    class Caller:
        def chat(self, messages: Any, *, tools: Any = None) -> Any:
            return made_reply("", [("forever", {"n": 1}), ("forever", {"n": 2})])

    def both(events: list[Any]) -> bool:
        return sum(isinstance(e, ToolStarted) for e in events) == 2

    events: list[Any] = []
    if kind == "blocking":
        with llmbroker.stream_tool_loop(Caller(), "Hi", tools=[forever]) as face:
            for event in face:
                events.append(event)
                if both(events):
                    assert began.acquire(timeout=5)
                    assert began.acquire(timeout=5)
                    break
    else:

        async def read() -> None:
            async with llmbroker.astream_tool_loop(Caller(), "Hi", tools=[forever]) as face:
                async for event in face:
                    events.append(event)
                    if both(events):
                        await asyncio.sleep(0.01)
                        break
            assert len(asyncio.all_tasks()) == 1

        asyncio.run(read())
    assert sorted(ended) == ["1", "2"]


class _Turns:
    """A caller of one's own that asks for the tool ``long``, whole or awaited."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def chat(self, messages: Any, *, tools: Any = None) -> Any:
        made = made_reply("", [("long", {})])
        if self.kind == "blocking":
            return made

        async def wait() -> Any:
            return made

        return wait()


@pytest.mark.parametrize("kind", KINDS)
def test_a_tool_is_told_that_the_reader_left(kind: str) -> None:
    seen, over = [], threading.Event()

    def long(ctx: ToolContext) -> str:
        ctx.progress("begun")
        for _ in range(1000):
            if ctx.cancelled:
                seen.append("left")
                break
            over.wait(0.01)
        over.set()
        return "late"

    if kind == "blocking":
        for event in llmbroker.stream_tool_loop(_Turns(kind), "Hi", tools=[long]):
            if isinstance(event, ToolProgress):
                break
    else:

        async def read() -> None:
            face = llmbroker.astream_tool_loop(_Turns(kind), "Hi", tools=[long])
            async for event in face:
                if isinstance(event, ToolProgress):
                    break
            await face.close()

        asyncio.run(read())
    assert over.wait(5)
    assert seen == ["left"]


async def test_an_iterator_that_was_dropped_and_a_close_do_not_get_in_each_others_way() -> None:
    troubles: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, facts: troubles.append(facts))
    ended: list[str] = []

    async def long(ctx: ToolContext) -> str:
        ctx.progress("begun")
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.02)
            ended.append("ended")
        return ""

    for pause in (False, True):
        face = llmbroker.astream_tool_loop(_Turns("asyncio"), "Hi", tools=[long])
        async for event in face:
            if isinstance(event, ToolProgress):
                break
        if pause:
            await asyncio.sleep(0)  # the dropped iterator closes first
        ended.clear()
        await face.close()
        assert ended == ["ended"]
    await asyncio.sleep(0.05)
    assert troubles == []


def test_a_stream_that_was_never_read_sends_nothing_and_is_dropped_in_silence() -> None:
    port = Replay()
    llmbroker.stream_tool_loop(client(port, "openai-chat"), "Hi", tools=[weather]).close()
    del port
    llmbroker.stream_tool_loop(client(Replay(), "openai-chat"), "Hi", tools=[weather])


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_stream_raises_with_what_happened(kind: str) -> None:
    port = scripted(
        "openai-chat", made_reply("", [("weather", {"city": "P"})]), made_reply("A long answer it is."), fault="cut"
    )
    events: list[Any] = []
    with pytest.raises(StreamInterruptedError) as caught:
        watched(kind, client(port, "openai-chat", kind), "Hi", events, tools=[weather])
    assert caught.value.text
    assert [row.name for row in caught.value.tool_history] == ["weather"]
    assert caught.value.messages[-1]["role"] == "tool"
    assert port.open_streams == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_limit_of_steps_is_raised_after_its_events(kind: str) -> None:
    port, events = scripted("openai-chat", made_reply("", [("weather", {"city": "P"})])), []
    with pytest.raises(ToolLoopLimitError):
        watched(kind, client(port, "openai-chat", kind), "Hi", events, tools=[weather], max_steps=1)
    assert [type(e) for e in events] == [StepStarted, StepUsage, CallReady]


def test_a_failover_of_the_pool_is_told() -> None:
    port = Replay()
    port.on("/chat/completions", Answer(status=500, body={"error": {"message": "broken"}}))
    port.on(
        "/chat/completions",
        Answer(headers={"content-type": "text/event-stream"}, body=stream(made_reply("Hi."), "openai-chat")),
    )
    pool = [
        llmbroker.LLMConfig(name=name, model="m", base_url=f"http://{name}.example/v1", api_key_ref="")
        for name in ("one", "two")
    ]
    with llmbroker.Broker(pool=pool, journal=False, io=port) as broker:
        events = list(llmbroker.stream_tool_loop(broker, "Hi", tools=[weather]))
    (told,) = [e for e in events if isinstance(e, FailedOver)]
    assert told.llm_name in ("one", "two")


def test_a_refusal_that_the_same_model_was_spared_is_no_failover() -> None:
    error = {"message": "Unsupported parameter: 'seed'.", "code": "unsupported_parameter", "param": "seed"}
    port = Replay().on(None, Answer(status=400, body={"error": error}))
    port.on(None, Answer(headers={"content-type": "text/event-stream"}, body=stream(made_reply("Hi."), "openai-chat")))
    pool = [llmbroker.LLMConfig(name="one", model="m", base_url="http://one.example/v1", api_key_ref="")]
    with llmbroker.Broker(pool=pool, journal=False, io=port) as broker:
        events = list(llmbroker.stream_tool_loop(broker, "Hi", params={"seed": 1}))
    assert len(events[-1].reply.attempts) == 2
    assert [e for e in events if isinstance(e, FailedOver)] == []


def test_text_alone_can_be_read() -> None:
    port = scripted("openai-chat", made_reply("Good "), made_reply("x"))
    assert "".join(llmbroker.stream_tool_loop(client(port, "openai-chat"), "Hi", tools=[weather]).text()) == "Good "


def test_a_foreign_caller_is_watched_too_its_text_in_one_piece() -> None:
    class Caller:
        def chat(self, messages: Any, *, tools: Any = None) -> Any:
            return {"text": "whole", "tool_calls": None}

    events = list(llmbroker.stream_tool_loop(Caller(), "Hi"))
    assert [e.text for e in events if isinstance(e, TextDelta)] == []  # a mapping has no attribute text; its reply is the whole
    assert isinstance(events[-1], LoopFinished)


def test_an_error_of_the_caller_passes_through() -> None:
    class Caller:
        def chat(self, messages: Any, *, tools: Any = None) -> Any:
            raise ServerError("down")

    with pytest.raises(ServerError, match="down"):
        list(llmbroker.stream_tool_loop(Caller(), "Hi"))


def test_usage_and_cost_of_each_step_are_told() -> None:
    port, events = scripted("openai-chat", made_reply("Hi.", usage=Usage(7, 3, total_tokens=10))), []
    watched("blocking", client(port, "openai-chat"), "Hi", events, tools=[weather])
    (told,) = [e for e in events if isinstance(e, StepUsage)]
    assert told.usage is not None
    assert (told.usage.input_tokens, told.usage.output_tokens) == (7, 3)


def test_two_readers_at_once_are_refused() -> None:
    async def read() -> None:
        port = Replay()
        port.on(None, Answer(delay=5, body=b"{}"))
        face = llmbroker.astream_tool_loop(client(port, "openai-chat", "asyncio"), "Hi")
        await face._pump.next_events()
        one = asyncio.create_task(face._pump.next_events())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="one reader"):
            await face._pump.next_events()
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one

    asyncio.run(read())


def test_tools_still_are_functions() -> None:
    assert tool(weather)("Rome") == "20 in Rome"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_pause_ends_the_events_as_an_answer_does(dialect: str, kind: str) -> None:
    def free(city: str) -> str:
        """Tell the weather."""
        return f"20 in {city}"

    calls = [("free", {"city": "Rome"}), ("held", {"city": "Paris"})]
    port, events = scripted(dialect, made_reply("", calls)), []
    held = tool(weather, name="held", approval=True)
    reply = watched(kind, client(port, dialect, kind), "Hi", events, tools=[free, held])
    assert isinstance(reply, llmbroker.Paused)
    assert [type(event) for event in events[-3:]] == [ToolFinished, StepFinished, LoopFinished]
    assert events[-2].reply.tool_calls and [call.name for call in reply.pending] == ["held"]
    assert events[-1].reply is reply


@pytest.mark.parametrize("kind", KINDS)
def test_the_words_that_a_spent_budget_leaves_are_a_step_with_its_beginning_and_end(kind: str) -> None:
    port, events = scripted("openai-chat", made_reply("", [("weather", {"city": "Rome"})]), made_reply("Sunny.")), []
    budget = llmbroker.Budget(steps=1, at_limit="answer")
    reply = watched(kind, client(port, "openai-chat", kind), "Hi", events, tools=[weather], budget=budget)
    assert reply.text == "Sunny."
    begun, ended = ([event.step for event in events if isinstance(event, one)] for one in (StepStarted, StepFinished))
    assert begun == ended == [1, 2]
    assert type(events[-2]) is StepFinished and events[-2].reply.text == reply.text
