"""What comes back is what the server said, or a typed error: over both ports, whole and streamed."""

from __future__ import annotations

import contextlib
import gzip
import threading
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.transports.conftest import Face, post
from tests.transports.server import Link, Server, chunked, once, steadily

from llmbroker.errors import (
    ConnectionFailedError,
    InvalidProviderResponseError,
    InvalidRequestError,
    LLMBrokerError,
)
from llmbroker.io import Port
from llmbroker.wire import HTTPReply, HTTPRequest

HEAD = b"HTTP/1.1 200 OK\r\n"


def test_an_answer_has_status_lower_case_headers_and_body(face: Face) -> None:
    with Server(once(b"HTTP/1.1 418 Teapot\r\nX-Request-ID: 7\r\nContent-Length: 5\r\n\r\nhello")) as server:
        reply = face.send(server.url())
    assert reply == HTTPReply(418, {"x-request-id": "7", "content-length": "5"}, b"hello")


def test_the_request_arrives_as_it_was_made(face: Face) -> None:
    with Server(steadily()) as server:
        request = HTTPRequest(server.url("/a b/ü?x=1&y=ö"), {"X-Key": "k", "Content-Type": "text/plain"}, b"body")
        face.run(lambda port: port.send(request))
    asked = server.asked[0]
    assert asked.line == "POST /a%20b/%C3%BC?x=1&y=%C3%B6 HTTP/1.1"
    assert asked.body == b"body"
    assert asked.headers["x-key"] == "k"
    assert asked.headers["content-type"] == "text/plain"
    assert asked.headers["host"] == f"127.0.0.1:{server.port}"
    assert asked.headers["content-length"] == "4"


def test_a_large_request_arrives_whole(face: Face) -> None:
    body = b"x" * 5_000_000
    with Server(steadily()) as server:
        assert face.send(server.url(), body=body).body == b"ok"
    assert server.asked[0].body == body


@pytest.mark.parametrize(
    ("says", "body"),
    [
        pytest.param([HEAD + b"Content-Length: 3\r\n\r\nabc"], b"abc", id="length"),
        pytest.param([HEAD + b"Content-Length: 0\r\n\r\n"], b"", id="empty"),
        pytest.param([HEAD + b"Content-Length: 3, 3\r\n\r\nabc"], b"abc", id="length said twice"),
        pytest.param([HEAD + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc"], b"abc", id="length in two fields"),
        pytest.param([HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(b"ab", b"c")], b"abc", id="chunks"),
        pytest.param(
            [HEAD + b"transfer-encoding: Chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nT: x\r\n\r\n"], b"abc", id="extension, trailer"
        ),
        pytest.param([HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n" + chunked(b"abc")], b"abc", id="both"),
        pytest.param([HEAD + b"\r\nabc"], b"abc", id="until the end"),
        pytest.param([b"HTTP/1.0 200 OK\r\n\r\nabc"], b"abc", id="HTTP/1.0"),
        pytest.param([b"HTTP/1.1 200\r\nContent-Length: 3\r\n\r\nabc"], b"abc", id="no reason"),
        pytest.param([b"HTTP/1.1 200 OK\nContent-Length: 3\n\nabc"], b"abc", id="bare line feeds"),
        pytest.param(
            [b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n", HEAD + b"Content-Length: 3\r\n\r\nabc"], b"abc", id="interim answer"
        ),
        pytest.param(
            [b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"Content-Length: 3\r\n\r\nabc"], b"abc", id="100 in one piece"
        ),
        pytest.param([b"HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\n"], b"", id="204 has no body"),
        pytest.param(
            [bytes([b]) for b in HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(b"ab", b"c")], b"abc", id="bytewise"
        ),
        pytest.param(
            [HEAD + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(gzip.compress(b"abc"))],
            b"abc",
            id="gzip",
        ),
        pytest.param([HEAD + b"Content-Encoding: deflate\r\n\r\n" + zlib.compress(b"abc")], b"abc", id="deflate"),
        pytest.param([HEAD + b"Content-Encoding: deflate\r\n\r\n" + zlib.compress(b"abc")[2:-4]], b"abc", id="bare deflate"),
        pytest.param(
            [HEAD + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"ab") + gzip.compress(b"c")], b"abc", id="two members"
        ),
        pytest.param([HEAD + b"Content-Encoding: identity\r\nContent-Length: 3\r\n\r\nabc"], b"abc", id="identity"),
        pytest.param([HEAD + b"Content-Encoding: gzip\r\nContent-Length: 0\r\n\r\n"], b"", id="gzip of nothing"),
    ],
)
def test_every_framing_gives_the_body(face: Face, says: list[bytes], body: bytes) -> None:
    with Server(once(*says)) as server:
        assert face.send(server.url()).body == body
        assert b"".join(face.stream(server.url())) == body


def test_fields_that_were_true_of_the_packed_body_only_are_gone(face: Face) -> None:
    packed = gzip.compress(b"abc")
    head = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\nX: y\r\n\r\n" % len(packed)
    with Server(once(head + packed)) as server:
        assert face.send(server.url()).headers == {"x": "y"}


def test_a_head_request_has_no_body(face: Face) -> None:
    with Server(once(HEAD + b"Content-Length: 300\r\n\r\n")) as server:
        assert face.send(server.url(), method="HEAD").body == b""


def test_a_redirect_is_an_answer_and_is_not_followed(face: Face) -> None:
    with Server(once(b"HTTP/1.1 302 Found\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n")) as server:
        reply = face.send(server.url())
    assert (reply.status, reply.headers["location"], len(server.asked)) == (302, "/other", 1)


def test_cookies_are_not_kept(face: Face) -> None:
    async def flow(port: Port) -> None:
        await port.send(post(server.url()))
        await port.send(post(server.url()))

    with Server(steadily(headers="Set-Cookie: a=b\r\n")) as server:
        face.run(flow)
    assert "cookie" not in server.asked[1].headers


def test_a_stream_gives_bytes_as_soon_as_they_are_there(face: Face) -> None:
    def handle(link: Link) -> None:
        link.ask()
        link.say(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        link.say(b"1\r\na\r\n")
        assert got_first.wait(10)
        link.say(b"1\r\nb\r\n0\r\n\r\n")

    got_first = threading.Event()

    async def flow(port: Port) -> list[bytes]:
        stream = await port.open(post(server.url()), port.now() + 10)
        first = await stream.read(port.now() + 10)
        got_first.set()
        return [first, await stream.read(port.now() + 10), await stream.read(), await stream.read()]

    with Server(handle) as server:
        assert face.run(flow) == [b"a", b"b", b"", b""]


def test_packed_bytes_are_unpacked_as_they_come(face: Face) -> None:
    packer = zlib.compressobj(wbits=31)
    got_first = threading.Event()

    def handle(link: Link) -> None:
        link.ask()
        link.say(HEAD + b"Content-Encoding: gzip\r\n\r\n")
        link.say(packer.compress(b"first") + packer.flush(zlib.Z_SYNC_FLUSH))
        assert got_first.wait(10)
        link.say(packer.compress(b"second") + packer.flush())

    async def flow(port: Port) -> list[bytes]:
        stream = await port.open(post(server.url()), port.now() + 10)
        first = await stream.read(port.now() + 10)
        got_first.set()
        return [first, await stream.read(port.now() + 10), await stream.read()]

    with Server(handle) as server:
        assert face.run(flow) == [b"first", b"second", b""]


# -- what is wrong with an answer ------------------------------------------------------------------------------------------

ERRORS: dict[str, tuple[list[bytes], type[LLMBrokerError]]] = {
    "garbage": ([b"\x00\x01\x02 garbage\r\n\r\n"], InvalidProviderResponseError),
    "garbage without end": ([b"\x16\x03\x01" * 100], InvalidProviderResponseError),
    "another protocol": ([b"SSH-2.0-OpenSSH_9.6\r\n"], InvalidProviderResponseError),
    "HTTP/2": ([b"HTTP/2 200\r\n\r\n"], InvalidProviderResponseError),
    "no status": ([b"HTTP/1.1 OK\r\n\r\n"], InvalidProviderResponseError),
    "status of four digits": ([b"HTTP/1.1 2000 OK\r\n\r\n"], InvalidProviderResponseError),
    "header without name": ([HEAD + b": x\r\n\r\n"], InvalidProviderResponseError),
    "header without colon": ([HEAD + b"nonsense\r\n\r\n"], InvalidProviderResponseError),
    "zero in header": ([HEAD + b"X: a\x00b\r\n\r\n"], InvalidProviderResponseError),
    "length no number": ([HEAD + b"Content-Length: -1\r\n\r\n"], InvalidProviderResponseError),
    "two lengths": ([HEAD + b"Content-Length: 1, 2\r\n\r\nab"], InvalidProviderResponseError),
    "absurd length": ([HEAD + b"Content-Length: " + b"9" * 4000 + b"\r\n\r\n"], InvalidProviderResponseError),
    "unknown transfer encoding": ([HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n"], InvalidProviderResponseError),
    "unknown content encoding": ([HEAD + b"Content-Encoding: br\r\n\r\nx"], InvalidProviderResponseError),
    "protocol change": ([b"HTTP/1.1 101 Switching\r\n\r\n"], InvalidProviderResponseError),
    "chunk size no number": ([HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n"], InvalidProviderResponseError),
    "chunk longer than its size": ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n"], InvalidProviderResponseError),
    "endless chunk size": ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"0" * 9000], InvalidProviderResponseError),
    "endless trailers": (
        [HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", *[b"A: b\r\n" * 999] * 99],
        InvalidProviderResponseError,
    ),
    "damaged gzip": ([HEAD + b"Content-Encoding: gzip\r\n\r\nnot packed at all"], InvalidProviderResponseError),
    "cut head": ([b"HTTP/1.1 200 OK\r\nConte"], ConnectionFailedError),
    "cut body": ([HEAD + b"Content-Length: 10\r\n\r\nabc"], ConnectionFailedError),
    "cut between chunks": ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"], ConnectionFailedError),
    "cut in a chunk": ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n9\r\nabc"], ConnectionFailedError),
    "cut before the last blank line": ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n"], ConnectionFailedError),
    "cut gzip": ([HEAD + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"abc" * 99)[:-12]], ConnectionFailedError),
}


@pytest.mark.parametrize("way", ["whole", "streamed"])
@pytest.mark.parametrize("case", ERRORS)
def test_a_wrong_answer_is_a_typed_error_that_names_only_the_host(face: Face, case: str, way: str) -> None:
    says, kind = ERRORS[case]
    with Server(once(*says)) as server:
        act: Callable[..., Any] = face.send if way == "whole" else face.stream
        with pytest.raises(kind) as caught:
            act(server.url("/v1/path?key=SECRET"))
    text = str(caught.value)
    assert f"127.0.0.1:{server.port}" in text
    assert "SECRET" not in text
    assert "/v1" not in text
    assert getattr(caught.value, "sent", True) is True


def test_an_early_refusal_of_a_long_request_is_read(face: Face) -> None:
    def handle(link: Link) -> None:
        link.sock.recv(1000)
        link.answer(b"too long", status="413 Too Large", headers="Connection: close\r\n")
        link.until_closed()

    with Server(handle) as server:
        assert face.send(server.url(), body=b"x" * 200_000).status == 413


def endless_headers(link: Link) -> None:
    link.ask()
    link.say(HEAD)
    for number in range(1_000_000):
        link.say(b"X-%d: %s\r\n" % (number, b"y" * 1000))


def endless_line(link: Link) -> None:
    link.ask()
    link.say(HEAD + b"X: ")
    while True:
        link.say(b"y" * 10_000)


def endless_interim(link: Link) -> None:
    link.ask()
    while True:
        link.say(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)


@pytest.mark.parametrize("handle", [endless_headers, endless_line, endless_interim])
def test_headers_without_end_are_an_error(face: Face, handle: Callable[[Link], None]) -> None:
    with Server(handle) as server, pytest.raises(InvalidProviderResponseError, match="headers have more than"):
        face.send(server.url())


def megabytes(link: Link) -> None:
    link.ask()
    link.say(HEAD + b"\r\n")
    for _ in range(100):
        link.say(b"x" * 1_000_000)


def megabytes_announced(link: Link) -> None:
    link.ask()
    link.say(HEAD + b"Content-Length: 100000000\r\n\r\n")
    for _ in range(100):
        link.say(b"x" * 1_000_000)


def megabytes_in_chunks(link: Link) -> None:
    link.ask()
    link.say(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    for _ in range(100):
        link.say(b"f4240\r\n" + b"x" * 1_000_000 + b"\r\n")


@contextlib.contextmanager
def memory(limit: int) -> Iterator[None]:
    """Fail when what runs inside takes more bytes at once (the server's own megabyte included)."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


BOMB = gzip.compress(b"\0" * 200_000_000, 6)


def bomb(link: Link) -> None:
    link.ask()
    link.say(HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB))
    link.say(BOMB)


@pytest.mark.parametrize("way", ["whole", "streamed"])
@pytest.mark.parametrize("handle", [megabytes, megabytes_announced, megabytes_in_chunks, bomb])
def test_a_huge_body_is_an_error_in_bounded_memory(face: Face, handle: Callable[[Link], None], way: str) -> None:
    with Server(handle) as server, memory(20_000_000):
        with pytest.raises(InvalidProviderResponseError, match="more than 4,000,000 bytes"):
            (face.send if way == "whole" else face.stream)(server.url(), max_body=4_000_000)


@pytest.mark.parametrize("handle", [megabytes, megabytes_in_chunks])
def test_a_body_within_the_limit_comes_whole(face: Face, handle: Callable[[Link], None]) -> None:
    with Server(handle) as server:
        if handle is megabytes:
            assert len(face.send(server.url(), max_body=100_000_000).body) == 100_000_000
        else:
            with pytest.raises(ConnectionFailedError):  # its last chunk never comes
                face.send(server.url(), max_body=100_000_000)


def test_a_stream_that_nobody_reads_takes_bounded_memory(face: Face) -> None:
    async def flow(port: Port) -> None:
        stream = await port.open(post(server.url()), port.now() + 10)
        await port.sleep(0.3)
        await stream.close()

    with Server(megabytes) as server, memory(20_000_000):
        face.run(flow)


# -- what is wrong with a request ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "headers", "argument"),
    [
        pytest.param("ftp://host/", {}, "base_url", id="scheme"),
        pytest.param("http:///path", {}, "base_url", id="no host"),
        pytest.param("http://host:99999/", {}, "base_url", id="port"),
        pytest.param("http://[::1/", {}, "base_url", id="bracket"),
        pytest.param("nonsense", {}, "base_url", id="no url"),
        pytest.param("http://127.0.0.1:1/", {"x": "a\r\nb: c"}, "headers", id="line break"),
        pytest.param("http://127.0.0.1:1/", {"x": "a\nb"}, "headers", id="line feed"),
        pytest.param("http://127.0.0.1:1/", {"x\r\ny": "a"}, "headers", id="line break in name"),
        pytest.param("http://127.0.0.1:1/", {"x": "a\0"}, "headers", id="zero"),
        pytest.param("http://127.0.0.1:1/", {"x": "ключ"}, "headers", id="not latin"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_anything_is_sent(
    face: Face, url: str, headers: dict[str, str], argument: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        face.run(lambda port: port.send(HTTPRequest(url, headers, b"")))
    assert caught.value.argument == argument
    assert "ключ" not in str(caught.value)
