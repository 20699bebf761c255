"""The journal: one row an attempt, written before the reply is handed over; ratings; sums; what goes with them.

``records`` are the values, ``contract`` is what a store can do, ``sqlite`` is the store of the standard library, ``spool``
keeps what a store refuses, ``journal`` is the face that the broker uses. Nothing here calls a model or decides anything.
"""

from __future__ import annotations

import os

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
    "is_store",
    "new_id",
    "open_store",
    "reply_body",
    "request_body",
    "status_of",
    "utc",
    "worked",
]

FILE_NAME = "journal.db"
"""The journal in llmbroker's own folder."""
SUFFIXES = (".db", ".sqlite", ".sqlite3")
_POSTGRES = ("postgresql://", "postgres://", "postgresql+psycopg://")


def is_store(where: str | os.PathLike[str]) -> bool:
    """Whether this names a database (``broker.db``, ``sqlite:///...``, ``postgresql://...``), not some other file."""
    text = os.fspath(where)
    return text == ":memory:" or text.startswith(("sqlite:", *_POSTGRES)) or text.lower().endswith(SUFFIXES)


def open_store(where: str | os.PathLike[str], *, full: bool = False) -> Store:
    """Return the store of a path or address. Nothing is opened yet: a broken store shows when it is used.

    Args:
        where: ``broker.db``, ``*.sqlite``, ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``:memory:``
            or ``postgresql://user@host/database``.
        full: rows survive a loss of power too; each waits for the disk.

    Raises:
        ConfigurationError: it is no address of a store.
    """
    from llmbroker.journal.sqlite import SQLiteStore

    text = os.fspath(where)
    if text.startswith(_POSTGRES):
        from llmbroker.journal.postgres import PostgresStore

        return PostgresStore(text)
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
