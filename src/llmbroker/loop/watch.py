"""How a loop is watched: events are noted where they happen, and the flow rests until they were taken.

Theory of operation
-------------------
The flow of a watched loop is stepped by whoever reads its events, not run beside the reader: at ``flush`` it suspends with
``_Rest``, the reader takes the events and asks for more, and the flow goes on from there. No thread, no queue that fills up,
and a loop that nobody reads does nothing. All other suspensions are the port's and are handed through, so that the same few
lines serve the blocking, the asyncio and the replay port.

Tools run in jobs of their own and cannot suspend the flow. They note their events and wake it: while tools run, it waits for
them and for the wake-up.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Coroutine, Generator, Sequence
from typing import Any, TypeVar

from llmbroker.io import Flow, Job, Port, Signal, close_unbegun, gather

T = TypeVar("T")


class Closed(BaseException):
    """The reader left; the loop ends. Not an ``Exception``: no tool and no caller may take it for a failure."""


class _Rest:
    """What a flow awaits so that its events are taken."""

    def __await__(self) -> Generator[Any, None, None]:
        yield self


_REST = _Rest()


class Watch:
    """The events of one loop that nobody has taken yet."""

    def __init__(self, port: Port) -> None:
        self.port = port
        self.left = False
        """Whether the reader has left."""
        self._events: deque[Any] = deque()
        self._waker: Signal | None = None

    def note(self, event: Any) -> None:
        """Keep an event; from any thread."""
        self._events.append(event)
        waker = self._waker
        if waker is not None:
            waker.set()

    async def flush(self) -> None:
        """Rest until the events were taken."""
        if self._events:
            await _REST

    def take(self) -> list[Any]:
        """Return the events so far."""
        out = []
        while self._events:
            out.append(self._events.popleft())
        return out

    async def gather(self, flows: Sequence[Flow[T]], limit: int) -> list[T | BaseException]:
        """Run flows side by side as ``io.gather`` does; their events are taken while they run."""
        port = self.port
        if getattr(port, "jobs_end_with_drive", False):
            return await gather(port, flows, limit)
        work = port.start(gather(port, flows, limit))
        wake: Job[Any] | None = None
        try:
            while not work.done():
                if wake is None or wake.done():
                    self._waker = port.signal()
                    wake = port.start(_awaken(self._waker))
                await self.flush()
                if not work.done():
                    await port.wait([work, wake])
        except BaseException:
            work.cancel()
            while not work.done():
                await port.wait([work])
            with contextlib.suppress(BaseException):
                work.result()
            raise
        finally:
            if self._waker is not None:
                self._waker.set()
            if wake is not None:
                while not wake.done():
                    await port.wait([wake])
            self._waker = None
            close_unbegun(flows)  # where the job was cancelled before its first step, nobody has
        return work.result()


async def _awaken(signal: Signal) -> None:
    await signal.wait()


class Pump:
    """A watched flow and its reader."""

    def __init__(self, flow: Coroutine[Any, Any, Any], watch: Watch) -> None:
        self._flow = flow
        self._watch = watch
        self._busy = False
        self._closed: Signal | None = None
        self.over = False
        self.begun = False
        self.result: Any = None

    async def next_events(self) -> list[Any]:
        """Return the next events, at least one; an empty list when the loop is over.

        Raises:
            BaseException: what ends the loop, after the events before it were returned.
        """
        events = self._watch.take()
        if not events and not self.over:
            await _Advance(self, None)
            events = self._watch.take()
        return events

    async def close(self, *, wait: bool = True) -> None:
        """End the loop: running tools are cancelled and waited for, the connection is cut. May be called twice.

        ``wait``: also where somebody else is at it already, as an iterator that was dropped is.
        """
        if self.over:
            return
        if not self.begun:
            self.drop()
            return
        if self._closed is not None:
            if wait:
                await self._closed.wait()
            return
        self._closed = closed = self._watch.port.signal()
        self._watch.left = self._watch.left or not self._busy
        try:
            with contextlib.suppress(Closed):
                while not self.over:
                    await _Advance(self, Closed("the reader left"))
        finally:
            self._closed = None
            closed.set()

    def drop(self) -> None:
        """End a loop that never began."""
        self.over = True
        self._flow.close()

    def step(self, value: Any, error: BaseException | None) -> Any:
        """Run the flow until it suspends; return what for, or ``_REST`` at its end."""
        self.begun = True
        try:
            return self._flow.send(value) if error is None else self._flow.throw(error)
        except StopIteration as stop:
            self.over = True
            self.result = stop.value
            return _REST
        except BaseException:
            self.over = True
            raise


class _Advance:
    """Steps the flow until it rests or ends; what else it waits for is handed through."""

    def __init__(self, pump: Pump, error: BaseException | None) -> None:
        self._pump = pump
        self._error = error

    def __await__(self) -> Generator[Any, Any, None]:
        pump = self._pump
        if pump._busy:
            raise RuntimeError("the events of a loop are read by one reader at a time")
        pump._busy = True
        try:
            waiting = pump.step(None, self._error)
            while waiting is not _REST:
                try:
                    value = yield waiting
                except BaseException as error:  # noqa: BLE001 - it belongs to the flow, which waits for it
                    waiting = pump.step(None, error)
                else:
                    waiting = pump.step(value, None)
        finally:
            pump._busy = False
