"""Requests and replies as text for the journal, where it was asked to keep them: redacted, attachments and excess cut."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from llmbroker.credentials import Secret, mask, redact
from llmbroker.exchange import Reply, Request

MAX_BODY = 262_144
"""Characters of one body that are kept."""
_ATTACHED = re.compile(r"[A-Za-z0-9+/\-_]{1000,}={0,2}")


def request_body(request: Request, secrets: Iterable[Secret | str | None] = ()) -> str:
    """Return what was asked, in no dialect: messages, tools, parameters."""
    body: dict[str, Any] = {"messages": list(request.history)}
    if request.tools:
        body["tools"] = list(request.tools)
    if request.tool_choice is not None:
        body["tool_choice"] = request.tool_choice
    if request.response_format is not None:
        body["response_format"] = request.response_format
    return body_text({**body, **request.params}, secrets)


def reply_body(reply: Reply, secrets: Iterable[Secret | str | None] = ()) -> str:
    """Return what was answered: the assistant's message."""
    return body_text(reply.message, secrets)


def body_text(value: Any, secrets: Iterable[Secret | str | None] = ()) -> str:
    """Return a value as JSON text without keys; long runs of base64 are replaced by their length. Never raises."""
    try:
        text = msgspec.json.encode(value, enc_hook=repr).decode()
    except Exception as error:  # noqa: BLE001 - a body that cannot be written must not cost the row
        return f'"cannot be written as JSON: {type(error).__name__}"'
    text = _ATTACHED.sub(lambda found: f"({len(found.group())} characters)", text)
    text = mask(redact(text, secrets))
    return text if len(text) <= MAX_BODY else text[:MAX_BODY] + f"… ({len(text)} characters)"
