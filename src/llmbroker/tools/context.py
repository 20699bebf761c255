"""What a tool may know of the loop that runs it: the hidden argument ``ctx``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ToolCancelledError(Exception):
    """The loop that asked for this call is over; the tool should end. Raised by ``ToolContext.check``."""


class ToolContext:
    """The loop as a tool sees it. An argument of this type, or one called ``ctx`` without a type, is not shown to the model.

    Attributes:
        call_id: the id of this call in the messages. tool: the tool's name. step: the model call that asked for it, from 1.
        attempt: 1, or more where the tool is tried again.
        trace_id, operation: as the loop was told. scope: the user that the caller stands for, or None.
        deadline: the moment at which the call must end, on the scale of ``now()``, or None.
        messages: a copy of the conversation so far.
    """

    __slots__ = (
        "_emit", "_now", "_over", "attempt", "call_id", "deadline", "messages", "operation", "scope", "step", "tool",
        "trace_id",
    )  # fmt: skip

    def __init__(
        self,
        *,
        call_id: str = "",
        tool: str = "",
        step: int = 0,
        attempt: int = 1,
        trace_id: str | None = None,
        operation: str | None = None,
        scope: str | None = None,
        deadline: float | None = None,
        messages: list[dict[str, Any]] | None = None,
        now: Callable[[], float] | None = None,
        over: Callable[[], bool] | None = None,
        emit: Callable[[Any], None] | None = None,
    ) -> None:
        self.call_id = call_id
        self.tool = tool
        self.step = step
        self.attempt = attempt
        self.trace_id = trace_id
        self.operation = operation
        self.scope = scope
        self.deadline = deadline
        self.messages = messages or []
        self._now = now
        self._over = over
        self._emit = emit

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the deadline, at least 0; None if there is none."""
        if self.deadline is None or self._now is None:
            return None
        return max(0.0, self.deadline - self._now())

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the result any more; a tool that runs long looks here now and then."""
        return (self._over is not None and self._over()) or self.seconds_left == 0.0

    def check(self) -> None:
        """Raise ``ToolCancelledError`` if nobody waits for the result any more."""
        if self.cancelled:
            raise ToolCancelledError(f"The call {self.call_id} of {self.tool} is not wanted any more.")

    def progress(self, value: Any) -> None:
        """Tell whoever watches the loop how far the tool is; without a watcher nothing happens. From any thread."""
        if self._emit is not None:
            self._emit(value)
