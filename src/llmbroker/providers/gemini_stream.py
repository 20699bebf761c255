"""Gemini generateContent, the answer: candidates and parts to events, whole (``decode``) and streamed (``Decoder``).

A streamed chunk has the shape of a whole answer, so that one machine reads both.

https://ai.google.dev/api/generate-content#v1beta.GenerateContentResponse
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
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

FINISH: Mapping[str, FinishReason] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "BLOCKLIST": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter",
    "MODEL_ARMOR": "content_filter",
    "IMAGE_SAFETY": "content_filter",
    "IMAGE_PROHIBITED_CONTENT": "content_filter",
    "IMAGE_RECITATION": "content_filter",
    "MALFORMED_FUNCTION_CALL": "error",
    "UNEXPECTED_TOOL_CALL": "error",
    "TOO_MANY_TOOL_CALLS": "error",
    "MISSING_THOUGHT_SIGNATURE": "error",
    "MALFORMED_RESPONSE": "error",
    "LANGUAGE": "unknown",
    "OTHER": "unknown",
    # Not the API's own word: what ``encode_reply`` writes for a refusal of another provider.
    "REFUSAL": "refusal",
}
_UNSPECIFIED = ("", "FINISH_REASON_UNSPECIFIED", "BLOCKED_REASON_UNSPECIFIED", "BLOCK_REASON_UNSPECIFIED")
# The numbers of the Vertex API, which writes enums as integers when asked to (``$alt=json;enum-encoding=int``):
# https://cloud.google.com/vertex-ai/docs/reference/rpc/google.cloud.aiplatform.v1#finishreason
_FINISH_NUMBERS = (
    "", "STOP", "MAX_TOKENS", "SAFETY", "RECITATION", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII",
    "MALFORMED_FUNCTION_CALL", "MODEL_ARMOR", "IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "IMAGE_OTHER",
    "UNEXPECTED_TOOL_CALL", "NO_IMAGE",
)  # fmt: skip
_BLOCK_NUMBERS = ("", "SAFETY", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT", "MODEL_ARMOR", "IMAGE_SAFETY", "JAILBREAK")


def _word(value: Any, numbers: tuple[str, ...]) -> str | None:
    """Return an enum's word, whether it came as word or number; None where it says nothing."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = numbers[value] if 0 <= value < len(numbers) else str(value)
    return value if isinstance(value, str) and value not in _UNSPECIFIED else None


def usage_of(raw: Mapping[str, Any]) -> Usage | None:
    """Normalise usage metadata: thoughts stand outside candidates, the prompts of tools outside the prompt; add them.

    None where no count is stated (Vertex sends the kind of traffic alone in the chunks before the last).
    """
    get = raw.get
    prompt, answer, total = get("promptTokenCount"), get("candidatesTokenCount"), get("totalTokenCount")
    tools, thoughts, cached = get("toolUsePromptTokenCount"), get("thoughtsTokenCount"), get("cachedContentTokenCount")
    prompt, answer, total = whole_number(prompt), whole_number(answer), whole_number(total)
    tools, thoughts, cached = whole_number(tools), whole_number(thoughts), whole_number(cached)
    sent = None if prompt is None and tools is None else (prompt or 0) + (tools or 0)
    made = None if answer is None and thoughts is None else (answer or 0) + (thoughts or 0)
    if sent is None and made is None and total is None and cached is None:
        return None
    if total is None and sent is not None and made is not None:
        total = sent + made
    return Usage(sent, made, cached, None, thoughts, total)


# -- a call that comes in pieces -----------------------------------------------------------------------------------------

_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[['\"]([^'\"]+)['\"]\]")
_LONGEST_LIST = 10_000


class _OpenCall:
    """A call whose arguments come as values with JSON paths (``streamFunctionCallArguments``)."""

    def __init__(self, slot: int, part: JSON) -> None:
        self.slot = slot
        self.part = part
        self.args: Any = {}

    def put(self, piece: JSON) -> None:
        """Set or lengthen the value at a path such as ``$.stops[0].name``."""
        path: list[str | int] = [
            int(number) if number else name or quoted for name, number, quoted in _STEP.findall(piece["jsonPath"])
        ]
        if not path:
            raise ValueError(f"the path {piece['jsonPath']!r} names nothing")
        spot = self.args
        for step, following in pairwise(path):
            inner = self._at(spot, step)
            if inner is None:
                inner = [] if isinstance(following, int) else {}
                self._set(spot, step, inner)
            spot = inner
        old = self._at(spot, path[-1])
        if "stringValue" in piece:
            value: Any = old + piece["stringValue"] if isinstance(old, str) else piece["stringValue"]
        else:
            value = next((piece[name] for name in ("numberValue", "boolValue") if name in piece), None)
        self._set(spot, path[-1], value)

    @staticmethod
    def _at(spot: Any, step: str | int) -> Any:
        if isinstance(step, int):
            return spot[step] if step < len(spot) else None
        return spot.get(step)

    @staticmethod
    def _set(spot: Any, step: str | int, value: Any) -> None:
        if isinstance(step, int):
            if step > _LONGEST_LIST:
                raise ValueError("a list of tool arguments is too long")
            spot.extend([None] * (step + 1 - len(spot)))
        spot[step] = value


# -- the machine ---------------------------------------------------------------------------------------------------------


class Decoder:
    """Decode one answer, in one chunk or many. It ends at the finish reason of the first candidate."""

    def __init__(self, deployment: Deployment) -> None:
        self.done = False
        self._deployment = deployment
        self._started = False
        self._slot = 0
        self._open: _OpenCall | None = None
        self._kept: list[tuple[JSON, list[str]]] = []
        self._special = False

    def feed(self, event: SSE) -> list[Event]:
        """Return the events of one payload; raises as a ``StreamDecoder`` does."""
        if event.data == b"[DONE]":
            return []
        payload = parse_json(event.data, self._deployment)
        if isinstance(payload, list):
            return [made for chunk in payload for made in self.chunk(chunk)]
        return self.chunk(payload)

    def chunk(self, body: Any) -> list[Event]:
        """Return the events of one chunk.

        Raises:
            ProviderError: the chunk is an error.
            InvalidProviderResponseError: it is no object.
        """
        deployment = self._deployment
        if not isinstance(body, dict):
            raise InvalidProviderResponseError(
                f"{deployment.provider.id} sent a chunk for {deployment.model} that is no object.", **deployment.facts()
            )
        if "error" in body:
            raise refusal_of(deployment, read_error(body), status=None, headers={})
        out: list[Event] = []
        if not self._started and ("responseId" in body or "modelVersion" in body):
            self._started = True
            out.append(Started(body.get("modelVersion"), body.get("responseId")))
        raw = body.get("usageMetadata")
        # The counts of a chunk belong together: those of the last one add up to its total, a mixture would not.
        usage = usage_of(raw) if isinstance(raw, dict) else None
        if usage is not None:
            out.append(UsageReport(usage))
        for candidate in body.get("candidates") or ():
            if not candidate.get("index"):
                self._candidate(candidate, out)
                return out
        if not body.get("candidates") and isinstance(body.get("promptFeedback"), dict):
            blocked = _word(body["promptFeedback"].get("blockReason"), _BLOCK_NUMBERS)
            if blocked:
                self.done = True
                out.append(Finished("content_filter", blocked))
        return out

    def _candidate(self, candidate: JSON, out: list[Event]) -> None:
        content = candidate.get("content")
        for part in (content.get("parts") if content else None) or ():
            self._part(part, out)
        word = candidate.get("finishReason")
        if word is not None:
            word = _word(word, _FINISH_NUMBERS)
        if word is None:
            return
        self.done = True
        out += self.kept()
        if word == "REFUSAL" and isinstance(candidate.get("finishMessage"), str):
            out.append(RefusalDelta(candidate["finishMessage"]))
        out.append(Finished(FINISH.get(word, "unknown"), word))

    def kept(self) -> list[Event]:
        """Return the parts that go back as they are, once all are there.

        None where text and calls in our own shape say the same: signatures, ids that the provider gave, code that it ran and
        media are what our shape does not have.
        """
        if not self._special:
            return []
        return [Native({**part, "text": "".join(texts)} if texts else part) for part, texts in self._kept]

    def _part(self, part: JSON, out: list[Event]) -> None:
        call, text = part.get("functionCall"), part.get("text")
        if isinstance(call, dict):
            self._call(part, call, out)
            return
        if not isinstance(text, str):
            self._special = True
            self._kept.append((part, []))
            return
        thought = bool(part.get("thought"))
        if len(part) == (2 if "thought" in part else 1):
            # Plain text, or a plain thought: pieces of one text, as long as nothing stands between them.
            last = self._kept[-1] if self._kept else None
            if last is not None and last[1] and bool(last[0].get("thought")) == thought and len(last[0]) == len(part):
                last[1].append(text)
            else:
                self._kept.append((part, [text]))
        else:
            self._special = True
            self._kept.append((part, []))
        if text:
            out.append(ReasoningDelta(text) if thought else TextDelta(text))

    def _call(self, part: JSON, call: JSON, out: list[Event]) -> None:
        self._special = self._special or len(part) > 1 or bool(call.get("id"))
        name, going_on = call.get("name"), bool(call.get("willContinue"))
        if not (going_on or call.get("partialArgs") or (self._open and not name)):
            args = call.get("args")
            text = args if isinstance(args, str) else msgspec.json.encode(args if args is not None else {}).decode()
            out.append(CallDelta(self._next_slot(), call.get("id"), name, text))
            self._kept.append((part, []))
            return
        if self._open is None or name:
            kept = {**part, "functionCall": {key: call[key] for key in ("id", "name") if key in call}}
            self._open = _OpenCall(self._next_slot(), kept)
            self._kept.append((kept, []))
            out.append(CallDelta(self._open.slot, call.get("id"), name))
        elif part.get("thoughtSignature"):
            self._open.part.setdefault("thoughtSignature", part["thoughtSignature"])
        for piece in call.get("partialArgs") or ():
            self._open.put(piece)
        if not going_on:
            # Arguments are given only now: what came before was no JSON text, and a call that was cut stays without.
            args = self._open.args
            self._open.part["functionCall"]["args"] = args
            out.append(CallDelta(self._open.slot, arguments=msgspec.json.encode(args).decode()))
            self._open = None

    def _next_slot(self) -> int:
        self._slot += 1
        return self._slot - 1


def decode(body: JSON, deployment: Deployment) -> list[Event]:
    """Return the events of a whole answer, or of all chunks of a stream that came as one list.

    Raises:
        ProviderError: the body is an error.
    """
    state = Decoder(deployment)
    out: list[Event] = []
    for chunk in body.get("chunks", [body]):
        out += state.chunk(chunk)
    return out if state.done else out + state.kept()
