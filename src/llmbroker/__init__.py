"""One honest broker between a program and language models.

The public names, and nothing else. A name is imported from its room when it is first used, so that ``import llmbroker`` costs
little, reads no file and opens no connection. Rooms never import from here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmbroker.broker import (
        AsyncBroker,
        AsyncPooledStream,
        Attempt,
        Broker,
        ModelState,
        PooledReply,
        PooledStream,
        Snapshot,
    )
    from llmbroker.catalog import LLMConfig
    from llmbroker.client import AsyncDirectClient, AsyncStream, DirectClient, DirectResult, Stream
    from llmbroker.errors import (
        AuthError,
        BadRequestError,
        BillingError,
        ConfigurationError,
        ConnectionFailedError,
        ContentFilterError,
        ContextWindowError,
        InvalidProviderResponseError,
        InvalidRequestError,
        LLMBrokerError,
        LLMTimeoutError,
        MalformedCallError,
        MissingKeyError,
        ModelNotFoundError,
        NoLLMAvailableError,
        PermissionDeniedError,
        PoolModelError,
        ProviderError,
        RateLimitError,
        ServerError,
        StoreError,
        StreamInterruptedError,
        ToolLimitError,
        ToolLoopLimitError,
        UnknownCallError,
        UnknownModelError,
        UnsupportedFeatureError,
    )
    from llmbroker.exchange import Reply, Usage, fold
    from llmbroker.journal import Call, Stats
    from llmbroker.loop import Transcript, arun_tool_loop, run_tool_loop
    from llmbroker.messages import repair, validate
    from llmbroker.research import (
        LLMTool,
        ModelConfig,
        Response,
        Tokens,
        acall_llm,
        acall_llm_robust,
        acall_llm_stream,
        acall_llm_tools,
        call_llm,
        call_llm_robust,
        call_llm_stream,
        call_llm_tools,
        finish_reason,
        llm_config,
        llm_parse_structured,
        llm_tool,
        tokens,
        tool_calls,
    )

__version__ = "0.1.0"

# Where a public name lives; those that are not named here are in `errors`.
_ROOM_OF = {
    "AsyncBroker": "broker",
    "AsyncDirectClient": "client",
    "AsyncPooledStream": "broker",
    "AsyncStream": "client",
    "Attempt": "broker",
    "Broker": "broker",
    "Call": "journal",
    "DirectClient": "client",
    "DirectResult": "client",
    "LLMConfig": "catalog",
    "LLMTool": "research",
    "ModelConfig": "research",
    "ModelState": "broker",
    "PooledReply": "broker",
    "PooledStream": "broker",
    "Reply": "exchange",
    "Response": "research",
    "Snapshot": "broker",
    "Stats": "journal",
    "Stream": "client",
    "Tokens": "research",
    "Transcript": "loop",
    "Usage": "exchange",
    "acall_llm": "research",
    "acall_llm_robust": "research",
    "acall_llm_stream": "research",
    "acall_llm_tools": "research",
    "arun_tool_loop": "loop",
    "call_llm": "research",
    "call_llm_robust": "research",
    "call_llm_stream": "research",
    "call_llm_tools": "research",
    "finish_reason": "research",
    "fold": "exchange",
    "llm_config": "research",
    "llm_parse_structured": "research",
    "llm_tool": "research",
    "repair": "messages",
    "run_tool_loop": "loop",
    "tokens": "research",
    "tool_calls": "research",
    "validate": "messages",
}

__all__ = [
    "AsyncBroker",
    "AsyncDirectClient",
    "AsyncPooledStream",
    "AsyncStream",
    "Attempt",
    "AuthError",
    "BadRequestError",
    "BillingError",
    "Broker",
    "Call",
    "ConfigurationError",
    "ConnectionFailedError",
    "ContentFilterError",
    "ContextWindowError",
    "DirectClient",
    "DirectResult",
    "InvalidProviderResponseError",
    "InvalidRequestError",
    "LLMBrokerError",
    "LLMConfig",
    "LLMTimeoutError",
    "LLMTool",
    "MalformedCallError",
    "MissingKeyError",
    "ModelConfig",
    "ModelNotFoundError",
    "ModelState",
    "NoLLMAvailableError",
    "PermissionDeniedError",
    "PoolModelError",
    "PooledReply",
    "PooledStream",
    "ProviderError",
    "RateLimitError",
    "Reply",
    "Response",
    "ServerError",
    "Snapshot",
    "Stats",
    "StoreError",
    "Stream",
    "StreamInterruptedError",
    "Tokens",
    "ToolLimitError",
    "ToolLoopLimitError",
    "Transcript",
    "UnknownCallError",
    "UnknownModelError",
    "UnsupportedFeatureError",
    "Usage",
    "acall_llm",
    "acall_llm_robust",
    "acall_llm_stream",
    "acall_llm_tools",
    "arun_tool_loop",
    "call_llm",
    "call_llm_robust",
    "call_llm_stream",
    "call_llm_tools",
    "finish_reason",
    "fold",
    "llm_config",
    "llm_parse_structured",
    "llm_tool",
    "repair",
    "run_tool_loop",
    "tokens",
    "tool_calls",
    "validate",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its room on first use, and keep it here."""
    if name not in __all__:
        raise AttributeError(f"module 'llmbroker' has no attribute {name!r}")
    value = getattr(import_module(f"llmbroker.{_ROOM_OF.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Show the public names, imported or not."""
    return sorted({*globals(), *__all__})
