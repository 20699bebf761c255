"""HTTP/1.1 without sockets: the head of a request, the head of an answer, where its body ends, how it is unpacked.

Pure functions and small machines that are fed with bytes; no I/O, no clock. Both ports that use sockets read bodies through the
same machines, so that limits and faults are the same in both. Rules: RFC 9112 (framing) and RFC 9110 (fields).

What is not HTTP raises ``NotHTTP``, what is over a limit raises ``TooLarge``, an end before the promised one raises
``Truncated``; the ports turn these into the library's errors, with the host's name.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from llmbroker.errors import InvalidRequestError

MAX_BODY = 32 * 1024 * 1024
MAX_HEADERS = 64 * 1024


class WireError(Exception):
    """The root of the three faults below."""


class NotHTTP(WireError):
    """The bytes are not what the protocol allows here."""


class TooLarge(WireError):
    """Headers or body are over the port's limit."""


class Truncated(WireError):
    """The connection ended before the body did."""


class Head(NamedTuple):
    """Status line and fields of an answer; field names in lower case, of a repeated field the last value."""

    status: int
    headers: dict[str, str]
    keep_alive: bool


_STATUS = re.compile(r"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: |$)")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_SIZE_LINE = 4096
_OURS = frozenset({"host", "content-length", "transfer-encoding", "connection"})
_LISTED = frozenset({"content-length", "transfer-encoding", "connection", "content-encoding"})


# -- the request ---------------------------------------------------------------------------------------------------------


def request_head(
    method: str, path: str, host: str, headers: Mapping[str, str], length: int, more: tuple[str, ...] = ()
) -> bytes:
    """Return request line and fields, with the blank line.

    Args:
        method: GET, POST.
        path: as it goes on the wire, already encoded.
        host: the Host field.
        headers: the request's own; host, length and framing are ours and left out.
        length: of the body.
        more: further lines, for a proxy.

    Raises:
        InvalidRequestError: a field cannot be sent: it holds a line break or a character outside Latin-1.
    """
    lines = [f"{method} {path} HTTP/1.1", f"host: {host}", *more]
    if length or method not in ("GET", "HEAD"):
        lines.append(f"content-length: {length}")
    encoded = False
    for name, value in headers.items():
        lowered = name.lower()
        if lowered in _OURS:
            continue
        if lowered == "accept-encoding":
            encoded = True
        lines.append(f"{name}: {value}")
    if not encoded:
        lines.append("accept-encoding: gzip, deflate")
    text = "\r\n".join(lines)
    breaks = len(lines) - 1
    if text.count("\n") != breaks or text.count("\r") != breaks or "\0" in text:
        raise InvalidRequestError("A header of the request holds a line break or a zero character.", argument="headers")
    try:
        return text.encode("latin-1") + b"\r\n\r\n"
    except UnicodeEncodeError:
        raise InvalidRequestError(
            "A header of the request holds a character that HTTP cannot carry.", argument="headers"
        ) from None


# -- the head of the answer ----------------------------------------------------------------------------------------------


def head_end(data: bytes | bytearray, start: int = 0) -> tuple[int, int] | None:
    """Find the blank line: where the head ends and where the body begins, or None. ``start``: up to where nothing was found."""
    found = _END_OF_HEAD.search(data, max(0, start - 3))
    return found.span() if found else None


def parse_head(raw: bytes) -> Head:
    """Read the head of an answer (without its blank line).

    Raises:
        NotHTTP: it is none.
    """
    text = raw.decode("latin-1").replace("\r\n", "\n")
    lines = text.split("\n")
    first = _STATUS.match(lines[0])
    if first is None:
        raise NotHTTP("the answer does not begin with an HTTP status line")
    if "\r" in text or "\0" in text:
        raise NotHTTP("a header holds a forbidden character")
    headers: dict[str, str] = {}
    name = ""
    for line in lines[1:]:
        if line[:1] in (" ", "\t") and name:
            headers[name] += " " + line.strip(" \t")
            continue
        name, colon, value = line.partition(":")
        if not colon or _TOKEN.fullmatch(name) is None:
            raise NotHTTP("a header line has no name")
        name = name.lower()
        value = value.strip(" \t")
        if name in _LISTED and name in headers:
            value = f"{headers[name]}, {value}"
        headers[name] = value
    connection = headers.get("connection")
    if first[1] == "1":
        keep = connection is None or "close" not in connection.lower()
    else:
        keep = connection is not None and "keep-alive" in connection.lower()
    return Head(int(first[2]), headers, keep)


def keep_alive_seconds(value: str) -> float:
    """How long the server says it keeps an idle connection (``Keep-Alive: timeout=5``), less a second for the way."""
    found = re.search(r"timeout=(\d{1,6})", value)
    return max(0.0, float(found[1]) - 1.0) if found else float("inf")


# -- the body ------------------------------------------------------------------------------------------------------------


class Body(Protocol):
    """Where a body ends."""

    done: bool
    rest: bytes
    """What came after the end; a connection with a rest is not used again."""

    def feed(self, data: bytes) -> bytes:
        """Return the payload in these bytes.

        Raises:
            NotHTTP: the framing is broken.
        """
        ...

    def eof(self) -> None:
        """The connection ended.

        Raises:
            Truncated: too early.
        """
        ...


class Sized:
    """A body of known length."""

    __slots__ = ("done", "left", "rest")

    def __init__(self, length: int) -> None:
        self.left = length
        self.done = length == 0
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        """Return the payload in these bytes."""
        if len(data) > self.left:
            data, self.rest = data[: self.left], data[self.left :]
        self.left -= len(data)
        self.done = self.left == 0
        return data

    def eof(self) -> None:
        """The connection ended: too early, if anything is left."""
        if not self.done:
            raise Truncated(f"{self.left} bytes of the body are missing")


class UntilClose:
    """A body that ends with the connection."""

    __slots__ = ("done", "rest")

    def __init__(self) -> None:
        self.done = False
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        """Return the payload in these bytes: all of them."""
        return data

    def eof(self) -> None:
        """The connection ended, and with it the body."""
        self.done = True


class Chunked:
    """A body in chunks; extensions and trailers are read over, the latter up to ``limit`` bytes."""

    __slots__ = ("_buffer", "_left", "_limit", "_trailing", "done", "rest")

    def __init__(self, limit: int = MAX_HEADERS) -> None:
        self._buffer = b""
        self._left = 0
        self._limit = limit
        self._trailing = False
        self.done = False
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        """Return the payload in these bytes.

        Raises:
            NotHTTP: a size is no size, a chunk is longer than it said, or the trailers do not end.
        """
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        out: list[bytes] = []
        at, end = 0, len(data)
        while at < end and not self.done:
            if self._left > 2:  # payload is left, and the line end after it
                piece = data[at : at + self._left - 2]
                out.append(piece)
                at += len(piece)
                self._left -= len(piece)
                continue
            line_end = data.find(b"\n", at)
            if line_end < 0:
                self._hold(data[at:])
                break
            line = data[at:line_end].removesuffix(b"\r")
            at = line_end + 1
            if self._left:
                if line:
                    raise NotHTTP("a chunk is longer than its size")
                self._left = 0
            elif self._trailing:
                self._limit -= len(line) + 2
                if self._limit < 0:
                    raise TooLarge("the trailers are too long")
                self.done = not line
            else:
                size = _SIZE.fullmatch(line)
                if size is None:
                    raise NotHTTP("a chunk has no size")
                length = int(size[1], 16)
                self._trailing = length == 0
                self._left = length + 2 if length else 0
        if self.done:
            self.rest = data[at:]
        return out[0] if len(out) == 1 else b"".join(out)

    def _hold(self, piece: bytes) -> None:
        if self._left and piece != b"\r":
            raise NotHTTP("a chunk is longer than its size")
        if len(piece) > (self._limit if self._trailing else _SIZE_LINE):
            raise TooLarge("a line between the chunks does not end")
        self._buffer = piece

    def eof(self) -> None:
        """The connection ended: too early, unless the last chunk was there."""
        if not self.done:
            raise Truncated("the last chunk is missing")


def body_of(head: Head, method: str, max_headers: int = MAX_HEADERS) -> Body:
    """Say how the body of this answer is framed.

    Raises:
        NotHTTP: the fields contradict each other.
    """
    status, headers, _ = head
    if method == "HEAD" or status in (204, 304) or status < 200:
        return Sized(0)
    coding = headers.get("transfer-encoding")
    if coding is not None:
        if coding.lower() != "chunked":
            raise NotHTTP(f"the transfer encoding {coding[:40]!r} is unknown")
        return Chunked(max_headers)
    length = headers.get("content-length")
    if length is None:
        return UntilClose()
    if not length.isascii() or not length.isdigit():
        first, *others = {part.strip() for part in length.split(",")}
        if others or not first.isascii() or not first.isdigit():
            raise NotHTTP("the content length is no number")
        length = first
    if len(length) > 18:
        raise TooLarge("the content length is absurd")
    return Sized(int(length))


class Unpack:
    """Undo content encodings piece by piece and hold the whole to a size.

    ``limit`` counts unpacked bytes: a small body that unpacks to gigabytes is refused when it passes the limit, and never
    takes more memory than the limit.
    """

    __slots__ = ("_fed", "_kind", "_left", "_limit", "_start", "_zip")

    def __init__(self, encoding: str | None, limit: int) -> None:
        kind = (encoding or "").strip().lower()
        self._kind = "" if kind == "identity" else kind.removeprefix("x-")
        if self._kind not in ("", "gzip", "deflate"):
            raise NotHTTP(f"the body is encoded as {kind[:40]!r}, which was not asked for")
        self._zip = zlib.decompressobj(31) if self._kind == "gzip" else None
        self._start = b""
        self._fed = False
        self._limit = self._left = limit

    def feed(self, data: bytes) -> bytes:
        """Return what these bytes unpack to.

        Raises:
            TooLarge: the whole is over the limit.
            NotHTTP: the data is damaged.
        """
        if self._kind and data:
            data = self._unzip(data)
        self._left -= len(data)
        if self._left < 0:
            raise TooLarge(f"the body has more than {self._limit:,} bytes")
        return data

    def _unzip(self, data: bytes) -> bytes:
        self._fed = True
        if self._zip is None:  # deflate: with the zlib wrapper as specified, or without as some servers send it
            data = self._start = self._start + data
            if len(data) < 2:
                return b""
            wrapped = data[0] & 0x0F == 8 and (data[0] << 8 | data[1]) % 31 == 0
            self._zip = zlib.decompressobj(15 if wrapped else -15)
        out: list[bytes] = []
        size = 0
        try:
            while data and size <= self._left:
                if self._zip.eof:
                    if self._kind != "gzip" or not data.strip(b"\0"):
                        break
                    self._zip = zlib.decompressobj(31)  # gzip allows several members in a row
                piece = self._zip.decompress(data, self._left - size + 1)
                out.append(piece)
                size += len(piece)
                data = self._zip.unused_data if self._zip.eof else self._zip.unconsumed_tail
        except zlib.error:
            raise NotHTTP("the packed body is damaged") from None
        return b"".join(out)

    def end(self) -> None:
        """The body is over.

        Raises:
            Truncated: the packed data is not.
        """
        if self._fed and (self._zip is None or not self._zip.eof):
            raise Truncated("the packed body is cut")


# -- the whole answer ----------------------------------------------------------------------------------------------------


class AnswerReader:
    """Reads one answer out of the bytes of a connection.

    Args:
        method: of the request; HEAD has no body.
        max_headers: bytes of the head, interim answers (1xx) included.
        max_body: bytes of the unpacked body.

    Attributes:
        head: the final head, once it is there.
        done: the answer is complete.
    """

    __slots__ = ("_body", "_buffer", "_max_body", "_max_headers", "_method", "_passed", "_unpack", "done", "head")

    def __init__(self, method: str, max_headers: int = MAX_HEADERS, max_body: int = MAX_BODY) -> None:
        self._method = method
        self._max_headers = max_headers
        self._max_body = max_body
        self._buffer = b""
        self._passed = 0
        self._body: Body = UntilClose()
        self._unpack: Unpack | None = None
        self.head: Head | None = None
        self.done = False

    def feed(self, data: bytes) -> bytes:
        """Return the payload that these bytes complete, unpacked; ``b""`` while the head is not there.

        Raises:
            NotHTTP: the bytes are no answer.
            TooLarge: head or body are over the limit.
            Truncated: packed data is cut.
        """
        if self._unpack is None:
            rest = self._read_head(data)
            if rest is None or self._unpack is None:
                return b""
            data = rest
        out = self._unpack.feed(self._body.feed(data))
        if self._body.done:
            self._end()
        return out

    def _read_head(self, data: bytes) -> bytes | None:
        searched = len(self._buffer)
        data = self._buffer + data if self._buffer else data
        while True:
            end = head_end(data, searched)
            if self._passed + (end[0] if end else len(data)) > self._max_headers:
                raise TooLarge(f"its headers have more than {self._max_headers:,} bytes")
            if end is None:
                if not data.startswith(b"HTTP/"[: len(data)]):
                    raise NotHTTP("the answer does not begin with an HTTP status line")
                self._buffer = data
                return None
            head = parse_head(data[: end[0]])
            self._passed += end[1]
            data = data[end[1] :]
            searched = 0
            if head.status >= 200:
                break
            if head.status == 101:
                raise NotHTTP("the server changed the protocol, which was not asked for")
        self._buffer = b""
        self._body = body_of(head, self._method, self._max_headers)
        encoding = head.headers.get("content-encoding")
        self._unpack = Unpack(encoding, self._max_body)
        if encoding is not None:
            fields = {k: v for k, v in head.headers.items() if k not in ("content-encoding", "content-length")}
            head = head._replace(headers=fields, keep_alive=head.keep_alive and not _contradicts(head))
        elif _contradicts(head):
            head = head._replace(keep_alive=False)
        self.head = head
        if isinstance(self._body, Sized) and self._body.left > self._max_body:
            raise TooLarge(f"the body has more than {self._max_body:,} bytes")
        return data

    def _end(self) -> None:
        assert self._unpack is not None
        self._unpack.end()
        self.done = True

    def eof(self) -> bytes:
        """The connection ended: there is no more payload.

        Raises:
            Truncated: before the answer did.
        """
        if self.head is None:
            raise Truncated("its headers do not end")
        self._body.eof()
        if not self.done:
            self._end()
        return b""

    @property
    def reusable(self) -> bool:
        """Whether the connection can carry another request: the end is certain and nothing came after it."""
        return (
            self.done
            and self.head is not None
            and self.head.keep_alive
            and not self._body.rest
            and not isinstance(self._body, UntilClose)
        )


def _contradicts(head: Head) -> bool:
    """Length and chunks at once: what comes next on this connection cannot be trusted (RFC 9112, 6.3)."""
    return "transfer-encoding" in head.headers and "content-length" in head.headers
