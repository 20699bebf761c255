"""One request, checked, in no dialect: tools, tool choice, parameters."""

from __future__ import annotations

import itertools
import marshal
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Literal

import msgspec

from llmbroker.errors import InvalidRequestError
from llmbroker.exchange.events import JSON
from llmbroker.messages import History, check_text, plain, shown, wire_name


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as it is declared to a model.

    ``name`` is what goes over the wire, fit for every provider and unique in the set; ``declared`` is the user's own name.
    ``parameters`` is a JSON schema of type object.
    """

    name: str
    description: str
    parameters: JSON
    strict: bool | None = None
    cache: bool = False
    declared: str = ""


class Choice(msgspec.Struct, frozen=True):
    """Which tools the model may, must or must not call: auto, none, required, or the one tool ``name``."""

    mode: Literal["auto", "none", "required", "tool"]
    name: str | None = None


class ToolSet(list[JSON]):
    """A checked list of tool declarations in OpenAI's shape, with the specs that it stands for.

    It is a plain list to any caller that accepts ``tools=``; our own clients reuse the check and the encoding.

    Attributes:
        specs: the tools as they go over the wire.
        by_name: declared name to spec.
        renamed: wire name to declared name, where they differ (``spotify.play`` is sent as ``spotify_play``).
        encoded: what dialects made of the set, by dialect.
    """

    def __init__(self, tools: Sequence[Any]) -> None:
        read = _read_before(tools)
        self.specs: tuple[ToolSpec, ...] = read.specs
        self.by_name: Mapping[str, ToolSpec] = read.by_name
        self.renamed: Mapping[str, str] = read.renamed
        self.encoded: dict[str, msgspec.Raw] = read.encoded
        super().__init__(tools)


class _Read:
    """What a list of declarations says; made of this library's own values, so that several sets may share it."""

    __slots__ = ("by_name", "encoded", "renamed", "specs")

    def __init__(self, tools: Sequence[Any]) -> None:
        specs = [_tool_spec(tool, index) for index, tool in enumerate(tools)]
        self.by_name: dict[str, ToolSpec] = {}
        self.renamed: dict[str, str] = {}
        for index, spec in enumerate(specs):
            if spec.declared in self.by_name:
                raise InvalidRequestError(f"Two tools have the name {spec.declared!r}.", argument=f"tools[{index}]")
            self.by_name[spec.declared] = spec
        taken = {spec.name for spec in specs if spec.name == spec.declared}
        for index, spec in enumerate(specs):
            if spec.name != spec.declared:
                name = next(n for n in _candidates(spec.name) if n not in taken)
                taken.add(name)
                self.renamed[name] = spec.declared
                specs[index] = self.by_name[spec.declared] = msgspec.structs.replace(spec, name=name)
        self.specs = tuple(specs)
        self.encoded: dict[str, msgspec.Raw] = {}


MOST_READ = 64
"""Lists of declarations that are remembered."""
_READ: dict[bytes, _Read] = {}


def _read_before(tools: Sequence[Any]) -> _Read:
    """Return what a list of declarations says; the same list, word for word, is read once.

    An agent declares the same tools call after call. Its list is known again by all that it holds: ``marshal`` writes plain
    dicts, lists and scalars exactly (1, 1.0 and True differ) and refuses everything else, which is then read each time.
    """
    try:
        key = marshal.dumps(tools if type(tools) is list else list(tools), 0)
    except ValueError:
        return _Read(tools)
    known = _READ.get(key)
    if known is None:
        known = _Read(tools)
        if len(_READ) >= MOST_READ:
            _READ.clear()
        _READ[key] = known
    return known


def _candidates(name: str) -> Iterator[str]:
    yield name
    for number in itertools.count(2):
        yield f"{name[:60]}_{number}"


def _tool_spec(tool: Any, index: int) -> ToolSpec:
    where = f"tools[{index}]"
    if not isinstance(tool, Mapping):
        raise InvalidRequestError(f"A tool is a mapping, not {type(tool).__name__}.", argument=where)
    function = tool.get("function", None if "type" in tool and "name" not in tool else tool)
    if tool.get("type", "function") != "function" or not isinstance(function, Mapping):
        raise InvalidRequestError("A tool needs type 'function' and a mapping 'function'.", argument=where)
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        raise InvalidRequestError("A tool needs a name.", argument=f"{where}.function.name")
    check_text(name, f"{where}.function.name")
    description = function.get("description") or ""
    if not isinstance(description, str):
        raise InvalidRequestError("A tool's description is a string.", argument=f"{where}.function.description")
    check_text(description, f"{where}.function.description")
    parameters = function.get("parameters")
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping):
        raise InvalidRequestError("A tool's parameters are a JSON schema (a mapping).", argument=f"{where}.function.parameters")
    parameters = plain(parameters, f"{where}.function.parameters")
    if parameters.get("type", "object") != "object":
        raise InvalidRequestError(
            f"A tool's parameters have type object, not {shown(parameters.get('type'))}.",
            argument=f"{where}.function.parameters",
        )
    strict = function.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise InvalidRequestError(
            f"A tool's strict is True, False or None, not {shown(strict)}.", argument=f"{where}.function.strict"
        )
    return ToolSpec(
        wire_name(name),
        description,
        parameters,
        strict=strict,
        cache=bool(tool.get("cache_control")),
        declared=name,
    )


def tool_set(tools: Sequence[Any] | None) -> ToolSet | None:
    """Check declarations of tools; None and an empty list mean no tools.

    Raises:
        InvalidRequestError: something is no tool, or two tools have one name.
    """
    if tools is None or isinstance(tools, ToolSet):
        return tools or None
    if type(tools) is not list and (isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence)):
        raise InvalidRequestError(f"tools is a list of tools, not {type(tools).__name__}.", argument="tools")
    return ToolSet(tools) if tools else None


def tool_choice(choice: Any, tools: ToolSet | None) -> Choice | None:
    """Check a tool choice: None, auto, none, required (or any), a tool's name, or OpenAI's mapping for one function.

    Raises:
        InvalidRequestError: it names no tool of the list, or means nothing.
    """
    if choice is None or isinstance(choice, Choice):
        return choice
    name: Any = None
    if isinstance(choice, str):
        if choice in ("auto", "none", "required"):
            mode: Any = choice
            if mode == "required" and not tools:
                raise InvalidRequestError("tool_choice 'required' needs tools.", argument="tool_choice")
            return Choice(mode)
        if choice == "any":
            return tool_choice("required", tools)
        name = choice
    elif isinstance(choice, Mapping):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else choice.get("name")
    if not isinstance(name, str) or not tools or name not in tools.by_name:
        known = ", ".join(tools.by_name) if tools else "none declared"
        raise InvalidRequestError(
            f"tool_choice {shown(choice)} is neither auto, none, required nor a tool of this call ({known}).",
            argument="tool_choice",
        )
    return Choice("tool", tools.by_name[name].name)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request, checked, in no dialect.

    Attributes:
        history: the conversation.
        tools, tool_choice: what the model may call.
        response_format: None, ``{"type": "json_object"}`` or OpenAI's ``json_schema`` mapping.
        params: further parameters in OpenAI's words; a dialect renames, moves or refuses them.
        stream: whether the answer shall come as it is made.
    """

    history: History
    tools: ToolSet | None = None
    tool_choice: Choice | None = None
    response_format: JSON | None = None
    params: Mapping[str, Any] = {}
    stream: bool = False


STEP: ContextVar[int | None] = ContextVar("llmbroker_step", default=None)
"""The tool loop's step that runs now, from 1: whoever writes a call down says which step it was."""

RESERVED = frozenset({"model", "messages", "stream", "stream_options", "tools"})


def make_request(
    messages: Any,
    *,
    tools: Sequence[Any] | None = None,
    choice: Any = None,
    response_format: Any = None,
    params: Mapping[str, Any] | None = None,
    tool_params: Mapping[str, Any] | None = None,
    stream: bool = False,
) -> Request:
    """Check the arguments of a call and return the request. ``params`` win over ``tool_params`` (sent only with tools).

    Raises:
        InvalidRequestError: names the argument that is wrong.
    """
    declared = tool_set(tools)
    merged: Mapping[str, Any] = {}
    if params is not None:
        merged = _checked_params(params, "params")
    if declared and tool_params:
        merged = {**_checked_params(tool_params, "tool_params"), **merged}
    if "tool_choice" in merged and choice is None:
        merged = dict(merged)
        choice = merged.pop("tool_choice")
    if "response_format" in merged and response_format is None:
        merged = dict(merged)
        response_format = merged.pop("response_format")
    return Request(
        history=messages if isinstance(messages, History) else History(messages),
        tools=declared,
        tool_choice=tool_choice(choice, declared),
        response_format=None if response_format is None else _checked_format(response_format),
        params=merged,
        stream=stream,
    )


def _checked_format(given: Any) -> JSON:
    if not isinstance(given, Mapping) or not isinstance(given.get("type"), str):
        raise InvalidRequestError(
            "response_format is a mapping with a type: text, json_object or json_schema.", argument="response_format"
        )
    made: JSON = plain(given, "response_format")
    inner = made.get("json_schema")
    if made["type"] == "json_schema" and inner is not None:
        for value, kind, where in (
            (inner, dict, "response_format.json_schema"),
            (inner.get("schema", {}) if isinstance(inner, dict) else {}, dict, "response_format.json_schema.schema"),
            (inner.get("name", "") if isinstance(inner, dict) else "", str, "response_format.json_schema.name"),
        ):
            if not isinstance(value, kind):
                raise InvalidRequestError(
                    f"{where} is a {'mapping' if kind is dict else 'string'}, not {shown(value)}.", argument=where
                )
    return made


_TEXTS = "a string or a list of strings"
_SHAPES: Mapping[str, str] = {
    "stop": _TEXTS,
    "modalities": _TEXTS,
    "reasoning_effort": "a string",
    "service_tier": "a string",
    "user": "a string",
    "options": "a mapping",
}
"""Parameters that dialects take apart, and what they are."""


def _fits(value: Any, shape: str) -> bool:
    if isinstance(value, str):
        return shape != "a mapping"
    if isinstance(value, list):
        return shape == _TEXTS and all(isinstance(item, str) for item in value)
    return value is None or (shape == "a mapping" and isinstance(value, dict))


def _checked_params(params: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(params, Mapping):
        raise InvalidRequestError(f"{where} is a mapping, not {type(params).__name__}.", argument=where)
    made: JSON = {}
    for name, value in params.items():
        if not isinstance(name, str):
            raise InvalidRequestError(f"{where} has a name that is no string: {shown(name)}.", argument=where)
        place = f"{where}[{shown(name)}]"
        if name in RESERVED:
            raise InvalidRequestError(f"{name!r} is set by the call itself and may not stand in {where}.", argument=place)
        made[check_text(name, place)] = value if name == "tool_choice" else plain(value, place)
        shape = _SHAPES.get(name)
        if shape is not None and not _fits(made[name], shape):
            raise InvalidRequestError(f"{place} is {shape}, not {shown(value)}.", argument=place)
    return made
