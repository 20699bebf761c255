"""The whole answer, and ``Fold``, which makes it out of events."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

import msgspec

from llmbroker.errors import InvalidProviderResponseError
from llmbroker.exchange.events import (
    JSON,
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


class Reply(msgspec.Struct, frozen=True, kw_only=True, weakref=True):
    """A complete answer.

    Attributes:
        text: the answer's text, "" if there is none.
        tool_calls: OpenAI-shaped calls (``id``, ``type``, ``function.name``, ``function.arguments`` as JSON text), or None.
        usage: normalised token counts, or None if the provider gave none.
        finish_reason: stop, length, tool_calls, content_filter, refusal, error or unknown.
        raw_finish_reason: the provider's own word.
        reasoning: reasoning text, or None.
        refusal: the refusal's text, or None.
        model: the model as the provider names it in the answer.
        id: the provider's id of the answer.
        request_id: the provider's id of the request (a response header).
        raw: the parsed body; for a stream the list of its parsed events.
        message: this turn as an assistant message, ready to be appended to the history.
        messages, tool_history, tool_loop: set by the tool loop, else None.
        parsed: the value of the answer, where a form was asked for, else None.
    """

    text: str = ""
    tool_calls: list[JSON] | None = None
    usage: Usage | None = None
    finish_reason: FinishReason = "unknown"
    raw_finish_reason: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    model: str | None = None
    id: str | None = None
    request_id: str | None = None
    raw: Any = None
    message: JSON = {}
    messages: list[JSON] | None = None
    tool_history: Any = None
    tool_loop: Any = None
    parsed: Any = None

    def __str__(self) -> str:
        """Return the text."""
        return self.text

    def __repr__(self) -> str:
        """Return a short line: the text cut to 60 characters and how the turn ended."""
        text = self.text if len(self.text) <= 60 else self.text[:57] + "..."
        calls = f", tool_calls={len(self.tool_calls)}" if self.tool_calls else ""
        return f"{type(self).__name__}(text={text!r}{calls}, finish_reason={self.finish_reason!r}, model={self.model!r})"


class _Call:
    __slots__ = ("arguments", "extra", "id", "name")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.extra: JSON | None = None


class Fold:
    """Make one reply out of the events of a turn.

    Finish reasons: complete calls beat ``stop``, an empty word and silence, never ``length``; a refusal's text makes it a
    ``refusal``. Call ids that are missing, empty or used twice in the turn are replaced by fresh ones.
    """

    __slots__ = ("_calls", "_finish", "_id", "_model", "_native", "_raw_finish", "_reasoning", "_refusal", "_text", "usage")

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._calls: dict[int, _Call] = {}
        self._native: list[JSON] = []
        self.usage: Usage | None = None
        self._finish: FinishReason | None = None
        self._raw_finish: str | None = None
        self._model: str | None = None
        self._id: str | None = None

    def add(self, event: Event) -> None:
        """Take one event.

        Raises:
            TypeError: a text, a name or arguments are none: the provider sent something else there.
        """
        kind = type(event)
        if kind is TextDelta:
            self._text.append(_text(event.text))  # type: ignore[union-attr]
        elif kind is CallDelta:
            self._add_call(event)  # type: ignore[arg-type]
        elif kind is ReasoningDelta:
            self._reasoning.append(_text(event.text))  # type: ignore[union-attr]
        elif kind is RefusalDelta:
            self._refusal.append(_text(event.text))  # type: ignore[union-attr]
        elif isinstance(event, UsageReport):
            self.usage = event.usage if self.usage is None else self.usage.merged(event.usage)
        elif isinstance(event, Finished):
            raw = event.raw
            self._finish, self._raw_finish = event.reason, raw if raw is None or isinstance(raw, str) else str(raw)[:200]
        elif isinstance(event, Native):
            self._native.append(event.item)
        elif isinstance(event, Started):
            if event.restart:
                self.__init__()  # type: ignore[misc]
            if isinstance(event.model, str):
                self._model = event.model or self._model
            if isinstance(event.id, str):
                self._id = event.id or self._id

    def _add_call(self, event: CallDelta) -> None:
        call = self._calls.get(event.slot)
        if call is None:
            call = self._calls[event.slot] = _Call()
        if event.id and not call.id and isinstance(event.id, str):
            call.id = event.id
        if event.name and not call.name:
            call.name = _text(event.name)
        if event.replaces:
            call.arguments = [_text(event.arguments)]
        elif event.arguments:
            call.arguments.append(_text(event.arguments))
        if event.extra:
            call.extra = {**(call.extra or {}), **event.extra}

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text)

    @property
    def finished(self) -> bool:
        """Whether the provider said how the turn ended."""
        return self._finish is not None

    @property
    def has_content(self) -> bool:
        """Whether any text, reasoning, refusal or call arrived."""
        return bool(self._text or self._calls or self._reasoning or self._refusal)

    def reply(
        self,
        *,
        dialect: str,
        provider: str,
        model: str,
        raw: Any = None,
        request_id: str | None = None,
        native: bool = False,
    ) -> Reply:
        """Return the reply.

        Args:
            dialect: how it was answered; kept beside native items, which only the same dialect gets back.
            provider: who answered.
            model: what was asked; kept where the answer does not name one.
            raw: the parsed body.
            request_id: from the response's headers.
            native: keep the native items in the message (they matter to this dialect: reasoning, signatures).

        Raises:
            InvalidProviderResponseError: nothing arrived and the provider gave no finish reason.
        """
        if self._finish is None and not self.has_content:
            raise InvalidProviderResponseError(
                f"{provider} sent an empty answer without a finish reason for model {model}.", provider=provider, model=model
            )
        text, reasoning, refusal = self.text, "".join(self._reasoning), "".join(self._refusal)
        finish: FinishReason = self._finish or "unknown"
        calls = self._finished_calls(finish == "length")
        if refusal and finish in ("stop", "unknown"):
            finish = "refusal"
        elif calls and (finish == "stop" or (finish == "unknown" and not self._raw_finish)):
            finish = "tool_calls"
        message: JSON = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = calls
        if reasoning:
            message["reasoning_content"] = reasoning
        if refusal:
            message["refusal"] = refusal
        if native and self._native:
            message["provider_data"] = {"dialect": dialect, "provider": provider, "model": model, "items": self._native}
        return Reply(
            text=text,
            tool_calls=calls or None,
            usage=self.usage,
            finish_reason=finish,
            raw_finish_reason=self._raw_finish,
            reasoning=reasoning or None,
            refusal=refusal or None,
            model=self._model or model,
            id=self._id,
            request_id=request_id,
            raw=raw,
            message=message,
        )

    def _finished_calls(self, cut: bool) -> list[JSON]:
        out: list[JSON] = []
        seen: set[str] = set()
        for slot in self._calls:
            call = self._calls[slot]
            arguments = "".join(call.arguments)
            if not cut and arguments.strip() in ("", "null"):
                arguments = "{}"
            if not call.id or call.id in seen:
                call.id = new_call_id()
            seen.add(call.id)
            item: JSON = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
            if call.extra:
                item.update(call.extra)
            out.append(item)
        return out


def _text(value: Any) -> str:
    """Return what a decoder took for a text; a number in its place would break whoever joins the pieces."""
    if type(value) is not str:
        raise TypeError(f"a text is expected, not {type(value).__name__}")
    return value


def fold(events: Iterable[Event], *, dialect: str = "", provider: str = "", model: str = "") -> Reply:
    """Return the reply that these events make."""
    state = Fold()
    for event in events:
        state.add(event)
    return state.reply(dialect=dialect, provider=provider, model=model)


def new_call_id() -> str:
    """Return a fresh call id: 9 letters and digits, the one form that every provider accepts (Mistral wants exactly 9)."""
    return "c" + secrets.token_hex(4)
