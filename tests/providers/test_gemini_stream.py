"""Answers of generateContent, whole and streamed: what may come in them, and what is made of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.providers.vendor_wires import calls_of, cut, deployment, essence, streamed, whole

from llmbroker.errors import (
    AuthError,
    InvalidProviderResponseError,
    LLMBrokerError,
    ProviderError,
    RateLimitError,
    ServerError,
    StreamInterruptedError,
)
from llmbroker.exchange import Reply, Usage
from llmbroker.providers.gemini import DIALECT
from llmbroker.wire import SSE

AT = deployment(DIALECT, "gemini-3-flash-preview")
JSON = dict[str, Any]
COUNTS = {"promptTokenCount": 10, "candidatesTokenCount": 4, "thoughtsTokenCount": 3, "totalTokenCount": 17}


def chunk(*parts: JSON, finish: Any = None, **more: Any) -> JSON:
    candidate: JSON = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "modelVersion": "gemini-3", "responseId": "r1", **more}


def said(text: str, **more: Any) -> JSON:
    return {"text": text, **more}


def call(name: str, args: Any = None, **more: Any) -> JSON:
    return {"functionCall": {"name": name, **({} if args is None else {"args": args})}, **more}


def wire(*chunks: JSON) -> bytes:
    return "".join(f"data: {json.dumps(item)}\r\n\r\n" for item in chunks).encode()


def read(*chunks: JSON) -> Reply:
    return streamed([wire(*chunks)], AT)


def items(reply: Reply) -> list[JSON]:
    kept: list[JSON] = reply.message["provider_data"]["items"]
    return kept


# -- text and thoughts -----------------------------------------------------------------------------------------------------


def test_thoughts_are_reasoning_and_no_text() -> None:
    reply = read(
        chunk(said("Hm ", thought=True)), chunk(said("…", thought=True), said("Hel")), chunk(said("lo"), finish="STOP")
    )
    assert (reply.reasoning, reply.text, reply.finish_reason) == ("Hm …", "Hello", "stop")
    assert "provider_data" not in reply.message


def test_only_the_first_candidate_counts() -> None:
    both = chunk(said("One"), finish="STOP")
    both["candidates"].insert(0, {"content": {"parts": [said("Two")]}, "index": 1, "finishReason": "MAX_TOKENS"})
    assert (read(both).text, read(both).finish_reason) == ("One", "stop")


def test_code_that_the_provider_ran_and_media_are_kept_for_it_and_are_no_text() -> None:
    parts = [
        {"executableCode": {"language": "PYTHON", "code": "print(1)"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
        {"inlineData": {"mimeType": "image/png", "data": "aGk="}},
        said("It is 1."),
    ]
    reply = read(chunk(*parts, finish="STOP"))
    assert reply.text == "It is 1."
    assert items(reply) == parts


def test_pieces_of_text_are_one_part_again_but_never_across_a_signature() -> None:
    signed = said("", thoughtSignature="c2ln")
    reply = read(chunk(said("Hel")), chunk(said("lo")), chunk(signed), chunk(said("!"), finish="STOP"))
    assert items(reply) == [said("Hello"), signed, said("!")]


# -- calls -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (call("f", {"a": 1}), {"a": 1}),
        (call("f", {}), {}),
        (call("f"), {}),
        (call("f", "{}"), {}),
        (call("f", '{"a": 1}'), {"a": 1}),
    ],
)
def test_the_arguments_of_a_call_are(part: JSON, expected: JSON) -> None:
    reply = read(chunk(part, finish="STOP"))
    assert calls_of(reply) == [("f", expected)]
    assert (reply.finish_reason, reply.raw_finish_reason) == ("tool_calls", "STOP")


def test_calls_get_ids_of_ours_where_the_provider_gives_none() -> None:
    reply = read(chunk(call("f", {"a": 1})), chunk(call("f", {"a": 2})), chunk(finish="STOP"))
    ids = [item["id"] for item in reply.tool_calls or ()]
    assert len(set(ids)) == 2
    assert all(ids)
    assert calls_of(reply) == [("f", {"a": 1}), ("f", {"a": 2})]


def test_an_id_and_a_signature_of_the_provider_s_are_kept_on_their_part() -> None:
    part = {"functionCall": {"id": "id1", "name": "f", "args": {"a": 1}}, "thoughtSignature": "c2ln"}
    reply = read(chunk(part), chunk(call("g"), finish="STOP"))
    assert (reply.tool_calls or [])[0]["id"] == "id1"
    assert items(reply) == [part, call("g")]


def pieces(*partial: JSON, going_on: bool = True) -> JSON:
    return {"functionCall": {"partialArgs": list(partial), **({"willContinue": True} if going_on else {})}}


def test_arguments_that_come_as_values_with_paths_are_put_together() -> None:
    reply = read(
        chunk({"functionCall": {"id": "c1", "name": "book", "willContinue": True}, "thoughtSignature": "c2ln"}),
        chunk(pieces({"jsonPath": "$.to.city", "stringValue": "San ", "willContinue": True})),
        chunk(pieces({"jsonPath": "$.to.city", "stringValue": "José"}, {"jsonPath": "$.to.far", "boolValue": True})),
        chunk(pieces({"jsonPath": "$.stops[1].km", "numberValue": 2.5}, {"jsonPath": "$['a.b']", "nullValue": None})),
        chunk({"functionCall": {}}),
        chunk({"functionCall": {"name": "empty", "willContinue": True}}),
        chunk({"functionCall": {}}, finish="STOP"),
    )
    args = {"to": {"city": "San José", "far": True}, "stops": [None, {"km": 2.5}], "a.b": None}
    assert calls_of(reply) == [("book", args), ("empty", {})]
    assert items(reply)[0] == {"functionCall": {"id": "c1", "name": "book", "args": args}, "thoughtSignature": "c2ln"}
    assert (reply.tool_calls or [])[0]["id"] == "c1"


def test_a_call_in_pieces_that_is_cut_at_the_limit_has_no_arguments_that_could_be_run() -> None:
    reply = read(
        chunk({"functionCall": {"name": "book", "willContinue": True}}),
        chunk(pieces({"jsonPath": "$.city", "stringValue": "San ", "willContinue": True}), finish="MAX_TOKENS"),
    )
    assert reply.finish_reason == "length"
    assert (reply.tool_calls or [])[0]["function"]["arguments"] == ""


@pytest.mark.parametrize("path", ["$", "", "$.a[99999999]"])
def test_a_path_that_names_nothing_or_too_much_is_a_fault(path: str) -> None:
    with pytest.raises(ValueError, match=r"names nothing|too long"):
        read(
            chunk({"functionCall": {"name": "f", "willContinue": True}}),
            chunk(pieces({"jsonPath": path, "stringValue": "x"})),
        )


# -- how a turn ends -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "finish", "raw"),
    [
        ("STOP", "stop", "STOP"),
        (1, "stop", "STOP"),
        ("MAX_TOKENS", "length", "MAX_TOKENS"),
        (2, "length", "MAX_TOKENS"),
        ("SAFETY", "content_filter", "SAFETY"),
        (3, "content_filter", "SAFETY"),
        ("RECITATION", "content_filter", "RECITATION"),
        ("BLOCKLIST", "content_filter", "BLOCKLIST"),
        ("PROHIBITED_CONTENT", "content_filter", "PROHIBITED_CONTENT"),
        ("SPII", "content_filter", "SPII"),
        ("MODEL_ARMOR", "content_filter", "MODEL_ARMOR"),
        ("IMAGE_SAFETY", "content_filter", "IMAGE_SAFETY"),
        ("MALFORMED_FUNCTION_CALL", "error", "MALFORMED_FUNCTION_CALL"),
        (9, "error", "MALFORMED_FUNCTION_CALL"),
        ("UNEXPECTED_TOOL_CALL", "error", "UNEXPECTED_TOOL_CALL"),
        ("TOO_MANY_TOOL_CALLS", "error", "TOO_MANY_TOOL_CALLS"),
        ("MISSING_THOUGHT_SIGNATURE", "error", "MISSING_THOUGHT_SIGNATURE"),
        ("MALFORMED_RESPONSE", "error", "MALFORMED_RESPONSE"),
        ("LANGUAGE", "unknown", "LANGUAGE"),
        ("OTHER", "unknown", "OTHER"),
        ("A_WORD_OF_TOMORROW", "unknown", "A_WORD_OF_TOMORROW"),
        (77, "unknown", "77"),
    ],
)
def test_the_finish_reason_means(word: Any, finish: str, raw: str) -> None:
    reply = read(chunk(said("Hi")), chunk(finish=word))
    assert (reply.finish_reason, reply.raw_finish_reason) == (finish, raw)
    body = json.dumps(chunk(said("Hi"), finish=word)).encode()
    assert essence(whole(body, AT)) == essence(reply)


@pytest.mark.parametrize("word", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "SAFETY"])
def test_a_call_beside_a_bad_end_is_shown_and_the_end_stays_bad(word: str) -> None:
    reply = read(chunk(call("f", {}), finish=word))
    assert calls_of(reply) == [("f", {})]
    assert reply.finish_reason in ("error", "content_filter")


@pytest.mark.parametrize("candidate", [{}, {"content": {}}, {"content": {"role": "model"}}, {"content": None}])
def test_a_candidate_without_parts_is_an_answer_if_it_says_how_it_ended(candidate: JSON) -> None:
    body = {"candidates": [{**candidate, "finishReason": "MAX_TOKENS"}], "usageMetadata": COUNTS}
    for reply in (whole(json.dumps(body).encode(), AT), read(body)):
        assert (reply.text, reply.finish_reason) == ("", "length")


@pytest.mark.parametrize(
    ("word", "raw"), [("PROHIBITED_CONTENT", "PROHIBITED_CONTENT"), ("MODEL_ARMOR", "MODEL_ARMOR"), (1, "SAFETY")]
)
def test_a_blocked_prompt_is_a_reply_with_content_filter(word: Any, raw: str) -> None:
    body = {"promptFeedback": {"blockReason": word}, "usageMetadata": {"promptTokenCount": 4, "totalTokenCount": 4}}
    for reply in (whole(json.dumps(body).encode(), AT), read(body)):
        assert (reply.text, reply.finish_reason, reply.raw_finish_reason) == ("", "content_filter", raw)
        assert reply.usage == Usage(4, None, None, None, None, 4)


def test_a_body_with_nothing_in_it_is_an_invalid_response() -> None:
    for body in ({}, {"candidates": []}, {"candidates": [{"finishReason": 0}]}):
        with pytest.raises(InvalidProviderResponseError):
            whole(json.dumps(body).encode(), AT)


def test_a_stream_without_a_finish_reason_is_cut() -> None:
    with pytest.raises(StreamInterruptedError) as caught:
        read(chunk(said("Hel")), chunk(said("lo"), finish="FINISH_REASON_UNSPECIFIED"))
    assert caught.value.text == "Hello"


def test_what_follows_the_finish_reason_is_ignored() -> None:
    assert read(chunk(said("One"), finish="STOP"), chunk(said("Two"), finish="MAX_TOKENS")).text == "One"


# -- errors ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        ({"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}, ServerError),
        ({"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED"}, RateLimitError),
        ({"code": 401, "message": "no", "status": "UNAUTHENTICATED"}, AuthError),
    ],
)
@pytest.mark.parametrize("at", [0, 1])
def test_an_error_in_a_stream_is_the_error_that_its_status_says(error: JSON, wanted: type[ProviderError], at: int) -> None:
    chunks = [chunk(said("Half"))]
    chunks.insert(at, {"error": error})
    with pytest.raises(wanted) as caught:
        read(*chunks)
    assert (caught.value.status, caught.value.code) == (error["code"], error["status"])


def test_an_error_in_a_whole_body_of_status_200_is_raised() -> None:
    for body in ({"error": {"code": 500, "message": "m"}}, [{"error": {"code": 500, "message": "m"}}]):
        with pytest.raises(ServerError):
            whole(json.dumps(body).encode(), AT)


@pytest.mark.parametrize("payload", [b"1", b'"x"', b"{", b"<html>", b"[1]"])
def test_a_payload_that_is_no_object_is_an_invalid_response(payload: bytes) -> None:
    with pytest.raises(InvalidProviderResponseError):
        DIALECT.decoder(AT).feed(SSE("", payload))


# -- usage -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        pytest.param([COUNTS], Usage(10, 7, None, None, 3, 17), id="thoughts are part of the output"),
        pytest.param(
            [{"promptTokenCount": 5, "toolUsePromptTokenCount": 6, "candidatesTokenCount": 1, "totalTokenCount": 12}],
            Usage(11, 1, None, None, None, 12),
            id="the prompts of tools are part of the input",
        ),
        pytest.param(
            [{"promptTokenCount": 9, "cachedContentTokenCount": 8, "candidatesTokenCount": 1}], Usage(9, 1, 8, None, None, 10),
            id="cached tokens are part of the prompt",
        ),
        pytest.param([{"promptTokenCount": 9}, COUNTS], Usage(10, 7, None, None, 3, 17), id="the last report counts"),
        pytest.param([COUNTS, {"trafficType": "ON_DEMAND"}], Usage(10, 7, None, None, 3, 17), id="a report without counts"),
        pytest.param(
            [{"promptTokenCount": 9, "candidatesTokenCount": 21, "totalTokenCount": 30},
             {"promptTokenCount": 87, "thoughtsTokenCount": 78, "totalTokenCount": 165}],
            Usage(87, 78, None, None, 78, 165),
            id="counts of different reports are not mixed in one sum",
        ),
        pytest.param([{"trafficType": 1}], None, id="nothing stated"),
    ],
)  # fmt: skip
def test_usage_is(counts: list[JSON], expected: Usage | None) -> None:
    chunks = [chunk(said("x"), usageMetadata=count) for count in counts]
    chunks[-1]["candidates"][0]["finishReason"] = "STOP"
    assert read(*chunks).usage == expected


# -- any bytes -------------------------------------------------------------------------------------------------------------

RICH = wire(
    chunk(said("Hm é 🙂", thought=True)),
    chunk(said("Hel"), usageMetadata={"promptTokenCount": 3}),
    chunk(said("lo 世界")),
    chunk({**call("f", {"a": "🙂"}), "thoughtSignature": "c2ln"}, call("g")),
    chunk({"functionCall": {"name": "h", "willContinue": True}}),
    chunk(pieces({"jsonPath": "$.x", "numberValue": 1}, going_on=False)),
    chunk(finish="STOP", usageMetadata=COUNTS),
)


@given(st.lists(st.integers(1, 60), max_size=60))
def test_any_chunking_gives_the_same_reply(sizes: list[int]) -> None:
    assert essence(streamed(cut(RICH, sizes), AT)) == essence(streamed([RICH], AT))


@given(st.integers(0, len(RICH)))
def test_a_stream_cut_anywhere_is_an_error_with_the_text_so_far_or_complete(at: int) -> None:
    try:
        reply = streamed([RICH[:at]], AT)
    except StreamInterruptedError as error:
        assert "Hello 世界".startswith(error.text)
        return
    assert essence(reply) == essence(streamed([RICH], AT))


EVENTS = [event + b"\r\n\r\n" for event in RICH.split(b"\r\n\r\n") if event]
FAULTS = (LookupError, TypeError, AttributeError, ValueError, RecursionError)  # what the client room makes an invalid response


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
            junk = data.draw(st.sampled_from([b"{}", b"[]", b"null", b'{"candidates":3}', b"\xff"]))
            events.insert(at, b"data: " + junk + b"\r\n\r\n")
        else:
            place = data.draw(st.integers(0, len(events[at]) - 1))
            events[at] = events[at][:place] + bytes([data.draw(st.integers(0, 255))]) + events[at][place + 1 :]
    try:
        reply = streamed([b"".join(events)], AT)
    except LLMBrokerError:
        return
    except FAULTS:
        return
    word = reply.raw_finish_reason
    assert word is not None
    assert word.encode() in b"".join(events)


# -- there and back --------------------------------------------------------------------------------------------------------


@st.composite
def replies(draw: st.DrawFn) -> Reply:
    values = st.dictionaries(
        st.text(max_size=5), st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5), max_size=3
    )
    calls = [
        {"id": f"call_{i}", "type": "function", "function": {"name": "f", "arguments": json.dumps(draw(values))}}
        for i in range(draw(st.integers(0, 3)))
    ]
    finish = "tool_calls" if calls else draw(st.sampled_from(["stop", "length", "content_filter", "refusal", "error"]))
    sent, made, thoughts = (draw(st.integers(0, 10**6)) for _ in range(3))
    cached = draw(st.none() | st.integers(0, sent))
    usage = Usage(sent, made + thoughts, cached, None, thoughts, sent + made + thoughts)
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
    assert [item["id"] for item in again.tool_calls or ()] == [item["id"] for item in reply.tool_calls or ()]


def test_a_refusal_s_text_survives_there_and_back() -> None:
    reply = Reply(refusal="No.", finish_reason="refusal", model="m", id="i")
    again = whole(json.dumps(DIALECT.encode_reply(reply)).encode(), AT)
    assert (again.refusal, again.finish_reason, again.text) == ("No.", "refusal", "")
