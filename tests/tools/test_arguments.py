"""The ladder: exact JSON, what is repaired, and what is never guessed at."""

from __future__ import annotations

import json
import types
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from llmbroker.messages import object_text
from llmbroker.tools import canonical, read_arguments
from llmbroker.tools.lenient import LONGEST

JSON = dict[str, Any]
PARIS = {"city": "Paris", "days": 3}


@pytest.mark.parametrize("given_", ["", "null", "  \n", None, "{}", " { } ", {}], ids=repr)
def test_B3_B4_no_arguments_have_many_spellings(given_: Any) -> None:
    read = read_arguments(given_)
    assert (read.value, read.repaired, read.problem) == ({}, False, None)
    assert object_text(read.text) == read.text


@pytest.mark.parametrize("given_", ["", "null", None])
def test_B4_the_schema_is_checked_after_it(given_: Any) -> None:
    read = read_arguments(given_, {"properties": {"city": {"type": "string"}}, "required": ["city"]})
    assert (read.value, read.problem) == (None, "city: missing, expected string.")


@pytest.mark.parametrize(
    "text",
    [
        '{"city": "Paris", "days": 3}',
        ' {"city":"Paris","days":3}\n',
        '{"city": "\\u0050aris", "days": 3}',
    ],
)
def test_exact_json_is_not_called_repaired_and_keeps_its_words(text: str) -> None:
    read = read_arguments(text)
    assert (read.value, read.repaired, read.text) == (PARIS, False, text.strip())


@pytest.mark.parametrize(
    "number", ["123456789012345678901234567890", "-9007199254740993", "0.1", "1e-7", "18446744073709551616"]
)
def test_numbers_keep_their_precision(number: str) -> None:
    read = read_arguments(f'{{"n": {number}}}')
    assert read.value is not None
    assert read.value["n"] == (int(number) if "." not in number and "e" not in number else float(number))


REPAIRED = [
    '\ufeff{"city": "Paris", "days": 3}',
    '```json\n{"city": "Paris", "days": 3}\n```',
    '```\n{"city": "Paris", "days": 3}```',
    "\u200b{\"city\": \"Paris\", \"days\": 3}\u00a0",
    json.dumps(json.dumps(PARIS)),
    json.dumps(json.dumps(json.dumps(PARIS))),
    json.dumps("```json\n" + json.dumps(PARIS) + "\n```"),
    '{"city": "Paris", "days": 3,}',
    '{"city": "Paris" "days": 3}',
    "{'city': 'Paris', 'days': 3}",
    "{city: 'Paris', days: 3}",
    '{city: "Paris", "days": 3}',
    '{"city": "Paris", /* how long */ "days": 3}',
    '{"city": "Paris", "days": 3 /* nights: 2 */}',
    '{"city": "Paris", "days": 3 // two nights\n}',
    '{"city": "Paris", // the town\n "days": 3}',
    '{"city": "Paris", "days": 3}}',
    '{"city": "Paris", "days": 3};',
    '{"city": "Paris", "days": 3}\n```',
    json.dumps("{'city': 'Paris', 'days': 3,}"),
]  # fmt: skip


@pytest.mark.parametrize("text", REPAIRED)
def test_what_was_plainly_meant_is_repaired_and_said_so(text: str) -> None:
    read = read_arguments(text)
    assert (read.value, read.repaired, read.problem) == (PARIS, True, None)
    assert json.loads(read.text or "") == PARIS and object_text(read.text) == read.text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a': True, 'b': False, 'c': None}", {"a": True, "b": False, "c": None}),
        ('{"code": "one\ntwo\tthree"}', {"code": "one\ntwo\tthree"}),
        ("{'a': 'it\\'s', 'b': [1, 2.50, -3,],}", {"a": "it's", "b": [1, 2.5, -3]}),
        ("{'a': \"it's\"}", {"a": "it's"}),
        ("{'a': 'say \"x\", y'}", {"a": 'say "x", y'}),
        ("{'url': 'http://x.y/z'}", {"url": "http://x.y/z"}),
        ("{'a': '{\"b\": \"c\", \"d\": [1]}', 'e': 'x'}", {"a": '{"b": "c", "d": [1]}', "e": "x"}),
        ("{'a': '\\x41\\u0042\\ud83d\\ude00\\n'}", {"a": "AB😀\n"}),
        ("{'a': {'b': {}}, 'c': []}", {"a": {"b": {}}, "c": []}),
        ("{'a': '}{', 'b': '[\"'}", {"a": "}{", "b": '["'}),
    ],
)
def test_tolerant_json_keeps_every_word(text: str, value: JSON) -> None:
    read = read_arguments(text)
    assert (read.value, read.problem) == (value, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"city": "Par', "end in the middle"),
        ('{"city": "Paris"', "end in the middle"),
        ('{"city": "Paris", "days": [1, 2', "end in the middle"),
        ("{'city': 'Par", "end in the middle"),
        ('{"city": "Paris}', "end in the middle"),
        ("{", "end in the middle"),
        ('"{\\"city\\": \\"Par"', "end in the middle"),
        ('{"city": "Paris", /* and', "end in the middle"),
        ('{"days": [1, 2}', "not JSON"),
        ('{"a": 1}{"a": 2}', "not JSON"),
        ('{}{"a": 1}', "not JSON"),
        ('I call it with {"city": "Paris"}', "not JSON"),
        ('{"city": "Paris"} is what I want', "not JSON"),
        ("city=Paris", "not JSON"),
        ('{"a": 1, "a": 2}', 'the key "a" stands twice'),
        ('{"a": {"b": 1, "b": 1}}', 'the key "b" stands twice'),
        ("{'a': 1, 'a': 2}", 'the key "a" stands twice'),
        ("{'n': " + "9" * 5000 + "}", "not JSON"),
        ('{"n": NaN}', "NaN is not a finite number"),
        ('{"n": -Infinity}', "-Infinity is not a finite number"),
        ("{'n': NaN,}", "NaN is not a finite number"),
        ("{'n': -inf}", "-inf is not a finite number"),
        ('{"n": 1e999}', "the number 1e999 is too large"),
        ("[1, 2]", "expected a JSON object of arguments, got [1, 2]"),
        ('[{"city": "Paris"}]', "expected a JSON object"),
        ("3", "expected a JSON object of arguments, got 3"),
        ("true", "expected a JSON object"),
        ('"Paris"', 'expected a JSON object of arguments, got "Paris"'),
        ('{"a": "\\ud83d"}', "lone surrogate"),
        ('{"n": ' + "9" * 5000 + "}", "cannot be read"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
    ],
)  # fmt: skip
def test_B11_B12_what_would_be_a_guess_is_a_problem_that_says_where(text: str, words: str) -> None:
    read = read_arguments(text)
    assert read.value is None and read.text is None
    assert words in (read.problem or "")
    assert len(read.problem or "") < 400 and "\n" not in (read.problem or "")


def test_a_problem_shows_the_position_and_what_stands_there() -> None:
    problem = read_arguments('{"a" 1, "b": 2} and more').problem
    assert problem is not None
    assert problem.startswith("the arguments are not JSON: Expecting ':' delimiter at character 5 (")
    assert problem.endswith('("{\\"a\\" 1, \\"b\\": 2} and more"). Send one JSON object.')


def test_strings_in_strings_are_opened_a_few_times_only() -> None:
    text = json.dumps(PARIS)
    for _ in range(6):
        text = json.dumps(text)
    assert read_arguments(text).value is None


def test_a_very_long_text_is_not_repaired() -> None:
    text = "{'a': '" + "x" * LONGEST + "'}"
    assert read_arguments(text).value is None
    assert read_arguments(json.dumps({"a": "x" * LONGEST})).value == {"a": "x" * LONGEST}


# -- objects instead of text -----------------------------------------------------------------------------------------------


def test_B7_arguments_may_come_as_an_object() -> None:
    read = read_arguments({"city": "Paris", "days": 3})
    assert (read.value, read.repaired, read.text) == (PARIS, False, '{"city":"Paris","days":3}')


def test_the_object_itself_is_not_handed_on() -> None:
    given_ = {"city": "Paris"}
    value = read_arguments(given_).value
    assert value == given_ and value is not given_


def test_any_mapping_will_do() -> None:
    assert read_arguments(types.MappingProxyType({"city": "Paris"})).value == {"city": "Paris"}


@pytest.mark.parametrize(
    "given_", [[1], 3, True, object(), {"a": object()}, {"a": float("nan")}, {"a": [{"b": float("inf")}]}, {"a": "\ud83d"}]
)
def test_B17_what_is_no_json_object_is_a_problem(given_: Any) -> None:
    read = read_arguments(given_)
    assert read.value is None and read.problem


def test_bytes_are_read_as_text() -> None:
    assert read_arguments(b'{"city": "Paris"}').value == {"city": "Paris"}


# -- with a schema ---------------------------------------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}


def test_a_repair_by_the_schema_is_said_so_and_the_models_words_stay_in_the_history() -> None:
    read = read_arguments('{"city": "Paris", "days": "3"}', SCHEMA)
    assert (read.value, read.repaired, read.text) == (PARIS, True, '{"city": "Paris", "days": "3"}')


def test_arguments_that_do_not_fit_keep_their_text_and_name_every_fault() -> None:
    read = read_arguments('{"citi": "Paris", "days": "many"}', SCHEMA)
    assert read.value is None and read.text == '{"citi": "Paris", "days": "many"}'
    assert (read.problem or "").split("\n") == [
        "city: missing, expected string.",
        'citi: not known. Did you mean "city"? Known: city, days.',
        'days: expected integer, got "many" (string).',
    ]


def test_B25_a_schema_without_properties_takes_anything() -> None:
    assert read_arguments('{"a": 1}', {"type": "object"}).value == {"a": 1}


# -- properties ------------------------------------------------------------------------------------------------------------

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=20)
)
objects = st.dictionaries(
    st.text(st.characters(codec="utf-8"), max_size=8),
    st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)


@given(objects)
def test_every_object_is_read_back_as_it_was(value: JSON) -> None:
    read = read_arguments(json.dumps(value))
    assert (read.value, read.repaired) == (value, False)
    assert read_arguments(json.dumps(json.dumps(value))).value == value
    assert read_arguments("```json\n" + json.dumps(value, indent=1) + "\n```").value == value


@given(objects, st.floats(0, 1), st.booleans())
def test_a_cut_text_is_never_an_object(value: JSON, share: float, ascii_: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_)
    cut = text[: int(share * (len(text) - 1))]
    assume(cut.strip())
    assert read_arguments(cut).value is None
    assert read_arguments(json.dumps(cut)).value is None


@given(objects, st.floats(0, 1))
def test_a_cut_python_literal_is_never_an_object(value: JSON, share: float) -> None:
    text = repr(value)
    cut = text[: int(share * (len(text) - 1))]
    assume(cut.strip())
    assert read_arguments(cut).value is None


def words(value: Any) -> list[str]:
    if isinstance(value, dict):
        return sorted(word for key, item in value.items() for word in (key, *words(item)))
    if isinstance(value, list):
        return sorted(word for item in value for word in words(item))
    return [str(value)]


@settings(max_examples=300, deadline=None)
@example({"a": "b"}, [(3, '"')], True)
@given(
    st.dictionaries(
        st.text("abxy", min_size=1, max_size=4),
        st.integers(0, 99) | st.text("ab {}[]:,'x", max_size=8) | st.booleans(),
        min_size=1,
        max_size=3,
    ),
    st.lists(st.tuples(st.integers(0, 80), st.sampled_from([*"{}[]:,\"'x1 \n", ""])), min_size=1, max_size=3),
    st.booleans(),
)
def test_no_corruption_crashes_or_invents_a_word(value: JSON, edits: list[tuple[int, str]], plain: bool) -> None:
    text = json.dumps(value) if plain else repr(value)
    for at, new in edits:
        at %= len(text) + 1
        text = text[:at] + new + text[at + (not new) :]
    read = read_arguments(text)
    assert (read.value is None) is (read.problem is not None)
    if read.value is not None:
        flat = "".join(text.replace("\\", "").split()).lower().replace("none", "null")
        for word in words(read.value):
            bare = "".join(word.split()).replace("\\", "").lower().replace("none", "null")
            assert all(piece in flat for piece in bare.split("'") for piece in piece.split('"')) or not bare


@given(st.text(max_size=60) | st.binary(max_size=60))
def test_any_text_gives_an_object_or_a_problem(text: Any) -> None:
    read = read_arguments(text)
    assert (read.value is None) is (read.problem is not None)
    if read.problem:
        read.problem.encode()


def test_equal_arguments_have_one_canonical_text() -> None:
    assert canonical({"b": 1.0, "a": [True, None]}) == canonical({"a": [True, None], "b": 1}) == '{"a":[true,null],"b":1}'
    assert canonical({"a": True}) != canonical({"a": 1})
