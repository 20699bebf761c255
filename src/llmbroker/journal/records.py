"""Rows of the journal as frozen values: one ``Call`` an attempt, one ``Rating`` a judgement; filters and sums over them.

Nothing here reads or writes a store, a clock or a file. Unknown counts and costs stay None, never 0.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from llmbroker.credentials import mask
from llmbroker.errors import (
    ConnectionFailedError,
    InvalidRequestError,
    LLMBrokerError,
    LLMTimeoutError,
    RateLimitError,
    ServerError,
    StoreError,
)
from llmbroker.exchange import Usage
from llmbroker.messages import shown

Status: TypeAlias = Literal["ok", "rate_limited", "unavailable", "error", "timeout", "cancelled", "superseded"]
STATUSES: tuple[str, ...] = get_args(Status)
Grouping: TypeAlias = Literal["llm_name", "provider", "model", "operation", "scope", "trace_id", "status", "day", "all"]
GROUPINGS: tuple[str, ...] = get_args(Grouping)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_DETAIL = 300
_MICROSECOND = timedelta(microseconds=1)
_FIRST_MOMENT, _LAST_MOMENT = datetime(1700, 1, 1, tzinfo=UTC), datetime(2250, 1, 1, tzinfo=UTC)
"""What the keys of the stores can hold."""


def new_id() -> str:
    """Return a fresh row id: 13 hex digits of the microsecond and 12 random ones, so that ids grow with time."""
    return f"{time.time_ns() // 1000:013x}{os.urandom(6).hex()}"


def id_at(micros: int) -> str:
    """Return what all ids are greater than that were made after this moment, in microseconds since 1970."""
    return f"{max(0, micros):013x}"


def utc(seconds: float) -> datetime:
    """Return the aware time of these seconds since 1970 (``port.time()``)."""
    return datetime.fromtimestamp(seconds, UTC)


def to_micros(moment: datetime) -> int:
    """Return whole microseconds since 1970.

    Raises:
        InvalidRequestError: the time says no zone.
    """
    if moment.tzinfo is None:
        raise InvalidRequestError("A time needs a time zone: datetime(..., tzinfo=UTC).", argument="since")
    return (moment - EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """Return the aware time of these microseconds since 1970.

    Raises:
        StoreError: it is none: the row that says so is damaged.
    """
    try:
        return EPOCH + timedelta(microseconds=micros)
    except (TypeError, OverflowError) as error:
        raise damaged(micros, "time") from error


def damaged(value: Any, what: str) -> StoreError:
    """Return the error that says that a value of a row is not what it is to be."""
    return StoreError(
        f"A row of the journal is damaged: {value!r:.40} is no {what}.", reason="corrupt", hint="Choose later rows with since=."
    )


class Call(msgspec.Struct, frozen=True, kw_only=True, tag="call"):
    """One attempt: one request to one deployment.

    Attributes:
        id: the row's id; equal to ``reply.call_id`` of the reply it brought.
        ts: when the attempt began (aware, UTC).
        llm_name: the pool's name of the model that was asked.
        status: ok, rate_limited, unavailable, error, timeout, cancelled or superseded.
        group_id: shared by all attempts of one call on the broker: the id of the first of them.
        attempt: its place in that call, from 1.
        retry_of: id of the attempt that this one repeats on the same deployment.
        scope, operation, trace_id: as the caller named them.
        provider, dialect: who served, in which wire format.
        model: the model as asked. ``model_answered``: as the provider named it.
        stream: whether the answer was streamed. ``step``: the tool loop's step, from 1, or None.
        http_status, error_class, error_detail: what went wrong; the detail is redacted and at most 300 characters.
        finish_reason: how the turn ended.
        usage: normalised tokens, or None.
        first_event_ms, latency_ms: milliseconds to the first event with content and to the end.
        cost: what it cost in ``currency``, or None when the price or the tokens are not known.
        key_source: where the key came from (``environment OPENAI_API_KEY``), never its value.
        score, score_ts: the newest rating, filled in when the row is read.
        request, response: the bodies as redacted text; only where the journal was asked to keep them.
        cursor: where this row stands, filled in when it is read: hand it to ``calls(cursor=...)`` for what is older.
    """

    ts: datetime
    llm_name: str
    status: Status
    id: str = msgspec.field(default_factory=new_id)
    group_id: str | None = None
    attempt: int = 1
    retry_of: str | None = None
    scope: str | None = None
    operation: str | None = None
    trace_id: str | None = None
    provider: str | None = None
    dialect: str | None = None
    model: str | None = None
    model_answered: str | None = None
    stream: bool = False
    step: int | None = None
    http_status: int | None = None
    error_class: str | None = None
    error_detail: str | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    first_event_ms: float | None = None
    latency_ms: float | None = None
    cost: float | None = None
    currency: str | None = None
    key_source: str | None = None
    score: float | None = None
    score_ts: datetime | None = None
    request: str | None = None
    response: str | None = None
    cursor: str | None = None


class Rating(msgspec.Struct, frozen=True, kw_only=True, tag="rating"):
    """One judgement of one call: ``score`` from 0 (useless) to 1 (perfect). The newest of a call counts."""

    call_id: str
    score: float
    ts: datetime
    scope: str | None = None
    id: str = msgspec.field(default_factory=new_id)


Row: TypeAlias = Call | Rating


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows. None means any; ``status`` and ``llm_name`` may also be several. ``since`` is included, ``until`` not."""

    since: datetime | None = None
    until: datetime | None = None
    operation: str | None = None
    trace_id: str | None = None
    call_id: str | None = None
    group_id: str | None = None
    scope: str | None = None
    status: str | tuple[str, ...] | None = None
    llm_name: str | tuple[str, ...] | None = None
    provider: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot match by mistake.

        Raises:
            InvalidRequestError: a time without zone, or a status that does not exist.
        """
        for name in ("since", "until"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, datetime) or value.tzinfo is None):
                raise InvalidRequestError(f"{name} is a datetime with a time zone, not {shown(value)}.", argument=name)
        for status in (self.status,) if isinstance(self.status, str) else self.status or ():
            if status not in STATUSES:
                raise InvalidRequestError(f"No status {shown(status)}; there are {', '.join(STATUSES)}.", argument="status")


class Quantiles(msgspec.Struct, frozen=True):
    """Nearest-rank quantiles in milliseconds; None where nothing was measured."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the attempts of one group.

    Attributes:
        total: attempts. ``by_status``: attempts of each status that occurs.
        usage: sums of the known counts; a field that no row knows is None.
        unmeasured: attempts that the provider may have worked on without telling the tokens.
        cost: sum of the known costs in US dollars, or None if none is known.
        unpriced: attempts that may have cost something and whose cost is not known. The true cost is ``cost`` only if it is 0.
        latency, first_event: quantiles over the attempts that ended ok.
        rated: attempts with a rating. ``quality``: mean of their newest ratings, or None.
        first_at, last_at: when the first and last attempt began. ``last_status``: how the last one ended.
    """

    total: int
    by_status: dict[str, int]
    usage: Usage
    unmeasured: int
    cost: float | None
    unpriced: int
    latency: Quantiles
    first_event: Quantiles
    rated: int
    quality: float | None
    first_at: datetime | None
    last_at: datetime | None
    last_status: str | None


def status_of(error: BaseException) -> Status:
    """Return the status of an attempt that ended with this error.

    503 and 529 and a connection that was never made are ``unavailable``; what is neither limit, timeout nor outage is
    ``error``; cancellation is no ``Exception`` and is ``cancelled``.
    """
    if isinstance(error, RateLimitError):
        return "rate_limited"
    if isinstance(error, LLMTimeoutError):
        return "timeout"
    if isinstance(error, ConnectionFailedError) or (isinstance(error, ServerError) and error.status in (503, 529)):
        return "unavailable"
    return "error" if isinstance(error, Exception) else "cancelled"


def worked(call: Call) -> bool:
    """Whether the provider may have charged for an attempt: it answered, or was at work when the attempt ended."""
    usage = call.usage
    return (
        call.status in ("ok", "timeout", "cancelled", "superseded")
        or (call.http_status is not None and 200 <= call.http_status <= 299)
        or (usage is not None and (usage.output_tokens is not None or usage.total_tokens is not None))
    )


def failure(error: BaseException) -> dict[str, Any]:
    """Return what a row says about this error: ``status``, ``http_status``, ``error_class``, ``error_detail``."""
    detail = (error.detail or str(error)) if isinstance(error, LLMBrokerError) else str(error)
    return {
        "status": status_of(error),
        "http_status": error.status if isinstance(error, LLMBrokerError) else None,
        "error_class": type(error).__name__,
        "error_detail": short(detail),
    }


def short(text: str | None) -> str | None:
    """Return a text fit for ``error_detail``: one line, without anything that looks like a key, 300 characters at most."""
    if not text:
        return None
    text = mask(text[: 4 * MAX_DETAIL])
    text = " ".join(text.split())
    return text if len(text) <= MAX_DETAIL else text[: MAX_DETAIL - 1] + "…"


def cleaned(row: Row) -> Row:
    """Return the row with what a store cannot hold mended: lone surrogates replaced, counts beyond 64 bits unknown."""
    changes: dict[str, Any] = {}
    for name in row.__struct_fields__:
        value = getattr(row, name)
        if isinstance(value, str):
            changes[name] = value.encode("utf-8", "replace").decode().replace("\0", "�")
        elif isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
            changes[name] = None
        elif value is not None and not isinstance(value, (int, float, datetime, Usage)):
            changes[name] = str(value)
        elif isinstance(value, datetime):
            changes[name] = min(max(value, _FIRST_MOMENT), _LAST_MOMENT)
        elif isinstance(value, Usage):
            changes[name] = Usage(*(n if n is None or abs(n) < 2**63 else None for n in value.fields()))
    return msgspec.structs.replace(row, **changes)
