"""Rows of the journal as the commands read and show them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llmbroker.faces.cli.output import local_time, seconds
from llmbroker.journal import Journal, open_existing

COLUMNS = ("time", "model", "status", "in", "out", "cost", "first", "total", "operation", "id")
RIGHT = ("in", "out", "cost", "first", "total")


@contextmanager
def opened(source: str | None) -> Iterator[Journal | None]:
    """Give the journal, or None where nothing was ever written."""
    journal = open_existing(source)
    if journal is None:
        yield None
        return
    try:
        yield journal
    finally:
        journal.close()


def cells(row: Any) -> tuple[Any, ...]:
    """Return what is shown of a row, in the order of ``COLUMNS``."""
    tokens = (row.usage.input_tokens, row.usage.output_tokens) if row.usage is not None else (None, None)
    cost = "unknown" if row.cost is None else f"{row.cost:.6f}"
    return (
        local_time(row.ts), row.llm_name, row.status, *tokens, cost, seconds(row.first_event_ms), seconds(row.latency_ms),
        row.operation, row.id,
    )  # fmt: skip
