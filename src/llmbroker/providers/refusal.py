"""Refusals: what a provider's error says, and which error class that is.

Shared by every dialect. ``error_body`` reads the dozen shapes that error bodies have; ``refusal`` chooses the class from the
status and the provider's code words: the provider's own row first, then words that mean the same everywhere, then a short list
of documented sentences where a vendor gives no code, then the status. Nothing here sends, sleeps or retries.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from llmbroker.credentials import mask
from llmbroker.errors import (
    AuthError,
    BadRequestError,
    BillingError,
    ContentFilterError,
    ContextWindowError,
    MalformedCallError,
    ModelNotFoundError,
    ProviderError,
    RateLimitError,
    ServerError,
    UnsupportedFeatureError,
)
from llmbroker.providers.base import Deployment, request_id
from llmbroker.providers.meters import reset_seconds
from llmbroker.providers.refusal_words import (
    CODES,
    PHRASES,
    RETRY_IN,
    STATUSES,
    WEAK_CODES,
    WINDOWS,
    ErrorClass,
)
from llmbroker.providers.waits import seconds
from llmbroker.wire import HTTPReply

JSON: TypeAlias = dict[str, Any]


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What an error body says.

    Attributes:
        message: the provider's words, not yet redacted.
        codes: its code words, the most telling first; a number that only repeats an HTTP status is not among them.
        status: the HTTP status that the body states, or None.
        param: the parameter that it names.
        retry_after: seconds that the body asks to wait.
        limit: which window refused: requests, tokens, day, concurrency.
        generation: what the model wrote before the provider threw it away.
        request_id: the id that the body states.
        headers: headers that the body quotes (OpenRouter quotes those of its upstream).
    """

    message: str
    codes: tuple[str, ...] = ()
    status: int | None = None
    param: str | None = None
    retry_after: float | None = None
    limit: str | None = None
    generation: str | None = None
    request_id: str | None = None
    headers: Mapping[str, str] = {}


# -- reading a body ------------------------------------------------------------------------------------------------------


def error_body(body: bytes, headers: Mapping[str, str]) -> Facts:
    """Read the body of a refusal, whatever it is: JSON in any known shape, a server-sent event, plain text, HTML, nothing."""
    text = body[:200_000].decode("utf-8", "replace").strip()
    value = _parsed(text)
    if value is None:
        # Xiaomi leaves the "data:" of a stream before a JSON body; others answer with one whole error event.
        payload = next((line[5:] for line in text.splitlines() if line.startswith("data:")), None)
        value = _parsed(payload.strip()) if payload else None
    if value is None:
        return Facts(message=" ".join(text[:1000].split())[:200])
    return read_error(value)


def read_error(value: Any) -> Facts:
    """Read a parsed error: the whole body, or what stands under its key ``error``."""
    found = _Found()
    found.read(value, 0)
    message = found.message
    if not message and value:
        message = msgspec.json.encode(value, enc_hook=str).decode("utf-8", "replace")[:500]
    if found.param and " " in found.param:  # Xiaomi says in prose there which rule was broken
        message, found.param = f"{message}: {found.param}", None
    if found.retry_after is None:
        wait = RETRY_IN.search(message)
        found.retry_after = seconds(wait[1].replace(" ", "")) if wait else None
    named = [name for name in found.quotas[:3] if name not in message]
    if named and message:  # says whether it is the model's own quota
        message = f"{message.rstrip()} ({', '.join(named)})"
    if found.limit is None:
        found.limit = next((name for name, pattern in WINDOWS.items() if pattern.search(message)), None)
    return Facts(
        message=message,
        codes=tuple(dict.fromkeys(found.codes)),
        status=found.status,
        param=found.param,
        retry_after=found.retry_after,
        limit=found.limit,
        generation=found.generation,
        request_id=found.request_id,
        headers=found.headers,
    )


def _parsed(text: str) -> Any:
    if not text.startswith(("{", "[", '"')):
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _http_status(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) == 3:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599:
        return value
    return None


_CODE_KEYS = ("code", "status", "reason", "type", "error_type")
_STATUS_KEYS = ("status", "code", "status_code", "raw_status_code")
_DEEPEST = 5


class _Found:
    """Collects facts while walking a body from the outside in; what stands deeper is more telling and goes first."""

    def __init__(self) -> None:
        self.message = ""
        self.codes: list[str] = []
        self.status: int | None = None
        self.param: str | None = None
        self.retry_after: float | None = None
        self.limit: str | None = None
        self.quotas: list[str] = []
        self.generation: str | None = None
        self.request_id: str | None = None
        self.headers: dict[str, str] = {}

    def read(self, value: Any, depth: int) -> None:
        if depth > _DEEPEST:
            return
        if isinstance(value, str):
            inner = _parsed(value.strip())
            if isinstance(inner, (dict, list)):
                self.read(inner, depth + 1)
            if not self.message or not isinstance(inner, (dict, list)):
                self.message = value.strip() or self.message
        elif isinstance(value, list):
            self._read_list(value, depth)
        elif isinstance(value, dict):
            self._read_object(value, depth)

    def _read_list(self, items: list[Any], depth: int) -> None:
        # FastAPI's validation errors: [{"loc": [...], "msg": ..., "type": ...}]
        problems = [item for item in items if isinstance(item, dict) and isinstance(item.get("msg"), str)]
        if problems:
            places = [_place(item.get("loc")) for item in problems]
            said = [f"{place}: {item['msg']}" if place else item["msg"] for place, item in zip(places, problems, strict=True)]
            self.message = f"{self.message}: {'; '.join(said)}" if self.message else "; ".join(said)
            self.param = self.param or places[0] or None
        elif items:
            self.read(items[0], depth + 1)

    def _read_object(self, body: JSON, depth: int) -> None:
        codes: list[str] = []
        for key in _STATUS_KEYS:
            if self.status is None:
                self.status = _http_status(body.get(key))
        for key in _CODE_KEYS:
            word = body.get(key)
            if isinstance(word, (str, int)) and not isinstance(word, bool) and _http_status(word) is None:
                text = str(word).strip()
                if text and text not in ("error", "0"):
                    codes.append(text[:200])
        for key, attribute in (("param", "param"), ("failed_generation", "generation"), ("request_id", "request_id")):
            word = body.get(key)
            if isinstance(word, str) and (word or attribute == "generation"):
                setattr(self, attribute, word)
        for key in ("message", "msg", "detail", "error", "errors"):
            if body.get(key):
                self.read(body[key], depth + 1)
        self._read_details(body, depth)
        inner = body.get("innererror") or body.get("inner_error")
        if isinstance(inner, dict) and isinstance(inner.get("code"), str):
            codes.append(inner["code"])
        self.codes += codes

    def _read_details(self, body: JSON, depth: int) -> None:
        details = body.get("details")
        if isinstance(details, list):
            for detail in details:
                if isinstance(detail, dict):
                    self._read_google(detail)
            if any(isinstance(detail, dict) and "msg" in detail for detail in details):
                self._read_list(details, depth)
        metadata = body.get("metadata")
        if not isinstance(metadata, dict):
            return
        quoted = metadata.get("headers")
        if isinstance(quoted, dict):
            self.headers = {str(name).lower(): str(value) for name, value in quoted.items()}
        if isinstance(metadata.get("reasons"), list) or "flagged_input" in metadata:
            self.codes.append("moderation")
        wait = metadata.get("retry_after_seconds")
        if isinstance(wait, (int, float)):
            self.retry_after = seconds(str(wait))
        raw = metadata.get("raw")
        if raw:
            self.read(raw, depth + 1)

    def _read_google(self, detail: JSON) -> None:
        """Read google.rpc.RetryInfo, ErrorInfo and QuotaFailure."""
        delay = detail.get("retryDelay")
        if isinstance(delay, str):
            self.retry_after = seconds(delay)
        if isinstance(detail.get("reason"), str):
            self.codes.insert(0, detail["reason"])
        violations = detail.get("violations")
        for violation in violations if isinstance(violations, list) else ():
            name = str(violation.get("quotaId") or violation.get("quotaMetric") or "") if isinstance(violation, dict) else ""
            if name and name not in self.quotas:
                self.quotas.append(name)
            if "PerDay" in name:
                self.limit = "day"
            elif self.limit is None and "token" in name.lower():
                self.limit = "tokens"
            elif self.limit is None and "request" in name.lower():
                self.limit = "requests"


# -- choosing the class --------------------------------------------------------------------------------------------------


def _word(code: str) -> str:
    return code.strip().lower().replace(" ", "_").replace("-", "_")


def classify(deployment: Deployment, status: int | None, codes: Sequence[str], message: str) -> tuple[ErrorClass, str | None]:
    """Return the error class and, for an unsupported feature, its name."""
    own = deployment.provider.errors
    for code in codes:
        found = own.get((status, code)) or own.get((None, code))
        if found:
            return found, None
    words = [_word(code) for code in codes]
    for word in words:
        if word in CODES:
            return CODES[word], None
    for phrase in PHRASES:
        if status in phrase.statuses and re.search(phrase.pattern, message, re.IGNORECASE):
            return phrase.error, phrase.feature
    if (status, "") in own:
        return own[status, ""], None
    if status is not None and 300 <= status < 600:
        fallback = ServerError if status >= 500 else BadRequestError
        return STATUSES.get(status, fallback), None
    for word in words:
        if word in WEAK_CODES:
            return WEAK_CODES[word], None
    return ServerError, None


_LIMITS = {"tokens": "tokens", "requests": "requests"}


def _place(loc: Any) -> str:
    steps = loc if isinstance(loc, list) else [loc] if isinstance(loc, str) else []
    return ".".join(str(step) for step in steps if step != "body")


def refusal(
    deployment: Deployment,
    *,
    status: int | None,
    headers: Mapping[str, str],
    message: str,
    codes: Sequence[str] = (),
    param: str | None = None,
    retry_after: float | None = None,
    limit: str | None = None,
    generation: str | None = None,
    feature: str | None = None,
    request: str | None = None,
) -> ProviderError:
    """Return the typed error for what a provider said; the caller raises it.

    Args:
        deployment: who was asked; its secrets are taken out of every text.
        status: the HTTP status, or the one that an error inside a 200 states, or None.
        headers: of the reply, lower-case names; where the wait and the request's id are found.
        message: the provider's words.
        codes: its code words, the most telling first (see ``Facts``).
        param: the parameter it names.
        retry_after: seconds that the body asked to wait, where it did; a header is used otherwise.
        limit: which window refused.
        generation: what the model wrote.
        feature: what the model cannot do; makes the error an UnsupportedFeatureError.
        request: the request's id where the body states it.
    """
    if status is not None and status < 300:
        status = None
    kind, found_feature = classify(deployment, status, codes, message)
    if feature and kind is BadRequestError:
        kind = UnsupportedFeatureError
    limit = limit or next((_LIMITS[code] for code in codes if code in _LIMITS), None)
    words = mask(deployment.clean(message)).strip()
    telling = next((word for word in codes if _word(word) not in WEAK_CODES), codes[0] if codes else None)
    code = deployment.clean(telling)[:100] if telling else None
    facts: JSON = {
        **deployment.facts(),
        "status": status,
        "code": code,
        "request_id": request_id(headers, deployment) or (deployment.clean(request) if request else None),
        "detail": words or None,
    }
    if issubclass(kind, (RateLimitError, ServerError)):
        wait, window = reset_seconds(headers, limit) if issubclass(kind, RateLimitError) else (None, None)
        asked = seconds(headers.get("retry-after-ms"), unit=0.001) or seconds(headers.get("retry-after"), headers=headers)
        facts["retry_after"] = next((value for value in (asked, retry_after, wait) if value is not None), None)
        limit = limit or window
    if issubclass(kind, RateLimitError):
        facts["limit"] = limit
    elif issubclass(kind, MalformedCallError):
        facts["generation"] = deployment.clean(generation) if generation is not None else None
    elif issubclass(kind, UnsupportedFeatureError):
        facts["feature"] = feature or found_feature
    if issubclass(kind, BadRequestError):
        facts["param"] = deployment.clean(param) if param else None
    facts["hint"] = _hint(kind, deployment, facts)
    return kind(_headline(deployment, status, code, words), **facts)


def _headline(deployment: Deployment, status: int | None, code: str | None, words: str) -> str:
    how = f" with HTTP {status}" if status is not None else ""
    named = f" ({code})" if code else ""
    said = words[:500].rstrip()
    if not said:
        return f"{deployment.provider.id} refused {deployment.model}{how}{named}."
    return f"{deployment.provider.id} refused {deployment.model}{how}{named}: {said}{'' if said[-1] in '.!?' else '.'}"


def _hint(kind: ErrorClass, deployment: Deployment, facts: JSON) -> str | None:
    provider = deployment.provider
    if issubclass(kind, AuthError):
        source = deployment.key.source if deployment.key else ""
        where = source or (f"environment {provider.key_names[0]}" if provider.key_names else "")
        return f"Check the key{f' ({where})' if where else ''}{f'; keys: {provider.keys_url}' if provider.keys_url else ''}."
    if issubclass(kind, BillingError):
        return "Waiting does not help: add credit, raise the account's limit or use another provider."
    if issubclass(kind, RateLimitError):
        wait = facts.get("retry_after")
        return f"Wait {wait:g} s or use another model." if wait else "Wait or use another model."
    if issubclass(kind, ContextWindowError):
        return "Shorten the conversation or use a model with a larger context window."
    if issubclass(kind, ModelNotFoundError):
        return f"Check the model's name{f'; {provider.docs}' if provider.docs else ''}."
    if issubclass(kind, ContentFilterError):
        return "Change the prompt or use another model."
    if issubclass(kind, UnsupportedFeatureError) and facts.get("feature"):
        return f"Use a model that has {facts['feature']}."
    if issubclass(kind, BadRequestError) and facts.get("param"):
        return f"Change or leave out {facts['param']}."
    status = facts["status"]
    if status is not None and 300 <= status < 400:
        return "Redirects are not followed: check the base URL."
    return None


def refusal_of(deployment: Deployment, facts: Facts, *, status: int | None, headers: Mapping[str, str]) -> ProviderError:
    """Return the typed error for an error that was read with ``error_body`` or ``read_error``.

    Args:
        deployment: who was asked.
        facts: what the error says.
        status: the HTTP status where it is an error's; for an error inside a 200 give None: the body's number counts then.
        headers: of the reply.
    """
    return refusal(
        deployment,
        status=status if status is not None and status >= 300 else facts.status,
        headers={**facts.headers, **headers},
        message=facts.message,
        codes=facts.codes,
        param=facts.param,
        retry_after=facts.retry_after,
        limit=facts.limit,
        generation=facts.generation,
        request=facts.request_id,
    )


def decode_error(http: HTTPReply, deployment: Deployment) -> ProviderError:
    """Return the typed error for a whole refusal: what a dialect's ``decode_error`` is, unless it knows more."""
    return refusal_of(deployment, error_body(http.body, http.headers), status=http.status, headers=http.headers)
