"""``llmbroker replay``: the journal played against other policies; no model is called."""

from __future__ import annotations

import argparse

from llmbroker.errors import InvalidRequestError
from llmbroker.faces.cli.journal import moment
from llmbroker.faces.cli.output import note, print_json, print_table

HELP = {
    "replay": "Play the journal against other policies: would one model, the cheapest, a lot have served you as well?\n"
    "No model is called. Figures are a request's, with 95 % intervals.\n\n"
    "  llmbroker replay\n"
    "  llmbroker replay broker.db --since 30d --operation summarise\n"
    "  llmbroker replay --policies ours,best-fixed,house --plot replay.svg"
}


def replay_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("source", nargs="?", metavar="SOURCE", help="a database; else the journal in llmbroker's own folder")
    parser.add_argument("--since", metavar="WHEN", help="30m, 2h, 7d ago, or a date or time (2026-05-01)")
    parser.add_argument("-o", "--operation", metavar="NAME", help="only this one")
    parser.add_argument(
        "--policies",
        metavar="NAMES",
        help="of ours, best-fixed, cheapest, fastest, random, recorded, and names of models (a,b)",
    )
    parser.add_argument("--budget", type=float, default=60.0, metavar="SECONDS", help="what a request may take (60)")
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="how often the broker is played (so that 12,000 calls come about)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all dice (0): the same gives the same")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--plot", metavar="FILE", help="draw it (.svg, .png, .pdf); needs llmbroker[plot]")


def replay(arguments: argparse.Namespace) -> int:
    """Play and print."""
    from llmbroker.replaying import POLICIES
    from llmbroker.replaying import replay as play
    from llmbroker.replaying import result as words

    names = POLICIES
    if arguments.policies is not None:
        names = tuple(part.strip() for part in arguments.policies.split(",") if part.strip())
        if not names:
            raise InvalidRequestError("--policies names none.", argument="--policies")
    found = play(
        arguments.source,
        since=moment(arguments.since),
        operation=arguments.operation,
        policies=names,
        budget=arguments.budget,
        seeds=arguments.seeds,
        seed=arguments.seed,
    )
    if arguments.plot:
        found.plot(arguments.plot)
        note(f"Drawn into {arguments.plot}.")
    if arguments.json:
        print_json(found)
        return 0
    print(words.head(found))
    against = words.differences(found)
    if found.policies:
        print()
        print_table(words.HEAD, words.table(found), right=words.HEAD[1:])
    if against:
        print(f"\nMore than always {found.best}:")
        print_table(words.DIFFERENCES, against, right=words.DIFFERENCES[1:])
    if found.models:
        print()
        print_table(words.MODELS, words.model_rows(found), right=words.MODELS[1:6])
    print(f"\n{found.reason}")
    for text in found.notes:
        print(f"- {text}")
    return 0
