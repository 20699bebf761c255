"""Replies as bytes: what a provider of each dialect would send for a given reply, whole or streamed.

A scripted provider says what it means once, as a ``Reply``; this file puts it into the words of a dialect. Streams are cut into
events the way the vendors do it: text and arguments in pieces, the finish in its own event, usage where the dialect has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from llmbroker.exchange import Reply, Usage, new_call_id
from llmbroker.providers.table import DIALECTS

JSON: TypeAlias = dict[str, Any]


def made_reply(
    text: str = "",
    calls: Iterable[tuple[str, Any]] = (),
    *,
    finish: str | None = None,
    reasoning: str | None = None,
    usage: Usage | None = None,
    model: str = "scripted",
) -> Reply:
    """Return a reply to be sent: text, and calls as (name, arguments), arguments as JSON text or as an object."""
    made = [
        {
            "id": new_call_id(),
            "type": "function",
            "function": {
                "name": name,
                "arguments": arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode(),
            },
        }
        for name, arguments in calls
    ]
    return Reply(
        text=text,
        tool_calls=made or None,
        reasoning=reasoning,
        finish_reason=finish or ("tool_calls" if made else "stop"),  # type: ignore[arg-type]
        usage=usage or Usage(input_tokens=10, output_tokens=5, total_tokens=15),
        model=model,
        id="scripted-1",
    )


def whole(reply: Reply, dialect: str) -> bytes:
    """Return the body of a whole answer in that dialect."""
    return msgspec.json.encode(DIALECTS[dialect].encode_reply(reply))


def content_type(dialect: str, *, stream: bool) -> str:
    """Return the content type that belongs to a body of that dialect."""
    if not stream:
        return "application/json"
    return "application/x-ndjson" if DIALECTS[dialect].framing == "ndjson" else "text/event-stream"


def stream(reply: Reply, dialect: str, *, size: int = 8) -> list[bytes]:
    """Return the chunks of a streamed answer in that dialect, one an event.

    Args:
        reply: what is said.
        dialect: ``openai-chat``, ``openai-responses``, ``anthropic``, ``gemini`` or ``ollama``.
        size: characters of text or arguments in one event.
    """
    return list(_STREAMS[dialect](reply, size))


def _pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def _data(value: JSON, event: str = "") -> bytes:
    head = f"event: {event}\n".encode() if event else b""
    return head + b"data: " + msgspec.json.encode(value) + b"\n\n"


def _chat(reply: Reply, size: int) -> Iterator[bytes]:
    body = DIALECTS["openai-chat"].encode_reply(reply)
    base = {"id": body.get("id"), "object": "chat.completion.chunk", "model": body.get("model")}

    def chunk(delta: JSON, finish: Any = None) -> bytes:
        return _data({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    yield chunk({"role": "assistant", "content": ""})
    for piece in _pieces(reply.reasoning or "", size):
        yield chunk({"reasoning_content": piece})
    for piece in _pieces(reply.text, size):
        yield chunk({"content": piece})
    for index, call in enumerate(reply.tool_calls or ()):
        function = call["function"]
        yield chunk({"tool_calls": [{**call, "index": index, "function": {"name": function["name"], "arguments": ""}}]})
        for piece in _pieces(function["arguments"], size):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, body["choices"][0]["finish_reason"])
    if body.get("usage"):
        yield _data({**base, "choices": [], "usage": body["usage"]})
    yield b"data: [DONE]\n\n"


def _responses(reply: Reply, size: int) -> Iterator[bytes]:
    body = DIALECTS["openai-responses"].encode_reply(reply)
    count = iter(range(1_000_000))

    def event(kind: str, **facts: Any) -> bytes:
        return _data({"type": kind, "sequence_number": next(count), **facts}, kind)

    yield event("response.created", response={**body, "status": "in_progress", "output": [], "usage": None})
    for index, item in enumerate(body["output"]):
        empty = {**item, **({"arguments": ""} if "arguments" in item else {"content": [], "summary": []})}
        yield event("response.output_item.added", output_index=index, item=empty)
        if item["type"] == "function_call":
            for piece in _pieces(item["arguments"], size):
                yield event("response.function_call_arguments.delta", output_index=index, item_id=item["id"], delta=piece)
            yield event("response.function_call_arguments.done", output_index=index, arguments=item["arguments"])
        elif item["type"] == "message":
            for place, part in enumerate(item["content"]):
                kind = "output_text" if part["type"] == "output_text" else "refusal"
                for piece in _pieces(part.get("text") or part.get("refusal") or "", size):
                    yield event(f"response.{kind}.delta", output_index=index, content_index=place, delta=piece)
        else:
            for place, part in enumerate(item["summary"]):
                for piece in _pieces(part["text"], size):
                    yield event("response.reasoning_summary_text.delta", output_index=index, summary_index=place, delta=piece)
        yield event("response.output_item.done", output_index=index, item=item)
    yield event("response.incomplete" if body["status"] == "incomplete" else "response.completed", response=body)


def _anthropic(reply: Reply, size: int) -> Iterator[bytes]:
    body = DIALECTS["anthropic"].encode_reply(reply)
    usage = body.get("usage") or {}
    start = {**body, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 0}}
    yield _data({"type": "message_start", "message": start}, "message_start")
    yield _data({"type": "ping"}, "ping")
    for index, block in enumerate(body["content"]):
        empty, deltas = _block(block, size)
        yield _data({"type": "content_block_start", "index": index, "content_block": empty}, "content_block_start")
        for delta in deltas:
            yield _data({"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta")
        yield _data({"type": "content_block_stop", "index": index}, "content_block_stop")
    ended = {key: body[key] for key in ("stop_reason", "stop_sequence", "stop_details") if key in body}
    yield _data({"type": "message_delta", "delta": ended, "usage": usage}, "message_delta")
    yield _data({"type": "message_stop"}, "message_stop")


def _block(block: JSON, size: int) -> tuple[JSON, list[JSON]]:
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": piece} for piece in _pieces(block["text"], size)]
    if block["type"] == "thinking":
        deltas: list[JSON] = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(block["thinking"], size)]
        if block.get("signature"):
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        return {**block, "thinking": "", "signature": ""}, deltas
    if block["type"] == "tool_use":
        made = block["input"]
        text = made if isinstance(made, str) else msgspec.json.encode(made).decode()
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": piece} for piece in _pieces(text, size)]
    return block, []


def _gemini(reply: Reply, size: int) -> Iterator[bytes]:
    body = DIALECTS["gemini"].encode_reply(reply)
    candidate = body["candidates"][0]
    rest = {key: value for key, value in body.items() if key not in ("candidates", "usageMetadata")}

    def chunk(parts: list[JSON], **more: Any) -> bytes:
        made = {"content": {"role": "model", "parts": parts}, "index": 0, **more}
        return b"data: " + msgspec.json.encode({**rest, "candidates": [made]}) + b"\r\n\r\n"

    for part in candidate["content"]["parts"]:
        if "text" in part:
            for piece in _pieces(part["text"], size):
                yield chunk([{**part, "text": piece}])
        else:
            yield chunk([part])
    last = {key: value for key, value in candidate.items() if key not in ("content", "index")}
    ended = {**rest, "candidates": [{"content": {"role": "model", "parts": [{"text": ""}]}, "index": 0, **last}]}
    if "usageMetadata" in body:
        ended["usageMetadata"] = body["usageMetadata"]
    yield b"data: " + msgspec.json.encode(ended) + b"\r\n\r\n"


def _ollama(reply: Reply, size: int) -> Iterator[bytes]:
    body = DIALECTS["ollama"].encode_reply(reply)
    message = body["message"]

    def line(said: JSON, **more: Any) -> bytes:
        value = {"model": body.get("model"), "message": {"role": "assistant", "content": "", **said}, "done": False, **more}
        return msgspec.json.encode(value) + b"\n"

    for piece in _pieces(message.get("thinking") or "", size):
        yield line({"thinking": piece})
    for piece in _pieces(message["content"], size):
        yield line({"content": piece})
    for call in message.get("tool_calls") or ():
        yield line({"tool_calls": [call]})
    yield line({}, **{key: value for key, value in body.items() if key not in ("model", "message")})


_STREAMS: Mapping[str, Callable[[Reply, int], Iterator[bytes]]] = {
    "openai-chat": _chat,
    "openai-responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "ollama": _ollama,
}
