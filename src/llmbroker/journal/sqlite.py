"""The journal in one SQLite file, by the standard library alone.

Theory of operation
-------------------
Two connections: a quick one that only writes rows and gives up after 50 ms when another process holds the file (the rows then
go to the spool), and a patient one for everything else, so that a long report never delays a row. A row is one prepared INSERT
in autocommit; in WAL mode with ``synchronous=NORMAL`` it is in the operating system's hands when ``record`` returns, and
survives the death of the process; ``full=True`` makes it survive the loss of power too, at a thousand times the price.

The file is opened on first use, never by the constructor. A file that we make is readable by its owner alone and is set to WAL.
A file that was there before keeps its own journal mode; its other tables are not ours. Both connections are closed before a
fork and opened again on both sides, because SQLite's locks do not survive it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from llmbroker.errors import StoreError
from llmbroker.journal import queries
from llmbroker.journal.columns import COLUMNS, another_seq, from_row, seq_from, to_row
from llmbroker.journal.migrations import MIGRATIONS, VERSION_TABLE
from llmbroker.journal.records import Call, Grouping, Query, Rating, Row, Stats, cleaned, to_micros
from llmbroker.journal.statements import Statements
from llmbroker.journal.tables import Tables
from llmbroker.journal.tidings import Look, Since, Tidings, look, tell

T = TypeVar("T")
_INSERT = (
    f"INSERT INTO llmbroker_calls ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"  # noqa: S608 - our names
    " ON CONFLICT (id) DO NOTHING"
)
_RATE = "INSERT INTO llmbroker_ratings (id, call_id, score, ts, scope) VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"
_BODY = "INSERT INTO llmbroker_bodies (call_id, request, response) VALUES (?, ?, ?) ON CONFLICT (call_id) DO NOTHING"
_clock = time.monotonic  # noqa: TID251 - how long ago the file was looked at; no flow depends on it
_QUICK, _PATIENT = 0.05, 2.0
_LOOK_EVERY = 1.0
_FORK_WAIT = 5.0
_ODD = (UnicodeEncodeError, OverflowError, AttributeError, TypeError, sqlite3.ProgrammingError, sqlite3.InterfaceError,
        sqlite3.IntegrityError)  # fmt: skip
_TAKEN = (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_ROWID)
_TRIES = 40

_REASONS = {
    sqlite3.SQLITE_BUSY: ("locked", "another program holds it"),
    sqlite3.SQLITE_LOCKED: ("locked", "another program holds it"),
    sqlite3.SQLITE_FULL: ("full", "the disk is full"),
    sqlite3.SQLITE_IOERR: ("full", "the disk could not be written or read"),
    sqlite3.SQLITE_READONLY: ("readonly", "it may not be written"),
    sqlite3.SQLITE_PERM: ("readonly", "it may not be written"),
    sqlite3.SQLITE_CANTOPEN: ("missing", "it cannot be opened"),
    sqlite3.SQLITE_CORRUPT: ("corrupt", "it is damaged"),
    sqlite3.SQLITE_NOTADB: ("corrupt", "it is not a database"),
}
_HINTS = {
    "locked": "Rows of calls are kept and written later; close the program that holds it.",
    "full": "Free space on that disk; rows of calls are kept and written later.",
    "readonly": "Make the file and its folder writable, or name another place with journal=.",
    "missing": "Check that the folder exists and may be written, or name another place with journal=.",
    "corrupt": "Nothing was changed in it. Move it away to start a new one; `sqlite3 OLD .recover` saves what can be read.",
    "newer": "Upgrade llmbroker, or name another file with journal=.",
    "refused": "",
    "other": "Name another place with journal=.",
}


class SQLiteStore(Tables):
    """A store in a SQLite file. Making one touches nothing; every method may raise ``StoreError``.

    Args:
        path: the file, or ``:memory:``.
        full: wait for the disk on every row, so that rows survive a loss of power.
    """

    def __init__(self, path: str | os.PathLike[str], *, full: bool = False) -> None:
        self._memory = str(path) == ":memory:"
        self.path = Path(path) if self._memory else Path(path).expanduser().absolute()
        self.where = str(self.path)
        self._full = full
        self._wal = True
        self._quick = _Link(_QUICK)
        self._patient = self._quick if self._memory else _Link(_PATIENT)
        _STORES.add(self)

    @property
    def direct(self) -> bool:
        """Whether a row takes tens of microseconds: not where every row waits for the disk."""
        return self._wal and not self._full

    @property
    def spool_beside(self) -> str | None:
        """The file beside which unwritten rows may be kept."""
        return None if self._memory else self.where

    # -- rows --------------------------------------------------------------------------------------------------------------

    def record(self, rows: Sequence[Row]) -> None:
        """Write rows, all or none; committed when it returns.

        Raises:
            StoreError: nothing was written.
        """
        link = self._quick
        with link.lock:
            try:
                self._record(link, rows)
            except sqlite3.Error as error:
                raise self._failure(error, link) from error

    def _record(self, link: _Link, rows: Sequence[Row]) -> None:
        connection = link.connection
        if connection is None or _clock() - link.looked > _LOOK_EVERY:
            connection = self._open(link)
        try:
            if len(rows) == 1 and isinstance(row := rows[0], Call) and row.request is None and row.response is None:
                connection.execute(_INSERT, to_row(row))
            else:
                _in_transaction(connection, lambda: _insert_all(connection, rows))
        except _ODD:
            # Lone surrogates, huge counts, two rows at one place: rare, so they are seen to only when SQLite refuses them.
            mended = [cleaned(row) for row in rows]
            try:
                _in_transaction(connection, lambda: _insert_all(connection, mended))
            except _ODD as error:
                raise self._refusal("refused", f"a row does not fit ({error})") from error

    def calls(self, query: Query, *, limit: int, cursor: str | None = None, bodies: bool = False) -> list[Call]:
        """Return a page of calls, the newest first."""
        sql, values = queries.page(query, limit, cursor, bodies, "?")
        return self._patiently(lambda db: [from_row(row) for row in db.execute(sql, values)])

    def find(self, *, scope: str | None, call_id: str | None = None, trace_id: str | None = None) -> Call | None:
        """Return the call of that id, or the newest successful call of that trace."""
        sql, values = queries.found(scope, call_id, trace_id, "?")
        row = self._patiently(lambda db: db.execute(sql, values).fetchone())
        return None if row is None else from_row(row)

    def stats(self, query: Query, *, by: Grouping = "llm_name") -> dict[str, Stats]:
        """Return sums by group."""
        key = queries.group_key(by, "CAST({} AS TEXT)")
        statements = (
            queries.sums(query, key, "?"),
            queries.quantiles(query, key, "latency_ms", "?"),
            queries.quantiles(query, key, "first_event_ms", "?"),
            queries.quality(query, key, "?"),
        )

        def read(db: sqlite3.Connection) -> list[list[Any]]:
            # One read transaction: the four answers are about the same rows.
            return _in_transaction(db, lambda: [db.execute(*statement).fetchall() for statement in statements], "BEGIN")

        return queries.assemble(by, *self._patiently(read))

    def prune(self, before: datetime, *, batch: int) -> int:
        """Delete a batch of the oldest calls that began before then."""
        limit = seq_from(to_micros(before))

        def delete(db: sqlite3.Connection) -> int:
            old = db.execute(
                "SELECT seq, id FROM llmbroker_calls WHERE seq < ? ORDER BY seq LIMIT ?", (limit, batch)
            ).fetchall()
            ids = [(row[1],) for row in old]
            db.executemany("DELETE FROM llmbroker_calls WHERE seq = ?", [(row[0],) for row in old])
            db.executemany("DELETE FROM llmbroker_ratings WHERE call_id = ?", ids)
            db.executemany("DELETE FROM llmbroker_bodies WHERE call_id = ?", ids)
            return len(old)

        return self._patiently(lambda db: _in_transaction(db, lambda: delete(db)))

    # -- connections -----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close both connections; may be called twice."""
        for link in (self._quick, self._patient):
            with link.lock:
                link.drop()

    def __del__(self) -> None:
        """Close what was left open: a store that was dropped is no leak, and from Python 3.13 on no warning."""
        for link in (self._quick, self._patient) if hasattr(self, "_patient") else ():
            try:  # no contextlib: when Python ends, its names may be gone
                link.drop()
            except Exception:  # noqa: BLE001, S110 - nobody is there to be told
                pass

    def transact(self, work: Callable[[Statements], T], *, reads: bool = False, brief: bool = False) -> T:
        """Do work in one transaction."""
        begin = "BEGIN" if reads else "BEGIN IMMEDIATE"
        run = self._quickly if brief else self._patiently
        return run(lambda db: _in_transaction(db, lambda: work(db), begin))

    def look(self, since: Since) -> Look:
        """Return what the processes of this file told each other; from a file that is not there yet, nothing."""
        link = self._quick
        if link.connection is None and not self._memory and not self.path.exists():
            return Look(since.stamp, {}, (), {}, (), 0)
        return self._quickly(lambda db: look(db, since))

    def tell(self, tidings: Tidings) -> None:
        """Write what this process has to tell."""
        self._quickly(lambda db: _in_transaction(db, lambda: tell(db, tidings)))

    def _quickly(self, work: Callable[[sqlite3.Connection], T]) -> T:
        link = self._quick
        with link.lock:
            try:
                return work(self._open(link))
            except sqlite3.Error as error:
                raise self._failure(error, link) from error

    def _ask(self, statement: str, *values: Any) -> list[Any]:
        return self._patiently(lambda db: db.execute(statement, values).fetchall())

    def _patiently(self, work: Callable[[sqlite3.Connection], T]) -> T:
        link = self._patient
        with link.lock:
            try:
                return work(self._open(link))
            except sqlite3.Error as error:
                raise self._failure(error, link) from error

    def _open(self, link: _Link) -> sqlite3.Connection:
        """Return the connection, made anew where the file was moved or deleted under it."""
        link.looked = _clock()
        if link.connection is not None and (self._memory or self._identity() == link.inode):
            return link.connection
        link.drop()
        link.connection = self._connect(link.patience)
        link.inode = None if self._memory else self._identity()
        return link.connection

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)  # noqa: PTH116 - the cheaper call, once a second
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _connect(self, patience: float) -> sqlite3.Connection:
        new = self._memory or self._make_file()
        connection = sqlite3.connect(str(self.path), timeout=patience, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(connection, new)
        except BaseException:
            connection.close()
            raise
        return connection

    def _make_file(self) -> bool:
        """Make the file, readable by its owner alone, if it is not there; return whether it is empty."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return self.path.is_file() and self.path.stat().st_size == 0
        except OSError as error:
            raise self._refusal("missing", error.strerror or str(error)) from error
        return True

    def _prepare(self, connection: sqlite3.Connection, new: bool) -> None:
        mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
        if new and not self._memory:
            # Half the usual page: a row dirties three or four, and each is summed and written to the log.
            connection.execute("PRAGMA page_size = 2048")
        if new and mode != "wal":
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        self._wal = mode in ("wal", "memory")
        # Outside WAL, NORMAL may damage the file when power is lost.
        connection.execute(f"PRAGMA synchronous = {'NORMAL' if self._wal and not self._full else 'FULL'}")
        if _version(connection) != len(MIGRATIONS):
            _in_transaction(connection, lambda: self._migrate(connection))

    def _migrate(self, connection: sqlite3.Connection) -> None:
        connection.execute(VERSION_TABLE)
        version = _version(connection)
        if version > len(MIGRATIONS):
            raise self._refusal("newer", f"its schema is version {version}, this llmbroker knows {len(MIGRATIONS)}")
        for step in MIGRATIONS[version:]:
            for statement in step:
                connection.execute(statement)
        connection.execute("DELETE FROM llmbroker_schema")
        connection.execute("INSERT INTO llmbroker_schema VALUES (?)", (len(MIGRATIONS),))

    def _failure(self, error: sqlite3.Error, link: _Link) -> StoreError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        reason, words = _REASONS.get(code, ("other", str(error)))
        if reason != "locked" and not self._memory:
            # Whatever it was, the next try begins with a fresh look at the file.
            link.drop()
        return self._refusal(reason, words)

    def _refusal(self, reason: str, words: str) -> StoreError:
        return StoreError(f"The journal {self.where} cannot be used: {words}.", reason=reason, hint=_HINTS[reason])

    def _before_fork(self) -> None:
        for link in self._links():
            link.held = link.lock.acquire(timeout=_FORK_WAIT)
            if link.held and not self._memory:
                link.drop()

    def _after_fork(self, child: bool) -> None:
        for link in self._links():
            if child:
                if not link.held and link.connection is not None:
                    # Another thread of the parent is at work with it: neither use nor close what is not ours.
                    _INHERITED.append(link.connection)
                    link.connection = None
                link.lock = threading.Lock()
            elif link.held:
                link.lock.release()
            link.held = False

    def _links(self) -> tuple[_Link, ...]:
        return (self._quick,) if self._memory else (self._quick, self._patient)


class _Link:
    """One connection with its lock and the identity of the file that it is open on."""

    __slots__ = ("connection", "held", "inode", "lock", "looked", "patience")

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.connection: sqlite3.Connection | None = None
        self.inode: tuple[int, int] | None = None
        self.lock = threading.Lock()
        self.looked = 0.0
        self.held = False

    def drop(self) -> None:
        """Close the connection, if there is one."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()


def _version(connection: sqlite3.Connection) -> int:
    try:
        row = connection.execute("SELECT version FROM llmbroker_schema").fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        return 0
    if row and not isinstance(row[0], int):
        raise sqlite3.DatabaseError("the table llmbroker_schema is damaged")
    return row[0] if row else 0


def _insert(connection: sqlite3.Connection, call: Call) -> None:
    values = to_row(call)
    for tries in range(_TRIES):
        try:
            connection.execute(_INSERT, values)
        except sqlite3.IntegrityError as error:
            if error.sqlite_errorcode not in _TAKEN or tries == _TRIES - 1:
                raise
            values = (another_seq(values[0], tries), *values[1:])
        else:
            return


def _insert_all(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    for row in rows:
        if isinstance(row, Rating):
            connection.execute(_RATE, (row.id, row.call_id, row.score, to_micros(row.ts), row.scope))
            continue
        _insert(connection, row)
        if row.request is not None or row.response is not None:
            connection.execute(_BODY, (row.id, row.request, row.response))


def _in_transaction(connection: sqlite3.Connection, work: Callable[[], T], begin: str = "BEGIN IMMEDIATE") -> T:
    connection.execute(begin)
    try:
        result = work()
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


_STORES: weakref.WeakSet[SQLiteStore] = weakref.WeakSet()
_AT_FORK: list[SQLiteStore] = []
_INHERITED: list[sqlite3.Connection] = []


def _before_fork() -> None:
    _AT_FORK[:] = sorted(_STORES, key=id)
    for store in _AT_FORK:
        store._before_fork()


def _after_fork(child: bool) -> None:
    for store in _AT_FORK:
        store._after_fork(child)
    _AT_FORK.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=lambda: _after_fork(False), after_in_child=lambda: _after_fork(True)
    )
