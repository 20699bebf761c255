"""The parts of a message, and how they are read out of what the user handed in; every fault names its place."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from llmbroker.errors import InvalidRequestError
from llmbroker.messages.plain import plain, shown

JSON: TypeAlias = dict[str, Any]
Role: TypeAlias = Literal["system", "user", "assistant", "tool"]

INTERRUPTED = "The call was interrupted: no result is known."
EMPTY_RESULT = "(no output)"
_NAME = re.compile(r"[^a-zA-Z0-9_-]")


class Text(msgspec.Struct, frozen=True, gc=False, tag="text"):
    """Text. ``cache``: a prompt-cache mark stands after this part."""

    text: str
    cache: bool = False


class Image(msgspec.Struct, frozen=True, gc=False, tag="image"):
    """An image: ``data`` (base64) with ``media_type``, or a ``url`` that the provider fetches. ``detail``: OpenAI's hint."""

    data: str | None = None
    media_type: str | None = None
    url: str | None = None
    detail: str | None = None
    cache: bool = False


class Audio(msgspec.Struct, frozen=True, gc=False, tag="audio"):
    """Sound as base64; ``format`` is wav, mp3, and so on."""

    data: str
    format: str


class File(msgspec.Struct, frozen=True, gc=False, tag="file"):
    """A document: ``data`` (base64) with ``media_type``, a ``url``, or the provider's ``file_id``."""

    data: str | None = None
    media_type: str | None = None
    url: str | None = None
    file_id: str | None = None
    name: str | None = None
    cache: bool = False


Part: TypeAlias = Text | Image | Audio | File


class Call(msgspec.Struct, frozen=True):
    """A tool call of an assistant message, fit for any wire.

    ``id`` is unique in the history, ``name`` matches ``[a-zA-Z0-9_-]{1,64}``, ``arguments`` is the text of a JSON object.
    ``extra`` holds opaque keys that the provider wants back. ``given`` is the id as it came, where it is the only one of its
    kind in the history, else "": some models know their calls by ids of their own form (``functions.get_weather:0``), and a
    dialect whose servers take any id sends that.
    """

    id: str
    name: str
    arguments: str
    extra: JSON | None = None
    given: str = ""


class Result(msgspec.Struct, frozen=True):
    """The result of the call ``id``. ``parts`` is never empty."""

    id: str
    name: str
    parts: tuple[Part, ...]
    is_error: bool = False

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))


class Assistant(msgspec.Struct, frozen=True):
    """An assistant message. ``native``: the provider's own items of this turn (see ``exchange.Native``), or None."""

    parts: tuple[Part, ...] = ()
    calls: tuple[Call, ...] = ()
    reasoning: str | None = None
    refusal: str | None = None
    native: JSON | None = None

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))


class User(msgspec.Struct, frozen=True):
    """A user or system message."""

    role: Literal["user", "system"]
    parts: tuple[Part, ...]
    name: str | None = None

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))


class Block(msgspec.Struct, frozen=True):
    """One turn: the assistant's message (None in the first block), the results of its calls, what came after.

    ``size`` is the number of messages that it stands for. ``has_user``: a message of the user stands in it.
    """

    assistant: Assistant | None
    results: tuple[Result, ...]
    users: tuple[User, ...]
    size: int

    @property
    def has_user(self) -> bool:
        """Whether the user speaks in this block."""
        return any(message.role == "user" for message in self.users)


def check_text(text: str, where: str) -> str:
    """Return the text; refuse what no JSON can carry.

    Raises:
        InvalidRequestError: the text holds a lone surrogate.
    """
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"{where} holds a lone surrogate at character {error.start}; it cannot be sent as UTF-8.", argument=where
            ) from None
    return text


def _data_url(url: str) -> tuple[str | None, str | None]:
    if not url.startswith("data:"):
        return None, None
    head, comma, data = url[5:].partition(",")
    if not comma:
        return None, None
    return data, head.split(";")[0] or None


def _word(source: Mapping[str, Any], name: str, where: str) -> str | None:
    """Return an optional text of a part."""
    value = source.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidRequestError(f"{where}.{name} is a string, not {shown(value)}.", argument=f"{where}.{name}")
    return check_text(value, f"{where}.{name}") if value else None


def _image(part: Mapping[str, Any], where: str, cache: bool) -> Image:
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, Mapping) else image
    if not isinstance(url, str) or not url:
        raise InvalidRequestError("An image needs image_url.url, a data: or https: URL.", argument=f"{where}.image_url")
    check_text(url, where)
    detail = _word(image, "detail", f"{where}.image_url") if isinstance(image, Mapping) else None
    data, media = _data_url(url)
    if data is not None:
        return Image(data=data, media_type=media or "image/png", detail=detail, cache=cache)
    if not url.startswith(("http://", "https://", "gs://")):
        raise InvalidRequestError(
            "An image URL begins with https: or data:; a path is never read.", argument=f"{where}.image_url"
        )
    return Image(url=url, detail=detail, cache=cache)


def _file(part: Mapping[str, Any], where: str, cache: bool) -> File:
    file = part.get("file")
    if not isinstance(file, Mapping):
        raise InvalidRequestError("A file part needs a mapping 'file'.", argument=f"{where}.file")
    value, file_id = file.get("file_data"), file.get("file_id")
    name, form = _word(file, "filename", f"{where}.file"), _word(file, "format", f"{where}.file")
    if isinstance(value, str):
        check_text(value, where)
        data, media = _data_url(value)
        if data is not None:
            return File(data=data, media_type=media or "application/pdf", name=name, cache=cache)
        if value.startswith(("http://", "https://", "gs://")):
            return File(url=value, media_type=form, name=name, cache=cache)
        return File(data=value, media_type=form or "application/pdf", name=name, cache=cache)
    if isinstance(file_id, str):
        check_text(file_id, f"{where}.file.file_id")
        return File(file_id=file_id, media_type=form, name=name, cache=cache)
    raise InvalidRequestError("A file part needs file.file_data or file.file_id.", argument=f"{where}.file")


def _part(part: Any, where: str) -> Part:
    if isinstance(part, str):
        return Text(check_text(part, where))
    if not isinstance(part, Mapping):
        raise InvalidRequestError(f"A part is a string or a mapping, not {type(part).__name__}.", argument=where)
    kind, cache = part.get("type"), bool(part.get("cache_control"))
    if kind in ("text", "input_text", "output_text"):
        text = part.get("text")
        if not isinstance(text, str):
            raise InvalidRequestError("A text part needs a string 'text'.", argument=f"{where}.text")
        return Text(check_text(text, f"{where}.text"), cache=cache)
    if kind == "image_url":
        return _image(part, where, cache)
    if kind == "input_audio":
        audio = part.get("input_audio")
        if not isinstance(audio, Mapping) or not isinstance(audio.get("data"), str):
            raise InvalidRequestError("A sound needs input_audio.data and .format.", argument=f"{where}.input_audio")
        data = check_text(audio["data"], f"{where}.input_audio.data")
        return Audio(data=data, format=_word(audio, "format", f"{where}.input_audio") or "wav")
    if kind == "file":
        return _file(part, where, cache)
    if kind == "refusal":
        return Text(_word(part, "refusal", where) or "")
    raise InvalidRequestError(
        f"Unknown part type {shown(kind)}; known: text, image_url, input_audio, file.", argument=f"{where}.type"
    )


def read_parts(content: Any, where: str) -> tuple[Part, ...]:
    """Return the parts of a content: a string, a list of parts, or nothing."""
    if isinstance(content, str):
        return (Text(check_text(content, where)),) if content else ()
    if content is None:
        return ()
    if isinstance(content, Sequence) and not isinstance(content, (bytes, bytearray)):
        return tuple(_part(part, f"{where}[{index}]") for index, part in enumerate(content))
    raise InvalidRequestError(f"content is a string or a list of parts, not {type(content).__name__}.", argument=where)


def read_calls(message: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
    """Return the tool calls of an assistant message as they stand there."""
    calls = message.get("tool_calls")
    if calls is None:
        return []
    if not isinstance(calls, Sequence) or isinstance(calls, (str, bytes)):
        raise InvalidRequestError("tool_calls is a list.", argument=f"{where}.tool_calls")
    for index, call in enumerate(calls):
        if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
            raise InvalidRequestError(
                "A tool call is a mapping with a mapping 'function'.", argument=f"{where}.tool_calls[{index}]"
            )
    return list(calls)


def wire_name(name: Any) -> str:
    """Return a name that every provider accepts: illegal characters become ``_``, at most 64, never empty."""
    return _NAME.sub("_", name if isinstance(name, str) else "")[:64] or "unknown"


def object_text(arguments: Any) -> str:
    """Return arguments as the text of a JSON object. What is no object is kept under ``_unreadable``, never guessed at."""
    if isinstance(arguments, str):
        text = arguments.strip()
        if text in ("", "null"):
            return "{}"
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            value = None
        if isinstance(value, dict):
            return text
        return msgspec.json.encode({"_unreadable": text.encode("utf-8", "replace").decode()[:2000]}).decode()
    if arguments is None:
        return "{}"
    if isinstance(arguments, Mapping):
        try:
            return msgspec.json.encode(plain(arguments, "arguments")).decode()
        except InvalidRequestError:
            pass
    return msgspec.json.encode({"_unreadable": shown(arguments).encode("utf-8", "replace").decode()}).decode()


CALL_KEYS = frozenset({"id", "type", "function", "index"})
