"""Messages in every form that people write; files only where they are named as such."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.research.conftest import Face

from llmbroker import InvalidRequestError
from llmbroker.messages import History
from llmbroker.research.prompts import is_conversation, read_messages

BOTH = [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    "given",
    [
        BOTH,
        [("system", "Be terse."), ("user", "Hello")],
        [["system", "Be terse."], ["user", "Hello"]],
        {"system": "Be terse.", "user": "Hello"},
        [{"role": "system", "content": "Be terse."}, "Hello"],
        [("system", "Be terse."), "Hello"],
        [("system", "Be terse."), (None, "Hello")],
    ],
    ids=["dicts", "pairs", "lists", "mapping", "mixed", "bare text", "no role"],
)
def test_every_shape_is_the_same_conversation(face: Face, config: Any, given: Any) -> None:
    face.answers("a").call_llm(config, given)
    assert json.loads(face.port.requests[0].body)["messages"] == BOTH


def test_one_message_alone_is_a_conversation() -> None:
    assert read_messages(BOTH[1]) == [BOTH[1]]
    assert read_messages(("user", "Hello")) == [BOTH[1]]


@pytest.mark.parametrize("given", [None, 3, b"x", [3], [("wizard", "x")], [("user", "a", "b")], {}, []])
def test_what_is_no_conversation_is_refused(face: Face, config: Any, given: Any) -> None:
    with pytest.raises(InvalidRequestError):
        face.call_llm(config, given)


def test_a_text_is_never_taken_for_a_role_or_a_path(face: Face, config: Any, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("do not read")
    face.answers("a", "a").call_llm(config, str(secret))
    face.call_llm(config, [("user", "system"), ("assistant", "x"), ("user", str(secret))])
    assert all(b"do not read" not in request.body for request in face.port.requests)


def test_a_file_joins_the_text_beside_it(face: Face, config: Any, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(b"\x89PNG data")
    (tmp_path / "paper.pdf").write_bytes(b"%PDF data")
    face.answers("a")
    face.call_llm(config, [("file", tmp_path / "photo.png"), ("user", "What is this?"), ("file", tmp_path / "paper.pdf")])
    (message,) = json.loads(face.port.requests[0].body)["messages"]
    kinds = [part["type"] for part in message["content"]]
    assert sorted(kinds) == ["file", "image_url", "text"]
    image = next(part for part in message["content"] if part["type"] == "image_url")
    assert image["image_url"]["url"] == "data:image/png;base64," + base64.b64encode(b"\x89PNG data").decode()
    assert str(tmp_path).encode() not in face.port.requests[0].body


def test_a_part_may_name_a_path(face: Face, config: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("Of interest.")
    parts = [{"type": "text", "text": "Sum up:"}, {"type": "file", "path": tmp_path / "notes.txt"}]
    face.answers("a").call_llm(config, [{"role": "user", "content": parts}])
    assert "Of interest." in face.port.requests[0].body.decode()


@pytest.mark.parametrize("given", [[("file", "no-such-file.png"), ("user", "x")], [("file", 3), ("user", "x")]])
def test_a_file_that_cannot_be_read_is_an_error_before_anything_is_sent(face: Face, config: Any, given: Any) -> None:
    with pytest.raises(InvalidRequestError):
        face.call_llm_robust(config, given, tries=3)
    assert face.port.requests == []


def test_a_file_needs_a_text_that_says_what_to_do_with_it(tmp_path: Path) -> None:
    (tmp_path / "img_429.png").write_bytes(b"x")
    with pytest.raises(InvalidRequestError, match="without"):
        read_messages([("file", tmp_path / "img_429.png")])


@pytest.mark.parametrize(
    ("given", "one"),
    [("text", True), (BOTH, True), ([("system", "a"), ("user", "b")], True), ({"user": "x"}, True), (("user", "x"), True),
     (["a", "b"], False), ([BOTH, BOTH], False), ([[("user", "a")], [("user", "b")]], False), ([], False)],
)  # fmt: skip
def test_a_conversation_is_told_from_a_list_of_questions(given: Any, one: bool) -> None:
    assert is_conversation(given) is one


roles = st.sampled_from(["user", "system", "assistant", "tool", "file", "wizard", "role", "content", ""])
anything = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | roles,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(roles, inner) | st.dictionaries(roles, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=400, deadline=None)
@given(anything)
def test_anything_is_a_conversation_or_refused_with_a_reason(given_messages: Any) -> None:
    try:
        history = History(read_messages(given_messages))
    except InvalidRequestError:
        return
    assert len(history) > 0 and all(message["role"] in ("user", "system", "assistant", "tool") for message in history)
