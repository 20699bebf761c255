"""Schema checking: soundness and completeness against jsonschema, repairs that lose nothing, problems that help."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llmbroker.tools.patterns import matches
from llmbroker.tools.schema import MOST_PROBLEMS, check_arguments

JSON = dict[str, Any]


def check(value: Any, schema: JSON) -> tuple[Any, tuple[str, ...]]:
    """Check one argument ``x``."""
    checked = check_arguments({"x": value}, {"type": "object", "properties": {"x": schema}, "required": ["x"]})
    return checked.value.get("x"), checked.problems


# -- an oracle -------------------------------------------------------------------------------------------------------------

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from([0.5, 1.0, 2.5, -1.0])
    | st.sampled_from(["", "a", "ab", "abc", "3"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
bounds = st.integers(-3, 4)
leaf_schemas = st.one_of(
    st.just({}),
    st.sampled_from([{"type": t} for t in ("null", "boolean", "integer", "number", "string", "object", "array")]),
    st.lists(st.sampled_from(["null", "boolean", "integer", "number", "string"]), min_size=1, max_size=3, unique=True).map(
        lambda names: {"type": names}
    ),
    st.lists(scalars, min_size=1, max_size=3).map(lambda items: {"enum": items}),
    scalars.map(lambda item: {"const": item}),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["integer", "number"])},
        optional=dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), bounds)
        | {"multipleOf": st.integers(1, 3)},
    ),
    st.fixed_dictionaries(
        {"type": st.just("string")},
        optional={
            "minLength": st.integers(0, 3),
            "maxLength": st.integers(0, 3),
            "pattern": st.sampled_from(["^a", "b$", "[0-9]"]),
        },
    ),
)


def bigger(inner: st.SearchStrategy[JSON]) -> st.SearchStrategy[JSON]:
    return st.one_of(
        st.fixed_dictionaries(
            {
                "type": st.just("object"),
                "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
                "additionalProperties": st.booleans() | inner,
            },
            optional={
                "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
                "minProperties": st.integers(0, 2),
                "maxProperties": st.integers(0, 3),
            },
        ),
        st.fixed_dictionaries(
            {"type": st.just("array")},
            optional={
                "items": inner,
                "prefixItems": st.lists(inner, min_size=1, max_size=2),
                "minItems": st.integers(0, 2),
                "maxItems": st.integers(0, 3),
                "uniqueItems": st.booleans(),
            },
        ),
        *(
            st.lists(inner, min_size=1, max_size=3).map(lambda branches, word=word: {word: branches})
            for word in ("anyOf", "oneOf", "allOf")
        ),
        inner.map(lambda schema: {"not": schema}),
    )


schemas = st.recursive(leaf_schemas, bigger, max_leaves=5)


@settings(max_examples=400, deadline=None)
@example(1.0, {"not": {"anyOf": [{"type": ["null", "integer"]}]}})
@example(1.0, {"not": {"not": {"type": ["null", "integer"]}}})
@example(1.0, {"oneOf": [{"type": "integer"}, {"type": "number"}]})
@example("3", {"oneOf": [{"type": "integer"}, {"type": "integer"}]})
@given(values, schemas)
def test_what_passes_is_valid_and_what_is_valid_passes(value: Any, schema: JSON) -> None:
    oracle = jsonschema.Draft202012Validator({"type": "object", "properties": {"x": schema}})
    kept = copy.deepcopy((value, schema))
    checked = check_arguments({"x": value}, {"type": "object", "properties": {"x": schema}})
    assert (value, schema) == kept
    if oracle.is_valid({"x": value}):
        assert checked.problems == ()
        assert checked.value["x"] == value and isinstance(checked.value["x"], bool) is isinstance(value, bool)
    if not checked.problems:
        assert oracle.is_valid(checked.value)


# -- repairs ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "schema", "made"),
    [
        ("3", {"type": "integer"}, 3),
        (" -3 ", {"type": "integer"}, -3),
        (3.0, {"type": "integer"}, 3),
        ("3.0", {"type": "integer"}, 3),
        ("3.5", {"type": "number"}, 3.5),
        ("123456789012345678901234567890", {"type": "integer"}, 123456789012345678901234567890),
        ("true", {"type": "boolean"}, True),
        ("False", {"type": "boolean"}, False),
        ("null", {"type": ["integer", "null"]}, None),
        ('{"a": 1}', {"type": "object"}, {"a": 1}),
        ("[1, 2]", {"type": "array", "items": {"type": "integer"}}, [1, 2]),
        (["1", 2.0], {"type": "array", "items": {"type": "integer"}}, [1, 2]),
        ({"n": "1"}, {"type": "object", "properties": {"n": {"type": "integer"}}}, {"n": 1}),
        ("4", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 4),
        ("5", {"$ref": "#/properties/x/$defs/n", "$defs": {"n": {"type": "integer"}}}, 5),
        ("2", {"type": "integer", "enum": [1, 2]}, 2),
        ('{"n": "7"}', {"type": "object", "properties": {"n": {"type": "integer"}}}, {"n": 7}),
        ("1", {"type": "INTEGER"}, 1),
    ],
)
def test_what_loses_nothing_is_repaired(value: Any, schema: JSON, made: Any) -> None:
    result, problems = check(value, schema)
    assert problems == ()
    assert result == made and type(result) is type(made)


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ("3", {"type": "string"}),
        ("3", {"type": ["string", "integer"]}),
        ("3", {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (3.0, {"type": "number"}),
        (None, {"type": "integer", "nullable": True}),
        ({"free": 1}, {"type": "object"}),
        (5, {"type": "tuple"}),
        (5, {}),
        ("x", {"format": "uuid", "type": "string"}),
        (7, {"$ref": "https://example.com/elsewhere.json"}),
    ],
)
def test_what_fits_stays_as_it_is(value: Any, schema: JSON) -> None:
    result, problems = check(value, schema)
    assert problems == ()
    assert result is value


@pytest.mark.parametrize(
    ("value", "schema", "line"),
    [
        ("abc", {"type": "integer"}, 'x: expected integer, got "abc" (string).'),
        (3.5, {"type": "integer"}, "x: expected integer, got 3.5 (number)."),
        (True, {"type": "integer"}, "x: expected integer, got true (boolean)."),
        (1, {"type": "boolean"}, "x: expected boolean, got 1 (integer)."),
        (5, {"type": "string"}, "x: expected string, got 5 (integer)."),
        (None, {"type": "string"}, "x: expected string, got null (null)."),
        ("[1]", {"type": "object"}, 'x: expected object, got "[1]" (string).'),
        ('{"a": 1, "a": 2}', {"type": "object"}, 'x: expected object, got "{\\"a\\": 1, \\"a\\": 2}" (string).'),
        ("kelvin", {"enum": ["celsius", "fahrenheit"]}, 'x: expected one of "celsius", "fahrenheit", got "kelvin".'),
        ("celsus", {"enum": ["celsius"]}, 'x: expected one of "celsius", got "celsus". Did you mean "celsius"?'),
        (2, {"const": 1}, "x: expected 1, got 2."),
        (11, {"maximum": 10, "minimum": 0}, "x: expected at most 10, got 11."),
        (0, {"exclusiveMinimum": 0}, "x: expected more than 0, got 0."),
        (0, {"minimum": 0, "exclusiveMinimum": True}, "x: expected more than 0, got 0."),
        (5, {"multipleOf": 2}, "x: expected a multiple of 2, got 5."),
        ("ab", {"minLength": 3}, "x: expected at least 3 characters, got 2."),
        ("ab", {"pattern": "^[0-9]+$"}, 'x: expected text that matches "^[0-9]+$", got "ab".'),
        ([], {"minItems": 1}, "x: expected at least 1 items, got 0."),
        ([1, 2, 1], {"uniqueItems": True}, "x[2]: expected no item twice, got 1 again."),
        (["a", 1], {"items": {"type": "string"}}, "x[1]: expected string, got 1 (integer)."),
        (
            {"a": {"b": 1}},
            {"properties": {"a": {"properties": {"b": {"type": "string"}}}}},
            "x.a.b: expected string, got 1 (integer).",
        ),
        ({}, {"required": ["name"], "properties": {"name": {"type": "string"}}}, "x.name: missing, expected string."),
        ({"nme": 1}, {"properties": {"name": {}}}, 'x.nme: not known. Did you mean "name"? Known: name.'),
        ({"zzz": 1}, {"properties": {}}, "x.zzz: not known; no arguments are taken here."),
        ({"b": 1}, {"additionalProperties": False}, "x.b: not known; no arguments are taken here."),
        ([], {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "x: expected integer or null, got [] (array)."),
        (1, {"oneOf": [{"minimum": 0}, {"maximum": 2}]}, "x: 1 fits more than one of the alternatives."),
        (1, {"not": {"type": "integer"}}, "x: 1 is not allowed here."),
        (1, False, "x: nothing is allowed here."),
    ],
)
def test_a_problem_names_the_path_what_was_expected_what_came_and_the_nearest(value: Any, schema: JSON, line: str) -> None:
    assert check(value, schema)[1] == (line,)


@pytest.mark.parametrize(
    ("value", "schema", "meant"),
    [
        ("Celsius", {"enum": ["celsius", "kelvin"]}, "celsius"),
        (True, {"type": "string", "enum": ["True", "False", "dontcare"]}, "True"),
        (2, {"type": "string", "enum": ["1", "2"]}, "2"),
        (["buzz", "Trust"], {"type": "array", "items": {"type": "string"}, "enum": ["buzz", "trust"]}, ["buzz", "trust"]),
    ],
)
def test_a_value_that_can_only_mean_one_allowed_word_becomes_it(value: Any, schema: JSON, meant: Any) -> None:
    made, problems = check(value, schema)
    assert (made, problems) == (meant, ())


def test_two_allowed_words_that_differ_in_capitals_are_not_guessed_between() -> None:
    assert check("A", {"enum": ["a", "A "]})[1] or check("x", {"enum": ["X", "x"]})[0] == "x"
    assert check("AB", {"enum": ["Ab", "aB"]})[1]


def test_a_union_of_objects_shows_the_nearest_alternative() -> None:
    cat = {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}, "required": ["kind"]}
    dog = {"type": "object", "properties": {"kind": {"const": "dog"}, "tricks": {"type": "array"}}, "required": ["kind"]}
    _, problems = check({"kind": "cat", "lives": "many"}, {"anyOf": [cat, dog]})
    assert problems == ('x.lives: expected integer, got "many" (string).',)


# -- names that are not listed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "refused"),
    [
        ({"type": "object", "properties": {"a": {}}}, True),
        ({"type": "object", "properties": {}}, True),
        ({"type": "object"}, False),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": True}, False),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": {}}, False),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "string"}}, True),
        ({"type": "object", "properties": {"a": {}}, "patternProperties": {"^b": {}}}, False),
        ({"type": "object", "allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, False),
        ({"type": "object", "allOf": [{"properties": {"a": {}}}]}, True),
    ],
)
def test_a_name_that_is_not_listed_is_refused_where_the_schema_lists_names(schema: JSON, refused: bool) -> None:
    assert bool(check_arguments({"a": 1, "b": 2}, schema).problems) is refused


# -- null, wrappers --------------------------------------------------------------------------------------------------------


def test_null_for_an_optional_argument_is_no_argument() -> None:
    schema = {"properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "required": ["a"]}
    checked = check_arguments({"a": "x", "b": None}, schema)
    assert (checked.value, checked.repaired, checked.problems) == ({"a": "x"}, True, ())


@pytest.mark.parametrize(
    "schema",
    [{"type": ["string", "null"]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}, {}, {"type": "string", "nullable": True}],
)
def test_B23_null_stays_where_the_schema_takes_it(schema: JSON) -> None:
    checked = check_arguments({"a": None}, {"properties": {"a": schema}})
    assert (checked.value, checked.repaired) == ({"a": None}, False)


def test_null_for_a_needed_argument_is_a_problem() -> None:
    assert check_arguments({"a": None}, {"properties": {"a": {"type": "string"}}, "required": ["a"]}).problems


PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name"]}


@pytest.mark.parametrize(
    ("value", "schema", "made"),
    [
        ({"person": {"name": "A", "age": 3}}, PERSON, {"name": "A", "age": 3}),
        ({"arguments": {"name": "A"}}, PERSON, {"name": "A"}),
        (
            {"name": "A", "age": 3},
            {"properties": {"person": PERSON}, "required": ["person"]},
            {"person": {"name": "A", "age": 3}},
        ),
        ({"person": {"name": "A"}}, {"properties": {"person": PERSON}, "required": ["person"]}, {"person": {"name": "A"}}),
    ],
)
def test_B9_wrapped_and_flat_forms_both_bind(value: JSON, schema: JSON, made: JSON) -> None:
    checked = check_arguments(value, schema)
    assert (checked.value, checked.problems) == (made, ())


def test_B9_a_reference_is_followed_to_see_what_may_be_flat() -> None:
    schema = {"properties": {"person": {"$ref": "#/$defs/p"}}, "required": ["person"], "$defs": {"p": PERSON}}
    assert check_arguments({"name": "A"}, schema).value == {"person": {"name": "A"}}


def test_B9_an_object_that_lists_no_names_is_not_guessed_around_a_misspelt_name() -> None:
    schema = {"properties": {"options": {"type": "object"}}, "required": ["options"]}
    assert check_arguments({"optoins": "x"}, schema).problems[1].startswith('optoins: not known. Did you mean "options"?')


def test_B9_a_wrapper_is_not_opened_where_its_inside_does_not_fit() -> None:
    assert check_arguments({"person": {"nam": "A"}}, PERSON).problems == (
        "name: missing, expected string.",
        "person: not known. Known: name, age.",
    )


# -- hostile schemas and values --------------------------------------------------------------------------------------------


def test_a_schema_that_refers_to_itself_ends() -> None:
    loop = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    assert check_arguments({"x": 1}, loop).problems == ("the arguments: nested too deeply or too large to be checked.",)


def test_a_schema_for_trees_takes_trees_up_to_a_depth() -> None:
    tree = {"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "properties": {"next": {"$ref": "#/$defs/t"}}}}}
    value: JSON = {}
    for _ in range(10):
        value = {"next": value}
    assert check_arguments(value, tree).problems == ()
    for _ in range(500):
        value = {"next": value}
    assert "nested too deeply" in check_arguments(value, tree).problems[0]


def test_a_schema_that_branches_without_end_is_given_up() -> None:
    bomb = {"anyOf": [{"$ref": "#"}, {"$ref": "#"}], "type": "object"}
    assert check_arguments({"x": 1}, bomb).problems


def test_problems_are_bounded_in_number_and_size() -> None:
    schema = {"properties": {f"name{i}": {"type": "integer"} for i in range(1000)}}
    checked = check_arguments({f"name{i}": "x" * 10_000 for i in range(1000)}, schema)
    assert len(checked.problems) == MOST_PROBLEMS + 1
    assert checked.problems[-1] == "and 992 more problems."
    assert all(len(line) < 300 for line in checked.problems)
    assert all(len(line) < 800 and "\n" not in line for line in check_arguments({"a\nb" * 5000: 1}, schema).problems)


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "^(a|a)*$", "(.*a){20}", "a*a*a*a*a*a*b", "(" * 300, "[", r"^(\w+\s?)*$", "x" * 600]
)
def test_a_pattern_that_could_take_for_ever_is_passed_over(pattern: str) -> None:
    assert matches(pattern, "a" * 50_000 + "!", default=True)
    matches(pattern, "a" * 24 + "!", default=True)


@pytest.mark.parametrize(
    ("pattern", "text"), [("^[0-9]{3}$", "1234"), (r"^[^@\s]+@[^@\s]+\.[a-z]+$", "no mail"), ("^(a|b)+$", "abc")]
)
def test_an_ordinary_pattern_is_checked(pattern: str, text: str) -> None:
    assert not matches(pattern, text, default=True)


def test_a_big_list_is_checked_in_one_go() -> None:
    assert check_arguments({"x": list(range(100_000))}, {"properties": {"x": {"items": {"type": "integer"}}}}).problems == ()
