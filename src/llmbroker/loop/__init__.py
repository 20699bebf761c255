"""The tool loop over any object with ``chat``: whole or streamed, bounded, watched, paused. How it works stands in ``flow``."""

from llmbroker.loop.approval import Decision, Paused, PendingCall
from llmbroker.loop.compaction import Compaction
from llmbroker.loop.events import (
    CallReady,
    Compacted,
    FailedOver,
    LoopEvent,
    LoopFinished,
    StepFinished,
    StepStarted,
    StepUsage,
    ToolFinished,
    ToolProgress,
    ToolStarted,
)
from llmbroker.loop.faces import arun_tool_loop, astream_tool_loop, run_tool_loop, stream_tool_loop
from llmbroker.loop.run import StepInfo
from llmbroker.loop.stream import AsyncToolLoopStream, ToolLoopStream
from llmbroker.tools import ToolHistory, ToolLoop, ToolRow, Transcript

__all__ = [
    "AsyncToolLoopStream",
    "CallReady",
    "Compacted",
    "Compaction",
    "Decision",
    "FailedOver",
    "LoopEvent",
    "LoopFinished",
    "Paused",
    "PendingCall",
    "StepFinished",
    "StepInfo",
    "StepStarted",
    "StepUsage",
    "ToolFinished",
    "ToolHistory",
    "ToolLoop",
    "ToolLoopStream",
    "ToolProgress",
    "ToolRow",
    "ToolStarted",
    "Transcript",
    "arun_tool_loop",
    "astream_tool_loop",
    "run_tool_loop",
    "stream_tool_loop",
]
