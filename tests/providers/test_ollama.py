"""Ollama's /api/chat: every recorded answer read against plain walks over its JSON; requests in the server's shape."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import traffic
from tests.providers.vendor_wires import body_bytes, calls_of, cut, deployment, essence, every_byte, is_stream, streamed, whole

from llmbroker.errors import InvalidRequestError, LLMBrokerError, ModelNotFoundError, ProviderError, StreamInterruptedError
from llmbroker.exchange import make_request
from llmbroker.providers.ollama import DIALECT
from llmbroker.wire import HTTPReply

AT = deployment(DIALECT, "m", auth="none", base_url="http://localhost:11434")
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}


def records() -> list[dict[str, Any]]:
    return [r for r in traffic("ollama") if r["api"] == "ollama"]


def lines(record: dict[str, Any]) -> list[dict[str, Any]]:
    body = record["response"]["body"]
    return [body] if isinstance(body, dict) else [json.loads(line) for line in body.split("\n") if line.strip()]


def test_every_recorded_answer_is_read_as_the_server_wrote_it() -> None:
    counts: Counter[str] = Counter()
    for record in records():
        if record["response"]["status"] >= 300:
            error = DIALECT.decode_error(HTTPReply(record["response"]["status"], {}, body_bytes(record)), AT)
            assert isinstance(error, ModelNotFoundError)
            counts["refused"] += 1
            continue
        objects = lines(record)
        messages = [o.get("message") or {"content": o.get("response"), "thinking": o.get("thinking")} for o in objects]
        text = "".join(m.get("content") or "" for m in messages)
        reasoning = "".join(m.get("thinking") or "" for m in messages)
        if text.startswith("<think>"):
            reasoning, text = (piece.strip() for piece in text.removeprefix("<think>").split("</think>"))
        calls = [(c["function"]["name"], c["function"]["arguments"]) for m in messages for c in m.get("tool_calls") or ()]
        last = objects[-1]
        at = body_bytes(record)
        reply = streamed([at], AT) if is_stream(record) else whole(at, AT)
        assert (reply.text, reply.reasoning or "", calls_of(reply)) == (text, reasoning, calls), record["id"]
        assert reply.usage is not None
        assert reply.usage.input_tokens == last.get("prompt_eval_count")
        assert reply.usage.output_tokens == last["eval_count"]
        assert reply.finish_reason == ("length" if last["done_reason"] == "length" else "tool_calls" if calls else "stop")
        again = whole(json.dumps(DIALECT.encode_reply(reply)).encode(), AT)
        keep = ("text", "reasoning", "calls", "usage", "finish")
        assert {k: essence(again)[k] for k in keep} == {k: essence(reply)[k] for k in keep}, record["id"]
        if is_stream(record):
            assert essence(streamed(every_byte(at), AT)) == essence(reply), record["id"]
            assert essence(streamed(cut(at, record["response"].get("chunk_sizes") or [7, 100, 3]), AT)) == essence(reply)
        counts["streamed" if is_stream(record) else "whole"] += 1
    print("ollama:", dict(counts))
    assert counts["streamed"] >= 24
    assert counts["whole"] >= 26


def ndjson(*objects: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(o).encode() + b"\n" for o in objects)


def say(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "message": {"role": "assistant", "content": text}, "done": False, **more}


DONE = {"model": "m", "message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop", "eval_count": 3}


def test_a_stream_that_never_says_done_is_not_complete() -> None:
    with pytest.raises(StreamInterruptedError):
        streamed([ndjson(say("half"))], AT)


def test_an_error_line_in_the_middle_is_an_error() -> None:
    with pytest.raises(ProviderError, match="model runner has unexpectedly stopped"):
        streamed([ndjson(say("half"), {"error": "model runner has unexpectedly stopped"})], AT)


def test_calls_without_ids_get_some_and_two_of_one_name_stay_two() -> None:
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    reply = streamed([ndjson(say("", message={"role": "assistant", "content": "", "tool_calls": [call, call]}), DONE)], AT)
    assert calls_of(reply) == [("add", {"a": 1})] * 2
    assert reply.tool_calls is not None
    assert len({c["id"] for c in reply.tool_calls}) == 2


def test_a_call_inside_the_thoughts_is_no_call() -> None:
    thought = {"role": "assistant", "content": "x", "thinking": '<tool_call>{"name":"add"}</tool_call>'}
    assert streamed([ndjson(say("", message=thought), DONE)], AT).tool_calls is None


def test_missing_usage_stays_unknown() -> None:
    reply = streamed([ndjson({**DONE, "eval_count": None})], AT)
    assert reply.usage is None


@settings(max_examples=60)
@given(st.data())
def test_any_corruption_ends_typed_and_invents_no_finish(data: st.DataObject) -> None:
    stream = bytearray(ndjson(say("a"), say("b"), DONE))
    for _ in range(data.draw(st.integers(0, 4))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    kept = bytes(stream[: data.draw(st.integers(0, len(stream)))])
    try:
        streamed([kept], AT)
    except (LLMBrokerError, ValueError, TypeError, LookupError, AttributeError):
        return
    assert b"done" in kept


def sent(messages: Any, **how: Any) -> dict[str, Any]:
    request = DIALECT.encode(make_request(messages, **how), AT)
    assert request.url == "http://localhost:11434/api/chat"
    body: dict[str, Any] = json.loads(request.body)
    return body


def test_arguments_in_history_are_objects_and_results_name_their_tool() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    history = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ]
    body = sent(history, tools=[TOOL])
    assert body["messages"][1:] == [
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "function": {"name": "add", "arguments": {"a": 1}}}]},
        {"role": "tool", "content": "3", "tool_name": "add", "tool_call_id": "c1"},
    ]


def test_parameters_become_options() -> None:
    schema = {"type": "object", "properties": {}}
    body = sent(
        "q",
        tools=[TOOL],
        choice="none",
        params={"max_tokens": 5, "temperature": 0, "seed": 1, "stop": "x", "reasoning_effort": "low", "keep_alive": "1m"},
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
    )
    assert body["options"] == {"num_predict": 5, "temperature": 0, "seed": 1, "stop": ["x"]}
    assert (body["think"], body["keep_alive"], body["format"], body["stream"]) == ("low", "1m", schema, False)
    assert "tools" not in body


def test_an_image_that_is_a_url_is_refused_before_anything_is_sent() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    with pytest.raises(InvalidRequestError, match="base64"):
        sent([{"role": "user", "content": [image]}])
    data = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert sent([{"role": "user", "content": [data]}])["messages"][0]["images"] == ["AAAA"]
