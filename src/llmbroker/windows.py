"""The parts of a quota: a bucket that drains, a window that resets, and what of both may be told. Pure; see ``quotas``."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

import msgspec

PERIODS = (60.0, 1.0, 5.0, 10.0, 15.0, 20.0, 30.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 18000.0, 86400.0)
"""Periods that quotas have, the likeliest first."""
MINUTE = PERIODS[0]
SHARP = 0.6
"""An arc so narrow is waited out; within a wider one it is tried."""
FAR = 1e11
"""Seconds since 1970: no moment is later."""
LATE = 0.05
"""Seconds after a reset at which an attempt goes out."""
BLIP = 2
"""So few refusals that are over at a moment when no reset was due say nothing about the window."""
LONGEST = 300.0
"""Seconds between two tries of a spent quota of which nothing is known."""
REMEMBERED = 512


class Learnt(msgspec.Struct, frozen=True):
    """What refusals taught about a quota, fit to be told to another process. Moments are seconds since 1970.

    Attributes:
        at: when the newest of it was learnt.
        arcs: of each period the span of a reset, and how many resets agree.
        slides: of each period how often a sliding window foretold a reset.
        counts: how many attempts the last windows let in.
        opened, last_no, spent: when it opened last, refused last, and since when it is spent; None: never, or it is not.
        tries: refusals since it is spent.
        no_takes, luck: as of ``Quota``.
        bucket: limit, rate, level and the moment of that level; or None.
        sizes: by how much requests were larger than their characters tell.
    """

    at: float
    arcs: dict[float, tuple[float, float, int]] = {}
    slides: dict[float, int] = {}
    counts: tuple[int, ...] = ()
    opened: float | None = None
    last_no: float | None = None
    spent: float | None = None
    tries: int = 0
    no_takes: float = 1.5
    luck: float = 1.0
    bucket: tuple[float, float, float, float] | None = None
    sizes: tuple[float, ...] = ()


class Bucket:
    """A quota that drains steadily: its size, rate and level as its last refusal stated them, and what was sent since."""

    __slots__ = ("_at", "_level", "_sizes", "limit", "rate")

    def __init__(self, limit: float, rate: float) -> None:
        self.limit = limit
        self.rate = rate
        self._level = 0.0
        self._at = 0.0
        self._sizes: deque[float] = deque(maxlen=8)

    def level(self, now: float) -> float:
        """Return what is in it."""
        return max(0.0, self._level - max(0.0, now - self._at) * self.rate)

    def size(self, characters: int) -> float:
        """Return what a request of that many characters may take: as those that were refused, by their larger half."""
        if not self._sizes:
            return characters / 4.0
        known = sorted(self._sizes)
        return max(1.0, known[-1 if len(known) < 4 else -2] + characters / 4.0)

    def opens(self, now: float, characters: int) -> float:
        """Return when a request of that size will fit; ``now`` if it does."""
        over = self.level(now) + min(self.size(characters), self.limit) - self.limit
        return now + over / self.rate if over > 1e-6 else now

    def add(self, amount: float, now: float) -> None:
        """Take what was sent, or give back, where it is less than 0, what a request did not use."""
        self._level = max(0.0, self.level(now) + amount)
        self._at = now

    def state(self, limit: float, rate: float, used: float, requested: float, characters: int, now: float) -> None:
        """Take what a refusal says."""
        self.limit, self.rate = limit, rate
        self._level, self._at = min(used, limit), now
        self._sizes.append(requested - characters / 4.0)

    def told(self, shift: float) -> tuple[tuple[float, float, float, float], tuple[float, ...]]:
        """Return limit, rate, level and the moment of that level, and sizes; see ``Learnt``."""
        return (self.limit, self.rate, self._level, self._at + shift), tuple(self._sizes)

    def adopt(self, level: float, at: float, sizes: Iterable[float]) -> None:
        """Take over what another process was told."""
        self._level, self._at = level, at
        self._sizes.extend(sizes)


class Window:
    """When a quota resets, as far as its refusals tell."""

    __slots__ = ("_arcs", "_slides")

    def __init__(self) -> None:
        self._arcs: dict[float, tuple[float, float, int]] = {}
        self._slides: dict[float, int] = {}

    def reset(self, low: float, high: float, oldest: dict[float, float]) -> None:
        """A reset happened in that span.

        Args:
            low: when the last refused attempt began.
            high: when the first admitted one began.
            oldest: for each period, when the oldest attempt began that a sliding window held before.
        """
        for period in PERIODS:
            self._lay_over(period, low, high)
            first = oldest.get(period)
            if first is not None:
                hit = low - LATE < first + period <= high + LATE
                self._slides[period] = max(0, min(8, self._slides.get(period, 0) + (1 if hit else -2)))

    def _lay_over(self, period: float, low: float, high: float) -> None:
        if high - low >= period:
            return
        known = self._arcs.get(period)
        if known is None or known[2] <= 0:
            self._arcs[period] = (low, high, 1)
            return
        first, last, seen = known
        shift = round(((low + high) - (first + last)) / 2.0 / period) * period
        first, last = max(first + shift, low), min(last + shift, high)
        if first <= last + LATE:
            self._arcs[period] = (min(first, last), max(first, last), min(seen + 1, 8))
        else:
            self._arcs[period] = (low, high, 1 if seen < 4 else seen - 3)

    def closed(self, low: float, high: float) -> None:
        """No reset happened in that span: shorter periods are ruled out."""
        for period in PERIODS:
            if high - low > period + LATE:
                self._arcs.pop(period, None)
                self._slides.pop(period, None)

    def missed(self, period: float, at: float) -> None:
        """What was expected until ``at`` had not come: the arc was too narrow, or is wrong."""
        low, high, seen = self._arcs[period]
        late = at - high - math.floor((at - high) / period) * period
        self._arcs[period] = (low, high + late + SHARP, seen - 2)

    def denies(self, low: float, high: float) -> bool:
        """Whether a reset in that span goes against all that is known."""
        known = False
        for period, (first, last, seen) in self._arcs.items():
            if period >= MINUTE or seen > 1 or last - first < period / 3:
                known = True
                shift = round(((low + high) - (first + last)) / 2.0 / period) * period
                if max(first + shift, low) <= min(last + shift, high) + SHARP:
                    return False
        return known

    def told(self, shift: float) -> tuple[dict[float, tuple[float, float, int]], dict[float, int]]:
        """Return the arcs and the slides; see ``Learnt``."""
        arcs = {period: (low + shift, high + shift, seen) for period, (low, high, seen) in self._arcs.items()}
        return arcs, dict(self._slides)

    def adopt(self, arcs: dict[float, tuple[float, float, int]], slides: dict[float, int], shift: float) -> None:
        """Take over what another process found out."""
        self._arcs = {
            period: (low + shift, high + shift, min(seen, 8))
            for period, (low, high, seen) in arcs.items()
            if period in PERIODS and low <= high <= low + period and 0.0 <= low <= FAR
        }
        self._slides = {period: min(max(seen, 0), 8) for period, seen in slides.items() if period in PERIODS}

    def best(self) -> tuple[float, int]:
        """Return the likeliest period and how many resets agree with it; (minute, 0) before the first."""
        period, seen = MINUTE, 0
        for one in PERIODS:
            known = self._arcs.get(one)
            if known is not None and known[2] > seen:
                period, seen = one, known[2]
        return period, seen

    def sliding(self, period: float) -> int:
        """Return how often a sliding window of that period foretold a reset."""
        return self._slides.get(period, 0)

    def arc(self, period: float, after: float) -> tuple[float, float]:
        """Return the span of the first reset that may come after a moment."""
        low, high, _ = self._arcs[period]
        shift = math.ceil((after - high) / period) * period
        return low + shift, high + shift
