"""Quotas against naive providers: what is learnt from refusals alone."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmbroker.quotas import Quota
from llmbroker.windows import LATE, Learnt

NO_TAKES = 0.1


def fixed(period: float, size: int, phase: float) -> Callable[[float], bool]:
    """A provider that counts by the clock."""
    counts: dict[int, int] = {}

    def admit(now: float) -> bool:
        window = math.floor((now - phase) / period)
        counts[window] = counts.get(window, 0) + 1
        if counts[window] > size:
            counts[window] -= 1
            return False
        return True

    return admit


def sliding(period: float, size: int) -> Callable[[float], bool]:
    """A provider that looks back from each request."""
    seen: deque[float] = deque()

    def admit(now: float) -> bool:
        while seen and seen[0] <= now - period:
            seen.popleft()
        if len(seen) >= size:
            return False
        seen.append(now)
        return True

    return admit


def draining(per_second: float, size: float) -> Callable[[float], bool]:
    """A provider with a bucket of requests, which it does not talk about."""
    level, at = 0.0, 0.0

    def admit(now: float) -> bool:
        nonlocal level, at
        level, at = max(0.0, level - (now - at) * per_second), now
        if level + 1 > size:
            return False
        level += 1
        return True

    return admit


def use(admit: Callable[[float], bool], until: float, pause: float = 0.5) -> tuple[list[float], list[float]]:
    """Send as soon as the quota lets us, one at a time; return when attempts were let in and when they were refused."""
    quota = Quota()
    now, rest = 0.0, 0.0
    let_in: list[float] = []
    refused: list[float] = []
    while now < until:
        at = max(now, rest, quota.opens(now, 0))
        if at > now:
            now = at
            continue
        reserved = quota.send(now, 0)
        if admit(now):
            let_in.append(now)
            quota.admitted(now)
            quota.settle(reserved, None, now)
            now += pause
        else:
            refused.append(now)
            again = quota.refused(now, now + NO_TAKES, None, "slow down", 0, reserved)
            assert again is not None
            assert again > now
            rest = again
            now += NO_TAKES
    return let_in, refused


@pytest.mark.parametrize(
    ("admit", "period", "size"),
    [
        (fixed(60, 15, 17.0), 60, 15),
        (fixed(60, 40, 59.0), 60, 40),
        (fixed(300, 50, 100.0), 300, 50),
        (fixed(30, 10, 7.0), 30, 10),
        (sliding(60, 15), 60, 15),
        (sliding(300, 20), 300, 20),
    ],
    ids=["a minute", "a large minute", "five minutes", "half a minute", "a sliding minute", "sliding five minutes"],
)
def test_a_window_is_learnt_from_refusals_alone(admit: Callable[[float], bool], period: float, size: int) -> None:
    windows = 12
    let_in, refused = use(admit, windows * period)
    late = [at for at in let_in if at >= 4 * period]
    assert len(late) >= 0.85 * (windows - 4) * size
    wasted = [at for at in refused if at >= 4 * period]
    assert len(wasted) <= 4 * (windows - 4)


def test_a_bucket_that_is_not_talked_about_is_used_without_a_flood_of_refusals() -> None:
    let_in, refused = use(draining(0.2, 5), 900)
    assert len(let_in) >= 0.5 * 0.2 * 900
    assert len(refused) <= 2 * len(let_in)


def test_what_is_refused_for_ever_is_asked_ever_less_often() -> None:
    _, refused = use(lambda now: False, 3600)
    assert len(refused) <= 30
    gaps = [b - a for a, b in itertools.pairwise(refused)]
    assert gaps[-1] > 100


SAID = "Rate limit reached on tokens per minute (TPM): Limit 8000, Used 7000, Requested 2500. Please try again in 11.25s."


def test_what_was_refused_is_not_in_the_bucket_whatever_the_refusal_says() -> None:
    quota = Quota()
    quota.refused(0.0, 0.1, 4.0, "Limit 6000, Used 5900, Requested 500. Please try again in 4s.", 2000, quota.send(0.0, 2000))
    assert quota.bucket is not None
    before = quota.bucket.level(10.0)
    reserved = quota.send(10.0, 2000)
    assert quota.bucket.level(10.0) == before + reserved > before
    quota.refused(10.0, 10.0, 2.0, "Too many requests", 2000, reserved)
    assert quota.bucket.level(10.0) == before


def test_a_refusal_that_states_its_numbers_makes_a_bucket() -> None:
    quota = Quota()
    again = quota.refused(0.0, 0.1, 12.0, SAID, 0, 0.0)
    assert again == pytest.approx(0.1 + 11.25, abs=0.1)
    assert quota.bucket is not None
    assert quota.bucket.rate == pytest.approx(1500 / 11.25)
    assert quota.opens(0.2, 0) == pytest.approx(again, abs=0.2)
    assert quota.opens(60.0, 0) == 60.0


def test_a_request_that_is_larger_than_the_bucket_takes_no_more_than_all_of_it() -> None:
    quota = Quota()
    quota.refused(0.0, 0.1, 12.0, SAID, 0, 0.0)
    assert quota.send(60.0, 10**6) == 8000.0


def test_a_day_that_is_used_up_makes_no_bucket() -> None:
    said = "tokens per day (TPD): Limit 100000, Used 99900, Requested 2500. Please try again in 34m33.6s."
    quota = Quota()
    assert quota.refused(0.0, 0.1, 2073.6, said, 0, 0.0) is None
    assert quota.bucket is None


def test_what_others_sent_since_they_were_heard_of_is_taken_for_as_much_as_was_sent_here() -> None:
    quota = Quota()
    assert quota.adopt(Learnt(at=120.0, arcs={60.0: (0.0, 0.1, 4)}, counts=(10, 10)), 0.0, 120.0)
    quota.share()
    quota.heard = 124.0
    for at in range(125, 131):
        quota.send(float(at), 0)
    assert quota.opens(131.0, 0) == 131.0
    quota.others = 1
    assert quota.opens(131.0, 0) == pytest.approx(180.1 + LATE)


def test_a_stated_wait_stands_for_itself() -> None:
    assert Quota().refused(0.0, 0.1, 30.0, "slow down", 0, 0.0) is None


def test_one_refusal_out_of_turn_does_not_move_a_window() -> None:
    admit = fixed(60, 15, 0.0)
    odd = iter(range(10_000))
    let_in, _ = use(lambda now: next(odd) % 23 != 5 and admit(now), 1200)
    late = [at for at in let_in if at >= 300]
    assert len(late) >= 0.7 * 15 * 15


steps = st.lists(
    st.tuples(st.sampled_from(["admitted", "refused", "stated", "said"]), st.floats(0, 500), st.floats(0, 5)), max_size=60
)


@given(steps)
@settings(max_examples=200)
def test_whatever_comes_back_the_next_try_is_later_and_finite(events: list[tuple[str, float, float]]) -> None:
    quota = Quota()
    now = 0.0
    for kind, gap, took in events:
        now += gap
        reserved = quota.send(now, 100)
        assert math.isfinite(reserved)
        end = now + took
        if kind == "admitted":
            quota.admitted(now)
            quota.settle(reserved, 50.0, end)
        else:
            stated = 7.0 if kind == "stated" else None
            again = quota.refused(now, end, stated, SAID if kind == "said" else "no", 100, reserved)
            assert (again is None) == (kind == "stated") or again is not None
            if again is not None:
                assert math.isfinite(again)
                assert again > end
        now = end
        assert quota.opens(now, 100) >= now
        assert math.isfinite(quota.opens(now, 100))
        assert 0.0 <= quota.luck <= 1.0


def test_refusals_out_of_the_blue_are_bad_luck_that_is_forgotten_and_stated_ones_are_none() -> None:
    stated, blue = Quota(), Quota()
    for at in (0.0, 100.0, 200.0):
        stated.refused(at, at + 0.1, 30.0, "", 10, 0.0)
        blue.refused(at, at + 0.1, None, "", 10, 0.0)
    assert stated.luck == 1.0
    assert blue.luck < 0.5
    blue.forget(6000.0)
    assert blue.luck > 0.95


# -- what one refusal more or less says ----------------------------------------------------------------------------------


def minutely(**more: Any) -> Quota:
    """A quota that is known to let in ten a minute, by the clock."""
    quota = Quota()
    learnt = Learnt(at=120.0, arcs={60.0: (0.0, 0.1, 4)}, counts=(10, 10), opened=120.1, **more)
    assert quota.adopt(learnt, 0.0, 121.0)
    return quota


def no(quota: Quota, at: float) -> float:
    """It refuses an attempt; return when to try again."""
    quota.send(at, 0)
    again = quota.refused(at, at + NO_TAKES, None, "no", 0, 0.0)
    assert again is not None
    return again


def test_a_refusal_at_no_reset_that_is_over_in_a_moment_changes_nothing_of_what_is_known_of_a_window() -> None:
    quota = minutely()
    before = quota.told(0.0)
    no(quota, 130.0)
    quota.send(131.0, 0)
    quota.admitted(131.0)
    after = quota.told(0.0)
    assert (after.arcs, after.counts, after.spent) == (before.arcs, before.counts, None)


def test_a_quota_that_is_closed_for_longer_than_a_period_has_another_one() -> None:
    quota = Quota()
    assert quota.adopt(Learnt(at=90.0, arcs={10.0: (0.0, 0.1, 4), 60.0: (0.0, 0.1, 1)}), 0.0, 90.0)
    for at in (101.0, 105.0, 112.0):
        no(quota, at)
    assert set(quota.told(0.0).arcs) == {60.0}


def test_a_reset_that_does_not_come_at_its_moment_is_looked_for_twice_and_then_believed_in_no_more() -> None:
    quota = minutely()
    for sent in range(121, 131):
        quota.send(float(sent), 0)
        quota.admitted(float(sent))
    at = no(quota, 131.0)
    assert at == pytest.approx(180.1 + LATE)
    pauses = []
    for _ in range(3):
        again = no(quota, at)
        pauses.append(again - at)
        at = again
    assert max(pauses[:2]) < 2.0
    assert 5.0 < pauses[2] < 20.0


@pytest.mark.parametrize(("sent", "again"), [(3, 1.0), (10, 180.1 + LATE - 131.0 - NO_TAKES)], ids=["far fewer", "as many"])
def test_who_refuses_before_as_many_as_usual_were_let_in_is_busy_and_is_asked_again_in_a_second(
    sent: int, again: float
) -> None:
    quota = minutely()
    for number in range(sent):
        quota.send(121.0 + number, 0)
        quota.admitted(121.0 + number)
    assert no(quota, 131.0) - 131.0 - NO_TAKES == pytest.approx(again)


def test_the_first_refusal_of_all_is_hardly_bad_luck_and_the_second_is() -> None:
    quota = Quota()
    no(quota, 0.0)
    assert quota.luck > 0.8
    no(quota, 5.0)
    assert quota.luck < 0.6


def test_bad_luck_that_another_process_told_of_does_not_fade_at_once() -> None:
    quota = minutely(luck=0.3)
    quota.forget(121.0)
    assert quota.luck == 0.3
    quota.forget(6000.0)
    assert quota.luck > 0.95


def test_one_attempt_that_is_let_in_does_not_outweigh_the_bad_luck_that_another_process_told_of() -> None:
    quota = minutely(luck=0.3)
    quota.send(125.0, 0)
    quota.admitted(125.0)
    assert 0.3 < quota.luck < 0.5
