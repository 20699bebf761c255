"""``llmbroker worker`` and ``submit``: durable runs over many machines, through a queue that the user's module declares."""

from __future__ import annotations

import argparse
import signal
import sys

from llmbroker.durable import Queue
from llmbroker.errors import InvalidRequestError
from llmbroker.faces.cli.named import named
from llmbroker.faces.cli.output import note
from llmbroker.loop import Paused

HELP = {
    "worker": "Take runs from a queue and work on them until Ctrl-C; start as many as you like, anywhere.\n\n"
    "  llmbroker worker agents:queue      where agents.py says: queue = llmbroker.durable.Queue('postgresql://...')",
    "submit": "Put a run into a queue and wait for its answer.\n\n"
    "  llmbroker submit agents:queue weather 'How warm is it in Paris?'",
}


def worker_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("queue", metavar="MODULE:NAME", help="the queue; modules of the working directory are found")


def submit_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("queue", metavar="MODULE:NAME", help="the queue; modules of the working directory are found")
    parser.add_argument("agent", help="which of its agents")
    parser.add_argument("question", help="what is asked; - reads stdin")
    parser.add_argument("--run-id", metavar="NAME", help="the run's name; one that is there already is not run again")
    parser.add_argument("--no-wait", action="store_true", help="print the run's name and leave")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help="how long to wait; the run goes on")


def worker(arguments: argparse.Namespace) -> int:
    """Work until a signal comes."""
    queue = _queue(arguments.queue)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: queue.stop())
    note(f"Working on {arguments.queue}; Ctrl-C ends it, and other workers take over what is left.")
    queue.work()
    return 0


def submit(arguments: argparse.Namespace) -> int:
    """Submit a run and print its answer."""
    queue = _queue(arguments.queue)
    question = sys.stdin.read() if arguments.question == "-" else arguments.question
    try:
        run_id = queue.submit(arguments.agent, question, run_id=arguments.run_id)
        if arguments.no_wait:
            print(run_id)
            return 0
        reply = queue.result(run_id, timeout=arguments.timeout)
    finally:
        queue.close()
    if isinstance(reply, Paused):
        note(f"The run {run_id} waits for decisions about {len(reply.pending)} calls.")
        print(reply.to_json())
        return 0
    print(reply.text)
    return 0


def _queue(name: str) -> Queue:
    found = named(name, what="queue", argument="queue")
    if not isinstance(found, Queue):
        raise InvalidRequestError(f"{name!r} is no Queue but {type(found).__name__}.", argument="queue")
    return found
