"""What a constrained answer means: the text of ``{"answer": ...}`` or ``{"calls": [...]}`` to the events of a turn.

The text arrives in pieces of any size. An answer in words is passed on while it grows; calls are read when the text is whole. A
text that the token limit cut gives what can be told of it, and no call is ever completed by guessing.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from llmbroker.exchange import CallDelta, Event, TextDelta

_WORDS = re.compile(r'\s*\{\s*"answer"\s*:\s*')
_OPEN = re.compile(r'\s*(\{\s*("(a(n(s(w(e(r("\s*(:\s*)?)?)?)?)?)?)?)?)?)?$')
_TOOL = re.compile(r'\{\s*"tool"\s*:\s*"((?:[^"\\]|\\.)*)"\s*,\s*"arguments"\s*:\s*')
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "/": "/"}


class AnswerReader:
    """Read one constrained answer. It holds the text of this answer and nothing else."""

    __slots__ = ("_at", "_ended", "_mode", "_text")

    def __init__(self) -> None:
        self._text = ""
        self._mode = ""  # "", "words" (a string is being passed on), "whole" (wait for the end)
        self._at = 0
        self._ended = False

    def feed(self, piece: str) -> list[Event]:
        """Return the events that this piece completes."""
        self._text += piece
        if not self._mode:
            self._decide()
        if self._mode == "words" and not self._ended:
            grown = self._grown()
            return [TextDelta(grown)] if grown else []
        return []

    def _decide(self) -> None:
        start = _WORDS.match(self._text)
        if start is not None:
            follows = self._text[start.end() : start.end() + 1]
            if follows == '"':
                self._mode, self._at = "words", start.end() + 1
            elif follows:
                self._mode = "whole"
        elif not _OPEN.match(self._text):
            self._mode = "whole"

    def _grown(self) -> str:
        """Return what the JSON string grew by, unescaped; an escape that is not whole yet waits."""
        text, at, out = self._text, self._at, []
        while at < len(text):
            char = text[at]
            if char == '"':
                self._ended = True
                break
            if char != "\\":
                stop = at + 1
                while stop < len(text) and text[stop] not in '"\\':
                    stop += 1
                out.append(text[at:stop])
                at = stop
                continue
            made, length = _unescaped(text, at)
            if not length:
                break
            out.append(made)
            at += length
        self._at = at
        return "".join(out)

    def end(self) -> list[Event]:
        """The text is over; return what is left to tell."""
        if self._mode == "words":
            return []
        text = self._text.strip()
        try:
            value = msgspec.json.decode(text) if text else None
        except (msgspec.DecodeError, RecursionError):
            return _cut(text)
        if isinstance(value, dict) and isinstance(value.get("calls"), list):
            return _calls(value["calls"])
        if isinstance(value, dict) and "answer" in value:
            answer = value["answer"]
            return [TextDelta(answer if isinstance(answer, str) else msgspec.json.encode(answer).decode())]
        return [TextDelta(text)] if text else []


def _unescaped(text: str, at: int) -> tuple[str, int]:
    """Return the character of the escape at ``at`` and its length, 0 if it is not whole yet."""
    kind = text[at + 1 : at + 2]
    if not kind:
        return "", 0
    if kind != "u":
        return _ESCAPES.get(kind, kind), 2
    if len(text) < at + 6:
        return "", 0
    code = _hex(text[at + 2 : at + 6])
    if 0xD800 <= code < 0xDC00:
        if len(text) < at + 12:
            follows = text[at + 6 : at + 8]
            return ("", 0) if "\\u".startswith(follows) else ("\ufffd", 6)
        low = _hex(text[at + 8 : at + 12]) if text[at + 6 : at + 8] == "\\u" else 0
        if 0xDC00 <= low < 0xE000:
            return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)), 12
        return "\ufffd", 6
    return ("\ufffd" if 0xDC00 <= code < 0xE000 else chr(code)), 6


def _hex(digits: str) -> int:
    try:
        return int(digits, 16)
    except ValueError:
        return 0xFFFD


def _calls(items: list[Any]) -> list[Event]:
    """Return the calls; one that is said twice in a turn is one call: small models know no end."""
    out: list[Event] = []
    seen: set[tuple[str, str]] = set()
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get("tool"), str):
            continue
        arguments = msgspec.json.encode(item.get("arguments") or {}).decode()
        if (item["tool"], arguments) not in seen:
            seen.add((item["tool"], arguments))
            out.append(CallDelta(len(out), name=item["tool"], arguments=arguments))
    return out


def _cut(text: str) -> list[Event]:
    """Return what a cut text shows: its calls, the last with the piece of its arguments, or the text as it is."""
    starts = list(_TOOL.finditer(text))
    if not starts:
        return [TextDelta(text)]
    out: list[Event] = []
    for index, start in enumerate(starts):
        stop = starts[index + 1].start() if index + 1 < len(starts) else len(text)
        piece = text[start.end() : stop].rstrip(", \n")
        out.append(CallDelta(index, name=start[1], arguments=piece.removesuffix("}") if stop < len(text) else piece))
    return out
