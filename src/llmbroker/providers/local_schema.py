"""JSON schemas as the embedded engine can hold a model to them.

llama.cpp turns a schema into a grammar; one that it cannot express it refuses, or in silence holds the model to nothing (so the
tests ask the grammars' own library, llguidance). Tools come with any schema, so each is made fit first: references are written
out, unknown types and patterns become weaker, never stricter. What a grammar cannot say is checked afterwards by whoever runs
the tool.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JSON = dict[str, Any]
_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_OTHER_NAMES = {"dict": "object", "list": "array", "tuple": "array", "float": "number", "int": "integer", "str": "string"}
_KEPT = frozenset({
    "minItems", "maxItems", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum",
})  # fmt: skip
_FORMATS = frozenset({"date", "time", "date-time", "uuid"})
_DEPTH = 8


def parameters(schema: Mapping[str, Any]) -> JSON:
    """Return a tool's parameters as a closed object schema that the engine takes."""
    made = fit(schema)
    if made.get("type") != "object":
        made = {"type": "object", "properties": {}}
    if "properties" in made and "additionalProperties" not in made:
        made["additionalProperties"] = False
    return made


def fit(schema: Mapping[str, Any]) -> JSON:
    """Return a schema without anything that the engine refuses."""
    return _fit(schema, schema, 0)


def _fit(schema: Any, root: Mapping[str, Any], depth: int) -> JSON:
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        return {}
    elsewhere = _elsewhere(schema, root)
    if elsewhere is not None:
        return _fit(elsewhere, root, depth + 1)
    choices = schema.get("anyOf") or schema.get("oneOf")
    kind = schema.get("type")
    if isinstance(kind, list) and kind and "enum" not in schema:
        choices = [{**schema, "type": one} for one in kind]
    if isinstance(choices, list) and choices:
        return {"anyOf": [_fit(choice, root, depth + 1) for choice in choices]}
    if "const" in schema:
        return {"const": schema["const"]}
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return {"enum": schema["enum"]}
    return _fit_typed(schema, root, depth)


def _elsewhere(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """Return the schema that this one only refers to or wraps, or None."""
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return _target(reference, root) or {}
    parts = schema.get("allOf")
    return parts[0] if isinstance(parts, list) and len(parts) == 1 else None


def _fit_typed(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> JSON:
    kind = schema.get("type")
    kind = _OTHER_NAMES.get(kind, kind) if isinstance(kind, str) else None
    if kind is None and isinstance(schema.get("properties"), Mapping):
        kind = "object"
    if kind not in _TYPES:
        return {}
    if kind == "string" and schema.get("format") in _FORMATS:
        return {"type": "string", "format": schema["format"]}
    made: JSON = {"type": kind, **{key: schema[key] for key in _KEPT if key in schema}}
    if kind == "object":
        _fit_object(made, schema, root, depth)
    elif kind == "array" and "items" in schema:
        made["items"] = _fit(schema["items"], root, depth + 1)
    return made


def _fit_object(made: JSON, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> None:
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        made["properties"] = {str(name): _fit(value, root, depth + 1) for name, value in properties.items()}
        required = schema.get("required")
        made["required"] = [name for name in required if name in properties] if isinstance(required, list) else []
    more = schema.get("additionalProperties")
    if isinstance(more, Mapping):
        made["additionalProperties"] = _fit(more, root, depth + 1)
    elif isinstance(more, bool):
        made["additionalProperties"] = more
    elif properties and depth:
        made["additionalProperties"] = False


def _target(reference: str, root: Mapping[str, Any]) -> Any:
    """Return what a reference inside the same schema points to; nothing is ever fetched."""
    if not reference.startswith("#"):
        return {}
    at: Any = root
    for step in reference[1:].strip("/").split("/") if reference != "#" else ():
        at = at.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(at, Mapping) else None
    return at
