"""The deadline holds for every wait, and the error says whether the provider may be at work."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
import time

import pytest
from tests.transports.conftest import Face, post
from tests.transports.server import Link, Server, steadily

from llmbroker.errors import ConnectionFailedError, LLMTimeoutError
from llmbroker.io import Port

HEAD = b"HTTP/1.1 200 OK\r\n"


def silent(link: Link) -> None:
    link.ask()
    link.until_closed()


def cut_head(link: Link) -> None:
    link.ask()
    link.say(HEAD + b"X: y")
    link.until_closed()


def dripping_head(link: Link) -> None:
    link.ask()
    link.say(HEAD)
    while not link.server.over.wait(0.02):
        link.say(b"X: y\r\n")


def dripping_body(link: Link) -> None:
    link.ask()
    link.say(HEAD + b"Content-Length: 1000000\r\n\r\n")
    while not link.server.over.wait(0.02):
        link.say(b"x")


def dripping_chunks(link: Link) -> None:
    link.ask()
    link.say(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    while not link.server.over.wait(0.02):
        link.say(b"1\r\nx\r\n")


def dripping_interim(link: Link) -> None:
    link.ask()
    while not link.server.over.wait(0.02):
        link.say(b"HTTP/1.1 100 Continue\r\n\r\n")


@pytest.mark.parametrize("handle", [silent, cut_head, dripping_head, dripping_body, dripping_chunks, dripping_interim])
def test_a_slow_answer_ends_with_the_deadline_and_counts_as_sent(face: Face, handle: object) -> None:
    with Server(handle) as server, pytest.raises(LLMTimeoutError) as caught:  # type: ignore[arg-type]
        face.send(server.url(), seconds=0.25)
    assert caught.value.sent is True
    assert f"127.0.0.1:{server.port}" in str(caught.value)
    assert "SECRET" not in str(caught.value)
    assert isinstance(caught.value, TimeoutError)


def test_a_connection_of_a_call_that_timed_out_is_closed(face: Face) -> None:
    with Server(silent) as server:
        with pytest.raises(LLMTimeoutError):
            face.send(server.url(), seconds=0.1)
        assert server.left.wait(5)


def test_a_deadline_that_has_passed_sends_nothing(face: Face) -> None:
    with Server(steadily()) as server, pytest.raises(LLMTimeoutError) as caught:
        face.send(server.url(), seconds=-1.0)
    assert caught.value.sent is False
    assert server.connections == 0


def test_each_read_of_a_stream_has_its_own_deadline(face: Face) -> None:
    async def flow(port: Port) -> int:
        stream = await port.open(post(server.url()), port.now() + 10)
        parts = 0
        while parts < 20:
            parts += len(await stream.read(port.now() + 5))
        with pytest.raises(LLMTimeoutError):
            while True:
                await stream.read(end)
        await stream.close()
        return parts

    with Server(dripping_chunks) as server:
        end = time.monotonic() + 0.6
        assert face.run(flow) >= 20


def test_without_a_deadline_a_slow_answer_is_waited_for(face: Face) -> None:
    def handle(link: Link) -> None:
        link.ask()
        time.sleep(0.2)
        link.answer()

    with Server(handle) as server:
        assert face.run(lambda port: port.send(post(server.url()))).body == b"ok"


@pytest.fixture
def full_listener() -> object:
    """An address where nobody answers: the queue of a listening socket that is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
            fillers.append(filler)
        time.sleep(0.05)
        yield listener.getsockname()[1]
        for filler in fillers:
            filler.close()


def test_a_connection_that_does_not_come_ends_with_the_deadline_unsent(face: Face, full_listener: int) -> None:
    with pytest.raises(LLMTimeoutError) as caught:
        face.send(f"http://127.0.0.1:{full_listener}/", seconds=0.2)
    assert caught.value.sent is False


def test_a_connection_that_does_not_come_ends_with_its_own_limit(face: Face, full_listener: int) -> None:
    with pytest.raises(ConnectionFailedError, match=r"took more than 0\.2 s") as caught:
        face.send(f"http://127.0.0.1:{full_listener}/", timeout_connect=0.2)
    assert caught.value.sent is False


def mute(link: Link) -> None:
    link.sock.recv(1000)
    link.until_closed()


def test_a_handshake_that_stalls_ends_with_the_deadline_unsent(face: Face, client_tls: ssl.SSLContext) -> None:
    with Server(mute) as server:
        with pytest.raises(LLMTimeoutError) as caught:
            face.send(server.url(scheme="https"), seconds=0.2, verify=client_tls)
        assert server.left.wait(5)
    assert caught.value.sent is False


def test_a_proxy_that_stalls_ends_with_the_deadline_unsent(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(mute) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        with pytest.raises(LLMTimeoutError) as caught:
            face.send("https://far.example/", seconds=0.2)
        assert proxy.left.wait(5)
    assert caught.value.sent is False


def test_a_name_that_is_not_found_in_time_ends_with_the_deadline(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: over.wait(5) and [])
    threading.Timer(0.6, over.set).start()
    with pytest.raises(LLMTimeoutError) as caught:
        face.send("http://slow-name.example/", seconds=0.2)
    assert caught.value.sent is False


def test_a_request_that_nobody_takes_ends_with_the_deadline(face: Face) -> None:
    def handle(link: Link) -> None:
        link.hang()

    with Server(handle) as server, pytest.raises(LLMTimeoutError) as caught:
        face.send(server.url(), seconds=0.3, body=b"x" * 30_000_000)
    assert caught.value.sent is True


def test_requests_beyond_the_limit_wait_within_their_deadline() -> None:
    async def main() -> None:
        from llmbroker.transports import AsyncIO

        port = AsyncIO(limit=1)
        stream = await port.open(post(server.url()), port.now() + 5)
        with pytest.raises(LLMTimeoutError) as caught:
            await port.send(post(server.url()), port.now() + 0.1)
        assert caught.value.sent is False
        await stream.close()
        with pytest.raises(LLMTimeoutError) as caught:
            await port.send(post(server.url()), port.now() + 0.1)
        assert caught.value.sent is True
        await port.aclose()

    def handle(link: Link) -> None:
        link.ask()
        if link.number == 1:
            link.say(HEAD + b"\r\nx")
        link.until_closed()

    with Server(handle) as server:
        asyncio.run(main())


# -- Ctrl-C and fork -------------------------------------------------------------------------------------------------------

INTERRUPTED = """
    import asyncio, sys, threading, time
    from llmbroker.transports import AsyncIO, BlockingIO
    from llmbroker.wire import HTTPRequest

    kind, way, url = sys.argv[1:]
    request = HTTPRequest(url, {}, b"{}")

    async def flow(port):
        if way == "send":
            await port.send(request, port.now() + 30)
        elif way == "read":
            stream = await port.open(request, port.now() + 30)
            while await stream.read(port.now() + 30):
                pass
        elif way == "sleep":
            await port.sleep(30)
        elif way == "job":
            job = port.start(port.send(request, port.now() + 30))
            await port.wait([job])
        elif way == "call":
            await port.call(asyncio.sleep, 30)

    print("ready", flush=True)
    try:
        if kind == "blocking":
            BlockingIO().drive(flow(BlockingIO()))
        else:
            asyncio.run(flow(AsyncIO()))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize("way", ["send", "read", "sleep", "job", "call"])
def test_ctrl_c_ends_a_wait_at_once(face: Face, way: str) -> None:
    def handle(link: Link) -> None:
        link.ask()
        if way == "read":
            link.say(HEAD + b"\r\nx")
        link.until_closed()

    with Server(handle) as server:
        command = [sys.executable, "-W", "error", "-c", textwrap.dedent(INTERRUPTED), face.kind, way, server.url()]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.4)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=10)
    assert (out, child.returncode) == ("interrupted\n", 0), err
    assert "Traceback" not in err


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_process_uses_connections_of_its_own(face: Face) -> None:
    script = """
        import asyncio, os, sys
        from llmbroker.transports import AsyncIO, BlockingIO
        from llmbroker.wire import HTTPRequest

        kind, url = sys.argv[1:]
        port = BlockingIO() if kind == "blocking" else AsyncIO()
        run = port.drive if kind == "blocking" else asyncio.run

        async def flow():
            job = port.start(port.send(HTTPRequest(url, {}, str(os.getpid()).encode()), port.now() + 10))
            await port.wait([job])
            await port.call(int, 1)
            return job.result().body

        run(flow())
        child = os.fork()
        assert run(flow()) == b"ok"
        if child:
            assert os.waitpid(child, 0)[1] == 0
            assert run(flow()) == b"ok"
        else:
            os._exit(0)
    """
    by_connection: dict[int, set[bytes]] = {}

    def handle(link: Link) -> None:
        while (asked := link.ask()) is not None:
            by_connection.setdefault(link.number, set()).add(asked.body)
            link.answer()

    with Server(handle) as server:
        command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script), face.kind, server.url()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(len(bodies) == 1 for bodies in by_connection.values())  # no connection carries two processes' requests
    assert len(server.asked) == 4
