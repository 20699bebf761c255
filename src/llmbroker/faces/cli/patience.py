"""A word to the person who waits: after some seconds in which nobody of the pool is at work, who is missed, why, until when."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from llmbroker.faces.cli.output import note

AFTER = 5.0
"""Seconds until something is said."""


@contextlib.contextmanager
def patience(caller: Any, after: float = AFTER) -> Iterator[None]:
    """Say on stderr, once, what a call waits for; say nothing while a model is at work, or where there is no pool."""
    if not hasattr(caller, "snapshot"):
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(caller, over, after), name="llmbroker-patience", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(1.0)


def _watch(caller: Any, over: threading.Event, after: float) -> None:
    while not over.wait(after):
        text = waiting(caller.snapshot())
        if text is not None and not over.is_set():
            note(text)
            return


def waiting(snapshot: Any) -> str | None:
    """Return whom the pool waits for, or None where somebody is at work or could be."""
    models = [state for state in snapshot.models.values() if state.reason not in ("no_key", "disabled")]
    if not models or any(state.running or state.available for state in models):
        return None
    lines = ["llmbroker: waiting, since no model can be asked now (Ctrl-C stops; --timeout SECONDS bounds it):"]
    for state in models:
        until = f", asked again at {state.until.astimezone():%H:%M:%S}" if state.until is not None else ""
        lines.append(f"  {state.name}: {(state.reason or '').replace('_', ' ')}{until}")
    return "\n".join(lines)
