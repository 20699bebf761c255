"""The engine of a broker: arguments to flows, sources to lanes, ratings to beliefs. Both faces stand on it."""

from __future__ import annotations

import logging
import os
import random
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from llmbroker import prices
from llmbroker.broker.accounts import Accounts
from llmbroker.broker.claims import Price
from llmbroker.broker.core import Core
from llmbroker.broker.costs import Costs
from llmbroker.broker.desk import Desk
from llmbroker.broker.direct import Turnstile
from llmbroker.broker.flow import obtain, whole
from llmbroker.broker.keys import Lanes, needs_key, refs_of
from llmbroker.broker.recall import recalled
from llmbroker.broker.replies import Ask
from llmbroker.broker.sources import Setup, pinned, read_setup
from llmbroker.broker.states import LimitState, Snapshot, limit_state, state_of
from llmbroker.broker.stream import PooledSource
from llmbroker.catalog import Limit, LLMConfig
from llmbroker.client import checked_seconds, one_of
from llmbroker.credentials import KeyRing
from llmbroker.errors import (
    InvalidRequestError,
    PoolModelError,
    UnknownModelError,
)
from llmbroker.exchange import Request, Usage, make_request
from llmbroker.io import Port
from llmbroker.journal import Call, Stats, utc
from llmbroker.messages import check_text, shown
from llmbroker.pool import Lane
from llmbroker.preference import Prefer, preference
from llmbroker.providers import table
from llmbroker.providers.base import Deployment
from llmbroker.providers.paid import paid

log = logging.getLogger("llmbroker.broker")

LONGEST_WAIT = 600.0
"""Seconds; a call without ``wait`` still ends."""
RECALLED = 1000
"""Journal rows from which a broker that begins learns how long its models take."""
LATELY = 86_400.0
"""Seconds; what is older says nothing about how long a model takes."""


class Engine:
    """A pool with its journal, and what may be asked of it."""

    def __init__(
        self,
        source: Any,
        port: Port,
        *,
        pool: Sequence[LLMConfig] | None,
        direct: Sequence[str | LLMConfig],
        secrets: Any,
        journal: Any,
        home: str | os.PathLike[str] | None,
        shared_keys: bool,
        limits: Sequence[Limit] | None = None,
        rate: Callable[..., Any],
        prefer: Prefer = None,
    ) -> None:
        self.port = port
        self.prefer = preference(prefer)
        self.setup: Setup = read_setup(
            source, pool=pool, direct=direct, journal=journal, home=home, limits=limits, clock=port.now, wall=port.time
        )
        self.desk = Desk(random.Random().random)  # noqa: S311 - a lot among equal models, no secret
        self.keys = KeyRing(port, secrets=secrets, store=self.setup.key_store, shared=shared_keys)
        # A source of the user's may be slow: it is asked once a minute, and at once after a refusal.
        fresh = 1.0 if self.keys.quick else 60.0
        self.lanes = Lanes(self.setup.pool, self.setup.able, self.keys, fresh=fresh, fallback=self.setup.fallback)
        self.journal = self.setup.journal
        price: Price = lambda lane, answered, usage: price_of(lane, answered, usage, utc(port.time()))  # noqa: E731
        limited = self.setup.limits
        late = None if self.setup.unread is None else (self.setup.store, self.setup.unread)
        self.core = Core(
            port,
            self.desk,
            self.lanes,
            self.journal,
            price=price,
            accounts=Accounts(port, limited, self.journal, price, late) if limited or late else None,
            rate=rate,
            key_help=self.setup.help_for,
            offer_local=source is None and pool is None and self.setup.fallback is None,
        )
        self._warm = False
        _ENGINES.add(self)
        self._notes: list[str] = []

    # -- calls -----------------------------------------------------------------------------------------------------------

    async def chat(self, request: Request, params: Any, scope: str | None, options: Mapping[str, Any]) -> Any:
        """Return the pool's reply to a request."""
        return await obtain(self.core, await self.ask(request, params, scope, options), whole)

    def source(self, request: Request, params: Any, scope: str | None, options: Mapping[str, Any]) -> PooledSource:
        """Return the source of a stream; its time begins when it is first read."""
        checked = checked_options(options)
        return PooledSource(self.core, lambda: self.ask(request, params, scope, checked))

    async def ask(self, request: Request, params: Any, scope: str | None, options: Mapping[str, Any]) -> Ask:
        """Make a call of checked arguments."""
        if not self._warm:
            await self._prepare()
        operation, trace_id, wait, fastest_of, prefer = checked_options(options).values()
        await self.core.shared.follow()
        prefer = prefer or self.prefer
        if prefer is not None and prefer.cost and self.core.costs is None:
            await self._look_up_costs()
        now = self.port.now()
        deadline = now + (wait or LONGEST_WAIT)
        return Ask(
            request,
            params=params,
            scope=scope,
            operation=operation,
            trace_id=trace_id,
            began=now,
            deadline=deadline,
            queue_until=now if wait == 0 else deadline,
            fastest_of=fastest_of,
            preference=prefer,
        )

    async def _look_up_costs(self) -> None:
        """Somebody prefers the cheaper for the first time: learn from the journal what calls take, and load the prices."""
        costs = Costs(self.core.price, self.port.time)

        def read() -> None:
            prices.load()
            try:
                costs.recall(reversed(self.journal.calls(limit=RECALLED, status="ok")))
            except Exception as error:  # noqa: BLE001 - what was learnt before is welcome, never needed
                log.warning("Earlier calls could not be read: %s", error)

        await self.port.call(read)
        with self.desk.lock:
            if self.core.costs is None:
                self.core.costs = costs
                self.desk.dollars = costs.dollars

    # -- direct models ---------------------------------------------------------------------------------------------------

    def direct_config(self, alias: str | None, name: str | None) -> LLMConfig:
        """Return the direct model of that alias or name.

        Raises:
            InvalidRequestError: not exactly one was given.
            PoolModelError: it belongs to the pool.
            UnknownModelError: nobody bears it; says which there are.
        """
        if (alias is None) == (name is None):
            raise InvalidRequestError("Give exactly one: direct('alias') or direct(name=...).", argument="alias")
        setup = self.setup
        wanted = alias if alias is not None else name
        if not isinstance(wanted, str):
            raise InvalidRequestError(
                f"A model is named by a string, not {shown(wanted)}.", argument="alias" if alias else "name"
            )
        if alias is not None:
            found = setup.direct.get(alias) or setup.catalog.aliases.get(alias)
        else:
            found = pinned(wanted, setup.direct, setup.catalog)
        if found is not None:
            return found
        if any(member.name == wanted for member in self.lanes.members):
            raise PoolModelError(
                f"{wanted!r} belongs to the pool, which chooses by itself.",
                hint="Call the broker, or declare the model with direct=[LLMConfig(...)].",
            )
        known = sorted({*setup.direct, *setup.catalog.aliases})
        raise UnknownModelError(
            f"No direct model {'with the alias' if alias is not None else 'named'} {shown(wanted)}.",
            hint=f"Aliases: {', '.join(known)}.",
        )

    async def direct_deployment(self, config: LLMConfig, scope: str | None) -> Deployment:
        """Return the deployment of a direct model, with the scope's key.

        Raises:
            MissingKeyError: it needs a key and there is none.
        """
        keyless = table.deployment_for(config, None)
        refs = refs_of(config, keyless.provider)
        secret = await self.keys.resolve(refs, scope)
        if secret is not None:
            return table.deployment_for(config, secret)
        if needs_key(config, keyless.provider):
            help_ = self.setup.help_for(refs[0]) if refs else None
            raise self.keys.missing(
                refs,
                model=config.name,
                scope=scope,
                keys_url=(help_.url if help_ else None) or "",
                provider=keyless.provider.id,
            )
        return keyless

    def turnstile(self, config: LLMConfig, deployment: Deployment, scope: str | None) -> Turnstile | None:
        """Return what meters a direct model, or None where there are no limits."""
        accounts = self.core.accounts
        if accounts is None:
            return None
        lane = self.lanes.outside(config, deployment, refs_of(config, deployment.provider))
        return Turnstile(self.port, accounts, lane, scope)

    # -- ratings, rows, states -------------------------------------------------------------------------------------------

    def rate(self, score: float, *, call_id: str | None, trace_id: str | None, scope: str | None) -> None:
        """Rate a call by its id, or the newest successful call of a trace; write it down and learn from it."""
        call, rating = self.journal.rate(score, call_id=call_id, trace_id=trace_id, scope=scope)
        self.desk.rate(call.llm_name, call.operation, rating.score, call.id)

    async def _prepare(self) -> None:
        """Before the first call: learn what the journal knows. Calls that come meanwhile do not wait for it."""
        self._warm = True
        store = self.journal.store
        if store is None or (store.direct and not os.path.exists(store.where)):  # noqa: PTH110, ASYNC240 - one look
            return
        await self.port.call(self._recall)

    def after_fork(self) -> None:
        """In the child of a fork: what ran in the parent does not run here."""
        self.desk.after_fork()
        self.core.shared.after_fork()
        self.lanes.forget_running()
        if self.core.accounts is not None:
            self.core.accounts.after_fork()

    def close(self) -> None:
        """Write down what is not yet, and close the journal."""
        if self.core.accounts is not None:
            self.core.accounts.close()
        self.journal.close()

    def _recall(self) -> None:
        """Learn from the journal's rows how long the models took lately; a journal that cannot be read teaches nothing."""
        try:
            rows: list[Call] = self.journal.calls(limit=RECALLED, since=utc(self.port.time() - LATELY))
        except Exception as error:  # noqa: BLE001 - what was learnt before is welcome, never needed
            log.warning("Earlier calls could not be read: %s", error)
            self._notes.append(f"Earlier calls could not be read: {error}")
            return
        members = {member.name: member for member in self.lanes.members}
        with self.desk.lock:
            self.core.shared.knows([row.id for row in reversed(rows)])
            for row in reversed(rows):
                member = members.get(row.llm_name)
                if member is not None:
                    recalled(member, row)

    def calls(self, *, limit: int, cursor: str | None, **filters: Any) -> list[Call]:
        """Return journal rows, the newest first."""
        return self.journal.calls(limit=limit, cursor=cursor, **filters)

    def stats(self, **filters: Any) -> dict[str, Stats]:
        """Return sums over journal rows."""
        return self.journal.stats(**filters)

    async def snapshot(self, scope: str | None) -> Snapshot:
        """Return how everything is now."""
        if not self._warm:
            await self._prepare()
        await self.core.shared.follow()
        port = self.port
        now, wall = port.now(), port.time()
        entries = await self.core.entries(scope)
        with self.desk.lock:
            states = {
                entry[0].name: state_of(
                    entry,
                    now=now,
                    wall=wall,
                    quality=self.desk.beliefs.quality(entry[0].name, entry[0].config.weight, None),
                    ratings=self.desk.beliefs.count(entry[0].name),
                )
                for entry in entries
            }
            waiting = len(self.desk.queue)
        limits, noted = await self._limits(scope, {one.key.account: one.key.source for _, lanes in entries for one in lanes})
        times = [state.until for state in states.values() if state.until is not None]
        free = any(state.available for state in states.values())
        missing = [self.lanes.refs(entry[0])[:1] for entry in entries if not entry[1]]
        return Snapshot(
            models=states,
            waiting=waiting,
            journal=self.journal.health(),
            missing_keys=tuple(dict.fromkeys(ref for refs in missing for ref in refs)),
            next_at=None if free or not times else min(times),
            notes=(*self._notes, *self.lanes.troubles.values(), *filter(None, (self.core.shared.trouble, *noted))),
            limits=limits,
        )

    async def _limits(self, scope: str | None, keys: Mapping[str, str]) -> tuple[tuple[LimitState, ...], Sequence[str]]:
        """Return how the limits stand, and what to say of how they are counted."""
        accounts = self.core.accounts
        if accounts is None:
            return (), ()
        standing = await accounts.standing(scope)
        shared = self.journal.store is not None and not accounts.trouble
        states = tuple(limit_state(limit, account, shared=shared, keys=keys) for limit, account in standing)
        return states, accounts.notes

    def switch(self, name: str, off: bool) -> None:
        """Switch a model off or on, here and in the journal's store.

        Raises:
            UnknownModelError: the pool has no model of that name.
        """
        member = next((m for m in self.lanes.members if m.name == name), None)
        if member is None:
            known = ", ".join(m.name for m in self.lanes.members) or "none"
            raise UnknownModelError(f"The pool has no model {shown(name)}.", hint=f"It has: {known}.")
        member.disabled = off
        self.desk.wake_all()
        self.core.shared.switch(name, off)


def checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check operation, trace_id, wait, fastest_of and prefer.

    Raises:
        InvalidRequestError: names the one that is wrong.
    """
    fastest = options.get("fastest_of")
    if fastest is not None and (isinstance(fastest, bool) or not isinstance(fastest, int) or fastest < 1):
        raise InvalidRequestError(f"fastest_of is None or a whole number from 1, not {shown(fastest)}.", argument="fastest_of")
    return {
        "operation": _label(options.get("operation"), "operation"),
        "trace_id": _label(options.get("trace_id"), "trace_id"),
        "wait": checked_seconds(options.get("wait"), "wait", allow_zero=True),
        "fastest_of": fastest or 1,
        "prefer": preference(options.get("prefer")),
    }


def _label(value: Any, argument: str) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else str(value)
    return check_text(text, argument)


def checked_scope(scope: Any) -> str:
    """Return the name of a scope.

    Raises:
        InvalidRequestError: it is no text, or an empty one.
    """
    if not isinstance(scope, str) or not scope.strip():
        raise InvalidRequestError(f"A scope is a non-empty string (a user's id), not {scope!r}.", argument="scope")
    return check_text(scope, "scope")


def request_of(
    prompt: Any, messages: Any, tools: Any, choice: Any, response_format: Any, params: Any, *, stream: bool
) -> Request:
    """Check what a call asks and return it."""
    return make_request(
        one_of(prompt, messages),
        tools=tools,
        choice=choice,
        response_format=response_format,
        params=params,
        stream=stream,
    )


def price_of(lane: Lane, answered: str | None, usage: Usage | None, at: datetime) -> tuple[float | None, str | None]:
    """Return what a call cost and the currency; None where the price or the tokens are not known."""
    dollars = paid(lane.deployment, answered, usage, at)
    return dollars, None if dollars is None else prices.CURRENCY


_ENGINES: weakref.WeakSet[Engine] = weakref.WeakSet()


def _after_fork() -> None:
    for engine in list(_ENGINES):
        engine.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
