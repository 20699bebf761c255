"""A list of declarations is read once, and nobody can tell by what comes out."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import llmbroker
from llmbroker.exchange import ToolSet
from llmbroker.exchange import request as requests


def declared(name: str = "f", **schema: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": schema}}}]


def test_the_same_declarations_share_what_was_read() -> None:
    one, other = ToolSet(declared(city={"type": "string"})), ToolSet(declared(city={"type": "string"}))
    assert one is not other
    assert one.specs is other.specs
    assert one.encoded is other.encoded


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, 1.0), ("1", 1), (None, "null"), (0.0, -0.0)])
def test_declarations_that_differ_in_a_word_are_told_apart(one: Any, other: Any) -> None:
    first, second = ToolSet(declared(x={"default": one})), ToolSet(declared(x={"default": other}))
    assert first.specs is not second.specs
    assert repr(first.specs[0].parameters) != repr(second.specs[0].parameters)


def test_a_change_of_the_users_own_list_is_seen_and_reaches_nobody_else() -> None:
    mine = declared(city={"type": "string"})
    before = ToolSet(mine)
    kept = copy.deepcopy(before.specs[0].parameters)
    mine[0]["function"]["parameters"]["properties"]["city"]["type"] = "integer"
    assert before.specs[0].parameters == kept
    assert ToolSet(mine).specs[0].parameters["properties"]["city"] == {"type": "integer"}
    assert ToolSet(declared(city={"type": "string"})).specs[0].parameters == kept


def test_what_is_wrong_is_refused_every_time() -> None:
    for _ in range(2):
        with pytest.raises(llmbroker.InvalidRequestError):
            ToolSet(declared(x={"default": float("nan")}))
        with pytest.raises(llmbroker.InvalidRequestError):
            ToolSet(declared() + declared())


def test_declarations_that_are_no_plain_values_are_read_each_time() -> None:
    class Table(dict[str, Any]):
        pass

    made = [Table(tool) for tool in declared(city={"type": "string"})]
    assert ToolSet(made).by_name.keys() == {"f"}


def test_what_is_remembered_is_bounded() -> None:
    for number in range(3 * requests.MOST_READ):
        ToolSet(declared(f"f{number}"))
    assert len(requests._READ) <= requests.MOST_READ
