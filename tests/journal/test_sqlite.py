"""The SQLite file itself: who may read it, what else lives in it, forks, and the death of the process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from llmbroker import replay
from llmbroker.errors import ConfigurationError, StoreError
from llmbroker.journal import Journal, Query, is_store, open_store
from llmbroker.journal.columns import COLUMNS
from llmbroker.journal.migrations import MIGRATIONS
from llmbroker.journal.sqlite import SQLiteStore
from llmbroker.journal.tidings import Since, Tidings

from .conftest import T0, make_call

ANY = Query()
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


# -- the file --------------------------------------------------------------------------------------------------------------


def test_making_a_store_touches_nothing(tmp_path: Path) -> None:
    open_store(tmp_path / "new" / "broker.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_file_and_folder_that_we_make_are_for_their_owner_alone(tmp_path: Path) -> None:
    store = open_store(tmp_path / "new" / "broker.db")
    store.record([make_call()])
    assert mode(tmp_path / "new") == 0o700
    assert {path.name: mode(path) for path in (tmp_path / "new").iterdir()} == {
        "broker.db": 0o600,
        "broker.db-wal": 0o600,
        "broker.db-shm": 0o600,
    }
    store.close()


def test_a_file_of_ours_is_in_wal_mode_and_rows_are_direct(database: Path) -> None:
    store = open_store(database)
    store.record([make_call()])
    assert store.direct
    store.close()
    with sqlite3.connect(database) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    db.close()


def test_waiting_for_the_disk_is_not_direct(database: Path) -> None:
    assert not open_store(database, full=True).direct


def test_an_application_s_file_keeps_its_mode_and_its_tables(database: Path) -> None:
    app = sqlite3.connect(database, isolation_level=None)
    app.execute("PRAGMA journal_mode = DELETE")
    app.execute("CREATE TABLE calls (x)")
    app.execute("INSERT INTO calls VALUES (7)")
    app.execute("PRAGMA user_version = 42")
    store = open_store(database)
    store.record([make_call(id="a")])
    assert [call.id for call in store.calls(ANY, limit=9)] == ["a"]
    assert not store.direct
    store.close()
    assert app.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert app.execute("PRAGMA user_version").fetchone() == (42,)
    assert app.execute("SELECT x FROM calls").fetchall() == [(7,)]
    names = {name for (name,) in app.execute("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")}
    assert {name for name in names if not name.startswith("llmbroker_")} == {"calls"}
    app.close()


DAMAGE = {
    "a time that is none": "UPDATE llmbroker_calls SET ts = 'x'",
    "a time that cannot be": "UPDATE llmbroker_calls SET ts = 9000000000000000000",
    "the version": "UPDATE llmbroker_schema SET version = 'x'",
    "a text for a duration": "UPDATE llmbroker_calls SET latency_ms = 'x'",
    "a text for the wait for a first event": "UPDATE llmbroker_calls SET first_event_ms = 'x'",
    "bytes for a name": "UPDATE llmbroker_calls SET llm_name = x'ff00'",
}
NO_NUMBERS = ("latency_ms", "first_event_ms", "cost", "input_tokens", "total_tokens", "http_status", "attempt", "step")


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_what_is_damaged_is_an_error_of_the_store(damage: str, database: Path) -> None:
    store = open_store(database)
    store.record([make_call()])
    store.close()
    with sqlite3.connect(database) as db:
        db.execute(damage)
    db.close()
    with pytest.raises(StoreError, match="damaged"):
        store.calls(ANY, limit=1)
    with pytest.raises(StoreError, match="damaged"):
        store.stats(ANY)
    store.close()


@pytest.mark.parametrize("column", NO_NUMBERS)
def test_a_text_where_a_number_belongs_is_an_error_of_the_store_that_names_the_column(column: str, database: Path) -> None:
    store = open_store(database)
    store.record([make_call()])
    store.close()
    with sqlite3.connect(database) as db:
        db.execute(f"UPDATE llmbroker_calls SET {column} = 'x'")
    db.close()
    with pytest.raises(StoreError, match=f"damaged: 'x' is no number for {column}"):
        store.calls(ANY, limit=1)
    with pytest.raises(StoreError, match=f"damaged: 'x' is no number for {column}"):
        replay(database)
    store.close()


@pytest.mark.parametrize("damage", ["'x'", "9e999"])
@pytest.mark.parametrize("by", ["day", "all"])
def test_one_damaged_time_among_good_ones_is_an_error_of_the_store(damage: str, by: Any, database: Path) -> None:
    store = open_store(database)
    store.record([make_call(), make_call(status="timeout")])
    store.close()
    with sqlite3.connect(database) as db:
        db.execute(f"UPDATE llmbroker_calls SET ts = {damage} WHERE status = 'timeout'")
    db.close()
    with pytest.raises(StoreError, match="damaged"):
        store.stats(ANY, by=by)
    store.close()


def test_a_schema_of_a_newer_version_is_left_alone(database: Path) -> None:
    store = open_store(database)
    store.record([make_call()])
    store.close()
    db = sqlite3.connect(database, isolation_level=None)
    db.execute("UPDATE llmbroker_schema SET version = 999")
    with pytest.raises(StoreError, match="Upgrade llmbroker") as caught:
        open_store(database).record([make_call()])
    assert caught.value.reason == "newer"
    assert db.execute("SELECT version FROM llmbroker_schema").fetchall() == [(999,)]
    db.close()


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS)))
def test_a_file_of_an_older_version_is_brought_up_to_date_and_keeps_what_it_holds(
    version: int, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmbroker.journal.sqlite.MIGRATIONS", MIGRATIONS[:version])
    old = open_store(database)
    old.record([make_call(0)])
    old.set_state("rest:a", b"of the former design")
    monkeypatch.undo()
    new = open_store(database)
    new.record([make_call(1)])
    new.tell(Tidings(T0, {"n": b"1"}))
    old.record([make_call(2)])  # whoever is still at work with the old one goes on
    assert len(new.calls(ANY, limit=9)) == 3
    assert new.look(Since()).notes == {"n": b"1"}
    assert new.state("rest:a") is None
    old.close()
    new.close()


def test_a_migration_that_fails_half_way_leaves_nothing_behind(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(database)
    store.record([make_call(id="old")])
    store.close()
    good = (*MIGRATIONS, ("CREATE TABLE llmbroker_new (x)",))
    broken = (*MIGRATIONS, (*good[-1], "CREATE TABLE llmbroker_calls (x)"))
    monkeypatch.setattr("llmbroker.journal.sqlite.MIGRATIONS", broken)
    with pytest.raises(StoreError):
        open_store(database).record([make_call()])
    monkeypatch.setattr("llmbroker.journal.sqlite.MIGRATIONS", good)
    store = open_store(database)
    store.record([make_call(1, id="new")])
    assert [call.id for call in store.calls(ANY, limit=9)] == ["new", "old"]
    store.close()
    with sqlite3.connect(database) as db:
        assert db.execute("SELECT version FROM llmbroker_schema").fetchall() == [(len(good),)]
    db.close()


def test_the_columns_of_the_code_are_those_of_the_table(database: Path) -> None:
    store = open_store(database)
    store.record([make_call()])
    store.close()
    with sqlite3.connect(database) as db:
        found = [row[1] for row in db.execute("PRAGMA table_info(llmbroker_calls)")]
    db.close()
    assert tuple(found) == COLUMNS


def test_the_questions_of_every_day_use_an_index(database: Path) -> None:
    store = SQLiteStore(database)
    store.record([make_call()])
    db = sqlite3.connect(database)
    from llmbroker.journal import queries, utc

    for query in (
        Query(since=utc(0)),
        Query(call_id="a"),
        Query(trace_id="t"),
        Query(scope="s"),
        Query(group_id="g"),
    ):
        sql, values = queries.page(query, 5, None, False, "?")
        plan = " | ".join(row[3] for row in db.execute("EXPLAIN QUERY PLAN " + sql, values))
        assert "SEARCH c" in plan or "MULTI-INDEX" in plan, plan
        assert "SCAN c" not in plan
    sql, values = queries.page(ANY, 5, "12", False, "?")
    assert "TEMP B-TREE" not in " | ".join(row[3] for row in db.execute("EXPLAIN QUERY PLAN " + sql, values))
    db.close()
    store.close()


def test_a_row_takes_less_than_500_bytes(database: Path) -> None:
    store = open_store(database)
    for start in range(0, 2000, 500):
        store.record(
            [
                make_call(
                    n, llm_name="openrouter-nemotron-3-ultra", operation="weather-agent", trace_id=make_call().id,
                    provider="openrouter", dialect="openai-chat", model="nvidia/nemotron-3-ultra-550b-a55b:free",
                    model_answered="nvidia/nemotron-3-ultra-550b-a55b:free", finish_reason="tool_calls", http_status=200,
                    first_event_ms=123.456, latency_ms=2345.678, cost=0.0, currency="USD", scope="user-12345",
                    group_id=make_call().id, key_source="environment OPENROUTER_API_KEY",
                )
                for n in range(start, start + 500)
            ]
        )  # fmt: skip
    store.close()
    assert database.stat().st_size / 2000 < 500


ADDRESSES = {
    "broker.db": "broker.db",
    "x/y.sqlite": "x/y.sqlite",
    "Y.SQLITE3": "Y.SQLITE3",
    "sqlite:///rel.db": "rel.db",
    "sqlite:///no-suffix": "no-suffix",
}


@pytest.mark.parametrize(("address", "path"), ADDRESSES.items(), ids=ADDRESSES)
def test_an_address_names_a_file(address: str, path: str) -> None:
    assert open_store(address).where == str(Path.cwd() / path)


def test_four_slashes_make_an_absolute_path() -> None:
    assert open_store("sqlite:////srv/x.db").where == "/srv/x.db"


@pytest.mark.parametrize("address", ["models.toml", "sqlite:/x.db", "sqlite://x.db", "mongodb://h/x", "", "broker"])
def test_what_is_no_store_is_refused_with_what_to_write(address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"\.db|sqlite:///"):
        open_store(address)


def test_which_texts_are_stores() -> None:
    found = {text for text in ("a.db", "sqlite:///a", "postgresql://h/d", ":memory:", "a.toml", "a") if is_store(text)}
    assert found == {"a.db", "sqlite:///a", "postgresql://h/d", ":memory:"}


# -- several processes -----------------------------------------------------------------------------------------------------


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_parent_and_child_both_go_on_writing_after_a_fork(database: Path) -> None:
    journal = Journal(open_store(database))
    for n in range(20):
        journal.record(make_call(n, operation="before"))
    child = os.fork()
    if child == 0:
        try:
            for n in range(200):
                journal.record(make_call(n, operation="child"))
            journal.close()
            os._exit(0)
        finally:
            os._exit(1)
    for n in range(200):
        journal.record(make_call(n, operation="parent"))
    assert os.waitpid(child, 0)[1] == 0
    assert {key: stats.total for key, stats in journal.stats(by="operation").items()} == {
        "before": 20,
        "child": 200,
        "parent": 200,
    }
    journal.close()


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_does_not_take_over_what_its_parent_still_has_to_write(database: Path) -> None:
    journal = Journal(open_store(database))
    journal.record(make_call(operation="before"))
    other = sqlite3.connect(database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    journal.record(make_call(1, operation="waits"))
    child = os.fork()
    if child == 0:
        os._exit(0 if journal.health()["spooled"] == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    other.execute("ROLLBACK")
    other.close()
    assert [call.operation for call in journal.calls()] == ["waits", "before"]
    journal.close()


WRITER = """
import os, sys
from llmbroker.journal import Call, Journal, open_store, utc
journal = Journal(open_store(sys.argv[1]))
name, count = sys.argv[2], int(sys.argv[3])
for n in range(count):
    call = Call(ts=utc(n), llm_name="a", status="ok", id=f"{name}-{n}", operation=name)
    journal.record(call)
    if len(sys.argv) > 4:
        os.write(1, call.id.encode() + b"\\n")
journal.close()
"""


def write_together(database: Path, processes: int, rows: int) -> dict[str, int]:
    running = [subprocess.Popen([sys.executable, "-c", WRITER, str(database), f"p{n}", str(rows)]) for n in range(processes)]
    assert [process.wait(timeout=100) for process in running] == [0] * processes
    journal = Journal(open_store(database))
    counted = {key: stats.total for key, stats in journal.stats(by="operation").items()}
    journal.close()
    return counted


def test_four_processes_that_make_and_fill_one_file_lose_nothing(database: Path) -> None:
    assert write_together(database, 4, 250) == {f"p{n}": 250 for n in range(4)}


@pytest.mark.slow
def test_four_processes_write_20000_rows_into_one_file_and_none_is_lost(database: Path) -> None:
    assert write_together(database, 4, 5000) == {f"p{n}": 5000 for n in range(4)}


def killed(database: Path, name: str, after: int) -> list[str]:
    """Let a process write, kill it after so many rows were acknowledged; return the ids it acknowledged."""
    command = [sys.executable, "-c", WRITER, str(database), name, "1000000", "tell"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    told = b""
    while told.count(b"\n") < after:
        more = os.read(process.stdout.fileno(), 4096)
        assert more, "the writer ended by itself"
        told += more
    process.send_signal(signal.SIGKILL)
    told += process.stdout.read()
    process.stdout.close()
    process.wait()
    return [line.decode() for line in told.split(b"\n")[:-1]]


def check_kills(database: Path, kills: int) -> None:
    written: set[str] = set()
    for n in range(kills):
        told = killed(database, f"k{n}", after=1 + (n * 37) % 300)
        store = open_store(database)
        stored = {call.id for call in store.calls(Query(operation=f"k{n}"), limit=1_000_000)}
        store.close()
        assert set(told) - stored == set()
        written |= set(told)
    with sqlite3.connect(database) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("SELECT count(*) FROM llmbroker_calls").fetchone()[0] >= len(written)
    db.close()


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_every_row_that_record_returned_for_survives_a_kill(database: Path) -> None:
    check_kills(database, 8)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_row_survives_a_thousand_kills(tmp_path: Path) -> None:
    for part in range(20):  # a new file now and then, so that looking at it stays quick
        check_kills(tmp_path / f"{part}.db", 50)


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_rows_that_could_only_be_spooled_survive_a_kill_too(database: Path) -> None:
    store = open_store(database)
    store.record([make_call(id="first")])
    holder = sqlite3.connect(database, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    told = killed(database, "k", after=200)
    holder.execute("ROLLBACK")
    holder.close()
    journal = Journal(store)
    journal.record(make_call(id="last"))
    stored = {call.id for call in journal.calls(limit=1_000_000)}
    journal.close()
    assert len(told) >= 200
    assert set(told) | {"first", "last"} <= stored


def test_a_report_does_not_delay_rows(database: Path) -> None:
    store = SQLiteStore(database)
    store.record([make_call()])
    with store._patient.lock:
        start = time.perf_counter()
        store.record([make_call()])
        assert time.perf_counter() - start < 30  # it did not wait for the lock of the readers
    store.close()


def test_nothing_is_left_open_after_close(database: Path) -> None:
    if not Path("/proc/self/fd").exists():
        pytest.skip("this system does not list descriptors")
    before = set(os.listdir("/proc/self/fd"))
    journal = Journal(open_store(database))
    journal.record(make_call())
    journal.calls()
    journal.close()
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif("spawn" not in multiprocessing.get_all_start_methods(), reason="no spawn")
def test_a_journal_s_parts_are_made_anew_in_spawned_processes_by_address(database: Path) -> None:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_write_one, args=(str(database),))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    store = open_store(database)
    assert len(store.calls(ANY, limit=9)) == 1
    store.close()


def _write_one(path: str) -> None:
    Journal(open_store(path)).record(make_call())
