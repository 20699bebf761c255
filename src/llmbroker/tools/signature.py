"""From a function's signature to the schema of its arguments, and from checked arguments to a call of the function."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from llmbroker.errors import InvalidRequestError
from llmbroker.tools.context import ToolContext
from llmbroker.tools.types import Shape, Unsuited, Wrong, shape_of

JSON: TypeAlias = dict[str, Any]
Bound: TypeAlias = tuple[list[Any], dict[str, Any]]


class Signature:
    """The arguments of a function.

    Attributes:
        schema: JSON schema of the arguments that a model gives.
        context: the name of the hidden argument that gets a ``ToolContext``, or None.
        plain: the checked arguments can be given as keywords as they are.
    """

    __slots__ = ("_converts", "_extra", "_positional", "_star", "context", "plain", "schema")

    def __init__(self, schema: JSON, context: str | None = None) -> None:
        self.schema = schema
        self.context = context
        self.plain = True
        self._converts: dict[str, Callable[[Any], Any]] = {}
        self._positional: list[str] = []
        self._star: str | None = None
        self._extra: Callable[[Any], Any] | None = None

    def bind(self, arguments: JSON) -> Bound:
        """Return positional and keyword arguments of the call.

        Raises:
            Wrong: a value does not fit its type, although it fits the schema (an impossible date, a model's own validator).
        """
        if self.plain:
            return [], arguments
        lines: list[str] = []
        made: JSON = {}
        for name, value in arguments.items():
            convert = self._converts.get(name) or (self._extra if name not in self.schema["properties"] else None)
            if convert is None:
                made[name] = value
                continue
            try:
                made[name] = convert(value)
            except Wrong as wrong:
                lines += [f"{name}{line}" for line in wrong.lines]
        if lines:
            raise Wrong(lines)
        positional = []
        for name in self._positional:
            if name not in made:
                break
            positional.append(made.pop(name))
        if self._star is not None:
            positional += made.pop(self._star, ())
        return positional, made


def read_signature(fn: Callable[..., Any], name: str, told: dict[str, str]) -> Signature:
    """Read a function's signature; ``told`` says what the docstring says about each argument.

    An argument without a type takes anything. ``*args`` is an argument that takes a list; ``**kwargs`` permits further names.

    Raises:
        InvalidRequestError: a type has no JSON schema; the message says which argument and what to do.
    """
    hints = _hints(fn, name)
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError) as error:
        raise _refused(name, "", f"its signature cannot be read ({error})") from None
    context = next((p.name for p in parameters if _is_context(p, hints)), None)
    shown = [p for p in parameters if p.name != context]
    made = Signature({"type": "object", "properties": {}, "additionalProperties": False}, context)
    required: list[str] = []
    star = next((p for p in shown if p.kind is p.VAR_POSITIONAL), None)
    for parameter in shown:
        hint = hints.get(parameter.name, Any)
        try:
            shape = shape_of(hint)
        except Unsuited as error:
            raise _refused(name, parameter.name, str(error)) from None
        if parameter.kind is parameter.VAR_KEYWORD:
            made.schema["additionalProperties"] = _hoisted(made.schema, shape) or True
            made._extra = shape.convert
            made.plain = made.plain and shape.convert is None
            continue
        _add(made, parameter, shape, told)
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL:
            required.append(parameter.name)
        if parameter.kind is parameter.POSITIONAL_ONLY or (
            star is not None and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        ):
            made._positional.append(parameter.name)
            made.plain = False
    if required:
        made.schema["required"] = required
    return made


def _add(made: Signature, parameter: inspect.Parameter, shape: Shape, told: dict[str, str]) -> None:
    convert = shape.convert
    schema = _hoisted(made.schema, shape)
    if parameter.kind is parameter.VAR_POSITIONAL:
        made._star = parameter.name
        made.plain = False
        schema = {"type": "array", **({"items": schema} if schema else {})}
        convert = functools.partial(_each, convert) if convert is not None else None
    elif (
        parameter.default is not parameter.empty
        and "default" not in schema
        and (words := _default(parameter.default)) is not None
    ):
        schema["default"] = words[0]
    if told.get(parameter.name) and "description" not in schema:
        schema["description"] = told[parameter.name]
    made.schema["properties"][parameter.name] = schema
    if convert is not None:
        made._converts[parameter.name] = convert
        made.plain = False


def _each(convert: Callable[[Any], Any], values: list[Any]) -> list[Any]:
    out, lines = [], []
    for index, value in enumerate(values):
        try:
            out.append(convert(value))
        except Wrong as wrong:
            lines += [f"[{index}]{line}" for line in wrong.lines]
    if lines:
        raise Wrong(lines)
    return out


def _hoisted(into: JSON, shape: Shape) -> JSON:
    """Return the schema of one argument; its definitions move to the root, where its references look for them."""
    schema = dict(shape.schema)
    defs = schema.pop("$defs", None)
    if defs:
        known = into.setdefault("$defs", {})
        for key, value in defs.items():
            if known.get(key, value) != value:
                return _renamed(into, schema, defs)
        known.update(defs)
    if set(schema) == {"$ref"} and (target := into.get("$defs", {}).get(schema["$ref"].rsplit("/", 1)[-1])) is not None:
        return schema if _recursive(target, schema["$ref"]) else dict(target)
    return schema


def _renamed(into: JSON, schema: JSON, defs: JSON) -> JSON:
    """Give definitions whose names are taken by others names of their own."""
    number = len(into["$defs"])
    text = msgspec.json.encode([schema, defs]).decode()
    for key in defs:
        text = text.replace(f'"#/$defs/{key}"', f'"#/$defs/{key}_{number}"')
    schema, others = msgspec.json.decode(text, type=tuple[JSON, JSON])
    into["$defs"].update({f"{key}_{number}": value for key, value in others.items()})
    return schema


def _recursive(node: Any, ref: str) -> bool:
    return f'"{ref}"' in msgspec.json.encode(node).decode()


def _default(value: Any) -> tuple[Any] | None:
    try:
        return (msgspec.to_builtins(value),) if value is not ... else None
    except (TypeError, ValueError):
        return None


def _hints(fn: Callable[..., Any], name: str) -> dict[str, Any]:
    """Return the types of the arguments, postponed ones too, of a function, method, partial or callable object."""
    inner: Any = fn
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not inspect.isroutine(inner) and not isinstance(inner, type):
        inner = type(inner).__call__
    if isinstance(inner, type):
        inner = inner.__init__  # type: ignore[misc]
    inner = inspect.unwrap(inner)
    try:
        return typing.get_type_hints(inner, include_extras=True)
    except Exception as error:
        if not getattr(inner, "__annotations__", None):
            return {}
        closed = _closed_over(inner)
        if closed is not None:
            return closed
        raise _refused(name, "", f"its types cannot be read ({error})") from None


def _closed_over(fn: Any) -> dict[str, Any] | None:
    """Read types that name what stands in an enclosing function, where the function itself uses it."""
    try:
        held = inspect.getclosurevars(fn)
        return typing.get_type_hints(fn, {**fn.__globals__, **held.nonlocals}, include_extras=True)
    except Exception:  # noqa: BLE001 - then they cannot be read
        return None


def _is_context(parameter: inspect.Parameter, hints: dict[str, Any]) -> bool:
    hint = hints.get(parameter.name)
    if hint is None:
        return parameter.name == "ctx" and parameter.annotation is parameter.empty
    return hint is ToolContext or ToolContext in typing.get_args(hint)


def _refused(name: str, argument: str, why: str) -> InvalidRequestError:
    which = f"The argument {argument} of the tool {name}" if argument else f"The tool {name}"
    return InvalidRequestError(
        f"{which} cannot be declared: {why}.", argument="tools", hint="Annotate it with a JSON type, or give parameters=."
    )
