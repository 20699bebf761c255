"""Chat Completions, from the wire: bodies and stream chunks to events.

Theory of operation
-------------------
One machine, ``ChatDecoder``, reads a whole body and a stream alike: a body is one chunk whose ``message`` is its ``delta``.
So both give the same reply by construction.

Tool calls arrive in pieces, and servers disagree about how the pieces say where they belong: by index, by an index that is
always 0 or -1, by id alone, by nothing. The rules of ``_Slots``: a new id with a name begins a call; without an id, another
name begins a call, and so does a fresh argument object under the same name once the one before is complete; everything else
continues the call of its index, or the last one where there is no index. An empty string is the same as an absent field.
In a whole body every item is a call of its own.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from llmbroker.errors import InvalidProviderResponseError, LLMBrokerError, ServerError
from llmbroker.exchange import (
    CallDelta,
    Event,
    Finished,
    FinishReason,
    Native,
    ReasoningDelta,
    RefusalDelta,
    Started,
    TextDelta,
    UsageReport,
)
from llmbroker.providers.base import Deployment, parse_json
from llmbroker.providers.openai_usage import overlay, read_usage
from llmbroker.providers.refusal import read_error, refusal_of
from llmbroker.providers.think import ThinkSplitter
from llmbroker.wire import SSE

JSON: TypeAlias = dict[str, Any]

FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",  # Together, Hugging Face TGI
    "eos_token": "stop",
    "stop_sequence": "stop",
    "end_turn": "stop",
    "completed": "stop",
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",  # Mistral
    "tool_calls": "tool_calls",
    "tool_call": "tool_calls",  # Azure, DeepSeek-R1
    "function_call": "tool_calls",
    "tool_use": "tool_calls",
    "content_filter": "content_filter",
    "sensitive": "content_filter",  # Zhipu
    "refusal": "refusal",
    "network_error": "error",  # Zhipu
    "insufficient_system_resource": "error",  # DeepSeek
    "malformed_function_call": "error",
}
"""The words of ``finish_reason``, lower case, to ours; any other word is ``unknown`` and kept."""

_NATIVE_ERRORS = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE"})
OPAQUE = ("extra_content", "thought_signature")
"""Keys that Gemini's compatible face wants back as they were, on calls and on messages."""


def is_object(text: str) -> bool:
    """Whether a text is a complete JSON object."""
    if not text.rstrip().endswith("}"):
        return False
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False


class _Slot:
    __slots__ = ("arguments", "id", "index", "name", "number")

    def __init__(self, number: int, index: int | None) -> None:
        self.number = number
        self.index = index
        self.id: str | None = None
        self.name: str | None = None
        self.arguments: list[str] = []


class _Slots:
    """Which call a piece belongs to."""

    __slots__ = ("_by_index", "_last", "slots")

    def __init__(self) -> None:
        self.slots: list[_Slot] = []
        self._by_index: dict[int, _Slot] = {}
        self._last: _Slot | None = None

    def place(self, index: int | None, call_id: str | None, name: str | None, arguments: str) -> _Slot:
        """Return the slot of a piece, a new one where it begins a call."""
        slot = self._last if index is None else self._by_index.get(index)
        if slot is None or _begins(slot, index, call_id, name, arguments):
            known = self._known(call_id) if index is None and not name else None
            slot = known or self.new(index)
        if call_id and not slot.id:
            slot.id = call_id
        if name and not slot.name:
            slot.name = name
        if arguments:
            slot.arguments.append(arguments)
        self._last = slot
        return slot

    def _known(self, call_id: str | None) -> _Slot | None:
        """Where there is no index, an id that was seen before goes on with its call."""
        return next((slot for slot in self.slots if call_id and slot.id == call_id), None)

    def new(self, index: int | None) -> _Slot:
        """Return the slot of a call that begins."""
        slot = _Slot(len(self.slots), index)
        self.slots.append(slot)
        if index is not None:
            self._by_index[index] = slot
        return slot


def _begins(slot: _Slot, index: int | None, call_id: str | None, name: str | None, arguments: str) -> bool:
    """Whether a piece begins a call although its place is taken."""
    if not name:
        # Without an index, an id that is not the last call's is another call's; with one, the index decides.
        return bool(call_id and slot.id and call_id != slot.id and index is None)
    if not slot.name:
        return bool(call_id and slot.id and call_id != slot.id)
    if call_id and slot.id and call_id != slot.id:
        return True
    if name != slot.name and not (call_id and call_id == slot.id):
        return True
    return arguments.lstrip().startswith("{") and is_object("".join(slot.arguments))


class ChatDecoder:
    """The decoder of one Chat Completions answer."""

    def __init__(self, deployment: Deployment) -> None:
        self.done = False
        self._deployment = deployment
        self._think = ThinkSplitter()
        self._slots = _Slots()
        self._usage: JSON | None = None
        self._started = (False, False)
        self._details: dict[Any, JSON] = {}
        self._native: JSON = {}
        self._sent_native = False

    # -- a stream --------------------------------------------------------------------------------------------------------

    def feed(self, event: SSE) -> list[Event]:
        """Decode one payload of a stream.

        Raises:
            ProviderError: an error frame.
            InvalidProviderResponseError: it cannot be read.
        """
        data = event.data
        if data[:1] != b"{":
            data = data.strip()
            if data == b"[DONE]":
                self.done = True
                return self._end()
            if not data:
                return []
        body = parse_json(data, self._deployment)
        try:
            if type(body) is dict:
                if event.event == "error" and not body.get("error"):
                    raise self._refused(body)
                return self.take(body)
            if type(body) is list:
                return [made for item in body if type(item) is dict for made in self.take(item)]
        except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
            if isinstance(error, LLMBrokerError):
                raise
            raise self._unreadable(repr(error)) from error
        raise self._unreadable("a payload that is no object")

    def _refused(self, value: Any) -> LLMBrokerError:
        return refusal_of(self._deployment, read_error(value), status=None, headers={})

    def _unreadable(self, what: str) -> InvalidProviderResponseError:
        deployment = self._deployment
        return InvalidProviderResponseError(
            f"{deployment.provider.id} answered for {deployment.model} in a shape that Chat Completions does not have: {what}.",
            **deployment.facts(),
        )

    # -- a chunk or a body -----------------------------------------------------------------------------------------------

    def take(self, body: JSON, whole: bool = False) -> list[Event]:
        """Decode one chunk, or a whole body.

        Perplexity puts ``message`` and ``delta`` into every choice: a body is read by the first, a chunk by the second.

        Raises:
            ProviderError: it holds an error; an error outranks whatever stands beside it.
        """
        if body.get("error"):
            raise self._refused(body)
        out: list[Event] = []
        if self._started != (True, True):
            self._start(body, out)
        choices = body.get("choices")
        choice = _choice(choices) if choices else None
        if choice is not None:
            if choice.get("error"):
                raise self._refused(choice)
            self._choice(choice, whole, out)
        elif choices is None and not body.get("usage") and (body.get("object") == "error" or body.get("detail")):
            raise self._refused(body)
        self._take_usage(body, choice, out)
        return out

    def _start(self, body: JSON, out: list[Event]) -> None:
        model, made_by = body.get("model"), body.get("id")
        has_model, has_id = self._started
        model = model if not has_model and isinstance(model, str) and model else None
        made_by = made_by if not has_id and isinstance(made_by, str) and made_by else None
        if model or made_by:
            out.append(Started(model, made_by))
            self._started = (has_model or bool(model), has_id or bool(made_by))

    def _choice(self, choice: JSON, whole: bool, out: list[Event]) -> None:
        delta = choice.get("message" if whole else "delta")
        if not isinstance(delta, dict):
            delta = choice.get("delta" if whole else "message")
        if isinstance(delta, dict):
            self._delta(delta, whole, out)
        elif isinstance(choice.get("text"), str):
            self._content(choice["text"], out)
        word = choice.get("finish_reason")
        native = choice.get("native_finish_reason")
        if isinstance(native, str) and native in _NATIVE_ERRORS:
            out += self._end()
            out.append(Finished("error", native))
        elif isinstance(word, str) and (word or whole):
            out += self._end()
            out.append(self._finished(word, native))

    def _finished(self, word: str, native: Any) -> Finished:
        if word == "error":
            if isinstance(native, str) and native and native != "error":
                return Finished("error", native)
            deployment = self._deployment
            raise ServerError(
                f"{deployment.provider.id} broke off the answer of {deployment.model} with the finish reason 'error'.",
                code="error",
                **deployment.facts(),
            )
        return Finished(FINISH.get(word.lower(), "unknown"), word)

    def _take_usage(self, body: JSON, choice: JSON | None, out: list[Event]) -> None:
        usage = body.get("usage")
        if not usage:
            usage = (choice.get("usage") if choice else None) or body.get("x_groq")
            if isinstance(usage, dict) and isinstance(usage.get("usage"), dict):
                usage = usage["usage"]
        if not isinstance(usage, dict):
            return
        self._usage = usage if self._usage is None else overlay(self._usage, usage)
        made = read_usage(self._usage)
        if made is not None:
            out.append(UsageReport(made))

    # -- what the model said ---------------------------------------------------------------------------------------------

    def _delta(self, delta: JSON, whole: bool, out: list[Event]) -> None:
        self._reasoning(delta, out)
        content = delta.get("content")
        if content:
            if type(content) is str:
                self._content(content, out)
            else:
                self._parts(content, out)
        refusal = delta.get("refusal")
        if refusal and isinstance(refusal, str):
            out.append(RefusalDelta(refusal))
        calls = delta.get("tool_calls")
        if calls:
            for call in calls if isinstance(calls, list) else [calls]:
                if isinstance(call, dict):
                    self._call(call, whole, out)
        elif delta.get("function_call"):
            self._call({"index": 0, "function": delta["function_call"]}, whole, out)
        for key in OPAQUE:
            if delta.get(key):
                self._native[key] = delta[key]

    def _reasoning(self, delta: JSON, out: list[Event]) -> None:
        details = delta.get("reasoning_details")
        text = delta.get("reasoning_content") or delta.get("reasoning") or delta.get("thinking")
        if isinstance(text, dict):
            text = text.get("content") or text.get("text")
        if isinstance(details, list):
            shown = self._keep_details(details)
            text = text or shown
        if text and isinstance(text, str):
            out.append(ReasoningDelta(text))

    def _keep_details(self, details: list[Any]) -> str:
        """Keep OpenRouter's reasoning blocks, joined over the chunks, and return the text that they show.

        https://openrouter.ai/docs/use-cases/reasoning-tokens#preserving-reasoning-blocks
        """
        shown = ""
        for detail in details:
            if not isinstance(detail, dict):
                continue
            kept = self._details.setdefault((detail.get("index"), detail.get("type")), {})
            for name, value in detail.items():
                if name in ("text", "summary", "data") and isinstance(value, str) and isinstance(kept.get(name), str):
                    kept[name] += value
                elif value is not None or name not in kept:
                    kept[name] = value
            shown += next((detail[n] for n in ("text", "summary") if isinstance(detail.get(n), str)), "")
        return shown

    def _content(self, text: str, out: list[Event]) -> None:
        reasoning, text = self._think.feed(text)
        if reasoning:
            out.append(ReasoningDelta(reasoning))
        if text:
            out.append(TextDelta(text))

    def _parts(self, content: Any, out: list[Event]) -> None:
        """Take content that is no string: a list of parts, one part, or an object that is the answer itself."""
        if not isinstance(content, list):
            kind = content.get("type") if isinstance(content, dict) else None
            if kind not in ("text", "output_text", "thinking", "refusal"):
                self._content(msgspec.json.encode(content).decode(), out)
                return
            content = [content]
        for part in content:
            if isinstance(part, str):
                self._content(part, out)
            elif isinstance(part, dict):
                self._part(part, out)

    def _part(self, part: JSON, out: list[Event]) -> None:
        kind, text = part.get("type"), part.get("text")
        if kind == "thinking":  # Mistral: a list of text parts; others: a string
            thought = part.get("thinking")
            pieces = thought if isinstance(thought, list) else [thought]
            joined = "".join(p if isinstance(p, str) else p.get("text") or "" for p in pieces if isinstance(p, (str, dict)))
            if joined:
                out.append(ReasoningDelta(joined))
        elif kind == "refusal" and isinstance(part.get("refusal"), str):
            out.append(RefusalDelta(part["refusal"]))
        elif isinstance(text, str) and text:
            self._content(text, out)

    def _call(self, call: JSON, whole: bool, out: list[Event]) -> None:
        function = call.get("function")
        if not isinstance(function, dict):
            function = {}
        name, arguments = function.get("name"), function.get("arguments")
        custom = call.get("custom")
        if not name and isinstance(custom, dict) and custom.get("name"):
            name, arguments = custom["name"], {"input": custom.get("input")}
        if arguments is None:
            arguments = ""
        elif not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments).decode()
        index, call_id = call.get("index"), call.get("id")
        name = name if isinstance(name, str) and name else None
        call_id = str(call_id) if call_id else None
        if not name and not call_id and not arguments and not self._slots.slots:
            return
        place = index if type(index) is int and index >= 0 else None
        slot = self._slots.new(place) if whole else self._slots.place(place, call_id, name, arguments)
        extra = {key: call[key] for key in OPAQUE if call.get(key)}
        if extra:
            self._native.setdefault("calls", []).append(slot.number)
        out.append(CallDelta(slot.number, call_id, name, arguments, extra or None))

    def _end(self) -> list[Event]:
        """Flush what is held back: the answer is over."""
        out: list[Event] = []
        reasoning, text = self._think.end()
        if reasoning:
            out.append(ReasoningDelta(reasoning))
        if text:
            out.append(TextDelta(text))
        if not self._sent_native and (self._native or self._details):
            self._sent_native = True
            item = dict(self._native)
            if self._details:
                item["reasoning_details"] = list(self._details.values())
            out.append(Native(item))
        return out


def _choice(choices: Any) -> JSON | None:
    """Return choice 0; the others of n > 1 are left alone."""
    if not isinstance(choices, list):
        choices = [choices]
    for choice in choices:
        if isinstance(choice, dict) and not choice.get("index"):
            return choice
    first = choices[0] if choices else None
    return first if len(choices) == 1 and isinstance(first, dict) and not isinstance(first.get("index"), int) else None


def decode(body: JSON, deployment: Deployment) -> list[Event]:
    """Decode a whole body.

    Raises:
        ProviderError: an error in a 200.
        InvalidProviderResponseError: no choices.
    """
    decoder = ChatDecoder(deployment)
    choices = body.get("choices")
    if not choices and not body.get("error"):
        if body.get("object") == "error" or "detail" in body or ("message" in body and "choices" not in body):
            raise refusal_of(deployment, read_error(body), status=None, headers={})
        raise InvalidProviderResponseError(
            f"{deployment.provider.id} answered for {deployment.model} without any choice.", **deployment.facts()
        )
    return decoder.take(body, whole=True) + decoder._end()
