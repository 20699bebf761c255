"""Streams of the Messages API: what may come in them, and what is made of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.providers.vendor_wires import calls_of, cut, deployment, essence, streamed, whole

from llmbroker.errors import (
    BadRequestError,
    InvalidProviderResponseError,
    LLMBrokerError,
    ProviderError,
    RateLimitError,
    ServerError,
    StreamInterruptedError,
)
from llmbroker.exchange import CallDelta, Finished, Reply, Usage
from llmbroker.providers.anthropic import DIALECT
from llmbroker.providers.anthropic_stream import ANSWER_TOOL
from llmbroker.wire import SSE

AT = deployment(DIALECT, "claude-sonnet-4-5")
JSON = dict[str, Any]
USAGE = {"input_tokens": 10, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 2, "output_tokens": 1}


def start(**fields: Any) -> JSON:
    return {"type": "message_start", "message": {"id": "msg_1", "model": "claude-x", "content": [], "usage": USAGE, **fields}}


def block(index: int, content: JSON, *deltas: JSON, stop: bool = True) -> list[JSON]:
    out = [{"type": "content_block_start", "index": index, "content_block": content}]
    out += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    return [*out, {"type": "content_block_stop", "index": index}] if stop else out


def text(index: int, *pieces: str) -> list[JSON]:
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))


def call(index: int, name: str, *pieces: str, start_input: Any = None, **fields: Any) -> list[JSON]:
    content = {
        "type": "tool_use",
        "id": f"toolu_{index}",
        "name": name,
        "input": {} if start_input is None else start_input,
        **fields,
    }
    return block(index, content, *({"type": "input_json_delta", "partial_json": piece} for piece in pieces))


def end(reason: str | None = "end_turn", **usage: Any) -> list[JSON]:
    return [
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"output_tokens": 7, **usage},
        },
        {"type": "message_stop"},
    ]


def wire(*events: JSON) -> bytes:
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()


def read(*events: JSON) -> Reply:
    return streamed([wire(*events)], AT)


# -- calls -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param(call(0, "f", '{"a":', "1}"), {"a": 1}, id="pieces"),
        pytest.param(call(0, "f", "", '{"a":1}', start_input={}), {"a": 1}, id="A11 an empty input at the start is no piece"),
        pytest.param(call(0, "f", '{"a":1}', start_input={"b": 2}), {"a": 1}, id="A11 pieces beat the input of the start"),
        pytest.param(call(0, "f", start_input={"b": 2}), {"b": 2}, id="the input of the start where no piece follows"),
        pytest.param(
            call(0, "f", "", start_input={"b": 2}), {"b": 2}, id="the input of the start where only empty pieces follow"
        ),
        pytest.param(call(0, "f"), {}, id="A21 no pieces at all"),
        pytest.param(call(0, "f", ""), {}, id="A14 an empty piece"),
        pytest.param(call(0, "f", "null"), {}, id="a literal null"),
        pytest.param(call(0, "f", start_input=None)[:-1], {}, id="no end of the block"),
    ],
)
def test_the_arguments_of_a_call_are(events: list[JSON], expected: JSON) -> None:
    assert calls_of(read(start(), *events, *end("tool_use"))) == [("f", expected)]


def test_parallel_calls_stay_apart_and_in_order() -> None:
    events = [*text(0, "Both."), *call(1, "f", '{"a":1}'), *call(2, "f", '{"a":2}'), *call(3, "g")]
    reply = read(start(), *events, *end("tool_use"))
    assert calls_of(reply) == [("f", {"a": 1}), ("f", {"a": 2}), ("g", {})]
    assert [item["id"] for item in reply.tool_calls or ()] == ["toolu_1", "toolu_2", "toolu_3"]
    assert reply.text == "Both."


def test_the_pieces_of_a_call_are_passed_on_as_they_come() -> None:
    decoder = DIALECT.decoder(AT)
    got = [decoder.feed(SSE("", json.dumps(event).encode())) for event in (start(), *call(0, "f", '{"a":', "1}"))]
    assert [event for events in got[1:] for event in events] == [
        CallDelta(0, "toolu_0", "f"), CallDelta(0, arguments='{"a":'), CallDelta(0, arguments="1}"),
    ]  # fmt: skip


def test_a_call_cut_at_the_token_limit_stays_as_it_is_and_ends_with_length() -> None:
    reply = read(start(), *call(0, "f", '{"a":')[:-1], *end("max_tokens"))
    assert reply.finish_reason == "length"
    assert (reply.tool_calls or [])[0]["function"]["arguments"] == '{"a":'


def test_tools_that_the_provider_runs_itself_are_no_calls_but_go_back() -> None:
    query = block(
        0,
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
        {"type": "input_json_delta", "partial_json": '{"query": "x"}'},
    )
    found = block(
        1, {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"type": "web_search_result"}]}
    )
    reply = read(start(), *query, *found, *text(2, "Found."), *end())
    assert reply.tool_calls is None
    assert (reply.text, reply.finish_reason) == ("Found.", "stop")
    items = reply.message["provider_data"]["items"]
    assert [item["type"] for item in items] == ["server_tool_use", "web_search_tool_result", "text"]
    assert items[0]["input"] == {"query": "x"}


# -- how a turn ends -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refusal"),
        ("pause_turn", "unknown"),
        ("compaction", "unknown"),
        ("a_word_of_tomorrow", "unknown"),
    ],
)
def test_the_stop_reason_means(word: str, finish: str) -> None:
    reply = read(start(), *text(0, "Hi"), *end(word))
    assert (reply.finish_reason, reply.raw_finish_reason) == (finish, word)


def test_a_paused_turn_keeps_its_blocks_so_that_it_can_go_on() -> None:
    use = block(0, {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}})
    reply = read(start(), *use, *end("pause_turn"))
    assert reply.finish_reason == "unknown"
    assert reply.message["provider_data"]["items"] == [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
    ]


def test_a_refusal_carries_its_explanation_beside_the_text() -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "Blocked."}
    delta = {
        "type": "message_delta",
        "delta": {"stop_reason": "refusal", "stop_details": details},
        "usage": {"output_tokens": 5},
    }
    reply = read(start(), delta, {"type": "message_stop"})
    assert (reply.finish_reason, reply.refusal, reply.text) == ("refusal", "Blocked.", "")


def test_a_compaction_is_kept_for_the_provider_and_is_no_text() -> None:
    events = block(0, {"type": "compaction", "content": None}, {"type": "compaction_delta", "content": "Summary."})
    reply = read(start(), *events, *text(1, "Hello"), *end())
    assert reply.text == "Hello"
    assert reply.message["provider_data"]["items"][0] == {"type": "compaction", "content": "Summary."}


def test_what_follows_the_first_stop_is_ignored() -> None:
    reply = read(start(), *text(0, "One"), *end(), start(id="msg_2"), *text(0, "Two"), *end("max_tokens"))
    assert (reply.text, reply.id, reply.finish_reason) == ("One", "msg_1", "stop")


def test_a_second_start_before_the_stop_replaces_all_that_came() -> None:
    thought = block(0, {"type": "thinking", "thinking": ""}, {"type": "thinking_delta", "thinking": "Old."})
    half = call(1, "old", '{"a":')[:-1]
    reply = read(start(), *thought, *half, start(id="msg_2"), *call(0, "new", '{"a":1}'), *end("tool_use"))
    assert (reply.id, reply.reasoning, calls_of(reply)) == ("msg_2", None, [("new", {"a": 1})])
    assert "provider_data" not in reply.message


def test_a_stream_that_stops_before_its_stop_is_no_answer_though_it_said_why() -> None:
    with pytest.raises(StreamInterruptedError) as caught:
        read(start(), *text(0, "Half"), *end()[:1])
    assert caught.value.text == "Half"


def test_a_stop_without_a_reason_ends_the_answer_with_unknown() -> None:
    reply = read(start(), *text(0, "Hi"), {"type": "message_stop"})
    assert (reply.finish_reason, reply.raw_finish_reason) == ("unknown", None)


# -- errors and noise ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("overloaded_error", ServerError),
        ("api_error", ServerError),
        ("rate_limit_error", RateLimitError),
        ("invalid_request_error", BadRequestError),
    ],
)
@pytest.mark.parametrize("at", [0, 1, 3, 5])
def test_an_error_frame_at_any_time_is_the_error_that_its_type_says(kind: str, wanted: type[ProviderError], at: int) -> None:
    events = [start(), *text(0, "Half", " done"), *end()]
    events.insert(at, {"type": "error", "error": {"type": kind, "message": "sorry"}})
    with pytest.raises(wanted) as caught:
        read(*events)
    assert (caught.value.code, caught.value.detail, caught.value.status) == (kind, "sorry", None)


@pytest.mark.parametrize("word", ["overloaded_error", "rate_limit_error"])
def test_an_error_in_a_whole_body_of_status_200_is_raised(word: str) -> None:
    body = {"type": "error", "error": {"type": word, "message": "sorry"}, "request_id": "req_1"}
    with pytest.raises(ProviderError) as caught:
        whole(json.dumps(body).encode(), AT)
    assert (caught.value.code, caught.value.request_id) == (word, "req_1")


def test_pings_and_events_of_tomorrow_change_nothing() -> None:
    events = [start(), *text(0, "Hi"), *call(1, "f", "{}"), *end("tool_use")]
    noisy = [noise for event in events for noise in ({"type": "ping"}, event, {"type": "news", "index": 0})]
    assert essence(read(*noisy)) == essence(read(*events))


def test_deltas_of_tomorrow_are_kept_on_their_block() -> None:
    events = block(
        0, {"type": "thinking", "thinking": ""}, {"type": "mood_delta", "mood": "go"}, {"type": "mood_delta", "mood": "od"}
    )
    assert read(start(), *events, *end()).message["provider_data"]["items"] == [
        {"type": "thinking", "thinking": "", "mood": "good"}
    ]


def test_a_done_line_of_a_gateway_is_no_payload() -> None:
    reply = streamed([wire(start(), *text(0, "Hi"), *end()[:1]), b"data: [DONE]\n\n", wire(end()[1])], AT)
    assert reply.text == "Hi"


@pytest.mark.parametrize("payload", [b"[]", b"1", b'"x"', b"{", b"<html>"])
def test_a_payload_that_is_no_object_is_an_invalid_response(payload: bytes) -> None:
    with pytest.raises(InvalidProviderResponseError):
        DIALECT.decoder(AT).feed(SSE("", payload))


# -- usage -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        pytest.param(USAGE, {"output_tokens": 7}, Usage(17, 7, 5, 2, None, 24), id="the delta completes the start"),
        pytest.param(
            USAGE, {"input_tokens": 20, "output_tokens": 7}, Usage(27, 7, 5, 2, None, 34), id="the delta replaces the start"
        ),
        pytest.param(
            {"input_tokens": 3, "output_tokens": 1},
            {"output_tokens": 9, "output_tokens_details": {"thinking_tokens": 4}},
            Usage(3, 9, None, None, 4, 12),
            id="thinking is part of the output",
        ),
        pytest.param(
            {**USAGE, "cache_creation_input_tokens": None}, {"output_tokens": 7, "input_tokens": None},
            Usage(15, 7, 5, None, None, 22), id="null says nothing",
        ),
        pytest.param(
            USAGE,
            {"output_tokens": 7, "iterations": [{"type": "compaction", "input_tokens": 9999, "output_tokens": 99}]},
            Usage(17, 7, 5, 2, None, 24),
            id="compaction passes stay outside",
        ),
        pytest.param({}, {"output_tokens": 7}, Usage(None, 7), id="what is not said stays None"),
    ],
)  # fmt: skip
def test_usage_is(first: JSON, last: JSON, expected: Usage) -> None:
    delta = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": last}
    assert read(start(usage=first), *text(0, "Hi"), delta, {"type": "message_stop"}).usage == expected


# -- thinking --------------------------------------------------------------------------------------------------------------


def test_thinking_is_reasoning_and_goes_back_with_its_signature() -> None:
    thought = block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "Let "},
        {"type": "thinking_delta", "thinking": "me."},
        {"type": "signature_delta", "signature": "c2ln"},
    )
    hidden = block(1, {"type": "redacted_thinking", "data": "b64"})
    reply = read(start(), *thought, *hidden, *call(2, "f", "{}"), *end("tool_use"))
    assert (reply.reasoning, reply.text) == ("Let me.", "")
    assert reply.message["provider_data"]["items"] == [
        {"type": "thinking", "thinking": "Let me.", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "b64"},
        {"type": "tool_use", "id": "toolu_2", "name": "f", "input": {}},
    ]


def test_a_plain_turn_keeps_nothing_for_the_provider() -> None:
    plain = [*text(0, "Hi"), *call(1, "f", "{}", caller={"type": "direct"})]
    assert "provider_data" not in read(start(), *plain, *end("tool_use")).message


def test_the_call_of_the_answer_tool_is_the_text() -> None:
    reply = read(start(), *call(0, ANSWER_TOOL, '{"city":', '"Rome"}'), *end("tool_use"))
    assert (reply.text, reply.tool_calls, reply.finish_reason) == ('{"city":"Rome"}', None, "stop")
    body = {
        "content": [{"type": "tool_use", "id": "t", "name": ANSWER_TOOL, "input": {"city": "Rome"}}],
        "stop_reason": "tool_use",
    }
    assert essence(whole(json.dumps(body).encode(), AT))["text"] == '{"city":"Rome"}'


# -- any bytes -------------------------------------------------------------------------------------------------------------

RICH = wire(
    start(),
    *block(
        0,
        {"type": "thinking", "thinking": ""},
        {"type": "thinking_delta", "thinking": "Hm é 🙂"},
        {"type": "signature_delta", "signature": "s"},
    ),
    *text(1, "Hel", "lo ", " ", "世界"),
    *call(2, "f", '{"a":', '"🙂"}'),
    {"type": "ping"},
    *call(3, "g"),
    *end("tool_use"),
)
FAULTS = (LookupError, TypeError, AttributeError, ValueError, RecursionError)  # what the client room makes an invalid response


@given(st.lists(st.integers(1, 60), max_size=60))
def test_any_chunking_gives_the_same_reply(sizes: list[int]) -> None:
    assert essence(streamed(cut(RICH, sizes), AT)) == essence(streamed([RICH], AT))


@given(st.integers(0, len(RICH)))
def test_a_stream_cut_anywhere_is_an_error_with_the_text_so_far_or_complete(at: int) -> None:
    try:
        reply = streamed([RICH[:at]], AT)
    except StreamInterruptedError as error:
        assert "Hello  世界".startswith(error.text)
        return
    assert essence(reply) == essence(streamed([RICH], AT))


EVENTS = [event + b"\n\n" for event in RICH.split(b"\n\n") if event]


@given(st.data())
def test_no_corruption_makes_anything_but_a_typed_error_or_an_answer_that_the_provider_ended(data: st.DataObject) -> None:
    events = list(EVENTS)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(events) - 1))
        kind = data.draw(st.sampled_from(["drop", "twice", "swap", "byte", "junk"]))
        if kind == "drop" and len(events) > 1:
            del events[at]
        elif kind == "twice":
            events.insert(at, events[at])
        elif kind == "swap":
            other = data.draw(st.integers(0, len(events) - 1))
            events[at], events[other] = events[other], events[at]
        elif kind == "junk":
            events.insert(at, b"data: " + data.draw(st.sampled_from([b"{}", b"[]", b"null", b'{"type":1}', b"\xff"])) + b"\n\n")
        else:
            place = data.draw(st.integers(0, len(events[at]) - 1))
            events[at] = events[at][:place] + bytes([data.draw(st.integers(0, 255))]) + events[at][place + 1 :]
    try:
        reply = streamed([b"".join(events)], AT)
    except LLMBrokerError:
        return
    except FAULTS:
        return
    assert b"message_stop" in b"".join(events)
    word = reply.raw_finish_reason
    assert word is None or word.encode() in b"".join(events)
    assert reply.finish_reason in ("tool_calls", "unknown")


def test_the_last_event_is_how_it_ended() -> None:
    decoder = DIALECT.decoder(AT)
    got = [event for frame in (start(), *text(0, "Hi"), *end()) for event in decoder.feed(SSE("", json.dumps(frame).encode()))]
    assert got[-1] == Finished("stop", "end_turn")
    assert decoder.done


# -- there and back --------------------------------------------------------------------------------------------------------

counts = st.none() | st.integers(0, 10**6)


@st.composite
def replies(draw: st.DrawFn) -> Reply:
    names = st.sampled_from(["f", "get_weather"])
    values = st.dictionaries(
        st.text(max_size=5), st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5), max_size=3
    )
    calls = [
        {"id": f"call_{i}", "type": "function", "function": {"name": draw(names), "arguments": json.dumps(draw(values))}}
        for i in range(draw(st.integers(0, 3)))
    ]
    finish = "tool_calls" if calls else draw(st.sampled_from(["stop", "length", "content_filter", "refusal", "error"]))
    sent, made, reads, writes = (draw(st.integers(0, 10**6)) for _ in range(4))
    usage = Usage(sent + reads + writes, made, reads, writes, draw(counts), sent + reads + writes + made)
    return Reply(
        text=draw(st.text(min_size=0 if calls else 1, max_size=20)),
        reasoning=draw(st.none() | st.text(min_size=1, max_size=20)),
        tool_calls=calls or None,
        finish_reason=finish,
        usage=draw(st.none() | st.just(usage)),
        model="m",
        id="i",
    )


@given(replies())
def test_a_reply_written_in_this_dialect_and_read_again_is_the_same(reply: Reply) -> None:
    again = whole(json.dumps(DIALECT.encode_reply(reply)).encode(), AT)
    for field in ("text", "reasoning", "refusal", "finish_reason", "usage", "model", "id"):
        assert getattr(again, field) == getattr(reply, field), field
    assert calls_of(again) == calls_of(reply)
    assert [call["id"] for call in again.tool_calls or ()] == [call["id"] for call in reply.tool_calls or ()]


def test_a_refusal_s_text_survives_there_and_back() -> None:
    reply = Reply(refusal="No.", finish_reason="refusal", model="m", id="i")
    again = whole(json.dumps(DIALECT.encode_reply(reply)).encode(), AT)
    assert (again.refusal, again.finish_reason, again.text) == ("No.", "refusal", "")
