"""Refusals: a dozen shapes of error bodies, waits in every notation, the class by status and code."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.conftest import shared_folder

from llmbroker import errors
from llmbroker.catalog import LLMConfig
from llmbroker.credentials import Secret
from llmbroker.errors import ProviderError
from llmbroker.providers import table
from llmbroker.providers.base import Deployment
from llmbroker.providers.meters import reset_seconds
from llmbroker.providers.refusal import decode_error, error_body
from llmbroker.providers.waits import seconds
from llmbroker.wire import HTTPReply

KEY = "sk-canary-0123456789"
DATE = {"date": "Tue, 01 Sep 2026 12:00:00 GMT"}


def at(provider: str, **more: Any) -> Deployment:
    known = provider in table.PROVIDERS
    config = LLMConfig(
        name="x",
        model="m-1",
        provider=provider if known else None,
        base_url="https://host.example.com/v1" if provider == "azure" or not known else None,
        **more,
    )
    return table.deployment_for(config, Secret(KEY, "environment X_API_KEY"), environ={})


def refused(status: int, body: Any, provider: str = "server", headers: dict[str, str] | None = None) -> ProviderError:
    data = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    return decode_error(HTTPReply(status, headers or {}, data), at(provider))


# -- shapes ----------------------------------------------------------------------------------------------------------------


@dataclass
class Shape:
    id: str
    body: Any
    message: str
    codes: tuple[str, ...] = ()
    status: int | None = None
    param: str | None = None
    more: dict[str, Any] = field(default_factory=dict)


SHAPES = [
    Shape("object", {"error": {"message": "no", "type": "t", "code": "c", "param": "p"}}, "no", ("c", "t"), param="p"),
    Shape("bare-string", {"error": "model 'x' not found"}, "model 'x' not found"),
    Shape("string-with-code-beside", {"code": "invalid-argument", "error": "bad key"}, "bad key", ("invalid-argument",)),
    Shape("detail-string", {"detail": "Invalid API Key"}, "Invalid API Key"),
    Shape(
        "detail-list",
        {"detail": [{"loc": ["body", "top_k"], "msg": "Extra inputs", "type": "x"}]},
        "top_k: Extra inputs",
        param="top_k",
    ),
    Shape("message-only", {"message": "The security token is expired"}, "The security token is expired"),
    Shape(
        "flat",
        {"code": "1500", "message": "Invalid model", "type": "invalid_model", "raw_status_code": 400, "object": "error"},
        "Invalid model",
        ("1500", "invalid_model"),
        status=400,
    ),
    Shape("number-as-code", {"error": {"code": 1113, "message": "no balance"}}, "no balance", ("1113",)),
    Shape("status-as-code", {"error": {"code": 502, "message": "bad gateway"}}, "bad gateway", status=502),
    Shape(
        "google",
        {
            "error": {
                "code": 400,
                "message": "m",
                "status": "INVALID_ARGUMENT",
                "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}],
            }
        },
        "m",
        ("API_KEY_INVALID", "INVALID_ARGUMENT"),
        status=400,
    ),
    Shape(
        "array",
        [{"error": {"code": 429, "message": "slow", "status": "RESOURCE_EXHAUSTED"}}],
        "slow",
        ("RESOURCE_EXHAUSTED",),
        429,
    ),
    Shape(
        "json-in-metadata",
        {
            "error": {
                "code": 400,
                "message": "Provider returned error",
                "metadata": {
                    "raw": '{"error":{"message":"too small","type":"t","param":"max_output_tokens","code":"below_min"}}'
                },
            }
        },
        "too small",
        ("below_min", "t"),
        400,
        "max_output_tokens",
    ),
    Shape(
        "text-in-metadata",
        {"error": {"code": 429, "message": "Provider returned error", "metadata": {"raw": "slow down"}}},
        "slow down",
        status=429,
    ),
    Shape("json-in-message", {"message": '{"detail":"deep"}'}, "deep"),
    Shape("errors-list", {"errors": [{"message": "AiError", "code": 3043}], "success": False}, "AiError", ("3043",)),
    Shape(
        "inner-error",
        {
            "error": {
                "code": "content_filter",
                "message": "m",
                "status": 400,
                "innererror": {"code": "ResponsibleAIPolicyViolation"},
            }
        },
        "m",
        ("content_filter", "ResponsibleAIPolicyViolation"),
        400,
    ),
    Shape(
        "details-list",
        {
            "error": {
                "code": "Invalid input",
                "message": "invalid input error",
                "status": 422,
                "details": [{"loc": ["body", "tool_choice"], "msg": "should be a string"}],
            }
        },
        "invalid input error: tool_choice: should be a string",
        ("Invalid input",),
        422,
        "tool_choice",
    ),
    Shape(
        "data-prefix",
        'data:{"error":{"code":"400","message":"Param Incorrect","param":"null content beside calls","type":""}}',
        "Param Incorrect: null content beside calls",
        status=400,
    ),
    Shape(
        "event",
        'event: error\ndata: {"error":{"message":"m","status_code":400,"code":"tool_use_failed","failed_generation":"g"}}\n\n',
        "m",
        ("tool_use_failed",),
        400,
        more={"generation": "g"},
    ),
    Shape("plain", "Failed to deserialize", "Failed to deserialize"),
    Shape("html", "<html>\n <title>502 Bad Gateway</title></html>", "<html> <title>502 Bad Gateway</title></html>"),
    Shape(
        "moderation",
        {"error": {"code": 403, "message": "flagged", "metadata": {"reasons": ["violence"]}}},
        "flagged",
        ("moderation",),
        403,
    ),
    Shape(
        "quota-of-a-day",
        {
            "error": {
                "code": 429,
                "message": "m",
                "details": [{"violations": [{"quotaId": "GenerateRequestsPerDayPerProject"}]}, {"retryDelay": "48s"}],
            }
        },
        "m (GenerateRequestsPerDayPerProject)",
        status=429,
        more={"limit": "day", "retry_after": 48.0},
    ),
    Shape(
        "wait-in-prose",
        {"error": {"message": "tokens per minute (TPM): try again in 1m0.36s.", "code": "rate_limit_exceeded"}},
        "tokens per minute (TPM): try again in 1m0.36s.",
        ("rate_limit_exceeded",),
        more={"limit": "tokens", "retry_after": 60.36},
    ),
    Shape(
        "wait-in-words",
        {"error": {"message": "Please retry after 7 seconds."}},
        "Please retry after 7 seconds.",
        more={"retry_after": 7.0},
    ),
    Shape("empty", b"", ""),
    Shape("empty-object", {}, ""),
    Shape("unknown-object", {"why": "unclear"}, '{"why":"unclear"}'),
    Shape("binary", bytes(range(128, 200)), bytes(range(128, 200)).decode("utf-8", "replace")),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.id)
def test_an_error_body_is_read_whatever_its_shape(shape: Shape) -> None:
    body = shape.body
    data = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    facts = error_body(data, {})
    assert facts.message == shape.message
    assert facts.codes == shape.codes
    assert (facts.status, facts.param) == (shape.status, shape.param)
    for name in ("generation", "limit", "retry_after"):
        assert getattr(facts, name) == shape.more.get(name)


@given(st.binary(max_size=300) | st.text(max_size=200).map(str.encode))
def test_no_body_breaks_the_reader(body: bytes) -> None:
    assert len(error_body(body, {}).message) <= 2000
    assert isinstance(decode_error(HTTPReply(418, {}, body), at("server")), ProviderError)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-600, 600) | st.text(max_size=8) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "error",
                    "message",
                    "detail",
                    "details",
                    "code",
                    "type",
                    "status",
                    "param",
                    "metadata",
                    "raw",
                    "errors",
                    "innererror",
                    "loc",
                    "msg",
                    "headers",
                    "violations",
                    "retryDelay",
                    "reason",
                    "failed_generation",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(values)
@example([{"loc": True, "msg": ""}])
def test_no_json_breaks_the_reader(value: Any) -> None:
    error = refused(400, json.dumps(value))
    assert error.status == 400 and str(error)


def test_a_body_nested_beyond_reason_is_read_as_text() -> None:
    assert refused(500, b'{"error":' * 5000 + b"1" + b"}" * 5000).status == 500


# -- the class -------------------------------------------------------------------------------------------------------------

CASES: list[tuple[str, int, Any, str]] = [
    # provider, status, code or message, class
    ("server", 400, "", "BadRequestError"),
    ("server", 401, "", "AuthError"),
    ("server", 402, "", "BillingError"),
    ("server", 403, "", "PermissionDeniedError"),
    ("server", 404, "", "ModelNotFoundError"),
    ("server", 408, "", "ServerError"),
    ("server", 409, "", "ServerError"),
    ("server", 413, "", "BadRequestError"),
    ("server", 418, "", "BadRequestError"),
    ("server", 422, "", "BadRequestError"),
    ("server", 429, "", "RateLimitError"),
    ("server", 498, "", "ServerError"),
    ("server", 500, "", "ServerError"),
    ("server", 503, "", "ServerError"),
    ("server", 529, "overloaded_error", "ServerError"),
    ("server", 301, "", "BadRequestError"),
    ("openai", 429, "insufficient_quota", "BillingError"),
    ("openai", 500, "insufficient_quota", "BillingError"),
    ("openai", 429, "rate_limit_exceeded", "RateLimitError"),
    ("openai", 400, "context_length_exceeded", "ContextWindowError"),
    ("openai", 400, "model_not_found", "ModelNotFoundError"),
    ("openai", 400, "unsupported_parameter", "BadRequestError"),
    ("groq", 413, "rate_limit_exceeded", "ContextWindowError"),
    ("groq", 400, "tool_use_failed", "MalformedCallError"),
    ("groq", 400, "model_decommissioned", "ModelNotFoundError"),
    ("together", 403, "", "ContextWindowError"),
    ("openrouter", 403, "", "ContentFilterError"),
    ("openrouter", 402, "", "BillingError"),
    ("anthropic", 400, "billing_error", "BillingError"),
    ("anthropic", 413, "request_too_large", "BadRequestError"),
    ("anthropic", 529, "overloaded_error", "ServerError"),
    ("gemini", 400, "FAILED_PRECONDITION", "BillingError"),
    ("gemini", 403, "PERMISSION_DENIED", "PermissionDeniedError"),
    ("gemini", 503, "UNAVAILABLE", "ServerError"),
    ("moonshot", 429, "exceeded_current_quota_error", "BillingError"),
    ("moonshot", 429, "engine_overloaded_error", "ServerError"),
    ("alibaba", 429, "insufficient_quota", "RateLimitError"),
    ("alibaba", 403, "AccessDenied.Unpurchased", "BillingError"),
    ("alibaba", 400, "Arrearage", "BillingError"),
    ("zhipu", 429, "1113", "BillingError"),
    ("zhipu", 429, "1302", "RateLimitError"),
    ("zhipu", 401, "1002", "AuthError"),
    ("zhipu", 400, "1211", "ModelNotFoundError"),
    ("zai", 429, "1113", "BillingError"),
    ("mistral", 400, "1500", "ModelNotFoundError"),
    ("azure", 404, "DeploymentNotFound", "ModelNotFoundError"),
    ("ollama", 401, "api_error", "AuthError"),
]


@pytest.mark.parametrize(("provider", "status", "code", "name"), CASES, ids=lambda value: str(value) or "-")
def test_the_class_follows_from_provider_code_and_status(provider: str, status: int, code: str, name: str) -> None:
    error = refused(status, {"error": {"message": "words", "code": code or None}}, provider)
    assert type(error) is getattr(errors, name)
    assert error.status == status and error.code == (code or None)


LOOSE = [
    (400, "billing_address is not a known field"),
    (400, "do not put a credit card number into the prompt"),
    (404, "see your quota page"),
    (400, "the author of this message is unknown"),
    (400, "max_tokens=500 is smaller than 1024"),
]


@pytest.mark.parametrize(("status", "words"), LOOSE)
def test_loose_words_never_choose_a_class(status: int, words: str) -> None:
    error = refused(status, {"error": {"message": words}})
    assert type(error) is (errors.BadRequestError if status == 400 else errors.ModelNotFoundError)


SENTENCES = [
    (400, "Your credit balance is too low to access the Anthropic API.", "BillingError"),
    (400, "You have reached your specified API usage limits. You will regain access on ...", "BillingError"),
    (400, "This model's maximum context length is 4096 tokens. However, you requested 5000", "ContextWindowError"),
    (400, "prompt is too long: 3333404 tokens > 200000 maximum", "ContextWindowError"),
    (400, "Incorrect API key provided. You can obtain an API key from ...", "AuthError"),
    (404, "tools is not supported in this model. For a list ...", "UnsupportedFeatureError"),
    (404, "No endpoints found that support tool use. To learn more ...", "UnsupportedFeatureError"),
    (500, "tools param requires --jinja flag", "UnsupportedFeatureError"),
    (500, "image input is not supported - hint: ...", "UnsupportedFeatureError"),
]


@pytest.mark.parametrize(("status", "words", "name"), SENTENCES)
def test_documented_sentences_stand_for_missing_codes(status: int, words: str, name: str) -> None:
    assert type(refused(status, {"error": {"message": words}})) is getattr(errors, name)


def test_an_error_inside_a_200_takes_the_status_of_its_body() -> None:
    deployment = at("openrouter")
    with pytest.raises(errors.ServerError) as caught:
        deployment.dialect.decode({"error": {"code": 502, "message": "upstream gone"}}, deployment)
    assert (caught.value.status, caught.value.code, caught.value.detail) == (502, None, "upstream gone")


def test_reported_shapes_of_other_vendors_have_their_class() -> None:
    folder = shared_folder()
    if folder is None:
        pytest.skip("the reported shapes are not here")
    wanted = {
        ("anthropic", 529): "ServerError",
        ("openai", 429): "BillingError",
        ("groq", 413): "ContextWindowError",
        ("groq", 429): "RateLimitError",
        ("zhipu", 429): None,
        ("moonshot", 400): "BadRequestError",
        ("xiaomi", 400): "BadRequestError",
        ("alibaba", 400): "BadRequestError",
        ("fireworks", 400): "BadRequestError",
    }
    checked = 0
    for item in json.loads((folder / "traffic" / "reported_shapes.json").read_text())["items"]:
        body = item.get("body") or item.get("body_text")
        if body is None or item["status"] == 200:
            continue
        error = refused(item["status"], body, item["provider"], item.get("headers"))
        name = wanted[item["provider"], item["status"]]
        if name is None:
            name = "BillingError" if "1113" in json.dumps(body) else "RateLimitError"
        assert type(error).__name__ == name, item
        checked += 1
    assert checked == 10


# -- what the error says ---------------------------------------------------------------------------------------------------


def test_the_message_says_who_refused_what_and_what_to_do_next() -> None:
    error = refused(429, {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, "groq", {"retry-after": "2"})
    assert str(error) == "groq refused m-1 with HTTP 429 (rate_limit_exceeded): slow down. Wait 2 s or use another model."


def test_a_refused_key_is_named_by_its_source_never_by_its_value() -> None:
    error = refused(401, {"error": {"message": f"bad key {KEY}", "code": KEY, "param": KEY}}, "openai")
    assert "environment X_API_KEY" in str(error) and "https://platform.openai.com/api-keys" in str(error)
    for text in (str(error), error.detail, error.code, repr(error.__dict__)):
        assert KEY not in str(text)


def test_the_users_own_headers_are_taken_out_too() -> None:
    deployment = at("server", headers={"x-proxy-token": "proxy-token-canary"})
    error = decode_error(HTTPReply(400, {}, b'{"error":"proxy-token-canary is wrong; application/json"}'), deployment)
    assert "canary" not in str(error) and "application/json" in str(error)


def test_a_key_that_is_not_ours_is_taken_out_of_a_providers_words_too() -> None:
    foreign = "sk-proj-AbCdEf0123456789"
    error = refused(400, {"error": {"message": f"upstream said: invalid {foreign} for max_tokens"}}, "openai")
    assert foreign not in str(error) + str(error.detail)
    assert "for max_tokens" in str(error)


def test_a_long_text_is_cut() -> None:
    error = refused(500, {"error": {"message": "x" * 10_000}})
    assert len(str(error)) < 1000 and error.detail is not None and len(error.detail) == 2000


def test_the_request_id_comes_from_header_or_body() -> None:
    assert refused(500, {"error": "x"}, headers={"x-request-id": "r1"}).request_id == "r1"
    assert refused(500, {"error": "x", "request_id": "r2"}).request_id == "r2"


def test_what_the_model_wrote_is_kept_when_its_call_was_thrown_away() -> None:
    error = refused(400, {"error": {"message": "m", "code": "tool_use_failed", "failed_generation": '{"name": "f"}'}}, "groq")
    assert isinstance(error, errors.MalformedCallError) and error.generation == '{"name": "f"}'


# -- waits -----------------------------------------------------------------------------------------------------------------

WAITS: list[tuple[str, dict[str, str], float | None]] = [
    ("seconds", {"retry-after": "30"}, 30.0),
    ("a-fraction", {"retry-after": "0.5"}, 0.5),
    ("http-date", {"retry-after": "Tue, 01 Sep 2026 12:00:10 GMT", **DATE}, 10.0),
    ("http-date-of-old", {"retry-after": "Tuesday, 01-Sep-2026 12:00:10 GMT", **DATE}, 10.0),
    ("a-date-in-the-past", {"retry-after": "Tue, 01 Sep 2026 11:00:00 GMT", **DATE}, 0.0),
    ("milliseconds", {"retry-after-ms": "250", "retry-after": "1"}, 0.25),
    ("zero-milliseconds-beside-a-second", {"retry-after-ms": "0", "retry-after": "1"}, 1.0),
    ("negative", {"retry-after": "-5"}, None),
    ("infinite", {"retry-after": "inf"}, None),
    ("nonsense", {"retry-after": "soon"}, None),
    ("none", {}, None),
    (
        "the-empty-window",
        {
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-reset-requests": "1m6s",
            "x-ratelimit-remaining-tokens": "9",
            "x-ratelimit-reset-tokens": "6ms",
        },
        66.0,
    ),
    ("a-go-duration", {"x-ratelimit-reset-tokens": "1h27m50.4s"}, 5270.4),
    ("float-seconds", {"x-ratelimit-reset-requests-day": "3503.5"}, 3503.5),
    ("epoch-milliseconds", {"x-ratelimit-reset": "1788264015000", **DATE}, 15.0),
    ("epoch-seconds", {"x-ratelimit-reset": "1788264015", **DATE}, 15.0),
    ("rfc-3339", {"anthropic-ratelimit-tokens-reset": "2026-09-01T12:00:07Z", **DATE}, 7.0),
    ("by-size", {"ratelimitbysize-reset": "19"}, 19.0),
    ("retry-after-beats-reset", {"retry-after": "3", "x-ratelimit-reset": "60"}, 3.0),
]


@pytest.mark.parametrize(("headers", "wait"), [case[1:] for case in WAITS], ids=[case[0] for case in WAITS])
def test_a_wait_is_read_in_every_notation(headers: dict[str, str], wait: float | None) -> None:
    error = refused(429, {"error": "slow"}, headers=headers)
    assert error.retry_after == (pytest.approx(wait) if wait is not None else None)


def test_a_wait_stated_in_the_body_counts_where_no_header_says_more() -> None:
    body = {"error": {"message": "m", "details": [{"retryDelay": "48s"}]}}
    assert refused(429, body).retry_after == 48.0
    assert refused(429, body, headers={"retry-after": "5"}).retry_after == 5.0


def test_headers_quoted_in_the_body_count() -> None:
    body = {"error": {"code": 429, "message": "free-models-per-min", "metadata": {"headers": {"X-RateLimit-Reset": "60"}}}}
    error = refused(429, body, "openrouter")
    assert error.retry_after == 60.0 and isinstance(error, errors.RateLimitError) and error.limit == "requests"


def test_a_wait_means_nothing_on_an_error_that_waiting_does_not_mend() -> None:
    assert refused(400, {"error": "no"}, headers={"retry-after": "30"}).retry_after is None
    assert refused(503, {"error": "no"}, headers={"retry-after": "30"}).retry_after == 30.0


def test_the_window_that_refused_is_named() -> None:
    headers = {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "5s", "x-ratelimit-reset-requests": "1s"}
    assert reset_seconds(headers) == (5.0, "tokens")
    both = {"x-ratelimit-reset-requests": "9s", "x-ratelimit-reset-tokens": "2s"}
    assert reset_seconds(both, "requests") == (9.0, "requests")
    assert reset_seconds({"x-ratelimit-reset-requests-day": "9"}) == (9.0, "day")
    assert reset_seconds({"content-type": "x"}) == (None, None)


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({"ratelimit": '"default";r=0;t=30'}, (30.0, "requests")),
        ({"ratelimit": "limit=10, remaining=0, reset=30"}, (30.0, "requests")),
        ({"ratelimit": '"m";r=3;t=30, "d";r=0;t=4000', "ratelimit-policy": '"m";q=10;w=60, "d";q=50;w=86400'}, (4000.0, "day")),
        ({"ratelimit": '"a";r=9;t=5, "b";r=0;t=20', "ratelimit-policy": '"b";q=99;qu="tokens"'}, (20.0, "tokens")),
        ({"ratelimit": '"default";r=0'}, (None, None)),
    ],
)
def test_a_refusal_states_its_window_in_the_notations_of_the_drafts(
    headers: dict[str, str], found: tuple[float | None, str | None]
) -> None:
    assert reset_seconds(headers) == found
    assert refused(429, {"error": {"message": "slow down"}}, headers=headers).retry_after == found[0]


@given(st.text(max_size=40))
def test_a_wait_is_finite_and_not_negative_or_none(text: str) -> None:
    found = seconds(text, headers=DATE)
    assert found is None or 0 <= found < float("inf")
