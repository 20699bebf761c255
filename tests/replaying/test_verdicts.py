"""What a replay concludes of journals whose truth is known, and when it concludes nothing."""

from __future__ import annotations

import random
import statistics
from typing import Any

import msgspec
import pytest
from tests.replaying.worlds import DIFFERENT, DOMINATED, T0, TWO, Truth, journal, near

from llmbroker import LLMConfig
from llmbroker.exchange import Usage
from llmbroker.journal import Call, utc
from llmbroker.replaying import replay

# -- what is concluded -----------------------------------------------------------------------------------------------------


def test_where_one_model_dominates_the_verdict_is_not_to_route() -> None:
    found = replay(journal(DOMINATED, 1500), seeds=2)
    assert (found.verdict, found.best) == ("do_not_route", "best")
    assert found.reason.startswith("Do not route: always best is as good.")
    best = found.policy("best-fixed")
    assert best is not None
    assert near(best.good, 0.9)
    assert near(best.answered, 1.0)
    for name, model in (("cheapest", "cheap"), ("fastest", "quick")):
        policy = found.policy(name)
        assert policy is not None
        assert policy.model == model
        assert policy.against["good"].high < 0
    assert found.policy("cheapest").against["cost"].high < 0  # type: ignore[union-attr]


def test_where_models_differ_by_operation_routing_wins() -> None:
    found = replay(journal(DIFFERENT, 1500), seeds=2)
    ours = found.policy("ours")
    assert found.verdict == "route"
    assert ours is not None
    assert ours.against["good"].low > 0.1
    assert found.reason.startswith("Route: ")
    assert near(found.policy("random").good, 0.6)  # type: ignore[union-attr]


def test_a_gain_that_costs_is_told_with_its_price() -> None:
    truths = {**DIFFERENT, ("coder", "text"): Truth(0.1), ("coder", "code"): Truth(0.8, cost=0.1)}
    found = replay(journal(truths, 1000), seeds=2, policies=["ours"])
    assert found.verdict == "route"
    assert "dollars more a request" in found.reason


def test_where_the_cheapest_is_as_good_it_is_named() -> None:
    truths = {("dear", "x"): Truth(0.8, cost=0.01), ("cheap", "x"): Truth(0.87, cost=0.0001)}
    found = replay(journal(truths, 1200, seed=3), seeds=2)
    assert found.verdict == "do_not_route"
    assert "always cheap is the cheapest and is as good" in found.reason


def test_a_model_that_turns_bad_is_left_by_the_pool_alone() -> None:
    """Routing is worth it, too, where no operation differs: what was best in the earlier half is not best for ever."""
    rows, dice = [], random.Random(5)
    for number in range(2400):
        turned = number >= 1500
        model = dice.choice(["was-good", "steady"])
        quality = 0.7 if model == "steady" else 0.2 if turned else 0.95
        at = utc(T0 + 30.0 * number)
        score = float(dice.random() < quality)
        rows.append(Call(ts=at, llm_name=model, status="ok", operation="x", latency_ms=500.0, score=score, score_ts=at))
    found = replay(rows, seeds=2)
    assert (found.verdict, found.best) == ("route", "was-good")


def test_models_that_are_alike_are_hardly_ever_told_to_be_routed() -> None:
    alike = {(model, operation): Truth(0.7) for model in "ab" for operation in "xy"}
    verdicts = [replay(journal(alike, 300, seed=seed), seeds=2, policies=["ours"], seed=seed).verdict for seed in range(10)]
    assert verdicts.count("route") <= 1


def test_who_is_chosen_on_one_half_is_not_flattered_by_it() -> None:
    """The best of several equals looks better than it is on the rows that it was chosen by; on the others it does not."""
    alike = {(model, "x"): Truth(0.6) for model in "abcdef"}
    values = []
    for seed in range(25):
        best = replay(journal(alike, 300, seed=seed), policies=["best-fixed"]).policy("best-fixed")
        assert best is not None and best.good is not None
        values.append(best.good.value)
    assert abs(statistics.fmean(values) - 0.6) < 2.5 * statistics.stdev(values) / 5


def test_the_interval_covers_the_truth_in_a_few_journals() -> None:
    """The small version of ``test_coverage``, without the broker."""
    truths = {(model, "x"): Truth(0.5 + 0.1 * place, 0.9) for place, model in enumerate("abc")}
    hits = []
    for seed in range(25):
        found = replay(journal(truths, 300, seed=seed), policies=["random", "a"], seed=seed)
        best, lot, fixed = found.policy("best-fixed"), found.policy("random"), found.policy("a")
        assert best is not None and lot is not None and fixed is not None
        truth = truths[str(found.best), "x"].good
        hits += [near(best.good, truth), near(lot.good, 0.54), near(fixed.good, 0.45)]
        hits += [near(lot.answered, 0.9), near(lot.against["good"], 0.54 - truth)]
    assert 0.88 <= statistics.fmean(hits) <= 1.0


# -- what is refused -------------------------------------------------------------------------------------------------------


def mute(rows: list[Call]) -> list[Call]:
    return [msgspec.structs.replace(row, score=None, score_ts=None) for row in rows]


ONLY = {("a", "x"): Truth()}


def test_an_empty_journal_is_no_ground_for_anything() -> None:
    for source in ([], None):
        found = replay(source)
        assert (found.verdict, found.policies, found.rows) == ("undecided", (), 0)
        assert "no rows that can be used" in found.reason
        assert found.reason in str(found)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (journal(TWO, 6), "has 5 rows in each half"),
        (journal(TWO, 60), "too few to judge by"),
        (journal(ONLY, 400), "only 1 of 1 models"),
        (journal(TWO, 300, pick=lambda n, m, d: "b" if n % 25 == 0 else "a"), "rows that are equally used; 30 are needed"),
        ([*journal(ONLY, 200), *journal({("b", "y"): Truth(0.1)}, 200, seed=1)], "has no rows of the same operation"),
        (journal(TWO, 400, pick=lambda n, m, d: "a" if n < 200 else "b"), "has 5 rows in each half"),
        (journal(TWO, 400, rated=0.05), "ratings of the operation"),
    ],
    ids=["tiny", "small", "one model", "a rare model", "no common operation", "one after the other", "few ratings"],
)
def test_where_rows_are_lacking_nothing_is_concluded(rows: list[Call], why: str) -> None:
    found = replay(rows, seeds=2)
    assert found.verdict == "undecided"
    assert why in found.reason


def test_a_model_of_the_list_without_rows_is_named() -> None:
    pool = [LLMConfig(name=name, model=name, base_url="http://x.test/v1") for name in ("best", "never-asked")]
    found = replay(journal(DOMINATED, 300), pool=pool, policies=["random"])
    assert any("never-asked there is no row" in note for note in found.notes)
    assert "left out" in found.reason


def test_without_ratings_a_good_answer_is_one_that_came() -> None:
    truths = {("a", "x"): Truth(0.9, answers=0.6), ("b", "x"): Truth(0.2, answers=0.95)}
    found = replay(mute(journal(truths, 600)), seeds=2)
    best = found.policy("best-fixed")
    assert best is not None
    assert (found.best, best.quality, best.good, best.rated) == ("b", None, best.answered, 0.0)
    assert any("Nothing was rated" in note for note in found.notes)


def test_selection_is_always_stated() -> None:
    for rows in ([], journal(DOMINATED, 300)):
        assert "These rows are no experiment." in str(replay(rows, policies=["random"]))


def corrupt(rows: list[Call]) -> list[Call]:
    """Spoil every fifth row in a way of its own."""
    spoilt: list[dict[str, Any]] = [
        {"latency_ms": float("nan")},
        {"latency_ms": None},
        {"latency_ms": -5.0},
        {"latency_ms": float("inf")},
        {"status": "fine"},
        {"llm_name": ""},
        {"latency_ms": "soon"},
        {"score": float("nan")},
        {"score": 17.0},
        {"cost": float("inf")},
        {"cost": -1.0},
        {"usage": Usage(total_tokens=-4)},
        {"http_status": 99},
        {"attempt": "first"},
        {"operation": 5},
    ]
    return [
        msgspec.structs.replace(row, **spoilt[number // 5 % len(spoilt)]) if number % 5 == 0 else row
        for number, row in enumerate(rows)
    ]


def test_corrupt_rows_are_counted_and_spoil_nothing() -> None:
    found = replay(corrupt(journal(DOMINATED, 1500)), seeds=2)
    best = found.policy("best-fixed")
    assert best is not None
    assert found.best == "best"
    assert near(best.good, 0.9)
    left = sum(int(note.split()[0]) for note in found.notes if "rows were left out" in note)
    assert left == 7 * 20
    assert found.rows == 1500 - left
    msgspec.json.encode(found)
