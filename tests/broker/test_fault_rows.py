"""Reported faults of no other file here: first events in each dialect, counts, states, traces, a store that comes late."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.broker.worlds import World, ladder, member, ok, refuse

from llmbroker import LLMConfig, StreamInterruptedError
from llmbroker.testing import wires
from llmbroker.transports.replay import Answer, Replay

DIALECTS = ("openai-chat", "openai-responses", "anthropic", "gemini", "ollama")
OVERLOADED: dict[str, Any] = {
    "openai-chat": b'data: {"error": {"message": "overloaded", "code": 529}}\n\n',
    "openai-responses": b"event: error\ndata: "
    b'{"type": "error", "code": "server_error", "message": "overloaded", "sequence_number": 2}\n\n',
    "anthropic": b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "overloaded"}}\n\n',
    "gemini": b'data: {"error": {"code": 503, "status": "UNAVAILABLE", "message": "overloaded"}}\r\n\r\n',
    "ollama": b'{"error": "overloaded"}\n',
}
LIFECYCLE = {"openai-chat": 1, "openai-responses": 1, "anthropic": 2, "gemini": 0, "ollama": 0}
"""How many events of a stream come before its first content."""


class Dialects:
    """Two models of one dialect: the first one's stream is as each test wants, the second one's is whole."""

    def __init__(self, dialect: str, first: list[bytes], fault: Any = None) -> None:
        self.port = Replay()
        kind = {"content-type": wires.content_type(dialect, stream=True)}
        whole = wires.stream(wires.made_reply("well and whole"), dialect)
        self.port.on("first.test", Answer(headers=kind, body=first, fault=fault), times=None)
        self.port.on("second.test", Answer(headers=kind, body=whole), times=None)
        path = {"gemini": "/v1beta", "ollama": ""}.get(dialect, "/v1")
        self.pool = [
            LLMConfig(
                name=name, model="m", base_url=f"http://{name}.test{path}", dialect=dialect, api_key_ref="", weight=weight
            )
            for name, weight in (("first", 0.9), ("second", 0.5))
        ]


@pytest.mark.parametrize("fault", ["error", "cut", "end"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_events_before_content_bind_in_no_dialect(face: Any, dialect: str, fault: str) -> None:
    begun = wires.stream(wires.made_reply("lost"), dialect)[: LIFECYCLE[dialect]]
    first = [*begun, OVERLOADED[dialect]] if fault == "error" else begun
    world: Any = Dialects(dialect, first, "cut" if fault == "cut" else None)
    broker = face(world, world.pool)
    pieces, stream = broker.read("hi")
    assert "".join(pieces) == "well and whole"
    assert stream.llm_name == "second"
    assert [(name, status == "ok") for name, status in broker.statuses()] == [("first", False), ("second", True)]


@pytest.mark.parametrize("fault", ["error", "cut", "end"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_fault_after_content_is_typed_in_every_dialect(face: Any, dialect: str, fault: str) -> None:
    events = wires.stream(wires.made_reply("abcdefgh" * 3), dialect, size=8)
    at = next(at for at, event in enumerate(events) if b"abcdefgh" in event) + 1
    first = [*events[:at], OVERLOADED[dialect]] if fault == "error" else events[:at]
    world: Any = Dialects(dialect, first, "cut" if fault == "cut" else None)
    broker = face(world, world.pool)
    with pytest.raises(StreamInterruptedError) as caught:
        broker.read("hi")
    assert caught.value.text == "abcdefgh"
    assert [name for name, _ in broker.statuses()] == ["first"]


def test_hits_attempts_and_rows_are_the_same_number(face: Any) -> None:
    world = World(a=refuse(500), b=refuse(429, retry_after="9"), c=[refuse(503), ok("C")])
    broker = face(world, ladder("a", "b", "c"))
    reply = broker.chat("hi", wait=60)
    assert len(world.hits) == len(reply.attempts) == len(broker.rows())
    assert [attempt.llm_name for attempt in reply.attempts] == world.asked


def test_a_resting_model_is_listed_with_reason_time_and_failures(face: Any) -> None:
    world = World(a=refuse(429, "slow down", retry_after="30"), b=refuse(401), c=ok("C"))
    broker = face(world, ladder("a", "b", "c"))
    broker.chat("hi")
    state = broker.snapshot()
    assert (state["a"].available, state["a"].reason, state["a"].detail, state["a"].failures) == (
        False,
        "rate_limited",
        "slow down",
        1,
    )
    assert state["a"].until.timestamp() == pytest.approx(world.port.time() + 30.0)
    assert state["b"].until is not None
    assert state["c"].available
    assert state.degraded
    json.dumps({name: str(one) for name, one in state.items()})


def test_a_wait_of_zero_seconds_is_none_at_all(face: Any) -> None:
    world = World(a=[refuse(429, retry_after="0"), ok("A")])
    broker = face(world, ladder("a"))
    assert broker.chat("hi", wait=5).text == "A"
    assert world.port.now() < 1.0


def test_twelve_traces_at_once_stay_apart(face: Any) -> None:
    world = World(a=lambda body: ok("A", delay=0.1), b=lambda body: ok("B", delay=0.2))
    broker = face(world, [member("a", parallel=2), member("b", parallel=2)])
    replies = broker.together(*({"trace_id": f"t{at}", "operation": f"o{at}"} for at in range(12)))
    for at, reply in enumerate(replies):
        rows = broker.rows(trace_id=f"t{at}")
        assert [(row.id, row.operation) for row in rows] == [(reply.call_id, f"o{at}")]


def test_a_store_that_is_away_at_the_start_is_used_when_it_comes_without_a_restart(face: Any, tmp_path: Path) -> None:
    folder = tmp_path / "volume"
    folder.write_text("not mounted yet")
    world = World(a=ok("A"))
    broker = face(world, ladder("a"), journal=folder / "calls.db")
    first = broker.chat("hi")
    assert broker.snapshot().journal["state"] == "degraded"
    folder.unlink()
    folder.mkdir()
    world.port.advance(120)
    second = broker.chat("hi")
    assert {row.id for row in broker.rows()} == {first.call_id, second.call_id}
    assert broker.snapshot().journal["state"] == "ok"
