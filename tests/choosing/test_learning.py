"""Beliefs about quality, records of latency."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbroker.learning import REMEMBERED, SAMPLES, Beliefs, Latency


def test_without_ratings_the_weight_counts() -> None:
    assert Beliefs().quality("a", 0.75, "op") == 0.75


def test_ratings_move_the_belief_towards_them() -> None:
    beliefs = Beliefs()
    seen = [beliefs.quality("a", 0.75, "op")]
    for _ in range(20):
        beliefs.rate("a", "op", 0.0)
        seen.append(beliefs.quality("a", 0.75, "op"))
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] < 0.15


def test_reversed_ratings_overtake_within_sixty() -> None:
    beliefs = Beliefs()
    for n in range(60):  # noqa: B007 - read after the loop
        beliefs.rate("a", "op", 0.2)
        beliefs.rate("b", "op", 0.9)
        if beliefs.quality("b", 0.1, "op") > beliefs.quality("a", 0.9, "op"):
            break
    assert n < 30


def test_a_drift_is_followed_within_a_hundred() -> None:
    beliefs = Beliefs()
    for _ in range(2000):
        beliefs.rate("a", "op", 1.0)
        beliefs.rate("b", "op", 0.5)
    for n in range(100):  # noqa: B007 - read after the loop
        beliefs.rate("a", "op", 0.0)
        if beliefs.quality("a", 0.5, "op") < beliefs.quality("b", 0.5, "op"):
            break
    assert n < 60


def test_one_operation_teaches_another_a_little() -> None:
    beliefs = Beliefs()
    for _ in range(30):
        beliefs.rate("a", "poetry", 0.0)
    assert beliefs.quality("a", 0.5, "poetry") < beliefs.quality("a", 0.5, "prose") < 0.5


def test_a_call_that_is_rated_again_has_one_vote() -> None:
    once, twice = Beliefs(), Beliefs()
    once.rate("a", "op", 0.9, "c1")
    twice.rate("a", "op", 0.1, "c1")
    twice.rate("a", "op", 0.9, "c1")
    assert twice.quality("a", 0.5, "op") == pytest.approx(once.quality("a", 0.5, "op"))


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, -0.1, 1.1, "x", None])
def test_what_is_no_score_changes_nothing(score: object) -> None:
    beliefs = Beliefs()
    beliefs.rate("a", "op", score)  # type: ignore[arg-type]
    assert beliefs.quality("a", 0.5, "op") == 0.5


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["x", "y", None]), st.floats(0, 1), st.integers(0, 5))))
def test_beliefs_stay_between_zero_and_one(ratings: list[tuple[str, str | None, float, int]]) -> None:
    beliefs = Beliefs()
    for name, operation, score, call in ratings:
        beliefs.rate(name, operation, score, f"c{call}")
    for name in "ab":
        for operation in ("x", "y", None):
            assert 0.0 <= beliefs.quality(name, 0.5, operation) <= 1.0


def test_memory_is_bounded() -> None:
    beliefs = Beliefs()
    for n in range(REMEMBERED + 500):
        beliefs.rate("a", f"op{n}", 0.5, f"c{n}")
    assert len(beliefs._operations) <= REMEMBERED
    assert len(beliefs._rated) <= REMEMBERED


def test_quantiles_are_of_the_last_samples() -> None:
    record = Latency()
    for _ in range(SAMPLES):
        record.add(100.0)
    for n in range(SAMPLES):
        record.add(float(n))
    assert len(record) == SAMPLES
    assert record.quantile(0.5) == pytest.approx(SAMPLES / 2, abs=1)
    assert record.quantile(0.95) == pytest.approx(0.95 * SAMPLES, abs=1)
    assert record.chance(10.0) == pytest.approx(10 / SAMPLES)


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=200))
def test_the_sorted_record_equals_a_naive_one(samples: list[float]) -> None:
    record = Latency()
    for sample in samples:
        record.add(sample)
    naive = sorted(samples[-SAMPLES:])
    assert record._sorted == naive
    assert record.quantile(0.5) == naive[min(len(naive) - 1, int(0.5 * len(naive)))]


def test_a_cut_attempt_counts_as_longer_than_it_was() -> None:
    record = Latency()
    for _ in range(10):
        record.add(1.0)
    record.cut(8.0, now=5.0)
    assert record.quantile(0.99) == pytest.approx(12.0)
    assert (record.missed, record.missed_at) == (8.0, 5.0)
    record.add(1.0)
    assert record.missed == 0.0


def test_a_cut_shorter_than_usual_teaches_nothing() -> None:
    record = Latency()
    for _ in range(10):
        record.add(5.0)
    record.cut(0.5, now=0.0)
    assert len(record) == 10


def test_an_empty_record_rules_nothing_out() -> None:
    assert (Latency().quantile(0.95), Latency().chance(0.001)) == (0.0, 1.0)


def test_old_ratings_lose_their_vote_also_where_a_change_is_too_small_to_be_noticed() -> None:
    beliefs = Beliefs()
    for score in (0.6, 0.5):
        for _ in range(1000 if score > 0.5 else 100):
            beliefs.rate("a", "op", score)
    assert beliefs.quality("a", 0.5, "op") == pytest.approx(0.5, abs=0.02)


def test_a_better_model_that_nobody_rated_is_found_while_the_leader_is_only_good_enough() -> None:
    dice = random.Random(3).random
    beliefs = Beliefs()
    truth = {"leader": 0.75, "better": 0.95}
    weights = {"leader": 0.9, "better": 0.4}
    chosen: list[str] = []
    for _ in range(200):
        best = max(truth, key=lambda name: beliefs.drawn(name, weights[name], "op", dice))
        chosen.append(best)
        beliefs.rate(best, "op", float(dice() < truth[best]))
    assert chosen[-60:].count("better") >= 45


def test_nothing_is_drawn_while_nobody_rates() -> None:
    def never() -> float:
        raise AssertionError("no dice are needed")

    beliefs = Beliefs()
    assert beliefs.drawn("a", 0.7, "op", never) == 0.7
    beliefs.rate("a", "other", 0.1)
    assert beliefs.drawn("a", 0.7, "op", never) == beliefs.quality("a", 0.7, "op")


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 1)), max_size=100), st.floats(0, 0.999))
def test_what_is_drawn_is_a_quality(ratings: list[tuple[str, float]], die: float) -> None:
    beliefs = Beliefs()
    for name, score in ratings:
        beliefs.rate(name, "op", score)
    assert 0.0 <= beliefs.drawn("a", 0.5, "op", lambda: die) <= 1.0


def test_a_model_that_changed_makes_all_of_its_operation_uncertain_and_no_other() -> None:
    beliefs = Beliefs()
    for name in ("a", "b"):
        for operation in ("op", "else"):
            for _ in range(30):
                beliefs.rate(name, operation, 1.0)
    before = beliefs.count("b", "op")
    for _ in range(8):
        beliefs.rate("a", "op", 0.0)
    assert beliefs.count("b", "op") < 0.5 * before
    assert beliefs.count("b", "else") == pytest.approx(before)
    assert beliefs.quality("a", 0.5, "op") < beliefs.quality("b", 0.5, "op")


def test_the_same_mixture_as_before_is_no_change() -> None:
    beliefs = Beliefs()
    for _ in range(60):
        beliefs.rate("b", "op", 0.7)
    before = beliefs.count("b", "op")
    for n in range(40):
        beliefs.rate("a", "op", float(n % 4 > 0))
    assert beliefs.count("b", "op") == before


def test_who_was_rated_long_ago_is_less_certain_than_who_was_just_rated() -> None:
    beliefs = Beliefs()
    for _ in range(30):
        beliefs.rate("a", "op", 0.5)
    before = beliefs.drawn("a", 0.5, "op", lambda: 0.6)
    for _ in range(100):
        beliefs.rate("b", "op", 0.5)
    assert beliefs.quality("a", 0.5, "op") == pytest.approx(0.5)
    assert beliefs.drawn("a", 0.5, "op", lambda: 0.6) - 0.5 > 1.2 * (before - 0.5) > 0.0


def test_a_rating_that_is_heard_again_and_again_makes_nobody_less_certain() -> None:
    beliefs = Beliefs()
    beliefs.rate("a", "op", 0.5)
    beliefs.rate("b", "op", 0.5, "c1")
    before = beliefs.drawn("a", 0.5, "op", lambda: 0.6)
    for _ in range(100):
        beliefs.rate("b", "op", 0.5, "c1")
    assert beliefs.drawn("a", 0.5, "op", lambda: 0.6) == before
