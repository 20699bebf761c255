"""Limits at work: what an attempt may take is held before it is sent and settled after it ended; who waits is woken.

Theory of operation
-------------------
``reserve`` finds the limits that concern an attempt, estimates what it will take, and makes one hold on all their accounts: in
the journal's store (``journal.ledger``), which counts for all its processes, or in a book in memory where there is none. What
is refused has taken nothing; the lane is passed over until its window ends or somebody gives room back. ``settle`` counts what
the attempt used: what its provider says, the estimate where that is not known, nothing where the provider did no work.

The book also mirrors the accounts of the store as they were seen last. An account that is spent is so until its window ends,
so it is not asked for again. While the store cannot be reached, this process counts on in the book (a ``strict`` limit refuses
instead) and tells the store afterwards what was used. An attempt that is cut may end in the middle of anything, in a
finalizer: it is laid into a queue, and counted by whoever comes next.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from llmbroker.allowances import (
    SECOND,
    UNLIMITED,
    Account,
    Book,
    Demand,
    Habit,
    Held,
    Hold,
    Refused,
    Reserved,
    Settled,
    Triple,
    concerns,
    concerns_key,
    elsewhere,
    guessed,
    merged,
    nothing_used,
    prefix_of,
    short_of,
    subject_of,
    window_of,
)
from llmbroker.broker.claims import Claims, Price, refusal
from llmbroker.broker.replies import Ask
from llmbroker.catalog import Limit
from llmbroker.catalog.limit import EACH
from llmbroker.errors import StoreError
from llmbroker.io import Port
from llmbroker.journal import Call, Journal, Store, new_id
from llmbroker.journal.ledger import Ledger, read_limits
from llmbroker.pool import Lane

log = logging.getLogger("llmbroker.broker")

SLACK = 30.0
"""Seconds after its call's deadline at which a hold lapses, if nobody settled it."""
POLL = 0.25
"""Seconds after which a call looks again whether another process made room."""
CROWDED = 0.001
"""Seconds by which each call that waits for the same account puts that off."""
NEAR = 0.1
"""Seconds for which an account that had no room is not asked again, unless an attempt of this process ended."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0
TIDY = 3600.0
MANY = 1000
"""Counts for a store that is away are kept one by one up to so many; then they are summed up."""

Key = tuple[str, str, int]


class Accounts:
    """The limits of a broker, and what is spent and held of each.

    ``late``: a store whose limits could not be read when the broker was made, and why: they are read as soon as it can be
    used, and hold from then on.
    """

    def __init__(
        self,
        port: Port,
        limits: Sequence[Limit],
        journal: Journal,
        price: Price,
        late: tuple[Store | None, StoreError] | None = None,
    ) -> None:
        self.limits = tuple(limits)
        self._port = port
        self._claims = Claims(price, port.time)
        self._ledger = Ledger(journal.store) if journal.store is not None else None
        self._lock = threading.RLock()
        self._book = Book()
        self._habits: dict[str, Habit] = {}
        self._tight: dict[Key, tuple[Triple, float]] = {}
        self._waiting: dict[Key, dict[int, Ask]] = {}
        self._late: deque[tuple[Held, Settled]] = deque()
        self._owed: list[Settled] = []
        self._next_try = 0.0
        self._pause = FIRST_PAUSE
        self._tidy_at = 0.0
        self.trouble = ""
        """Why this process counts alone at present, or ""."""
        self._unread, self._missing = (late[0], str(late[1])) if late is not None else (None, "")
        self._read_at = 0.0
        self._orphans = False
        if self._unread is not None:
            log.warning("%s", self._lacking())

    # -- before an attempt -----------------------------------------------------------------------------------------------

    async def reserve(self, ask: Ask, lane: Lane) -> bool:
        """Hold what an attempt may take; False if a limit has no room: then its lane is closed for the call for a while."""
        if self._unread is not None:
            await self._read_late()
        if self._orphans:
            await self._give_up_orphans()
        if ask.limits is None:
            ask.limits = tuple(limit for limit in self.limits if concerns(limit, ask.scope, ask.operation))
        mark = lane.key.account or None
        limits = [limit for limit in ask.limits if concerns_key(limit, lane.key.refs, mark)]
        if not limits:
            return True
        if self._late:
            await self.flush()
        characters = ask.need.size()
        with self._lock:
            habit = self._habits.setdefault(lane.member.name, Habit())
        guess = guessed(ask.request, characters, habit)
        made = self._claims.demands(limits, ask, lane, mark, guess)
        if isinstance(made, Refused):
            return self._close(ask, lane, made)
        made.sort(key=lambda pair: pair[0].key)
        demands = tuple(demand for demand, _ in made)
        expires = self._micros() + round((ask.deadline - self._port.now() + SLACK) * SECOND)
        held = Held(
            Hold(new_id(), demands, expires), tuple(limit for _, limit in made), guess, characters, self._ledger is None
        )
        refused = self._at_once(held, ask)
        if refused is None:
            got, reserved = await self._hold(held, ask)
            refused = self._explained(got, reserved, ask) if isinstance(reserved, Reserved) else reserved
            held = got
        if refused is not None:
            return self._close(ask, lane, refused, held)
        if ask.holds is None:
            ask.holds = {}
        ask.holds[id(lane)] = held
        if ask.waits:
            self.forget(ask)
        return True

    async def _give_up_orphans(self) -> None:
        """Give back what the parent of a fork holds in a store in memory, of which this process has a copy of its own."""
        self._orphans = False
        assert self._ledger is not None
        try:
            while await self._ask_store(self._ledger.lapse, UNLIMITED):
                pass
        except StoreError as error:
            self._down(error)

    async def _read_late(self) -> None:
        """Read the limits that could not be read when the broker was made, if the last try is long enough ago."""
        store, now = self._unread, self._port.now()
        if store is None or now < self._read_at:
            return
        self._read_at = now + LONGEST_PAUSE
        try:
            limits = await self._port.call(read_limits, store, brief=True)
        except Exception as error:  # noqa: BLE001 - no fault of a store reaches a call
            self._missing = str(error)
            return
        self.limits, self._unread = tuple(limits), None
        log.warning("The limits in %s are read: %d hold from now on.", store.where, len(limits))

    def _lacking(self) -> str:
        where = self._unread.where if self._unread is not None else ""
        return f"The limits in {where} cannot be read, and until then none of them holds: {self._missing}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said of how limits are counted now."""
        alone = f"Limits are counted by this process alone for now: {self.trouble}" if self.trouble else ""
        return tuple(filter(None, (alone, self._lacking() if self._unread is not None else "")))

    def _at_once(self, held: Held, ask: Ask) -> Refused | None:
        """Return why there is no room, where that is known without asking the store."""
        now = self._port.now()
        with self._lock:
            for demand in held.hold.demands:
                account = self._book.account(demand)
                if short_of(account, demand, spent_alone=True) is not None:
                    return self._refusal(account, demand, ask)
                tight = self._tight.get(demand.key)
                if tight is not None and now < tight[1] and all(a >= b for a, b in zip(demand.wants, tight[0], strict=True)):
                    return self._refusal(account, demand, ask)
        return None

    async def _hold(self, held: Held, ask: Ask) -> tuple[Held, Reserved | Refused]:
        """Make the hold, in the store or in this process."""
        if self._ledger is not None and self._port.now() >= self._next_try:
            ledger, now = self._ledger, self._micros()
            try:
                if self._owed:
                    await self._pay()
                reserved: Reserved = await self._ask_store(ledger.reserve, held.hold, now)
                if now >= self._tidy_at * SECOND:
                    self._tidy_at = now / SECOND + TIDY
                    await self._ask_store(ledger.tidy, now)
            except StoreError as error:
                self._down(error)
                self._owe(nothing_used(held.hold))
            except BaseException:
                self._late.append((held, nothing_used(held.hold)))
                raise
            else:
                self._up()
                with self._lock:
                    self._book.note(reserved.accounts)
                return held, reserved
        if self._ledger is not None:
            strict = next((limit for limit in held.limits if limit.strict), None)
            if strict is not None:
                return held, self._nobody_counts(strict, ask)
            held = Held(
                Hold(new_id(), held.hold.demands, held.hold.expires), held.limits, held.guess, held.characters, alone=True
            )
        with self._lock:
            return held, self._book.reserve(held.hold, self._micros())

    async def _ask_store(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Let the store do something: here where it is quick, else off the flow's path. Whatever is wrong is a StoreError."""
        assert self._ledger is not None
        try:
            if not self._ledger.store.direct:
                return await self._port.call(functools.partial(work, brief=True), *arguments)
            try:
                return work(*arguments, brief=True)
            except StoreError as error:
                if error.reason != "locked":
                    raise
            return await self._port.call(work, *arguments)
        except StoreError:
            raise
        except Exception as error:
            where = self._ledger.store.where
            raise StoreError(f"Limits could not be counted in {where}: {error!r}.", reason="refused") from error

    # -- what a refusal says ---------------------------------------------------------------------------------------------

    def _explained(self, held: Held, reserved: Reserved, ask: Ask) -> Refused | None:
        if reserved.refused is None:
            return None
        demand, account = held.hold.demands[reserved.refused], reserved.accounts[reserved.refused]
        with self._lock:
            self._tight[demand.key] = demand.wants, self._port.now() + NEAR
            while len(self._tight) > MANY:
                self._tight.pop(next(iter(self._tight)))
        return self._refusal(account, demand, ask)

    def _refusal(self, account: Account, demand: Demand, ask: Ask) -> Refused:
        again = POLL + CROWDED * len(self._waiting.get(demand.key, ()))
        return refusal(account, demand, ask, now=self._port.now(), wall=self._port.time(), again=again)

    def _nobody_counts(self, limit: Limit, ask: Ask) -> Refused:
        words = f"limit {limit.name!r} is strict, and the store that counts cannot be reached: {self.trouble}"
        until = max(self._next_try, self._port.now() + POLL)
        return Refused(limit.name, "", "store", 0, 0, 0, words, until, until <= ask.queue_until, sure=False)

    def _close(self, ask: Ask, lane: Lane, refused: Refused, held: Held | None = None) -> bool:
        if not ask.limited:
            ask.limited = {}
        ask.limited[id(lane)] = refused
        if held is not None and refused.returns and not refused.sure:
            with self._lock:
                for demand in held.hold.demands:
                    self._waiting.setdefault(demand.key, {})[id(ask)] = ask
                    ask.waits = (ask.waits or set()) | {demand.key}
        return False

    def again(self, ask: Ask) -> None:
        """A call wakes: what may have found room meanwhile is not closed to it any more."""
        if ask.limited:
            ask.limited = {lane: refused for lane, refused in ask.limited.items() if refused.sure}

    def forget(self, ask: Ask) -> None:
        """A call waits no more; the next one that does may look."""
        keys, ask.waits = ask.waits or (), None
        with self._lock:
            for key in keys:
                waiting = self._waiting.get(key, {})
                waiting.pop(id(ask), None)
                if not waiting:
                    self._waiting.pop(key, None)
        self._wake(keys)

    async def leave(self, ask: Ask) -> None:
        """A call is over, as far as it chose models: count what it stopped, let the next one look."""
        if ask.waits:
            self.forget(ask)
        if self._late and not ask.need.stream:  # a stream has an owner to reach: nothing may come between
            await self.flush()

    def _wake(self, keys: Iterable[Key]) -> None:
        """Wake the call that waits longest for room in each of these accounts."""
        with self._lock:
            for key in keys:
                for ask in self._waiting.get(key, {}).values():
                    waiter = ask.waiter
                    if waiter is not None and waiter.asleep:
                        waiter.wake()
                        break

    # -- after an attempt ------------------------------------------------------------------------------------------------

    async def settle(self, held: Held, lane: Lane, call: Call, error: BaseException | None) -> None:
        """Count what an attempt used; ``error``: how it failed."""
        if call.status == "ok":
            with self._lock:
                self._habits.setdefault(call.llm_name, Habit()).learn(held.characters, call.usage)
        self._late.append((held, self._claims.settled(held, lane, call, error)))
        await self.flush()

    def cut(self, held: Held, lane: Lane, call: Call) -> None:
        """Count what a stopped attempt used, at the next occasion: this may be a finalizer, in the midst of anything."""
        self._late.append((held, self._claims.settled(held, lane, call)))

    def unused(self, held: Held) -> None:
        """Give back what was held for an attempt that was never made, at the next occasion."""
        self._late.append((held, nothing_used(held.hold)))

    async def flush(self) -> None:
        """Count what ended."""
        while self._late:
            try:
                held, settled = self._late.popleft()
            except IndexError:  # another thread took it
                return
            with self._lock:
                if held.alone:
                    self._book.settle(settled)
                else:
                    self._book.count(settled, back=True)
                keys = [demand.key for demand in settled.hold.demands]
                for key in keys:
                    self._tight.pop(key, None)
            if self._ledger is not None and (not held.alone or any(map(any, settled.spent))):
                await self._tell(elsewhere(settled) if held.alone else settled)
            self._wake(keys)

    async def _tell(self, settled: Settled) -> None:
        """Tell the store what an attempt used, now or when it can be reached again."""
        assert self._ledger is not None
        if self._port.now() < self._next_try:
            self._owe(settled)
            return
        try:
            if self._owed:
                await self._pay()
            await self._ask_store(self._ledger.settle, settled, self._micros())
        except StoreError as error:
            if not _in_vain(error):
                self._owe(settled)
            self._down(error)
        except BaseException:
            self._owe(settled)  # it is counted once, however often it is told
            raise
        else:
            self._up()

    async def _pay(self) -> None:
        """Tell the store what it does not know yet."""
        assert self._ledger is not None
        with self._lock:
            owed, self._owed = self._owed, []
        try:
            while owed:
                try:
                    await self._ask_store(self._ledger.settle, owed[0], self._micros())
                except StoreError as error:
                    if not _in_vain(error):
                        raise
                del owed[0]
        finally:
            with self._lock:
                self._owed[:0] = owed

    def _owe(self, settled: Settled) -> None:
        with self._lock:
            self._owed.append(settled)
            if len(self._owed) > MANY:
                foreign = [one for one in self._owed if one.foreign]
                own = [one for one in self._owed if not one.foreign]
                # What those held whose ends are summed up, too, lapses by itself.
                self._owed = own[-MANY:] + merged([*foreign, *map(elsewhere, own[:-MANY])], new_id)

    def _down(self, error: StoreError) -> None:
        if not self.trouble:
            log.warning("Limits are counted by this process alone for now: %s", error)
        self.trouble = str(error)
        self._next_try = self._port.now() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _up(self) -> None:
        if self.trouble:
            log.warning("Limits are counted for all processes again.")
        self.trouble = ""
        self._pause = FIRST_PAUSE

    def _micros(self) -> int:
        return round(self._port.time() * SECOND)

    # -- how it stands ---------------------------------------------------------------------------------------------------

    async def standing(self, scope: str | None) -> list[tuple[Limit, Account]]:
        """Return the accounts of the present windows that concern a user (None: of everybody), with their limits."""
        await self.flush()
        if self._unread is not None:
            await self._read_late()
        now = self._micros()
        mine = [limit for limit in self.limits if scope is None or limit.scope in (None, EACH, scope)]
        apart = [limit.name for limit in mine if limit.scope == EACH and scope is not None]
        found: list[Account] | None = None
        if self._ledger is not None and self._port.now() >= self._next_try:
            ledger = self._ledger
            try:
                if self._owed:
                    await self._pay()
                names = [limit.name for limit in mine if limit.name not in apart]
                found = await self._ask_store(ledger.accounts, names, now)
                if apart:
                    found += await self._ask_store(ledger.accounts, apart, now, prefix_of(scope or ""))
                self._up()
            except StoreError as error:
                self._down(error)
        if found is None:
            with self._lock:
                kept = self._book.accounts(now)
            found = [one for one in kept if one.name not in apart or one.subject.startswith(prefix_of(scope or ""))]
        by_name: dict[str, list[Account]] = {limit.name: [] for limit in mine}
        for account in found:
            if account.name in by_name:
                by_name[account.name].append(account)
        for limit in mine:
            # What nobody has used yet is shown too.
            if not by_name[limit.name]:
                start, ends = window_of(limit.window, now)
                subject = subject_of(limit, scope, None, None) if limit.scope == EACH and scope is not None else ""
                by_name[limit.name].append(Account(limit.name, subject, start, ends))
        return [(limit, account) for limit in mine for account in by_name[limit.name]]

    def close(self) -> None:
        """Tell the store what it does not know yet, if it lets us."""
        if self._ledger is None:
            return
        now = self._micros()
        while self._late:
            held, settled = self._late.popleft()
            self._owe(elsewhere(settled) if held.alone else settled)
        try:
            while self._owed:
                self._ledger.settle(self._owed[0], now)
                del self._owed[0]
        except Exception as error:  # noqa: BLE001 - a broker closes whatever its store does
            log.warning("What %d attempts took of their limits could not be written down: %s", len(self._owed), error)

    def after_fork(self) -> None:
        """In the child of a fork: what ran in the parent is counted there."""
        self._lock = threading.RLock()
        self._late.clear()
        self._owed.clear()
        self._waiting.clear()
        self._book.abandon()
        self._orphans = self._ledger is not None and self._ledger.store.spool_beside is None


def _in_vain(error: StoreError) -> bool:
    """Whether a store will never take this count; then the others do not wait behind it."""
    if error.reason == "refused":
        log.warning("What an attempt took of its limits cannot be written down: %s", error)
        return True
    return False
