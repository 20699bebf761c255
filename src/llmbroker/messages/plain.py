"""Values that JSON can carry, and values as they are shown in a message.

What a user hands in (parameters, schemas, opaque items of a turn) passes through ``plain`` once. What comes out is dicts, lists
and scalars of this library's own: nothing in it can fail to be written, nothing of it changes when the user's objects do.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Any

from llmbroker.errors import InvalidRequestError

DEEPEST = 100
"""Levels of nesting; more is a cycle or a mistake, and no provider takes it."""

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 120
_short.maxlong = 40


def shown(value: Any) -> str:
    """Return a value for a message: short whatever its size, and whatever its ``repr`` does."""
    try:
        return _short.repr(value)
    except Exception:  # an integer of more digits than Python converts, a dict that changes under our hands
        return f"<{type(value).__name__}>"


class _Unfit(Exception):
    """Why a value is no JSON; ``path`` holds the way to it, the innermost step first."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.path: list[str] = []


def plain(value: Any, where: str) -> Any:
    """Return the value as JSON has it, made of own dicts and lists. Integers as keys become text, as JSON writers do it.

    Args:
        value: what the user gave.
        where: the argument's name for an error.

    Raises:
        InvalidRequestError: names the place of what is no JSON: a number that is not finite, half a character, an object of
            another kind, more than 100 levels.
    """
    try:
        return _plain(value, DEEPEST)
    except _Unfit as unfit:
        place = where + "".join(reversed(unfit.path[-8:]))
        raise InvalidRequestError(f"{place} {unfit}.", argument=place) from None


def _plain(value: Any, left: int) -> Any:
    kind = type(value)
    if kind is str or isinstance(value, str):
        text: str = value if kind is str else "".join(value)
        return text if text.isascii() else _text(text)
    if value is None or kind is bool:
        return value
    if kind is int or isinstance(value, int):
        if value.bit_length() > 1024:
            raise _Unfit("has more digits than a number can have")
        return value if kind is int else int(value)
    if kind is dict or isinstance(value, Mapping):
        return _mapping(value, left - 1)
    if isinstance(value, (list, tuple)):
        return _items(value, left - 1)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _Unfit(f"is not a finite number ({float(value)})")
        return float(value)
    raise _Unfit(f"cannot be written as JSON: it is {kind.__name__}")


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _Unfit(f"holds a lone surrogate at character {error.start}; it cannot be sent as UTF-8") from None
    return value


def _mapping(value: Mapping[Any, Any], left: int) -> dict[str, Any]:
    if left < 0:
        raise _Unfit(f"is nested more than {DEEPEST} levels deep")
    made: dict[str, Any] = {}
    for key, item in value.items():
        name = key
        if not isinstance(key, str):
            if type(key) is not int:
                raise _Unfit(f"has a key that is no string: {shown(key)}")
            name = str(key)
        if name in made:
            raise _Unfit(f"has the key {shown(name)} twice, as text and as a number")
        try:
            made[name if name.isascii() else _text(name)] = _plain(item, left)
        except _Unfit as unfit:
            unfit.path.append(f"[{shown(name)}]")
            raise
    return made


def _items(value: list[Any] | tuple[Any, ...], left: int) -> list[Any]:
    if left < 0:
        raise _Unfit(f"is nested more than {DEEPEST} levels deep")
    made: list[Any] = []
    for item in value:
        try:
            made.append(_plain(item, left))
        except _Unfit as unfit:
            unfit.path.append(f"[{len(made)}]")
            raise
    return made
