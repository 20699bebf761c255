"""How a request with tools is put to an embedded model that can count: it says how many calls it makes before it makes them.

Models of half a billion parameters fill in arguments well and find no end, or too early a one, for a list of calls: after the
first call the end of the list is what they have seen most. Asked for the number first, when the request is all that they look
at, most of them know it. So the answer is ``{"count": 2, "calls": [...]}``, and the grammar holds the list to the number that
was said; a request that needs no tool is answered by ``{"answer": ...}``.

The examples are fixed and come first, each with tools of its own, so that every request shares their place in the engine's
cache; the tools of the request stand beside it, a line each.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from llmbroker.exchange import ToolSpec
from llmbroker.providers import local_schema

JSON = dict[str, Any]
MOST_CALLS = 8
RULE = (
    "You turn a request into tool calls. Often a request asks for several things, cases or sets of values: then there is one "
    "call for each of them. A request that no tool serves is answered in words."
)
_SEPARATORS: JSON = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class _Example(NamedTuple):
    tools: str
    request: str
    calls: tuple[tuple[str, JSON], ...]
    answer: str = ""


_AREA = "- rectangle_area(width: number, height: number): Area of a rectangle"
_EXAMPLES = (
    _Example(_AREA, "Hello, how are you?", (), "Hello! I am well. How can I help you?"),
    _Example(
        "- add(a: integer, b: integer): Add two numbers",
        "Add 2 and 3, then 10 and 20, and 7 and 8.",
        (("add", {"a": 2, "b": 3}), ("add", {"a": 10, "b": 20}), ("add", {"a": 7, "b": 8})),
    ),
    _Example(
        "- get_distance(start: string, end: string, by: string): Distance between two places",
        "How far is it from Vienna to Prague by train?",
        (("get_distance", {"start": "Vienna", "end": "Prague", "by": "train"}),),
    ),
    _Example(_AREA, "Who wrote Faust?", (), "Goethe wrote Faust."),
    _Example(
        "- get_forecast(city: string, days: integer, unit: celsius or fahrenheit optional): Forecast for a city",
        "What will the weather be for 3 days in Lima and for 5 days in Oslo? Use celsius for both.",
        (
            ("get_forecast", {"city": "Lima", "days": 3, "unit": "celsius"}),
            ("get_forecast", {"city": "Oslo", "days": 5, "unit": "celsius"}),
        ),
    ),
    _Example(
        _AREA,
        "What is the area of a rectangle with a width of 4 and a height of 7?",
        (("rectangle_area", {"width": 4, "height": 7}),),
    ),
)


def examples(*, parallel: bool, must_call: bool) -> list[JSON]:
    """Return the examples as chat messages: of several calls only where those are allowed, of words where they are."""
    said: list[JSON] = []
    for one in _EXAMPLES:
        if (one.answer and must_call) or (len(one.calls) > 1 and not parallel):
            continue
        calls = [{"tool": name, "arguments": arguments} for name, arguments in one.calls]
        answer: JSON = {"answer": one.answer} if one.answer else {"count": len(calls), "calls": calls}
        said.append({"role": "user", "content": f"Tools:\n{one.tools}\nRequest: {one.request}"})
        said.append({"role": "assistant", "content": json.dumps(answer, ensure_ascii=False)})
    return said


def schema(tools: Sequence[ToolSpec], *, most: int, answer: JSON | None) -> JSON:
    """Return the schema of the answer: so many calls as it says, at most ``most``, or an answer of this form (None: a must)."""
    item = {"$ref": "#/$defs/call"}
    either = [
        closed({
            "count": {"const": count},
            "calls": {"type": "array", "items": item, "minItems": count, "maxItems": count},
        })
        for count in range(1, most + 1)
    ]  # fmt: skip
    if answer is not None:
        either.append(closed({"answer": answer}))
    return {
        "anyOf": either,
        "$defs": {"call": form(tools)},
        "x-guidance": _SEPARATORS,
    }


def form(tools: Sequence[ToolSpec]) -> JSON:
    """Return the schema of one call of one of these tools."""
    forms = [closed({"tool": {"const": tool.name}, "arguments": local_schema.parameters(tool.parameters)}) for tool in tools]
    return {"anyOf": forms} if len(forms) > 1 else forms[0]


def closed(properties: JSON) -> JSON:
    """Return the schema of an object with exactly these properties, in this order."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
