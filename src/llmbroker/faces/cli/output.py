"""What a command prints: tables for people, JSON for programs. No escape byte leaves unless stdout is a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

UNKNOWN = "-"


def is_terminal() -> bool:
    """Whether stdout is a terminal that takes colours and widths."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def print_json(value: Any) -> None:
    """Print a value as indented JSON; times in ISO 8601, what JSON has no form for as text."""
    print(msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode())


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, right: Sequence[str] = (), empty: str = "") -> None:
    """Print rows: by rich on a terminal, else as plain aligned columns that are never cut.

    Args:
        columns: the headings.
        rows: cells of any type; None is shown as a dash.
        right: headings of the columns whose cells stand to the right.
        empty: what to say (on stderr) if there are no rows.
    """
    if not rows:
        if empty:
            print(empty, file=sys.stderr)
        return
    cells = [[UNKNOWN if cell is None or cell == "" else str(cell) for cell in row] for row in rows]
    if is_terminal():
        _rich_table(columns, cells, right)
        return
    widths = [max(len(row[at]) for row in [list(columns), *cells]) for at in range(len(columns))]
    for row in [list(columns), *cells]:
        padded = [
            cell.rjust(width) if heading in right else cell.ljust(width)
            for cell, width, heading in zip(row, widths, columns, strict=True)
        ]
        print("  ".join(padded).rstrip())


def _rich_table(columns: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[str]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in columns:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    Console(highlight=False).print(table)


def note(text: str) -> None:
    """Say something to the person, beside the answer."""
    print(text, file=sys.stderr, flush=True)


def local_time(moment: datetime | None) -> str | None:
    """Return a time in the reader's zone, to the second."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S") if moment is not None else None


def seconds(milliseconds: float | None) -> str | None:
    """Return milliseconds as seconds."""
    return f"{milliseconds / 1000:.2f} s" if milliseconds is not None else None


def money(cost: float | None, currency: str | None = "USD") -> str:
    """Return a cost, or that it is unknown."""
    return "unknown" if cost is None else f"{cost:.6f} {currency or 'USD'}"


def usage_line(usage: Any) -> str:
    """Return token counts in words; what the provider did not say is unknown."""
    if usage is None:
        return "tokens: unknown"
    shown = [f"{name} {'unknown' if count is None else count}" for name, count in counts(usage).items()]
    return "tokens: " + ", ".join(shown)


def counts(usage: Any) -> Mapping[str, int | None]:
    """Return input and output, and of the rest what is known."""
    known: dict[str, int | None] = {"in": usage.input_tokens, "out": usage.output_tokens}
    for name, field in (("cached", "cached_input_tokens"), ("reasoning", "reasoning_tokens")):
        value = getattr(usage, field)
        if value:
            known[name] = value
    return known
