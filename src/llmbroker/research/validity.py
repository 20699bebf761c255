"""Whether a JSON schema is one: what no provider would take, or what cannot mean what it says, is found before it is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from llmbroker.errors import InvalidRequestError

TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
DEEPEST = 60
Refuse = Callable[[str], InvalidRequestError]


def check_schema(schema: Mapping[str, Any], where: str, refuse: Refuse) -> None:
    """See that a schema is valid; ``refuse`` makes the error out of a reason, ``where`` is what the reason calls the schema.

    Raises:
        InvalidRequestError: it is not.
    """
    try:
        msgspec.json.encode(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise refuse(f"the schema cannot be written as JSON: {error}") from None
    _node(schema, where, refuse, 0)


def _node(node: Any, where: str, refuse: Refuse, depth: int) -> None:
    if isinstance(node, bool):
        return
    if not isinstance(node, Mapping):
        raise refuse(f"{where} is no schema but {type(node).__name__}")
    if depth > DEEPEST:
        raise refuse(f"{where} is nested too deeply")
    _words(node, where, refuse, depth)
    for key in ("properties", "$defs", "definitions"):
        for name, inner in node.get(key, {}).items():
            _node(inner, f"{where}.{name}", refuse, depth + 1)
    for key in ("items", "additionalProperties", "not"):
        if key in node:
            _node(node[key], f"{where}.{key}", refuse, depth + 1)
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if key not in node:
            continue
        if not isinstance(node[key], (list, tuple)) or not node[key]:
            raise refuse(f"{where}.{key} is a list of schemas, not {node[key]!r}")
        for at, inner in enumerate(node[key]):
            _node(inner, f"{where}.{key}[{at}]", refuse, depth + 1)


def _words(node: Mapping[str, Any], where: str, refuse: Refuse, depth: int) -> None:
    """Check type, properties, required, references and enum of one schema."""
    if "type" in node:
        kinds = node["type"] if isinstance(node["type"], (list, tuple)) else [node["type"]]
        wrong = [kind for kind in kinds if not isinstance(kind, str) or kind not in TYPES]
        if wrong or not kinds or len(set(kinds)) < len(kinds):
            raise refuse(f"{where} has type {node['type']!r}; there are {', '.join(sorted(TYPES))}")
    for key in ("properties", "$defs", "definitions"):
        if not isinstance(node.get(key, {}), Mapping):
            raise refuse(f"{where}.{key} is a mapping, not {type(node[key]).__name__}")
    _required(node, where, refuse, depth)
    if "$ref" in node and not (isinstance(node["$ref"], str) and node["$ref"].startswith("#")):
        raise refuse(f"{where}.$ref points within the schema ('#/$defs/...'), not at {node['$ref']!r}")
    if "enum" in node and (not isinstance(node["enum"], (list, tuple)) or not node["enum"]):
        raise refuse(f"{where}.enum is a list of values, not {node['enum']!r}")


def _required(node: Mapping[str, Any], where: str, refuse: Refuse, depth: int) -> None:
    needed = node.get("required", [])
    if not isinstance(needed, (list, tuple)) or not all(isinstance(n, str) for n in needed) or len(set(needed)) < len(needed):
        raise refuse(f"{where}.required is a list of names, not {needed!r}")
    unknown = [n for n in needed if n not in node.get("properties", {})]
    if unknown and ("properties" in node or depth == 0):
        raise refuse(f"{where}.required names {', '.join(unknown)}, which it does not describe")
