"""The blocking port: sockets in the caller's own thread, jobs in worker threads.

Theory of operation
-------------------
No await of this port suspends, so ``drive`` runs a flow in the thread that called. A connection belongs to one thread from the
moment it is taken from the pool until it is given back, so nothing is locked while bytes move. The deadline holds for every
single wait: name look-up, connecting, handshake, each read, so a server that drips cannot stretch it. Python's own signal
handling ends a blocked read, so Ctrl-C works; the connection is then cut, never given back.

Sending again
-------------
A server may close a kept connection in the moment we send on it. The request is sent once more, on a fresh connection, only
if the server cannot have seen it, and that is: the connection had carried an answer before, this one brought not a byte, and
either writing failed at the first byte, or the peer ended the connection in good order (EOF, no reset) and its TCP never
acknowledged a byte of the request (Linux tells, elsewhere this case counts as seen). A reset proves nothing: a server that
read the request and died looks the same. Whatever is in doubt is reported with ``sent`` True and decided above.
The asyncio port keeps the same rule.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import copy_context
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from llmbroker import io
from llmbroker.errors import LLMBrokerError
from llmbroker.transports import _http1 as http1
from llmbroker.transports import _target
from llmbroker.transports._connect import Connection, connect
from llmbroker.transports._threads import ThreadJob, ThreadSignal, Workers, current_job, pause
from llmbroker.wire import HTTPReply, HTTPRequest

if TYPE_CHECKING:
    import ssl

    from llmbroker.transports._loop import PrivateLoop

T = TypeVar("T")
MAX_DRAIN = 16 * 1024  # what a stream that is closed early may still hold without its connection being cut


class _State:
    """What a port has opened. A process that was forked off begins with a fresh one."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.idle: dict[tuple[str, str, int], list[Connection]] = {}
        self.workers = Workers()
        self._loop: PrivateLoop | None = None

    @property
    def loop(self) -> PrivateLoop:
        """The private event loop, made on first use."""
        if self._loop is None:
            from llmbroker.transports._loop import PrivateLoop

            self._loop = PrivateLoop()
        return self._loop

    def close(self) -> None:
        """Close everything that is idle."""
        for connections in list(self.idle.values()):
            while connections:
                connections.pop().close()
        if self.pid == os.getpid():
            self.workers.close()
            if self._loop is not None:
                self._loop.close()


class BlockingIO:
    """A port for synchronous code; thread-safe, usable inside a running event loop and after fork.

    Args:
        timeout_connect: seconds for a connection (name look-up, TCP, proxy, TLS), within the deadline.
        max_body: bytes of an answer's body after unpacking; more is an error.
        max_headers: bytes of an answer's head.
        pool: idle connections kept per host.
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
        pool: int = 32,
        idle_seconds: float = 45.0,
        verify: bool | ssl.SSLContext = True,
        proxies: _target.Proxies | None = None,
    ) -> None:
        self.timeout_connect = timeout_connect
        self.max_body = max_body
        self.max_headers = max_headers
        self._pool = pool
        self._idle_seconds = idle_seconds
        self._verify = verify
        self._targets = _target.Targets(proxies)
        self._state = _State()
        self._finalizer = weakref.finalize(self, self._state.close)

    # -- requests --

    async def send(self, request: HTTPRequest, deadline: float | None = None) -> HTTPReply:
        """Send a request, return the whole answer, whatever its status. See ``Port.send``."""
        if request.url.startswith("local:"):
            from llmbroker.transports import local

            with _held() as hold:
                return local.send(request, deadline, monotonic, hold)
        stream = self._exchange(request, deadline)
        parts = []
        while part := stream.take(deadline):
            parts.append(part)
        return HTTPReply(stream.status, stream.headers, parts[0] if len(parts) == 1 else b"".join(parts))

    async def open(self, request: HTTPRequest, deadline: float | None = None) -> io.ByteStream:
        """Send a request, return as soon as the headers are there. See ``Port.open``."""
        if request.url.startswith("local:"):
            from llmbroker.transports import local

            with _held() as hold:
                return _LocalStream(local.open(request, deadline, monotonic, hold))
        return self._exchange(request, deadline)

    def _exchange(self, request: HTTPRequest, deadline: float | None) -> Stream:
        """Send the request, read the head of the answer."""
        target = self._targets.find(request.url)
        state = self._own_state()
        job = current_job()
        if deadline is not None and deadline <= monotonic():
            raise _target.timed_out(target, sent=False)
        message = _target.message(target, request)
        while True:
            if job is not None:
                job.check()
            line = self._reuse(state, target)
            kept = line is not None
            if line is None:
                line = connect(target, deadline, self.timeout_connect, self._verify, job)
            try:
                stream = self._attempt(state, line, kept, request.method, message, deadline, job)
            except BaseException as error:
                _drop(line, job)
                if job is not None:
                    job.check()
                if isinstance(error, http1.WireError):
                    raise _target.unreadable(target, error) from None
                raise
            if stream is not None:
                return stream
            _drop(line, job)

    def _attempt(
        self,
        state: _State,
        line: Connection,
        kept: bool,
        method: str,
        message: memoryview,
        deadline: float | None,
        job: ThreadJob[Any] | None,
    ) -> Stream | None:
        """Write the request, read up to the end of the head; None: it must be sent again (see above)."""
        if job is not None:
            job.hold(line)
        if kept:
            line.mark()
        fault = line.write(message, deadline)
        data = b"" if fault is not None and line.untouched else line.read(deadline)
        if not data:
            if kept and line.unseen():
                return None
            raise _target.broken(line.target, fault or "the server closed it without an answer", sent=not line.untouched)
        answer = http1.AnswerReader(method, self.max_headers, self.max_body)
        out = answer.feed(data)
        while answer.head is None:
            data = line.read(deadline)
            out = answer.feed(data) if data else answer.eof()
        return Stream(self, state, line, answer, out, job)

    # -- connections --

    def _own_state(self) -> _State:
        if self._state.pid != os.getpid():
            inherited, self._state = self._state, _State()
            self._finalizer.detach()
            self._finalizer = weakref.finalize(self, self._state.close)
            inherited.close()
        return self._state

    def _reuse(self, state: _State, target: _target.Target) -> Connection | None:
        idle = state.idle.get(target.key)
        while idle:
            try:
                line = idle.pop()
            except IndexError:
                break
            if line.fresh():
                line.target = target
                return line
            line.close()
        return None

    def release(self, state: _State, line: Connection, hint: str | None) -> None:
        """Take a connection back whose answer was read to its end. ``hint``: the answer's Keep-Alive field."""
        seconds = self._idle_seconds
        if hint is not None:
            seconds = min(seconds, http1.keep_alive_seconds(hint))
        idle = state.idle.setdefault(line.target.key, [])
        line.rest(seconds)
        idle.append(line)
        if len(idle) > self._pool or state is not self._state:
            try:
                idle.pop(0).close()
            except IndexError:
                pass

    # -- time, functions, jobs --

    def now(self) -> float:
        """Monotonic seconds."""
        return monotonic()

    def time(self) -> float:
        """Seconds since 1970, UTC."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        job = current_job()
        if job is None:
            if seconds > 0:
                time.sleep(seconds)
        else:
            job.pause(threading.Event(), max(0.0, seconds))

    async def call(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a user's function here; what it returns to be awaited is awaited on the port's private event loop."""
        result = copy_context().run(fn, *args, **kwargs)
        if isinstance(result, Awaitable):
            result = self._own_state().loop.run(result)
        job = current_job()
        if job is not None:
            job.check()
        return result

    def start(self, flow: io.Flow[T]) -> io.Job[T]:
        """Run a flow in a worker thread, with a copy of the context variables."""
        job = ThreadJob(flow)
        context = copy_context()
        self._own_state().workers.run(lambda: context.run(job.run))
        return job

    async def wait(self, jobs: Sequence[io.Job[Any]], timeout: float | None = None) -> list[io.Job[Any]]:
        """Wait until at least one job is done or the time is over."""
        done = [job for job in jobs if job.done()]
        if done or not jobs:
            return done
        event = threading.Event()
        for job in jobs:
            job.watch(event)  # type: ignore[attr-defined]
        try:
            pause(event, timeout)
        finally:
            for job in jobs:
                job.unwatch(event)  # type: ignore[attr-defined]
        return [job for job in jobs if job.done()]

    def signal(self) -> io.Signal:
        """Make a flag."""
        return ThreadSignal()

    def drive(self, flow: io.Flow[T]) -> T:
        """Run a flow to its end in this thread."""
        return io.drive(flow)

    def close(self) -> None:
        """Close idle connections, end idle threads and the private loop. The port stays usable."""
        self._own_state().close()
        self._state = _State()
        self._finalizer.detach()
        self._finalizer = weakref.finalize(self, self._state.close)

    async def aclose(self) -> None:
        """The same from a flow."""
        self.close()


@contextlib.contextmanager
def _held() -> Iterator[Callable[[Any], None] | None]:
    """Around a wait for the engine: how to leave what can end it at the job of this thread, if it is one."""
    job = current_job()
    if job is None:
        yield None
        return
    try:
        yield job.hold
    finally:
        job.hold(None)
        job.check()


def _drop(line: Connection, job: ThreadJob[Any] | None) -> None:
    if job is not None:
        job.hold(None)
    line.close()


class Stream:
    """An open answer of the blocking port."""

    def __init__(
        self,
        port: BlockingIO,
        state: _State,
        line: Connection,
        answer: http1.AnswerReader,
        out: bytes,
        job: ThreadJob[Any] | None,
    ) -> None:
        assert answer.head is not None
        self.status = answer.head.status
        self.headers: Mapping[str, str] = answer.head.headers
        self._port = port
        self._state = state
        self._line: Connection | None = line
        self._answer = answer
        self._out = out
        self._fault: LLMBrokerError | None = None
        if job is not None:
            job.hold(None)
        if answer.done:
            self._end()

    async def read(self, deadline: float | None = None) -> bytes:
        """Return the next bytes, ``b""`` at the end. See ``ByteStream.read``."""
        return self.take(deadline)

    def take(self, deadline: float | None) -> bytes:
        """The same, without a flow."""
        if self._out:
            out, self._out = self._out, b""
            return out
        if self._fault is not None:
            raise self._fault
        answer, line = self._answer, self._line
        while line is not None:
            job = current_job()
            try:
                if job is not None:
                    job.hold(line)
                data = line.read(deadline)
                if job is not None:
                    job.hold(None)
                    job.check()
                out = answer.feed(data) if data else answer.eof()
            except BaseException as error:
                self._line = None
                _drop(line, job)
                if job is not None:
                    job.check()
                if isinstance(error, http1.WireError):
                    error = _target.unreadable(line.target, error)
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
        line, self._line = self._line, None
        if line is not None:
            if self._answer.reusable and _target.can_be_kept(line.target, self.headers):
                self._port.release(self._state, line, self.headers.get("keep-alive"))
            else:
                line.close()

    def cut(self) -> None:
        """Close the connection."""
        line, self._line = self._line, None
        if line is not None:
            line.close()

    async def close(self) -> None:
        """Give the connection back if the answer's end has arrived, else cut it."""
        self._out, self._fault = b"", None
        if self._line is not None:
            try:
                while not self._answer.done and (data := self._line.read_now()):
                    if len(self._answer.feed(data)) > MAX_DRAIN:
                        break
            except http1.WireError:
                pass
            if self._answer.done:
                self._end()
            self.cut()

    def __del__(self) -> None:
        """A stream that was forgotten gives its connection up."""
        if getattr(self, "_line", None) is not None:
            self.cut()


class _LocalStream:
    """The stream of an engine in this process."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.status: int = inner.status
        self.headers: Mapping[str, str] = inner.headers

    async def read(self, deadline: float | None = None) -> bytes:
        """Return the next bytes."""
        with _held() as hold:
            if hold is not None:
                hold(self._inner)
            data: bytes = self._inner.read(deadline)
        return data

    async def close(self) -> None:
        """End it."""
        self._inner.close()
