"""JSON schemas from Python types and functions, for tools and for answers in a form."""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from llmbroker.errors import InvalidRequestError

JSON: TypeAlias = dict[str, Any]
_PLAIN = (str, int, float, bool, list, dict, Any, type(None))


def schema_of_type(kind: Any) -> JSON:
    """Return the JSON schema of a type.

    Raises:
        TypeError: it has none.
    """
    if callable(getattr(kind, "model_json_schema", None)):
        return dict(kind.model_json_schema())
    if (
        not isinstance(kind, (type, types.GenericAlias, types.UnionType))
        and typing.get_origin(kind) is None
        and kind is not Any
    ):
        raise TypeError(f"{kind!r} is no type")
    return msgspec.json.schema(kind)


def schema_of_function(fn: Callable[..., Any], name: str) -> tuple[JSON, Callable[..., Any]]:
    """Return the schema of a typed function's arguments, and a function that takes them as JSON values.

    Arguments whose type is no plain JSON type (a dataclass, an enum, a date, a pydantic model) are converted before the call.

    Raises:
        InvalidRequestError: an argument has no type, or one that JSON cannot carry, or can be given by position only.
    """
    try:
        hints = typing.get_type_hints(fn, include_extras=True)
    except Exception as error:
        raise InvalidRequestError(
            f"The types of tool {name} cannot be read ({error}): give parameters=.", argument="parameters"
        ) from None
    properties: JSON = {}
    required: list[str] = []
    defs: JSON = {}
    told = _argument_words(fn)
    converted: dict[str, Any] = {}
    for argument in inspect.signature(fn).parameters.values():
        if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
            continue
        if argument.kind is argument.POSITIONAL_ONLY or argument.name not in hints:
            why = "can be given by position only" if argument.kind is argument.POSITIONAL_ONLY else "has no type"
            raise InvalidRequestError(
                f"The argument {argument.name} of tool {name} {why}: annotate it, or give parameters=.", argument="parameters"
            )
        kind = hints[argument.name]
        try:
            schema = dict(schema_of_type(kind))
        except TypeError as error:
            raise InvalidRequestError(
                f"The type of the argument {argument.name} of tool {name} has no JSON schema ({error}): give parameters=.",
                argument="parameters",
            ) from None
        defs.update(schema.pop("$defs", {}))
        if argument.name in told and "description" not in schema:
            schema["description"] = told[argument.name]
        properties[argument.name] = schema
        if argument.default is argument.empty:
            required.append(argument.name)
        if not _is_plain(kind):
            converted[argument.name] = kind
    made: JSON = {"type": "object", "properties": properties, "required": required}
    if defs:
        made["$defs"] = defs
    return made, _converting(fn, converted) if converted else fn


def _is_plain(kind: Any) -> bool:
    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return True
    if origin in (list, dict, typing.Union, types.UnionType):
        return all(_is_plain(inner) for inner in typing.get_args(kind))
    return kind in _PLAIN


def _converting(fn: Callable[..., Any], kinds: dict[str, Any]) -> Callable[..., Any]:
    def convert(arguments: dict[str, Any]) -> dict[str, Any]:
        return {name: _as_type(value, kinds[name]) if name in kinds else value for name, value in arguments.items()}

    if inspect.iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def awaited(**arguments: Any) -> Any:
            return await fn(**convert(arguments))

        return awaited

    @functools.wraps(fn)
    def plain(**arguments: Any) -> Any:
        return fn(**convert(arguments))

    return plain


def _as_type(value: Any, kind: Any) -> Any:
    validate = getattr(kind, "model_validate", None)
    return validate(value) if callable(validate) else msgspec.convert(value, kind)


_SECTION = re.compile(r"^\s*(Args|Arguments|Parameters):\s*$")
_ITEM = re.compile(r"^(\s+)(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


def first_words(fn: Callable[..., Any]) -> str:
    """Return the first paragraph of a function's docstring."""
    return " ".join((inspect.getdoc(fn) or "").split("\n\n")[0].split())


def _argument_words(fn: Callable[..., Any]) -> dict[str, str]:
    """Return what the docstring says about each argument (an ``Args:`` section)."""
    out: dict[str, str] = {}
    inside, indent, last = False, -1, ""
    for line in (inspect.getdoc(fn) or "").splitlines():
        if _SECTION.match(line):
            inside = True
            continue
        if not inside or not line.strip():
            continue
        if not line.startswith((" ", "\t")):
            break
        found = _ITEM.match(line)
        depth = len(line) - len(line.lstrip())
        if found and (indent in (-1, depth)):
            indent, last = depth, found[2]
            out[last] = found[3].strip()
        elif last:
            out[last] = f"{out[last]} {line.strip()}".strip()
    return out
