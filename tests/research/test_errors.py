"""What providers say when they refuse, through the verbs: the kind, the reason, the code, and whether it is tried again."""

from __future__ import annotations

from typing import Any

import pytest
from tests.research.conftest import Face

from llmbroker import LLMBrokerError, llm_config
from llmbroker.testing import Answer


def openai(status: int, code: str | None = None, message: str = "no", **more: Any) -> Answer:
    return Answer(status=status, body={"error": {"message": message, "code": code, **more}})


def anthropic(status: int, kind: str, message: str = "no") -> Answer:
    return Answer(status=status, body={"type": "error", "error": {"type": kind, "message": message}})


def gemini(status: int, word: str, message: str = "no") -> Answer:
    return Answer(status=status, body={"error": {"code": status, "message": message, "status": word}})


CASES = [
    ("openai", openai(429, "insufficient_quota", type="insufficient_quota"), "billing"),
    ("alibaba", openai(429, "insufficient_quota"), "rate_limit"),
    ("alibaba", openai(400, "Arrearage"), "billing"),
    ("moonshot", openai(429, type="exceeded_current_quota_error"), "billing"),
    ("moonshot", openai(429, type="rate_limit_reached_error"), "rate_limit"),
    ("moonshot", openai(429, type="engine_overloaded_error"), "server"),
    ("zhipu", openai(400, "1113"), "billing"),
    ("zhipu", openai(429, "1302"), "rate_limit"),
    ("zhipu", openai(400, "1211"), "parameter"),
    ("anthropic", anthropic(400, "invalid_request_error", "You have reached your specified API usage limits."), "billing"),
    ("anthropic", anthropic(400, "invalid_request_error", "messages: at least one message is required"), "parameter"),
    ("anthropic", anthropic(529, "overloaded_error"), "server"),
    ("anthropic", anthropic(401, "authentication_error"), "authentication"),
    ("gemini", gemini(429, "RESOURCE_EXHAUSTED", "You exceeded your current quota, please check your plan."), "rate_limit"),
    ("gemini", gemini(400, "INVALID_ARGUMENT"), "parameter"),
    ("gemini", gemini(503, "UNAVAILABLE"), "server"),
    ("together", openai(403), "parameter"),
    ("openai", openai(402), "billing"),
    ("openai", openai(413), "parameter"),
    ("openai", openai(422), "parameter"),
    ("openai", openai(408), "server"),
    ("openai", openai(409), "server"),
    ("openai", openai(524), "server"),
    ("openai", openai(400, "context_length_exceeded", "This model's maximum context length is 8192 tokens."), "parameter"),
    (
        "openai",
        openai(400, message="The field billing_address is unknown. A credit card {number} is no argument."),
        "parameter",
    ),
    ("openai", openai(404, "model_not_found", "The model does not exist, or your quota does not cover it."), "parameter"),
]


@pytest.mark.parametrize(
    ("provider", "answer", "kind"), CASES, ids=[f"{c[0]}-{c[1].status}-{c[2]}-{i}" for i, c in enumerate(CASES)]
)
def test_a_refusal_has_its_kind_and_only_what_time_mends_is_tried_again(
    face: Face, provider: str, answer: Answer, kind: str
) -> None:
    face.answers(answer, times=None)
    with pytest.raises(LLMBrokerError) as caught:
        face.call_llm_robust(llm_config(provider, "m", api_key="k" * 20), "hi", tries=2, wait_seconds=1)
    assert caught.value.kind == kind
    assert len(face.port.requests) == (2 if kind in ("rate_limit", "server") else 1)
    assert caught.value.provider == provider and caught.value.status == answer.status


@pytest.mark.parametrize(
    ("provider", "answer"),
    [
        ("ollama", Answer(status=404, body={"error": "the reason"})),
        ("mylab", Answer(status=400, body={"detail": "the reason"})),
        ("xai", Answer(status=400, body={"code": "odd", "error": "the reason"})),
        ("mylab", Answer(status=422, body={"detail": [{"loc": ["body"], "msg": "the reason"}]})),
        (
            "deepseek",
            Answer(status=400, headers={"content-type": "application/octet-stream"}, body='{"error":{"message":"the reason"}}'),
        ),
        ("mylab", Answer(status=500, body="<html>the reason</html>")),
        ("alibaba", Answer(status=400, body={"code": "InvalidParameter", "message": "the reason"})),
        ("gemini", Answer(status=400, body='[{"error":{"code":400,"message":"the reason","status":"INVALID_ARGUMENT"}}]')),
    ],
)
def test_the_reason_is_found_wherever_a_provider_puts_it(face: Face, provider: str, answer: Answer) -> None:
    address = {"base_url": "http://lab.example/v1"} if provider == "mylab" else {}
    face.answers(answer)
    with pytest.raises(LLMBrokerError, match="the reason") as caught:
        face.call_llm(llm_config(provider, "m", api_key="k" * 20, **address), "hi")
    assert "the reason" in caught.value.detail


def test_the_parameter_that_the_provider_names_is_named(face: Face, config: Any) -> None:
    face.answers(openai(400, "invalid_value", "must be {small}", param="temperature"))
    with pytest.raises(LLMBrokerError) as caught:
        face.call_llm(config, "hi")
    assert (caught.value.param, caught.value.code) == ("temperature", "invalid_value")
    assert "{small}" in str(caught.value)


def test_no_error_shows_the_key(face: Face, config: Any) -> None:
    face.answers(openai(401, "invalid_api_key", "Incorrect API key provided: sk-very-secret-key-1234."))
    with pytest.raises(LLMBrokerError) as caught:
        face.call_llm(config, "hi")
    assert "very-secret" not in f"{caught.value} {caught.value.detail} {caught.value!r} {vars(caught.value)}"
