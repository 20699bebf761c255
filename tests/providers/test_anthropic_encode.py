"""Requests of the Messages API: our words in Anthropic's, and one history valid for it whatever it holds."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.providers.vendor_wires import KEY, deployment

from llmbroker.errors import BadRequestError, InvalidRequestError, UnsupportedFeatureError
from llmbroker.exchange import make_request
from llmbroker.messages import History
from llmbroker.providers import params as params_module
from llmbroker.providers.anthropic import DIALECT, OPENING
from llmbroker.providers.anthropic_params import family, output_schema, version
from llmbroker.providers.anthropic_stream import ANSWER_TOOL
from llmbroker.providers.base import Deployment, Mend

JSON = dict[str, Any]
TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "Does f.", "parameters": {"type": "object", "properties": {}}},
}
MARK = {"type": "ephemeral"}


@pytest.fixture(autouse=True)
def _nothing_said() -> Iterator[None]:
    params_module._said.clear()
    yield
    params_module._said.clear()


def at(model: str = "claude-sonnet-4-5", **row: Any) -> Deployment:
    return deployment(DIALECT, model, **row)


def body(messages: Any = "Hi", where: Deployment | None = None, **arguments: Any) -> JSON:
    made: JSON = json.loads(DIALECT.encode(make_request(messages, **arguments), where or at()).body)
    return made


def turn(calls: dict[str, str], **more: Any) -> JSON:
    made = [{"id": key, "type": "function", "function": {"name": name, "arguments": "{}"}} for key, name in calls.items()]
    return {"role": "assistant", "content": None, "tool_calls": made, **more}


def result(key: str, content: Any = "ok", **more: Any) -> JSON:
    return {"role": "tool", "tool_call_id": key, "content": content, **more}


def user(content: Any = "Hi") -> JSON:
    return {"role": "user", "content": content}


# -- the envelope ----------------------------------------------------------------------------------------------------------


def test_a_request_goes_to_messages_with_the_key_in_a_header() -> None:
    http = DIALECT.encode(make_request("Hi", stream=True), at(base_url="https://api.anthropic.com/v1"))
    assert (http.method, http.url) == ("POST", "https://api.anthropic.com/v1/messages")
    assert http.headers["x-api-key"] == KEY
    assert KEY.encode() not in http.body
    assert json.loads(http.body) == {
        "model": "claude-sonnet-4-5",
        "max_tokens": 32000,
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
    }


def test_on_vertex_the_model_stands_in_the_address() -> None:
    where = at(base_url="https://host/v1/projects/p/locations/global/publishers/anthropic", quirks=frozenset({"raw-predict"}))
    http = DIALECT.encode(make_request("Hi", stream=True), where)
    assert http.url == f"{where.base_url}/models/claude-sonnet-4-5:streamRawPredict"
    assert "model" not in json.loads(http.body)
    assert json.loads(http.body)["anthropic_version"] == "vertex-2023-10-16"
    assert DIALECT.encode(make_request("Hi"), where).url.endswith(":rawPredict")


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ("claude-3-opus-20240229", (3, 0)),
        ("claude-3-5-haiku-latest", (3, 5)),
        ("claude-3-7-sonnet-20250219", (3, 7)),
        ("claude-opus-4-20250514", (4, 0)),
        ("claude-opus-4-0", (4, 0)),
        ("claude-sonnet-4@20250514", (4, 0)),
        ("claude-opus-4-1-20250805", (4, 1)),
        ("anthropic/claude-haiku-4.5", (4, 5)),
        ("anthropic.claude-sonnet-4-5-20250929-v1:0", (4, 5)),
        ("claude-sonnet-5", (5, 0)),
        ("claude-haiku-5-5", (5, 5)),
        ("claude-sonnet-latest", None),
        ("glm-4.6", None),
    ],
)
def test_a_model_s_name_states_its_version(model: str, known: tuple[int, int] | None) -> None:
    assert version(model) == known


@pytest.mark.parametrize(
    ("model", "limit"),
    [("claude-3-haiku-20240307", 4096), ("claude-3-5-sonnet-20241022", 8192), ("claude-opus-4-1", 32000), ("glm-4.6", 8192)],
)
def test_without_a_limit_the_family_s_is_sent_since_the_api_demands_one(model: str, limit: int) -> None:
    assert body(where=at(model))["max_tokens"] == limit


# -- parameters ------------------------------------------------------------------------------------------------------------

NEW, OLD = "claude-opus-4-8", "claude-3-5-haiku-latest"


@pytest.mark.parametrize(
    ("model", "params", "expected"),
    [
        pytest.param("claude-sonnet-4-5", {"max_completion_tokens": 9}, {"max_tokens": 9}, id="the limit by its other name"),
        pytest.param("claude-sonnet-4-5", {"stop": "END"}, {"stop_sequences": ["END"]}, id="one stop"),
        pytest.param("claude-sonnet-4-5", {"stop": ["A", "\n"]}, {"stop_sequences": ["A"]}, id="white space stops nothing"),
        pytest.param("claude-sonnet-4-5", {"user": "u1"}, {"metadata": {"user_id": "u1"}}, id="user"),
        pytest.param("claude-sonnet-4-5", {"service_tier": "default"}, {"service_tier": "standard_only"}, id="tier"),
        pytest.param("claude-sonnet-4-5", {"service_tier": "auto"}, {"service_tier": "auto"}, id="tier in its own word"),
        pytest.param("claude-sonnet-4-5", {"top_k": 5, "temperature": 0.5}, {"top_k": 5, "temperature": 0.5}, id="sampling"),
        pytest.param("claude-sonnet-4-5", {"temperature": 1.7}, {"temperature": 1.0}, id="temperature ends at 1"),
        pytest.param("claude-sonnet-4-5", {"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5}, id="temperature or top_p"),
        pytest.param(OLD, {"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5, "top_p": 0.9}, id="both in old models"),
        pytest.param(NEW, {"temperature": 0.5, "top_p": 0.9, "top_k": 3}, {}, id="no sampling in new models"),
        pytest.param("claude-sonnet-4-5", {"seed": 1, "logprobs": True, "n": 1, "presence_penalty": 1}, {}, id="impossible"),
        pytest.param("claude-sonnet-4-5", {"container": "c1"}, {"container": "c1"}, id="an own word passes"),
        pytest.param(
            "claude-sonnet-4-5", {"reasoning_effort": "low"},
            {"thinking": {"type": "enabled", "budget_tokens": 1024}}, id="effort as budget",
        ),
        pytest.param(
            "claude-sonnet-4-6", {"reasoning_effort": "xhigh"},
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, id="effort where the model adapts",
        ),
        pytest.param(
            NEW, {"reasoning_effort": "xhigh"},
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "xhigh"}}, id="xhigh in new models",
        ),
        pytest.param(NEW, {"thinking_budget": 4000}, {"thinking": {"type": "adaptive"}}, id="a budget where none is taken"),
        pytest.param(
            "claude-sonnet-4-6", {"thinking_budget": 4000},
            {"thinking": {"type": "enabled", "budget_tokens": 4000}}, id="a budget where both are",
        ),
        pytest.param(OLD, {"reasoning_effort": "high"}, {}, id="a model that does not think"),
        pytest.param("claude-sonnet-4-5", {"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}, id="no thinking"),
        pytest.param(
            "claude-sonnet-4-5", {"thinking_budget": 4096, "max_tokens": 2000},
            {"thinking": {"type": "enabled", "budget_tokens": 1999}, "max_tokens": 2000}, id="the limit wins over the budget",
        ),
        pytest.param(
            "claude-sonnet-4-5", {"thinking_budget": 4096, "max_tokens": 1000}, {"max_tokens": 1000}, id="no room to think",
        ),
        pytest.param(
            "claude-sonnet-4-5", {"thinking_budget": 40_000},
            {"thinking": {"type": "enabled", "budget_tokens": 40_000}, "max_tokens": 72_000}, id="room for budget and answer",
        ),
        pytest.param(
            "claude-sonnet-4-5", {"thinking_budget": 2000, "temperature": 0.3, "top_k": 4, "top_p": 0.5},
            {"thinking": {"type": "enabled", "budget_tokens": 2000}}, id="thinking excludes sampling",
        ),
        pytest.param(
            "claude-sonnet-4-5", {"thinking": {"type": "adaptive"}, "temperature": 1},
            {"thinking": {"type": "adaptive"}, "temperature": 1}, id="its own word for thinking",
        ),
    ],
)  # fmt: skip
def test_parameters_become(model: str, params: JSON, expected: JSON) -> None:
    made = body(where=at(model), params=params)
    plain = {"model": model, "max_tokens": family(model).max_tokens, "messages": [user()]}
    assert made == {**plain, **expected}


def test_what_is_left_out_is_noted_once_a_deployment(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="llmbroker.providers")
    for _ in range(3):
        body(params={"seed": 1})
    assert [record.getMessage() for record in caplog.records] == [
        "seed of vendor for model claude-sonnet-4-5 has no counterpart in the Messages API and was left out."
    ]


# -- tools -----------------------------------------------------------------------------------------------------------------


def test_a_tool_is_declared_with_its_schema_and_its_mark() -> None:
    marked = {**TOOL, "cache_control": MARK}
    assert body(tools=[marked])["tools"] == [
        {"name": "f", "description": "Does f.", "input_schema": {"type": "object", "properties": {}}, "cache_control": MARK}
    ]


@pytest.mark.parametrize(("model", "strict"), [("claude-sonnet-4-5", True), ("claude-3-5-haiku-latest", None)])
def test_strict_goes_to_models_that_know_it(model: str, strict: bool | None) -> None:
    tool = {"type": "function", "function": {**TOOL["function"], "strict": True}}  # type: ignore[dict-item]
    assert body(where=at(model), tools=[tool])["tools"][0].get("strict") is strict


@pytest.mark.parametrize(
    ("choice", "params", "expected"),
    [
        (None, {}, None),
        ("auto", {}, {"type": "auto"}),
        ("none", {}, {"type": "none"}),
        ("required", {}, {"type": "any"}),
        ("f", {}, {"type": "tool", "name": "f"}),
        (None, {"parallel_tool_calls": False}, {"type": "auto", "disable_parallel_tool_use": True}),
        ("required", {"parallel_tool_calls": False}, {"type": "any", "disable_parallel_tool_use": True}),
        ("none", {"parallel_tool_calls": False}, {"type": "none"}),
        ("required", {"thinking_budget": 2000}, {"type": "auto"}),
        ("f", {"thinking_budget": 2000}, {"type": "auto"}),
        ("none", {"thinking_budget": 2000}, {"type": "none"}),
    ],
)
def test_a_tool_choice_becomes(choice: str | None, params: JSON, expected: JSON | None) -> None:
    assert body(tools=[TOOL], choice=choice, params=params).get("tool_choice") == expected


def test_a_history_with_calls_declares_their_tools_though_none_are_given() -> None:
    made = body([user(), turn({"a": "f", "b": "g"}), result("a"), result("b"), user("Sum up.")])
    assert [tool["name"] for tool in made["tools"]] == ["f", "g"]
    assert made["tool_choice"] == {"type": "none"}


# -- a response format -----------------------------------------------------------------------------------------------------

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}


def test_structured_output_where_the_model_has_it() -> None:
    made = body(response_format=FORMAT, params={"reasoning_effort": "low"}, where=at("claude-sonnet-4-6"))
    assert made["output_config"] == {
        "effort": "low",
        "format": {"type": "json_schema", "schema": {**CITY, "additionalProperties": False}},
    }


def test_a_tool_to_be_called_with_the_answer_where_it_has_not() -> None:
    made = body(response_format=FORMAT, where=at(OLD))
    assert [tool["name"] for tool in made["tools"]] == [ANSWER_TOOL]
    assert made["tools"][0]["input_schema"] == CITY
    assert made["tool_choice"] == {"type": "tool", "name": ANSWER_TOOL}


def test_with_other_tools_the_answer_is_one_of_them() -> None:
    made = body(response_format=FORMAT, tools=[TOOL], where=at(OLD))
    assert [tool["name"] for tool in made["tools"]] == ["f", ANSWER_TOOL]
    assert made["tool_choice"] == {"type": "any"}


def test_words_ask_for_an_object_without_a_schema() -> None:
    made = body([{"role": "system", "content": "Be brief."}, user()], response_format={"type": "json_object"})
    assert [part["text"][:6] for part in made["system"]] == ["Be bri", "Answer"]
    assert "output_config" not in made
    assert body(response_format={"type": "text"}) == body()


def test_a_system_text_given_as_a_parameter_stands_after_those_of_the_history() -> None:
    history = [{"role": "system", "content": "A"}, user()]
    made = body(history, params={"system": "B"}, response_format={"type": "json_object"})
    assert [part["text"][:6] for part in made["system"]] == ["A", "B", "Answer"]
    assert body(history, params={"system": [{"type": "text", "text": "C"}]})["system"][1]["text"] == "C"


def test_a_schema_for_output_says_in_words_what_the_api_refuses_and_leaves_the_caller_s_alone() -> None:
    given = {
        "type": "object",
        "properties": {
            "age": {"type": "integer", "minimum": 1, "description": "Years"},
            "tags": {"type": "array", "items": CITY},
        },
        "anyOf": [{"type": "object", "maxProperties": 2}],
    }
    before = json.dumps(given)
    made = output_schema(given)
    assert made["properties"]["age"] == {"type": "integer", "description": "Years; minimum: 1"}
    assert made["properties"]["tags"]["items"]["additionalProperties"] is False
    assert made["additionalProperties"] is False
    assert made["anyOf"] == [{"type": "object", "additionalProperties": False, "description": "maxProperties: 2"}]
    assert json.dumps(given) == before


# -- the history -----------------------------------------------------------------------------------------------------------


def test_system_messages_stand_at_the_top_with_their_marks() -> None:
    made = body(
        [
            {"role": "system", "content": [{"type": "text", "text": "A", "cache_control": MARK}]},
            user(),
            {"role": "assistant", "content": "Hello"},
            {"role": "developer", "content": "B"},
            user("Bye"),
        ]
    )
    assert made["system"] == [{"type": "text", "text": "A", "cache_control": MARK}, {"type": "text", "text": "B"}]
    assert [message["role"] for message in made["messages"]] == ["user", "assistant", "user"]


def test_all_results_of_a_turn_come_first_in_one_user_message() -> None:
    made = body([user(), turn({"a": "f", "b": "f"}), result("b", "2"), result("a", "1", is_error=True), user("And now?")])
    assert made["messages"][2] == {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": "1", "is_error": True},
            {"type": "tool_result", "tool_use_id": "b", "content": "2"},
            {"type": "text", "text": "And now?"},
        ],
    }


def test_a_result_may_hold_images_and_a_mark() -> None:
    parts = [
        {"type": "text", "text": "Here"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}, "cache_control": MARK},
    ]
    made = body([user(), turn({"a": "f"}), result("a", parts)])["messages"][-1]["content"][0]
    assert made["content"][1]["source"] == {"type": "base64", "media_type": "image/png", "data": "aGk="}
    assert made["cache_control"] == MARK


def test_a_call_without_a_result_gets_one_that_says_so() -> None:
    made = body([user(), turn({"a": "f"}), user("Go on")])["messages"][-1]["content"]
    assert (made[0]["type"], made[0]["tool_use_id"], made[0]["is_error"]) == ("tool_result", "a", True)


@pytest.mark.parametrize("arguments", ["", "null", "{}", None, {}])
def test_empty_arguments_are_an_object(arguments: Any) -> None:
    message = turn({"a": "f"})
    message["tool_calls"][0]["function"]["arguments"] = arguments
    assert body([user(), message, result("a")])["messages"][1]["content"][0]["input"] == {}


def test_unreadable_arguments_are_wrapped_in_an_object() -> None:
    message = turn({"a": "f"})
    message["tool_calls"][0]["function"]["arguments"] = '{"a": '
    assert body([user(), message, result("a")])["messages"][1]["content"][0]["input"] == {"_unreadable": '{"a":'}


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_empty_text_is_no_block(text: str) -> None:
    made = body(
        [user([{"type": "text", "text": text}, {"type": "text", "text": "Hi"}]), {"role": "assistant", "content": text}, user()]
    )
    assert made["messages"] == [user(), user()]


def test_an_answer_to_be_continued_does_not_end_in_white_space() -> None:
    assert body([user(), {"role": "assistant", "content": "The answer is \n"}])["messages"][-1]["content"] == [
        {"type": "text", "text": "The answer is"}
    ]


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([{"role": "assistant", "content": "Hello"}, user()], id="the assistant first"),
        pytest.param([{"role": "system", "content": "Say hello."}], id="a system message alone"),
        pytest.param([user("")], id="a user who says nothing"),
    ],
)
def test_the_user_always_begins(messages: list[JSON]) -> None:
    assert body(messages)["messages"][0] == user(OPENING)


def test_images_and_documents_in_all_forms() -> None:
    words = base64.b64encode("naïve".encode()).decode()
    parts = [
        {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}},
        {
            "type": "file",
            "file": {"file_data": "data:application/pdf;base64,JVBERg==", "filename": "a.pdf"},
            "cache_control": MARK,
        },
        {"type": "file", "file": {"file_data": f"data:text/plain;base64,{words}"}},
        {"type": "file", "file": {"file_id": "file_1"}},
        {"type": "file", "file": {"file_data": "https://x.test/a.pdf"}},
        {"type": "file", "file": {"file_data": "data:image/png;base64,aGk="}},
    ]
    assert body([user(parts)])["messages"][0]["content"] == [
        {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="},
            "title": "a.pdf",
            "cache_control": MARK,
        },
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "naïve"}},
        {"type": "document", "source": {"type": "file", "file_id": "file_1"}},
        {"type": "document", "source": {"type": "url", "url": "https://x.test/a.pdf"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
    ]


def test_sound_is_a_feature_that_this_api_lacks() -> None:
    with pytest.raises(UnsupportedFeatureError) as caught:
        body([user([{"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}])])
    assert caught.value.feature == "audio"


def test_a_text_file_that_is_no_base64_is_the_caller_s_error() -> None:
    with pytest.raises(InvalidRequestError):
        body([user([{"type": "file", "file": {"file_data": "data:text/plain;base64,%%%"}}])])


# -- thinking goes back ----------------------------------------------------------------------------------------------------

THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
HIDDEN = {"type": "redacted_thinking", "data": "b64"}


def thought_turn(*items: JSON, dialect: str = "anthropic", **more: Any) -> JSON:
    uses = [{"type": "tool_use", "id": key, "name": "f", "input": {}} for key in ("a", "b")]
    return turn({"a": "f", "b": "f"}, provider_data={"dialect": dialect, "items": [*items, *uses]}, **more)


def test_thinking_goes_back_unchanged_and_first_once_for_parallel_calls() -> None:
    made = body([user(), thought_turn(THOUGHT, HIDDEN), result("a"), result("b")])["messages"]
    assert [message["role"] for message in made] == ["user", "assistant", "user"]
    assert made[1]["content"][:2] == [THOUGHT, HIDDEN]
    assert [item["id"] for item in made[1]["content"][2:]] == ["a", "b"]


def test_thinking_of_another_dialect_stays_out() -> None:
    made = body([user(), thought_turn({"type": "reasoning"}, dialect="openai-responses"), result("a"), result("b")])
    assert [item["type"] for item in made["messages"][1]["content"]] == ["tool_use", "tool_use"]


def test_a_turn_that_was_changed_is_made_anew_with_its_thinking_first() -> None:
    message = thought_turn(THOUGHT)
    message["content"] = "Changed."
    del message["tool_calls"][1]
    made = body([user(), message, result("a")])["messages"][1]["content"]
    assert [item["type"] for item in made] == ["thinking", "text", "tool_use"]


def test_an_id_that_was_used_before_is_a_new_one_in_call_and_result() -> None:
    again = [thought_turn(THOUGHT), result("a"), result("b")]
    made = body([user(), *again, *again])["messages"]
    ids = [item["id"] for message in made for item in message["content"] if message["role"] == "assistant" and "id" in item]
    answers = [item["tool_use_id"] for message in made[1:] for item in message["content"] if "tool_use_id" in item]
    assert len(set(ids)) == 4
    assert ids == answers


def test_a_paused_turn_goes_back_as_it_was() -> None:
    items = [
        {"type": "text", "text": "Searching."},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
    ]
    message = {"role": "assistant", "content": "Searching.", "provider_data": {"dialect": "anthropic", "items": items}}
    assert body([user(), message])["messages"] == [user(), {"role": "assistant", "content": items}]


def test_results_of_a_turn_made_without_thinking_switch_it_off() -> None:
    foreign = [user(), turn({"a": "f"}), result("a")]
    assert "thinking" not in body(foreign, tools=[TOOL], params={"thinking_budget": 2000})
    assert "thinking" in body([*foreign, {"role": "assistant", "content": "ok"}, user()], params={"thinking_budget": 2000})
    own = [user(), thought_turn(THOUGHT), result("a"), result("b")]
    assert "thinking" in body(own, tools=[TOOL], params={"thinking_budget": 2000})


# -- mends -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "dropped"),
    [
        ("Thinking may not be enabled when tool_choice forces tool use.", {"tool_choice"}),
        ("`temperature` and `top_p` cannot both be specified for this model. Please use only one.", {"top_p"}),
        ("`temperature` may only be set to 1 when thinking is enabled.", {"temperature"}),
        ("`temperature` is deprecated for this model.", {"temperature"}),
        ("messages.1.content.0: Invalid `signature` in `thinking` block", {"thinking_blocks"}),
        (
            "This model does not support effort level 'xhigh'. Supported levels: high, low, max, medium.",
            {"output_config.effort"},
        ),
        ("Too many strict tools (21). The maximum number of strict tools supported is 20.", {"strict"}),
        ("tools.0.custom: For 'object' type, property 'properties' is not supported", {"strict"}),
        ("output_format.schema: For 'integer' type, property 'minimum' is not supported", {"output_config.format"}),
        ("max_tokens: 32000 > 8192, which is the maximum allowed number of output tokens for this model", {"max_tokens"}),
        ("container: Extra inputs are not permitted", {"container"}),
        ("adaptive thinking is not supported on this model", {"thinking.adaptive"}),
    ],
)
def test_a_refusal_that_names_a_parameter_is_mended(said: str, dropped: set[str]) -> None:
    tool = {"type": "function", "function": {"name": "f", "strict": True}}
    given = {"container": "c", "temperature": 0.5, "top_p": 0.5, "reasoning_effort": "low"}
    request = make_request("Hi", params=given, tools=[tool], choice="f", response_format=FORMAT)
    found = DIALECT.mend(BadRequestError("no", detail=said), request, at())  # type: ignore[misc]
    assert found is not None
    assert found.drop == dropped
    where = at()
    where.mended = found
    assert DIALECT.mend(BadRequestError("no", detail=said), request, where) is None or said.startswith("container")  # type: ignore[misc]


@pytest.mark.parametrize(
    "said",
    [
        "Too many strict tools (21).",
        "`temperature` is deprecated for this model.",
        "output_config.format: not here",
        "This model does not support effort level 'xhigh'.",
    ],
)
def test_a_refusal_of_what_was_not_sent_is_not_mended(said: str) -> None:
    assert DIALECT.mend(BadRequestError("no", detail=said), make_request("Hi", tools=[TOOL]), at()) is None  # type: ignore[misc]


@pytest.mark.parametrize(
    "said", ["temperature: range: 0..1", "messages: at least one message is required", "prompt is too long"]
)
def test_a_wrong_value_stays_the_caller_s_error(said: str) -> None:
    assert DIALECT.mend(BadRequestError("no", detail=said), make_request("Hi", params={"temperature": -5}), at()) is None  # type: ignore[misc]


@pytest.mark.parametrize(
    ("drop", "arguments", "check"),
    [
        ("tool_choice", {"tools": [TOOL], "choice": "f"}, lambda made: made["tool_choice"] == {"type": "auto"}),
        ("max_tokens", {"params": {"max_tokens": 99999}}, lambda made: made["max_tokens"] == 4096),
        ("output_config.format", {"response_format": FORMAT}, lambda made: made["tools"][0]["name"] == ANSWER_TOOL),
        ("output_config.effort", {"params": {"reasoning_effort": "low"}}, lambda made: "output_config" not in made),
        ("temperature", {"params": {"temperature": 0.5}}, lambda made: "temperature" not in made),
    ],
)
def test_what_a_deployment_taught_is_left_out_from_then_on(drop: str, arguments: JSON, check: Any) -> None:
    where = at("claude-sonnet-4-6")
    where.mended = Mend(drop=frozenset({drop}))
    assert check(body(where=where, **arguments))


def test_thinking_that_a_deployment_refused_stays_out() -> None:
    where = at()
    where.mended = Mend(drop=frozenset({"thinking_blocks"}))
    made = body([user(), thought_turn(THOUGHT), result("a"), result("b")], where)["messages"]
    assert [item["type"] for item in made[1]["content"]] == ["tool_use", "tool_use"]


# -- any history -----------------------------------------------------------------------------------------------------------

MESSAGES = st.one_of(
    st.builds(lambda text: {"role": "system", "content": text}, st.text(max_size=3)),
    st.builds(user, st.text(max_size=3)),
    st.builds(lambda text: {"role": "assistant", "content": text}, st.text(max_size=3)),
    st.builds(lambda keys: turn(dict.fromkeys(keys, "f")), st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, unique=True)),
    st.builds(result, st.sampled_from(["a", "b", "c"]), st.text(max_size=3)),
)


@given(st.lists(MESSAGES, min_size=1, max_size=12))
def test_any_history_is_one_that_the_api_takes(messages: list[JSON]) -> None:
    made = body(messages)
    said = made["messages"]
    assert said[0]["role"] == "user"
    open_ids: list[str] = []
    seen: set[str] = set()
    for message in said:
        content = message["content"] if isinstance(message["content"], list) else [{"type": "text", "text": message["content"]}]
        assert content
        kinds = [item["type"] for item in content]
        results = [item["tool_use_id"] for item in content if item["type"] == "tool_result"]
        if message["role"] == "user":
            assert results == open_ids
            assert kinds == sorted(kinds, key=lambda kind: kind != "tool_result")
            open_ids = []
        else:
            assert not open_ids
            open_ids = [item["id"] for item in content if item["type"] == "tool_use"]
            assert not seen.intersection(open_ids)
            seen.update(open_ids)
        assert all(item["text"].strip() for item in content if item["type"] == "text")
    assert not open_ids


@given(st.lists(MESSAGES, min_size=2, max_size=10))
def test_a_history_that_grew_step_by_step_gives_the_same_bytes_as_one_made_at_once(messages: list[JSON]) -> None:
    grown = History(messages[:1])
    where = at()
    for message in messages[1:]:
        DIALECT.encode(make_request(grown), where)
        grown.append(message)
    assert DIALECT.encode(make_request(grown), where).body == DIALECT.encode(make_request(History(messages)), where).body
