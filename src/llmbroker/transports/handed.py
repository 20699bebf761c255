"""Ports over an HTTP client that the caller hands in: own proxies (SOCKS too), certificates, HTTP/2, mocks.

``HandedIO`` takes an ``httpx.Client`` or ``httpx2.Client``, ``AsyncHandedIO`` their asynchronous twins. Everything but the two
ways to send is inherited from the blocking and the asyncio port. The client stays the caller's: it is never closed here.

The deadline is exact under asyncio. Under the blocking client it is looked at between reads; one silent read may last as long
as the time that was left when the request began, since that library takes its time limits once, with the request.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Iterator, Mapping
from time import monotonic
from typing import Any, cast

from llmbroker import io
from llmbroker.errors import InvalidProviderResponseError, LLMBrokerError
from llmbroker.transports import _http1 as http1
from llmbroker.transports import _target
from llmbroker.transports.aio import AsyncIO
from llmbroker.transports.blocking import BlockingIO
from llmbroker.wire import HTTPReply, HTTPRequest

# Before these, nothing of the request can have reached the server.
_UNSENT = ("ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol", "InvalidURL")


def _translated(error: Exception, target: _target.Target) -> LLMBrokerError:
    """Return the library's error for one of the client's; its name says what it is, its text may hold the URL."""
    name = type(error).__name__
    if "Timeout" in name and name not in _UNSENT:
        return _target.timed_out(target, sent=True)
    if name in _UNSENT:
        return _target.not_connected(target, name)
    if name in ("DecodingError", "LocalProtocolError"):
        return InvalidProviderResponseError(f"The answer of {_target.place(target)} cannot be read: {name}.")
    if name == "RemoteProtocolError" and "illegal" in str(error).lower():
        return InvalidProviderResponseError(f"The answer of {_target.place(target)} cannot be read: it is not HTTP.")
    return _target.broken(target, name)


class _Handed:
    """What both ports share."""

    max_body: int
    _client: Any
    _targets: _target.Targets

    def _prepare(self, request: HTTPRequest, deadline: float | None) -> tuple[_target.Target, Any]:
        target = self._targets.find(request.url)
        left = None if deadline is None else deadline - monotonic()
        if left is not None and left <= 0:
            raise _target.timed_out(target, sent=False)
        made = self._client.build_request(
            request.method, request.url, headers=request.headers, content=bytes(request.body), timeout=left
        )
        return target, made

    async def send(self, request: HTTPRequest, deadline: float | None = None) -> HTTPReply:
        """Send a request, return the whole answer, whatever its status. See ``Port.send``."""
        return await io.whole(cast(io.Port, self), request, deadline)

    def _errors(self) -> tuple[type[Exception], ...]:
        """The client library's own errors; the library is loaded, or there would be no client."""
        library = importlib.import_module(type(self._client).__module__.split(".")[0])
        return (library.HTTPError, library.StreamError, library.InvalidURL)


def _counted(size: int, most: int, target: _target.Target) -> None:
    if size > most:
        raise InvalidProviderResponseError(f"The answer of {_target.place(target)} is too large: more than {most} bytes.")


class HandedIO(_Handed, BlockingIO):
    """The blocking port over the caller's ``httpx.Client``.

    Args:
        client: the caller's client; redirects are not followed whatever it is set to.
        max_body: bytes of an answer's body after unpacking; more is an error.
    """

    def __init__(self, client: Any, *, max_body: int = http1.MAX_BODY) -> None:
        super().__init__(max_body=max_body, proxies=_target.Proxies())
        self._client = client

    async def open(self, request: HTTPRequest, deadline: float | None = None) -> io.ByteStream:
        """Send a request, return as soon as the headers are there. See ``Port.open``."""
        if request.url.startswith("local:"):
            return await super().open(request, deadline)
        target, made = self._prepare(request, deadline)
        try:
            response = self._client.send(made, stream=True, follow_redirects=False)
        except self._errors() as error:
            raise _translated(error, target) from None
        return _HandedStream(response, target, self.max_body, self._errors())


class _HandedStream:
    """An open answer of the caller's client."""

    def __init__(self, response: Any, target: _target.Target, most: int, errors: tuple[type[Exception], ...]) -> None:
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.headers.items()}
        self._response = response
        self._chunks: Iterator[bytes] = response.iter_bytes()
        self._target = target
        self._most = most
        self._errors = errors
        self._size = 0

    async def read(self, deadline: float | None = None) -> bytes:
        """Return the next bytes, ``b""`` at the end. See ``ByteStream.read``."""
        if deadline is not None and deadline <= monotonic():
            self._response.close()
            raise _target.timed_out(self._target, sent=True)
        try:
            while not (chunk := next(self._chunks)):
                pass
        except StopIteration:
            return b""
        except self._errors as error:
            raise _translated(error, self._target) from None
        self._size += len(chunk)
        _counted(self._size, self._most, self._target)
        return chunk

    async def close(self) -> None:
        """Give the connection back or cut it, as the client does."""
        self._response.close()


class AsyncHandedIO(_Handed, AsyncIO):
    """The asyncio port over the caller's ``httpx.AsyncClient``; arguments as of ``HandedIO``."""

    def __init__(self, client: Any, *, max_body: int = http1.MAX_BODY) -> None:
        super().__init__(max_body=max_body, proxies=_target.Proxies())
        self._client = client

    async def open(self, request: HTTPRequest, deadline: float | None = None) -> io.ByteStream:
        """Send a request, return as soon as the headers are there. See ``Port.open``."""
        if request.url.startswith("local:"):
            return await super().open(request, deadline)
        target, made = self._prepare(request, deadline)
        try:
            async with asyncio.timeout_at(_loop_time(deadline)):
                response = await self._client.send(made, stream=True, follow_redirects=False)
        except TimeoutError:
            raise _target.timed_out(target, sent=True) from None
        except self._errors() as error:
            raise _translated(error, target) from None
        return _AsyncHandedStream(response, target, self.max_body, self._errors())


def _loop_time(deadline: float | None) -> float | None:
    return None if deadline is None else asyncio.get_running_loop().time() + deadline - monotonic()


class _AsyncHandedStream:
    """An open answer of the caller's asynchronous client."""

    def __init__(self, response: Any, target: _target.Target, most: int, errors: tuple[type[Exception], ...]) -> None:
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.headers.items()}
        self._response = response
        self._chunks: AsyncIterator[bytes] = response.aiter_bytes()
        self._target = target
        self._most = most
        self._errors = errors
        self._size = 0

    async def read(self, deadline: float | None = None) -> bytes:
        """Return the next bytes, ``b""`` at the end. See ``ByteStream.read``."""
        try:
            async with asyncio.timeout_at(_loop_time(deadline)):
                while not (chunk := await anext(self._chunks)):
                    pass
        except StopAsyncIteration:
            return b""
        except TimeoutError:
            await self._response.aclose()
            raise _target.timed_out(self._target, sent=True) from None
        except self._errors as error:
            raise _translated(error, self._target) from None
        self._size += len(chunk)
        _counted(self._size, self._most, self._target)
        return chunk

    async def close(self) -> None:
        """Give the connection back or cut it, as the client does."""
        await self._response.aclose()
