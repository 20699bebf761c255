"""Rows that could not be written yet: in memory up to a bound, and in a file beside the store where one can be made.

The file makes the promise hold that a row outlives its process even while the database is locked or damaged: one line of JSON a
row, written at once, owned by a lock that dies with the process. Whoever opens the store next adopts the files that nobody
owns. Writing a row twice does no harm: ids are unique.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from llmbroker.journal.records import Row, cleaned, new_id

try:
    import fcntl
except ImportError:  # Windows has no such lock: there a file is adopted only by its own process.
    fcntl = None  # type: ignore[assignment]

Write = Callable[[Sequence[Row]], None]
MEMORY_ROWS = 10_000
FILE_BYTES = 64 * 1024 * 1024
BATCH = 500
_decode = msgspec.json.Decoder(Row).decode


class Spool:
    """Rows that wait, in their order. Not for several threads at once: its owner holds a lock.

    Args:
        beside: the store's path, or None to keep rows in memory alone.
        memory_rows, file_bytes: the bounds; what is beyond both is dropped and counted.
    """

    def __init__(self, beside: str | None, *, memory_rows: int = MEMORY_ROWS, file_bytes: int = FILE_BYTES) -> None:
        self._beside = beside
        self._rows: deque[Row] = deque()
        self._memory_rows = memory_rows
        self._file_bytes = file_bytes
        self._fd: int | None = None
        self._size = 0
        self._only_in_file = 0
        self._overflow_at = 0
        self.path: Path | None = None
        self.dropped = 0

    def __len__(self) -> int:
        """How many rows wait."""
        return len(self._rows) + self._only_in_file

    def put(self, row: Row) -> None:
        """Keep a row."""
        row = cleaned(row)
        begin = self._size
        filed = self._write_line(row)
        if self._only_in_file == 0 and len(self._rows) < self._memory_rows:
            self._rows.append(row)
        elif filed:
            if self._only_in_file == 0:
                self._overflow_at = begin
            self._only_in_file += 1
        else:
            self.dropped += 1

    def drain(self, write: Write, *, batches: int | None = None) -> None:
        """Write what waits, oldest first, at most so many batches; what ``write`` raises leaves the rest where it is."""
        done = 0
        while self._rows and (batches is None or done < batches):
            some = [self._rows[index] for index in range(min(BATCH, len(self._rows)))]
            write(some)
            for _ in some:
                self._rows.popleft()
            done += 1
        while self._only_in_file and self.path is not None and (batches is None or done < batches):
            some, self._overflow_at = _read(self.path, self._overflow_at)
            if some:
                write(some)
            self._only_in_file = max(self._only_in_file - len(some), 0) if some else 0
            done += 1
        if len(self) == 0:
            self._remove_file()

    def adopt(self, write: Write, at_most: int | None = None) -> int:
        """Write the rows of files that a dead process left beside the store; return how many rows there were.

        ``at_most``: leave files of more bytes alone.
        """
        if self._beside is None or fcntl is None:
            return 0
        count = 0
        base = Path(self._beside)
        for path in sorted(base.parent.glob(_escape(base.name) + "-spool-*")):
            with contextlib.suppress(OSError), path.open("rb") as file:
                if path == self.path or (at_most is not None and os.fstat(file.fileno()).st_size > at_most):
                    continue
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                some, at = _read(path, 0)
                while some:
                    write(some)
                    count += len(some)
                    some, at = _read(path, at)
                path.unlink(missing_ok=True)
        return count

    def forget(self) -> None:
        """Give up what belongs to another process: in the child of a fork, its parent's rows."""
        self._rows.clear()
        self._only_in_file = 0
        self._size = 0
        self.path = None
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None

    def close(self) -> None:
        """Let go of the file; it stays on the disk if rows still wait in it."""
        if len(self) == 0:
            self._remove_file()
        elif self._fd is not None:
            os.close(self._fd)
            self._fd = None

    # -- the file ----------------------------------------------------------------------------------------------------------

    def _write_line(self, row: Row) -> bool:
        """Append a row to the file; return whether it is there."""
        if self._beside is None or self._size >= self._file_bytes:
            return False
        line = msgspec.json.encode(row) + b"\n"
        try:
            if self._fd is None:
                self._make_file()
            assert self._fd is not None
            written = os.write(self._fd, line)
            if written < len(line):
                os.ftruncate(self._fd, self._size)
                return False
        except OSError:
            return False
        self._size += len(line)
        return True

    def _make_file(self) -> None:
        """Make the file and own it.

        Raises:
            OSError: it cannot be made, or an adopter was quicker than our lock and took it away.
        """
        path = Path(f"{self._beside}-spool-{os.getpid()}-{new_id()[-8:]}")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o600)
        try:
            if fcntl is not None:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.stat()
        except OSError:
            os.close(fd)
            raise
        self._fd, self.path, self._size = fd, path, 0

    def _remove_file(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)
            self.path = None
        self._size = 0


def _escape(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _read(path: Path, at: int) -> tuple[list[Row], int]:
    """Return the next rows of a file and where to read on; no rows at its end.

    A line that was cut by a sudden end, or is none of ours, is passed over.
    """
    some: list[Row] = []
    with path.open("rb") as file:
        file.seek(at)
        for line in file:
            at += len(line)
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                some.append(_decode(line))
            if len(some) >= BATCH:
                break
    return some, at
