"""The replay port: scripted answers and a clock that jumps, for tests and simulations without a network.

Theory of operation
-------------------
A script is a list of exchanges: which request is expected, and what comes back. The first exchange that matches a request and
is not used up answers it. An answer says everything that can happen on a wire: status, headers, body, the borders of its
chunks, pauses, and how it fails. Pauses cost no real time: the clock jumps when everything waits (see ``_virtual``).

    replay = Replay()
    replay.on("/chat/completions", Answer(status=429, headers={"retry-after": "20"}), Answer(body={"choices": [...]}))
    client = DirectClient(..., io=replay)       # or AsyncDirectClient: the same port serves both
    ...
    replay.check()                              # everything was used, nothing else was asked for, no stream was left open
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from typing import Any, Literal, TypeAlias, TypeVar, cast

import msgspec

from llmbroker import io
from llmbroker.transports import _http1 as http1
from llmbroker.transports import _target
from llmbroker.transports._threads import Workers
from llmbroker.transports._virtual import Clock, VirtualSignal
from llmbroker.wire import HTTPReply, HTTPRequest

T = TypeVar("T")
Fault: TypeAlias = Literal["refuse", "unreachable", "reset", "cut", "stall", "garbage"]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What comes back.

    Attributes:
        status: HTTP status.
        headers: any spelling; the flow sees lower-case names. A mapping as body adds ``content-type: application/json``.
        body: bytes, text, a mapping (sent as JSON), or a list of chunks in which a number is a pause in seconds.
        delay: seconds before the headers; ``math.inf``: they never come.
        every: seconds before each chunk.
        pieces: cut the body into chunks of so many bytes, across the borders given.
        fault: None, or

            * ``refuse``: no connection (after ``delay``); the server cannot have seen the request;
            * ``unreachable``: nobody answers the connection attempt until the deadline; not seen either;
            * ``reset``: the connection breaks after the request was sent, before a byte came back;
            * ``garbage``: what comes back is not HTTP;
            * ``cut``: the connection breaks after the chunks given;
            * ``stall``: after the chunks given nothing more comes.
    """

    status: int = 200
    headers: Mapping[str, str] = {}
    body: bytes | str | Mapping[str, Any] | Sequence[bytes | str | float] = b""
    delay: float = 0.0
    every: float = 0.0
    pieces: int | None = None
    fault: Fault | None = None


Match: TypeAlias = str | Callable[[HTTPRequest], bool] | None
"""A part of the URL, a function of the request, or None for any request."""

Answering: TypeAlias = Answer | HTTPReply | BaseException | Mapping[str, Any] | bytes | str
"""An answer, or what can stand for one: a whole reply, an exception to raise, a body."""


class Exchange(msgspec.Struct, frozen=True):
    """One line of a script: ``answer`` may be a function of the request. ``times`` None: for ever."""

    match: Match
    answer: Answering | Callable[[HTTPRequest], Answering]
    times: int | None = 1


class UnexpectedRequest(AssertionError):
    """The script has no answer for a request."""


def sse(*events: bytes | str | Mapping[str, Any], done: bool = True) -> list[bytes]:
    """Return the chunks of a server-sent event stream, one an event; mappings become JSON. ``done`` adds ``[DONE]``."""
    payloads = [event if isinstance(event, (bytes, str)) else msgspec.json.encode(event) for event in events]
    chunks = [b"data: " + (p.encode() if isinstance(p, str) else p) + b"\n\n" for p in payloads]
    return [*chunks, b"data: [DONE]\n\n"] if done else chunks


class Replay:
    """A port whose answers are scripted and whose time is virtual; serves ``drive`` and ``await``, several threads and loops.

    Args:
        script: exchanges; ``on`` adds more.
        start: what ``now`` begins with.
        wall: what ``time`` begins with, seconds since 1970.
        max_body: bytes of a body that are accepted.
        record: keep the requests; switch it off in long simulations.

    Attributes:
        requests: the requests so far, in order.
        times: when each came, on the scale of ``now``.
        open_streams: how many streams are open now.
    """

    def __init__(
        self,
        script: Iterable[Exchange] = (),
        *,
        start: float = 0.0,
        wall: float = 1_700_000_000.0,
        max_body: int = http1.MAX_BODY,
        record: bool = True,
    ) -> None:
        self._clock = Clock(start)
        self._wall = wall - start
        self._max_body = max_body
        self._record = record
        self._workers = Workers()
        self._script: list[_Line] = [_Line(exchange) for exchange in script]
        self._unexpected: list[str] = []
        self.requests: list[HTTPRequest] = []
        self.times: list[float] = []
        self.open_streams = 0

    # -- the script --

    def on(self, match: Match, *answers: Answering | Callable[[HTTPRequest], Answering], times: int | None = 1) -> Replay:
        """Expect requests: each of these answers is given ``times`` times (None: for ever), in this order."""
        self._script.extend(_Line(Exchange(match, answer, times)) for answer in answers)
        return self

    def check(self) -> None:
        """See that the script is used up (lines for ever aside), nothing else was asked for, and nothing was left open.

        Raises:
            AssertionError: says what is left.
        """
        faults = [f"{line.left} x {_name(line.exchange.match)}: never asked for" for line in self._script if line.left]
        faults += [f"not in the script: {request}" for request in self._unexpected]
        if self.open_streams:
            faults.append(f"{self.open_streams} streams were left open")
        if self._clock.abandoned:
            faults.append(f"{self._clock.abandoned} jobs were left running")
        if faults:
            raise AssertionError("; ".join(faults))

    def advance(self, seconds: float) -> None:
        """Let time pass, as between two calls of a program."""
        self._clock.advance(seconds)

    def _answer(self, request: HTTPRequest) -> Answer:
        if self._record:
            self.requests.append(request)
            self.times.append(self._clock.now())
        for index, line in enumerate(self._script):
            if line.takes(request):
                if line.left == 0:
                    del self._script[index]
                return _as_answer(line.exchange.answer, request)
        where = f"{request.method} {request.url.partition('?')[0]}"
        self._unexpected.append(where)
        raise UnexpectedRequest(f"The script has no (more) answer for {where}.")

    # -- requests --

    async def send(self, request: HTTPRequest, deadline: float | None = None) -> HTTPReply:
        """Answer a request, whole. See ``Port.send``."""
        return await io.whole(self, request, deadline)

    async def open(self, request: HTTPRequest, deadline: float | None = None) -> io.ByteStream:
        """Answer a request, chunk by chunk. See ``Port.open``."""
        target = _Lazy(request.url)
        if deadline is not None and deadline <= self._clock.now():
            raise _target.timed_out(target.get(), sent=False)
        task = self._clock.task()
        if task is not None and task.cancelling:
            self._clock.waiter()  # raises
        answer = self._answer(request)
        if answer.fault == "unreachable":
            await self._until(math.inf, target, deadline, sent=False)
        await self._until(self._clock.now() + answer.delay, target, deadline, sent=answer.fault != "refuse")
        if answer.fault == "refuse":
            raise _target.not_connected(target.get(), "connection refused")
        if answer.fault == "reset":
            raise _target.broken(target.get(), "connection reset by peer")
        if answer.fault == "garbage":
            raise _target.unreadable(target.get(), http1.NotHTTP("the answer does not begin with an HTTP status line"))
        self.open_streams += 1
        return ReplayStream(self, target, answer)

    async def _until(self, when: float, target: _Lazy, deadline: float | None, *, sent: bool = True) -> None:
        """Wait for a moment, at most until the deadline."""
        if when <= self._clock.now():
            return
        end = when if deadline is None else min(when, deadline)
        await self._clock.wait(self._clock.waiter(), end if end < math.inf else None)
        if end < when:
            raise _target.timed_out(target.get(), sent=sent)

    # -- time, functions, jobs --

    def now(self) -> float:
        """Virtual seconds."""
        return self._clock.now()

    def time(self) -> float:
        """Virtual wall clock, seconds since 1970."""
        return self._wall + self._clock.now()

    async def sleep(self, seconds: float) -> None:
        """Wait, in virtual time."""
        waiter = self._clock.waiter()
        await self._clock.wait(waiter, self._clock.now() + max(0.0, seconds))

    async def call(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a user's function: here under ``drive``; under asyncio a plain one in a thread, an async one awaited."""
        if self._clock.task() is not None:
            return self._call_here(fn, args, kwargs)
        from llmbroker.transports._lines import in_worker, is_async
        from llmbroker.transports._loop import awaited

        if is_async(fn):
            return await awaited(fn(*args, **kwargs))
        context = copy_context()
        self._clock.in_function(True, own_thread=True)
        result = await in_worker(self._workers, lambda: self._clock.run_counted(lambda: context.run(fn, *args, **kwargs)))
        return await awaited(result) if inspect.isawaitable(result) else result

    def _call_here(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._clock.in_function(True, own_thread=False)
        try:
            result = copy_context().run(fn, *args, **kwargs)
        finally:
            self._clock.in_function(False, own_thread=False)
        if not inspect.isawaitable(result):
            return result
        from llmbroker.transports._loop import PrivateLoop

        loop = PrivateLoop()
        self._clock.lend(True)
        try:
            return loop.run(result)
        finally:
            self._clock.lend(False)
            loop.close()

    @property
    def jobs_end_with_drive(self) -> bool:
        """Whether a job ends with the ``drive`` that started it; under asyncio it lives as long as its loop."""
        return self._clock.task() is not None

    def start(self, flow: io.Flow[T]) -> io.Job[T]:
        """Run a flow beside this one."""
        if self._clock.task() is not None:
            return self._clock.start(flow)
        from llmbroker.transports._lines import note

        task = asyncio.get_running_loop().create_task(flow)
        task.add_done_callback(note)
        return cast("io.Job[T]", task)

    async def wait(self, jobs: Sequence[io.Job[Any]], timeout: float | None = None) -> list[io.Job[Any]]:
        """Wait until at least one job is done or the time is over."""
        if jobs and not any(job.done() for job in jobs):
            await self._clock.wait_for(jobs, timeout)
        return [job for job in jobs if job.done()]

    def signal(self) -> io.Signal:
        """Make a flag."""
        return VirtualSignal(self._clock)

    def drive(self, flow: io.Flow[T]) -> T:
        """Run a flow to its end, and the jobs that it starts."""
        return self._clock.drive(flow)

    def close(self) -> None:
        """End idle threads; nothing else is held."""
        self._workers.close()

    async def aclose(self) -> None:
        """The same from a flow."""
        self.close()


class ReplayStream:
    """An open scripted answer."""

    def __init__(self, port: Replay, target: _Lazy, answer: Answer) -> None:
        self.status = answer.status
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in answer.headers.items()}
        if isinstance(answer.body, Mapping) and "content-type" not in self.headers:
            self.headers = {**self.headers, "content-type": "application/json"}
        self._port = port
        self._target = target
        self._fault = answer.fault
        self._every = answer.every
        self._steps = steps_of(answer)
        self._size = 0
        self._open = True

    async def read(self, deadline: float | None = None) -> bytes:
        """Return the next chunk, ``b""`` at the end. See ``ByteStream.read``."""
        port = self._port
        while self._open:
            if not self._steps:
                if self._fault == "stall":
                    await port._until(math.inf, self._target, deadline)
                if self._fault == "cut":
                    raise _target.broken(self._target.get(), "the answer was cut")
                break
            step = self._steps[-1]
            pause = step if isinstance(step, float) else self._every
            if pause:
                await port._until(port.now() + pause, self._target, deadline)
            self._steps.pop()
            if isinstance(step, bytes) and step:
                self._size += len(step)
                if self._size > port._max_body:
                    raise _target.unreadable(
                        self._target.get(), http1.TooLarge(f"the body has more than {port._max_body:,} bytes")
                    )
                return step
        return b""

    async def close(self) -> None:
        """End it."""
        if self._open:
            self._open = False
            self._port.open_streams -= 1


class _Line:
    """An exchange and how often it is still to come."""

    __slots__ = ("exchange", "left")

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.left = exchange.times

    def takes(self, request: HTTPRequest) -> bool:
        match = self.exchange.match
        if self.left == 0 or not (match is None or (match in request.url if isinstance(match, str) else match(request))):
            return False
        if self.left is not None:
            self.left -= 1
        return True


class _Lazy:
    """A URL whose host is looked for only when an error needs its name."""

    __slots__ = ("_url",)

    def __init__(self, url: str) -> None:
        self._url = url

    def get(self) -> _target.Target:
        try:
            return _target.read_target(self._url, _target.Proxies())
        except ValueError:
            return _target.Target(("local", "local", 0), False, "local", 0, "local", "/", None, None)


def _as_answer(answer: Any, request: HTTPRequest) -> Answer:
    if callable(answer):
        answer = answer(request)
    if isinstance(answer, Answer):
        return answer
    if isinstance(answer, BaseException):
        raise answer
    if isinstance(answer, HTTPReply):
        return Answer(status=answer.status, headers=answer.headers, body=answer.body)
    return Answer(body=answer)


def steps_of(answer: Answer) -> list[bytes | float]:
    """The chunks and pauses, last first."""
    body = answer.body
    if isinstance(body, Mapping):
        body = msgspec.json.encode(body)
    if isinstance(body, (bytes, str)):
        body = [body]
    steps: list[bytes | float] = []
    for step in body:
        if isinstance(step, (int, float)):
            steps.append(float(step))
        else:
            steps.append(step.encode() if isinstance(step, str) else step)
    if answer.pieces is not None:
        steps = _cut(steps, answer.pieces)
    return steps[::-1]


def _cut(steps: list[bytes | float], size: int) -> list[bytes | float]:
    out: list[bytes | float] = []
    held = b""
    for step in steps:
        if isinstance(step, float):
            out += [held, step] if held else [step]
            held = b""
            continue
        held += step
        while len(held) >= size:
            out.append(held[:size])
            held = held[size:]
    return [*out, held] if held else out


def _name(match: Match) -> str:
    if match is None:
        return "any request"
    return repr(match) if isinstance(match, str) else getattr(match, "__name__", "a request")
