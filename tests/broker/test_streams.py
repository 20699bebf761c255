"""Streams of the pool: failover until the first content, typed errors after it, slots given back however it ends."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from tests.broker.worlds import USAGE_CHUNK, Face, World, chunk, hang, ladder, member, ok, refuse, streamed

from llmbroker import (
    BadRequestError,
    InvalidRequestError,
    LLMBrokerError,
    LLMTimeoutError,
    NoLLMAvailableError,
    StreamInterruptedError,
)
from llmbroker.exchange import Finished, TextDelta
from llmbroker.transports.replay import Answer, sse

START = chunk("")


def events(*payloads: Any, done: bool = False, fault: Any = None) -> Answer:
    return Answer(headers={"content-type": "text/event-stream"}, body=sse(*payloads, done=done), fault=fault)


def test_a_stream_gives_text_and_then_the_whole_reply(face: Any) -> None:
    broker = face(World(a=streamed("Par", "is")), ladder("a"))
    pieces, stream = broker.read("hi")
    assert pieces == ["Par", "is"]
    reply = stream.reply
    assert (reply.text, reply.llm_name, reply.finish_reason) == ("Paris", "a", "stop")
    assert stream.usage.total_tokens == 10
    row = broker.rows()[0]
    assert (row.id, row.status, row.stream) == (reply.call_id, "ok", True)
    assert stream.call_id == row.id
    assert row.first_event_ms is not None


def test_a_stream_takes_messages_and_tools(face: Any) -> None:
    world = World(a=streamed("x"))
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    face(world, ladder("a")).read(messages=[{"role": "user", "content": "hi"}], tools=tools)
    assert world.bodies[0]["stream"] is True
    assert world.bodies[0]["tools"][0]["function"]["name"] == "f"


BEFORE_CONTENT = {
    "refused": Answer(fault="refuse"),
    "reset": Answer(fault="reset"),
    "429": refuse(429),
    "529": refuse(529),
    "401": refuse(401),
    "404": refuse(404),
    "not HTTP": Answer(fault="garbage"),
    "cut after the start": events(START, fault="cut"),
    "ends after the start": events(START),
    "ends at once": events(),
    "only the end mark": events(done=True),
    "error in the second event": events(START, {"error": {"message": "overloaded", "code": 529}}),
    "error as a whole JSON body": Answer(body={"error": {"message": "overloaded", "code": 503}}),
    "a payload that is not JSON": events(START, "{oops"),
    "empty with zero usage": events(START, chunk(finish="stop"), USAGE_CHUNK, done=True),
    "finish error": events(START, chunk(finish="error")),
}


@pytest.mark.parametrize("fault", BEFORE_CONTENT.values(), ids=BEFORE_CONTENT)
def test_a_fault_before_content_goes_to_the_next_model(face: Any, fault: Answer) -> None:
    world = World(a=fault, b=streamed("B"))
    broker = face(world, ladder("a", "b"))
    pieces, stream = broker.read("hi")
    assert pieces == ["B"]
    assert world.asked == ["a", "b"]
    assert [a.llm_name for a in stream.reply.attempts] == ["a", "b"]
    assert not broker.snapshot()["a"].available
    assert [(m, s == "ok") for m, s in broker.statuses()] == [("a", False), ("b", True)]


AFTER_CONTENT = {
    "cut": streamed("Par", fault="cut", end=False),
    "ends without a finish": streamed("Par", end=False),
    "error event": events(chunk("Par"), {"error": {"message": "overloaded", "code": 529}}),
    "a payload that is not JSON": events(chunk("Par"), "{oops"),
}


@pytest.mark.parametrize("fault", AFTER_CONTENT.values(), ids=AFTER_CONTENT)
def test_a_fault_after_content_is_a_typed_error_with_the_text_so_far(face: Any, fault: Answer) -> None:
    world = World(a=fault, b=streamed("B"))
    broker = face(world, ladder("a", "b"))
    with pytest.raises(StreamInterruptedError) as caught:
        broker.read("hi")
    assert caught.value.text == "Par"
    assert caught.value.pieces == ["Par"]  # type: ignore[attr-defined]
    assert world.asked == ["a"]
    assert broker.rows()[0].status in ("error", "unavailable")
    assert not broker.snapshot()["a"].available


def test_the_providers_words_reach_the_caller_of_a_broken_stream(face: Any) -> None:
    world = World(a=events(chunk("Par"), {"error": {"message": "GPU on fire", "code": 500}}))
    with pytest.raises(StreamInterruptedError, match="GPU on fire"):
        face(world, ladder("a")).read("hi")


def test_a_stream_that_goes_silent_ends_after_an_idle_time(face: Any) -> None:
    world = World(a=streamed("Par", fault="stall", end=False))
    broker = face(world, ladder("a"))
    with pytest.raises(LLMTimeoutError) as caught:
        broker.read("hi")
    assert caught.value.text == "Par"
    assert world.port.now() == pytest.approx(60.0)
    assert broker.snapshot()["a"].reason == "timeout"


def test_a_stream_longer_than_the_budget_ends_without_punishment(face: Any) -> None:
    world = World(a=streamed(*["x"] * 100, every=0.1))
    broker = face(world, ladder("a"))
    with pytest.raises(LLMTimeoutError) as caught:
        broker.read("hi", wait=2)
    assert 15 <= len(caught.value.text) <= 20
    assert broker.snapshot()["a"].available
    assert broker.rows()[0].status == "timeout"


def test_a_stream_whose_start_hangs_gets_company(face: Any) -> None:
    world = World(a=hang(), b=streamed("B"))
    pieces, _ = face(world, ladder("a", "b")).read("hi", wait=4)
    assert pieces == ["B"]
    assert world.port.now() < 3


def test_a_long_stream_is_not_bound_by_the_time_of_first_pieces(face: Any) -> None:
    world = World(a=streamed(*["x"] * 50, every=1))
    broker = face(world, ladder("a", "b"))
    world.then("b", hang())
    for _ in range(8):
        assert len(broker.read("hi")[0]) == 50


def test_the_fastest_first_piece_wins_a_race(face: Any) -> None:
    world = World(a=streamed("A", delay=3), b=streamed("B", delay=1))
    broker = face(world, ladder("a", "b"))
    pieces, _ = broker.read("hi", fastest_of=2)
    assert pieces == ["B"]
    assert sorted(broker.statuses()) == [("a", "superseded"), ("b", "ok")]


def test_the_callers_fault_comes_back_from_a_stream(face: Any) -> None:
    world = World(a=refuse(400, "temperature"), b=streamed("B"))
    with pytest.raises(BadRequestError, match="temperature"):
        face(world, ladder("a", "b")).read("hi")
    assert world.asked == ["a"]


def test_all_failed_before_content_is_no_stream_at_all(face: Any) -> None:
    world = World(a=refuse(404), b=refuse(402))
    with pytest.raises(NoLLMAvailableError) as caught:
        face(world, ladder("a", "b")).read("hi")
    assert caught.value.reason == "failed"
    assert len(caught.value.attempts) == 2


def test_one_candidate_that_is_overloaded_before_output_is_asked_again(face: Any) -> None:
    world = World(a=[refuse(529), streamed("A")])
    assert face(world, ladder("a")).read("hi", wait=30)[0] == ["A"]


def test_bad_arguments_of_a_stream_are_refused_where_it_is_asked_for(face: Any) -> None:
    broker = face(World(a=streamed("A")), ladder("a"))
    with pytest.raises(InvalidRequestError):
        broker.broker.stream()
    with pytest.raises(InvalidRequestError):
        broker.broker.stream("hi", wait=-1)
    with pytest.raises(InvalidRequestError):
        broker.broker.stream("hi", messages=[{"role": "user", "content": "hi"}])


def test_an_answer_in_one_piece_is_a_stream_too(face: Any) -> None:
    pieces, stream = face(World(a=ok("whole")), ladder("a")).read("hi")
    assert (pieces, stream.reply.text) == (["whole"], "whole")


def test_an_empty_but_finished_stream_of_the_only_model_is_valid(face: Any) -> None:
    broker = face(World(a=events(START, chunk(finish="stop"), done=True)), ladder("a"))
    pieces, stream = broker.read("hi")
    assert (pieces, stream.reply.finish_reason) == ([], "stop")
    assert broker.statuses() == [("a", "ok")]


def test_a_refused_stream_of_tools_is_not_empty(face: Any) -> None:
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answer = events({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}, chunk(finish="tool_calls"), done=True)
    _, stream = face(World(a=answer, b=streamed("B")), ladder("a", "b")).read("hi")
    assert stream.reply.tool_calls[0]["function"]["name"] == "f"


# -- leaving early -------------------------------------------------------------------------------------------------------


def long_stream() -> Answer:
    return streamed(*["x"] * 100, every=0.1)


def leave_by_break(broker: Face) -> None:
    if broker.kind == "sync":
        for _ in broker.broker.stream("hi"):
            break
        return

    async def run() -> None:
        async for _ in broker.broker.stream("hi"):
            break
        gc.collect()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(run())


def leave_by_close(broker: Face) -> None:
    if broker.kind == "sync":
        stream = broker.broker.stream("hi")
        next(iter(stream))
        stream.close()
        stream.close()
        return

    async def run() -> None:
        stream = broker.broker.stream("hi")
        async for _ in stream:
            await stream.close()
            break
        await stream.close()

    asyncio.run(run())


def leave_by_with(broker: Face) -> None:
    if broker.kind == "sync":
        with broker.broker.stream("hi") as stream:
            next(stream.events())
        return

    async def run() -> None:
        async with broker.broker.stream("hi") as stream:
            async for _ in stream.events():
                break

    asyncio.run(run())


def leave_by_dropping(broker: Face) -> None:
    if broker.kind == "sync":
        stream = broker.broker.stream("hi")
        broker.port.drive(stream._source.next_events())
        del stream
        gc.collect()
        return

    async def run() -> None:
        stream = broker.broker.stream("hi")
        await stream._source.next_events()
        del stream
        gc.collect()
        for _ in range(3):
            await asyncio.sleep(0)

    asyncio.run(run())


def leave_by_cancelling(broker: Face) -> None:
    if broker.kind == "sync":
        stream = broker.broker.stream("hi")
        try:
            for _ in stream:
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass
        del stream
        gc.collect()
        return

    async def run() -> None:
        async def read() -> None:
            async for _ in broker.broker.stream("hi"):
                pass

        task = asyncio.ensure_future(read())
        for _ in range(30):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


LEAVING = [leave_by_break, leave_by_close, leave_by_with, leave_by_dropping, leave_by_cancelling]


@pytest.mark.parametrize("leave", LEAVING, ids=lambda f: f.__name__)
def test_leaving_a_stream_early_frees_its_slot_and_its_connection(face: Any, leave: Any) -> None:
    world = World(a=long_stream())
    broker = face(world, [member("a", parallel=1)])
    for _ in range(5):
        leave(broker)
        assert broker.idle()
    assert {status for _, status in broker.statuses()} == {"cancelled"}
    world.then("a", streamed("A"))
    assert broker.read("hi", wait=0)[0] == ["A"]
    assert broker.snapshot()["a"].available


def test_tokens_that_an_aborted_stream_told_are_recorded(face: Any) -> None:
    usage = {"id": "x", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}}
    answer = Answer(headers={"content-type": "text/event-stream"}, body=sse(usage, *[chunk("x")] * 50, done=False), every=0.1)
    broker = face(World(a=answer), ladder("a"))
    leave_by_close(broker)
    assert broker.rows()[0].usage.input_tokens == 7


def test_a_thousand_refused_streams_leave_nothing(face: Any) -> None:
    world = World(a=refuse(429, retry_after="0"), b=streamed("B"))
    broker = face(world, [member("a", 0.9, parallel=2), member("b", 0.5, parallel=2)])
    for _ in range(200):
        broker.read("hi")
    assert broker.idle()


def test_a_stream_can_be_rated_after_its_end(face: Any) -> None:
    broker = face(World(a=streamed("A")), ladder("a"))
    with pytest.raises(InvalidRequestError):
        broker.broker.stream("hi").record_quality(1)
    if broker.kind == "sync":
        _, stream = broker.read("hi")
        stream.record_quality(0.4)
    else:

        async def run() -> None:
            stream = broker.broker.stream("hi")
            async for _ in stream:
                pass
            await stream.record_quality(0.4)

        asyncio.run(run())
    assert broker.rows()[0].score == 0.4


def test_typed_events_arrive_too(face: Any) -> None:
    broker = face(World(a=streamed("A")), ladder("a"))
    if broker.kind == "sync":
        kinds = [type(e) for e in broker.broker.stream("hi").events()]
    else:

        async def run() -> list[type]:
            return [type(e) async for e in broker.broker.stream("hi").events()]

        kinds = asyncio.run(run())
    assert TextDelta in kinds
    assert Finished in kinds


def test_a_stream_that_was_never_read_costs_nothing(face: Any) -> None:
    world = World(a=streamed("A"))
    broker = face(world, ladder("a"))
    broker.broker.stream("hi")
    gc.collect()
    assert world.hits == []


def test_closing_before_reading_makes_it_empty(face: Any) -> None:
    world = World(a=streamed("A"))
    broker = face(world, ladder("a"))
    if broker.kind == "sync":
        stream = broker.broker.stream("hi")
        stream.close()
        assert list(stream) == []
    assert world.hits == []


def test_errors_are_of_the_one_tree(face: Any) -> None:
    with pytest.raises(LLMBrokerError):
        face(World(a=Answer(fault="garbage")), ladder("a")).read("hi", wait=0)


def test_an_error_in_the_stream_is_judged_like_one_over_http(face: Any) -> None:
    world = World(a=events(START, {"error": {"message": "temperature is wrong", "code": 400}}), b=streamed("B"))
    broker = face(world, ladder("a", "b"))
    with pytest.raises(BadRequestError, match="temperature"):
        broker.read("hi")
    assert world.asked == ["a"]
    assert broker.snapshot()["a"].available


def test_a_reader_that_is_cancelled_between_pieces_frees_everything() -> None:
    world = World(a=streamed("x", fault="stall", end=False))
    broker = Face("async", world, [member("a", parallel=1)])

    async def run() -> None:
        got: list[str] = []

        async def read() -> None:
            async for piece in broker.broker.stream("hi"):
                got.append(piece)

        task = asyncio.ensure_future(read())
        while not got:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    asyncio.run(run())
    assert broker.idle()
    assert broker.statuses() == [("a", "cancelled")]


def test_a_lane_whose_first_piece_comes_second_is_superseded(face: Any) -> None:
    world = World(a=streamed("A", delay=1), b=streamed("B", delay=1))
    broker = face(world, ladder("a", "b"))
    pieces, _ = broker.read("hi", fastest_of=2)
    assert pieces in (["A"], ["B"])
    assert sorted(status for _, status in broker.statuses()) == ["ok", "superseded"]


def test_a_stream_shows_its_text_so_far() -> None:
    broker = Face("sync", World(a=streamed("Par", "is")), ladder("a"))
    stream = broker.broker.stream("hi")
    assert (stream.text, stream.llm_name, stream.call_id, stream.usage) == ("", None, None, None)
    next(iter(stream))
    assert stream.text.startswith("Par")
    stream.close()
    broker.close()


def test_an_empty_stream_is_not_taken_while_somebody_else_comes_back_in_time(face: Any) -> None:
    empty = events(START, chunk(finish="stop"), done=True)
    world = World(a=[refuse(429, "slow down", retry_after="10"), streamed("A")], b=empty)
    pieces, _ = face(world, ladder("a", "b")).read("hi", wait=60)
    assert pieces == ["A"]
    assert world.port.now() < 15
