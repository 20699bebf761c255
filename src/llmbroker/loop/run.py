"""What one loop knows while it runs: its settings, the conversation, rows and sums; and what becomes of each call."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from llmbroker.errors import InvalidRequestError
from llmbroker.exchange import Reply
from llmbroker.io import Port
from llmbroker.messages import History
from llmbroker.tools import DEFAULT_LIMIT, Call, Tally, Tool, Toolbox, ToolHistory, ToolLoop, checked_limit

JSON: TypeAlias = dict[str, Any]
Ask: TypeAlias = "Callable[[Run], Awaitable[Any]]"

DEFAULT_STEPS = 8
DEFAULT_CONCURRENCY = 8

_log = logging.getLogger("llmbroker.loop")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a loop, as ``run_tool_loop`` describes them."""

    tools: Sequence[Any] | None = None
    dispatch: Mapping[str, Any] | None = None
    max_steps: int = DEFAULT_STEPS
    max_repeats: int | None = None
    max_tool_calls: float | None = None
    max_concurrency: int = DEFAULT_CONCURRENCY
    result_limit: int | None = DEFAULT_LIMIT
    keep_tool_choice: bool = False
    transcript: Any = None
    chat_parameters: JSON = {}


class Plan(msgspec.Struct):
    """What becomes of one call: a function to run, or a result that is known without running anything.

    ``text`` is the result once it is known; ``open`` says that the call may still be run later.
    """

    call: Call
    tool: Tool | None = None
    arguments: JSON | None = None
    written: str = ""
    repaired: bool = False
    text: str | None = None
    error: str | None = None
    duration: float | None = None
    open: bool = True


class Run:
    """All that one loop knows."""

    def __init__(self, caller: Any, messages: Any, port: Port, ask: Ask, options: Options) -> None:
        self.caller = caller
        self.port = port
        self.ask = ask
        self.box = Toolbox(options.tools, options.dispatch)
        self.history = History(messages)
        self.parameters: JSON = options.chat_parameters
        self.keep_tool_choice = bool(options.keep_tool_choice)
        self.max_steps = _whole(options.max_steps, "max_steps", 1)
        self.max_concurrency = _whole(options.max_concurrency, "max_concurrency", 1)
        repeats = options.max_repeats
        self.max_repeats = None if repeats is None else _whole(repeats, "max_repeats", 2)
        self.tool_calls_left: float | None = options.max_tool_calls
        self.result_limit = checked_limit(options.result_limit)
        self.transcript = options.transcript
        self.rows = ToolHistory()
        self.tally = Tally()
        self.step = 0
        self.malformed = 0
        self.own = getattr(caller, "_io", None) is not None
        self.used = used_ids(self.history)
        self.seen: dict[tuple[str, str, str], int] = {}
        self.publish()

    @property
    def last(self) -> bool:
        """Whether this is the last permitted model call."""
        return self.step >= self.max_steps

    def publish(self) -> tuple[list[JSON], ToolHistory, ToolLoop]:
        """Return messages, rows and sums as they stand, and write them into the transcript.

        Raises:
            InvalidRequestError: the transcript takes no attributes.
        """
        facts = list(self.history), self.rows, self.tally.closed(len(self.rows))
        if self.transcript is not None:
            try:
                _receive(self.transcript, *facts)
            except (AttributeError, TypeError, ValueError) as error:
                raise InvalidRequestError(
                    f"transcript is an object that takes the attributes messages, tool_history and tool_loop: {error}.",
                    argument="transcript",
                ) from None
        return facts

    def finished(self, reply: Any) -> Any:
        """Return the final reply: ours with all that happened, a foreign one as it is."""
        messages, rows, sums = self.publish()
        if isinstance(reply, Reply):
            return msgspec.structs.replace(reply, messages=messages, tool_history=rows, tool_loop=sums)
        return reply

    def leave(self, error: BaseException) -> None:
        """Let an exception that leaves carry what happened."""
        facts = self.publish()
        try:
            _receive(error, *facts)
        except Exception:  # an exception with slots of its own stays as it is
            _log.debug("cannot attach the messages to %s", type(error).__name__)


def used_ids(history: History) -> set[str]:
    """Return the call ids that a conversation has used, as they were given and as they are sent."""
    sent = {call.id for block in history.blocks if block.assistant for call in block.assistant.calls}
    given = {call.get("id") for message in history for call in message.get("tool_calls") or ()}
    return sent | {name for name in given if isinstance(name, str)}


def _receive(target: Any, messages: list[JSON], rows: ToolHistory, sums: ToolLoop) -> None:
    if isinstance(target, dict):
        target.update(messages=messages, tool_history=rows, tool_loop=sums)
    else:
        target.messages, target.tool_history, target.tool_loop = messages, rows, sums


def _whole(value: Any, argument: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidRequestError(f"{argument} is a whole number of at least {least}, not {value!r}.", argument=argument)
    return value
