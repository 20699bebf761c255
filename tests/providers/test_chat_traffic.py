"""Every recorded answer of Chat Completions servers, against readings of the same JSON that know nothing of the dialect."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from tests.conftest import shared_folder, traffic
from tests.providers import chat_oracle
from tests.providers.vendor_wires import KEY, body_bytes, calls_of, cut, essence, every_byte, is_stream, streamed, whole

from llmbroker.catalog import LLMConfig
from llmbroker.credentials import Secret
from llmbroker.errors import InvalidProviderResponseError, LLMBrokerError, ProviderError
from llmbroker.exchange import Reply, Usage
from llmbroker.providers import table
from llmbroker.providers.base import Deployment
from llmbroker.providers.openai_usage import read_usage
from llmbroker.wire import HTTPReply

pytestmark = pytest.mark.traffic
Record = dict[str, Any]
NAMES = [
    "alibaba",
    "azure",
    "bedrock",
    "cerebras",
    "copilot",
    "crusoe",
    "deepseek",
    "doubleword",
    "gemini",
    "gpustack",
    "groq",
    "heroku",
    "huggingface",
    "llamacpp",
    "mistral",
    "mistralrs",
    "moonshot",
    "ollama",
    "openai",
    "openai-compatible",
    "openrouter",
    "perplexity",
    "portkey",
    "snowflake",
    "together",
    "venice",
    "xai",
    "zhipu",
]
EMPTY = {
    "openrouter/vkryukov-req_llm__openrouter-minimax_minimax_m1-object_basic",
    "openrouter/vkryukov-req_llm__openrouter-minimax_minimax_m1-object_streaming",
}
"""Recorded answers without a word and without a finish reason: they are no answers."""


def records(name: str) -> list[Record]:
    return [record for record in traffic(name) if record["api"] == "openai-chat"]


def at(record: Record) -> Deployment:
    """Return the vendor's row where the table has the vendor, else a plain compatible server."""
    known = record["provider"] in table.PROVIDERS
    config = LLMConfig(
        name="x",
        model=record["model"] or "unnamed",
        provider=record["provider"] if known else None,
        base_url=None if known and record["provider"] != "azure" else "https://host.example.com/v1",
        dialect="openai-chat",
    )
    return table.deployment_for(config, Secret(KEY, "environment X_API_KEY"), environ={})


def told(reply: Reply) -> dict[str, Any]:
    usage = reply.usage
    return {
        "text": reply.text,
        "reasoning": reply.reasoning,
        "refusal": reply.refusal,
        "calls": calls_of(reply),
        "ids": [call["id"] for call in reply.tool_calls or ()],
        "finish": reply.finish_reason,
        "usage": usage.fields() if usage else None,
        "model": reply.model,
        "id": reply.id,
    }


def read(record: Record, chunks: list[bytes] | None = None) -> Reply:
    body, deployment = body_bytes(record), at(record)
    return streamed(chunks or [body], deployment) if is_stream(record) else whole(body, deployment)


def differences(record: Record) -> dict[str, Any]:
    wanted, got = chat_oracle.expected(record), told(read(record))
    wanted["ids"] = [given or made for given, made in zip(wanted["ids"], got["ids"], strict=False)]
    wanted["model"] = wanted["model"] or got["model"]
    return {key: (wanted[key], got[key]) for key in wanted if wanted[key] != got[key]}


def reads(record: Record) -> list[bytes]:
    return cut(body_bytes(record), record["response"].get("chunk_sizes") or ())


@pytest.mark.parametrize("name", NAMES)
def test_every_answer_reads_as_its_own_json_says(name: str) -> None:
    wrong = {
        record["id"]: found
        for record in records(name)
        if not chat_oracle.is_error(record) and record["id"] not in EMPTY and (found := differences(record))
    }
    assert wrong == {}


def test_an_answer_without_a_word_and_a_finish_reason_is_none() -> None:
    found = [record for record in records("openrouter") if record["id"] in EMPTY]
    assert {record["id"] for record in found} == EMPTY
    for record in found:
        with pytest.raises(InvalidProviderResponseError, match="empty answer"):
            read(record)


def failure(record: Record) -> LLMBrokerError:
    """Return the error that an exchange ends in, the way the client would raise it."""
    response, deployment = record["response"], at(record)
    headers = {name.lower(): value for name, value in response["headers"].items()}
    if response["status"] >= 400:
        return deployment.dialect.decode_error(HTTPReply(response["status"], headers, body_bytes(record)), deployment)
    with pytest.raises(ProviderError) as caught:
        read(record)
    return caught.value


@pytest.mark.parametrize("name", NAMES)
def test_every_recorded_error_is_typed_and_says_who_what_and_why(name: str) -> None:
    for record in records(name):
        if not chat_oracle.is_error(record):
            continue
        error, deployment = failure(record), at(record)
        assert type(error) is not ProviderError, record["id"]
        assert error.provider == deployment.provider.id and error.model == deployment.model
        assert error.detail and error.detail[:60].strip() in str(error), record["id"]
        if record["response"]["status"] >= 400:
            assert error.status == record["response"]["status"]
        assert KEY not in str(error)


@pytest.mark.parametrize("name", NAMES)
def test_recorded_reads_give_what_the_whole_stream_gives(name: str) -> None:
    for record in records(name):
        if is_stream(record) and not chat_oracle.is_error(record) and record["id"] not in EMPTY:
            assert essence(read(record, reads(record))) == essence(read(record)), record["id"]


def bytewise(record: Record) -> None:
    assert essence(read(record, every_byte(body_bytes(record)))) == essence(read(record)), record["id"]


def streams(name: str) -> list[Record]:
    return [r for r in records(name) if is_stream(r) and not chat_oracle.is_error(r) and r["id"] not in EMPTY]


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_read_byte_by_byte_gives_the_same(name: str) -> None:
    for record in [r for r in streams(name) if len(r["response"]["body"]) < 20_000][:4]:
        bytewise(record)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_stream_read_byte_by_byte_gives_the_same(name: str) -> None:
    for record in streams(name):
        bytewise(record)


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_written_again_reads_the_same(name: str) -> None:
    for record in records(name):
        if chat_oracle.is_error(record) or record["id"] in EMPTY:
            continue
        reply, deployment = read(record), at(record)
        body = deployment.dialect.encode_reply(reply)
        again = whole(json.dumps(body).encode(), deployment)
        kept = ("text", "reasoning", "refusal", "calls", "usage", "finish", "id")
        first, second = essence(reply), essence(again)
        assert {key: first[key] for key in kept} == {key: second[key] for key in kept}, record["id"]


def test_print_the_counts(capsys: pytest.CaptureFixture[str]) -> None:
    counts: Counter[str] = Counter()
    finishes: Counter[str] = Counter()
    classes: Counter[str] = Counter()
    for name in NAMES:
        for record in records(name):
            counts["records"] += 1
            counts["streams"] += is_stream(record)
            counts["recorded reads"] += bool(record["response"].get("chunk_sizes"))
            if chat_oracle.is_error(record) or record["id"] in EMPTY:
                counts["errors"] += 1
                classes[type(failure(record)).__name__ if record["id"] not in EMPTY else "InvalidProviderResponseError"] += 1
                continue
            reply = read(record)
            counts["replies"] += 1
            counts["with calls"] += bool(reply.tool_calls)
            counts["with reasoning"] += bool(reply.reasoning)
            counts["with usage"] += reply.usage is not None
            finishes[reply.finish_reason] += 1
    with capsys.disabled():
        print(f"\nopenai-chat: {dict(counts)}\n  finishes: {dict(finishes)}\n  errors: {dict(classes)}")
    assert counts["records"] == 1309
    assert counts["replies"] + counts["errors"] == counts["records"]


# -- usage objects of many vendors -----------------------------------------------------------------------------------------


def usage_items() -> list[dict[str, Any]]:
    folder = shared_folder()
    path = folder / "traffic" / "usage_objects.json" if folder else None
    if path is None or not path.is_file():
        pytest.skip("the recorded usage objects are not here")
    return list(json.loads(path.read_text())["items"])


def test_usage_objects_of_this_dialect_add_up() -> None:
    counts: Counter[str] = Counter()
    for item in usage_items():
        usage = item["usage"].get("usage")
        if not isinstance(usage, dict) or "prompt_tokens" not in usage or "completion_tokens" not in usage:
            continue
        counts["read"] += 1
        found, said = read_usage(usage), item["token_counts"]
        assert isinstance(found, Usage)
        assert found.input_tokens is not None and found.output_tokens is not None
        if "total_tokens" in usage:
            assert found.total_tokens == usage["total_tokens"]
        same = found.input_tokens == said.get("input_tokens") and found.output_tokens == said.get("output_tokens", 0)
        counts["equal to the other reading" if same else "other"] += 1
    print(dict(counts))
    assert counts["read"] > 0
