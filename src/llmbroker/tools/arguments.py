"""From what a model wrote to the arguments of a function: read, repair where nothing is guessed, check against the schema.

The ladder: exact JSON; then without fences, byte-order mark and stray whitespace; then out of a string that holds the JSON once
more; then tolerant JSON (``lenient``). It ends at an object or at a problem, never at half an object: arguments that were cut,
that say one thing twice, that hold NaN, are not run. ``""``, ``null`` and nothing at all are no arguments: ``{}``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from llmbroker.tools import lenient
from llmbroker.tools.exact import Fault, decode, show
from llmbroker.tools.schema import check_arguments

JSON: TypeAlias = dict[str, Any]
DEEPEST_STRING = 3
"""How often JSON may be wrapped in a JSON string."""

_FENCE = re.compile(r"```[\w+-]*[ \t]*\r?\n?(.*?)\r?\n?[ \t]*```", re.DOTALL)
_BLANK = " \t\r\n\f\v\ufeff\u200b\u2060\u00a0"


class Arguments(msgspec.Struct, frozen=True):
    """What became of a call's arguments.

    Attributes:
        value: the keyword arguments, or None if the tool must not run.
        repaired: whether anything was mended on the way.
        problem: what the model must be told, one line a fault, or None.
        text: the JSON text of the object as it goes into the history, or None if there is no object.
    """

    value: JSON | None
    repaired: bool = False
    problem: str | None = None
    text: str | None = None


def read_arguments(given: Any, schema: Mapping[str, Any] | None = None) -> Arguments:
    """Return the arguments of a call, read and checked.

    Args:
        given: what the reply holds: JSON text, an object, or nothing.
        schema: the tool's parameters; None if the tool declared none, then any object is taken.
    """
    try:
        value, repaired, text = _read(given)
    except Fault as fault:
        return Arguments(None, problem=str(fault))
    except RecursionError:
        return Arguments(None, problem="the arguments are nested too deeply.")
    if schema is None:
        return Arguments(value, repaired, text=text)
    checked = check_arguments(value, schema)
    if checked.problems:
        return Arguments(None, repaired, problem="\n".join(checked.problems), text=text)
    return Arguments(checked.value, repaired or checked.repaired, text=text)


def _read(given: Any) -> tuple[JSON, bool, str]:
    if given is None:
        return {}, False, "{}"
    if isinstance(given, (bytes, bytearray)):
        given = bytes(given).decode("utf-8", "replace")
    if isinstance(given, str):
        return _read_text(given)
    if not isinstance(given, Mapping):
        raise Fault(f"expected a JSON object of arguments, got {show(given)}.")
    value = {str(key): item for key, item in given.items()}
    _refuse_nonfinite(value, "")
    return value, False, _encoded(value)


def _read_text(given: str) -> tuple[JSON, bool, str]:
    try:
        value: Any = decode(given)
        if type(value) is dict:
            if "\\u" in given or not given.isascii():
                _encoded(value)
            return value, False, given.strip()
    except (json.JSONDecodeError, ValueError) as error:
        if isinstance(error, Fault):
            raise
    value = _climb(given, 0)
    return value, given.strip() not in ("", "null"), _encoded(value)


def _climb(given: str, depth: int) -> JSON:
    """Take the rungs above exact JSON; ``depth`` counts the strings that were opened."""
    text = given.strip(_BLANK)
    if fenced := _FENCE.fullmatch(text):
        text = fenced[1].strip(_BLANK)
    if text in ("", "null"):
        return {}
    value: Any
    try:
        value = decode(text, control=True)
    except json.JSONDecodeError as error:
        return _tolerant(text, error)
    except ValueError as error:
        if isinstance(error, Fault):
            raise
        raise Fault(f"the arguments cannot be read: {str(error)[:120]}.") from None
    if isinstance(value, dict):
        return value
    if isinstance(value, str) and depth < DEEPEST_STRING and value.strip(_BLANK)[:1] in ("{", '"', "`"):
        return _climb(value, depth + 1)
    raise Fault(f"expected a JSON object of arguments, got {show(value)}.")


def _tolerant(text: str, error: json.JSONDecodeError) -> JSON:
    try:
        value = lenient.read_object(text)
    except lenient.Cut:
        raise Fault(
            f"the arguments end in the middle ({_around(text, len(text))}); nothing was guessed. Send the whole call again."
        ) from None
    except lenient.NotFinite as fault:
        raise Fault(f"{fault} is not a finite number; send a number, or leave the argument out.") from None
    if value is None:
        raise Fault(
            f"the arguments are not JSON: {error.msg} at character {error.pos} ({_around(text, error.pos)}). "
            "Send one JSON object."
        )
    _refuse_nonfinite(value, "")
    return value


def _around(text: str, at: int) -> str:
    """Return a short piece of the text around a position."""
    start, stop = max(0, at - 40), min(len(text), at + 20)
    return show(("..." if start else "") + text[start:stop] + ("..." if stop < len(text) else ""))


def _refuse_nonfinite(value: Any, path: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise Fault(f"{path or 'the arguments'}: {value} is not a finite number.")
    if isinstance(value, Mapping):
        for key, item in value.items():
            _refuse_nonfinite(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _refuse_nonfinite(item, f"{path}[{index}]")


def _encoded(value: JSON) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        raise Fault("the arguments hold half a character (a lone surrogate); send whole characters.") from None
    except (TypeError, ValueError) as error:
        raise Fault(f"the arguments are not JSON: {error}.") from None


def canonical(value: Any) -> str:
    """Return one text for equal JSON values: sorted keys, no spaces, whole floats as integers."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), default=repr)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
