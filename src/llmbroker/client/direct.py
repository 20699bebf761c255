"""The direct clients: one model of the user's choice, called over the flows of this room; and the stream faces."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from llmbroker.catalog import LLMConfig
from llmbroker.client.flow import EventSource, ReplyStream, complete
from llmbroker.credentials import Secret
from llmbroker.errors import ConfigurationError, InvalidRequestError, MissingKeyError
from llmbroker.exchange import Event, Reply, Request, TextDelta, make_request
from llmbroker.io import Flow, Port
from llmbroker.messages import check_text, shown
from llmbroker.providers import table
from llmbroker.providers.base import Deployment, Provider
from llmbroker.transports.aio import AsyncIO
from llmbroker.transports.blocking import BlockingIO

DEFAULT_TIMEOUT = 60.0
LONGEST = 600.0
"""Seconds; a call without a timeout of its own still ends."""

DirectResult = Reply
"""What a direct client returns: a plain ``Reply``, without ``llm_name`` or ``call_id``."""


class Stream:
    """A streamed answer: iterate it for text, or ``events()`` for typed events; afterwards ``reply`` is the whole answer.

    The request is sent when the first piece is asked for. Leaving early (``close``, the end of a ``with`` block, or dropping
    the object) closes the connection.
    """

    def __init__(self, port: Port, source: EventSource) -> None:
        self._port = port
        self._source = source

    def __iter__(self) -> Iterator[str]:
        """Iterate over the pieces of text."""
        for event in self.events():
            if type(event) is TextDelta and event.text:
                yield event.text

    def events(self) -> Iterator[Event]:
        """Iterate over typed events (text, reasoning, calls, usage, finish)."""
        drive, source = self._port.drive, self._source
        try:
            while events := drive(source.next_events()):
                yield from events
        finally:
            self.close()

    @property
    def reply(self) -> Reply | None:
        """The whole answer, once the stream was read to its end; None before."""
        return self._source.reply

    def close(self) -> None:
        """Stop and close the connection; may be called twice."""
        self._port.drive(self._source.close())

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close."""
        self.close()

    def __del__(self) -> None:
        """Give the connection up."""
        with contextlib.suppress(Exception):
            self.close()


class AsyncStream:
    """A streamed answer: ``async for`` over it for text, or ``events()``; afterwards ``reply`` is the whole answer.

    The request is sent when the first piece is asked for. Leave early with ``await close()`` or an ``async with`` block.
    """

    def __init__(self, port: Port, source: EventSource) -> None:
        self._port = port
        self._source = source

    async def __aiter__(self) -> AsyncIterator[str]:
        """Iterate over the pieces of text."""
        try:
            while events := await self._source.next_events():
                for event in events:
                    if type(event) is TextDelta and event.text:
                        yield event.text
        finally:
            await self.close()

    async def events(self) -> AsyncIterator[Event]:
        """Iterate over typed events (text, reasoning, calls, usage, finish)."""
        try:
            while events := await self._source.next_events():
                for event in events:
                    yield event
        finally:
            await self.close()

    @property
    def reply(self) -> Reply | None:
        """The whole answer, once the stream was read to its end; None before."""
        return self._source.reply

    async def close(self) -> None:
        """Stop and close the connection; may be called twice."""
        await self._source.close()

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()


def checked_seconds(value: Any, argument: str, *, allow_zero: bool = False) -> float | None:
    """Return a time limit in seconds, or None.

    Raises:
        InvalidRequestError: it is no number, NaN, infinite or negative (or 0 where that means nothing).
    """
    if value is None:
        return None
    try:
        seconds = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise InvalidRequestError(f"{argument} is a finite number of seconds, not {shown(value)}.", argument=argument)
    if seconds < 0 or (seconds == 0 and not allow_zero):
        least = "0 seconds or more" if allow_zero else "more than 0 seconds"
        raise InvalidRequestError(f"{argument} is {least}, not {shown(value)}.", argument=argument)
    return seconds


def environment_key(provider: Provider, base_url: str | None = None) -> Secret | None:
    """Return the first key in the environment that was declared for this address; blank values count as missing."""
    for name in table.key_names(provider, base_url):
        value = os.environ.get(name, "").strip()
        if value:
            return Secret(value, f"environment {name}")
    return None


def own_address(provider: Provider, base_url: str | None) -> bool:
    """Whether a request to this address is what the provider's key variables were declared for."""
    return bool(table.key_names(provider, base_url))


def direct_deployment(
    *,
    base_url: str | None,
    provider: str | None,
    model: str,
    api_key: str | Secret | None,
    headers: Mapping[str, str] | None,
    tool_params: Mapping[str, Any] | None,
    leaked_calls: bool | None,
    dialect: str | None,
) -> Deployment:
    """Make the deployment of a direct client.

    A key is looked for in the environment only when the request goes where that key was declared for: to the provider's own
    address, or to an address of the user's where the provider has none of its own.

    Raises:
        InvalidRequestError: neither base_url nor a known provider, or an argument of the wrong kind.
        MissingKeyError: the provider needs a key and there is none.
    """
    if not isinstance(model, str) or not model.strip():
        raise InvalidRequestError(f"model is the name of a model, not {shown(model)}.", argument="model")
    check_text(model, "model")
    if base_url is None and provider is None:
        raise InvalidRequestError("Give provider= (a known one) or base_url= (any compatible server).", argument="provider")
    if not isinstance(api_key, str | Secret | None):
        raise InvalidRequestError(f"api_key is a string, not {type(api_key).__name__}.", argument="api_key")
    if isinstance(api_key, str):
        api_key = Secret(check_text(api_key.strip(), "api_key"), "argument api_key")
    try:
        config = LLMConfig(
            name=model,
            model=model,
            base_url=base_url,
            provider=provider,
            dialect=dialect,
            headers=headers or {},
            tool_params=tool_params or {},
        )
    except ConfigurationError as error:
        raise InvalidRequestError(str(error), argument=error.field or "model") from None
    key = api_key or None
    if key is None and provider is not None:
        row = table.lookup(provider)
        key = environment_key(row, base_url)
        if key is None and row.needs_key:
            raise MissingKeyError(
                f"{row.title} needs a key for model {model} and none was given.",
                refs=row.key_names,
                provider=row.id,
                model=model,
                hint=f"Set {row.key_names[0]} or pass api_key=." + (f" Keys: {row.keys_url}" if row.keys_url else ""),
            )
    return table.deployment_for(config, key, leaked_calls=leaked_calls)


class _Direct:
    """What both direct clients share: arguments in, flows out."""

    def __init__(
        self,
        port: Port,
        own_port: bool,
        deployment: Deployment,
        timeout: float | None,
    ) -> None:
        self._io = port
        self._own_port = own_port
        self._deployment = deployment
        self._timeout = checked_seconds(timeout, "timeout") or LONGEST

    @classmethod
    def over(cls, port: Port, deployment: Deployment, timeout: float | None = DEFAULT_TIMEOUT) -> Self:
        """Return a client of a ready deployment on a port that somebody else closes."""
        client = cls.__new__(cls)
        _Direct.__init__(client, port, False, deployment, timeout)
        return client

    @property
    def model(self) -> str:
        """The model's name."""
        return self._deployment.model

    @property
    def dialect(self) -> str:
        """The wire format's name."""
        return self._deployment.dialect.name

    def __repr__(self) -> str:
        """Name provider and model."""
        return f"{type(self).__name__}(provider={self._deployment.provider.id!r}, model={self._deployment.model!r})"

    def _deadline(self, timeout: float | None) -> float:
        return self._io.now() + (checked_seconds(timeout, "timeout") or self._timeout)

    def _request(self, messages: Any, *, stream: bool = False, **arguments: Any) -> Request:
        return make_request(messages, tool_params=self._deployment.tool_params, stream=stream, **arguments)

    def _source(
        self, prompt: Any, messages: Any, tools: Any, choice: Any, response_format: Any, timeout: Any, params: Any
    ) -> EventSource:
        request = self._request(
            one_of(prompt, messages),
            tools=tools,
            choice=choice,
            response_format=response_format,
            params=params,
            stream=True,
        )
        return self._streamed(request, self._deadline(timeout))

    def _whole(self, request: Request, deadline: float) -> Flow[Reply]:
        return complete(self._io, self._deployment, request, deadline)

    def _streamed(self, request: Request, deadline: float) -> EventSource:
        return ReplyStream(self._io, self._deployment, request, deadline)


def one_of(prompt: Any, messages: Any) -> Any:
    """Return the one of both that was given.

    Raises:
        InvalidRequestError: both or none were given.
    """
    if (prompt is None) == (messages is None):
        raise InvalidRequestError("Give either prompt or messages=.", argument="messages")
    return messages if prompt is None else prompt


class DirectClient(_Direct):
    """One model of your choice, called directly: no pool, no failover, no journal row; errors reach you.

    Args:
        base_url: an OpenAI-compatible server, up to before ``/chat/completions``; no key is needed where it needs none.
        provider: a known provider's id instead, or beside it.
        model: the provider's name of the model.
        api_key: the key; None looks in the environment under the provider's names.
        timeout: seconds for a whole call, the default of ``chat(timeout=)``.
        headers: further headers for every request.
        tool_params: parameters sent whenever tools are; ``params`` of a call win.
        leaked_calls: find tool calls that a model wrote as text; None: on for local and unknown servers.
        dialect: another wire format than the provider's usual one.
        io: another port (a scripted one in tests).

    Raises:
        InvalidRequestError, MissingKeyError: before anything is sent.
    """

    def __init__(
        self,
        *,
        base_url: str | None = None,
        provider: str | None = None,
        model: str,
        api_key: str | Secret | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        headers: Mapping[str, str] | None = None,
        tool_params: Mapping[str, Any] | None = None,
        leaked_calls: bool | None = None,
        dialect: str | None = None,
        io: Port | None = None,
    ) -> None:
        deployment = direct_deployment(
            base_url=base_url,
            provider=provider,
            model=model,
            api_key=api_key,
            headers=headers,
            tool_params=tool_params,
            leaked_calls=leaked_calls,
            dialect=dialect,
        )
        super().__init__(io or BlockingIO(), io is None, deployment, timeout)

    def ask(self, prompt: str, *, timeout: float | None = None, params: Mapping[str, Any] | None = None) -> Reply:
        """Send one user message and return the reply; raises as ``chat`` does."""
        return self.chat(prompt, timeout=timeout, params=params)

    def chat(
        self,
        messages: Any,
        *,
        tools: Sequence[Any] | None = None,
        tool_choice: Any = None,
        response_format: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Reply:
        """Send messages (a string, or OpenAI-style dicts) and return the whole reply.

        Args:
            messages: what was said so far.
            tools: OpenAI-style tool declarations.
            tool_choice: auto, none, required, or a tool's name.
            response_format: ``{"type": "json_object"}`` or a ``json_schema`` mapping.
            timeout: seconds for everything together.
            params: further parameters (temperature, max_tokens, ...), sent in the provider's words.

        Raises:
            InvalidRequestError: an argument is wrong; nothing was sent.
            ProviderError, ConnectionFailedError, LLMTimeoutError, InvalidProviderResponseError: with provider and model.
        """
        request = self._request(messages, tools=tools, choice=tool_choice, response_format=response_format, params=params)
        return self._io.drive(self._whole(request, self._deadline(timeout)))

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Any = None,
        tools: Sequence[Any] | None = None,
        tool_choice: Any = None,
        response_format: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Stream:
        """Return the answer as it is made; arguments and errors as of ``chat``, errors while it is read."""
        return Stream(self._io, self._source(prompt, messages, tools, tool_choice, response_format, timeout, params))

    def close(self) -> None:
        """Close this client's connections; a port that was handed in stays open for its owner."""
        if self._own_port:
            self._io.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close."""
        self.close()


class AsyncDirectClient(_Direct):
    """The asyncio twin of ``DirectClient``: the same arguments, awaited."""

    def __init__(
        self,
        *,
        base_url: str | None = None,
        provider: str | None = None,
        model: str,
        api_key: str | Secret | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        headers: Mapping[str, str] | None = None,
        tool_params: Mapping[str, Any] | None = None,
        leaked_calls: bool | None = None,
        dialect: str | None = None,
        io: Port | None = None,
    ) -> None:
        deployment = direct_deployment(
            base_url=base_url,
            provider=provider,
            model=model,
            api_key=api_key,
            headers=headers,
            tool_params=tool_params,
            leaked_calls=leaked_calls,
            dialect=dialect,
        )
        super().__init__(io or AsyncIO(), io is None, deployment, timeout)

    async def ask(self, prompt: str, *, timeout: float | None = None, params: Mapping[str, Any] | None = None) -> Reply:
        """Send one user message and return the reply; raises as ``chat`` does."""
        return await self.chat(prompt, timeout=timeout, params=params)

    async def chat(
        self,
        messages: Any,
        *,
        tools: Sequence[Any] | None = None,
        tool_choice: Any = None,
        response_format: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Reply:
        """Send messages and return the whole reply; arguments and errors as of ``DirectClient.chat``."""
        request = self._request(messages, tools=tools, choice=tool_choice, response_format=response_format, params=params)
        return await self._whole(request, self._deadline(timeout))

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Any = None,
        tools: Sequence[Any] | None = None,
        tool_choice: Any = None,
        response_format: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> AsyncStream:
        """Return the answer as it is made; arguments and errors as of ``chat``, errors while it is read."""
        return AsyncStream(self._io, self._source(prompt, messages, tools, tool_choice, response_format, timeout, params))

    async def close(self) -> None:
        """Close this client's connections; a port that was handed in stays open for its owner."""
        if self._own_port:
            await self._io.aclose()

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()
