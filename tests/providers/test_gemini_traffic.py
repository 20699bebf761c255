"""Every recorded answer of generateContent, on both of Google's hosts, against readings that know nothing of the dialect."""

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

from llmbroker.errors import AuthError, BadRequestError, ContextWindowError, ModelNotFoundError, RateLimitError
from llmbroker.providers.gemini import DIALECT
from llmbroker.wire import HTTPReply

pytestmark = pytest.mark.traffic
AT = deployment(DIALECT, "gemini-2.5-flash", auth="x-goog-api-key")
Record = dict[str, Any]


def records() -> list[Record]:
    return [record for name in ("gemini", "vertex") for record in traffic(name) if record["api"] == "gemini"]


def answers() -> list[Record]:
    return [record for record in records() if record["response"]["status"] == 200]


# -- the oracle: plain walks over the JSON ---------------------------------------------------------------------------------


def chunks_of(record: Record) -> list[dict[str, Any]]:
    body = record["response"]["body"]
    if not isinstance(body, str):
        return [body]
    return [json.loads(line) for line in re.findall(r"^data: ?(.*)$", body.replace("\r\n", "\n"), re.MULTILINE)]


FINISH = {"STOP": "stop", 1: "stop", "MAX_TOKENS": "length", 2: "length", "UNEXPECTED_TOOL_CALL": "error"}
PIECEWISE = [("getWeather", {"location": "Boston"}), ("getWeather", {"location": "San Francisco"})]


def expected(record: Record) -> dict[str, Any]:
    chunks = chunks_of(record)
    candidates = [candidate for chunk in chunks for candidate in chunk.get("candidates", [])]
    assert all(candidate.get("index", 0) == 0 for candidate in candidates)
    parts = [part for candidate in candidates for part in (candidate.get("content") or {}).get("parts", [])]
    calls = [
        (p["functionCall"]["name"], p["functionCall"].get("args", {})) for p in parts if p.get("functionCall", {}).get("name")
    ]
    if "partialArgs" in json.dumps(parts):
        calls = PIECEWISE  # arguments in pieces with JSON paths: one such record, read by eye
    word = next((candidate["finishReason"] for candidate in candidates if candidate.get("finishReason")), None)
    finish = FINISH.get(word, "content_filter" if word else None)
    if word is None:
        finish = "content_filter" if any("promptFeedback" in chunk for chunk in chunks) else "unknown"
    stated = [chunk.get("usageMetadata", {}) for chunk in chunks]
    got = [{}, *(usage for usage in stated if "promptTokenCount" in usage)][-1].get  # the last one counts
    return {
        "text": "".join(part["text"] for part in parts if "text" in part and not part.get("thought")),
        "reasoning": "".join(part["text"] for part in parts if "text" in part and part.get("thought")) or None,
        "calls": calls,
        "finish": "tool_calls" if calls and finish == "stop" else finish,
        "input": got("promptTokenCount", 0) + got("toolUsePromptTokenCount", 0),
        "output": got("candidatesTokenCount", 0) + got("thoughtsTokenCount", 0),
        "thoughts": got("thoughtsTokenCount"),
        "cached": got("cachedContentTokenCount"),
        "total": got("totalTokenCount"),
    }


def read(reply: Any) -> dict[str, Any]:
    usage = reply.usage
    return {
        "text": reply.text,
        "reasoning": reply.reasoning,
        "calls": calls_of(reply),
        "finish": reply.finish_reason,
        "input": (usage.input_tokens if usage else None) or 0,
        "output": (usage.output_tokens if usage else None) or 0,
        "thoughts": usage.reasoning_tokens if usage else None,
        "cached": usage.cached_input_tokens if usage else None,
        "total": usage.total_tokens if usage else None,
    }


def reply_of(record: Record) -> Any:
    return streamed([body_bytes(record)], AT) if is_stream(record) else whole(body_bytes(record), AT)


# -- answers ---------------------------------------------------------------------------------------------------------------


def test_every_recorded_answer_reads_as_a_plain_walk_over_its_json_says() -> None:
    counts: Counter[str] = Counter()
    for record in answers():
        reply = reply_of(record)
        assert read(reply) == expected(record), record["id"]
        counts["streams" if is_stream(record) else "bodies"] += 1
        counts[f"finish {reply.finish_reason}"] += 1
        usage = reply.usage
        if usage and None not in (usage.input_tokens, usage.output_tokens, usage.total_tokens):
            off = usage.total_tokens - usage.input_tokens - usage.output_tokens
            counts["total is input + output" if off == 0 else f"total off by {off}"] += 1
    assert counts == {
        "streams": 63,
        "bodies": 106,
        "finish stop": 72,
        "finish tool_calls": 83,
        "finish length": 7,
        "finish error": 4,
        "finish content_filter": 3,
        "total is input + output": 167,
    }


def merged(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """Put the chunks of a stream together into the body that it stands for, neighbouring plain pieces of text as one part."""
    parts: list[dict[str, Any]] = []
    body: dict[str, Any] = {}
    for chunk in chunks:  # the last usage counts as it is
        body.update({key: value for key, value in chunk.items() if key != "candidates"})
        for candidate in chunk.get("candidates", []):
            for part in (candidate.get("content") or {}).get("parts", []):
                plain = part.keys() <= {"text", "thought"} and bool(parts) and part.keys() == parts[-1].keys()
                if plain and "text" in part:
                    parts[-1] = {**parts[-1], "text": parts[-1]["text"] + part["text"]}
                else:
                    parts.append(part)
            last = {key: value for key, value in candidate.items() if key != "content"}
            body["candidates"] = [{**body.get("candidates", [{}])[0], **last, "content": {"role": "model", "parts": parts}}]
    return body


def test_a_stream_gives_the_reply_that_its_body_gives_whole() -> None:
    compared = 0
    for record in answers():
        if is_stream(record) and "partialArgs" not in record["response"]["body"]:
            body = json.dumps(merged(chunks_of(record))).encode()
            assert essence(reply_of(record)) == essence(whole(body, AT)), record["id"]
            compared += 1
    assert compared == 62


def test_a_stream_that_comes_as_one_list_is_the_same_reply() -> None:
    for record in answers():
        if is_stream(record):
            body = json.dumps(chunks_of(record)).encode()
            assert essence(whole(body, AT)) == essence(reply_of(record)), record["id"]


def as_stream(body: dict[str, Any]) -> bytes:
    """Write a whole body as a stream of one part a chunk, texts in pieces of three characters, lines ended by CRLF."""
    candidate = body.get("candidates", [{}])[0]
    rest = {key: value for key, value in body.items() if key not in ("candidates", "usageMetadata")}
    pieces: list[dict[str, Any]] = []
    for part in (candidate.get("content") or {}).get("parts", []):
        text = part.get("text")
        if part.keys() <= {"text", "thought"} and text:
            pieces += [{**part, "text": text[i : i + 3]} for i in range(0, len(text), 3)]
        else:
            pieces.append(part)
    chunks = [{**rest, "candidates": [{"content": {"role": "model", "parts": [piece]}}]} for piece in pieces]
    last = {key: value for key, value in candidate.items() if key != "content"}
    chunks.append({**rest, **({"candidates": [last]} if candidate else {}), "usageMetadata": body.get("usageMetadata", {})})
    return "".join(f"data: {json.dumps(chunk)}\r\n\r\n" for chunk in chunks).encode()


def test_a_whole_body_gives_the_reply_that_its_stream_gives() -> None:
    compared = 0
    for record in answers():
        if not is_stream(record):
            assert essence(streamed([as_stream(record["response"]["body"])], AT)) == essence(reply_of(record)), record["id"]
            compared += 1
    assert compared == 106


def test_the_recorded_read_boundaries_change_nothing() -> None:
    compared = 0
    for record in answers():
        sizes = record["response"].get("chunk_sizes")
        if sizes:
            assert essence(streamed(cut(body_bytes(record), sizes), AT)) == essence(reply_of(record)), record["id"]
            compared += 1
    assert compared == 9


def test_a_read_of_every_byte_alone_changes_nothing() -> None:
    for record in answers():
        if is_stream(record):
            assert essence(streamed(every_byte(body_bytes(record)), AT)) == essence(reply_of(record)), record["id"]


def test_written_back_and_read_again_every_answer_is_the_same() -> None:
    for record in answers():
        reply = reply_of(record)
        again = whole(json.dumps(DIALECT.encode_reply(reply)).encode(), AT)
        left, right = essence(again), essence(reply)
        if not right["native"]:  # an id of ours, written, is an id of the provider's, read
            del left["native"], right["native"]
        assert left == right, record["id"]


def test_the_provider_s_own_items_survive_json() -> None:
    kept = 0
    for record in answers():
        reply = reply_of(record)
        assert json.loads(json.dumps(reply.message)) == reply.message
        kept += "provider_data" in reply.message
    assert kept == 133


def test_no_signature_is_lost_between_an_answer_and_its_message() -> None:
    for record in answers():
        sent = {
            part["thoughtSignature"]
            for chunk in chunks_of(record)
            for candidate in chunk.get("candidates", [])
            for part in (candidate.get("content") or {}).get("parts", [])
            if "thoughtSignature" in part
        }
        items = (reply_of(record).message.get("provider_data") or {"items": []})["items"]
        assert {item["thoughtSignature"] for item in items if "thoughtSignature" in item} == sent, record["id"]


# -- refusals --------------------------------------------------------------------------------------------------------------

CLASSES = {
    (400, "INVALID_ARGUMENT"): BadRequestError,
    (404, "NOT_FOUND"): ModelNotFoundError,
    (429, "RESOURCE_EXHAUSTED"): RateLimitError,
}


def test_every_recorded_refusal_is_the_error_that_its_status_says() -> None:
    counts: Counter[str] = Counter()
    for record in records():
        response = record["response"]
        if response["status"] == 200:
            continue
        said = response["body"]["error"]
        error = DIALECT.decode_error(HTTPReply(response["status"], response["headers"], body_bytes(record)), AT)
        wanted = CLASSES[response["status"], said["status"]]
        if "API_KEY_INVALID" in json.dumps(said):
            wanted = AuthError
        if "exceeds the maximum number of tokens" in said["message"]:
            wanted = ContextWindowError
        assert type(error) is wanted, record["id"]
        assert error.status == response["status"]
        assert error.detail is not None
        assert said["message"][:100] == error.detail[: len(said["message"])][:100]
        assert KEY not in str(error)
        counts[type(error).__name__] += 1
    assert counts == {
        "BadRequestError": 8, "AuthError": 1, "ContextWindowError": 1, "ModelNotFoundError": 11, "RateLimitError": 3,
    }  # fmt: skip


def test_an_error_that_comes_as_a_list_of_one_is_read() -> None:
    body = b'[{"error": {"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED"}}]'
    error = DIALECT.decode_error(HTTPReply(429, {}, body), AT)
    assert (type(error), error.detail, error.code) == (RateLimitError, "slow down", "RESOURCE_EXHAUSTED")


def test_the_wait_that_the_body_asks_for_is_read() -> None:
    waits = [
        DIALECT.decode_error(HTTPReply(429, {}, body_bytes(record)), AT).retry_after
        for record in records()
        if record["response"]["status"] == 429
    ]
    assert sorted(wait for wait in waits if wait) == [34.4, 48.0]


# -- usage -----------------------------------------------------------------------------------------------------------------


def test_the_usage_objects_of_this_api_normalise_to_sums_that_fit() -> None:
    folder = shared_folder()
    path = folder / "traffic" / "usage_objects.json" if folder else None
    if path is None or not path.is_file():
        pytest.skip("the usage objects are not here (LLMBROKER_SHARED names their folder)")
    counts: Counter[str] = Counter()
    for item in json.loads(path.read_text())["items"]:
        usage = (item["usage"] or {}).get("usageMetadata")
        if not isinstance(usage, dict) or not isinstance(usage.get("promptTokenCount"), int):
            continue
        body = {"candidates": [{"content": {"parts": [{"text": "x"}]}, "finishReason": "STOP"}], "usageMetadata": usage}
        made = whole(json.dumps(body).encode(), AT).usage
        assert made is not None
        assert made.input_tokens == usage["promptTokenCount"] + usage.get("toolUsePromptTokenCount", 0)
        assert (made.output_tokens or 0) == usage.get("candidatesTokenCount", 0) + usage.get("thoughtsTokenCount", 0)
        assert made.cached_input_tokens == usage.get("cachedContentTokenCount")
        assert made.reasoning_tokens == usage.get("thoughtsTokenCount")
        if "totalTokenCount" in usage:
            assert made.total_tokens == made.input_tokens + (made.output_tokens or 0)
        else:
            assert made.total_tokens is None
        counts["with total" if "totalTokenCount" in usage else "without"] += 1
    assert counts == {"with total": 440, "without": 11}
