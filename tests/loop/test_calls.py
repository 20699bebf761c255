"""Arguments, ids and names on their way through the loop."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from tests.loop.scripted import WEATHER, Face, calls, declare, noted, results, says

import llmbroker
from llmbroker.errors import ToolLoopLimitError
from llmbroker.messages import validate

ANY = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize("text", ["", "null", "   "])
def test_B3_empty_arguments_run_the_tool_once_without_any(loop: Face, text: str) -> None:
    got: list[Any] = []
    reply = loop.run([calls(("f", text)), says()], tools=[declare("f", {})], dispatch={"f": noted(got)})
    assert got == [{}]
    assert reply.messages[1]["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.parametrize("text", ["{'city': 'Paris',}", '"{\\"city\\": \\"Paris\\"}"', '```json\n{"city": "Paris"}\n```'])
def test_B5_repaired_arguments_run_and_stand_readable_in_the_history(loop: Face, text: str) -> None:
    got: list[Any] = []
    reply = loop.run([calls(("get_weather", text)), says()], dispatch={"get_weather": noted(got)})
    assert got == [{"city": "Paris"}]
    assert reply.tool_history[0].repaired is True
    assert json.loads(reply.messages[1]["tool_calls"][0]["function"]["arguments"]) == {"city": "Paris"}
    assert reply.tool_history[0].arguments == '{"city":"Paris"}'


@pytest.mark.parametrize(
    "text", ['{"city": "Par', "[1]", "no json", '{"city": "a", "city": "b"}', '{"city": NaN}', '{"city": "\\ud83d"}']
)
def test_B11_B12_arguments_that_cannot_be_read_are_told_and_never_run(loop: Face, text: str) -> None:
    got: list[Any] = []
    reply = loop.run([calls(("f", text)), says()], tools=ANY, dispatch={"f": noted(got)})
    assert got == []
    assert results(reply.messages)[0].startswith("Tool f failed: ")
    assert reply.tool_history[0].arguments == text
    assert validate(reply.messages) == []


def test_B27_what_does_not_fit_is_told_with_the_value(loop: Face) -> None:
    reply = loop.run([calls(("get_weather", '{"city": 75000}')), says()])
    assert results(reply.messages) == ["Tool get_weather failed: city: expected string, got 75000 (integer)."]


def test_B15_B16_unreadable_arguments_stand_in_the_history_as_an_object(loop: Face) -> None:
    reply = loop.run([calls(("f", '{"x": ')), says()], tools=ANY, dispatch={"f": noted([])})
    assert json.loads(reply.messages[1]["tool_calls"][0]["function"]["arguments"]) == {"_unreadable": '{"x":'}


def test_unreadable_arguments_cannot_be_run_by_handing_the_messages_back(loop: Face) -> None:
    got: list[Any] = []
    error = loop.fail(
        ToolLoopLimitError, [calls(("f", '{"x": '), ("f", '{"x": 1}'))], max_steps=1, tools=ANY, dispatch={"f": noted(got)}
    )
    assert [m["tool_call_id"] for m in error.messages if m["role"] == "tool"] == ["id0"]
    reply = loop.run([says()], error.messages, tools=ANY, dispatch={"f": noted(got)})
    assert got == [{"x": 1}]
    assert [m["tool_call_id"] for m in reply.messages if m["role"] == "tool"] == ["id0", "id1"]


def test_an_open_call_of_a_mended_history_with_unreadable_arguments_is_not_run(loop: Face) -> None:
    got: list[Any] = []
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"_unreadable": "x"}'}}],
    }
    reply = loop.run([says()], [{"role": "user", "content": "q"}, message], tools=ANY, dispatch={"f": noted(got)})
    assert got == []
    assert "could not be read" in results(reply.messages)[0]


def test_repaired_arguments_of_an_open_call_are_kept_for_later(loop: Face) -> None:
    got: list[Any] = []
    error = loop.fail(ToolLoopLimitError, [calls(("f", "{'x': 1,}"))], max_steps=1, tools=ANY, dispatch={"f": noted(got)})
    loop.run([says()], error.messages, tools=ANY, dispatch={"f": noted(got)})
    assert got == [{"x": 1}]


@pytest.mark.parametrize("name", ["self", "fn", "args", "kwargs", "task", "loop", "context"])
def test_an_argument_may_have_any_name(loop: Face, name: str) -> None:
    got: list[Any] = []

    def tool(**given: Any) -> str:
        got.append(given)
        return "ok"

    loop.run([calls(("f", json.dumps({name: 1}))), says()], tools=ANY, dispatch={"f": tool})
    assert got == [{name: 1}]


# -- ids -------------------------------------------------------------------------------------------------------------------


def foreign(*given: Any, **more: Any) -> SimpleNamespace:
    return SimpleNamespace(text="", tool_calls=list(given), **more)


def call(identity: Any, arguments: Any = '{"city": "Paris"}', name: Any = "get_weather") -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("ids", [(None, None), ("", ""), ("same", "same"), (3, 3), (" ", "x"), ("\ud83d", "\ud83d")], ids=repr)
def test_C1_C2_missing_and_repeated_ids_become_unique_ones(loop: Face, ids: tuple[Any, Any]) -> None:
    reply = loop.run([foreign(*map(call, ids)), says()])
    given = [c["id"] for c in reply.messages[1]["tool_calls"]]
    assert len(set(given)) == 2 and all(given)
    assert [m["tool_call_id"] for m in reply.messages if m["role"] == "tool"] == given
    assert validate(reply.messages) == []


def test_C4_C5_C6_one_id_for_every_call_of_fifty_turns_keeps_every_result(loop: Face) -> None:
    turns: list[Any] = [calls(("get_weather", f'{{"city": "{n}"}}', "call_0")) for n in range(50)]
    reply = loop.run([*turns, says()], max_steps=60)
    assert results(reply.messages) == [f"It is 20°C in {n}" for n in range(50)]
    assert validate(reply.messages) == []


def test_C8_two_calls_of_one_name_both_run(loop: Face) -> None:
    reply = loop.run([calls(("get_weather", '{"city": "A"}'), ("get_weather", '{"city": "B"}')), says()])
    assert results(reply.messages) == ["It is 20°C in A", "It is 20°C in B"]


def test_C9_C10_an_unknown_tool_among_others_gets_exactly_one_result(loop: Face) -> None:
    reply = loop.run([calls(("get_weather", '{"city": "A"}'), ("nobody", "{}"), ("get_weather", '{"city": "B"}')), says()])
    texts = results(reply.messages)
    assert len(texts) == 3 and texts[1].startswith("Unknown tool nobody\n")
    assert validate(reply.messages) == []


@pytest.mark.parametrize("name", [None, "", " ", 7, "get weather!", "x" * 500, "\ud83d", "ünï"], ids=repr)
def test_C12_C14_no_name_poisons_the_history(loop: Face, name: Any) -> None:
    reply = loop.run([foreign(call("a", "{}", name)), says()])
    assert results(reply.messages)[0].startswith("Unknown tool ")
    assert len(results(reply.messages)[0]) < 400
    assert validate(reply.messages) == []
    names = [c["function"]["name"] for m in reply.messages for c in m.get("tool_calls") or ()]
    assert len(names) == 1 and re.fullmatch("[a-zA-Z0-9_-]{1,64}", names[0])


# -- foreign replies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        foreign(call("a")),
        foreign(call("a", {"city": "Paris"})),
        foreign({"id": "a", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}),
        foreign({"name": "get_weather", "arguments": {"city": "Paris"}}),
        foreign({"function": "get_weather", "parameters": {"city": "Paris"}}),
        foreign(SimpleNamespace(id="a", function=SimpleNamespace(name="get_weather", arguments='{"city": "Paris"}'))),
        foreign(SimpleNamespace(name="get_weather", arguments={"city": "Paris"})),
        SimpleNamespace(text="", tool_calls=call("a")),
        SimpleNamespace(content="thinking", tool_calls=(call("a"),), finish_reason="stop"),
        {"text": "", "tool_calls": [call("a")], "finish_reason": "tool_calls"},
        {"message": {"role": "assistant", "content": None, "tool_calls": [call("a")]}},
    ],
    ids=range(11),
)
def test_foreign_replies_of_any_shape_are_understood(loop: Face, answer: Any) -> None:
    transcript: dict[str, Any] = {}
    loop.run([answer, SimpleNamespace(text="done")], transcript=transcript)
    messages = transcript["messages"]
    assert results(messages) == ["It is 20°C in Paris"]
    assert messages[-1] == {"role": "assistant", "content": "done"}
    assert validate(messages) == []


@pytest.mark.parametrize("answer", ["text", None, 3, SimpleNamespace(), {}, {"tool_calls": "x"}, {"tool_calls": []}], ids=repr)
def test_a_foreign_reply_without_calls_ends_the_loop_as_it_is(loop: Face, answer: Any) -> None:
    transcript: dict[str, Any] = {}
    assert loop.run([answer], transcript=transcript) is answer
    assert transcript["tool_loop"].model_calls == 1


@pytest.mark.parametrize("broken", [None, 3, "x", [], {"function": None}, {"function": {"name": None}}], ids=repr)
def test_a_call_that_is_none_gets_a_result_all_the_same(loop: Face, broken: Any) -> None:
    transcript: dict[str, Any] = {}
    loop.run([foreign(broken, call("a")), SimpleNamespace(text="done")], transcript=transcript)
    assert len(results(transcript["messages"])) == 2
    assert validate(transcript["messages"]) == []


def test_opaque_keys_of_a_call_stay_on_it(loop: Face) -> None:
    signed = {**call("a"), "extra_content": {"google": {"thought_signature": "s"}}}
    reply = loop.run([foreign(signed), says()])
    assert reply.messages[1]["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "s"}}


def test_a_foreign_caller_gets_no_words_that_only_this_library_knows(loop: Face) -> None:
    loop.run([foreign(call("a", "{}", "nobody")), SimpleNamespace(text="done")])
    assert set(loop.caller.sent[1][-1]) == {"role", "tool_call_id", "content"}


# -- open calls ------------------------------------------------------------------------------------------------------------


def opened(*ids: Any) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [call(identity, json.dumps({"city": str(n)})) for n, identity in enumerate(ids)],
        },
    ]


@pytest.mark.parametrize("ids", [("a", "b"), ("a", "a"), (None, None), ("", "x")], ids=repr)
def test_open_calls_run_first_whatever_their_ids(loop: Face, ids: Any) -> None:
    messages = opened(*ids)
    reply = loop.run([says()], messages)
    assert results(loop.caller.sent[0]) == ["It is 20°C in 0", "It is 20°C in 1"]
    assert validate(reply.messages) == []
    assert messages == opened(*ids)


def test_G12_results_that_are_there_are_not_made_again_and_the_order_is_the_models(loop: Face) -> None:
    messages = [*opened("a", "b", "c"), {"role": "tool", "tool_call_id": "b", "content": "kept"}]
    reply = loop.run([says()], messages)
    assert results(reply.messages) == ["It is 20°C in 0", "kept", "It is 20°C in 2"]
    assert [row.id for row in reply.tool_history] == ["a", "c"]


def two(ids: tuple[Any, Any], *results: dict[str, Any]) -> list[Any]:
    """A history that ends with calls of the tools ``one`` and ``other``, and with these results."""
    asked = [call(identity, "{}", name) for identity, name in zip(ids, ("one", "other"), strict=True)]
    return [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": asked},
        *({"role": "tool", "content": "kept", **result} for result in results),
    ]


@pytest.mark.parametrize(
    ("ids", "results_given", "ran"),
    [
        (("a", "b"), [{"tool_call_id": "b"}], ["one"]),
        (("a", "b"), [{"tool_call_id": "a"}], ["other"]),
        (("a", "a"), [{"tool_call_id": "a"}], ["other"]),
        (("a", "b"), [{"name": "other"}], ["one"]),
        (("a", "b"), [{"tool_call_id": None, "name": "other"}], ["one"]),
        (("a", "b"), [{}], ["other"]),
        (("", ""), [{"tool_call_id": "", "name": "other"}], ["other"]),
        (("a", "b"), [{"tool_call_id": "b"}, {"tool_call_id": "b", "content": "again"}], ["one"]),
        (("a", "b"), [{"tool_call_id": "nobody's"}], ["one", "other"]),
        (("a", "b"), [{"role": "function", "name": "other"}], ["one"]),
    ],
)
def test_G12_a_result_belongs_to_one_call_and_that_call_is_not_run(
    loop: Face, ids: Any, results_given: Any, ran: list[str]
) -> None:
    """By its id, the first of that id; without an id by its name, else in order: as it would have been sent."""
    began: list[str] = []

    def noting(name: str) -> Any:
        return lambda: (began.append(name), f"ran {name}")[1]

    tools = [declare("one", {}), declare("other", {})]
    reply = loop.run([says()], two(ids, *results_given), tools=tools, dispatch={n: noting(n) for n in ("one", "other")})
    assert sorted(began) == sorted(ran)
    wanted = [f"ran {name}" if name in ran else "kept" for name in ("one", "other")]
    assert [message["role"] for message in reply.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert results(reply.messages) == wanted
    assert [row.name for row in reply.tool_history] == ran
    assert validate(reply.messages) == []


def test_E3_E4_calls_that_a_user_left_behind_are_not_run(loop: Face) -> None:
    messages = [*opened("a"), {"role": "user", "content": "never mind"}]
    reply = loop.run([says()], messages)
    assert len(reply.tool_history) == 0
    assert [m["role"] for m in reply.messages] == ["user", "assistant", "user", "assistant"]
    assert validate(llmbroker.repair(reply.messages)) == []


def test_an_open_turn_in_another_s_words_is_run_and_becomes_one_of_ours(loop: Face) -> None:
    """Behind a turn that is over: the newest counts, whatever its role is called."""
    user, turn = opened("a")
    messages = [user, {"role": "assistant", "content": "Wait."}, {**turn, "role": "model"}]
    reply = loop.run([says()], messages)
    assert [m["role"] for m in reply.messages] == ["user", "assistant", "assistant", "tool", "assistant"]
    assert results(reply.messages) == ["It is 20°C in 0"]


def test_C4_an_open_call_whose_id_an_earlier_turn_used_gets_a_new_one(loop: Face) -> None:
    messages = [*opened("a"), {"role": "tool", "tool_call_id": "a", "content": "there"}, opened("a")[1]]
    reply = loop.run([says()], messages)
    ids = [call["id"] for m in reply.messages for call in m.get("tool_calls") or ()]
    assert len(set(ids)) == 2
    assert ids[0] == "a"
    assert results(reply.messages) == ["there", "It is 20°C in 0"]


@pytest.mark.parametrize(("before", "new"), [("a", "a"), ("c d", "c d"), ("c d", "c_d")])
@pytest.mark.parametrize("open_", [True, False], ids=["an open call", "an answered call"])
def test_C4_an_id_that_the_history_has_used_is_not_used_again(loop: Face, before: str, new: str, open_: bool) -> None:
    """As it was given, and as it is sent where the wire has no such ids."""
    answered = [] if open_ else [{"role": "tool", "tool_call_id": before, "content": "there"}]
    reply = loop.run([calls(("get_weather", '{"city": "B"}', new)), says()], [*opened(before), *answered])
    ids = [call["id"] for m in reply.messages for call in m.get("tool_calls") or ()]
    assert len(ids) == 2
    assert ids[1] not in (before, new)
    assert [m["tool_call_id"] for m in reply.messages if m["role"] == "tool"] == ids
    assert results(reply.messages) == ["It is 20°C in 0" if open_ else "there", "It is 20°C in B"]


def test_a_history_that_begins_with_open_calls_will_do(loop: Face) -> None:
    assert results(loop.run([says()], opened("a")[1:]).messages) == ["It is 20°C in 0"]


def test_open_calls_without_functions_are_answered(loop: Face) -> None:
    reply = loop.run([says()], opened("a"), tools=WEATHER, dispatch=None)
    assert results(reply.messages)[0].startswith("Unknown tool get_weather\nThere are no tools to call")
