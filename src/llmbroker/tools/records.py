"""What a loop did: one row for each call, and the sums over all model calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec

from llmbroker.errors import missing_package
from llmbroker.exchange import Usage

MOST_TOKENS = 1 << 53
"""A count beyond is no count."""

COLUMNS = ("round", "id", "name", "arguments", "result", "error", "repaired", "duration")


class ToolRow(dict[str, Any]):
    """One tool call of a loop; a dict that does not change, whose columns are attributes too.

    Columns:
        round: the model call that asked for it, counted from 1; 0 for calls that were open when the loop began.
        id: the call's id in the messages. name: the tool's name as the model wrote it.
        arguments: JSON text of the arguments as they were read; what the model wrote where they could not be read.
        result: the text that the model got.
        error: None, or why there is no real result.
        repaired: whether the arguments were mended before the tool ran.
        duration: seconds that the tool ran; None if it did not run.
    """

    def __getattr__(self, name: str) -> Any:
        """Return a column."""
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def _frozen(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a row of a tool history does not change")

    __setitem__ = __delitem__ = __setattr__ = __delattr__ = __ior__ = _frozen
    clear = pop = popitem = setdefault = update = _frozen

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive pickling and copying."""
        return type(self), (dict(self),)


class ToolHistory(list[ToolRow]):
    """The calls of a loop in the model's order; the columns are those of ``ToolRow``."""

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame; it has its columns even if there are no rows. Needs pandas.

        Raises:
            ConfigurationError: it is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise missing_package("pandas", "'llmbroker[frames]'") from None

        return pandas.DataFrame([dict(row) for row in self], columns=list(COLUMNS))


class ToolLoop(msgspec.Struct, frozen=True):
    """Sums over all model calls of a loop. Sums of tokens add what is known; None if no call reported it.

    Attributes:
        model_calls: calls to the model, failed ones included.
        sent: input tokens, cached ones included.
        rec: output tokens, reasoning included.
        tool_calls: tool calls that got a result (rows of the history).
        unknown_usage: model calls whose usage is not known.
        reasoning: output tokens that were reasoning.
        cached: input tokens that were read from a cache.
        cost: US dollars of the calls whose price is known; None if none is.
        stop: what ended the loop before the model did: ``stop_when``, ``budget`` (see ``Budget.at_limit``) or ``paused``; else
            None.
    """

    model_calls: int = 0
    sent: int | None = None
    rec: int | None = None
    tool_calls: int = 0
    unknown_usage: int = 0
    reasoning: int | None = None
    cached: int | None = None
    cost: float | None = None
    stop: str | None = None


class Transcript:
    """An object to hand in as ``transcript=``: after the loop, however it ended, it holds what happened.

    Attributes:
        messages: the whole conversation; it can be sent, or handed back to the loop.
        tool_history: a ``ToolHistory``.
        tool_loop: a ``ToolLoop``.
    """

    messages: list[dict[str, Any]]
    tool_history: ToolHistory
    tool_loop: ToolLoop

    def __init__(self) -> None:
        self.messages = []
        self.tool_history = ToolHistory()
        self.tool_loop = ToolLoop()


class Tally:
    """Adds up usage; what a call does not say is not counted as 0."""

    __slots__ = ("cached", "calls", "cost", "reasoning", "rec", "sent", "unknown")

    def __init__(self) -> None:
        self.calls = 0
        self.unknown = 0
        self.sent: int | None = None
        self.rec: int | None = None
        self.reasoning: int | None = None
        self.cached: int | None = None
        self.cost: float | None = None

    def add(self, usage: Any) -> None:
        """Count the usage of one answer, ours or of any shape that names tokens."""
        if type(usage) is Usage and type(usage.input_tokens) is type(usage.output_tokens) is int:
            self.sent = _sum(self.sent, usage.input_tokens)
            self.rec = _sum(self.rec, usage.output_tokens)
            self.reasoning = _sum(self.reasoning, usage.reasoning_tokens)
            self.cached = _sum(self.cached, usage.cached_input_tokens)
            return
        sent = _tokens(usage, "input_tokens", "prompt_tokens")
        rec = _tokens(usage, "output_tokens", "completion_tokens")
        if sent is None and rec is None:
            self.unknown += 1
            return
        self.sent = _sum(self.sent, sent)
        self.rec = _sum(self.rec, rec)
        self.reasoning = _sum(self.reasoning, _tokens(usage, "reasoning_tokens"))
        self.cached = _sum(self.cached, _tokens(usage, "cached_input_tokens"))

    def pay(self, dollars: float | None) -> None:
        """Count what one answer cost."""
        if dollars is not None:
            self.cost = (self.cost or 0.0) + dollars

    def closed(self, rows: int, stop: str | None = None) -> ToolLoop:
        """Return the sums."""
        return ToolLoop(self.calls, self.sent, self.rec, rows, self.unknown, self.reasoning, self.cached, self.cost, stop)


def _sum(known: int | None, new: int | None) -> int | None:
    if new is None:
        return known
    return new if known is None else known + new


def _tokens(usage: Any, *names: str) -> int | None:
    for name in names:
        value = usage.get(name) if isinstance(usage, Mapping) else getattr(usage, name, None)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < MOST_TOKENS:
            return int(value)
    return None
