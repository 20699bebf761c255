"""Constrained answers: the same events however the text is cut, no call guessed."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmbroker.exchange import CallDelta, Event, TextDelta
from llmbroker.providers.local_answer import AnswerReader


def read(pieces: list[str]) -> list[Event]:
    reader = AnswerReader()
    events = [event for piece in pieces for event in reader.feed(piece)]
    return events + reader.end()


def told(events: list[Event]) -> tuple[str, list[tuple[str | None, str]]]:
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    return text, [(event.name, event.arguments) for event in events if isinstance(event, CallDelta)]


def cut(text: str, at: list[int]) -> list[str]:
    marks = sorted({0, len(text), *(mark % (len(text) + 1) for mark in at)})
    return [text[a:b] for a, b in itertools.pairwise(marks)]


CUTS = st.lists(st.integers(0, 10_000), max_size=12)


@settings(deadline=None)
@given(answer=st.text(), at=CUTS, ascii_only=st.booleans())
def test_an_answer_in_words_is_the_same_however_it_is_cut(answer: str, at: list[int], ascii_only: bool) -> None:
    text = json.dumps({"answer": answer}, ensure_ascii=ascii_only)
    assert told(read(cut(text, at))) == (answer, [])


ARGUMENTS = st.dictionaries(st.text(max_size=5), st.text(max_size=8) | st.integers(0, 9) | st.none(), max_size=3)


@settings(deadline=None)
@given(calls=st.lists(st.tuples(st.sampled_from(["a", "b_c"]), ARGUMENTS), min_size=1, max_size=4), at=CUTS)
def test_calls_are_the_same_however_the_text_is_cut(calls: list[tuple[str, dict[str, Any]]], at: list[int]) -> None:
    text = json.dumps({"calls": [{"tool": name, "arguments": arguments} for name, arguments in calls]})
    words, found = told(read(cut(text, at)))
    once = [call for index, call in enumerate(calls) if call not in calls[:index]]
    assert words == ""
    assert [(name, json.loads(arguments)) for name, arguments in found] == once


@settings(deadline=None)
@given(text=st.text(), at=CUTS)
def test_any_text_is_read_without_a_crash(text: str, at: list[int]) -> None:
    assert told(read(cut(text, at))) == told(read([text]))


@settings(deadline=None)
@given(answer=st.text(alphabet='ab\\"\n\u00e9\U0001f600', max_size=20), stop=st.integers(0, 200))
def test_a_cut_answer_is_told_as_far_as_it_came(answer: str, stop: int) -> None:
    whole = json.dumps({"answer": answer})
    start = len('{"answer": "')
    text = whole[: start + stop]
    words, calls = told(read([text]))
    assert answer.startswith(words)
    assert calls == []


def test_an_answer_is_passed_on_while_it_grows() -> None:
    reader = AnswerReader()
    grown = [reader.feed(piece) for piece in ('{"ans', 'wer": "Hel', "lo", " \\u00", 'e9"', "}")]
    assert [[e.text for e in events if isinstance(e, TextDelta)] for events in grown] == [[], ["Hel"], ["lo"], [" "], ["é"], []]


def test_a_call_that_was_cut_keeps_only_what_it_said() -> None:
    events = read(['{"calls": [{"tool": "a", "arguments": {"x": 1}}, {"tool": "b", "arguments": {"city": "Par'])
    assert told(events)[1] == [("a", '{"x": 1}'), ("b", '{"city": "Par')]


def test_an_answer_under_a_schema_of_its_own_is_json_text() -> None:
    assert told(read(['{"answer": {"n": 3}}'])) == ('{"n":3}', [])


@pytest.mark.parametrize("text", ["plain words", "[1, 2]", '{"other": 1}'])
def test_what_is_in_neither_form_is_text(text: str) -> None:
    assert told(read([text]))[0] == text
