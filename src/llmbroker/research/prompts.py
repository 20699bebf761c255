"""Messages as people write them: a string, (role, text) pairs, a mapping of roles, dicts; files by path where they say so.

A path is read only where the caller marks it as one: the pair ``("file", "photo.png")``, or a part ``{"type": "file", "path":
"photo.png"}``. No text is ever taken for a path. What comes out is the list of dicts that the engine takes.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from llmbroker.errors import InvalidRequestError
from llmbroker.messages import History

JSON: TypeAlias = dict[str, Any]
ROLES = frozenset({"system", "developer", "user", "assistant", "model", "tool", "function"})
FILE_ROLES = frozenset({"file", "image"})
LARGEST = 50_000_000
"""Bytes of a file that is put into a message."""

_AUDIO = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
    "audio/flac": "flac",
    "audio/ogg": "ogg",
}


def read_messages(messages: Any) -> Any:
    """Return messages as the engine takes them.

    Args:
        messages: a string (one user turn); a list of strings (user turns); pairs ``(role, text)``, where the roles ``file``
            and ``image`` attach a file to the user's turn beside it; a mapping ``{"system": ..., "user": ...}``; dicts with
            ``role`` and ``content``, whose parts may name a ``path``.

    Raises:
        InvalidRequestError: it is nothing of these, a file cannot be read, or a file stands without any text.
    """
    if isinstance(messages, (str, History)):
        return messages
    if isinstance(messages, Mapping):
        if "role" in messages:
            return [_message(messages, "messages")]
        return _pairs(list(messages.items()))
    if not isinstance(messages, Sequence) or isinstance(messages, (bytes, bytearray)):
        raise InvalidRequestError(
            f"messages is a string, pairs (role, text) or a list of messages, not {type(messages).__name__}.",
            argument="messages",
        )
    if is_pair(messages):
        return _pairs([tuple(messages)])
    if all(isinstance(message, Mapping) for message in messages):
        return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]
    return _pairs([_pair(message, index) for index, message in enumerate(messages)])


def is_pair(value: Any) -> bool:
    """Whether this is one pair (role, text), not a list of two texts."""
    return isinstance(value, tuple) and len(value) == 2 and value[0] in (ROLES | FILE_ROLES)


def is_conversation(value: Any) -> bool:
    """Whether this is the messages of one request, not a list of prompts."""
    if isinstance(value, (str, Mapping, History)) or is_pair(value):
        return True
    return (
        isinstance(value, (list, tuple))
        and bool(value)
        and all((isinstance(item, Mapping) and "role" in item) or is_pair(item) for item in value)
    )


def _pair(message: Any, index: int) -> tuple[str, Any]:
    if isinstance(message, str):
        return "user", message
    if isinstance(message, Mapping):
        return "", message
    if isinstance(message, (tuple, list)) and len(message) == 2 and isinstance(message[0], str | None):
        return message[0] or "user", message[1]
    raise InvalidRequestError(
        f"messages[{index}] is neither text, a pair (role, text) nor a message.", argument=f"messages[{index}]"
    )


def _pairs(pairs: list[tuple[Any, Any]]) -> list[JSON]:
    """Return the messages of pairs; files join the user's text that stands beside them."""
    out: list[JSON] = []
    files: list[JSON] = []
    open_turn: JSON | None = None
    for index, (role, content) in enumerate(pairs):
        where = f"messages[{index}]"
        if role in FILE_ROLES:
            part = read_file(content, where)
            if open_turn is None:
                files.append(part)
            else:
                open_turn["content"] = [*_parts(open_turn["content"]), part]
            continue
        if role and role not in ROLES:
            raise InvalidRequestError(
                f"Unknown role {role!r}; known: system, user, assistant, tool, and file or image for a path.", argument=where
            )
        if not role and not isinstance(content, Mapping):
            raise InvalidRequestError(f"{where} has no role.", argument=where)
        message = _message(content, where) if not role else {"role": role, "content": content}
        open_turn = message if message.get("role") == "user" else None
        if files and open_turn is not None:
            open_turn["content"] = [*_parts(open_turn["content"]), *files]
            files = []
        out.append(message)
    if files:
        raise InvalidRequestError(
            "A file stands without a user's text that says what is to be done with it.", argument="messages"
        )
    return out


def _parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _message(message: Mapping[str, Any], where: str) -> JSON:
    """Return a message with the files that its parts name read into it."""
    content = message.get("content")
    if isinstance(content, (list, tuple)) and any(isinstance(part, Mapping) and "path" in part for part in content):
        parts = [
            read_file(part["path"], f"{where}.content[{at}]") if isinstance(part, Mapping) and "path" in part else part
            for at, part in enumerate(content)
        ]
        return {**message, "content": parts}
    return message if isinstance(message, dict) else dict(message)


def read_file(path: Any, where: str) -> JSON:
    """Return the part of a message that holds a file: an image, sound, text, or a document.

    Raises:
        InvalidRequestError: it cannot be read, or is larger than 50 MB.
    """
    import mimetypes

    if not isinstance(path, (str, os.PathLike)):
        raise InvalidRequestError(f"{where}: a file is named by its path, not {type(path).__name__}.", argument=where)
    file = Path(path).expanduser()
    try:
        if file.stat().st_size > LARGEST:
            raise InvalidRequestError(f"{where}: {file} is larger than {LARGEST // 1_000_000} MB.", argument=where)
        data = file.read_bytes()
    except OSError as error:
        raise InvalidRequestError(f"{where}: {file} cannot be read: {error.strerror or error}.", argument=where) from None
    media = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    if media.startswith("text/") or media in ("application/json", "application/xml"):
        try:
            return {"type": "text", "text": f"{file.name}:\n{data.decode('utf-8-sig')}"}
        except UnicodeDecodeError:
            media = "application/octet-stream"
    text = base64.b64encode(data).decode()
    if media.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": f"data:{media};base64,{text}"}}
    if media in _AUDIO:
        return {"type": "input_audio", "input_audio": {"data": text, "format": _AUDIO[media]}}
    return {"type": "file", "file": {"filename": file.name, "file_data": f"data:{media};base64,{text}"}}


def with_marks(messages: Any) -> Any:
    """Return messages whose last system message bears a mark for the provider's prompt cache."""
    listed = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    for index in range(len(listed) - 1, -1, -1):
        if listed[index].get("role") in ("system", "developer"):
            listed[index] = {**listed[index], "cache_control": {"type": "ephemeral"}}
            break
    return listed
