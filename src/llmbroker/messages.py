"""Messages: what a user hands in, checked once, and the neutral view that every dialect encodes.

The public shape is OpenAI's: dicts with ``role`` and ``content`` (a string or parts), ``tool_calls`` on assistant messages,
``tool_call_id`` on results. ``History`` is a list of those dicts that also keeps the canonical view, block by block.

A *block* is an assistant message with the results of its calls and the user messages that follow, up to the next assistant
message (the first block has no assistant message). Inside a block everything is repaired: each call has exactly one result, in
the model's order; ids are unique in the whole history; names and arguments are such that any provider takes them. A block never
changes once the next one has begun, so that a dialect can encode it once and reuse the bytes: a loop's step costs the same at
step 1,000 as at step 10.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal, SupportsIndex, TypeAlias

import msgspec

from llmbroker.errors import InvalidRequestError

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
    ``extra`` holds opaque keys that the provider wants back.
    """

    id: str
    name: str
    arguments: str
    extra: JSON | None = None


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


# -- checks --------------------------------------------------------------------------------------------------------------


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


def _image(part: Mapping[str, Any], where: str, cache: bool) -> Image:
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, Mapping) else image
    if not isinstance(url, str) or not url:
        raise InvalidRequestError("An image needs image_url.url, a data: or https: URL.", argument=f"{where}.image_url")
    check_text(url, where)
    detail = image.get("detail") if isinstance(image, Mapping) else None
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
    value, file_id, name = file.get("file_data"), file.get("file_id"), file.get("filename")
    if isinstance(value, str):
        check_text(value, where)
        data, media = _data_url(value)
        if data is not None:
            return File(data=data, media_type=media or "application/pdf", name=name, cache=cache)
        if value.startswith(("http://", "https://", "gs://")):
            return File(url=value, media_type=file.get("format"), name=name, cache=cache)
        return File(data=value, media_type=file.get("format") or "application/pdf", name=name, cache=cache)
    if isinstance(file_id, str):
        return File(file_id=file_id, media_type=file.get("format"), name=name, cache=cache)
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
        return Audio(data=audio["data"], format=str(audio.get("format") or "wav"))
    if kind == "file":
        return _file(part, where, cache)
    if kind == "refusal":
        return Text(check_text(str(part.get("refusal") or ""), where))
    raise InvalidRequestError(
        f"Unknown part type {kind!r}; known: text, image_url, input_audio, file.", argument=f"{where}.type"
    )


def _parts(content: Any, where: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(check_text(content, where)),) if content else ()
    if content is None:
        return ()
    if isinstance(content, Sequence) and not isinstance(content, (bytes, bytearray)):
        return tuple(_part(part, f"{where}[{index}]") for index, part in enumerate(content))
    raise InvalidRequestError(f"content is a string or a list of parts, not {type(content).__name__}.", argument=where)


def _raw_calls(message: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
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
    return _NAME.sub("_", str(name or ""))[:64] or "unknown"


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
            return msgspec.json.encode(arguments).decode()
        except (TypeError, ValueError, UnicodeEncodeError):
            pass
    return msgspec.json.encode({"_unreadable": repr(arguments)[:2000].encode("utf-8", "replace").decode()}).decode()


_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "model": "assistant",
    "tool": "tool",
    "function": "tool",
}
_CALL_KEYS = frozenset({"id", "type", "function", "index"})
_MEDIA: dict[type, str] = {Image: "images", Audio: "audio", File: "files"}


class _Turn:
    """The block that is being built."""

    __slots__ = ("assistant", "calls", "results", "size", "users")

    def __init__(self) -> None:
        self.assistant: Assistant | None = None
        self.calls: list[tuple[str, Call]] = []
        self.results: dict[str, Result] = {}
        self.users: list[User] = []
        self.size = 0


class History(list[JSON]):
    """A conversation: a list of messages in OpenAI's shape that keeps its canonical view up to date.

    Args:
        messages: a string (one user message), one message, or a sequence of messages.

    Raises:
        InvalidRequestError: a message is malformed; the argument's name says which one.

    Appending is cheap; any other change makes it read itself anew at the next use.
    """

    def __init__(self, messages: Any = ()) -> None:
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        elif isinstance(messages, Mapping):
            messages = [messages]
        elif isinstance(messages, (bytes, bytearray)) or not isinstance(messages, Iterable):
            raise InvalidRequestError(
                f"messages is a string or a list of messages, not {type(messages).__name__}.", argument="messages"
            )
        super().__init__(messages)
        self._forget()
        self._read()
        if not self:
            raise InvalidRequestError("messages is empty: there is nothing to send.", argument="messages")

    def _forget(self) -> None:
        self._read_count = 0
        self._blocks: list[Block] = []
        self._turn = _Turn()
        self._ids: set[str] = set()
        self._last_user = -1
        self.encoded: dict[Hashable, Encoded] = {}
        self._media: set[str] = set()
        self._characters = 0

    # -- reading ---------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        for index in range(self._read_count, len(self)):
            self._take(self[index], f"messages[{index}]")
        self._read_count = len(self)

    def _take(self, message: Any, where: str) -> None:
        if not isinstance(message, Mapping):
            raise InvalidRequestError(f"A message is a mapping, not {type(message).__name__}.", argument=where)
        role = _ROLES.get(message.get("role", None) or "")
        if role is None:
            raise InvalidRequestError(
                f"Unknown role {message.get('role')!r}; known: system, user, assistant, tool.", argument=f"{where}.role"
            )
        content = message.get("content")
        parts = _parts(content, f"{where}.content")
        for part in parts:
            if type(part) is Text:
                self._characters += len(part.text)
            else:
                self._media.add(_MEDIA[type(part)])
        if role == "assistant":
            self._take_assistant(message, parts, where)
        elif role == "tool":
            self._take_result(message, parts)
        else:
            if content is None:
                raise InvalidRequestError(f"A {role} message needs content.", argument=f"{where}.content")
            name = message.get("name")
            if message.get("cache_control") and parts:
                parts = (*parts[:-1], msgspec.structs.replace(parts[-1], cache=True))
            self._turn.users.append(User(role, parts, name=wire_name(name) if name else None))
            if role == "user":
                self._last_user = len(self._blocks)
        self._turn.size += 1

    def _take_assistant(self, message: Mapping[str, Any], parts: tuple[Part, ...], where: str) -> None:
        raw = _raw_calls(message, where)
        if self._turn.size:
            self._blocks.append(self._closed())
            self._turn = _Turn()
        calls: list[Call] = []
        for call in raw:
            function = call["function"]
            original = call.get("id")
            text = original if isinstance(original, str) else ""
            extra = {key: value for key, value in call.items() if key not in _CALL_KEYS} or None
            made = Call(self._unique(text), wire_name(function.get("name")), object_text(function.get("arguments")), extra)
            self._characters += len(made.arguments)
            calls.append(made)
            self._turn.calls.append((text, made))
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        native = message.get("provider_data")
        refusal = message.get("refusal")
        self._turn.assistant = Assistant(
            parts,
            tuple(calls),
            reasoning=reasoning if isinstance(reasoning, str) else None,
            refusal=refusal if isinstance(refusal, str) else None,
            native=native if isinstance(native, dict) and isinstance(native.get("items"), list) else None,
        )

    def _unique(self, wanted: str) -> str:
        base = _NAME.sub("_", wanted)[:64]
        if not base:
            base = f"call{len(self._ids):05d}"
        made, count = base, 1
        while made in self._ids:
            count += 1
            made = f"{base[:55]}x{count:d}" if len(base) != 9 else f"{base[:5]}{count:04d}"
        self._ids.add(made)
        return made

    def _take_result(self, message: Mapping[str, Any], parts: tuple[Part, ...]) -> None:
        """Pair a result with the first open call of its id in this turn; an orphan is dropped."""
        wanted, turn = message.get("tool_call_id"), self._turn
        wanted = wanted if isinstance(wanted, str) else ""
        for original, call in turn.calls:
            if call.id not in turn.results and original == wanted:
                break
        else:
            return
        turn.results[call.id] = Result(
            call.id, call.name, parts or (Text(EMPTY_RESULT),), is_error=bool(message.get("is_error"))
        )

    def _closed(self) -> Block:
        turn = self._turn
        results = tuple(
            turn.results.get(call.id) or Result(call.id, call.name, (Text(INTERRUPTED),), is_error=True)
            for _, call in turn.calls
        )
        return Block(turn.assistant, results, tuple(turn.users), turn.size)

    # -- views -----------------------------------------------------------------------------------------------------------

    @property
    def finished_blocks(self) -> list[Block]:
        """The blocks that can no longer change."""
        self.refresh()
        return self._blocks

    @property
    def last_block(self) -> Block:
        """The block that the next message may still extend."""
        self.refresh()
        return self._closed()

    @property
    def blocks(self) -> list[Block]:
        """All blocks; every call has its result (an interrupted one where none is known)."""
        return [*self.finished_blocks, self._closed()]

    @property
    def last_user(self) -> int:
        """The index of the last block in which the user speaks, -1 if none: reasoning after it belongs to this loop."""
        self.refresh()
        return self._last_user

    @property
    def media(self) -> frozenset[str]:
        """What else than text it holds: images, audio, files."""
        self.refresh()
        return frozenset(self._media)

    @property
    def characters(self) -> int:
        """The length of all texts and arguments, whatever it is in tokens."""
        self.refresh()
        return self._characters

    def open_calls(self) -> list[JSON]:
        """Return the calls of the last assistant message that have no result yet, as they stand in the message."""
        self.refresh()
        turn = self._turn
        if turn.users or turn.assistant is None:
            return []
        raw = next(m for m in reversed(self) if _ROLES.get(m.get("role", "")) == "assistant").get("tool_calls") or []
        return [item for item, (_, call) in zip(raw, turn.calls, strict=True) if call.id not in turn.results]

    def refresh(self) -> None:
        """Read what was appended since the last look."""
        if self._read_count != len(self):
            if self._read_count > len(self):
                self._forget()
            self._read()

    def _changed(self) -> None:
        self._forget()

    # -- a list that notices changes -------------------------------------------------------------------------------------

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, value)
        self._changed()

    def __delitem__(self, index: Any) -> None:
        super().__delitem__(index)
        self._changed()

    def insert(self, index: SupportsIndex, item: JSON) -> None:
        """Insert a message."""
        super().insert(index, item)
        self._changed()

    def pop(self, index: SupportsIndex = -1) -> JSON:
        """Remove and return a message."""
        item = super().pop(index)
        self._changed()
        return item

    def remove(self, item: JSON) -> None:
        """Remove a message."""
        super().remove(item)
        self._changed()

    def clear(self) -> None:
        """Remove all messages."""
        super().clear()
        self._changed()

    def reverse(self) -> None:
        """Reverse the order."""
        super().reverse()
        self._changed()

    def sort(self, **how: Any) -> None:
        """Sort in place."""
        super().sort(**how)
        self._changed()


class Encoded:
    """The bytes of the finished blocks of a history in one dialect, comma-separated JSON items."""

    __slots__ = ("body", "count", "last_user")

    def __init__(self) -> None:
        self.count = 0
        self.last_user = -1
        self.body = bytearray()


def encode_blocks(history: History, key: Hashable, encode: Callable[[Block, bool], list[Any]], *, by_loop: bool) -> msgspec.Raw:
    """Return the JSON array of all items of a history; blocks that are finished are encoded once and kept.

    Args:
        history: the conversation.
        key: what the encoding depends on (dialect and its settings).
        encode: block and ``current`` (it belongs to the loop that runs now, nothing of the user follows) to items.
        by_loop: whether the encoding depends on ``current`` at all.
    """
    blocks = history.finished_blocks
    last_user = history.last_user if by_loop else -1
    kept = history.encoded.get(key)
    if kept is None or kept.last_user != last_user or kept.count > len(blocks):
        kept = history.encoded[key] = Encoded()
        kept.last_user = last_user
    body = kept.body
    for index in range(kept.count, len(blocks)):
        for item in encode(blocks[index], index >= last_user):
            body += msgspec.json.encode(item)
            body += b","
    kept.count = len(blocks)
    tail = b",".join(msgspec.json.encode(item) for item in encode(history.last_block, True))
    joined = b"[" + bytes(body) + tail + b"]" if tail else b"[" + bytes(body[:-1]) + b"]"
    return msgspec.Raw(joined)


# -- public helpers ------------------------------------------------------------------------------------------------------


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
        role = _ROLES[message["role"]]
        if role == "tool":
            wanted = message.get("tool_call_id")
            if pending.get(wanted or "", 0) > 0:
                pending[wanted or ""] -= 1
            else:
                faults.append(f"messages[{index}]: a result for {wanted!r}, which no open call of the turn before has as id.")
            continue
        faults += [f"messages[{index}]: call {name!r} before it has no result." for name, n in pending.items() if n > 0]
        pending = {}
        if role != "assistant":
            continue
        for call in message.get("tool_calls") or ():
            given = call.get("id")
            name, arguments = call["function"].get("name"), call["function"].get("arguments")
            if not given or given in seen:
                faults.append(f"messages[{index}]: the call id {given!r} is missing or was used before.")
            if name != wire_name(name):
                faults.append(f"messages[{index}]: the tool name {name!r} is not accepted by every provider.")
            if not isinstance(arguments, str) or object_text(arguments) != arguments.strip():
                faults.append(f"messages[{index}]: the arguments of call {given!r} are not the text of a JSON object.")
            seen.add(given or "")
            pending[given or ""] = pending.get(given or "", 0) + 1
    return faults + [f"at the end: call {name!r} has no result yet." for name, n in pending.items() if n > 0]


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
            texts = {i: m for i, m in enumerate(source) if _ROLES[m["role"]] == "tool"}
            out += [_result_message(given[call.id], texts) for call in block.assistant.calls]
        out += [dict(message) for message in source if _ROLES[message["role"]] in ("user", "system")]
    return out


def _result_message(result: Result, originals: Mapping[int, JSON]) -> JSON:
    plain = all(isinstance(part, Text) for part in result.parts)
    content: Any = result.text if plain else None
    if not plain:
        content = next(
            (m.get("content") for m in originals.values() if _parts(m.get("content"), "content") == result.parts), result.text
        )
    message: JSON = {"role": "tool", "tool_call_id": result.id, "content": content}
    if result.is_error:
        message["is_error"] = True
    return message
