"""Tolerant JSON: what a model plainly meant, and never what it did not finish.

Arguments that are not JSON are read here as far as they can be read without a guess: comments, single quotes, Python's words,
bare keys, trailing and missing commas. Two guards stand around the tolerant parser. The text must be whole: a string or a
bracket that is never closed means that the model was cut, and half a call is no call. And nothing may be lost: every word of
the text must stand in the result, in the same order, else the parser has dropped or invented something and its result is thrown
away.
"""

from __future__ import annotations

import json
import re
from typing import Any

from llmbroker.tools.exact import Fault, decode
from llmbroker.tools.results import whole

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
        Fault: it says one thing twice.
        RecursionError: it is nested too deeply.
    """
    if len(text) > LONGEST or not text.startswith("{"):
        return None
    scan = _Scan(text)
    if not scan.run():
        return None
    text = scan.cleaned()
    try:
        value = decode(text, control=True)
    except Fault:
        raise
    except json.JSONDecodeError:
        value = _guessed(text, scan)
    except ValueError:  # an integer of thousands of digits
        return None
    return value if isinstance(value, dict) and "".join(_words(value)) == "".join(scan.words) else None


def _guessed(text: str, scan: _Scan) -> Any:
    """Return what the tolerant parser makes of a text; it may lose white space at the ends of strings, which is no repair."""
    import json_repair

    try:
        value = json_repair.loads(text, skip_json_loads=True)
    except Exception:  # the parser may fail on anything: then the text is not readable
        return None
    strings = set(_strings(value))
    return value if all(said in strings for said in scan.strings if said != said.strip()) else None


def _strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for key, item in value.items() for text in (key, *_strings(item))]
    if isinstance(value, list):
        return [text for item in value for text in _strings(item)]
    return [value] if isinstance(value, str) else []


def _kept(text: str) -> str:
    return "".join(c for c in text if c not in _DROPPED and not c.isspace())


def _words(value: Any) -> list[str]:
    """Return every word of a parsed value in order, as ``_Scan`` collects those of its text."""
    if isinstance(value, dict):
        return [word for key, item in value.items() for word in (_kept(key), *_words(item))]
    if isinstance(value, list):
        return [word for item in value for word in _words(item)]
    if isinstance(value, str):
        return [_kept(whole(value))]
    if value is None or isinstance(value, bool):
        return ["null" if value is None else str(value).lower()]
    return [_kept(repr(value))]


def _unescaped(text: str, at: int) -> tuple[str, int]:
    """Return the character that an escape stands for, and the length of the escape."""
    mark = text[at + 1 : at + 2]
    digits = {"u": 4, "x": 2}.get(mark, 0)
    code = text[at + 2 : at + 2 + digits]
    if digits and re.fullmatch(f"[0-9a-fA-F]{{{digits}}}", code):
        return chr(int(code, 16)), 2 + digits
    return _ESCAPED.get(mark, mark), 2


class _Scan:
    """Walks over the text once: where strings and brackets are, which words stand in it, and what can be left away."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.stack: list[str] = []
        self.words: list[str] = []
        self.out: list[str] = []
        self.bare: list[str] = []
        self.strings: list[str] = []
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
                if self.out[-1] == ",":
                    self.out.pop()
                self._emit(c)
                if not self.stack:
                    return not text[self.at :].strip("}] \t\r\n;,`")
            elif c == "/" and self._at_comment():
                self._comment()
            elif c in ",:":
                self._flush(key=c == ":")
                self._emit(c)
            else:
                self.bare.append(c)
                self.before = self.before if c.isspace() else c
                self.at += 1
        raise Cut

    def _emit(self, c: str) -> None:
        self.out.append(c)
        self.before = c
        self.at += 1

    def _flush(self, *, key: bool = False) -> None:
        """Take the bare words since the last mark; a bare key gets quotes, words of Python become those of JSON."""
        words = "".join(self.bare).split()
        self.bare.clear()
        for word in words:
            if _NONFINITE.fullmatch(word):
                raise NotFinite(word)
            word = _WORDS.get(word, word)
            said = word
            if _NUMBER.fullmatch(word):
                said = repr(float(word) if any(c in word for c in ".eE") else int(word) if len(word) < 4000 else 0.0)
            self.words.append(_kept(said))
            self.out.append(
                f'"{word}"' if key and len(words) == 1 and word.isidentifier() else word if len(words) == 1 else word + " "
            )

    def _string(self, quote: str) -> None:
        text, start, plain = self.text, self.at, []
        at = start + 1
        while True:
            c = text[at : at + 1]
            if not c:
                raise Cut
            if c == "\\":
                c, length = _unescaped(text, at)
                plain.append(c)
                at += length
                continue
            if c == quote and (quote == '"' or _AFTER_STRING.match(text, at + 1)):
                break
            plain.append(c)
            at += 1
        said = whole("".join(plain))
        self.strings.append(said)
        self.words.append(_kept(said))
        # Single quotes are written anew, since what stands in them may be JSON itself.
        self.out.append(text[start : at + 1] if quote == '"' else json.dumps(said, ensure_ascii=False))
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
