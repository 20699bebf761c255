"""Chunks of the engine in this process made one body, as a server would send it that does not stream."""

from __future__ import annotations

from typing import Any


def whole(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the whole body that these chunks make. What no chunk says stays out: nothing is invented."""
    body: dict[str, Any] = {"object": "chat.completion"}
    message: dict[str, Any] = {"role": "assistant", "content": None}
    finish = None
    calls: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for key in ("id", "created", "model", "system_fingerprint", "usage", "timings"):
            if chunk.get(key) is not None:
                body[key] = chunk[key]
        for choice in chunk.get("choices") or ():
            finish = choice.get("finish_reason") or finish
            delta = choice.get("delta") or {}
            for key in ("content", "reasoning_content"):
                if delta.get(key) is not None:
                    message[key] = (message.get(key) or "") + delta[key]
            for piece in delta.get("tool_calls") or ():
                _add_call(calls.setdefault(piece.get("index", 0), {"type": "function", "function": {}}), piece)
    if calls:
        message["tool_calls"] = list(calls.values())
    body["choices"] = [{"index": 0, "message": message, "finish_reason": finish}]
    return body


def _add_call(call: dict[str, Any], piece: dict[str, Any]) -> None:
    if piece.get("id"):
        call["id"] = piece["id"]
    function, more = call["function"], piece.get("function") or {}
    if more.get("name"):
        function["name"] = more["name"]
    function["arguments"] = function.get("arguments", "") + (more.get("arguments") or "")
