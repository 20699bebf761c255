"""Framing: what comes out depends on the bytes alone, never on where a read cut them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbroker.wire import SSE, NDJSONDecoder, SSEDecoder


def sse(chunks: list[bytes]) -> list[SSE]:
    decoder = SSEDecoder()
    out = [event for chunk in chunks for event in decoder.feed(chunk)]
    return out + decoder.end()


def cut(data: bytes, at: list[int]) -> list[bytes]:
    borders = sorted({0, len(data), *(i % (len(data) + 1) for i in at)})
    return [data[a:b] for a, b in pairwise(borders)]


@dataclass(frozen=True)
class Case:
    id: str
    stream: bytes
    events: list[SSE]


CASES = [
    Case("lf", b'data: {"a":1}\n\ndata: [DONE]\n\n', [SSE("", b'{"a":1}'), SSE("", b"[DONE]")]),
    Case("crlf", b"data: 1\r\n\r\ndata: 2\r\n\r\n", [SSE("", b"1"), SSE("", b"2")]),
    Case("lone cr", b"data: 1\r\rdata: 2\r\r", [SSE("", b"1"), SSE("", b"2")]),
    Case("no space after the colon", b"data:{}\n\n", [SSE("", b"{}")]),
    Case("comments and unknown fields", b": ping\nid: 7\nretry: 10\ndata: 1\n\n", [SSE("", b"1")]),
    Case("named event", b"event: error\ndata: 1\n\ndata: 2\n\n", [SSE("error", b"1"), SSE("", b"2")]),
    Case("several data lines", b"data: a\ndata: b\n\n", [SSE("", b"a\nb")]),
    Case("byte order mark", b"\xef\xbb\xbfdata: 1\n\n", [SSE("", b"1")]),
    Case("no blank line at the end", b"data: 1\n", [SSE("", b"1")]),
    Case("no line end, whole payload", b'data: {"a":1}', [SSE("", b'{"a":1}')]),
    Case("no line end, done mark", b"data: [DONE]", [SSE("", b"[DONE]")]),
    Case("no line end, cut payload", b'data: {"a":', []),
    Case("odd separators are data", "data: a\u2028b\u0085c\n\n".encode(), [SSE("", "a\u2028b\u0085c".encode())]),
    Case("empty events", b"\n\n\nevent: x\n\ndata: 1\n\n", [SSE("", b"1")]),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_stream_gives_its_events_whole_and_byte_by_byte(case: Case) -> None:
    assert sse([case.stream]) == case.events
    assert sse([bytes([byte]) for byte in case.stream]) == case.events


LINES = st.lists(
    st.sampled_from(["data: x", "data:", "data: {}", "event: e", ": c", "", "", "data: é\u2028", "id: 1", "data"]), max_size=20
)


@given(LINES, st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(0, 500), max_size=8))
def test_any_chunking_gives_the_same_events(lines: list[str], end: str, at: list[int]) -> None:
    data = end.join(lines).encode()
    assert sse(cut(data, at)) == sse([data])


@given(st.binary(max_size=200), st.lists(st.integers(0, 300), max_size=6))
def test_garbage_never_raises_and_never_depends_on_the_chunks(data: bytes, at: list[int]) -> None:
    assert sse(cut(data, at)) == sse([data])


@given(
    st.lists(st.sampled_from(['{"a":1}', "", "  ", '{"t":"é\u2028"}']), max_size=10),
    st.sampled_from(["\n", "\r\n"]),
    st.lists(st.integers(0, 300), max_size=6),
)
def test_ndjson_any_chunking_gives_the_same_payloads(lines: list[str], end: str, at: list[int]) -> None:
    data = end.join(lines).encode()

    def run(chunks: list[bytes]) -> list[bytes]:
        decoder = NDJSONDecoder()
        return [e.data for chunk in chunks for e in decoder.feed(chunk)] + [e.data for e in decoder.end()]

    assert run(cut(data, at)) == run([data]) == [line.encode() for line in lines if line.strip()]


@pytest.mark.parametrize("chunk", [b"x" * 50, b"data: " + b"y" * 50], ids=["line", "data line"])
def test_an_endless_line_is_refused_in_bounded_memory(chunk: bytes) -> None:
    decoder = SSEDecoder(limit=100)
    with pytest.raises(ValueError, match="more than 100 bytes"):
        for _ in range(10):
            decoder.feed(chunk)


def test_an_endless_event_of_many_lines_is_refused() -> None:
    decoder = SSEDecoder(limit=100)
    with pytest.raises(ValueError, match="more than 100 bytes"):
        for _ in range(50):
            decoder.feed(b"data: 0123456789\n")
