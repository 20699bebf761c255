"""Tolerant JSON: what a model plainly meant, and never what it did not finish.

Arguments that are not JSON are read here as far as they can be read without a guess: comments, single quotes, Python's words,
bare keys, trailing and missing commas. Two guards stand around the tolerant parser. The text must be whole: a string or a
bracket that is never closed means that the model was cut, and half a call is no call. And nothing may be lost: every word of
the text must stand in the result, in the same order, else the parser has dropped or invented something and its result is thrown
away.
"""

from __future__ import annotations

import re
from typing import Any

LONGEST = 50_000
"""Longer texts (in characters) are not repaired: tolerant parsing is slow, and nobody repairs a book."""

_DROPPED = frozenset("{}[]:,\"'\\`")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_NONFINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_AFTER_STRING = re.compile(r"\s*(?:[,:}\]]|$)")
_WORDS = {"True": "true", "False": "false", "None": "null", "undefined": "null"}
_CLOSER = {"{": "}", "[": "]"}
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


class Cut(ValueError):
    """The text ends inside a string or before its last bracket."""


class NotFinite(ValueError):
    """A bare NaN or Infinity stands where a value belongs."""


def read_object(text: str) -> dict[str, Any] | None:
    """Return the object that this text means, or None where that cannot be said for sure.

    Raises:
        Cut: the text is not whole.
        NotFinite: it holds NaN or an infinity.
    """
    if len(text) > LONGEST or not text.startswith("{"):
        return None
    scan = _Scan(text)
    if not scan.run():
        return None
    import json_repair

    try:
        value = json_repair.loads(scan.cleaned(), skip_json_loads=True)
    except Exception:  # the parser may fail on anything: then the text is not readable
        return None
    if not isinstance(value, dict):
        return None
    try:
        words = "".join(_words(value))
    except RecursionError:
        return None
    return value if words == "".join(scan.words) else None


def _kept(text: str) -> str:
    return "".join(c for c in text if c not in _DROPPED and not c.isspace())


def _words(value: Any) -> list[str]:
    """Return every word of a parsed value in order, as ``_Scan`` collects those of its text."""
    if isinstance(value, dict):
        return [word for key, item in value.items() for word in (_kept(key), *_words(item))]
    if isinstance(value, list):
        return [word for item in value for word in _words(item)]
    if isinstance(value, str):
        return [_kept(value)]
    if value is None or isinstance(value, bool):
        return ["null" if value is None else str(value).lower()]
    return [_kept(repr(value))]


class _Scan:
    """Walks over the text once: where strings and brackets are, which words stand in it, and what can be left away."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.stack: list[str] = []
        self.words: list[str] = []
        self.out: list[str] = []
        self.bare: list[str] = []
        self.before = ""

    def cleaned(self) -> str:
        return "".join(self.out)

    def run(self) -> bool:
        """Walk; return False where the structure makes no sense.

        Raises:
            Cut, NotFinite: as ``read_object`` says.
        """
        text, size = self.text, len(self.text)
        while self.at < size:
            c = text[self.at]
            if c == '"' or (c == "'" and self.before in "{[,:"):
                self._flush()
                self._string(c)
            elif c in "{[":
                self._flush()
                self._emit(c)
                self.stack.append(_CLOSER[c])
            elif c in "}]":
                self._flush()
                if self.stack.pop() != c:
                    return False
                self._emit(c)
                if not self.stack:
                    return not text[self.at :].strip("}] \t\r\n;,`")
            elif c == "/" and self._at_comment():
                self._comment()
            else:
                if c in ",:":
                    self._flush()
                    self.before = c
                else:
                    self.bare.append(c)
                    self.before = self.before if c.isspace() else c
                self.out.append(c)
                self.at += 1
        raise Cut

    def _emit(self, c: str) -> None:
        self.out.append(c)
        self.before = c
        self.at += 1

    def _flush(self) -> None:
        for word in "".join(self.bare).split():
            if _NONFINITE.fullmatch(word):
                raise NotFinite(word)
            if _NUMBER.fullmatch(word):
                word = repr(float(word) if any(c in word for c in ".eE") else int(word) if len(word) < 4000 else 0.0)
            self.words.append(_kept(_WORDS.get(word, word)))
        self.bare.clear()

    def _string(self, quote: str) -> None:
        text, start, kept = self.text, self.at, []
        at = start + 1
        while True:
            c = text[at : at + 1]
            if not c:
                raise Cut
            if c == "\\":
                escape = text[at + 1 : at + 2]
                if escape == "u":
                    code = text[at + 2 : at + 6]
                    kept.append(chr(int(code, 16)) if re.fullmatch("[0-9a-fA-F]{4}", code) else "u")
                    at += 6 if re.fullmatch("[0-9a-fA-F]{4}", code) else 2
                    continue
                kept.append(_ESCAPED.get(escape, escape))
                at += 2
                continue
            if c == quote and (quote == '"' or _AFTER_STRING.match(text, at + 1)):
                break
            kept.append(c)
            at += 1
        self.words.append(_kept("".join(kept)))
        self.out.append(text[start : at + 1])
        self.before = quote
        self.at = at + 1

    def _at_comment(self) -> bool:
        """Whether a comment begins here; two slashes inside a bare word are an address."""
        mark = self.text[self.at : self.at + 2]
        return mark == "/*" or (mark == "//" and (not self.bare or self.bare[-1].isspace()))

    def _comment(self) -> None:
        end = "\n" if self.text[self.at + 1] == "/" else "*/"
        stop = self.text.find(end, self.at + 2)
        if stop < 0:
            raise Cut
        self.bare.append(" ")
        self.at = stop + len(end)
