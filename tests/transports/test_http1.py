"""Reading HTTP/1.1: the same whatever the borders of the reads, the same as an independent reader, and never a crash."""

from __future__ import annotations

import gzip
import itertools
import zlib

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbroker.errors import InvalidRequestError
from llmbroker.transports import _http1 as http1
from llmbroker.transports._http1 import AnswerReader, NotHTTP, TooLarge, Truncated, WireError, request_head

Outcome = tuple[object, ...]


def read(data: bytes, cuts: list[int], *, end: bool = True, **limits: int) -> Outcome:
    """Feed the bytes, cut at these places; return what came out, errors as their class."""
    answer = AnswerReader("POST", **limits)
    out = b""
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    try:
        for start, stop in itertools.pairwise(places):
            if answer.done:
                break
            out += answer.feed(data[start:stop])
        if end and not answer.done:
            out += answer.eof()
    except WireError as error:
        return (type(error).__name__,)
    return (answer.head and answer.head.status, answer.head and dict(answer.head.headers), out, answer.done)


tokens = st.text("abcXYZ-_09", min_size=1, max_size=8)
values = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=12)
bodies = st.binary(max_size=60)


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """A well-formed answer in any framing."""
    body = draw(bodies)
    fields = [f"{name}: {value}" for name, value in draw(st.lists(st.tuples(tokens.map("x-".__add__), values), max_size=4))]
    packing = draw(st.sampled_from(["", "gzip", "deflate"]))
    if packing:
        fields.append(f"Content-Encoding: {packing}")
        body = gzip.compress(body) if packing == "gzip" else zlib.compress(body)
    framing = draw(st.sampled_from(["length", "chunked", "close"]))
    if framing == "length":
        fields.append(f"Content-Length: {len(body)}")
    elif framing == "chunked":
        fields.append("Transfer-Encoding: chunked")
        cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=4)))
        pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True) if a != b]
        extension = draw(st.sampled_from(["", ";a=b"]))
        trailer = draw(st.sampled_from([b"", b"X-T: v\r\n"]))
        body = b"".join(b"%x%s\r\n%s\r\n" % (len(p), extension.encode(), p) for p in pieces) + b"0\r\n" + trailer + b"\r\n"
    interim = draw(st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n"]))
    status = draw(st.integers(200, 599).filter(lambda number: number not in (204, 304)))
    return interim + "\r\n".join([f"HTTP/1.1 {status} Reason", *fields, "", ""]).encode() + body


@given(answers(), st.lists(st.integers(0, 600), max_size=12))
def test_the_borders_of_reads_mean_nothing(data: bytes, cuts: list[int]) -> None:
    assert read(data, cuts) == read(data, [])


@given(answers())
def test_bytewise_is_no_different(data: bytes) -> None:
    assert read(data, list(range(len(data)))) == read(data, [])


@given(answers(), st.data())
def test_damaged_bytes_give_an_error_or_an_answer_whatever_the_borders(data: bytes, more: st.DataObject) -> None:
    damaged = bytearray(data)
    for _ in range(more.draw(st.integers(1, 4))):
        at = more.draw(st.integers(0, max(0, len(damaged) - 1)))
        change = more.draw(st.sampled_from(["replace", "delete", "insert", "cut"]))
        byte = more.draw(st.one_of(st.sampled_from(b"\r\n:; 0fF"), st.integers(0, 255)))
        if change == "replace" and damaged:
            damaged[at] = byte
        elif change == "delete" and damaged:
            del damaged[at]
        elif change == "insert":
            damaged.insert(at, byte)
        else:
            del damaged[at:]
    whole = read(bytes(damaged), [])
    cut = read(bytes(damaged), more.draw(st.lists(st.integers(0, 600), max_size=8)))
    assert whole == cut or {whole[0], cut[0]} <= {"NotHTTP", "TooLarge", "Truncated"}


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_any_bytes_at_all_give_an_error(data: bytes, cuts: list[int]) -> None:
    assert read(data, cuts)[0] in ("NotHTTP", "Truncated")


def by_h11(data: bytes) -> Outcome:
    """The same answer as h11 reads it (it does not unpack)."""
    connection = h11.Connection(our_role=h11.CLIENT)
    connection.send(h11.Request(method="POST", target="/", headers=[("host", "x"), ("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(data)
    connection.receive_data(b"")
    status, headers, body = 0, {}, b""
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Response):
            status = event.status_code
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in event.headers}
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            return status, headers, body, True


@given(answers())
def test_an_independent_reader_reads_the_same(data: bytes) -> None:
    plain = data.replace(b"Content-Encoding", b"x-packed-as-----")
    assert read(plain, []) == by_h11(plain)


@given(answers(), st.integers(0, 400))
def test_a_cut_answer_is_never_complete(data: bytes, at: int) -> None:
    if b"Content-Length" not in data and b"Transfer-Encoding" not in data:
        return  # ends with the connection: nobody can tell
    cut = data[: min(at, len(data) - 1)]
    assert read(cut, [])[0] in ("Truncated", "NotHTTP")


@given(st.binary(max_size=300), st.integers(1, 40), st.sampled_from([1, 6, 9]))
def test_unpacking_is_bounded_and_does_not_care_about_borders(body: bytes, size: int, level: int) -> None:
    packed = gzip.compress(body, level)
    unpack = http1.Unpack("gzip", 300)
    out = b"".join(unpack.feed(packed[at : at + size]) for at in range(0, len(packed), size))
    unpack.end()
    assert out == body
    if body:
        small = http1.Unpack("gzip", len(body) - 1)
        with pytest.raises(TooLarge):
            for at in range(0, len(packed), size):
                small.feed(packed[at : at + size])


@pytest.mark.parametrize(
    ("head", "error"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nA b: c", NotHTTP, id="blank in a name"),
        pytest.param(b"HTTP/1.1 200 OK\r\nA : c", NotHTTP, id="blank after a name"),
        pytest.param(b"HTTP/1.1 200 OK\r\n folded first", NotHTTP, id="folding without a line before"),
        pytest.param(b"HTTP/1.1 200 OK\r\nA: b\rc", NotHTTP, id="bare carriage return"),
        pytest.param(b"http/1.1 200 OK", NotHTTP, id="small letters"),
        pytest.param(b"HTTP/3.0 200 OK", NotHTTP, id="another version"),
        pytest.param(b"HTTP/1.1 20 OK", NotHTTP, id="two digits"),
    ],
)
def test_a_head_that_is_none_is_refused(head: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        http1.parse_head(head)


def test_of_a_repeated_field_the_last_value_counts_and_folded_lines_are_joined() -> None:
    head = http1.parse_head(b"HTTP/1.1 200 OK\r\nX: 1\r\nx: 2\r\nY: a\r\n\tb\r\nZ:")
    assert head.headers == {"x": "2", "y": "a b", "z": ""}


@pytest.mark.parametrize(
    ("raw", "keep"),
    [
        (b"HTTP/1.1 200 OK", True),
        (b"HTTP/1.1 200 OK\r\nConnection: close", False),
        (b"HTTP/1.1 200 OK\r\nConnection: Keep-Alive, Close", False),
        (b"HTTP/1.0 200 OK", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive", True),
    ],
)
def test_whether_a_connection_is_kept(raw: bytes, keep: bool) -> None:
    assert http1.parse_head(raw).keep_alive is keep


@pytest.mark.parametrize(
    ("value", "seconds"), [("timeout=5, max=100", 4.0), ("timeout=0", 0.0), ("max=3", float("inf")), ("nonsense", float("inf"))]
)
def test_how_long_the_server_keeps_a_connection(value: str, seconds: float) -> None:
    assert http1.keep_alive_seconds(value) == seconds


def test_a_request_has_its_fields_in_order_and_our_framing() -> None:
    fields = {
        "A": "1",
        "Content-Length": "999",
        "Host": "evil",
        "Transfer-Encoding": "chunked",
        "Connection": "close",
        "B": "2",
    }
    head = request_head("POST", "/p", "h", fields, 3)
    assert head == b"POST /p HTTP/1.1\r\nhost: h\r\ncontent-length: 3\r\nA: 1\r\nB: 2\r\naccept-encoding: gzip, deflate\r\n\r\n"


def test_a_request_may_choose_its_encodings() -> None:
    assert request_head("GET", "/", "h", {"Accept-Encoding": "identity"}, 0).count(b"ccept-") == 1


@given(st.text(max_size=20), st.text(max_size=20))
def test_no_field_can_smuggle_another(name: str, value: str) -> None:
    try:
        head = request_head("POST", "/", "h", {name: value}, 0)
    except InvalidRequestError:
        return
    assert head.count(b"\r\n") == 6 - (name.lower() in http1._OURS) - (name.lower() == "accept-encoding")
    assert head.endswith(b"\r\n\r\n")


def test_truncated_is_told_from_broken() -> None:
    answer = AnswerReader("POST")
    answer.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab")
    with pytest.raises(Truncated, match="3 bytes"):
        answer.eof()
