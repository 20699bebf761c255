"""``llmbroker limits``: what may be spent, how much of it is, and when it begins anew."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from llmbroker.faces.cli.output import local_time, note, print_json, print_table

HELP = {
    "limits": "How each limit stands: used, held by calls under way, left, and when it begins anew.\n"
    "Limits stand in the model list ([[limits]]) or in the database that took it in.",
}


def limits_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--source", metavar="PATH", help="a model list (models.toml) or a database (broker.db)")
    parser.add_argument("--scope", metavar="USER", help="as this user sees it")
    parser.add_argument("--json", action="store_true", help="print JSON")


def limits(arguments: argparse.Namespace) -> int:
    """Print the limits."""
    from llmbroker.broker import Broker

    with Broker(arguments.source) as broker:
        now = (broker.for_scope(arguments.scope) if arguments.scope else broker).snapshot()
    if arguments.json:
        print_json(now.limits)
        return 0
    columns = ("limit", "whose", "used", "held", "left", "of", "of what", "begins anew")
    rows = [row for state in now.limits for row in _rows(state)]
    print_table(
        columns, rows, right=columns[2:6], empty="There are no limits. Write [[limits]] rows into the model list of --source."
    )
    for line in now.notes:
        note(line)
    unpriced = sum(state.unpriced for state in now.limits)
    if unpriced:
        note(f"{unpriced} attempts had no known price; they count as their limit says (unknown_price).")
    return 0


def _rows(state: Any) -> Iterator[tuple[Any, ...]]:
    whose = ", ".join(part for part in (state.scope, state.key, state.operation) if part)
    resets = local_time(state.resets_at) if state.resets_at is not None else "never"
    for measure, most in state.most.items():
        amounts = (state.used[measure], state.reserved[measure], state.left[measure], most)
        yield state.name, whose, *(_shown(measure, amount) for amount in amounts), measure, resets


def _shown(measure: str, amount: float) -> str:
    from llmbroker.allowances import dollars

    return dollars(amount) if measure == "cost" else f"{amount:,.0f}"
