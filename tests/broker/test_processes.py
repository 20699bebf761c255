"""Several real processes on one store: what one finds out, the others follow within a second."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from tests.broker.served import Answer, models

from llmbroker.broker.notes import Taught
from llmbroker.journal import open_store
from llmbroker.journal.tidings import Tidings
from llmbroker.windows import Learnt

WORKER = Path(__file__).with_name("worker.py")
SECOND = 1.0


class Process:
    """A worker."""

    def __init__(self, store: str, url: str, kind: str, home: Path) -> None:
        environment = {**os.environ, "LLMBROKER_HOME": str(home)}
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), store, url, kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def begin(self, do: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()

    def result(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def do(self, do: str, **arguments: Any) -> Any:
        self.begin(do, **arguments)
        return self.result()

    def end(self) -> None:
        self.do("close")
        self.process.communicate(timeout=10)


@contextmanager
def processes(store: str, url: str, count: int, home: Path) -> Iterator[list[Process]]:
    """Plain and awaiting processes in turn."""
    made = [Process(store, url, ("sync", "async")[at % 2], home) for at in range(count)]
    try:
        yield made
        for one in made:
            one.end()
    finally:
        for one in made:
            one.process.kill()
            one.process.communicate()


def address_of(kind: str, folder: Path) -> str:
    if kind == "sqlite":
        return str(folder / "broker.db")
    from tests.journal.server import new_database

    return new_database()


def all_of(group: list[Process], do: str, **arguments: Any) -> list[Any]:
    for one in group:
        one.begin(do, **arguments)
    return [one.result() for one in group]


def refusing(status: int, **headers: str) -> Callable[[], Answer]:
    return lambda: (status, {key.replace("_", "-"): value for key, value in headers.items()})


class Seen:
    """What the first process met and what the others did a second later."""

    def __init__(self) -> None:
        self.first: dict[str, Any] = {}
        self.states: dict[str, list[Any]] = {}
        self.chats: dict[str, list[Any]] = {}
        self.asked: dict[str, int] = {}


KINDS = ("resting", "refused", "spent", "switched", "rated")


FOUR = [pytest.param((kind, 4), marks=pytest.mark.slow) for kind in ("sqlite", "postgres")]


@pytest.fixture(scope="module", params=[("sqlite", 2), ("postgres", 2), *FOUR], ids=lambda of: f"{of[0]}, {of[1]} processes")
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """Everything that one process may find out, found out at once; then a second, then a look at the others."""
    kind, count = request.param
    folder = tmp_path_factory.mktemp("shared")
    found = Seen()
    with models() as served, processes(address_of(kind, folder), served.url, count, folder) as group:
        served.answers |= {
            "resting": refusing(503, retry_after="60"),
            "refused": refusing(401),
            "spent": refusing(429, retry_after="60"),
        }
        for name in KINDS:
            all_of(group, "open", models=[name, f"beside-{name}"])
        first, others = group[0], group[1:]
        for name in ("resting", "refused", "spent"):
            found.first[name] = first.do("chat", model=name)
        call = found.first["rated"] = first.do("chat", model="rated")
        first.do("rate", model="rated", call_id=call["id"], score=0.0)
        first.do("switch", model="switched", off=True)
        time.sleep(SECOND)
        found.asked = dict(served.asked)
        for name in KINDS:
            found.chats[name] = all_of(others, "chat", model=name)
            found.states[name] = all_of(others, "state", model=name)
        found.first["state"] = first.do("state", model="rated")
        found.asked = {name: served.asked.get(name, 0) - found.asked.get(name, 0) for name in KINDS}
        yield found


@pytest.mark.parametrize(
    ("name", "reason"),
    [("resting", "unavailable"), ("refused", "key_refused"), ("spent", "rate_limited")],
    ids=["a model that is away", "a key that was refused", "a quota that is spent"],
)
def test_what_was_refused_to_one_is_left_alone_by_all(seen: Seen, name: str, reason: str) -> None:
    assert seen.first[name]["by"] == f"beside-{name}"
    assert [state["reason"] for state in seen.states[name]] == [reason] * len(seen.states[name])
    assert [chat["by"] for chat in seen.chats[name]] == [f"beside-{name}"] * len(seen.chats[name])
    assert seen.asked[name] == 0


def test_a_rating_moves_the_beliefs_of_all(seen: Seen) -> None:
    state = seen.first["state"]
    assert state["quality"] < 0.7
    assert seen.states["rated"] == [state] * len(seen.states["rated"])


def test_a_switch_is_followed_by_all(seen: Seen) -> None:
    assert [state["reason"] for state in seen.states["switched"]] == ["disabled"] * len(seen.states["switched"])
    assert seen.asked["switched"] == 0


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_process_that_starts_later_begins_with_all_of_it(kind: str, tmp_path: Path) -> None:
    with models() as served:
        store = address_of(kind, tmp_path)
        served.answers |= {"resting": refusing(503, retry_after="60"), "refused": refusing(401)}
        with processes(store, served.url, 1, tmp_path) as (first,):
            for name in KINDS:
                first.do("open", models=[name, f"beside-{name}"])
            first.do("chat", model="resting")
            first.do("chat", model="refused")
            for _ in range(3):
                first.do("rate", model="rated", call_id=first.do("chat", model="rated")["id"], score=0.0)
            first.do("switch", model="switched", off=True)
            quality = first.do("state", model="rated")["quality"]
        with processes(store, served.url, 1, tmp_path) as (later,):
            for name in KINDS:
                later.do("open", models=[name, f"beside-{name}"])
            states = {name: later.do("state", model=name) for name in KINDS}
    assert (states["resting"]["reason"], states["refused"]["reason"], states["switched"]["reason"]) == (
        "unavailable",
        "key_refused",
        "disabled",
    )
    assert states["rated"]["quality"] == quality < 0.5


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_several_processes_keep_a_window_that_somebody_learnt(kind: str, count: int, tmp_path: Path) -> None:
    """The model would let everything through: nothing but what they tell each other holds them back."""
    size = 24
    with models() as served, processes(store := address_of(kind, tmp_path), served.url, count, tmp_path) as group:
        all_of(group, "open", models=["a", "b"])
        key = "\n".join((urlsplit(served.url).netloc, "secret-of-a"))
        lane = f"a:{hashlib.sha256(key.encode()).hexdigest()[:20]}"
        now = time.time()
        learnt = Learnt(at=now, arcs={60.0: (now - 2.2, now - 2.0, 8)}, counts=(size,) * 4, opened=now - 2.0, last_no=now - 9.0)
        opened = open_store(store)
        opened.tell(Tidings(now, {f"quota:lane:{lane}": msgspec.json.encode(Taught("x", learnt))}))
        opened.close()
        time.sleep(SECOND)
        done = sum(all_of(group, "many", model="a", seconds=5.0, every=0.2))
    assert done > 1.5 * size  # more than it holds was wanted
    assert 0.7 * size <= served.asked["a"] <= 1.25 * size
