"""One answer of any caller, read into a turn: text, calls with usable ids, how it ended, and the message for the history.

Our own replies come with all of it. A foreign caller's reply may be any object or mapping with ``text`` (or ``content``) and
``tool_calls``; its calls may lack ids, types, or the ``function`` around name and arguments. What stands in the message that
goes into the history is such that every provider takes it; the words of the model stay in the turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from llmbroker.exchange import Reply, new_call_id
from llmbroker.messages import object_text, wire_name
from llmbroker.tools.results import whole

JSON: TypeAlias = dict[str, Any]

GOES_ON = frozenset({"pause_turn", "compaction"})
"""Ends of a turn (the provider's own words) that only pause it: the message is sent back and the model goes on."""

MALFORMED = frozenset(
    {
        "malformed_function_call",
        "unexpected_tool_call",
        "too_many_tool_calls",
        "missing_thought_signature",
        "malformed_response",
        "malformed_tool_use",
        "malformed_model_output",
        "tool_use_failed",
    }
)
"""Ends of a turn that mean: the model wanted a tool, and the provider could not read how."""

NOT_RUN = {
    "length": "the answer was cut at the token limit, so this call may be incomplete and was not run. "
    "Send the whole call again, with shorter arguments.",
    "content_filter": "the provider's content filter ended the answer, so this call was not run.",
    "refusal": "the answer was refused, so this call was not run.",
    "error": "the provider ended the answer with an error, so this call was not run.",
}
"""What a call gets as its result where the way in which its turn ended forbids to run it."""


class Call(msgspec.Struct, frozen=True):
    """A call as the model wrote it. ``id`` is unique in the conversation; ``arguments`` is text, an object or nothing."""

    id: str
    name: str
    arguments: Any


class Turn(msgspec.Struct, frozen=True):
    """One answer.

    Attributes:
        reply: the answer as the caller gave it.
        calls: what the model wants to be run.
        message: the assistant message, its calls as they were written (see ``Turn.written``).
        finish: stop, length, tool_calls, content_filter, refusal, error or unknown.
        raw_finish: the provider's own word in small letters, or "".
    """

    reply: Any
    calls: list[Call]
    message: JSON
    finish: str
    raw_finish: str

    @property
    def not_run(self) -> str | None:
        """Why the calls of this turn may not be run, or None."""
        return NOT_RUN.get(self.finish)

    @property
    def broken(self) -> bool:
        """Whether the provider says that it could not make sense of the model's call."""
        return self.raw_finish in MALFORMED and self.finish in ("error", "unknown")

    @property
    def malformed(self) -> bool:
        """Whether the model tried a call of which nothing is left that could be answered."""
        return not self.calls and self.broken

    @property
    def goes_on(self) -> bool:
        """Whether the provider only paused: the conversation is to be sent again as it is."""
        return self.raw_finish in GOES_ON

    def written(self, texts: Mapping[str, str]) -> JSON:
        """Return the message for the history; ``texts`` gives the arguments of a call id where they were read."""
        if not self.calls:
            return self.message
        given = self.message.get("tool_calls") or []
        made: list[JSON] = []
        for raw, call in zip(given, self.calls, strict=True):
            function = raw["function"]
            text = texts.get(call.id) or object_text(call.arguments)
            name = wire_name(call.name)
            if raw.get("id") == call.id and function.get("name") == name and function.get("arguments") == text:
                made.append(raw)
            else:
                made.append({**raw, "id": call.id, "type": "function", "function": {"name": name, "arguments": text}})
        return {**self.message, "tool_calls": made}

    @property
    def empty(self) -> bool:
        """Whether the message says nothing at all, so that it has no place in a history."""
        return not any(value for key, value in self.message.items() if key != "role")


def read_turn(reply: Any, used: set[str]) -> Turn:
    """Read a reply. ``used`` holds the call ids of the conversation so far and gets the new ones."""
    if isinstance(reply, Reply):
        message = reply.message or {"role": "assistant", "content": reply.text or None}
        finish, raw_finish = str(reply.finish_reason), reply.raw_finish_reason
        given: Any = reply.tool_calls
    else:
        message, given = {}, _get(reply, "tool_calls")
        finish, raw_finish = _get(reply, "finish_reason"), _get(reply, "raw_finish_reason")
        own = _get(reply, "message")
        if isinstance(own, Mapping) and own.get("role") == "assistant":
            message = dict(own)
            given = own.get("tool_calls") if given is None else given
        else:
            text = _get(reply, "text", "content")
            message = {"role": "assistant", "content": whole(text) if isinstance(text, str) and text else None}
    calls, written = _calls(given, used)
    if calls:
        message = {**message, "tool_calls": written}
    elif "tool_calls" in message:
        message = {key: value for key, value in message.items() if key != "tool_calls"}
    return Turn(reply, calls, message, _finish(finish, bool(calls)), raw_finish.lower() if isinstance(raw_finish, str) else "")


def _finish(given: Any, has_calls: bool) -> str:
    word = given.lower() if isinstance(given, str) else ""
    if word in ("stop", "tool_calls", "function_call", ""):
        return "tool_calls" if has_calls else "stop" if word else "unknown"
    return {"max_tokens": "length", "safety": "content_filter"}.get(word, word if word in NOT_RUN else "unknown")


def _calls(given: Any, used: set[str]) -> tuple[list[Call], list[JSON]]:
    if given is None:
        return [], []
    if type(given) is not list:
        if isinstance(given, Mapping):
            given = [given]
        elif not isinstance(given, Sequence) or isinstance(given, (str, bytes)):
            return [], []
    calls: list[Call] = []
    written: list[JSON] = []
    for raw in given:
        function = _get(raw, "function")
        where = raw if function is None or isinstance(function, str) else function
        name = _get(where, "name")
        if not isinstance(name, str):
            name = function if isinstance(function, str) else ""
        identity = _get(raw, "id")
        identity = whole(identity) if isinstance(identity, str) else ""
        if not identity.strip() or identity in used:
            identity = new_call_id()
        used.add(identity)
        call = Call(identity, whole(name), _get(where, "arguments", "parameters"))
        calls.append(call)
        kept = dict(raw) if type(raw) is dict or isinstance(raw, Mapping) else {}
        for key in ("name", "arguments", "parameters"):
            kept.pop(key, None)
        written.append({**kept, "id": identity, "type": "function", "function": {"name": name, "arguments": call.arguments}})
    return calls, written


def _get(source: Any, *names: str) -> Any:
    """Return the first of these members of a mapping or attributes of an object that is there, else None."""
    for name in names:
        if type(source) is dict or isinstance(source, Mapping):
            value = source.get(name)
        else:
            value = getattr(source, name, None)
        if value is not None:
            return value
    return None
