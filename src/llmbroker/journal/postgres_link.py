"""Connections to a PostgreSQL server that may be away, or be there and not answer.

An answer is waited for until a moment and no longer, whatever the server does; connections are made in threads of their own, so
that a caller can leave in time and the next one finds what came of it.
"""

from __future__ import annotations

import functools
import os
import re
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from llmbroker.errors import ConfigurationError

T = TypeVar("T")
CONNECT = 2
"""Seconds for a connection."""
WORK = 5000
"""Milliseconds that the server gives a statement that writes a row; ten times as long for a question."""
SOON = (0.25, 2.0)
"""Seconds at least and at most after which what stands on the way of a call is given up."""
AGAIN = 0.05
"""Seconds that a call waits for a connection, where the last one broke or could not be made."""
clock = time.monotonic  # noqa: TID251 - how long a real server takes; no flow depends on it


def plain(address: str) -> str:
    """Return an address as libpq takes it."""
    return re.sub(r"^(?:postgres|postgresql\+psycopg)://", "postgresql://", address)


def shown(address: str) -> str:
    """Return the address without its password; in that, any character but ``@`` and ``/`` may stand as it is."""
    address = re.sub(r"^(\w+://[^:@/]*):[^@/]*@", r"\1@", address)
    base, mark, query = address.partition("?")
    hidden = ("password=", "passfile=", "sslkey", "sslpassword=")
    shown = "&".join(piece for piece in query.split("&") if not piece.startswith(hidden))
    return base + mark * bool(shown) + shown


def driver() -> Any:
    """Return psycopg.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        import psycopg
    except ImportError:
        raise ConfigurationError(
            "A journal in PostgreSQL needs psycopg.", hint="pip install 'llmbroker[postgres]', or name a file: broker.db"
        ) from None
    return psycopg


@functools.cache
def connection_class() -> Any:
    """Return a connection that gives up an answer that takes too long: a server may be there and not answer."""
    psycopg = driver()

    class Impatient(psycopg.Connection):  # type: ignore[misc, name-defined]
        link: Link | None = None

        def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
            """Consume what talks to the server, until its answer is there or has taken too long."""
            link, begun = self.link, clock()
            patience = 2 * WORK / 1000 if link is None else link.patience
            try:
                result = super().wait(_bounded(gen, begun + patience), min(interval, 0.2 * patience))
            except silence():
                self.pgconn.finish()  # nothing more is said on it: no rollback either
                raise
            if link is not None:
                link.took(clock() - begun)
            return result

    return Impatient


@functools.cache
def silence() -> Any:
    """Return the error of a server that does not answer."""

    class SilenceError(driver().OperationalError):  # type: ignore[misc]
        pass

    return SilenceError


def _bounded(talk: Generator[Any, Any, T], until: float) -> Generator[Any, Any, T]:
    try:
        state = next(talk)
        while True:
            ready = yield state
            if not ready and clock() >= until:
                talk.close()
                raise silence()("the server does not answer")
            state = talk.send(ready)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


class Link:
    """One connection with its lock and the process that made it."""

    __slots__ = ("_bounds", "_coming", "_usual", "connection", "hasty", "lock", "pid", "settings")

    def __init__(self, timeout: int, bounds: tuple[float, float], more: str = "") -> None:
        self.settings = f"SET statement_timeout = {timeout}; {more}"
        self._bounds = bounds
        self._usual: float | None = None
        self._coming: _Coming | None = None
        self.connection: Any = None
        self.hasty = False
        """Whether the last try found no server: the next one does not wait long for it."""
        self.lock = threading.Lock()
        self.pid = os.getpid()

    @property
    def patience(self) -> float:
        """Seconds that an answer may take."""
        least, most = self._bounds
        return most if self._usual is None else min(max(20.0 * self._usual, least), most)

    def took(self, seconds: float) -> None:
        """Take note of how long an answer took: the slowest counts, and is forgotten slowly."""
        self._usual = max(seconds, 0.98 * (self._usual or 0.0))

    def opened(self, connect: Callable[[str], Any]) -> Any:
        """Return the connection; a new one is made in a thread, so that nobody need wait for it."""
        if self.connection is None:
            coming = self._coming or _Coming(connect, self.settings)
            self._coming = coming
            if not coming.done.wait(AGAIN if self.hasty else CONNECT):
                raise silence()("the server does not answer")
            self._coming = None
            self.connection, self.pid = coming.result(), os.getpid()
            self.connection.link = self
        return self.connection

    def drop(self) -> None:
        """Close the connection, if there is one."""
        connection, self.connection = self.connection, None
        if connection is not None and self.pid == os.getpid():
            connection.close()

    def close(self) -> None:
        """Close the connection, and the one that is being made."""
        self.drop()
        coming, self._coming = self._coming, None
        if coming is not None and self.pid == os.getpid():
            coming.unwanted()

    def inherited(self) -> None:
        """Leave a connection of the parent process alone: closing it would end the parent's session."""
        if self.connection is not None:
            _INHERITED.append(self.connection)
            self.connection = None
        self._coming = None
        self.pid = os.getpid()


class _Coming:
    """A connection that is being made in a thread of its own."""

    def __init__(self, connect: Callable[[str], Any], settings: str) -> None:
        self.done = threading.Event()
        self._lock = threading.Lock()
        self._made: Any = None
        self._error: BaseException | None = None
        self._unwanted = False
        threading.Thread(target=self._make, args=(connect, settings), name="llmbroker-connect", daemon=True).start()

    def _make(self, connect: Callable[[str], Any], settings: str) -> None:
        try:
            made = connect(settings)
        except BaseException as error:  # noqa: BLE001 - raised where somebody waits for it
            self._error = error
        else:
            with self._lock:
                self._made = made
                if self._unwanted:
                    made.close()
        self.done.set()

    def result(self) -> Any:
        """Return the connection, or raise why there is none."""
        if self._error is not None:
            raise self._error
        return self._made

    def unwanted(self) -> None:
        """Nobody will ask for it: close it as soon as it is there."""
        with self._lock:
            self._unwanted = True
            if self._made is not None:
                self._made.close()


_INHERITED: list[Any] = []
