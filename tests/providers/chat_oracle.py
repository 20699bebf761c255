"""What a recorded Chat Completions answer says, read by plain walks over its JSON that know nothing of the dialect's code."""

from __future__ import annotations

import json
import re
from typing import Any

JSON = dict[str, Any]

FINISH = {
    "stop": "stop",
    "eos": "stop",
    "length": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "tool_call": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


def payloads(text: str) -> list[JSON]:
    lines = re.split(r"\r\n|\n|\r", text)
    found = [line[5:].strip() for line in lines if line.startswith("data:")]
    return [json.loads(line) for line in found if line and line != "[DONE]"]


def is_error(record: JSON) -> bool:
    """Whether the exchange ends in an error, by status, by body or by a frame of its stream."""
    response = record["response"]
    if response["status"] >= 400:
        return True
    body = response["body"]
    bodies = payloads(body) if isinstance(body, str) else [body]
    return any(item.get("error") for item in bodies)


def _texts(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content or () if part.get("type") == "text")


def _thoughts(content: Any) -> str:
    if not isinstance(content, list):
        return ""
    out = ""
    for part in content:
        if part.get("type") == "thinking":
            out += "".join(piece.get("text") or "" for piece in part["thinking"])
    return out


def _reasoning(message: JSON) -> str:
    named = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(named, str) and named:
        return named
    details = message.get("reasoning_details") or []
    return "".join(detail.get("text") or detail.get("summary") or "" for detail in details)


def _split(content: str) -> tuple[str, str]:
    """Take a think block off the start; the white space around it is nobody's."""
    found = re.match(r"\s*<think>(.*?)(?:</think>(.*))?\Z", content, re.DOTALL)
    if not found:
        return "", content
    return found[1].strip(), (found[2] or "").lstrip()


def _call(call: JSON) -> JSON:
    function = call.get("function") or {}
    if not function.get("name") and call.get("custom"):
        return {
            "id": call.get("id"),
            "name": call["custom"]["name"],
            "arguments": json.dumps({"input": call["custom"]["input"]}),
        }
    return {"id": call.get("id"), "name": function.get("name"), "arguments": function.get("arguments")}


def _arguments(text: str | None, cut: bool) -> Any:
    if (text or "").strip() in ("", "null"):
        return "" if cut else {}
    try:
        return json.loads(text or "")
    except ValueError:
        return text


def _whole(body: JSON) -> JSON:
    choice = next(c for c in body["choices"] if c.get("index", 0) == 0)
    message = choice["message"]
    calls = [_call(call) for call in message.get("tool_calls") or ()]
    legacy = message.get("function_call") or {}
    if not calls and legacy.get("name"):
        calls = [{"id": None, "name": legacy["name"], "arguments": legacy["arguments"]}]
    return {
        "content": _texts(message.get("content")),
        "thoughts": _thoughts(message.get("content")) + _reasoning(message),
        "refusal": message.get("refusal") or "",
        "calls": calls,
        "finish": choice.get("finish_reason"),
        "usages": [_usage_of(body, choice)],
        "model": body.get("model"),
        "id": body.get("id"),
    }


def _usage_of(body: JSON, choice: JSON) -> JSON | None:
    return body.get("usage") or choice.get("usage") or (body.get("x_groq") or {}).get("usage")


def _stream(text: str) -> JSON:
    out: JSON = {
        "content": "",
        "thoughts": "",
        "refusal": "",
        "calls": [],
        "finish": None,
        "usages": [],
        "model": None,
        "id": None,
    }
    calls: list[JSON] = out["calls"]
    for body in payloads(text):
        out["model"] = out["model"] or body.get("model")
        out["id"] = out["id"] or body.get("id")
        choices = [c for c in body.get("choices") or () if c.get("index", 0) == 0]
        out["usages"].append(_usage_of(body, choices[0] if choices else {}))
        for choice in choices:
            delta = choice.get("delta") or choice.get("message") or {}
            out["content"] += _texts(delta.get("content"))
            out["thoughts"] += _thoughts(delta.get("content")) + _reasoning(delta)
            out["refusal"] += delta.get("refusal") or ""
            out["finish"] = choice.get("finish_reason") or out["finish"]
            for piece in delta.get("tool_calls") or ():
                _add_piece(calls, piece)
    return out


def _add_piece(calls: list[JSON], piece: JSON) -> None:
    """A piece with an id not seen before and a name opens a call; any other goes on with the newest call of its index."""
    function = piece.get("function") or {}
    fresh = piece.get("id") and function.get("name") and all(call["id"] != piece["id"] for call in calls)
    if fresh:
        calls.append({"id": piece["id"], "name": function["name"], "arguments": "", "index": piece.get("index")})
    call = next(call for call in reversed(calls) if piece.get("index") is None or call["index"] == piece["index"])
    call["arguments"] += function.get("arguments") or ""


CACHED = ("cached_tokens", "prompt_cache_hit_tokens", "num_cached_tokens", "cache_read_input_tokens")


def usage(usages: list[JSON | None], provider: str) -> tuple[int | None, ...] | None:
    """Return input, output, cached, written, reasoning, total."""
    last: JSON = {}
    inner: dict[str, JSON] = {"prompt_tokens_details": {}, "completion_tokens_details": {}}
    for one in usages:
        for name, value in (one or {}).items():
            if name in inner:
                inner[name].update({k: v for k, v in (value or {}).items() if v is not None})
            elif value is not None:
                last[name] = value
    if not last:
        return None
    sent, made, total = last["prompt_tokens"], last["completion_tokens"], last["total_tokens"]
    before, after = inner["prompt_tokens_details"], inner["completion_tokens_details"]
    reasoning = after.get("reasoning_tokens", last.get("reasoning_tokens"))
    cached = before.get("cached_tokens")
    if cached is None:
        cached = next((last[name] for name in CACHED if name in last), None)
    written = before.get("cache_write_tokens", last.get("cache_creation_input_tokens"))
    if sent + made != total:
        if provider == "gemini":
            made = total - sent
        elif sent + made + (reasoning or 0) == total:
            made += reasoning
        elif sent + made + (before.get("audio_tokens") or 0) == total:
            sent += before["audio_tokens"]
    return sent, made, cached, written, reasoning, total


def expected(record: JSON) -> JSON:
    """Return what the reply must be."""
    body = record["response"]["body"]
    said = _stream(body) if isinstance(body, str) else _whole(body)
    in_content, text = _split(said["content"])
    finish = FINISH.get(said["finish"] or "", "unknown")
    cut = finish == "length"
    if said["refusal"] and finish in ("stop", "unknown"):
        finish = "refusal"
    elif said["calls"] and (finish == "stop" or (finish == "unknown" and not said["finish"])):
        finish = "tool_calls"
    return {
        "text": text,
        "reasoning": (said["thoughts"] + in_content) or None,
        "refusal": said["refusal"] or None,
        "calls": [(call["name"], _arguments(call["arguments"], cut)) for call in said["calls"]],
        "ids": [call["id"] or None for call in said["calls"]],
        "finish": finish,
        "usage": usage(said["usages"], record["provider"]),
        "model": said["model"] or None,
        "id": said["id"] or None,
    }
