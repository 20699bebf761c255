"""The result of a tool made of a function as what a model gets: text, JSON of any common type, images and files as parts."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from llmbroker.messages import EMPTY_RESULT
from llmbroker.tools.results import fit, whole

JSON: TypeAlias = dict[str, Any]
MEDIA_KEYS = frozenset({"image_url", "input_audio", "file"})


class Image(msgspec.Struct, frozen=True):
    """An image as (part of) a tool's result: bytes with their media type, or the address of one."""

    data: bytes = b""
    media_type: str = "image/png"
    url: str | None = None

    def part(self) -> JSON:
        """Return it as a part of a message."""
        return {"type": "image_url", "image_url": {"url": self.url or _data_url(self.data, self.media_type)}}


class File(msgspec.Struct, frozen=True):
    """A document as (part of) a tool's result."""

    data: bytes
    media_type: str = "application/pdf"
    name: str = "file"

    def part(self) -> JSON:
        """Return it as a part of a message."""
        return {"type": "file", "file": {"file_data": _data_url(self.data, self.media_type), "filename": self.name}}


def _data_url(data: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def content_of(value: Any, limit: int | None) -> tuple[str, list[JSON] | None]:
    """Return the text of a result and, where it holds images or files, the parts that go into the message.

    Raises:
        TypeError: the value is of a kind that JSON cannot carry; the message names the type.
    """
    if isinstance(value, str):
        return fit(value, limit) or EMPTY_RESULT, None
    if value is None:
        return EMPTY_RESULT, None
    items = value if isinstance(value, (list, tuple)) and any(_is_media(item) for item in value) else [value]
    if not any(_is_media(item) for item in items):
        return fit(json_text(value), limit) or EMPTY_RESULT, None
    parts: list[JSON] = []
    words: list[str] = []
    for item in items:
        if _is_media(item):
            parts.append(item.part() if isinstance(item, (Image, File)) else dict(item))
            words.append(f"[{parts[-1]['type'].removesuffix('_url')}]")
            continue
        text = fit(item if isinstance(item, str) else json_text(item), limit)
        words.append(text)
        parts.append({"type": "text", "text": text})
    return "\n".join(words), parts


def _is_media(value: Any) -> bool:
    if isinstance(value, (Image, File)):
        return True
    return isinstance(value, Mapping) and value.get("type") in MEDIA_KEYS and value.get("type") in value


def json_text(value: Any) -> str:
    """Return valid JSON in valid UTF-8: NaN and infinities are null, sets lists, models what they hold.

    Raises:
        TypeError: it holds a value of a kind that JSON cannot carry.
    """
    try:
        return msgspec.json.encode(value, enc_hook=_hook).decode()
    except (UnicodeEncodeError, ValueError, RecursionError):
        return msgspec.json.encode(_mended(value, 0), enc_hook=_hook).decode()
    except TypeError as error:
        try:
            return msgspec.json.encode(_mended(value, 0), enc_hook=_hook).decode()
        except TypeError:
            raise TypeError(str(error)) from None


def _hook(value: Any) -> Any:
    """Return what stands for a value that msgspec does not know."""
    for name, arguments in (("model_dump", {"mode": "json"}), ("to_dict", {}), ("tolist", {}), ("item", {})):
        method = getattr(value, name, None)
        if callable(method) and not isinstance(value, type):
            if name == "to_dict" and hasattr(value, "columns"):
                arguments = {"orient": "records"}
            return method(**arguments)
    if hasattr(value, "__fspath__"):
        return str(value)
    if isinstance(value, BaseException):
        return {"error": type(value).__name__, "message": str(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (range, complex)):
        return str(value) if isinstance(value, complex) else list(value)
    if hasattr(value, "__iter__") and not hasattr(value, "__next__"):
        return list(value)
    raise TypeError(f"a result of type {type(value).__name__} cannot be sent to a model; return text or JSON values")


def _mended(value: Any, depth: int) -> Any:
    """Return the value with whole characters, text as keys and no number that JSON has no word for."""
    if depth > 200:
        raise TypeError("the result is nested too deeply, or holds itself")
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {whole(key if isinstance(key, str) else str(key)): _mended(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_mended(item, depth + 1) for item in value]
    if isinstance(value, (int, bytes)) or value is None:
        return value
    try:
        return msgspec.to_builtins(value, enc_hook=_hook)
    except (UnicodeEncodeError, ValueError, RecursionError):
        raise TypeError(f"a result of type {type(value).__name__} cannot be sent to a model") from None
