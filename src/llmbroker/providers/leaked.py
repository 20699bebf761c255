"""Tool calls that a model wrote into its text because its server did not take them out: found where nothing else can be meant.

Small and local models, and servers without a parser for a model's own form, answer with the call as text. Such a text is turned
into calls only if it consists of calls from its first character to its last, and each names a tool of this request. A call that
is quoted in prose, one that stands inside the model's thinking, and a text that was cut stay what they are: text.

What stands between the marks is read exactly as far as the call's name; the arguments are handed on as they were written, and
whoever runs the call reads and checks them as those of any other call. The forms are those of the models' own chat templates:
Hermes and Qwen (``<tool_call>``), Qwen-Coder and GLM (tags for each parameter), Llama (``<function=...>``, ``<|python_tag|>``),
Mistral (``[TOOL_CALLS]``), and bare or fenced JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, TypeAlias

import msgspec

from llmbroker.exchange import Reply, ToolSet, new_call_id

JSON: TypeAlias = dict[str, Any]
Found: TypeAlias = tuple[str, str]
"""A call: its name and the text of its arguments."""

LONGEST = 1_000_000
MOST_CALLS = 128
DEEPEST = 4
"""How many marks may stand around a call (a fence in a tag, ...)."""

_THINKING = re.compile(r"\s*<(think|thinking|thought)>(.*?)</\1>\s*", re.DOTALL)
_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "</s>", "<end_of_turn>")
_FENCE = re.compile(r"```[\w+-]*[ \t]*\r?\n?(.*?)```", re.DOTALL)
_TAG = re.compile(r"<(tool_calls?|toolcalls?|tools|function_?calls?|tool_use|\|tool_call\|)>", re.IGNORECASE)
_FUNCTION = re.compile(r"<function(?:=|\s+name=)\s*[\"']?([^\s\"'<>{=]{1,128})[\"']?\s*>?")
_PARAMETER = re.compile(r"\s*<parameter(?:=|\s+name=)\s*[\"']?([^\"'<>=]{1,128}?)[\"']?\s*>(.*?)</parameter>\s*", re.DOTALL)
_GLM_KEY = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)
_MISTRAL = re.compile(
    r"\s*([\w.:/-]{1,128})\s*(?:\[CALL_ID\]\s*[\w-]{1,64}\s*)?(?:\[ARGS\])?\s*(?=\{)",
)
_BROKEN = re.compile(
    r"\{\s*[\"']?(?:name|function)[\"']?\s*:\s*[\"']([^\"']{1,128})[\"']\s*,\s*[\"']?(?:arguments|parameters)[\"']?\s*:\s*(.*)",
    re.DOTALL,
)
_BRACKETS = re.compile(r"\"(?:[^\"\\]|\\.)*(?:\"|$)|//[^\n]*|/\*.*?\*/|[{}\[\]]", re.DOTALL)
"""Brackets, and what hides those that are none: strings and comments."""
_SEPARATOR = " \t\r\n;,"
_DECODER = json.JSONDecoder()
_CALL_KEYS = frozenset({"name", "function", "arguments", "parameters", "id", "type", "index", "tool_call_id", "call_id"})


class _NoCallsError(ValueError):
    """The text is not made of calls alone."""


def recover(reply: Reply, tools: ToolSet) -> Reply:
    """Return the reply with the calls that its text consists of; the same reply if it is anything else.

    Args:
        reply: a whole answer.
        tools: the tools of this request; a text with any other name in it stays text.
    """
    if reply.tool_calls or not reply.text or reply.finish_reason not in ("stop", "unknown", "tool_calls"):
        return reply
    text, thinking = reply.text, None
    if len(text) > LONGEST or text.lstrip()[:1] not in ("<", "{", "[", "`"):
        return reply
    if led := _THINKING.match(text):
        thinking, text = led[2].strip(), text[led.end() :]
    try:
        found = _Reader(text, tools).read()
    except (_NoCallsError, ValueError, RecursionError):
        return reply
    known = {name for spec in tools.specs for name in (spec.declared, spec.name)}
    if not found or len(found) > MOST_CALLS or any(name not in known for name, _ in found):
        return reply
    calls = [
        {"id": new_call_id(), "type": "function", "function": {"name": name, "arguments": arguments}}
        for name, arguments in found
    ]
    reasoning = "\n".join(part for part in (reply.reasoning, thinking) if part) or None
    message: JSON = {"role": "assistant", "content": None, "tool_calls": calls}
    if reasoning:
        message["reasoning_content"] = reasoning
    return msgspec.structs.replace(
        reply, text="", tool_calls=calls, finish_reason="tool_calls", reasoning=reasoning, message=message
    )


class _Reader:
    """Reads a text that consists of calls; ``at`` is the next character."""

    def __init__(self, text: str, tools: ToolSet, depth: int = 0) -> None:
        if depth > DEEPEST:
            raise _NoCallsError
        self.text = _without_ends(text)
        self.tools = tools
        self.depth = depth
        self.at = 0

    def read(self) -> list[Found]:
        """Return all calls.

        Raises:
            ValueError: there is anything else in the text.
        """
        found: list[Found] = []
        forms: tuple[Callable[[], list[Found] | None], ...] = (
            self._tagged,
            self._function,
            self._mistral,
            self._python_tag,
            self._fenced,
            self._bare,
        )
        while self._skip():
            if len(found) > MOST_CALLS:
                raise _NoCallsError
            for form in forms:
                calls = form()
                if calls is not None:
                    found += calls
                    break
            else:
                raise _NoCallsError
        return found

    def _skip(self) -> bool:
        while self.at < len(self.text) and self.text[self.at] in _SEPARATOR:
            self.at += 1
        return self.at < len(self.text)

    def _inside(self, start: int, end: str) -> str:
        """Return what stands before an end mark and go behind it; the last mark of a text may be missing."""
        stop = self.text.find(end, start)
        self.at = len(self.text) if stop < 0 else stop + len(end)
        return self.text[start : len(self.text) if stop < 0 else stop]

    # -- the forms -----------------------------------------------------------------------------------------------------------

    def _tagged(self) -> list[Found] | None:
        opened = _TAG.match(self.text, self.at)
        if not opened:
            return None
        start, mark = self.at, opened.end()
        inner = self._inside(mark, f"</{opened[1].strip('|')}>" if not opened[1].startswith("|") else "<|/tool_call|>")
        closed = self.at < len(self.text) or self.text.endswith(">")
        body = inner.strip()
        if body[:1] not in ("{", "[", "<", "`") and "<arg_key>" in body:
            return [self._glm(body)]
        try:
            return _Reader(body, self.tools, self.depth + 1).read()
        except ValueError:
            # A closing tag may also stand inside a string, or the JSON may be faulty behind the name.
            self.at = mark
            self._skip()
            if self.text[self.at : self.at + 1] in ("{", "["):
                try:
                    return self._json_then(opened[1])
                except ValueError:
                    pass
            self.at = start + len(opened[0]) + len(inner) + len(opened[1]) + 3
            broken = _BROKEN.fullmatch(body) if closed else None
            if broken is None:
                raise _NoCallsError from None
            return [(broken[1], _without_last_brace(broken[2]))]

    def _json_then(self, tag: str) -> list[Found]:
        calls = self._value()
        self._skip()
        end = f"</{tag}>"
        if not self.text.startswith(end, self.at):
            raise _NoCallsError
        self.at += len(end)
        return calls

    def _glm(self, body: str) -> Found:
        name, mark, _ = body.partition("<arg_key>")
        name = name.strip()
        return name, self._members(name, body[len(body) - len(body[body.index(mark) :]) :], _GLM_KEY)

    def _function(self) -> list[Found] | None:
        opened = _FUNCTION.match(self.text, self.at)
        if not opened:
            return None
        name, self.at = opened[1], opened.end()
        self._skip()
        if self.text.startswith("{", self.at):
            start = self.at
            _, self.at = _DECODER.raw_decode(self.text, start)
            arguments = self.text[start : self.at]
            self._skip()
            if self.text.startswith("</function>", self.at):
                self.at += len("</function>")
            return [(name, arguments)]
        inner = self._inside(self.at, "</function>")
        return [(name, self._members(name, inner, _PARAMETER))]

    def _members(self, name: str, inner: str, pattern: re.Pattern[str]) -> str:
        """Return the JSON text of arguments that stand in tags; a text is JSON only where the schema asks for no string."""
        spec = next((spec for spec in self.tools.specs if name in (spec.declared, spec.name)), None)
        properties = spec.parameters.get("properties") if spec else None
        out: JSON = {}
        at = 0
        while at < len(inner):
            member = pattern.match(inner, at)
            if not member:
                if inner[at:].strip():
                    raise _NoCallsError
                break
            key, value = member[1].strip(), _without_line_ends(member[2])
            if key in out:
                raise _NoCallsError
            schema = properties.get(key) if isinstance(properties, dict) else None
            out[key] = value if _is_text(schema) else _json_or_text(value)
            at = member.end()
        return json.dumps(out, ensure_ascii=False)

    def _mistral(self) -> list[Found] | None:
        mark = "[TOOL_CALLS]"
        if not self.text.startswith(mark, self.at):
            return None
        self.at += len(mark)
        self._skip()
        if self.text.startswith("[", self.at):
            return self._value()
        named = _MISTRAL.match(self.text, self.at)
        if not named:
            return self._value()
        start = named.end()
        _, self.at = _DECODER.raw_decode(self.text, start)
        return [(named[1], self.text[start : self.at])]

    def _python_tag(self) -> list[Found] | None:
        mark = "<|python_tag|>"
        if not self.text.startswith(mark, self.at):
            return None
        self.at += len(mark)
        self._skip()
        return self._value()

    def _fenced(self) -> list[Found] | None:
        fence = _FENCE.match(self.text, self.at)
        if not fence:
            return None
        self.at = fence.end()
        try:
            return _Reader(fence[1], self.tools, self.depth + 1).read()
        except ValueError:
            return [_faulty(fence[1].strip())]

    def _bare(self) -> list[Found] | None:
        if self.text[self.at] not in "{[":
            return None
        start = self.at
        try:
            return self._value()
        except ValueError:
            if self.depth:  # whether the marks around it are closed is known to whoever reads those
                raise
            self.at = len(self.text)
            return [_faulty(self.text[start:].strip())]

    # -- JSON ----------------------------------------------------------------------------------------------------------------

    def _value(self) -> list[Found]:
        """Read one JSON object that is a call, or a list of them."""
        if self.text.startswith("[", self.at):
            return self._list()
        start = self.at
        members, self.at = _members_of(self.text, start)
        if set(members) == {"tool_calls"}:
            return _Reader(members["tool_calls"], self.tools, self.depth + 1)._list()
        return [_call(members)]

    def _list(self) -> list[Found]:
        found: list[Found] = []
        self.at += 1
        while self._skip():
            if self.text.startswith("]", self.at):
                self.at += 1
                return found
            if not self.text.startswith("{", self.at):
                break
            found += self._value()
        raise _NoCallsError


def _without_ends(text: str) -> str:
    """Return the text without the special tokens that end a turn."""
    text = text.rstrip()
    for _ in range(4):
        ended = next((end for end in _ENDS if text.endswith(end)), None)
        if ended is None:
            break
        text = text.removesuffix(ended).rstrip()
    return text


def _members_of(text: str, start: int) -> tuple[dict[str, str], int]:
    """Return the members of a JSON object as the texts of their values, and where the object ends.

    Raises:
        ValueError: it is no object, or a key stands twice.
    """
    if not text.startswith("{", start):
        raise _NoCallsError
    out: dict[str, str] = {}
    at = _blank(text, start + 1)
    while not text.startswith("}", at):
        if out:
            if not text.startswith(",", at):
                raise _NoCallsError
            at = _blank(text, at + 1)
        if not text.startswith('"', at):
            raise _NoCallsError
        key, at = scanstring(text, at + 1, True)
        at = _blank(text, at)
        if not text.startswith(":", at) or key in out:
            raise _NoCallsError
        at = _blank(text, at + 1)
        _, end = _DECODER.raw_decode(text, at)
        out[key] = text[at:end]
        at = _blank(text, end)
    return out, at + 1


def _blank(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _call(members: dict[str, str]) -> Found:
    """Return the call that an object stands for."""
    if not _CALL_KEYS.issuperset(members):
        raise _NoCallsError
    inner = members.get("function", "")
    if inner.startswith("{"):
        members = _members_of(inner, 0)[0]
        if not _CALL_KEYS.issuperset(members):
            raise _NoCallsError
    given = [members[key] for key in ("arguments", "parameters") if key in members]
    name = json.loads(members.get("name") or members.get("function") or "null")
    if len(given) != 1 or not isinstance(name, str) or given[0][:1] not in ("{", '"', "n"):
        raise _NoCallsError
    arguments = given[0]
    if arguments.startswith('"'):
        arguments = json.loads(arguments)
    return name, "{}" if arguments.strip() in ("null", "") else arguments


def _faulty(text: str) -> Found:
    """Return the call that an object with faulty JSON behind its name stands for, such as one with comments in it.

    Raises:
        ValueError: it is not faulty, or it is not one whole object that begins as a call does.
    """
    broken = _BROKEN.fullmatch(text)
    if broken is None or not _is_one_object(text):
        raise _NoCallsError
    try:
        json.loads(text)
    except ValueError:
        return broken[1], _without_last_brace(broken[2])
    raise _NoCallsError


def _is_one_object(text: str) -> bool:
    """Whether the bracket that opens the text is closed by its last character and not before."""
    depth = 0
    for mark in _BRACKETS.finditer(text):  # a string that is never closed runs to the end: nothing closes the bracket then
        depth += 1 if mark[0] in "{[" else -1 if mark[0] in "}]" else 0
        if depth <= 0:
            return depth == 0 and mark.end() == len(text)
    return False


def _without_last_brace(text: str) -> str:
    """Return the arguments out of the rest of a call whose JSON is faulty: the call's own closing brace goes."""
    text = text.strip()
    try:
        _DECODER.decode(text)
    except ValueError:
        return text[:-1].rstrip() if text.endswith("}") else text
    return text


def _without_line_ends(text: str) -> str:
    text = text[1:] if text.startswith("\n") else text
    return text[:-1] if text.endswith("\n") else text


def _is_text(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "string"


def _json_or_text(text: str) -> Any:
    try:
        return _DECODER.decode(text.strip())
    except (ValueError, RecursionError):
        return {"True": True, "False": False, "None": None}.get(text.strip(), text)
