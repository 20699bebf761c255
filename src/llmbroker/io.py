"""The port: everything a flow may ask of the world, and ``drive``, which runs a flow without an event loop.

Theory of operation
-------------------
Every piece of control flow in this library (a call, a failover, a tool loop) is written once, as a coroutine that awaits only
methods of a ``Port``. Three ports exist (``transports/``): blocking, asyncio and replay. Under the blocking port no await ever
suspends: ``send`` does its work and returns, so that one ``coro.send(None)`` runs the whole flow to its end in the caller's
own thread. That is all that ``drive`` does. Under the asyncio port the same coroutine is awaited. Under the replay port time is
virtual and the bytes are scripted.

Rules for flows: no asyncio, no threads, no clock, no sockets; streams are objects with ``read`` and ``close``, never async
generators; no lock is held across an await; every deadline is absolute, in seconds on the scale of ``port.now()``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from llmbroker.wire import HTTPReply, HTTPRequest

T = TypeVar("T")
R = TypeVar("R", covariant=True)
Flow = Coroutine[Any, Any, T]


class ByteStream(Protocol):
    """An open answer: status and headers are there, the body comes as it arrives."""

    status: int
    headers: Mapping[str, str]

    async def read(self, deadline: float | None = None) -> bytes:
        """Return the next bytes as soon as some are there; ``b""`` at the proper end.

        Raises:
            ConnectionFailedError: the connection broke before the end that the framing promised.
            LLMTimeoutError: the deadline passed.
            InvalidProviderResponseError: the body is longer than the port allows.
        """
        ...

    async def close(self) -> None:
        """Give the connection back if the body was read to its end, else cut it. Never raises; may be called twice."""
        ...


class Job(Protocol[R]):
    """A flow that runs beside its parent."""

    def done(self) -> bool:
        """Whether it has ended."""
        ...

    def result(self) -> R:
        """Return its result or raise its exception; only after it is done."""
        ...

    def cancel(self) -> None:
        """Ask it to stop: its current await raises the port's cancellation; its connection is cut."""
        ...


class Signal(Protocol):
    """A flag that one flow waits for and any thread may set."""

    def set(self) -> None:
        """Wake the waiter, from any thread."""
        ...

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until set (True) or until ``timeout`` seconds passed (False)."""
        ...


@runtime_checkable
class Port(Protocol):
    """What a flow may ask of the world."""

    async def send(self, request: HTTPRequest, deadline: float | None = None) -> HTTPReply:
        """Send a request, return the whole answer, whatever its status. Redirects are never followed.

        Raises:
            ConnectionFailedError: with ``sent`` False if the provider cannot have seen the request.
            LLMTimeoutError: the deadline passed.
            InvalidProviderResponseError: headers or body are larger than the port allows, or are not HTTP.
        """
        ...

    async def open(self, request: HTTPRequest, deadline: float | None = None) -> ByteStream:
        """Send a request, return as soon as the headers are there. Raises as ``send`` does."""
        ...

    def now(self) -> float:
        """Monotonic seconds; the scale of every deadline."""
        ...

    def time(self) -> float:
        """Wall-clock seconds since 1970, UTC."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait; can be cancelled."""
        ...

    async def call(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a user's function off the flow's path: a plain one where it may block, an ``async def`` awaited.

        The caller's context variables are visible in it. Exceptions pass through unchanged.
        """
        ...

    def start(self, flow: Flow[T]) -> Job[T]:
        """Run a flow beside this one. Whoever starts a job waits for it or cancels it and waits."""
        ...

    async def wait(self, jobs: Sequence[Job[Any]], timeout: float | None = None) -> list[Job[Any]]:
        """Wait until at least one job is done or the time is over; return those that are done."""
        ...

    def signal(self) -> Signal:
        """Make a flag."""
        ...

    def drive(self, flow: Flow[T]) -> T:
        """Run a flow to its end from plain code; only ports that serve synchronous faces have it."""
        ...

    def close(self) -> None:
        """Close idle connections and helpers; from plain code."""
        ...

    async def aclose(self) -> None:
        """Close idle connections and helpers; from a flow."""
        ...


def drive(flow: Flow[T]) -> T:
    """Run a flow whose awaits never suspend; return its result or raise its exception."""
    try:
        flow.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    flow.close()
    raise RuntimeError("a flow suspended under a port that cannot wait: only methods of the port may be awaited")


async def _kept(flow: Flow[T]) -> T | BaseException:
    """Return what comes out, exceptions too; an interrupt that left a task would tear its event loop down around the parent."""
    try:
        return await flow
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        return error


async def _stop(port: Port, jobs: Sequence[Job[Any]]) -> None:
    """Cancel jobs and wait for them, as long as at least one a second ends."""
    for job in jobs:
        job.cancel()
    while left := [job for job in jobs if not job.done()]:
        await port.wait(left, timeout=1.0)
        if all(not job.done() for job in left):
            break


def close_unbegun(flows: Iterable[Flow[Any]]) -> None:
    """Close those flows that never began: they would be reported as never awaited. Nobody may begin them any more."""
    for flow in flows:
        known: Any = flow
        if getattr(known, "cr_frame", None) is not None and not known.cr_running and not known.cr_suspended:
            with contextlib.suppress(ValueError):  # it began in this very moment
                flow.close()


async def gather(port: Port, flows: Sequence[Flow[T]], limit: int | None = None) -> list[T | BaseException]:
    """Run flows side by side, at most ``limit`` at once; return results or exceptions in the order given.

    When the caller is cancelled or a ``BaseException`` that is no ``Exception`` comes out of one, the others are cancelled
    and waited for, and it is raised.
    """
    out: list[T | BaseException] = [RuntimeError("not run")] * len(flows)
    if len(flows) == 1:
        try:
            out[0] = await flows[0]
        except Exception as error:  # noqa: BLE001 - the caller asked for exceptions as values
            out[0] = error
        return out
    waiting = list(enumerate(flows))[::-1]
    running: dict[int, tuple[int, Job[T | BaseException]]] = {}
    try:
        while waiting or running:
            while waiting and (limit is None or len(running) < limit):
                index, flow = waiting.pop()
                job = port.start(_kept(flow))
                running[id(job)] = (index, job)
            for done in await port.wait([job for _, job in running.values()]):
                index, job = running.pop(id(done))
                out[index] = result = job.result()
                if isinstance(result, (KeyboardInterrupt, SystemExit)):
                    raise result
    except BaseException:
        await _stop(port, [job for _, job in running.values()])
        close_unbegun(flows)
        raise
    return out


async def whole(port: Port, request: HTTPRequest, deadline: float | None) -> HTTPReply:
    """Read an answer to its end: what ``send`` is to a port that has nothing quicker."""
    stream = await port.open(request, deadline)
    parts = []
    try:
        while part := await stream.read(deadline):
            parts.append(part)
    finally:
        await stream.close()
    return HTTPReply(stream.status, stream.headers, b"".join(parts))
