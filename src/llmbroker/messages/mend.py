"""The public helpers: what is wrong with a history, and a history that any provider takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmbroker.messages.history import ROLES, History
from llmbroker.messages.parts import JSON, Result, Text, object_text, read_parts, wire_name
from llmbroker.messages.plain import shown


def validate(messages: Any) -> list[str]:
    """Return what is wrong with a history, one sentence a fault; an empty list means that any provider takes it.

    Raises:
        InvalidRequestError: it cannot be read at all.
    """
    history = History(messages)
    faults: list[str] = []
    seen: set[str] = set()
    pending: dict[str, int] = {}
    for index, message in enumerate(history):
        role = ROLES[message["role"]]
        if role == "tool":
            wanted = _word(message.get("tool_call_id"))
            if pending.get(wanted, 0) > 0:
                pending[wanted] -= 1
            else:
                faults.append(f"messages[{index}]: a result for {shown(wanted)}, which no open call of the turn before has.")
            continue
        faults += [f"messages[{index}]: call {shown(name)} before it has no result." for name, n in pending.items() if n > 0]
        pending = {}
        if role != "assistant":
            continue
        for call in message.get("tool_calls") or ():
            given = _word(call.get("id"))
            name, arguments = call["function"].get("name"), call["function"].get("arguments")
            if not given or given in seen:
                faults.append(f"messages[{index}]: the call id {shown(given)} is missing or was used before.")
            if name != wire_name(name):
                faults.append(f"messages[{index}]: the tool name {shown(name)} is not accepted by every provider.")
            if not isinstance(arguments, str) or object_text(arguments) != arguments.strip():
                faults.append(f"messages[{index}]: the arguments of call {shown(given)} are not the text of a JSON object.")
            seen.add(given)
            pending[given] = pending.get(given, 0) + 1
    return faults + [f"at the end: call {shown(name)} has no result yet." for name, n in pending.items() if n > 0]


def _word(identity: Any) -> str:
    return identity if isinstance(identity, str) else ""


def repair(messages: Any) -> list[JSON]:
    """Return the history as every provider takes it: unique ids, readable arguments, one result a call, no orphans.

    Repairing twice changes nothing more. The messages that were handed in stay as they are.

    Raises:
        InvalidRequestError: it cannot be read at all.
    """
    out: list[JSON] = []
    history = History(messages)
    at = 0
    for block in history.blocks:
        source = history[at : at + block.size]
        at += block.size
        if block.assistant is not None:
            message = {key: value for key, value in source[0].items() if key != "tool_calls"}
            raw = source[0].get("tool_calls") or []
            if block.assistant.calls:
                message["tool_calls"] = [
                    {**old, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                    for old, call in zip(raw, block.assistant.calls, strict=True)
                ]
            out.append(message)
            given = {result.id: result for result in block.results}
            texts = {i: m for i, m in enumerate(source) if ROLES[m["role"]] == "tool"}
            out += [_result_message(given[call.id], texts) for call in block.assistant.calls]
        out += [dict(message) for message in source if ROLES[message["role"]] in ("user", "system")]
    return out


def _result_message(result: Result, originals: Mapping[int, JSON]) -> JSON:
    plain = all(isinstance(part, Text) for part in result.parts)
    content: Any = result.text if plain else None
    if not plain:
        content = next(
            (m.get("content") for m in originals.values() if read_parts(m.get("content"), "content") == result.parts),
            result.text,
        )
    message: JSON = {"role": "tool", "tool_call_id": result.id, "content": content}
    if result.is_error:
        message["is_error"] = True
    return message
