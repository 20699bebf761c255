"""A scripted model behind a real HTTP server on this machine, with faults down to the socket, for any client."""

from __future__ import annotations

import math
import socket  # noqa: TID251 - this is the other end of the wire, for tests
import struct
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Protocol, Self

from llmbroker.transports.replay import Answer, UnexpectedRequest, steps_of
from llmbroker.wire import HTTPRequest


class Model(Protocol):
    """Whoever answers requests."""

    def answer(self, request: HTTPRequest) -> Answer:
        """Return the answer to one request."""
        ...


class Server:
    """A running server; ``with model.serve() as server: client(base_url=server.url)``.

    Attributes:
        url: the base URL for clients, without a path; a client of the OpenAI kind takes ``server.url + "/v1"`` as well.
        failures: what went wrong on this side (a request that the script does not know).
    """

    def __init__(self, model: Model, host: str, port: int) -> None:
        self.model = model
        self.failures: list[str] = []
        self.over = threading.Event()
        self._server = _Quiet((host, port), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="scripted-model", daemon=True)
        where = self._server.server_address
        self.url = f"http://{host}:{where[1]}"

    def __enter__(self) -> Self:
        """Begin to answer."""
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop; answers that stall are ended."""
        self.over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def wait(self, seconds: float) -> None:
        """Wait, at most until the server stops."""
        self.over.wait(None if seconds == math.inf else seconds)


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that leave: that is what some tests are about."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _handler(owner: Server) -> type[BaseHTTPRequestHandler]:
    return type("Handler", (_Handler,), {"owner": owner})


class _Handler(BaseHTTPRequestHandler):
    owner: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        """Answer a request by the script."""
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            answer = self.owner.model.answer(HTTPRequest(self.path, dict(self.headers.items()), body))
        except UnexpectedRequest as error:
            self.owner.failures.append(str(error))
            answer = Answer(status=501, body={"error": {"message": str(error)}})
        try:
            self._give(answer)
        except OSError:  # the client left
            self.close_connection = True

    def _give(self, answer: Answer) -> None:
        owner = self.owner
        if answer.delay:
            owner.wait(answer.delay)
        if owner.over.is_set() or answer.fault in ("reset", "refuse", "unreachable"):
            self._cut()
        elif answer.fault == "garbage":
            self.wfile.write(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
            self.wfile.flush()
            self.close_connection = True
        else:
            self._head(answer)
            self._body(answer)

    def _head(self, answer: Answer) -> None:
        self.send_response(answer.status)
        headers = {name.lower(): value for name, value in answer.headers.items()}
        if isinstance(answer.body, dict):
            headers.setdefault("content-type", "application/json")
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def _body(self, answer: Answer) -> None:
        for step in reversed(steps_of(answer)):
            self.owner.wait(step if isinstance(step, float) else answer.every)
            if isinstance(step, bytes) and step:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(step), step))
                self.wfile.flush()
        if answer.fault == "stall":
            self.owner.wait(math.inf)
        if answer.fault in ("cut", "stall"):
            self._cut()
        else:
            self.wfile.write(b"0\r\n\r\n")

    def _cut(self) -> None:
        """Break the connection: the client sees a reset."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""
