"""Errors carry facts as fields, say the next thing to do, and survive copying, pickling and being caught by the usual names."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from llmbroker import errors
from llmbroker.errors import LLMBrokerError

NEEDED: dict[str, dict[str, Any]] = {
    "InvalidRequestError": {"argument": "messages[2].content"},
    "ConnectionFailedError": {"sent": False},
    "NoLLMAvailableError": {"reason": "timeout", "retry_at": datetime(2026, 1, 2, tzinfo=UTC), "attempts": ("a",)},
}
FURTHER: dict[str, dict[str, Any]] = {
    "MissingKeyError": {"refs": ("A_KEY", "B_KEY")},
    "StoreError": {"reason": "locked"},
    "ToolLoopLimitError": {"reason": "repeats", "reply": "last"},
    "BadRequestError": {"param": "top_k"},
    "UnsupportedFeatureError": {"feature": "images"},
    "LimitReachedError": {
        "limit": "a day",
        "measure": "cost",
        "used": 1.5,
        "reserved": 0.25,
        "most": 2.0,
        "reason": "limit",
        "retry_at": datetime(2026, 1, 2, tzinfo=UTC),
        "attempts": ("a",),
    },
    "MalformedCallError": {"generation": "<tool_call>"},
    "RateLimitError": {"limit": "tokens"},
    "LLMTimeoutError": {"sent": False, "text": "so far"},
    "StreamInterruptedError": {"text": "so far"},
}
FACTS = {
    "provider": "groq",
    "model": "m",
    "status": 429,
    "code": "slow_down",
    "request_id": "r1",
    "retry_after": 1.5,
    "detail": "their words",
    "hint": "Wait.",
}
CLASSES = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, LLMBrokerError)]


def make(cls: type[LLMBrokerError]) -> tuple[LLMBrokerError, dict[str, Any]]:
    own = {**NEEDED.get(cls.__name__, {}), **FURTHER.get(cls.__name__, {})}
    return cls("It failed.", **own, **FACTS), own


def by_pickle(error: LLMBrokerError) -> LLMBrokerError:
    return pickle.loads(pickle.dumps(error))


@pytest.mark.parametrize("again", [by_pickle, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"])
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_keeps_every_field_when_it_travels(
    cls: type[LLMBrokerError], again: Callable[[LLMBrokerError], LLMBrokerError]
) -> None:
    error, own = make(cls)
    error.messages, error.tool_history = [{"role": "user", "content": "hi"}], [{"round": 1}]
    other = again(error)
    assert type(other) is cls
    assert str(other) == str(error) == "It failed. Wait."
    for name, value in {**FACTS, **own, "messages": error.messages, "tool_history": error.tool_history}.items():
        assert getattr(other, name) == value, name


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_what_is_not_known_is_none_and_the_message_stands_alone(cls: type[LLMBrokerError]) -> None:
    error = cls("It failed.", **NEEDED.get(cls.__name__, {}))
    assert str(error) == "It failed."
    assert [name for name in FACTS if getattr(error, name) is not None] == []
    assert (error.messages, error.tool_history, error.tool_loop) == (None, None, None)


USUAL = {
    "InvalidRequestError": ValueError,
    "ConfigurationError": ValueError,
    "UnknownModelError": LookupError,
    "UnknownCallError": LookupError,
    "ConnectionFailedError": ConnectionError,
    "LLMTimeoutError": TimeoutError,
}


@pytest.mark.parametrize(("name", "usual"), USUAL.items(), ids=USUAL)
def test_an_error_is_also_what_python_calls_such_a_thing(name: str, usual: type[Exception]) -> None:
    cls = getattr(errors, name)
    with pytest.raises(usual, match=r"It failed\."):
        raise cls("It failed.", **NEEDED.get(name, {}))


KINDS = {"parameter", "authentication", "billing", "rate_limit", "server", "unknown"}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_is_of_a_known_kind(cls: type[LLMBrokerError]) -> None:
    assert cls.kind in KINDS


def test_what_the_published_interface_names_is_there() -> None:
    published = """
        LLMBrokerError NoLLMAvailableError MissingKeyError UnknownModelError PoolModelError ProviderError AuthError
        RateLimitError LLMTimeoutError InvalidProviderResponseError StreamInterruptedError ToolLoopLimitError
    """
    assert set(published.split()) <= {cls.__name__ for cls in CLASSES}
