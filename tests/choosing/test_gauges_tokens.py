"""Tokens that are stated, counted when a request is let in or when it is answered: fewer refusals, no less throughput."""

from __future__ import annotations

import heapq
import itertools
import random
from typing import NamedTuple

import pytest

from llmbroker.providers.meters import FINE, Meter
from llmbroker.quotas import Quota

LIMIT, PERIOD, UNTIL = 6000.0, 60.0, 1200.0


class Request(NamedTuple):
    """What a caller sends, and what comes of it."""

    characters: int
    sent: int
    made: int


class Provider:
    """Counts tokens in windows of the clock, or in a bucket."""

    def __init__(self, drains: bool) -> None:
        self.drains, self.level, self.at = drains, 0.0, 0.0

    def look(self, now: float) -> float:
        """Bring the level up to date and return it."""
        if self.drains:
            self.level = max(0.0, self.level - (now - self.at) * LIMIT / PERIOD)
        elif now // PERIOD != self.at // PERIOD:
            self.level = 0.0
        self.at = now
        return self.level

    def reset(self, now: float) -> float:
        """Return what is stated: when the window ends, or when the bucket is empty."""
        return self.level * PERIOD / LIMIT if self.drains else (now // PERIOD + 1) * PERIOD - now

    def wait(self, now: float, need: float) -> float:
        """Return what a refusal asks to wait."""
        return max(0.05, (self.level + need - LIMIT) * PERIOD / LIMIT) if self.drains else self.reset(now)


def used(*, stated: bool, drains: bool, early: bool, crowd: int, seed: int) -> tuple[float, int]:
    """Let a crowd call until the end; return the tokens that were let in, in shares of the limit, and the refusals."""
    dice, number, quota, provider = random.Random(seed), itertools.count(), Quota(), Provider(drains)
    tokens, refused, rest = 0.0, 0, 0.0
    events: list[tuple[float, int, Request | None, tuple[float, float, float] | None]] = []

    def later(at: float, request: Request | None, done: tuple[float, float, float] | None = None) -> None:
        heapq.heappush(events, (at, next(number), request, done))

    for _ in range(crowd):
        later(dice.random(), None)
    while events and events[0][0] < UNTIL:
        now, _, request, done = heapq.heappop(events)
        if request is not None and done is not None:
            provider.look(now)
            provider.level += 0 if early else request.made
            quota.admitted(done[0])
            quota.used(request.characters, request.sent + request.made)
            if stated:
                quota.stated([Meter("tokens", "tokens", max(0.0, done[1]), LIMIT, done[2], None, FINE)], done[0], now)
            later(now + 0.1, None)
            continue
        if request is None:
            characters = int(dice.lognormvariate(7.0, 0.8))
            request = Request(characters, int(characters / 4 * dice.uniform(0.9, 1.3)), int(dice.lognormvariate(5.5, 0.7)))
        at = max(rest, now, quota.opens(now, request.characters))
        if at > now + 1e-9:
            later(at + 1e-6 * dice.random(), request)
            continue
        quota.send(now, request.characters)
        need = request.sent + (request.made if early else 0)
        if provider.look(now) + need <= LIMIT + 1e-3 or provider.level < 1e-9:
            provider.level += need
            tokens += request.sent + request.made
            later(now + request.made / 150 + 0.3, request, (now, LIMIT - provider.level, provider.reset(now)))
        else:
            refused += 1
            wait = provider.wait(now, need)
            quota.refused(now, now, wait, "", request.characters, 0.0)
            rest = max(rest, now + wait)
            later(rest, request)
    return tokens / (LIMIT * UNTIL / PERIOD), refused


@pytest.mark.parametrize("crowd", [2, 8])
@pytest.mark.parametrize("early", [True, False], ids=["counted when let in", "counted when answered"])
@pytest.mark.parametrize(("drains", "of"), [(False, 0.75), (True, 0.35)], ids=["window", "bucket"])
def test_what_is_stated_of_tokens_spares_refusals_and_loses_nothing(drains: bool, of: float, early: bool, crowd: int) -> None:
    with_it = [used(stated=True, drains=drains, early=early, crowd=crowd, seed=seed) for seed in range(3)]
    without = [used(stated=False, drains=drains, early=early, crowd=crowd, seed=seed) for seed in range(3)]
    assert sum(refused for _, refused in with_it) <= of * sum(refused for _, refused in without)
    assert sum(share for share, _ in with_it) >= 0.88 * min(3.0, sum(share for share, _ in without))
