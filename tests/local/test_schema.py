"""Schemas made fit for the engine: weaker where need be, never stricter, never refused."""

from __future__ import annotations

from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmbroker.exchange import ToolSpec
from llmbroker.providers import local_calls
from llmbroker.providers.local_schema import fit, parameters

CASES = {
    "python's type names": ({"type": "dict", "properties": {"n": {"type": "float"}}}, {"n": {"type": "number"}}),
    "an unknown type becomes anything": ({"type": "object", "properties": {"x": {"type": "any"}}}, {"x": {}}),
    "a pattern is left to the tool's check": (
        {"type": "object", "properties": {"x": {"type": "string", "pattern": "(?<=a)b"}}},
        {"x": {"type": "string"}},
    ),
    "a reference is written out": (
        {"type": "object", "properties": {"x": {"$ref": "#/$defs/P"}}, "$defs": {"P": {"type": "integer"}}},
        {"x": {"type": "integer"}},
    ),
    "a reference elsewhere is never fetched": (
        {"type": "object", "properties": {"x": {"$ref": "https://example.org/s.json"}}},
        {"x": {}},
    ),
    "several types": (
        {"type": "object", "properties": {"x": {"type": ["string", "null"]}}},
        {"x": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
    ),
    "an enum keeps its values alone": (
        {"type": "object", "properties": {"x": {"type": "string", "enum": ["a", "b"], "pattern": "x"}}},
        {"x": {"enum": ["a", "b"]}},
    ),
}


@pytest.mark.parametrize(("schema", "properties"), CASES.values(), ids=CASES)
def test_a_property_is_made_fit(schema: dict[str, Any], properties: dict[str, Any]) -> None:
    assert parameters(schema)["properties"] == properties


def test_parameters_are_closed_unless_the_tool_says_otherwise() -> None:
    assert parameters({"type": "object", "properties": {}})["additionalProperties"] is False
    assert parameters({"type": "object", "properties": {}, "additionalProperties": True})["additionalProperties"] is True


def test_a_schema_that_refers_to_itself_comes_to_an_end() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    assert len(msgspec.json.encode(fit(node))) < 10_000


NAMES = st.sampled_from(["a", "b", "c"])
LEAVES = st.sampled_from(
    [
        {"type": "string"},
        {"type": "string", "minLength": 1, "pattern": r"^\w+(?=x)$"},
        {"type": "integer", "minimum": 0, "maximum": 9},
        {"type": "number"},
        {"type": "boolean"},
        {"type": "null"},
        {"type": "any"},
        {"enum": ["x", 1, None]},
        {"const": "k"},
        {"type": "string", "format": "date"},
        {"type": "string", "format": "hostname"},
        {"$ref": "#/$defs/none"},
        {},
    ]
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items, "minItems": 1, "maxItems": 3}, inner),
        st.builds(lambda choices: {"anyOf": choices}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(
            lambda properties, required: {"type": "object", "properties": properties, "required": required},
            st.dictionaries(NAMES, inner, max_size=3),
            st.lists(NAMES, max_size=3, unique=True),
        ),
    ),
    max_leaves=6,
)


def refusal(schema: dict[str, Any]) -> str:
    """Return what the library that holds the engine's answers to a grammar says against a schema; the engine says nothing."""
    matcher = pytest.importorskip("llguidance", reason="llguidance judges the grammars").LLMatcher
    grammar = matcher.grammar_from_json_schema(msgspec.json.encode(schema).decode())
    return str(matcher.validate_grammar(grammar))


def test_the_engine_is_known_to_refuse_some_schemas() -> None:
    assert refusal({"type": "string", "pattern": "(?<=a)b"})


@settings(max_examples=150, deadline=None)
@given(schema=SCHEMAS)
def test_the_engine_takes_whatever_was_made_fit(schema: dict[str, Any]) -> None:
    assert refusal(parameters({"type": "object", "properties": {"x": schema}})) == ""


@settings(max_examples=60, deadline=None)
@given(schemas=st.lists(SCHEMAS, min_size=1, max_size=3), most=st.sampled_from([1, 8]), words=st.booleans())
def test_the_engine_takes_the_form_of_a_counted_answer(schemas: list[dict[str, Any]], most: int, words: bool) -> None:
    tools = [ToolSpec(f"t{n}", "", {"type": "object", "properties": {"x": one}}) for n, one in enumerate(schemas)]
    assert refusal(local_calls.schema(tools, most=most, answer={"type": "string"} if words else None)) == ""


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 12) | st.sampled_from(["x", "k", "", "2026-03-05"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None)
@given(schema=SCHEMAS.filter(lambda s: "any" not in str(s) and "$ref" not in str(s)), value=VALUES)
def test_a_fit_schema_is_never_stricter_but_for_unknown_keys(schema: dict[str, Any], value: Any) -> None:
    closed = _closed(schema)
    if jsonschema.Draft202012Validator(closed).is_valid(value):
        assert jsonschema.Draft202012Validator(fit(schema)).is_valid(value)


def _closed(schema: Any) -> Any:
    """Return the schema with its objects closed, as those of tools are for a model."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _closed(value) for key, value in schema.items()}
    if made.get("type") == "object":
        made["properties"] = {name: _closed(value) for name, value in schema["properties"].items()}
        made["required"] = [name for name in schema["required"] if name in schema["properties"]]
        made["additionalProperties"] = False
    return made
