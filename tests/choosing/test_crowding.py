"""How many attempts a key serves at once, learnt from a server that is simulated event by event."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmbroker.crowding import COUNTED, CROWD, FIRST, Crowding


class Served:
    """Callers in a closed loop before a server with some slots; what finds none free stands in line there, in silence."""

    def __init__(self, crowding: Crowding, slots: int, callers: int, service: Callable[[float], float]) -> None:
        self.crowding = crowding
        self.slots = slots
        self.service = service
        self.now = 0.0
        self.waiting = callers
        self.running = 0
        self.line: deque[tuple[float, int]] = deque()
        self.ends: list[tuple[float, float, int]] = []
        self.answers = 0
        self.took: deque[float] = deque(maxlen=100)
        self.limits: deque[float | None] = deque(maxlen=200)

    def run(self, answers: int, until: float = float("inf")) -> Served:
        """Go on until so many more answers came."""
        goal = self.answers + answers
        while self.answers < goal and self.now < until:
            while self.waiting and self.crowding.free(self.running, self.now):
                self.waiting -= 1
                self.line.append((self.now, self.running))
                self.running += 1
            while self.line and len(self.ends) < self.slots:
                began, beside = self.line.popleft()
                heapq.heappush(self.ends, (self.now + self.service(self.now), began, beside))
            end, began, beside = heapq.heappop(self.ends)
            if self.waiting and self.now < self.crowding.until < end:
                heapq.heappush(self.ends, (end, began, beside))
                self.now = self.crowding.until  # a call that waits looks again then
                continue
            self.now = end
            self.running -= 1
            self.waiting += 1
            self.answers += 1
            self.took.append(end - began)
            self.crowding.answered(beside, self.running, end - began, end)
            self.limits.append(self.crowding.limit)
        return self


def steady(seed: int, low: float = 1.5, high: float = 3.0) -> Callable[[float], float]:
    dice = random.Random(seed)
    return lambda now: dice.uniform(low, high)


@pytest.mark.parametrize("callers", [8, 16, 40, 64])
@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_a_bound_keeps_all_slots_at_work_and_the_line_short(slots: int, callers: int, seed: int) -> None:
    world = Served(Crowding(), slots, callers, steady(seed)).run(600)
    limit = world.crowding.limit
    assert limit is None or slots <= int(limit)
    began, answers = world.now, world.answers
    world.run(300)
    rate = (world.answers - answers) / (world.now - began)
    assert rate > 0.93 * slots / 2.25, "no slot stood empty"
    if callers >= 16 * slots:
        assert limit is not None
        assert int(limit) <= 4 * slots + 4
        assert sum(world.took) / len(world.took) < 0.6 * 2.25 * callers / slots, "without a bound it would be all of that"


@settings(max_examples=40, deadline=None)
@given(callers=st.integers(CROWD, 60), seed=st.integers(0, 1000), spread=st.floats(1.0, 8.0))
def test_a_server_that_serves_all_at_once_is_not_bounded(callers: int, seed: int, spread: float) -> None:
    world = Served(Crowding(), 1000, callers, steady(seed, 1.0, spread)).run(1500)
    bound = sum(limit is not None for limit in world.limits)
    assert bound <= 3 * COUNTED, "a false suspicion is given up soon"
    assert world.answers / world.now > 0.9 * callers / ((1.0 + spread) / 2)


def test_a_slow_hour_of_a_server_that_serves_all_at_once_is_no_line() -> None:
    """Calls come at a steady pace: in the slow hour more of them are under way, and all take ten times as long."""
    crowding, dice, now, answers, next_at = Crowding(), random.Random(1), 0.0, 0, 0.0
    ends: list[tuple[float, float, int]] = []
    waiting = 0
    held = 0.0
    while now < 2000.0:
        at = min(next_at, ends[0][0] if ends else next_at, crowding.until if waiting else next_at)
        held += (at - now) * waiting
        now = at
        if now == next_at:
            waiting += 1
            next_at = now + 0.5
        while ends and ends[0][0] <= now:
            end, began, beside = heapq.heappop(ends)
            answers += 1
            crowding.answered(beside, len(ends), end - began, end)
        while waiting and crowding.free(len(ends), now):
            waiting -= 1
            slow = 600.0 <= now < 1200.0
            heapq.heappush(ends, (now + dice.uniform(1.0, 3.0) * (10.0 if slow else 1.0), now, len(ends)))
    assert answers > 0.98 * 2000 / 0.5
    assert held / answers < 2.0, "seconds that a call was held back, in the mean"


def test_the_bound_follows_a_server_that_gets_more_slots_and_fewer() -> None:
    world = Served(Crowding(), 1, 40, steady(5)).run(400)
    assert world.crowding.limit is not None
    assert world.crowding.limit < 6
    world.slots = 8
    world.run(2500)
    assert world.crowding.limit is None or world.crowding.limit >= 8
    world.slots = 2
    world.run(1500)
    began, answers = world.now, world.answers
    world.run(200)
    assert (world.answers - answers) / (world.now - began) > 0.93 * 2 / 2.25


@pytest.mark.parametrize("seed", range(3))
def test_the_least_bound_is_given_up_however_much_longer_answers_take_meanwhile(seed: int) -> None:
    crowding = Crowding()
    world = Served(crowding, 1, 16, steady(seed, 0.4, 0.6)).run(1500)
    world.service = steady(seed, 1.2, 1.8)
    world.run(600)
    assert crowding.limit is not None
    assert int(crowding.limit) == 2
    world.slots, world.service = 1000, steady(seed, 30.0, 60.0)
    world.run(6000)
    assert crowding.limit is None or crowding.limit >= 16


@pytest.mark.parametrize("longer", [1.3, 1.6, 1.9])
@pytest.mark.parametrize("seed", range(3))
def test_a_bound_is_given_up_also_when_answers_take_a_little_longer_meanwhile(seed: int, longer: float) -> None:
    crowding = Crowding()
    world = Served(crowding, 1, 16, steady(seed, 0.4, 0.6)).run(600)
    assert crowding.limit is not None
    assert crowding.limit < 6
    each = longer * crowding.usual
    world.slots, world.service = 1000, steady(seed, 0.9 * each, 1.1 * each)
    world.run(14000)
    assert crowding.limit is None or crowding.limit >= 10


def test_bursts_that_follow_hours_of_few_short_calls_are_no_line() -> None:
    crowding, dice, now = Crowding(), random.Random(1), 0.0
    for _ in range(8):
        for _ in range(20):
            now += 60.0
            crowding.answered(0, 0, 0.5, now)
        now += 3600.0
        waiting, ends, began = 50, [], now
        while waiting or ends:
            while waiting and crowding.free(len(ends), now):
                waiting -= 1
                heapq.heappush(ends, (now + dice.uniform(4.0, 6.0), now, len(ends)))
            now, start, beside = heapq.heappop(ends)
            crowding.answered(beside, len(ends), now - start, now)
        assert now - began < 8.0


def test_a_trial_in_which_nothing_comes_ends_by_itself() -> None:
    crowding = Crowding()
    for index in range(FIRST):
        crowding.answered(CROWD + index, 20, 2.0 + 2.0 * index, 2.0 * index)
    assert crowding.limit is not None
    assert not crowding.free(30, crowding.until - 0.01)
    assert crowding.free(30, crowding.until)
    assert crowding.limit is None


def test_few_at_once_are_no_crowd_however_long_they_take() -> None:
    crowding = Crowding()
    for index in range(500):
        crowding.answered(index % CROWD, CROWD, 1.0 + index % CROWD, float(index))
        assert crowding.limit is None
