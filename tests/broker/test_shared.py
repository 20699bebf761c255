"""Two processes with one store: what one finds out, the other follows within a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.broker.worlds import World, ladder, member, ok, refuse

from llmbroker.errors import StoreError

MESSAGE = "hi"


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


def test_a_refused_key_rests_everywhere_and_its_value_is_nowhere(face: Any, address: str) -> None:
    world = World(a=refuse(401, "bad key"), b=ok("B"))
    pool = [member("a", 0.9, api_key_ref="K1"), member("b", 0.1)]
    one = face(world, pool, journal=address, secrets={"K1": "a-very-secret-key"})
    other = face(world, pool, journal=address, secrets={"K1": "a-very-secret-key"})
    one.chat(MESSAGE)
    assert other.chat(MESSAGE).llm_name == "b"
    assert other.chat(MESSAGE).llm_name == "b"
    rows = one.broker._engine.journal.store.states("")
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
    store.set_state("rest:member:a", b"\xff not json")
    store.set_state("rest:member:b", b'{"word": "no such word", "until": 1e12, "incidents": 1, "by": "x"}')
    world.port.advance(1)
    assert one.chat(MESSAGE).text == "A"

    def broken(prefix: str) -> dict[str, bytes]:
        raise StoreError("gone", reason="missing")

    monkeypatch.setattr(store, "states", broken)
    world.port.advance(1)
    assert one.chat(MESSAGE).text == "A"
    assert any("gone" in note for note in one.snapshot().notes)
