"""Streams of the pool: lanes are raced until the first piece of content; from then on the stream is that lane's.

What arrives before content (the start, usage) does not bind: a fault there fails over. After content a fault is a typed error
with the text so far. The row is written when the stream ends, however it ends; a stream that is dropped gives its slot back.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

from llmbroker.broker.core import Core, Row
from llmbroker.broker.flow import Outcome, obtain
from llmbroker.broker.replies import Ask, PooledReply, pooled
from llmbroker.client import ReplyStream
from llmbroker.errors import LLMBrokerError
from llmbroker.exchange import CONTENT_EVENTS, CallDelta, Event, Reply
from llmbroker.health import EmptyAnswerError, is_empty
from llmbroker.pool import Lane, Lease

IDLE = 60.0
"""Seconds that a stream which has begun may say nothing."""


def has_content(events: list[Event]) -> bool:
    """Whether any of these would be shown to the caller."""
    return any(isinstance(event, CallDelta) or (isinstance(event, CONTENT_EVENTS) and event.text) for event in events)


class Opened:
    """A stream that has content, or is complete without: it belongs to its caller now."""

    __slots__ = ("_ask", "_core", "_lease", "_over", "_stream", "events", "lane", "reply", "row")

    def __init__(self, core: Core, ask: Ask, lease: Lease, row: Row, stream: ReplyStream, events: list[Event]) -> None:
        self._core = core
        self._ask = ask
        self._lease = lease
        self._stream = stream
        self._over = False
        self.lane: Lane = lease.lane
        self.row = row
        self.events = events
        self.reply: PooledReply | None = None

    @property
    def text(self) -> str:
        """The text so far."""
        return self._stream.text

    async def next_events(self) -> list[Event]:
        """Return the next events; an empty list at the end, when ``reply`` is there and its row is written."""
        if self.events:
            events, self.events = self.events, []
            return events
        if self._over:
            return []
        core, ask, stream = self._core, self._ask, self._stream
        now = core.port.now()
        limit = min(ask.deadline, now + IDLE)
        stream.limit(limit)
        try:
            events = await stream.next_events()
        except LLMBrokerError as error:
            self._over = True
            idle = limit < ask.deadline
            await core.failed(ask, self._lease, self.row, error, math.inf if idle else limit, usage=stream.usage)
            raise
        except BaseException as error:
            self._over = True
            core.cut(ask, self._lease, self.row, error, stream.usage, lost=False)
            await core.counted()
            raise
        if not events:
            await self.complete()
        return events

    async def complete(self) -> None:
        """The provider said that the answer is complete: write the row, then show the reply."""
        core, ask, row = self._core, self._ask, self.row
        self._over = True
        reply = self._stream.reply
        assert reply is not None
        usage = reply.usage
        core.desk.answered(self._lease, core.port.now(), 0.0, usage.total_tokens if usage is not None else None)
        await core.close_row(ask, row, "ok", reply=reply)
        await core.shared.well(self.lane)
        self.ended(reply)

    def ended(self, reply: Reply) -> Opened:
        """Show the reply: the stream is complete, and its row is written."""
        core, ask = self._core, self._ask
        self._over = True
        self.reply = pooled(reply, llm_name=self.lane.member.name, call_id=self.row.id, ask=ask, rate=core.rating(ask.scope))
        return self

    async def close(self) -> None:
        """Stop, if it is not over: the connection is cut, the slot is free, the row says cancelled."""
        try:
            self.abandon()
        finally:
            await self._stream.close()
            await self._core.counted()

    def abandon(self) -> bool:
        """Free the slot and write the row, without a wait; True if it was not over."""
        if self._over:
            return False
        self._over = True
        self._core.cut(self._ask, self._lease, self.row, GeneratorExit(), self._stream.usage, lost=False)
        return True


async def opening(core: Core, ask: Ask, lease: Lease, deadline: float) -> Outcome:
    """Run one attempt until its first content."""
    lane, port = lease.lane, core.port
    row = core.begin(ask, lane)
    stream = ReplyStream(port, lane.deployment, ask.request_for(lane), deadline)

    async def refused(error: LLMBrokerError) -> None:
        nonlocal row
        row = await core.mended(ask, row, error)

    stream.refused = refused
    events: list[Event] = []
    try:
        while True:
            got = await stream.next_events()
            events += got
            if not got or has_content(got):
                break
        if not got and stream.reply is not None and is_empty(stream.reply) and (core.others(ask) or core.later(ask, lane)):
            raise EmptyAnswerError(
                f"{lane.member.name} answered with nothing (finish reason {stream.reply.finish_reason}).",
                reply=stream.reply,
                **lane.deployment.facts(),
            )
    except LLMBrokerError as error:
        verdict = await core.failed(ask, lease, row, error, deadline, usage=stream.usage)
        if isinstance(error, EmptyAnswerError):
            said = error.reply
            ask.empty = lambda: Opened(core, ask, lease, row, stream, events).ended(said)
        return Outcome(lane, error=error, verdict=verdict)
    except BaseException as error:
        core.cut(ask, lease, row, error, stream.usage)
        await stream.close()
        raise
    row.first = port.now()
    lease.headers = stream.headers
    if not core.claim(ask):
        core.cut(ask, lease, row, GeneratorExit(), stream.usage)
        await stream.close()
        return Outcome(lane)
    core.desk.began(lease, row.first)
    opened = Opened(core, ask, lease, row, stream, events)
    if not got:
        await opened.complete()
    return Outcome(lane, answer=opened)


class PooledSource:
    """What a stream face reads: it takes a lane at the first piece, and belongs to it from then on."""

    def __init__(self, core: Core, make: Callable[[], Awaitable[Ask]]) -> None:
        self._core = core
        self._make = make
        self._over = False
        self.opened: Opened | None = None

    @property
    def reply(self) -> PooledReply | None:
        """The whole answer after the end, else None."""
        return self.opened.reply if self.opened is not None else None

    async def next_events(self) -> list[Event]:
        """Return the next events, at least one; an empty list at the end."""
        if self._over:
            return []
        if self.opened is None:
            try:
                self.opened = await obtain(self._core, await self._make(), opening)
            except BaseException:
                self._over = True
                await self._core.counted()
                raise
        assert self.opened is not None
        return await self.opened.next_events()

    async def close(self) -> None:
        """Stop."""
        self._over = True
        if self.opened is not None:
            await self.opened.close()

    def abandon(self) -> bool:
        """Give the slot back at once; the connection is for ``close``. True if there was something to give back."""
        self._over = True
        return self.opened is not None and self.opened.abandon()
