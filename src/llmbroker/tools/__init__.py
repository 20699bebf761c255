"""Tools: from a model's words to the call of a function, and from the function's value to words for the model.

``arguments`` reads and repairs, ``schema`` checks, ``toolbox`` finds the function, ``results`` makes text, ``turn`` reads the
answer of any caller, ``records`` keeps what happened. Nothing here talks to a model or runs a function: that is the loop's.
"""

from llmbroker.tools.arguments import Arguments, canonical, read_arguments
from llmbroker.tools.records import Tally, ToolHistory, ToolLoop, ToolRow, Transcript
from llmbroker.tools.results import DEFAULT_LIMIT, checked_limit, error_words, fit, result_text
from llmbroker.tools.schema import check_value
from llmbroker.tools.toolbox import Tool, Toolbox
from llmbroker.tools.turn import Call, Turn, read_turn

__all__ = [
    "DEFAULT_LIMIT",
    "Arguments",
    "Call",
    "Tally",
    "Tool",
    "ToolHistory",
    "ToolLoop",
    "ToolRow",
    "Toolbox",
    "Transcript",
    "Turn",
    "canonical",
    "check_value",
    "checked_limit",
    "error_words",
    "fit",
    "read_arguments",
    "read_turn",
    "result_text",
]
