"""Chat Completions on the way in: how servers stream calls, end turns, count tokens and fail in the middle.

Every case is read as a stream, cut at every byte, and, where a body can say the same, as a whole answer.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.providers.vendor_wires import calls_of, every_byte, streamed, whole

from llmbroker.catalog import LLMConfig
from llmbroker.credentials import Secret
from llmbroker.errors import (
    ContentFilterError,
    InvalidProviderResponseError,
    LLMBrokerError,
    MalformedCallError,
    ProviderError,
    RateLimitError,
    ServerError,
    StreamInterruptedError,
)
from llmbroker.exchange import CallDelta, Reply, Usage
from llmbroker.providers import table
from llmbroker.wire import SSE, SSEDecoder

JSON = dict[str, Any]
AT = table.deployment_for(
    LLMConfig(name="m", model="m", base_url="https://host.example.com/v1"), Secret("sk-canary-0123456789", "argument api_key")
)


def chunk(delta: JSON | None = None, finish: str | None = None, **more: Any) -> JSON:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return {"id": "c1", "model": "m", "object": "chat.completion.chunk", "created": 1, "choices": [choice], **more}


def tool(index: int | None = None, call_id: Any = ..., name: Any = ..., arguments: Any = ...) -> JSON:
    """A tool delta with only the fields given."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not ...}
    made: JSON = {"function": function}
    if index is not None:
        made["index"] = index
    if call_id is not ...:
        made["id"] = call_id
    return made


def calls(*pieces: JSON) -> JSON:
    return chunk({"tool_calls": list(pieces)})


def wire(*events: JSON | str, done: bool = True) -> bytes:
    lines = [event if isinstance(event, str) else f"data: {json.dumps(event)}" for event in events]
    return "\n\n".join([*lines, *(["data: [DONE]"] if done else [])]).encode() + b"\n\n"


def read(*events: JSON | str, done: bool = True) -> Reply:
    body = wire(*events, done=done)
    reply = streamed([body], AT)
    again = streamed(every_byte(body), AT)
    assert (again.text, again.finish_reason, again.usage, calls_of(again)) == (
        reply.text,
        reply.finish_reason,
        reply.usage,
        calls_of(reply),
    )
    return reply


# -- calls: one row a way of streaming them ------------------------------------------------------------------------------

PARIS, ROME = {"city": "Paris"}, {"city": "Rome"}
TWO = [("get_weather", PARIS), ("get_weather", ROME)]
P, R = json.dumps(PARIS), json.dumps(ROME)
W = "get_weather"

WAYS: dict[str, tuple[list[JSON], list[tuple[str, Any]]]] = {
    "as-the-specification-says": (
        [
            calls(tool(0, "a", W, "")),
            calls(tool(0, arguments=P[:7])),
            calls(tool(0, arguments=P[7:])),
            calls(tool(1, "b", W, R)),
        ],
        TWO,
    ),
    "no-index-args-continue-the-last-call": ([calls(tool(None, "a", W, P[:7])), calls(tool(None, arguments=P[7:]))], TWO[:1]),
    "no-index-two-ids-are-two-calls": ([calls(tool(None, "a", W, P)), calls(tool(None, "b", W, R))], TWO),
    "no-index-two-calls-in-one-chunk": ([calls(tool(None, "a", W, P), tool(None, "b", W, R))], TWO),
    "no-index-an-id-comes-back": (
        [calls(tool(None, "a", W, "")), calls(tool(None, "b", W, R)), calls(tool(None, "a", arguments=P))],
        TWO,
    ),
    "every-call-on-index-0": ([calls(tool(0, "a", W, P)), calls(tool(0, "b", W, R))], TWO),
    "every-call-on-index-0-without-arguments": ([calls(tool(0, "a", W, "")), calls(tool(0, "b", W, ""))], [(W, {}), (W, {})]),
    "every-call-on-index-0-in-pieces": (
        [
            calls(tool(0, "a", W, P[:5])),
            calls(tool(0, arguments=P[5:])),
            calls(tool(0, "b", W, R[:5])),
            calls(tool(0, arguments=R[5:])),
        ],
        TWO,
    ),
    "every-call-on-index-0-without-ids": ([calls(tool(0, "", W, P)), calls(tool(0, "", W, R))], TWO),
    "other-names-without-ids": (
        [calls(tool(0, name="a", arguments="{}")), calls(tool(0, name="b", arguments="{}"))],
        [("a", {}), ("b", {})],
    ),
    "index-minus-one-whole": ([calls(tool(-1, "a", W, P)), calls(tool(-1, "b", W, R))], TWO),
    "first-index-is-1": ([calls(tool(1, "a", W, "")), calls(tool(1, arguments=P))], TWO[:1]),
    "two-pieces-of-one-call-in-one-chunk": ([calls(tool(0, "a", W, P[:4]), tool(0, arguments=P[4:]))], TWO[:1]),
    "id-null-after-the-first": ([calls(tool(0, "a", W, P[:4])), calls(tool(0, None, None, P[4:]))], TWO[:1]),
    "id-and-name-empty-after-the-first": ([calls(tool(0, "a", W, P[:4])), calls(tool(0, "", "", P[4:]))], TWO[:1]),
    "id-repeated-in-every-piece": ([calls(tool(0, "a", W, P[:4])), calls(tool(0, "a", None, P[4:]))], TWO[:1]),
    "id-and-name-repeated-in-every-piece": ([calls(tool(0, "a", W, P[:4])), calls(tool(0, "a", W, P[4:]))], TWO[:1]),
    "another-id-in-every-piece-but-no-name": ([calls(tool(0, "a", W, P[:4])), calls(tool(0, "b", None, P[4:]))], TWO[:1]),
    "name-after-the-arguments": (
        [calls(tool(0, "a", "", P[:4])), calls(tool(0, arguments=P[4:])), calls(tool(0, name=W))],
        TWO[:1],
    ),
    "name-null-first": ([calls(tool(0, "a", None, None)), calls(tool(0, name=W, arguments=P))], TWO[:1]),
    "first-chunk-carries-name-and-brace": ([calls(tool(0, "a", W, "{")), calls(tool(0, arguments=P[1:]))], TWO[:1]),
    "arguments-null": ([calls(tool(0, "a", W, None))], [(W, {})]),
    "arguments-absent": ([calls(tool(0, "a", W))], [(W, {})]),
    "arguments-empty-strings": ([calls(tool(0, "a", W, "")), calls(tool(0, arguments=""))], [(W, {})]),
    "arguments-the-word-null": ([calls(tool(0, "a", W, "null"))], [(W, {})]),
    "arguments-as-an-object": ([calls(tool(0, "a", W, PARIS))], TWO[:1]),
    "the-same-tool-twice-with-the-same-arguments": ([calls(tool(0, "a", W, P)), calls(tool(1, "b", W, P))], [TWO[0], TWO[0]]),
    "one-id-for-two-calls": ([calls(tool(0, "a", W, P)), calls(tool(1, "a", W, R))], TWO),
    "one-id-for-two-calls-without-index": ([calls(tool(None, "a", W, P), tool(None, "a", W, R))], TWO),
    "pieces-of-two-calls-interleaved": (
        [
            calls(tool(0, "a", W, P[:4])),
            calls(tool(1, "b", W, R[:4])),
            calls(tool(0, arguments=P[4:])),
            calls(tool(1, arguments=R[4:])),
        ],
        TWO,
    ),
    "legacy-function-call": (
        [chunk({"function_call": {"name": W, "arguments": P[:4]}}), chunk({"function_call": {"arguments": P[4:]}})],
        TWO[:1],
    ),
    "empty-legacy-function-call-beside": (
        [chunk({"function_call": {"name": "", "arguments": ""}, "tool_calls": [tool(0, "a", W, P)]})],
        TWO[:1],
    ),
    "tool-calls-as-one-object": ([chunk({"tool_calls": tool(0, "a", W, P)})], TWO[:1]),
    "braces-and-quotes-in-strings": (
        [calls(tool(0, "a", W, '{"q": "}{\\"')), calls(tool(0, arguments='}{"}'))],
        [(W, {"q": '}{"}{'})],
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_calls_are_put_together_however_they_are_streamed(way: str) -> None:
    pieces, wanted = WAYS[way]
    reply = read(*pieces, chunk(finish="tool_calls"))
    assert calls_of(reply) == wanted
    ids = [call["id"] for call in reply.tool_calls or ()]
    assert len(set(ids)) == len(ids) and all(ids)
    assert reply.finish_reason == "tool_calls"


def test_a_complete_looking_prefix_is_no_complete_call() -> None:
    decoder = AT.dialect.decoder(AT)
    first = decoder.feed(SSE("", json.dumps(calls(tool(0, "a", W, '{"a":1}'))).encode()))
    second = decoder.feed(SSE("", json.dumps(calls(tool(0, arguments=" "))).encode()))
    assert all(isinstance(event, CallDelta) for event in [*first[1:], *second]), "only the end of the turn completes a call"


def test_whole_answers_keep_every_item_a_call_of_its_own() -> None:
    items = [tool(0, "a", W, P), tool(0, "a", W, R), tool(None, None, W, "")]
    body = {"choices": [{"index": 0, "message": {"tool_calls": items}, "finish_reason": "stop"}]}
    reply = whole(json.dumps(body).encode(), AT)
    assert calls_of(reply) == [*TWO, (W, {})]
    assert len({call["id"] for call in reply.tool_calls or ()}) == 3


def test_opaque_keys_of_a_call_are_kept_for_the_way_back() -> None:
    opaque = {"google": {"thought_signature": "AbC="}}
    reply = read(calls({**tool(0, "a", W, P), "extra_content": opaque}), chunk(finish="tool_calls"))
    assert reply.tool_calls is not None and reply.tool_calls[0]["extra_content"] == opaque
    assert reply.message["provider_data"]["items"] == [{"calls": [0]}]
    json.dumps(reply.message)


# -- how a turn ends -----------------------------------------------------------------------------------------------------

ENDS = [
    ("stop", "stop"),
    ("eos", "stop"),
    ("STOP", "stop"),
    ("length", "length"),
    ("model_length", "length"),
    ("max_tokens", "length"),
    ("content_filter", "content_filter"),
    ("sensitive", "content_filter"),
    ("network_error", "error"),
    ("insufficient_system_resource", "error"),
    ("refusal", "refusal"),
    ("something new", "unknown"),
]


@pytest.mark.parametrize(("word", "reason"), ENDS)
def test_finish_words_are_ours_and_the_raw_word_stays(word: str, reason: str) -> None:
    reply = read(chunk({"content": "hi"}), chunk(finish=word))
    assert (reply.finish_reason, reply.raw_finish_reason) == (reason, word)


@pytest.mark.parametrize("word", ["stop", "tool_call", "function_call", "tool_use", "eos", ""])
def test_complete_calls_beat_a_word_that_forgets_them(word: str) -> None:
    body = {"choices": [{"index": 0, "message": {"tool_calls": [tool(0, "a", W, P)]}, "finish_reason": word}]}
    assert whole(json.dumps(body).encode(), AT).finish_reason == "tool_calls"
    assert read(calls(tool(0, "a", W, P)), chunk(finish=word)).finish_reason == "tool_calls"


def test_complete_calls_never_beat_length() -> None:
    reply = read(calls(tool(0, "a", W, P)), calls(tool(1, "b", W, R[:5])), chunk(finish="length"))
    assert reply.finish_reason == "length" and calls_of(reply) == [TWO[0], (W, R[:5])]


def test_empty_arguments_of_a_cut_turn_stay_empty() -> None:
    assert calls_of(read(calls(tool(0, "a", W, "")), chunk(finish="length"))) == [(W, "")]


def test_the_finish_reason_may_stand_on_the_chunk_of_the_call_and_come_twice() -> None:
    last = chunk({"tool_calls": [tool(-1, "a", W, P)]}, finish="tool_calls")
    reply = read(last, chunk(finish="tool_calls"))
    assert calls_of(reply) == TWO[:1] and reply.finish_reason == "tool_calls"


def test_a_stream_may_end_with_done_alone() -> None:
    assert read(chunk({"content": "hi"})).finish_reason == "unknown"
    assert read(calls(tool(0, "a", W, P))).finish_reason == "tool_calls"


def test_a_stream_may_end_with_a_finish_reason_alone() -> None:
    assert read(chunk({"content": "hi"}), chunk(finish="stop"), done=False).finish_reason == "stop"


def test_a_stream_that_ends_with_neither_is_interrupted_and_keeps_its_text() -> None:
    with pytest.raises(StreamInterruptedError) as caught:
        read(chunk({"content": "half of"}), done=False)
    assert caught.value.text == "half of"


def test_an_empty_turn_with_a_finish_reason_is_an_answer() -> None:
    reply = read(chunk(finish="stop"))
    assert (reply.text, reply.tool_calls, reply.finish_reason) == ("", None, "stop")


def test_an_empty_turn_without_one_is_none() -> None:
    with pytest.raises(InvalidProviderResponseError, match="empty answer"):
        read(chunk())


def test_what_follows_done_is_ignored() -> None:
    body = wire(chunk({"content": "hi"}), chunk(finish="stop")) + wire(chunk({"content": " again"}))
    assert streamed([body], AT).text == "hi"


# -- text, reasoning, refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "text", "reasoning"),
    [
        ("hi", "hi", None),
        ("<think>why</think>hi", "hi", "why"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab", None),
        ([{"type": "thinking", "thinking": [{"type": "text", "text": "why"}]}, {"type": "text", "text": "hi"}], "hi", "why"),
        ([{"type": "thinking", "thinking": "why"}, "hi"], "hi", "why"),
        ({"type": "text", "text": "hi"}, "hi", None),
        ({"city": "Paris"}, '{"city":"Paris"}', None),
        (None, "", None),
        ([], "", None),
    ],
)
def test_content_of_any_shape_is_text_and_reasoning(content: Any, text: str, reasoning: str | None) -> None:
    in_stream = read(chunk({"content": content}), chunk(finish="stop"))
    body = {"choices": [{"index": 0, "message": {"content": content}, "finish_reason": "stop"}]}
    for reply in (in_stream, whole(json.dumps(body).encode(), AT)):
        assert (reply.text, reply.reasoning) == (text, reasoning)


REASONINGS = [
    {"reasoning_content": "why"},
    {"reasoning": "why"},
    {"reasoning": "why", "channel": "analysis"},
    {"thinking": "why"},
    {"reasoning": "why", "reasoning_details": [{"type": "reasoning.text", "text": "why", "index": 0}]},
    {"reasoning_details": [{"type": "reasoning.summary", "summary": "why", "index": 0}]},
    {"reasoning_content": "why", "reasoning": "why"},
    {"reasoning": {"content": "why"}},
]


@pytest.mark.parametrize("fields", REASONINGS, ids=lambda fields: "+".join(fields))
def test_reasoning_is_found_under_each_of_its_names(fields: JSON) -> None:
    reply = read(chunk({"content": "", **fields}), chunk({"content": "hi"}), chunk(finish="stop"))
    assert (reply.text, reply.reasoning) == ("hi", "why")


def test_reasoning_details_come_back_whole_for_the_next_request() -> None:
    pieces = [
        {"type": "reasoning.text", "text": "w", "index": 0, "format": "f"},
        {"type": "reasoning.text", "text": "hy", "index": 0, "signature": "sig"},
        {"type": "reasoning.encrypted", "data": "xyz", "index": 1},
    ]
    reply = read(*[chunk({"reasoning_details": [piece]}) for piece in pieces], chunk({"content": "hi"}), chunk(finish="stop"))
    details = reply.message["provider_data"]["items"][0]["reasoning_details"]
    assert details == [
        {"type": "reasoning.text", "text": "why", "index": 0, "format": "f", "signature": "sig"},
        {"type": "reasoning.encrypted", "data": "xyz", "index": 1},
    ]
    assert reply.reasoning == "why"


def test_a_refusal_stays_out_of_the_text() -> None:
    reply = read(chunk({"refusal": "I "}), chunk({"refusal": "cannot"}), chunk(finish="stop"))
    assert (reply.text, reply.refusal, reply.finish_reason) == ("", "I cannot", "refusal")


def test_only_choice_0_is_the_answer() -> None:
    other = {"index": 1, "delta": {"content": "no"}, "finish_reason": "stop"}
    first = {"index": 0, "delta": {"content": "yes"}, "finish_reason": None}
    events = [
        {"choices": [other]},
        {"choices": [first, other]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]},
    ]
    reply = read(*events)
    assert (reply.text, reply.finish_reason) == ("yes", "length")


def test_an_empty_first_chunk_names_nobody_and_the_next_one_does() -> None:
    first = {"choices": [], "id": "", "model": "", "created": 0, "prompt_filter_results": []}
    reply = read(first, chunk({"content": "hi"}, model="gpt"), chunk(finish="stop", id="c2"))
    assert (reply.model, reply.id, reply.text) == ("gpt", "c1", "hi")


def test_comments_crlf_and_missing_spaces_are_framing() -> None:
    body = ": OPENROUTER PROCESSING\r\n\r\ndata:" + json.dumps(chunk({"content": "hi"})) + "\r\n\r\n: x\r\n\r\ndata:"
    body += json.dumps(chunk(finish="stop")) + "\r\n\r\n"
    assert streamed(every_byte(body.encode()), AT).text == "hi"


# -- usage ---------------------------------------------------------------------------------------------------------------

USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, "prompt_tokens_details": {"cached_tokens": 4}}
FULL = Usage(10, 5, 4, None, None, 15)
PLACES: dict[str, list[JSON]] = {
    "a last chunk without choices": [chunk({"content": "hi"}), chunk(finish="stop"), {"choices": [], "usage": USAGE}],
    "on the chunk of the finish": [chunk({"content": "hi"}), chunk(finish="stop", usage=USAGE)],
    "twice": [chunk({"content": "hi"}), chunk(finish="stop", x_groq={"usage": USAGE}), {"choices": [], "usage": USAGE}],
    "in x_groq alone": [chunk({"content": "hi"}), chunk(finish="stop", x_groq={"usage": USAGE})],
    "in the choice": [
        chunk({"content": "hi"}),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": USAGE}]},
    ],
    "null until the end": [chunk({"content": "hi"}, usage=None), chunk(finish="stop", usage=USAGE)],
    "cumulative in every chunk": [
        chunk({"content": "hi"}, usage={**USAGE, "completion_tokens": 1, "total_tokens": 11}),
        chunk(finish="stop", usage=USAGE),
    ],
    "a later report without details does not wipe them": [
        chunk({"content": "hi"}, usage=USAGE),
        chunk(
            finish="stop",
            usage={"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, "prompt_tokens_details": None},
        ),
    ],
}


@pytest.mark.parametrize("place", PLACES)
def test_usage_is_the_same_wherever_it_stands(place: str) -> None:
    assert read(*PLACES[place]).usage == FULL


CACHED = [
    {"prompt_tokens_details": {"cached_tokens": 4}},
    {"input_tokens_details": {"cached_tokens": 4}},
    {"cached_tokens": 4},
    {"prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 6},
    {"num_cached_tokens": 4},
    {"cache_read_input_tokens": 4},
    {"cachedContentTokenCount": 4},
    {"cacheReadInputTokens": 4},
    {"cacheReadInputTokenCount": 4},
]


@pytest.mark.parametrize("fields", CACHED, ids=lambda fields: next(iter(fields)))
def test_cached_tokens_have_nine_names(fields: JSON) -> None:
    reply = read(chunk({"content": "hi"}), chunk(finish="stop", usage={"prompt_tokens": 10, "completion_tokens": 5, **fields}))
    assert reply.usage == FULL


COUNTS = [
    ("plain", {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}, Usage(10, 5, None, None, None, 15)),
    (
        "reasoning outside the completion",
        {
            "prompt_tokens": 429,
            "completion_tokens": 44,
            "total_tokens": 975,
            "completion_tokens_details": {"reasoning_tokens": 502},
        },
        Usage(429, 546, None, None, 502, 975),
    ),
    (
        "thoughts in the total alone",
        {"prompt_tokens": 35, "completion_tokens": 12, "total_tokens": 109},
        Usage(35, 74, None, None, None, 109),
    ),
    (
        "sound outside the prompt",
        {"prompt_tokens": 11, "completion_tokens": 15, "total_tokens": 401, "prompt_tokens_details": {"audio_tokens": 375}},
        Usage(386, 15, None, None, None, 401),
    ),
    ("missing total", {"prompt_tokens": 1, "completion_tokens": 2}, Usage(1, 2, None, None, None, 3)),
    ("missing completion", {"prompt_tokens": 1}, Usage(1, None, None, None, None, None)),
    (
        "written to a cache",
        {"prompt_tokens": 9, "completion_tokens": 1, "cache_creation_input_tokens": 8},
        Usage(9, 1, None, 8, None, 10),
    ),
    ("more cached than sent", {"prompt_tokens": 1, "completion_tokens": 1, "cached_tokens": 9}, Usage(1, 1, 9, None, None, 2)),
    ("nulls", {"prompt_tokens": None, "completion_tokens": None, "total_tokens": None}, None),
    ("words", {"prompt_tokens": "many", "completion_tokens": True, "total_tokens": -1}, None),
    ("empty", {}, None),
]


@pytest.mark.parametrize(("usage", "wanted"), [case[1:] for case in COUNTS], ids=[case[0] for case in COUNTS])
def test_counts_add_up_to_the_providers_total_and_unknown_is_none(usage: JSON, wanted: Usage | None) -> None:
    assert read(chunk({"content": "hi"}), chunk(finish="stop", usage=usage)).usage == wanted


# -- errors in the middle ------------------------------------------------------------------------------------------------

FAILURES: dict[str, tuple[list[JSON | str], type[LLMBrokerError], int | None]] = {
    "an error alone": ([{"error": {"code": 502, "message": "gone"}}], ServerError, 502),
    "after text": ([chunk({"content": "hi"}), {"error": {"code": 429, "message": "slow"}}], RateLimitError, 429),
    "beside choices that look fine": (
        [chunk({"content": "hi"}), {**chunk({"content": ""}, finish="stop"), "error": {"code": 502, "message": "malformed"}}],
        ServerError,
        502,
    ),
    "beside a finish reason error": ([{**chunk(finish="error"), "error": {"code": 502, "message": "gone"}}], ServerError, 502),
    "in the choice": ([{"choices": [{"index": 0, "delta": {}, "error": {"code": 502, "message": "gone"}}]}], ServerError, 502),
    "a finish reason error alone": ([chunk({"content": "hi"}), chunk(finish="error")], ServerError, None),
    "a named event": (
        [chunk({"content": "hi"}), 'event: error\ndata: {"error":{"message":"m","code":"tool_use_failed","status_code":400}}'],
        MalformedCallError,
        400,
    ),
    "a named event without the key": (
        ['event: error\ndata: {"message":"m","code":"rate_limit_exceeded"}'],
        RateLimitError,
        None,
    ),
    "a bare string": ([{"error": "overloaded"}], ServerError, None),
    "a filter": ([{"error": {"code": "content_filter", "message": "m", "status": 400}}], ContentFilterError, 400),
    "object error": ([{"object": "error", "message": "no such model", "code": 404}], ProviderError, 404),
    "no JSON": (["data: {nonsense"], InvalidProviderResponseError, None),
    "a number": (["data: 12"], InvalidProviderResponseError, None),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_an_error_in_a_stream_is_typed_like_an_error_of_http(kind: str) -> None:
    events, error, status = FAILURES[kind]
    with pytest.raises(error) as caught:
        read(*events, done=False)
    assert caught.value.status == status
    assert (caught.value.provider, caught.value.model) == (AT.provider.id, "m")


def test_a_malformed_call_of_the_upstream_is_an_answer_that_ended_in_error() -> None:
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "native_finish_reason": "MALFORMED_FUNCTION_CALL"}]}
    reply = read(calls(tool(0, "a", W, P)), last)
    assert (reply.finish_reason, reply.raw_finish_reason) == ("error", "MALFORMED_FUNCTION_CALL")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"error": {"code": 502, "message": "gone"}}, ServerError),
        ({"error": "overloaded"}, ServerError),
        ({"object": "error", "message": "m", "code": 400}, ProviderError),
        ({"detail": "Not Found"}, ProviderError),
        ({"choices": []}, InvalidProviderResponseError),
        ({"choices": None}, InvalidProviderResponseError),
        ({"data": []}, InvalidProviderResponseError),
        ({}, InvalidProviderResponseError),
        ({"choices": [{"index": 0, "message": {"content": ""}, "finish_reason": None}]}, InvalidProviderResponseError),
        ({"choices": ["text"]}, InvalidProviderResponseError),
        (
            {
                "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}],
                "error": {"code": 502, "message": "x"},
            },
            ServerError,
        ),
    ],
)
def test_a_200_that_is_no_answer_is_an_error(body: JSON, error: type[LLMBrokerError]) -> None:
    with pytest.raises(error):
        whole(json.dumps(body).encode(), AT)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"12", b"\xff\xfe", b'{"choices":', b"null"])
def test_a_body_that_is_no_object_is_an_error(body: bytes) -> None:
    with pytest.raises(InvalidProviderResponseError):
        whole(body, AT)


def test_a_whole_answer_without_a_finish_reason_is_unknown() -> None:
    body = {"choices": [{"message": {"content": "hi"}}]}
    assert whole(json.dumps(body).encode(), AT).finish_reason == "unknown"


# -- any bytes -----------------------------------------------------------------------------------------------------------

anything = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.text(max_size=5) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "message",
                    "content",
                    "tool_calls",
                    "function",
                    "name",
                    "arguments",
                    "id",
                    "index",
                    "usage",
                    "finish_reason",
                    "error",
                    "reasoning_details",
                    "prompt_tokens",
                    "type",
                    "text",
                    "thinking",
                    "model",
                    "x_groq",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(anything)
def test_no_json_breaks_the_decoder(value: Any) -> None:
    for read_it in (lambda: whole(json.dumps(value).encode(), AT), lambda: streamed([wire(f"data: {json.dumps(value)}")], AT)):
        try:
            assert isinstance(read_it(), Reply)
        except LLMBrokerError as error:
            assert error.provider == AT.provider.id or isinstance(error, StreamInterruptedError)


TURN = wire(
    chunk({"role": "assistant", "content": "<think>é</think>Hello, "}),
    chunk({"content": "wörld"}),
    calls(tool(0, "a", W, P[:5])),
    calls(tool(0, arguments=P[5:]), tool(1, "b", W, R)),
    chunk(finish="tool_calls"),
    {"choices": [], "usage": USAGE},
)


@given(st.lists(st.integers(0, len(TURN)), max_size=20))
def test_any_cutting_of_the_bytes_gives_the_same_reply(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(TURN)]
    reply = streamed([TURN[a:b] for a, b in itertools.pairwise(edges)], AT)
    assert (reply.text, reply.reasoning, calls_of(reply), reply.usage) == ("Hello, wörld", "é", TWO, FULL)


@settings(max_examples=300)
@given(st.integers(0, len(TURN) - 1), st.integers(1, 40), st.binary(max_size=8))
def test_no_corruption_breaks_the_reader_or_invents_a_finish(at: int, size: int, put: bytes) -> None:
    broken = TURN[:at] + put + TURN[at + size :]
    try:
        reply = streamed([broken], AT)
    except (LLMBrokerError, ValueError):
        return
    said = b'"finish_reason": "' + (reply.raw_finish_reason or "").encode() + b'"'
    assert reply.raw_finish_reason is None or said in broken
    assert reply.raw_finish_reason is not None or b"[DONE]" in broken


@given(st.integers(0, len(TURN) - 1))
def test_a_stream_cut_before_its_end_is_never_taken_for_whole(at: int) -> None:
    cut = TURN[:at]
    frames = SSEDecoder()
    ended = any(b'"tool_calls"}' in event.data or event.data == b"[DONE]" for event in [*frames.feed(cut), *frames.end()])
    try:
        streamed([cut], AT)
    except LLMBrokerError:
        assert not ended
    else:
        assert ended
