"""``llm_tool``: a function that a model may call, with the schema of its arguments; ambiguous or invalid ones are refused."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from llmbroker.errors import InvalidRequestError
from llmbroker.research.validity import TYPES, check_schema
from llmbroker.tools import FunctionTool, shape_of
from llmbroker.tools import tool as function_tool
from llmbroker.tools.docwords import docwords
from llmbroker.tools.types import Unsuited

JSON: TypeAlias = dict[str, Any]
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_BESIDE = frozenset({"required", "additionalProperties", "$defs", "definitions", "$schema", "$id", "title", "description"})
"""Words that stand beside ``properties`` in a whole schema."""


class LLMTool:
    """A function that a model may call.

    Attributes:
        name, description: as the model sees them.
        schema: JSON schema of the arguments.
        fn: the function; it takes the arguments by name and may be ``async``.
    """

    __slots__ = ("description", "fn", "name", "run", "schema")

    def __init__(self, fn: Callable[..., Any], name: str, description: str, schema: JSON, run: Callable[..., Any]) -> None:
        self.fn = fn
        self.name = name
        self.description = description
        self.schema = schema
        self.run = run

    @property
    def declaration(self) -> JSON:
        """The tool in OpenAI's shape, for ``tools=`` of any caller."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.schema},
        }

    def __call__(self, *args: Any, **arguments: Any) -> Any:
        """Call the function itself."""
        return self.fn(*args, **arguments)

    def __repr__(self) -> str:
        """Show name and arguments."""
        return f"llm_tool({self.name}({', '.join(self.schema.get('properties') or ())}))"


def llm_tool(
    fn: Callable[..., Any],
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    required: Sequence[str] | None = None,
) -> LLMTool:
    """Return a tool for ``call_llm_tools``.

    Args:
        fn: the function, plain or ``async``; it gets its arguments by name.
        name: letters, digits, ``_`` and ``-``, a letter first, at most 64; None: the function's own.
        description: what the model is told about it; None: the docstring up to its first section.
        parameters: None: from the types of the function's arguments; a mapping of argument names to their schemas
            (``{"city": {"type": "string"}}``, or ``"string"``, or ``str``); or a whole JSON schema of type object.
        required: names of the arguments that must be given; None: all of a mapping, those without default of a function.

    Raises:
        InvalidRequestError: something is ambiguous or invalid; the text says what.
    """
    if not callable(fn):
        raise InvalidRequestError(f"A tool is a function, not {type(fn).__name__}.", argument="fn")
    named = name if name is not None else getattr(fn, "__name__", "")
    if not isinstance(named, str) or not _NAME.fullmatch(named):
        raise InvalidRequestError(
            f"{named!r} is no name for a tool: a letter, then letters, digits, _ or -, at most 64 in all. Give name=.",
            argument="name",
        )
    if description is not None and not isinstance(description, str):
        raise InvalidRequestError(f"description is text, not {type(description).__name__}.", argument="description")
    words, run, whole = description, fn, False
    if parameters is None:
        schema, run, told = _from_function(fn, named)
        words = told if words is None else words
    else:
        schema, whole = _schema_of(parameters, named)
    schema = _with_required(schema, required, named, whole, derived=parameters is None)
    check_schema(schema, "parameters", lambda why: _wrong(named, why))
    if parameters is not None:
        _check_fits(fn, schema, named)
    if words is None:
        words = docwords(fn)[0]
    return LLMTool(fn, named, words, schema, run)


def _from_function(fn: Callable[..., Any], name: str) -> tuple[JSON, Callable[..., Any], str]:
    """Return schema, function of JSON values, and description of a typed function.

    Raises:
        InvalidRequestError: an argument has no type, or one that JSON cannot carry.
    """
    made = function_tool(fn, name=name)
    signature = made.signature
    if signature.context is not None:
        raise _wrong(name, f"its argument {signature.context} is for run_tool_loop, which gives it a context")
    untyped = [argument for argument, schema in made.schema["properties"].items() if not _says(schema)]
    if untyped:
        raise _wrong(name, f"its argument {untyped[0]} has no type: annotate it, or give parameters=")
    return made.schema, fn if signature.plain else _binding(made), made.description


def _says(schema: Any) -> bool:
    return bool(set(schema) - {"description", "default", "title"}) if isinstance(schema, Mapping) else False


def _binding(made: FunctionTool) -> Callable[..., Any]:
    """Return a function that turns JSON values into those of the function's types before it calls it."""
    if inspect.iscoroutinefunction(made.fn):

        async def awaited(**arguments: Any) -> Any:
            given, named = made.bind(arguments)
            return await made.fn(*given, **named)

        return awaited

    def plain(**arguments: Any) -> Any:
        given, named = made.bind(arguments)
        return made.fn(*given, **named)

    return plain


def _schema_of(parameters: Any, name: str) -> tuple[JSON, bool]:
    """Return the schema, and whether it was given whole."""
    if not isinstance(parameters, Mapping):
        raise _wrong(name, f"parameters is a mapping of argument names to schemas, not {type(parameters).__name__}")
    if any(not isinstance(key, str) for key in parameters):
        raise _wrong(name, "parameters has a name that is no text")
    kind, properties = parameters.get("type"), parameters.get("properties")
    if isinstance(kind, str):
        if kind == "object":
            return {**parameters, "properties": dict(properties or {})}, True
        raise _wrong(
            name,
            f"parameters says type {kind!r}: a whole schema has type 'object'; an argument that is called 'type' is written "
            f"'type': {{'type': {kind!r}}}",
        )
    if isinstance(kind, list):
        raise _wrong(name, "parameters is a schema whose type is a list: arguments are of type 'object' alone")
    if isinstance(properties, Mapping) and kind is None:
        others = set(parameters) - {"properties"}
        if isinstance(parameters.get("required"), list):
            return {"type": "object", **parameters}, True
        if others <= _BESIDE and all(isinstance(value, (Mapping, bool)) for value in properties.values()):
            raise _wrong(
                name,
                "parameters has only 'properties': a whole schema says 'type': 'object' beside it; an argument that is called "
                "'properties' is given together with required=['properties'] in a schema of its own",
            )
    return {"type": "object", "properties": {key: _property(value, key, name) for key, value in parameters.items()}}, False


def _property(value: Any, key: str, name: str) -> JSON:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, str) and value in TYPES:
        return {"type": value}
    try:
        if isinstance(value, type) or hasattr(value, "__origin__"):
            return shape_of(value).schema
    except Unsuited:
        pass
    raise _wrong(name, f"the argument {key} is described by {value!r}: give a schema, a type's name ('string') or a type")


def _with_required(schema: JSON, required: Any, name: str, whole: bool, *, derived: bool) -> JSON:
    if required is None:
        if whole or derived:
            return schema
        return {**schema, "required": list(schema["properties"])}
    if isinstance(required, str) or not isinstance(required, Sequence) or not all(isinstance(n, str) for n in required):
        raise _wrong(name, "required is a list of argument names")
    wanted = list(dict.fromkeys(required))
    said = schema.get("required", wanted) if whole else wanted
    if isinstance(said, (list, tuple)) and all(isinstance(n, str) for n in said) and sorted(said) != sorted(wanted):
        raise _wrong(name, f"the schema requires {schema['required']}, required= says {wanted}: say it once")
    return schema if said is not wanted else {**schema, "required": wanted}


def _check_fits(fn: Callable[..., Any], schema: JSON, name: str) -> None:
    """Refuse a schema that names what the function does not take, or lacks what it needs."""
    try:
        arguments = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return
    by_name = {a.name for a in arguments if a.kind in (a.POSITIONAL_OR_KEYWORD, a.KEYWORD_ONLY)}
    offered = set(schema["properties"])
    if not any(a.kind is a.VAR_KEYWORD for a in arguments):
        extra = sorted(offered - by_name)
        if extra:
            raise _wrong(name, f"the function does not take {', '.join(extra)}")
    needed = [a.name for a in arguments if a.default is a.empty and a.kind not in (a.VAR_POSITIONAL, a.VAR_KEYWORD)]
    lacking = [n for n in needed if n not in offered]
    if lacking:
        raise _wrong(name, f"the function needs {', '.join(lacking)}, which parameters does not describe")


def _wrong(name: str, why: str) -> InvalidRequestError:
    return InvalidRequestError(f"The tool {name} is refused: {why}.", argument="parameters")


def checked_tools(tools: Any) -> list[LLMTool]:
    """Return a list of tools.

    Raises:
        InvalidRequestError: it is neither a tool nor a list of them, or two have one name.
    """
    listed = [tools] if isinstance(tools, LLMTool) else tools
    if not isinstance(listed, Sequence) or isinstance(listed, (str, bytes)) or not listed:
        raise InvalidRequestError("tools is one llm_tool(...) or a list of them.", argument="tools")
    for index, tool in enumerate(listed):
        if not isinstance(tool, LLMTool):
            raise InvalidRequestError(
                f"tools[{index}] is {type(tool).__name__}: make a tool of it with llm_tool(...).", argument=f"tools[{index}]"
            )
    names = [tool.name for tool in listed]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise InvalidRequestError(f"Two tools have the name {twice!r}.", argument="tools")
    return list(listed)
