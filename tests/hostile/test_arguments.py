"""Whatever is handed in, in whatever place: a request that is whole, or one typed error before anything is sent."""

from __future__ import annotations

import asyncio
import copy
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from tests.hostile.values import SURROGATE, TOOL, USER, VALUES, arguments_with, endless, messages_with, nested

import llmbroker
from llmbroker import AsyncDirectClient, DirectClient, LLMConfig, Runs
from llmbroker.errors import (
    ConfigurationError,
    InvalidRequestError,
    LLMBrokerError,
    MissingKeyError,
    UnknownCallError,
    UnknownModelError,
    UnsupportedFeatureError,
)
from llmbroker.loop import arun_tool_loop, run_tool_loop
from llmbroker.messages import History, repair, validate
from llmbroker.providers.table import DIALECTS
from llmbroker.transports.replay import Answer, Replay
from llmbroker.wire import HTTPRequest

URL = "https://api.example.com/v1"
REFUSALS = (InvalidRequestError, UnsupportedFeatureError)
VALUE = pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)


class Sent(Exception):
    """The request was fit to be sent."""


def whole(request: HTTPRequest) -> Any:
    """Take a request that any server could read."""
    json.loads(request.body.decode("utf-8"), parse_constant=pytest.fail)
    request.url.encode("ascii")
    assert not any(c in text for pair in request.headers.items() for text in pair for c in "\r\n\0")
    raise Sent


def client(dialect: str = "openai-chat", **more: Any) -> DirectClient:
    port = Replay(record=False).on(None, whole, times=None)
    return DirectClient(base_url=URL, model="m", dialect=dialect, io=port, **more)


def tried(call: Callable[[], Any], allowed: tuple[type[BaseException], ...] = REFUSALS) -> BaseException | None:
    """Return how a call ended; anything but a whole request or a typed refusal passes through."""
    try:
        call()
    except (Sent, *allowed) as error:
        assert len(str(error)) < 4000
        return error
    return None


@pytest.mark.parametrize("dialect", DIALECTS)
@VALUE
def test_any_value_in_any_message_is_sent_whole_or_refused(dialect: str, value: Any) -> None:
    caller = client(dialect)
    for where, messages in messages_with(value, dialect, caller._deployment.provider.id):
        assert tried(lambda messages=messages: caller.chat(messages)) is not None, where


@pytest.mark.parametrize("dialect", DIALECTS)
@VALUE
def test_any_value_in_any_argument_is_sent_whole_or_refused(dialect: str, value: Any) -> None:
    caller = client(dialect)
    for where, arguments in arguments_with(value):
        assert tried(lambda arguments=arguments: caller.chat("hi", **arguments)) is not None, where


@pytest.mark.parametrize("kind", [DirectClient, AsyncDirectClient])
@VALUE
def test_a_client_is_made_or_refused(kind: Any, value: Any) -> None:
    for name in ("base_url", "provider", "model", "api_key", "timeout", "headers", "tool_params", "leaked_calls", "dialect"):
        good = {"base_url": URL, "model": "m", "io": Replay()}
        tried(lambda good=good, name=name: kind(**{**good, name: value}), (*REFUSALS, MissingKeyError))
    tried(lambda: kind(base_url=URL, model="m", headers={"x-a": value}))
    tried(lambda: kind(base_url=URL, model="m", tool_params={"a": value}))


@VALUE
def test_a_model_of_a_pool_is_made_or_refused(value: Any) -> None:
    for field in LLMConfig.__struct_fields__:
        good = {"name": "n", "model": "m", "base_url": URL}
        made: list[LLMConfig] = []
        tried(lambda good=good, field=field, made=made: made.append(LLMConfig(**{**good, field: value})), (ConfigurationError,))
        assert all(len(repr(config)) < 6000 for config in made)
    tried(lambda: LLMConfig(name="n", model="m", base_url=URL, price={"input": value}), (ConfigurationError,))


@VALUE
def test_the_helpers_for_histories_read_or_refuse(value: Any) -> None:
    for where, messages in messages_with(value, "openai-chat", "p"):
        for helper in (validate, repair, History):
            tried(lambda helper=helper, messages=messages: helper(messages))
        mended: list[Any] = []
        tried(lambda messages=messages, mended=mended: mended.extend(repair(messages)))
        if mended:
            assert repair(mended) == mended, where
            assert validate(mended) == [], where


class Saying:
    """A foreign caller that says one thing, then that it is done."""

    def __init__(self, first: Any) -> None:
        self.turns = [first]

    def chat(self, messages: Any, *, tools: Any = None, **_: Any) -> Any:
        return self.turns.pop() if self.turns else {"text": "done"}


def loops(first: Any, **more: Any) -> Iterator[Callable[[], Any]]:
    settings = {"tools": [TOOL], "dispatch": {"f": lambda **_: "r"}, **more}
    messages = settings.pop("messages", "hi")
    yield lambda: run_tool_loop(Saying(first), messages, **settings)
    yield lambda: asyncio.run(arun_tool_loop(Saying(first), messages, **settings))


ASKED = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ASKS = {"tool_calls": [ASKED]}


@VALUE
def test_a_foreign_reply_of_any_shape_ends_the_loop_in_order(value: Any) -> None:
    replies: list[Any] = [value, {"tool_calls": [value]}, {"text": "x", "usage": {"input_tokens": value}}]
    replies += [{key: value} for key in ("text", "content", "tool_calls", "finish_reason", "message", "usage", "model")]
    replies += [{"tool_calls": [{**ASKED, key: value}]} for key in ("id", "type", "function", "name", "extra")]
    for key in ("name", "arguments"):
        replies.append({"tool_calls": [{**ASKED, "function": {"name": "f", "arguments": "{}", key: value}}]})
    replies.append({"tool_calls": [{**ASKED, "function": {"name": "f", "arguments": {"a": value}}}]})
    for reply in replies:
        for loop in loops(reply):
            tried(loop)


@VALUE
def test_a_loop_takes_or_refuses_any_setting(value: Any) -> None:
    for name in (
        "tools", "dispatch", "max_steps", "max_repeats", "max_concurrency", "result_limit", "keep_tool_choice", "transcript",
        "messages", "budget", "approve", "answers", "stop_when", "prepare_step", "output", "compaction",
    ):  # fmt: skip
        for loop in loops(ASKS, **{name: value}):
            if not (callable(value) and name in ("approve", "stop_when", "prepare_step")):  # what it says is its own affair
                tried(loop)
    for loop in loops(ASKS, dispatch={"f": value}):
        tried(loop)
    for loop in loops(ASKS, dispatch={"f": lambda **_: value}):
        loop()
    if not callable(getattr(value, "chat", None)):
        with pytest.raises(InvalidRequestError):
            run_tool_loop(value, "hi")
        with pytest.raises(InvalidRequestError):
            asyncio.run(arun_tool_loop(value, "hi"))


@VALUE
def test_a_journal_and_its_runs_are_asked_for_anything_or_refuse(value: Any, tmp_path: Path) -> None:
    where = str(tmp_path / "b.db")
    runs = Runs(where)
    with llmbroker.Broker(where, pool=[LLMConfig(name="n", model="m", base_url=URL, api_key_ref="")], io=Replay()) as broker:
        for name in ("limit", "since", "operation", "trace_id", "call_id", "scope", "status", "llm_name", "cursor"):
            tried(lambda name=name: broker.calls(**{name: value}))
        for name in ("by", "since", "operation", "trace_id", "scope", "status", "llm_name"):
            tried(lambda name=name: broker.stats(**{name: value}))
        asked: list[Callable[[], Any]] = [
            lambda: broker.record_quality(value, call_id="x"),
            lambda: broker.record_quality(1.0, call_id=value),
            lambda: broker.record_quality(1.0, trace_id=value),
            lambda: broker.disable_llm(value),
            lambda: broker.direct(value),
            lambda: broker.direct(name=value),
            lambda: runs.run(broker, run_id=value),
            lambda: runs.state(value),
            lambda: runs.list(value),
            lambda: runs.forget(value),
            lambda: llmbroker.Limit(cost=value),
        ]
        for ask in asked:
            tried(ask, (InvalidRequestError, UnknownCallError, UnknownModelError, ConfigurationError))


PLACES: dict[str, tuple[dict[str, Any], str]] = {
    "NaN in a list of a mapping": ({"params": {"metadata": {"a": [1, math.nan]}}}, "params['metadata']['a'][1]"),
    "half a character in a value": ({"params": {"user": SURROGATE}}, "params['user']"),
    "half a character in a name": ({"params": {SURROGATE: 1}}, "params['\\ud800']"),
    "a cycle": ({"params": {"metadata": endless()}}, "params['metadata']" + "['a']" * 8),
    "an object": ({"params": {"metadata": {"x": object()}}}, "params['metadata']['x']"),
    "stop words that are numbers": ({"params": {"stop": [1]}}, "params['stop']"),
    "NaN in a schema": (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"default": math.nan}}}]},
        "tools[0].function.parameters['default']",
    ),
    "strict that is text": (
        {"tools": [{"type": "function", "function": {"name": "f", "strict": "yes"}}]},
        "tools[0].function.strict",
    ),
    "a schema that is none": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": []}}},
        "response_format.json_schema.schema",
    ),
    "an endless timeout": ({"timeout": 10**400}, "timeout"),
}


@pytest.mark.parametrize(("arguments", "argument"), PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_place_of_the_fault_is_named(dialect: str, arguments: dict[str, Any], argument: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        client(dialect).chat("hi", **arguments)
    assert caught.value.argument == argument


@pytest.mark.parametrize("fault", [TypeError("x"), KeyError("x"), AttributeError("x"), RecursionError("x"), ValueError("x")])
def test_whatever_goes_wrong_in_writing_a_request_is_the_callers_error_and_nothing_is_sent(fault: Exception) -> None:
    def encode(*_: Any) -> Any:
        raise fault

    caller = client()
    caller._deployment.dialect = msgspec.structs.replace(caller._deployment.dialect, encode=encode)
    for call in (caller.chat, lambda text: list(caller.stream(text))):
        with pytest.raises(InvalidRequestError) as caught:
            call("hi")
        assert caught.value.__cause__ is fault
        assert (caught.value.provider, caught.value.model) == ("openai-compatible", "m")


def test_numbers_as_keys_become_text_as_json_writers_do_it() -> None:
    port = Replay().on(None, Answer(body={"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}))
    caller = DirectClient(base_url=URL, model="m", io=port)
    caller.chat("hi", params={"logit_bias": {50256: -100}, "metadata": MappingProxyType({"a": (1, 2)})})
    sent = json.loads(port.requests[0].body)
    assert (sent["logit_bias"], sent["metadata"]) == ({"50256": -100}, {"a": [1, 2]})


INJECTIONS: dict[str, dict[str, Any]] = {
    "a line break in the key": {"api_key": "abc\r\nx-evil: 1"},
    "a zero in the key": {"api_key": "abc\0def"},
    "a character beyond Latin-1 in the key": {"api_key": "abc\u2026def"},
    "a line break in a header": {"headers": {"x-a": "1\r\nx-evil: 1"}},
    "a line feed in a header": {"headers": {"x-a": "1\nx-evil: 1"}},
    "a line break in a header's name": {"headers": {"x-a: 1\r\nx-evil": "1"}},
    "a space in a header's name": {"headers": {"x a": "1"}},
    "an escape in a header": {"headers": {"x-a": "\x1b[2J"}},
    "a header beyond Latin-1": {"headers": {"x-a": "\u2026"}},
    "no name": {"headers": {"": "1"}},
    "a line break in the address": {"base_url": "https://api.example.com/v1\r\nx-evil: 1"},
    "a password in the address": {"base_url": "https://me:hunter22@api.example.com/v1"},
    "a password before a host that is none": {"base_url": "ftp://me:hunter22@api.example.com/v1"},
    "a password beside a strange letter": {"base_url": "https://me:hunter22@ho\u2100st.example/v1"},
    "a password with a question mark": {"base_url": "https://me:hunter22?@api.example.com/v1"},
}


@pytest.mark.parametrize("how", INJECTIONS.values(), ids=INJECTIONS)
@pytest.mark.parametrize("kind", [DirectClient, AsyncDirectClient])
def test_what_would_add_a_header_or_show_a_password_is_refused_at_once(kind: Any, how: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        kind(**{"base_url": URL, "model": "m", **how})
    shown = f"{caught.value!r} {caught.value.__dict__}"
    assert "hunter22" not in shown
    assert "abc" not in shown
    assert caught.value.argument in ("api_key", "headers", "base_url")


def test_a_key_of_the_environment_that_no_header_carries_is_named_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "gsk_abc\ndef")
    with pytest.raises(InvalidRequestError, match="GROQ_API_KEY") as caught:
        DirectClient(provider="groq", model="m")
    assert "abc" not in str(caught.value)
    with llmbroker.Broker(pool=[LLMConfig(name="n", provider="groq", model="m")], io=Replay()) as broker:
        with pytest.raises(LLMBrokerError) as refused:
            broker.ask("hi", wait=1)
    assert "abc" not in f"{refused.value!r} {refused.value.__dict__}"


def test_the_query_of_an_address_is_not_shown() -> None:
    config = LLMConfig(name="n", model="m", base_url="https://api.example.com/v1?key=hunter22&api-version=2")
    assert "hunter22" not in repr(config)
    assert "hunter22" not in repr(client()._deployment)


ADDRESSES: dict[str, tuple[str, str]] = {
    "a fragment goes": ("https://api.example.com/v1#x", "https://api.example.com/v1/chat/completions"),
    "a query stays at the end": (
        "https://api.example.com/v1?api-version=2",
        "https://api.example.com/v1/chat/completions?api-version=2",
    ),
    "a host in capitals": ("HTTPS://API.Example.com/v1/", "https://API.Example.com/v1/chat/completions"),
    "an address of numbers": ("http://[::1]:8080/v1", "http://[::1]:8080/v1/chat/completions"),
}


@pytest.mark.parametrize(("given", "sent"), ADDRESSES.values(), ids=ADDRESSES)
def test_an_address_is_brought_to_one_form(given: str, sent: str) -> None:
    port = Replay().on(None, Answer(body={"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}))
    DirectClient(base_url=given, model="m", io=port).chat("hi")
    assert port.requests[0].url == sent


def test_what_was_handed_in_is_never_changed_nor_kept() -> None:
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [ASKED]},
        {**USER, "content": [{"type": "text", "text": "y"}]},
    ]
    given: dict[str, Any] = {
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
        "params": {"stop": ["a"], "metadata": {"a": {"b": 1}}, "reasoning": {"x": 1}, "options": {"y": 1}, "include": ["z"]},
    }  # fmt: skip
    headers, tool_params = {"x-a": "1"}, {"top_k": {"deep": [1]}}
    before = copy.deepcopy((messages, given, headers, tool_params))
    for dialect in DIALECTS:
        caller = client(dialect, headers=headers, tool_params=tool_params)
        for _ in range(2):
            assert isinstance(tried(lambda caller=caller: caller.chat(messages, **given)), Sent)
        tried(lambda caller=caller: list(caller.stream(messages=messages, **given)))
        assert (messages, given, headers, tool_params) == before
        kept = caller._deployment
        headers["x-b"] = "2"
        tool_params["top_k"]["deep"].append(2)
        assert "x-b" not in kept.headers
        assert kept.tool_params == {"top_k": {"deep": [1]}}
        del headers["x-b"], tool_params["top_k"]["deep"][1]


def test_a_generator_of_messages_is_read_once_and_whole() -> None:
    history = History({"role": "user", "content": str(n)} for n in range(3))
    assert [message["content"] for message in history] == ["0", "1", "2"]


@pytest.mark.parametrize("depth", [5, 90])
def test_nesting_that_somebody_means_is_sent(depth: int) -> None:
    for dialect in DIALECTS:
        assert isinstance(tried(lambda dialect=dialect: client(dialect).chat("hi", params={"metadata": nested(depth)})), Sent)
