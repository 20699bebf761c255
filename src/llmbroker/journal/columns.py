"""Between a ``Call`` and a row of the table: the order of the columns, and the two ways across. Shared by the SQL stores.

``seq``, the primary key, is the microsecond at which the call began, times 1,024, plus ten bits that keep rows of one
microsecond apart. So the table itself lies in the order of time and needs no index for it: a tenth of the price of a row.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Sequence
from operator import itemgetter
from types import NoneType
from typing import Any

from llmbroker.errors import StoreError
from llmbroker.exchange import Usage
from llmbroker.journal.records import EPOCH, Call, damaged, from_micros

COLUMNS = (
    "seq", "id", "ts", "llm_name", "status", "group_id", "attempt", "retry_of", "scope", "operation", "trace_id", "provider",
    "dialect", "model", "model_answered", "stream", "step", "http_status", "error_class", "error_detail", "finish_reason",
    "input_tokens", "output_tokens", "cached_input_tokens", "cache_write_tokens", "reasoning_tokens", "total_tokens",
    "first_event_ms", "latency_ms", "cost", "currency", "key_source",
)  # fmt: skip
_READ = (*COLUMNS, "score")
_COUNTED = (6, 15, 16, 17, *range(21, 30), 32)
_WORDS = (1, 3, 4, 5, *range(7, 15), *range(18, 21), 30, 31)
_counts, _words = itemgetter(*_COUNTED), itemgetter(*_WORDS)
_NUMBERS = frozenset((int, float, bool, NoneType))
_TEXTS = frozenset((str, NoneType))
_NO_USAGE = Usage()
_LOW = 10
_LAST = 2**63 - 1
_REMEMBERED = 64
_counter = itertools.count(int.from_bytes(os.urandom(2), "big"))
_lately: dict[int, int] = {}
"""The last key of each microsecond in which rows of this process began, of the latest few: what comes later lies behind it."""


def _next_seq(micros: int) -> int:
    """Return a key of that microsecond, greater than those that this process gave before.

    Threads may take the same one now and then; then the second row finds its place taken and asks again.
    """
    last = _lately.get(micros)
    if last is not None:
        seq = last + 1
    else:
        seq = (micros << _LOW) + (next(_counter) & 511)
        if len(_lately) >= _REMEMBERED:
            for oldest in list(_lately)[: _REMEMBERED // 2]:
                _lately.pop(oldest, None)
    _lately[micros] = seq
    return seq


def seq_from(micros: int) -> int:
    """Return the smallest key of that microsecond."""
    return min(micros << _LOW, _LAST)


def another_seq(seq: int, tries: int) -> int:
    """Return a key near one that is taken, further away the more often that happened."""
    return min(seq + 1 + random.getrandbits(min(tries, 16)), _LAST)


def to_row(call: Call) -> tuple[Any, ...]:
    """Return the values of a call in the order of ``COLUMNS``."""
    since = call.ts - EPOCH
    micros = (since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds
    usage = call.usage or _NO_USAGE
    return (
        _next_seq(micros),
        call.id,
        micros,
        call.llm_name,
        call.status,
        call.group_id,
        call.attempt,
        call.retry_of,
        call.scope,
        call.operation,
        call.trace_id,
        call.provider,
        call.dialect,
        call.model,
        call.model_answered,
        call.stream,
        call.step,
        call.http_status,
        call.error_class,
        call.error_detail,
        call.finish_reason,
        usage.input_tokens,
        usage.output_tokens,
        usage.cached_input_tokens,
        usage.cache_write_tokens,
        usage.reasoning_tokens,
        usage.total_tokens,
        call.first_event_ms,
        call.latency_ms,
        call.cost,
        call.currency,
        call.key_source,
    )


def from_row(row: Sequence[Any]) -> Call:
    """Return the call of a row: the ``COLUMNS``, score, score_ts and, where they were asked for, request and response.

    Raises:
        StoreError: the row is damaged; SQLite keeps a text where a number belongs.
    """
    if not (_NUMBERS.issuperset(map(type, _counts(row))) and _TEXTS.issuperset(map(type, _words(row)))):
        raise _damaged(row)
    score, score_ts = row[32], row[33]
    tokens = row[21:27]
    return Call(
        id=row[1],
        ts=from_micros(row[2]),
        llm_name=row[3],
        status=row[4],
        group_id=row[5],
        attempt=row[6],
        retry_of=row[7],
        scope=row[8],
        operation=row[9],
        trace_id=row[10],
        provider=row[11],
        dialect=row[12],
        model=row[13],
        model_answered=row[14],
        stream=bool(row[15]),
        step=row[16],
        http_status=row[17],
        error_class=row[18],
        error_detail=row[19],
        finish_reason=row[20],
        usage=Usage(*tokens) if any(n is not None for n in tokens) else None,
        first_event_ms=row[27],
        latency_ms=row[28],
        cost=row[29],
        currency=row[30],
        key_source=row[31],
        score=score,
        score_ts=None if score_ts is None else from_micros(score_ts),
        request=row[34] if len(row) > 34 else None,
        response=row[35] if len(row) > 35 else None,
        cursor=str(row[0]),
    )


def _damaged(row: Sequence[Any]) -> StoreError:
    kinds = [*((place, _NUMBERS, "number") for place in _COUNTED), *((place, _TEXTS, "text") for place in _WORDS)]
    place, what = next((place, what) for place, kinds_of, what in kinds if type(row[place]) not in kinds_of)
    return damaged(row[place], f"{what} for {_READ[place]}")
