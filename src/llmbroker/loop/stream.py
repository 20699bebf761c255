"""The streams of a loop: its events one after the other, then its reply."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any, Self

from llmbroker.exchange import TextDelta
from llmbroker.io import Port
from llmbroker.loop.events import LoopEvent
from llmbroker.loop.watch import Pump


class ToolLoopStream:
    """A loop that runs as its events are read; afterwards ``reply`` is what ``run_tool_loop`` would have returned."""

    def __init__(self, port: Port, pump: Pump) -> None:
        self._port = port
        self._pump = pump

    def __iter__(self) -> Iterator[LoopEvent]:
        """Iterate over the events; leaving early closes it."""
        drive, pump = self._port.drive, self._pump
        try:
            while events := drive(pump.next_events()):
                yield from events
        finally:
            self.close()

    def text(self) -> Iterator[str]:
        """Iterate over the pieces of text alone, those before tool calls included."""
        for event in self:
            if type(event) is TextDelta and event.text:
                yield event.text

    @property
    def reply(self) -> Any:
        """The reply, or a ``Paused``, once the events were read to the end; None before."""
        return self._pump.result

    def close(self) -> None:
        """Stop everything; may be called twice."""
        if not self._pump.over:
            self._port.drive(self._pump.close())

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close."""
        self.close()

    def __del__(self) -> None:
        """Close what was dropped."""
        with contextlib.suppress(Exception):
            self.close()


class AsyncToolLoopStream:
    """The asyncio twin of ``ToolLoopStream``: ``async for`` over it."""

    def __init__(self, port: Port, pump: Pump) -> None:
        self._port = port
        self._pump = pump

    async def __aiter__(self) -> AsyncIterator[LoopEvent]:
        """Iterate over the events; leaving early closes it."""
        try:
            while events := await self._pump.next_events():
                for event in events:
                    yield event
        finally:
            await self._pump.close(wait=False)

    async def text(self) -> AsyncIterator[str]:
        """Iterate over the pieces of text alone, those before tool calls included."""
        async for event in self:
            if type(event) is TextDelta and event.text:
                yield event.text

    @property
    def reply(self) -> Any:
        """The reply, or a ``Paused``, once the events were read to the end; None before."""
        return self._pump.result

    async def close(self) -> None:
        """Stop everything; may be called twice."""
        await self._pump.close()

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()

    def __del__(self) -> None:
        """Close what was dropped, as soon as the loop runs."""
        with contextlib.suppress(Exception):
            if not self._pump.begun:
                self._pump.drop()
            elif not self._pump.over:
                closing = self._pump.close()
                try:
                    self._port.start(closing)
                except RuntimeError:  # its event loop is gone
                    closing.close()
