"""Pace and budget as laws that hold for any course of things: nothing passes a limit, nobody waits for ever."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.research.conftest import refused

import llmbroker
from llmbroker import call_llm_par, llm_config, research
from llmbroker.exchange import Usage
from llmbroker.testing import Answer, Replay, made_reply, whole
from llmbroker.wire import HTTPRequest

FATES = st.sampled_from(["answer", "answer", "answer", "429", "500", "400", "reset", "stall", "silent"])
LAB = llm_config("lab", "m", base_url="http://lab.example/v1", price={"input": 1.0, "output": 2.0}, max_tokens=10)


class World:
    """A provider whose every answer was drawn beforehand."""

    def __init__(self, fates: list[str], made: list[int], delays: list[float]) -> None:
        self.fates, self.made, self.delays = fates, made, delays
        self.count = 0
        self.billed = 0.0

    def __call__(self, request: HTTPRequest) -> Answer:
        at = self.count
        self.count += 1
        delay = self.delays[at % len(self.delays)]
        fate = self.fates[at % len(self.fates)]
        sent = len(json.loads(request.body)["messages"][-1]["content"])
        made = self.made[at % len(self.made)]
        if fate in ("429", "500", "400"):
            return refused(int(fate))
        if fate in ("reset", "stall"):
            self.billed += (sent + 2 * made) / 1e6  # the provider may have worked on it
            return Answer(fault="reset" if fate == "reset" else "stall", delay=delay)
        self.billed += (sent + 2 * made) / 1e6
        usage = None if fate == "silent" else {"prompt_tokens": sent, "completion_tokens": made, "total_tokens": sent + made}
        choice = {"message": {"content": "x"}, "finish_reason": "stop"}
        return Answer(body={"choices": [choice], **({"usage": usage} if usage else {})}, delay=delay)


@settings(max_examples=40, deadline=None)
@given(
    fates=st.lists(FATES, min_size=1, max_size=12),
    made=st.lists(st.integers(0, 10), min_size=1, max_size=6),
    delays=st.lists(st.floats(0, 30), min_size=1, max_size=6),
    rows=st.integers(1, 40),
    budget=st.integers(50, 3000),
    workers=st.integers(1, 12),
)
def test_no_course_of_things_passes_the_budget(
    fates: list[str], made: list[int], delays: list[float], rows: int, budget: int, workers: int
) -> None:
    world = World(fates, made, delays)
    port = Replay(record=False).on(None, world, times=None)
    questions = [{"prompt": "y" * (5 + n % 40)} for n in range(rows)]
    out = call_llm_par(questions, LAB, tries=3, wait_seconds=1, max_workers=workers, max_cost=budget / 1e6, timeout=60, io=port)
    assert len(out) == rows
    assert world.billed <= budget / 1e6 + 1e-12
    assert sum(row["attempts"] for row in out) == world.count
    assert all(row["error_kind"] == "budget" for row in out if row["success"] is None)


@settings(max_examples=40, deadline=None)
@given(
    fates=st.lists(FATES, min_size=1, max_size=12),
    delays=st.lists(st.floats(0, 30), min_size=1, max_size=6),
    rows=st.integers(1, 60),
    workers=st.integers(1, 64),
    concurrency=st.integers(1, 20),
    requests=st.none() | st.integers(1, 600),
)
def test_every_row_ends_and_limits_are_kept(
    fates: list[str], delays: list[float], rows: int, workers: int, concurrency: int, requests: int | None
) -> None:
    world = World(fates, [3], delays)
    port = Replay().on(None, world, times=None)
    limits: dict[str, Any] = {"concurrency": concurrency, **({"requests": requests} if requests else {})}
    out = call_llm_par(
        [{"prompt": f"q{n}"} for n in range(rows)], LAB, tries=2, timeout=60, max_workers=workers, limits=limits, io=port
    )
    assert all(row["success"] is not None for row in out)
    assert sum(row["attempts"] for row in out) == world.count
    if requests:
        times = port.times
        assert all(later - times[n] >= (60 / requests) * 0.999 for n, later in enumerate(times[1:]))


def test_answers_that_take_less_than_was_feared_let_more_rows_in() -> None:
    """After twenty answers the bounds follow what was seen, so that a small budget is used up to its end."""
    reply = made_reply("x", usage=Usage(25, 5, None, None, None, 30))
    port = Replay().on(None, Answer(body=whole(reply, "openai-chat"), delay=0.1), times=None)
    config = llm_config("lab", "m", base_url="http://lab.example/v1", price={"input": 1.0, "output": 2.0}, max_tokens=10)
    out = call_llm_par([{"prompt": "y" * 100}] * 200, config, max_cost=0.005, io=port)
    spent = sum(row["cost"] or 0 for row in out)
    assert 0.0046 < spent <= 0.005


VERBS = sorted(name for name in research.__all__ if f"a{name}" in research.__all__)


@pytest.mark.parametrize("verb", VERBS)
def test_the_awaited_twin_takes_the_same_arguments(verb: str) -> None:
    plain, awaited = getattr(llmbroker, verb), getattr(llmbroker, f"a{verb}")
    assert inspect.signature(plain).parameters == inspect.signature(awaited).parameters
    assert inspect.iscoroutinefunction(awaited) and not inspect.iscoroutinefunction(plain)


def test_every_verb_that_asks_has_a_twin() -> None:
    asks = {n for n in llmbroker.__all__ if n.startswith("call_llm") or n in ("llm_replicate", "get_batched_embeddings")}
    assert asks <= set(VERBS)
