"""Identity: a digest that depends on what the model sees and on nothing else, the same for a config and for a log of it.

The canonical form is one text for equal values: names sorted by their bytes, 15 significant digits, no spaces. It is that of
LLMR, so that archives made in R and in Python can be compared; two of its digests are pinned in the tests.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from llmbroker.errors import InvalidRequestError
from llmbroker.messages import Audio, File, History, Image, Text
from llmbroker.research.config import ModelConfig
from llmbroker.research.prompts import read_messages
from llmbroker.research.structured import form_of
from llmbroker.research.tool import LLMTool

JSON: TypeAlias = dict[str, Any]
TRANSPORT = frozenset({"timeout", "stream", "stream_options", "anthropic_beta", "cache"})
"""Parameters that change how an answer travels, not what it is."""


def canonical(value: Any) -> str:
    """Return the canonical JSON text of a value.

    Raises:
        InvalidRequestError: it holds something that is neither JSON nor a function.
    """
    out: list[str] = []
    _write(value, out)
    return "".join(out)


def _write(value: Any, out: list[str]) -> None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        out.append("null")
    elif isinstance(value, bool):
        out.append("true" if value else "false")
    elif isinstance(value, (int, float)):
        out.append(_number(value))
    elif isinstance(value, str):
        out.append(_string(value))
    elif isinstance(value, Mapping):
        out.append("{")
        for index, (name, item) in enumerate(sorted(((str(k), v) for k, v in value.items()), key=lambda p: p[0].encode())):
            out.append(("," if index else "") + _string(name) + ":")
            _write(item, out)
        out.append("}")
    elif isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        out.append("[")
        for index, item in enumerate(value):
            if index:
                out.append(",")
            _write(item, out)
        out.append("]")
    elif callable(value):
        out.append(_string(_source(value)))
    else:
        _write(_builtin(value), out)


def _builtin(value: Any) -> Any:
    if isinstance(value, ModelConfig):
        return config_facts(value)
    try:
        return msgspec.to_builtins(value)
    except (TypeError, ValueError):
        raise InvalidRequestError(f"{type(value).__name__} has no canonical form.", argument="value") from None


def _source(fn: Any) -> str:
    try:
        return inspect.getsource(fn).strip()
    except (OSError, TypeError):
        return getattr(fn, "__qualname__", type(fn).__name__)


def _number(value: int | float) -> str:
    """Return a number in 15 significant digits, as R writes it: 1e+15, 1e-05, 0.3 for 0.1 + 0.2, 2048 for 2048.0."""
    if isinstance(value, float) and math.isinf(value):
        return '"Inf"' if value > 0 else '"-Inf"'
    if value == 0:
        return "0"
    if isinstance(value, int) and abs(value) >= 10**15:
        try:
            value = float(value)
        except OverflowError:
            return str(value)
    digits = f"{value:.15g}"
    if "e" in digits or abs(value) >= 1e15:
        mantissa, _, exponent = f"{value:.14e}".partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".")
        return f"{mantissa}e{exponent[0]}{exponent[1:].lstrip('0').rjust(2, '0')}"
    return digits


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _string(text: str) -> str:
    made = "".join(_ESCAPES.get(c) or (f"\\u{ord(c):04x}" if c < " " else c) for c in text)
    return f'"{made}"'.replace("</", "<\\/")


def llm_hash(value: Any) -> str:
    """Return the SHA-256 of a value's canonical form: equal values, equal digest, on every machine and in R.

    Raises:
        InvalidRequestError: it holds something that has no canonical form.
    """
    return _digest(canonical(value))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


# -- requests ---------------------------------------------------------------------------------------------------------------


def config_facts(config: Any) -> JSON:
    """Return what a config is, without its key, as JSON: provider, model, address, parameters. A broker is its kind."""
    if not isinstance(config, ModelConfig):
        return {"broker": type(config).__name__}
    facts: JSON = {"provider": config.provider, "model": config.model, "params": _params(config.params)}
    for name, value in (("base_url", config.base_url), ("dialect", config._entry.dialect)):
        if value is not None:
            facts[name] = value
    if config.no_change:
        facts["no_change"] = True
    return facts


def _params(params: Mapping[str, Any]) -> JSON:
    """Return parameters as they count for identity: without None and transport, one name for the token limit, stop as list."""
    out: JSON = {name: value for name, value in params.items() if value is not None and name not in TRANSPORT}
    for name in ("max_completion_tokens", "max_output_tokens"):
        if name in out:
            limit = out.pop(name)
            out.setdefault("max_tokens", limit)
    if "stop_sequences" in out:
        stops = out.pop("stop_sequences")
        out.setdefault("stop", stops)
    if isinstance(out.get("stop"), str):
        out["stop"] = [out["stop"]]
    return out


def turns(messages: Any) -> list[JSON]:
    """Return messages as they count for identity: role and text, digests of attachments, tool calls with their arguments."""
    history = messages if isinstance(messages, History) else History(read_messages(messages))
    out: list[JSON] = []
    for block in history.blocks:
        if block.assistant is not None:
            turn: JSON = {"role": "assistant", "content": block.assistant.text}
            if block.assistant.calls:
                turn["tool_calls"] = [{"name": call.name, "arguments": call.arguments} for call in block.assistant.calls]
            out.append(turn)
        out += [_turn("tool", result.parts) for result in block.results]
        out += [_turn(message.role, message.parts) for message in block.users]
    return out


def _turn(role: str, parts: Sequence[Any]) -> JSON:
    turn: JSON = {"role": role, "content": "\n".join(part.text for part in parts if isinstance(part, Text))}
    others = [_attachment(part) for part in parts if not isinstance(part, Text)]
    if others:
        turn["non_text"] = others
    return turn


def _attachment(part: Image | Audio | File) -> str:
    if part.data is not None:
        return _digest(part.data)
    return _digest(getattr(part, "url", None) or getattr(part, "file_id", None) or "")


def llm_request_hash(
    config: Any = None,
    messages: Any = None,
    *,
    provider: str | None = None,
    model: str | None = None,
    params: Mapping[str, Any] | None = None,
    tools: Any = None,
    response_format: Any = None,
    extra: Any = None,
) -> str:
    """Return the identity of a request: provider, model, messages, parameters, tools, form; never key, address or transport.

    Args:
        config: a config; or one record of the audit log, which has the same identity as the call that it tells of.
        messages: what was said, in any form that ``call_llm`` takes.
        provider: instead of a config.
        model: instead of a config.
        params: instead of a config.
        tools: ``llm_tool`` or declarations.
        response_format: the form that was asked for; requests with tools bear none (it is asked for after the last tool).
        extra: anything else that tells requests apart.

    Raises:
        InvalidRequestError: there are no messages.
    """
    if isinstance(config, Mapping):
        return _of_record(config)
    if isinstance(config, ModelConfig):
        provider, model = provider or config.provider, model or config.model
        params = {**(params or {}), **config.params}
        response_format = config.response_format if response_format is None else response_format
    if messages is None:
        raise InvalidRequestError("A request's identity needs its messages.", argument="messages")
    facts: JSON = {
        "provider": provider.lower() if provider else None,
        "model": model,
        "messages": turns(messages),
        "params": _params(params or {}),
        "tools": _tools(tools),
        "response_format": _format(response_format) if not tools else None,
        "extra": extra,
    }
    return llm_hash({name: value for name, value in facts.items() if value not in (None, {}, [])})


def _of_record(record: Mapping[str, Any]) -> str:
    request = record.get("request")
    if not isinstance(request, Mapping) or "messages" not in request:
        known = record.get("request_hash")
        if isinstance(known, str):
            return known
        raise InvalidRequestError("The record holds neither the messages nor their hash.", argument="config")
    return llm_request_hash(
        None,
        request["messages"],
        provider=record.get("provider"),
        model=record.get("model"),
        params=record.get("parameters"),
        tools=request.get("tools"),
        response_format=request.get("response_format"),
    )


def _tools(tools: Any) -> Any:
    if tools is None:
        return None
    listed = [tools] if isinstance(tools, (LLMTool, Mapping)) else list(tools)
    declared = [tool.declaration if isinstance(tool, LLMTool) else tool for tool in listed]
    return [tool.get("function", tool) for tool in declared] or None


def _format(given: Any) -> Any:
    return given if given is None or isinstance(given, Mapping) else form_of(given).wire


def llm_tool_signature(tool: LLMTool) -> str:
    """Return the digest of a tool as the model sees it: name, description, schema; the function's body does not count."""
    return llm_hash({"name": tool.name, "description": tool.description, "schema": tool.schema})
