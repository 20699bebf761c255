"""Whole loops recorded from a real provider, and played again without it: a test that costs tokens once.

``record(path, port)`` hands every request to a real port and writes it down with its answer; ``replay(path)`` is a port that
gives the same answers to the same requests. What a recording holds: method, address without its query, the body that was sent,
status, content type and the pieces of the answer. No header of a request is kept, and so no key; where the provider repeats
the value of a header (it does so when it refuses a key), stars stand in its place.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from llmbroker.credentials import redact
from llmbroker.io import ByteStream, Port
from llmbroker.transports.replay import Answer, Replay, UnexpectedRequest
from llmbroker.wire import HTTPReply, HTTPRequest

JSON: TypeAlias = dict[str, Any]
KEPT = ("content-type", "retry-after")
KEYS = frozenset({"authorization", "api-key", "x-api-key", "x-goog-api-key"})
"""Headers that hold a key. Of the others only long values are taken for secrets, as everywhere: a short one is a word."""
OPEN = frozenset({"content-type", "user-agent"})
LONG = 12


class Taken(msgspec.Struct, kw_only=True):
    """One exchange of a recording; ``pieces`` are the chunks of the answer, ``cut`` says that it broke off."""

    url: str
    method: str
    body: bytes
    status: int
    headers: dict[str, str]
    pieces: list[bytes]
    cut: bool = False


def record(path: str | os.PathLike[str], port: Port) -> Any:
    """Return a port that does what ``port`` does and writes every exchange down; the file is begun anew."""
    return _Recording(Path(path), port)


class _Recording:
    """Hands everything on to a port and keeps what goes by."""

    def __init__(self, path: Path, port: Port) -> None:
        self._path = path
        self._port = port
        path.write_bytes(b"")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    def write(self, request: HTTPRequest, status: int, headers: Mapping[str, str], pieces: list[bytes], cut: bool) -> None:
        """Append one exchange."""
        kept = {name: headers[name] for name in KEPT if name in headers}
        hidden = _secrets(request.headers)
        clean = _redacted(b"".join(pieces), hidden)
        if clean is not None:
            pieces = [clean]
        taken = Taken(
            url=request.url.partition("?")[0], method=request.method, body=request.body, status=status, headers=kept,
            pieces=pieces, cut=cut,
        )  # fmt: skip
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(taken) + b"\n")

    async def send(self, request: HTTPRequest, deadline: float | None = None) -> HTTPReply:
        """Send, and write down what came back."""
        reply = await self._port.send(request, deadline)
        self.write(request, reply.status, reply.headers, [reply.body], False)
        return reply

    async def open(self, request: HTTPRequest, deadline: float | None = None) -> ByteStream:
        """Open, and write down what comes back when it is over."""
        return _Stream(self, request, await self._port.open(request, deadline))


def _secrets(headers: Mapping[str, str]) -> list[str]:
    """Return what must not be written down: values of headers, and what stands behind a word such as ``Bearer``."""
    fields = [(name.lower(), value) for name, value in headers.items() if name.lower() not in OPEN]
    values = [value for name, value in fields if name in KEYS or len(value) > LONG]
    return [*values, *(value.partition(" ")[2] for name, value in fields if name in KEYS)]


def _redacted(body: bytes, hidden: list[str]) -> bytes | None:
    """Return the body with stars for secrets, or None where it holds none. A secret may be cut between two pieces."""
    text = body.decode("utf-8", "surrogateescape")
    clean = redact(text, hidden)
    return None if clean == text else clean.encode("utf-8", "surrogateescape")


class _Stream:
    def __init__(self, owner: _Recording, request: HTTPRequest, inner: ByteStream) -> None:
        self._owner = owner
        self._request = request
        self._inner = inner
        self._pieces: list[bytes] = []
        self._ended = self._written = False
        self.status = inner.status
        self.headers = inner.headers

    async def read(self, deadline: float | None = None) -> bytes:
        """Return the next bytes."""
        piece = await self._inner.read(deadline)
        if piece:
            self._pieces.append(piece)
        else:
            self._ended = True
        return piece

    async def close(self) -> None:
        """Close, and write it down."""
        await self._inner.close()
        if not self._written:
            self._written = True
            self._owner.write(self._request, self.status, self.headers, self._pieces, not self._ended)


def replay(path: str | os.PathLike[str]) -> Replay:
    """Return a port that plays a recording: each exchange once, to the same request; ``check()`` says what was not asked for.

    A request that differs raises ``UnexpectedRequest``, which says where its body differs from the next one recorded.

    Raises:
        ValueError: the file holds no recording.
    """
    lines = Path(path).read_bytes().splitlines()
    left = [msgspec.json.decode(line, type=Taken) for line in lines if line.strip()]
    port = Replay()

    def answer(request: HTTPRequest) -> Answer:
        url = request.url.partition("?")[0]
        body = _plain(request.body)
        for index, taken in enumerate(left):
            if (taken.url, taken.method) == (url, request.method) and _plain(taken.body) == body:
                del left[index]
                return Answer(
                    status=taken.status, headers=taken.headers, body=[*taken.pieces], fault="cut" if taken.cut else None
                )
        raise UnexpectedRequest(_difference(url, body, left))

    port.on(None, *([answer] * len(left)))
    return port


def _plain(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body


def _difference(url: str, body: Any, left: list[Taken]) -> str:
    near = next((taken for taken in left if taken.url == url), None)
    if near is None:
        return f"The recording has no (more) exchange with {url}."
    return f"A request to {url} is not the recorded one: {_where(_plain(near.body), body, 'body')}."


def _where(old: Any, new: Any, path: str) -> str:
    """Return the first place where two JSON values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            if old.get(key) != new.get(key):
                return _where(old.get(key), new.get(key), f"{path}.{key}")
    if isinstance(old, list) and isinstance(new, list):
        for index, (one, other) in enumerate(zip(old, new, strict=False)):
            if one != other:
                return _where(one, other, f"{path}[{index}]")
        if len(old) != len(new):
            return f"{path} has {len(new)} items, recorded were {len(old)}"
    return f"{path} is {str(new)[:200]!r}, recorded was {str(old)[:200]!r}"
