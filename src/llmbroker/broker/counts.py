"""Counts: what several processes send on the quotas that they share. Pure: every time is an argument.

Only quotas that were refused once are *met*, here or by another process, and only of them anything is counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from llmbroker.broker.notes import Taught
from llmbroker.journal.tidings import Sent
from llmbroker.quotas import Quota

RECENT = 90.0
"""Seconds for which a count may still change (a refusal takes an attempt back) and its sender is taken to send on."""
EVERY = 0.5
"""Seconds between two trades: what others sent up to so long ago was told."""
TIDY = 60.0
"""Seconds between two times that old counts are forgotten."""
KEPT = 3600.0
"""Seconds for which counts of a quota are kept whose period is not known."""


class Counts:
    """What this process sent on each quota, what of it was told, and what the others sent."""

    def __init__(self, me: str) -> None:
        self._me = me
        self.met: dict[str, Quota] = {}
        self._mine: dict[str, dict[int, tuple[int, float]]] = {}
        self._theirs: dict[str, dict[tuple[str, int], tuple[int, float, float]]] = {}
        """By quota, sender and second: how many, of what size together, and at which moment, as far as that is known."""
        self._taken: dict[str, float] = {}
        self._taught: dict[str, float] = {}
        self._tidied = 0.0

    def meet(self, name: str, quota: Quota, now: float, shift: float) -> None:
        """From now on share what is sent on this quota."""
        if self.met.get(name) is quota:
            return
        self.met[name] = quota
        quota.share()
        self._taken[name] = quota.taken
        for number, size, at in self._theirs.get(name, {}).values():
            quota.hear(at, number, size if at > quota.learnt else 0.0, now)

    def adopted(self, name: str, quota: Quota) -> None:
        """What is known of this quota came from another process: it is not told back."""
        self._taught[name] = quota.learnt

    def learnt(self, shift: float) -> dict[str, bytes]:
        """Return notes on what was learnt since it was told last."""
        found = {}
        for name, quota in self.met.items():
            if quota.learnt > self._taught.get(name, -math.inf):
                self._taught[name] = quota.learnt
                found[name] = msgspec.json.encode(Taught(self._me, quota.told(shift)))
        return found

    def sent(self, now: float, shift: float) -> tuple[list[Sent], dict[str, int]]:
        """Return counts that changed since they were told, and which ones are to be forgotten."""
        out: list[Sent] = []
        for name, quota in self.met.items():
            mine = self._mine.setdefault(name, {})
            size = quota.taken - self._taken.get(name, 0.0)
            numbers: dict[int, int] = {}
            for at in reversed(quota.own or ()):
                if at < now - RECENT:
                    break
                second = int(at + shift)
                numbers[second] = numbers.get(second, 0) + 1
            current = int(now + shift)
            if size:
                numbers.setdefault(current, 0)
            for second in [*numbers, *(one for one in mine if one not in numbers and one >= now + shift - RECENT)]:
                known = mine.get(second, (0, 0.0))
                told = (numbers.get(second, 0), known[1] + (size if second == current else 0.0))
                if told != known:
                    out.append(Sent(name, self._me, second, *told))
        return out, self._stale(now, shift)

    def _stale(self, now: float, shift: float) -> dict[str, int]:
        """Forget old counts from time to time; return before which second the store forgets those of each quota."""
        if now < self._tidied + TIDY or not (self.met or self._theirs):
            return {}
        self._tidied = now
        stale = {name: int(now + shift - _kept(quota)) for name, quota in self.met.items()}
        for name, second in stale.items():
            mine = self._mine.get(name, {})
            for key in [key for key in mine if key < second]:
                del mine[key]
        for name in list(self._theirs):
            least = stale.get(name, now + shift - KEPT)  # also of quotas that nobody uses here
            self._theirs[name] = {key: count for key, count in self._theirs[name].items() if key[1] >= least}
            if not self._theirs[name]:
                del self._theirs[name]
        return stale

    def were_told(self, sent: Sequence[Sent]) -> None:
        """These counts are in the store."""
        for one in sent:
            mine = self._mine.setdefault(one.name, {})
            self._taken[one.name] = self._taken.get(one.name, 0.0) + one.size - mine.get(one.second, (0, 0.0))[1]
            mine[one.second] = (one.number, one.size)

    def hear(self, sent: Sequence[Sent], now: float, shift: float) -> None:
        """Take in what the others sent, and how many they are."""
        for one in sent:
            if one.sender == self._me:
                continue
            theirs = self._theirs.setdefault(one.name, {})
            number, size, at = theirs.get((one.sender, one.second), (0, 0.0, min(one.second + 0.5 - shift, now)))
            theirs[one.sender, one.second] = (one.number, one.size, at)
            quota = self.met.get(one.name)
            if quota is not None:
                quota.hear(at, one.number - number, one.size - size, now)
        for name, quota in self.met.items():
            alive = {sender for sender, second in self._theirs.get(name, ()) if second >= now + shift - RECENT}
            quota.others, quota.heard = len(alive), now - EVERY

    def after_fork(self, me: str) -> None:
        """In the child of a fork: what was sent so far was sent by another process."""
        self._me = me
        self._mine.clear()
        for name, quota in self.met.items():
            if quota.own is not None:
                quota.own.clear()
            self._taken[name] = quota.taken


def _kept(quota: Quota) -> float:
    period, seen = quota.window.best()
    return max(2.0 * period, 2.0 * RECENT) if seen > 1 else KEPT
