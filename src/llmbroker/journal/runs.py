"""Runs that survive, in the journal's SQLite file: a row for each run, and a row for everything that must not happen twice.

A run belongs to one owner at a time. Every write looks whether it still does, in the same transaction, so that a process that
was given up for dead cannot write into a run that another one has taken over.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from llmbroker.errors import RunBusyError, RunLostError
from llmbroker.journal.records import new_id
from llmbroker.journal.sqlite import SQLiteStore, _in_transaction

T = TypeVar("T")
_ROW = "SELECT id, status, began, changed, owner, result FROM llmbroker_runs"


class RunRow(msgspec.Struct, frozen=True):
    """A run as it stands in the store. Times are seconds since 1970.

    ``status``: ``running``, ``paused`` (it waits for decisions), ``failed`` (it ended with an error and can be run again) or
    ``done``.
    """

    id: str
    status: str
    began: float
    changed: float
    owner: str
    result: bytes | None = None


class Note(msgspec.Struct, frozen=True):
    """One thing that was written down: ``messages``, ``started`` or ``result``."""

    seq: int
    kind: str
    call_id: str
    value: bytes


class RunStore:
    """The runs of one journal file.

    Args:
        store: the journal's store.
        lease: seconds after its last sign of life for which a run is not taken from an owner on another machine; an owner on
            this machine is looked up among the processes instead.
    """

    def __init__(self, store: SQLiteStore, lease: float = 600.0) -> None:
        self.store = store
        self.lease = lease

    def claim(self, run_id: str, now: float) -> tuple[str, RunRow, list[Note]]:
        """Begin a run or take it over; return the new owner's mark, the row and what was written down.

        Raises:
            RunBusyError: somebody else is at work with it.
            StoreError: the file cannot be used.
        """
        owner = f"{_host()}:{os.getpid()}:{new_id()}"

        def work(db: Any) -> tuple[str, RunRow, list[Note]]:
            found = db.execute(_ROW + " WHERE id = ?", (run_id,)).fetchone()
            if found is None:
                row = RunRow(run_id, "running", now, now, owner)
                db.execute("INSERT INTO llmbroker_runs VALUES (?, ?, ?, ?, ?, ?)", msgspec.structs.astuple(row))
                return owner, row, []
            row = RunRow(*found)
            if row.status == "running" and self._alive(row, now):
                raise RunBusyError(
                    f"The run {run_id!r} is at work already ({row.owner.rsplit(':', 1)[0]}).",
                    hint="Wait for it, or end that process.",
                )
            if row.status != "done":
                db.execute(
                    "UPDATE llmbroker_runs SET owner = ?, status = 'running', changed = ? WHERE id = ?", (owner, now, run_id)
                )
            notes = db.execute(
                "SELECT seq, kind, call_id, value FROM llmbroker_run_notes WHERE run_id = ? ORDER BY seq", (run_id,)
            )
            return owner, row, [Note(*note) for note in notes]

        return self._work(work)

    def _alive(self, row: RunRow, now: float) -> bool:
        host, _, rest = row.owner.partition(":")
        pid = rest.partition(":")[0]
        if host == _host() and pid.isdigit():
            if int(pid) == os.getpid():
                return True
            try:
                os.kill(int(pid), 0)
            except ProcessLookupError:
                return False
            except OSError:
                pass
        return now - row.changed < self.lease

    def write(self, run_id: str, owner: str, now: float, notes: Sequence[Note]) -> None:
        """Write notes; committed when it returns.

        Raises:
            RunLostError: the run belongs to somebody else by now.
        """

        def work(db: Any) -> None:
            self._own(db, run_id, owner, now)
            db.executemany(
                "INSERT INTO llmbroker_run_notes VALUES (?, ?, ?, ?, ?)",
                [(run_id, note.seq, note.kind, note.call_id, note.value) for note in notes],
            )

        self._work(work)

    def settle(self, run_id: str, owner: str, now: float, status: str, result: bytes | None) -> None:
        """Write how a run stands when its loop is left; raises as ``write``."""

        def work(db: Any) -> None:
            self._own(db, run_id, owner, now)
            db.execute("UPDATE llmbroker_runs SET status = ?, result = ? WHERE id = ?", (status, result, run_id))

        self._work(work)

    def _own(self, db: Any, run_id: str, owner: str, now: float) -> None:
        done = db.execute("UPDATE llmbroker_runs SET changed = ? WHERE id = ? AND owner = ?", (now, run_id, owner))
        if done.rowcount != 1:
            raise RunLostError(f"The run {run_id!r} was taken over by another process; this one stops.")

    def row(self, run_id: str) -> RunRow | None:
        """Return a run, or None."""
        found = self.store._rows(_ROW + " WHERE id = ?", run_id)
        return RunRow(*found[0]) if found else None

    def rows(self, status: str | None, limit: int) -> list[RunRow]:
        """Return runs, the newest first."""
        sql = _ROW + " WHERE ? IS NULL OR status = ? ORDER BY began DESC LIMIT ?"
        return [RunRow(*found) for found in self.store._rows(sql, status, status, limit)]

    def notes(self, run_id: str) -> list[Note]:
        """Return what was written down of a run."""
        sql = "SELECT seq, kind, call_id, value FROM llmbroker_run_notes WHERE run_id = ? ORDER BY seq"
        return [Note(*found) for found in self.store._rows(sql, run_id)]

    def forget(self, run_id: str) -> bool:
        """Delete a run and all that was written of it; False if there was none."""

        def work(db: Any) -> bool:
            db.execute("DELETE FROM llmbroker_run_notes WHERE run_id = ?", (run_id,))
            return bool(db.execute("DELETE FROM llmbroker_runs WHERE id = ?", (run_id,)).rowcount)

        return self._work(work)

    def _work(self, work: Callable[[Any], T]) -> T:
        return self.store._patiently(lambda db: _in_transaction(db, lambda: work(db)))


def _host() -> str:
    """Return the name of this machine."""
    return os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")
