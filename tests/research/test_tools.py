"""``call_llm_tools`` to the letter: rounds, limits, what is returned, what every exception bears."""

from __future__ import annotations

import json
import math
import warnings
from typing import Any

import pytest
from tests.research.conftest import Face, refused

from llmbroker import AuthError, InvalidRequestError, Response, ToolLimitError, llm_config, llm_tool, tokens
from llmbroker.exchange import Usage
from llmbroker.testing import Answer, Replay, made_reply, whole

QUESTION = "What is the weather in Tunis?"


def tool(seen: list[str] | None = None, fails: bool = False) -> Any:
    def get_weather(city: str) -> str:
        if seen is not None:
            seen.append(city)
        if fails:
            raise RuntimeError("no wind today")
        return f"22C and clear in {city}"

    return llm_tool(get_weather, "get_weather", "Current weather for a city.", {"city": {"type": "string"}})


def asks(*cities: Any, usage: Usage | None = None) -> Any:
    calls = [("get_weather", {"city": city} if isinstance(city, str) else city) for city in cities]
    return made_reply(calls=calls, usage=usage)


def says(text: str = "It is 22C in Tunis.", usage: Usage | None = None) -> Any:
    return made_reply(text, usage=usage)


def test_the_loop_returns_answer_conversation_rows_and_sums(face: Face, config: Any) -> None:
    face.answers(asks("Tunis", usage=Usage(20, 8, 4, None, 2, 28)), says(usage=Usage(40, 9, None, None, None, 49)))
    r = face.call_llm_tools(config, QUESTION, tools=tool())
    assert str(r) == "It is 22C in Tunis."
    assert [m["role"] for m in r.messages] == ["user", "assistant", "tool", "assistant"]
    assert r.messages[-1]["content"] == "It is 22C in Tunis."
    (row,) = r.tool_history
    assert (row["round"], row["name"], json.loads(row["arguments"]), row["result"]) == (
        1, "get_weather", {"city": "Tunis"}, "22C and clear in Tunis",
    )  # fmt: skip
    assert (row["error"], row["repaired"]) == (None, False) and row["id"] and row["duration"] is not None
    sums = r.tool_loop
    assert (sums.model_calls, sums.sent, sums.rec, sums.tool_calls) == (2, 60, 17, 1)
    assert (sums.reasoning, sums.cached, sums.unknown_usage) == (2, 4, 0)
    assert sums.cost == pytest.approx((56 * 0.15 + 4 * 0.075 + 17 * 0.6) / 1e6)
    assert dict(tokens(r))["sent"] == 40


def test_the_history_makes_a_frame_even_without_rows(face: Face, config: Any) -> None:
    face.answers(says("Hello."))
    frame = face.call_llm_tools(config, "hi", tools=[tool()]).tool_history.to_pandas()
    assert list(frame.columns) == ["round", "id", "name", "arguments", "result", "error", "repaired", "duration"]
    assert len(frame) == 0


def test_at_max_rounds_the_last_response_comes_back_with_one_warning_and_nothing_more_is_run(face: Face, config: Any) -> None:
    seen: list[str] = []
    face.answers(asks("Tunis"), asks("Sfax"))
    with pytest.warns(UserWarning, match="max_rounds=2") as notes:
        r = face.call_llm_tools(config, QUESTION, tools=tool(seen), max_rounds=2)
    assert len(notes) == 1
    assert seen == ["Tunis"]
    assert isinstance(r, Response) and r.finish_reason == "tool_calls" and str(r) == ""
    assert r.tool_calls and r.messages[-1]["tool_calls"]
    assert r.tool_loop.model_calls == 2 and len(r.tool_history) == 1
    face.answers(says())
    again = face.call_llm_tools(config, r.messages, tools=tool(seen))
    assert seen == ["Tunis", "Sfax"] and str(again) == "It is 22C in Tunis."


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_a_limit_of_executions_is_raised_before_the_call_that_would_exceed_it(face: Face, config: Any, limit: int) -> None:
    seen: list[str] = []
    face.answers(asks("a", "b"), asks("c", "d"), says())
    with pytest.raises(ToolLimitError) as caught:
        face.call_llm_tools(config, QUESTION, tools=tool(seen), max_tool_calls=limit)
    error = caught.value
    assert seen == ["a", "b", "c", "d"][:limit]
    assert len(error.tool_history) == limit and error.tool_loop.tool_calls == limit
    assert error.response.tool_calls and error.messages[0]["content"] == QUESTION
    assert error.tool_loop.model_calls == (1 if limit < 2 else 2)
    assert error.tool_loop.sent == 10 * error.tool_loop.model_calls


def test_a_limit_that_is_just_enough_is_no_limit(face: Face, config: Any) -> None:
    face.answers(asks("a", "b"), says())
    assert face.call_llm_tools(config, QUESTION, tools=tool(), max_tool_calls=2).tool_loop.tool_calls == 2


def test_an_error_in_the_middle_bears_what_happened(face: Face, config: Any) -> None:
    face.answers(asks("Tunis"), refused(401, code="invalid_api_key"))
    with pytest.raises(AuthError) as caught:
        face.call_llm_tools(config, QUESTION, tools=tool())
    error = caught.value
    assert [m["role"] for m in error.messages] == ["user", "assistant", "tool"]
    assert error.tool_history[0]["result"] == "22C and clear in Tunis"
    assert error.tool_loop.model_calls == 2 and error.tool_loop.unknown_usage == 1 and error.tool_loop.sent == 10
    assert error.response.tool_calls[0]["function"]["name"] == "get_weather"


def test_a_model_call_is_tried_again_inside_the_loop(face: Face, config: Any) -> None:
    face.answers(asks("Tunis"), refused(503), refused(500), says())
    r = face.call_llm_tools(config, QUESTION, tools=tool(), tries=3, wait_seconds=1)
    assert r.tool_loop.model_calls == 2 and len(face.port.requests) == 4


def test_partial_usage_is_not_reported_as_if_it_were_all(face: Face, config: Any) -> None:
    silent = {"choices": [{"message": {"tool_calls": whole_calls()}, "finish_reason": "tool_calls"}]}
    face.answers(Answer(body=silent), says(usage=Usage(5, None, None, None, None, None)))
    sums = face.call_llm_tools(config, QUESTION, tools=tool()).tool_loop
    assert (sums.sent, sums.rec, sums.unknown_usage, sums.model_calls) == (5, None, 1, 2)


def whole_calls() -> Any:
    return json.loads(whole(asks("Tunis"), "openai-chat"))["choices"][0]["message"]["tool_calls"]


@pytest.mark.parametrize("written", ['{"city": "Tun', "[1, 2]", "http://127.0.0.1:1/x", '"x"'])
def test_arguments_that_cannot_be_read_never_run_a_function(face: Face, config: Any, written: str) -> None:
    seen: list[str] = []
    face.answers(made_reply(calls=[("get_weather", written)]), says())
    r = face.call_llm_tools(config, QUESTION, tools=tool(seen))
    assert seen == []
    assert r.tool_history[0]["error"] and "failed" in r.tool_history[0]["result"]


def test_numbers_reach_the_function_and_the_rows_in_full(face: Face, config: Any) -> None:
    got: list[Any] = []
    exact = llm_tool(lambda x, n: got.append((x, n)) or x, "exact", "", {"x": "number", "n": "integer"})
    face.answers(made_reply(calls=[("exact", '{"x": 0.123456789012, "n": 12345678901234567}')]), says())
    r = face.call_llm_tools(config, "q", tools=exact)
    assert got == [(0.123456789012, 12345678901234567)]
    assert "0.123456789012" in r.tool_history[0]["arguments"] and r.tool_history[0]["result"] == "0.123456789012"


def test_an_error_of_a_tool_is_marked_as_such_where_the_dialect_can() -> None:
    face = Face("blocking").answers(asks("Tunis"), says(), dialect="anthropic")
    config = llm_config("anthropic", "claude-haiku-4-5", api_key="k" * 20)
    r = face.call_llm_tools(config, QUESTION, tools=tool(fails=True))
    sent = json.loads(face.port.requests[1].body)["messages"][-1]["content"][0]
    assert sent["is_error"] is True and "no wind today" in str(sent["content"])
    assert r.tool_history[0]["error"] == "no wind today"


def test_a_forced_choice_is_for_the_first_round_alone(face: Face) -> None:
    config = llm_config("openai", "gpt-4o-mini", api_key="k" * 20, tool_choice="required")
    face.answers(asks("Tunis"), says())
    face.call_llm_tools(config, QUESTION, tools=tool())
    first, second = (json.loads(request.body) for request in face.port.requests)
    assert (first["tool_choice"], second["tool_choice"]) == ("required", "auto")


@pytest.mark.parametrize("dialect", ["openai-chat", "openai-responses", "anthropic", "gemini", "ollama"])
def test_the_loop_runs_in_every_dialect(face: Face, dialect: str) -> None:
    provider = {"openai-chat": "groq", "openai-responses": "openai"}.get(dialect, dialect)
    config = llm_config(provider, "m", api_key="k" * 20, dialect=dialect)
    face.answers(asks("Tunis"), says(), dialect=dialect)
    r = face.call_llm_tools(config, [("system", "Be terse."), ("user", QUESTION)], tools=tool())
    assert str(r) == "It is 22C in Tunis." and r.tool_loop.sent == 20


def test_verbose_prints_each_call_as_it_happens(config: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[str] = []

    def get_weather(city: str) -> str:
        shown.append(capsys.readouterr().out)
        return "x"

    port = Replay().on(None, Answer(body=whole(asks("Tunis"), "openai-chat")), Answer(body=whole(says(), "openai-chat")))
    Face("blocking").call_llm_tools(config, QUESTION, tools=llm_tool(get_weather), verbose=True, io=port)
    assert shown == ["[tool] get_weather(city='Tunis')\n"]


def test_async_functions_are_tools_too(face: Face, config: Any) -> None:
    async def get_weather(city: str) -> str:
        return f"windy in {city}"

    face.answers(asks("Tunis"), says())
    assert face.call_llm_tools(config, QUESTION, tools=llm_tool(get_weather)).tool_history[0]["result"] == "windy in Tunis"


@pytest.mark.parametrize(
    "more",
    [
        {"tools": []}, {"tools": None}, {"tools": [lambda: 1]}, {"tools": [tool(), tool()]}, {"max_rounds": 0},
        {"max_rounds": 2.5}, {"max_tool_calls": -1}, {"max_tool_calls": math.nan}, {"tries": 0},
    ],
)  # fmt: skip
def test_arguments_that_mean_nothing_are_refused_before_anything_is_sent(face: Face, config: Any, more: Any) -> None:
    with pytest.raises(InvalidRequestError):
        face.call_llm_tools(config, QUESTION, **{"tools": tool(), **more})
    assert face.port.requests == []


def test_a_name_that_no_tool_has_is_a_row_with_its_error(face: Face, config: Any) -> None:
    face.answers(made_reply(calls=[("get_wether", {"city": "Tunis"})]), says())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        r = face.call_llm_tools(config, QUESTION, tools=tool(), max_tool_calls=0)
    assert r.tool_history[0]["error"] == "unknown tool" and "get_weather" in r.tool_history[0]["result"]


FORM = {"type": "object", "properties": {"celsius": {"type": "integer"}}, "required": ["celsius"]}


def test_a_form_is_asked_for_after_the_last_tool_and_its_call_counts(face: Face, config: Any) -> None:
    """Many providers refuse tools and a form in one request: the loop runs without, and one more call asks for the form."""
    face.answers(asks("Tunis"), says("It is warm."), says('{"celsius": 22}'))
    r = face.call_llm_tools(config, QUESTION, tools=tool(), response_format=FORM)
    assert r.parsed == {"celsius": 22} and r.problem is None
    sent = [json.loads(request.body) for request in face.port.requests]
    assert ["response_format" in body for body in sent] == [False, False, True]
    assert ["tools" in body for body in sent] == [True, True, False]
    assert r.tool_loop.model_calls == 3 and r.tool_loop.sent == 30 and r.tool_loop.cost == pytest.approx(3 * 4.5e-6)
    assert [m["role"] for m in r.messages] == ["user", "assistant", "tool", "assistant", "user", "assistant"]


def test_an_answer_that_has_the_form_already_costs_no_further_call(face: Face, config: Any) -> None:
    face.answers(asks("Tunis"), says('{"celsius": 22}'))
    r = face.call_llm_tools(config, QUESTION, tools=tool(), response_format=FORM)
    assert r.parsed == {"celsius": 22} and r.tool_loop.model_calls == 2


def test_a_form_that_never_comes_says_why_and_an_error_on_the_way_bears_the_history(face: Face, config: Any) -> None:
    face.answers(says("warm"), says("still warm"))
    r = face.call_llm_tools(config, QUESTION, tools=tool(), response_format=FORM)
    assert r.parsed is None and "JSON" in r.problem and r.tool_loop.model_calls == 2
    face.answers(asks("Tunis"), says("warm"), refused(401))
    with pytest.raises(AuthError) as caught:
        face.call_llm_tools(config, QUESTION, tools=tool(), response_format=FORM)
    assert len(caught.value.messages) == 5 and caught.value.tool_loop.model_calls == 3
    assert str(caught.value.response) == "warm" and len(caught.value.tool_history) == 1
