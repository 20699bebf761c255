"""The seed's sentences: what the loop does, step by step, and what it hands back."""

from __future__ import annotations

import copy
import types
from typing import Any

import pytest
from tests.loop.scripted import WEATHER, AsyncScripted, Face, Scripted, calls, declare, get_weather, noted, results, says

import llmbroker
from llmbroker.errors import InvalidRequestError, ServerError, ToolLoopLimitError
from llmbroker.exchange import ToolSet, Usage
from llmbroker.loop import ToolLoop, Transcript, run_tool_loop
from llmbroker.messages import History, validate

PARIS = ("get_weather", '{"city": "Paris"}')


def test_the_weather_example_runs(loop: Face) -> None:
    reply = loop.run([calls(PARIS), says()])
    assert reply.text == "It is 20°C in Paris."
    assert [m["role"] for m in reply.messages] == ["user", "assistant", "tool", "assistant"]
    assert results(reply.messages) == ["It is 20°C in Paris"]
    assert loop.caller.sent[1][-1] == {"role": "tool", "tool_call_id": "id0", "content": "It is 20°C in Paris"}
    assert validate(reply.messages) == []


def test_usage_is_that_of_the_last_call_and_the_sums_are_beside_it(loop: Face) -> None:
    reply = loop.run([calls(PARIS, usage=Usage(10, 5, 4, None, 2)), calls(PARIS, usage=None), says(usage=Usage(30, 7))])
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (30, 7)
    assert reply.tool_loop == ToolLoop(model_calls=3, sent=40, rec=12, tool_calls=2, unknown_usage=1, reasoning=2, cached=4)


def test_sums_are_unknown_where_no_call_said_anything(loop: Face) -> None:
    reply = loop.run([calls(PARIS, usage=None), says(usage=None)])
    assert reply.tool_loop == ToolLoop(model_calls=2, sent=None, rec=None, tool_calls=1, unknown_usage=2)


def test_rows_say_what_happened(loop: Face) -> None:
    reply = loop.run([calls(PARIS, ("get_weather", '{"city": 3}')), calls(("nobody", "{}")), says()])
    first, second, third = reply.tool_history
    assert (first.round, first.id, first.name, first.arguments) == (1, "id0", "get_weather", '{"city": "Paris"}')
    assert (first["result"], first["error"], first["repaired"]) == ("It is 20°C in Paris", None, False)
    assert first.duration >= 0
    assert second.error == "city: expected string, got 3 (integer)." and second.duration is None
    assert (third.round, third.error) == (2, "unknown tool")
    assert [row.id for row in reply.tool_history] == ["id0", "id1", reply.messages[4]["tool_calls"][0]["id"]]


def test_a_failing_tool_is_told_to_the_model_in_the_seeds_words(loop: Face) -> None:
    def broken(city: str) -> str:
        raise ValueError(f"no such city: {city}")

    reply = loop.run([calls(PARIS), says()], dispatch={"get_weather": broken})
    assert results(reply.messages) == ["Tool get_weather failed: no such city: Paris"]
    assert reply.tool_history[0].error == "no such city: Paris"


@pytest.mark.parametrize(
    ("error", "words"), [(ValueError(), "ValueError"), (KeyError("k"), "'k'"), (OSError(2, "gone"), "[Errno 2] gone")]
)
def test_an_error_without_words_shows_its_class(loop: Face, error: Exception, words: str) -> None:
    def broken(city: str) -> str:
        raise error

    reply = loop.run([calls(PARIS), says()], dispatch={"get_weather": broken})
    assert results(reply.messages) == [f"Tool get_weather failed: {words}"]


def test_an_unknown_tool_is_told_to_the_model_in_the_seeds_words_with_hints_on_further_lines(loop: Face) -> None:
    reply = loop.run([calls(("get_wether", "{}")), says()])
    first, *hints = results(reply.messages)[0].split("\n")
    assert first == "Unknown tool get_wether"
    assert hints == ["Did you mean get_weather?", "Known tools: get_weather."]


def test_a_declared_tool_without_a_function_is_unknown(loop: Face) -> None:
    reply = loop.run([calls(PARIS), says()], dispatch={})
    assert results(reply.messages)[0].startswith("Unknown tool get_weather\n")


def test_a_function_without_a_declaration_runs(loop: Face) -> None:
    got: list[Any] = []
    loop.run([calls(("extra", '{"a": 1}')), says()], dispatch={"extra": noted(got)})
    assert got == [{"a": 1}]


@pytest.mark.parametrize("name", ["__class__", "self", "ctx", "constructor", "__init__", "get"])
def test_C13_names_of_the_language_are_plain_unknown_names(loop: Face, name: str) -> None:
    reply = loop.run([calls((name, "{}")), says()])
    assert results(reply.messages)[0].startswith(f"Unknown tool {name}\n")


def test_C16_a_name_inside_another_is_another_tool(loop: Face) -> None:
    got: list[Any] = []
    tools = [declare("get", {}), declare("get_all", {})]
    loop.run([calls(("get", "{}")), says()], tools=tools, dispatch={"get": noted(got), "get_all": noted([])})
    assert got == [{}]


@pytest.mark.parametrize(
    ("declared", "called"), [("spotify.play", "spotify_play"), ("get weather", "get_weather"), ("add", " add\n")]
)
def test_C12_a_name_that_was_changed_for_the_wire_finds_its_tool(loop: Face, declared: str, called: str) -> None:
    got: list[Any] = []
    reply = loop.run([calls((called, "{}")), says()], tools=[declare(declared, {})], dispatch={declared: noted(got)})
    assert got == [{}]
    assert validate(reply.messages) == []


def test_two_names_that_are_one_on_the_wire_are_not_guessed_between(loop: Face) -> None:
    tools = [declare("a.b", {}), declare("a/b", {})]
    reply = loop.run([calls(("a_b", "{}")), says()], tools=tools, dispatch={"a.b": noted([]), "a/b": noted([])})
    assert results(reply.messages)[0].startswith("Unknown tool a_b\n")


# -- limits ----------------------------------------------------------------------------------------------------------------


def test_the_last_permitted_step_does_not_run_its_calls(loop: Face) -> None:
    got: list[Any] = []
    last = calls(PARIS)
    error = loop.fail(ToolLoopLimitError, [calls(PARIS), last], max_steps=2, dispatch={"get_weather": noted(got)})
    assert len(got) == 1
    assert error.reply is last
    assert error.reason == "steps"
    assert error.tool_loop.model_calls == 2
    assert len(error.tool_history) == 1
    assert error.messages[-1]["tool_calls"][0]["function"]["arguments"] == '{"city": "Paris"}'
    assert len(loop.caller.sent) == 2


def test_the_messages_of_a_limit_go_on_with_the_open_calls_first(loop: Face) -> None:
    got: list[Any] = []
    error = loop.fail(ToolLoopLimitError, [calls(PARIS, PARIS)], max_steps=1, dispatch={"get_weather": noted(got)})
    given = copy.deepcopy(error.messages)
    reply = loop.run([says("done")], error.messages, dispatch={"get_weather": noted(got)})
    assert got == [{"city": "Paris"}] * 2
    assert [row.round for row in reply.tool_history] == [0, 0]
    assert results(loop.caller.sent[0]) == ["ok", "ok"]
    assert error.messages == given
    assert validate(reply.messages) == []


def test_the_last_step_may_answer(loop: Face) -> None:
    assert loop.run([calls(PARIS), says("yes")], max_steps=2).text == "yes"


@pytest.mark.parametrize("steps", [0, -1, True, 1.5, "3", None])
def test_a_number_of_steps_that_means_nothing_is_refused(loop: Face, steps: Any) -> None:
    error = loop.fail(InvalidRequestError, [says()], max_steps=steps)
    assert error.argument == "max_steps"
    assert loop.caller.sent == []


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        ("max_concurrency", {"max_concurrency": 0}),
        ("max_repeats", {"max_repeats": 1}),
        ("result_limit", {"result_limit": 0}),
        ("result_limit", {"result_limit": True}),
        ("dispatch", {"dispatch": [get_weather]}),
        ("dispatch", {"dispatch": {3: get_weather}}),
        ("dispatch['f']", {"dispatch": {"f": "no function"}}),
        ("transcript", {"transcript": 3}),
        ("messages", {"messages": []}),
        ("messages[0].role", {"messages": [{"role": "nobody", "content": "x"}]}),
        ("tools[0]", {"tools": ["no tool"]}),
        ("tools[1]", {"tools": WEATHER * 2}),
    ],
)
def test_a_wrong_argument_is_named_before_anything_is_sent(loop: Face, argument: str, given: dict[str, Any]) -> None:
    error = loop.fail(InvalidRequestError, [says()], **given)
    assert error.argument == argument
    assert loop.caller.sent == []


def test_an_object_without_chat_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="chat") as caught:
        run_tool_loop(object(), "hi")
    assert caught.value.argument == "caller"


def test_the_plain_loop_refuses_a_caller_that_must_be_awaited() -> None:
    with pytest.raises(InvalidRequestError, match="arun_tool_loop"):
        run_tool_loop(AsyncScripted(says()), "hi")


@pytest.mark.parametrize("begin", [run_tool_loop, llmbroker.stream_tool_loop])
def test_a_plain_loop_over_an_async_broker_says_which_loop_is_meant(begin: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"AsyncBroker[.]chat is asynchronous: use await arun_tool_loop"):
        begin(llmbroker.AsyncBroker(pool=[], journal=False), "hi")


@pytest.mark.parametrize("budget", [3, 0.5, {"steps": 3}])
def test_a_budget_that_is_none_is_refused(budget: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"budget is a Budget\(...\)"):
        run_tool_loop(Scripted(says()), "hi", budget=budget)


def test_an_object_that_holds_tools_is_told_from_a_tool() -> None:
    class Server:
        def tools(self) -> list[Any]:
            return []

    with pytest.raises(InvalidRequestError, match=r"\*server.tools\(\)"):
        run_tool_loop(Scripted(says()), "hi", tools=[Server()])


def test_the_awaited_loop_takes_a_plain_caller() -> None:
    import asyncio

    from llmbroker.loop import arun_tool_loop

    assert asyncio.run(arun_tool_loop(Scripted(says("plain")), "hi")).text == "plain"


# -- what the caller gets, what it keeps --------------------------------------------------------------------------------------


def test_further_parameters_reach_every_chat(loop: Face) -> None:
    loop.run([calls(PARIS), says()], operation="weather-agent", trace_id="t1", wait=3)
    assert loop.caller.parameters == [{"operation": "weather-agent", "trace_id": "t1", "wait": 3}] * 2


def test_one_growing_history_and_one_checked_set_of_tools_reach_every_chat(loop: Face) -> None:
    seen: list[Any] = []
    loop.run([lambda m: seen.append(m) or calls(PARIS), lambda m: seen.append(m) or says()])
    assert isinstance(seen[0], History) and seen[0] is seen[1]
    assert isinstance(loop.caller.tools[0], ToolSet) and loop.caller.tools[0] is loop.caller.tools[1]
    assert loop.caller.tools[0] == WEATHER


def test_B24_neither_messages_nor_schemas_of_the_user_are_changed(loop: Face) -> None:
    messages = [{"role": "user", "content": "hi"}]
    tools = [declare("f", {"a": {"anyOf": [{"$ref": "#/$defs/A"}]}}, **{"$defs": {"A": {"type": "integer"}}})]
    kept = copy.deepcopy((messages, tools))
    loop.run([calls(("f", '{"a": "3"}')), says()], messages, tools=tools, dispatch={"f": noted([])})
    assert (messages, tools) == kept


def test_the_messages_that_come_back_are_lists_of_their_own(loop: Face) -> None:
    given = [{"role": "user", "content": "hi"}]
    reply = loop.run([calls(PARIS), says()], given)
    assert type(reply.messages) is list
    reply.messages.clear()
    assert given == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}, "get_weather"])
def test_a_forced_choice_of_tool_holds_for_the_first_step_only(loop: Face, choice: Any) -> None:
    loop.run([calls(PARIS), says()], tool_choice=choice)
    assert [p["tool_choice"] for p in loop.caller.parameters] == [choice, "auto"]
    loop.run([calls(PARIS), says()], params={"tool_choice": choice, "seed": 1})
    assert [p["params"] for p in loop.caller.parameters] == [
        {"tool_choice": choice, "seed": 1},
        {"tool_choice": "auto", "seed": 1},
    ]


@pytest.mark.parametrize("choice", ["auto", "none", None])
def test_a_free_choice_of_tool_stays(loop: Face, choice: Any) -> None:
    loop.run([calls(PARIS), says()], tool_choice=choice)
    assert [p["tool_choice"] for p in loop.caller.parameters] == [choice] * 2


def test_a_forced_choice_can_be_kept(loop: Face) -> None:
    loop.run([calls(PARIS), says()], tool_choice="required", keep_tool_choice=True)
    assert [p["tool_choice"] for p in loop.caller.parameters] == ["required"] * 2


@pytest.mark.parametrize("make", [Transcript, types.SimpleNamespace, dict])
def test_a_transcript_receives_what_happened_to_a_foreign_reply(loop: Face, make: Any) -> None:
    transcript = make()
    answer = types.SimpleNamespace(text="fine", tool_calls=None, usage={"prompt_tokens": 3, "completion_tokens": 4})
    reply = loop.run([calls(PARIS), answer], transcript=transcript)
    got = transcript if isinstance(transcript, dict) else vars(transcript)
    assert reply is answer and not hasattr(reply, "messages")
    assert got["messages"][-1] == {"role": "assistant", "content": "fine"}
    assert got["tool_loop"].sent == 13 and got["tool_loop"].rec == 9
    assert len(got["tool_history"]) == 1


@pytest.mark.parametrize("error", [ServerError("down"), ValueError("foreign"), KeyboardInterrupt(), SystemExit(3)])
def test_every_exception_that_leaves_carries_what_happened(loop: Face, error: BaseException) -> None:
    transcript = Transcript()
    caught = loop.fail(type(error), [calls(PARIS), error], transcript=transcript)
    assert caught is error
    assert results(caught.messages) == ["It is 20°C in Paris"]
    assert validate(caught.messages) == []
    assert caught.tool_loop == ToolLoop(model_calls=2, sent=10, rec=5, tool_calls=1, unknown_usage=1)
    assert caught.tool_history[0].name == "get_weather"
    assert transcript.messages == caught.messages


def test_an_exception_that_takes_no_attributes_leaves_as_it_is(loop: Face) -> None:
    class Closed(Exception):
        __slots__ = ()

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "messages":
                raise AttributeError(name)
            super().__setattr__(name, value)

    transcript = Transcript()
    loop.fail(Closed, [calls(PARIS), Closed()], transcript=transcript)
    assert len(transcript.messages) == 3


def test_an_empty_final_answer_is_handed_back_and_leaves_no_empty_message(loop: Face) -> None:
    reply = loop.run([calls(PARIS), says("")])
    assert (reply.text, reply.finish_reason) == ("", "stop")
    assert reply.messages[-1]["role"] == "tool"


def test_a_loop_without_tools_is_one_call(loop: Face) -> None:
    reply = loop.run([says("hello")], tools=None, dispatch=None)
    assert reply.text == "hello" and loop.caller.tools == [None]


# -- repeats ---------------------------------------------------------------------------------------------------------------


def test_G16_a_call_that_repeats_with_one_result_ends_the_loop(loop: Face) -> None:
    other = ("get_weather", '{ "city":"Paris"}')
    error = loop.fail(ToolLoopLimitError, [calls(PARIS), calls(other), calls(PARIS), says()], max_repeats=3)
    assert error.reason == "repeats"
    assert validate(error.messages) == []
    assert len(results(error.messages)) == 3
    assert "2 times now" in results(error.messages)[1]


def test_G17_a_call_whose_result_changes_does_not_repeat(loop: Face) -> None:
    count = iter(range(9))
    reply = loop.run([calls(PARIS)] * 5 + [says()], max_repeats=2, dispatch={"get_weather": lambda city: next(count)})
    assert results(reply.messages) == ["0", "1", "2", "3", "4"]


def test_different_arguments_with_one_result_do_not_repeat(loop: Face) -> None:
    turns = [calls(("get_weather", f'{{"city": "{name}"}}')) for name in "abc"]
    assert loop.run([*turns, says("end")], max_repeats=2, dispatch={"get_weather": lambda city: "ok"}).text == "end"


def test_a_call_that_alternates_with_another_repeats_too(loop: Face) -> None:
    rome = ("get_weather", '{"city": "Rome"}')
    error = loop.fail(ToolLoopLimitError, [calls(PARIS), calls(rome), calls(PARIS), says()], max_repeats=2)
    assert error.reason == "repeats"


def test_repeats_are_not_counted_unless_asked_for(loop: Face) -> None:
    reply = loop.run([calls(PARIS)] * 7 + [says()])
    assert results(reply.messages) == ["It is 20°C in Paris"] * 7
