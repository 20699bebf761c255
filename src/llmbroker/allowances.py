"""Counting against limits: what an attempt asks for, what is spent and held, when a window ends. Pure: time is an argument.

Theory of operation
-------------------
A ``Limit`` has an *account* for each subject (user, key, operation, as far as it tells them apart) and each window. An account
knows what was *spent* by attempts that ended and what is *held* for those under way. An attempt makes a *hold* on all accounts
that concern it, before it is sent: all of them or none. When it ends, the hold is *settled*: what was held is free again, and
what was used is spent. A hold whose owner died lapses at a moment that was said when it was made.

``Book`` keeps accounts in memory; the journal's stores keep them in tables, by the same rules (``journal.ledger``). Times are
whole microseconds since 1970. Dollars are whole billionths, so that sums are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec

from llmbroker.catalog import Limit
from llmbroker.catalog.limit import EACH, MEASURES
from llmbroker.exchange import Request, Usage

SECOND = 1_000_000
BILLION = 1_000_000_000
UNLIMITED = 2**62
ANSWER = 500
"""Tokens that an answer is taken to have, before any was seen and where the caller sets no bound."""
LONG = 1_000_000
"""Tokens of an answer that nobody bounded, at most."""
CHARACTERS = 3.0
"""Characters that a token is taken to have, before any request was counted: rather too few."""
MEDIUM = 1000
"""Tokens that an image, a sound or a file is taken to have."""
FRAME = 8
"""Tokens that a message is taken to need around its text."""
BOUNDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
REMEMBERED = 100_000

Triple: TypeAlias = tuple[int, int, int]
"""Calls, tokens, billionths of a dollar."""
NOTHING: Triple = (0, 0, 0)


class Demand(msgspec.Struct, frozen=True, array_like=True):
    """What an attempt asks of one account.

    Attributes:
        name, subject, start: whose account: the limit's name, the subject, when its window began.
        ends: when the window ends, or None.
        wants: what is to be held; a measure of 0 is not looked at.
        least: the part of it that is no guess.
        most: what may be spent and held together.
    """

    name: str
    subject: str
    start: int
    ends: int | None
    wants: Triple
    least: Triple
    most: Triple

    @property
    def key(self) -> tuple[str, str, int]:
        """What its account is found by."""
        return self.name, self.subject, self.start


class Hold(msgspec.Struct, frozen=True):
    """What one attempt holds of all accounts that concern it, until ``expires``; demands are in order of their accounts."""

    id: str
    demands: tuple[Demand, ...]
    expires: int


class Settled(msgspec.Struct, frozen=True):
    """What an attempt used.

    Attributes:
        hold: what was held for it.
        spent: what it used, demand by demand.
        unpriced: attempts whose price was not known, of one; of many, where several are counted in one sum.
        foreign: the hold was made elsewhere: nothing is to be given back, only to be counted.
    """

    hold: Hold
    spent: tuple[Triple, ...]
    unpriced: int = 0
    foreign: bool = False


class Account(msgspec.Struct, frozen=True):
    """What one subject has spent and holds of one limit, in one window. ``unpriced``: attempts whose price was not known."""

    name: str
    subject: str
    start: int
    ends: int | None
    spent: Triple = NOTHING
    held: Triple = NOTHING
    unpriced: int = 0

    @property
    def key(self) -> tuple[str, str, int]:
        """What it is found by."""
        return self.name, self.subject, self.start


class Reserved(msgspec.Struct, frozen=True):
    """What came of a hold: None, or the place of the demand that found no room; and the accounts as they are then."""

    refused: int | None
    accounts: tuple[Account, ...]


class Guess(msgspec.Struct, frozen=True):
    """What an attempt will probably take. ``bounded``: the caller set a bound to the answer, so it can be no more."""

    input_tokens: int
    output_tokens: int
    bounded: bool

    @property
    def usage(self) -> Usage:
        """It as a usage, for the price."""
        return Usage(self.input_tokens, self.output_tokens, total_tokens=self.input_tokens + self.output_tokens)


class Held(msgspec.Struct, frozen=True):
    """What an attempt holds, as its process knows it.

    Attributes:
        hold: the hold.
        limits: the limits that it concerns, demand by demand.
        guess: what the attempt was thought to take.
        characters: how long its request is.
        alone: it is kept in this process's own book.
    """

    hold: Hold
    limits: tuple[Limit, ...]
    guess: Guess
    characters: int
    alone: bool


class Refused(msgspec.Struct, frozen=True):
    """Why a limit lets an attempt not begin.

    Attributes:
        limit, subject: which, and whose account.
        measure: calls, tokens or cost; ``price``, where that is not known; ``store``, where nobody counts.
        used, held, most: of that measure, in its unit.
        words: all of it in a sentence.
        until: when to look again, on the port's scale; None: it will never fit.
        returns: whether that is in time for the call.
        sure: it opens at ``until``, not before; else whoever ends may make room.
        ends: when the window ends, in microseconds since 1970, or None.
    """

    limit: str
    subject: str
    measure: str
    used: int
    held: int
    most: int
    words: str
    until: float | None = None
    returns: bool = False
    sure: bool = True
    ends: int | None = None


def elsewhere(settled: Settled) -> Settled:
    """Return an attempt as one that a store has to count though it was never asked to hold anything for it."""
    return msgspec.structs.replace(settled, foreign=True)


def nothing_used(hold: Hold) -> Settled:
    """Return the end of an attempt that took nothing."""
    return Settled(hold, (NOTHING,) * len(hold.demands))


def merged(several: Iterable[Settled], name: Callable[[], str]) -> list[Settled]:
    """Return attempts that are counted elsewhere as sums, one for those of the same accounts, each under a new name."""
    sums: dict[tuple[tuple[str, str, int], ...], Settled] = {}
    for one in several:
        keys = tuple(demand.key for demand in one.hold.demands)
        before = sums.get(keys)
        if before is None:
            sums[keys] = Settled(Hold(name(), one.hold.demands, 0), one.spent, one.unpriced, foreign=True)
        else:
            spent = tuple(_sum(*pair) for pair in zip(before.spent, one.spent, strict=True))
            sums[keys] = msgspec.structs.replace(before, spent=spent, unpriced=before.unpriced + one.unpriced)
    return list(sums.values())


def short_of(account: Account, demand: Demand, *, spent_alone: bool = False) -> int | None:
    """Return the place of the measure that has no room for this demand, or None. ``spent_alone``: even if nothing were held.

    A guess keeps nobody out of an account of which something is left and nothing held: so an account may be overdrawn by one
    answer, and only by one whose length its caller did not bound.
    """
    for place, wants in enumerate(demand.wants):
        spent, held, most = account.spent[place], account.held[place], demand.most[place]
        alone = (spent_alone or not held) and spent + demand.least[place] <= most
        if wants and not alone and (spent_alone or spent + held + wants > most):
            return place
    return None


def empty(demand: Demand) -> Account:
    """Return the account of a demand before anything happened."""
    return Account(demand.name, demand.subject, demand.start, demand.ends)


def opened(account: Account, demand: Demand) -> Account:
    """Return the account with what a demand holds."""
    return msgspec.structs.replace(account, held=_sum(account.held, demand.wants))


def closed(account: Account, demand: Demand, spent: Triple, *, back: bool, unpriced: int) -> Account:
    """Return the account after an attempt: what it spent is counted, and what it held given back."""
    calls, tokens, cost = account.held
    one, two, three = demand.wants if back else NOTHING
    return msgspec.structs.replace(
        account,
        spent=_sum(account.spent, spent),
        held=(max(0, calls - one), max(0, tokens - two), max(0, cost - three)),
        unpriced=account.unpriced + unpriced,
    )


def _sum(left: Triple, right: Triple) -> Triple:
    return left[0] + right[0], left[1] + right[1], left[2] + right[2]


class Book:
    """Accounts in memory. Not safe for several threads at once: whoever uses it holds a lock."""

    def __init__(self) -> None:
        self._accounts: dict[tuple[str, str, int], Account] = {}
        self._holds: dict[str, Hold] = {}
        self._full = REMEMBERED

    def reserve(self, hold: Hold, now: int) -> Reserved:
        """Hold what an attempt asks for, of all accounts or of none."""
        for again in (True, False):
            accounts = [self._accounts.get(demand.key) or empty(demand) for demand in hold.demands]
            pairs = list(zip(accounts, hold.demands, strict=True))
            full = next((place for place, pair in enumerate(pairs) if short_of(*pair) is not None), None)
            if full is None:
                made = tuple(opened(account, demand) for account, demand in pairs)
                for account in made:
                    self._accounts[account.key] = account
                self._holds[hold.id] = hold
                if len(self._accounts) > self._full:
                    self._forget(now)
                return Reserved(None, made)
            if not (again and self._lapse(now)):
                break
        return Reserved(full, tuple(accounts))

    def settle(self, settled: Settled) -> None:
        """Count what an attempt used, once, and give back what it held, if it still did."""
        hold = self._holds.pop(settled.hold.id, None)
        self.count(settled, back=hold is not None)

    def count(self, settled: Settled, *, back: bool) -> None:
        """Count what an attempt used; ``back``: what it held is held no more."""
        for demand, spent in zip(settled.hold.demands, settled.spent, strict=True):
            account = self._accounts.get(demand.key) or empty(demand)
            self._accounts[demand.key] = closed(account, demand, spent, back=back, unpriced=settled.unpriced)

    def note(self, accounts: Iterable[Account]) -> None:
        """Take over accounts as they stand elsewhere; of too many those that were not seen for longest are forgotten."""
        for account in accounts:
            self._accounts.pop(account.key, None)
            self._accounts[account.key] = account
        while len(self._accounts) > REMEMBERED:
            del self._accounts[next(iter(self._accounts))]

    def account(self, demand: Demand) -> Account:
        """Return the account that a demand concerns."""
        return self._accounts.get(demand.key) or empty(demand)

    def accounts(self, now: int) -> list[Account]:
        """Return all accounts whose window has not ended."""
        self._lapse(now)
        return [account for _, account in sorted(self._accounts.items()) if account.ends is None or account.ends > now]

    def abandon(self) -> None:
        """Give back whatever is held: those that hold it are not here any more."""
        self._give_back(list(self._holds.values()))

    def _lapse(self, now: int) -> bool:
        """Give back what is held by those that are given up for dead; return whether there was any."""
        dead = [hold for hold in self._holds.values() if hold.expires <= now]
        self._give_back(dead)
        return bool(dead)

    def _give_back(self, dead: Iterable[Hold]) -> None:
        for hold in dead:
            del self._holds[hold.id]
            for demand in hold.demands:
                account = self.account(demand)
                self._accounts[demand.key] = closed(account, demand, NOTHING, back=True, unpriced=0)

    def _forget(self, now: int) -> None:
        self._accounts = {key: one for key, one in self._accounts.items() if one.ends is None or one.ends > now}
        self._full = max(REMEMBERED, 2 * len(self._accounts))  # where none can be forgotten, they are seldom looked through


# -- windows and subjects ------------------------------------------------------------------------------------------------


def window_of(window: float | str | None, now: int) -> tuple[int, int | None]:
    """Return when the window of this moment began and when it ends; for ever: (0, None)."""
    if window is None:
        return 0, None
    if isinstance(window, str) and window == "month":
        moment = datetime.fromtimestamp(now // SECOND, UTC)
        first = datetime(moment.year, moment.month, 1, tzinfo=UTC)
        after = datetime(moment.year + moment.month // 12, moment.month % 12 + 1, 1, tzinfo=UTC)
        return int(first.timestamp()) * SECOND, int(after.timestamp()) * SECOND
    seconds = {"minute": 60.0, "hour": 3600.0, "day": 86400.0}[window] if isinstance(window, str) else window
    length = round(seconds * SECOND)
    start = now - now % length
    return start, start + length


def concerns(limit: Limit, scope: str | None, operation: str | None) -> bool:
    """Whether a limit concerns calls of this user for this operation."""
    return _fits(limit.scope, scope) and _fits(limit.operation, operation)


def concerns_key(limit: Limit, refs: Iterable[str], mark: str | None) -> bool:
    """Whether a limit concerns a key of these names; ``mark``: None where no key is needed."""
    return limit.key is None or (mark is not None and (limit.key == EACH or limit.key in refs))


def _fits(wanted: str | None, value: str | None) -> bool:
    return wanted is None or (value is not None and wanted in (EACH, value))


def subject_of(limit: Limit, scope: str | None, mark: str | None, operation: str | None) -> str:
    """Return whose account it is: what the limit tells apart, as JSON; "" where it tells nothing apart."""
    parts = [
        scope if limit.scope == EACH else None,
        mark if limit.key is not None else None,
        operation if limit.operation == EACH else None,
    ]
    return "" if parts == [None, None, None] else msgspec.json.encode(parts).decode()


def parts_of(subject: str) -> tuple[str | None, str | None, str | None]:
    """Return scope, key and operation of a subject, as far as its limit tells them apart."""
    if not subject:
        return None, None, None
    scope, mark, operation = msgspec.json.decode(subject, type=tuple[str | None, str | None, str | None])
    return scope, mark, operation


def prefix_of(scope: str) -> str:
    """Return how the subjects of a user begin, in limits that tell users apart."""
    return f"[{msgspec.json.encode(scope).decode()},"


def most_of(limit: Limit) -> Triple:
    """Return what a limit permits."""
    return (
        UNLIMITED if limit.calls is None else limit.calls,
        UNLIMITED if limit.tokens is None else limit.tokens,
        UNLIMITED if limit.cost is None else billionths(limit.cost, up=False),
    )


def billionths(dollars: float, *, up: bool) -> int:
    """Return whole billionths of a dollar; ``up``: rather too many than too few."""
    exact = dollars * BILLION
    return math.ceil(exact - 1e-6) if up else round(exact)


def masked(limit: Limit, amounts: Triple) -> Triple:
    """Return the amounts without those that the limit does not count."""
    calls, tokens, cost = amounts
    return (
        0 if limit.calls is None else calls,
        0 if limit.tokens is None else tokens,
        0 if limit.cost is None else cost,
    )


# -- estimates -----------------------------------------------------------------------------------------------------------


class Habit:
    """How long a model's answers usually are, and how many characters its tokens have."""

    __slots__ = ("answer", "characters")

    def __init__(self) -> None:
        self.answer = float(ANSWER)
        self.characters = CHARACTERS

    def learn(self, characters: int, usage: Usage | None) -> None:
        """Take what a whole answer took."""
        if usage is None:
            return
        if usage.output_tokens is not None:
            self.answer += 0.2 * (min(usage.output_tokens, LONG) - self.answer)
        if usage.input_tokens and characters >= 200:
            self.characters += 0.2 * (min(8.0, max(0.25, characters / usage.input_tokens)) - self.characters)


def guessed(request: Request, characters: int, habit: Habit) -> Guess:
    """Return what a request will probably take: its size, and its bound or the usual length of an answer."""
    history = request.history
    sent = math.ceil(characters / habit.characters) + FRAME * max(1, len(history)) + MEDIUM * len(history.media)
    bound = bound_of(request.params)
    if bound is not None:
        return Guess(sent, bound, True)
    return Guess(sent, math.ceil(habit.answer), False)


def bound_of(params: Mapping[str, Any]) -> int | None:
    """Return how many tokens the answers of a request may have together, or None where it sets no bound."""
    for name in BOUNDS:
        bound = params.get(name)
        if isinstance(bound, int) and not isinstance(bound, bool) and 0 < bound < UNLIMITED:
            several = params.get("n")
            return bound * several if isinstance(several, int) and 1 < several < BILLION else bound
    return None


def used(usage: Usage | None, guess: Guess, whole: bool) -> Usage:
    """Return the tokens to count: those that the provider states; where it does not, or was cut short, the guess."""
    if usage is None:
        return guess.usage
    sent = guess.input_tokens if usage.input_tokens is None else usage.input_tokens
    made = usage.output_tokens
    if made is None:
        made = guess.output_tokens if usage.total_tokens is None else max(0, usage.total_tokens - sent)
    elif not whole:
        made = max(made, guess.output_tokens)
    total = max(usage.total_tokens or 0, sent + made) if whole else sent + made
    return msgspec.structs.replace(usage, input_tokens=sent, output_tokens=made, total_tokens=total)


def worded(place: int, amount: int, most: int | None = None) -> str:
    """Return an amount with its unit: ``3 calls``, ``1,200 of 5,000 tokens``, ``$0.25``."""
    if MEASURES[place] == "cost":
        return " of ".join(dollars(part / BILLION) for part in (amount, most) if part is not None)
    return f"{amount:,}{f' of {most:,}' if most is not None else ''} {MEASURES[place]}"


def dollars(amount: float) -> str:
    """Return US dollars as they are shown: ``$0.25``, ``$1,200``; to a millionth."""
    return f"${amount:,.6f}".rstrip("0").rstrip(".")
