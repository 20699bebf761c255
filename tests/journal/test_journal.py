"""The journal's face: ratings, reading, retention, and that no fault of a store reaches a call."""

from __future__ import annotations

import logging
import os
import sqlite3
import tempfile
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from llmbroker.errors import ConfigurationError, InvalidRequestError, StoreError, UnknownCallError
from llmbroker.journal import Journal, Rating, Store, open_store, utc
from llmbroker.journal import journal as journal_module
from llmbroker.journal.records import Row
from llmbroker.journal.sqlite import SQLiteStore

from .conftest import T0, make_call


def modes_mean_nothing() -> bool:
    """Whether this process may write a file that is read-only: root, or Windows."""
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).chmod(0o400)
        return os.access(file.name, os.W_OK)


root = pytest.mark.skipif(modes_mean_nothing(), reason="this user may write everywhere")


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Failing(SQLiteStore):
    """A real store whose writes fail while ``reason`` is set."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(path)
        self.reason: str | None = None
        self.tries = 0

    def record(self, rows: Sequence[Row]) -> None:
        self.tries += 1
        if self.reason == "bug":
            raise ZeroDivisionError("a bug")
        if self.reason:
            raise StoreError(f"It is {self.reason}.", reason=self.reason)
        super().record(rows)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def journal_on(store: Store | None, clock: Clock, **options: Any) -> Journal:
    return Journal(store, clock=clock, wall=lambda: T0 + clock.seconds, **options)


def operations(journal: Journal) -> list[str | None]:
    """The rows' names, oldest first."""
    return [call.operation for call in reversed(journal.calls(limit=10_000))]


# -- ratings and reading ---------------------------------------------------------------------------------------------------


def test_a_rating_by_trace_goes_to_its_newest_successful_call(database: Path, clock: Clock) -> None:
    journal = journal_on(open_store(database), clock)
    for second, status in ((1, "ok"), (2, "ok"), (3, "error")):
        journal.record(make_call(second, id=f"c{second}", trace_id="t", status=status))
    call, rating = journal.rate(0.25, trace_id="t")
    assert (call.id, rating.call_id, rating.score) == ("c2", "c2", 0.25)
    assert [row.score for row in journal.calls()] == [None, 0.25, None]


def test_a_rating_in_another_scope_finds_nothing(database: Path, clock: Clock) -> None:
    journal = journal_on(open_store(database), clock)
    journal.record(make_call(id="a", scope="bob"))
    with pytest.raises(UnknownCallError, match="scope 'eve'"):
        journal.rate(1, call_id="a", scope="eve")
    assert journal.rate(1, call_id="a", scope="bob")[1].scope == "bob"


@pytest.mark.parametrize("score", [True, -0.1, 1.1, float("nan"), float("inf"), "1", None], ids=repr)
def test_a_score_that_is_no_number_from_0_to_1_is_refused(database: Path, clock: Clock, score: Any) -> None:
    journal = journal_on(open_store(database), clock)
    with pytest.raises(InvalidRequestError) as caught:
        journal.rate(score, call_id="a")
    assert caught.value.argument == "score"


@pytest.mark.parametrize("ids", [{}, {"call_id": "a", "trace_id": "t"}], ids=["none", "both"])
def test_a_rating_needs_exactly_one_id(database: Path, clock: Clock, ids: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError, match="exactly one"):
        journal_on(open_store(database), clock).rate(1, **ids)


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "3", None], ids=repr)
def test_a_limit_is_a_whole_number_from_1(database: Path, clock: Clock, limit: Any) -> None:
    with pytest.raises(InvalidRequestError, match="limit"):
        journal_on(open_store(database), clock).calls(limit=limit)


def test_a_filter_that_does_not_exist_is_refused_by_name(database: Path, clock: Clock) -> None:
    with pytest.raises(InvalidRequestError, match="modle") as caught:
        journal_on(open_store(database), clock).calls(modle="x")
    assert caught.value.argument == "modle"


def test_statuses_may_come_as_a_list(database: Path, clock: Clock) -> None:
    journal = journal_on(open_store(database), clock)
    journal.record(make_call(status="error"))
    assert len(journal.calls(status=["error", "timeout"])) == 1


def test_a_journal_that_is_off_takes_rows_and_says_so_when_read(clock: Clock) -> None:
    journal = journal_on(None, clock)
    journal.record(make_call())
    assert (bool(journal), journal.direct, journal.health()) == (False, True, {"state": "off"})
    with pytest.raises(ConfigurationError, match="off"):
        journal.calls()
    journal.close()


# -- retention -------------------------------------------------------------------------------------------------------------


def test_old_rows_go_in_small_batches_on_later_writes_and_none_at_the_start(database: Path, clock: Clock) -> None:
    store = open_store(database)
    store.record([make_call(-100 * 86400 + n) for n in range(450)])
    store.record([make_call(-80 * 86400)])
    journal = journal_on(store, clock)
    kept = []
    for n in range(4):
        kept.append(len(journal.calls(limit=10_000, until=utc(T0))))
        for _ in range(journal_module.PRUNE_EVERY_ROWS):
            journal.record(make_call(n))
    assert kept == [451, 251, 51, 1]


@pytest.mark.parametrize("second", [-20_000 * 86400, 20_000 * 86400], ids=["long ago", "far ahead"])
def test_a_clock_that_is_wrong_deletes_nothing(database: Path, clock: Clock, second: float) -> None:
    journal = journal_on(open_store(database), clock)
    journal.record(make_call(0))
    for n in range(300):
        journal.record(make_call(second + n))
    assert len(journal.calls(limit=1000)) == 301


def test_without_retention_nothing_is_deleted(database: Path, clock: Clock) -> None:
    store = open_store(database)
    store.record([make_call(-4000 * 86400)])
    journal = journal_on(store, clock, retention=None)
    for n in range(300):
        journal.record(make_call(n))
    assert len(journal.calls(limit=1000)) == 301
    assert journal.prune() == 0


def test_pruning_by_hand_deletes_all_that_is_older(database: Path, clock: Clock) -> None:
    journal = journal_on(open_store(database), clock)
    for n in range(7):
        journal.record(make_call(n))
    assert journal.prune(before=utc(T0 + 5), batch=2) == 5
    assert len(journal.calls()) == 2


def test_a_retention_that_keeps_nothing_is_refused(clock: Clock) -> None:
    with pytest.raises(ConfigurationError, match="retention"):
        journal_on(None, clock, retention=timedelta(0))


# -- a store that refuses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["locked", "full", "readonly", "corrupt", "missing", "newer", "other", "bug"])
def test_rows_are_kept_while_the_store_refuses_and_written_in_order_when_it_recovers(
    database: Path, clock: Clock, reason: str
) -> None:
    store = Failing(database)
    journal = journal_on(store, clock)
    journal.record(make_call(0, operation="0"))
    store.reason = reason
    for n in range(1, 4):
        journal.record(make_call(n, operation=str(n)))
    health = journal.health()
    assert (health["state"], health["spooled"], health["dropped"]) == ("degraded", 3, 0)
    assert health["reason"] == ("other" if reason == "bug" else reason)
    assert health["since"] == utc(T0)
    store.reason = None
    clock.seconds += 10
    journal.record(make_call(4, operation="4"))
    assert journal.health()["state"] == "ok"
    assert operations(journal) == ["0", "1", "2", "3", "4"]
    assert sorted(path.name for path in database.parent.iterdir() if "spool" in path.name) == []


def test_a_store_that_refuses_is_tried_again_after_growing_pauses_only(database: Path, clock: Clock) -> None:
    store = Failing(database)
    store.reason = "locked"
    journal = journal_on(store, clock)
    for _ in range(1000):
        journal.record(make_call())
        clock.seconds += 0.01
    assert store.tries < 12


def test_what_happens_to_the_store_is_logged_once_a_change(
    database: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    store = Failing(database)
    store.reason = "locked"
    journal = journal_on(store, clock)
    with caplog.at_level(logging.WARNING, "llmbroker.journal"):
        for _ in range(20):
            journal.record(make_call())
            clock.seconds += 6
        store.reason = "full"
        journal.record(make_call())
        store.reason = None
        clock.seconds += 6
        journal.record(make_call())
    assert [record.getMessage().split(".")[0] for record in caplog.records] == [
        "It is locked",
        "It is full",
        f"The journal {str(database).split('.')[0]}",
    ]


def test_reading_writes_first_what_waits(database: Path, clock: Clock) -> None:
    store = Failing(database)
    store.reason = "locked"
    journal = journal_on(store, clock)
    journal.record(make_call(id="a"))
    store.reason = None
    assert [call.id for call in journal.calls()] == ["a"]
    assert journal.rate(1, call_id="a")[0].id == "a"


def test_a_rating_waits_behind_its_call(database: Path, clock: Clock) -> None:
    store = Failing(database)
    journal = journal_on(store, clock)
    journal.record(make_call(id="a"))
    store.reason = "full"
    journal.rate(0.5, call_id="a")
    assert journal.health()["spooled"] == 1
    store.reason = None
    assert journal.calls()[0].score == 0.5


def test_beyond_memory_rows_live_in_the_file_and_come_back_in_order(database: Path, clock: Clock) -> None:
    store = Failing(database)
    store.reason = "locked"
    journal = journal_on(store, clock)
    journal._spool._memory_rows = 3
    for n in range(1200):
        journal.record(make_call(n, operation=str(n)))
    assert (journal.health()["spooled"], journal.health()["dropped"]) == (1200, 0)
    store.reason = None
    assert operations(journal) == [str(n) for n in range(1200)]


def test_a_long_spool_is_written_a_little_on_each_call_that_follows(database: Path, clock: Clock) -> None:
    store = Failing(database)
    store.reason = "locked"
    journal = journal_on(store, clock)
    journal._spool._memory_rows = 600
    for n in range(3000):
        journal.record(make_call(n, operation=str(n)))
    store.reason = None
    waiting = []
    for n in range(3000, 3004):
        clock.seconds += 10
        journal.record(make_call(n, operation=str(n)))
        waiting.append(journal.health()["spooled"])
    assert waiting[0] > waiting[1] > waiting[2] >= waiting[3] == 0
    assert operations(journal) == [str(n) for n in range(3004)]
    assert list(database.parent.glob("*-spool-*")) == []


def test_beyond_every_bound_rows_are_dropped_and_counted(clock: Clock) -> None:
    store = Failing(":memory:")
    store.reason = "full"
    journal = journal_on(store, clock)
    journal._spool._memory_rows = 3
    for n in range(10):
        journal.record(make_call(n, operation=str(n)))
    assert (journal.health()["spooled"], journal.health()["dropped"]) == (3, 7)
    store.reason = None
    assert operations(journal) == ["0", "1", "2"]
    assert journal.health()["state"] == "degraded"


def test_a_row_that_no_store_can_take_is_dropped_alone(database: Path, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    journal = journal_on(open_store(database), clock)
    journal.record(make_call(llm_name=None))
    journal.record(make_call(operation="good"))
    assert operations(journal) == ["good"]
    assert journal.health()["dropped"] == 1
    assert "dropped" in caplog.text


def test_an_interrupt_in_the_middle_of_a_write_passes_and_loses_nothing(database: Path, clock: Clock) -> None:
    class Interrupted(Failing):
        def record(self, rows: Sequence[Row]) -> None:
            super().record(rows)
            if self.reason is None and self.tries == 1:
                raise KeyboardInterrupt

    journal = journal_on(Interrupted(database), clock)
    with pytest.raises(KeyboardInterrupt):
        journal.record(make_call(operation="a"))
    journal.record(make_call(1, operation="b"))
    assert operations(journal) == ["a", "b"]


def test_closing_leaves_what_still_waits_in_a_file_that_the_next_journal_writes(database: Path, clock: Clock) -> None:
    store = Failing(database)
    store.reason = "corrupt"
    journal = journal_on(store, clock)
    for n in range(3):
        journal.record(make_call(n, operation=str(n)))
    journal.record(Rating(call_id="x", score=1.0, ts=utc(T0)))
    journal.close()
    (left,) = database.parent.glob("*-spool-*")
    assert left.stat().st_mode & 0o777 == 0o600
    following = journal_on(open_store(database), clock)
    following.record(make_call(9, operation="9"))
    assert operations(following) == ["0", "1", "2", "9"]
    assert list(database.parent.glob("*-spool-*")) == []


def test_reading_alone_also_finds_what_a_dead_process_left(database: Path, clock: Clock) -> None:
    store = Failing(database)
    store.reason = "locked"
    journal = journal_on(store, clock)
    journal.record(make_call(operation="left"))
    journal.close()
    assert operations(journal_on(open_store(database), clock)) == ["left"]


def test_a_long_file_of_lost_rows_is_read_on_closing_and_not_on_a_call(
    database: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Failing(database)
    store.reason = "locked"
    journal = journal_on(store, clock)
    for n in range(20):
        journal.record(make_call(n))
    journal.close()
    monkeypatch.setattr(journal_module, "ADOPT_BYTES", 1000)
    plain = SQLiteStore(database)
    following = journal_on(plain, clock)
    following.record(make_call(30))
    assert len(plain.calls(journal_module.Query(), limit=100)) == 1
    following.close()
    assert len(plain.calls(journal_module.Query(), limit=100)) == 21
    plain.close()


def test_a_finalizer_that_records_while_a_row_is_written_does_not_block(
    database: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "HANDOFF", 0.01)

    class Reentrant(SQLiteStore):
        def record(self, rows: Sequence[Row]) -> None:
            if rows[0].operation == "outer":  # type: ignore[union-attr]
                journal.record(make_call(1, operation="inner"))
            super().record(rows)

    journal = journal_on(Reentrant(database), clock)
    journal.record(make_call(0, operation="outer"))
    assert operations(journal) == ["outer", "inner"]


def test_a_file_that_a_living_journal_owns_is_left_to_it(database: Path, clock: Clock) -> None:
    store = Failing(database)
    store.reason = "locked"
    owner = journal_on(store, clock)
    owner.record(make_call(operation="waits"))
    other = journal_on(open_store(database), clock)
    other.record(make_call(operation="other"))
    assert operations(other) == ["other"]
    assert len(list(database.parent.glob("*-spool-*"))) == 1
    owner.close()


def test_a_line_that_was_cut_or_is_none_of_ours_is_passed_over(database: Path, clock: Clock) -> None:
    store = Failing(database)
    store.reason = "locked"
    journal = journal_on(store, clock)
    journal.record(make_call(operation="whole"))
    journal.close()
    (left,) = database.parent.glob("*-spool-*")
    left.write_bytes(b"\xff\xfe garbage\n" + left.read_bytes() + b'{"type":"call","id":"cu')
    following = journal_on(open_store(database), clock)
    following.record(make_call(1, operation="next"))
    assert operations(following) == ["whole", "next"]


def test_threads_that_meet_at_a_slow_store_are_written_together(database: Path, clock: Clock) -> None:
    class Slow(SQLiteStore):
        def __init__(self, path: Path) -> None:
            super().__init__(path)
            self.started, self.go = threading.Event(), threading.Event()
            self.sizes: list[int] = []

        def record(self, rows: Sequence[Row]) -> None:
            self.sizes.append(len(rows))
            self.started.set()
            assert self.go.wait(10)
            super().record(rows)

    store = Slow(database)
    journal = journal_on(store, clock)
    threads = [threading.Thread(target=journal.record, args=(make_call(n, operation=str(n)),)) for n in range(8)]
    threads[0].start()
    assert store.started.wait(10)
    for thread in threads[1:]:
        thread.start()
    while len(journal._queue) < 8:  # the one that is being written leaves when it is kept
        threads[0].join(0.001)
    store.go.set()
    for thread in threads:
        thread.join()
    assert store.sizes == [1, 7]
    assert len(operations(journal)) == 8


class Recovery(RuleBasedStateMachine):
    """Whatever the order of faults, writes and reads: each row is there once, in order, or still waits."""

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.clock = Clock()
        self.store = Failing(":memory:")
        self.journal = journal_on(self.store, self.clock)
        self.count = 0

    @rule(reason=st.sampled_from([None, "locked", "full", "bug"]))
    def turn(self, reason: str | None) -> None:
        self.store.reason = reason

    @rule(times=st.integers(1, 5))
    def write(self, times: int) -> None:
        for _ in range(times):
            self.journal.record(make_call(self.count, operation=str(self.count)))
            self.count += 1

    @rule(seconds=st.sampled_from([0.05, 1.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.clock.seconds += seconds

    @rule()
    def flush(self) -> None:
        assert self.journal.flush() == (self.store.reason is None or self.journal.health()["spooled"] == 0)

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        if not hasattr(self, "journal"):
            return
        stored = [call.operation for call in reversed(self.store.calls(journal_module.Query(), limit=1000))]
        waiting = self.journal.health()["spooled"]
        assert stored == [str(n) for n in range(self.count - waiting)]


def test_whatever_the_order_of_faults_each_row_is_there_once_or_waits() -> None:
    run_state_machine_as_test(Recovery, settings=settings(max_examples=60, stateful_step_count=30, deadline=None))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet=st.characters(codec=None, categories=None), max_size=30))
def test_any_text_passes_through_the_spool(tmp_path: Path, text: str) -> None:
    clock = Clock()
    store = Failing(tmp_path / f"{make_call().id}.db")
    store.reason = "locked"
    journal = journal_on(store, clock)
    journal.record(make_call(operation=text))
    journal.close()
    following = journal_on(open_store(store.path), clock)
    following.record(make_call(1))
    assert len(following.calls()) == 2
    following.close()


# -- real faults of a real file --------------------------------------------------------------------------------------------


def test_a_file_that_another_program_locks_delays_a_call_little_and_gets_its_rows_later(database: Path, clock: Clock) -> None:
    journal = journal_on(open_store(database), clock)
    journal.record(make_call(0, operation="0"))
    other = sqlite3.connect(database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    journal.record(make_call(1, operation="1"))
    assert (journal.health()["reason"], journal.health()["spooled"]) == ("locked", 1)
    other.execute("ROLLBACK")
    other.close()
    clock.seconds += 1
    journal.record(make_call(2, operation="2"))
    assert operations(journal) == ["0", "1", "2"]


def test_a_file_that_is_no_database_is_kept_as_it_is_and_rows_wait_beside_it(database: Path, clock: Clock) -> None:
    database.write_bytes(b"precious notes, not a database at all\n" * 100)
    before = database.read_bytes()
    journal = journal_on(open_store(database), clock)
    journal.record(make_call(operation="a"))
    health = journal.health()
    assert (health["reason"], health["spooled"]) == ("corrupt", 1)
    assert ".recover" in health["error"]
    assert database.read_bytes() == before
    with pytest.raises(ConfigurationError, match="not a database"):
        journal.calls()
    database.rename(database.with_suffix(".old"))
    clock.seconds += 10
    journal.record(make_call(1, operation="b"))
    assert operations(journal) == ["a", "b"]


def test_a_database_with_damaged_pages_does_not_break_a_call(database: Path, clock: Clock) -> None:
    journal = journal_on(open_store(database), clock)
    for n in range(50):
        journal.record(make_call(n, operation="x" * 500))
    journal.close()
    with database.open("r+b") as file:
        file.seek(2048)
        file.write(b"\xa5" * (database.stat().st_size - 2048))
    journal = journal_on(open_store(database), clock)
    journal.record(make_call(99))
    assert journal.health()["reason"] == "corrupt"


def test_a_file_that_was_deleted_under_the_journal_is_made_again(
    database: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmbroker.journal.sqlite._LOOK_EVERY", -1.0)
    journal = journal_on(open_store(database), clock)
    journal.record(make_call(0, operation="gone"))
    for path in database.parent.iterdir():
        path.unlink()
    journal.record(make_call(1, operation="new"))
    assert operations(journal) == ["new"]


def test_tables_that_were_dropped_are_made_again(database: Path, clock: Clock) -> None:
    journal = journal_on(open_store(database), clock)
    journal.record(make_call(0, operation="gone"))
    other = sqlite3.connect(database, isolation_level=None)
    for (name,) in other.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'llmbroker%'").fetchall():
        other.execute(f"DROP TABLE {name}")
    other.close()
    journal.record(make_call(1, operation="waits"))
    clock.seconds += 1
    journal.record(make_call(2, operation="new"))
    assert operations(journal) == ["waits", "new"]


def test_a_path_below_a_file_cannot_be_opened_and_rows_are_kept_in_memory(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "file").write_text("x")
    journal = journal_on(open_store(tmp_path / "file" / "broker.db"), clock)
    journal.record(make_call())
    assert (journal.health()["reason"], journal.health()["spooled"]) == ("missing", 1)
    assert journal.health()["spool_file"] is None
    journal.close()


def test_a_full_disk_keeps_rows_and_goes_on_when_there_is_space(database: Path, clock: Clock) -> None:
    store = SQLiteStore(database)
    journal = journal_on(store, clock)
    journal.record(make_call(0, operation="0"))
    connection = store._quick.connection
    assert connection is not None
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    count = 1
    while journal.health()["state"] == "ok":
        journal.record(make_call(count, operation=str(count)))
        count += 1
        assert count < 1000
    assert journal.health()["reason"] == "full"
    clock.seconds += 10
    journal.record(make_call(count, operation=str(count)))
    assert operations(journal) == [str(n) for n in range(count + 1)]


@root
def test_a_file_that_may_not_be_written_keeps_rows(database: Path, clock: Clock) -> None:
    journal = journal_on(open_store(database), clock)
    journal.record(make_call(0, operation="0"))
    journal.close()
    database.chmod(0o400)
    database.parent.chmod(0o500)
    journal = journal_on(open_store(database), clock)
    journal.record(make_call(1, operation="1"))
    assert journal.health()["reason"] == "readonly"
    database.parent.chmod(0o700)
    database.chmod(0o600)
    clock.seconds += 10
    journal.record(make_call(2, operation="2"))
    assert operations(journal) == ["0", "1", "2"]


def test_a_database_set_to_query_only_keeps_rows(database: Path, clock: Clock) -> None:
    store = SQLiteStore(database)
    journal = journal_on(store, clock)
    journal.record(make_call(0, operation="0"))
    assert store._quick.connection is not None
    store._quick.connection.execute("PRAGMA query_only = 1")
    journal.record(make_call(1, operation="1"))
    assert journal.health()["reason"] == "readonly"
    clock.seconds += 10
    journal.record(make_call(2, operation="2"))
    assert operations(journal) == ["0", "1", "2"]


class Distant(SQLiteStore):
    """A store that is slow: it may not be called from an event loop, and answers when it is let."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(path)
        self.go = threading.Event()

    @property
    def direct(self) -> bool:
        return False

    def record(self, rows: Sequence[Row]) -> None:
        assert self.go.wait(10)
        super().record(rows)


def test_who_must_not_wait_for_a_slow_store_does_not_and_the_row_is_there_for_who_reads(database: Path) -> None:
    store = Distant(database)
    journal = Journal(store)
    call = make_call()
    journal.record_beside(call)  # returns although the store does not
    store.go.set()
    assert [row.id for row in journal.calls()] == [call.id]
    journal.close()


def test_a_row_that_was_left_to_a_slow_store_is_there_after_the_close(database: Path) -> None:
    store = Distant(database)
    journal = Journal(store)
    journal.record_beside(make_call())
    threading.Timer(0.05, store.go.set).start()
    journal.close()
    again = Journal(open_store(database))
    assert len(again.calls()) == 1
    again.close()


def test_a_quick_store_has_the_row_at_once(database: Path) -> None:
    journal = Journal(open_store(database))
    journal.record_beside(make_call())
    assert journal.health()["written"] == 1
    journal.close()


def test_a_row_that_is_being_committed_is_no_trouble(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    class Looked(SQLiteStore):
        def record(self, rows: Sequence[Row]) -> None:
            seen.append(journal.health())
            super().record(rows)

    journal = Journal(Looked(tmp_path / "calls.db"))
    journal.record(make_call(1))
    assert [(health["state"], health["spooled"], health["writing"]) for health in seen] == [("ok", 0, 1)]
    assert (journal.health()["written"], journal.health()["writing"]) == (1, 0)
    journal.close()
