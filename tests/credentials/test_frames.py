"""Crash reporters show the variables of every frame: over real sockets too none of ours shows the key."""

from __future__ import annotations

import socketserver
import threading
import traceback
from collections.abc import Callable, Iterator

import pytest

from llmbroker import AsyncBroker, Broker, LLMConfig
from llmbroker.errors import LLMBrokerError

CANARY = "canary-k3y-1234567890"
MESSAGE = [{"role": "user", "content": "hi"}]

FAULTS = {
    "closes": b"",
    "garbage": b"hello\r\n\r\n",
    "cut": b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{",
    "refuses": b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\nno",
    "hangs": None,
}


@pytest.fixture
def serve() -> Iterator[Callable[[bytes | None], str]]:
    """Servers that read a request and answer with these bytes; None: with nothing, for as long as the test takes."""
    servers: list[socketserver.TCPServer] = []
    over = threading.Event()

    def start(reply: bytes | None) -> str:
        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                self.request.recv(65536)
                if reply is None:
                    over.wait(20)
                else:
                    self.request.sendall(reply)

        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}/v1"

    yield start
    over.set()
    for server in servers:
        server.shutdown()
        server.server_close()


def shown(error: BaseException) -> str:
    """The traceback with all variables, without this test's own frame."""
    own = error.with_traceback(error.__traceback__.tb_next if error.__traceback__ else None)
    text = "".join(traceback.TracebackException.from_exception(own, capture_locals=True).format())
    assert "self = " in text  # the frames are really looked into
    return text


def model(url: str) -> LLMConfig:
    return LLMConfig(name="d", model="m", base_url=url, api_key_ref="K")


@pytest.mark.parametrize("reply", FAULTS.values(), ids=FAULTS)
def test_no_variable_of_a_blocking_call_shows_the_key(serve: Callable[[bytes | None], str], reply: bytes | None) -> None:
    with Broker(pool=[], direct=[model(serve(reply))], secrets={"K": CANARY}, journal=False) as broker:
        client = broker.direct("d")
        with pytest.raises(LLMBrokerError) as caught:
            client.chat(MESSAGE, timeout=0.5)
    assert CANARY not in shown(caught.value)


@pytest.mark.parametrize("reply", FAULTS.values(), ids=FAULTS)
async def test_no_variable_of_an_async_call_shows_the_key(serve: Callable[[bytes | None], str], reply: bytes | None) -> None:
    async with AsyncBroker(pool=[], direct=[model(serve(reply))], secrets={"K": CANARY}, journal=False) as broker:
        client = await broker.direct("d")
        with pytest.raises(LLMBrokerError) as caught:
            await client.chat(MESSAGE, timeout=0.5)
    assert CANARY not in shown(caught.value)
