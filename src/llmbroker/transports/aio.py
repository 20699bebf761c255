"""The asyncio port: the same exchange as the blocking port, on the caller's event loop.

Theory of operation
-------------------
Bytes are read by the machines of ``_http1`` that the blocking port uses too: answers, limits and faults are the same in both.
A ``Line`` is a connection: the loop hands it bytes, a flow takes them out with a deadline; when nobody takes them, reading is
paused, so that memory stays bounded. Connections belong to their event loop: each loop has its own set, which is closed when
the loop shuts down (``asyncio.run`` does that in good order) or by ``aclose``; several loops in turn, or in several threads,
may use one port. There is no limit on connections unless one is set.

Sending again: the rule of the blocking port, word for word: a request goes out a second time only if its connection had carried
an answer before, this time brought not a byte, and the server cannot have seen it (writing failed at once, or the peer closed
in good order and its TCP never acknowledged a byte of it).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from llmbroker import io
from llmbroker.errors import LLMBrokerError
from llmbroker.transports import _http1 as http1
from llmbroker.transports import _target
from llmbroker.transports._lines import AsyncSignal, Home, Line, connect, enter, in_worker, is_async, note
from llmbroker.transports._loop import awaited
from llmbroker.transports._threads import Workers
from llmbroker.wire import HTTPReply, HTTPRequest

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")


class AsyncIO:
    """A port for asyncio.

    Args:
        timeout_connect: seconds for a connection (name look-up, TCP, proxy, TLS), within the deadline.
        max_body: bytes of an answer's body after unpacking; more is an error.
        max_headers: bytes of an answer's head.
        pool: idle connections kept per host and loop.
        limit: requests in flight per loop; more wait, within their deadline. None: no limit.
        idle_seconds: how long an idle connection is trusted; below the 60 s after which common load balancers drop it.
        verify: False to accept any certificate, or an ``ssl.SSLContext``. True honours ``SSL_CERT_FILE``.
        proxies: which proxy serves which host; None reads the environment once.
    """

    def __init__(
        self,
        *,
        timeout_connect: float = 10.0,
        max_body: int = http1.MAX_BODY,
        max_headers: int = http1.MAX_HEADERS,
        pool: int = 1024,
        limit: int | None = None,
        idle_seconds: float = 45.0,
        verify: bool | ssl.SSLContext = True,
        proxies: _target.Proxies | None = None,
    ) -> None:
        self.timeout_connect = timeout_connect
        self.max_body = max_body
        self.max_headers = max_headers
        self._pool = pool
        self._limit = limit
        self._idle_seconds = idle_seconds
        self._verify = verify
        self._targets = _target.Targets(proxies)
        self._homes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Home] = weakref.WeakKeyDictionary()
        self._workers = Workers()

    # -- requests --

    async def send(self, request: HTTPRequest, deadline: float | None = None) -> HTTPReply:
        """Send a request, return the whole answer, whatever its status. See ``Port.send``."""
        if request.url.startswith("local:"):
            from llmbroker.transports import local

            return await self._in_engine(lambda hold: local.send(request, deadline, monotonic, hold))
        stream = await self._exchange(request, deadline)
        parts = []
        while part := await stream.read(deadline):
            parts.append(part)
        return HTTPReply(stream.status, stream.headers, parts[0] if len(parts) == 1 else b"".join(parts))

    async def open(self, request: HTTPRequest, deadline: float | None = None) -> io.ByteStream:
        """Send a request, return as soon as the headers are there. See ``Port.open``."""
        if request.url.startswith("local:"):
            from llmbroker.transports import local

            return _LocalStream(self, await self._in_engine(lambda hold: local.open(request, deadline, monotonic, hold)))
        return await self._exchange(request, deadline)

    async def _in_engine(self, wait: Callable[[Callable[[Any], None]], T]) -> T:
        """Wait for the engine of this process in a thread; a cancellation ends that wait too."""
        held: list[Any] = []
        left = threading.Event()

        def hold(line: Any) -> None:
            held.append(line)
            if left.is_set():
                line.cut()

        try:
            return await in_worker(self._workers, lambda: wait(hold))
        except asyncio.CancelledError:
            left.set()
            for line in held:
                line.cut()
            raise

    async def _exchange(self, request: HTTPRequest, deadline: float | None) -> AsyncStream:
        target = self._targets.find(request.url)
        if deadline is not None and deadline <= monotonic():
            raise _target.timed_out(target, sent=False)
        message = _target.message(target, request)
        loop = asyncio.get_running_loop()
        home = self._homes.get(loop) or self._settle(loop)
        if home.gate is not None:
            await enter(home.gate, target, deadline)
        try:
            while True:
                line = self._reuse(home, target)
                kept = line is not None
                if line is None:
                    line = await connect(home, target, deadline, self.timeout_connect, self._verify)
                try:
                    stream = await self._attempt(home, line, kept, target, request.method, message, deadline)
                except BaseException as error:
                    line.cut()
                    if isinstance(error, http1.WireError):
                        raise _target.unreadable(target, error) from None
                    raise
                if stream is not None:
                    return stream
                line.cut()
        except BaseException:
            if home.gate is not None:
                home.gate.release()
            raise

    async def _attempt(
        self,
        home: Home,
        line: Line,
        kept: bool,
        target: _target.Target,
        method: str,
        message: memoryview,
        deadline: float | None,
    ) -> AsyncStream | None:
        """Write the request, read up to the end of the head; None: it must be sent again (see above)."""
        line.write(message, kept)
        data = await line.read(target, deadline, sent=not line.untouched)
        if not data:
            if kept and line.unseen():
                return None
            raise _target.broken(target, "the server closed it without an answer", sent=not line.untouched)
        answer = http1.AnswerReader(method, self.max_headers, self.max_body)
        out = answer.feed(data)
        while answer.head is None:
            data = await line.read(target, deadline)
            out = answer.feed(data) if data else answer.eof()
        return AsyncStream(self, home, line, target, answer, out)

    # -- connections --

    def _settle(self, loop: asyncio.AbstractEventLoop) -> Home:
        """Make the set of connections of this loop; drop those of loops that are closed."""
        for other in [other for other in self._homes if other.is_closed()]:
            self._homes.pop(other).close()
        home = self._homes[loop] = Home(self._workers)
        if self._limit is not None:
            home.gate = asyncio.Semaphore(self._limit)
        return home

    def _reuse(self, home: Home, target: _target.Target) -> Line | None:
        idle = home.idle.get(target.key)
        while idle:
            line = idle.pop()
            if line.fresh():
                return line
            line.cut()
        return None

    def release(self, home: Home, line: Line, target: _target.Target, hint: str | None) -> None:
        """Take a connection back whose answer was read to its end. ``hint``: the answer's Keep-Alive field."""
        seconds = self._idle_seconds
        if hint is not None:
            seconds = min(seconds, http1.keep_alive_seconds(hint))
        idle = home.idle.setdefault(target.key, [])
        line.rest(seconds)
        idle.append(line)
        if len(idle) > self._pool:
            idle.pop(0).cut()

    # -- time, functions, jobs --

    def now(self) -> float:
        """Monotonic seconds."""
        return monotonic()

    def time(self) -> float:
        """Seconds since 1970, UTC."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def call(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Await a user's async function here; run a plain one in a thread, with the context variables copied."""
        if is_async(fn):
            return await awaited(fn(*args, **kwargs))
        context = copy_context()
        result = await in_worker(self._workers, lambda: context.run(fn, *args, **kwargs))
        return await awaited(result) if inspect.isawaitable(result) else result

    def start(self, flow: io.Flow[T]) -> io.Job[T]:
        """Run a flow as a task."""
        task = asyncio.get_running_loop().create_task(flow)
        task.add_done_callback(note)
        return cast("io.Job[T]", task)

    async def wait(self, jobs: Sequence[io.Job[Any]], timeout: float | None = None) -> list[io.Job[Any]]:
        """Wait until at least one job is done or the time is over."""
        done = [job for job in jobs if job.done()]
        if done or not jobs:
            return done
        tasks = cast("Sequence[asyncio.Task[Any]]", jobs)
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        return [job for job in jobs if job.done()]

    def signal(self) -> io.Signal:
        """Make a flag."""
        return AsyncSignal()

    def drive(self, flow: io.Flow[T]) -> NoReturn:
        """Refuse: flows of this port are awaited."""
        flow.close()
        raise RuntimeError("AsyncIO serves 'await'; synchronous code takes BlockingIO.")

    def close(self) -> None:
        """Close idle connections and threads from plain code, while no loop uses the port."""
        for loop, home in list(self._homes.items()):
            if loop.is_closed():
                self._homes.pop(loop, None)
            elif loop.is_running():
                loop.call_soon_threadsafe(home.close_idle)
            else:
                home.close()
                with contextlib.suppress(RuntimeError):  # inside another loop: the sockets close when this one runs again
                    loop.run_until_complete(asyncio.sleep(0))
        self._workers.close()

    async def aclose(self) -> None:
        """Close this loop's idle connections and the idle threads. The port stays usable."""
        home = self._homes.get(asyncio.get_running_loop())
        if home is not None:
            await home.leave()
            await asyncio.sleep(0)  # the transports close their sockets in the loop's next round
        self._workers.close()


class AsyncStream:
    """An open answer of the asyncio port."""

    def __init__(
        self, port: AsyncIO, home: Home, line: Line, target: _target.Target, answer: http1.AnswerReader, out: bytes
    ) -> None:
        assert answer.head is not None
        self.status = answer.head.status
        self.headers: Mapping[str, str] = answer.head.headers
        self._port = port
        self._home = home
        self._line: Line | None = line
        self._target = target
        self._answer = answer
        self._out = out
        self._fault: LLMBrokerError | None = None
        if answer.done:
            self._end()

    async def read(self, deadline: float | None = None) -> bytes:
        """Return the next bytes, ``b""`` at the end. See ``ByteStream.read``."""
        if self._out:
            out, self._out = self._out, b""
            return out
        if self._fault is not None:
            raise self._fault
        answer, line = self._answer, self._line
        while line is not None:
            try:
                data = await line.read(self._target, deadline)
                out = answer.feed(data) if data else answer.eof()
            except BaseException as error:
                self._cut()
                if isinstance(error, http1.WireError):
                    error = _target.unreadable(self._target, error)
                if isinstance(error, LLMBrokerError):
                    self._fault = error
                raise error from None
            if answer.done:
                self._end()
                line = None
            if out:
                return out
        return b""

    def _end(self) -> None:
        line = self._line
        if line is not None:
            kept = self._answer.reusable and _target.can_be_kept(self._target, self.headers)
            if kept and not line.ended and not line.transport.get_write_buffer_size():
                self._line = None
                self._port.release(self._home, line, self._target, self.headers.get("keep-alive"))
                self._leave()
            else:
                self._cut()

    def _cut(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.cut()
            self._leave()

    def _leave(self) -> None:
        if self._home.gate is not None:
            self._home.gate.release()

    async def close(self) -> None:
        """Give the connection back if the answer's end has arrived, else cut it."""
        self._out, self._fault = b"", None
        line = self._line
        if line is not None:
            try:
                if data := line.read_now():
                    self._answer.feed(data)
            except http1.WireError:
                pass
            if self._answer.done:
                self._end()
            self._cut()

    def __del__(self) -> None:
        """A stream that was forgotten gives its connection up, on its own loop."""
        line = getattr(self, "_line", None)
        if line is not None:
            try:
                line.loop.call_soon_threadsafe(_give_up, line, self._home)
            except RuntimeError:  # the loop is closed
                pass


def _give_up(line: Line, home: Home) -> None:
    line.cut()
    if home.gate is not None:
        home.gate.release()


class _LocalStream:
    """The stream of an engine in this process, read in threads."""

    def __init__(self, port: AsyncIO, inner: Any) -> None:
        self._port = port
        self._inner = inner
        self.status: int = inner.status
        self.headers: Mapping[str, str] = inner.headers

    async def read(self, deadline: float | None = None) -> bytes:
        """Return the next bytes."""

        def wait(hold: Callable[[Any], None]) -> bytes:
            hold(self._inner)
            data: bytes = self._inner.read(deadline)
            return data

        return await self._port._in_engine(wait)

    async def close(self) -> None:
        """End it."""
        await self._port.call(self._inner.close)
