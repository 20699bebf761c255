"""The ports: the only sockets, clocks and threads of the library.

``BlockingIO`` serves synchronous callers, ``AsyncIO`` asyncio, ``Replay`` tests and simulations, ``HandedIO`` and
``AsyncHandedIO`` an HTTP client of the caller's; each is loaded on first use.
Nothing here knows a provider. Beside the ports stands the engine for models in this process (``local``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmbroker.transports.aio import AsyncIO
    from llmbroker.transports.blocking import BlockingIO
    from llmbroker.transports.handed import AsyncHandedIO, HandedIO
    from llmbroker.transports.replay import Answer, Exchange, Replay, sse

__all__ = ["Answer", "AsyncHandedIO", "AsyncIO", "BlockingIO", "Exchange", "HandedIO", "Replay", "shared", "sse"]
_FROM = {
    "AsyncIO": "aio",
    "BlockingIO": "blocking",
    "HandedIO": "handed",
    "AsyncHandedIO": "handed",
    "Answer": "replay",
    "Exchange": "replay",
    "Replay": "replay",
    "sse": "replay",
}
_shared: dict[bool, Any] = {}


def shared(*, awaited: bool) -> Any:
    """Return the port that all callers of this process share who bring none: the asyncio port, or the blocking one."""
    port = _shared.get(awaited)
    if port is None:
        port = _shared.setdefault(awaited, _load("AsyncIO" if awaited else "BlockingIO")())
    return port


def _load(name: str) -> Any:
    """Load a port on first use."""
    module = _FROM.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


if not TYPE_CHECKING:  # a checker would take every name for one that is there
    __getattr__ = _load
