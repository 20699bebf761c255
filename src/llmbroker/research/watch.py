"""Who is told of each attempt: journals (``journal=``) and the audit log. A watcher that fails never breaks a call.

An ``Event`` holds what was asked and what came; a watcher is a function of it. ``ALWAYS`` are those that watch every call of
this process; the others belong to one call.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from llmbroker.errors import InvalidRequestError
from llmbroker.exchange import Request
from llmbroker.journal import Call, Journal, failure, open_store, utc
from llmbroker.providers.base import Deployment
from llmbroker.research.response import Response

log = logging.getLogger("llmbroker.research")


class Event(msgspec.Struct, frozen=True):
    """One attempt.

    Attributes:
        config: the config or broker. deployment: whom it asked; None where a broker chose.
        request: what was asked. started: seconds since 1970. duration: seconds. attempt: which try of its call, from 1.
        response, error: what came; one of them is None.
    """

    config: Any
    deployment: Deployment | None
    request: Request
    started: float
    duration: float | None
    attempt: int
    response: Response | None = None
    error: BaseException | None = None


VERSION: str = getattr(sys.modules[__name__.partition(".")[0]], "__version__", "unknown")
Watcher = Callable[[Event], None]
ALWAYS: list[Watcher] = []
_failed: set[int] = set()
_journals: dict[str, Journal] = {}
_lock = threading.Lock()


def tell(watchers: Sequence[Watcher], event: Event) -> None:
    """Tell all; what one of them raises is logged once."""
    for watcher in watchers:
        try:
            watcher(event)
        except Exception as error:  # noqa: BLE001 - no fault of a log may reach a call
            if id(watcher) not in _failed:
                _failed.add(id(watcher))
                log.warning("A record of a call could not be kept: %r. Calls go on.", error)


def journal_watcher(journal: Any) -> tuple[Watcher, ...]:
    """Return what writes a row for each attempt into a journal.

    Args:
        journal: None for none; a ``Journal``; a path or address of a store (opened once for each).

    Raises:
        InvalidRequestError, ConfigurationError: it names no store.
    """
    if journal is None or journal is False:
        return ()
    found = journal if isinstance(journal, Journal) else _opened(journal)
    return (lambda event: found.record(row(event)),)


def _opened(where: Any) -> Journal:
    if not isinstance(where, (str, os.PathLike)):
        raise InvalidRequestError(f"journal is a path or a journal, not {type(where).__name__}.", argument="journal")
    name = os.fspath(where)
    key = name if name == ":memory:" else os.path.abspath(name)  # noqa: PTH100 - an address is no path
    with _lock:
        if key not in _journals:
            _journals[key] = opened = Journal(open_store(name))
            atexit.register(opened.close)
        return _journals[key]


def row(event: Event) -> Call:
    """Return the journal's row of an attempt."""
    deployment, response, error = event.deployment, event.response, event.error
    facts: dict[str, Any] = {"status": "ok"} if error is None else failure(error)
    if response is not None:
        cost = response.cost
        facts |= {
            "finish_reason": response.finish_reason, "usage": response.usage, "model_answered": response.model,
            "cost": cost, "currency": None if cost is None else "USD",
        }  # fmt: skip
        if response.call_id is not None:
            facts["trace_id"] = response.call_id
    if deployment is not None:
        facts |= {
            "provider": deployment.provider.id, "dialect": deployment.dialect.name, "model": deployment.model,
            "key_source": deployment.key.source if deployment.key is not None else None,
        }  # fmt: skip
    name = deployment.name if deployment is not None else (response.llm_name if response is not None else None) or "broker"
    return Call(
        ts=utc(event.started), llm_name=name, attempt=event.attempt, stream=event.request.stream,
        latency_ms=None if event.duration is None else event.duration * 1000, **facts,
    )  # fmt: skip
