"""Connections: kept, found stale, given up, over TLS and through proxies; none is left open."""

from __future__ import annotations

import gc
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from tests.transports.conftest import Face, post
from tests.transports.server import Link, Server, chunked, forwarder, once, steadily

from llmbroker.errors import ConfigurationError, ConnectionFailedError, LLMTimeoutError
from llmbroker.io import Port, gather
from llmbroker.transports import _connect, _target
from llmbroker.transports._target import Proxies

HEAD = b"HTTP/1.1 200 OK\r\n"


def three(url: str) -> Callable[[Port], object]:
    async def flow(port: Port) -> list[bytes]:
        return [(await port.send(post(url), port.now() + 10)).body for _ in range(3)]

    return flow


# -- keeping -------------------------------------------------------------------------------------------------------------


def test_one_connection_serves_many_requests(face: Face) -> None:
    with Server(steadily()) as server:
        face.run(three(server.url()))
    assert (server.connections, len(server.asked)) == (1, 3)


def test_a_stream_read_to_its_end_gives_its_connection_back(face: Face) -> None:
    def handle(link: Link) -> None:
        while link.ask() is not None:
            link.say(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(b"a", b"b"))

    async def flow(port: Port) -> None:
        for _ in range(3):
            stream = await port.open(post(server.url()), port.now() + 10)
            while await stream.read(port.now() + 10):
                pass
            await stream.close()
            await stream.close()

    with Server(handle) as server:
        face.run(flow)
    assert server.connections == 1


def test_a_stream_closed_when_its_end_has_already_arrived_gives_its_connection_back(face: Face) -> None:
    def handle(link: Link) -> None:
        while link.ask() is not None:
            link.say(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
            link.say(b"6\r\n[DONE]\r\n")
            link.say(b"0\r\n\r\n")

    async def flow(port: Port) -> None:
        for _ in range(3):
            stream = await port.open(post(server.url()), port.now() + 10)
            assert await stream.read(port.now() + 10) == b"[DONE]"
            await port.sleep(0.1)
            await stream.close()

    with Server(handle) as server:
        face.run(flow)
    assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nok", id="close"),
        pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", id="HTTP/1.0"),
        pytest.param(HEAD + b"Content-Length: 2\r\n\r\nok and more", id="bytes after the end"),
        pytest.param(
            HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n" + chunked(b"ok"), id="length and chunks"
        ),
        pytest.param(HEAD + b"Keep-Alive: timeout=1\r\nContent-Length: 2\r\n\r\nok", id="kept for no time"),
    ],
)
def test_a_connection_that_cannot_be_trusted_is_not_used_again(face: Face, answer: bytes) -> None:
    def handle(link: Link) -> None:
        link.ask()
        link.say(answer)
        link.until_closed()

    with Server(handle) as server:
        assert face.run(three(server.url())) == [b"ok"] * 3
    assert server.connections == 3


@pytest.mark.parametrize(("kind", "connections"), [("text/event-stream", 3), ("application/x-ndjson", 3), ("text/plain", 1)])
def test_a_stream_without_tls_uses_its_connection_up(face: Face, kind: str, connections: int) -> None:
    """llama.cpp closes such a connection up to a second after the stream and says so nowhere."""

    def handle(link: Link) -> None:
        while link.ask() is not None:
            link.say(HEAD + f"Content-Type: {kind}\r\nContent-Length: 2\r\n\r\nok".encode())

    with Server(handle) as server:
        assert face.run(three(server.url())) == [b"ok"] * 3
    assert server.connections == connections


def test_http_1_0_may_keep_a_connection_where_it_says_so(face: Face) -> None:
    def handle(link: Link) -> None:
        while link.ask() is not None:
            link.say(b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\nok")

    with Server(handle) as server:
        face.run(three(server.url()))
    assert server.connections == 1


def test_an_old_connection_is_not_used_again(face: Face) -> None:
    with Server(steadily()) as server:
        face.run(three(server.url()), idle_seconds=0.0)
    assert server.connections == 3


def test_no_more_connections_are_kept_than_allowed(face: Face) -> None:
    together = threading.Barrier(4)

    def handle(link: Link) -> None:
        while link.ask() is not None:
            together.wait(10)
            link.answer()

    async def flow(port: Port) -> None:
        for _ in range(2):
            await gather(port, [port.send(post(server.url()), port.now() + 10) for _ in range(4)])

    with Server(handle) as server:
        face.run(flow, pool=2)
    assert server.connections == 6


def test_hosts_do_not_share_connections(face: Face) -> None:
    async def flow(port: Port) -> None:
        for server in (one, two, one, two):
            await port.send(post(server.url()), port.now() + 10)

    with Server(steadily()) as one, Server(steadily()) as two:
        face.run(flow)
    assert (one.connections, len(one.asked), two.connections, len(two.asked)) == (1, 2, 1, 2)


# -- sending again -------------------------------------------------------------------------------------------------------


def closing_after_each(link: Link) -> None:
    link.ask()
    link.answer()


def test_no_request_is_executed_twice_by_a_server_that_closes_after_each_answer(face: Face) -> None:
    async def flow(port: Port) -> int:
        answered = 0
        for _ in range(100):  # without a pause: many requests cross the server's close
            try:
                answered += (await port.send(post(server.url()), port.now() + 10)).body == b"ok"
            except ConnectionFailedError as error:
                assert error.sent
        return answered

    with Server(closing_after_each) as server:
        assert face.run(flow) == len(server.asked)
    assert len(server.asked) > 50


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_connection_closed_while_idle_is_replaced(face: Face, how: str) -> None:
    def handle(link: Link) -> None:
        link.ask()
        link.answer()
        getattr(link, how)()

    async def flow(port: Port) -> None:
        for _ in range(3):
            await port.send(post(server.url()), port.now() + 10)
            await port.sleep(0.05)

    with Server(handle) as server:
        face.run(flow)
    assert len(server.asked) == 3


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_request_that_may_have_been_seen_is_not_sent_again(face: Face, how: str) -> None:
    def handle(link: Link) -> None:
        link.ask()
        link.answer()
        if link.ask() is not None:
            getattr(link, how)()

    async def flow(port: Port) -> None:
        await port.send(post(server.url()), port.now() + 10)
        await port.send(post(server.url()), port.now() + 10)

    with Server(handle) as server, pytest.raises(ConnectionFailedError) as caught:
        face.run(flow)
    assert caught.value.sent is True
    assert len(server.asked) == 2


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux tells what the peer has acknowledged")
def test_a_request_that_crossed_the_servers_close_is_sent_again(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    # The look before use would notice the close; without it, the request is written into the closed connection.
    monkeypatch.setattr(_connect.Connection, "fresh", lambda self: True)
    from llmbroker.transports import _lines

    monkeypatch.setattr(_lines, "is_ready", lambda sock: False)
    closed = threading.Event()

    def handle(link: Link) -> None:
        link.ask()
        link.answer()
        link.close()
        closed.set()

    async def flow(port: Port) -> None:
        await port.send(post(server.url()), port.now() + 10)
        assert closed.wait(10)  # the loop does not run meanwhile, so it has not seen the close either
        assert (await port.send(post(server.url()), port.now() + 10)).body == b"ok"

    with Server(handle) as server:
        face.run(flow)
    assert (server.connections, len(server.asked)) == (2, 2)


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("way", ["whole", "streamed"])
def test_a_fresh_connection_that_breaks_before_the_answer_counts_as_seen(face: Face, how: str, way: str) -> None:
    def handle(link: Link) -> None:
        link.ask()
        getattr(link, how)()

    with Server(handle) as server, pytest.raises(ConnectionFailedError) as caught:
        (face.send if way == "whole" else face.stream)(server.url())
    assert caught.value.sent is True
    assert len(server.asked) == 1


def test_a_reset_in_the_body_is_an_error_after_what_came(face: Face) -> None:
    async def flow(port: Port) -> tuple[bytes, bool]:
        stream = await port.open(post(server.url()), port.now() + 10)
        first = await stream.read(port.now() + 10)
        go.set()
        with pytest.raises(ConnectionFailedError) as caught:
            while await stream.read(port.now() + 10):
                pass
        with pytest.raises(ConnectionFailedError):  # an end is told only once the answer has one
            await stream.read()
        await stream.close()
        assert await stream.read() == b""
        return first, caught.value.sent

    go = threading.Event()

    def handle(link: Link) -> None:
        link.ask()
        link.say(HEAD + b"Content-Length: 10\r\n\r\nabc")
        go.wait(10)
        link.reset()

    with Server(handle) as server:
        assert face.run(flow) == (b"abc", True)


# -- no connection -------------------------------------------------------------------------------------------------------


def test_nobody_listening_is_not_sent(face: Face) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ConnectionFailedError, match=f"127.0.0.1:{port}: connection refused") as caught:
        face.send(f"http://127.0.0.1:{port}/v1?key=SECRET")
    assert caught.value.sent is False
    assert "SECRET" not in str(caught.value)


def test_an_unknown_name_is_not_sent(face: Face) -> None:
    with pytest.raises(ConnectionFailedError, match=r"no-such-host\.invalid:80") as caught:
        face.send("http://no-such-host.invalid/v1")
    assert caught.value.sent is False


@pytest.mark.parametrize("host", ["a" * 70 + ".example", "a..b"])
def test_an_impossible_name_is_not_sent(face: Face, host: str) -> None:
    with pytest.raises(ConnectionFailedError) as caught:
        face.send(f"http://{host}/v1")
    assert caught.value.sent is False


def test_the_next_address_is_tried_when_the_first_is_dead(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    def both(host: object, port: object, *args: object, **kwargs: object) -> list[tuple[object, ...]]:
        tcp = socket.SOCK_STREAM
        return [
            (socket.AF_INET, tcp, 6, "", ("127.0.0.9", server.port)),
            (socket.AF_INET6, tcp, 6, "", ("::1", server.port, 0, 0)),
            (socket.AF_INET, tcp, 6, "", ("127.0.0.1", server.port)),
        ]

    with Server(steadily()) as server:
        monkeypatch.setattr(socket, "getaddrinfo", both)
        assert face.send(server.url(host="many.example")).body == b"ok"


# -- giving up ------------------------------------------------------------------------------------------------------------


def dripping(link: Link) -> None:
    link.ask()
    link.say(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
    link.until_closed()


def test_closing_a_stream_early_closes_its_connection(face: Face) -> None:
    async def flow(port: Port) -> None:
        stream = await port.open(post(server.url()), port.now() + 10)
        assert await stream.read(port.now() + 10) == b"a"
        await stream.close()
        assert await stream.read() == b""
        await port.sleep(0)
        assert server.left.wait(5)

    with Server(dripping) as server:
        face.run(flow)


def test_a_forgotten_stream_closes_its_connection(face: Face) -> None:
    async def flow(port: Port) -> None:
        stream = await port.open(post(server.url()), port.now() + 10)
        await stream.read(port.now() + 10)
        del stream
        gc.collect()
        for _ in range(100):
            await port.sleep(0.01)
            if server.left.is_set():
                return
        raise AssertionError("the server still waits")

    with Server(dripping) as server:
        face.run(flow)


def test_a_deadline_in_a_stream_closes_its_connection(face: Face) -> None:
    with Server(dripping) as server:
        with pytest.raises(LLMTimeoutError):
            face.stream(server.url(), seconds=0.1)
        assert server.left.wait(5)


# -- TLS -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_trusted_certificate_is_accepted(
    face: Face, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext, host: str
) -> None:
    with Server(steadily(b"x" * 300_000), tls=server_tls) as server:
        assert face.run(three(server.url(host=host)), verify=client_tls) == [b"x" * 300_000] * 3
    assert server.connections == 1


def test_the_authority_may_come_from_the_environment(
    face: Face, server_tls: ssl.SSLContext, authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with Server(steadily(), tls=server_tls) as server:
        assert face.send(server.url(host="localhost")).body == b"ok"


def test_an_untrusted_certificate_is_refused(face: Face, server_tls: ssl.SSLContext) -> None:
    with Server(steadily(), tls=server_tls) as server:
        with pytest.raises(ConnectionFailedError, match=r"certificate is not trusted.*SSL_CERT_FILE") as caught:
            face.send(server.url(host="localhost"))
    assert caught.value.sent is False
    assert server.asked == []


def test_a_certificate_of_another_host_is_refused(face: Face, authority: trustme.CA, client_tls: ssl.SSLContext) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("other.example").configure_cert(context)
    with Server(steadily(), tls=context) as server, pytest.raises(ConnectionFailedError, match="not trusted"):
        face.send(server.url(host="localhost"), verify=client_tls)


def test_verification_can_be_switched_off(face: Face, server_tls: ssl.SSLContext) -> None:
    with Server(steadily(), tls=server_tls) as server:
        assert face.send(server.url(host="localhost"), verify=False).body == b"ok"


def test_tls_to_a_plain_server_is_an_error(face: Face, client_tls: ssl.SSLContext) -> None:
    def handle(link: Link) -> None:
        link.sock.recv(100)
        link.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with Server(handle) as server, pytest.raises(ConnectionFailedError) as caught:
        face.send(server.url(scheme="https", host="localhost"), verify=client_tls)
    assert caught.value.sent is False


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_break_in_the_handshake_is_an_error(face: Face, client_tls: ssl.SSLContext, how: str) -> None:
    def handle(link: Link) -> None:
        link.sock.recv(100)
        getattr(link, how)()

    with Server(handle) as server, pytest.raises(ConnectionFailedError) as caught:
        face.send(server.url(scheme="https", host="localhost"), verify=client_tls)
    assert caught.value.sent is False


def test_a_break_in_an_encrypted_body_is_an_error(face: Face, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext) -> None:
    with Server(once(HEAD + b"Content-Length: 10\r\n\r\nabc"), tls=server_tls) as server:
        with pytest.raises(ConnectionFailedError) as caught:
            face.send(server.url(host="localhost"), verify=client_tls)
    assert caught.value.sent is True


def test_an_encrypted_server_that_closes_after_each_answer_is_no_fault(
    face: Face, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    async def flow(port: Port) -> None:
        for _ in range(20):
            assert (await port.send(post(server.url(host="localhost")), port.now() + 10)).body == b"ok"
            await port.sleep(0.01)

    with Server(closing_after_each, tls=server_tls) as server:
        face.run(flow, verify=client_tls)
    assert len(server.asked) == 20


def test_closing_an_encrypted_stream_early_closes_its_connection(
    face: Face, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    async def flow(port: Port) -> None:
        stream = await port.open(post(server.url(host="localhost")), port.now() + 10)
        assert await stream.read(port.now() + 10) == b"a"
        await stream.close()

    with Server(dripping, tls=server_tls) as server:
        face.run(flow, verify=client_tls)
        assert server.left.wait(5)


# -- proxies ---------------------------------------------------------------------------------------------------------------


def test_a_plain_request_goes_to_the_proxy_whole(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    with Server(forwarder(seen)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://us%40er:pa%3Ass@127.0.0.1:{proxy.port}")
        assert face.run(three("http://far.example:81/v1?x=1")) == [b"from the proxy"] * 3
    assert seen == ["POST http://far.example:81/v1?x=1 HTTP/1.1"] * 3
    assert proxy.asked[0].headers["host"] == "far.example:81"
    assert proxy.asked[0].headers["proxy-authorization"] == "Basic dXNAZXI6cGE6c3M="
    assert proxy.connections == 1


def test_an_encrypted_request_goes_through_a_tunnel(
    face: Face, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    with Server(steadily(), tls=server_tls) as server, Server(forwarder(seen)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"user:pass@127.0.0.1:{proxy.port}")
        assert face.run(three(server.url(host="localhost")), verify=client_tls) == [b"ok"] * 3
    assert seen == [f"CONNECT localhost:{server.port} HTTP/1.1"]
    assert proxy.asked[0].headers["proxy-authorization"] == "Basic dXNlcjpwYXNz"
    assert server.asked[0].line == "POST /v1/x?key=SECRET HTTP/1.1"
    assert "proxy-authorization" not in server.asked[0].headers


@pytest.mark.parametrize("status", ["407 Proxy Authentication Required", "502 Bad Gateway"])
def test_a_proxy_that_refuses_the_tunnel_is_named(face: Face, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(forwarder([], status=status)) as proxy:
        monkeypatch.setenv("ALL_PROXY", f"http://u:SECRET@127.0.0.1:{proxy.port}")
        with pytest.raises(ConnectionFailedError, match=f"through the proxy 127.0.0.1:{proxy.port}.*{status[:3]}") as caught:
            face.send("https://far.example/v1")
    assert caught.value.sent is False
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("says", [b"", b"SSH-2.0\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000])
def test_a_proxy_that_speaks_nonsense_is_an_error(face: Face, says: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(once(says)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        with pytest.raises(ConnectionFailedError) as caught:
            face.send("https://far.example/v1")
    assert caught.value.sent is False


def test_a_dead_proxy_is_an_error(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port}")
    with pytest.raises(ConnectionFailedError, match="through the proxy"):
        face.send("http://far.example/v1")


def test_no_proxy_is_honoured(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "example.com, 127.0.0.0/8")
    with Server(steadily()) as server:
        assert face.send(server.url()).body == b"ok"


def test_the_environment_is_read_once(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    async def flow(port: Port) -> bytes:
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        return (await port.send(post(server.url()), port.now() + 10)).body

    with Server(steadily()) as server:
        assert face.run(flow) == b"ok"


def test_proxies_may_be_given_by_hand(face: Face) -> None:
    with Server(forwarder([])) as proxy:
        reply = face.send("http://far.example/v1", proxies=Proxies(http=f"127.0.0.1:{proxy.port}"))
    assert reply.body == b"from the proxy"


def test_a_proxy_of_another_kind_is_refused(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1080")
    with pytest.raises(ConfigurationError, match="only http:// proxies"):
        face.send("http://far.example/v1")


# -- what is left ----------------------------------------------------------------------------------------------------------


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files through /proc")
def test_a_closed_port_leaves_nothing_open(face: Face, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext) -> None:
    with Server(steadily()) as plain, Server(steadily(), tls=server_tls) as encrypted:

        async def flow(port: Port) -> None:
            for server in (plain, encrypted):
                url = server.url(host="localhost")
                await gather(port, [port.send(post(url), port.now() + 10) for _ in range(5)])

        face.run(flow, verify=client_tls)
        time.sleep(0.1)
        before, threads = descriptors(), threading.active_count()
        for _ in range(3):
            face.run(flow, verify=client_tls)
        for _ in range(100):
            if descriptors() <= before and threading.active_count() <= threads:
                break
            time.sleep(0.05)  # the server's threads end in their own time
        assert descriptors() <= before
        assert threading.active_count() <= threads


def test_targets_are_remembered_in_bounded_number() -> None:
    targets = _target.Targets(Proxies())
    for number in range(2000):
        targets.find(f"http://host/{number}")
    assert len(targets._known) <= 256
