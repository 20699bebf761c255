"""What the journal's tests share: the stores under one contract, and ways to make rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmbroker.journal import Call, Store, open_store, utc

from .server import new_database

T0 = 1_790_000_000.0
MakeCall = Callable[..., Call]


def make_call(second: float = 0.0, **changes: Any) -> Call:
    """A call that began so many seconds after T0."""
    return Call(**{"ts": utc(T0 + second), "llm_name": "alpha", "status": "ok", **changes})


def _sqlite_file(path: Path) -> Store:
    return open_store(path / "broker.db")


def _sqlite_file_full(path: Path) -> Store:
    return open_store(path / "broker.db", full=True)


def _sqlite_memory(path: Path) -> Store:
    return open_store(":memory:")


def _postgres(path: Path) -> Store:
    """A database of its own on a real server, which is started once and keeps its data in a temporary folder."""
    return open_store(new_database())


STORES: dict[str, Callable[[Path], Store]] = {
    "sqlite": _sqlite_file,
    "sqlite-full": _sqlite_file_full,
    "sqlite-memory": _sqlite_memory,
    "postgres": _postgres,
}


@pytest.fixture(params=sorted(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Every store that keeps the contract."""
    made = STORES[request.param](tmp_path)
    yield made
    made.close()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Where a test's database will be."""
    return tmp_path / "broker.db"
