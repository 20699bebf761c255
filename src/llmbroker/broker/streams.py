"""The stream objects of both faces: text by iterating, typed events, and who answers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from llmbroker.broker.replies import PooledReply
from llmbroker.broker.stream import PooledSource
from llmbroker.client import AsyncStream, Stream
from llmbroker.errors import InvalidRequestError
from llmbroker.exchange import TextDelta, Usage
from llmbroker.io import Port


class _PoolStream:
    """What the streams of both faces tell about their model."""

    _source: PooledSource

    @property
    def llm_name(self) -> str | None:
        """The model's name, once the first piece is there."""
        opened = self._source.opened
        return opened.lane.member.name if opened is not None else None

    @property
    def call_id(self) -> str | None:
        """The id of the journal row, once the first piece is there; the row is written at the end."""
        opened = self._source.opened
        return opened.row.id if opened is not None else None

    @property
    def reply(self) -> PooledReply | None:
        """The whole answer, once the stream was read to its end; None before."""
        return self._source.reply

    @property
    def text(self) -> str:
        """The text so far."""
        opened = self._source.opened
        return opened.text if opened is not None else ""

    @property
    def usage(self) -> Usage | None:
        """The usage, after the end."""
        reply = self._source.reply
        return reply.usage if reply is not None else None

    def record_quality(self, score: float) -> Any:
        """Rate the whole answer, after its end; raises InvalidRequestError before."""
        reply = self._source.reply
        if reply is None:
            raise InvalidRequestError("A stream can be rated after its end.", argument="score")
        return reply.record_quality(score)


class PooledStream(_PoolStream, Stream):
    """A streamed answer of the pool: iterate it for text, or ``events()``; afterwards ``reply`` is the whole answer.

    Models are tried until one begins to answer. Leaving early, or dropping the object, frees its slot and its connection.
    """

    _source: PooledSource

    def __init__(self, port: Port, source: PooledSource) -> None:
        super().__init__(port, source)

    def __del__(self) -> None:
        """Give slot and connection back."""
        with contextlib.suppress(Exception):
            if self._source.abandon():
                self.close()


class AsyncPooledStream(_PoolStream, AsyncStream):
    """The asyncio twin of ``PooledStream``."""

    _source: PooledSource

    def __init__(self, port: Port, source: PooledSource) -> None:
        super().__init__(port, source)

    async def __aiter__(self) -> AsyncIterator[str]:
        """Iterate over the pieces of text."""
        async for event in self.events():
            if type(event) is TextDelta and event.text:
                yield event.text

    def __del__(self) -> None:
        """Give the slot back at once, the connection as soon as the loop runs."""
        with contextlib.suppress(Exception):
            if self._source.abandon():
                closing = self._source.close()
                try:
                    self._port.start(closing)
                except BaseException:  # no loop runs any more; the connection went with it
                    closing.close()
                    raise
