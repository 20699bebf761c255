"""Requests, events, replies."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbroker.errors import InvalidProviderResponseError, InvalidRequestError, RateLimitError
from llmbroker.exchange import (
    CallDelta,
    Choice,
    Finished,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolSet,
    Usage,
    UsageReport,
    fold,
    make_request,
)

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "tools that are a string": ({"tools": "f"}, "tools"),
    "a tool that is a function": ({"tools": [print]}, "tools[0]"),
    "a tool of another type": ({"tools": [{"type": "web"}]}, "tools[0]"),
    "a tool without a name": ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    "two tools of one name": ({"tools": [TOOL, TOOL]}, "tools[1]"),
    "parameters that are an array": (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
        "tools[0].function.parameters",
    ),
    "a choice of no tool": ({"tools": [TOOL], "choice": "g"}, "tool_choice"),
    "required without tools": ({"choice": "required"}, "tool_choice"),
    "reserved params": ({"params": {"model": "x"}}, "params['model']"),
    "params that are a list": ({"params": [1]}, "params"),
    "a NaN parameter": ({"params": {"temperature": float("nan")}}, "params['temperature']"),
    "a response format without a type": ({"response_format": {}}, "response_format"),
}


@pytest.mark.parametrize(("arguments", "argument"), BAD.values(), ids=BAD)
def test_a_bad_argument_is_refused_and_named(arguments: dict[str, Any], argument: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        make_request("hi", **arguments)
    assert caught.value.argument == argument


def test_params_win_over_tool_params_which_are_sent_only_with_tools() -> None:
    given_params = {"temperature": 0}
    with_tools = make_request("hi", tools=[TOOL], params=given_params, tool_params={"temperature": 1, "top_p": 0.5})
    assert with_tools.params == {"temperature": 0, "top_p": 0.5}
    assert make_request("hi", params=given_params, tool_params={"top_p": 0.5}).params == {"temperature": 0}
    assert given_params == {"temperature": 0}


def test_declaring_tools_leaves_the_schema_as_it_was() -> None:
    before = copy.deepcopy(TOOL)
    ToolSet([TOOL])
    assert before == TOOL


def test_usage_is_replaced_field_by_field_never_summed() -> None:
    reply = fold(
        [
            UsageReport(Usage(input_tokens=10, cached_input_tokens=4)),
            UsageReport(Usage(input_tokens=12, output_tokens=3)),
            Finished("stop", "stop"),
        ]
    )
    assert reply.usage == Usage(input_tokens=12, output_tokens=3, cached_input_tokens=4)
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (12, 3)


@pytest.mark.parametrize(
    ("said", "finish"),
    [("stop", "tool_calls"), ("tool_calls", "tool_calls"), ("length", "length"), ("content_filter", "content_filter")],
)
def test_complete_calls_beat_stop_but_never_length(said: Any, finish: str) -> None:
    assert fold([CallDelta(0, "a", "f", "{}"), Finished(said, said)]).finish_reason == finish


def test_calls_without_any_finish_word_are_calls() -> None:
    assert fold([CallDelta(0, "a", "f", "{}")]).finish_reason == "tool_calls"


def test_a_refusal_is_no_text() -> None:
    reply = fold([RefusalDelta("no"), Finished("stop", "stop")])
    assert (reply.text, reply.refusal, reply.finish_reason) == ("", "no", "refusal")


def test_nothing_at_all_is_an_error_but_an_empty_stop_is_an_answer() -> None:
    with pytest.raises(InvalidProviderResponseError):
        fold([])
    assert fold([Finished("stop", "stop")]).text == ""


@pytest.mark.parametrize(("pieces", "arguments"), [([""], "{}"), (["null"], "{}"), (['{"a"', ":1}"], '{"a":1}')])
def test_arguments_are_joined_and_nothing_means_an_empty_object(pieces: list[str], arguments: str) -> None:
    reply = fold([*(CallDelta(0, "a", "f", piece) for piece in pieces), Finished("tool_calls", "x")])
    assert reply.tool_calls is not None
    assert reply.tool_calls[0]["function"]["arguments"] == arguments


def test_a_cut_call_keeps_what_arrived() -> None:
    reply = fold([CallDelta(0, "a", "f", '{"a":'), Finished("length", "length")])
    assert reply.tool_calls is not None
    assert reply.tool_calls[0]["function"]["arguments"] == '{"a":'


def test_missing_and_repeated_ids_are_replaced() -> None:
    reply = fold([CallDelta(0, "a", "f"), CallDelta(1, "a", "g"), CallDelta(2, "", "h"), Finished("stop", "stop")])
    assert reply.tool_calls is not None
    ids = [call["id"] for call in reply.tool_calls]
    assert ids[0] == "a"
    assert len(set(ids)) == 3
    assert all(ids)


@given(st.text(max_size=30), st.text(max_size=30))
def test_a_reply_s_message_is_json_and_holds_text_and_reasoning(text: str, reasoning: str) -> None:
    reply = fold([TextDelta(text), ReasoningDelta(reasoning), Finished("stop", "stop")])
    assert json.loads(json.dumps(reply.message)) == reply.message
    assert (reply.message["content"] or "") == text
    assert reply.message.get("reasoning_content", "") == reasoning


def test_errors_survive_pickling_with_their_facts() -> None:
    error = RateLimitError("slow down", status=429, retry_after=2.5, limit="day", provider="p", model="m")
    again = pickle.loads(pickle.dumps(error))
    facts = (str(again), again.status, again.retry_after, again.limit, again.kind)
    assert facts == ("slow down", 429, 2.5, "day", "rate_limit")


def test_the_hint_is_part_of_the_message() -> None:
    assert str(RateLimitError("No.", hint="Wait.")) == "No. Wait."


def test_a_tool_name_that_no_provider_takes_goes_under_another_and_stays_unique() -> None:
    def tool(name: str) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name}}

    tools = ToolSet([tool("a.b"), tool("a_b"), tool("a b"), tool("plain")])
    assert [spec.name for spec in tools.specs] == ["a_b_2", "a_b", "a_b_3", "plain"]
    assert tools.renamed == {"a_b_2": "a.b", "a_b_3": "a b"}
    assert make_request("hi", tools=tools, choice="a.b").tool_choice == Choice("tool", "a_b_2")
