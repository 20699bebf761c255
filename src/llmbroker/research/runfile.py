"""The run file: every finished row of a study in SQLite, at once, so that a run that is killed goes on where it was.

Two tables tell everything: ``requests`` gets a line before a request leaves, ``results`` one when a row is finished. A request
without a result is one that was on its way when the run ended: the provider may have worked on it, and nobody knows what it
said. A row is known by what is asked (and by its number among equal questions), not by its place: rows may be added, left out
or moved. One process at a time may use a file.

What is written outlives the process at once; a loss of power may take the last seconds (``synchronous=NORMAL``). Rows that
finish in the same moment share a commit: who writes waits one turn for the others, and goes on when all of it is committed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from llmbroker.errors import ConfigurationError
from llmbroker.io import Port
from llmbroker.research.outcome import Outcome

if TYPE_CHECKING:
    import sqlite3

VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS requests (id INTEGER PRIMARY KEY, row BLOB NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS results (
  id INTEGER PRIMARY KEY, row BLOB NOT NULL, current INTEGER NOT NULL, kind TEXT NOT NULL, attempts INTEGER NOT NULL,
  cost REAL, asked TEXT, outcome BLOB NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS one_result ON results (row) WHERE current = 1;
"""


class RunFile:
    """An open run file.

    Args:
        path: where it is; made at first use.
        reading: it must be there already.

    Raises:
        ConfigurationError: it is in use by another process, is no run file, is not there, or cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], *, reading: bool = False) -> None:
        import sqlite3

        self.path = Path(path)
        if reading and not self.path.is_file():
            raise ConfigurationError(f"There is no run file {self.path}.")
        self._lock = threading.Lock()
        self._open = False
        self._batch = 0
        try:
            self._db: sqlite3.Connection = sqlite3.connect(
                self.path, isolation_level=None, check_same_thread=False, timeout=1.0
            )
        except sqlite3.OperationalError as error:
            raise ConfigurationError(f"The run file {self.path} cannot be opened: {error}.") from None
        try:
            self._begin_use()
        except BaseException as error:
            self._db.close()  # a file that is refused stays free for its owner
            if isinstance(error, sqlite3.OperationalError):
                why = "another process is using it" if "locked" in str(error) else str(error)
                raise ConfigurationError(f"The run file {self.path} cannot be opened: {why}.") from None
            if isinstance(error, sqlite3.DatabaseError):
                raise ConfigurationError(f"{self.path} is no run file: {error}.") from None
            raise

    def _begin_use(self) -> None:
        self._refuse_others()
        self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute("PRAGMA wal_autocheckpoint=8000")
        self._db.executescript(_SCHEMA)
        self._check_version()

    def _refuse_others(self) -> None:
        """Leave a database of something else alone."""
        names = {name for (name,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if names and not {"facts", "requests", "results"} <= names:
            raise ConfigurationError(f"{self.path} is no run file but a database of something else.")

    def _check_version(self) -> None:
        self._db.execute("INSERT OR IGNORE INTO facts VALUES ('version', ?)", (str(VERSION),))
        ((found,),) = self._db.execute("SELECT value FROM facts WHERE name = 'version'")
        if int(found) > VERSION:
            raise ConfigurationError(f"The run file {self.path} was made by a newer version of llmbroker.")

    def results(self) -> dict[bytes, str]:
        """Return the kind of result that each finished row has."""
        return dict(self._db.execute("SELECT row, kind FROM results WHERE current = 1"))

    def outcome(self, row: bytes) -> Outcome | None:
        """Return what became of a row, or None."""
        found = self._db.execute("SELECT outcome FROM results WHERE row = ? AND current = 1", (row,)).fetchone()
        return None if found is None else msgspec.msgpack.decode(found[0], type=Outcome)

    def outcomes(self, *, superseded: bool = False) -> Iterator[tuple[dict[str, Any], Outcome]]:
        """Yield (what was asked, what came) of every finished row; also results that later ones replaced, if asked for."""
        where = "" if superseded else " WHERE current = 1"
        for asked, outcome in self._db.execute(f"SELECT asked, outcome FROM results{where} ORDER BY id"):  # noqa: S608
            yield msgspec.json.decode(asked or "{}"), msgspec.msgpack.decode(outcome, type=Outcome)

    async def sending(self, port: Port, row: bytes, at: float) -> None:
        """Note that a request of this row is about to leave; committed when this returns."""
        with self._lock:
            self._begin()
            self._db.execute("INSERT INTO requests (row, at) VALUES (?, ?)", (row, at))
            batch = self._batch
        await self._commit(port, batch)

    async def finished(self, port: Port, row: bytes, outcome: Outcome, asked: bytes) -> None:
        """Keep what became of a row, committed when this returns; an earlier result is kept beside it."""
        with self._lock:
            self._begin()
            try:
                self._insert(row, outcome, asked)
            except Exception as error:
                if type(error).__name__ != "IntegrityError":
                    raise
                self._db.execute("UPDATE results SET current = 0 WHERE row = ? AND current = 1", (row,))
                self._insert(row, outcome, asked)
            batch = self._batch
        await self._commit(port, batch)

    def _begin(self) -> None:
        if not self._open:
            self._db.execute("BEGIN IMMEDIATE")
            self._open = True

    async def _commit(self, port: Port, batch: int) -> None:
        await port.sleep(0)
        with self._lock:
            if self._batch == batch:
                self._end()

    def _end(self) -> None:
        if self._open:
            self._db.execute("COMMIT")
            self._open = False
            self._batch += 1

    def _insert(self, row: bytes, outcome: Outcome, asked: bytes) -> None:
        self._db.execute(
            "INSERT INTO results (row, current, kind, attempts, cost, asked, outcome) VALUES (?, 1, ?, ?, ?, ?, ?)",
            (row, outcome.kind, outcome.attempts, outcome.cost, asked.decode(), msgspec.msgpack.encode(outcome)),
        )

    def spent(self) -> float:
        """Return what all results so far cost, as far as it is known."""
        ((total,),) = self._db.execute("SELECT coalesce(sum(cost), 0) FROM results")
        return float(total)

    def counts(self) -> dict[str, int]:
        """Return requests sent, rows finished, and ``lost``: requests of which no result is known."""
        ((sent,),) = self._db.execute("SELECT count(*) FROM requests")
        ((rows, attempts),) = self._db.execute(
            "SELECT count(*) FILTER (WHERE current = 1), coalesce(sum(attempts), 0) FROM results"
        )
        return {"requests": sent, "rows": rows, "lost": sent - attempts}

    def lost_rows(self) -> set[bytes]:
        """Return the rows that had a request on its way when a run ended."""
        found = self._db.execute(
            "SELECT r.row FROM (SELECT row, count(*) AS n FROM requests GROUP BY row) r LEFT JOIN "
            "(SELECT row, sum(attempts) AS n FROM results GROUP BY row) d ON d.row = r.row WHERE r.n > coalesce(d.n, 0)"
        )
        return {row for (row,) in found}

    def close(self) -> None:
        """Close the file; what was written in the last moment is kept."""
        with self._lock:
            try:
                self._end()
            finally:
                self._db.close()

    def __enter__(self) -> RunFile:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()
