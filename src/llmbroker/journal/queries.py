"""The questions that are put to the journal, as SQL that SQLite and PostgreSQL both understand. Values always go as parameters.

``{p}`` is the driver's placeholder. Text is built only out of names that stand in this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmbroker.errors import InvalidRequestError
from llmbroker.exchange import Usage
from llmbroker.journal.columns import COLUMNS, seq_from
from llmbroker.journal.records import GROUPINGS, Quantiles, Query, Stats, damaged, from_micros, to_micros
from llmbroker.messages import shown

_NEWEST = "FROM llmbroker_ratings r WHERE r.call_id = c.id ORDER BY r.ts DESC, r.seq DESC LIMIT 1"
_SELECT = f"SELECT {', '.join('c.' + name for name in COLUMNS)}, (SELECT r.score {_NEWEST}), (SELECT r.ts {_NEWEST})"
# What a provider may have charged for: it answered, or was at work when the attempt ended (the same as ``records.worked``).
_WORKED = (
    "(c.status IN ('ok', 'timeout', 'cancelled', 'superseded') OR c.http_status BETWEEN 200 AND 299"
    " OR c.output_tokens IS NOT NULL OR c.total_tokens IS NOT NULL)"
)
_DAY = 86_400_000_000
_TOKENS = COLUMNS[21:27]


def where(query: Query, p: str) -> tuple[str, list[Any]]:
    """Return the condition and its parameters."""
    parts: list[str] = []
    values: list[Any] = []

    def add(text: str, *given: Any) -> None:
        parts.append(text)
        values.extend(given)

    if query.since is not None:
        add(f"c.seq >= {p}", seq_from(to_micros(query.since)))
    if query.until is not None:
        add(f"c.seq < {p}", seq_from(to_micros(query.until)))
    if query.call_id is not None:
        add(f"c.id = {p}", query.call_id)
    if query.group_id is not None:
        # A group bears the id of its first attempt; only the others are in the index of groups.
        add(f"(c.id = {p} OR (c.group_id = {p} AND c.attempt > 1))", query.group_id, query.group_id)
    for name in ("operation", "trace_id", "scope", "provider"):
        value = getattr(query, name)
        if value is not None:
            add(f"c.{name} = {p}", value)
    for name in ("status", "llm_name"):
        value = getattr(query, name)
        if value is not None:
            several = (value,) if isinstance(value, str) else tuple(value)
            add(f"c.{name} IN ({', '.join([p] * len(several)) or 'NULL'})", *several)
    return " AND ".join(parts) or "1 = 1", values


def page(query: Query, limit: int, cursor: str | None, bodies: bool, p: str) -> tuple[str, list[Any]]:
    """Return the statement for one page of calls, the newest first.

    Raises:
        InvalidRequestError: the cursor is none that a row gave.
    """
    condition, values = where(query, p)
    if cursor is not None:
        try:
            place = int(cursor)
            if abs(place) >= 2**63:
                raise ValueError
        except (ValueError, TypeError, OverflowError):
            raise InvalidRequestError(
                f"{shown(cursor)} is no cursor; take the cursor of the last row of the page before.", argument="cursor"
            ) from None
        values.append(place)
        condition += f" AND c.seq < {p}"
    more = ", b.request, b.response" if bodies else ""
    join = " LEFT JOIN llmbroker_bodies b ON b.call_id = c.id" if bodies else ""
    order = f"ORDER BY c.seq DESC LIMIT {p}"
    return f"{_SELECT}{more} FROM llmbroker_calls c{join} WHERE {condition} {order}", [*values, limit]


def found(scope: str | None, call_id: str | None, trace_id: str | None, p: str) -> tuple[str, list[Any]]:
    """Return the statement for the call that a rating means."""
    query = Query(scope=scope, call_id=call_id, trace_id=trace_id, status="ok" if call_id is None else None)
    return page(query, 1, None, False, p)


def group_key(by: str, text_of: str) -> str:
    """Return the expression that a row is grouped by, as text.

    Raises:
        InvalidRequestError: there is no such grouping.
    """
    if by not in GROUPINGS:
        raise InvalidRequestError(f"No grouping by {shown(by)}; there are {', '.join(GROUPINGS)}.", argument="by")
    if by == "all":
        return "'all'"
    if by == "day":
        return text_of.format(f"c.ts / {_DAY}")
    return f"coalesce(c.{by}, '')"


def sums(query: Query, key: str, p: str) -> tuple[str, list[Any]]:
    """Return the statement that counts and adds by group."""
    condition, values = where(query, p)
    tokens = ", ".join(f"sum(c.{name})" for name in _TOKENS)
    unmeasured = "c.total_tokens IS NULL AND c.output_tokens IS NULL AND c.input_tokens IS NULL"
    return (
        f"SELECT {key}, c.status, count(*), {tokens}, sum(CASE WHEN {unmeasured} AND {_WORKED} THEN 1 ELSE 0 END), sum(c.cost),"  # noqa: S608 - names of this file
        f" sum(CASE WHEN c.cost IS NULL AND {_WORKED} THEN 1 ELSE 0 END), min(c.ts), max(c.ts)"
        f" FROM llmbroker_calls c WHERE {condition} GROUP BY 1, 2",
        values,
    )


def quantiles(query: Query, key: str, column: str, p: str) -> tuple[str, list[Any]]:
    """Return the statement for the nearest-rank quantiles of a column by group, over the attempts that ended ok."""
    condition, values = where(query, p)
    picks = ", ".join(f"max(CASE WHEN place = (total * {percent} + 99) / 100 THEN value END)" for percent in (50, 95, 99))
    return (
        f"SELECT k, {picks} FROM (SELECT {key} AS k, c.{column} AS value, row_number() OVER (PARTITION BY {key}"  # noqa: S608 - names of this file
        f" ORDER BY c.{column}) AS place, count(*) OVER (PARTITION BY {key}) AS total FROM llmbroker_calls c"
        f" WHERE c.status = 'ok' AND c.{column} IS NOT NULL AND {condition}) AS ranked GROUP BY k",
        values,
    )


def quality(query: Query, key: str, p: str) -> tuple[str, list[Any]]:
    """Return the statement for the number and mean of the newest ratings by group."""
    condition, values = where(query, p)
    return (
        f"SELECT {key}, count(*), avg(n.score) FROM llmbroker_calls c JOIN (SELECT r.call_id, r.score, row_number() OVER"  # noqa: S608 - names of this file
        f" (PARTITION BY r.call_id ORDER BY r.ts DESC, r.seq DESC) AS place FROM llmbroker_ratings r) AS n"
        f" ON n.call_id = c.id AND n.place = 1 WHERE {condition} GROUP BY 1",
        values,
    )


def day_name(key: str) -> str:
    """Return the date of a day's number since 1970."""
    try:
        return from_micros(int(key) * _DAY).date().isoformat()
    except ValueError as error:
        raise damaged(key, "day") from error


def assemble(
    by: str,
    counted: Sequence[Sequence[Any]],
    latencies: Sequence[Sequence[Any]],
    firsts: Sequence[Sequence[Any]],
    rated: Sequence[Sequence[Any]],
) -> dict[str, Stats]:
    """Return the sums by group out of the rows of the four statements, the groups in order of their names.

    Raises:
        StoreError: a row is damaged.
    """
    slow = {row[0]: _quantiles(row) for row in latencies}
    first = {row[0]: _quantiles(row) for row in firsts}
    marks = {row[0]: (row[1], row[2]) for row in rated}
    groups: dict[str, list[Sequence[Any]]] = {}
    for row in counted:
        if not isinstance(row[0], str):
            raise damaged(row[0], f"text for {by}")
        groups.setdefault(row[0], []).append(row)
    out: dict[str, Stats] = {}
    for key in sorted(groups):
        rows = groups[key]
        last = max(rows, key=lambda row: from_micros(row[13]))
        count, mean = marks.get(key, (0, None))
        out[day_name(key) if by == "day" else key] = Stats(
            total=sum(row[2] for row in rows),
            by_status={row[1]: row[2] for row in sorted(rows, key=lambda row: str(row[1]))},
            usage=Usage(*(_added([row[3 + index] for row in rows]) for index in range(6))),
            unmeasured=sum(row[9] for row in rows),
            cost=_added([row[10] for row in rows]),
            unpriced=sum(row[11] for row in rows),
            latency=slow.get(key, Quantiles()),
            first_event=first.get(key, Quantiles()),
            rated=count,
            quality=mean,
            first_at=min(from_micros(row[12]) for row in rows),
            last_at=from_micros(last[13]),
            last_status=last[1],
        )
    return out


def _quantiles(row: Sequence[Any]) -> Quantiles:
    for value in row[1:4]:
        if value is not None and not isinstance(value, (int, float)):
            raise damaged(value, "number of milliseconds")
    return Quantiles(*row[1:4])


def _added(values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
