"""From a Python type to a JSON schema and to a converter of JSON values, by the lightest means that know the type.

Types that are JSON already (text, numbers, lists, Literal, Optional, constraints by ``Annotated``) need neither a library nor a
conversion. What msgspec knows (dataclass, TypedDict, NamedTuple, Struct, Enum, dates, sets, tuples) is converted by msgspec.
Everything else, pydantic models above all, is left to pydantic, which is imported then and not before.
"""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from llmbroker.tools.exact import show

JSON: TypeAlias = dict[str, Any]
_PLAIN: dict[Any, JSON] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    None: {"type": "null"},
    list: {"type": "array"},
    dict: {"type": "object"},
    Any: {},
    object: {},
}
_LISTS = (list, abc.Sequence, abc.Iterable, abc.Collection, abc.MutableSequence)
_DICTS = (dict, abc.Mapping, abc.MutableMapping)
_CONSTRAINTS = {
    "gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum", "multiple_of": "multipleOf",
    "pattern": "pattern",
}  # fmt: skip


class Unsuited(TypeError):
    """No schema can be made of a type."""


class Shape:
    """A type as a model sees it (``schema``), and what makes a Python value of a JSON value (``convert``, None: nothing)."""

    __slots__ = ("convert", "schema")

    def __init__(self, schema: JSON, convert: Callable[[Any], Any] | None = None) -> None:
        self.schema = schema
        self.convert = convert


class Wrong(ValueError):
    """A value does not fit its type; ``lines`` say where and why, each ``path: words``."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def shape_of(hint: Any) -> Shape:
    """Return the shape of a type.

    Raises:
        Unsuited: JSON cannot carry it, or pydantic is needed and not installed.
    """
    plain = _plain(hint)
    if plain is not None:
        return Shape(plain)
    if not _wants_pydantic(hint, set()):
        try:
            schema = msgspec.json.schema(hint)
            return Shape(_tidy(schema), _by_msgspec(hint))
        except (TypeError, NameError, AttributeError):
            pass
    return _by_pydantic(hint)


# -- what is JSON already ----------------------------------------------------------------------------------------------------


def _plain(hint: Any) -> JSON | None:
    """Return the schema of a type whose values are JSON values, or None if it is no such type."""
    try:
        if hint in _PLAIN:
            return dict(_PLAIN[hint])
    except TypeError:
        return None
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _annotated(inner[0], inner[1:])
    if origin is typing.Literal:
        return _literal(inner)
    if origin in (typing.Union, types.UnionType):
        branches = [_plain(kind) for kind in inner]
        return None if None in branches else {"anyOf": branches}
    if origin in _LISTS and len(inner) == 1:
        items = _plain(inner[0])
        return None if items is None else {"type": "array", **({"items": items} if items else {})}
    if origin in _DICTS and len(inner) == 2 and inner[0] is str:
        values = _plain(inner[1])
        return None if values is None else {"type": "object", "additionalProperties": values or True}
    return None


def _literal(values: tuple[Any, ...]) -> JSON | None:
    kinds = {bool: "boolean", int: "integer", str: "string", type(None): "null"}
    if any(type(value) not in kinds for value in values):
        return None
    named = list(dict.fromkeys(kinds[type(value)] for value in values))
    return {"enum": list(values), **({"type": named[0]} if len(named) == 1 else {})}


def _annotated(kind: Any, notes: tuple[Any, ...]) -> JSON | None:
    schema = _plain(kind)
    if schema is None:
        return None
    for note in notes:
        more = _note(note, schema)
        if more is None:
            return None
        schema = {**schema, **more}
    return schema


def _note(note: Any, schema: JSON) -> JSON | None:
    """Return what an annotation adds to a schema; None where only pydantic knows what it means."""
    if isinstance(note, str):
        return {"description": note}
    inner = getattr(note, "metadata", None)
    library = type(note).__module__.split(".")[0]
    made = _words(note, schema)
    if isinstance(inner, list):  # pydantic's Field
        if getattr(note, "alias", None) or getattr(note, "discriminator", None) or getattr(note, "strict", None):
            return None
        for one in inner:
            more = _note(one, schema)
            if more is None:
                return None
            made.update(more)
        return made
    only_pydantic = not made and library in ("pydantic", "pydantic_core", "annotated_types")
    return None if only_pydantic else made


def _words(note: Any, schema: JSON) -> JSON:
    """Return the constraints and words that an annotation states by the names that all libraries use."""
    made: JSON = {}
    for name, word in _CONSTRAINTS.items():
        value = getattr(note, name, None)
        if isinstance(getattr(value, "pattern", value), (int, float, str)):
            made[word] = getattr(value, "pattern", value)
    for name, prefix in (("min_length", "min"), ("max_length", "max")):
        value = getattr(note, name, None)
        if isinstance(value, int):
            made[prefix + _sized(schema)] = value
    for name, kind in (("description", str), ("title", str), ("examples", list)):
        value = getattr(note, name, None)
        if value and isinstance(value, kind):
            made[name] = value
    return made


def _sized(schema: JSON) -> str:
    return {"array": "Items", "object": "Properties"}.get(schema.get("type", ""), "Length")


# -- msgspec -----------------------------------------------------------------------------------------------------------------


def _wants_pydantic(hint: Any, seen: set[int]) -> bool:
    """Whether a type holds something that only pydantic understands: a model, or a constraint below the top."""
    if id(hint) in seen:
        return False
    seen.add(id(hint))
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        if hasattr(hint, "__pydantic_validator__") or hasattr(hint, "__get_pydantic_core_schema__"):
            return True
        if issubclass(hint, enum.Enum):
            return len({type(member.value) for member in hint} & {str, int}) != 1 or any(
                type(member.value) not in (str, int) for member in hint
            )
        if issubclass(hint, (set, frozenset, tuple)) and not hasattr(hint, "_fields"):
            return False
        if dataclasses.is_dataclass(hint) or typing.is_typeddict(hint) or hasattr(hint, "_fields"):
            try:
                fields = typing.get_type_hints(hint, include_extras=True)
            except Exception:  # noqa: BLE001 - whatever it is, pydantic says it better
                return True
            return any(_wants_pydantic(field, seen) for field in fields.values())
        return False
    if typing.get_origin(hint) is typing.Annotated:
        kind, *notes = typing.get_args(hint)
        if any(not isinstance(note, (str, msgspec.Meta)) for note in notes):
            return True
        return _wants_pydantic(kind, seen)
    return any(_wants_pydantic(kind, seen) for kind in typing.get_args(hint) if not isinstance(kind, (str, int)))


def _by_msgspec(hint: Any) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        try:
            return msgspec.convert(value, hint, strict=False)
        except msgspec.ValidationError as error:
            words, _, path = str(error).partition(" - at `")
            place = path.rstrip("`").removeprefix("$")
            raise Wrong([f"{place}: {words}, got {show(_found(value, place))}."]) from None

    return convert


def _found(value: Any, place: str) -> Any:
    """Return the value at a path as msgspec writes it (``.a[0].b``), or the whole."""
    for step in place.replace("[", ".").replace("]", "").split("."):
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        elif step:
            break
    return value


def _tidy(schema: JSON) -> JSON:
    """Return a schema without titles, and without the demand that the items of a set differ: twice the same loses nothing."""
    made: Any = _walked(schema)
    return typing.cast("JSON", made)


def _walked(node: Any, *, names: bool = False) -> Any:
    if isinstance(node, list):
        return [_walked(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    if node.get("format") == "decimal" and node.get("type") == "string":
        return {"anyOf": [{"type": "number"}, {"type": "string"}]}
    made = {}
    for key, value in node.items():
        if names:
            made[key] = _walked(value)
        elif key in ("default", "enum", "const"):
            made[key] = value
        elif key not in ("title", "uniqueItems"):
            made[key] = _walked(value, names=key in ("properties", "$defs"))
    return made


# -- pydantic ----------------------------------------------------------------------------------------------------------------


def _by_pydantic(hint: Any) -> Shape:
    try:
        import pydantic
    except ImportError:
        raise Unsuited(f"{_named(hint)} needs pydantic: pip install 'llmbroker[tools]'") from None
    try:
        adapter = pydantic.TypeAdapter(hint, config=None if _configured(hint) else {"arbitrary_types_allowed": False})
        schema = adapter.json_schema(mode="validation")
    except (pydantic.errors.PydanticUserError, TypeError, NameError, AttributeError) as error:
        raise Unsuited(f"{_named(hint)} has no JSON schema: {str(error).splitlines()[0]}") from None

    def convert(value: Any) -> Any:
        try:
            return adapter.validate_json(msgspec.json.encode(value))
        except pydantic.ValidationError as error:
            raise Wrong([_line(fault) for fault in error.errors(include_url=False, include_context=False)[:8]]) from None

    return Shape(_tidy(schema), convert)


def _configured(hint: Any) -> bool:
    """Whether pydantic takes the settings from the type itself and refuses others."""
    return isinstance(hint, type) and (
        hasattr(hint, "__pydantic_validator__") or dataclasses.is_dataclass(hint) or typing.is_typeddict(hint)
    )


def _line(fault: Any) -> str:
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in fault["loc"])
    return f"{place}: {fault['msg']}, got {show(fault.get('input'))}."


def _named(hint: Any) -> str:
    return getattr(hint, "__name__", None) or repr(hint)
