"""The researcher's verbs: one config, any provider, tidy results, nothing unaccounted for.

Faces over the one engine: a config is a deployment of the provider table, a call is the client's flow, tools run in the one
loop. ``config`` and ``keys`` say who is asked, ``prompts`` what, ``calls`` how often, ``verbs`` are what users call.

A name is imported from its file when it is first used: who asks one question loads nothing that rows or reports need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmbroker.research.agreement import Agreement, llm_agreement
    from llmbroker.research.audit import (
        llm_export,
        llm_log_disable,
        llm_log_enable,
        llm_log_read,
        llm_log_status,
        llm_request_from_log,
    )
    from llmbroker.research.config import ModelConfig, llm_config
    from llmbroker.research.designs import (
        acall_llm_broadcast,
        acall_llm_compare,
        acall_llm_sweep,
        allm_replicate,
        build_factorial_experiments,
        call_llm_broadcast,
        call_llm_compare,
        call_llm_sweep,
        llm_replicate,
    )
    from llmbroker.research.embeddings import Embeddings, aget_batched_embeddings, get_batched_embeddings
    from llmbroker.research.estimate import Estimate
    from llmbroker.research.hashing import llm_hash, llm_request_hash, llm_tool_signature
    from llmbroker.research.preview import llm_preview
    from llmbroker.research.reporting import Usages, llm_failures, llm_usage, report
    from llmbroker.research.response import Response, Tokens, finish_reason, tokens, tool_calls
    from llmbroker.research.rows import acall_llm_par, acall_llm_tools_par, call_llm_par, call_llm_tools_par
    from llmbroker.research.structured import llm_parse_structured
    from llmbroker.research.tags import llm_parse_tags
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

_FILE_OF = {
    "Agreement": "agreement",
    "Embeddings": "embeddings",
    "Estimate": "estimate",
    "LLMTool": "tool",
    "ModelConfig": "config",
    "Response": "response",
    "Tokens": "response",
    "Usages": "reporting",
    "acall_llm": "verbs",
    "acall_llm_broadcast": "designs",
    "acall_llm_compare": "designs",
    "acall_llm_par": "rows",
    "acall_llm_robust": "verbs",
    "acall_llm_stream": "verbs",
    "acall_llm_sweep": "designs",
    "acall_llm_tools": "verbs",
    "acall_llm_tools_par": "rows",
    "aget_batched_embeddings": "embeddings",
    "allm_replicate": "designs",
    "build_factorial_experiments": "designs",
    "call_llm": "verbs",
    "call_llm_broadcast": "designs",
    "call_llm_compare": "designs",
    "call_llm_par": "rows",
    "call_llm_robust": "verbs",
    "call_llm_stream": "verbs",
    "call_llm_sweep": "designs",
    "call_llm_tools": "verbs",
    "call_llm_tools_par": "rows",
    "finish_reason": "response",
    "get_batched_embeddings": "embeddings",
    "llm_agreement": "agreement",
    "llm_config": "config",
    "llm_export": "audit",
    "llm_failures": "reporting",
    "llm_hash": "hashing",
    "llm_log_disable": "audit",
    "llm_log_enable": "audit",
    "llm_log_read": "audit",
    "llm_log_status": "audit",
    "llm_parse_structured": "structured",
    "llm_parse_tags": "tags",
    "llm_preview": "preview",
    "llm_replicate": "designs",
    "llm_request_from_log": "audit",
    "llm_request_hash": "hashing",
    "llm_tool": "tool",
    "llm_tool_signature": "hashing",
    "llm_usage": "reporting",
    "report": "reporting",
    "tokens": "response",
    "tool_calls": "response",
}

__all__ = [
    "Agreement",
    "Embeddings",
    "Estimate",
    "LLMTool",
    "ModelConfig",
    "Response",
    "Tokens",
    "Usages",
    "acall_llm",
    "acall_llm_broadcast",
    "acall_llm_compare",
    "acall_llm_par",
    "acall_llm_robust",
    "acall_llm_stream",
    "acall_llm_sweep",
    "acall_llm_tools",
    "acall_llm_tools_par",
    "aget_batched_embeddings",
    "allm_replicate",
    "build_factorial_experiments",
    "call_llm",
    "call_llm_broadcast",
    "call_llm_compare",
    "call_llm_par",
    "call_llm_robust",
    "call_llm_stream",
    "call_llm_sweep",
    "call_llm_tools",
    "call_llm_tools_par",
    "finish_reason",
    "get_batched_embeddings",
    "llm_agreement",
    "llm_config",
    "llm_export",
    "llm_failures",
    "llm_hash",
    "llm_log_disable",
    "llm_log_enable",
    "llm_log_read",
    "llm_log_status",
    "llm_parse_structured",
    "llm_parse_tags",
    "llm_preview",
    "llm_replicate",
    "llm_request_from_log",
    "llm_request_hash",
    "llm_tool",
    "llm_tool_signature",
    "llm_usage",
    "report",
    "tokens",
    "tool_calls",
]


def _load(name: str) -> Any:
    """Import a name from its file on first use, and keep it here."""
    if name not in _FILE_OF:
        raise AttributeError(f"module 'llmbroker.research' has no attribute {name!r}")
    value = getattr(import_module(f"llmbroker.research.{_FILE_OF[name]}"), name)
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # a checker would take every name for one that is there
    __getattr__ = _load
