"""Two processes with one store: what one finds out, the other follows within a second."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.broker.worlds import Face, World, ladder, member, ok, refuse, streamed
from tests.choosing.parts import lane

from llmbroker.broker.notes import Stated, Told, take
from llmbroker.errors import StoreError, UnknownCallError
from llmbroker.journal import Journal, Rating, open_store, utc
from llmbroker.journal.tidings import Look, Since, Tidings
from llmbroker.providers.meters import Meter

MESSAGE = "hi"
CORRUPT = {
    "rest:member:a": b"\xff not json",
    "rest:member:b": b'{"word": "no such word", "until": 1e12, "incidents": 1, "by": "x"}',
    "rest:member:c": b'{"word": "error", "until": 1e999, "incidents": 1, "by": "x"}',
    "quota:lane:a": b'{"by": "x", "learnt": {"at": 1e300}}',
    "gauge:lane:a": b'{"by": "x", "meters": [["r", "requests", -1e300]], "started": 0, "at": 1e300}',
    "lacks": b"[]",
    "no such kind:a": b"{}",
    "": b"",
}


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a store is."""
    monkeypatch.setenv("LLMBROKER_HOME", str(tmp_path))
    if request.param == "postgres":
        if "async" in request.node.name:
            pytest.skip("the virtual clock would run on while the real server is at work")
        from tests.journal.server import new_database

        return new_database()
    return str(tmp_path / "broker.db")


def test_a_spent_quota_is_left_alone_by_the_other_within_a_second(face: Any, address: str) -> None:
    world = World(a=refuse(429, "slow down", retry_after="30"), b=ok("B"))
    one, other = face(world, ladder("a", "b"), journal=address), face(world, ladder("a", "b"), journal=address)
    other.chat(MESSAGE)
    world.port.advance(60)
    one.chat(MESSAGE)
    asked = world.asked.count("a")
    world.port.advance(1)
    assert other.chat(MESSAGE).llm_name == "b"
    assert world.asked.count("a") == asked
    assert other.snapshot()["a"].reason == "rate_limited"


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
def test_what_a_reply_states_to_be_left_is_known_to_the_other_within_a_second(face: Any, address: str, streaming: bool) -> None:
    headers = {"x-ratelimit-limit-requests": "40", "x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "20s"}
    answer = streamed("A") if streaming else ok("A")
    world = World(a=msgspec.structs.replace(answer, headers={**answer.headers, **headers}), b=ok("B"))
    one, other = face(world, ladder("a", "b"), journal=address), face(world, ladder("a", "b"), journal=address)
    other.snapshot()
    if streaming:
        assert one.read(MESSAGE)[1].reply.llm_name == "a"
    else:
        assert one.chat(MESSAGE).llm_name == "a"
    world.port.advance(1)
    reply = other.chat(MESSAGE)
    assert reply.llm_name == "b"
    assert "its provider states 0 of 40 requests left" in reply.explain()
    assert other.snapshot()["a"].quotas[0].limit == 40
    assert world.asked.count("a") == 1
    world.port.advance(21)
    answer = ok("A")
    world.then("a", msgspec.structs.replace(answer, headers={**answer.headers, **headers}))
    assert other.chat(MESSAGE).llm_name == "a", "the window is open again"


def test_a_quota_of_which_much_is_left_is_not_told(face: Any, address: str) -> None:
    headers = {
        "x-ratelimit-limit-requests": "4000",
        "x-ratelimit-remaining-requests": "3000",
        "x-ratelimit-reset-requests": "20s",
    }
    answer = ok("A")
    world = World(a=msgspec.structs.replace(answer, headers={**answer.headers, **headers}))
    one = face(world, ladder("a"), journal=address)
    for _ in range(3):
        one.chat(MESSAGE)
        world.port.advance(1)
    assert not [name for name in open_store(address).look(Since(0, 0, ())).notes if name.startswith("gauge")]


@pytest.mark.parametrize(
    "note",
    [
        Stated("x", [Meter("r", "requests", float("nan"))], 0.0, 0.0),
        Stated("x", [Meter("r", "requests", -1.0)], 0.0, 0.0),
        Stated("x", [Meter("r", "requests", 0.0, 5.0, 1e13)], 0.0, 0.0),
        Stated("x", [Meter("r", "requests", 0.0, 5.0, 20.0)], 0.0, 1e9),
        Stated("x", [Meter("r", "requests", 0.0, 5.0, 20.0)], 10.0, 0.0),
        Stated("x", [], 0.0, 0.0),
    ],
    ids=["no number", "less than nothing", "no reset ever", "from the future", "ended before it began", "nothing"],
)
def test_a_told_statement_that_cannot_be_true_holds_nothing_back(note: Stated) -> None:
    one = lane("a")
    assert not take(one, note, None, "me", 0.0, 0.0)
    assert not one.metered


def test_a_refused_key_rests_everywhere_and_its_value_is_nowhere(face: Any, address: str) -> None:
    world = World(a=refuse(401, "bad key"), b=ok("B"))
    pool = [member("a", 0.9, api_key_ref="K1"), member("b", 0.1)]
    one = face(world, pool, journal=address, secrets={"K1": "a-very-secret-key"})
    other = face(world, pool, journal=address, secrets={"K1": "a-very-secret-key"})
    one.chat(MESSAGE)
    assert other.chat(MESSAGE).llm_name == "b"
    assert other.chat(MESSAGE).llm_name == "b"
    rows = one.broker._engine.journal.store.look(Since()).notes
    assert any(name.startswith("rest:key:") for name in rows)
    assert "a-very-secret-key" not in repr(rows)


def test_another_key_of_the_same_provider_is_not_concerned(face: Any, address: str) -> None:
    world = World(a=[refuse(401, "bad key"), ok("A")], b=ok("B"))
    pool = [member("a", 0.9, api_key_ref="K1"), member("b", 0.1)]
    one = face(world, pool, journal=address, secrets={"K1": "first-secret-key"})
    other = face(world, pool, journal=address, secrets={"K1": "other-secret-key"})
    assert one.chat(MESSAGE).llm_name == "b"
    assert other.chat(MESSAGE).llm_name == "a"


def test_what_one_finds_well_again_the_other_tries(face: Any, address: str) -> None:
    world = World(a=[refuse(503, retry_after="40"), ok("A")], b=ok("B"))
    one, other = face(world, ladder("a", "b"), journal=address), face(world, ladder("a", "b"), journal=address)
    one.chat(MESSAGE)
    other.chat(MESSAGE)
    assert not other.snapshot()["a"].available
    member = one.broker._engine.lanes.members[0]
    member.health.until = 0.0  # this process knows better
    for _ in range(6):
        one.chat(MESSAGE)
    world.port.advance(1)
    assert other.chat(MESSAGE).llm_name == "a"


def test_rows_that_cannot_be_read_and_a_store_that_fails_stop_no_call(
    face: Any, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(a=ok("A"))
    one = face(world, ladder("a"), journal=address)
    one.chat(MESSAGE)
    store = one.broker._engine.journal.store
    store.tell(Tidings(world.port.time(), CORRUPT))
    store.record([Rating(call_id=one.rows()[0].id, score=7.0, ts=utc(world.port.time()))])
    world.port.advance(1)
    assert one.chat(MESSAGE).text == "A"
    assert one.snapshot()["a"].ratings == 0

    def broken(since: Since) -> Look:
        raise StoreError("gone", reason="missing")

    monkeypatch.setattr(store, "look", broken)
    world.port.advance(1)
    assert one.chat(MESSAGE).text == "A"
    assert any("gone" in note for note in one.snapshot().notes)


# -- ratings ---------------------------------------------------------------------------------------------------------------


def believed(one: Any, name: str, operation: str | None = None) -> float:
    engine = one.broker._engine
    member = next(m for m in engine.lanes.members if m.name == name)
    return engine.desk.beliefs.quality(name, member.config.weight, operation)


def pair(face: Any, address: str, world: World, pool: list[Any], **arguments: Any) -> tuple[Any, Any]:
    """Two brokers on one store that both looked once."""
    made = face(world, pool, journal=address, **arguments), face(world, pool, journal=address, **arguments)
    for one in made:
        one.snapshot()
    return made


def test_a_rating_given_to_one_moves_the_beliefs_of_the_other_within_a_second(face: Any, address: str) -> None:
    world = World(a=ok("A"), b=ok("B"))
    one, other = pair(face, address, world, ladder("a", "b"))
    reply = one.chat(MESSAGE, operation="op")
    one.record_quality(0.0, call_id=reply.call_id)
    world.port.advance(1)
    other.snapshot()
    assert believed(other, "a", "op") == believed(one, "a", "op") < 0.9


def test_a_call_of_one_can_be_rated_on_the_other_and_one_follows(face: Any, address: str) -> None:
    world = World(a=ok("A"))
    one, other = pair(face, address, world, ladder("a"))
    reply = one.chat(MESSAGE, trace_id="t")
    other.record_quality(0.1, trace_id="t")
    world.port.advance(1)
    one.snapshot()
    assert believed(one, "a") == believed(other, "a") < 0.9
    assert one.calls(call_id=reply.call_id)[0].score == 0.1


def test_ones_own_rating_is_not_counted_twice_and_a_changed_one_replaces_the_old(face: Any, address: str) -> None:
    world = World(a=ok("A"))
    one, other = pair(face, address, world, ladder("a"))
    reply = one.chat(MESSAGE)
    one.record_quality(0.0, call_id=reply.call_id)
    before = believed(one, "a")
    world.port.advance(1)
    one.snapshot()
    assert (believed(one, "a"), one.snapshot()["a"].ratings) == (before, 1.0)
    other.snapshot()
    world.port.advance(1)
    other.record_quality(1.0, call_id=reply.call_id)
    world.port.advance(1)
    one.snapshot()
    other.snapshot()
    assert believed(one, "a") == believed(other, "a") > before
    assert one.snapshot()["a"].ratings == other.snapshot()["a"].ratings == 1.0


def test_ratings_of_calls_long_ago_are_learnt_at_the_start(face: Any, address: str) -> None:
    """What was learnt survives, however many calls were made since."""
    world = World(a=ok("A"))
    one = face(world, ladder("a"), journal=address)
    rated = [one.chat(MESSAGE) for _ in range(5)]
    for reply in rated:
        one.record_quality(0.0, call_id=reply.call_id)
    store = one.broker._engine.journal.store
    row = one.rows()[0]
    store.record([msgspec.structs.replace(row, id=f"x{n}", ts=row.ts, cursor=None, score=None) for n in range(1200)])
    later = face(world, ladder("a"), journal=address)
    later.snapshot()
    assert believed(later, "a") == believed(one, "a") < 0.4


@pytest.mark.parametrize("why", ["no such call", "the store cannot be read"])
def test_a_rating_that_was_refused_is_neither_stored_nor_learnt(
    face: Any, address: str, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    world = World(a=ok("A"))
    one, other = pair(face, address, world, ladder("a"))
    reply = one.chat(MESSAGE)
    store = one.broker._engine.journal.store

    def broken(**_: Any) -> None:
        raise StoreError("gone", reason="missing")

    with monkeypatch.context() as patch:
        if why == "the store cannot be read":
            patch.setattr(store, "find", broken)
        with pytest.raises((UnknownCallError, StoreError)):
            one.record_quality(0.0, call_id="nobody" if why == "no such call" else reply.call_id)
    world.port.advance(1)
    one.snapshot()
    other.snapshot()
    assert believed(one, "a") == believed(other, "a") == 0.9
    assert one.calls()[0].score is None


def test_two_brokers_that_were_handed_one_journal_follow_each_other(face: Any) -> None:
    world = World(a=ok("A"))
    journal = Journal(open_store(":memory:"), clock=world.port.now, wall=world.port.time)
    one, other = face(world, ladder("a"), journal=journal), face(world, ladder("a"), journal=journal)
    other.snapshot()
    one.record_quality(0.0, call_id=one.chat(MESSAGE).call_id)
    world.port.advance(1)
    other.snapshot()
    assert believed(other, "a") == believed(one, "a") < 0.9


def test_a_store_in_memory_of_one_broker_is_never_looked_at(face: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(a=[refuse(503), ok("A")], b=ok("B"))
    one = face(world, ladder("a", "b"))
    monkeypatch.setattr(one.broker._engine.journal.store, "look", None)
    monkeypatch.setattr(one.broker._engine.journal.store, "tell", None)
    for _ in range(3):
        one.chat(MESSAGE)
        world.port.advance(5)
    assert one.snapshot().notes == ()


# -- switches --------------------------------------------------------------------------------------------------------------


def test_a_model_that_one_switches_off_is_off_for_the_other_within_a_second_and_on_again(face: Any, address: str) -> None:
    world = World(a=ok("A"), b=ok("B"))
    one, other = pair(face, address, world, ladder("a", "b"))
    one.disable_llm("a")
    world.port.advance(1)
    assert other.chat(MESSAGE).llm_name == "b"
    assert other.snapshot()["a"].reason == "disabled"
    other.enable_llm("a")
    world.port.advance(1)
    assert one.chat(MESSAGE).llm_name == "a"


def test_a_switch_that_could_not_be_stored_holds_here_and_is_stored_later(
    face: Any, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(a=ok("A"), b=ok("B"))
    one, other = pair(face, address, world, ladder("a", "b"))
    store = one.broker._engine.journal.store

    def broken(name: str, value: bool) -> None:
        raise StoreError("locked", reason="locked")

    with monkeypatch.context() as patch:
        patch.setattr(store, "set_disabled", broken)
        one.disable_llm("a")
        assert one.chat(MESSAGE).llm_name == "b"
    for _ in range(4):
        world.port.advance(1)
        one.snapshot()
    world.port.advance(1)
    assert one.snapshot()["a"].reason == other.snapshot()["a"].reason == "disabled"


def test_a_call_that_waits_is_woken_by_what_another_process_switches_on(face: Any, address: str) -> None:
    if "postgres" in address:
        pytest.skip("one virtual clock is shared by a call that waits and a real server")
    world = World(a=[refuse(503, retry_after="60"), ok("A")])
    one, other = pair(face, address, world, ladder("a"))
    engine = other.broker._engine
    told: list[float] = []

    def found_well() -> None:
        if not told and world.port.now() > 3.0:
            told.append(world.port.now())
            store = one.broker._engine.journal.store
            note = msgspec.json.encode(Told("", 0.0, 0, "x"))
            store.tell(Tidings(world.port.time(), {"rest:member:a": note}))

    look = engine.journal.store.look

    def looked(since: Since) -> Look:
        found_well()
        return look(since)

    engine.journal.store.look = looked
    store = one.broker._engine.journal.store
    ill = Told("unavailable", world.port.time() + 60.0, 1, "x")
    store.tell(Tidings(world.port.time(), {"rest:member:a": msgspec.json.encode(ill)}))
    world.then("a", ok("A"))
    world.port.advance(1)
    assert other.chat(MESSAGE, wait=90).text == "A"
    assert world.port.now() < told[0] + 1.5


# -- quotas ----------------------------------------------------------------------------------------------------------------


UNEVEN = [member("a", 0.9), member("b", 0.1)]


def quota_of(one: Any, name: str = "a") -> Any:
    """What was learnt about the quota of a model or its key."""
    lane = next(lane for lane in one.broker._engine.lanes.all() if lane.member.name == name)
    return max(lane.quota, lane.key.quota, key=lambda quota: quota.learnt)


class Windowed:
    """A model that lets so many requests in each minute of the clock through."""

    def __init__(self, world: World, size: int, period: float = 60.0) -> None:
        self.world, self.size, self.period = world, size, period
        self.let_in: dict[int, int] = {}
        self.refused: dict[int, int] = {}

    def __call__(self, body: dict[str, Any]) -> Any:
        window = int((self.world.port.time() + 17.0) / self.period)
        if self.let_in.get(window, 0) >= self.size:
            self.refused[window] = self.refused.get(window, 0) + 1
            return refuse(429, "too many requests")
        self.let_in[window] = self.let_in.get(window, 0) + 1
        return ok("A", delay=0.1)


def use(world: World, *faces: Any, seconds: float, every: float) -> None:
    until = world.port.now() + seconds
    while world.port.now() < until:
        for one in faces:
            one.chat(MESSAGE)
        world.port.advance(every)


def test_a_window_that_two_processes_share_is_learnt_and_kept_by_both_together(face: Any, address: str) -> None:
    if "postgres" in address:
        pytest.skip("the same code as with a file, at the pace of a server: see test_processes")
    world = World(b=ok("B", delay=0.1))
    quota = Windowed(world, 20)
    world.then("a", quota)
    one, other = pair(face, address, world, UNEVEN)
    use(world, one, other, seconds=600, every=1.0)
    last = sorted(quota.let_in)[-4:-1]
    assert min(quota.let_in[window] for window in last) >= 18
    assert max(quota.refused.get(window, 0) for window in last) <= 2


def test_four_processes_that_send_much_at_once_keep_one_window(face: Any, tmp_path: Path) -> None:
    world = World(b=ok("B", delay=0.01))
    quota = Windowed(world, 60)
    world.then("a", quota)
    group = [face(world, UNEVEN, journal=str(tmp_path / "broker.db")) for _ in range(4)]
    use(world, *group, seconds=330, every=0.25)
    last = sorted(quota.let_in)[-3:-1]
    assert min(quota.let_in[window] for window in last) >= 55
    assert max(quota.refused.get(window, 0) for window in last) <= 4


def test_a_process_that_starts_later_begins_with_what_the_first_learnt(face: Any, address: str) -> None:
    if "postgres" in address:
        pytest.skip("the same code as with a file, at the pace of a server: see test_processes")
    world = World(b=ok("B", delay=0.1))
    quota = Windowed(world, 20)
    world.then("a", quota)
    one = face(world, UNEVEN, journal=address)
    use(world, one, seconds=600, every=0.5)
    later = face(world, UNEVEN, journal=address)
    later.snapshot()
    learnt, known = quota_of(later), quota_of(one)
    assert learnt.window.best() == known.window.best()
    assert learnt.known
    before = sum(quota.refused.values())
    use(world, later, seconds=240, every=0.5)
    assert sum(quota.refused.values()) - before <= 5  # one a window, as one process needs to see it grow


def test_a_bucket_that_one_was_told_of_is_counted_by_both(face: Any, address: str) -> None:
    world = World(
        a=[refuse(429, "Rate limit reached: Limit 6000, Used 5900, Requested 300. Please try again in 20s."), ok("A")],
        b=ok("B"),
    )
    one, other = pair(face, address, world, ladder("a", "b"))
    one.chat(MESSAGE)
    world.port.advance(1)
    other.snapshot()
    quotas = [quota_of(one), quota_of(other)]
    assert quotas[1].bucket is not None
    assert quotas[1].bucket.limit == 6000
    assert quotas[1].bucket.level(world.port.now()) == pytest.approx(quotas[0].bucket.level(world.port.now()), rel=0.01)


def test_what_is_sent_is_told_where_a_quota_was_met_and_nowhere_else(face: Any, address: str) -> None:
    world = World(a=[refuse(429, "slow down"), ok("A")], b=ok("B"))
    one, other = pair(face, address, world, ladder("a", "b"))
    one.chat(MESSAGE)
    world.port.advance(30)
    for _ in range(5):
        one.chat(MESSAGE)
    world.port.advance(1)
    one.snapshot()
    look = other.broker._engine.journal.store.look(Since())
    assert {row.name for row in look.sent} == {"quota:key:" + one.broker._engine.lanes.all()[0].key.mark}
    assert sum(row.number for row in look.sent) == world.asked.count("a") - 1


def test_a_cap_on_attempts_at_once_is_known_after_a_restart(face: Any, address: str) -> None:
    world = World(a=ok("A", delay=1.0))
    one = face(world, ladder("a"), journal=address)
    one.snapshot()
    lane = one.broker._engine.lanes.all()[0]
    lane.key.cap.refused(3)
    world.then("a", refuse(429, "too many concurrent requests", retry_after="1"), ok("A"))
    one.chat(MESSAGE)
    later = face(world, ladder("a"), journal=address)
    later.snapshot()
    assert 1 <= later.broker._engine.lanes.all()[0].key.cap.limit <= 4


def test_a_feature_that_was_refused_to_one_is_not_tried_by_the_other(face: Any, address: str) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    world = World(a=refuse(400, "this model does not support tools", code="unsupported_parameter"), b=ok("B"))
    one, other = pair(face, address, world, ladder("a", "b"))
    assert one.chat(MESSAGE, tools=tools).llm_name == "b"
    world.port.advance(1)
    asked = world.asked.count("a")
    assert other.chat(MESSAGE, tools=tools).llm_name == "b"
    assert world.asked.count("a") == asked


def test_how_long_models_take_is_known_after_a_restart(face: Any, address: str) -> None:
    world = World(a=ok("A", delay=2.0))
    one = face(world, ladder("a"), journal=address)
    for _ in range(6):
        one.chat(MESSAGE)
    later = face(world, ladder("a"), journal=address)
    assert later.snapshot()["a"].seconds == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
def test_how_long_a_model_takes_is_followed_while_both_run_and_nothing_counts_twice(
    face: Any, address: str, streaming: bool
) -> None:
    def answer(delay: float) -> Any:
        return streamed("A", delay=delay) if streaming else ok("A", delay=delay)

    def ask(broker: Any) -> None:
        broker.read(MESSAGE) if streaming else broker.chat(MESSAGE)
        world.port.advance(1)

    def record(broker: Any) -> Any:
        return broker.broker._engine.lanes.members[0].record(streaming, None)

    world = World(a=answer(1))
    one, other = face(world, ladder("a"), journal=address), face(world, ladder("a"), journal=address)
    for _ in range(4):
        ask(other)
    world.then("a", answer(9))
    for _ in range(8):
        ask(one)
    world.port.advance(3)
    other.snapshot()
    world.port.advance(3)
    other.snapshot()
    assert (record(other).runs, record(other).usual()) == (12, pytest.approx(9.0))
    one.snapshot()
    assert record(one).runs == 12


def test_the_child_of_a_fork_counts_no_attempt_of_its_parent_a_second_time(face: Any, tmp_path: Path) -> None:
    world = World(a=ok("A", delay=1))
    one = face(world, ladder("a"), journal=str(tmp_path / "broker.db"))
    for _ in range(4):
        one.chat(MESSAGE)
    engine = one.broker._engine
    engine.core.shared.after_fork()
    world.port.advance(3)
    one.snapshot()
    assert engine.lanes.members[0].record(False, None).runs == 4


def test_a_user_whose_lanes_are_made_later_has_what_was_heard_before(face: Any, address: str) -> None:
    world = World(a=refuse(401, "bad key"), b=ok("B"))
    pool = [member("a", 0.9, api_key_ref="K1"), member("b", 0.1)]
    one, other = pair(face, address, world, pool, secrets={"bob/K1": "bobs-secret-key"}, shared_keys=False)
    one.of("bob").chat(MESSAGE)
    world.port.advance(1)
    other.snapshot()
    asked = world.asked.count("a")
    assert other.of("bob").chat(MESSAGE).llm_name == "b"
    assert world.asked.count("a") == asked


def test_a_call_that_finds_the_store_locked_goes_on_and_tells_later(face: Any, tmp_path: Path) -> None:
    world = World(a=[refuse(503, retry_after="40"), ok("A")], b=ok("B"))
    address = str(tmp_path / "broker.db")
    one, other = pair(face, address, world, ladder("a", "b"))
    holder = sqlite3.connect(address, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    assert one.chat(MESSAGE).llm_name == "b"
    assert any("could not be shared" in note or "Calls go on" in note for note in one.snapshot().notes) or (
        one.snapshot().journal["state"] == "degraded"
    )
    holder.execute("ROLLBACK")
    holder.close()
    for _ in range(4):
        world.port.advance(2)
        one.chat(MESSAGE)
    world.port.advance(1)
    assert other.snapshot()["a"].reason == "unavailable"
    assert one.snapshot().notes == ()


def test_the_child_of_a_fork_is_a_process_of_its_own(tmp_path: Path) -> None:
    world = World(a=ok("A"), b=ok("B"))
    one = Face("sync", world, ladder("a", "b"), journal=str(tmp_path / "broker.db"))
    one.chat(MESSAGE)
    me = one.broker._engine.core.shared._me
    child = os.fork()
    if child == 0:
        try:
            one.disable_llm("a")
            os._exit(0 if one.broker._engine.core.shared._me != me and one.chat(MESSAGE).llm_name == "b" else 1)
        except BaseException:  # noqa: BLE001 - the exit code tells
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    world.port.advance(1)
    assert one.chat(MESSAGE).llm_name == "b"
    one.close()


def test_a_store_that_cannot_be_looked_at_is_asked_less_and_less_often(
    face: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(a=ok("A"))
    one, other = pair(face, str(tmp_path / "broker.db"), world, ladder("a"))
    store = one.broker._engine.journal.store
    asked: list[float] = []

    def broken(since: Since) -> Look:
        asked.append(world.port.now())
        raise RuntimeError("whatever a driver raises")

    with monkeypatch.context() as patch:
        patch.setattr(store, "look", broken)
        for _ in range(600):
            world.port.advance(0.1)
            assert one.chat(MESSAGE).text == "A"
    assert 3 <= len(asked) <= 7
    assert any("whatever a driver raises" in note for note in one.snapshot().notes)
    other.disable_llm("a")
    world.port.advance(40)
    assert one.snapshot()["a"].disabled
    assert one.snapshot().notes == ()
