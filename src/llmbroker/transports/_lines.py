"""Connections of the asyncio port: one of them, the set of an event loop, how they come to be, and a flag for tasks."""

from __future__ import annotations

import asyncio
import inspect
import threading
import weakref
from collections.abc import AsyncGenerator, Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar, cast

from llmbroker.errors import LLMBrokerError
from llmbroker.transports import _target
from llmbroker.transports._connect import STAGGER, acknowledged, is_ready, tune
from llmbroker.transports._threads import Workers

if TYPE_CHECKING:
    import socket
    import ssl

T = TypeVar("T")
HIGH_WATER = 1024 * 1024
LOOKUP_SECONDS = 30.0


class Line(asyncio.Protocol):
    """One connection of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.transport: asyncio.Transport
        self._chunks: list[bytes] = []
        self._size = 0
        self._paused = False
        self._waiter: asyncio.Future[bool] | None = None
        self._fault: str | None = None
        self._marked: int | None = None
        self._acked: int | None = None
        self._until = 0.0
        self.ended = False
        self.untouched = True

    # -- what the loop calls --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self._chunks.append(data)
        self._size += len(data)
        if self._size > HIGH_WATER and not self._paused:
            self._paused = True
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        """The peer ended it in good order; what its TCP has acknowledged by now is all that it has seen."""
        self.ended = True
        self._acked = self._count()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        if exc is not None and not self.ended:
            self._fault = _target.reason(exc)
        if self._acked is None and exc is None:
            self._acked = self._count()
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(True)

    def _count(self) -> int | None:
        sock = self.transport.get_extra_info("socket")
        return acknowledged(sock) if sock is not None and sock.fileno() >= 0 else None

    # -- what the port calls --

    def rest(self, seconds: float) -> None:
        """Lie idle, for at most so long."""
        self._until = monotonic() + seconds

    def fresh(self) -> bool:
        """Whether an idle connection can be used: not too old, not closed, nothing said out of turn."""
        if self.ended or self._chunks or self.transport.is_closing() or monotonic() >= self._until:
            return False
        sock = self.transport.get_extra_info("socket")
        return not is_ready(sock)

    def write(self, message: memoryview, kept: bool) -> None:
        """Begin to write a request."""
        self._marked = self._count() if kept else None
        self.transport.write(message)
        self.untouched = self.transport.is_closing()

    def unseen(self) -> bool:
        """Whether the peer cannot have seen the request, now that the connection ended without an answer."""
        return self.untouched or (self._fault is None and bool(self._marked) and self._acked == self._marked)

    async def read(self, target: _target.Target, deadline: float | None, *, sent: bool = True) -> bytes:
        """Return the next bytes; ``b""`` where the peer closed in good order."""
        while not self._chunks:
            if self._fault is not None:
                raise _target.broken(target, self._fault, sent=sent)
            if self.ended:
                return b""
            left = None if deadline is None else deadline - monotonic()
            if left is not None and left <= 0:
                raise _target.timed_out(target, sent=sent)
            waiter = self._waiter = self.loop.create_future()
            timer = None if left is None else self.loop.call_later(left, _late, waiter)
            try:
                if not await waiter:
                    raise _target.timed_out(target, sent=sent)
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        if self._paused:
            self._paused = False
            if not self.ended:
                self.transport.resume_reading()
        return data

    def read_now(self) -> bytes:
        """Return bytes that are there already, else ``b""``."""
        data = b"".join(self._chunks)
        self._chunks.clear()
        return data

    def cut(self) -> None:
        """Close it at once."""
        self.ended = True
        self._chunks.clear()
        try:
            self.transport.abort()
        except RuntimeError:  # its loop is closed
            pass


def _late(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)


class Home:
    """What the port has opened on one event loop."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self.idle: dict[tuple[str, str, int], list[Line]] = {}
        self.lines: weakref.WeakSet[Line] = weakref.WeakSet()
        self.lookups: dict[tuple[str, int], tuple[float, asyncio.Future[list[Any]]]] = {}
        self.gate: asyncio.Semaphore | None = None
        self._keeper: AsyncGenerator[None, None] | None = None

    async def take(self, line: Line) -> None:
        """Count a new connection among those to close with the loop."""
        if self._keeper is None:
            self._keeper = _keep(self)
            await self._keeper.__anext__()
        self.lines.add(line)

    async def leave(self) -> None:
        """Cut every idle connection; where none is in use, nothing of the port is left on the loop, not even the keeper."""
        self.close_idle()
        keeper = self._keeper
        if keeper is not None and all(line.ended for line in self.lines):
            self._keeper = None
            await keeper.aclose()

    def close_idle(self) -> None:
        """Cut every idle connection."""
        self.lookups.clear()
        for lines in self.idle.values():
            while lines:
                lines.pop().cut()

    def close(self) -> None:
        """Cut every connection, those of forgotten streams too."""
        self.close_idle()
        for line in list(self.lines):
            line.cut()


async def _keep(home: Home) -> AsyncGenerator[None, None]:
    """Wait for the loop's end: a loop that shuts down closes its suspended generators, and this one then closes the home."""
    try:
        yield
    finally:
        home.close()


async def connect(
    home: Home, target: _target.Target, deadline: float | None, seconds: float, verify: bool | ssl.SSLContext
) -> Line:
    """Make a connection, ready for the first request.

    Raises:
        ConnectionFailedError: with ``sent`` False.
        LLMTimeoutError: the deadline passed, with ``sent`` False.
    """
    end = monotonic() + seconds
    if deadline is not None:
        end = min(end, deadline)
    try:
        async with asyncio.timeout(max(0.0, end - monotonic())):
            line = await _open(asyncio.get_running_loop(), home, target, verify)
            await home.take(line)
            return line
    except (OSError, UnicodeError) as error:
        if isinstance(error, LLMBrokerError):
            raise
        if isinstance(error, TimeoutError) and error.errno is None:
            if end == deadline:
                raise _target.timed_out(target, sent=False) from None
            raise _target.not_connected(target, f"it took more than {seconds:g} s") from None
        raise _target.not_connected(target, error) from None


async def _open(loop: asyncio.AbstractEventLoop, home: Home, target: _target.Target, verify: bool | ssl.SSLContext) -> Line:
    proxy = target.proxy
    host, port = (proxy.host, proxy.port) if proxy is not None else (target.host, target.port)
    sock = await _race(loop, await _look_up(loop, home, host, port))
    try:
        tune(sock)
        tls: dict[str, Any] = {}
        if target.tls and proxy is None:
            tls = {"ssl": _target.context_for(verify), "server_hostname": target.host}
        _, line = await loop.create_connection(lambda: Line(loop), sock=sock, **tls)
    except BaseException:
        sock.close()
        raise
    if target.tls and proxy is not None:
        try:
            await _tunnel(loop, line, target, _target.context_for(verify))
        except BaseException:
            line.cut()
            raise
    return line


async def _tunnel(loop: asyncio.AbstractEventLoop, line: Line, target: _target.Target, context: ssl.SSLContext) -> None:
    line.transport.write(_target.connect_message(target))
    data = await line.read(target, None, sent=False)
    while not _target.connected(target, data):
        more = await line.read(target, None, sent=False)
        data = data + more if more else b""
    transport = await loop.start_tls(line.transport, line, context, server_hostname=target.host)
    if transport is None:
        raise _target.not_connected(target, "the proxy closed the connection")
    line.transport = transport


async def _look_up(loop: asyncio.AbstractEventLoop, home: Home, host: str, port: int) -> list[Any]:
    """Return the addresses of a host; look-ups at the same time share one, and it counts for some seconds."""
    import socket

    known = home.lookups.get((host, port))
    if known is None or known[0] < monotonic() or (known[1].done() and (known[1].cancelled() or known[1].exception())):
        if _is_number(host):
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        home.lookups[host, port] = known = monotonic() + LOOKUP_SECONDS, _begin_look_up(loop, home, host, port)
    return await asyncio.shield(known[1])


def _is_number(host: str) -> bool:
    import socket

    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except (OSError, UnicodeError):
            continue
        return True
    return False


def _begin_look_up(loop: asyncio.AbstractEventLoop, home: Home, host: str, port: int) -> asyncio.Future[list[Any]]:
    """Ask in a thread of ours: at its end a loop would wait for its own threads, though nobody needs the answer any more.

    No task waits for it either: a caller who is cancelled leaves nothing on the loop.
    """
    import socket

    found: asyncio.Future[list[Any]] = loop.create_future()
    found.add_done_callback(note)

    def settle_with(addresses: list[Any] | None, error: Exception | None) -> None:
        if found.done():
            return
        if error is not None:
            found.set_exception(error)
        else:
            found.set_result(addresses or [])

    def ask() -> None:
        try:
            outcome: tuple[list[Any] | None, Exception | None] = (
                socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), None,
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - raised where the address is needed
            outcome = (None, error)
        try:
            loop.call_soon_threadsafe(settle_with, *outcome)
        except RuntimeError:  # the loop is closed, nobody waits any more
            pass

    home.workers.run(ask)
    return found


async def _race(loop: asyncio.AbstractEventLoop, addresses: list[Any]) -> socket.socket:
    """Connect to the first address that answers, giving each a head start over the next."""
    if len(addresses) == 1:
        return await _dial(loop, addresses[0])
    waiting = _target.interleaved(addresses)
    tasks: set[asyncio.Task[socket.socket]] = set()
    won: socket.socket | None = None
    fault: BaseException = OSError("the name has no address")
    try:
        while waiting or tasks:
            if waiting:
                tasks.add(loop.create_task(_dial(loop, waiting.pop(0))))
            done, tasks = await asyncio.wait(tasks, timeout=STAGGER if waiting else None, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                error = task.exception()
                if error is not None:
                    fault = error
                elif won is None:
                    won = task.result()
                else:
                    task.result().close()
            if won is not None:
                return won
        raise fault
    finally:
        for task in tasks:
            task.add_done_callback(_close_loser)
            task.cancel()
        if tasks:
            try:
                await asyncio.wait(tasks)
            except BaseException:
                if won is not None:
                    won.close()
                raise


def _close_loser(task: asyncio.Task[socket.socket]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


async def _dial(loop: asyncio.AbstractEventLoop, address: Any) -> socket.socket:
    import socket

    family, kind, protocol, _, where = address
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        await loop.sock_connect(sock, where)
    except BaseException:
        sock.close()
        raise
    return sock


async def enter(gate: asyncio.Semaphore, target: _target.Target, deadline: float | None) -> None:
    try:
        async with asyncio.timeout(None if deadline is None else deadline - monotonic()):
            await gate.acquire()
    except TimeoutError:
        raise _target.timed_out(target, sent=False) from None


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether a call of it gives something to await: ``async def``, a partial of one, an object whose ``__call__`` is one."""
    while hasattr(fn, "func") and hasattr(fn, "keywords"):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004 - the method itself is looked at


async def in_worker(workers: Workers, fn: Callable[[], T]) -> T:
    """Run a plain function in a thread; return its result or raise its exception, whichever it is, unchanged."""
    loop = asyncio.get_running_loop()
    finished: asyncio.Future[None] = loop.create_future()
    outcome: list[Any] = []

    def task() -> None:
        try:
            outcome.extend((fn(), None))
        except BaseException as error:  # noqa: BLE001 - it is raised where the function was asked for
            outcome.extend((None, error))
        try:
            loop.call_soon_threadsafe(settle, finished)
        except RuntimeError:  # the loop is closed, nobody waits any more
            pass

    workers.run(task)
    await finished
    result, error = outcome
    if error is not None:
        raise error
    return cast(T, result)


def settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def note(task: asyncio.Future[Any]) -> None:
    """Note that the exception was looked at: whoever asks for the result still gets it."""
    if not task.cancelled():
        task.exception()


class AsyncSignal:
    """A flag that flows wait for and any thread may set."""

    __slots__ = ("_flag", "_lock", "_waiting")

    def __init__(self) -> None:
        self._flag = False
        self._lock = threading.Lock()
        self._waiting: list[asyncio.Future[None]] = []

    def set(self) -> None:
        """Wake who waits, from any thread."""
        with self._lock:
            self._flag = True
            waiting, self._waiting = self._waiting, []
        for future in waiting:
            try:
                future.get_loop().call_soon_threadsafe(settle, future)
            except RuntimeError:  # its loop is closed, nobody waits any more
                pass

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until set (True) or until the time is over (False)."""
        with self._lock:
            if self._flag:
                return True
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
        try:
            await asyncio.wait([future], timeout=timeout)
        finally:
            with self._lock:
                if future in self._waiting:
                    self._waiting.remove(future)
            future.cancel()
        return self._flag
