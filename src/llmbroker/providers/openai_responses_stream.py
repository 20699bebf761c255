"""Answers of the OpenAI Responses dialect to events, whole and streamed.

Source: https://platform.openai.com/docs/api-reference/responses-streaming. The first terminal event ends the stream
(``response.completed``, ``.incomplete``, ``.failed``); an ``error`` event outranks what came before it. ``.done`` events are
authoritative: what they say beyond the deltas is added, what they say otherwise replaces. Events that no list names
(``keepalive``) are passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

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
    Usage,
    UsageReport,
)
from llmbroker.providers import refusal
from llmbroker.providers.base import Deployment, parse_json
from llmbroker.providers.params import whole_number
from llmbroker.wire import SSE

JSON: TypeAlias = dict[str, Any]
PARAGRAPH = "\n\n"

INCOMPLETE: Mapping[str, FinishReason] = {"max_output_tokens": "length", "content_filter": "content_filter"}


def whole(body: JSON, deployment: Deployment) -> list[Event]:
    """Return the events of a whole response object."""
    decoder = Decoder(deployment)
    out: list[Event] = [Started(_text(body.get("model")), _text(body.get("id")))]
    for index, item in enumerate(body["output"]):
        if isinstance(item, dict):
            out += decoder.item(index, item)
    return out + decoder.end(body)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


class Decoder:
    """The state of one stream: what each place of the output has said so far."""

    __slots__ = ("_arguments", "_deployment", "_reasoning", "_said", "_started", "done")

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._said: dict[tuple[int, str, int], str] = {}
        self._arguments: dict[int, str] = {}
        self._reasoning: tuple[int, str, int] | None = None
        self._started = False
        self.done = False

    def feed(self, event: SSE) -> list[Event]:
        """Decode one payload."""
        if event.data.strip() == b"[DONE]":
            return []
        body = parse_json(event.data, self._deployment)
        if not isinstance(body, dict):
            return []
        kind = body.get("type") or event.event
        handler = _HANDLERS.get(kind)
        if handler is not None:
            events: list[Event] = handler(self, body)
            return events
        if not kind and body.get("error"):
            raise refusal.refusal_of(self._deployment, refusal.read_error(body), status=None, headers={})
        return []

    # -- the life of a response ----------------------------------------------------------------------------------------

    def _start(self, body: JSON) -> list[Event]:
        response = body.get("response")
        if self._started or not isinstance(response, dict):
            return []
        self._started = True
        return [Started(_text(response.get("model")), _text(response.get("id")))]

    def _end(self, body: JSON) -> list[Event]:
        response = body.get("response")
        out = self._start(body)
        if isinstance(response, dict):
            for index, item in enumerate(response.get("output") or ()):
                # Some servers never send the items one by one.
                if isinstance(item, dict) and not self._seen(index):
                    out += self.item(index, item)
            out += self.end(response, _text(body.get("type")))
        else:
            out.append(Finished("unknown", _text(body.get("type"))))
        self.done = True
        return out

    def _fail(self, body: JSON) -> list[Event]:
        response = body.get("response")
        facts = refusal.read_error(response.get("error") if isinstance(response, dict) else body.get("error") or body)
        raise refusal.refusal_of(self._deployment, facts, status=None, headers={})

    def end(self, response: JSON, event: str | None = None) -> list[Event]:
        """Return usage and finish of a response object; where it states no status, the event that brought it does."""
        status = _text(response.get("status")) or (event or "").removeprefix("response.") or None
        if status == "failed":
            return self._fail({"response": response})
        out: list[Event] = []
        usage = read_usage(response.get("usage"))
        if usage is not None:
            out.append(UsageReport(usage))
        if status == "incomplete":
            word = (response.get("incomplete_details") or {}).get("reason") or "incomplete"
            out.append(Finished(INCOMPLETE.get(word, "unknown"), word))
        elif status == "completed":
            out.append(Finished("stop", status))
        else:
            out.append(Finished("unknown", status))
        return out

    def _seen(self, index: int) -> bool:
        return (index, "item", 0) in self._said

    # -- items ----------------------------------------------------------------------------------------------------------

    def _added(self, body: JSON) -> list[Event]:
        item, index = body.get("item"), body.get("output_index", 0)
        if isinstance(item, dict) and item.get("type") == "function_call" and index not in self._arguments:
            self._arguments[index] = ""
            return [CallDelta(index, _text(item.get("call_id")), _text(item.get("name"))), *self._call_rest(index, item)]
        return []

    def _item_done(self, body: JSON) -> list[Event]:
        item = body.get("item")
        return self.item(body.get("output_index", 0), item) if isinstance(item, dict) else []

    def item(self, index: int, item: JSON) -> list[Event]:
        """Return what a whole output item says beyond what its deltas said, and the item itself."""
        kind = item.get("type")
        out: list[Event] = []
        if kind == "message":
            for place, text in self._unsaid(index, "text", item.get("content"), "text"):
                out += self._rest(index, "text", place, text, TextDelta)
            for place, text in self._unsaid(index, "refusal", item.get("content"), "refusal"):
                out += self._rest(index, "refusal", place, text, RefusalDelta)
        elif kind == "reasoning":
            for name in ("summary", "content"):
                for place, text in self._unsaid(index, name, item.get(name), "text"):
                    out += self._reason(index, name, place, text, rest=True)
        elif kind == "function_call":
            if index not in self._arguments:
                self._arguments[index] = ""
            out.append(CallDelta(index, _text(item.get("call_id")) or _text(item.get("id")), _text(item.get("name"))))
            out += self._call_rest(index, item)
        self._said.setdefault((index, "item", 0), "")
        out.append(Native(item))
        return out

    def _unsaid(self, index: int, name: str, parts: Any, key: str) -> list[tuple[int, str]]:
        """Return place and text of an item's parts; nothing if the deltas said it all.

        Bedrock counts the places in its deltas otherwise than in its items.
        """
        texts = [
            (place, part[key])
            for place, part in enumerate(parts if isinstance(parts, list) else ())
            if isinstance(part, dict) and isinstance(part.get(key), str)
        ]
        said = "".join(text for at, text in self._said.items() if at[:2] == (index, name))
        return [] if said == "".join(text for _, text in texts) else texts

    def _call_rest(self, index: int, item: JSON) -> list[Event]:
        arguments = item.get("arguments")
        if isinstance(arguments, dict):
            arguments = msgspec.json.encode(arguments).decode()
        if not isinstance(arguments, str) or not arguments or arguments == self._arguments[index]:
            return []
        had, self._arguments[index] = self._arguments[index], arguments
        if arguments.startswith(had):
            return [CallDelta(index, arguments=arguments[len(had) :])]
        return [CallDelta(index, arguments=arguments, replaces=True)]

    def _arguments_delta(self, body: JSON) -> list[Event]:
        index, delta = body.get("output_index", 0), body.get("delta")
        if not isinstance(delta, str) or not delta:
            return []
        self._arguments[index] = self._arguments.get(index, "") + delta
        return [CallDelta(index, arguments=delta)]

    def _arguments_done(self, body: JSON) -> list[Event]:
        index = body.get("output_index", 0)
        self._arguments.setdefault(index, "")
        return self._call_rest(index, body)

    # -- text, refusals, reasoning --------------------------------------------------------------------------------------

    def _rest(self, index: int, name: str, place: int, text: Any, make: type[TextDelta] | type[RefusalDelta]) -> list[Event]:
        if not isinstance(text, str) or not text:
            return []
        key = (index, name, place)
        had, self._said[key] = self._said.get(key, ""), text
        return [make(text[len(had) :])] if text.startswith(had) and len(text) > len(had) else []

    def _text_delta(self, body: JSON) -> list[Event]:
        return self._delta(body, "text", TextDelta)

    def _refusal_delta(self, body: JSON) -> list[Event]:
        return self._delta(body, "refusal", RefusalDelta)

    def _delta(self, body: JSON, name: str, make: type[TextDelta] | type[RefusalDelta]) -> list[Event]:
        delta = body.get("delta")
        if not isinstance(delta, str) or not delta:
            return []
        key = (body.get("output_index", 0), name, body.get("content_index", 0))
        self._said[key] = self._said.get(key, "") + delta
        return [make(delta)]

    def _text_done(self, body: JSON) -> list[Event]:
        return self._rest(body.get("output_index", 0), "text", body.get("content_index", 0), body.get("text"), TextDelta)

    def _refusal_done(self, body: JSON) -> list[Event]:
        index, place = body.get("output_index", 0), body.get("content_index", 0)
        return self._rest(index, "refusal", place, body.get("refusal"), RefusalDelta)

    def _reason(self, index: int, name: str, place: int, text: Any, *, rest: bool) -> list[Event]:
        if not isinstance(text, str) or not text:
            return []
        key = (index, name, place)
        had = self._said.get(key, "")
        piece = text
        if rest:
            if not text.startswith(had) or len(text) == len(had):
                return []
            piece = text[len(had) :]
        self._said[key] = had + piece
        before, self._reasoning = self._reasoning, key
        return [ReasoningDelta(PARAGRAPH + piece if before is not None and before != key else piece)]

    def _summary_delta(self, body: JSON) -> list[Event]:
        return self._reason(body.get("output_index", 0), "summary", body.get("summary_index", 0), body.get("delta"), rest=False)

    def _summary_done(self, body: JSON) -> list[Event]:
        return self._reason(body.get("output_index", 0), "summary", body.get("summary_index", 0), body.get("text"), rest=True)

    def _reasoning_delta(self, body: JSON) -> list[Event]:
        return self._reason(body.get("output_index", 0), "content", body.get("content_index", 0), body.get("delta"), rest=False)

    def _reasoning_done(self, body: JSON) -> list[Event]:
        return self._reason(body.get("output_index", 0), "content", body.get("content_index", 0), body.get("text"), rest=True)


_HANDLERS: Mapping[str, Any] = {
    "response.created": Decoder._start,
    "response.in_progress": Decoder._start,
    "response.completed": Decoder._end,
    "response.incomplete": Decoder._end,
    "response.failed": Decoder._fail,
    "error": Decoder._fail,
    "response.output_item.added": Decoder._added,
    "response.output_item.done": Decoder._item_done,
    "response.function_call_arguments.delta": Decoder._arguments_delta,
    "response.function_call_arguments.done": Decoder._arguments_done,
    "response.output_text.delta": Decoder._text_delta,
    "response.output_text.done": Decoder._text_done,
    "response.refusal.delta": Decoder._refusal_delta,
    "response.refusal.done": Decoder._refusal_done,
    "response.reasoning_summary_text.delta": Decoder._summary_delta,
    "response.reasoning_summary_text.done": Decoder._summary_done,
    "response.reasoning_text.delta": Decoder._reasoning_delta,
    "response.reasoning_text.done": Decoder._reasoning_done,
}


def read_usage(usage: Any) -> Usage | None:
    """Return normalised usage; None if there is none.

    Where input and output do not add up to the stated total and the reasoning tokens are the difference, they are outside the
    output and are added (xAI).
    """
    if not isinstance(usage, dict):
        return None
    given, made = whole_number(usage.get("input_tokens")), whole_number(usage.get("output_tokens"))
    total = whole_number(usage.get("total_tokens"))
    inside = usage.get("input_tokens_details")
    outside = usage.get("output_tokens_details")
    cached = whole_number(inside.get("cached_tokens")) if isinstance(inside, dict) else None
    written = whole_number(inside.get("cache_write_tokens")) if isinstance(inside, dict) else None
    reasoning = whole_number(outside.get("reasoning_tokens")) if isinstance(outside, dict) else None
    if given is not None and made is not None:
        if total is None:
            total = given + made
        elif reasoning and given + made + reasoning == total:
            made += reasoning
    result = Usage(given, made, cached, written, reasoning, total)
    return result if result != Usage() else None
