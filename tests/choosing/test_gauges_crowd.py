"""Many at once against naive providers that state what is left: nearly all of it is used, nearly nothing refused."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from typing import Protocol

import pytest

from llmbroker.providers.meters import FINE, Meter
from llmbroker.quotas import Quota

LIMIT, PERIOD, UNTIL = 30, 60.0, 900.0


class Provider(Protocol):
    """Counts requests, and says what is left and when it resets."""

    def admit(self, now: float) -> bool: ...
    def state(self, now: float) -> tuple[float, float]: ...


class Clock:
    """Windows of the clock's minutes."""

    def __init__(self) -> None:
        self.window, self.used = -1, 0

    def admit(self, now: float) -> bool:
        if int(now // PERIOD) != self.window:
            self.window, self.used = int(now // PERIOD), 0
        self.used += self.used < LIMIT + 1
        return self.used <= LIMIT

    def state(self, now: float) -> tuple[float, float]:
        used = self.used if int(now // PERIOD) == self.window else 0
        return max(0.0, LIMIT - used), (now // PERIOD + 1) * PERIOD - now


class First:
    """A window that begins with its first request."""

    def __init__(self) -> None:
        self.begun, self.used = -math.inf, 0

    def admit(self, now: float) -> bool:
        if now >= self.begun + PERIOD:
            self.begun, self.used = now, 0
        self.used += self.used < LIMIT + 1
        return self.used <= LIMIT

    def state(self, now: float) -> tuple[float, float]:
        if now >= self.begun + PERIOD:
            return LIMIT, PERIOD
        return max(0.0, LIMIT - self.used), self.begun + PERIOD - now


class Drains:
    """A bucket: its reset is the time until it is full."""

    def __init__(self) -> None:
        self.level, self.at = 0.0, 0.0

    def _now(self, now: float) -> float:
        return max(0.0, self.level - (now - self.at) * LIMIT / PERIOD)

    def admit(self, now: float) -> bool:
        self.level, self.at = self._now(now), now
        if self.level + 1 > LIMIT + 1e-9:
            return False
        self.level += 1
        return True

    def state(self, now: float) -> tuple[float, float]:
        level = self._now(now)
        return math.floor(LIMIT - level + 1e-9), level * PERIOD / LIMIT


class Slides:
    """Looks back from each request; its reset is when the oldest leaves."""

    def __init__(self) -> None:
        self.seen: deque[float] = deque()

    def _look(self, now: float) -> None:
        while self.seen and self.seen[0] <= now - PERIOD:
            self.seen.popleft()

    def admit(self, now: float) -> bool:
        self._look(now)
        if len(self.seen) >= LIMIT:
            return False
        self.seen.append(now)
        return True

    def state(self, now: float) -> tuple[float, float]:
        self._look(now)
        return LIMIT - len(self.seen), self.seen[0] + PERIOD - now if self.seen else 0.0


def used(provider: Provider, crowd: int, *, early: bool, whole: bool, seed: int) -> tuple[float, int]:
    """Let a crowd call until the end; return the share of what could have been let in, and how many were refused.

    Args:
        provider: who counts.
        crowd: callers.
        early: headers are written when a request is let in, else when its answer is.
        whole: resets are stated in whole seconds.
        seed: of the dice.
    """
    dice, number, quota = random.Random(seed), itertools.count(), Quota()
    admitted = refused = 0
    rest = 0.0
    events: list[tuple[float, int, tuple[float, float, float] | None]] = []

    def later(at: float, done: tuple[float, float, float] | None = None) -> None:
        heapq.heappush(events, (at, next(number), done))

    for _ in range(crowd):
        later(dice.random())
    while events and events[0][0] < UNTIL:
        now, _, done = heapq.heappop(events)
        if done is not None:
            started, left, reset = done
            if not early:
                left, reset = provider.state(now)
            quota.admitted(started)
            stated = Meter(
                "requests", "requests", left, LIMIT, float(math.ceil(reset)) if whole else reset, None, 1.0 if whole else FINE
            )
            quota.stated([stated], started, now)
            later(now + 0.2 * dice.random())
            continue
        at = max(rest, quota.opens(now, 0))
        if at > now + 1e-9:
            later(at + 1e-6 * dice.random())
            continue
        quota.send(now, 0)
        if provider.admit(now):
            admitted += 1
            later(now + dice.lognormvariate(0.7, 0.6), (now, *provider.state(now)))
        else:
            refused += 1
            wait = max(0.05, min(5.0, provider.state(now)[1]))
            quota.refused(now, now, wait, "", 0, 0.0)
            rest = max(rest, now + wait)
            later(rest)
    return admitted / (LIMIT * UNTIL / PERIOD), refused


@pytest.mark.parametrize("crowd", [4, 16])
@pytest.mark.parametrize("early", [True, False], ids=["stated when let in", "stated when answered"])
@pytest.mark.parametrize("whole", [False, True], ids=["exact", "whole seconds"])
@pytest.mark.parametrize(
    ("kind", "at_most"), [(Clock, 2), (First, 2), (Drains, 2), (Slides, 150)], ids=lambda value: getattr(value, "__name__", "")
)
def test_what_is_stated_is_used_up_without_refusals(
    kind: type[Provider], at_most: int, crowd: int, early: bool, whole: bool
) -> None:
    for seed in range(3):
        share, refused = used(kind(), crowd, early=early, whole=whole, seed=seed)
        assert share > 0.95
        assert refused <= at_most, f"{refused} of {LIMIT * UNTIL / PERIOD:.0f}"
