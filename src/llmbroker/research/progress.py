"""The progress of a run on the terminal: rows, spend, rate, failures. Loaded only where it is shown."""

from __future__ import annotations

import sys
from typing import Any

EVERY = 0.1
"""Seconds between two looks at the screen."""


class Silent:
    """No progress bar."""

    def begin(self, total: int, done: int) -> None:
        """Take note of the number of rows, and of those that were done before."""

    def update(self, now: float, facts: dict[str, Any], *, force: bool = False) -> None:
        """Show how far it is."""

    def end(self) -> None:
        """Leave the screen in order."""


class Bar(Silent):
    """A bar of rich on standard error."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[facts]}"), TimeRemainingColumn(),
            console=Console(file=sys.stderr), auto_refresh=False, transient=False,
        )  # fmt: skip
        self._task: Any = None
        self._next = 0.0
        self._began: float | None = None
        self._before = 0

    def begin(self, total: int, done: int) -> None:
        """Draw the bar."""
        self._before = done
        self._progress.start()
        self._task = self._progress.add_task("rows", total=total, completed=done, facts="")

    def update(self, now: float, facts: dict[str, Any], *, force: bool = False) -> None:
        """Redraw, ten times a second at most."""
        if self._began is None:
            self._began = now
        if now < self._next and not force:
            return
        self._next = now + EVERY
        self._progress.update(self._task, completed=facts["done"], facts=words(facts, self._before, now - self._began))
        self._progress.refresh()

    def end(self) -> None:
        """Leave the bar where it is."""
        self._progress.stop()


def words(facts: dict[str, Any], before: int, seconds: float) -> str:
    """Return spend, rate and failures in words."""
    rate = (facts["done"] - before) / seconds if seconds > 0 else 0.0
    spend = f"${facts['spent']:.4f}" if facts["spent"] else "$0"
    if facts["unpriced"]:
        spend += " + unpriced"
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(facts["failed"].items()))
    return f"{spend} | {rate:.1f} rows/s | {facts['running']} at once | {kinds or 'no failures'}"


def shown(progress: bool | None) -> Silent:
    """Return the bar that was asked for; None: one where standard error is a terminal."""
    wanted = (sys.stderr is not None and sys.stderr.isatty()) if progress is None else progress
    return Bar() if wanted else Silent()
