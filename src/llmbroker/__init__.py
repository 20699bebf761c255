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
        ToolLoopLimitError,
        UnknownCallError,
        UnknownModelError,
        UnsupportedFeatureError,
    )
    from llmbroker.exchange import Reply, Usage, fold
    from llmbroker.journal import Call, Stats
    from llmbroker.loop import Transcript, arun_tool_loop, run_tool_loop
    from llmbroker.messages import repair, validate

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
    "ModelState": "broker",
    "PooledReply": "broker",
    "PooledStream": "broker",
    "Reply": "exchange",
    "Snapshot": "broker",
    "Stats": "journal",
    "Stream": "client",
    "Transcript": "loop",
    "Usage": "exchange",
    "arun_tool_loop": "loop",
    "fold": "exchange",
    "repair": "messages",
    "run_tool_loop": "loop",
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
    "MalformedCallError",
    "MissingKeyError",
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
    "ServerError",
    "Snapshot",
    "Stats",
    "StoreError",
    "Stream",
    "StreamInterruptedError",
    "ToolLoopLimitError",
    "Transcript",
    "UnknownCallError",
    "UnknownModelError",
    "UnsupportedFeatureError",
    "Usage",
    "arun_tool_loop",
    "fold",
    "repair",
    "run_tool_loop",
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
