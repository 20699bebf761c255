"""What became of one row, as one flat value: the columns that are added to the user's, and what the run file keeps."""

from __future__ import annotations

from typing import Any

import msgspec

from llmbroker.errors import LLMBrokerError
from llmbroker.research.response import Response, tokens

REFUSED = frozenset({"content_filter", "refusal", "error"})


class Outcome(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What became of one row.

    Attributes:
        success: an answer with content arrived; None: the row was not asked (the budget ended).
        response_text: the answer's text.
        finish_reason: how it ended; None for a failed row.
        sent_tokens, rec_tokens, total_tokens, reasoning_tokens, cached_tokens: of the whole row; None where not known.
        cost: US dollars, or None where not known.
        provider, model, model_version, response_id: who answered.
        duration: seconds of the attempt that brought the answer. created_at: when it began, seconds since 1970.
        attempts: requests that the row took.
        error_kind: parameter, authentication, billing, rate_limit, server, unknown; filter, empty, truncated for answers
            without content; budget.
        status_code, error_code, bad_param, error_message: what the provider said.
        structured_ok, structured_data, structured_error: where a form was asked for.
        tags: where tags were asked for, name to text.
        model_calls, tool_calls, tool_history: where tools ran.
        request_hash: as of ``llm_request_hash``.
    """

    success: bool | None = False
    response_text: str | None = None
    finish_reason: str | None = None
    sent_tokens: int | None = None
    rec_tokens: int | None = None
    total_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    cost: float | None = None
    provider: str | None = None
    model: str | None = None
    model_version: str | None = None
    response_id: str | None = None
    duration: float | None = None
    created_at: float | None = None
    attempts: int = 0
    error_kind: str | None = None
    status_code: int | None = None
    error_code: str | None = None
    bad_param: str | None = None
    error_message: str | None = None
    structured_ok: bool | None = None
    structured_data: Any = None
    structured_error: str | None = None
    tags: dict[str, str] | None = None
    model_calls: int | None = None
    tool_calls: int | None = None
    tool_history: list[dict[str, Any]] | None = None
    request_hash: str | None = None

    @property
    def kind(self) -> str:
        """What may be asked for again: ``ok``, an error kind, ``truncated``, ``invalid``."""
        if self.error_kind is not None:
            return self.error_kind
        if self.finish_reason == "length":
            return "truncated"
        return "invalid" if self.structured_ok is False else "ok"


BASE = (
    "response_text", "success", "finish_reason", "sent_tokens", "rec_tokens", "total_tokens", "reasoning_tokens",
    "cached_tokens", "cost", "provider", "model", "model_version", "response_id", "duration", "created_at", "attempts",
    "error_kind", "status_code", "error_code", "bad_param", "error_message",
)  # fmt: skip
STRUCTURED = ("structured_ok", "structured_data", "structured_error")
TOOLS = ("model_calls", "tool_calls", "tool_history")


def answered(response: Response, attempts: int, *, spent: float | None) -> Outcome:
    """Return the outcome of an answer; ``spent`` is the cost of all requests of the row."""
    count = tokens(response)
    out = Outcome(
        success=True, response_text=response.text, finish_reason=response.finish_reason, sent_tokens=count.sent,
        rec_tokens=count.rec, total_tokens=count.total, reasoning_tokens=count.reasoning, cached_tokens=count.cached,
        cost=spent, provider=response.provider, model=response.config.model if response.config else response.llm_name,
        model_version=response.model, response_id=response.id, duration=response.duration, created_at=response.started,
        attempts=attempts,
    )  # fmt: skip
    loop = response.tool_loop
    if loop is not None:
        out.model_calls, out.tool_calls = loop.model_calls, loop.tool_calls
        out.sent_tokens, out.rec_tokens = loop.sent, loop.rec
        out.total_tokens = None if loop.sent is None or loop.rec is None else loop.sent + loop.rec
        out.reasoning_tokens, out.cached_tokens = loop.reasoning, loop.cached
        out.tool_history = [dict(row) for row in response.tool_history]
    _judge(out, response)
    return out


def _judge(out: Outcome, response: Response) -> None:
    """An answer that was refused or says nothing is no success."""
    if response.finish_reason in REFUSED:
        out.success, out.error_kind = False, "filter"
        out.error_message = response.refusal or f"The answer ended with {response.raw_finish_reason or response.finish_reason}."
    elif not response.text.strip() and not response.tool_calls:
        out.success = False
        out.error_kind = "truncated" if response.finish_reason == "length" else "empty"
        out.error_message = "The answer has no text." + (
            " It was cut at the token limit: raise max_tokens." if response.finish_reason == "length" else ""
        )


def failed(error: BaseException, attempts: int, *, spent: float | None, config: Any) -> Outcome:
    """Return the outcome of a row that an exception ended."""
    out = Outcome(
        success=False, attempts=attempts, cost=spent, error_message=str(error) or type(error).__name__,
        provider=getattr(config, "provider", None), model=getattr(config, "model", None), error_kind="unknown",
    )  # fmt: skip
    if isinstance(error, LLMBrokerError):
        out.error_kind = error.kind
        out.status_code, out.error_code = error.status, error.code
        out.bad_param = getattr(error, "param", None) or getattr(error, "argument", None)
    loop = getattr(error, "tool_loop", None)
    if loop is not None:
        out.model_calls, out.tool_calls = loop.model_calls, loop.tool_calls
        out.sent_tokens, out.rec_tokens = loop.sent, loop.rec
        out.tool_history = [dict(row) for row in getattr(error, "tool_history", None) or ()]
    return out
