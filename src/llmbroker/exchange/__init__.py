"""What goes to a model and what comes back, in one shape for every dialect.

``Request`` goes in; a dialect's decoder yields events; ``Fold`` makes the ``Reply``. A whole answer takes the same way as a
streamed one (its decoder yields the events of the whole body at once), so that both give the same reply by construction.

Usage is normalised: input includes cached tokens, output includes reasoning; what a provider does not say stays None, never 0.
"""

from __future__ import annotations

from llmbroker.exchange.events import (
    CONTENT_EVENTS,
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
from llmbroker.exchange.reply import Fold, Reply, fold, new_call_id
from llmbroker.exchange.request import RESERVED, STEP, Choice, Request, ToolSet, ToolSpec, make_request, tool_choice, tool_set

__all__ = [
    "CONTENT_EVENTS",
    "JSON",
    "RESERVED",
    "STEP",
    "CallDelta",
    "Choice",
    "Event",
    "FinishReason",
    "Finished",
    "Fold",
    "Native",
    "ReasoningDelta",
    "RefusalDelta",
    "Reply",
    "Request",
    "Started",
    "TextDelta",
    "ToolSet",
    "ToolSpec",
    "Usage",
    "UsageReport",
    "fold",
    "make_request",
    "new_call_id",
    "tool_choice",
    "tool_set",
]
