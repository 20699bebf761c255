"""The researcher's verbs: one config, any provider, tidy results, nothing unaccounted for.

Faces over the one engine: a config is a deployment of the provider table, a call is the client's flow, tools run in the one
loop. ``config`` and ``keys`` say who is asked, ``prompts`` what, ``calls`` how often, ``verbs`` are what users call.
"""

from llmbroker.research.config import ModelConfig, llm_config
from llmbroker.research.response import Response, Tokens, finish_reason, tokens, tool_calls
from llmbroker.research.structured import llm_parse_structured
from llmbroker.research.tool import LLMTool, llm_tool
from llmbroker.research.verbs import (
    acall_llm,
    acall_llm_robust,
    acall_llm_stream,
    acall_llm_tools,
    call_llm,
    call_llm_robust,
    call_llm_stream,
    call_llm_tools,
)

__all__ = [
    "LLMTool",
    "ModelConfig",
    "Response",
    "Tokens",
    "acall_llm",
    "acall_llm_robust",
    "acall_llm_stream",
    "acall_llm_tools",
    "call_llm",
    "call_llm_robust",
    "call_llm_stream",
    "call_llm_tools",
    "finish_reason",
    "llm_config",
    "llm_parse_structured",
    "llm_tool",
    "tokens",
    "tool_calls",
]
