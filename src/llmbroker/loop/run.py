"""What one loop knows while it runs: its settings, the conversation, rows and sums; and what becomes of each call."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from llmbroker.budget import LEDGER, Budget, Ledger, Spent
from llmbroker.errors import InvalidRequestError
from llmbroker.exchange import Reply
from llmbroker.io import Port
from llmbroker.loop.approval import Approvals, Decision, Paused, PendingCall
from llmbroker.loop.compaction import Compaction
from llmbroker.loop.output import Output
from llmbroker.loop.spans import tracer
from llmbroker.loop.watch import Watch
from llmbroker.messages import History, shown
from llmbroker.tools import DEFAULT_LIMIT, Bound, Call, Tally, Tool, Toolbox, ToolHistory, ToolLoop, checked_limit

JSON: TypeAlias = dict[str, Any]
Ask: TypeAlias = "Callable[[Run], Awaitable[Any]]"

DEFAULT_STEPS = 8
DEFAULT_CONCURRENCY = 8

_log = logging.getLogger("llmbroker.loop")


class StepInfo(msgspec.Struct, frozen=True):
    """A loop between two steps, for ``stop_when`` and ``prepare_step``.

    Attributes:
        step: model calls so far; in ``prepare_step`` the one that comes now.
        reply: the last reply, or None. messages: the conversation, not to be changed.
        tool_history: one row a call so far. spent: what was spent, where there is a budget.
    """

    step: int
    reply: Any
    messages: Sequence[JSON]
    tool_history: ToolHistory
    spent: Spent | None = None


class Recorder(Protocol):
    """Who writes a run down while it runs; each method returns when what it was told is safe."""

    async def replied(self, run: Run, final: Any) -> None:
        """The model's turn stands in the history; ``final`` is the reply where it ends the loop, else None."""

    async def started(self, run: Run, plan: Plan) -> None:
        """A call begins now."""

    async def finished(self, run: Run, plan: Plan) -> None:
        """A call has its result."""

    def recall(self, run: Run, plan: Plan) -> bool:
        """Give an open call the result that was written down, or say that it was interrupted; return whether it has one now."""


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
    approve: Any = None
    answers: Sequence[Decision] | None = None
    budget: Budget | None = None
    stop_when: Any = None
    prepare_step: Any = None
    output: Any = None
    compaction: Any = None
    recorder: Any = None
    then: Sequence[JSON] = ()


class Plan(msgspec.Struct):
    """What becomes of one call: a function to run, or a result that is known without running anything.

    ``text`` is the result once it is known, ``content`` its parts where it is more than text; ``open`` says that the call may
    still be run later, ``began`` that it was under way when an earlier run of the loop was killed.
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
    bound: Bound | None = None
    began: bool = False
    content: Any = None


class Run:
    """All that one loop knows.

    Attributes:
        bounded: a step has more to do than a plain one.
        allowed: names of the tools of this step, None for all. no_tools: why no tool may run any more, or None.
        over: the loop has ended. shortened: its history was, since it was last written down. awaited: by the asyncio face.
        in_thread: the caller is one for plain code, though the loop is awaited.
        then: messages that come after the results of the calls that the given history left open.
    """

    bounded = awaited = in_thread = over = shortened = False
    allowed: frozenset[str] | None = None
    no_tools: str | None = None
    stop: str | None = None
    approvals = Approvals(None, None)
    stop_when: tuple[Callable[[StepInfo], Any], ...] = ()
    prepare_step: Any = None
    output: Output | None = None
    compaction: Compaction | None = None
    recorder: Recorder | None = None
    then: Sequence[JSON] = ()
    ledger: Ledger | None = None
    deadline: float | None = None
    trace: Any = None
    watch: Watch | None = None
    last_reply: Any = None
    value: Any = None

    def __init__(self, caller: Any, messages: Any, port: Port, ask: Ask, options: Options) -> None:
        self.caller = caller
        self.port = port
        self.ask = ask
        self.box = Toolbox(options.tools, options.dispatch)
        self.history = History(messages.messages if isinstance(messages, Paused) else messages)
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
        self.offered = self.box.declared
        self.own = getattr(caller, "_io", None) is not None
        self.used = used_ids(self.history)
        self.seen: dict[tuple[str, str, str], int] = {}
        self._further(options, messages)
        if self.transcript is not None:
            self.publish()

    def _further(self, options: Options, messages: Any) -> None:
        """Set what a plain loop does without; its class has the values of one that asks for nothing."""
        paused = isinstance(messages, Paused)
        if options.approve is not None or options.answers is not None:
            self.approvals = Approvals(options.approve, options.answers)
            waiting: dict[str, str | None] = {str(call.get("id")): None for call in self.history.open_calls()}
            if paused:
                waiting = {call.id: call.hash for call in messages.pending}
            self.approvals.check(waiting, self.used)
            if paused:
                self.approvals.fit(messages.pending, self.box.find)
        if options.stop_when is not None:
            self.stop_when = _callables(options.stop_when, "stop_when")
        if options.output is not None:
            self.output = Output(options.output)
        if options.prepare_step is not None and not callable(options.prepare_step):
            raise InvalidRequestError(
                f"prepare_step is a function of a StepInfo, not {shown(options.prepare_step)}.", argument="prepare_step"
            )
        self.prepare_step = options.prepare_step
        if options.compaction is not None and not isinstance(options.compaction, Compaction):
            raise InvalidRequestError(
                f"compaction is a Compaction(...), not {shown(options.compaction)}.", argument="compaction"
            )
        self.compaction = options.compaction
        self.recorder = options.recorder
        self.then = options.then
        self.trace = tracer()
        outer = LEDGER.get()
        if options.budget is not None and not isinstance(options.budget, Budget):
            raise InvalidRequestError(f"budget is a Budget(...), not {shown(options.budget)}.", argument="budget")
        if options.budget is not None or outer is not None:
            self.ledger = Ledger(options.budget, outer, self.port.now(), messages.spent if paused else None)
            self.deadline = self.ledger.deadline
            if options.budget is not None and options.budget.steps is not None and self.max_steps == DEFAULT_STEPS:
                self.max_steps = max(self.max_steps, options.budget.steps + 1)
        if paused:
            self.step = messages.step
        self.bounded = bool(
            self.ledger or self.stop_when or self.prepare_step or self.output or self.compaction or self.recorder or self.trace
        )

    @property
    def info(self) -> StepInfo:
        """The loop as hooks see it."""
        spent = self.ledger.snapshot(self.port.now()) if self.ledger is not None else None
        return StepInfo(self.step, self.last_reply, self.history, self.rows, spent)

    @property
    def last(self) -> bool:
        """Whether this is the last permitted model call."""
        return self.step >= self.max_steps

    def publish(self) -> tuple[list[JSON], ToolHistory, ToolLoop]:
        """Return messages, rows and sums as they stand, and write them into the transcript.

        Raises:
            InvalidRequestError: the transcript takes no attributes.
        """
        facts = list(self.history), self.rows, self.tally.closed(len(self.rows), self.stop)
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
        self.over = True
        messages, rows, sums = self.publish()
        if isinstance(reply, Reply):
            made = msgspec.structs.replace(reply, messages=messages, tool_history=rows, tool_loop=sums)
            return made if self.output is None else msgspec.structs.replace(made, parsed=self.value)
        return reply

    def paused(self, pending: list[PendingCall]) -> Paused:
        """Return the run as a value that waits for decisions."""
        messages, _, _ = self.publish()
        self.over = True
        spent = self.ledger.snapshot(self.port.now()) if self.ledger is not None else None
        run_id = getattr(self.recorder, "run_id", None)
        made = Paused(messages=messages, pending=pending, step=self.step, spent=spent, run_id=run_id)
        if (take := getattr(self.transcript, "take_pause", None)) is not None:
            take(made)
        return made

    def leave(self, error: BaseException) -> None:
        """Let an exception that leaves carry what happened."""
        self.over = True
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
        raise InvalidRequestError(f"{argument} is a whole number of at least {least}, not {shown(value)}.", argument=argument)
    return value


def _callables(given: Any, argument: str) -> tuple[Callable[[StepInfo], Any], ...]:
    found = () if given is None else tuple(given) if isinstance(given, (list, tuple)) else (given,)
    if not all(callable(one) for one in found):
        raise InvalidRequestError(f"{argument} is a function of a StepInfo, or several.", argument=argument)
    return found
