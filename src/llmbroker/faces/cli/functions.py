"""Tools named on the command line: ``module:function`` to a declaration and the function."""

from __future__ import annotations

import importlib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from llmbroker.errors import InvalidRequestError

_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
}


def load(names: list[str]) -> tuple[list[dict[str, Any]], dict[str, Callable[..., Any]]]:
    """Return declarations and functions of ``module:function`` names; modules of the working directory are found.

    Raises:
        InvalidRequestError: a name leads to no function.
    """
    declared, dispatch = [], {}
    for name in names:
        function = _function(name)
        declared.append(declaration(function))
        dispatch[function.__name__] = function
    return declared, dispatch


def _function(name: str) -> Callable[..., Any]:
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise InvalidRequestError(f"A tool is named module:function, not {name!r}.", argument="--tool")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
        for step in attribute.split("."):
            found = getattr(found, step)
    except ImportError as error:
        raise InvalidRequestError(f"The tool {name!r} cannot be loaded: {error}.", argument="--tool") from error
    except AttributeError:
        raise InvalidRequestError(f"The module {module_name} has no {attribute}.", argument="--tool") from None
    if not callable(found):
        raise InvalidRequestError(f"{name!r} is no function.", argument="--tool")
    return typing.cast("Callable[..., Any]", found)


def declaration(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the declaration of a function, from its signature, type hints and docstring."""
    text = inspect.getdoc(function) or ""
    described = _described(text)
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError):
        hints = {}
    properties: dict[str, Any] = {}
    required = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            continue
        schema = _schema(hints.get(parameter.name, Any))
        if parameter.name in described:
            schema["description"] = described[parameter.name]
        properties[parameter.name] = schema
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    first = text.split("\n\n")[0].replace("\n", " ").strip() or function.__name__.replace("_", " ")
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": function.__name__, "description": first, "parameters": parameters}}


def _described(text: str) -> dict[str, str]:
    """Return the lines of an ``Args:`` section by name."""
    found: dict[str, str] = {}
    inside = False
    for line in text.splitlines():
        if line.strip() in ("Args:", "Arguments:", "Parameters:"):
            inside = True
        elif inside and line and not line.startswith(" "):
            break
        elif inside and ":" in line:
            name, _, words = line.strip().partition(":")
            found[name.split(" ")[0]] = words.strip()
    return found


def _schema(hint: Any) -> dict[str, Any]:
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        words = next((word for word in arguments[1:] if isinstance(word, str)), None)
        return {**_schema(arguments[0]), **({"description": words} if words else {})}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        kinds = [_schema(one) for one in arguments if one is not type(None)]
        return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    if origin in (list, tuple, set, frozenset) or hint in (list, tuple, set, frozenset):
        return {"type": "array", **({"items": _schema(arguments[0])} if arguments else {})}
    if origin in (dict, Mapping) or hint is dict:
        return {"type": "object"}
    return {}
