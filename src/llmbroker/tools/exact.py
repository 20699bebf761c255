"""JSON read exactly: nothing twice, nothing that is not finite; and how a value is shown in one bounded line."""

from __future__ import annotations

import json
import math
from typing import Any


class Fault(ValueError):
    """The arguments cannot be used; the message is meant for the model."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise Fault(f"the key {show(key)} stands twice in the arguments; send each key once.")
            seen.add(key)
    return made


def _constant(word: str) -> Any:
    raise Fault(f"{word} is not a finite number; send a number, or leave the argument out.")


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise Fault(f"the number {text[:40]} is too large; send a finite number.")
    return value


_EXACT = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_float)
_CONTROL = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_float, strict=False)


def decode(text: str, *, control: bool = False) -> Any:
    """Return the value of a JSON text; with ``control``, bare control characters (line ends) may stand in strings.

    Raises:
        Fault: a key stands twice, or a number is not finite.
        ValueError: it is no JSON (``json.JSONDecodeError``), or an integer has thousands of digits.
        RecursionError: it is nested too deeply.
    """
    return (_CONTROL if control else _EXACT).decode(text)


def show(value: Any, limit: int = 80) -> str:
    """Return a value as JSON on one line, cut in the middle of nothing but length."""
    if isinstance(value, str):
        value = value[: limit * 2]
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except Exception:  # a cycle, too deep, or a repr that fails
        text = type(value).__name__
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= limit else text[: limit - 3] + "..."
