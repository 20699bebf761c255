"""Chat Completions on the way out: our request to the body that goes over the wire, and what a refusal teaches."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from tests.providers.vendor_wires import calls_of, whole

from llmbroker.catalog import LLMConfig
from llmbroker.credentials import Secret
from llmbroker.errors import InvalidRequestError, ProviderError, UnsupportedFeatureError
from llmbroker.exchange import Reply, Request, make_request
from llmbroker.messages import History
from llmbroker.providers import table
from llmbroker.providers.base import Deployment, Mend
from llmbroker.providers.refusal import decode_error
from llmbroker.wire import HTTPReply

JSON = dict[str, Any]


def at(provider: str | None = None, model: str = "m", **more: Any) -> Deployment:
    config = LLMConfig(
        name=model,
        model=model,
        provider=provider,
        base_url=more.pop("base_url", None if provider and provider != "azure" else "https://host.example.com/v1"),
        dialect="openai-chat",
        **more,
    )
    return table.deployment_for(config, Secret("sk-canary-0123456789", "argument api_key"), environ={})


def body(request: Request, deployment: Deployment) -> JSON:
    made: JSON = json.loads(deployment.dialect.encode(request, deployment).body)
    return made


def sent(messages: Any, deployment: Deployment | None = None, **arguments: Any) -> JSON:
    return body(make_request(messages, **arguments), deployment or at())


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get it.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
TIME = {"name": "get_time", "parameters": {"type": "object", "properties": {}}}
PNG = "data:image/png;base64,aGk="


def call(call_id: str = "call_1", arguments: str = '{"city":"Paris"}', name: str = "get_weather", **extra: Any) -> JSON:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}, **extra}


def turn(*calls: JSON, **more: Any) -> JSON:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **more}


def result(call_id: str = "call_1", content: Any = "20", **more: Any) -> JSON:
    return {"role": "tool", "tool_call_id": call_id, "content": content, **more}


HI = {"role": "user", "content": "hi"}

# -- the frame -----------------------------------------------------------------------------------------------------------


def test_the_smallest_request() -> None:
    http = at("openai").dialect.encode(make_request("hi"), at("openai"))
    assert http.url == "https://api.openai.com/v1/chat/completions"
    assert http.method == "POST"
    assert http.headers["authorization"] == "Bearer sk-canary-0123456789"
    assert http.headers["content-type"] == "application/json"
    assert http.body == b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


def test_a_query_of_the_base_url_stays_at_the_end() -> None:
    azure = at("azure", base_url="https://r.openai.azure.com/openai/deployments/d/?api-version=2025-04-01")
    http = azure.dialect.encode(make_request("hi"), azure)
    assert http.url == "https://r.openai.azure.com/openai/deployments/d/chat/completions?api-version=2025-04-01"
    assert http.headers["api-key"] == "sk-canary-0123456789" and "authorization" not in http.headers


def test_everything_at_once() -> None:
    made = sent(
        [{"role": "system", "content": "be brief"}, HI],
        at("openai"),
        tools=[WEATHER, TIME],
        choice="get_weather",
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
        params={"temperature": 0.5, "max_tokens": 9, "parallel_tool_calls": False, "new_knob": {"x": 1}, "seed": None},
        stream=True,
    )
    assert made == {
        "model": "m",
        "messages": [{"role": "system", "content": "be brief"}, HI],
        "tools": [WEATHER, {"type": "function", "function": TIME}],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
        "temperature": 0.5,
        "max_completion_tokens": 9,
        "parallel_tool_calls": False,
        "new_knob": {"x": 1},
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_streamed_and_whole_requests_differ_in_the_stream_alone() -> None:
    arguments: JSON = {"tools": [WEATHER], "params": {"top_p": 0.1}}
    streamed = sent("hi", stream=True, **arguments)
    assert streamed.pop("stream") is True and streamed.pop("stream_options") == {"include_usage": True}
    assert streamed == sent("hi", **arguments)


def test_tools_are_written_once_for_all_requests() -> None:
    request = make_request("hi", tools=[WEATHER])
    body(request, at())
    assert request.tools is not None
    kept = request.tools.encoded["openai-chat"]
    body(request, at("groq"))
    assert request.tools.encoded["openai-chat"] is kept


@pytest.mark.parametrize(
    ("choice", "provider", "wire"),
    [
        ("auto", None, "auto"),
        ("none", None, "none"),
        ("required", None, "required"),
        ("required", "mistral", "any"),
        (
            {"type": "function", "function": {"name": "get_weather"}},
            None,
            {"type": "function", "function": {"name": "get_weather"}},
        ),
        ("required", "ollama", None),
        (None, None, None),
    ],
)
def test_a_tool_choice_is_written_as_the_server_knows_it(choice: Any, provider: str | None, wire: Any) -> None:
    assert sent("hi", at(provider), tools=[WEATHER], choice=choice).get("tool_choice") == wire


def test_where_no_choice_is_taken_none_leaves_the_tools_out() -> None:
    assert "tools" not in sent("hi", at("ollama"), tools=[WEATHER], choice="none")


def test_parallel_tool_calls_goes_only_beside_tools() -> None:
    assert "parallel_tool_calls" not in sent("hi", params={"parallel_tool_calls": False})


def test_a_server_without_tools_is_not_asked() -> None:
    with pytest.raises(UnsupportedFeatureError, match="perplexity takes no tools") as caught:
        sent("hi", at("perplexity"), tools=[WEATHER])
    assert caught.value.feature == "tools" and caught.value.status is None


@pytest.mark.parametrize(
    ("provider", "params", "wire"),
    [
        ("openai", {"max_tokens": 5, "top_k": 1}, {"max_completion_tokens": 5}),
        ("deepseek", {"max_completion_tokens": 5}, {"max_tokens": 5}),
        ("mistral", {"seed": 1, "top_k": 2}, {"random_seed": 1}),
        ("zhipu", {"top_k": 1, "presence_penalty": 1}, {"top_k": 1}),
        ("together", {"top_k": 1, "repetition_penalty": 1.1}, {"top_k": 1, "repetition_penalty": 1.1}),
        (None, {"max_tokens": 5, "top_k": 1, "whatever": True}, {"max_tokens": 5, "top_k": 1, "whatever": True}),
    ],
)
def test_parameters_are_renamed_and_left_out_as_the_row_says(provider: str | None, params: JSON, wire: JSON) -> None:
    made = sent("hi", at(provider), params=params)
    assert {key: value for key, value in made.items() if key not in ("model", "messages")} == wire


def test_what_is_left_out_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "llmbroker.providers")
    groq = at("groq", model="said-once")
    for _ in range(3):
        sent("hi", groq, params={"top_k": 1})
    assert len([record for record in caplog.records if "top_k" in record.getMessage()]) == 1


@pytest.mark.parametrize("value", [object(), {"a": object()}, "\ud800"])
def test_a_parameter_that_json_cannot_carry_is_named(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="knob") as caught:
        sent("hi", params={"fine": 1, "knob": value})
    assert caught.value.argument.startswith("params['knob']")


# -- structured output ---------------------------------------------------------------------------------------------------

SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "a", "schema": {"type": "object", "properties": {"n": {"type": "integer"}}}},
}


def test_where_schemas_are_not_known_the_schema_goes_into_the_messages() -> None:
    made = sent("count", at("deepseek"), response_format=SCHEMA)
    assert made["response_format"] == {"type": "json_object"}
    assert made["messages"][0]["role"] == "system"
    assert '{"type":"object","properties":{"n":{"type":"integer"}}}' in made["messages"][0]["content"]
    assert made["messages"][1:] == [{"role": "user", "content": "count"}]


def test_json_mode_needs_the_word_in_the_messages_once() -> None:
    with_word = sent("give JSON", response_format={"type": "json_object"})
    assert with_word["messages"] == [{"role": "user", "content": "give JSON"}]
    without = sent("give it", response_format={"type": "json_object"})
    assert without["messages"][0] == {"role": "system", "content": "Answer with one JSON object."}


# -- messages ------------------------------------------------------------------------------------------------------------


def test_a_loop_of_two_calls_is_written_in_order() -> None:
    history = [
        HI,
        turn(call("a"), call("b", '{"city":"Rome"}')),
        result("b", "21"),
        result("a", "20"),
        {"role": "user", "content": "so?"},
    ]
    assert sent(history)["messages"] == [
        HI,
        {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b", '{"city":"Rome"}')]},
        {"role": "tool", "tool_call_id": "a", "content": "20"},
        {"role": "tool", "tool_call_id": "b", "content": "21"},
        {"role": "user", "content": "so?"},
    ]


@pytest.mark.parametrize("arguments", ["", "null", None, "   "])
def test_a_call_without_arguments_goes_back_as_the_empty_object(arguments: Any) -> None:
    made = sent([HI, turn(call("a", arguments)), result("a")])
    assert made["messages"][1]["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.parametrize("arguments", ['{"city": "Par', "[1]", '"x"', "nonsense"])
def test_arguments_that_no_server_could_read_go_back_as_an_object(arguments: str) -> None:
    made = sent([HI, turn(call("a", arguments)), result("a")])
    assert isinstance(json.loads(made["messages"][1]["tool_calls"][0]["function"]["arguments"]), dict)


def test_a_call_without_a_result_gets_one_and_a_result_without_a_call_goes() -> None:
    made = sent([HI, turn(call("a")), result("nobody", "lost"), {"role": "user", "content": "go on"}])
    assert [m["role"] for m in made["messages"]] == ["user", "assistant", "tool", "user"]
    assert "interrupted" in made["messages"][2]["content"]


def test_a_result_without_an_id_belongs_to_the_next_open_call() -> None:
    made = sent([HI, turn(call("a"), call("b", name="get_time")), result("", "t", name="get_time"), result("", "w")])
    assert [(m["tool_call_id"], m["content"]) for m in made["messages"][2:]] == [("a", "w"), ("b", "t")]


def test_names_that_no_server_takes_are_mended() -> None:
    made = sent([HI, turn(call("a", name="get weather!")), result("a")])
    assert made["messages"][1]["tool_calls"][0]["function"]["name"] == "get_weather_"


def test_fields_of_other_libraries_are_not_sent() -> None:
    message = turn(call("a", parsed={"x": 1}), audio=None, annotations=[], function_call=None, parsed=None)
    made = sent([HI, message, result("a")])
    assert made["messages"][1] == {"role": "assistant", "content": None, "tool_calls": [call("a")]}


@pytest.mark.parametrize(("provider", "content"), [(None, None), ("openai", None), ("xiaomi", "")])
def test_an_assistant_turn_of_calls_alone_has_the_content_that_the_server_wants(provider: str | None, content: Any) -> None:
    assert sent([HI, turn(call()), result()], at(provider))["messages"][1]["content"] == content


def test_one_server_wants_ids_of_nine_letters_and_gets_the_same_ones_each_time() -> None:
    history = [HI, turn(call("call_abc"), call("123456789")), result("call_abc"), result("123456789")]
    first, second = (sent(history, at("mistral"))["messages"] for _ in range(2))
    ids = [item["id"] for item in first[1]["tool_calls"]]
    assert all(len(item) == 9 and item.isalnum() for item in ids) and ids[1] == "123456789"
    assert [m["tool_call_id"] for m in first[2:]] == ids
    assert first == second


@pytest.mark.parametrize(
    ("provider", "given", "wire"),
    [
        (None, "functions.get_weather:0", "functions.get_weather:0"),
        (None, "x" * 60, "x" * 60),
        ("openai", "functions.get_weather:0", "functions.get_weather:0"),
    ],
)
def test_an_id_goes_back_as_it_came(provider: str | None, given: str, wire: str) -> None:
    made = sent([HI, turn(call(given)), result(given)], at(provider))["messages"]
    assert (made[1]["tool_calls"][0]["id"], made[2]["tool_call_id"]) == (wire, wire)


def test_an_id_that_one_server_finds_too_long_is_cut_the_same_way_each_time() -> None:
    made = sent([HI, turn(call("x" * 60), call("x" * 61)), result("x" * 60), result("x" * 61)], at("openai"))["messages"]
    ids = [item["id"] for item in made[1]["tool_calls"]]
    assert [len(item) for item in ids] == [40, 40] and ids[0] != ids[1]
    assert [m["tool_call_id"] for m in made[2:]] == ids


@pytest.mark.parametrize("given", ["", None, "a\nb", "same"])
def test_ids_that_cannot_be_told_apart_are_made_anew(given: Any) -> None:
    history = [
        HI,
        turn(call(given), call(given)),
        result(given or "", "1"),
        result(given or "", "2"),
        turn(call(given)),
        result(given or ""),
    ]
    made = sent(history)["messages"]
    ids = [item["id"] for m in made for item in m.get("tool_calls", ())]
    assert len(set(ids)) == 3 and all(item.isprintable() and item for item in ids)
    assert [m["tool_call_id"] for m in made if m["role"] == "tool"] == ids


def test_text_alone_is_a_string_and_several_parts_are_a_list() -> None:
    one = {"role": "user", "content": [{"type": "text", "text": "a"}]}
    two = {
        "role": "user",
        "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}],
    }
    assert sent([one])["messages"][0]["content"] == "a"
    assert sent([two])["messages"][0] == two


def test_sound_and_files_are_written_as_parts() -> None:
    parts = [
        {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,aGk="}},
        {"type": "file", "file": {"file_id": "f-1"}},
    ]
    made = sent([{"role": "user", "content": parts}])["messages"][0]["content"]
    assert made[0] == parts[0]
    assert made[1] == {"type": "file", "file": {"filename": "file.pdf", "file_data": "data:application/pdf;base64,aGk="}}
    assert made[2] == {"type": "file", "file": {"file_id": "f-1"}}
    document = sent([{"role": "user", "content": parts[1:2]}], at("mistral"))["messages"][0]["content"]
    assert document == [{"type": "document_url", "document_url": "data:application/pdf;base64,aGk="}]


def test_a_server_without_images_is_not_asked_and_the_history_stays_good() -> None:
    picture = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": PNG}}]}
    history = History([HI, {"role": "assistant", "content": "yes"}, picture, {"role": "assistant", "content": "a cat"}, HI])
    request = make_request(history)
    for _ in range(2):
        with pytest.raises(UnsupportedFeatureError) as caught:
            body(request, at("deepseek"))
        assert caught.value.feature == "images"
    assert len(body(request, at())["messages"]) == 5


def test_pictures_of_a_result_follow_all_results_in_a_message_of_their_own() -> None:
    content = [{"type": "text", "text": "here"}, {"type": "image_url", "image_url": {"url": PNG}}]
    made = sent([HI, turn(call("a"), call("b")), result("a", content), result("b", "x"), {"role": "user", "content": "?"}])[
        "messages"
    ]
    assert [m["role"] for m in made] == ["user", "assistant", "tool", "tool", "user", "user"]
    assert made[2]["content"] == "here"
    assert made[4]["content"][1] == {"type": "image_url", "image_url": {"url": PNG}}


def test_cache_marks_go_only_where_they_are_known() -> None:
    marked = {"role": "system", "content": [{"type": "text", "text": "long", "cache_control": {"type": "ephemeral"}}]}
    tool = {**WEATHER, "cache_control": {"type": "ephemeral"}}
    plain = sent([marked, HI], at("openai"), tools=[tool])
    assert plain["messages"][0]["content"] == "long" and plain["tools"] == [WEATHER]
    known = sent([marked, HI], at("openrouter"), tools=[tool])
    assert known["messages"][0] == marked and known["tools"] == [tool]


def test_an_empty_message_is_an_empty_string() -> None:
    assert sent([{"role": "user", "content": ""}, {"role": "assistant", "content": None}, HI])["messages"][:2] == [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": ""},
    ]


# -- reasoning -----------------------------------------------------------------------------------------------------------


def reasoned(provider: str | None, **more: Any) -> list[Any]:
    """Return the reasoning that goes back with: an old turn, the turn before the user, the two turns of the running loop."""
    history = [
        HI,
        turn(call("a"), reasoning_content="old loop"),
        result("a"),
        {"role": "assistant", "content": "20", "reasoning_content": "old answer"},
        {"role": "user", "content": "and Rome?"},
        turn(call("b"), reasoning_content="first step"),
        result("b"),
        turn(call("c"), **more),
        result("c"),
    ]
    messages = sent(history, at(provider))["messages"]
    return [m.get("reasoning_content", m.get("reasoning")) for m in messages if m["role"] == "assistant"]


@pytest.mark.parametrize(
    ("provider", "wanted"),
    [
        (None, [None, None, None, None]),
        ("openai", [None, None, None, None]),
        ("deepseek", [None, None, "first step", ""]),
        ("groq", [None, None, "first step", None]),
        ("moonshot", ["old loop", "old answer", "first step", ""]),
    ],
)
def test_reasoning_goes_back_never_in_the_loop_or_always(provider: str | None, wanted: list[Any]) -> None:
    assert reasoned(provider) == wanted


def test_reasoning_goes_back_under_the_servers_own_name() -> None:
    history = [HI, turn(call("a"), reasoning_content="why"), result("a")]
    assert sent(history, at("cerebras"))["messages"][1]["reasoning"] == "why"
    assert sent(history, at("deepseek"))["messages"][1]["reasoning_content"] == "why"


def test_a_loop_of_steps_is_written_the_same_at_once_and_step_by_step() -> None:
    growing = History([HI])
    deployment = at("deepseek")
    for step in range(4):
        growing.append(turn(call(f"c{step}"), reasoning_content=f"r{step}"))
        growing.append(result(f"c{step}"))
        if step == 2:
            growing.append({"role": "user", "content": "more"})
        at_once = body(make_request([*growing]), deployment)
        assert body(make_request(growing), deployment) == at_once


SIGNED = {"google": {"thought_signature": "AbC="}}


def history_of(provider: str, model: str = "m") -> list[JSON]:
    """A conversation with opaque keys, as our own reply leaves it."""
    answer = {
        "choices": [
            {
                "index": 0,
                "message": {
                    "tool_calls": [call("a", extra_content=SIGNED)],
                    "extra_content": SIGNED,
                    "reasoning_details": [{"type": "x", "data": "y"}],
                },
                "finish_reason": "tool_calls",
            }
        ]
    }
    reply = whole(json.dumps(answer).encode(), at(provider, model))
    return [HI, json.loads(json.dumps(reply.message)), result("a")]


def test_opaque_keys_go_back_to_who_wrote_them() -> None:
    message = sent(history_of("openrouter"), at("openrouter"))["messages"][1]
    assert message["tool_calls"][0]["extra_content"] == SIGNED
    assert message["reasoning_details"] == [{"type": "x", "data": "y"}] and message["extra_content"] == SIGNED


def test_opaque_keys_go_to_nobody_else() -> None:
    for other in (at("groq"), at("together"), at()):
        message = sent(history_of("openrouter"), other)["messages"][1]
        assert set(message) == {"role", "content", "tool_calls"} and set(message["tool_calls"][0]) == {"id", "type", "function"}


def test_opaque_keys_belong_to_their_model_where_signatures_do_not_pass() -> None:
    message = sent(history_of("groq"), at("groq", model="another"))["messages"][1]
    assert "reasoning_details" not in message and set(message["tool_calls"][0]) == {"id", "type", "function"}
    assert "extra_content" in sent(history_of("gemini"), at("gemini", model="another"))["messages"][1]["tool_calls"][0]


def test_signatures_in_a_history_of_the_users_own_go_where_they_are_known() -> None:
    history = [HI, turn(call("a", extra_content=SIGNED)), result("a")]
    assert sent(history, at("gemini"))["messages"][1]["tool_calls"][0]["extra_content"] == SIGNED
    assert "extra_content" not in sent(history, at("openai"))["messages"][1]["tool_calls"][0]


# -- a reply as a body ---------------------------------------------------------------------------------------------------

REPLIES = [
    {"content": "hi"},
    {"content": None, "tool_calls": [call("a"), call("b", extra_content=SIGNED)]},
    {"content": "", "refusal": "no"},
    {"content": "<think>why</think>so"},
]


@pytest.mark.parametrize("finish", ["stop", "length", "content_filter", "network_error", "new word", None])
@pytest.mark.parametrize("message", REPLIES, ids=["text", "calls", "refusal", "reasoning"])
def test_a_reply_written_as_a_body_reads_as_the_same_reply(message: JSON, finish: str | None) -> None:
    answer = {
        "id": "c",
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}},
    }
    first = whole(json.dumps(answer).encode(), at())
    again: Reply = whole(json.dumps(at().dialect.encode_reply(first)).encode(), at())
    assert (again.text, again.reasoning, again.refusal, again.usage, again.id) == (
        first.text,
        first.reasoning,
        first.refusal,
        first.usage,
        first.id,
    )
    assert (again.finish_reason, calls_of(again)) == (first.finish_reason, calls_of(first))


@pytest.mark.parametrize(
    "body",
    [
        {"data": [{"id": "a"}, {"id": "b"}]},
        [{"id": "a"}, {"id": "b"}],
        {"models": [{"name": "a"}, {"name": "b"}]},
        {"data": ["a", "b", 1, None, {}]},
    ],
)
def test_a_model_list_of_any_shape_gives_names(body: Any) -> None:
    assert at().dialect.decode_models(body) == ["a", "b"]


# -- what a refusal teaches ----------------------------------------------------------------------------------------------


def refusal(
    deployment: Deployment, status: int, message: str, code: str | None = None, param: str | None = None
) -> ProviderError:
    said = {"error": {"message": message, "code": code, "param": param, "type": "invalid_request_error"}}
    return decode_error(HTTPReply(status, {}, json.dumps(said).encode()), deployment)


MENDS: list[tuple[str, JSON, tuple[Any, ...], Mend | None]] = [
    (
        "the-name-of-the-limit",
        {"params": {"max_tokens": 5}},
        (
            400,
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
            "unsupported_parameter",
            "max_tokens",
        ),
        Mend(rename={"max_tokens": "max_completion_tokens"}),
    ),
    (
        "the-new-name-on-an-old-server",
        {"params": {"max_completion_tokens": 5}},
        (400, "Unrecognized request argument supplied: max_completion_tokens"),
        Mend(rename={"max_completion_tokens": "max_tokens"}),
    ),
    (
        "temperature-of-a-reasoning-model",
        {"params": {"temperature": 0.2}},
        (400, "Unsupported value: 'temperature' does not support 0.2 with this model.", "unsupported_value", "temperature"),
        Mend(drop=frozenset({"temperature"})),
    ),
    (
        "temperature-without-a-code",
        {"params": {"temperature": 0.2}},
        (400, "Unsupported parameter: 'temperature' is not supported with this model.", None, "temperature"),
        Mend(drop=frozenset({"temperature"})),
    ),
    (
        "a-value-out-of-range",
        {"params": {"temperature": 99}},
        (
            400,
            "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 99.0 instead.",
            "decimal_above_max_value",
            "temperature",
        ),
        None,
    ),
    (
        "a-limit-that-is-too-large",
        {"params": {"max_tokens": 10**6}},
        (
            400,
            "max_tokens is too large: 1000000. This model supports at most 16384 completion tokens.",
            "invalid_value",
            "max_tokens",
        ),
        None,
    ),
    (
        "a-forced-choice-while-thinking",
        {"tools": [WEATHER], "choice": "required"},
        (400, "Thinking mode does not support this tool_choice", "invalid_request_error"),
        Mend(drop=frozenset({"tool_choice"})),
    ),
    (
        "a-choice-as-a-word-alone",
        {"tools": [WEATHER], "choice": "get_weather"},
        (422, "invalid input error: tool_choice: Input should be a valid string", "Invalid input", "tool_choice"),
        Mend(rename={"tool_choice": "required"}),
    ),
    (
        "nobody-behind-the-router-takes-the-choice",
        {"tools": [WEATHER], "choice": "required"},
        (404, "No endpoints found that support the provided 'tool_choice' value. To learn more ..."),
        Mend(drop=frozenset({"tool_choice"})),
    ),
    ("auto-is-no-choice", {"tools": [WEATHER], "choice": "auto"}, (400, "tool_choice is not supported"), None),
    (
        "camel-case",
        {"params": {"reasoning_effort": "low"}},
        (400, "Model grok-code-fast-1 does not support parameter reasoningEffort.", "Client specified an invalid argument"),
        Mend(drop=frozenset({"reasoning_effort"})),
    ),
    (
        "extra-inputs",
        {"params": {"top_k": 5}},
        (422, "top_k: Extra inputs are not permitted", None, "top_k"),
        Mend(drop=frozenset({"top_k"})),
    ),
    (
        "stream-options",
        {"stream": True},
        (400, "Extra inputs are not permitted, field: 'stream_options'"),
        Mend(drop=frozenset({"stream_options"})),
    ),
    (
        "a-schema",
        {"response_format": SCHEMA},
        (400, "This response_format type is unavailable now", "invalid_request_error"),
        Mend(rename={"response_format": "json_object"}),
    ),
    (
        "what-the-caller-meant",
        {"params": {"web_search_options": {}}},
        (400, "Web search options not supported with this model.", None, "web_search_options"),
        None,
    ),
    (
        "stop-words",
        {"params": {"stop": ["x"]}},
        (400, "Unsupported parameter: 'stop' is not supported with this model.", "unsupported_parameter", "stop"),
        None,
    ),
    ("another-parameter", {"params": {"temperature": 0}}, (400, "Unknown field 'foo'"), None),
    (
        "not-a-refusal-of-a-parameter",
        {"params": {"temperature": 0}},
        (500, "temperature of the machine is not supported"),
        None,
    ),
    (
        "a-full-context",
        {"params": {"max_tokens": 5}},
        (400, "This model's maximum context length is 10 tokens; max_tokens is not supported"),
        None,
    ),
    ("short-words-need-quotes", {"params": {"user": "x"}}, (400, "this endpoint does not support user messages"), None),
]


@pytest.mark.parametrize(("arguments", "said", "wanted"), [case[1:] for case in MENDS], ids=[case[0] for case in MENDS])
def test_a_refusal_is_mended_only_where_it_names_what_may_go(
    arguments: JSON, said: tuple[Any, ...], wanted: Mend | None
) -> None:
    deployment = at()
    request = make_request("hi", **arguments)
    assert deployment.dialect.mend is not None
    assert deployment.dialect.mend(refusal(deployment, *said), request, deployment) == wanted


def test_a_mend_is_sent_the_next_time() -> None:
    deployment = at()
    deployment.mended = Mend(
        rename={"max_tokens": "max_completion_tokens", "response_format": "json_object", "tool_choice": "required"},
        drop=frozenset({"temperature", "stream_options"}),
    )
    made = sent(
        "give JSON",
        deployment,
        params={"max_tokens": 5, "temperature": 1},
        tools=[WEATHER, TIME],
        choice="get_weather",
        response_format=SCHEMA,
        stream=True,
    )
    assert made["max_completion_tokens"] == 5
    assert not {"max_tokens", "temperature", "stream_options"} & made.keys()
    assert made["tool_choice"] == "required" and made["tools"] == [WEATHER]
    assert made["response_format"] == {"type": "json_object"}


def test_a_mend_that_did_not_help_is_not_tried_again() -> None:
    deployment = at()
    deployment.mended = Mend(rename={"max_tokens": "max_completion_tokens"})
    request = make_request("hi", params={"max_tokens": 5})
    error = refusal(
        deployment, 400, "Unsupported parameter: 'max_completion_tokens' is not supported.", "unsupported_parameter"
    )
    assert deployment.dialect.mend is not None
    assert deployment.dialect.mend(error, request, deployment) is None


def test_a_renamed_limit_can_be_renamed_back() -> None:
    deployment = at("openai")
    request = make_request("hi", params={"max_tokens": 5})
    error = refusal(deployment, 400, "Unknown parameter: 'max_completion_tokens'", "unknown_parameter", "max_completion_tokens")
    assert deployment.dialect.mend is not None
    found = deployment.dialect.mend(error, request, deployment)
    assert found is not None
    deployment.mended = found
    assert body(request, deployment)["max_tokens"] == 5


def test_a_server_that_refuses_reasoning_gets_none_any_more() -> None:
    deployment = at("groq")
    history = [HI, turn(call("a"), reasoning_content="why"), result("a")]
    request = make_request(history)
    assert body(request, deployment)["messages"][1]["reasoning"] == "why"
    error = refusal(deployment, 400, "'messages.1' : property 'reasoning' is unsupported")
    assert deployment.dialect.mend is not None
    found = deployment.dialect.mend(error, request, deployment)
    assert found == Mend(drop=frozenset({"reasoning_content"}))
    deployment.mended = found
    assert "reasoning" not in body(request, deployment)["messages"][1]
