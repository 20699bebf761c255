"""What cannot be true, from providers or from a store: it stops no call, no count and no sharing."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.broker.worlds import Face, World, ladder, ok, refuse

from llmbroker import Limit
from llmbroker.allowances import REMEMBERED, Book, Demand, Hold, Settled
from llmbroker.broker.counts import KEPT, Counts
from llmbroker.journal import Journal, Rating, new_id, open_store, utc
from llmbroker.journal.tidings import Sent, Since
from llmbroker.providers import anthropic_stream, gemini_stream, ollama, openai_responses_stream, openai_usage
from llmbroker.providers.embeddings import _usage
from llmbroker.quotas import Quota
from llmbroker.transports.replay import Answer

NONSENSE: list[Any] = [10**400, 10**30, 10**19, 2**62, 1e308, -5, -(10**30), True, "7", [7], 10**12 + 1]
READERS: dict[str, Any] = {
    "chat": lambda n: openai_usage.read_usage({"prompt_tokens": n, "completion_tokens": n, "total_tokens": n}),
    "responses": lambda n: openai_responses_stream.read_usage({"input_tokens": n, "output_tokens": n, "total_tokens": n}),
    "anthropic": lambda n: anthropic_stream.usage_of(
        {"input_tokens": n, "output_tokens": n, "cache_read_input_tokens": n, "cache_creation_input_tokens": n}
    ),
    "gemini": lambda n: gemini_stream.usage_of(
        {"promptTokenCount": n, "candidatesTokenCount": n, "totalTokenCount": n, "cachedContentTokenCount": n}
    ),
    "ollama": lambda n: ollama._usage({"prompt_eval_count": n, "eval_count": n}),
    "embeddings": lambda n: _usage({"prompt_eval_count": n}),
}


@pytest.mark.parametrize("read", READERS.values(), ids=list(READERS))
@pytest.mark.parametrize("value", NONSENSE, ids=lambda value: repr(value)[:12])
def test_a_count_of_tokens_that_cannot_be_one_is_not_stated(read: Any, value: Any) -> None:
    found = read(value)
    assert found is None or set(found.fields()) == {None}
    assert read(7).input_tokens in (7, 21)


@pytest.mark.parametrize("read", READERS.values(), ids=list(READERS))
def test_a_count_that_is_written_with_a_point_is_a_count(read: Any) -> None:
    assert repr(read(7.0)) == repr(read(7))
    found = read(7.5)
    assert found is None or set(found.fields()) == {None}


@pytest.mark.parametrize(
    "limit", [Limit(tokens=10**9), Limit(cost=5.0, unknown_price={"output": 2.0}), None], ids=["t", "$", "-"]
)
@pytest.mark.parametrize("value", NONSENSE, ids=lambda value: repr(value)[:12])
def test_a_provider_that_states_nonsense_breaks_neither_its_call_nor_the_counting_of_others(
    face: Any, limit: Limit | None, value: Any, tmp_path: Path
) -> None:
    answer = ok()
    assert isinstance(answer.body, dict)
    answer.body["usage"] = {"prompt_tokens": value, "completion_tokens": value, "total_tokens": value}
    broker = face(World(a=[answer, ok()]), ladder("a"), limits=[limit] if limit else None, journal=str(tmp_path / "j.db"))
    assert [broker.chat("hi").text for _ in range(2)] == ["hello", "hello"]
    snapshot = broker.snapshot()
    assert snapshot.notes == ()
    assert all(one.shared for one in snapshot.limits)


def test_a_thousand_refusals_at_once_are_taken_as_one_more() -> None:
    quota = Quota()
    for n in range(3000):
        quota.send(100.0, 10)
        at = quota.refused(100.0, 100.0 + n / 100, None, "slow down", 10, 0.0)
        assert at is not None
        assert at < 1000.0


@pytest.mark.parametrize("size", [1e-300, 1e-9, 1.0])
def test_headers_of_a_tiny_limit_hold_nobody_back_for_more_than_a_day(face: Any, size: float) -> None:
    def state(n: int) -> Answer:
        made = ok()
        left = size * (1.0 - n / 10)
        return Answer(
            body=made.body,
            headers={
                "x-ratelimit-limit-requests": repr(size),
                "x-ratelimit-remaining-requests": repr(left),
                "x-ratelimit-reset-requests": f"{8640.0 * n:.3f}s",
            },
        )

    world = World(a=[state(n) for n in range(1, 9)])
    broker = face(world, ladder("a"))
    for _ in range(12):
        world.port.advance(86_400)
        broker.chat("hi", wait=1)


# -- rows that cannot be read --------------------------------------------------------------------------------------------

DAMAGE = {
    "a rating that is a word": "INSERT INTO llmbroker_ratings (id, call_id, score, ts) VALUES ('x', 'y', 'good', 1)",
    "a rating beyond all": "INSERT INTO llmbroker_ratings (id, call_id, score, ts) VALUES ('x', 'y', 9e999, 1)",
    "a note that is a text": "INSERT INTO llmbroker_notes VALUES ('rest:member:a', 1, 1, 'text')",
    "a note that is a number": "INSERT INTO llmbroker_notes VALUES ('rest:member:a', 1, 1, 1000000000000)",
    "a note without a name": "INSERT INTO llmbroker_notes VALUES (NULL, 1, 1, x'00')",
    "a stamp that is a word": "INSERT INTO llmbroker_notes VALUES ('rest:member:a', 'late', 1, x'00')",
    "a count that is a word": "INSERT INTO llmbroker_sent VALUES ('quota:key:a', 'soon', 'me', 1, 'many', 'large')",
    "a count beyond all": "INSERT INTO llmbroker_sent VALUES ('quota:key:a', 9e999, 'me', 1, 9e999, 9e999)",
    "a count below nothing": "INSERT INTO llmbroker_sent VALUES ('quota:key:a', 1, 'me', 1, -5, -9e999)",
    "a switch that is a word": "INSERT INTO llmbroker_disabled VALUES ('z', 'off')",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=list(DAMAGE))
def test_a_damaged_row_says_nothing_and_keeps_nobody_from_what_others_say(face: Any, damage: str, tmp_path: Path) -> None:
    file = str(tmp_path / "broker.db")
    world = World(a=ok(), b=ok("B"))
    one, other = face(world, ladder("a", "b"), journal=file), face(world, ladder("a", "b"), journal=file)
    call = one.chat("hi")
    other.chat("hi")
    with sqlite3.connect(file) as db:
        db.execute(damage)
        db.execute("UPDATE llmbroker_ratings SET call_id = ?", (call.call_id,))
    db.close()
    world.port.advance(5)
    other.chat("hi")
    world.then("a", refuse(429, "slow down", retry_after="30"))
    one.chat("hi")
    world.port.advance(1)
    asked = world.asked.count("a")
    assert other.chat("hi").llm_name == "b"
    snapshot = other.snapshot()
    if "'late'" in damage:  # nobody can say which stamp is the next one
        assert "could not be shared" in snapshot.notes[0]
    else:
        assert (snapshot.notes, world.asked.count("a")) == ((), asked)


@pytest.mark.parametrize("column", ["spent_calls", "held_calls", "unpriced", "ends"])
@pytest.mark.parametrize("value", ["'many'", "1.5", "9e999"])
def test_a_damaged_account_stops_no_call(face: Any, column: str, value: str, tmp_path: Path) -> None:
    file = str(tmp_path / "broker.db")
    world = World(a=ok())
    broker = face(world, ladder("a"), journal=file, limits=[Limit(calls=5, window="month")])
    broker.chat("hi")
    with sqlite3.connect(file) as db:
        db.execute(f"UPDATE llmbroker_accounts SET {column} = {value}")
    db.close()
    for _ in range(3):
        world.port.advance(6)
        assert broker.chat("hi", wait=20).text == "hello"
    assert broker.snapshot()["a"].available


def test_a_count_that_a_store_will_never_take_holds_up_no_other(face: Any, tmp_path: Path) -> None:
    file = str(tmp_path / "broker.db")
    broker = face(World(a=ok()), ladder("a"), journal=file, limits=[Limit(calls=50, window="month")])
    broker.chat("hi")
    accounts = broker.broker._engine.core.accounts
    poison = Demand("x", "", 0, None, (0, 0, 0), (0, 0, 0), (1, 1, 1))
    accounts._owe(Settled(Hold("poison", (poison,), 0), ((10**30, 0, 0),), foreign=True))
    for _ in range(3):
        broker.chat("hi")
    snapshot = broker.snapshot()
    assert (snapshot.limits[0].used, snapshot.notes) == ({"calls": 4}, ())


# -- what would grow for ever --------------------------------------------------------------------------------------------


def test_counts_of_quotas_that_nobody_uses_here_are_forgotten() -> None:
    counts = Counts("me")
    for second in range(0, 40_000, 5):
        counts.hear([Sent(f"quota:{second % 7}", "other", second, 1)], float(second), 0.0)
        counts.sent(float(second), 0.0)
    assert sum(map(len, counts._theirs.values())) <= KEPT / 5 + 60
    counts.sent(1e6, 0.0)
    assert not counts._theirs


def test_a_flood_of_gaps_between_ratings_is_asked_for_in_bounds(tmp_path: Path) -> None:
    store = open_store(tmp_path / "broker.db")
    journal = Journal(store)
    store.record([Rating(id=new_id(), call_id="c", score=1.0, ts=utc(1.0), scope=None)])
    broker = Face("sync", World(a=ok()), ladder("a"), journal=journal)
    other = Face("sync", broker.world, ladder("a"), journal=journal)
    broker.chat("hi")
    for n in range(60):
        with sqlite3.connect(tmp_path / "broker.db") as db:
            db.execute(
                "INSERT INTO llmbroker_ratings (seq, id, call_id, score, ts) VALUES (?, ?, 'c', 1.0, 1)",
                (10_000 * (n + 1), new_id()),
            )
        db.close()
        broker.port.advance(0.51)
        broker.chat("hi")
    assert len(broker.broker._engine.core.shared._missed) <= 1024
    assert broker.snapshot().notes == ()
    for one in (broker, other):
        one.close()
    assert store.look(Since()).highest == 600_000


def test_many_users_of_a_limit_for_ever_are_not_looked_through_at_each_call() -> None:
    book = Book()
    for n in range(REMEMBERED + 300):
        demand = Demand("l", str(n), 0, None, (1, 0, 0), (1, 0, 0), (5, 5, 5))
        book.reserve(Hold(str(n), (demand,), 10**18), 1)
    assert book._full >= 2 * REMEMBERED


def test_the_child_of_a_fork_does_not_hold_what_its_parent_does() -> None:
    book = Book()
    demand = Demand("l", "", 0, None, (1, 0, 0), (1, 0, 0), (1, 5, 5))
    assert book.reserve(Hold("a", (demand,), 10**18), 1).refused is None
    assert book.reserve(Hold("b", (demand,), 10**18), 1).refused == 0
    book.abandon()
    assert book.reserve(Hold("c", (demand,), 10**18), 1).refused is None
