"""A broker whose PostgreSQL goes away, or is there and does not answer, while calls are made: none fails, no row is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.broker.served import Models, models

from llmbroker import AsyncBroker, Broker, Limit, LLMConfig
from llmbroker.journal import Journal, Query, open_store
from llmbroker.journal.ledger import Ledger
from llmbroker.journal.postgres import PostgresStore
from llmbroker.transports import Answer, Replay

from .conftest import make_call
from .server import new_database, server


@pytest.fixture
def served() -> Iterator[Models]:
    with models() as made:
        yield made


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where rows wait."""
    monkeypatch.setenv("LLMBROKER_HOME", str(tmp_path))
    return tmp_path


def pool(served: Models) -> list[LLMConfig]:
    return [LLMConfig(name=name, model=name, base_url=served.url, api_key_ref="") for name in ("a", "b")]


def rows_of(address: str) -> set[str]:
    store = open_store(address)
    found: set[str] = set()
    cursor = None
    while page := store.calls(Query(), limit=1000, cursor=cursor):
        found |= {call.id for call in page}
        cursor = page[-1].cursor
    store.close()
    return found


def drained(broker: Any) -> bool:
    """Whether everything that waited was written, given some seconds."""
    journal = broker._engine.journal
    return any(journal.flush() or time.sleep(0.1) for _ in range(80))


class Load:
    """Calls made again and again, from threads and from tasks; what came of them."""

    def __init__(self, address: str, served: Models, limits: Sequence[Limit] = ()) -> None:
        self.plain = Broker(pool=pool(served), journal=address, limits=limits)
        self._limits = limits
        self.awaiting: AsyncBroker | None = None
        self.ids: list[str] = []
        self.errors: list[BaseException] = []
        self.stop = threading.Event()
        self._address, self._served = address, served
        self._threads = [threading.Thread(target=self._plainly) for _ in range(3)]
        self._threads.append(threading.Thread(target=lambda: asyncio.run(self._awaited())))

    def _plainly(self) -> None:
        while not self.stop.wait(0.005):
            try:
                self.ids.append(self.plain.ask("hi").call_id)
            except BaseException as error:  # noqa: BLE001 - shown by the assertion
                self.errors.append(error)

    async def _awaited(self) -> None:
        async with AsyncBroker(pool=pool(self._served), journal=self._address, limits=self._limits) as broker:

            async def again() -> None:
                while not self.stop.is_set():
                    try:
                        self.ids.append((await broker.ask("hi")).call_id)
                    except BaseException as error:  # noqa: BLE001 - shown by the assertion
                        self.errors.append(error)
                    await asyncio.sleep(0.005)

            await asyncio.gather(*(again() for _ in range(4)))
            assert await asyncio.to_thread(drained, broker)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join()
        self.drained = drained(self.plain)
        self.health = self.plain.snapshot().journal
        self.plain.close()

    def run(self, until: Callable[[], bool]) -> None:
        """Let calls be made for a while."""
        for _ in range(200):
            if until():
                return
            time.sleep(0.05)

    def made(self, more: int) -> None:
        """Wait for so many more calls."""
        at = len(self.ids)
        self.run(lambda: len(self.ids) >= at + more)


def test_a_server_that_stops_and_starts_under_load_fails_no_call_and_every_reply_has_its_row(
    served: Models, home: Path
) -> None:
    address = new_database()
    with Load(address, served) as load:
        load.made(40)
        server().stop()
        before = len(load.ids)
        load.made(60)
        assert len(load.ids) >= before + 60  # calls go on without the server
        assert load.plain.snapshot().journal["state"] == "degraded"
        server().start()
        load.made(60)
    assert load.errors == []
    assert load.drained
    assert (load.health["state"], load.health["dropped"]) == ("ok", 0)
    assert set(load.ids) <= rows_of(address)
    assert list(home.glob("*-spool-*")) == []


def test_what_limits_count_without_their_server_is_told_to_it_afterwards(served: Models) -> None:
    """While it is away no call fails for a limit; when it is back its counts are those of every reply, and nothing is held."""
    address = new_database()
    with Load(address, served, [Limit(calls=10**6, tokens=10**9)]) as load:
        load.made(40)
        server().stop()
        load.made(60)
        assert [one.shared for one in load.plain.snapshot().limits] == [False]
        server().start()
        load.made(60)
    assert load.errors == []
    store = open_store(address)
    (account,) = Ledger(store).accounts(["all: calls and tokens for ever"], 0)
    store.close()
    assert account.spent[0] == len(load.ids)
    assert account.held == (0, 0, 0)


def test_rows_wait_in_a_file_though_their_folder_was_not_there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMBROKER_HOME", str(home / "not" / "yet"))
    journal = Journal(open_store("postgresql://nobody@127.0.0.1:1/none"))
    journal.record(make_call())
    assert Path(journal.health()["spool_file"]).parent == home / "not" / "yet"
    assert (home / "not" / "yet").stat().st_mode & 0o077 == 0
    journal.close()


@pytest.mark.parametrize("named", ["source", "journal"])
def test_rows_of_a_broker_with_a_folder_of_its_own_wait_there(home: Path, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMBROKER_HOME", str(home / "another"))
    pool = [LLMConfig(name="m", model="m", base_url="http://127.0.0.1:9/v1", api_key_ref="")]
    body = {"model": "m", "choices": [{"message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}]}
    port = Replay().on(None, Answer(body=body), times=None)
    away: Any = {named: "postgresql://nobody@127.0.0.1:1/none"}
    with Broker(**away, pool=pool, limits=[], home=home / "mine", io=port) as broker:
        broker.ask("hi")
        assert Path(broker.snapshot().journal["spool_file"]).parent == home / "mine"
    assert not (home / "another").exists()


@pytest.fixture
def frozen() -> Iterator[Callable[[bool], None]]:
    """Stop and go on with every process of the server."""
    import psutil

    def freeze(stop: bool) -> None:
        main = psutil.Process(server().get_pid())
        for process in [main, *main.children(recursive=True)]:
            with contextlib.suppress(ProcessLookupError):  # one that ended meanwhile
                os.kill(process.pid, signal.SIGSTOP if stop else signal.SIGCONT)

    server()
    yield freeze
    freeze(False)


def test_a_server_that_does_not_answer_delays_a_call_little_and_gets_its_rows_later(
    served: Models, home: Path, frozen: Callable[[bool], None]
) -> None:
    address = new_database()
    with Load(address, served) as load:
        load.made(40)
        frozen(True)
        before = len(load.ids)
        load.made(60)
        assert len(load.ids) >= before + 60
        journal = load.plain.snapshot().journal
        assert journal["state"] == "degraded"
        assert "does not answer" in journal["error"]
        frozen(False)
        load.made(60)
    assert load.errors == []
    assert load.drained
    assert set(load.ids) <= rows_of(address)
    assert list(home.glob("*-spool-*")) == []


def test_a_broker_starts_while_its_server_does_not_answer(served: Models, frozen: Callable[[bool], None]) -> None:
    address = new_database()
    frozen(True)
    broker = Broker(pool=pool(served), journal=address)
    reply = broker.ask("hi")
    assert broker.snapshot().journal["state"] == "degraded"
    frozen(False)
    assert drained(broker)
    broker.close()
    assert rows_of(address) == {reply.call_id}


def test_nothing_is_asked_of_the_server_in_the_thread_of_an_event_loop(served: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls, cancelled calls, looks, ratings, switches, reading: each may wait for the server, none may hold the loop up."""
    address = new_database()
    asked: dict[str, set[int]] = {}

    def noted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            asked.setdefault(name, set()).add(threading.get_ident())
            return method(*arguments, **named)

        return call

    for name in ("record", "look", "tell", "find", "calls", "stats", "set_disabled", "secret", "state", "transact"):
        monkeypatch.setattr(PostgresStore, name, noted(name, getattr(PostgresStore, name)))

    async def run() -> int:
        async with AsyncBroker(address, pool=pool(served), limits=[]) as broker:
            reply = await broker.ask("hi")
            task = asyncio.create_task(broker.ask("slow"))
            while served.asked.get("a", 0) + served.asked.get("b", 0) < 2:
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await reply.record_quality(0.5)
            await broker.disable_llm("a")
            served.answers["b"] = lambda: (503, {"retry-after": "0.6"})
            await asyncio.gather(broker.ask("hi", wait=0.1), return_exceptions=True)
            await broker.enable_llm("a")
            await broker.snapshot()
            assert [row.status for row in await broker.calls()].count("cancelled") == 1
            await broker.stats()
        return threading.get_ident()

    served.answers |= dict.fromkeys("ab", lambda: (time.sleep(0.1), (200, {}))[1])
    loop = asyncio.run(run())
    assert {"record", "look", "tell", "find", "calls", "stats", "set_disabled"} <= set(asked)
    assert [name for name, threads in asked.items() if loop in threads] == []
