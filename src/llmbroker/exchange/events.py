"""What a decoder yields: the events of one turn, and usage in one measure."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter", "refusal", "error", "unknown"]
JSON: TypeAlias = dict[str, Any]


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens of one call. None means that the provider did not say.

    Attributes:
        input_tokens: all tokens sent, cached ones included.
        output_tokens: all tokens produced, reasoning included.
        cached_input_tokens: the part of the input that was read from a cache.
        cache_write_tokens: the part of the input that was written to a cache.
        reasoning_tokens: the part of the output that is reasoning.
        total_tokens: the provider's total, else input + output where both are known.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    total_tokens: int | None = None

    @property
    def prompt_tokens(self) -> int | None:
        """The same as ``input_tokens``, in the words of OpenAI."""
        return self.input_tokens

    @property
    def completion_tokens(self) -> int | None:
        """The same as ``output_tokens``, in the words of OpenAI."""
        return self.output_tokens

    def merged(self, later: Usage) -> Usage:
        """Return the last known value of each field: providers repeat and complete usage, they do not add to it."""
        return Usage(
            self.input_tokens if later.input_tokens is None else later.input_tokens,
            self.output_tokens if later.output_tokens is None else later.output_tokens,
            self.cached_input_tokens if later.cached_input_tokens is None else later.cached_input_tokens,
            self.cache_write_tokens if later.cache_write_tokens is None else later.cache_write_tokens,
            self.reasoning_tokens if later.reasoning_tokens is None else later.reasoning_tokens,
            self.total_tokens if later.total_tokens is None else later.total_tokens,
        )

    def fields(self) -> tuple[int | None, ...]:
        """Return the six counts in order."""
        return (
            self.input_tokens,
            self.output_tokens,
            self.cached_input_tokens,
            self.cache_write_tokens,
            self.reasoning_tokens,
            self.total_tokens,
        )


class Started(msgspec.Struct, frozen=True, gc=False, tag="started"):
    """The answer began. ``model`` and ``id`` as the provider names them.

    ``restart``: the provider gave up the answer that had begun and starts another in the same stream; what came before is void.
    """

    model: str | None = None
    id: str | None = None
    restart: bool = False


class TextDelta(msgspec.Struct, frozen=True, gc=False, tag="text"):
    """A piece of the answer's text."""

    text: str


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False, tag="reasoning"):
    """A piece of the model's reasoning, where the provider shows it."""

    text: str


class RefusalDelta(msgspec.Struct, frozen=True, gc=False, tag="refusal"):
    """A piece of a refusal; it is not part of the text."""

    text: str


class CallDelta(msgspec.Struct, frozen=True, tag="call"):
    """A piece of a tool call. ``slot`` is this call's place in the turn; equal slots belong together.

    ``id`` and ``name``: the first that is not empty counts. ``arguments``: a piece of JSON text, appended. ``extra``: opaque
    keys that the provider wants back on the call (``extra_content``). ``replaces``: the arguments are the whole, in place of
    the pieces before (a provider's authoritative last word).
    """

    slot: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    extra: JSON | None = None
    replaces: bool = False


class UsageReport(msgspec.Struct, frozen=True, tag="usage"):
    """Usage so far; a later report replaces the fields that it states."""

    usage: Usage


class Native(msgspec.Struct, frozen=True, tag="native"):
    """One item of the turn in the provider's own shape, to be sent back as it is when the history goes to this dialect."""

    item: JSON


class Finished(msgspec.Struct, frozen=True, gc=False, tag="finished"):
    """The provider said how the turn ended; ``raw`` is its own word."""

    reason: FinishReason
    raw: str | None = None


Event: TypeAlias = Started | TextDelta | ReasoningDelta | RefusalDelta | CallDelta | UsageReport | Native | Finished
CONTENT_EVENTS = (TextDelta, ReasoningDelta, RefusalDelta, CallDelta)
