"""Every recorded answer of the Messages API, against readings of the same JSON that know nothing of the dialect."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest
from tests.conftest import shared_folder, traffic
from tests.providers.vendor_wires import (
    KEY,
    body_bytes,
    calls_of,
    cut,
    deployment,
    essence,
    every_byte,
    is_stream,
    streamed,
    whole,
)

from llmbroker.errors import AuthError, BadRequestError, ContextWindowError, ModelNotFoundError
from llmbroker.providers.anthropic import DIALECT
from llmbroker.wire import HTTPReply

pytestmark = pytest.mark.traffic
AT = deployment(DIALECT, "claude-sonnet-4-5")
Record = dict[str, Any]


def records() -> list[Record]:
    return [r for name in ("anthropic", "azure", "vertex") for r in traffic(name) if r["api"] == "anthropic-messages"]


def answers() -> list[Record]:
    return [record for record in records() if record["response"]["status"] == 200]


# -- the oracle: plain walks over the JSON ---------------------------------------------------------------------------------


def payloads(text: str) -> list[dict[str, Any]]:
    found = re.findall(r"^data: ?(.*)$", text.replace("\r\n", "\n"), re.MULTILINE)
    return [json.loads(line) for line in found if line != "[DONE]"]


def assembled(text: str) -> dict[str, Any]:
    """Put a stream together into the message that it stands for: up to the first stop, from the last start before it."""
    message: dict[str, Any] = {}
    pieces: dict[int, str] = {}
    for event in payloads(text):
        kind = event["type"]
        if kind == "message_start":
            message, pieces = json.loads(json.dumps(event["message"])), {}
            message["content"] = []
        elif kind == "content_block_start":
            message["content"].append(json.loads(json.dumps(event["content_block"])))
        elif kind == "content_block_delta":
            block, delta = message["content"][event["index"]], event["delta"]
            if delta["type"] == "input_json_delta":
                pieces[event["index"]] = pieces.get(event["index"], "") + delta["partial_json"]
            elif delta["type"] == "citations_delta":
                block["citations"] = [*(block.get("citations") or []), delta["citation"]]
            else:
                for key in delta.keys() - {"type"}:
                    block[key] = (block.get(key) or "") + delta[key]
        elif kind == "message_delta":
            message.update({key: value for key, value in event["delta"].items() if value is not None})
            message["usage"].update({key: value for key, value in event["usage"].items() if value is not None})
        elif kind == "message_stop":
            break
    for index, text_of in pieces.items():
        if text_of:
            message["content"][index]["input"] = json.loads(text_of)
    return message


FINISH = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls", "refusal": "refusal"}


def expected(message: dict[str, Any]) -> dict[str, Any]:
    blocks, usage = message["content"], message["usage"]
    read, written = usage.get("cache_read_input_tokens"), usage.get("cache_creation_input_tokens")
    finish = FINISH.get(message["stop_reason"], "unknown")
    calls = [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
    sent = usage["input_tokens"] + (read or 0) + (written or 0)
    return {
        "text": "".join(block["text"] for block in blocks if block["type"] == "text"),
        "reasoning": "".join(block["thinking"] for block in blocks if block["type"] == "thinking") or None,
        "calls": calls,
        "ids": [block["id"] for block in blocks if block["type"] == "tool_use"],
        "finish": "tool_calls" if calls and finish == "stop" else finish,
        "raw_finish": message["stop_reason"],
        "refusal": (message.get("stop_details") or {}).get("explanation"),
        "usage": (
            sent,
            usage["output_tokens"],
            read,
            written,
            (usage.get("output_tokens_details") or {}).get("thinking_tokens"),
        ),
        "model": message["model"],
        "id": message["id"],
    }


def read(reply: Any) -> dict[str, Any]:
    usage = reply.usage
    return {
        "text": reply.text,
        "reasoning": reply.reasoning,
        "calls": calls_of(reply),
        "ids": [call["id"] for call in reply.tool_calls or ()],
        "finish": reply.finish_reason,
        "raw_finish": reply.raw_finish_reason,
        "refusal": reply.refusal,
        "usage": (
            usage.input_tokens,
            usage.output_tokens,
            usage.cached_input_tokens,
            usage.cache_write_tokens,
            usage.reasoning_tokens,
        ),
        "model": reply.model,
        "id": reply.id,
    }


# -- answers ---------------------------------------------------------------------------------------------------------------


def test_every_recorded_answer_reads_as_a_plain_walk_over_its_json_says() -> None:
    counts: Counter[str] = Counter()
    for record in answers():
        raw, body = body_bytes(record), record["response"]["body"]
        if is_stream(record):
            reply, message = streamed([raw], AT), assembled(body)
            counts["streams"] += 1
        else:
            reply, message = whole(raw, AT), body
            counts["bodies"] += 1
        assert read(reply) == expected(message), record["id"]
        assert reply.usage is not None
        assert reply.usage.total_tokens == reply.usage.input_tokens + reply.usage.output_tokens
        counts[f"finish {reply.finish_reason}"] += 1
    assert counts == {
        "streams": 72,
        "bodies": 63,
        "finish stop": 67,
        "finish tool_calls": 61,
        "finish length": 3,
        "finish refusal": 2,
        "finish unknown": 2,
    }


def test_a_stream_gives_the_reply_that_its_assembled_message_gives_whole() -> None:
    for record in answers():
        if is_stream(record):
            message = assembled(record["response"]["body"])
            assert essence(streamed([body_bytes(record)], AT)) == essence(whole(json.dumps(message).encode(), AT)), record["id"]


def as_stream(message: dict[str, Any]) -> bytes:
    """Write a whole message as the stream that would have brought it, in pieces of three characters."""
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}]
    for index, block in enumerate(message["content"]):
        start, pieces = dict(block), []
        for field, kind in (("text", "text_delta"), ("thinking", "thinking_delta"), ("signature", "signature_delta")):
            if isinstance(block.get(field), str) and block["type"] in ("text", "thinking"):
                start[field] = ""
                text = block[field]
                pieces += [{"type": kind, field: text[i : i + 3]} for i in range(0, len(text), 3)]
        if "input" in block:
            start["input"], text = {}, json.dumps(block["input"])
            pieces += [{"type": "input_json_delta", "partial_json": text[i : i + 3]} for i in range(0, len(text), 3)]
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [{"type": "content_block_delta", "index": index, "delta": piece} for piece in pieces]
        events.append({"type": "content_block_stop", "index": index})
    details = {key: message.get(key) for key in ("stop_reason", "stop_details")}
    events += [{"type": "message_delta", "delta": details, "usage": message["usage"]}, {"type": "message_stop"}]
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()


def test_a_whole_message_gives_the_reply_that_its_stream_gives() -> None:
    compared = 0
    for record in answers():
        if not is_stream(record):
            message = record["response"]["body"]
            assert essence(streamed([as_stream(message)], AT)) == essence(whole(body_bytes(record), AT)), record["id"]
            compared += 1
    assert compared == 63


def test_the_recorded_read_boundaries_change_nothing() -> None:
    compared = 0
    for record in answers():
        sizes = record["response"].get("chunk_sizes")
        if sizes:
            raw = body_bytes(record)
            assert essence(streamed(cut(raw, sizes), AT)) == essence(streamed([raw], AT)), record["id"]
            compared += 1
    assert compared == 8


def test_a_read_of_every_byte_alone_changes_nothing() -> None:
    for record in answers():
        if is_stream(record):
            raw = body_bytes(record)
            assert essence(streamed(every_byte(raw), AT)) == essence(streamed([raw], AT)), record["id"]


def test_written_back_and_read_again_every_answer_is_the_same() -> None:
    for record in answers():
        reply = streamed([body_bytes(record)], AT) if is_stream(record) else whole(body_bytes(record), AT)
        again = whole(json.dumps(DIALECT.encode_reply(reply)).encode(), AT)
        assert essence(again) == essence(reply), record["id"]


def test_the_provider_s_own_items_survive_json() -> None:
    kept = 0
    for record in answers():
        reply = streamed([body_bytes(record)], AT) if is_stream(record) else whole(body_bytes(record), AT)
        assert json.loads(json.dumps(reply.message)) == reply.message
        kept += "provider_data" in reply.message
    assert kept == 62


# -- refusals --------------------------------------------------------------------------------------------------------------

CLASSES = {
    (400, "invalid_request_error"): BadRequestError,
    (401, "authentication_error"): AuthError,
    (404, "not_found_error"): ModelNotFoundError,
}


def test_every_recorded_refusal_is_the_error_that_its_status_and_type_say() -> None:
    counts: Counter[str] = Counter()
    for record in records():
        response = record["response"]
        if response["status"] == 200:
            continue
        said = response["body"]["error"]
        error = DIALECT.decode_error(HTTPReply(response["status"], response["headers"], body_bytes(record)), AT)
        wanted = CLASSES[response["status"], said["type"]]
        if said["message"].startswith("prompt is too long"):
            wanted = ContextWindowError
        assert type(error) is wanted, record["id"]
        assert (error.status, error.code, error.detail) == (response["status"], said["type"], said["message"])
        assert error.request_id == response["body"].get("request_id") or response["headers"].get("request-id")
        assert KEY not in str(error)
        counts[type(error).__name__] += 1
    assert counts == {"BadRequestError": 13, "ContextWindowError": 1, "AuthError": 2, "ModelNotFoundError": 6}


def test_the_parameter_that_a_refusal_begins_with_is_named() -> None:
    found = {}
    for record in records():
        response = record["response"]
        if response["status"] == 400:
            error = DIALECT.decode_error(HTTPReply(400, {}, body_bytes(record)), AT)
            found[getattr(error, "param", None)] = error.detail
    assert found["temperature"] == "temperature: range: 0..1"
    assert "tools.0.custom.input_schema.type" in found


# -- usage -----------------------------------------------------------------------------------------------------------------


def test_the_usage_objects_of_this_api_normalise_to_sums_that_fit() -> None:
    folder = shared_folder()
    path = folder / "traffic" / "usage_objects.json" if folder else None
    if path is None or not path.is_file():
        pytest.skip("the usage objects are not here (LLMBROKER_SHARED names their folder)")
    compared = 0
    for item in json.loads(path.read_text())["items"]:
        usage = (item["usage"] or {}).get("usage")
        if not isinstance(usage, dict) or "cache_creation_input_tokens" not in usage or "input_tokens" not in usage:
            continue
        message = {
            "content": [{"type": "text", "text": "x"}],
            "usage": usage,
            "stop_reason": "end_turn",
            "model": "m",
            "id": "i",
        }
        made = whole(json.dumps(message).encode(), AT).usage
        counts = item["token_counts"]
        assert made is not None
        assert made.input_tokens == counts["input_tokens"], item
        assert made.output_tokens == counts["output_tokens"], item
        assert (made.cached_input_tokens or 0) == counts.get("cache_read_tokens", 0), item
        assert (made.cache_write_tokens or 0) == counts.get("cache_write_tokens", 0), item
        compared += 1
    assert compared == 226
