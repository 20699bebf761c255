"""How a turn ended decides whether its calls are run, and whether the model is asked again."""

from __future__ import annotations

from typing import Any

import pytest
from tests.loop.scripted import Face, calls, noted, results, says

from llmbroker.errors import MalformedCallError, ToolLoopLimitError
from llmbroker.messages import validate

PARIS = ("get_weather", '{"city": "Paris"}')


@pytest.mark.parametrize(
    ("finish", "raw"), [("stop", "stop"), ("tool_calls", "tool_calls"), ("unknown", "weird"), ("unknown", None)]
)
def test_D1_D4_complete_calls_run_whatever_harmless_word_ended_the_turn(loop: Face, finish: str, raw: str | None) -> None:
    got: list[Any] = []
    loop.run([calls(PARIS, finish=finish, raw=raw), says()], dispatch={"get_weather": noted(got)})
    assert got == [{"city": "Paris"}]


@pytest.mark.parametrize("text", ['{"city": "Paris"}', '{"city": "Par'])
def test_B13_D4_calls_of_a_cut_answer_are_never_run_and_the_model_is_told_why(loop: Face, text: str) -> None:
    got: list[Any] = []
    reply = loop.run([calls(("get_weather", text), finish="length"), says()], dispatch={"get_weather": noted(got)})
    assert got == []
    assert results(reply.messages)[0].startswith("Tool get_weather failed: the answer was cut at the token limit")
    assert reply.text == "It is 20°C in Paris."
    assert (reply.tool_loop.model_calls, reply.tool_loop.tool_calls) == (2, 1)
    assert validate(reply.messages) == []


def test_cut_calls_of_the_last_step_cannot_be_run_by_handing_the_messages_back(loop: Face) -> None:
    got: list[Any] = []
    error = loop.fail(ToolLoopLimitError, [calls(PARIS, finish="length")], max_steps=1, dispatch={"get_weather": noted(got)})
    assert validate(error.messages) == []
    loop.run([says()], error.messages, dispatch={"get_weather": noted(got)})
    assert got == []


@pytest.mark.parametrize("finish", ["content_filter", "refusal", "error"])
def test_D4_D5_calls_of_an_answer_that_was_stopped_are_not_run_and_the_loop_ends(loop: Face, finish: str) -> None:
    got: list[Any] = []
    for steps in (1, 8):
        reply = loop.run([calls(PARIS, finish=finish)], max_steps=steps, dispatch={"get_weather": noted(got)})
        assert got == [] and reply.finish_reason == finish
        assert results(reply.messages)[0].startswith("Tool get_weather failed: the ")
        assert "not run" in results(reply.messages)[0]
        assert validate(reply.messages) == []


@pytest.mark.parametrize("finish", ["length", "content_filter", "refusal", "error", "unknown"])
def test_an_answer_without_calls_ends_the_loop_with_its_reason(loop: Face, finish: str) -> None:
    reply = loop.run([says("so far", finish)])
    assert (reply.text, reply.finish_reason) == ("so far", finish)


@pytest.mark.parametrize(
    "word", ["MALFORMED_FUNCTION_CALL", "TOO_MANY_TOOL_CALLS", "MISSING_THOUGHT_SIGNATURE", "malformed_tool_use"]
)
def test_D7_D8_a_call_that_the_provider_could_not_read_is_told_to_the_model(loop: Face, word: str) -> None:
    reply = loop.run([says("", "error", word), calls(PARIS), says()])
    correction = reply.messages[1]
    assert correction["role"] == "user"
    assert word.lower() in correction["content"] and "get_weather" in correction["content"]
    assert reply.tool_loop.model_calls == 3
    assert validate(reply.messages) == []


def test_D7_an_unexpected_call_is_answered_and_the_loop_goes_on(loop: Face) -> None:
    got: list[Any] = []
    turn = calls(PARIS, finish="error", raw="UNEXPECTED_TOOL_CALL")
    reply = loop.run([turn, says("fine")], dispatch={"get_weather": noted(got)})
    assert got == [] and reply.text == "fine"
    assert validate(reply.messages) == []


def test_D9_a_call_that_the_provider_threw_away_is_told_to_the_model(loop: Face) -> None:
    refused = MalformedCallError(
        "Failed to call a function.", status=400, code="tool_use_failed", generation="<function=get_weather{>"
    )
    reply = loop.run([refused, calls(PARIS), says()])
    assert reply.messages[1] == {"role": "assistant", "content": "<function=get_weather{>"}
    assert "Failed to call a function." in reply.messages[2]["content"]
    assert (reply.tool_loop.model_calls, reply.tool_loop.unknown_usage) == (3, 1)
    assert validate(reply.messages) == []


def test_D9_corrections_are_bounded(loop: Face) -> None:
    refused = [MalformedCallError(f"no {n}") for n in range(9)]
    error = loop.fail(MalformedCallError, list(refused))
    assert error is refused[2] and error.tool_loop.model_calls == 3
    assert validate(error.messages) == []


def test_D9_on_the_last_step_the_providers_error_leaves(loop: Face) -> None:
    refused = MalformedCallError("no")
    assert loop.fail(MalformedCallError, [calls(PARIS), refused], max_steps=2).messages[-1]["role"] == "tool"


def test_D7_corrections_are_bounded_and_count_steps(loop: Face) -> None:
    bad = says("", "error", "MALFORMED_FUNCTION_CALL")
    reply = loop.run([bad] * 9)
    assert reply.finish_reason == "error" and reply.tool_loop.model_calls == 3
    error = loop.fail(ToolLoopLimitError, [bad] * 9, max_steps=2)
    assert error.reply is bad and error.tool_loop.model_calls == 2


def test_corrections_in_a_row_only_are_counted(loop: Face) -> None:
    bad = says("", "error", "MALFORMED_FUNCTION_CALL")
    assert loop.run([bad, bad, calls(PARIS), bad, bad, says("end")]).text == "end"


@pytest.mark.parametrize("word", ["pause_turn", "compaction"])
def test_D3_a_paused_turn_is_sent_back_unchanged(loop: Face, word: str) -> None:
    reply = loop.run([says("searching", "unknown", word), says("found")])
    assert loop.caller.sent[1][-1] == {"role": "assistant", "content": "searching"}
    assert reply.text == "found"


def test_D3_pauses_are_bounded_by_the_steps(loop: Face) -> None:
    error = loop.fail(ToolLoopLimitError, [says("s", "unknown", "pause_turn")] * 9, max_steps=3)
    assert error.tool_loop.model_calls == 3 and "paused" in str(error)


def test_the_error_at_the_limit_says_what_to_do(loop: Face) -> None:
    error = loop.fail(ToolLoopLimitError, [calls(PARIS)], max_steps=1)
    assert "max_steps=1" in str(error) and "get_weather" in str(error) and "hand error.messages to the loop again" in str(error)
