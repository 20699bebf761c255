"""Anthropic Messages, the answer: content blocks to events, whole (``decode``) and streamed (``Decoder``).

Both ways make the same ``_Block`` values, and what follows from all blocks together (which of them the provider wants back, how
the turn ended) is decided in one place, ``_ending``.

https://docs.claude.com/en/api/messages, https://docs.claude.com/en/docs/build-with-claude/streaming,
https://docs.claude.com/en/docs/build-with-claude/handling-stop-reasons
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from llmbroker.errors import InvalidProviderResponseError
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
from llmbroker.providers.base import Deployment, parse_json
from llmbroker.providers.params import whole_number
from llmbroker.providers.refusal import read_error, refusal_of
from llmbroker.wire import SSE

JSON: TypeAlias = dict[str, Any]

ANSWER_TOOL = "llmbroker_answer"
"""Name of the tool that stands in for structured output where a model has none; what it is called with is the text."""

FINISH: Mapping[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "refusal",
    # Not the API's own words: what ``encode_reply`` writes for answers of other providers.
    "content_filter": "content_filter",
    "error": "error",
}


def usage_of(raw: Mapping[str, Any]) -> Usage:
    """Normalise a usage object: the API counts cache reads and writes beside ``input_tokens``; here input includes them.

    The counts of compaction passes (``iterations``) stay outside.
    """
    fresh, output = whole_number(raw.get("input_tokens")), whole_number(raw.get("output_tokens"))
    read, written = whole_number(raw.get("cache_read_input_tokens")), whole_number(raw.get("cache_creation_input_tokens"))
    sent = None if fresh is None else fresh + (read or 0) + (written or 0)
    details = raw.get("output_tokens_details")
    return Usage(
        input_tokens=sent,
        output_tokens=output,
        cached_input_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=whole_number(details.get("thinking_tokens")) if isinstance(details, dict) else None,
        total_tokens=sent + output if sent is not None and output is not None else None,
    )


class _Block:
    """One content block that is being built: how it started, the pieces of its main text, further fields."""

    __slots__ = ("json", "kind", "more", "pieces", "start")

    def __init__(self, start: JSON) -> None:
        self.start = start
        self.kind: str = start["type"]
        self.pieces: list[str] = []
        self.json: list[str] = []
        self.more: JSON = {}

    def item(self) -> JSON:
        """Return the block as the provider would have sent it whole."""
        out = {**self.start, **self.more}
        if self.pieces:
            field = "thinking" if self.kind == "thinking" else "text"
            out[field] = (self.start.get(field) or "") + "".join(self.pieces)
        if self.json:
            out["input"] = _object("".join(self.json))
        return out

    def plain(self) -> bool:
        """Whether text and calls in our own shape say all that this block says."""
        if self.kind == "text":
            return not (self.start.get("citations") or self.more.get("citations"))
        if self.kind == "tool_use":
            caller = self.start.get("caller")
            return caller is None or (isinstance(caller, dict) and caller.get("type") == "direct")
        return False


def _object(text: str) -> JSON:
    try:
        value = msgspec.json.decode(text) if text.strip() else {}
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _arguments(value: Any) -> str:
    """Return a call's input as JSON text; a server that sends text has written JSON already."""
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _is_call(block: _Block) -> bool:
    return block.kind == "tool_use" and block.start.get("name") != ANSWER_TOOL


def _ending(blocks: Mapping[int, _Block], word: str | None, details: Any) -> list[Event]:
    """Return the last events of a turn: what the provider wants back, the refusal's text, how it ended.

    Blocks go back as they are only where one of them says more than our own shape can: thinking and its signature, the tools
    that the provider ran itself, citations, a compaction.
    """
    out: list[Event] = []
    if any(not block.plain() for block in blocks.values()):
        out += [Native(blocks[index].item()) for index in sorted(blocks) if blocks[index].start.get("name") != ANSWER_TOOL]
    if word == "refusal" and isinstance(details, dict) and isinstance(details.get("explanation"), str):
        out.append(RefusalDelta(details["explanation"]))
    if word is not None:
        answered = word == "tool_use" and blocks and not any(map(_is_call, blocks.values()))
        answered = answered and any(block.start.get("name") == ANSWER_TOOL for block in blocks.values())
        out.append(Finished("stop" if answered else FINISH.get(word, "unknown"), word))
    return out


# -- whole ---------------------------------------------------------------------------------------------------------------


def decode(body: JSON, deployment: Deployment) -> list[Event]:
    """Return the events of a whole answer.

    Raises:
        ProviderError: the body is an error.
    """
    if body.get("type") == "error" or ("error" in body and "content" not in body):
        raise refusal_of(deployment, read_error(body), status=None, headers={})
    out: list[Event] = [Started(body.get("model"), body.get("id"))]
    blocks: dict[int, _Block] = {}
    for index, start in enumerate(body["content"]):
        block = blocks[index] = _Block(start)
        if block.kind == "text":
            if start["text"]:
                out.append(TextDelta(start["text"]))
        elif block.kind == "tool_use":
            arguments = _arguments(start.get("input"))
            if _is_call(block):
                out.append(CallDelta(index, start["id"], start["name"], arguments))
            else:
                out.append(TextDelta(arguments))
        elif block.kind == "thinking" and start.get("thinking"):
            out.append(ReasoningDelta(start["thinking"]))
    if isinstance(body.get("usage"), dict):
        out.append(UsageReport(usage_of(body["usage"])))
    return out + _ending(blocks, body.get("stop_reason"), body.get("stop_details"))


# -- streamed ------------------------------------------------------------------------------------------------------------


class Decoder:
    """Decode one stream. It ends at the first ``message_stop``; an error frame may come at any time."""

    def __init__(self, deployment: Deployment) -> None:
        self.done = False
        self._deployment = deployment
        self._begun = False
        self._blocks: dict[int, _Block] = {}
        self._usage: JSON = {}
        self._word: str | None = None
        self._details: Any = None

    def feed(self, event: SSE) -> list[Event]:
        """Return the events of one payload; raises as a ``StreamDecoder`` does."""
        if event.data == b"[DONE]":
            return []
        payload = parse_json(event.data, self._deployment)
        if not isinstance(payload, dict):
            raise self._strange("a payload that is no object")
        kind = payload.get("type")
        if kind == "content_block_delta":
            return self._delta(payload["index"], payload["delta"])
        if kind == "content_block_start":
            return self._start(payload["index"], payload["content_block"])
        if kind == "content_block_stop":
            block = self._blocks.get(payload["index"])
            return self._closed(payload["index"], block) if block is not None else []
        if kind == "message_start":
            return self._message(payload["message"])
        if kind == "message_delta":
            return self._message_delta(payload)
        if kind == "message_stop":
            return self._message_stop()
        if kind == "error" or "error" in payload or event.event == "error":
            raise refusal_of(self._deployment, read_error(payload), status=None, headers={})
        return []  # ping, and what later versions of the API may add

    def _strange(self, what: str) -> InvalidProviderResponseError:
        deployment = self._deployment
        return InvalidProviderResponseError(
            f"{deployment.provider.id} streamed {what} for {deployment.model}.", **deployment.facts()
        )

    def _message(self, message: JSON) -> list[Event]:
        restart = self._begun
        self._begun = True
        self._blocks, self._word, self._details = {}, None, None
        usage = message.get("usage")
        self._usage = dict(usage) if isinstance(usage, dict) else {}
        out: list[Event] = [Started(message.get("model"), message.get("id"), restart=restart)]
        if self._usage:
            out.append(UsageReport(usage_of(self._usage)))
        return out

    def _start(self, index: int, start: JSON) -> list[Event]:
        block = self._blocks[index] = _Block(start)
        if block.kind == "tool_use":
            return [CallDelta(index, start["id"], start["name"])] if _is_call(block) else []
        if block.kind == "text" and start.get("text"):
            return [TextDelta(start["text"])]
        if block.kind == "thinking" and start.get("thinking"):
            return [ReasoningDelta(start["thinking"])]
        return []

    def _delta(self, index: int, delta: JSON) -> list[Event]:
        block, kind = self._blocks[index], delta["type"]
        if kind == "text_delta":
            text = delta["text"] or ""
            block.pieces.append(text)
            return [TextDelta(text)] if text and block.kind == "text" else []
        if kind == "input_json_delta":
            piece = delta["partial_json"]
            if not piece:
                return []
            block.json.append(piece)
            if block.kind != "tool_use":
                return []
            return [CallDelta(index, arguments=piece)] if _is_call(block) else [TextDelta(piece)]
        if kind == "thinking_delta":
            text = delta["thinking"] or ""
            block.pieces.append(text)
            return [ReasoningDelta(text)] if text and block.kind == "thinking" else []
        if kind == "citations_delta":
            block.more.setdefault("citations", []).append(delta["citation"])
            return []
        # signature_delta, compaction_delta, and what later versions of the API may add: text grows, anything else replaces.
        for key, value in delta.items():
            if key != "type":
                old = block.more.get(key, block.start.get(key))
                block.more[key] = old + value if isinstance(old, str) and isinstance(value, str) else value
        return []

    def _closed(self, index: int, block: _Block) -> list[Event]:
        """Give a call the input of its start where no piece of it followed."""
        start = block.start.get("input")
        if block.kind != "tool_use" or block.json or not start:
            return []
        block.json.append(_arguments(start))
        return [CallDelta(index, arguments=block.json[0]) if _is_call(block) else TextDelta(block.json[0])]

    def _message_delta(self, payload: JSON) -> list[Event]:
        delta, usage = payload["delta"], payload.get("usage")
        self._word = delta.get("stop_reason") or self._word
        self._details = delta.get("stop_details") or self._details
        if not isinstance(usage, dict):
            return []
        self._usage.update({key: value for key, value in usage.items() if value is not None})
        return [UsageReport(usage_of(self._usage))]

    def _message_stop(self) -> list[Event]:
        if not self._begun:
            raise self._strange("the end of an answer that never began")
        out: list[Event] = []
        for index, block in self._blocks.items():
            out += self._closed(index, block)
        self.done = True
        ending = _ending(self._blocks, self._word, self._details)
        return out + ending if self._word else [*out, *ending, Finished("unknown")]
