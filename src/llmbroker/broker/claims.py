"""What an attempt asks of limits, and what it is found to have used: estimates, prices, and the words of a refusal.

Nothing here waits or keeps anything; ``accounts`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from llmbroker import prices
from llmbroker.allowances import (
    BILLION,
    SECOND,
    Account,
    Demand,
    Guess,
    Held,
    Refused,
    Settled,
    Triple,
    billionths,
    empty,
    masked,
    most_of,
    nothing_used,
    parts_of,
    short_of,
    subject_of,
    used,
    window_of,
    worded,
)
from llmbroker.broker.replies import Ask
from llmbroker.catalog import Limit
from llmbroker.catalog.limit import MEASURES
from llmbroker.errors import ConnectionFailedError, LimitReachedError, LLMTimeoutError
from llmbroker.exchange import Usage
from llmbroker.journal import Call, utc, worked
from llmbroker.pool import Lane

Price = Callable[[Lane, str | None, Usage | None], tuple[float | None, str | None]]
"""From a lane, the model that answered, and tokens, to the cost and its currency; None where that is not known."""
MOST_SPENT = 2**52
"""Tokens, or billionths of a dollar, that one attempt counts at most, so that sums stay within what a store can keep."""
SLACK = 0.001
"""Seconds after the end of a window at which it is looked at again."""


class Claims:
    """Limits, prices and guesses put together.

    Args:
        price: what tokens cost on a lane.
        wall: seconds since 1970.
    """

    def __init__(self, price: Price, wall: Callable[[], float]) -> None:
        self._price = price
        self._wall = wall

    def demands(
        self, limits: Sequence[Limit], ask: Ask, lane: Lane, mark: str | None, guess: Guess
    ) -> list[tuple[Demand, Limit]] | Refused:
        """Return what an attempt asks of each limit, or why one of them will never let it."""
        now = round(self._wall() * SECOND)
        made = []
        for limit in limits:
            subject = subject_of(limit, ask.scope, mark, ask.operation)
            most = most_of(limit)
            asked = self._asked(limit, lane, guess)
            if asked is None:
                words = (
                    f"limit {limit.name!r}: the price of {lane.member.name} is not known; declare it (price=), or say what it"
                    " counts (unknown_price=)"
                )
                return Refused(limit.name, subject, "price", 0, 0, 0, words)
            start, ends = window_of(limit.window, now)
            demand = Demand(limit.name, subject, start, ends, *asked, most)
            place = short_of(empty(demand), demand)
            if place is not None:
                wanted = worded(place, demand.least[place])
                words = f"limit {limit.name!r}: {worded(place, most[place])} in all, and this call alone takes {wanted}"
                return Refused(limit.name, subject, MEASURES[place], 0, 0, most[place], words)
            made.append((demand, limit))
        return made

    def _asked(self, limit: Limit, lane: Lane, guess: Guess) -> tuple[Triple, Triple] | None:
        """Return what to hold, and the part of it that is no guess; None if the price is not known and that is to refuse."""
        sent = guess.input_tokens
        wants = tokens, cost = sent + guess.output_tokens, 0
        if limit.cost is not None:
            dollars = self._dollars(limit, lane, guess.usage)
            if dollars is None:
                return None
            wants = tokens, billionths(dollars, up=True)
        least = wants
        if not guess.bounded:
            only_sent = Usage(sent, 0, total_tokens=sent)
            if wants[1]:
                cost = max(1, billionths(self._dollars(limit, lane, only_sent) or 0.0, up=True))
            least = sent, cost
        return masked(limit, (1, *wants)), masked(limit, (1, *least))

    def _dollars(self, limit: Limit, lane: Lane, usage: Usage) -> float | None:
        """Return what so many tokens cost, by the limit's policy where nobody knows; None where that is to refuse."""
        dollars, _ = self._price(lane, None, usage)
        return dollars if dollars is not None else self._unknown(limit, lane, usage)

    def _unknown(self, limit: Limit, lane: Lane, usage: Usage) -> float | None:
        policy = limit.unknown_price
        if policy == "free" or lane.deployment.in_process:
            return 0.0  # a model that runs in this process costs nothing
        if isinstance(policy, str):
            return None
        if isinstance(policy, (int, float)):
            return float(policy)
        return prices.cost(usage, at=utc(self._wall()), model=lane.deployment.model, price=policy) or 0.0

    def settled(self, held: Held, lane: Lane, call: Call, error: BaseException | None = None) -> Settled:
        """Return what an attempt used, as its row and its error tell."""
        if not _taken(call, error):
            return nothing_used(held.hold)
        whole = call.status == "ok"
        usage = used(call.usage, held.guess, whole)
        spent = []
        unpriced = 0
        known = call.cost if whole else None
        if known is None:
            known = self._price(lane, call.model_answered, usage)[0]
        for limit, demand in zip(held.limits, held.hold.demands, strict=True):
            cost = 0
            if limit.cost is not None:
                dollars = known if known is not None else self._unknown(limit, lane, usage)
                unpriced |= known is None
                cost = demand.wants[2] if dollars is None else billionths(dollars, up=False)
            spent.append(masked(limit, (1, min(usage.total_tokens or 0, MOST_SPENT), min(cost, MOST_SPENT))))
        return Settled(held.hold, tuple(spent), unpriced)


def refusal(account: Account, demand: Demand, ask: Ask, *, now: float, wall: float, again: float) -> Refused:
    """Return why an account has no room; ``again``: after how many seconds to look whether those under way gave some back."""
    place = short_of(account, demand, spent_alone=True)
    sure = place is not None
    if place is None:
        place = short_of(account, demand) or 0
    at = None if demand.ends is None else now + demand.ends / SECOND - wall + SLACK
    until = at if sure else now + again
    opens = "" if demand.ends is None else f", opens {utc(demand.ends / SECOND):%Y-%m-%d %H:%M:%S} UTC"
    whose = ", ".join(part for part in parts_of(demand.subject)[::2] if part is not None)
    spent, held, most = account.spent[place], account.held[place], demand.most[place]
    return Refused(
        demand.name,
        demand.subject,
        MEASURES[place],
        spent,
        held,
        most,
        f"limit {demand.name!r}{f' of {whose}' if whose else ''}: {worded(place, spent, most)} used"
        + (f", {worded(place, held)} held by calls under way" if held else "")
        + (f", {worded(place, demand.wants[place])} wanted" if MEASURES[place] != "calls" else "")
        + opens,
        until=until,
        returns=until is not None and until <= ask.queue_until,
        sure=sure,
        ends=demand.ends,
    )


def _taken(call: Call, error: BaseException | None) -> bool:
    """Whether the provider did any work for an attempt, or may have: then it counts."""
    if call.first_event_ms is not None or worked(call):
        return not (isinstance(error, LLMTimeoutError) and not error.sent)
    if isinstance(error, ConnectionFailedError):
        return error.sent
    return call.status == "error" and call.http_status is None


def reached(refusals: Iterable[Refused], more: str = "", attempts: tuple[Any, ...] = ()) -> LimitReachedError:
    """Make the error that says which limits are reached, how much of them is used, and when the first one opens."""
    several = sorted(refusals, key=lambda refused: (refused.ends is None, refused.ends or 0))
    first = several[0]
    words = "; ".join(dict.fromkeys(refused.words for refused in several[:8]))

    def amount(value: int) -> float:
        return value / BILLION if first.measure == "cost" else value

    return LimitReachedError(
        f"A limit of this broker is reached, no provider refused: {words}.{more}",
        reason="limit",
        retry_at=None if first.ends is None else utc(first.ends / SECOND),
        attempts=attempts,
        limit=first.limit,
        measure=first.measure,
        used=amount(first.used),
        reserved=amount(first.held),
        most=amount(first.most),
        hint="snapshot().limits shows all of them; raise it with limits="
        + ("." if first.ends is None else ", or wait until it opens."),
    )
