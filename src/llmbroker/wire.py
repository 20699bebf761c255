"""Bytes in, events out: HTTP messages as values, server-sent events and newline-delimited JSON.

Theory of operation
-------------------
A provider's stream arrives in reads whose borders mean nothing: they fall inside lines, inside characters, between CR and LF.
A decoder here is a small machine with one method, ``feed(chunk)``, that returns the payloads completed by that chunk. What it
returns in total depends on the bytes alone, never on where they were cut (a property test holds it to that).

Lines end at LF, CRLF or CR and nowhere else; U+2028, U+0085 and their kin are data (HTML living standard, "Parsing an event
stream"). A comment line is skipped, ``data:`` needs no space after it, several data lines of one event are joined by LF. A
payload that the end of the stream cuts off is never delivered. A line or event over ``limit`` bytes raises ``ValueError``:
memory stays bounded whatever a server sends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


def can_be_sent(name: str, value: str) -> bool:
    """Whether a header field can go over HTTP: a name that is one, a value without control characters and within Latin-1.

    A line break in a value would begin a field of its own (RFC 9110, 5.5).
    """
    return _NAME.fullmatch(name) is not None and _VALUE.fullmatch(value) is not None


MAX_EVENT = 32 * 1024 * 1024


class HTTPRequest(msgspec.Struct, frozen=True):
    """One request, complete: what a port sends. Header names as the provider writes them."""

    url: str
    headers: dict[str, str]
    body: bytes
    method: str = "POST"

    def __repr__(self) -> str:
        """Show neither header values nor the query: they may hold a key; of the body only its size."""
        names = ", ".join(self.headers)
        return f"HTTPRequest({self.method} {self.url.partition('?')[0]}, headers=[{names}], body={len(self.body)} bytes)"


class HTTPReply(msgspec.Struct, frozen=True):
    """A whole answer. ``headers`` has lower-case names; of a repeated header the last value."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def __repr__(self) -> str:
        """Show no values: a server may repeat a key."""
        return f"HTTPReply({self.status}, headers=[{', '.join(self.headers)}], body={len(self.body)} bytes)"


class SSE(NamedTuple):
    """One server-sent event: its ``event`` field ("" if it had none) and its data, undecoded."""

    event: str
    data: bytes


class _Lines:
    """Cut bytes into lines at LF, CRLF and CR, whatever the borders of the chunks."""

    __slots__ = ("_held_cr", "_limit", "_rest")

    def __init__(self, limit: int) -> None:
        self._rest = b""
        self._held_cr = False
        self._limit = limit

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that this chunk completes, without their ends."""
        if self._held_cr:
            # The CR before already ended a line: an LF that follows it belongs to the same line end.
            if chunk:
                self._held_cr = False
            chunk = chunk.removeprefix(b"\n")
        if b"\r" in chunk:
            self._held_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = (self._rest + chunk).split(b"\n") if self._rest else chunk.split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > self._limit:
            raise ValueError(f"a line of more than {self._limit} bytes")
        return lines

    def rest(self) -> bytes:
        """What stands after the last line end."""
        return self._rest


class SSEDecoder:
    """Decode a server-sent event stream."""

    __slots__ = ("_data", "_event", "_limit", "_lines", "_size", "_started")

    def __init__(self, limit: int = MAX_EVENT) -> None:
        self._lines = _Lines(limit)
        self._limit = limit
        self._event = ""
        self._data: list[bytes] = []
        self._size = 0
        self._started = False

    def feed(self, chunk: bytes) -> list[SSE]:
        """Return the events that this chunk completes.

        Raises:
            ValueError: a line or an event is longer than the limit.
        """
        out: list[SSE] = []
        for raw in self._lines.feed(chunk):
            line = raw
            if not self._started:
                self._started = True
                line = line.removeprefix(b"\xef\xbb\xbf")
            if not line:
                if self._data:
                    data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                    out.append(SSE(self._event, data))
                self._event, self._data, self._size = "", [], 0
            elif line.startswith(b"data:"):
                value = line[6:] if line[5:6] == b" " else line[5:]
                self._size += len(value)
                if self._size > self._limit:
                    raise ValueError(f"an event of more than {self._limit} bytes")
                self._data.append(value)
            elif line.startswith(b"event:"):
                self._event = line[6:].strip().decode("utf-8", "replace")
        return out

    def end(self) -> list[SSE]:
        """The stream is over: deliver an event that lacks only its blank line or its line end.

        Several servers close right after the last ``data:`` line. Where even the line end is missing, the payload counts
        only if it is whole by itself (JSON, or ``[DONE]``).
        """
        rest = self._lines.rest()
        if rest:
            if not rest.startswith(b"data:"):
                return []
            payload = rest[5:].strip()
            if payload != b"[DONE]":
                try:
                    msgspec.json.decode(payload)
                except (msgspec.DecodeError, RecursionError):
                    return []
            return self.feed(b"\n\n")
        return self.feed(b"\n") if self._data else []

    def tail(self) -> bytes:
        """Bytes of a line that never ended."""
        return self._lines.rest()


class NDJSONDecoder:
    """Decode newline-delimited JSON: one payload a line, blank lines skipped."""

    __slots__ = ("_lines",)

    def __init__(self, limit: int = MAX_EVENT) -> None:
        self._lines = _Lines(limit)

    def feed(self, chunk: bytes) -> list[SSE]:
        """Return the payloads that this chunk completes, as events without a name.

        Raises:
            ValueError: a line is longer than the limit.
        """
        return [SSE("", line) for line in self._lines.feed(chunk) if line.strip()]

    def end(self) -> list[SSE]:
        """The stream is over: a last line without a line end is still a line."""
        return self.feed(b"\n")

    def tail(self) -> bytes:
        """Bytes of a line that never ended."""
        return self._lines.rest()
