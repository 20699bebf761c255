"""Runs that survive, in the journal's database: a row for each run, and a row for everything that must not happen twice.

A run belongs to one owner at a time. Every write looks whether it still does, in the same transaction, so that a process that
was given up for dead cannot write into a run that another one has taken over. The statements are those that SQLite and
PostgreSQL share; a write to a run's row, even one that changes nothing, makes others wait until the transaction is over.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from llmbroker.errors import RunBusyError, RunLostError
from llmbroker.journal.contract import Store
from llmbroker.journal.records import new_id
from llmbroker.journal.statements import Statements

_ROW = "SELECT id, status, began, changed, owner, result FROM llmbroker_runs"
_NOTES = "SELECT seq, kind, call_id, value FROM llmbroker_run_notes WHERE run_id = ? ORDER BY seq"


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


_at_work: set[str] = set()
"""The owners' marks of this process whose runs are at work in it."""


class RunStore:
    """The runs of one journal.

    Args:
        store: the journal's store.
        lease: seconds after its last sign of life for which a run is not taken from an owner on another machine; an owner on
            this machine is looked up among the processes instead.
    """

    def __init__(self, store: Store, lease: float = 600.0) -> None:
        self.store = store
        self.lease = lease

    def mark(self) -> str:
        """Return the mark of a new owner, who is at work in this process until it is released."""
        owner = f"{_host()}:{os.getpid()}:{_began(os.getpid())}:{new_id()}"
        _at_work.add(owner)
        return owner

    def release(self, owner: str) -> None:
        """Say that an owner is no more at work, however that ended."""
        _at_work.discard(owner)

    def claim(self, run_id: str, owner: str, now: float) -> tuple[RunRow, list[Note]]:
        """Begin a run or take it over for an owner; return the row and what was written down.

        Raises:
            RunBusyError: somebody else is at work with it.
            StoreError: the store cannot be used.
        """

        def work(db: Statements) -> tuple[RunRow, list[Note]]:
            new = RunRow(run_id, "running", now, now, owner)
            made = db.execute(
                "INSERT INTO llmbroker_runs VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING", msgspec.structs.astuple(new)
            )
            if made.rowcount == 1:
                return new, []
            db.execute("UPDATE llmbroker_runs SET id = id WHERE id = ?", (run_id,))  # nobody else may claim it now
            row = RunRow(*db.execute(_ROW + " WHERE id = ?", (run_id,)).fetchone())
            if row.status == "running" and row.owner != owner and self._alive(row, now):
                host, _, rest = row.owner.partition(":")
                raise RunBusyError(
                    f"The run {run_id!r} is at work already (process {rest.partition(':')[0]} on {host.partition('/')[0]}).",
                    hint="Wait for it, or end that process.",
                )
            if row.status != "done":
                db.execute(
                    "UPDATE llmbroker_runs SET owner = ?, status = 'running', changed = ? WHERE id = ?", (owner, now, run_id)
                )
            return row, [Note(*note) for note in db.execute(_NOTES, (run_id,)).fetchall()]

        return self.store.transact(work)

    def _alive(self, row: RunRow, now: float) -> bool:
        host, pid, began = [*row.owner.split(":"), "", ""][:3]
        if host != _host() or not pid.isdigit() or os.name == "nt":  # there, asking for a process would interrupt it
            return now - row.changed < self.lease
        if int(pid) == os.getpid() and began == _began(os.getpid()):
            return row.owner in _at_work
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return False
        except OSError:
            pass  # it is there, and belongs to somebody else
        # The number of a process that is gone may be another one's by now.
        return began == _began(int(pid)) if began else now - row.changed < self.lease

    def write(self, run_id: str, owner: str, now: float, notes: Sequence[Note]) -> None:
        """Write notes; committed when it returns.

        Raises:
            RunLostError: the run belongs to somebody else by now.
        """

        def work(db: Statements) -> None:
            self._own(db, run_id, owner, now)
            for note in notes:
                db.execute(
                    "INSERT INTO llmbroker_run_notes VALUES (?, ?, ?, ?, ?) ON CONFLICT (run_id, seq) DO NOTHING",
                    (run_id, note.seq, note.kind, note.call_id, note.value),
                )

        self.store.transact(work)

    def settle(self, run_id: str, owner: str, now: float, status: str, result: bytes | None) -> None:
        """Write how a run stands when its loop is left; raises as ``write``."""

        def work(db: Statements) -> None:
            self._own(db, run_id, owner, now)
            db.execute("UPDATE llmbroker_runs SET status = ?, result = ? WHERE id = ?", (status, result, run_id))

        self.store.transact(work)

    def _own(self, db: Statements, run_id: str, owner: str, now: float) -> None:
        done = db.execute("UPDATE llmbroker_runs SET changed = ? WHERE id = ? AND owner = ?", (now, run_id, owner))
        if done.rowcount != 1:
            raise RunLostError(f"The run {run_id!r} was taken over by another process; this one stops.")

    def row(self, run_id: str) -> RunRow | None:
        """Return a run, or None."""
        found = self._rows(_ROW + " WHERE id = ?", run_id)
        return RunRow(*found[0]) if found else None

    def rows(self, status: str | None, limit: int) -> list[RunRow]:
        """Return runs, the newest first."""
        which, values = ("", ()) if status is None else (" WHERE status = ?", (status,))
        return [RunRow(*found) for found in self._rows(f"{_ROW}{which} ORDER BY began DESC LIMIT ?", *values, limit)]

    def notes(self, run_id: str) -> list[Note]:
        """Return what was written down of a run."""
        return [Note(*found) for found in self._rows(_NOTES, run_id)]

    def forget(self, run_id: str) -> bool:
        """Delete a run and all that was written of it; False if there was none."""

        def work(db: Statements) -> bool:
            done = db.execute("DELETE FROM llmbroker_runs WHERE id = ?", (run_id,))
            db.execute("DELETE FROM llmbroker_run_notes WHERE run_id = ?", (run_id,))
            return bool(done.rowcount)

        return self.store.transact(work)

    def _rows(self, statement: str, *values: Any) -> list[Any]:
        return self.store.transact(lambda db: list(db.execute(statement, values).fetchall()), reads=True)


@functools.cache
def _host() -> str:
    """Return the name of this machine, or of the container: processes are looked up only where their numbers mean the same."""
    name = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")
    try:
        return f"{name}/{Path('/proc/self/ns/pid').readlink().name.partition('[')[2].rstrip(']')}"
    except OSError:
        return name


def _began(pid: int) -> str:
    """Return when a process began, in the words of its machine; empty where that is not told."""
    try:
        told = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ""
    return told.rpartition(b")")[2].split()[19].decode()
