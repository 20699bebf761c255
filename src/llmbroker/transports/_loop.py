"""An event loop for the async functions of synchronous callers; loaded when the first of them comes."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Coroutine
from typing import Any

from llmbroker.transports._threads import pause


async def awaited(awaitable: Awaitable[Any]) -> Any:
    """Await what a user's function gave.

    A cancellation of the caller that the function swallowed or turned into another error is raised all the same; a
    cancellation that came from within the function is a failure of the function, not of the caller.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        result = await awaitable
    except asyncio.CancelledError as error:
        if task is None or task.cancelling():
            raise
        raise RuntimeError("the function was cancelled from within") from error
    except Exception as error:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError from error
        raise
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError
    return result


class PrivateLoop:
    """One event loop in a thread of its own, for the async functions of sync callers.

    It is made on first use and lives until ``close``, so that what a user's functions bind to their loop (sessions, locks)
    stays usable from one call to the next.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Await it on the loop, with this thread's context variables; return its result or raise its exception."""
        outcome: list[Any] = []
        finished = threading.Event()
        tasks: list[asyncio.Task[None]] = []

        async def main() -> None:
            try:
                outcome.extend((await awaited(awaitable), None))
            except BaseException as error:  # noqa: BLE001 - it belongs to the caller, not to the loop
                outcome.extend((None, error))
            finally:
                finished.set()

        context = contextvars.copy_context()
        loop = self._ensure()
        over = threading.Event()  # not ``finished``: whoever cancels this thread's wait sets that one

        def ended(_: asyncio.Task[None]) -> None:
            if isinstance(awaitable, Coroutine):
                awaitable.close()  # one that was cancelled before its first step would be reported as never awaited
            over.set()

        def begin() -> None:
            task = loop.create_task(main(), context=context)
            task.add_done_callback(ended)
            tasks.append(task)

        loop.call_soon_threadsafe(begin)
        try:
            pause(finished)
        except BaseException:
            loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
            over.wait(1.0)
            raise
        result, error = outcome
        if error is not None:
            raise error
        return result

    def _ensure(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._loop.is_closed():
                ready = threading.Event()
                self._thread = threading.Thread(
                    target=asyncio.run, args=(self._serve(ready),), name="llmbroker-loop", daemon=True
                )
                self._thread.start()
                ready.wait()
            assert self._loop is not None
            return self._loop

    async def _serve(self, ready: threading.Event) -> None:
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        ready.set()
        await self._stop.wait()

    def close(self) -> None:
        """End the loop; what still runs on it is cancelled."""
        with self._lock:
            loop, thread, stop = self._loop, self._thread, self._stop
            self._loop = self._thread = self._stop = None
        if loop is not None and thread is not None and stop is not None:
            try:
                loop.call_soon_threadsafe(stop.set)
            except RuntimeError:
                return
            if thread is not threading.current_thread():
                thread.join(1.0)
