"""Arguments against a JSON schema, before the tool runs: what fits, what fits after a change that loses nothing, what does not.

The common part of JSON Schema is checked; formats and what is unknown are passed over. Lossless changes are made where the
schema asks for them: ``"3"`` and ``3.0`` for an integer, ``"true"`` for a boolean, the JSON text of an object or a list, null
for an optional argument, one wrapper too many or too few. Names that the schema does not list are refused wherever it lists any
and does not allow more. Every problem is one bounded line: path, what was expected, what came, what would be right.

A hostile schema or value costs bounded work: depth, visits and the length of a text that meets a pattern are limited.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from llmbroker.tools.exact import decode, show
from llmbroker.tools.patterns import matches

JSON: TypeAlias = dict[str, Any]
DEEPEST = 60
MOST_VISITS = 200_000
MOST_PROBLEMS = 8

_COMPOSITES = ("allOf", "anyOf", "oneOf", "$ref", "if", "patternProperties", "dependentSchemas")


class Checked(msgspec.Struct, frozen=True):
    """``value`` as it may be used, whether it was ``repaired``, or the ``problems`` that forbid its use."""

    value: JSON
    repaired: bool = False
    problems: tuple[str, ...] = ()


def check_arguments(value: JSON, schema: Mapping[str, Any]) -> Checked:
    """Check the arguments of a call. Neither value nor schema is changed; a repaired value is a new one."""
    if plainly_fits(value, schema):
        return Checked(value)
    made, problems = _Check(schema).visit(value, schema, "")
    if not problems:
        return Checked(made, made is not value)
    other = _rewrapped(value, schema)
    if other is not None:
        made, others = _Check(schema).visit(other, schema, "")
        if not others:
            return Checked(made, True)
    shown = problems[:MOST_PROBLEMS]
    if len(problems) > MOST_PROBLEMS:
        shown.append(f"and {len(problems) - MOST_PROBLEMS} more problems.")
    return Checked(value, False, tuple(shown))


_EXACT = {"string": str, "integer": int, "number": float, "boolean": bool, "null": type(None)}
_BARE = frozenset({"type", "title", "description", "default", "examples"})
_BARE_OBJECT = _BARE | {"properties", "required", "additionalProperties"}


def plainly_fits(value: JSON, schema: Mapping[str, Any]) -> bool:
    """Whether arguments fit as they are, where that can be seen at a glance: scalars of the very types that are declared.

    Most calls are such; whatever else the schema says of them, or where anything is amiss, the whole check decides.
    """
    properties = schema.get("properties")
    if not (type(value) is dict is type(properties) and schema.get("type") == "object" and schema.keys() <= _BARE_OBJECT):
        return False
    for name, item in value.items():
        wanted = properties.get(name)
        if type(wanted) is not dict or not wanted.keys() <= _BARE:
            return False
        kind_of = wanted.get("type")
        if type(kind_of) is not str or type(item) is not _EXACT.get(kind_of):
            return False
    required = schema.get("required")
    return required is None or (type(required) is list and all(type(name) is str and name in value for name in required))


def check_value(value: Any, schema: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """Return the value to use and what is wrong with it; for values of any kind, where names beyond the schema may be left."""
    made, problems = _Check(schema).visit(value, schema, "", closed=False)
    return made, [line.replace("the arguments", "the value") for line in problems[:MOST_PROBLEMS]]


def _rewrapped(value: JSON, schema: Mapping[str, Any]) -> JSON | None:
    """Return the arguments with one wrapper less or more, where only that can be meant."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return None
    if len(value) == 1:
        ((key, inner),) = value.items()
        if key not in properties and isinstance(inner, dict) and inner:
            return inner
    if len(properties) == 1 and value:
        ((name, inside),) = properties.items()
        if isinstance(inside, Mapping) and "$ref" in inside:
            inside = _Check(schema).resolve(inside["$ref"])
        if name not in value and isinstance(inside, Mapping) and inside.get("properties"):
            return {name: value}
    return None


# -- words for people and models -------------------------------------------------------------------------------------------


def kind(value: Any) -> str:
    """Return the JSON type of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, Mapping) else "array"


def nearest(word: str, known: Sequence[str]) -> str | None:
    """Return the known word that was probably meant, or None."""
    import difflib

    folded = {name.casefold().replace("-", "_"): name for name in reversed(known[:500])}
    found = difflib.get_close_matches(word[:100].casefold().replace("-", "_"), folded, n=1, cutoff=0.6)
    return folded[found[0]] if found else None


def listed(names: Sequence[Any], limit: int = 300) -> str:
    """Return names separated by commas, as many as fit."""
    out: list[str] = []
    size = 0
    for index, name in enumerate(names):
        text = name if isinstance(name, str) else show(name)
        size += len(text) + 2
        if size > limit:
            out.append(f"and {len(names) - index} more")
            break
        out.append(text)
    return ", ".join(out)


def _wanted(schema: Any) -> str:
    """Return what a schema asks for in a few words."""
    if not isinstance(schema, Mapping):
        return "a value"
    if isinstance(allowed := schema.get("enum"), Sequence) and not isinstance(allowed, str):
        return "one of " + listed([show(item) for item in allowed])
    if "const" in schema:
        return show(schema["const"])
    if types := _types(schema):
        return " or ".join(types)
    for key in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(key), Sequence):
            return " or ".join(dict.fromkeys(_wanted(branch) for branch in branches[:6]))
    return "a value"


def _types(schema: Mapping[str, Any]) -> tuple[str, ...]:
    given = schema.get("type")
    named = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else ()
    types = tuple(name.lower() for name in named if isinstance(name, str))
    if types and schema.get("nullable") is True and "null" not in types:
        types = (*types, "null")
    return types if all(name in _IS for name in types) else ()


def _integral(value: Any) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())


_IS: dict[str, Any] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": _integral,
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, list),
}
_MISS = object()


def _coerced(value: Any, types: tuple[str, ...]) -> Any:
    """Return the value as one of the types where the text can mean nothing else, else ``_MISS``."""
    if not isinstance(value, str):
        return _MISS
    text = value.strip()
    if "boolean" in types and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if "null" in types and text in ("null", "None"):
        return None
    if text[:1] in "{[-0123456789" and text and len(text) < 100_000:
        try:
            made = decode(text)
        except (ValueError, RecursionError):
            return _MISS
        for name in types:
            if name != "null" and _IS[name](made):
                return int(made) if name == "integer" else made
    return _MISS


def _same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(item, other[key]) for key, item in one.items())
    return bool(one == other)


def _unchanged(made: Any, value: Any) -> bool:
    """Whether a value was taken as it is; 1.0 made 1 for an integer counts as that."""
    return made is value or _same(made, value)


def _number(schema: Mapping[str, Any], key: str) -> int | float | None:
    bound = schema.get(key)
    return bound if isinstance(bound, (int, float)) and not isinstance(bound, bool) else None


def _meant(value: Any, allowed: Any) -> str | None:
    """Return the one allowed word that a scalar can only mean: capitals aside, ``true`` for ``"True"``, 2 for ``"2"``."""
    if not isinstance(allowed, list) or not isinstance(value, (str, bool, int)):
        return None
    word = str(value).strip().casefold()
    found = [item for item in allowed if isinstance(item, str) and item.casefold() == word]
    return found[0] if len(found) == 1 else None


class _Check:
    """One check: the root for references, and the work that is left."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self.left = MOST_VISITS

    def visit(self, value: Any, schema: Any, path: str, depth: int = 0, closed: bool = True) -> tuple[Any, list[str]]:
        """Return the value to use and what is wrong with it. ``closed``: names that are not listed are refused."""
        if schema is True or not isinstance(schema, Mapping):
            return value, [f"{path or 'the arguments'}: nothing is allowed here."] if schema is False else []
        self.left -= 1
        if depth > DEEPEST or self.left < 0:
            return value, [f"{path or 'the arguments'}: nested too deeply or too large to be checked."]
        if "$ref" in schema:
            value, problems = self.visit(value, self.resolve(schema["$ref"]), path, depth + 1, closed)
            if problems or len(schema) == 1:
                return value, problems
        types = _types(schema)
        if types:
            value, fits = self._typed(value, types)
            if not fits and "string" in types and (meant := _meant(value, schema.get("enum"))) is not None:
                value, fits = meant, True
            if not fits:
                return value, [f"{path or 'the arguments'}: expected {_wanted(schema)}, got {show(value)} ({kind(value)})."]
        value, problems = self._listed(value, schema, path)
        if problems:
            return value, problems
        value, problems = self._by_kind(value, schema, path, depth, closed)
        if problems:
            return value, problems
        return self._composites(value, schema, path, depth, closed)

    def _by_kind(self, value: Any, schema: Mapping[str, Any], path: str, depth: int, closed: bool) -> tuple[Any, list[str]]:
        if isinstance(value, str):
            return value, _string(value, schema, path)
        if isinstance(value, Mapping):
            return self._object(value, schema, path, depth, closed)
        if isinstance(value, list):
            return self._array(value, schema, path, depth)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value, _numeric(value, schema, path)
        return value, []

    def resolve(self, ref: Any) -> Any:
        """Return what a local reference points at; any other reference allows everything."""
        if not isinstance(ref, str) or not ref.startswith("#"):
            return True
        found: Any = self.root
        for piece in ref[1:].split("/")[1:]:
            name = piece.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isdigit() and int(name) < len(found):
                found = found[int(name)]
            else:
                return True
        return found

    def _typed(self, value: Any, types: tuple[str, ...]) -> tuple[Any, bool]:
        for name in types:
            if _IS[name](value):
                whole = name == "integer" and isinstance(value, float) and "number" not in types
                return int(value) if whole else value, True
        made = _coerced(value, types)
        return (value, False) if made is _MISS else (made, True)

    def _listed(self, value: Any, schema: Mapping[str, Any], path: str) -> tuple[Any, list[str]]:
        where = path or "the arguments"
        if "const" in schema and not _same(value, schema["const"]):
            return value, [f"{where}: expected {show(schema['const'])}, got {show(value)}."]
        allowed = schema.get("enum")
        if not isinstance(allowed, list) or any(_same(value, item) for item in allowed):
            return value, []
        if isinstance(value, list) and "array" in _types(schema) and not any(isinstance(item, list) for item in allowed):
            # A common slip of schema writers: the list's own enum names what its items may be. To the letter it allows nothing.
            found = [self._listed(item, {"enum": allowed}, f"{path}[{index}]") for index, item in enumerate(value)]
            return [new for new, _ in found], [problem for _, problems in found for problem in problems]
        meant = _meant(value, allowed)
        if meant is not None:
            return meant, []
        near = nearest(value, [item for item in allowed if isinstance(item, str)]) if isinstance(value, str) else None
        hint = f" Did you mean {show(near)}?" if near is not None else ""
        return value, [f"{where}: expected {_wanted(schema)}, got {show(value)}.{hint}"]

    # -- objects and lists ---------------------------------------------------------------------------------------------------

    def _object(
        self, value: Mapping[str, Any], schema: Mapping[str, Any], path: str, depth: int, closed: bool
    ) -> tuple[Any, list[str]]:
        properties = schema.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        needed = schema.get("required")
        required = [name for name in needed if isinstance(name, str)] if isinstance(needed, Sequence) else []
        prefix = f"{path}." if path else ""
        problems = [
            f"{prefix}{name}: missing, expected {_wanted(properties.get(name))}." for name in required if name not in value
        ]
        made: JSON = {}
        changed = False
        for key, item in value.items():
            rules = self._rules(key, schema, properties, closed)
            if rules is None:
                problems.append(_unknown(key, properties, value, prefix))
                continue
            if item is None and key in properties and key not in required and not self._takes_null(properties[key], depth):
                changed = True
                continue
            new = item
            for rule in rules:
                new, more = self.visit(new, rule, prefix + str(key)[:80], depth + 1)
                problems += more
            changed = changed or new is not item
            made[key] = new
        problems += _counted(len(value), schema, "minProperties", "maxProperties", path, "arguments")
        return (made if changed and not problems else value), problems

    def _rules(self, key: str, schema: Mapping[str, Any], properties: Mapping[str, Any], closed: bool) -> list[Any] | None:
        """Return the schemas that a member must fit, or None if its name is not allowed."""
        rules = [properties[key]] if key in properties else []
        patterns = schema.get("patternProperties")
        if isinstance(patterns, Mapping):
            rules += [rule for pattern, rule in patterns.items() if matches(pattern, key, default=False)]
        if rules:
            return rules
        more = schema.get("additionalProperties", _MISS)
        if more is _MISS:
            listed_here = "properties" in schema and not any(word in schema for word in _COMPOSITES)
            return None if closed and listed_here else []
        return None if more is False else [more]

    def _takes_null(self, schema: Any, depth: int) -> bool:
        return not self.visit(None, schema, "", depth + 1)[1]

    def _array(self, value: list[Any], schema: Mapping[str, Any], path: str, depth: int) -> tuple[Any, list[str]]:
        first = schema.get("prefixItems")
        rest = schema.get("items", True)
        if isinstance(rest, list):
            first, rest = rest, schema.get("additionalItems", True)
        first = first if isinstance(first, list) else []
        problems = _counted(len(value), schema, "minItems", "maxItems", path, "items")
        made: list[Any] = []
        for index, item in enumerate(value):
            rule = first[index] if index < len(first) else rest
            new, more = self.visit(item, rule, f"{path}[{index}]", depth + 1)
            made.append(new)
            problems += more
            if len(problems) > 4 * MOST_PROBLEMS:
                break
        if schema.get("uniqueItems") is True and not problems:
            problems += _unique(made, path)
        changed = any(new is not old for new, old in zip(made, value, strict=False))
        return (made if changed and not problems else value), problems

    # -- schemas made of schemas ---------------------------------------------------------------------------------------------

    def _composites(self, value: Any, schema: Mapping[str, Any], path: str, depth: int, closed: bool) -> tuple[Any, list[str]]:
        problems: list[str] = []
        alone = closed and "properties" not in schema
        if isinstance(every := schema.get("allOf"), list):
            for branch in every:
                value, more = self.visit(value, branch, path, depth + 1, alone and len(every) == 1)
                problems += more
        for word in ("anyOf", "oneOf"):
            if isinstance(branches := schema.get(word), list) and branches and not problems:
                value, problems = self._any(value, branches, path, depth, alone, one=word == "oneOf")
        if "not" in schema and not problems:
            made, wrong = self.visit(value, schema["not"], path, depth + 1, False)
            if not wrong and _unchanged(made, value):
                problems = [f"{path or 'the arguments'}: {show(value)} is not allowed here."]
        return value, problems

    def _any(self, value: Any, branches: list[Any], path: str, depth: int, closed: bool, *, one: bool) -> tuple[Any, list[str]]:
        results = [self.visit(value, branch, path, depth + 1, closed) for branch in branches]
        exact = [made for made, problems in results if not problems and _unchanged(made, value)]
        if one and len(exact) > 1:
            return value, [f"{path or 'the arguments'}: {show(value)} fits more than one of the alternatives."]
        if exact:
            return exact[0], []
        for made, problems in results:
            if not problems:
                # What was mended must fit one alternative alone, too.
                return self._any(made, branches, path, depth + 1, closed, one=True) if one else (made, [])
        where = path or "the arguments"
        deeper = [problems for _, problems in results if not any(line.startswith(f"{where}: expected ") for line in problems)]
        if len(deeper) == 1 or (deeper and isinstance(value, Mapping)):
            return value, min(deeper, key=len)
        wanted = " or ".join(dict.fromkeys(_wanted(self._seen(branch)) for branch in branches[:8]))
        return value, [f"{where}: expected {wanted}, got {show(value)} ({kind(value)})."]

    def _seen(self, schema: Any) -> Any:
        return self.resolve(schema["$ref"]) if isinstance(schema, Mapping) and "$ref" in schema else schema


# -- single rules ----------------------------------------------------------------------------------------------------------


def _unknown(key: str, properties: Mapping[str, Any], value: Mapping[str, Any], prefix: str) -> str:
    known = [name for name in properties if isinstance(name, str)]
    if not known:
        return f"{prefix}{show(key)[1:-1]}: not known; no arguments are taken here."
    free = [name for name in known if name not in value]
    near = nearest(str(key), free)
    hint = f" Did you mean {show(near)}?" if near else ""
    return f"{prefix}{show(key)[1:-1]}: not known.{hint} Known: {listed(known)}."


def _string(value: str, schema: Mapping[str, Any], path: str) -> list[str]:
    problems = _counted(len(value), schema, "minLength", "maxLength", path, "characters")
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and not matches(pattern, value, default=True):
        problems.append(f"{path or 'the arguments'}: expected text that matches {show(pattern)}, got {show(value)}.")
    return problems


def _counted(size: int, schema: Mapping[str, Any], low: str, high: str, path: str, what: str) -> list[str]:
    least, most = _number(schema, low), _number(schema, high)
    if least is not None and size < least:
        return [f"{path or 'the arguments'}: expected at least {least} {what}, got {size}."]
    if most is not None and size > most:
        return [f"{path or 'the arguments'}: expected at most {most} {what}, got {size}."]
    return []


def _numeric(value: int | float, schema: Mapping[str, Any], path: str) -> list[str]:
    low, high = _number(schema, "minimum"), _number(schema, "maximum")
    above, below = _number(schema, "exclusiveMinimum"), _number(schema, "exclusiveMaximum")
    if schema.get("exclusiveMinimum") is True:
        low, above = None, low
    if schema.get("exclusiveMaximum") is True:
        high, below = None, high
    rules = []
    if low is not None and value < low:
        rules.append(f"at least {low}")
    if high is not None and value > high:
        rules.append(f"at most {high}")
    if above is not None and value <= above:
        rules.append(f"more than {above}")
    if below is not None and value >= below:
        rules.append(f"less than {below}")
    step = _number(schema, "multipleOf")
    if step is not None and step > 0 and not _multiple(value, step):
        rules.append(f"a multiple of {step}")
    return [f"{path or 'the arguments'}: expected {rule}, got {show(value)}." for rule in rules]


def _multiple(value: int | float, step: int | float) -> bool:
    if isinstance(value, int) and isinstance(step, int):
        return value % step == 0
    try:
        quotient = value / step
    except OverflowError:
        return True
    return math.isfinite(quotient) and abs(quotient - round(quotient)) < 1e-9 * max(1.0, abs(quotient))


def _unique(items: list[Any], path: str) -> list[str]:
    seen: dict[str, list[Any]] = {}
    for index, item in enumerate(items):
        key = item[:200] if isinstance(item, str) else kind(item).replace("number", "integer")
        others = seen.setdefault(key, [])
        if any(_same(item, other) for other in others):
            return [f"{path}[{index}]: expected no item twice, got {show(item)} again."]
        others.append(item)
    return []
