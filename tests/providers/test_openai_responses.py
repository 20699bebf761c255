"""OpenAI Responses: every recorded answer read against plain walks over its JSON; requests in the vendor's shape."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import traffic
from tests.providers.vendor_wires import body_bytes, calls_of, cut, deployment, essence, every_byte, is_stream, streamed, whole

from llmbroker.errors import BadRequestError, BillingError, LLMBrokerError, ProviderError, StreamInterruptedError
from llmbroker.exchange import make_request
from llmbroker.providers.openai_responses import DIALECT
from llmbroker.wire import HTTPReply

PROVIDERS = ("openai", "azure", "xai", "deepseek", "bedrock", "chatgpt", "copilot", "openrouter", "mistralrs", "open-responses")
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
AT = deployment(DIALECT, "m", auth="bearer")


def records() -> list[dict[str, Any]]:
    return [r for p in PROVIDERS for r in traffic(p) if r["api"] == "openai-responses"]


# -- the oracle: plain walks, no code of the package -------------------------------------------------------------------------


def final_response(record: dict[str, Any]) -> dict[str, Any] | None:
    """Return the response object as the provider ended with it, its items taken from the stream where it leaves them out."""
    body = record["response"]["body"]
    if isinstance(body, dict):
        return body if "output" in body else None
    items: dict[int, dict[str, Any]] = {}
    last = None
    for line in body.replace("\r\n", "\n").split("\n"):
        if line.startswith("data:") and line[5:].strip().startswith("{"):
            event = json.loads(line[5:])
            if event.get("type") == "response.output_item.done":
                items[event["output_index"]] = event["item"]
            if event.get("type") in ("response.completed", "response.incomplete"):
                last = event["response"]
                break  # one fixture holds several answers in a row; the first terminal event ends the first
    if last is not None and not last.get("output"):
        last = {**last, "output": [items[i] for i in sorted(items)]}
    return last


def expected(response: dict[str, Any]) -> dict[str, Any]:
    items = [item for item in response["output"] if isinstance(item, dict)]
    parts = [part for item in items if item["type"] == "message" for part in item["content"]]
    calls = [
        (item["name"], json.loads(item["arguments"] or "{}") if response["status"] == "completed" else item["arguments"])
        for item in items
        if item["type"] == "function_call"
    ]
    refusal = "".join(part.get("refusal") or "" for part in parts)
    reason = (response.get("incomplete_details") or {}).get("reason")
    finish = "tool_calls" if calls else "refusal" if refusal else "stop"
    if response["status"] == "incomplete":
        finish = {"max_output_tokens": "length", "content_filter": "content_filter"}.get(reason, "unknown")
    usage = response.get("usage") or {}
    return {
        "text": "".join(part.get("text") or "" for part in parts),
        "calls": calls,
        "refusal": refusal or None,
        "finish": finish,
        "input": usage.get("input_tokens"),
        "cached": (usage.get("input_tokens_details") or {}).get("cached_tokens"),
        "reasoning": (usage.get("output_tokens_details") or {}).get("reasoning_tokens"),
        "total": usage.get("total_tokens"),
    }


def test_every_recorded_answer_is_read_as_the_provider_wrote_it() -> None:
    counts: Counter[str] = Counter()
    for record in records():
        response = final_response(record)
        if record["response"]["status"] >= 300 or response is None:
            counts["not an answer"] += 1
            continue
        at = body_bytes(record)
        reply = streamed([at], AT) if is_stream(record) else whole(at, AT)
        want = expected(response)
        usage = reply.usage
        got = {
            "text": reply.text,
            "calls": calls_of(reply)
            if response["status"] == "completed"
            else [(c["function"]["name"], c["function"]["arguments"]) for c in reply.tool_calls or ()],
            "refusal": reply.refusal,
            "finish": reply.finish_reason,
            "input": usage.input_tokens if usage else None,
            "cached": usage.cached_input_tokens if usage else None,
            "reasoning": usage.reasoning_tokens if usage else None,
            "total": usage.total_tokens if usage else None,
        }
        assert got == want, record["id"]
        assert json.loads(json.dumps(reply.message)) == reply.message
        counts["streamed" if is_stream(record) else "whole"] += 1
    print("openai-responses:", dict(counts))
    assert counts["whole"] > 150
    assert counts["streamed"] > 140


def test_a_stream_reads_the_same_at_its_recorded_reads() -> None:
    seen = 0
    for record in records():
        sizes = record["response"].get("chunk_sizes")
        if sizes and is_stream(record) and record["response"]["status"] < 300:
            assert essence(streamed(cut(body_bytes(record), sizes), AT)) == essence(streamed([body_bytes(record)], AT)), record[
                "id"
            ]
            seen += 1
    assert seen


def test_a_stream_reads_the_same_byte_by_byte() -> None:
    taken = [r for r in records() if is_stream(r) and final_response(r)]
    for record in sorted(taken, key=lambda r: len(r["response"]["body"]))[:40]:
        at = body_bytes(record)
        assert essence(streamed(every_byte(at), AT)) == essence(streamed([at], AT)), record["id"]


def test_every_recorded_refusal_is_typed() -> None:
    for record in records():
        response = record["response"]
        if response["status"] >= 300:
            error = DIALECT.decode_error(HTTPReply(response["status"], response.get("headers") or {}, body_bytes(record)), AT)
            assert error.status == response["status"]
            assert error.detail, record["id"]


def test_a_reply_written_in_this_dialect_reads_the_same() -> None:
    for record in records():
        response = final_response(record)
        if record["response"]["status"] < 300 and response is not None:
            at = body_bytes(record)
            reply = streamed([at], AT) if is_stream(record) else whole(at, AT)
            again = whole(json.dumps(DIALECT.encode_reply(reply)).encode(), AT)
            keep = ("text", "reasoning", "refusal", "calls", "usage", "finish")
            assert {k: essence(again)[k] for k in keep} == {k: essence(reply)[k] for k in keep}, record["id"]


# -- streams that go wrong ---------------------------------------------------------------------------------------------------


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events)


CREATED = {"type": "response.created", "response": {"id": "r1", "model": "m-1", "status": "in_progress", "output": []}}
COMPLETED = {"type": "response.completed", "response": {"id": "r1", "model": "m-1", "status": "completed", "output": []}}


def delta(text: str, index: int = 0) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "output_index": index, "content_index": 0, "delta": text}


def call_added(index: int, call_id: str, name: str) -> dict[str, Any]:
    item = {"type": "function_call", "id": f"fc{index}", "call_id": call_id, "name": name, "arguments": ""}
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def args(index: int, text: str) -> dict[str, Any]:
    return {"type": "response.function_call_arguments.delta", "output_index": index, "item_id": f"fc{index}", "delta": text}


def test_a_stream_without_a_terminal_event_is_not_complete() -> None:
    with pytest.raises(StreamInterruptedError) as caught:
        streamed([sse(CREATED, delta("half"))], AT)
    assert caught.value.text == "half"


def test_an_error_event_outranks_what_came_before() -> None:
    error = {"type": "error", "code": "insufficient_quota", "message": "no money", "param": None, "sequence_number": 2}
    with pytest.raises(BillingError, match="no money"):
        streamed([sse(CREATED, delta("half"), error)], AT)


def test_a_failed_response_is_an_error() -> None:
    failed = {"status": "failed", "error": {"code": "server_error", "message": "broke"}, "output": []}
    with pytest.raises(ProviderError, match="broke"):
        streamed([sse(CREATED, {"type": "response.failed", "response": failed})], AT)
    with pytest.raises(ProviderError, match="broke"):
        whole(json.dumps(failed).encode(), AT)


def test_unknown_events_and_keepalives_are_passed_over() -> None:
    reply = streamed([sse({"type": "keepalive", "sequence_number": 1}, CREATED, delta("hi"), COMPLETED)], AT)
    assert (reply.text, reply.finish_reason, reply.model) == ("hi", "stop", "m-1")


def test_an_empty_arguments_delta_is_accepted_and_parallel_calls_stay_apart() -> None:
    stream = sse(
        CREATED,
        call_added(0, "a", "f"),
        call_added(1, "b", "g"),
        args(0, ""),
        args(1, '{"y":'),
        args(0, "{}"),
        args(1, "2}"),
        COMPLETED,
    )
    assert calls_of(streamed([stream], AT)) == [("f", {}), ("g", {"y": 2})]


def test_the_last_word_on_arguments_counts() -> None:
    done = {"type": "response.function_call_arguments.done", "output_index": 0, "arguments": '{"x":1}'}
    assert calls_of(streamed([sse(CREATED, call_added(0, "a", "f"), args(0, '{"x"'), done, COMPLETED)], AT)) == [
        ("f", {"x": 1})
    ]
    assert calls_of(streamed([sse(CREATED, call_added(0, "a", "f"), args(0, "garbage"), done, COMPLETED)], AT)) == [
        ("f", {"x": 1})
    ]


def test_calls_that_the_provider_runs_are_not_ours_but_go_back() -> None:
    body = {
        "id": "r",
        "model": "m",
        "status": "completed",
        "output": [
            {"type": "web_search_call", "id": "ws1", "status": "completed"},
            {"type": "custom_tool_call", "id": "ct", "call_id": "x", "name": "x_keyword_search", "input": "{}"},
            {"type": "message", "id": "m1", "role": "assistant", "content": [{"type": "output_text", "text": "found"}]},
        ],
    }
    reply = whole(json.dumps(body).encode(), AT)
    assert reply.tool_calls is None
    history = [{"role": "user", "content": "q"}, reply.message, {"role": "user", "content": "more"}]
    sent = json.loads(DIALECT.encode(make_request(history), AT).body)
    assert sent["input"][1:-1] == body["output"]


@settings(max_examples=60)
@given(st.data())
def test_any_corruption_of_a_stream_ends_typed_and_invents_no_finish(data: st.DataObject) -> None:
    stream = bytearray(sse(CREATED, call_added(0, "a", "f"), args(0, '{"x":1}'), delta("text", 1), COMPLETED))
    end = data.draw(st.integers(0, len(stream)))
    for _ in range(data.draw(st.integers(0, 4))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    kept = bytes(stream[:end])
    try:
        reply = streamed([kept], AT)
    except (LLMBrokerError, ValueError, TypeError, LookupError, AttributeError):
        return
    assert b"response.completed" in kept or b"response.incomplete" in kept or reply.finish_reason == "unknown"


# -- requests ----------------------------------------------------------------------------------------------------------------


def sent(messages: Any, **how: Any) -> dict[str, Any]:
    request = DIALECT.encode(make_request(messages, **how), AT)
    assert request.url == "https://api.example.com/v1/responses"
    body: dict[str, Any] = json.loads(request.body)
    return body


def test_a_plain_request() -> None:
    assert sent("hi") == {"model": "m", "input": [{"role": "user", "content": "hi"}]}


def test_tools_choice_format_and_parameters_go_to_their_places() -> None:
    schema = {"type": "object", "properties": {}}
    body = sent(
        [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}],
        tools=[WEATHER],
        choice="get_weather",
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}},
        params={"max_tokens": 9, "reasoning_effort": "low", "seed": 1, "parallel_tool_calls": False, "store": False},
        stream=True,
    )
    assert body["input"][0] == {"role": "system", "content": "s"}
    assert body["tools"][0] == {"type": "function", **WEATHER["function"], "strict": False}  # type: ignore[dict-item]
    assert body["tool_choice"] == {"type": "function", "name": "get_weather"}
    assert body["text"]["format"] == {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    assert body["max_output_tokens"] == 9
    assert body["reasoning"] == {"effort": "low"}
    assert body["include"] == ["reasoning.encrypted_content"]
    assert body["parallel_tool_calls"] is False
    assert body["stream"] is True
    assert "seed" not in body
    assert "max_tokens" not in body


def test_reasoning_goes_back_beside_its_call_and_only_to_the_same_provider() -> None:
    output = [
        {"type": "reasoning", "id": "rs1", "summary": [], "encrypted_content": "opaque"},
        {"type": "function_call", "id": "fc1", "call_id": "c1", "name": "get_weather", "arguments": '{"city":"Paris"}'},
    ]
    body = {"id": "r", "model": "m", "status": "completed", "output": output}
    reply = whole(json.dumps(body).encode(), AT)
    history = [
        {"role": "user", "content": "q"},
        json.loads(json.dumps(reply.message)),
        {"role": "tool", "tool_call_id": "c1", "content": "20"},
    ]
    result = {"type": "function_call_output", "call_id": "c1", "output": "20"}
    assert sent(history, tools=[WEATHER])["input"][1:] == [*output, result]
    other = deployment(DIALECT, "m", auth="bearer", id="another")
    elsewhere = json.loads(DIALECT.encode(make_request(history), other).body)["input"][1:]
    assert elsewhere == [{k: v for k, v in output[1].items() if k != "id"}, result]


def test_images_and_files_in() -> None:
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,BBBB", "filename": "a.pdf"}},
    ]
    assert sent([{"role": "user", "content": parts}])["input"][0]["content"] == [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,BBBB"},
    ]


def test_a_refused_parameter_is_mended() -> None:
    error = BadRequestError("no", status=400, code="unsupported_parameter", param="max_output_tokens")
    assert DIALECT.mend is not None
    mend = DIALECT.mend(error, make_request("q", params={"max_tokens": 3}), AT)
    assert mend is not None
    assert mend.drop == {"max_tokens"}
    assert DIALECT.mend(error, make_request("q"), AT) is None
