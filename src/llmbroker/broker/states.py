"""What ``snapshot()`` returns: how each model, key and the journal are now, and until when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from llmbroker.allowances import BILLION, SECOND, Account, most_of, parts_of
from llmbroker.catalog import Limit
from llmbroker.catalog.limit import MEASURES
from llmbroker.pool import Lane, Member
from llmbroker.router import Entry


class QuotaState(msgspec.Struct, frozen=True, kw_only=True):
    """One window of a model's quota, as its provider's replies state it.

    Attributes:
        name: unit and span in the provider's words (``requests-day``, ``tokens``).
        kind: what it counts: requests, tokens, or those of the input or the output alone.
        left: how many are left now, what was sent since the last reply taken off.
        limit: how many it lets through, or None.
        until: when it resets, or None: not stated, or it fills up steadily.
    """

    name: str
    kind: str
    left: float
    limit: float | None = None
    until: datetime | None = None


class ModelState(msgspec.Struct, frozen=True, kw_only=True):
    """One model of the pool now.

    Attributes:
        name: the model.
        available: whether a call could begin on it now.
        reason: why not: disabled, no_key, busy, or what it suffers from (rate_limited, unavailable, error, unreachable,
            timeout, empty, key_refused, out_of_credit, not_found, denied); None if it is available.
        detail: the provider's words, redacted.
        until: when it will be asked again.
        failures: incidents in a row.
        disabled, has_key: switched off by hand; a key was found.
        running: attempts under way. ``parallel``: the most at once, or None.
        at_once: how many at once its key was found to serve, or None: no bound was met.
        quality: believed quality without regard to the operation. ``weight``: of the model list. ``ratings``: that count.
        seconds: half of its last answers came within that time, or None.
        provider, model, key_source: who serves what with which key (where it was found, never its value).
        lacks: features that it refused.
        quotas: what its provider states to be left, each window for itself.
    """

    name: str
    available: bool
    reason: str | None = None
    detail: str | None = None
    until: datetime | None = None
    failures: int = 0
    disabled: bool = False
    has_key: bool = True
    running: int = 0
    parallel: int | None = None
    at_once: int | None = None
    quality: float = 0.0
    weight: float = 0.0
    ratings: float = 0.0
    seconds: float | None = None
    provider: str | None = None
    model: str | None = None
    key_source: str | None = None
    lacks: tuple[str, ...] = ()
    quotas: tuple[QuotaState, ...] = ()


class LimitState(msgspec.Struct, frozen=True, kw_only=True):
    """One limit now, for one subject. Amounts stand under ``calls``, ``tokens`` and ``cost`` (US dollars), as far as limited.

    Attributes:
        name: the limit's name.
        scope, operation: whose it is, where the limit concerns one or tells them apart; ``"*"`` where nobody used it yet.
        key: the same of a key: where it was found, or its mark.
        most, used, reserved, left: what is permitted, spent, held by attempts under way, and left.
        window: as declared. resets_at: when a new one begins, or None: never.
        unpriced: attempts whose price was not known; they count by ``unknown_price``.
        shared: whether all processes of the journal's store count together; else this one counts alone.
    """

    name: str
    scope: str | None = None
    key: str | None = None
    operation: str | None = None
    most: dict[str, float]
    used: dict[str, float]
    reserved: dict[str, float]
    left: dict[str, float]
    window: float | str | None = None
    resets_at: datetime | None = None
    unpriced: int = 0
    shared: bool = True


def limit_state(limit: Limit, account: Account, *, shared: bool, keys: Mapping[str, str]) -> LimitState:
    """Return how a limit stands; ``keys``: where keys were found, by their marks."""
    scope, mark, operation = parts_of(account.subject)
    places = [place for place, measure in enumerate(MEASURES) if getattr(limit, measure) is not None]
    most, spent, held = most_of(limit), account.spent, account.held

    def shown(amounts: Sequence[int]) -> dict[str, float]:
        return {MEASURES[p]: amounts[p] / BILLION if MEASURES[p] == "cost" else amounts[p] for p in places}

    return LimitState(
        name=limit.name,
        scope=scope or limit.scope,
        key=limit.key if mark is None else keys.get(mark, mark),
        operation=operation or limit.operation,
        most=shown(most),
        used=shown(spent),
        reserved=shown(held),
        left=shown([max(0, most[p] - spent[p] - held[p]) for p in range(3)]),
        window=limit.window,
        resets_at=None if account.ends is None else datetime.fromtimestamp(account.ends / SECOND, UTC),
        unpriced=account.unpriced,
        shared=shared,
    )


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A pool now: a mapping from names to ``ModelState``, in the order of the model list, and what concerns them all.

    Attributes:
        models: the states.
        waiting: calls in the queue.
        journal: state (ok, degraded, off) of the journal and what is behind it.
        missing_keys: variables that would bring models into play.
        next_at: when the first model will be free again, if none is free now.
        limits: how each limit stands for each subject that has used it in this window (of many, the 1,000 busiest).
        notes: what is to say about what does not work as it should (a learner, a price list).
    """

    models: dict[str, ModelState]
    waiting: int = 0
    journal: dict[str, Any] = {}
    missing_keys: tuple[str, ...] = ()
    next_at: datetime | None = None
    notes: tuple[str, ...] = ()
    limits: tuple[LimitState, ...] = ()

    @property
    def degraded(self) -> bool:
        """Whether some model cannot be asked now, or the journal does not keep up."""
        return any(not state.available and state.reason != "busy" for state in self.models.values()) or (
            self.journal.get("state") == "degraded"
        )

    def __getitem__(self, name: str) -> ModelState:
        return self.models[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.models)

    def __len__(self) -> int:
        return len(self.models)

    def __contains__(self, name: object) -> bool:
        return name in self.models

    def keys(self) -> Any:
        """Return the names."""
        return self.models.keys()

    def values(self) -> Any:
        """Return the states."""
        return self.models.values()

    def items(self) -> Any:
        """Return names and states."""
        return self.models.items()


def state_of(entry: Entry, *, now: float, wall: float, quality: float, ratings: float) -> ModelState:
    """Return the state of one member as a scope sees it."""
    member, lanes = entry
    lane = next((one for one in lanes if one.free(now)), lanes[0] if lanes else None)
    reason, detail, until, failures = _trouble(member, lane, now)
    return ModelState(
        name=member.name,
        available=reason is None,
        reason=reason,
        detail=detail or None,
        until=_moment(until, now, wall),
        failures=failures,
        disabled=member.disabled,
        has_key=lane is not None,
        running=member.running,
        parallel=member.config.parallel,
        at_once=lane.key.bound if lane is not None else None,
        quality=quality,
        weight=member.config.weight,
        ratings=ratings,
        seconds=member.latency.quantile(0.5) if len(member.latency) else None,
        provider=lane.deployment.provider.id if lane is not None else member.config.provider,
        model=member.config.model,
        key_source=lane.key.source if lane is not None else None,
        lacks=tuple(sorted({*member.lacks, *(lane.lacks if lane is not None else ())})),
        quotas=tuple(
            QuotaState(name=name, kind=kind, left=left, limit=limit, until=_moment(at, now, wall))
            for name, kind, left, limit, at in (lane.stated(now) if lane is not None else ())
        ),
    )


def _moment(at: float | None, now: float, wall: float) -> datetime | None:
    return datetime.fromtimestamp(wall + at - now, UTC) if at is not None else None


def _trouble(member: Member, lane: Lane | None, now: float) -> tuple[str | None, str, float | None, int]:
    if member.disabled:
        return "disabled", "", None, 0
    if lane is None:
        return "no_key", member.config.api_key_ref or "", None, 0
    failures = max(member.health.incidents, lane.key.health.incidents, lane.health.incidents)
    ill = lane.ill(now)
    if ill is not None and ill.illness is not None:
        return ill.illness.word, ill.detail, ill.until, failures
    if not lane.free(now):
        opens = lane.fits_at(now) if lane.metered else now
        if opens > now:
            return "rate_limited", lane.why(now) or "its quota is used up as far as is known", opens, failures
        return "busy", "", None, failures
    return None, "", None, failures
