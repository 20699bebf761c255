"""Our own limits: how many at once, who waits for whom, how much may be spent on running two beside each other. Pure.

Nothing here sleeps or locks: a waiter is a value with a flag that somebody else sets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CROWD = 4
"""So many others must be under way for a refusal that says nothing to be taken for one too many at once."""
DOUBTS = 1
"""How often that may turn out to be wrong."""


class Cap:
    """How many attempts one key bears at once, learnt from its refusals.

    None until the provider refuses for having too many at once; then one below what was refused, growing slowly with answers.
    A refusal that says nothing about its reason is suspected of it where several others are under way. The suspicion is given
    up when an attempt is refused that began beside fewer others than were let in.
    """

    __slots__ = ("doubts", "limit", "proved", "since", "suspected")

    def __init__(self) -> None:
        self.limit: float | None = None
        self.suspected = False
        self.since = 0.0
        self.proved = 0
        self.doubts = 0

    def suspects(self, beside: int, started: float, now: float) -> bool:
        """Whether a refusal without words is taken for one too many at once.

        Args:
            beside: how many others were under way when the attempt began.
            started: when that was.
            now: the time.
        """
        if self.suspected and self.limit is not None:
            if started > self.since and beside < self.proved:
                self.limit, self.suspected = None, False
                self.doubts += 1
                return False
            self.proved = min(self.proved, max(1, beside))
            return True
        if self.limit is not None or beside < CROWD or self.doubts >= DOUBTS:
            return False
        self.suspected, self.since, self.proved = True, now, beside
        return True

    def refused(self, running: int) -> None:
        """The provider refused an attempt while that many others were running."""
        self.limit = max(1.0, min(self.limit or running, float(running)))

    def answered(self) -> None:
        """An attempt was answered."""
        if self.limit is not None:
            self.limit += 0.1 / self.limit
            if self.limit > 64:
                self.limit = None

    def free(self, running: int) -> bool:
        """Whether one more may begin."""
        return self.limit is None or running < int(self.limit)


class Credit:
    """What may be spent on a second attempt beside a slow one: a share of the calls, saved up to a bound."""

    __slots__ = ("most", "saved", "share")

    def __init__(self, share: float = 0.2, most: float = 10.0) -> None:
        self.share = share
        self.most = most
        self.saved = most

    def earn(self) -> None:
        """A call began."""
        if self.saved < self.most:
            self.saved += self.share

    def spend(self) -> bool:
        """Take one second attempt; False if there is nothing left."""
        if self.saved < 1.0:
            return False
        self.saved -= 1.0
        return True

    def refund(self) -> None:
        """What was spent was not used."""
        self.saved += 1.0


class Waiter:
    """A call that waits for one of some members to be free.

    Attributes:
        wants: names of the members that could serve it.
        wake: called, from any thread, when ``offer`` was set.
        pool: the members and their lanes as its call sees them.
        offer: the member whose slot is kept for this call until it looks, or None. ``key``: the key of that slot.
        asleep: whether it waits now.
        ticket: its place in the queue.
    """

    __slots__ = ("asleep", "key", "offer", "pool", "ticket", "wake", "wants")

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wants: frozenset[str] = frozenset()
        self.wake = wake
        self.pool: Any = ()
        self.offer: Any = None
        self.key: Any = None
        self.asleep = False
        self.ticket = 0


class Queue:
    """Who waits, the oldest first. A slot that becomes free is kept for the first that wants it, so nobody is overtaken."""

    __slots__ = ("_tickets", "_waiters")

    def __init__(self) -> None:
        self._waiters: dict[int, Waiter] = {}
        self._tickets = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiters)

    def add(self, waiter: Waiter) -> None:
        """Take a waiter in; it keeps its place until it is removed."""
        if id(waiter) not in self._waiters:
            self._tickets += 1
            waiter.ticket = self._tickets
            self._waiters[id(waiter)] = waiter

    def remove(self, waiter: Waiter) -> None:
        """Let a waiter go; may be called for one that is not there."""
        self._waiters.pop(id(waiter), None)

    def sleeping(self) -> list[Waiter]:
        """Return those that sleep without an offer, the oldest first."""
        return [waiter for waiter in self._waiters.values() if waiter.asleep and waiter.offer is None]

    def next_for(self, name: str, after: int = 0, able: Callable[[Waiter], Any] | None = None) -> Waiter | None:
        """Return the oldest sleeping waiter that wants this member, of those behind the ticket ``after`` that are able to."""
        for waiter in self._waiters.values():
            waits = waiter.asleep and waiter.offer is None and waiter.ticket > after and name in waiter.wants
            if waits and (able is None or able(waiter)):
                return waiter
        return None
