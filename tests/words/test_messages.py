"""Histories: what is refused, what is repaired, and that a block once finished never changes."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbroker.errors import InvalidRequestError
from llmbroker.messages import Block, History, encode_blocks, repair, validate

PNG = "data:image/png;base64,iVBORw0KGgo="


def call(ident: Any = "a", name: Any = "f", arguments: Any = "{}", **extra: Any) -> dict[str, Any]:
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}, **extra}


def assistant(*calls: dict[str, Any], content: Any = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(ident: str = "a", content: Any = "r") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": ident, "content": content}


USER = {"role": "user", "content": "hi"}

BAD: dict[str, tuple[Any, str]] = {
    "nothing": ([], "messages"),
    "a number": (7, "messages"),
    "bytes": (b"hi", "messages"),
    "a message that is a string": (["hi"], "messages[0]"),
    "no role": ([{"content": "x"}], "messages[0].role"),
    "an unknown role": ([{"role": "wizard", "content": "x"}], "messages[0].role"),
    "a user without content": ([{"role": "user", "content": None}], "messages[0].content"),
    "content that is a number": ([{"role": "user", "content": 3}], "messages[0].content"),
    "an unknown part": ([{"role": "user", "content": [{"type": "smell"}]}], "messages[0].content[0].type"),
    "an image path": (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "/etc/passwd"}}]}],
        "messages[0].content[0].image_url",
    ),
    "a lone surrogate": ([{"role": "user", "content": "a\ud800"}], "messages[0].content"),
    "calls that are no list": ([USER, {"role": "assistant", "tool_calls": "x"}], "messages[1].tool_calls"),
    "a call without a function": ([USER, {"role": "assistant", "tool_calls": [{"id": "a"}]}], "messages[1].tool_calls[0]"),
}


@pytest.mark.parametrize(("messages", "argument"), BAD.values(), ids=BAD)
def test_a_malformed_history_is_refused_and_the_argument_named(messages: Any, argument: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        History(messages)
    assert caught.value.argument == argument


def test_a_string_is_one_user_message() -> None:
    assert History("hi") == [USER]


def test_results_come_in_the_order_of_the_calls() -> None:
    block = History([USER, assistant(call("a"), call("b")), result("b", "2"), result("a", "1")]).blocks[1]
    assert [r.text for r in block.results] == ["1", "2"]


def test_a_call_without_a_result_gets_one_that_says_so() -> None:
    block = History([USER, assistant(call("a")), USER]).blocks[1]
    assert "interrupted" in block.results[0].text
    assert block.results[0].is_error


def test_an_orphan_result_is_dropped() -> None:
    assert History([USER, result("zzz")]).blocks[0].results == ()


def test_one_id_used_in_every_turn_keeps_every_result() -> None:
    messages: list[Any] = [USER]
    for turn in range(50):
        messages += [assistant(call("same", arguments=json.dumps({"n": turn}))), result("same", str(turn))]
    blocks = History(messages).blocks[1:]
    assert [b.results[0].text for b in blocks] == [str(turn) for turn in range(50)]
    ids = [b.results[0].id for b in blocks]
    assert len(set(ids)) == 50
    assert validate(repair(messages)) == []


def test_two_calls_of_one_id_in_one_turn_get_their_results_in_order() -> None:
    turn = assistant(call("same"), call("same"))
    (_, block) = History([USER, turn, result("same", "first"), result("same", "second"), result("same", "nobody's")]).blocks
    assert [r.text for r in block.results] == ["first", "second"]
    (_, block) = History([USER, turn, result("same", "first")]).blocks
    assert block.results[0].text == "first"
    assert block.results[1].is_error
    assert len({r.id for r in block.results}) == 2


def test_an_id_goes_out_as_it_was_given_once_only() -> None:
    """A provider that wants its own ids back gets each from the first call that bore it."""
    turns = [m for n in range(3) for m in (assistant(call("a b")), result("a b", str(n)))]
    given = [block.assistant.calls[0].given for block in History([USER, *turns]).blocks if block.assistant]
    assert given == ["a b", "", ""]


@pytest.mark.parametrize("arguments", ["", "null", None, "  "])
def test_empty_arguments_are_an_empty_object(arguments: Any) -> None:
    block = History([USER, assistant(call(arguments=arguments))]).blocks[1]
    assert block.assistant is not None
    assert block.assistant.calls[0].arguments == "{}"


@pytest.mark.parametrize("arguments", ['{"a":', "[1]", "7", '"x"', "not json", 12])
def test_unreadable_arguments_stay_visible_but_become_an_object(arguments: Any) -> None:
    block = History([USER, assistant(call(arguments=arguments))]).blocks[1]
    assert block.assistant is not None
    assert list(json.loads(block.assistant.calls[0].arguments)) == ["_unreadable"]


@pytest.mark.parametrize(("name", "wire"), [("a b", "a_b"), ("", "unknown"), (None, "unknown"), ("x" * 70, "x" * 64)])
def test_names_fit_every_provider(name: Any, wire: str) -> None:
    block = History([USER, assistant(call(name=name))]).blocks[1]
    assert block.assistant is not None
    assert block.assistant.calls[0].name == wire


def test_open_calls_are_those_without_a_result() -> None:
    history = History([USER, assistant(call("a"), call("b")), result("a")])
    assert [c["id"] for c in history.open_calls()] == ["b"]
    history.append(result("b"))
    assert history.open_calls() == []


def test_a_finished_block_is_encoded_once() -> None:
    seen: list[int] = []

    def encode(block: Block, current: bool) -> list[Any]:
        seen.append(block.size)
        return [block.size]

    history = History([USER])
    for _ in range(20):
        history += [assistant(call()), result()]
        encode_blocks(history, "k", encode, by_loop=False)
    # 20 encodings of a last block, 20 of blocks that had just been finished.
    assert len(seen) == 40
    assert msgspec.json.decode(encode_blocks(history, "k", encode, by_loop=False)) == [1] + [2] * 20


def test_extending_in_place_keeps_the_view_right() -> None:
    history = History([USER])
    history.extend([assistant(content="x")])
    history[0] = {"role": "user", "content": "changed"}
    assert history.blocks[0].users[0].text == "changed"


MESSAGES = st.lists(
    st.one_of(
        st.just(USER),
        st.builds(result, st.sampled_from(["a", "b", "", "c"]), st.sampled_from(["", "r"])),
        st.builds(
            lambda calls: assistant(*calls, content="t"),
            st.lists(
                st.builds(
                    call,
                    st.sampled_from(["a", "b", "", None, "é", "x" * 80]),
                    st.sampled_from(["f", "", "bad name", None]),
                    st.sampled_from(["{}", "", "null", '{"a":1}', '{"a":', "[]", None]),
                ),
                max_size=3,
            ),
        ),
    ),
    min_size=1,
    max_size=12,
)


@given(MESSAGES)
def test_a_repaired_history_is_valid_and_repairing_again_changes_nothing(messages: list[Any]) -> None:
    before = copy.deepcopy(messages)
    fixed = repair(messages)
    assert messages == before
    if fixed:  # orphan results alone leave nothing
        assert validate(fixed) == []
        assert repair(fixed) == fixed


@given(MESSAGES, st.integers(0, 12))
def test_reading_in_two_steps_gives_the_same_blocks(messages: list[Any], at: int) -> None:
    at = max(1, min(at, len(messages)))
    history = History(messages[:at])
    _ = history.blocks
    history.extend(messages[at:])
    assert history.blocks == History(messages).blocks


@given(MESSAGES)
def test_every_call_has_exactly_one_result_and_ids_are_unique(messages: list[Any]) -> None:
    ids = []
    for block in History(messages).blocks:
        calls = block.assistant.calls if block.assistant else ()
        assert [c.id for c in calls] == [r.id for r in block.results]
        ids += [c.id for c in calls]
    assert len(ids) == len(set(ids))
