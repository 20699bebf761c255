"""A client that the caller hands in carries everything that the library sends; its errors become the library's."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import Any

import pytest
from tests.transports.server import Link, Server

import llmbroker
from llmbroker.errors import ConnectionFailedError, InvalidProviderResponseError, LLMTimeoutError
from llmbroker.io import Port
from llmbroker.transports import AsyncHandedIO, HandedIO
from llmbroker.wire import HTTPRequest

HEAD = b"HTTP/1.1 200 OK\r\n"
Run = Callable[..., Any]


@pytest.fixture(params=["httpx", "httpx2"])
def library(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(request.param)


@pytest.fixture(params=["blocking", "asyncio"])
def run(request: pytest.FixtureRequest, library: Any) -> Run:
    def go(flow: Callable[[Port], Any], *, max_body: int = 1 << 20, **options: Any) -> Any:
        if request.param == "blocking":
            with library.Client(trust_env=False, **options) as client:
                port = HandedIO(client, max_body=max_body)
                return port.drive(flow(port))

        async def main() -> Any:
            async with library.AsyncClient(trust_env=False, **options) as client:
                return await flow(AsyncHandedIO(client, max_body=max_body))

        return asyncio.run(main())

    return go


def post(url: str) -> HTTPRequest:
    return HTTPRequest(url, {"content-type": "application/json", "authorization": "Bearer SECRET"}, b'{"a":1}')


def sending(url: str, seconds: float = 10.0) -> Callable[[Port], Any]:
    async def flow(port: Port) -> Any:
        return await port.send(post(url), port.now() + seconds)

    return flow


def saying(*pieces: bytes) -> Callable[[Link], None]:
    def handle(link: Link) -> None:
        link.ask()
        for piece in pieces:
            link.say(piece)

    return handle


def test_what_is_sent_and_what_comes_back(run: Run) -> None:
    with Server(saying(HEAD + b"X-Request-ID: 7\r\nContent-Length: 2\r\n\r\nok")) as server:
        reply = run(sending(server.url()))
    assert (reply.status, reply.body, reply.headers["x-request-id"]) == (200, b"ok", "7")
    assert server.asked[0].body == b'{"a":1}'


def test_a_stream_comes_in_pieces_and_ends(run: Run) -> None:
    async def flow(port: Port) -> bytes:
        stream = await port.open(post(server.url()), port.now() + 10)
        out = b""
        while piece := await stream.read(port.now() + 10):
            out += piece
        await stream.close()
        return out

    with Server(saying(HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", b"1\r\nc\r\n0\r\n\r\n")) as server:
        assert run(flow) == b"abc"


def test_redirects_are_not_followed(run: Run) -> None:
    with Server(saying(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")) as server:
        assert run(sending(server.url()), follow_redirects=True).status == 302


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ([], ConnectionFailedError),
        ([HEAD + b"Content-Length: 9\r\n\r\nhalf"], ConnectionFailedError),
        ([HEAD + b"Content-Length: 2000000\r\n\r\n" + b"x" * 2_000_000], InvalidProviderResponseError),
        ([HEAD + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\noops"], InvalidProviderResponseError),
    ],
    ids=["no answer", "cut body", "too large", "broken packing"],
)
def test_faults_are_the_library_s_own_errors(run: Run, pieces: list[bytes], error: type[Exception]) -> None:
    with Server(saying(*pieces)) as server, pytest.raises(error) as caught:
        run(sending(server.url()))
    assert "SECRET" not in str(caught.value)


def test_a_refused_connection_was_not_sent(run: Run) -> None:
    with pytest.raises(ConnectionFailedError) as caught:
        run(sending("http://127.0.0.1:1/v1"))
    assert not caught.value.sent


def test_silence_ends_at_the_deadline(run: Run) -> None:
    def handle(link: Link) -> None:
        link.ask()
        link.until_closed()

    with Server(handle) as server, pytest.raises(LLMTimeoutError):
        run(sending(server.url(), 0.3))


def test_a_mocked_transport_serves_a_direct_client(library: Any) -> None:
    def answer(request: Any) -> Any:
        body = {"model": "m", "choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]}
        return library.Response(200, json=body)

    with library.Client(transport=importlib.import_module(library.__name__).MockTransport(answer)) as client:
        asked = llmbroker.DirectClient(base_url="http://mocked.example/v1", model="m", io=HandedIO(client))
        assert asked.ask("hello").text == "hi"
