"""How many attempts a key serves side by side, learnt from how long its answers take. Pure: the time is an argument.

Many servers take whatever comes and serve a few at once; the others stand in line there, in silence. Whoever sends them more
gets no answer more, but every answer later, and an attempt that is cut while it stands in line was for nothing.

Answers that take the longer the more others were under way raise a suspicion, and a bound is put on trial: about twice what
would have been served without a line. It stays where as many answers come in the same time as without it. Where fewer come it
is lifted (the provider was slow, not full), and the next suspicion needs twice as many answers. A bound that stays is tried
higher now and then, which stands where answers take hardly longer for it, and lower when they take twice as long as they did.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import islice

CROWD = 4
"""Fewer others under way are no crowd."""
SEEN = 48
"""Answers that are looked at."""
FIRST = 12
"""Answers in a crowd before one is looked at for the first time."""
COUNTED = 24
"""Answers by which a rate, and how long they take, is measured."""
RATED = 8
"""Answers of one crowd, at least, by which its rate is measured."""
PATIENCE = 4096
"""Answers in a crowd, at most, between two looks."""
SLOWED = 2.0
"""By this factor an answer in the crowd must take longer than one outside it."""
ROOM = 2.0
"""A bound leaves room for so many times what is served at once, lest a slot stays empty between two attempts."""
LEAST = 2.0
STEP = 0.25
"""A bound goes down to this share of the crowd at most, in one trial."""
KEPT = 0.65
"""Share of the rate of answers that a bound must leave."""
SLOWER = 0.4
"""A bound that is higher by a quarter stands if answers take longer by less than this share of a quarter."""
LONGER = 0.5
"""Share of what answers took longer than usual before such a trial that failed by which it becomes the usual."""
MORE = 1.25
"""A bound is tried higher by this factor, by one at least."""


class Crowding:
    """The bound of one key.

    Attributes:
        limit: attempts that may be under way at once, or None: no bound.
        until: when a trial of a lower bound ends at the latest; infinity where there is none.
        usual: seconds that an answer takes under the bound, once it was found to be right.
        news: whether that was just found: answers that took longer before stood in line. The reader takes it back.
    """

    __slots__ = (
        "_alone",
        "_base",
        "_before",
        "_counted",
        "_crowded",
        "_patience",
        "_rate",
        "_seen",
        "_target",
        "_times",
        "limit",
        "news",
        "until",
        "usual",
    )

    def __init__(self) -> None:
        self.limit: float | None = None
        self.until = math.inf
        self.usual = math.inf
        self.news = False
        self._seen: deque[tuple[int, float]] = deque(maxlen=SEEN)
        self._times: deque[float] = deque(maxlen=COUNTED)
        self._alone = -math.inf  # there was no crowd then
        self._crowded = 0
        self._patience = FIRST
        self._target = LEAST
        self._rate = 0.0
        self._base = math.inf  # how long answers took before a higher bound was tried
        self._before: float | None = None  # the bound before this trial
        self._counted: int | None = None  # answers of this trial; below 0: it has not quite begun; None: there is none

    def answered(self, beside: int, running: int, seconds: float, now: float) -> int:
        """Take an answer; return how many attempts more may begin for it than the one in its place.

        Args:
            beside: how many others were under way when its attempt began.
            running: how many others are under way now.
            seconds: how long it took.
            now: the time.
        """
        self._seen.append((beside, seconds))
        if beside < (CROWD if self.limit is None else 1):
            self._alone = max(self._alone, now - seconds)
        self._times.append(now)
        if self._counted is not None:
            before = self.limit
            self._judge(running, now)
            return _more(before, self.limit)
        if beside < CROWD if self.limit is None else beside + 1 < int(self.limit):
            return 0
        self._crowded += 1
        if self._crowded < self._patience or (self.limit is None and self._rated() is None):
            return 0
        self._crowded = 0
        if self.limit is None:
            self._suspect(running, now)
            return 0
        if self._recent() > SLOWED * self.usual:
            self._target = LEAST
            self._lower(max(LEAST, self.limit / 2.0), running, now)
            if self._counted is not None:
                return 0
            self.usual = self._recent()  # no lower bound can be tried, so that is how long they take
        return self._higher()

    def free(self, running: int, now: float) -> bool:
        """Whether one more may begin beside so many."""
        if self.limit is None or running < int(self.limit):
            return True
        if now >= self.until:
            self._back()
            return self.limit is None or running < int(self.limit)
        return False

    # -- trials ----------------------------------------------------------------------------------------------------------

    def _suspect(self, running: int, now: float) -> None:
        """Put a bound on trial, if answers take longer in a crowd."""
        seen = sorted(self._seen)
        part = max(2, len(seen) // 8)
        level, slow = _means(seen[-part:])
        _, quick = _means(seen[:part])
        slope = _slope(seen)
        if slope <= 0.0 or slow < SLOWED * quick:
            return
        self._target = max(LEAST, ROOM * quick / slope)  # a line of n takes n times as long as one alone: n = quick / slope
        if self._target < level / 2.0:
            self._lower(max(self._target, STEP * level), running, now)

    def _lower(self, limit: float, running: int, now: float) -> None:
        rate = self._rated()
        if rate is not None and (self.limit is None or limit < self.limit):
            self._rate = rate
            self._before, self.limit, self._counted = self.limit, limit, -1
            self.until = now + (running + COUNTED) / (KEPT * self._rate)

    def _higher(self) -> int:
        assert self.limit is not None
        self._base = self._recent()
        self._before, self.limit = self.limit, max(self.limit + 1.0, MORE * self.limit)
        self._counted = -int(self.limit)  # those that began under the old bound say nothing
        return _more(self._before, self.limit)

    def _judge(self, running: int, now: float) -> None:
        assert self._counted is not None
        assert self.limit is not None
        lower = self.until < math.inf
        if self._counted < 0:
            if not lower:
                self._counted += 1
            elif running < self.limit:
                self._counted = 0
                self.until = now + COUNTED / (KEPT * self._rate)
            return
        self._counted += 1
        if lower and now >= self.until:
            self._back()
        elif self._counted >= COUNTED:
            if lower or self._recent() < self.usual * (1.0 + (self.limit / (self._before or self.limit) - 1.0) * SLOWER):
                self._keep(running, now, lower=lower)
            else:
                self._back()

    def _keep(self, running: int, now: float, *, lower: bool) -> None:
        assert self.limit is not None
        self.usual = self._recent()
        self.until, self._counted = math.inf, None
        self._patience = FIRST if lower else max(FIRST, self._patience // 4)  # one success may be chance
        if lower and self.limit > self._target:
            self._lower(max(self._target, STEP * self.limit), running, now)
        else:
            self.news = lower

    def _back(self) -> None:
        """The trial failed: fewer answers came under a lower bound, or they took longer under a higher one."""
        lower = self.until < math.inf
        self.limit, self._before = self._before, None
        self.until, self._counted = math.inf, None
        self._patience = min(2 * self._patience, PATIENCE)
        self._crowded = 0
        if self.limit is None:
            self._seen.clear()
        elif lower:
            self.usual = self._recent()  # slow, not full
        else:
            self.usual += max(0.0, LONGER * (self._base - self.usual))

    def _rated(self) -> float | None:
        """Return how many answers came in a second, of all that are counted or of this crowd alone, whichever is more."""
        crowd = [time for time in self._times if time >= self._alone]
        if len(crowd) < RATED or crowd[-1] <= crowd[0]:
            return None
        return max((len(times) - 1) / (times[-1] - times[0]) for times in (crowd, self._times))

    def _recent(self) -> float:
        """Return how long the last answers took in the mean, in seconds."""
        last = list(islice(reversed(self._seen), COUNTED))
        return _means(last)[1] if last else math.inf


def _more(before: float | None, after: float | None) -> int:
    """Return how many more may begin."""
    if before is None:
        return 0
    return max(0, int(after) - int(before)) if after is not None else int(before)


def _means(points: list[tuple[int, float]]) -> tuple[float, float]:
    count = len(points)
    return sum(point[0] for point in points) / count, sum(point[1] for point in points) / count


def _slope(points: list[tuple[int, float]]) -> float:
    """Return by how many seconds an answer takes longer for each other attempt beside it (least squares)."""
    at, took = _means(points)
    spread = sum((point[0] - at) ** 2 for point in points)
    return sum((point[0] - at) * (point[1] - took) for point in points) / spread if spread else 0.0
