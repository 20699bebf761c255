"""What the words of refusals mean: codes, statuses and the few sentences that vendors use instead of codes.

Tables only; ``refusal`` reads them. A vendor's own codes stand in its row (``vendors``). A sentence is taken only with its
status, where a vendor gives no code, and its source is named: nothing is guessed from loose words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from llmbroker.errors import (
    AuthError,
    BadRequestError,
    BillingError,
    ContentFilterError,
    ContextWindowError,
    MalformedCallError,
    ModelNotFoundError,
    PermissionDeniedError,
    ProviderError,
    RateLimitError,
    ServerError,
    UnsupportedFeatureError,
)

ErrorClass: TypeAlias = type[ProviderError]

CODES: Mapping[str, ErrorClass] = {
    # Words that mean the same with every vendor, whatever the status; lower case, spaces and hyphens as underscores.
    "insufficient_quota": BillingError,
    "billing_error": BillingError,
    "billing_not_active": BillingError,
    "billing_hard_limit_reached": BillingError,
    "insufficient_balance": BillingError,
    "insufficient_credits": BillingError,
    "exceeded_current_quota_error": BillingError,
    "payment_required": BillingError,
    "invalid_api_key": AuthError,
    "invalidapikey": AuthError,
    "api_key_invalid": AuthError,
    "authentication_error": AuthError,
    "invalid_authentication_error": AuthError,
    "unauthenticated": AuthError,
    "token_expired": AuthError,
    "rate_limit_exceeded": RateLimitError,
    "rate_limit_error": RateLimitError,
    "rate_limit_reached_error": RateLimitError,
    "ratelimitreached": RateLimitError,
    "too_many_requests": RateLimitError,
    "resource_exhausted": RateLimitError,
    "throttlingexception": RateLimitError,
    "context_length_exceeded": ContextWindowError,
    "exceed_context_size_error": ContextWindowError,
    "too_many_tokens": ContextWindowError,
    "too_many_prompt_tokens": ContextWindowError,
    "model_not_found": ModelNotFoundError,
    "model_decommissioned": ModelNotFoundError,
    "model_not_available": ModelNotFoundError,
    "invalid_model": ModelNotFoundError,
    "deploymentnotfound": ModelNotFoundError,
    "content_filter": ContentFilterError,
    "content_policy_violation": ContentFilterError,
    "responsibleaipolicyviolation": ContentFilterError,
    "moderation_blocked": ContentFilterError,
    "moderation": ContentFilterError,
    "data_inspection_failed": ContentFilterError,
    "datainspectionfailed": ContentFilterError,
    "tool_use_failed": MalformedCallError,
    "overloaded_error": ServerError,
    "engine_overloaded_error": ServerError,
}

WEAK_CODES: Mapping[str, ErrorClass] = {
    # Words so general that a 4xx status beside them knows better: they count only where no status does.
    "invalid_request_error": BadRequestError,
    "invalid_argument": BadRequestError,
    "badrequesterror": BadRequestError,
    "unsupported_parameter": BadRequestError,
    "unsupported_value": BadRequestError,
    "not_found_error": ModelNotFoundError,
    "not_found": ModelNotFoundError,
    "permission_error": PermissionDeniedError,
    "permission_denied": PermissionDeniedError,
    "forbidden": PermissionDeniedError,
    "unauthorized": AuthError,
    "api_error": ServerError,
    "server_error": ServerError,
    "timeout_error": ServerError,
    "unavailable": ServerError,
    "internal": ServerError,
}

STATUSES: Mapping[int, ErrorClass] = {
    400: BadRequestError,
    401: AuthError,
    402: BillingError,
    403: PermissionDeniedError,
    404: ModelNotFoundError,
    408: ServerError,
    409: ServerError,
    410: ModelNotFoundError,
    413: BadRequestError,
    422: BadRequestError,
    424: ServerError,
    425: ServerError,
    429: RateLimitError,
    498: ServerError,  # Groq: flex capacity exceeded, https://console.groq.com/docs/errors
    499: ServerError,
}


class Phrase(msgspec.Struct, frozen=True):
    """A sentence by which a vendor says what it has no code for.

    ``pattern`` is a regular expression, case ignored, compiled when it is first needed; ``source`` is who says it.
    """

    statuses: frozenset[int | None]
    pattern: str
    error: ErrorClass
    source: str
    feature: str | None = None


def _phrase(statuses: Sequence[int | None], pattern: str, error: ErrorClass, source: str, feature: str | None = None) -> Phrase:
    return Phrase(frozenset(statuses), pattern, error, source, feature)


_TOO_LONG = (400, 413, 422, 500, None)
PHRASES: tuple[Phrase, ...] = (
    _phrase((400,), r"^your credit balance is too low", BillingError, "Anthropic: https://docs.anthropic.com/en/api/errors"),
    _phrase((400,), r"^you have reached your specified api usage limits", BillingError, "Anthropic: spend cap"),
    _phrase((403,), r"^key limit exceeded", BillingError, "OpenRouter: https://openrouter.ai/docs/api/reference/limits"),
    _phrase(_TOO_LONG, r"maximum context length is \d+ tokens", ContextWindowError, "DeepSeek, OpenRouter, vLLM"),
    _phrase(_TOO_LONG, r"prompt is too long: \d+ tokens", ContextWindowError, "Anthropic"),
    _phrase(_TOO_LONG, r"prompt too long; exceeded (max )?context length", ContextWindowError, "Ollama"),
    _phrase(_TOO_LONG, r"input token count.{0,20} exceeds the maximum number of tokens", ContextWindowError, "Gemini, Vertex"),
    _phrase(_TOO_LONG, r"input tokens exceeded: number of input tokens exceeds", ContextWindowError, "Bedrock"),
    _phrase(_TOO_LONG, r"^input is too long for requested model", ContextWindowError, "Bedrock"),
    _phrase(_TOO_LONG, r"\d+ tokens\) exceeds the available context size", ContextWindowError, "llama.cpp"),
    _phrase(_TOO_LONG, r"input exceeds the context window of this model", ContextWindowError, "OpenAI"),
    _phrase(_TOO_LONG, r"longer than the model's context length", ContextWindowError, "SGLang"),
    _phrase((400,), r"^incorrect api key provided", AuthError, "xAI gives a bad key status 400"),
    _phrase((403,), r"^the security token included in the request is (expired|invalid)", AuthError, "Bedrock"),
    _phrase((400,), r"^model not found: ", ModelNotFoundError, "xAI"),
    _phrase((400,), r"^the supported api model names are ", ModelNotFoundError, "DeepSeek"),
    _phrase((400,), r" is not a valid model id$", ModelNotFoundError, "OpenRouter"),
    _phrase((400,), r"^the provided model identifier is invalid", ModelNotFoundError, "Bedrock"),
    _phrase((403, None), r"^content violates usage guidelines", ContentFilterError, "xAI"),
    _phrase((404,), r"^tools is not supported in this model", UnsupportedFeatureError, "OpenAI", "tools"),
    _phrase((400,), r"^`tool calling` is not supported with this model", UnsupportedFeatureError, "Groq", "tools"),
    _phrase((404,), r"^no endpoints found that support tool use", UnsupportedFeatureError, "OpenRouter", "tools"),
    _phrase((404,), r"^no endpoints found .{0,40}'tool_choice' value", UnsupportedFeatureError, "OpenRouter", "tool_choice"),
    _phrase((404,), r"^no endpoints found .{0,20}image input", UnsupportedFeatureError, "OpenRouter", "images"),
    _phrase((400,), r" does not support tools$", UnsupportedFeatureError, "Ollama", "tools"),
    _phrase((500,), r"^tools param requires --jinja flag", UnsupportedFeatureError, "llama.cpp", "tools"),
    _phrase((500,), r"^image input is not supported", UnsupportedFeatureError, "llama.cpp", "images"),
)  # fmt: skip

RETRY_IN = re.compile(
    r"(?:try again|retry) (?:in|after) ((?:\d+(?:\.\d+)?(?:ms|d|h|m|s))+|\d+(?:\.\d+)? s(?=econd))", re.IGNORECASE
)
"""A wait in prose, read only where no field states one: OpenAI, Groq and Gemini as ``1m0.36s``, Azure in seconds."""

WINDOWS: Mapping[str, re.Pattern[str]] = {
    "day": re.compile(r"\b(?:tokens|requests)[ -]per[ -]day\b|\bfree-models-per-day\b", re.IGNORECASE),
    "tokens": re.compile(r"\btokens per min(?:ute)?\b", re.IGNORECASE),
    "requests": re.compile(r"\brequests per min(?:ute)?\b|\bfree-models-per-min\b", re.IGNORECASE),
    "concurrency": re.compile(r"\bconcurren(?:t|cy)\b", re.IGNORECASE),
}
"""Which window refused, in the words of Groq, OpenAI, OpenRouter and Zhipu."""
