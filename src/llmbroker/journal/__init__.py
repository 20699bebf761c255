"""The journal: one row an attempt, written before the reply is handed over; ratings; sums; what goes with them.

``records`` are the values, ``contract`` is what a store can do, ``sqlite`` and ``postgres`` are stores, ``tables`` what both
keep beside the rows, ``tidings`` what processes tell each other, ``ledger`` the accounts of limits, ``runs`` durable runs;
``spool`` keeps what a store refuses, ``journal`` is the face that the broker uses. Nothing here calls a model or decides
anything.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llmbroker.errors import ConfigurationError
from llmbroker.journal.bodies import reply_body, request_body
from llmbroker.journal.contract import Store
from llmbroker.journal.journal import Journal, check_score
from llmbroker.journal.records import Call, Query, Rating, Stats, failure, new_id, status_of, utc, worked

__all__ = [
    "FILE_NAME",
    "Call",
    "Journal",
    "Query",
    "Rating",
    "Stats",
    "Store",
    "check_score",
    "failure",
    "is_model_list",
    "is_store",
    "new_id",
    "open_existing",
    "open_store",
    "pages",
    "reply_body",
    "request_body",
    "status_of",
    "utc",
    "worked",
]

FILE_NAME = "journal.db"
"""The journal in llmbroker's own folder."""
PAGE = 1000
"""Calls that are read at once by who reads them all."""
SUFFIXES = (".db", ".sqlite", ".sqlite3")
_POSTGRES = ("postgresql://", "postgres://", "postgresql+psycopg://")


def is_store(where: str | os.PathLike[str]) -> bool:
    """Whether this names a database (``broker.db``, ``sqlite:///...``, ``postgresql://...``), not some other file."""
    text = os.fspath(where)
    return text == ":memory:" or text.startswith(("sqlite:", *_POSTGRES)) or text.lower().endswith(SUFFIXES)


def is_model_list(where: str | os.PathLike[str]) -> bool:
    """Whether this names a model list, by its suffix: what belongs to such a source is kept in llmbroker's own folder."""
    text = os.fspath(where)
    return "://" not in text and text.lower().endswith(".toml")


def open_store(where: str | os.PathLike[str], *, full: bool = False, home: Path | None = None) -> Store:
    """Return the store of a path or address. Nothing is opened yet: a broken store shows when it is used.

    Args:
        where: ``broker.db``, ``*.sqlite``, ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``:memory:``
            or ``postgresql://user@host/database``.
        full: rows survive a loss of power too; each waits for the disk.
        home: the folder where rows wait for a server that is away, else llmbroker's own; those of a file wait beside it.

    Raises:
        ConfigurationError: it is no address of a store.
    """
    from llmbroker.journal.sqlite import SQLiteStore

    text = os.fspath(where)
    if text.startswith(_POSTGRES):
        from llmbroker.journal.postgres import PostgresStore

        return PostgresStore(text, home=home)
    if text.startswith("sqlite:"):
        scheme, _, rest = text.partition("://")
        if scheme != "sqlite" or not rest.startswith("/"):
            raise ConfigurationError(
                f"{text!r} is no SQLite address.", hint="Write sqlite:///relative.db or sqlite:////absolute.db."
            )
        text = rest[1:] or ":memory:"
    elif not is_store(text):
        raise ConfigurationError(
            f"{text!r} names no store.", hint=f"A SQLite file ends in {', '.join(SUFFIXES)}; or write sqlite:///path."
        )
    return SQLiteStore(text, full=full)


def open_existing(where: str | os.PathLike[str] | None = None) -> Journal | None:
    """Return a journal to read: of a path or address, or that of llmbroker's own folder, None where nothing was written yet.

    A model list (``*.toml``) holds no rows: a broker that it is the source of writes them into llmbroker's own folder.

    Raises:
        ConfigurationError: there is no such file (to read makes none), or it is no address of a store.
    """
    from llmbroker.transports.model_store import data_home

    if where is None or is_model_list(where):
        path = data_home() / FILE_NAME
        return Journal(open_store(path)) if path.exists() else None
    text = os.fspath(where)
    store = open_store(text if is_store(text) or "://" in text else f"sqlite:///{text}")
    file = getattr(store, "path", None)
    if file is not None and store.spool_beside is not None and not file.exists():
        raise ConfigurationError(f"There is no database {text}.")
    return Journal(store)


def pages(journal: Journal, most: int | None = None, **filters: Any) -> Iterator[Call]:
    """Yield calls, the newest first, page by page; at most so many pages."""
    cursor: str | None = None
    for _ in itertools.count() if most is None else range(most):
        page = journal.calls(limit=PAGE, cursor=cursor, **filters)
        yield from page
        if len(page) < PAGE:
            return
        cursor = page[-1].cursor
