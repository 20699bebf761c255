"""Limits: windows, whose account it is, estimates, and the book of accounts, without a broker."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbroker.allowances import (
    ANSWER,
    NOTHING,
    SECOND,
    UNLIMITED,
    Book,
    Demand,
    Habit,
    Hold,
    Settled,
    billionths,
    bound_of,
    concerns,
    concerns_key,
    elsewhere,
    guessed,
    masked,
    merged,
    most_of,
    parts_of,
    prefix_of,
    short_of,
    subject_of,
    used,
    window_of,
    worded,
)
from llmbroker.catalog import Limit
from llmbroker.exchange import Usage, make_request


def micros(*date: int) -> int:
    """A moment of UTC."""
    return int(datetime(*date, tzinfo=UTC).timestamp()) * SECOND  # type: ignore[misc]


WINDOWS: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {
    "minute": ("minute", (2026, 2, 3, 4, 5), (2026, 2, 3, 4, 6)),
    "hour": ("hour", (2026, 2, 3, 4), (2026, 2, 3, 5)),
    "day": ("day", (2026, 2, 3), (2026, 2, 4)),
    "month": ("month", (2026, 2, 1), (2026, 3, 1)),
    "ten minutes": (600, (2026, 2, 3, 4, 0), (2026, 2, 3, 4, 10)),
    "half a day": (43200.0, (2026, 2, 3), (2026, 2, 3, 12)),
}


@pytest.mark.parametrize(("window", "start", "end"), WINDOWS.values(), ids=WINDOWS)
def test_a_window_is_one_of_the_calendar_or_counted_from_1970(
    window: Any, start: tuple[int, ...], end: tuple[int, ...]
) -> None:
    now = micros(2026, 2, 3, 4, 5, 6) + 789
    assert window_of(window, now) == (micros(*start), micros(*end))
    assert window_of(window, micros(*end)) != window_of(window, now)
    assert window_of(window, micros(*end) - 1) == window_of(window, now)


def test_the_last_month_of_a_year_ends_with_the_year() -> None:
    assert window_of("month", micros(2026, 12, 31, 23)) == (micros(2026, 12, 1), micros(2027, 1, 1))


def test_for_ever_has_no_end() -> None:
    assert window_of(None, 5) == (0, None)


@given(st.one_of(st.sampled_from(["minute", "hour", "day", "month"]), st.floats(1, 1e8)), st.integers(0, micros(2200, 1, 1)))
def test_every_moment_is_in_its_window_and_the_next_begins_where_it_ends(window: Any, now: int) -> None:
    start, ends = window_of(window, now)
    assert ends is not None
    assert start <= now < ends
    assert window_of(window, ends)[0] == ends
    assert window_of(window, start) == (start, ends)


@pytest.mark.parametrize(
    ("limit", "scope", "operation", "concerned"),
    [
        (Limit(calls=1), None, None, True),
        (Limit(calls=1), "bob", "x", True),
        (Limit(calls=1, scope="bob"), "bob", None, True),
        (Limit(calls=1, scope="bob"), "eve", None, False),
        (Limit(calls=1, scope="bob"), None, None, False),
        (Limit(calls=1, scope="*"), "anybody", None, True),
        (Limit(calls=1, scope="*"), None, None, False),
        (Limit(calls=1, operation="x"), None, "x", True),
        (Limit(calls=1, operation="x", scope="*"), "bob", "y", False),
        (Limit(calls=1, operation="*"), None, None, False),
    ],
    ids=str,
)
def test_whom_a_limit_concerns(limit: Limit, scope: str | None, operation: str | None, concerned: bool) -> None:
    assert concerns(limit, scope, operation) is concerned


def test_which_key_a_limit_concerns() -> None:
    named, each, none = Limit(calls=1, key="K"), Limit(calls=1, key="*"), Limit(calls=1)
    assert [concerns_key(limit, {"K", "L"}, "m") for limit in (named, each, none)] == [True, True, True]
    assert [concerns_key(limit, {"L"}, "m") for limit in (named, each, none)] == [False, True, True]
    assert [concerns_key(limit, {}, None) for limit in (named, each, none)] == [False, False, True]


TEXT = st.one_of(st.none(), st.text(max_size=5))
STARS = st.sampled_from([None, "*"])


@given(st.lists(st.tuples(TEXT, TEXT, TEXT), min_size=2, max_size=2), STARS, STARS, STARS)
def test_two_share_an_account_only_if_the_limit_does_not_tell_them_apart(
    pair: Any, scope: Any, key: Any, operation: Any
) -> None:
    limit = Limit(calls=1, scope=scope, key=key, operation=operation)
    (one, other) = (subject_of(limit, *parts) for parts in pair)
    apart = [(a, b) for star, a, b in zip((scope, key, operation), *pair, strict=True) if star is not None]
    assert (one == other) == all(a == b for a, b in apart)
    kept = parts_of(one)
    assert kept == tuple(
        part if star is not None else None for part, star in zip(pair[0], (scope, key, operation), strict=True)
    )
    if scope == "*" and pair[0][0] is not None:
        assert one.startswith(prefix_of(pair[0][0]))


# -- estimates -----------------------------------------------------------------------------------------------------------


def test_a_bound_is_taken_for_the_answer_else_its_usual_length() -> None:
    habit = Habit()
    free = guessed(make_request("x" * 300), 300, habit)
    bound = guessed(make_request("x" * 300, params={"max_completion_tokens": 20, "n": 3}), 300, habit)
    assert (free.output_tokens, free.bounded, bound.output_tokens, bound.bounded) == (ANSWER, False, 60, True)
    assert free.input_tokens == bound.input_tokens
    assert 100 <= free.input_tokens <= 120


@pytest.mark.parametrize("value", [0, -1, True, "9", None, 2.5, float("nan"), 2**80], ids=repr)
def test_a_bound_that_is_none_is_not_taken_for_one(value: Any) -> None:
    assert bound_of({"max_tokens": value}) is None


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**7), st.integers(0, 10**6))))
def test_habits_stay_between_what_was_seen(seen: list[tuple[int, int, int]]) -> None:
    habit = Habit()
    for characters, sent, made in seen:
        habit.learn(characters, Usage(sent, made))
    habit.learn(5, None)
    assert min([ANSWER, *(made for *_, made in seen)]) <= habit.answer <= max([ANSWER, *(made for *_, made in seen)])
    assert 0.25 <= habit.characters <= 8.0


COUNTED: dict[str, tuple[Usage | None, bool, tuple[int, int]]] = {
    "all is stated": (Usage(7, 3, total_tokens=10), True, (7, 3)),
    "nothing is stated": (None, True, (50, 100)),
    "only what was sent": (Usage(7, None), True, (7, 100)),
    "only a total": (Usage(None, None, total_tokens=60), True, (50, 10)),
    "cut in the midst": (Usage(7, 1), False, (7, 100)),
    "cut after more than was thought": (Usage(7, 300), False, (7, 300)),
}


@pytest.mark.parametrize(("stated", "whole", "tokens"), COUNTED.values(), ids=COUNTED)
def test_what_is_not_stated_counts_as_it_was_guessed(stated: Usage | None, whole: bool, tokens: tuple[int, int]) -> None:
    from llmbroker.allowances import Guess

    counted = used(stated, Guess(50, 100, True), whole)
    assert (counted.input_tokens, counted.output_tokens) == tokens
    assert counted.total_tokens == sum(tokens)


def test_dollars_are_whole_billionths_and_rounded_up_where_they_are_held() -> None:
    assert billionths(0.1 + 0.2, up=False) == billionths(0.3, up=True) == 300_000_000
    assert (billionths(1.2e-9, up=True), billionths(1.2e-9, up=False)) == (2, 1)


def test_amounts_are_worded_with_their_unit() -> None:
    words = [worded(0, 1234), worded(1, 5, 1000), worded(2, 250_000_000), worded(2, 0, 2_000_000_000)]
    assert words == ["1,234 calls", "5 of 1,000 tokens", "$0.25", "$0 of $2"]


def test_a_limit_counts_only_what_it_limits() -> None:
    limit = Limit(calls=3, cost=0.5)
    assert masked(limit, (1, 20, 300)) == (1, 0, 300)
    assert most_of(limit) == (3, UNLIMITED, 500_000_000)


def test_limits_have_names_that_say_what_they_are() -> None:
    names = [
        Limit(calls=1).name,
        Limit(tokens=1, cost=1, window="hour", scope="*").name,
        Limit(calls=1, window=90.5, key="K", operation="x").name,
        Limit(calls=1, name="mine").name,
    ]
    assert names == [
        "all: calls for ever",
        "each scope: tokens and cost an hour",
        "key K, operation x: calls in 90.5 s",
        "mine",
    ]


# -- the book ------------------------------------------------------------------------------------------------------------


def demand(name: str = "l", *, wants: int = 1, least: int | None = None, most: int = 10, ends: int | None = None) -> Demand:
    """What an attempt asks of an account of tokens."""
    return Demand(name, "", 0, ends, (0, wants, 0), (0, wants if least is None else least, 0), (UNLIMITED, most, UNLIMITED))


def test_a_guess_is_let_in_while_something_is_left_and_nobody_holds_any_of_it() -> None:
    book = Book()
    guess = demand(wants=500, least=4)
    assert book.reserve(Hold("a", (guess,), 99), 0).refused is None
    assert book.reserve(Hold("b", (guess,), 99), 0).refused == 0
    book.settle(Settled(Hold("a", (guess,), 99), ((0, 5, 0),)))
    assert book.reserve(Hold("b", (guess,), 99), 0).refused is None
    book.settle(Settled(Hold("b", (guess,), 99), ((0, 2, 0),)))
    assert book.reserve(Hold("c", (guess,), 99), 0).refused == 0, "what is left is less than what is sure"
    assert short_of(book.account(guess), guess, spent_alone=True) == 1


def test_a_bounded_request_is_not_let_in_beyond_the_limit() -> None:
    book = Book()
    assert book.reserve(Hold("a", (demand(wants=11),), 99), 0).refused == 0
    assert book.reserve(Hold("a", (demand(wants=10),), 99), 0).refused is None


def test_all_accounts_or_none() -> None:
    book = Book()
    hold = Hold("a", (demand("l", most=5), demand("m", most=0)), 99)
    assert book.reserve(hold, 0).refused == 1
    assert book.accounts(0) == []


def test_an_account_ends_with_its_window_and_a_late_attempt_counts_where_it_began() -> None:
    book = Book()
    early = Hold("a", (demand(ends=50),), 99)
    book.reserve(early, 0)
    later = Demand("l", "", 50, 100, (0, 1, 0), (0, 1, 0), (UNLIMITED, 1, UNLIMITED))
    assert book.reserve(Hold("b", (later,), 99), 60).refused is None
    book.settle(Settled(early, ((0, 9, 0),)))
    assert [account.spent for account in book.accounts(60)] == [NOTHING]
    assert book.account(early.demands[0]).spent == (0, 9, 0)


def test_sums_of_what_was_counted_elsewhere_keep_every_amount() -> None:
    ids = itertools.count()
    several = [elsewhere(Settled(Hold(str(n), (demand(name),), 9), ((1, n, 0),), n % 2)) for n in range(6) for name in "lm"]
    sums = merged(several, lambda: f"sum {next(ids)}")
    assert [(one.hold.demands[0].name, one.spent, one.unpriced, one.foreign) for one in sums] == [
        ("l", ((6, 15, 0),), 3, True),
        ("m", ((6, 15, 0),), 3, True),
    ]
    assert len({one.hold.id for one in sums}) == 2
