"""Answers in a form: schemas from anything, the mode that each provider has, reading what models write, asking again."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import jsonschema
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.research.conftest import Face

from llmbroker import InvalidRequestError, llm_config, llm_parse_structured
from llmbroker.research.structured import candidates, form_of, harden
from llmbroker.testing import made_reply

SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "integer", "minimum": 1, "maximum": 5}, "why": {"type": "string"}},
    "required": ["score"],
}


class Rating(pydantic.BaseModel):
    score: int = pydantic.Field(ge=1, le=5)
    why: str | None = None


@dataclasses.dataclass
class Plain:
    score: int
    why: str | None = None


def body(face: Face, at: int = -1) -> Any:
    return json.loads(face.port.requests[at].body)


@pytest.mark.parametrize(
    ("form", "value"), [(Rating, Rating(score=4)), (Plain, Plain(4)), (SCHEMA, {"score": 4}), (list[int], None)]
)
def test_a_form_is_a_model_a_dataclass_a_schema_or_any_type(face: Face, config: Any, form: Any, value: Any) -> None:
    face.answers('{"score": 4}' if value is not None else '{"value": [1, 2]}')
    response = face.call_llm(config, "Rate it.", response_format=form)
    assert response.problem is None
    assert response.parsed == (value if value is not None else [1, 2])
    wire = body(face)["response_format"]
    assert wire["type"] == "json_schema" and wire["json_schema"]["strict"] is True
    jsonschema.Draft202012Validator.check_schema(wire["json_schema"]["schema"])


@pytest.mark.parametrize(
    ("provider", "dialect"),
    [("openai", "openai-chat"), ("groq", "openai-chat"), ("deepseek", "openai-chat"), ("alibaba", "openai-chat"),
     ("perplexity", "openai-chat"), ("anthropic", "anthropic"), ("gemini", "gemini"), ("ollama", "ollama"),
     ("mylab", "openai-chat"), ("openai", "openai-responses")],
)  # fmt: skip
def test_every_provider_is_asked_by_the_mode_that_it_has(face: Face, provider: str, dialect: str) -> None:
    """The schema goes out as such, or stands in the words; nobody is asked for nothing."""
    address = {"base_url": "http://lab.example/v1"} if provider == "mylab" else {}
    config = llm_config(provider, "m", api_key="k" * 20, dialect=dialect, response_format=Rating, **address)
    face.answers('{"score": 4, "why": null}', dialect=dialect)
    assert face.call_llm(config, "Rate it.").parsed == Rating(score=4)
    assert "score" in face.port.requests[0].body.decode()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"score": 4}', {"score": 4}),
        ('```json\n{"score": 4}\n```', {"score": 4}),
        ('Sure! Here it is: {"score": 4}. Anything else?', {"score": 4}),
        ("<think>{\"score\": 1, \"why\": \"a long plan that is no answer\"}</think>{\"score\": 4}", {"score": 4}),
        ('<think>never closed {"score": 1}', None),
        ('First {"score": 9} then the final {"score": 4}', {"score": 4}),
        ('The plan is {"steps": [1, 2, 3, 4, 5, 6, 7]} and the answer {"score": 4}', {"score": 4}),
        ("{'score': 4, 'why': None,}", {"score": 4}),
        ('{"score": "4"}', {"score": 4}),
        ('{"score": 4, "why": "a } in a string"}', {"score": 4, "why": "a } in a string"}),
        ('{"score": 4, "why": "line\nbreak"}', {"score": 4, "why": "line\nbreak"}),
        ('{"score": 4', None),
        ('{"score": 40}', None),
        ('{"why": "no score"}', None),
        ("four", None),
        ("/etc/hostname", None),
        ("http://127.0.0.1:1/x.json", None),
        ("", None),
    ],
)  # fmt: skip
def test_what_models_write_is_read_as_json_and_nothing_else(text: str, value: Any) -> None:
    read, problem = form_of(SCHEMA).read(text)
    assert read == value
    assert (problem is None) == (value is not None)


def test_numbers_are_kept_in_full() -> None:
    assert llm_parse_structured('{"x": 0.123456789012345, "n": 12345678901234567890}') == {
        "x": 0.123456789012345, "n": 12345678901234567890,
    }  # fmt: skip


def test_an_answer_that_does_not_fit_is_told_so_and_asked_again(face: Face, config: Any) -> None:
    face.answers('{"score": 9}', "I would say 4.", '{"score": 4}')
    response = face.call_llm(config, "Rate it.", response_format=Rating, reask=2)
    assert response.parsed == Rating(score=4) and response.attempts == 3
    last = body(face)["messages"]
    assert [m["role"] for m in last] == ["user", "assistant", "user", "assistant", "user"]
    assert "score" in last[2]["content"] and "5" in last[2]["content"]


def test_without_reask_an_answer_that_does_not_fit_says_why(face: Face, config: Any) -> None:
    face.answers('{"score": 9}')
    response = face.call_llm(config, "Rate it.", response_format=SCHEMA)
    assert response.parsed is None and "at most 5" in response.problem


@pytest.mark.parametrize(("finish", "words"), [("length", "cut"), ("content_filter", "refused")])
def test_a_cut_or_refused_answer_says_so(face: Face, config: Any, finish: str, words: str) -> None:
    face.answers(made_reply('{"score": 4, "why": "bec', finish=finish))
    assert words in face.call_llm(config, "Rate it.", response_format=SCHEMA).problem


def test_json_mode_is_asked_for_with_the_word_json(face: Face, config: Any) -> None:
    face.answers('{"a": 1}', '{"a": 1}')
    assert face.call_llm(config, "Answer.", response_format={"type": "json_object"}).parsed == {"a": 1}
    assert "JSON" in body(face)["messages"][0]["content"]
    face.call_llm(config, "Answer in json.", response_format={"type": "json_object"})
    assert len(body(face)["messages"]) == 1


@pytest.mark.parametrize("form", ["json", 3, {"a": "b"}, {"type": "json_schema", "json_schema": {}}, None.__class__.__name__])
def test_what_is_no_form_is_refused(face: Face, config: Any, form: Any) -> None:
    with pytest.raises(InvalidRequestError):
        face.call_llm(config, "x", response_format=form)


def test_hardening_fills_what_strict_providers_want_everywhere() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"$ref": "#/$defs/Inner"},
            "b": {"type": "array", "items": {"type": "object", "properties": {"c": {"type": "string"}}}},
            "d": {"anyOf": [{"type": "object", "properties": {"e": {"type": "integer"}}, "required": ["e"]}, {"type": "null"}]},
        },
        "required": ["a"],
        "$defs": {
            "Inner": {"type": "object", "properties": {"f": {"type": "string"}, "g": {"enum": [1, 2]}}, "required": ["f"]}
        },
    }
    hardened, strict = harden(schema)
    assert strict
    assert hardened["required"] == ["a", "b", "d"] and hardened["additionalProperties"] is False
    assert hardened["$defs"]["Inner"]["required"] == ["f", "g"]
    assert hardened["$defs"]["Inner"]["properties"]["g"] == {"anyOf": [{"enum": [1, 2]}, {"type": "null"}]}
    assert hardened["properties"]["b"]["type"] == ["array", "null"]
    assert schema["required"] == ["a"]


def test_a_schema_with_open_maps_is_sent_as_it_is_and_not_as_strict() -> None:
    schema = {"type": "object", "properties": {"m": {"type": "object", "additionalProperties": {"type": "string"}}}}
    assert harden(schema) == (schema, False)
    assert "strict" not in form_of(schema).wire["json_schema"]


def test_null_for_what_was_optional_is_absence() -> None:
    assert form_of(SCHEMA).read('{"score": 4, "why": null}') == ({"score": 4}, None)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), json_values, max_size=4), st.text(alphabet="abc .,:;!?\n", max_size=20))
def test_any_object_is_found_behind_any_prose(value: dict[str, Any], prose: str) -> None:
    text = json.dumps(value)
    assert next(candidates(text)) == value
    assert next(candidates(f"{prose}\n```json\n{text}\n```\n")) == value


@given(st.text(max_size=300))
def test_reading_never_raises(text: str) -> None:
    form_of(SCHEMA).read(text)
    list(candidates(text))


keywords = st.sampled_from(
    [
        "type",
        "properties",
        "required",
        "items",
        "enum",
        "anyOf",
        "$defs",
        "object",
        "array",
        "string",
        "json_schema",
        "schema",
        "a",
    ]
)
schemas = st.dictionaries(
    keywords,
    st.recursive(
        st.none() | st.booleans() | st.integers(-3, 3) | keywords,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keywords, inner, max_size=4),
        max_leaves=12,
    ),
    max_size=4,
)


@settings(max_examples=400, deadline=None)
@given(schemas)
def test_any_mapping_is_a_form_or_refused_with_a_reason(mapping: dict[str, Any]) -> None:
    try:
        form = form_of(mapping)
    except InvalidRequestError as error:
        assert len(str(error)) > 20
        return
    for text in ('{"a": 1}', "[1]", "3", '{"value": {"a": null}}', "no"):
        value, problem = form.read(text)
        assert problem is None or (value is None and problem)
