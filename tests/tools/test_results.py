"""Results as text: valid, never empty, bounded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbroker.tools import error_words, fit, result_text


class Loud:
    def __str__(self) -> str:
        return "loud"


class Name(str):
    def __str__(self) -> str:
        return "another"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("It is 20°C", "It is 20°C"),
        (3, "3"),
        (None, "None"),
        ([], "[]"),
        ({"a": 1}, "{'a': 1}"),
        (Loud(), "loud"),
        (Name("x"), "another"),
        ("", "(no output)"),
        ("\ud83d\ude00", "😀"),
        ("half \ud83d here", "half \ufffd here"),
    ],
)
def test_E10_E11_a_result_is_its_str(value: Any, text: str) -> None:
    made = result_text(value)
    assert made == text and type(made) is str


def test_an_error_in_str_is_the_errors_own() -> None:
    class Broken:
        def __str__(self) -> str:
            raise ZeroDivisionError("no words")

    with pytest.raises(ZeroDivisionError, match="no words"):
        result_text(Broken())


def test_an_exception_that_cannot_say_anything_shows_its_class() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert error_words(Mute()) == "Mute"
    assert error_words(RuntimeError(" ")) == "RuntimeError"
    assert error_words(RuntimeError("a\nb")) == "a\nb"


def test_G18_an_overlong_result_loses_its_middle_and_says_exactly_how_much() -> None:
    text = "a" * 5_000_000 + "z" * 5_000_000
    made = fit(text, 1000)
    head, note, tail = made.split("\n")
    assert len(made) <= 1000
    assert set(head) == {"a"} and set(tail) == {"z"} and abs(len(head) - len(tail)) <= 1
    assert note == f"[... {10_000_000 - len(head) - len(tail):,} of 10,000,000 characters are left out here ...]"


@given(st.text(st.characters(), max_size=400), st.integers(1, 300))
def test_any_text_becomes_valid_and_bounded(text: str, limit: int) -> None:
    made = fit(text, limit)
    made.encode()
    assert len(made) <= max(limit, 100) or len(text) <= limit
    if len(made) < limit and "\n[..." not in made:
        assert len(made) <= len(text)


@pytest.mark.parametrize("limit", [1, 2, 50, 99])
def test_a_tiny_limit_still_says_how_much_is_missing(limit: int) -> None:
    made = fit("x" * 500, limit)
    assert "of 500 characters are left out here" in made
    left = int(made.split("[... ")[1].split(" of")[0])
    assert made.count("x") + left == 500


def test_what_fits_is_not_touched() -> None:
    assert fit("x" * 100, 100) == "x" * 100
    assert fit("x" * 10**6, None) == "x" * 10**6
