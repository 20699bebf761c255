"""One request on one deployment, whole or streamed, as flows.

Nothing here chooses, retries elsewhere, or writes a journal. The one retry is the *mend*: a provider that refuses a parameter's
name or value is asked again without it, and the deployment remembers; one that refuses several names them one after the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, overload

import msgspec

from llmbroker.errors import (
    BadRequestError,
    ConnectionFailedError,
    InvalidProviderResponseError,
    LLMBrokerError,
    LLMTimeoutError,
    ProviderError,
    StreamInterruptedError,
)
from llmbroker.exchange import Event, Fold, Reply, Request, Usage
from llmbroker.io import ByteStream, Port
from llmbroker.providers.base import Deployment, Mend, decode_reply, encode_request, request_id
from llmbroker.providers.leaked import recover
from llmbroker.wire import SSE, HTTPReply, NDJSONDecoder, SSEDecoder

_DRAIN = 0.01
"""Seconds that a finished stream may take to end its framing, so that its connection can be used again."""

_STREAMS = {"sse": "text/event-stream", "ndjson": "application/x-ndjson"}
"""The content types of streams, by framing."""

E = TypeVar("E", bound=LLMBrokerError)
Heard: TypeAlias = Callable[[Mapping[str, str]], None]
Refused: TypeAlias = Callable[[BadRequestError], Awaitable[None]]
MENDS = 5
"""Refusals of one call that are mended; each must teach something."""


# -- flows ---------------------------------------------------------------------------------------------------------------


async def complete(
    port: Port,
    deployment: Deployment,
    request: Request,
    deadline: float | None,
    heard: Heard | None = None,
    refused: Refused | None = None,
) -> Reply:
    """Send one request and return the whole reply.

    Args:
        port: how to reach the world.
        deployment: who answers.
        request: what is asked, with ``stream`` False.
        deadline: on the scale of ``port.now()``.
        heard: gets the headers of a good reply, or None: nobody wants them.
        refused: is awaited with each refusal that is mended, before the request goes out again.

    Raises:
        ProviderError, ConnectionFailedError, LLMTimeoutError, InvalidProviderResponseError: with provider and model.
    """
    for _ in range(MENDS):
        known = deployment.mended
        try:
            return await _complete(port, deployment, request, deadline, heard)
        except BadRequestError as error:
            if not _learn(error, request, deployment, known):
                raise
            if refused is not None:
                await refused(error)
    return await _complete(port, deployment, request, deadline, heard)


async def _complete(port: Port, deployment: Deployment, request: Request, deadline: float | None, heard: Heard | None) -> Reply:
    try:
        http = await port.send(encode_request(request, deployment), deadline)
    except (ConnectionFailedError, LLMTimeoutError, InvalidProviderResponseError) as error:
        raise _named(error, deployment) from error.__cause__
    if not 200 <= http.status < 300:
        raise deployment.dialect.decode_error(http, deployment)
    if heard is not None:
        heard(http.headers)
    if http.headers.get("content-type", "").startswith(_STREAMS[deployment.dialect.framing]):
        return _folded(http, deployment, request)
    return _recovered(decode_reply(http, deployment), deployment, request)


def _recovered(reply: Reply, deployment: Deployment, request: Request) -> Reply:
    tools = request.tools
    if not tools:
        return reply
    if deployment.leaked_calls and not reply.tool_calls and reply.text:
        reply = recover(reply, tools)
    return _declared_names(reply, tools.renamed) if tools.renamed and reply.tool_calls else reply


def _declared_names(reply: Reply, renamed: Mapping[str, str]) -> Reply:
    """Give tools back the names that the user declared, where the wire needed others."""
    calls = []
    for call in reply.tool_calls or ():
        function = call["function"]
        calls.append({**call, "function": {**function, "name": renamed.get(function["name"], function["name"])}})
    return msgspec.structs.replace(reply, tool_calls=calls, message={**reply.message, "tool_calls": calls})


def _folded(http: HTTPReply, deployment: Deployment, request: Request) -> Reply:
    """Decode a stream that answers a request for a whole reply: some servers know no other way."""
    reader = _Reader(deployment, request, http.headers)
    reader.take(http.body)
    reader.end()
    return reader.reply()


def _learn(error: ProviderError, request: Request, deployment: Deployment, sent: Mend) -> bool:
    """Remember what would mend this refusal of what was sent with these mends; False if nothing new would."""
    if deployment.mended is not sent:
        return True  # another call learnt something while this one was out
    mend = deployment.dialect.mend(error, request, deployment) if deployment.dialect.mend else None
    if mend is None:
        return False
    merged = Mend(rename={**sent.rename, **mend.rename}, drop=sent.drop | mend.drop)
    if merged == sent:
        return False
    deployment.mended = merged
    return True


def _named(error: E, deployment: Deployment) -> E:
    """Put provider and model into an error of the port, which knows only a host."""
    error.provider, error.model = deployment.provider.id, deployment.model
    error.args = (f"{deployment.provider.id}, model {deployment.model}: {deployment.clean(str(error))}",)
    return error


class _Reader:
    """Bytes of one stream to events and, at the end, the reply."""

    def __init__(self, deployment: Deployment, request: Request, headers: Mapping[str, str]) -> None:
        self._deployment = deployment
        self._request = request
        self._request_id = request_id(headers, deployment)
        self._frames = NDJSONDecoder() if deployment.dialect.framing == "ndjson" else SSEDecoder()
        self._decoder = deployment.dialect.decoder(deployment)
        self.fold = Fold()
        self._payloads: list[bytes] = []
        self.failure: LLMBrokerError | None = None

    @property
    def done(self) -> bool:
        """The dialect's own end was seen, and all before it could be read."""
        return self._decoder.done and self.failure is None

    def take(self, chunk: bytes) -> list[Event]:
        """Return the events that these bytes complete.

        What came before a faulty payload in the same bytes is delivered first; the fault is raised by the next call.
        """
        if self.failure is not None:
            raise self.failure
        try:
            frames = self._frames.feed(chunk)
        except ValueError as error:
            raise self._unreadable(error) from None
        return self._events(frames)

    def _unreadable(self, error: Exception) -> InvalidProviderResponseError:
        deployment = self._deployment
        return InvalidProviderResponseError(
            f"{deployment.provider.id} streamed something for {deployment.model} that {deployment.dialect.name} does not "
            f"have: {type(error).__name__}: {deployment.clean(str(error))}.",
            **deployment.facts(),
        )

    def _events(self, frames: list[SSE]) -> list[Event]:
        out: list[Event] = []
        decoder, fold = self._decoder, self.fold
        try:
            for frame in frames:
                if decoder.done:
                    break
                self._payloads.append(frame.data)
                events = decoder.feed(frame)
                for event in events:
                    fold.add(event)
                out += events
        except LLMBrokerError as error:
            self.failure = error
        except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
            self.failure = self._unreadable(error)
            self.failure.__cause__ = error
        if self.failure is not None and not out:
            raise self.failure
        return out

    def end(self) -> list[Event]:
        """The connection ended properly: take what lacks only a line end.

        Raises:
            StreamInterruptedError: the provider never said that the answer is complete.
        """
        if self.failure is not None:
            raise self.failure
        out = [] if self.done else self._events(self._frames.end())
        if self.failure is None and not self.done and not self.fold.finished:
            deployment = self._deployment
            raise StreamInterruptedError(
                f"{deployment.provider.id} ended the stream of {deployment.model} without a finish reason: the answer is not "
                "complete.",
                text=self.fold.text,
                **deployment.facts(),
            )
        return out

    def reply(self) -> Reply:
        """Return the whole answer."""
        deployment = self._deployment
        made = self.fold.reply(
            dialect=deployment.dialect.name,
            provider=deployment.provider.id,
            model=deployment.model,
            raw=RawEvents(self._payloads),
            request_id=self._request_id,
            native=deployment.dialect.native,
        )
        return _recovered(made, deployment, self._request)


class RawEvents(Sequence[Any]):
    """The payloads of a stream, parsed when they are looked at; a payload that is not JSON stays text."""

    def __init__(self, payloads: list[bytes]) -> None:
        self._payloads = payloads

    def __len__(self) -> int:
        """Return the number of payloads."""
        return len(self._payloads)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        """Parse and return a payload."""
        if isinstance(index, slice):
            return [_parsed(payload) for payload in self._payloads[index]]
        return _parsed(self._payloads[index])

    def __repr__(self) -> str:
        """Say how many."""
        return f"<{len(self)} stream events>"


def _parsed(payload: bytes) -> Any:
    try:
        return msgspec.json.decode(payload)
    except msgspec.DecodeError:
        return payload.decode("utf-8", "replace")


class EventSource(Protocol):
    """What a stream face reads: batches of events, then the reply."""

    @property
    def reply(self) -> Reply | None:
        """The whole answer, after the end; None before."""
        ...

    async def next_events(self) -> list[Event]:
        """Return the next events, at least one; an empty list at the end of the answer."""
        ...

    async def close(self) -> None:
        """Stop: the connection is closed or given back."""
        ...


class ReplyStream:
    """One streamed answer as a flow object: ``next_events`` until it is empty, then ``reply``.

    Args:
        port, deployment, request, deadline: as for ``complete``; the request is sent at the first ``next_events``.
    """

    def __init__(self, port: Port, deployment: Deployment, request: Request, deadline: float | None) -> None:
        self._port = port
        self._deployment = deployment
        self._request = request
        self._deadline = deadline
        self._bytes: ByteStream | None = None
        self._reader: _Reader | None = None
        self._over = False
        self._at_once: list[Event] = []
        self.headers: Mapping[str, str] | None = None
        """Of a good reply, as soon as they are there."""
        self.refused: Refused | None = None
        """As of ``complete``."""
        self.reply: Reply | None = None
        self.failure: BaseException | None = None

    def limit(self, deadline: float | None) -> None:
        """Put another deadline on what follows (an idle limit, for one)."""
        self._deadline = deadline

    @property
    def text(self) -> str:
        """The text so far."""
        return self._reader.fold.text if self._reader else ""

    @property
    def usage(self) -> Usage | None:
        """The usage so far, or None."""
        return self._reader.fold.usage if self._reader else None

    async def next_events(self) -> list[Event]:
        """Return the next events, at least one; an empty list when the answer is complete (``reply`` is set then).

        Raises:
            ProviderError, ConnectionFailedError, LLMTimeoutError, InvalidProviderResponseError: before any content.
            StreamInterruptedError, LLMTimeoutError: after content, with ``text``.
        """
        if self._over:
            return []
        try:
            events = await self._next()
        except LLMBrokerError as error:
            self.failure = shown = self._with_text(error)
            await self.close()
            if shown is error:
                raise
            raise shown from error
        except BaseException as error:
            self.failure = error
            await self.close()
            raise
        if not events:
            self._over = True
        return events

    async def _next(self) -> list[Event]:
        if self.reply is not None:
            return []
        if self._bytes is None:
            await self._open()
            if self.reply is not None:
                return self._at_once
        reader, stream = self._reader, self._bytes
        assert reader is not None
        assert stream is not None
        while not reader.done:
            chunk = b"" if reader.failure else await stream.read(self._deadline)
            events = reader.take(chunk) if chunk else reader.end()
            if events:
                return events
            if not chunk:
                break
        await self._drain()
        self.reply = reader.reply()
        return []

    async def _open(self) -> None:
        deployment = self._deployment
        for _ in range(MENDS):
            known = deployment.mended
            try:
                await self._open_once()
            except BadRequestError as error:
                if not _learn(error, self._request, deployment, known):
                    raise
                if self.refused is not None:
                    await self.refused(error)
            else:
                return
        await self._open_once()

    async def _open_once(self) -> None:
        deployment = self._deployment
        stream = await self._port.open(encode_request(self._request, deployment), self._deadline)
        self._bytes = stream
        if not 200 <= stream.status < 300:
            body = await self._whole()
            self._bytes = None
            raise deployment.dialect.decode_error(HTTPReply(stream.status, stream.headers, body), deployment)
        self.headers = stream.headers
        self._reader = _Reader(deployment, self._request, stream.headers)
        if stream.headers.get("content-type", "").startswith("application/json") and deployment.dialect.framing == "sse":
            await self._take_whole(stream)

    async def _whole(self) -> bytes:
        assert self._bytes is not None
        pieces: list[bytes] = []
        try:
            while piece := await self._bytes.read(self._deadline):
                pieces.append(piece)
        finally:
            await self._bytes.close()
        return b"".join(pieces)

    async def _take_whole(self, stream: ByteStream) -> None:
        """Take a plain JSON answer to a request for a stream: some servers know no other way, and errors come so."""
        body = await self._whole()
        deployment = self._deployment
        made = decode_reply(HTTPReply(stream.status, stream.headers, body), deployment)
        self._at_once = deployment.dialect.decode(made.raw, deployment)
        self.reply = _recovered(made, deployment, self._request)

    async def _drain(self) -> None:
        """Read the end of the framing, so that the connection can be used again."""
        if self._bytes is not None:
            with contextlib.suppress(LLMBrokerError):
                await self._bytes.read(self._port.now() + _DRAIN)
        await self.close()

    def _with_text(self, error: LLMBrokerError) -> LLMBrokerError:
        deployment = self._deployment
        if error.provider is None:
            _named(error, deployment)
        text = self.text
        if isinstance(error, LLMTimeoutError):
            error.text = text
            return error
        if isinstance(error, StreamInterruptedError) or self._reader is None or not self._reader.fold.has_content:
            return error
        return StreamInterruptedError(
            f"The stream of {deployment.model} at {deployment.provider.id} broke after {len(text)} characters: {error}",
            text=text,
            status=error.status,
            code=error.code,
            retry_after=error.retry_after,
            detail=error.detail,
            **deployment.facts(),
        )

    async def close(self) -> None:
        """Stop: the connection is given back if the answer was read to its end, else cut."""
        self._over = True
        stream, self._bytes = self._bytes, None
        if stream is not None:
            await stream.close()
