"""Read recorded answers the way the client room does, without sockets: whole bodies, and streams cut anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from llmbroker.credentials import Secret
from llmbroker.errors import StreamInterruptedError
from llmbroker.exchange import Fold, Reply
from llmbroker.providers.base import Deployment, Dialect, Provider, decode_reply
from llmbroker.wire import HTTPReply, NDJSONDecoder, SSEDecoder

KEY = "sk-canary-0123456789"


def deployment(dialect: Dialect, model: str, *, base_url: str = "https://api.example.com/v1", **row: Any) -> Deployment:
    provider = Provider(
        id=row.pop("id", "vendor"), title="Vendor", dialect=dialect, base_url=base_url, auth=row.pop("auth", "x-api-key"), **row
    )
    return Deployment(
        name=model,
        provider=provider,
        dialect=dialect,
        base_url=base_url,
        model=model,
        key=Secret(KEY, "environment VENDOR_API_KEY"),
    )


def body_bytes(record: dict[str, Any]) -> bytes:
    body = record["response"]["body"]
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()


def is_stream(record: dict[str, Any]) -> bool:
    return isinstance(record["response"]["body"], str)


def whole(body: bytes, at: Deployment) -> Reply:
    return decode_reply(HTTPReply(200, {}, body), at)


def streamed(chunks: Iterable[bytes], at: Deployment) -> Reply:
    """Fold a stream; raise as the client does where it ends without the provider's word."""
    frames = NDJSONDecoder() if at.dialect.framing == "ndjson" else SSEDecoder()
    decoder, fold = at.dialect.decoder(at), Fold()

    def take(events: list[Any]) -> None:
        for frame in events:
            if decoder.done:
                return
            for event in decoder.feed(frame):
                fold.add(event)

    for chunk in chunks:
        take(frames.feed(chunk))
    take(frames.end())
    if not decoder.done and not fold.finished:
        raise StreamInterruptedError("cut", text=fold.text)
    return fold.reply(dialect=at.dialect.name, provider=at.provider.id, model=at.model, native=at.dialect.native)


def cut(body: bytes, sizes: Iterable[int]) -> list[bytes]:
    """Cut bytes into reads of these sizes; what is left over is one more read."""
    out, at = [], 0
    for size in sizes:
        out.append(body[at : at + size])
        at += size
    if at < len(body):
        out.append(body[at:])
    return out


def every_byte(body: bytes) -> list[bytes]:
    return [body[i : i + 1] for i in range(len(body))]


def essence(reply: Reply) -> dict[str, Any]:
    """What two readings of one answer have in common: arguments as values, ids that we made up left out."""
    return {
        "text": reply.text,
        "reasoning": reply.reasoning,
        "refusal": reply.refusal,
        "calls": calls_of(reply),
        "usage": reply.usage,
        "finish": reply.finish_reason,
        "raw_finish": reply.raw_finish_reason,
        "id": reply.id,
        "native": reply.message.get("provider_data"),
    }


def calls_of(reply: Reply) -> list[tuple[str, Any]]:
    return [(call["function"]["name"], arguments(call["function"]["arguments"])) for call in reply.tool_calls or ()]


def arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
