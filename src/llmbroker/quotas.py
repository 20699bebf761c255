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
from collections.abc import Iterable, Sequence

from llmbroker.gauges import Gauges
from llmbroker.providers.base import duration
from llmbroker.providers.meters import Meter
from llmbroker.windows import BLIP, LATE, LONGEST, MINUTE, PERIODS, REMEMBERED, SHARP, Bucket, Learnt, Window

MANY = 64
"""Refusals in a row, from which on one more makes no difference."""
FADES = 1200.0
"""Seconds without a refusal after which two thirds of a quota's bad luck are forgotten."""


class Quota:
    """What one key or lane may send.

    Attributes:
        bucket: what drains, where the provider says so, or None.
        window: when it resets.
        gauges: what replies state to be left, or None: nothing was stated.
        luck: the share of the last attempts that were let in, refusals that state their end left out.
        no_takes: seconds within which a refusal comes; an attempt that lasts longer was let in.
        learnt: when a refusal, or its end, taught something new; minus infinity: never.
        own: what this process sent, where other processes are told of it, else None.
        others: how many other processes send on it now.
        heard: until when what they sent is known.
        taken: what this process took of the bucket in all.
    """

    __slots__ = (
        "_counts",
        "_luck_at",
        "_met",
        "_opened",
        "_sent",
        "_spent",
        "_tries",
        "bucket",
        "gauges",
        "heard",
        "last_no",
        "learnt",
        "luck",
        "no_takes",
        "others",
        "own",
        "taken",
        "window",
    )

    def __init__(self) -> None:
        self.bucket: Bucket | None = None
        self.window = Window()
        self.gauges: Gauges | None = None
        self.no_takes = 1.5
        self.luck = 1.0
        self._luck_at = -math.inf
        self._met = 0  # attempts that were let in or refused
        self.last_no = -math.inf
        self._sent: deque[float] = deque(maxlen=REMEMBERED)
        self._spent: float | None = None
        self._tries = 0
        self._opened = -math.inf
        self._counts: deque[int] = deque(maxlen=4)
        self.learnt = -math.inf
        self.own: deque[float] | None = None
        self.others = 0
        self.heard = -math.inf
        self.taken = 0.0

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
        full = most = max(self._counts) + 1  # one more than was let in, lest a limit that was raised is never found
        period, seen = self.window.best()
        if self.others:
            full = max(1, full - self._unheard())
        if seen < 2 or len(self._sent) < full or min(self._counts) < 0.7 * most:
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
        if self.own is not None:
            self.own.append(now)
        if self.gauges is not None:
            self.gauges.send(now, characters)
        if self.bucket is None:
            return 0.0
        size = min(self.bucket.size(characters), self.bucket.limit)  # what is larger takes nothing: it is refused
        self._take(size, now)
        return size

    def _take(self, amount: float, now: float) -> None:
        assert self.bucket is not None
        self.bucket.add(amount, now)
        self.taken += amount

    def settle(self, reserved: float, used: float | None, now: float) -> None:
        """An attempt ended: what it did not use of its reservation is free again."""
        if self.bucket is not None and reserved and used is not None:
            self._take(used - reserved, now)

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
        """An attempt that began then took nothing: it did not go out, or was refused."""
        self.settle(reserved, 0.0, now)
        for sent in (self._sent, self.own):
            if sent is not None and started in sent:
                sent.remove(started)
        if self.gauges is not None:
            self.gauges.forget(started)

    def forget(self, now: float) -> None:
        """Let bad luck fade: what nobody tries for long is as likely let in as anything."""
        idle = now - self._luck_at
        if self.luck < 1.0 and idle > 0.0:
            if idle < math.inf:
                self.luck = 1.0 - (1.0 - self.luck) * math.exp(-idle / FADES)
            self._luck_at = now

    # -- what came back --------------------------------------------------------------------------------------------------

    def admitted(self, started: float) -> None:
        """An attempt that began then was let in."""
        self._met += 1
        self.luck += max(0.15, 1.0 / (self._met + 1)) * (1.0 - self.luck)
        if self._spent is None or started <= self.last_no:
            return
        self.learnt = started
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
        self.learnt = now
        self.unsent(reserved, started, now)
        self.last_no = max(self.last_no, started)
        exact = self._drains(words, stated, characters, now)
        if exact is not None or stated is not None:
            self._spent = None
            return exact
        self._met += 1
        # One refusal is no rule; from the second on it is the share of what was seen.
        self.luck -= max(0.15, 1.0 / (self._met + 1) if self._met > 1 else 0.0) * self.luck
        self._luck_at = now
        if self._spent is None:
            self._spent = started
            self._tries = 0
            self._counts.append(self._since(self._opened) + self._unheard())
        else:
            self.window.closed(self._spent, self.last_no)
        self._tries += 1
        return self._try_at(now)

    def _since(self, moment: float) -> int:
        begun = self._begun(moment, self.last_no)
        return sum(1 for at in self._sent if at >= begun)

    def _begun(self, moment: float, refused: float) -> float:
        period, seen = self.window.best()
        return max(moment, self.window.arc(period, refused)[0] - period) if seen >= 2 else moment

    def _drains(self, words: str, stated: float | None, characters: int, now: float) -> float | None:
        found = _STATED.search(words)
        if found is None:
            return None
        limit, used, requested = (float(number.replace(",", "")) for number in found.groups())
        over = used + requested - limit
        wait = _wait_in(words) or stated
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

    # -- other processes with the same key -------------------------------------------------------------------------------

    def told(self, shift: float) -> Learnt:
        """Return what was learnt. ``shift``: from this process's clock to seconds since 1970."""
        arcs, slides = self.window.told(shift)
        bucket, sizes = self.bucket.told(shift) if self.bucket is not None else (None, ())
        return Learnt(
            at=self.learnt + shift,
            arcs=arcs,
            slides=slides,
            counts=tuple(self._counts),
            opened=None if self._opened == -math.inf else self._opened + shift,
            last_no=None if self.last_no == -math.inf else self.last_no + shift,
            spent=None if self._spent is None else self._spent + shift,
            tries=self._tries,
            no_takes=self.no_takes,
            luck=self.luck,
            bucket=bucket,
            sizes=sizes,
        )

    def adopt(self, learnt: Learnt, shift: float, now: float) -> bool:
        """Take over what another process learnt, where that is newer and can be true; return whether it was."""
        at, latest = learnt.at - shift, now + MINUTE
        moments = [moment for moment in (learnt.opened, learnt.last_no, learnt.spent) if moment is not None]
        if not self.learnt < at <= latest or any(moment - shift > latest for moment in moments):
            return False
        if not 0.0 <= learnt.luck <= 1.0 or not 0.0 <= learnt.no_takes <= 10.0:
            return False
        if not all(0 <= count <= REMEMBERED for count in learnt.counts):
            return False
        if learnt.spent is not None and (learnt.last_no is None or not learnt.counts):
            return False
        self.learnt = at
        self.window.adopt(learnt.arcs, learnt.slides, -shift)
        self._counts.clear()
        self._counts.extend(learnt.counts)
        self._opened = -math.inf if learnt.opened is None else learnt.opened - shift
        self.last_no = -math.inf if learnt.last_no is None else learnt.last_no - shift
        self._spent = None if learnt.spent is None else learnt.spent - shift
        self._tries = min(max(0, learnt.tries), MANY)
        self.luck, self.no_takes = learnt.luck, learnt.no_takes
        self._met = max(self._met, REMEMBERED)
        if learnt.bucket is not None:
            limit, rate, level, moment = learnt.bucket
            if 0.0 < limit <= rate * PERIODS[-1] >= level >= 0.0 and moment - shift <= latest:
                self.bucket = Bucket(limit, rate)
                self.bucket.adopt(level, moment - shift, [size for size in learnt.sizes if abs(size) <= limit])
        return True

    def share(self) -> None:
        """From now on keep apart what this process sends."""
        if self.own is None:
            self.own = deque(self._sent, maxlen=REMEMBERED)

    def hear(self, at: float, number: int, size: float, now: float) -> None:
        """Another process sent so many attempts at a moment, or, where it is less than 0, took so many back."""
        for _ in range(min(-number, REMEMBERED)):
            if at in self._sent:
                self._sent.remove(at)
        if number > 0:
            later = []
            while self._sent and self._sent[-1] > at:
                later.append(self._sent.pop())
            self._sent.extend([at] * min(number, REMEMBERED))
            self._sent.extend(reversed(later))
        if self._spent is not None and self._counts:
            # How many the window let in shows only now.
            begun = self._begun(self._opened, self._spent)
            known = sum(1 for at in self._sent if begun <= at <= self._spent + 1.0)
            self._counts[-1] = max(known, self._counts[-1]) if now < self._spent + UNTOLD else known
        if size and self.bucket is not None:
            self.bucket.add(size, now)

    def _unheard(self) -> int:
        """Return what the others sent since they were last heard of: not known, so as much as this process did, each."""
        if not self.others or self.own is None:
            return 0
        return self.others * sum(1 for _ in _since(self.own, self.heard))

    def _step(self, period: float, streak: float) -> float:
        longest = min(period, MINUTE) / 6.0
        if streak > MINUTE:
            return min(0.75 * streak, LONGEST)
        return float(min(longest, 2.5 * 1.8 ** min(self._tries - 1, MANY)))


def _since(moments: deque[float], after: float) -> Iterable[float]:
    """Return the last of these moments, down to one."""
    for at in reversed(moments):
        if at <= after:
            return
        yield at


UNTOLD = 1.5
"""Seconds after which what other processes sent was told."""
_STATED = re.compile(
    r"\blimit:?\s+([\d,]+).{0,20}?\bused:?\s+([\d,]+).{0,20}?\brequested:?\s+([\d,]+)", re.IGNORECASE | re.DOTALL
)
_WAIT = re.compile(r"\b(?:try again|retry) (?:in|after) ([\d.]+\s?(?:ms|[smh])(?:[\d.]+(?:ms|[sm]))*)", re.IGNORECASE)


def _wait_in(words: str) -> float | None:
    found = _WAIT.search(words)
    return duration(found[1].replace(" ", "")) if found else None
