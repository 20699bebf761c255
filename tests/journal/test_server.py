"""The PostgreSQL of the tests clears away what killed runs left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.journal.server import PREFIX, STALE, reap


def folder(home: Path, name: str, *, age: float, pid: str | None) -> Path:
    made = home / name
    (made / "base").mkdir(parents=True)
    (made / "base" / "1").write_bytes(b"data")
    if pid is not None:
        (made / "postmaster.pid").write_text(pid)
    then = time.time() - age
    os.utime(made, (then, then))
    return made


def dead() -> int:
    """Return the number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize(
    ("name", "age", "pid", "stays"),
    [
        (PREFIX + "killed", 2 * STALE, "dead", False),
        (PREFIX + "stopped", 2 * STALE, None, False),
        (PREFIX + "cut-off", 2 * STALE, "", False),
        (PREFIX + "serving", 2 * STALE, "alive", True),
        (PREFIX + "new", 10.0, None, True),
        ("somebody-elses", 2 * STALE, "dead", True),
    ],
)
def test_only_old_folders_of_dead_servers_are_removed(
    tmp_path: Path, name: str, age: float, pid: str | None, stays: bool
) -> None:
    number = {"dead": dead, "alive": os.getpid}.get(pid or "", lambda: pid)()
    made = folder(tmp_path, name, age=age, pid=None if pid is None else f"{number}\n/data\n")
    reap(tmp_path)
    assert made.exists() is stays
