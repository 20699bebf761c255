"""The journal as the broker sees it: it takes every row, whatever the state of the store, and says how it is.

Theory of operation
-------------------
``record`` hands the row to the store and returns when it is committed. Threads that meet at the lock are served together: who
has the lock writes the rows of all who wait, in one transaction. When the store refuses, the rows go to the spool, the state
turns to ``degraded`` (logged once), and the store is tried again after a growing pause of 0.1 to 5 seconds, on a call that
writes or reads anyway: there is no thread and no timer. While rows wait, new ones queue behind them, so that the order is kept.
Old rows are deleted in small batches, a few hundred after a few hundred writes, never at the start.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from llmbroker.errors import ConfigurationError, InvalidRequestError, StoreError, UnknownCallError
from llmbroker.journal.contract import Store
from llmbroker.journal.records import Call, Grouping, Query, Rating, Row, Stats, utc
from llmbroker.journal.spool import BATCH, Spool
from llmbroker.messages import check_text, shown

log = logging.getLogger("llmbroker.journal")

RETENTION = timedelta(days=90)
PRUNE_EVERY_ROWS = 128
PRUNE_BATCH = 200
PRUNE_PAUSE = 3600.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
ADOPT_BYTES = 1_000_000
"""Files of lost rows up to this size are read on a call that writes; longer ones when the journal is read or closed."""
MOST_ROWS = 2**63 - 1
"""The largest number that a store takes."""
HANDOFF = 0.25
"""Seconds to wait for a thread that is writing; then the row is left to that thread."""


class Journal:
    """Every attempt, written down.

    Args:
        store: where rows go, or None: nothing is kept and reading says so.
        retention: how long rows are kept, or None for ever.
        bodies: keep what was asked and answered, too, redacted; read it with ``calls(bodies=True)``.
        clock: monotonic seconds. ``wall``: seconds since 1970.
    """

    def __init__(
        self,
        store: Store | None,
        *,
        retention: timedelta | None = RETENTION,
        bodies: bool = False,
        clock: Callable[[], float] = time.monotonic,  # noqa: TID251 - the store is tried again by real time
        wall: Callable[[], float] = time.time,  # noqa: TID251 - when it was rated; calls bring their own time
    ) -> None:
        if retention is not None and retention <= timedelta(0):
            raise ConfigurationError(f"retention is a positive time or None, not {retention!r}.")
        self.store = store
        self.bodies = bodies and store is not None
        self.brokers = 0
        """How many brokers of this process were given it."""
        self._retention = retention
        self._clock = clock
        self._wall = wall
        self._queue: deque[Row] = deque()
        self._beside: list[threading.Thread] = []
        self._spool = Spool(store.spool_beside if store is not None else None)
        self._failure: StoreError | None = None
        self._since: datetime | None = None
        self._next_try = 0.0
        self._pause = FIRST_PAUSE
        self._looked = self._adopted = False
        self._written = 0
        self._refused = 0
        self._unpruned = 0
        self._next_prune = 0.0
        self._lock = threading.Lock()
        _JOURNALS.add(self)

    def __bool__(self) -> bool:
        """Whether anything is kept."""
        return self.store is not None

    @property
    def direct(self) -> bool:
        """Whether ``record`` may be called from an event loop; else call it through ``port.call``."""
        return self.store is None or self.store.direct

    @property
    def failing(self) -> bool:
        """Whether the store refused rows and was not found well since."""
        return self._failure is not None

    # -- writing -----------------------------------------------------------------------------------------------------------

    def record(self, row: Row) -> None:
        """Write a row. When it returns the row is committed or, if the store refuses, spooled. Never raises for the store."""
        if self.store is None:
            return
        self._queue.append(row)
        # A finalizer may get here in the middle of our own writing: then the row is left to the loop that is already running.
        if not self._lock.acquire(timeout=HANDOFF):
            return
        try:
            self._serve()
        finally:
            self._lock.release()

    def record_beside(self, row: Row) -> None:
        """Write a row without waiting for a slow store: in a thread of its own, for which who reads or closes waits.

        For who must not wait and cannot await: an attempt that is being cancelled.
        """
        if self.direct:
            self.record(row)
            return
        thread = threading.Thread(target=self.record, args=(row,), name="llmbroker-row")
        try:
            thread.start()
        except RuntimeError:  # no thread can be started any more: the program ends
            self.record(row)
            return
        self._beside = [*(one for one in self._beside if one.is_alive()), thread]

    def _serve(self) -> None:
        """Write the rows of all who wait. A row leaves the queue when it is kept, so an interrupt at any point loses none."""
        queue = self._queue
        while count := min(len(queue), BATCH):
            self._write([queue[index] for index in range(count)])
            for _ in range(count):
                queue.popleft()

    def _write(self, rows: list[Row]) -> None:
        if self._failure is None and len(self._spool) == 0:
            if self._try(rows):
                self._written += len(rows)
                self._unpruned += len(rows)
                if not self._looked:
                    self._adopt(ADOPT_BYTES)
                if self._unpruned >= PRUNE_EVERY_ROWS:
                    self._housekeeping(rows[-1].ts)
            return
        for row in rows:
            self._spool.put(row)
        if self._clock() >= self._next_try:
            self._drain(batches=2)

    def _try(self, rows: list[Row]) -> bool:
        """Write rows or spool them."""
        assert self.store is not None
        try:
            self._store_rows(rows)
        except Exception as error:  # noqa: BLE001 - no fault of a store may reach a call
            for row in rows:
                self._spool.put(row)
            self._failed(error)
            return False
        return True

    def _store_rows(self, rows: Sequence[Row]) -> None:
        """Write rows; one that no store could take is dropped alone, so that it does not hold up the others."""
        assert self.store is not None
        try:
            self.store.record(rows)
        except StoreError as error:
            if error.reason != "refused":
                raise
            if len(rows) == 1:
                self._refused += 1
                log.error("A row was dropped: %s", error)
                return
            for row in rows:
                self._store_rows([row])

    def _drain(self, batches: int | None = None) -> bool:
        """Write what waits; return whether nothing waits any more."""
        assert self.store is not None
        before = len(self._spool)
        try:
            self._spool.drain(self._store_rows, batches=batches)
        except Exception as error:  # noqa: BLE001 - no fault of a store may reach a call
            self._failed(error)
        else:
            self._recovered(before - len(self._spool))
        self._written += before - len(self._spool)
        return len(self._spool) == 0

    def _adopt(self, at_most: int | None = None) -> None:
        """Write rows that a dead process left beside the store; ``at_most``: leave files of more bytes for another time."""
        assert self.store is not None
        if self._adopted:
            return
        self._looked, self._adopted = True, at_most is None
        try:
            found = self._spool.adopt(self._store_rows, at_most)
        except Exception as error:  # noqa: BLE001 - their file stays where it is, for who comes next
            log.debug("rows left beside %s were not read: %s", self.store.where, error)
        else:
            if found:
                log.info("%d rows that an earlier process could not write were added to %s", found, self.store.where)

    def _housekeeping(self, latest: datetime) -> None:
        """Delete a batch of old rows.

        A row is old as seen from the newest row or from now, whichever is earlier: a clock that jumps ahead deletes nothing,
        nor does a program that lives in a time of its own.
        """
        assert self.store is not None
        try:
            self._unpruned = 0
            if self._retention is not None and self._clock() >= self._next_prune:
                now = min(utc(self._wall()), latest)
                gone = self.store.prune(now - self._retention, batch=PRUNE_BATCH)
                if gone < PRUNE_BATCH:
                    self._next_prune = self._clock() + PRUNE_PAUSE
        except Exception as error:  # noqa: BLE001 - it is tried again, and a store that is really broken refuses rows too
            log.debug("housekeeping of %s was put off: %s", self.store.where, error)

    def _failed(self, error: Exception) -> None:
        failure = error if isinstance(error, StoreError) else StoreError(f"The journal failed: {error!r}.", reason="other")
        if self._failure is None:
            self._since = utc(self._wall())
            self._pause = FIRST_PAUSE
        if self._failure is None or self._failure.reason != failure.reason:
            where = f" in {self._spool.path}" if self._spool.path else ""
            log.warning("%s Calls go on; their rows are kept%s.", failure, where)
        self._failure = failure
        self._next_try = self._clock() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _recovered(self, count: int) -> None:
        if self._failure is not None and self.store is not None:
            log.warning("The journal %s works again; %d waiting rows were written.", self.store.where, count)
        self._failure, self._since = None, None
        self._pause = FIRST_PAUSE

    def flush(self) -> bool:
        """Try now to write what waits; return whether nothing waits any more."""
        beside, self._beside = self._beside, []
        for thread in beside:
            thread.join(LONGEST_PAUSE)
        if self.store is None or (self._adopted and not self._queue and len(self._spool) == 0 and self._failure is None):
            return True
        with self._lock:
            self._adopt()
            self._serve()
            return len(self._spool) == 0 or self._drain()

    # -- ratings -----------------------------------------------------------------------------------------------------------

    def rate(
        self, score: float, *, call_id: str | None = None, trace_id: str | None = None, scope: str | None = None
    ) -> tuple[Call, Rating]:
        """Rate the call of that id, or the newest successful call of that trace, within the scope if one is given.

        Returns:
            The call that was rated and the rating, for the learner.

        Raises:
            InvalidRequestError: the score is no number from 0 to 1, or not exactly one of the ids is given.
            UnknownCallError: there is no such call in this scope.
            ConfigurationError: the journal is off or cannot be read.
        """
        score = check_score(score)
        if (call_id is None) == (trace_id is None):
            raise InvalidRequestError("Give exactly one of call_id and trace_id.", argument="call_id")
        for name, value in (("call_id", call_id), ("trace_id", trace_id)):
            _check_word(value, name)
        store = self._readable()
        call = store.find(scope=scope, call_id=call_id, trace_id=trace_id)
        if call is None:
            what = f"call_id {shown(call_id)}" if call_id is not None else f"trace_id {shown(trace_id)} that ended ok"
            within = f" in scope {shown(scope)}" if scope is not None else ""
            raise UnknownCallError(f"The journal has no call with {what}{within}.")
        rating = Rating(call_id=call.id, score=score, ts=utc(self._wall()), scope=scope)
        self.record(rating)
        return call, rating

    # -- reading -----------------------------------------------------------------------------------------------------------

    def calls(self, *, limit: int = 100, cursor: str | None = None, bodies: bool = False, **filters: Any) -> list[Call]:
        """Return calls, the newest first; ``filters`` are the fields of ``Query``.

        Raises:
            InvalidRequestError: a filter, the limit or the cursor means nothing.
            ConfigurationError: the journal is off or cannot be read.
        """
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InvalidRequestError(f"limit is a whole number from 1, not {shown(limit)}.", argument="limit")
        return self._readable().calls(_query(filters), limit=min(limit, MOST_ROWS), cursor=cursor, bodies=bodies)

    def stats(self, *, by: Grouping = "llm_name", **filters: Any) -> dict[str, Stats]:
        """Return sums by group; ``filters`` are the fields of ``Query``. Raises as ``calls`` does."""
        return self._readable().stats(_query(filters), by=by)

    def prune(self, *, before: datetime | None = None, batch: int = 1000) -> int:
        """Delete all calls older than ``before`` (default: the retention), batch by batch; return how many.

        Raises:
            ConfigurationError: the journal is off, or cannot be written.
        """
        if before is None:
            if self._retention is None:
                return 0
            before = utc(self._wall()) - self._retention
        store = self._readable()
        total = 0
        while True:
            gone = store.prune(before, batch=batch)
            total += gone
            if gone < batch:
                return total

    def _readable(self) -> Store:
        if self.store is None:
            raise ConfigurationError("The journal is off (journal=False), so nothing was kept that could be read.")
        self.flush()
        return self.store

    # -- state -------------------------------------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        """Return the state for a snapshot: ``state`` (ok, degraded, off), and what is behind it."""
        if self.store is None:
            return {"state": "off"}
        failure = self._failure
        waiting, lost = len(self._spool), self._spool.dropped + self._refused
        return {
            # Rows that are being committed at this moment are no trouble.
            "state": "ok" if failure is None and waiting + lost == 0 else "degraded",
            "where": self.store.where,
            "written": self._written,
            "spooled": waiting,
            "writing": len(self._queue),
            "spool_file": str(self._spool.path) if self._spool.path else None,
            "dropped": lost,
            "since": self._since,
            "reason": failure.reason if failure else None,
            "error": str(failure) if failure else None,
        }

    def close(self) -> None:
        """Write what waits, if the store lets us, and give everything back. May be called twice."""
        if self.store is None:
            return
        if not self.flush():
            with self._lock:
                kept = f"They are in {self._spool.path} and will be written by who opens the journal next."
                log.warning(
                    "%d rows could not be written to %s. %s", len(self._spool), self.store.where,
                    kept if self._spool.path else "They are lost.",
                )  # fmt: skip
        with self._lock:
            self._spool.close()
        self.store.close()

    def _after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        self._queue.clear()
        self._beside = []
        self._spool.forget()


def check_score(score: Any) -> float:
    """Return the score as a float.

    Raises:
        InvalidRequestError: it is no number from 0 to 1.
    """
    if isinstance(score, bool) or not isinstance(score, (int, float)) or not 0 <= score <= 1:  # nor is NaN
        raise InvalidRequestError(f"A score is a number from 0 to 1, not {shown(score)}.", argument="score")
    return float(score)


def _query(filters: dict[str, Any]) -> Query:
    unknown = sorted(set(filters) - set(Query.__struct_fields__))
    if unknown:
        raise InvalidRequestError(f"Calls cannot be chosen by {', '.join(unknown)}.", argument=unknown[0])
    for name in ("operation", "trace_id", "call_id", "group_id", "scope", "provider"):
        _check_word(filters.get(name), name)
    for name in ("status", "llm_name"):
        value = filters.get(name)
        if value is not None and not isinstance(value, str):
            if not isinstance(value, Iterable):
                raise InvalidRequestError(f"{name} is a text, or several, not {shown(value)}.", argument=name)
            filters[name] = value = tuple(value)
        for word in (value,) if isinstance(value, str) else value or ():
            _check_word(word, name)
    return Query(**filters)


def _check_word(value: Any, argument: str) -> None:
    """Refuse what no row can hold and no store can be asked for."""
    if value is None:
        return
    if not isinstance(value, str):
        raise InvalidRequestError(f"{argument} is a text, not {shown(value)}.", argument=argument)
    check_text(value, argument)


_JOURNALS: weakref.WeakSet[Journal] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for journal in list(_JOURNALS):
        journal._after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
