"""What a caller prefers: orders of pools, and that nothing odd in a price or a time ever stops a call."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.choosing.parts import entries, half, lane, need

from llmbroker import InvalidRequestError
from llmbroker.exchange import Usage
from llmbroker.learning import Beliefs
from llmbroker.pool import Lane
from llmbroker.preference import MAIN, Preference, Scale, Tokens, preference, shown
from llmbroker.router import Plan, plan

Model = tuple[str, float, float | None, float | None]
"""Name, quality, usual seconds, dollars of the call."""


def pool(*models: Model) -> list[Lane]:
    lanes = []
    for name, quality, seconds, _ in models:
        made = lane(name, weight=quality)
        if seconds is not None:
            for _ in range(10):
                made.member.latency.add(seconds)
        lanes.append(made)
    return lanes


def look(prefer: Any, *models: Model, **more: Any) -> Plan:
    costs = {name: dollars for name, _, _, dollars in models}
    arguments: dict[str, Any] = {"now": 100.0, "left": 600.0, "beliefs": Beliefs(), "dice": half, **more}
    return plan(
        entries(*pool(*models)),
        need(),
        preference=preference(prefer),
        dollars=lambda lane, _: costs[lane.member.name],
        **arguments,
    )


def order(prefer: Any, *models: Model) -> str:
    return "".join(step.lane.member.name for step in look(prefer, *models).steps)


THREE: tuple[Model, ...] = (("a", 0.9, 20.0, 0.05), ("b", 0.7, 2.0, 0.01), ("c", 0.5, 8.0, 0.001))


@pytest.mark.parametrize(
    ("prefer", "expected"),
    [
        (None, "abc"),
        ("quality", "abc"),
        ({"quality": 3}, "abc"),
        ("speed", "bca"),
        ("cost", "cba"),
        ({"speed": 1}, "bca"),
        ({"cost": 1}, "cba"),
        ({"quality": 1, "cost": 1}, "cba"),
        ({"quality": 1, "speed": 1}, "bac"),
        ({"quality": 9, "speed": 1}, "abc"),
        ({"speed": 1, "cost": 1}, "cba"),
        ({"quality": 2, "speed": 1, "cost": 1}, "bca"),
    ],
    ids=str,
)
def test_what_is_preferred_orders_the_pool(prefer: Any, expected: str) -> None:
    assert order(prefer, *THREE) == expected


def test_quality_alone_is_the_order_of_who_prefers_nothing_down_to_its_lots() -> None:
    models: tuple[Model, ...] = tuple((f"m{n}", random.Random(n).random(), 1.0 + n % 3, None) for n in range(20))
    for seed in range(20):
        plans = [look(prefer, *models, dice=random.Random(seed).random) for prefer in (None, "quality", {"quality": 0.2})]
        names = [[step.lane.member.name for step in made.steps] for made in plans]
        assert names[0] == names[1] == names[2]
        assert all(step.worth is None for made in plans for step in made.steps)


def test_a_price_of_nothing_is_the_best_and_one_that_is_unknown_counts_as_the_dearest() -> None:
    assert order({"cost": 1}, ("a", 0.9, 1.0, None), ("b", 0.5, 1.0, 0.01), ("c", 0.5, 1.0, 0.0)) in ("cab", "cba")
    assert order("cost", ("a", 0.9, 1.0, None), ("b", 0.5, 1.0, 0.01), ("c", 0.5, 1.0, 0.0)) == "cab"
    assert order("cost", ("a", 0.5, 1.0, None), ("b", 0.9, 1.0, None)) == "ba"


def test_a_model_of_unknown_speed_is_tried() -> None:
    assert order("speed", ("a", 0.5, 2.0, None), ("b", 0.6, None, None), ("c", 0.9, 10.0, None)) == "bac"


def test_only_ratios_of_prices_count() -> None:
    cheap: tuple[Model, ...] = (("a", 0.9, 1.0, 2e-6), ("b", 0.5, 1.0, 1e-6))
    dear: tuple[Model, ...] = (("a", 0.9, 1.0, 2.0), ("b", 0.5, 1.0, 1.0))
    worths = [[step.worth.worth for step in look("cost", *models).steps if step.worth] for models in (cheap, dear)]
    assert worths[0] == pytest.approx(worths[1])


def test_half_the_price_outweighs_half_the_quality_and_a_tenth_less_does_not_outweigh_a_tenth() -> None:
    assert order("cost", ("a", 0.9, 1.0, 0.02), ("b", 0.45, 1.0, 0.01)) == "ba"
    assert order("cost", ("a", 0.9, 1.0, 0.010), ("b", 0.8, 1.0, 0.009)) == "ab"


def test_who_will_probably_be_late_comes_last_whatever_it_costs() -> None:
    made = look("cost", ("a", 0.5, 30.0, 0.0), ("b", 0.5, 1.0, 1.0), left=5.0)
    assert [step.lane.member.name for step in made.steps] == ["b", "a"]


def test_the_parts_are_in_the_plan() -> None:
    made = look({"quality": 1, "speed": 1, "cost": 2}, *THREE)
    worth = made.steps[0].worth
    assert worth is not None
    assert (worth.quality, worth.seconds, worth.dollars) == (0.5, 8.0, 0.001)
    assert worth.words(Preference(0.25, 0.25, 0.5)) == [
        f"worth {worth.worth:.2f}", "quality 0.50", "usually 8.0 s", "about $0.0010 a call",
    ]  # fmt: skip
    assert Scale(Preference(0.5, 0.25, 0.25), [], []).worth(0.5, 0.0, None).words(Preference(0.5, 0.25, 0.25))[2:] == [
        "time unknown, counted as the quickest",
        "price unknown, counted as the dearest",
    ]


@pytest.mark.parametrize(
    "prefer",
    [
        "price", "", 1, True, [], {"price": 1}, {}, {"cost": 0}, {"cost": -1}, {"cost": math.nan}, {"cost": math.inf},
        {"cost": "1"}, {"cost": True}, ("cost",),
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_preference_is_refused_by_name(prefer: Any) -> None:
    with pytest.raises(InvalidRequestError, match="prefer is") as caught:
        preference(prefer)
    assert caught.value.argument == "prefer"


def test_names_stand_for_weights_that_leave_quality_a_part() -> None:
    assert preference("cost") == Preference(1 - MAIN, 0.0, MAIN)
    assert preference("speed") == Preference(1 - MAIN, MAIN, 0.0)
    assert preference({"quality": 1, "cost": 3}) == Preference(0.25, 0.0, 0.75)


@pytest.mark.parametrize(
    ("dollars", "words"),
    [(0.0, "$0"), (0.5, "$0.50"), (0.00123, "$0.0012"), (12.3, "$12.30"), (1e-9, "$0.0000000010"), (1e-300, "$0")],
)
def test_dollars_are_shown_with_two_digits_that_tell(dollars: float, words: str) -> None:
    assert shown(dollars) == words


# -- tokens --------------------------------------------------------------------------------------------------------------


def test_tokens_of_an_operation_are_those_of_its_calls_and_before_the_first_those_of_the_prompt() -> None:
    tokens = Tokens()
    assert tokens.expected("a", "op", 4000) == Usage(1000, 500)
    for _ in range(20):
        tokens.learn("a", "op", Usage(120, 30))
    assert tokens.expected("b", "op", 4000) == Usage(120, 30)
    assert tokens.expected("b", "other", 4000) == Usage(1000, 500)


def test_a_model_that_thinks_longer_than_others_is_expected_to() -> None:
    tokens = Tokens()
    for _ in range(30):
        tokens.learn("short", "op", Usage(100, 100))
        tokens.learn("long", "op", Usage(100, 2000))
    assert (tokens.expected("long", "op", 0).output_tokens or 0) > 1.5 * (tokens.expected("new", "op", 0).output_tokens or 0)
    assert (tokens.expected("short", "op", 0).output_tokens or 0) < 0.5 * (tokens.expected("new", "op", 0).output_tokens or 0)


@pytest.mark.parametrize("usage", [Usage(), Usage(1), Usage(None, 1), Usage(-1, 1), Usage(10**12, 1)], ids=repr)
def test_usage_that_is_not_whole_or_makes_no_sense_teaches_nothing(usage: Usage) -> None:
    tokens = Tokens()
    tokens.learn("a", None, usage)
    assert tokens.expected("a", None, 400) == Usage(100, 500)


# -- whatever prices and times are ---------------------------------------------------------------------------------------

ODD = st.one_of(st.none(), st.sampled_from([0.0, -1.0, math.nan, math.inf, -math.inf, 1e-320, 1e308]), st.floats(0.0, 1e6))
SANE = st.one_of(st.none(), st.floats(0.0, 1e3))
WEIGHTS = st.one_of(
    st.sampled_from(["quality", "speed", "cost"]),
    st.dictionaries(st.sampled_from(["quality", "speed", "cost"]), st.floats(0.0, 1e6), min_size=1).filter(
        lambda weights: sum(weights.values()) > 0
    ),
)


@given(
    WEIGHTS, st.lists(st.tuples(st.floats(0.0, 1.0), st.one_of(st.none(), st.floats(0.0, 1e6)), ODD), min_size=1, max_size=6)
)
@settings(max_examples=200, deadline=None)
def test_no_price_and_no_time_stops_a_call(prefer: Any, models: list[tuple[float, float | None, float | None]]) -> None:
    made = look(prefer, *((f"m{index}", *model) for index, model in enumerate(models)))
    assert len(made.steps) == len(models)
    for step in made.steps:
        assert -1e-9 <= step.quality <= 1.0 + 1e-9


@given(
    st.floats(0.01, 1.0),
    st.floats(0.0, 1.0),
    st.floats(0.0, 10.0),
    st.floats(0.0, 10.0),
    st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.1, 50.0), SANE), max_size=4),
)
@settings(max_examples=200, deadline=None)
def test_who_is_cheaper_and_else_equal_never_ranks_worse(
    weight: float, quality: float, one: float, other: float, rest: list[tuple[float, float, float | None]]
) -> None:
    low, high = sorted((one, other))
    prefer = {"quality": 1.0 - weight, "cost": weight}
    models: list[Model] = [("high", quality, 2.0, high), ("low", quality, 2.0, low)]
    models += [(f"m{index}", *model) for index, model in enumerate(rest)]
    made = {step.lane.member.name: step.quality for step in look(prefer, *models).steps}
    assert made["low"] >= made["high"]


@given(st.floats(0.01, 1.0), st.floats(0.0, 1.0), st.floats(0.001, 100.0), st.floats(0.001, 100.0), st.floats(0.001, 100.0))
@settings(max_examples=200, deadline=None)
def test_who_is_quicker_and_else_equal_never_ranks_worse(
    weight: float, quality: float, one: float, other: float, third: float
) -> None:
    low, high = sorted((one, other))
    prefer = {"quality": 1.0 - weight, "speed": weight}
    made = look(prefer, ("slow", quality, high, None), ("quick", quality, low, None), ("third", 0.5, third, None))
    worths = {step.lane.member.name: step.quality for step in made.steps}
    assert worths["quick"] >= worths["slow"]
