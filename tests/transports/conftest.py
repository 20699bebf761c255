"""Every test of the ports that use sockets runs over both of them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
import trustme

from llmbroker.io import Port
from llmbroker.transports import AsyncIO, BlockingIO
from llmbroker.wire import HTTPReply, HTTPRequest

T = TypeVar("T")


class Face:
    """Runs flows over one kind of port and closes it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def run(self, flow: Callable[[Port], Awaitable[T]], **options: Any) -> T:
        if self.kind == "blocking":
            port = BlockingIO(**options)
            try:
                return port.drive(flow(port))  # type: ignore[arg-type]
            finally:
                port.close()

        async def main() -> T:
            port = AsyncIO(**options)
            try:
                return await flow(port)
            finally:
                await port.aclose()

        run = pytest.importorskip("uvloop").run if self.kind == "uvloop" else asyncio.run
        out: T = run(main())
        return out

    def send(self, url: str, *, seconds: float = 10.0, method: str = "POST", body: bytes = b"{}", **options: Any) -> HTTPReply:
        """Send one request over a fresh port."""
        request = HTTPRequest(url, {"content-type": "application/json"}, body, method)

        async def flow(port: Port) -> HTTPReply:
            return await port.send(request, port.now() + seconds)

        return self.run(flow, **options)

    def stream(self, url: str, *, seconds: float = 10.0, **options: Any) -> list[bytes]:
        """Open one stream over a fresh port and read it to its end."""

        async def flow(port: Port) -> list[bytes]:
            stream = await port.open(post(url), port.now() + seconds)
            parts = []
            try:
                while part := await stream.read(port.now() + seconds):
                    parts.append(part)
            finally:
                await stream.close()
            return parts

        return self.run(flow, **options)


def post(url: str, body: bytes = b"{}", **headers: str) -> HTTPRequest:
    return HTTPRequest(url, {"content-type": "application/json", **headers}, body)


@pytest.fixture(params=["blocking", "asyncio", pytest.param("uvloop", marks=pytest.mark.slow)])
def face(request: pytest.FixtureRequest) -> Face:
    return Face(request.param)


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def server_tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    return context


@pytest.fixture
def client_tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context
