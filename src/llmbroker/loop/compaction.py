"""A conversation that outgrows the model's window, made shorter by a policy, and never in silence.

Only whole blocks (an assistant's message with all results of its calls, and what the user said after it) are taken away or
changed, so that no call loses its result. What is done first hurts least: the middle of old tool results is left out, then
whole old blocks are replaced by a summary or a note. The system's words, the first message of the user and the newest blocks
stay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from llmbroker.errors import InvalidRequestError
from llmbroker.messages import History
from llmbroker.tools.results import fit

JSON: TypeAlias = dict[str, Any]


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """When and how a conversation is made shorter.

    Attributes:
        characters: the length of all texts and arguments at which it begins; about four characters are a token.
        target: what it is brought down to; None: half of ``characters``.
        keep: the newest blocks that stay as they are, at least 1.
        result_characters: what is kept of each older tool result, head and tail.
        summarise: a function (plain or async) of the messages that are taken away, which returns what is put in their place;
            None: a note that says how many there were.
    """

    characters: int
    target: int | None = None
    keep: int = 2
    result_characters: int = 400
    summarise: Callable[[list[JSON]], Any] | None = None

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        for name in ("characters", "keep", "result_characters"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidRequestError(f"{name} is a whole number of at least 1, not {value!r}.", argument=name)
        if self.target is not None and not 0 < self.target <= self.characters:
            raise InvalidRequestError("target is above 0 and at most characters.", argument="target")

    @property
    def wanted(self) -> int:
        """Characters that it is brought down to."""
        return self.target if self.target is not None else max(1, self.characters // 2)


class Change(msgspec.Struct, frozen=True):
    """A shorter conversation: ``messages``, what was taken ``out`` of it, and ``how``, in words."""

    messages: list[JSON]
    out: list[JSON]
    place: int
    how: str


def shortened(history: History, policy: Compaction) -> Change | None:
    """Return the conversation made shorter, or None where it is short enough or nothing may go.

    The place of what was taken out is ``place``: whoever asked puts a summary or a note there.
    """
    if history.characters <= policy.characters:
        return None
    pieces = _blocks(history)
    first = 1 if pieces and not any(m.get("role") in ("assistant", "model") for m in pieces[0]) else 0
    stay = max(first, len(pieces) - policy.keep)
    trimmed = 0
    for index in range(first, stay):
        made = [_trimmed(message, policy.result_characters) for message in pieces[index]]
        trimmed += sum(new is not old for new, old in zip(made, pieces[index], strict=True))
        pieces[index] = made
    left = sum(_size(message) for piece in pieces for message in piece)
    end = first
    out: list[JSON] = []
    kept: list[JSON] = []
    while left > policy.wanted and end < stay:
        # The system's words stay, wherever they stand.
        out += [message for message in pieces[end] if message.get("role") not in ("system", "developer")]
        kept += [message for message in pieces[end] if message.get("role") in ("system", "developer")]
        left -= sum(_size(message) for message in pieces[end])
        end += 1
    if not trimmed and not out:
        return None
    head = [message for piece in pieces[:first] for message in piece] + kept
    tail = [message for piece in pieces[end:] for message in piece]
    how = ", ".join(
        words for words in (f"{trimmed} tool results shortened" if trimmed else "", f"{len(out)} messages taken out" if out
        else "") if words
    )  # fmt: skip
    return Change([*head, *tail], out, len(head), how)


def note_of(out: list[JSON]) -> JSON:
    """Return the message that stands for messages that were taken out without a summary."""
    calls = sum(len(message.get("tool_calls") or ()) for message in out)
    return {
        "role": "user",
        "content": f"[{len(out)} earlier messages with {calls} tool calls are left out: the conversation grew too long.]",
    }


def summary_of(text: str, out: list[JSON]) -> JSON:
    """Return the message that stands for messages that were summarised."""
    return {"role": "user", "content": f"[Summary of {len(out)} earlier messages:]\n{text}"}


def _blocks(history: History) -> list[list[JSON]]:
    pieces, at = [], 0
    for block in history.blocks:
        if block.size:
            pieces.append(list(history[at : at + block.size]))
        at += block.size
    return pieces


def _trimmed(message: JSON, limit: int) -> JSON:
    content = message.get("content")
    if message.get("role") != "tool":
        return message
    if isinstance(content, str):
        return {**message, "content": fit(content, limit)} if len(content) > limit else message
    if isinstance(content, list) and any(part.get("type") != "text" for part in content if isinstance(part, dict)):
        return {**message, "content": "[an image or file was left out here]"}
    return message


def _size(message: JSON) -> int:
    content = message.get("content")
    size = len(content) if isinstance(content, str) else 0
    if isinstance(content, list):
        size = sum(len(part.get("text") or "") if isinstance(part, dict) else len(str(part)) for part in content)
    return size + sum(len(str(call["function"].get("arguments") or "")) for call in message.get("tool_calls") or ())
