"""The canonical view of a conversation: a list of messages that keeps its blocks repaired, and their bytes in a dialect."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, SupportsIndex

import msgspec

from llmbroker.errors import InvalidRequestError
from llmbroker.messages.parts import (
    _NAME,
    CALL_KEYS,
    EMPTY_RESULT,
    INTERRUPTED,
    JSON,
    Assistant,
    Audio,
    Block,
    Call,
    File,
    Image,
    Part,
    Result,
    Role,
    Text,
    User,
    check_text,
    object_text,
    read_calls,
    read_parts,
    wire_name,
)
from llmbroker.messages.plain import plain, shown

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "model": "assistant",
    "tool": "tool",
    "function": "tool",
}
MEDIA: dict[type, str] = {Image: "images", Audio: "audio", File: "files"}


def _native(given: Any, where: str) -> JSON | None:
    """Return a provider's own items of a turn; what has another shape is somebody else's and passed over."""
    items = given.get("items") if isinstance(given, dict) else None
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        return None
    made: JSON = plain(given, where)
    return made


class Turn:
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
        elif type(messages) is list:
            pass
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
        self._turn = Turn()
        self._ids: set[str] = set()
        self._given: set[str] = set()
        self._last_user = -1
        self.encoded: dict[Hashable, Encoded] = {}
        self._media: set[str] = set()
        self._characters = 0

    def _read(self) -> None:
        for index in range(self._read_count, len(self)):
            self._take(self[index], f"messages[{index}]")
        self._read_count = len(self)

    def _take(self, message: Any, where: str) -> None:
        if type(message) is not dict and not isinstance(message, Mapping):
            raise InvalidRequestError(f"A message is a mapping, not {type(message).__name__}.", argument=where)
        given = message.get("role")
        role = ROLES.get(given) if isinstance(given, str) else None
        if role is None:
            raise InvalidRequestError(
                f"Unknown role {shown(given)}; known: system, user, assistant, tool.", argument=f"{where}.role"
            )
        content = message.get("content")
        parts = read_parts(content, f"{where}.content")
        for part in parts:
            if type(part) is Text:
                self._characters += len(part.text)
            else:
                self._media.add(MEDIA[type(part)])
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
        raw = read_calls(message, where)
        if self._turn.size:
            self._blocks.append(self._closed())
            self._turn = Turn()
        calls: list[Call] = []
        for call in raw:
            function = call["function"]
            original = call.get("id")
            text = original if isinstance(original, str) else ""
            extra = {key: value for key, value in call.items() if key not in CALL_KEYS} or None
            extra = plain(extra, f"{where}.tool_calls") if extra else None
            given = text if text.isprintable() and text not in self._given else ""
            self._given.add(text)
            made = Call(
                self._unique(text), wire_name(function.get("name")), object_text(function.get("arguments")), extra, given
            )
            self._characters += len(made.arguments)
            calls.append(made)
            self._turn.calls.append((text, made))
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        refusal = message.get("refusal")
        self._turn.assistant = Assistant(
            parts,
            tuple(calls),
            reasoning=check_text(reasoning, f"{where}.reasoning_content") if isinstance(reasoning, str) else None,
            refusal=check_text(refusal, f"{where}.refusal") if isinstance(refusal, str) else None,
            native=_native(message.get("provider_data"), f"{where}.provider_data"),
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
        """Pair a result with the first open call of its id in this turn; an orphan is dropped.

        A result that names no id at all belongs to the first open call of its name, else to the first open call.
        """
        wanted, turn = message.get("tool_call_id"), self._turn
        wanted = wanted if isinstance(wanted, str) else ""
        waiting = [(original, call) for original, call in turn.calls if call.id not in turn.results]
        call = next((call for original, call in waiting if original == wanted), None)
        if call is None and not wanted and waiting:
            name = message.get("name")
            call = next((call for _, call in waiting if call.name == name), waiting[0][1])
        if call is None:
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
        raw = next(m for m in reversed(self) if ROLES.get(m.get("role", "")) == "assistant").get("tool_calls") or []
        return [item for item, (_, call) in zip(raw, turn.calls, strict=True) if call.id not in turn.results]

    def refresh(self) -> None:
        """Read what was appended since the last look."""
        if self._read_count != len(self):
            if self._read_count > len(self):
                self._forget()
            self._read()

    def _changed(self) -> None:
        self._forget()

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
    return msgspec.Raw(b"".join(encode_pieces(history, key, encode, by_loop=by_loop)))


def encode_pieces(
    history: History, key: Hashable, encode: Callable[[Block, bool], list[Any]], *, by_loop: bool
) -> tuple[bytes | bytearray, ...]:
    """Return what ``encode_blocks`` does, in pieces to be joined at once and not kept.

    The finished blocks of a long loop are a megabyte; whoever joins them straight into the body of a request copies it once.
    """
    blocks = history.finished_blocks
    last_user = history.last_user if by_loop else -1
    kept = history.encoded.get(key)
    if kept is None or kept.last_user != last_user or kept.count > len(blocks):
        kept = history.encoded[key] = Encoded()
        kept.last_user = last_user
    body = kept.body
    for index in range(kept.count, len(blocks)):
        # Whole blocks or nothing: an encoder that refuses a part must not leave half a block behind.
        body += b"".join(msgspec.json.encode(item) + b"," for item in encode(blocks[index], index >= last_user))
        kept.count = index + 1
    tail = b",".join(msgspec.json.encode(item) for item in encode(history.last_block, True))
    return b"[", body if tail else body[:-1], tail, b"]"
