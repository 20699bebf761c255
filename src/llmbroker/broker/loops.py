"""What ``broker.run`` returns, and whom it asks: the loop lives in a room above this one, and the package plugs it in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any, Protocol, Self

from llmbroker import plugs


class LoopStream(Protocol):
    """A tool loop that runs while its events are read: ``llmbroker.loop.ToolLoopStream``."""

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the events; leaving early stops everything."""
        ...

    def text(self) -> Iterator[str]:
        """Iterate over the pieces of text alone."""
        ...

    @property
    def reply(self) -> Any:
        """The reply, or a ``Paused``, once the events were read to the end; None before."""
        ...

    def close(self) -> None:
        """Stop everything; may be called twice."""
        ...

    def __enter__(self) -> Self:
        """Return itself."""
        ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close."""
        ...


class AsyncLoopStream(Protocol):
    """The asyncio twin, for ``async for``: ``llmbroker.loop.AsyncToolLoopStream``."""

    def __aiter__(self) -> AsyncIterator[Any]:
        """Iterate over the events; leaving early stops everything."""
        ...

    def text(self) -> AsyncIterator[str]:
        """Iterate over the pieces of text alone."""
        ...

    @property
    def reply(self) -> Any:
        """The reply, or a ``Paused``, once the events were read to the end; None before."""
        ...

    async def close(self) -> None:
        """Stop everything; may be called twice."""
        ...

    async def __aenter__(self) -> Self:
        """Return itself."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        ...


class Loops(Protocol):
    """The room of the loop, as far as a broker uses it."""

    def stream_tool_loop(self, caller: Any, messages: Any, **options: Any) -> LoopStream:
        """Run a loop over a plain caller."""
        ...

    def astream_tool_loop(self, caller: Any, messages: Any, **options: Any) -> AsyncLoopStream:
        """Run a loop over an asynchronous caller."""
        ...


def loops() -> Loops:
    """Return the room of the loop, imported on first use."""
    found: Loops = plugs.loops()
    return found
