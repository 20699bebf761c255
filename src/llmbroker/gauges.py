"""What is left of a quota, as its provider states it with every reply. Pure: every time is an argument, in seconds.

Theory of operation
-------------------
A reply states what was left when its request was let in, and when all will be there again (``providers.meters``). A *gauge*
keeps the newest statement about one window and takes off what was sent since. What does not fit is not sent before

* the *reset*, where the quota is a window. The header was written at some moment between the request and its reply, so that the
  reset is known to a span; the spans of all replies about one window have the moment in common, and its end is waited for;
* the moment when enough is free again, where the window *slides* or others use it, too: then its first statement after a reset
  shows that not all was there, and from the next reset on as much is let out as comes back on average;
* the moment when enough has *drained*, where it is a bucket: then "reset" is the time until it is full, and grows with use. A
  bucket shows itself: used / reset is limit / period for one of the usual periods, in several statements of different levels.

After a reset a window lets its limit through, until replies say what is left of it. A statement without a reset holds back for
a moment only; then as much is let out as comes back on average. No statement holds back longer than an hour, or a day where it
says to be a day's: a provider that states nonsense loses no more than this, and most nonsense is no statement to begin with.

Whether the models of one key share a window is not stated. It shows: a shared window counts down from model to model, and has
one limit. Until it has shown, each model's statements hold back that model alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from llmbroker.providers.meters import Kind, Meter
from llmbroker.windows import LATE, MINUTE

PERIODS = (1.0, 10.0, 60.0, 300.0, 3600.0, 18000.0, 86400.0)
"""Periods in which buckets are filled."""
HOUR, DAY = 3600.0, 86400.0
SHARP = 0.02
"""A reset that is rounded by more of itself tells no bucket from a window."""
UNDATED = 10.0
"""Seconds for which a statement without a reset holds back at most."""
FEW, SHARE = 32.0, 0.25
"""From so few requests on, or from this share of the limit, it is counted whether the next one fits."""
LITTLE = 20_000.0
"""The same for tokens."""
LARGE = 4000.0
"""Tokens that a request may take of which nothing is known."""
TOGETHER = 2
"""Times that a window must have counted down across models before they are taken to share it."""
REMEMBERED = 256


Statement: TypeAlias = tuple[Sequence[Meter], float, float]
"""Windows, when the attempt began whose reply states them, and when that came."""


class Gauge:
    """The newest statement about one window.

    Attributes:
        name, kind, limit, left, period: as stated (see ``Meter``).
        opens_at: when it resets, at the latest; None if that was not said.
        rate: what drains in a second, where it is a bucket, else 0.
    """

    __slots__ = (
        "_agreed",
        "_at",
        "_low",
        "_partly",
        "_seen",
        "_span",
        "kind",
        "left",
        "limit",
        "name",
        "opens_at",
        "period",
        "rate",
        "started",
    )

    def __init__(self, meter: Meter) -> None:
        self.name = meter.name
        self.kind: Kind = meter.kind
        self.limit = meter.limit
        self.left = meter.left
        self.period = meter.period
        self.opens_at: float | None = None
        self.rate = 0.0
        self.started = -math.inf
        self._low = -math.inf
        self._at = -math.inf
        self._span = 0.0
        self._agreed = 0
        self._seen = (-1.0, -1.0)
        self._partly = 0

    def state(self, meter: Meter, started: float, now: float, sent: Iterable[tuple[float, float]] = ()) -> None:
        """Take what the reply of an attempt that began at ``started`` says. ``sent``: what was sent since the last one."""
        reset, low, high = meter.reset, None, None
        if reset is not None:
            if reset > HOUR:
                reset = self._bounded(meter, reset)
            low, high = started + reset - meter.rough, now + reset
            self._span = max(self._span * 0.99, reset)
        same = high is not None and self.opens_at is not None and low <= self.opens_at and self._low <= high  # type: ignore[operator]
        if started < self.started and not (low is not None and self.opens_at is not None and self.opens_at < min(low, now)):
            if same and not self.rate:
                self.left = min(self.left, meter.left)  # a header that was written late: the newer one was written before it
            return
        if self.opens_at is not None and started >= self.opens_at and self.limit and not self.rate:
            whole = self.limit - sum(size for at, size in sent if self.opens_at <= at)
            self._partly = min(4, self._partly + 1) if meter.left < whole - 0.1 * self.limit - 1.0 else max(0, self._partly - 1)
        self.limit, self.left, self.period = meter.limit, meter.left, meter.period
        self.started, self._at = started, now
        if high is not None and low is not None:
            self.opens_at = min(high, self.opens_at) if same and self.opens_at is not None else high
            self._low = max(low, self._low) if same else low
        else:
            self.opens_at, self._low = None, -math.inf
        self._tell_apart(meter, same)

    def _bounded(self, meter: Meter, reset: float) -> float:
        days = "day" in meter.name or (meter.period or 0.0) >= DAY
        return min(reset, DAY if days else HOUR)

    def _held(self) -> float:
        """Return for how long a statement without a reset holds back."""
        return min(UNDATED, self.period / 6.0) if self.period else UNDATED

    def _tell_apart(self, meter: Meter, same: bool) -> None:
        """Find out whether it is a bucket. ``same``: its reset is where it was, which is a sign of a window."""
        limit, reset = meter.limit, meter.reset
        if limit is None or not reset or not 0 < meter.left < limit or meter.rough > SHARP * reset:
            return
        used = limit - meter.left
        if (used, reset) == self._seen:
            return
        self._seen = (used, reset)
        takes = limit * reset / used
        period = next((one for one in PERIODS if abs(takes / one - 1.0) <= meter.rough / reset + 0.005), None)
        self._agreed = 0 if period is None else min(self._agreed + (not same), 4)
        self.rate = limit / period if period is not None and self._agreed >= 2 else 0.0

    def silent(self, now: float) -> bool:
        """Whether the statement says nothing any more."""
        if self.rate and self.limit is not None:
            return now - self._at > self.limit / self.rate
        return self.remains(now, ()) == math.inf

    # -- what fits -------------------------------------------------------------------------------------------------------

    def remains(self, now: float, sent: Iterable[tuple[float, float]]) -> float:
        """Return what is left now. ``sent``: what later attempts take, each with its moment."""
        since = self.started
        if self.rate and self.limit is not None:
            gone = sum(size for at, size in sent if at > since)
            return min(self.limit, self.left - gone + self.rate * max(0.0, now - self._at))
        if self.opens_at is None:
            free_at = self._at + self._held()
            left = self.left - sum(size for at, size in sent if since < at < free_at)
            if now < free_at:
                return left
            period = min(self.period or MINUTE, HOUR)
            if self.limit is None or now >= free_at + period:
                return math.inf
            back = 1.0 + (now - free_at) * self.limit / period  # so much, until a reply says more
            return min(self.limit, max(0.0, left) + back) - sum(size for at, size in sent if at >= free_at)
        if now < self.opens_at:
            return self.left - sum(size for at, size in sent if at > since)
        if self.limit is None or now >= self.opens_at + self._window():
            return math.inf
        there = self.limit
        if self._partly:
            there = min(there, 1.0 + (now - self.opens_at) * self.limit / self._window())
        return there - sum(size for at, size in sent if at >= self.opens_at)

    def opens(self, now: float, size: float, sent: Iterable[tuple[float, float]]) -> float:
        """Return when a request of that size fits; ``now`` if it does."""
        if self.limit is not None:
            size = min(size, self.limit)
        over = size - self.remains(now, sent)
        if over <= 0.0:
            return now
        if self.rate and self.limit is not None:
            return now + min(over, self.limit) / self.rate
        if self.opens_at is None:
            free_at = self._at + self._held()
            if now < free_at or not self.limit:
                return max(now, free_at)
            period = min(self.period or MINUTE, HOUR)
            return max(now, min(now + over * period / self.limit, free_at + period))
        at = self.opens_at + LATE
        if now < at:
            return at
        end = self.opens_at + self._window()
        if self._partly and self.limit:
            end = min(end, now + over * self._window() / self.limit)
        return max(now, end)

    def _window(self) -> float:
        """Return the length of the window: as stated, else the shortest usual one that the resets fit in."""
        return min(self.period or next((one for one in PERIODS if one >= self._span - 1.0), DAY), DAY)


class Gauges:
    """All windows of one key or lane.

    Attributes:
        scarce: whether so little is left that it must be counted.
        last: the newest statement: its windows, when its attempt began, when it came.
    """

    __slots__ = ("_counted", "_extra", "_gauges", "_origin", "_slack", "_sure", "last", "scarce")

    def __init__(self) -> None:
        self._gauges: dict[str, Gauge] = {}
        self._counted: deque[tuple[float, int]] = deque(maxlen=REMEMBERED)
        self._extra = 0.0
        self._slack = math.inf
        self._origin = 0
        self._sure = TOGETHER
        self.scarce = False
        self.last: Statement | None = None

    def state(self, meters: Sequence[Meter], started: float, now: float, origin: int = 0) -> None:
        """Take what a reply states. ``origin``: of which of several models, where that matters; 0: of the only one."""
        gauges = self._gauges
        if self.last is None or started >= self.last[1]:
            self.last = (meters, started, now)
        if origin:
            self._compare(meters, started, origin)
        for meter in meters:
            gauge = gauges.get(meter.name)
            if gauge is None:
                if len(gauges) >= 16:
                    continue
                gauge = gauges[meter.name] = Gauge(meter)
            gauge.state(meter, started, now, self._sizes(gauge.kind))
        counted = self._counted
        if len(gauges) > len(meters):  # what is not stated any more, and was over long ago
            stated = {meter.name for meter in meters}
            for name in [name for name, gauge in gauges.items() if name not in stated and gauge.silent(now)]:
                del gauges[name]
        oldest = min([gauge.started for gauge in gauges.values()], default=now)
        while counted and counted[0][0] <= oldest:
            counted.popleft()
        self._slack = min([_slack(gauge) for gauge in gauges.values()], default=math.inf) - len(counted)
        self.scarce = self._slack <= 0.0 and self.sure

    @property
    def sure(self) -> bool:
        """Whether these windows hold for all that they were told of; else each model's own alone do."""
        return self._sure >= TOGETHER

    def _compare(self, meters: Sequence[Meter], started: float, origin: int) -> None:
        """Find out whether the models of a key share their windows, from windows of requests alone."""
        if not self._origin:
            self._sure = 0
        before, self._origin = self._origin, origin
        if not before or before == origin:
            return
        for meter in meters:
            gauge = self._gauges.get(meter.name)
            if gauge is None or meter.kind != "requests":
                continue
            if meter.limit != gauge.limit:
                self._sure = -8
                continue
            expected = gauge.remains(started, ((at, 1.0) for at, _ in self._counted if at < started)) - 1.0
            if meter.limit is None or not expected < meter.limit - 1.5 or gauge.started >= started:
                continue  # nothing is missing yet, or it says nothing about the order
            gone = gauge.left - expected
            hit = expected - gone - 1.0 <= meter.left <= expected + 0.5
            self._sure = max(-8, min(8, self._sure + (1 if hit else -2)))

    # -- what may go out -------------------------------------------------------------------------------------------------

    def size(self, kind: Kind, characters: int) -> float:
        """Return what a request of so many characters takes."""
        if kind == "requests":
            return 1.0
        if kind == "input":
            return characters / 4.0
        return self._extra if kind == "output" else characters / 4.0 + self._extra

    def _sizes(self, kind: Kind) -> Sequence[tuple[float, float]]:
        if not self._counted:
            return ()
        return [(at, self.size(kind, characters)) for at, characters in self._counted]

    def opens(self, now: float, characters: int) -> float:
        """Return when a request of so many characters fits; ``now`` if it does."""
        at = now
        for gauge in self._gauges.values():
            at = max(at, gauge.opens(now, self.size(gauge.kind, characters), self._sizes(gauge.kind)))
        return at

    def why(self, now: float, characters: int) -> str:
        """Return what holds back a request of so many characters, in words; "" if nothing does."""
        worst, words = now, ""
        for gauge in self._gauges.values():
            sent = self._sizes(gauge.kind)
            at = gauge.opens(now, self.size(gauge.kind, characters), sent)
            if at > worst:
                of = f" of {gauge.limit:,.0f}" if gauge.limit is not None else ""
                left = max(0.0, gauge.remains(now, sent))
                worst, words = at, f"its provider states {left:,.0f}{of} {_UNIT[gauge.kind]} left"
        return words

    def room(self, characters: int) -> int:
        """Return how many requests a reset lets through."""
        counts = [g.limit / max(1.0, self.size(g.kind, characters)) for g in self._gauges.values() if g.limit and not g.rate]
        return max(1, int(min(counts, default=1.0)))

    def send(self, now: float, characters: int) -> None:
        """An attempt goes out."""
        self._counted.append((now, characters))
        self._slack -= 1.0
        if self._slack <= 0.0 and self.sure:
            self.scarce = True

    def forget(self, started: float) -> None:
        """The attempt that began then took nothing: it did not go out, or was refused."""
        for entry in self._counted:
            if entry[0] == started:
                self._counted.remove(entry)
                return

    def used(self, characters: int, tokens: float) -> None:
        """A request of so many characters took that many tokens in all."""
        if 0.0 <= tokens < 1e9:
            self._extra += 0.2 * (max(0.0, tokens - characters / 4.0) - self._extra)

    def shown(self, now: float) -> list[tuple[str, Kind, float, float | None, float | None]]:
        """Return name, kind, what is left, the limit, and when it resets, of each window that says something now."""
        out: list[tuple[str, Kind, float, float | None, float | None]] = []
        for gauge in self._gauges.values():
            left = gauge.remains(now, self._sizes(gauge.kind))
            if left < math.inf:
                at = gauge.opens_at if not gauge.rate and gauge.opens_at and gauge.opens_at > now else None
                out.append((gauge.name, gauge.kind, max(0.0, left), gauge.limit, at))
        return out


_UNIT = {"requests": "requests", "tokens": "tokens", "input": "input tokens", "output": "output tokens"}


def _slack(gauge: Gauge) -> float:
    """Return how many more requests may be sent before they must be counted."""
    least = SHARE * gauge.limit if gauge.limit is not None else 0.0
    if gauge.kind == "requests":
        return gauge.left - max(FEW, least)
    return (gauge.left - max(LITTLE, least)) / LARGE
