"""How a request is put to an embedded model, so that it calls tools without a tool template of its own.

Small models follow examples, not instructions, and only examples of the very tools at hand. So each tool gets an example that
is made from its declaration: its description with values is the request, the call with the same values is the answer. The form
of the answer is held by a grammar (``answer_schema``): either ``{"calls": [{"tool": ..., "arguments": {...}}]}`` or
``{"answer": ...}``. Once results are there, the examples show results and answers instead.

Two sizes of model are told apart. A model as small as the packaged one (``SMALL``) chooses well only among few tools, and knows
no end of a list: it is offered the tools that share a word with the request (see ``near``), one call unless the request names
several things, and after results it answers, with no other numbers than those it was told. Whether to call at all it cannot
tell, it does as the last example does; so examples without a tool come last where nothing in the request speaks for one. Larger
models get every tool, every time, and before there are results they say how many calls they make (``local_calls``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from llmbroker.exchange import ToolSpec
from llmbroker.messages import Assistant, Block, Result
from llmbroker.providers import local_calls
from llmbroker.providers.local_calls import closed

JSON = dict[str, Any]
SMALL = frozenset({"smollm2-135m-instruct"})
"""Models that need the narrower way. By name: a file that the user names is taken for a larger one."""

_EXAMPLE = re.compile(r"(?:e\.g\.|for example|for instance|such as|example:|like)[,:]?\s*[\"'`]?([^\"'`;()]+)", re.IGNORECASE)
_NAMES = ("Lima", "Nairobi", "Quito", "Hanoi", "Turin", "Malmo", "Kyoto", "Porto")
_LIKELY = {
    "expression": "(8+4)*3",
    "date": "2026-03-05",
    "time": "18:15",
    "to": "bob@corp.org",
    "email": "bob@corp.org",
    "url": "https://corp.org",
    "path": "notes/list.txt",
    "query": "red shoes",
    "text": "the train is late",
    "message": "the train is late",
    "body": "the train is late",
}
_EMPTY_WORDS = """
the and for what with from you are how can this that please tell give show have does did was who when where which one two
between another current about get use given using into onto your
"""
_STOP = frozenset(_EMPTY_WORDS.split())
_NO_DIGIT = r'([^0-9"\\\x00-\x1F]|\\["\\nt])'  # of JSON text: also a quote, a backslash, a line end, as JSON writes them
_MOST_NUMBERS = 40
_SEVERAL = re.compile(r"\band\b|\bboth\b|,|;|\beach\b", re.IGNORECASE)
_NAMED = re.compile(r"(?<=[^\W\d_A-Z][ ,])\s*[A-Z]\w+")
_TALK = (
    ("Hello, how are you?", "Hello! I am well. How can I help you?"),
    ("Who wrote Faust?", "Goethe wrote Faust."),
    ("Write one sentence about the moon.", "The moon is a quiet lamp over the night."),
)
_ANSWERED: tuple[tuple[str, tuple[tuple[str, str], ...], str], ...] = (
    ("What is 6 plus 9?", (("add(a=6, b=9)", "15"),), "6 plus 9 is 15."),
    (
        "How many people live in Canada?",
        (("get_population(country=Canada)", "41.5 million"),),
        "41.5 million people live in Canada.",
    ),
    (
        "How far is it from Vienna to Prague?",
        (("get_distance(start=Vienna, end=Prague)", '{"km": 252, "by": "road"}'),),
        "It is 252 km from Vienna to Prague by road.",
    ),
    (
        "Store a note that we need milk",
        (("add_note(text=we need milk)", "ok, note 3318 stored"),),
        "The note that you need milk is stored. Its number is 3318.",
    ),
    (
        "Who wrote Faust?",
        (("find_author(book=Faust)", "Tool find_author failed: service is closed"),),
        "I could not find out who wrote Faust: the service is closed.",
    ),
    (
        "Are there more people in Peru or in Chile?",
        (("get_population(country=Peru)", "34 million"), ("get_population(country=Chile)", "19.6 million")),
        "34 million people live in Peru and 19.6 million in Chile.",
    ),
)
_CHOOSING = "You pick the right tool for a request and fill in its arguments."
_ANSWERING = "You answer the request. You use only the results, and repeat their numbers and names exactly."


class Turn(NamedTuple):
    """What is put to the engine: chat messages, the schema that the answer must obey, and whether that permits calls."""

    messages: list[JSON]
    schema: JSON
    may_call: bool


class Wish(NamedTuple):
    """What the caller permits: tools in reach, whether a call is a must, how many, and a schema for the answer."""

    tools: Sequence[ToolSpec]
    must_call: bool
    parallel: bool
    answer: JSON | None


# -- the turn ------------------------------------------------------------------------------------------------------------


def turn(blocks: Sequence[Block], wish: Wish, *, small: bool) -> Turn:
    """Return what to put to the engine for a conversation with tools."""
    current = _current(blocks)
    request = _request(blocks[current])
    answering = any(block.results for block in blocks[current + 1 :]) and not wish.must_call
    several = wish.parallel and (not small or bool(_SEVERAL.search(request)))
    if small:
        wish = wish._replace(tools=near(wish.tools, request))
        if answering and wish.answer is None:
            wish = wish._replace(answer=_grounded(request, blocks[current + 1 :]))
    may_call = not (small and answering)
    if not small and not answering:
        return _counted(blocks, wish)
    schema = answer_schema(wish, calls=may_call, most=(3 if small else local_calls.MOST_CALLS) if several else 1)
    spoken = [_system(blocks, wish, answering=answering, small=small)]
    if may_call:
        spoken += _examples(wish, request, small=small, several=several)
    if answering:  # last: what stands nearest is done again
        spoken += [message for shot in _ANSWERED for message in _answered(*shot)]
    spoken += _conversation(blocks, small=small)
    return Turn(spoken, schema, may_call)


def _counted(blocks: Sequence[Block], wish: Wish) -> Turn:
    """Return the turn of a model that says how many calls it makes before it makes them."""
    said: list[JSON] = [{"role": "system", "content": "\n".join([*_own(blocks), local_calls.RULE])}]
    said += local_calls.examples(parallel=wish.parallel, must_call=wish.must_call)
    talk = _conversation(blocks, small=False)
    tools = _listed(wish.tools)
    if talk and talk[-1]["role"] == "user":
        talk[-1]["content"] = f"{tools}\n{talk[-1]['content']}"
    else:  # nobody asked last: the tools must not stand in what the model, or an example, has said
        talk.append({"role": "user", "content": tools})
    said += talk
    most = local_calls.MOST_CALLS if wish.parallel else 1
    words = None if wish.must_call else wish.answer or {"type": "string"}
    return Turn(said, local_calls.schema(wish.tools, most=most, answer=words), may_call=True)


def answer_schema(wish: Wish, *, calls: bool, most: int) -> JSON:
    """Return the schema of an answer: calls of these tools, at most so many, or an answer in words, or either."""
    either: list[JSON] = []
    if calls and wish.tools:
        items = local_calls.form(wish.tools)
        either.append(closed({"calls": {"type": "array", "items": items, "minItems": 1, "maxItems": most}}))
    if not wish.must_call or not either:
        either.append(closed({"answer": wish.answer or {"type": "string"}}))
    return {"anyOf": either} if len(either) > 1 else either[0]


def _grounded(request: str, blocks: Sequence[Block]) -> JSON | None:
    """Return the schema of an answer in which every number is one of the request or of the results: none is made up."""
    told = "\n".join([request, *(result.text for block in blocks for result in block.results)])
    numbers = sorted(set(re.findall(r"[0-9]+", told)), key=lambda digits: (-len(digits), digits))
    if len(numbers) > _MOST_NUMBERS:
        return None
    number = f"({'|'.join(numbers)})?" if numbers else ""
    return {"type": "string", "pattern": f"^({number}{_NO_DIGIT})*{number}$"}


def _current(blocks: Sequence[Block]) -> int:
    """Return the index of the block with the user's last word."""
    return next((index for index in range(len(blocks) - 1, -1, -1) if blocks[index].has_user), 0)


def _request(block: Block) -> str:
    return "\n".join(message.text for message in block.users if message.role == "user")


# -- what is said --------------------------------------------------------------------------------------------------------


def _system(blocks: Sequence[Block], wish: Wish, *, answering: bool, small: bool) -> JSON:
    lines = [*_own(blocks), _ANSWERING if answering else _CHOOSING]
    if not (small and answering):
        lines.append(_listed(wish.tools))
    return {"role": "system", "content": "\n".join(lines)}


def _own(blocks: Sequence[Block]) -> list[str]:
    """Return the words of the conversation's own system messages."""
    return [message.text for block in blocks for message in block.users if message.role == "system" and message.text]


def _listed(tools: Sequence[ToolSpec]) -> str:
    return "\n".join(["Tools:", *map(signature, tools)])


def _said(request: str, answer: JSON) -> list[JSON]:
    return [
        {"role": "user", "content": f"Request: {request}"},
        {"role": "assistant", "content": msgspec.json.encode(answer).decode()},
    ]


def _answered(request: str, results: tuple[tuple[str, str], ...], answer: str) -> list[JSON]:
    lines = "\n".join(f"Result of {call}: {result}" for call, result in results)
    return _said(f"{request}\n{lines}", {"answer": answer})


def _examples(wish: Wish, request: str, *, small: bool, several: bool) -> list[JSON]:
    """Examples of answers without a tool, and of each tool, those nearest to the request last."""
    talk = [] if wish.must_call else [message for asked, answer in _TALK for message in _said(asked, {"answer": answer})]
    talk_last = small and not _speaks_for_a_tool(wish.tools, request)
    said: list[JSON] = [] if talk_last else talk
    tools = sorted(wish.tools, key=lambda tool: overlap(tool, request))[-12:]
    for index in range(max(len(tools), 3 if small else len(tools)) if tools else 0):
        asked, call = example(tools[index % len(tools)], index)
        said += _said(asked, {"calls": [call]})
    if several and tools:
        asked, first = example(tools[-1], 3)
        _, second = example(tools[-1], 5)
        values = ", ".join(_shown(value) for value in second["arguments"].values())
        said += _said(f"{asked}, and also {values}" if values else f"{asked}, twice", {"calls": [first, second]})
    return said + talk if talk_last else said


def _speaks_for_a_tool(tools: Sequence[ToolSpec], request: str) -> bool:
    """Whether the request shares a word with a tool, or holds what tools take: a number, a name."""
    return (
        any(overlap(tool, request) for tool in tools)
        or any(char.isdigit() for char in request)
        or _NAMED.search(request) is not None
    )


def _conversation(blocks: Sequence[Block], *, small: bool) -> list[JSON]:
    """The real conversation in the form of the examples. What is being answered now is one message: request and results."""
    said: list[JSON] = []
    pending = ""
    for block in blocks:
        if block.assistant is not None:
            if block.assistant.calls:
                pending += "".join(f"\nResult of {_call(block, result)}: {_cut(result, small)}" for result in block.results)
            elif pending:
                said += [{"role": "user", "content": pending.strip()}, _assistant(block.assistant)]
                pending = ""
        spoken = _request(block)
        if spoken:
            if pending and said and said[-1]["role"] == "user":
                said[-1]["content"] += pending
                pending = ""
            pending = f"{pending}\nRequest: {spoken}" if pending else f"Request: {spoken}"
    if pending:
        said.append({"role": "user", "content": pending.strip()})
    return said


def _assistant(message: Assistant) -> JSON:
    return {"role": "assistant", "content": msgspec.json.encode({"answer": message.text}).decode()}


def _call(block: Block, result: Result) -> str:
    calls = block.assistant.calls if block.assistant is not None else ()
    arguments = next((call.arguments for call in calls if call.id == result.id), "{}")
    try:
        values = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        values = {}
    return f"{result.name}({', '.join(f'{name}={_shown(value)}' for name, value in values.items())})"


def _cut(result: Result, small: bool) -> str:
    most = 1500 if small else 12_000
    text = result.text
    return text if len(text) <= most else f"{text[:most]} ... ({len(text) - most} characters more)"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


# -- one tool ------------------------------------------------------------------------------------------------------------


def _properties(tool: ToolSpec) -> dict[str, Mapping[str, Any]]:
    found = tool.parameters.get("properties")
    return {str(k): v if isinstance(v, Mapping) else {} for k, v in found.items()} if isinstance(found, Mapping) else {}


def _required(tool: ToolSpec) -> list[str]:
    found = tool.parameters.get("required")
    return list(found) if isinstance(found, list) else []


def signature(tool: ToolSpec) -> str:
    """Return a tool in one line, as the system message lists it."""
    required = _required(tool)
    shown = []
    for name, schema in _properties(tool).items():
        kind = " or ".join(map(_shown, schema["enum"])) if isinstance(schema.get("enum"), list) else schema.get("type", "any")
        words = f" ({schema['description']})" if schema.get("description") else ""
        shown.append(f"{name}: {kind}{words}" + ("" if name in required else " optional"))
    return f"- {tool.name}({', '.join(shown)}): {tool.description}"


def example(tool: ToolSpec, index: int) -> tuple[str, JSON]:
    """Return a request that this tool serves, and its call, made from the declaration; ``index`` varies the values."""
    required = _required(tool)
    properties = _properties(tool)
    names = [name for name in properties if name in required] or list(properties)[:1]
    arguments = {name: _value(name, properties[name], index + at) for at, name in enumerate(names)}
    words = tool.description.split("\n")[0].rstrip(". ") or tool.name.replace("_", " ")
    values = ", ".join(f"{name.replace('_', ' ')} {_shown(value)}" for name, value in arguments.items())
    return (f"{words}, {values}" if values else words), {"tool": tool.name, "arguments": arguments}


def _value(name: str, schema: Mapping[str, Any], index: int) -> Any:
    given = schema.get("examples")
    if isinstance(given, list) and given:
        return given[index % len(given)]
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return choices[index % len(choices)]
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type")
    if kind in ("integer", "number"):
        return _number(schema, index, whole=kind == "integer")
    if kind == "boolean":
        return index % 2 == 0
    if kind == "array":
        items = schema.get("items")
        return [_value(name, items if isinstance(items, Mapping) else {}, index + at) for at in range(2)]
    if kind == "object":
        inner = schema.get("properties")
        inner = inner if isinstance(inner, Mapping) else {}
        return {key: _value(key, value, index) for key, value in inner.items() if isinstance(value, Mapping)}
    return _string(name, schema, index)


def _number(schema: Mapping[str, Any], index: int, *, whole: bool) -> float:
    value = (3, 11, 6, 8)[index % 4] if whole else (35, 7.5, 250, 12)[index % 4]
    low, high = schema.get("minimum"), schema.get("maximum")
    if isinstance(low, (int, float)):
        value = max(value, low)
    return min(value, high) if isinstance(high, (int, float)) else value


def _string(name: str, schema: Mapping[str, Any], index: int) -> str:
    hint = _EXAMPLE.search(str(schema.get("description") or ""))
    if hint:
        first = hint[1].split(" or ")[0].split(",")[0].strip(" .")
        if first:
            return first
    if schema.get("format") == "date":
        return _LIKELY["date"]
    last = name.lower().rsplit("_", 1)[-1]
    return _LIKELY.get(last) or _NAMES[index % len(_NAMES)]


def _words(text: str) -> set[str]:
    """The telling words of a text, cut to their first five letters: weather and weathers are one."""
    return {word[:5] for word in re.findall(r"[^\W\d_]+", text.lower()) if len(word) > 2 and word not in _STOP}


def near(tools: Sequence[ToolSpec], request: str) -> Sequence[ToolSpec]:
    """Return the tools that seem to be meant.

    Those that share a word with the request; where none does and it holds a number, those that take one; else all.
    """
    found = [tool for tool in tools if overlap(tool, request)]
    if not found and any(char.isdigit() for char in request):
        found = [tool for tool in tools if any(char.isdigit() for char in _shown(example(tool, 0)[1]["arguments"]))]
    return found or tools


def overlap(tool: ToolSpec, request: str) -> int:
    """Return how many words a tool's declaration shares with the request."""
    properties = _properties(tool)
    choices = [str(choice) for schema in properties.values() for choice in schema.get("enum") or ()]
    declared = " ".join([tool.name.replace("_", " "), tool.description, *(p.replace("_", " ") for p in properties), *choices])
    return len(_words(declared) & _words(request))
