"""A streamed answer whose end is a ``Response``."""

from __future__ import annotations

from typing import Any

from llmbroker.client import AsyncStream, EventSource, ReplyStream, Stream
from llmbroker.exchange import Event
from llmbroker.io import Port
from llmbroker.research import watch
from llmbroker.research.calls import Ask, in_form
from llmbroker.research.config import LONGEST, ModelConfig
from llmbroker.research.response import Response, made


class CallStream:
    """What the stream faces read; it tells the watchers how it ended."""

    def __init__(self, port: Port, ask: Ask) -> None:
        self._port = port
        self._ask = ask
        self._source: EventSource | None = None
        self._deployment: Any = None
        self._request: Any = None
        self._stream: Any = None
        self._began = self._started = 0.0
        self.reply: Response | None = None

    async def next_events(self) -> list[Event]:
        """Return the next events; an empty list at the end, when ``reply`` is set."""
        if self._source is None:
            self._open()
        assert self._source is not None
        try:
            events = await self._source.next_events()
        except BaseException as error:
            self._tell(error=error)
            raise
        if not events and self.reply is None and self._source.reply is not None:
            self._finish(self._source.reply)
        return events

    def _open(self) -> None:
        ask, port = self._ask, self._port
        ask.attempts += 1
        self._request = ask.request(ask.messages, stream=True)
        self._began, self._started = port.now(), port.time()
        if type(ask.config) is ModelConfig:
            self._deployment = ask.config.deployment()
            self._source = ReplyStream(port, self._deployment, self._request, self._began + (ask.timeout or LONGEST))
        else:
            form = ask.form.wire if ask.form is not None else None
            # The stream is kept, since one that is dropped closes its source.
            self._stream = ask.config.stream(messages=self._request.history, response_format=form, wait=ask.timeout)
            self._source = self._stream._source

    def _finish(self, reply: Any) -> None:
        facts: dict[str, Any] = {"pooled": reply}
        if self._deployment is not None:
            facts = {"provider": self._deployment.provider.id, "config": self._ask.config}
        else:
            facts |= {name: getattr(reply, name, None) for name in ("llm_name", "call_id")}
        response = made(
            reply, duration=self._port.now() - self._began, started=self._started, attempts=self._ask.attempts, **facts
        )
        self.reply = response if self._ask.form is None else in_form(response, self._ask.form)
        self._tell(response=self.reply)

    def _tell(self, **outcome: Any) -> None:
        watchers = (*self._ask.watchers, *watch.ALWAYS)
        if watchers:
            seconds = self._port.now() - self._began
            event = watch.Event(
                self._ask.config, self._deployment, self._request, self._started, seconds, self._ask.attempts, **outcome
            )
            watch.tell(watchers, event)

    async def close(self) -> None:
        """Stop."""
        if self._source is not None:
            await self._source.close()


class ResponseStream(Stream):
    """A streamed answer: iterate it for text, or ``events()``; afterwards ``reply`` is the response."""

    _source: CallStream

    @property
    def reply(self) -> Response | None:
        """The response, once the stream was read to its end; None before."""
        return self._source.reply


class AsyncResponseStream(AsyncStream):
    """The asyncio twin of ``ResponseStream``."""

    _source: CallStream

    @property
    def reply(self) -> Response | None:
        """The response, once the stream was read to its end; None before."""
        return self._source.reply
