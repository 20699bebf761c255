"""What goes into a question: arguments, files, a pipe, images."""

from __future__ import annotations

import base64
import mimetypes
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmbroker.errors import InvalidRequestError
from llmbroker.faces.cli.output import note

LARGEST = 20_000_000
"""Bytes of one input; no model reads more."""


def from_stdin(words: Sequence[str], *, wanted: bool) -> str:
    """Return what a pipe holds; "" where stdin is a terminal or not wanted.

    Raises:
        InvalidRequestError: it is no text.
    """
    explicit = "-" in words
    if not wanted or sys.stdin is None or (sys.stdin.isatty() and not explicit):
        return ""
    # A pipe that was inherited and never closed would be waited for in silence.
    waiting = threading.Timer(1.0, note, ["waiting for stdin (use --no-stdin if nothing comes)"])
    waiting.daemon = True
    if not explicit and words:
        waiting.start()
    try:
        data = sys.stdin.buffer.read(LARGEST + 1)
    finally:
        waiting.cancel()
    return _text(data, "stdin")


def prompt_of(words: Sequence[str], files: Sequence[str], piped: str) -> str:
    """Return the question: the words, then each file, then the pipe, with a blank line between."""
    parts = [" ".join(word for word in words if word != "-")]
    parts += [_text(_read(path), path) for path in files]
    parts.append(piped)
    return "\n\n".join(part.strip("\n") for part in parts if part.strip())


def system_of(text: str | None) -> list[dict[str, Any]]:
    """Return the system message, if there is one; ``@file`` is read."""
    if not text:
        return []
    if text.startswith("@") and len(text) > 1:
        text = _text(_read(text[1:]), text[1:])
    return [{"role": "system", "content": text}]


def attachments(text: str, paths: Sequence[str]) -> Any:
    """Return the content of the user's message: the text alone, or parts with images."""
    if not paths:
        return text
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    for path in paths:
        kind = mimetypes.guess_type(path)[0] or ""
        if not kind.startswith("image/"):
            raise InvalidRequestError(f"{path!r} is no image; a text goes by --file.", argument="--attach")
        data = base64.b64encode(_read(path)).decode()
        parts.append({"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}})
    return parts


def _read(path: str) -> bytes:
    try:
        with Path(path).expanduser().open("rb") as file:
            return file.read(LARGEST + 1)
    except OSError as error:
        raise InvalidRequestError(f"{path!r} cannot be read: {error.strerror}.", argument=path) from None


def _text(data: bytes, where: str) -> str:
    if len(data) > LARGEST:
        raise InvalidRequestError(f"{where} is longer than {LARGEST:,} bytes; no model reads that.", argument=where)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise InvalidRequestError(f"{where} is no UTF-8 text; an image goes by --attach.", argument=where)
    return text
