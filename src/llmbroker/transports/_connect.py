"""One connection of the blocking port, and how it comes to be: name look-up, TCP, proxy tunnel, TLS, all under one deadline."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any

from llmbroker.errors import LLMBrokerError, LLMTimeoutError
from llmbroker.transports import _target
from llmbroker.transports._threads import ThreadJob, pause

if TYPE_CHECKING:
    import ssl

READ = 128 * 1024
STAGGER = 0.25  # seconds after which the next address of a host is tried beside the first (RFC 8305)
JOB_SLICE = 0.05  # a job looks this often whether it was cancelled while it connects
_IN_PROGRESS = {errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EAGAIN, getattr(errno, "WSAEWOULDBLOCK", errno.EAGAIN)}


class Connection:
    """A connected socket. It belongs to one thread at a time; only ``cut`` may be called from another."""

    __slots__ = ("_acked", "_sock", "_until", "target", "untouched")

    def __init__(self, sock: socket.socket, target: _target.Target) -> None:
        self._sock = sock
        self._acked: int | None = None
        self._until = 0.0
        self.target = target
        self.untouched = True
        """Whether not a byte of the current request could be written."""

    # -- life in the pool --

    def rest(self, seconds: float) -> None:
        """Lie idle, for at most so long."""
        self._until = monotonic() + seconds

    def fresh(self) -> bool:
        """Whether an idle connection can be used: not too old, and the server neither closed it nor spoke out of turn."""
        return monotonic() < self._until and not _ready([self._sock], 0.0, write=False)

    def mark(self) -> None:
        """Note how much the peer has acknowledged, before another request is written."""
        self._acked = acknowledged(self._sock)

    def unseen(self) -> bool:
        """Whether the peer, having closed in good order, cannot have seen what was written since ``mark``."""
        return self.untouched or (bool(self._acked) and acknowledged(self._sock) == self._acked)

    # -- bytes --

    def _limit(self, deadline: float | None, *, sent: bool) -> None:
        if deadline is None:
            self._sock.settimeout(None)
            return
        left = deadline - monotonic()
        if left <= 0:
            raise _target.timed_out(self.target, sent=sent)
        self._sock.settimeout(left)

    def write(self, data: memoryview, deadline: float | None) -> str | None:
        """Write everything. Return what went wrong: the server may have answered all the same."""
        self.untouched = True
        try:
            self._limit(deadline, sent=False)
            at = self._sock.send(data)
            self.untouched = False
            if at < len(data):
                while at < len(data):
                    self._limit(deadline, sent=True)
                    at += self._sock.send(data[at:])
        except TimeoutError as error:
            if isinstance(error, LLMTimeoutError) or error.errno is None:
                raise _target.timed_out(self.target, sent=not self.untouched) from None
            return _target.reason(error)
        except OSError as error:
            return _target.reason(error)
        return None

    def read(self, deadline: float | None) -> bytes:
        """Return the next bytes; ``b""`` where the server closed in good order."""
        self._limit(deadline, sent=True)
        try:
            return self._sock.recv(READ)
        except TimeoutError as error:
            if error.errno is None:
                raise _target.timed_out(self.target, sent=True) from None
            raise _target.broken(self.target, _target.reason(error)) from None
        except (OSError, ValueError) as error:  # ValueError: TLS was ended under a read
            raise _target.broken(self.target, _target.reason(error)) from None

    def read_now(self) -> bytes:
        """Return bytes that are there already, else ``b""``."""
        self._sock.settimeout(0.0)
        try:
            return self._sock.recv(READ)
        except (OSError, ValueError):
            return b""

    # -- making --

    def tunnel(self, end: float) -> None:
        """Ask the proxy for a way to the server."""
        self._sock.settimeout(max(0.001, end - monotonic()))
        self._sock.sendall(_target.connect_message(self.target))
        data = self._before(end)
        while not _target.connected(self.target, data):
            more = self._before(end)
            data = data + more if more else b""

    def _before(self, end: float) -> bytes:
        left = end - monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._sock.recv(READ)

    def secure(self, context: ssl.SSLContext, end: float) -> None:
        """Speak TLS from here on."""
        self._sock.settimeout(max(0.001, end - monotonic()))
        self._sock = context.wrap_socket(self._sock, server_hostname=self.target.host, do_handshake_on_connect=False)
        self._sock.do_handshake()

    # -- ending --

    def cut(self) -> None:
        """End the connection under whoever waits for it, from any thread.

        The plain socket's shutdown is called: that of a TLS socket would take the encryption off first.
        """
        try:
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        """Close the socket."""
        try:
            self._sock.close()
        except OSError:
            pass


def connect(
    target: _target.Target, deadline: float | None, seconds: float, verify: bool | ssl.SSLContext, job: ThreadJob[Any] | None
) -> Connection:
    """Make a connection, ready for the first request.

    Raises:
        ConnectionFailedError: with ``sent`` False.
        LLMTimeoutError: the deadline passed, with ``sent`` False.
    """
    end = monotonic() + seconds
    if deadline is not None:
        end = min(end, deadline)
    try:
        return _connect(target, end, verify, job)
    except BaseException as error:
        if job is not None:
            job.check()
        if isinstance(error, LLMBrokerError) or not isinstance(error, (OSError, UnicodeError)):
            raise
        if isinstance(error, TimeoutError) and error.errno is None:
            if end == deadline:
                raise _target.timed_out(target, sent=False) from None
            raise _target.not_connected(target, f"it took more than {seconds:g} s") from None
        raise _target.not_connected(target, error) from None


def _connect(target: _target.Target, end: float, verify: bool | ssl.SSLContext, job: ThreadJob[Any] | None) -> Connection:
    host, port = (target.proxy.host, target.proxy.port) if target.proxy is not None else (target.host, target.port)
    line = Connection(_race(_resolve(host, port, end), end, job), target)
    try:
        if job is not None:
            job.hold(line)
        if target.tls:
            if target.proxy is not None:
                line.tunnel(end)
            line.secure(_target.context_for(verify), end)
    except BaseException:
        if job is not None:
            job.hold(None)
        line.close()
        raise
    return line


def _resolve(host: str, port: int, end: float) -> list[Any]:
    """Look the name up, within the deadline: in a thread, for the system's own call can be neither limited nor interrupted."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except (OSError, ValueError):
            continue
        return socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
    outcome: list[Any] = []
    ready = threading.Event()

    def look_up() -> None:
        try:
            outcome.append(socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM))
        except Exception as error:  # noqa: BLE001 - it is raised where it was asked for
            outcome.append(error)
        ready.set()

    threading.Thread(target=look_up, name="llmbroker-dns", daemon=True).start()
    if not pause(ready, max(0.0, end - monotonic())):
        raise TimeoutError
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    found: list[Any] = outcome[0]
    return found


def _race(addresses: list[Any], end: float, job: ThreadJob[Any] | None) -> socket.socket:
    """Connect to the first address that answers, giving each a head start over the next."""
    waiting = _target.interleaved(addresses)
    pending: list[socket.socket] = []
    fault = OSError(errno.EADDRNOTAVAIL, "the name has no address")
    start = 0.0
    try:
        while waiting or pending:
            if job is not None:
                job.check()
            now = monotonic()
            if now >= end:
                raise TimeoutError
            if waiting and (not pending or now >= start):
                start = now + STAGGER
                family, kind, protocol, _, address = waiting.pop(0)
                try:
                    sock = socket.socket(family, kind, protocol)
                except OSError as error:  # this family of addresses is not here, or there are too many open files
                    fault, start = error, now
                    continue
                pending.append(sock)
                sock.setblocking(False)
                code = sock.connect_ex(address)
                if code in _IN_PROGRESS:
                    continue
                done = [(sock, code)]
            else:
                left = (min(end, start) if waiting else end) - now
                ready = _ready(pending, left if job is None else min(left, JOB_SLICE), write=True)
                done = [(sock, sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)) for sock in ready]
            for sock, code in done:
                pending.remove(sock)
                if not code:
                    tune(sock)
                    return sock
                fault = OSError(code, os.strerror(code))
                sock.close()
        raise fault
    finally:
        for sock in pending:
            sock.close()


def tune(sock: socket.socket) -> None:
    """Set the options of a fresh connection."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # an answer may take minutes: keep middle boxes from forgetting the connection
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)


def is_ready(sock: Any) -> bool:
    """Whether something, bytes or the end, can be read without waiting."""
    return bool(_ready([sock], 0.0, write=False))


def _ready(socks: list[socket.socket], timeout: float, *, write: bool) -> list[socket.socket]:
    """Return the sockets that can be written (or read), waiting at most so long."""
    if hasattr(select, "poll"):  # not select(): it fails for descriptors above 1,023
        poller = select.poll()
        by_number = {sock.fileno(): sock for sock in socks}
        for number in by_number:
            poller.register(number, select.POLLOUT if write else select.POLLIN)
        return [by_number[number] for number, _ in poller.poll(timeout * 1000)]
    nothing: list[socket.socket] = []
    readable, writable, failed = select.select(nothing if write else socks, socks if write else nothing, socks, timeout)
    return list({*readable, *writable, *failed})


def acknowledged(sock: Any) -> int | None:
    """How many bytes the peer's TCP has acknowledged in all, where the system tells (Linux: ``tcpi_bytes_acked``)."""
    if not hasattr(socket, "TCP_INFO") or struct.calcsize("P") != 8:
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
    except OSError:
        return None
    return int.from_bytes(info[120:128], "little" if struct.pack("=H", 1)[0] else "big") if len(info) >= 128 else None
