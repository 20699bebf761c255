"""Tools: from a model's words to the call of a function, and from the function's value to words for the model.

``functions`` makes tools of functions (``signature``, ``types``, ``docwords`` read them), ``arguments`` reads and repairs,
``schema`` checks, ``toolbox`` finds the function, ``results`` and ``content`` make text, ``turn`` reads the answer of any
caller, ``records`` keeps what happened, ``context`` is what a running tool may know. Nothing here talks to a model or runs a
function: that is the loop's.
"""

from llmbroker.tools.arguments import Arguments, canonical, read_arguments
from llmbroker.tools.content import File, Image, content_of, json_text
from llmbroker.tools.context import ToolCancelledError, ToolContext
from llmbroker.tools.functions import Bound, FunctionTool, Rules, made_tools, tool
from llmbroker.tools.records import Tally, ToolHistory, ToolLoop, ToolRow, Transcript
from llmbroker.tools.results import DEFAULT_LIMIT, checked_limit, error_words, fit, result_text
from llmbroker.tools.schema import check_value
from llmbroker.tools.toolbox import Tool, Toolbox
from llmbroker.tools.turn import Call, Turn, read_turn
from llmbroker.tools.types import Wrong, shape_of

__all__ = [
    "DEFAULT_LIMIT",
    "Arguments",
    "Bound",
    "Call",
    "File",
    "FunctionTool",
    "Image",
    "Rules",
    "Tally",
    "Tool",
    "ToolCancelledError",
    "ToolContext",
    "ToolHistory",
    "ToolLoop",
    "ToolRow",
    "Toolbox",
    "Transcript",
    "Turn",
    "Wrong",
    "canonical",
    "check_value",
    "checked_limit",
    "content_of",
    "error_words",
    "fit",
    "json_text",
    "made_tools",
    "read_arguments",
    "read_turn",
    "result_text",
    "shape_of",
    "tool",
]
