"""The journal's rows as a replay needs them: read page by page, checked, slim. What cannot be used is counted."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from llmbroker.catalog import LLMConfig, load_catalog
from llmbroker.errors import InvalidRequestError, LLMBrokerError
from llmbroker.journal import Call, Journal, open_existing, pages
from llmbroker.journal.records import STATUSES

MOST_ROWS = 200_000
"""Rows that are read at most, the newest: some 150 MB."""
SELDOM = 20
"""Operations with fewer requests are taken together."""
OTHERS = "(seldom ones)"
UNNAMED = "(none)"
STOPPED = ("superseded", "cancelled")
LONGEST = 86_400.0
LAST = 2e11
"""Seconds since 1970: nothing was called later, and a replay that goes on from there can still be dated."""


class Fact(msgspec.Struct, frozen=True, gc=False):
    """One attempt: who was asked for what and when, and what came of it.

    Attributes:
        at: when it began, seconds since 1970. seconds: how long it took.
        kind: the operation, or the group of operations that it is counted with.
        cost: in US dollars; 0.0 where nothing can have been charged; None: not known.
        score, scored_at: the newest rating, if it was rated.
        tokens: all tokens, if they are known.
        key: what tells its key from other keys.
    """

    group: str
    number: int
    model: str
    operation: str | None
    kind: str
    at: float
    status: str
    seconds: float
    cost: float | None = None
    score: float | None = None
    scored_at: float = 0.0
    http: int | None = None
    fault: str = ""
    detail: str = ""
    tokens: int | None = None
    key: str = ""

    @property
    def ok(self) -> bool:
        """Whether it brought an answer."""
        return self.status == "ok"


class Request(msgspec.Struct, frozen=True, gc=False):
    """One call of the user's program: when, what for, and which rows (places in the list of facts) it made."""

    at: float
    operation: str | None
    kind: str
    rows: tuple[int, ...]


class Material(msgspec.Struct, frozen=True):
    """What a replay works with.

    Attributes:
        facts: rows, the oldest first. requests: the calls, the oldest first.
        left_out: rows that cannot be used, by reason.
        configs: what is known about models, by name. listed: the names of the user's own list.
        cut: there were more rows than are read.
    """

    facts: list[Fact]
    requests: list[Request]
    left_out: dict[str, int]
    configs: dict[str, LLMConfig]
    listed: frozenset[str] = frozenset()
    cut: bool = False

    @property
    def models(self) -> list[str]:
        """The names of the models that have rows."""
        return sorted({fact.model for fact in self.facts})


def gather(
    source: Any,
    *,
    since: datetime | None,
    operation: str | None,
    pool: Sequence[LLMConfig] | None,
    limit: int = MOST_ROWS,
) -> Material:
    """Read rows.

    Args:
        source: None (the journal in llmbroker's own folder), a path or address, a ``Journal``, or calls.
        since: the oldest that counts.
        operation: only this one.
        pool: the model list, where the source holds none.
        limit: how many rows are read at most, the newest.

    Raises:
        ConfigurationError, StoreError: the source cannot be read.
        InvalidRequestError: it is none of these.
    """
    if pool is not None and not (isinstance(pool, (list, tuple)) and all(isinstance(one, LLMConfig) for one in pool)):
        raise InvalidRequestError("pool is a list of LLMConfig.", argument="pool")
    if isinstance(source, Iterable) and not isinstance(source, (str, bytes, os.PathLike)):
        rows: Iterable[Call] = _chosen(source, since, operation)
        return _material(rows, pool or (), limit)
    journal, owned = _opened(source)
    if journal is None:
        return _material((), pool or (), limit)
    try:
        listed = pool if pool is not None else _stored(journal)
        return _material(pages(journal, since=since, operation=operation), listed, limit)
    finally:
        if owned:
            journal.close()


def _opened(source: Any) -> tuple[Journal | None, bool]:
    if isinstance(source, Journal):
        return source, False
    if source is not None and not isinstance(source, (str, os.PathLike)):
        raise InvalidRequestError(
            f"A replay reads a journal, a path, an address or rows of calls(), not {type(source).__name__}.", argument="source"
        )
    return open_existing(source), True


def _chosen(rows: Iterable[Any], since: datetime | None, operation: str | None) -> Iterator[Call]:
    for row in rows:
        if not isinstance(row, Call):
            raise InvalidRequestError(f"A replay reads rows of calls(), not {type(row).__name__}.", argument="source")
        if (since is None or row.ts >= since) and (operation is None or row.operation == operation):
            yield row


def _stored(journal: Journal) -> Sequence[LLMConfig]:
    try:
        return journal.store.models() if journal.store is not None else ()
    except LLMBrokerError:
        return ()  # an own list is welcome, not needed; rows that cannot be read say so themselves


def _material(rows: Iterable[Call], pool: Sequence[LLMConfig], limit: int) -> Material:
    left_out: Counter[str] = Counter()
    found: list[Fact] = []
    cut = False
    for row in rows:
        if len(found) >= limit:
            cut = True
            break
        fact, why = _fact(row)
        if fact is None:
            left_out[why] += 1
        else:
            found.append(fact)
    found.sort(key=lambda fact: (fact.at, fact.group, fact.number))
    groups: dict[str, list[int]] = {}
    for place, fact in enumerate(found):
        groups.setdefault(fact.group, []).append(place)
    often = Counter(found[places[0]].operation for places in groups.values())
    facts = [
        fact if often[fact.operation] >= SELDOM else msgspec.structs.replace(fact, kind=OTHERS)
        for fact in found
    ]  # fmt: skip
    requests = []
    for places in groups.values():
        first = facts[places[0]]
        requests.append(Request(first.at, first.operation, first.kind, tuple(places)))
    requests.sort(key=lambda request: (request.at, request.rows))
    configs = {config.name: config for config in (*load_catalog().pool, *pool)}
    return Material(facts, requests, dict(left_out), configs, frozenset(config.name for config in pool), cut)


def _fact(row: Call) -> tuple[Fact | None, str]:
    """Return a row as a fact, or None and why it cannot be one."""
    milliseconds = _number(row.latency_ms, 0.0, 1000.0 * LONGEST)
    if row.status not in STATUSES:
        return None, f"status {str(row.status)[:20]!r}"
    if milliseconds is None:
        return None, "no duration that could be true"
    if not isinstance(row.llm_name, str) or not row.llm_name.strip():
        return None, "no model"
    at = row.ts.timestamp()
    if not 0.0 <= at <= LAST:
        return None, "no moment that could be true"
    score = _number(row.score, 0.0, 1.0)
    operation = row.operation if isinstance(row.operation, str) else None
    usage = row.usage.total_tokens if row.usage is not None else None
    return Fact(
        group=str(row.group_id or row.id),
        number=row.attempt if isinstance(row.attempt, int) else 1,
        model=row.llm_name,
        operation=operation,
        kind=operation if operation is not None else UNNAMED,
        at=at,
        status=row.status,
        seconds=milliseconds / 1000.0,
        cost=_cost(row),
        score=score,
        scored_at=row.score_ts.timestamp() if row.score_ts is not None else at,
        http=row.http_status if isinstance(row.http_status, int) and 400 <= row.http_status <= 599 else None,
        fault=str(row.error_class or ""),
        detail=str(row.error_detail or "")[:300],
        tokens=usage if isinstance(usage, int) and 0 <= usage < 10**9 else None,
        key=f"{row.provider} {row.key_source}" if row.key_source else "",
    ), ""


def _cost(row: Call) -> float | None:
    known = _number(row.cost, 0.0, 1e9) if row.currency in (None, "USD") else None
    if known is None and row.status in ("rate_limited", "unavailable", "error"):
        return 0.0  # refused: nothing was made that could be charged
    return known


def _number(value: Any, least: float, most: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        return None
    return float(value)
