"""What both faces of a broker stand on: the port, the desk, the lanes, the journal, and how an attempt is written down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llmbroker.broker.accounts import Accounts
from llmbroker.broker.claims import Price
from llmbroker.broker.costs import Costs
from llmbroker.broker.desk import Desk
from llmbroker.broker.keys import Lanes
from llmbroker.broker.replies import Ask, Attempt
from llmbroker.broker.shared import Shared
from llmbroker.catalog import KeyHelp
from llmbroker.errors import LLMBrokerError
from llmbroker.exchange import Reply, Usage
from llmbroker.health import Verdict
from llmbroker.io import Port
from llmbroker.journal import Call, Journal, failure, new_id, reply_body, request_body, utc
from llmbroker.pool import Lane, Lease
from llmbroker.router import Entry, patience

EMPTIES = 3
"""So many answers of one model may be empty while another comes back in time; the next is taken as it is."""


class Row:
    """A journal row that is not closed yet."""

    __slots__ = ("first", "id", "lane", "number", "retry_of", "started", "wall")

    def __init__(self, id_: str, lane: Lane, number: int, retry_of: str | None, started: float, wall: float) -> None:
        self.id = id_
        self.lane = lane
        self.number = number
        self.retry_of = retry_of
        self.started = started
        self.wall = wall
        self.first: float | None = None


class Core:
    """The engine of a broker. Its methods are called by flows; nothing here knows whether they are driven or awaited."""

    def __init__(
        self,
        port: Port,
        desk: Desk,
        lanes: Lanes,
        journal: Journal,
        *,
        price: Price,
        rate: Callable[..., Any],
        key_help: Callable[[str], KeyHelp | None],
        offer_local: bool,
        accounts: Accounts | None = None,
    ) -> None:
        self.port = port
        self.desk = desk
        self.lanes = lanes
        self.journal = journal
        self.price = price
        self.costs: Costs | None = None
        """What calls will cost; there once somebody prefers the cheaper."""
        self._rate = rate
        self._key_help = key_help
        self._offer_local = offer_local
        self.accounts = accounts
        """What is spent of the limits, or None: there are none."""
        self.shared = Shared(port, journal, desk, lanes)

    async def entries(self, scope: str | None) -> Sequence[Entry]:
        """Return the pool as this scope sees it."""
        return await self.lanes.entries(scope, self.port.now())

    def others(self, ask: Ask) -> bool:
        """Whether another lane could begin for this call now."""
        now = self.port.now()
        return bool(self.desk.look(self.lanes.last(ask.scope), ask, now).steps)

    def later(self, ask: Ask, lane: Lane) -> bool:
        """Whether somebody better than an empty answer of this lane comes back in time for this call.

        Not after as many answers of that kind as are asked for again: then what it said is what there is.
        """
        name = lane.member.name
        if sum(attempt.llm_name == name for attempt in ask.attempts) >= EMPTIES:
            return False
        now = self.port.now()
        passed = self.desk.look(self.lanes.last(ask.scope), ask, now).passed
        return any(
            p.returns
            and p.reason != "limit"
            and p.name != name
            and p.until is not None
            and p.until <= ask.queue_until
            and p.until + p.usual < ask.deadline
            for p in passed
        )

    def rating(self, scope: str | None) -> Callable[..., Any]:
        """Return what a reply of this scope rates itself with."""
        rate = self._rate

        def bound(score: float, *, call_id: str) -> Any:
            return rate(score, call_id=call_id, scope=scope)

        return bound

    def waker(self, ask: Ask) -> Callable[[], Callable[[], None]]:
        """Return what makes the flag that wakes this call."""

        def make() -> Callable[[], None]:
            ask.signal = self.port.signal()
            return ask.signal.set

        return make

    async def sleep(self, ask: Ask, seconds: float) -> None:
        """Wait for an offer, at most so long."""
        assert ask.signal is not None
        await self.shared.wait(ask.signal.wait, seconds)

    def claim(self, ask: Ask) -> bool:
        """Whether this attempt is the first of its call to have an answer."""
        with self.desk.lock:
            if ask.won:
                return False
            ask.won = True
            return True

    # -- limits ----------------------------------------------------------------------------------------------------------

    async def admit(self, ask: Ask, lease: Lease) -> bool:
        """Hold what an attempt may take of the limits; where one has no room its slot is free again, and False is returned."""
        assert self.accounts is not None
        admitted = False
        try:
            admitted = await self.accounts.reserve(ask, lease.lane)
        finally:
            if not admitted:
                self.desk.unsent(lease, ask, self.port.now())
        return admitted

    async def counted(self) -> None:
        """Count what was stopped."""
        if self.accounts is not None:
            await self.accounts.flush()

    def never_made(self, ask: Ask, lease: Lease) -> None:
        """An attempt was stopped before it began: its slot is free again, and what it held is given back."""
        self.desk.unsent(lease, ask, self.port.now())
        if ask.holds and (held := ask.holds.pop(id(lease.lane), None)) is not None and self.accounts is not None:
            self.accounts.unused(held)

    # -- rows ------------------------------------------------------------------------------------------------------------

    def begin(self, ask: Ask, lane: Lane) -> Row:
        """Open the row of an attempt that starts now."""
        before = ask.last_id.get(id(lane))
        number = next(ask.numbers)
        # A group bears the id of its first attempt.
        row = Row(ask.group_id if number == 1 else new_id(), lane, number, before, self.port.now(), self.port.time())
        ask.last_id[id(lane)] = row.id
        self.shared.begins(row.id)
        return row

    async def mended(self, ask: Ask, row: Row, error: LLMBrokerError) -> Row:
        """A parameter was refused and the provider is asked again without it: close this request's row, open the next one's."""
        await self._write(self.row_of(ask, row, "error", error=error))  # the attempt goes on, with what it holds
        return self.begin(ask, row.lane)

    def row_of(
        self,
        ask: Ask,
        row: Row,
        status: Any,
        *,
        reply: Reply | None = None,
        usage: Usage | None = None,
        error: BaseException | None = None,
    ) -> Call:
        """Make the row, and the attempt that the caller sees."""
        deployment = row.lane.deployment
        seconds = self.port.now() - row.started
        facts = failure(error) if error is not None and isinstance(error, Exception) else {}
        ask.attempts.append(
            Attempt(id=row.id, llm_name=row.lane.member.name, status=status, error=facts.get("error_detail"), seconds=seconds)
        )
        if reply is not None:
            usage = reply.usage
        if self.costs is not None and usage is not None:
            with self.desk.lock:
                self.costs.learn(row.lane.member.name, ask.operation, usage)
        cost, currency = self.price(row.lane, reply.model if reply is not None else None, usage)
        key = deployment.key
        return Call(
            id=row.id,
            ts=utc(row.wall),
            llm_name=row.lane.member.name,
            status=status,
            group_id=ask.group_id,
            attempt=row.number,
            retry_of=row.retry_of,
            scope=ask.scope,
            operation=ask.operation,
            trace_id=ask.trace_id,
            provider=deployment.provider.id,
            dialect=deployment.dialect.name,
            model=deployment.model,
            model_answered=reply.model if reply is not None else None,
            stream=ask.need.stream,
            step=ask.step,
            http_status=facts.get("http_status"),
            error_class=facts.get("error_class"),
            error_detail=facts.get("error_detail"),
            finish_reason=reply.finish_reason if reply is not None else None,
            usage=usage,
            first_event_ms=None if row.first is None else (row.first - row.started) * 1000.0,
            latency_ms=seconds * 1000.0,
            cost=cost,
            currency=currency,
            key_source=key.source if key is not None else None,
            request=request_body(ask.request, (key,)) if self.journal.bodies else None,
            response=reply_body(reply, (key,)) if self.journal.bodies and reply is not None else None,
        )

    async def close_row(self, ask: Ask, row: Row, status: str, **facts: Any) -> None:
        """Write the row of an attempt that ended; it is committed, or spooled, when this returns."""
        made = self.row_of(ask, row, status, **facts)
        if status == "ok":
            ask.cost = 0.0 if made.cost is None and row.lane.deployment.in_process else made.cost
            ask.priced = True
        try:
            await self._write(made)
        finally:
            if ask.holds and (held := ask.holds.pop(id(row.lane), None)) is not None and self.accounts is not None:
                await self.accounts.settle(held, row.lane, made, facts.get("error"))

    async def _write(self, made: Call) -> None:
        if self.journal.direct:
            self.journal.record(made)
        else:
            await self.port.call(self.journal.record, made)

    async def failed(
        self, ask: Ask, lease: Lease, row: Row, error: LLMBrokerError, deadline: float, *, usage: Usage | None = None
    ) -> Verdict:
        """An attempt failed by a provider's or the wire's fault: note it, free the slot, write the row.

        ``deadline``: what the attempt was given; infinity, when it had all the time that it could want.
        """
        now = self.port.now()
        verdict = self.desk.failed(lease, error, now, deadline - row.started, ask)
        if verdict.status == "timeout":
            ask.watched = True
        if verdict.blame == "key":
            self.lanes.forget(ask.scope)
        await self.close_row(ask, row, verdict.status, error=error, usage=usage)
        await self.shared.tell(lease.lane, verdict)
        return verdict

    def cut(
        self,
        ask: Ask,
        lease: Lease,
        row: Row,
        error: BaseException,
        usage: Usage | None = None,
        *,
        lost: bool | None = None,
    ) -> None:
        """An attempt ended because we stopped it, or by a fault of this program: free the slot, write the row.

        ``lost``: another attempt of its call has the answer; by default that is asked of the call.
        """
        lost = ask.won if lost is None else lost
        now = self.port.now()
        usual = patience(lease.lane, stream=ask.need.stream, left=ask.deadline - row.started, operation=ask.operation)
        if isinstance(error, Exception):
            self.desk.drop(lease, now)
            made = self.row_of(ask, row, "error", error=error, usage=usage)
        else:
            self.desk.cut(lease, now, lost=lost, usual=usual, stream=ask.need.stream)
            self.shared.cut(lease.lane)
            made = self.row_of(ask, row, "superseded" if lost else "cancelled", usage=usage)
        if ask.holds and (held := ask.holds.pop(id(row.lane), None)) is not None and self.accounts is not None:
            self.accounts.cut(held, row.lane, made)
        self.journal.record_beside(made)

    # -- hints -----------------------------------------------------------------------------------------------------------

    def key_hint(self) -> str:
        """Return which keys would help and where they come from."""
        refs = list(dict.fromkeys(ref for member in self.lanes.members for ref in self.lanes.refs(member)[:1]))
        if not refs:
            return "Give each model an api_key_ref."
        helped = []
        for ref in refs[:6]:
            help_ = self._key_help(ref)
            helped.append(f"{ref} ({help_.url})" if help_ is not None and help_.url else ref)
        local = " Or install llmbroker[local]: a small model on this machine needs no key." if self._offer_local else ""
        if not self.lanes.shared_keys:
            local = " A user needs a key of his own: by secrets=, or llmbroker keys set NAME --scope USER."
        return f"Set one of these variables, in the environment or in .env: {', '.join(helped)}.{local}"
