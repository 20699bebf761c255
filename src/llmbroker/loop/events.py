"""What a loop tells while it runs, in the order in which it happens. Pieces of the answer are those of ``exchange``."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from llmbroker.exchange import ReasoningDelta, RefusalDelta, TextDelta, Usage

JSON: TypeAlias = dict[str, Any]


class StepStarted(msgspec.Struct, frozen=True, tag="step_started"):
    """The model is about to be called; ``step`` counts from 1."""

    step: int


class FailedOver(msgspec.Struct, frozen=True, tag="failed_over"):
    """A model of the pool did not answer and another one did: ``llm_name`` failed with ``status``."""

    step: int
    llm_name: str
    status: str
    detail: str | None = None


class CallReady(msgspec.Struct, frozen=True, tag="call_ready"):
    """The model asks for a tool. ``arguments`` are those that were read, or None where the tool will not run."""

    step: int
    id: str
    name: str
    arguments: JSON | None


class ToolStarted(msgspec.Struct, frozen=True, tag="tool_started"):
    """A tool begins to run; ``attempt`` is more than 1 where it is tried again."""

    id: str
    name: str
    attempt: int = 1


class ToolProgress(msgspec.Struct, frozen=True, tag="tool_progress"):
    """A running tool says how far it is (``ctx.progress(value)``)."""

    id: str
    name: str
    value: Any


class ToolFinished(msgspec.Struct, frozen=True, tag="tool_finished"):
    """A call has its result: the text that the model gets. ``error`` says why there is no real one."""

    id: str
    name: str
    result: str
    error: str | None
    duration: float | None


class StepUsage(msgspec.Struct, frozen=True, tag="usage"):
    """The tokens of a step's model call, or None where they are not known; ``cost`` in US dollars where it is."""

    step: int
    usage: Usage | None
    cost: float | None = None


class Compacted(msgspec.Struct, frozen=True, tag="compacted"):
    """The conversation was made shorter: so many characters before and after, and what was done."""

    before: int
    after: int
    how: str


class StepFinished(msgspec.Struct, frozen=True, tag="step_finished"):
    """A step is over, its tools included (those that wait for somebody aside); ``reply`` is what the model said."""

    step: int
    reply: Any


class LoopFinished(msgspec.Struct, frozen=True, tag="finished"):
    """The loop is over; ``reply`` is what ``run_tool_loop`` would return: the last reply, or a ``Paused``."""

    reply: Any


LoopEvent: TypeAlias = (
    StepStarted | TextDelta | ReasoningDelta | RefusalDelta | FailedOver | CallReady | ToolStarted | ToolProgress
    | ToolFinished | StepUsage | Compacted | StepFinished | LoopFinished
)  # fmt: skip
