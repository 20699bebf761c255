"""The tool loop over any object with ``chat``: ``run_tool_loop`` and ``arun_tool_loop``. How it works stands in ``flow``."""

from llmbroker.loop.faces import arun_tool_loop, run_tool_loop
from llmbroker.tools import ToolHistory, ToolLoop, ToolRow, Transcript

__all__ = ["ToolHistory", "ToolLoop", "ToolRow", "Transcript", "arun_tool_loop", "run_tool_loop"]
