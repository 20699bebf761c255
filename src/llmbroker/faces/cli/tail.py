"""``llmbroker calls --tail``: new rows as they are written, until Ctrl-C.

A row stands where its attempt began and is written when it ended: a slow one appears behind rows that are newer. So each look
reads back as far as an attempt may last, and shows what was not shown before.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from llmbroker.faces.cli.output import UNKNOWN
from llmbroker.faces.cli.rows import COLUMNS, RIGHT, cells, opened
from llmbroker.journal import Call, Journal, pages

EVERY = 0.5
"""Seconds between two looks."""
LONGEST = timedelta(minutes=11)
"""So long after its beginning an attempt may still be written: a call ends after 10 minutes."""
MOST_PAGES = 10
WIDTHS = (19, 24, 12, 7, 7, 10, 8, 8, 16, 0)


def follow(arguments: argparse.Namespace, filters: dict[str, Any]) -> int:
    """Print the last rows, then new ones."""
    shown: dict[str, datetime] = {}
    if not arguments.json:
        _print(COLUMNS)
    try:
        first = True
        while True:
            with opened(arguments.source) as journal:  # in llmbroker's own folder there may be none yet
                while journal is not None:
                    for row in _new(journal, filters, shown, arguments.limit if first else None):
                        if arguments.json:
                            print(msgspec.json.encode(row).decode(), flush=True)
                        else:
                            _print(cells(row))
                    first = False
                    time.sleep(EVERY)
            first = False
            time.sleep(EVERY)
    except KeyboardInterrupt:
        return 0


def _new(journal: Journal, filters: dict[str, Any], shown: dict[str, datetime], last: int | None) -> Iterator[Call]:
    """Yield rows that were not shown yet, the oldest first; ``last``: so many of those that are there already."""
    since = datetime.now(UTC) - LONGEST
    wanted = {**filters, "since": max(since, filters.get("since", since))}
    rows = [row for row in pages(journal, MOST_PAGES, **wanted) if row.id not in shown]
    if last is not None:
        shown.update((row.id, row.ts) for row in rows)  # those that are there already and are more than the last
        rows = journal.calls(limit=last, **filters)
    for row in reversed(rows):
        shown[row.id] = row.ts
        yield row
    for name in [name for name, ts in shown.items() if ts < since]:
        del shown[name]


def _print(values: tuple[Any, ...]) -> None:
    texts = [UNKNOWN if value in (None, "") else str(value) for value in values]
    padded = [
        text.rjust(width) if name in RIGHT else text.ljust(width)
        for text, width, name in zip(texts, WIDTHS, COLUMNS, strict=True)
    ]
    print("  ".join(padded).rstrip(), flush=True)
