"""A model's configuration is checked as it is made, and never shows a header's value."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from llmbroker.catalog import LLMConfig
from llmbroker.errors import ConfigurationError

GOOD = {"name": "n", "model": "m", "base_url": "https://api.example.com/v1"}

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an empty name": ({"name": " "}, "name"),
    "a model that is no string": ({"model": 3}, "model"),
    "neither address nor provider": ({"base_url": None}, "base_url or the id of a known provider"),
    "another scheme": ({"base_url": "ftp://api.example.com"}, "https://"),
    "a path as an address": ({"base_url": "api.example.com/v1"}, "https://"),
    "an address without a host": ({"base_url": "https:///v1"}, "https://"),
    "a broken address": ({"base_url": "https://[::1"}, "no URL"),
    "a credential in the address": ({"base_url": "https://u:secretsecret@api.example.com"}, "credential"),
    "a line break in the address": ({"base_url": "https://api.example.com/\r\nx: y"}, "control character"),
    "a provider that is no string": ({"provider": 7}, "provider"),
    "a weight above one": ({"weight": 1.5}, "weight"),
    "a weight below zero": ({"weight": -0.1}, "weight"),
    "a weight that is no number": ({"weight": float("nan")}, "weight"),
    "a weight that is a truth value": ({"weight": True}, "weight"),
    "room for no call": ({"parallel": 0}, "parallel"),
    "room for half a call": ({"parallel": 1.5}, "parallel"),
    "room for a truth value": ({"parallel": True}, "parallel"),
    "headers that are no mapping": ({"headers": ["a"]}, "headers"),
    "a header that is no string": ({"headers": {"x-a": 1}}, "headers"),
    "a header with a line break": ({"headers": {"x-a": "b\r\nc: d"}}, "x-a"),
    "a header without a name": ({"headers": {"": "b"}}, "cannot be sent"),
    "a reserved parameter": ({"tool_params": {"messages": []}}, "messages"),
    "parameters that are no mapping": ({"tool_params": [1]}, "tool_params"),
    "an unknown kind of price": ({"price": {"inputs": 1}}, "inputs"),
    "a negative price": ({"price": {"input": -1}}, "price"),
    "an infinite price": ({"price": {"input": float("inf")}}, "price"),
    "a price that is no mapping": ({"price": 3}, "price"),
}


@pytest.mark.parametrize(("change", "said"), WRONG.values(), ids=WRONG)
def test_a_value_that_means_nothing_is_refused_and_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        LLMConfig(**{**GOOD, **change})
    assert said in str(caught.value)
    assert "secretsecret" not in str(caught.value)


def test_what_the_caller_changes_later_does_not_reach_the_model() -> None:
    headers, params, price = {"x-a": "1"}, {"temperature": 0}, {"input": 1.0}
    config = LLMConfig(**GOOD, headers=headers, tool_params=params, price=price)
    headers["x-a"], params["temperature"], price["input"] = "2", 1, 2.0
    assert (config.headers, config.tool_params, config.price) == ({"x-a": "1"}, {"temperature": 0}, {"input": 1.0})


def test_a_model_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        LLMConfig(**GOOD).weight = 1.0


def test_the_repr_shows_no_value_of_a_header() -> None:
    shown = repr(LLMConfig(**GOOD, headers={"authorization": "Bearer canary-value"}, weight=0.7))
    assert "canary-value" not in shown
    assert "authorization" in shown
    assert "weight=0.7" in shown


def test_two_models_of_equal_fields_are_equal_and_survive_json() -> None:
    config = LLMConfig(**GOOD, headers={"x-a": "1"}, tool_params={"top_p": 0.5}, parallel=2)
    assert msgspec.json.decode(msgspec.json.encode(config), type=LLMConfig) == config
