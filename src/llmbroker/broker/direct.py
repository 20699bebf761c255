"""Direct models of a broker that has limits: a key, a user and the whole are metered on this path, too.

Where a broker has no limits its direct clients are those of ``client``, and nothing here is used.
"""

from __future__ import annotations

from typing import Self

from llmbroker.broker.accounts import Accounts
from llmbroker.broker.claims import reached
from llmbroker.broker.replies import Ask
from llmbroker.client import DirectClient, EventSource, ReplyStream, complete
from llmbroker.errors import LLMBrokerError
from llmbroker.exchange import Event, Reply, Request, Usage
from llmbroker.io import Flow, Port
from llmbroker.journal import Call, failure, utc
from llmbroker.pool import Lane

SOON = 0.02
"""Seconds between two looks at least."""


class Turnstile:
    """One direct model for one user, with the limits that concern it."""

    def __init__(self, port: Port, accounts: Accounts, lane: Lane, scope: str | None) -> None:
        self.port = port
        self.accounts = accounts
        self.lane = lane
        self.scope = scope

    async def enter(self, request: Request, deadline: float) -> Ask:
        """Hold what a request may take; wait for it where a window opens in time.

        Raises:
            LimitReachedError: no room, and none in time.
        """
        port = self.port
        ask = Ask(
            request,
            params=None,
            scope=self.scope,
            operation=None,
            trace_id=None,
            began=port.now(),
            deadline=deadline,
            queue_until=deadline,
            fastest_of=1,
        )
        try:
            while not await self.accounts.reserve(ask, self.lane):
                assert ask.limited is not None
                refused = ask.limited[id(self.lane)]
                now = port.now()
                if not refused.returns or refused.until is None or now >= deadline:
                    raise reached([refused])
                await port.sleep(max(SOON, min(refused.until, deadline) - now))
        finally:
            self.accounts.forget(ask)
        return ask

    async def leave(
        self,
        ask: Ask,
        *,
        reply: Reply | None = None,
        usage: Usage | None = None,
        error: BaseException | None = None,
        begun: bool = False,
    ) -> None:
        """Count what it used; ``begun``: some of the answer had arrived."""
        held = (ask.holds or {}).pop(id(self.lane), None)
        if held is not None:
            await self.accounts.settle(held, self.lane, self._row(reply, usage, error, begun), error)

    def cut(self, ask: Ask, usage: Usage | None) -> None:
        """Count what it used that was stopped, at the next occasion."""
        held = (ask.holds or {}).pop(id(self.lane), None)
        if held is not None:
            self.accounts.cut(held, self.lane, self._row(None, usage, None, False))

    def _row(self, reply: Reply | None, usage: Usage | None, error: BaseException | None, begun: bool) -> Call:
        """Return what a row of it would say; direct calls have none."""
        facts = failure(error) if error is not None else {}
        return Call(
            ts=utc(self.port.time()),
            llm_name=self.lane.member.name,
            status="ok" if reply is not None else facts.get("status", "cancelled"),
            scope=self.scope,
            model_answered=reply.model if reply is not None else None,
            http_status=facts.get("http_status"),
            usage=reply.usage if reply is not None else usage,
            first_event_ms=0.0 if begun else None,
        )


async def metered(turnstile: Turnstile, request: Request, deadline: float) -> Reply:
    """Send one request and return the whole reply; raises as ``complete`` does, and LimitReachedError."""
    ask = await turnstile.enter(request, deadline)
    try:
        reply = await complete(turnstile.port, turnstile.lane.deployment, request, deadline)
    except LLMBrokerError as error:
        await turnstile.leave(ask, error=error)
        raise
    except BaseException:
        turnstile.cut(ask, None)
        await turnstile.accounts.flush()
        raise
    await turnstile.leave(ask, reply=reply)
    return reply


class MeteredDirectClient(DirectClient):
    """A direct client whose calls are metered."""

    _turnstile: Turnstile

    @classmethod
    def through(cls, turnstile: Turnstile) -> Self:
        """Return the client of a model."""
        client = cls.over(turnstile.port, turnstile.lane.deployment)
        client._turnstile = turnstile
        return client

    def _whole(self, request: Request, deadline: float) -> Flow[Reply]:
        return metered(self._turnstile, request, deadline)

    def _streamed(self, request: Request, deadline: float) -> EventSource:
        return MeteredStream(self._turnstile, request, deadline)


class MeteredStream:
    """A streamed answer of a direct model; the source of its face."""

    def __init__(self, turnstile: Turnstile, request: Request, deadline: float) -> None:
        self._turnstile = turnstile
        self._inner = ReplyStream(turnstile.port, turnstile.lane.deployment, request, deadline)
        self._request = request
        self._deadline = deadline
        self._ask: Ask | None = None
        self._over = False

    @property
    def reply(self) -> Reply | None:
        """The whole answer, after the end."""
        return self._inner.reply

    async def next_events(self) -> list[Event]:
        """Return the next events; raises as ``ReplyStream`` does, and LimitReachedError before the first."""
        if self._over:
            return []
        turnstile = self._turnstile
        if self._ask is None:
            self._ask = await turnstile.enter(self._request, self._deadline)
        try:
            events = await self._inner.next_events()
        except LLMBrokerError as error:
            await turnstile.leave(self._ask, usage=self._inner.usage, error=error, begun=bool(self._inner.text))
            raise
        except BaseException:
            self._stop()
            await turnstile.accounts.flush()
            raise
        if not events:
            await turnstile.leave(self._ask, reply=self._inner.reply)
        return events

    async def close(self) -> None:
        """Stop."""
        self._over = True
        self._stop()
        try:
            await self._inner.close()
        finally:
            await self._turnstile.accounts.flush()

    def _stop(self) -> None:
        if self._ask is not None:
            self._turnstile.cut(self._ask, self._inner.usage)

    def __del__(self) -> None:
        """Count a stream that was dropped."""
        self._stop()
