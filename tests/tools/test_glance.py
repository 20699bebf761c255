"""The glance at arguments never lets through what the whole check would not, and changes nothing."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llmbroker.tools.schema import _Check, plainly_fits

_scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(-2, 2), st.sampled_from(["", "3", "true", "null", "x"])
)
_values = st.dictionaries(st.sampled_from("abcd"), st.one_of(_scalars, st.lists(_scalars, max_size=2)), max_size=4)
_types = st.sampled_from(
    ["string", "integer", "number", "boolean", "null", "array", "object", "String", ["string", "null"], None, 3]
)
_inner = st.one_of(
    st.builds(
        lambda kind, more: {**({} if kind is None else {"type": kind}), **more},
        _types,
        st.sampled_from(
            [{}, {}, {}, {"description": "d"}, {"enum": ["x"]}, {"minimum": 1}, {"nullable": True}, {"default": 1}]
        ),
    ),
    st.booleans(),
)
_schemas = st.builds(
    lambda kind, properties, required, more: {"type": kind, "properties": properties, "required": required, **more},
    st.sampled_from(["object", "object", "object", "OBJECT", None]),
    st.dictionaries(st.sampled_from("abcd"), _inner, max_size=4),
    st.one_of(st.lists(st.sampled_from("abcd"), max_size=2), st.none(), st.just("a")),
    st.sampled_from(
        [{}, {}, {"additionalProperties": False}, {"additionalProperties": True}, {"minProperties": 2}, {"not": {}}]
    ),
)


@given(_values, _schemas)
def test_what_fits_at_a_glance_fits_the_whole_check_unchanged(value: dict[str, Any], schema: dict[str, Any]) -> None:
    if plainly_fits(value, schema):
        made, problems = _Check(schema).visit(value, schema, "")
        assert problems == []
        assert made == value
        assert [type(item) for item in made.values()] == [type(item) for item in value.values()]


def test_the_plain_call_of_a_plain_tool_is_seen_at_a_glance() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
    assert plainly_fits({"city": "Paris"}, schema)
    assert plainly_fits({"city": "Paris", "days": 3}, schema)
    assert not plainly_fits({"days": 3}, schema)
    assert not plainly_fits({"city": "Paris", "days": "3"}, schema)
    assert not plainly_fits({"city": "Paris", "days": True}, schema)
    assert not plainly_fits({"city": "Paris", "hour": 3}, schema)
    for other in ([], None, "x", 3):
        assert not plainly_fits(other, schema)  # type: ignore[arg-type]
