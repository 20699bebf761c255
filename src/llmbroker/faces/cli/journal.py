"""``llmbroker calls`` and ``llmbroker stats``: the journal, read without a broker."""

from __future__ import annotations

import argparse
import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from llmbroker.errors import InvalidRequestError
from llmbroker.faces.cli.output import counts, local_time, money, note, print_json, print_table, seconds
from llmbroker.faces.cli.rows import COLUMNS, RIGHT, cells, opened
from llmbroker.journal.records import GROUPINGS, STATUSES

HELP = {
    "calls": "What was called, one row an attempt, the newest first.\n\n"
    "  llmbroker calls -n 5\n"
    "  llmbroker calls --since 2h --status error,timeout\n"
    "  llmbroker calls --tail\n"
    "  llmbroker calls show ID\n"
    "  llmbroker calls --json",
    "stats": "Counts, tokens, cost, latency and quality, by model or by what --by says.",
}


# -- options -------------------------------------------------------------------------------------------------------------


def _filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--source", "--db", metavar="PATH", help="a database; else the journal in llmbroker's own folder")
    parser.add_argument("-m", "--model", metavar="NAME", help="only this model (several: a,b)")
    parser.add_argument("--status", metavar="WORD", help=f"only these: {', '.join(STATUSES)}")
    parser.add_argument("-o", "--operation", metavar="NAME")
    parser.add_argument("--trace", metavar="ID")
    parser.add_argument("--scope", metavar="USER")
    parser.add_argument("--since", metavar="WHEN", help="30m, 2h, 7d ago, or a date or time (2026-05-01)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def calls_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("what", nargs="*", metavar="show ID", help="show one call whole")
    parser.add_argument("-n", "--limit", type=int, default=20, metavar="N", help="so many rows (20)")
    parser.add_argument(
        "--tail", action="store_true", help="follow new rows until Ctrl-C, the newest last; with --json a line each"
    )
    parser.add_argument("--cursor", metavar="CURSOR", help="go on after the row with this cursor")
    _filters(parser)


def stats_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--by", choices=GROUPINGS, default="llm_name", help="one line for each of these (llm_name)")
    _filters(parser)


def chosen(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the filters that were given."""
    found = {
        "llm_name": _several(arguments.model),
        "status": _statuses(arguments.status),
        "operation": arguments.operation,
        "trace_id": arguments.trace,
        "scope": arguments.scope,
        "since": moment(arguments.since),
    }
    return {name: value for name, value in found.items() if value is not None}


def _several(text: str | None) -> tuple[str, ...] | None:
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text else None


def _statuses(text: str | None) -> tuple[str, ...] | None:
    words = _several(text)
    unknown = [word for word in words or () if word not in STATUSES]
    if unknown:
        raise InvalidRequestError(f"There is no status {unknown[0]!r}; known: {', '.join(STATUSES)}.", argument="--status")
    return words


_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def moment(text: str | None) -> datetime | None:
    """Return a time: so long ago (``2h``), or a date or time in the reader's zone.

    Raises:
        InvalidRequestError: it is neither.
    """
    if not text:
        return None
    ago = re.fullmatch(r"(\d+)([smhdw])", text.strip())
    if ago:
        return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except ValueError:
        raise InvalidRequestError(
            f"{text!r} is no time: write 30m, 2h, 7d, or 2026-05-01, or 2026-05-01T12:00.", argument="--since"
        ) from None


# -- commands ------------------------------------------------------------------------------------------------------------


def calls(arguments: argparse.Namespace) -> int:
    """Print rows, or one row whole."""
    if arguments.what:
        if arguments.what[0] != "show" or len(arguments.what) != 2:
            raise InvalidRequestError("Write: llmbroker calls, or: llmbroker calls show ID.", argument="show")
        return _show(arguments.what[1], arguments)
    filters = chosen(arguments)
    if arguments.tail:
        from llmbroker.faces.cli.tail import follow

        return follow(arguments, filters)
    with opened(arguments.source) as journal:
        rows = journal.calls(limit=arguments.limit, cursor=arguments.cursor, **filters) if journal is not None else []
    if arguments.json:
        print_json(rows)
        return 0
    print_table(COLUMNS, [cells(row) for row in rows], right=RIGHT, empty="There are no such calls in the journal.")
    if len(rows) == arguments.limit and rows[-1].cursor and sys.stdout.isatty():
        note(f"Older ones: --cursor {rows[-1].cursor}")
    return 0


def _show(call_id: str, arguments: argparse.Namespace) -> int:
    from llmbroker.errors import UnknownCallError

    with opened(arguments.source) as journal:
        rows = journal.calls(limit=1, call_id=call_id, bodies=True) if journal is not None else []
    if not rows:
        raise UnknownCallError(f"The journal has no call with the id {call_id!r}.")
    row = rows[0]
    if arguments.json:
        print_json(row)
        return 0
    shown = {name: getattr(row, name) for name in row.__struct_fields__ if name not in ("usage", "cursor")}
    shown["usage"] = ", ".join(f"{name} {count}" for name, count in counts(row.usage).items()) if row.usage else None
    shown["cost"] = money(row.cost, row.currency)
    shown["request"] = row.request or "not stored: the journal keeps no bodies unless asked to"
    shown["response"] = row.response or "not stored"
    width = max(map(len, shown))
    for name, value in shown.items():
        if value is not None:
            print(f"{name:<{width}}  {local_time(value) if isinstance(value, datetime) else value}")
    return 0


def stats(arguments: argparse.Namespace) -> int:
    """Print sums."""
    filters = chosen(arguments)
    with opened(arguments.source) as journal:
        groups = journal.stats(by=arguments.by, **filters) if journal is not None else {}
    if arguments.json:
        print_json(groups)
        return 0
    columns = (arguments.by, "calls", "ok", "in", "out", "cost", "unpriced", "p50", "p95", "first p50", "quality")
    table = [
        (
            name, group.total, group.by_status.get("ok", 0), group.usage.input_tokens, group.usage.output_tokens,
            None if group.cost is None else f"{group.cost:.6f}", group.unpriced, seconds(group.latency.p50),
            seconds(group.latency.p95), seconds(group.first_event.p50),
            None if group.quality is None else f"{group.quality:.2f}",
        )
        for name, group in groups.items()
    ]  # fmt: skip
    print_table(columns, table, right=columns[1:], empty="There are no such calls in the journal.")
    return 0
