"""One request on one deployment: the flows (``flow``) and the direct clients over them (``direct``)."""

from llmbroker.client.direct import (
    AsyncDirectClient,
    AsyncStream,
    DirectClient,
    DirectResult,
    Stream,
    checked_seconds,
    environment_key,
    one_of,
    own_address,
)
from llmbroker.client.flow import EventSource, RawEvents, ReplyStream, complete

__all__ = [
    "AsyncDirectClient",
    "AsyncStream",
    "DirectClient",
    "DirectResult",
    "EventSource",
    "RawEvents",
    "ReplyStream",
    "Stream",
    "checked_seconds",
    "complete",
    "environment_key",
    "one_of",
    "own_address",
]
