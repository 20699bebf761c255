"""What a provider lets through and when again, learnt from its refusals. Pure: every time is an argument, in seconds.

Theory of operation
-------------------
A quota belongs to a key or to a lane (see ``pool``). Providers keep it in one of four ways, and seldom say which:

* a *stated* reset (a header, a body): it is taken as said, nothing is to be learnt;
* a *bucket* that drains: a refusal that states limit, used and requested gives its size, its level and, with the stated wait,
  its rate; from then on what does not fit is not sent (``Bucket``);
* a *window with a fixed phase* (the clock's minute, hour or day): it resets at ``phase + n * period``;
* a *sliding window*, or one that begins with its first request: it lets one in ``period`` seconds after the oldest in it.

The last two are told apart by *resets*: a reset lies between the last refused and the first admitted attempt. For each period
in ``PERIODS`` the resets seen so far are laid over each other; what they have in common is an arc in which the next one must
fall, and a period that leaves nothing in common is wrong. At first a spent quota is tried again at growing steps; each window
makes the arc narrower, and after a few of them one attempt per window, at its first moment, is enough.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Sequence

from llmbroker.gauges import Gauges
from llmbroker.providers.base import duration
from llmbroker.providers.meters import Meter

PERIODS = (60.0, 1.0, 5.0, 10.0, 15.0, 20.0, 30.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 18000.0, 86400.0)
"""Periods that quotas have, the likeliest first."""
MINUTE = PERIODS[0]
SHARP = 0.6
"""An arc so narrow is waited out; within a wider one it is tried."""
LATE = 0.05
"""Seconds after a reset at which an attempt goes out."""
BLIP = 2
"""So few refusals that are over at a moment when no reset was due say nothing about the window."""
LONGEST = 300.0
"""Seconds between two tries of a spent quota of which nothing is known."""
REMEMBERED = 512


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


class Quota:
    """What one key or lane may send.

    Attributes:
        bucket: what drains, where the provider says so, or None.
        window: when it resets.
        gauges: what replies state to be left, or None: nothing was stated.
        luck: the share of the last attempts that were let in.
        no_takes: seconds within which a refusal comes; an attempt that lasts longer was let in.
    """

    __slots__ = ("_counts", "_opened", "_sent", "_spent", "_tries", "bucket", "gauges", "last_no", "luck", "no_takes", "window")

    def __init__(self) -> None:
        self.bucket: Bucket | None = None
        self.window = Window()
        self.gauges: Gauges | None = None
        self.no_takes = 1.5
        self.luck = 1.0
        self.last_no = -math.inf
        self._sent: deque[float] = deque(maxlen=REMEMBERED)
        self._spent: float | None = None
        self._tries = 0
        self._opened = -math.inf
        self._counts: deque[int] = deque(maxlen=4)

    @property
    def known(self) -> bool:
        """Whether there is anything that could hold an attempt back."""
        return self.bucket is not None or len(self._counts) > 1 or (self.gauges is not None and self.gauges.scarce)

    @property
    def room(self) -> int:
        """Return how many attempts may go out at once when it opens, as far as is known."""
        if self._counts and self.bucket is None:
            return max(self._counts)
        return self.gauges.room(0) if self.gauges is not None and self.bucket is None else 1

    # -- what may go out -------------------------------------------------------------------------------------------------

    def opens(self, now: float, characters: int) -> float:
        """Return when the next attempt may go out, as far as is known; ``now`` if at once."""
        at = now
        if self.bucket is not None:
            at = self.bucket.opens(now, characters)
        if len(self._counts) > 1:
            at = max(at, self._when_full(now))
        if self.gauges is not None and self.gauges.scarce:
            at = max(at, self.gauges.opens(now, characters))
        return at

    def why(self, now: float, characters: int) -> str:
        """Return the provider's statement that holds back a request of that size, in words; "" if none does."""
        return self.gauges.why(now, characters) if self.gauges is not None and self.gauges.scarce else ""

    def _when_full(self, now: float) -> float:
        """Return when a window that is known well and full has room again."""
        full = max(self._counts) + 1
        period, seen = self.window.best()
        if seen < 2 or len(self._sent) < full or min(self._counts) < 0.7 * full:
            return now
        if self.window.sliding(period) >= 2:
            oldest = self._sent[-full]
            return max(now, oldest + period + LATE)
        low, high = self.window.arc(period, now)
        if high - low > period / 4:
            return now
        begun = low - period if now < low else low
        return high + LATE if self._sent[-full] > begun and now < low else now

    def send(self, now: float, characters: int) -> float:
        """An attempt goes out; return what it reserved of the bucket."""
        self._sent.append(now)
        if self.gauges is not None:
            self.gauges.send(now, characters)
        if self.bucket is None:
            return 0.0
        size = self.bucket.size(characters)
        self.bucket.add(size, now)
        return size

    def settle(self, reserved: float, used: float | None, now: float) -> None:
        """An attempt ended: what it did not use of its reservation is free again."""
        if self.bucket is not None and reserved and used is not None:
            self.bucket.add(used - reserved, now)

    def used(self, characters: int, tokens: float) -> None:
        """A request of so many characters took that many tokens in all."""
        if self.gauges is not None:
            self.gauges.used(characters, tokens)

    def stated(self, meters: Sequence[Meter], started: float, now: float, origin: int = 0) -> None:
        """Take what a good reply states about its windows; nothing that it states is needed.

        Args:
            meters: the windows, each for itself.
            started: when the attempt began that was answered.
            now: when its headers came.
            origin: which of several models of this key it was, if there are several; else 0.
        """
        if meters:
            if self.gauges is None:
                self.gauges = Gauges()
                for at in self._sent:
                    self.gauges.send(at, 0)
            self.gauges.state(meters, started, now, origin)

    def unsent(self, reserved: float, started: float, now: float) -> None:
        """An attempt that was to go out then did not."""
        self.settle(reserved, 0.0, now)
        if started in self._sent:
            self._sent.remove(started)

    # -- what came back --------------------------------------------------------------------------------------------------

    def admitted(self, started: float) -> None:
        """An attempt that began then was let in."""
        self.luck += 0.15 * (1.0 - self.luck)
        if self._spent is None or started <= self.last_no:
            return
        if self._tries <= BLIP and self.window.denies(self.last_no, started):
            self._counts.pop()  # it was busy for a moment
            self._spent = None
            return
        held = {period: self._oldest(self._spent - period) for period in PERIODS}
        self.window.reset(self.last_no, started, {period: at for period, at in held.items() if at is not None})
        self._spent = None
        self._tries = 0
        self._opened = started

    def _oldest(self, after: float) -> float | None:
        return next((at for at in self._sent if at >= after), None)

    def refused(
        self, started: float, now: float, stated: float | None, words: str, characters: int, reserved: float
    ) -> float | None:
        """An attempt was refused; return when to try again, or None: the provider's own statement holds.

        Args:
            started: when it began.
            now: when the refusal came.
            stated: seconds that the provider asked to wait, or None.
            words: what it said.
            characters: length of the request.
            reserved: what the attempt had taken of the bucket.
        """
        self.no_takes += 0.3 * (min(2.0 * (now - started) + 0.1, 5.0) - self.no_takes)
        self.luck -= 0.15 * self.luck
        if started in self._sent:
            self._sent.remove(started)
        if self.gauges is not None:
            self.gauges.refused(started)
        self.last_no = max(self.last_no, started)
        exact = self._drains(words, stated, characters, reserved, now)
        if exact is not None or stated is not None:
            self._spent = None
            return exact
        if self._spent is None:
            self._spent = started
            self._tries = 0
            self._counts.append(self._since(self._opened))
        else:
            self.window.closed(self._spent, self.last_no)
        self._tries += 1
        return self._try_at(now)

    def _since(self, moment: float) -> int:
        period, seen = self.window.best()
        if seen >= 2:
            moment = max(moment, self.window.arc(period, self.last_no)[0] - period)
        return sum(1 for at in self._sent if at >= moment)

    def _drains(self, words: str, stated: float | None, characters: int, reserved: float, now: float) -> float | None:
        found = _STATED.search(words)
        if found is None:
            return None
        limit, used, requested = (float(number.replace(",", "")) for number in found.groups())
        over = used + requested - limit
        wait = _wait_in(words) or stated
        if self.bucket is not None and reserved:
            self.bucket.add(-reserved, now)
        if over <= 0 or not wait or not limit > 0 or requested > limit or wait > 900.0:
            return None
        if self.bucket is None:
            self.bucket = Bucket(limit, over / wait)
        self.bucket.state(limit, over / wait, used, requested, characters, now)
        return now + wait + LATE

    def _try_at(self, now: float) -> float:
        """Return when a spent quota is tried again."""
        assert self._spent is not None
        window = self.window
        period, seen = window.best()
        streak = now - self._spent
        usual = max(self._counts)
        if self._tries <= 2 and self._counts[-1] < 0.7 * usual:
            return now + self._tries  # far less than usual was sent: it is busy rather than spent
        if window.sliding(period) >= max(2, seen):
            at = self._oldest(self._spent - period)
            if at is not None and at + period > now:
                return at + period + LATE
        blind = now + self._step(period, streak)
        if not seen:
            first = self._oldest(self._spent - period)
            guess = first + period + LATE if first is not None else math.inf
            return guess if now + 0.5 < guess < blind else blind
        low, high = window.arc(period, self.last_no)
        if self._spent < high - period and self.last_no - (high - period) < 3.0:
            window.missed(period, self.last_no)  # the moment has just passed, and nothing opened
            return now + 1.0
        begin = max(low, self.last_no)
        target = begin + max(0.5 * (high - begin), min(1.0, period / 60)) if high - begin > SHARP else high + LATE
        if seen < 2:
            return max(now + 0.25, min(target, now + max(2.0 * self._step(period, streak), 0.25 * period)))
        return max(now + 0.25, target)

    def _step(self, period: float, streak: float) -> float:
        longest = min(period, MINUTE) / 6.0
        if streak > MINUTE:
            return min(0.75 * streak, LONGEST)
        return float(min(longest, 2.5 * 1.8 ** (self._tries - 1)))


_STATED = re.compile(
    r"\blimit:?\s+([\d,]+).{0,20}?\bused:?\s+([\d,]+).{0,20}?\brequested:?\s+([\d,]+)", re.IGNORECASE | re.DOTALL
)
_WAIT = re.compile(r"\b(?:try again|retry) (?:in|after) ([\d.]+\s?(?:ms|[smh])(?:[\d.]+(?:ms|[sm]))*)", re.IGNORECASE)


def _wait_in(words: str) -> float | None:
    found = _WAIT.search(words)
    return duration(found[1].replace(" ", "")) if found else None
