"""``llm_tool``: schemas from types, from shorthand, whole; what is ambiguous or invalid is refused with the reason."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from typing import Annotated, Any, Literal

import jsonschema
import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmbroker import InvalidRequestError, LLMTool, llm_tool, llm_tool_signature

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def weather(city: str, unit: Literal["C", "F"] = "C", days: int = 1) -> str:
    """Return the weather.

    More words, for the model too.

    Args:
        city: name of the city,
            in English.
        unit (str): degrees.
    """
    return f"{city} {unit} {days}"


def test_the_tool_of_the_interface_is_made_word_for_word() -> None:
    tool = llm_tool(
        lambda city: f"22C and clear in {city}",
        name="get_weather",
        description="Current weather for a city.",
        parameters={"city": {"type": "string"}},
    )
    assert tool.schema == CITY
    assert tool("Tunis") == "22C and clear in Tunis"
    assert repr(tool) == "llm_tool(get_weather(city))"
    assert tool.declaration["function"] == {
        "name": "get_weather", "description": "Current weather for a city.", "parameters": CITY,
    }  # fmt: skip


@pytest.mark.parametrize(
    "parameters",
    [
        {"city": {"type": "string"}},
        {"city": "string"},
        {"city": str},
        CITY,
        {"properties": {"city": {"type": "string"}}, "required": ["city"]},
    ],
    ids=["schema", "word", "type", "whole", "whole without type"],
)
def test_every_form_of_parameters_gives_the_same_schema(parameters: Any) -> None:
    assert llm_tool(lambda city: city, "f", "", parameters).schema == CITY


@pytest.mark.parametrize(("required", "expected"), [(None, ["a", "b"]), ([], []), (["b"], ["b"]), (("a", "a"), ["a"])])
def test_all_of_a_shorthand_is_required_unless_it_is_said(required: Any, expected: list[str]) -> None:
    assert llm_tool(lambda a=1, b=2: a, "f", "", {"a": "integer", "b": "integer"}, required).schema["required"] == expected


def test_no_parameters_are_an_object_without_any() -> None:
    for parameters in (None, {}, {"type": "object"}, {"type": "object", "properties": {}}):
        schema = llm_tool(lambda: 1, "f", "", parameters).schema
        assert schema["type"] == "object" and schema["properties"] == {}


def test_arguments_may_be_called_type_and_properties() -> None:
    tool = llm_tool(lambda type, properties: 1, "f", "", {"type": {"type": "string"}, "properties": {"type": "object"}})  # noqa: A006
    assert set(tool.schema["properties"]) == {"type", "properties"}
    tool = llm_tool(lambda type_of, properties_n: 1, "f", "", {"type_of": "string", "properties_n": "integer"})
    assert set(tool.schema["properties"]) == {"type_of", "properties_n"}


def _nested(depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        made = {"type": "array", "items": made}
    return made


@pytest.mark.parametrize(
    ("parameters", "required", "reason"),
    [
        ({"type": "string"}, None, "type 'string'"),
        ({"type": ["object", "null"]}, None, "type is a list"),
        ({"properties": {"a": {"type": "string"}}}, None, "only 'properties'"),
        ({"a": "strin"}, None, "'strin'"),
        ({"a": 3}, None, "described by 3"),
        (["a"], None, "mapping"),
        ({3: "string"}, None, "no text"),
        ({"a": {"type": "text"}}, None, "type 'text'"),
        ({"a": {"type": "string", "enum": "x"}}, None, "enum"),
        ({"a": {"type": "array", "items": 3}}, None, "a.items is no schema"),
        ({"a": {"type": "object", "properties": [], "required": []}}, None, "properties is a mapping"),
        ({"a": {"type": "object", "properties": {}, "required": ["x"]}}, None, "required names x"),
        ({"a": "string"}, ["b"], "required names b"),
        ({"a": "string"}, "a", "list of argument names"),
        ({"type": "object", "properties": {"a": {}}, "required": ["a"]}, [], "say it once"),
        ({"type": "object", "properties": {"a": {}}, "required": "a"}, None, "list of names"),
        ({"a": "string", "b": "string"}, None, "does not take b"),
        ({"a": {"type": "string", "default": object()}}, None, "JSON"),
        ({"a": _nested(100)}, None, "nested too deeply"),
        ({"a": _nested(10_000)}, None, "JSON"),
    ],
)
def test_an_ambiguous_or_invalid_schema_is_refused_with_the_reason(parameters: Any, required: Any, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        llm_tool(lambda a: a, "f", "", parameters, required)


def test_what_the_function_needs_must_be_described() -> None:
    with pytest.raises(InvalidRequestError, match="needs b"):
        llm_tool(lambda a, b: a, "f", "", {"a": "string"})
    assert llm_tool(lambda **more: more, "f", "", {"a": "string"})


@pytest.mark.parametrize("name", ["", "1st", "a.b", "a b", "ä", "x" * 65, "-a", None])
def test_a_name_that_providers_refuse_is_refused(name: Any) -> None:
    with pytest.raises(InvalidRequestError, match="name"):
        llm_tool(lambda: 1, name)


@pytest.mark.parametrize("fn", [None, "weather", 3])
def test_a_tool_is_a_function(fn: Any) -> None:
    with pytest.raises(InvalidRequestError):
        llm_tool(fn, "f")


# -- from types ----------------------------------------------------------------------------------------------------------


def test_a_typed_function_needs_nothing_else() -> None:
    tool = llm_tool(weather)
    assert (tool.name, tool.description) == ("weather", "Return the weather.\n\nMore words, for the model too.")
    properties = tool.schema["properties"]
    assert tool.schema["required"] == ["city"]
    assert properties["city"] == {"type": "string", "description": "name of the city, in English."}
    assert set(properties["unit"]["enum"]) == {"C", "F"} and properties["unit"]["description"] == "degrees."
    assert properties["days"]["type"] == "integer"


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Person(pydantic.BaseModel):
    name: str


def test_values_of_richer_types_reach_the_function_as_such() -> None:
    seen: list[Any] = []

    def keep(
        color: Color,
        at: Point,
        who: Person,
        day: datetime.date,
        n: Annotated[int, msgspec.Meta(ge=0)],
        names: list[str] | None = None,
    ) -> str:
        seen.extend([color, at, who, day, n, names])
        return "ok"

    tool = llm_tool(keep)
    tool.run(color="red", at={"x": 1}, who={"name": "Ann"}, day="2024-05-01", n=3, names=["a"])
    assert seen == [Color.RED, Point(1), Person(name="Ann"), datetime.date(2024, 5, 1), 3, ["a"]]
    assert set(tool.schema["properties"]["at"]["properties"]) == {"x", "y"}


@pytest.mark.parametrize(
    ("fn", "reason"), [(lambda a: a, "has no type"), (len, "has no type"), (lambda a, b=1: a, "a has no type")]
)
def test_an_untyped_function_is_refused_with_the_reason(fn: Any, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        llm_tool(fn, "f")


# -- identity ------------------------------------------------------------------------------------------------------------


def test_a_signature_is_what_the_model_sees() -> None:
    def tool(description: str = "Echo a value", body: Any = lambda x: x, kind: str = "string") -> LLMTool:
        return llm_tool(body, "echo", description, {"x": {"type": kind}})

    known = "744e59eeb1c947493c0b5b2426588332765bb4d0823bb8db15426f831a1e6787"
    assert llm_tool_signature(tool()) == known
    assert llm_tool_signature(tool(body=lambda x: None)) == known
    assert llm_tool_signature(tool("Other")) != known != llm_tool_signature(tool(kind="number"))


words = st.sampled_from(
    [
        "type",
        "properties",
        "required",
        "items",
        "enum",
        "anyOf",
        "object",
        "string",
        "integer",
        "array",
        "null",
        "a",
        "b",
        "$ref",
    ]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(words, values, max_size=4), st.none() | st.lists(words, max_size=2))
def test_any_parameters_make_a_valid_schema_or_are_refused_with_a_reason(parameters: Any, required: Any) -> None:
    try:
        tool = llm_tool(lambda **arguments: arguments, "f", "", parameters, required)
    except InvalidRequestError as error:
        assert len(str(error)) > 20
        return
    jsonschema.Draft202012Validator.check_schema(tool.schema)
    assert tool.schema["type"] == "object" and set(tool.schema.get("required", ())) <= set(tool.schema["properties"])
