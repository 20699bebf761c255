"""Threads for the blocking port: workers that are used again, and jobs that can be cancelled.

Theory of operation
-------------------
A job is a flow that runs in a worker. What can block there is known: a connection, or an event. Before it blocks, the thread
leaves at its job the means to end the wait (``hold`` for a connection, ``pause`` for an event); ``cancel`` uses whichever is
there. Cancellation is told once, as in asyncio: the wait raises ``Cancelled``; what the flow awaits to clean up works.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from llmbroker.io import Flow, drive

T = TypeVar("T")
IDLE_SECONDS = 10.0
_here = threading.local()


class Cancelled(BaseException):
    """The job was cancelled. Not an ``Exception``: only who cancels may catch it."""


class Cuttable(Protocol):
    """A connection that another thread may cut."""

    def cut(self) -> None:
        """End every wait for it."""
        ...


class Workers:
    """Daemon threads that wait for a further task for some seconds before they end. As many as there are tasks."""

    def __init__(self, name: str = "llmbroker", idle_seconds: float = IDLE_SECONDS) -> None:
        self._name = name
        self._idle_seconds = idle_seconds
        self._idle: list[tuple[queue.SimpleQueue[Callable[[], None] | None], threading.Thread]] = []
        self._generation = 0
        self._pid = os.getpid()

    def run(self, task: Callable[[], None]) -> None:
        """Run a task, which does not raise, in a thread."""
        if self._pid != os.getpid():  # forked off: the parent's threads are not here
            self._pid, self._idle = os.getpid(), []
        try:
            inbox, _ = self._idle.pop()
        except IndexError:
            inbox = queue.SimpleQueue()
            thread = threading.Thread(target=self._work, args=(inbox,), name=self._name, daemon=True)
            inbox.put(task)
            thread.start()
        else:
            inbox.put(task)

    def _work(self, inbox: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        place = inbox, threading.current_thread()
        generation = self._generation
        task = inbox.get()
        while task is not None:
            task()
            task = None
            self._idle.append(place)
            try:
                task = inbox.get(timeout=self._idle_seconds if generation == self._generation else 0)
            except queue.Empty:
                try:
                    self._idle.remove(place)
                except ValueError:  # it was taken from the list in this very moment: a task is on its way
                    task = inbox.get()

    def close(self) -> None:
        """End the threads, busy ones after their task; a later task makes a new one."""
        self._generation += 1
        if self._pid != os.getpid():
            return
        while self._idle:
            try:
                inbox, thread = self._idle.pop()
            except IndexError:
                return
            inbox.put(None)
            thread.join(1.0)


class Ending(Generic[T]):
    """How a job ended: the half of ``io.Job`` that tells of it."""

    __slots__ = ("_done", "_error", "_result")

    def __init__(self) -> None:
        self._done = False
        self._result: T | None = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Whether it has ended."""
        return self._done

    def result(self) -> T:
        """Return its result or raise its exception."""
        if not self._done:
            raise RuntimeError("the job is still running")
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


class ThreadJob(Ending[T]):
    """A flow in a worker."""

    __slots__ = ("_cancelling", "_flow", "_held", "_lock", "_waker", "_watchers")

    def __init__(self, flow: Flow[T]) -> None:
        super().__init__()
        self._flow: Flow[T] | None = flow
        self._lock = threading.Lock()
        self._cancelling = False
        self._held: Cuttable | None = None
        self._waker: threading.Event | None = None
        self._watchers: list[threading.Event] = []

    def run(self) -> None:
        """Run the flow to its end, in this thread."""
        flow, self._flow = self._flow, None
        if flow is None:
            return
        _here.job = self
        try:
            if self._cancelling:
                flow.close()
                raise Cancelled
            self._result = drive(flow)
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
            self._error = error
        finally:
            _here.job = None
            with self._lock:
                self._done = True
                watchers, self._watchers = self._watchers, []
            for event in watchers:
                event.set()

    def cancel(self) -> None:
        """Make its current wait, or else its next one, raise ``Cancelled``."""
        with self._lock:
            if self._done:
                return
            self._cancelling = True
            if self._held is not None:
                self._held.cut()
            if self._waker is not None:
                self._waker.set()

    def check(self) -> None:
        """Raise ``Cancelled`` if that was asked for and not yet told."""
        if self._cancelling:
            with self._lock:
                self._cancelling = False
            raise Cancelled

    def hold(self, line: Cuttable | None) -> None:
        """Leave the connection that the thread is about to wait for; None takes it back.

        Raises:
            Cancelled: it was asked for already, and a connection is handed in.
        """
        with self._lock:
            self._held = line
        if line is not None:
            self.check()

    def pause(self, event: threading.Event, timeout: float | None) -> bool:
        """Wait for an event that nobody else waits for."""
        with self._lock:
            self._waker = event
            if self._cancelling:
                event.set()
        try:
            happened = event.wait(timeout)
        finally:
            with self._lock:
                self._waker = None
        self.check()
        return happened

    def watch(self, event: threading.Event) -> None:
        """Set the event when the job is done."""
        with self._lock:
            if not self._done:
                self._watchers.append(event)
                return
        event.set()

    def unwatch(self, event: threading.Event) -> None:
        """Forget the event."""
        with self._lock:
            if event in self._watchers:
                self._watchers.remove(event)


def current_job() -> ThreadJob[Any] | None:
    """Return the job that runs in this thread."""
    return getattr(_here, "job", None)


def pause(event: threading.Event, timeout: float | None = None) -> bool:
    """Wait for an event, as the job of this thread if it is one."""
    job = current_job()
    return event.wait(timeout) if job is None else job.pause(event, timeout)


class ThreadSignal:
    """A flag for flows in threads."""

    __slots__ = ("_flag", "_lock", "_waiting")

    def __init__(self) -> None:
        self._flag = False
        self._lock = threading.Lock()
        self._waiting: list[threading.Event] = []

    def set(self) -> None:
        """Wake who waits, from any thread."""
        with self._lock:
            self._flag = True
            waiting, self._waiting = self._waiting, []
        for event in waiting:
            event.set()

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until set (True) or until the time is over (False)."""
        event = threading.Event()
        with self._lock:
            if self._flag:
                return True
            self._waiting.append(event)
        try:
            pause(event, timeout)
        finally:
            with self._lock:
                if event in self._waiting:
                    self._waiting.remove(event)
        return self._flag
