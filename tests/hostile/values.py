"""Values that nobody should hand in, and every place of a call where one could stand."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

JSON = dict[str, Any]
SURROGATE = "\ud800"


class Speechless:
    """An object whose every text fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __str__(self) -> str:
        raise RuntimeError("no str")


def nested(depth: int, *, of: type = dict) -> Any:
    made: Any = of()
    for _ in range(depth):
        made = {"a": made} if of is dict else [made]
    return made


def endless() -> JSON:
    made: JSON = {}
    made["a"] = made
    return made


VALUES: dict[str, Any] = {
    "nothing": None,
    "a number": 3,
    "an endless number": 10**5000,
    "NaN": math.nan,
    "infinity": -math.inf,
    "a truth": True,
    "bytes": b"x",
    "text": "x",
    "no text": "",
    "a lone surrogate": SURROGATE,
    "line breaks": "a\r\nx-evil: y\0",
    "a list": [None, 3, "x"],
    "a list with a surrogate": [SURROGATE],
    "a mapping": {"type": "x"},
    "a numbered mapping": {1: 2, "1": 3},
    "a key that is half a character": {SURROGATE: 1},
    "half a character inside": {"a": {"b": [SURROGATE]}},
    "NaN inside": {"a": {"b": [math.nan]}},
    "bytes as a key": {b"a": 1},
    "too deep": nested(100_000),
    "too deep a list": nested(100_000, of=list),
    "a cycle": endless(),
    "an object": object(),
    "an object without words": Speechless(),
    "such an object inside": {"a": Speechless()},
    "a function": print,
    "a set": {1},
    "a type": int,
    "an error": ValueError("x"),
}

CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": FUNCTION}
USER = {"role": "user", "content": "x"}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "x"}


def messages_with(value: Any, dialect: str, provider: str) -> Iterator[tuple[str, Any]]:
    """Yield conversations that hold the value, one place each."""
    yield "messages", value
    yield "a message", [value]
    for key in ("role", "content", "name", "cache_control"):
        yield f"user {key}", [{**USER, key: value}]
    for key in ("role", "content", "tool_calls", "refusal", "reasoning_content", "provider_data", "name"):
        yield f"assistant {key}", [USER, {"role": "assistant", "content": "x", key: value}, USER]
    yield "a call", [USER, {"role": "assistant", "tool_calls": [value]}]
    for key in ("id", "type", "function", "extra"):
        yield f"call {key}", [USER, {"role": "assistant", "tool_calls": [{**CALL, key: value}]}]
    for key in ("name", "arguments"):
        made = {**CALL, "function": {"name": "f", "arguments": "{}", key: value}}
        yield f"call function {key}", [USER, {"role": "assistant", "tool_calls": [made]}]
    for key in ("content", "tool_call_id", "name", "is_error"):
        yield f"result {key}", [USER, {"role": "assistant", "tool_calls": [CALL]}, {**RESULT, key: value}]
    for kind in ("text", "image_url", "input_audio", "file", "refusal"):
        yield f"part {kind}", [{"role": "user", "content": [{"type": kind, kind: value}]}]
    yield "part type", [{"role": "user", "content": [{"type": value}]}]
    image = {"url": "data:image/png;base64,AAAA"}
    sound = {"data": "AAAA", "format": "wav"}
    file = {"file_data": "data:application/pdf;base64,AAAA"}
    for kind, good, keys in (
        ("image_url", image, ("url", "detail")),
        ("input_audio", sound, ("data", "format")),
        ("file", file, ("file_data", "filename", "format")),
        ("file", {}, ("file_id",)),
    ):
        for key in keys:
            yield f"{kind} {key}", [{"role": "user", "content": [{"type": kind, kind: {**good, key: value}}]}]
    own = {"dialect": dialect, "provider": provider, "model": "m"}
    for key in ("type", "text", "input", "id", "call_id", "functionCall", "thoughtSignature", "content"):
        item = {"type": "text", "text": "x", key: value}
        yield f"item {key}", [USER, {"role": "assistant", "content": "x", "provider_data": {**own, "items": [item]}}, USER]
    yield "items", [USER, {"role": "assistant", "content": "x", "provider_data": {**own, "items": value}}, USER]


SCHEMA_WORDS = ("properties", "required", "additionalProperties", "$defs", "enum", "anyOf", "type", "description", "default")
PARAMETERS = (
    "temperature", "max_tokens", "stop", "seed", "reasoning_effort", "thinking", "system", "metadata", "tool_choice",
    "response_format", "parallel_tool_calls", "options", "think", "format", "generationConfig", "modalities", "user", "include",
    "reasoning", "text", "service_tier", "logit_bias", "foo",
)  # fmt: skip


def arguments_with(value: Any) -> Iterator[tuple[str, JSON]]:
    """Yield keyword arguments of ``chat`` that hold the value, one place each."""
    yield "tools", {"tools": value}
    yield "a tool", {"tools": [value]}
    for key in FUNCTION:
        yield f"tool {key}", {"tools": [{"type": "function", "function": {**FUNCTION, key: value}}]}
    for key in ("type", "function", "cache_control"):
        yield f"tool {key}", {"tools": [{**TOOL, key: value}]}
    yield "tool strict", {"tools": [{"type": "function", "function": {**FUNCTION, "strict": value}}]}
    for key in SCHEMA_WORDS:
        yield f"schema {key}", {"tools": [_tool({"type": "object", "properties": {}, key: value})]}
        yield f"property {key}", {"tools": [_tool({"type": "object", "properties": {"a": {"type": "string", key: value}}})]}
    yield "tool_choice", {"tools": [TOOL], "tool_choice": value}
    yield "tool_choice function", {"tools": [TOOL], "tool_choice": {"type": "function", "function": value}}
    yield "response_format", {"response_format": value}
    yield "response_format type", {"response_format": {"type": value}}
    yield "json_schema", {"response_format": {"type": "json_schema", "json_schema": value}}
    for key in ("name", "schema", "strict", "description"):
        made = {"name": "x", "schema": {"type": "object", "properties": {}}, key: value}
        yield f"json_schema {key}", {"response_format": {"type": "json_schema", "json_schema": made}}
    yield "timeout", {"timeout": value}
    yield "params", {"params": value}
    for name in PARAMETERS:
        yield f"param {name}", {"params": {name: value}}
        yield f"param {name} beside tools", {"params": {name: value}, "tools": [TOOL]}


def _tool(schema: JSON) -> JSON:
    return {"type": "function", "function": {**FUNCTION, "parameters": schema}}


def fresh(value: Any) -> Any:
    """Return a copy of a small good value, so that a test sees whether it was changed."""
    return copy.deepcopy(value)
