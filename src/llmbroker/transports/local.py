"""The engine: models that run inside this process, behind the same two calls as a socket.

Theory of operation
-------------------
One engine a model and process, made on first use, shared by all callers and threads. llama.cpp works in threads of its own and
gives tokens to a callback; a request here is a short-lived thread that waits in that callback and a queue that the caller reads
with its deadline. So a caller is always interruptible (Ctrl-C, deadline, close), and a request that nobody waits for any more
ends at its next token. Requests of one model stand in line: the machine is the bottleneck, and one prompt at a time keeps the
cache of the last prompt warm, which a tool loop lives on. The place in line is awaited by the caller, under its deadline.

What comes in is an OpenAI chat body; what goes out is an OpenAI chat body or its stream, so that the ordinary decoders serve.
The key ``llmbroker`` of the body is not for the engine: it is copied into every chunk, and tells the decoder how the answer is
written (see ``providers/local``). Errors, raised or returned, become replies with a status.

llama.cpp insists on listening. It is given a Unix socket in a private directory that is removed at once (on Windows: loopback
and a random key); nobody can connect to it. After a fork the child makes an engine of its own; the parent's is never touched.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import secrets
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from llmbroker.errors import LLMTimeoutError
from llmbroker.transports._local_body import whole
from llmbroker.transports.model_store import MODELS, ModelUnavailableError, model_path
from llmbroker.wire import HTTPReply, HTTPRequest

log = logging.getLogger("llmbroker.local")
CONTEXT = 8192
_HEADERS: Mapping[str, str] = {"content-type": "application/json"}
_EVENT_HEADERS: Mapping[str, str] = {"content-type": "text/event-stream"}
_STATUS = {
    "invalid_request_error": 400,
    "exceed_context_size_error": 400,
    "model_not_found": 404,
    "local_extra_missing": 404,
    "download_failed": 404,  # asking again at once would only fetch again: the pool lets the model rest
    "load_failed": 404,
}


class _EngineError(Exception):
    """A fault that becomes a reply: a message and the code that decides its status."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class _Engine:
    """One loaded model."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.line = threading.Lock()
        self._server: Any = None
        self._starting = threading.Lock()

    def server(self) -> Any:
        """Return the running llama.cpp server; start it if need be."""
        with self._starting:
            if self._server is None:
                self._server = _start(self.model)
            return self._server

    @property
    def started(self) -> bool:
        """Whether the model is loaded."""
        return self._server is not None

    def stop(self) -> None:
        """Give the model's memory back."""
        with self._starting:
            self._server = None

    def abandon(self) -> None:
        """Keep it for ever: in a forked child its end would wait for threads that only the parent has."""
        if self._server is not None:
            import ctypes

            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._server))


_engines: dict[str, _Engine] = {}
_guard = threading.Lock()
_inherited = False  # a forked child of a process that had an engine: llama.cpp cannot be shut down here
_running: weakref.WeakSet[_Run] = weakref.WeakSet()


def _engine(model: str) -> _Engine:
    """Return the engine of a model; names that lead to none leave nothing behind."""
    key = model
    if model not in MODELS:
        try:
            key = str(model_path(model).resolve())
        except ModelUnavailableError as error:
            raise _EngineError(str(error), error.code) from error
    with _guard:
        engine = _engines.get(key)
        if engine is None:
            engine = _engines[key] = _Engine(model)
        return engine


def close_all() -> None:
    """Stop every engine of this process; the next request starts its engine anew."""
    with _guard:
        engines = list(_engines.values())
        _engines.clear()
        runs = list(_running)
    for run in runs:
        run.cancel()
    for run in runs:
        run.join(5.0)
    for engine in engines:
        if _inherited:
            engine.abandon()
        engine.stop()


def _after_fork() -> None:
    """Begin anew in the child, which has the parent's memory and none of its threads."""
    global _guard, _inherited
    _guard = threading.Lock()
    if any(engine.started for engine in _engines.values()):
        _inherited = True
        _leave_without_destructors()
    for engine in _engines.values():
        engine.abandon()
    _engines.clear()
    _running.clear()


def _leave_without_destructors() -> None:
    """At exit llama.cpp would join threads that only the parent has, and abort: end the process before it comes to that."""
    import ctypes

    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):
        libc.on_exit(libc._exit, None)


atexit.register(close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _threads() -> int:
    """How many threads compute: half of the processors, at most 4. More make a shared machine slower, not faster."""
    wanted = os.environ.get("LLMBROKER_LOCAL_THREADS", "")
    if wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2
    return max(1, min(4, count // 2))


def _start(model: str) -> Any:
    try:
        import xllamacpp
    except ImportError as error:
        raise _EngineError(
            f"The model {model} runs in this process, and the package for that is not installed ({error}): "
            "pip install xllamacpp (the extra llmbroker[local])",
            "local_extra_missing",
        ) from None
    try:
        path = model_path(model)
    except ModelUnavailableError as error:
        raise _EngineError(str(error), error.code) from error
    log.info("%s answers in this process", model)
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.model_alias = {model}
    params.n_ctx = CONTEXT
    params.n_parallel = 1
    params.n_gpu_layers = 0 if model_is_small(path) else -1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = _threads()
    params.n_threads_http = 1
    params.cache_ram_mib = 0
    params.warmup = False
    params.ui = False
    params.endpoint_slots = False
    params.verbosity = -1
    params.api_keys = [secrets.token_urlsafe(32)]
    try:
        if sys.platform == "win32":
            return xllamacpp.Server(params)
        with tempfile.TemporaryDirectory(prefix="llmbroker-") as folder:
            params.hostnames = [str(Path(folder) / "engine.sock")]
            return xllamacpp.Server(params)
    except RuntimeError as error:
        raise _EngineError(f"The model file {path} could not be loaded: {error}", "load_failed") from error


def model_is_small(path: Path) -> bool:
    """Whether a processor is the better place for it than a graphics card."""
    return path.stat().st_size < 300_000_000


class _Run:
    """One request on its way through the engine: a thread that computes, a queue that the caller reads."""

    def __init__(self, engine: _Engine, body: dict[str, Any]) -> None:
        self.chunks: queue.SimpleQueue[dict[str, Any] | BaseException | None] = queue.SimpleQueue()
        self._stopped = False
        self._engine = engine
        self._body = body
        self._thread = threading.Thread(target=self._compute, name="llmbroker-local", daemon=True)
        _running.add(self)
        self._thread.start()

    def _compute(self) -> None:
        try:
            try:
                self._engine.server().handle_chat_completions(self._body, self._take)
            finally:
                self._engine.line.release()
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            self.chunks.put(error)
        else:
            self.chunks.put(None)

    def _take(self, chunk: dict[str, Any]) -> bool:
        """Take a chunk from the engine; True tells it to stop."""
        if not self._stopped:
            self.chunks.put(chunk)
        return self._stopped

    def cancel(self) -> None:
        """Let the computation end at its next token."""
        self._stopped = True

    def cut(self) -> None:
        """The same, and end the caller's wait for it; from any thread."""
        self._stopped = True
        self.chunks.put(None)

    def join(self, seconds: float) -> None:
        """Wait for the thread."""
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def next(self, remaining: float | None) -> dict[str, Any] | None:
        """Return the next chunk, None at the end.

        Raises:
            TimeoutError: no chunk in time.
            _EngineError: the engine refused the request or failed.
        """
        try:
            # Without a limit the wait is cut in pieces: some platforms deliver Ctrl-C only between two waits.
            chunk = self.chunks.get(timeout=remaining) if remaining is not None else self._patient()
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(chunk, _EngineError):
            raise chunk
        if isinstance(chunk, ValueError):
            raise _EngineError(str(chunk), "invalid_request_error") from chunk
        if isinstance(chunk, BaseException):
            raise _EngineError(f"The engine failed: {chunk!r}", "engine_failed") from chunk
        if chunk is not None and isinstance(chunk.get("error"), dict):
            error = chunk["error"]
            raise _EngineError(str(error.get("message")), str(error.get("type") or "engine_failed"))
        return chunk

    def _patient(self) -> dict[str, Any] | BaseException | None:
        while True:
            with contextlib.suppress(queue.Empty):
                return self.chunks.get(timeout=1.0)


class _Stream:
    """A streamed answer: OpenAI chat chunks as server-sent events."""

    headers: Mapping[str, str] = _EVENT_HEADERS
    status = 200

    def __init__(self, run: _Run, first: dict[str, Any] | None, mark: Any, now: Callable[[], float], model: str) -> None:
        self._run = run
        self._first = first
        self._mark = mark
        self._now = now
        self._model = model
        self._ended = False

    def read(self, deadline: float | None = None) -> bytes:
        """Return the next events; ``b""`` at the end.

        Raises:
            LLMTimeoutError: the deadline passed.
        """
        if self._ended:
            return b""
        chunk, self._first = self._first, None
        if chunk is None:
            try:
                chunk = self._run.next(_remaining(deadline, self._now))
            except TimeoutError:
                self.close()
                raise _late(self._model) from None
            except _EngineError as error:
                self._ended = True
                return b"data: " + msgspec.json.encode(_error_body(error)) + b"\n\n"
        if chunk is None:
            self._ended = True
            return b"data: [DONE]\n\n"
        return b"data: " + msgspec.json.encode(_marked(chunk, self._mark)) + b"\n\n"

    def cut(self) -> None:
        """End a wait for it, from any thread."""
        self._run.cut()

    def close(self) -> None:
        """Stop the computation at its next token."""
        self._ended = True
        self._run.cancel()

    def __del__(self) -> None:
        """A stream that was dropped computes no further."""
        self._run.cancel()


class _Refusal:
    """An error as a stream: its status and its body."""

    headers: Mapping[str, str] = _HEADERS

    def __init__(self, reply: HTTPReply) -> None:
        self.status = reply.status
        self._body = reply.body

    def read(self, deadline: float | None = None) -> bytes:
        """Return the body, then ``b""``."""
        body, self._body = self._body, b""
        return body

    def cut(self) -> None:
        """Nobody waits for it."""

    def close(self) -> None:
        """Nothing is held."""


def send(
    request: HTTPRequest, deadline: float | None, now: Callable[[], float], hold: Callable[[Any], None] | None = None
) -> HTTPReply:
    """Answer a request whole. ``deadline`` is in seconds on the scale of ``now``.

    ``hold`` is given an object whose ``cut`` ends the wait from any thread; what is then returned is of no use.

    Raises:
        LLMTimeoutError: the deadline passed; the computation ends at its next token.
    """
    try:
        model, mark, body = _read(request)
        run = _begin(model, body, deadline, now)
    except _EngineError as error:
        return _refusal(error)
    chunks = []
    try:
        if hold is not None:
            hold(run)
        while True:
            chunk = run.next(_remaining(deadline, now))
            if chunk is None:
                break
            chunks.append(chunk)
    except TimeoutError:
        raise _late(model) from None
    except _EngineError as error:
        return _refusal(error)
    finally:
        run.cancel()
    return HTTPReply(200, _HEADERS, msgspec.json.encode(_marked(whole(chunks), mark)))


def open(  # noqa: A001 - the word of the port
    request: HTTPRequest, deadline: float | None, now: Callable[[], float], hold: Callable[[Any], None] | None = None
) -> _Stream | _Refusal:
    """Answer a request as a stream; returns when the first chunk is there, so that a refusal is seen in its status.

    ``hold`` as in ``send``.

    Raises:
        LLMTimeoutError: the deadline passed.
    """
    try:
        model, mark, body = _read(request)
        run = _begin(model, body, deadline, now)
    except _EngineError as error:
        return _Refusal(_refusal(error))
    try:
        if hold is not None:
            hold(run)
        first = run.next(_remaining(deadline, now))
    except TimeoutError:
        run.cancel()
        raise _late(model) from None
    except _EngineError as error:
        return _Refusal(_refusal(error))
    except BaseException:
        run.cancel()
        raise
    return _Stream(run, first, mark, now, model)


def _read(request: HTTPRequest) -> tuple[str, Any, dict[str, Any]]:
    """Return the model, the decoder's mark and the body for the engine, which always streams: only so can it be stopped."""
    body = msgspec.json.decode(request.body)
    mark = body.pop("llmbroker", None)
    model = str(body.get("model"))
    body["stream"] = True
    body["stream_options"] = {"include_usage": True}
    return model, mark, body


def _begin(model: str, body: dict[str, Any], deadline: float | None, now: Callable[[], float]) -> _Run:
    engine = _engine(model)
    remaining = _remaining(deadline, now)
    if not engine.line.acquire(timeout=-1 if remaining is None else min(remaining, threading.TIMEOUT_MAX)):
        raise LLMTimeoutError(
            f"The deadline passed while {model} was answering other requests.", sent=False, provider="local", model=model
        )
    try:
        return _Run(engine, body)
    except BaseException:
        engine.line.release()
        raise


def _remaining(deadline: float | None, now: Callable[[], float]) -> float | None:
    return None if deadline is None else max(0.0, deadline - now())


def _late(model: str) -> LLMTimeoutError:
    return LLMTimeoutError(
        f"The deadline passed before the local model {model} had answered. It computes on this machine: a longer timeout, or "
        "fewer max_tokens, would help.",
        provider="local",
        model=model,
    )


def _marked(chunk: dict[str, Any], mark: Any) -> dict[str, Any]:
    if mark is not None:
        chunk["llmbroker"] = mark
    return chunk


def _error_body(error: _EngineError) -> dict[str, Any]:
    status = _STATUS.get(error.code, 500)
    return {"error": {"message": str(error), "type": error.code, "code": error.code, "status": status}}


def _refusal(error: _EngineError) -> HTTPReply:
    return HTTPReply(_STATUS.get(error.code, 500), _HEADERS, msgspec.json.encode(_error_body(error)))
