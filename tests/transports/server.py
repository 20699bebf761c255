"""A server that can misbehave: raw sockets, a thread a connection, one function that says what happens on a connection."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from typing import NamedTuple


class Asked(NamedTuple):
    """A request as it came: its first line, its fields (lower-case names), its body."""

    line: str
    headers: dict[str, str]
    body: bytes


class Link:
    """The server's end of one connection."""

    def __init__(self, server: Server, sock: socket.socket, number: int) -> None:
        self.server = server
        self.sock = sock
        self.number = number
        self._buffer = b""

    def ask(self) -> Asked | None:
        """Read a request; None when the client has closed."""
        while b"\r\n\r\n" not in self._buffer:
            data = self.sock.recv(65536)
            if not data:
                return None
            self._buffer += data
        head, _, rest = self._buffer.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        length = int(headers.get("content-length", 0))
        while len(rest) < length:
            rest += self.sock.recv(65536)
        self._buffer = rest[length:]
        asked = Asked(lines[0], headers, rest[:length])
        self.server.asked.append(asked)
        return asked

    def say(self, data: bytes) -> None:
        self.sock.sendall(data)

    def answer(self, body: bytes = b"ok", *, status: str = "200 OK", headers: str = "") -> None:
        self.say(f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body)

    def reset(self) -> None:
        """Close with a reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def close(self) -> None:
        self.sock.close()

    def until_closed(self) -> None:
        """Wait for the client's end; note it in ``server.left``."""
        with contextlib.suppress(OSError):
            while self.sock.recv(65536):
                pass
        self.server.left.set()

    def hang(self) -> None:
        """Say nothing more until the test is over."""
        self.server.over.wait(30)


class Server:
    """Runs ``handle(link)`` for each connection.

    Attributes:
        asked: every request, in the order of arrival.
        connections: how many were accepted.
        left: set when ``until_closed`` saw the client's end.
        over: set when the test is over.
    """

    def __init__(self, handle: Callable[[Link], None], *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self.handle = handle
        self.asked: list[Asked] = []
        self.connections = 0
        self.left = threading.Event()
        self.over = threading.Event()
        self.faults: list[BaseException] = []
        self._tls = tls
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=2048)
        self.port: int = self._listener.getsockname()[1]
        self.host = host
        self._threads: list[threading.Thread] = []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def url(self, path: str = "/v1/x?key=SECRET", *, scheme: str | None = None, host: str | None = None) -> str:
        scheme = scheme or ("https" if self._tls else "http")
        return f"{scheme}://{host or self.host}:{self.port}{path}"

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(sock, self.connections), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket, number: int) -> None:
        try:
            sock.settimeout(20)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
            self.handle(Link(self, sock, number))
        except (OSError, ssl.SSLError):
            pass  # the client left, or the test made it so
        except BaseException as error:  # noqa: BLE001 - told to the test when it ends
            self.faults.append(error)
        finally:
            sock.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join(5)
        for thread in self._threads:
            thread.join(5)
        assert not self.faults, self.faults


def steadily(body: bytes = b"ok", *, headers: str = "") -> Callable[[Link], None]:
    """Answer every request of a connection."""

    def handle(link: Link) -> None:
        while link.ask() is not None:
            link.answer(body, headers=headers)

    return handle


def once(*says: bytes) -> Callable[[Link], None]:
    """Read a request, say these bytes, close."""

    def handle(link: Link) -> None:
        link.ask()
        for say in says:
            link.say(say)

    return handle


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def forwarder(seen: list[str], *, status: str = "200 OK") -> Callable[[Link], None]:
    """A proxy: CONNECT gets a tunnel, anything else is answered by the proxy itself, so that a test can tell."""

    def handle(link: Link) -> None:
        asked = link.ask()
        while asked is not None:
            seen.append(asked.line)
            if asked.line.startswith("CONNECT "):
                link.say(f"HTTP/1.1 {status}\r\n\r\n".encode())
                if status.startswith("200"):
                    host, _, port = asked.line.split()[1].rpartition(":")
                    with socket.create_connection((host.strip("[]"), int(port))) as far:
                        _pump(link.sock, far)
                return
            link.answer(b"from the proxy")
            asked = link.ask()

    return handle


def _pump(near: socket.socket, far: socket.socket) -> None:
    def one_way(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    back = threading.Thread(target=one_way, args=(far, near), daemon=True)
    back.start()
    one_way(near, far)
    back.join(5)
