"""A clock that jumps, and a small scheduler for flows: time passes when everybody waits, and only then.

Theory of operation
-------------------
Whoever may run is a *party*: a thread inside ``drive``, or an event loop whose tasks use the port. The clock counts the parties
that are busy. When none is, it jumps to the earliest waiting moment and wakes those who wait for it, in the order in which they
began to wait. So the same script gives the same order of events every time.

* A thread's party is a queue of tasks; a task is a coroutine that yields the waiter it waits for. A ``drive`` inside a
  ``drive`` (a user's function that calls a synchronous face) takes part in the same queue.
* A loop's party is idle when the loop has nothing left to run at once. Loops that do not show their queue (uvloop) count as
  idle after some rounds in which nothing touched the clock.
* A user's plain function takes no virtual time.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextvars import Context, copy_context
from typing import Any, TypeVar

from llmbroker import io
from llmbroker.transports._threads import Cancelled, Ending

T = TypeVar("T")
QUIET_ROUNDS = 200
PATIENCE = 1.0  # real seconds


class Deadlock(AssertionError):
    """Every flow waits, no time is set for any of them, and no other thread woke one."""


class _Party:
    """Who may run. ``idle``: has nothing to run; ``lent``: cannot run, for its thread does something else."""

    def __init__(self) -> None:
        self.idle = False
        self.lent = False

    @property
    def busy(self) -> bool:
        return not self.idle and not self.lent


class _ThreadParty(_Party):
    def __init__(self) -> None:
        super().__init__()
        self.ready: deque[Task[Any]] = deque()
        self.tasks: set[Task[Any]] = set()
        self.current: Task[Any] | None = None


class _LoopParty(_Party):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.loop = weakref.ref(loop)
        self.checking = False
        self.rounds = 0


class Waiter:
    """One wait. It ends once: by being woken (True) or by time (False)."""

    __slots__ = ("future", "over", "party", "task", "value")

    def __init__(self, party: _Party) -> None:
        self.party = party
        self.over = False
        self.value = False
        self.task: Task[Any] | None = None
        self.future: asyncio.Future[bool] | None = None

    def __await__(self) -> Generator[Waiter, bool, bool]:
        """Hand it to the scheduler."""
        value: bool = yield self
        return value


class Task(Ending[T]):
    """A flow of a thread's party; the port's ``Job``."""

    def __init__(self, clock: Clock, party: _ThreadParty, flow: io.Flow[T], context: Context | None) -> None:
        super().__init__()
        self._clock = clock
        self.party = party
        self.flow = flow
        self.context = context
        self.waiter: Waiter | None = None
        self.cancelling = False
        self.watchers: list[Waiter] = []

    def cancel(self) -> None:
        """Make its current wait, or else its next one, raise ``Cancelled``."""
        if self._done:
            return
        self.cancelling = True
        if self.waiter is not None:
            self._clock.wake(self.waiter)

    def finish(self, result: T | None, error: BaseException | None) -> None:
        """It has ended."""
        self._done, self._result, self._error = True, result, error
        self.party.tasks.discard(self)
        for waiter in self.watchers:
            self._clock.wake(waiter)


class Clock:
    """Virtual time and who waits for it."""

    def __init__(self, start: float) -> None:
        self._now = start
        self._timers: list[tuple[float, int, Waiter]] = []
        self._serial = 0
        self._busy = 0
        self._in_functions = 0
        self._changed = threading.Condition(threading.RLock())
        self._here = threading.local()
        # Held, not weak: a loop that was closed while it was busy has to be told from the others until it is counted out.
        self._loops: dict[asyncio.AbstractEventLoop, _LoopParty] = {}
        self.abandoned = 0

    def now(self) -> float:
        """Virtual seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Jump by hand; who waited for a moment on the way is woken, in order."""
        with self._changed:
            end = self._now + seconds
            while (when := self._next()) is not None and when <= end:
                self._jump(when)
            self._now = end

    # -- waiting --

    def task(self) -> Task[Any] | None:
        """Return the task that runs in this thread under ``drive``."""
        party: _ThreadParty | None = getattr(self._here, "party", None)
        return party.current if party is not None else None

    def waiter(self) -> Waiter:
        """Make a waiter for the flow that runs now."""
        task = self.task()
        if task is not None:
            if task.cancelling:
                task.cancelling = False
                raise Cancelled
            return Waiter(task.party)
        loop = asyncio.get_running_loop()
        waiter = Waiter(self._loop_party(loop))
        waiter.future = loop.create_future()
        return waiter

    async def wait(self, waiter: Waiter, until: float | None) -> bool:
        """Wait to be woken (True) or for a moment (False)."""
        if not waiter.over and until is not None:
            with self._changed:
                self._serial += 1
                heapq.heappush(self._timers, (until, self._serial, waiter))
        if waiter.future is None:
            return await waiter
        with self._changed:
            self._touch(waiter.party)
        try:
            return await waiter.future
        finally:
            waiter.over = True

    def wake(self, waiter: Waiter, value: bool = True) -> None:
        """End a wait; from any thread."""
        with self._changed:
            if waiter.over:
                return
            waiter.over, waiter.value = True, value
            if waiter.task is not None:
                waiter.task.party.ready.append(waiter.task)
            self._touch(waiter.party)
            if waiter.future is not None:
                try:
                    waiter.future.get_loop().call_soon_threadsafe(_settle, waiter.future, value)
                except RuntimeError:  # its loop is closed, nobody waits any more
                    pass
            self._changed.notify_all()

    def _next(self) -> float | None:
        timers = self._timers
        while timers and timers[0][2].over:
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    def _jump(self, when: float) -> None:
        self._now = max(self._now, when)
        while (at := self._next()) is not None and at <= when:
            self.wake(heapq.heappop(self._timers)[2], value=False)

    def _jump_if_idle(self) -> None:
        if self._busy == 0 and (when := self._next()) is not None:
            self._jump(when)

    def _set(self, party: _Party, *, idle: bool | None = None, lent: bool | None = None) -> None:
        before = party.busy
        if idle is not None:
            party.idle = idle
        if lent is not None:
            party.lent = lent
        self._busy += party.busy - before

    def _touch(self, party: _Party) -> None:
        self._set(party, idle=False)
        if isinstance(party, _LoopParty):
            party.rounds = 0
            loop = party.loop()
            if not party.checking and loop is not None and not loop.is_closed():
                party.checking = True
                loop.call_soon_threadsafe(self._check, party, loop)

    # -- event loops --

    def _loop_party(self, loop: asyncio.AbstractEventLoop) -> _LoopParty:
        with self._changed:
            party = self._loops.get(loop)
            if party is None:
                self._forget_closed()
                party = self._loops[loop] = _LoopParty(loop)
                party.idle = True
            return party

    def _forget_closed(self) -> None:
        for loop in [loop for loop in self._loops if loop.is_closed()]:
            self._set(self._loops.pop(loop), idle=True)

    def _check(self, party: _LoopParty, loop: asyncio.AbstractEventLoop) -> None:
        """Once a round of the loop: has it nothing else to run?"""
        party.rounds += 1
        queue = getattr(loop, "_ready", None)
        with self._changed:
            if party.rounds < QUIET_ROUNDS and (queue is None or queue):
                loop.call_soon(self._check, party, loop)
                return
            party.checking = False
            self._set(party, idle=True)
            self._changed.notify_all()
            self._jump_if_idle()

    # -- threads --

    def start(self, flow: io.Flow[T]) -> Task[T]:
        """Run a flow beside the one that runs in this thread."""
        parent = self.task()
        assert parent is not None
        task = Task(self, parent.party, flow, copy_context())
        parent.party.tasks.add(task)
        parent.party.ready.append(task)
        return task

    def drive(self, flow: io.Flow[T]) -> T:
        """Run a flow to its end in this thread, and what it starts beside it."""
        party: _ThreadParty | None = getattr(self._here, "party", None)
        if party is None:
            return self._drive_as_party(flow)
        outer, lent = party.current, party.lent
        with self._changed:
            self._set(party, lent=False)
        root = Task(self, party, flow, None)
        party.ready.appendleft(root)
        try:
            self._run(party, root)
        finally:
            party.current = outer
            with self._changed:
                self._set(party, lent=lent)
        return root.result()

    def _drive_as_party(self, flow: io.Flow[T]) -> T:
        party = self._here.party = _ThreadParty()
        blocked = self._running_loop_party()
        root = Task(self, party, flow, None)
        party.ready.append(root)
        inside = getattr(self._here, "functions", 0)  # a function that the port called is counted as busy already
        with self._changed:
            self._forget_closed()
            self._busy += 0 if inside else 1
            if blocked is not None:
                self._set(blocked, lent=True)
        try:
            self._run(party, root)
        finally:
            self._here.party = None
            self.abandoned += len(party.tasks)
            for task in list(party.tasks):
                with contextlib.suppress(RuntimeError):  # it waited while it was ended
                    task.flow.close()
            with self._changed:
                self._set(party, idle=False, lent=False)
                self._busy -= 0 if inside else 1
                if blocked is not None:
                    self._set(blocked, lent=False)
                self._changed.notify_all()
                self._jump_if_idle()
        return root.result()

    def _running_loop_party(self) -> _LoopParty | None:
        try:
            return self._loops.get(asyncio.get_running_loop())
        except RuntimeError:
            return None

    def _run(self, party: _ThreadParty, root: Task[Any]) -> None:
        try:
            while not root.done():
                if party.ready:
                    self._step(party, party.ready.popleft())
                else:
                    self._idle(party)
        finally:
            if not root.done():
                root.flow.close()

    def _step(self, party: _ThreadParty, task: Task[Any]) -> None:
        waiter, task.waiter = task.waiter, None
        outer, party.current = party.current, task
        flow = task.flow
        try:
            if task.cancelling:
                task.cancelling = False
                step: Callable[..., Any] = flow.throw
                value: Any = Cancelled()
            else:
                step, value = flow.send, waiter.value if waiter is not None else None
            yielded = step(value) if task.context is None else task.context.run(step, value)
        except StopIteration as stop:
            task.finish(stop.value, None)
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
            task.finish(None, error)
        else:
            if isinstance(yielded, Waiter):
                task.waiter, yielded.task = yielded, task
                if yielded.over or task.cancelling:
                    yielded.over = True
                    party.ready.append(task)
            else:
                flow.close()
                task.finish(None, RuntimeError("a flow waited for something else than its port"))
        finally:
            party.current = outer

    def _idle(self, party: _ThreadParty) -> None:
        with self._changed:
            self._set(party, idle=True)
            try:
                self._jump_if_idle()
                while not party.ready:
                    woken = self._changed.wait(PATIENCE)
                    if not party.ready and self._busy <= (0 if woken else self._in_functions):
                        if (when := self._next()) is not None:
                            self._jump(when)
                        elif not woken and self._busy == 0:
                            raise Deadlock("Every flow waits, and nothing will wake one: no time is set, no signal comes.")
            finally:
                self._set(party, idle=False)

    # -- users' functions --

    def in_function(self, enter: bool, *, own_thread: bool) -> None:
        """A user's function begins or ends; one in a thread of its own is busy, and takes no virtual time."""
        step = 1 if enter else -1
        with self._changed:
            self._in_functions += step
            self._busy += step if own_thread else 0
            if not enter:
                self._changed.notify_all()
                self._jump_if_idle()

    def run_counted(self, run: Callable[[], T]) -> T:
        """Run a user's function in this thread of its own, for which ``in_function`` was told that it begins."""
        self._here.functions = getattr(self._here, "functions", 0) + 1
        try:
            return run()
        finally:
            self._here.functions -= 1
            self.in_function(False, own_thread=True)

    def lend(self, lent: bool) -> None:
        """This thread waits for something outside the port, which may use the port itself."""
        party: _ThreadParty = self._here.party
        with self._changed:
            self._set(party, lent=lent)
            self._jump_if_idle()

    # -- jobs of either kind --

    async def wait_for(self, jobs: Sequence[Any], timeout: float | None) -> None:
        """Wait until one of the jobs is done, or for so long."""
        waiter = self.waiter()
        until = None if timeout is None else self._now + max(0.0, timeout)

        def wake(_: Any) -> None:
            self.wake(waiter)

        for job in jobs:
            if isinstance(job, Task):
                job.watchers.append(waiter)
            else:
                job.add_done_callback(wake)
        try:
            await self.wait(waiter, until)
        finally:
            for job in jobs:
                if not isinstance(job, Task):
                    job.remove_done_callback(wake)
                elif waiter in job.watchers:
                    job.watchers.remove(waiter)


class VirtualSignal:
    """A flag for flows in virtual time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._flag = False
        self._lock = threading.Lock()
        self._waiting: list[Waiter] = []

    def set(self) -> None:
        """Wake who waits, from any thread."""
        with self._lock:
            self._flag = True
            waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            self._clock.wake(waiter)

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until set (True) or until the time is over (False)."""
        waiter = self._clock.waiter()
        with self._lock:
            if self._flag:
                waiter.over = True
                return True
            self._waiting.append(waiter)
        try:
            await self._clock.wait(waiter, None if timeout is None else self._clock.now() + timeout)
        finally:
            with self._lock:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
        return self._flag


def _settle(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)
