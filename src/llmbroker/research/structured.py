"""Answers in a form: a JSON schema from whatever the user has, sent in the mode that the provider has, read and checked here.

``Form`` is made once; ``wire`` goes into the request, where each dialect writes it in its own way (a strict schema, JSON mode
with the schema in words, words alone). Answers are read as JSON and nothing else. What stands in thinking tags is no answer;
of several JSON texts in an answer the last that fits counts, as models say the final one last.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from llmbroker.errors import InvalidRequestError
from llmbroker.research.validity import check_schema
from llmbroker.tools import check_value, shape_of
from llmbroker.tools.exact import decode
from llmbroker.tools.lenient import Cut, NotFinite, read_object

JSON: TypeAlias = dict[str, Any]
_THINKING = re.compile(r"<(think|thinking|reasoning)>.*?(</\1>|\Z)", re.S | re.I)
_FENCE = re.compile(r"```[\w+-]*[ \t]*\r?\n(.*?)```", re.S)
_KINDS = frozenset({"json_schema", "json_object", "text"})
_MISS: Any = object()


class Form:
    """A form of answers.

    Attributes:
        wire: the ``response_format`` of the request.
        schema: the schema that a value must fit, or None for any object.
    """

    __slots__ = ("_convert", "_wrapped", "schema", "wire")

    def __init__(self, wire: JSON, schema: Any, convert: Callable[[Any], Any] | None = None, wrapped: bool = False) -> None:
        self.wire = wire
        self.schema = schema
        self._convert = convert
        self._wrapped = wrapped

    def read(self, text: str, finish: str | None = None) -> tuple[Any, str | None]:
        """Return (value, None), or (None, why the text holds no such value)."""
        if self.wire.get("type") == "text":
            return text, None
        first: str | None = None
        for candidate in candidates(text):
            value, problem = self._checked(candidate)
            if problem is None:
                return value, None
            first = first or problem
        if finish == "length":
            return None, "the answer was cut at the token limit before it was complete."
        if finish in ("content_filter", "refusal"):
            return None, "the answer was refused."
        return None, first or "the answer holds no JSON."

    def _checked(self, value: Any) -> tuple[Any, str | None]:
        if self.schema is None:
            return (value, None) if isinstance(value, dict) else (None, "the answer is no JSON object.")
        if self._wrapped and not (isinstance(value, dict) and "value" in value):
            value = {"value": value}  # the value itself, without the object that was put around it for the provider
        checked, problems = check_value(value, self.schema)
        if problems:
            return None, "\n".join(problems)
        if self._wrapped:
            checked = checked["value"]
        if self._convert is None:
            return checked, None
        try:
            return self._convert(checked), None
        except Exception as error:  # noqa: BLE001 - a user's validator may raise anything; its words are what helps
            return None, str(error)

    def complaint(self, problem: str) -> str:
        """Return what the model is told when its answer does not fit."""
        return (
            f"Your answer does not have the form that was asked for:\n{problem[:2000]}\n"
            "Answer again with one JSON value in exactly that form and nothing else."
        )


def form_of(given: Any) -> Form:
    """Return the form that a ``response_format=`` means.

    Args:
        given: a pydantic model, a dataclass, TypedDict, msgspec Struct or other type; a JSON schema; OpenAI's mapping; a Form.

    Raises:
        InvalidRequestError: it is none of these.
    """
    if isinstance(given, Form):
        return given
    if isinstance(given, Mapping):
        return _of_mapping(given)
    try:
        return _of_type(given)
    except TypeError as error:
        raise InvalidRequestError(
            f"response_format is a type, a JSON schema or OpenAI's mapping, not {given!r} ({error}).",
            argument="response_format",
        ) from None


def _of_mapping(given: Mapping[str, Any]) -> Form:
    kind = given.get("type")
    if isinstance(kind, str) and kind in _KINDS and (kind != "json_schema" or "json_schema" in given):
        if kind != "json_schema":
            return Form(dict(given), None)
        inner = given["json_schema"]
        schema = inner.get("schema") if isinstance(inner, Mapping) else None
        if not isinstance(schema, Mapping):
            raise InvalidRequestError("json_schema needs a mapping 'schema'.", argument="response_format")
        check_schema(schema, "schema", _refused)
        return Form(dict(given), dict(schema))
    if not any(word in given for word in ("type", "properties", "anyOf", "oneOf", "allOf", "$ref", "enum", "const")):
        raise InvalidRequestError(
            "response_format is no JSON schema: it says neither type nor properties.", argument="response_format"
        )
    check_schema(given, "response_format", _refused)
    return made(dict(given), str(given.get("title") or "answer"))


def _refused(why: str) -> InvalidRequestError:
    return InvalidRequestError(f"The form of the answer is refused: {why}.", argument="response_format")


@functools.lru_cache(maxsize=256)
def _of_type(kind: Any) -> Form:
    if isinstance(kind, str):
        raise TypeError(kind)
    shape = shape_of(kind)
    return made(shape.schema, getattr(kind, "__name__", "answer"), shape.convert)


def made(schema: JSON, name: str, convert: Callable[[Any], Any] | None = None) -> Form:
    """Return the form of a schema; one whose value is no object is wrapped in one, since providers want an object."""
    root = schema
    if isinstance(schema.get("$ref"), str):
        target = schema["$ref"].removeprefix("#/$defs/")
        root = {**schema.get("$defs", {}).get(target, {}), **{k: v for k, v in schema.items() if k != "$ref"}}
    wrapped = root.get("type") != "object" and "properties" not in root
    if wrapped:
        inner = {key: value for key, value in root.items() if key != "$defs"}
        root = {"type": "object", "properties": {"value": inner}, "required": ["value"]}
        if "$defs" in schema:
            root["$defs"] = schema["$defs"]
    hardened, strict = harden(root)
    word = re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "answer"
    inner = {"name": word, "schema": hardened, **({"strict": True} if strict else {})}
    return Form({"type": "json_schema", "json_schema": inner}, root, convert, wrapped)


# -- schemas for strict providers ----------------------------------------------------------------------------------------


def harden(schema: JSON) -> tuple[JSON, bool]:
    """Return the schema as strict providers want it, and whether it can be strict at all.

    Objects are closed, every property is required, one that was optional may be null. A schema with open maps cannot be
    strict and is returned as it was.
    """
    made = copy.deepcopy(schema)
    try:
        _harden(made)
    except _Open:
        return schema, False
    return made, True


class _Open(Exception):
    pass


def _harden(node: Any) -> None:
    if not isinstance(node, dict):
        return
    properties = node.get("properties")
    if node.get("type") == "object" or properties is not None or _lists_object(node.get("type")):
        if not properties or node.get("additionalProperties", False) not in (False, None) or "patternProperties" in node:
            raise _Open
        node["additionalProperties"] = False
        needed = node.get("required") or []
        for name in properties:
            if name not in needed:
                properties[name] = _nullable(properties[name])
        node["required"] = list(properties)
    node.pop("default", None)
    for inner in _inside(node):
        _harden(inner)


def _lists_object(kind: Any) -> bool:
    return isinstance(kind, list) and "object" in kind


def _nullable(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    kind = node.get("type")
    if isinstance(kind, str) and "enum" not in node and "const" not in node:
        return node if kind == "null" else {**node, "type": [kind, "null"]}
    if isinstance(kind, list):
        return node if "null" in kind else {**node, "type": [*kind, "null"]}
    if any(isinstance(option, dict) and option.get("type") == "null" for option in node.get("anyOf") or ()):
        return node
    return {"anyOf": [node, {"type": "null"}]}


def _inside(node: JSON) -> Iterator[Any]:
    for key in ("properties", "$defs", "definitions"):
        if isinstance(node.get(key), dict):
            yield from node[key].values()
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if isinstance(node.get(key), list):
            yield from node[key]
    yield node.get("items")


# -- JSON in an answer -----------------------------------------------------------------------------------------------------


def candidates(text: str) -> Iterator[Any]:
    """Yield the JSON values that an answer may mean, the likeliest first; scalars only where they are the whole answer."""
    answer = _THINKING.sub("", text).strip()
    whole = _decoded(answer)
    if whole is not _MISS:
        yield whole
        return
    for block in reversed(_FENCE.findall(answer)):
        value = _decoded(block.strip())
        if value is not _MISS:
            yield value
    pieces = list(_balanced(answer))
    for piece in reversed(pieces):
        value = _decoded(piece)
        if isinstance(value, (dict, list)):
            yield value
    for piece in reversed([answer, *pieces]):
        try:
            mended = read_object(piece)
        except (Cut, NotFinite):
            continue
        if mended is not None:
            yield mended


def _decoded(text: str) -> Any:
    try:
        return decode(text, control=True)
    except (ValueError, RecursionError):
        return _MISS


def _balanced(text: str) -> Iterator[str]:
    """Yield the outermost {...} and [...] of a text; brackets inside strings do not count."""
    at = 0
    while at < len(text):
        if text[at] not in "{[":
            at += 1
            continue
        end = _end_of(text, at)
        if end is None:
            at += 1
            continue
        yield text[at:end]
        at = end


def _end_of(text: str, start: int) -> int | None:
    stack: list[str] = []
    quoted = escaped = False
    for at in range(start, len(text)):
        char = text[at]
        if quoted:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                quoted = False
        elif char == '"':
            quoted = True
        elif char in "{[":
            stack.append("}" if char == "{" else "]")
        elif char in "}]":
            if not stack or stack.pop() != char:
                return None
            if not stack:
                return at + 1
    return None


def llm_parse_structured(response: Any, response_format: Any = None) -> Any:
    """Return the JSON value that an answer holds, or None; it never raises for what a model wrote.

    Args:
        response: a response, or text.
        response_format: the form that it must fit, as of ``llm_config``; None: any JSON object or list.
    """
    text = response if isinstance(response, str) else getattr(response, "text", "") or ""
    if response_format is None:
        return next((value for value in candidates(text) if isinstance(value, (dict, list))), None)
    return form_of(response_format).read(text)[0]
