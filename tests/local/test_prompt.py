"""How requests are put to the engine: what is sent is looked at, no model runs."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import msgspec
import pytest

from llmbroker.catalog import LLMConfig
from llmbroker.errors import (
    ContextWindowError,
    LLMBrokerError,
    ModelNotFoundError,
    ServerError,
    UnsupportedFeatureError,
)
from llmbroker.exchange import fold, make_request
from llmbroker.providers import local_calls, table
from llmbroker.providers.base import Deployment, decode_reply
from llmbroker.providers.local_prompt import example, near
from llmbroker.wire import SSE, HTTPReply


def tool(name: str, description: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


WEATHER = tool("get_weather", "Current weather in a city", city={"type": "string"})
CALCULATE = tool("calculate", "Evaluate an expression", expression={"type": "string", "description": "e.g. 2+3"})
LIGHT = tool("turn_light", "Turn the light on or off", state={"enum": ["on", "off"]}, level={"type": "integer", "maximum": 5})
TOOLS = [WEATHER, CALCULATE, LIGHT]
ASKED = {"role": "user", "content": "What is the weather in Paris?"}
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "It is 20°C in Paris"}


def deployment(model: str = "big.gguf") -> Deployment:
    return table.deployment_for(LLMConfig(name="m", provider="local", model=model), None)


def sent(messages: Any, model: str = "big.gguf", **arguments: Any) -> dict[str, Any]:
    where = deployment(model)
    request = where.dialect.encode(make_request(messages, **arguments), where)
    assert request.url.startswith("local:")
    body: dict[str, Any] = msgspec.json.decode(request.body)
    return body


def forms(body: dict[str, Any]) -> list[str]:
    """Return the names of the forms that the answer may have: calls, answer."""
    schema = body["response_format"]["json_schema"]["schema"]
    found = [name for one in schema.get("anyOf", [schema]) for name in one["properties"] if name != "count"]
    return list(dict.fromkeys(found))


def callable_tools(body: dict[str, Any]) -> list[str]:
    schema = body["response_format"]["json_schema"]["schema"]
    calls = next(one["properties"]["calls"] for one in schema.get("anyOf", [schema]) if "calls" in one["properties"])
    items = schema["$defs"]["call"] if "$ref" in calls["items"] else calls["items"]
    return [one["properties"]["tool"]["const"] for one in items.get("anyOf", [items])]


def test_without_tools_the_models_own_template_is_used() -> None:
    body = sent([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}])
    assert body["messages"] == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    assert "response_format" not in body
    assert "llmbroker" not in body


CHOICES = {
    "auto": (None, ["calls", "answer"], ["get_weather", "calculate", "turn_light"]),
    "required": ("required", ["calls"], ["get_weather", "calculate", "turn_light"]),
    "one tool": ("calculate", ["calls"], ["calculate"]),
}


@pytest.mark.parametrize(("choice", "wanted", "tools"), CHOICES.values(), ids=CHOICES)
def test_the_choice_of_tools_is_held_by_the_form_of_the_answer(choice: Any, wanted: list[str], tools: list[str]) -> None:
    body = sent([ASKED], tools=TOOLS, choice=choice)
    assert forms(body) == wanted
    assert callable_tools(body) == tools


def test_the_choice_none_leaves_the_tools_out() -> None:
    body = sent([ASKED], tools=TOOLS, choice="none")
    assert "response_format" not in body


def test_parallel_calls_can_be_switched_off() -> None:
    for parallel, most in ((True, 8), (False, 1)):
        body = sent([ASKED], tools=[WEATHER], params={"parallel_tool_calls": parallel})
        *calls, _ = body["response_format"]["json_schema"]["schema"]["anyOf"]
        assert max(one["properties"]["calls"]["maxItems"] for one in calls) == most
        assert "parallel_tool_calls" not in body
        shown = [json.loads(m["content"]) for m in body["messages"] if m["role"] == "assistant"]
        assert max(len(answer.get("calls", ())) for answer in shown) == (3 if parallel else 1)


def test_the_number_of_calls_is_said_first_and_then_kept() -> None:
    schema = sent([ASKED], tools=TOOLS)["response_format"]["json_schema"]["schema"]
    checker = jsonschema.Draft202012Validator(schema)
    call = {"tool": "get_weather", "arguments": {"city": "Paris"}}
    for count in range(1, 9):
        for made in range(1, 9):
            assert checker.is_valid({"count": count, "calls": [call] * made}) == (count == made)
    assert not checker.is_valid({"count": 1, "calls": [{"tool": "get_wind", "arguments": {"city": "Paris"}}]})
    assert not checker.is_valid({"count": 1, "calls": [{"tool": "get_weather", "arguments": {"town": "Paris"}}]})
    assert list(schema["anyOf"][0]["properties"]) == ["count", "calls"]


def test_every_example_of_calls_obeys_the_form_of_the_answer() -> None:
    for answer in [json.loads(m["content"]) for m in local_calls.examples(parallel=True, must_call=False)[1::2]]:
        assert ("answer" in answer) != (answer.get("count") == len(answer.get("calls", ())) > 0)
    assert all("count" in json.loads(m["content"]) for m in local_calls.examples(parallel=True, must_call=True)[1::2])


def test_examples_come_before_anything_of_the_request_so_that_the_cache_keeps_them() -> None:
    one = sent([ASKED], tools=TOOLS)["messages"]
    other = sent("Turn the light on", tools=[LIGHT])["messages"]
    assert one[:-1] == other[:-1]
    assert "get_weather(city: string)" in one[-1]["content"] and "get_weather" not in other[-1]["content"]


def test_a_system_message_stands_before_the_rule() -> None:
    first, *_, last = sent([{"role": "system", "content": "Be kind."}, ASKED], tools=TOOLS)["messages"]
    assert first["content"] == f"Be kind.\n{local_calls.RULE}"
    assert last["content"].endswith("Request: What is the weather in Paris?")


@pytest.mark.parametrize("before", [[], [ASKED, {"role": "assistant", "content": "It is 20°C."}]], ids=["nothing", "answered"])
def test_where_nobody_asked_last_no_words_are_put_into_what_was_said(before: list[dict[str, Any]]) -> None:
    *said, last = sent([{"role": "system", "content": "Be kind."}, *before], tools=TOOLS)["messages"]
    assert last["role"] == "user"
    assert last["content"].startswith("Tools:\n- get_weather(")
    assert all(message["content"].startswith("{") for message in said if message["role"] == "assistant")


def test_after_results_every_tool_has_an_example_of_its_own_call() -> None:
    answers = [m["content"] for m in sent([ASKED, CALLED, RESULT], tools=TOOLS)["messages"] if m["role"] == "assistant"]
    for name in ("get_weather", "calculate", "turn_light"):
        assert any(f'"tool":"{name}"' in answer for answer in answers)


def test_results_stand_beside_the_request_that_they_answer() -> None:
    body = sent([ASKED, CALLED, RESULT], tools=TOOLS)
    last = body["messages"][-1]
    assert last["role"] == "user"
    assert "What is the weather in Paris?" in last["content"]
    assert "Result of get_weather(city=Paris): It is 20°C in Paris" in last["content"]
    assert forms(body) == ["calls", "answer"]


def test_earlier_turns_are_told_in_the_same_form() -> None:
    answer = {"role": "assistant", "content": "It is 20°C."}
    body = sent([ASKED, CALLED, RESULT, answer, {"role": "user", "content": "And the light?"}], tools=TOOLS)
    told = body["messages"][-3:]
    assert [message["role"] for message in told] == ["user", "assistant", "user"]
    assert told[1]["content"] == '{"answer":"It is 20°C."}'
    assert told[2]["content"].startswith("Tools:\n- get_weather(")
    assert told[2]["content"].endswith("\nRequest: And the light?")
    assert "Result of" in told[0]["content"]


def test_a_small_model_is_offered_the_tools_that_seem_to_be_meant() -> None:
    small = "smollm2-135m-instruct"
    assert callable_tools(sent([ASKED], small, tools=TOOLS)) == ["get_weather"]
    assert callable_tools(sent("Is it raining in Oslo?", small, tools=TOOLS)) == ["get_weather", "calculate", "turn_light"]
    assert forms(sent([ASKED, CALLED, RESULT], small, tools=TOOLS)) == ["answer"]


def test_a_number_speaks_for_tools_that_take_numbers() -> None:
    request = make_request("x", tools=TOOLS)
    assert request.tools is not None
    assert [spec.name for spec in near(request.tools.specs, "12 times 7")] == ["calculate", "turn_light"]


def test_an_example_obeys_its_own_declaration() -> None:
    request = make_request("x", tools=TOOLS)
    assert request.tools is not None
    for index in range(6):
        _, call = example(request.tools.by_name["turn_light"], index)
        assert call["arguments"]["state"] in ("on", "off")
        assert call["arguments"]["level"] <= 5
    assert example(request.tools.by_name["calculate"], 0)[1]["arguments"] == {"expression": "2+3"}


def test_an_answer_may_be_held_to_a_schema_beside_tools() -> None:
    wanted = {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object", "properties": {"n": {"type": "any"}}}},
    }
    alone = sent("Count", response_format=wanted)
    assert alone["response_format"]["json_schema"]["schema"]["properties"] == {"n": {}}
    beside = sent([ASKED], tools=TOOLS, response_format=wanted)["response_format"]["json_schema"]["schema"]["anyOf"][-1]
    assert beside["properties"]["answer"]["properties"] == {"n": {}}


def test_images_are_refused_before_anything_is_computed() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with pytest.raises(UnsupportedFeatureError):
        sent([{"role": "user", "content": [image]}])


def test_the_users_parameters_win_over_the_habits() -> None:
    body = sent("Hi", "smollm2-135m-instruct", params={"temperature": 0.7, "max_completion_tokens": 9})
    assert (body["temperature"], body["max_tokens"]) == (0.7, 9)
    assert sent("Hi")["temperature"] == 0


# -- answers -------------------------------------------------------------------------------------------------------------

CONTENT = '{"calls":[{"tool":"get_weather","arguments":{"city":"Paris"}}]}'


def test_whole_and_streamed_answers_are_one_reply() -> None:
    where = deployment()
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
    message = {"role": "assistant", "content": CONTENT}
    body = {"model": "m", "llmbroker": "calls", "choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
    whole = decode_reply(HTTPReply(200, {}, msgspec.json.encode(body)), where)
    decoder = where.dialect.decoder(where)
    events = []
    for piece in [CONTENT[:9], CONTENT[9:30], CONTENT[30:]]:
        chunk = {"model": "m", "llmbroker": "calls", "choices": [{"delta": {"content": piece}}]}
        events += decoder.feed(SSE("", msgspec.json.encode(chunk)))
    last = {"llmbroker": "calls", "choices": [{"delta": {}, "finish_reason": "stop"}]}
    events += decoder.feed(SSE("", msgspec.json.encode(last)))
    events += decoder.feed(SSE("", msgspec.json.encode({"llmbroker": "calls", "choices": [], "usage": usage})))
    events += decoder.feed(SSE("", b"[DONE]"))
    assert decoder.done
    streamed = fold(events)
    for reply in (whole, streamed):
        assert reply.text == ""
        assert reply.finish_reason == "tool_calls"
        assert reply.usage is not None and reply.usage.total_tokens == 12
        assert reply.tool_calls is not None
        assert [call["function"] for call in reply.tool_calls] == [{"name": "get_weather", "arguments": '{"city":"Paris"}'}]


def test_json_that_nobody_asked_for_is_text() -> None:
    body = {"choices": [{"message": {"role": "assistant", "content": CONTENT}, "finish_reason": "stop"}]}
    reply = decode_reply(HTTPReply(200, {}, msgspec.json.encode(body)), deployment())
    assert (reply.text, reply.tool_calls) == (CONTENT, None)


FAULTS: dict[str, tuple[int, str, type[LLMBrokerError]]] = {
    "too long": (400, "exceed_context_size_error", ContextWindowError),
    "no such model": (404, "model_not_found", ModelNotFoundError),
    "no engine": (404, "local_extra_missing", ModelNotFoundError),
    "no network": (404, "download_failed", ModelNotFoundError),
    "no memory": (404, "load_failed", ModelNotFoundError),
    "a fault inside": (500, "engine_failed", ServerError),
}


@pytest.mark.parametrize(("status", "code", "kind"), FAULTS.values(), ids=FAULTS)
def test_a_fault_of_the_engine_has_its_class_and_its_words(status: int, code: str, kind: type[LLMBrokerError]) -> None:
    where = deployment()
    body = {"error": {"message": "What happened.", "type": code, "code": code, "status": status}}
    error = where.dialect.decode_error(HTTPReply(status, {}, msgspec.json.encode(body)), where)
    assert type(error) is kind
    assert "What happened." in str(error)
