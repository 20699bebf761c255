"""An event loop for one flow of plain code: many requests at once, from a function that is not asynchronous.

In a thread without a running loop the flow runs right here, so that Ctrl-C cancels it in good order. Inside a running loop (a
notebook) it gets a thread of its own while the caller waits.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any, TypeVar

from llmbroker.io import Flow
from llmbroker.transports._threads import pause

T = TypeVar("T")


def run(flow: Flow[T]) -> T:
    """Run a flow over the asyncio port to its end; return its result or raise its exception."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(flow)
    return _in_thread(flow)


def _in_thread(flow: Flow[T]) -> T:
    outcome: list[Any] = []
    finished = threading.Event()
    loop_of: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = []

    async def main() -> None:
        loop_of.append((asyncio.get_running_loop(), asyncio.current_task()))
        outcome.extend((await flow, None))

    def work() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller
            outcome[:] = [None, error]
        finally:
            finished.set()

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(work,), name="llmbroker-rows", daemon=True)
    thread.start()
    try:
        pause(finished)
    except BaseException:
        for loop, task in loop_of:
            if task is not None:
                loop.call_soon_threadsafe(task.cancel)
        finished.wait(5.0)
        raise
    thread.join(1.0)
    result, error = outcome
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]
