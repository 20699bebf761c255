"""Deadlines, slow and hanging models, races, recovery, the queue."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from tests.broker.worlds import World, hang, ladder, member, ok, refuse

from llmbroker import AsyncBroker, BadRequestError, NoLLMAvailableError

MESSAGE = "hi"


# -- deadlines and slow models -------------------------------------------------------------------------------------------


def test_one_deadline_covers_everything(face: Any) -> None:
    world = World(a=hang(), b=hang())
    with pytest.raises(NoLLMAvailableError) as caught:
        face(world, ladder("a", "b")).chat(MESSAGE, wait=5)
    assert world.port.now() == pytest.approx(5.0)
    assert caught.value.reason == "timeout"
    assert len(caught.value.attempts) == len(world.hits)


def test_a_hanging_model_does_not_eat_the_budget_while_another_is_free(face: Any) -> None:
    world = World(a=hang(), b=ok("B"))
    broker = face(world, ladder("a", "b"))
    reply = broker.chat(MESSAGE, wait=2)
    assert reply.text == "B"
    assert world.port.now() < 1.5
    assert sorted(broker.statuses()) == [("a", "superseded"), ("b", "ok")]
    assert broker.snapshot()["a"].available, "it had less than its normal time"


def test_a_slow_model_may_finish_beside_the_one_that_was_called_for_help(face: Any) -> None:
    world = World(a=ok("A", delay=3), b=hang())
    broker = face(world, ladder("a", "b"))
    assert broker.chat(MESSAGE, wait=4).text == "A"
    assert world.asked == ["a", "b"]


def test_our_own_short_budget_never_cools_a_model(face: Any) -> None:
    world = World(a=ok("A", delay=10))
    broker = face(world, ladder("a"))
    for _ in range(5):
        with pytest.raises(NoLLMAvailableError):
            broker.chat(MESSAGE, wait=0.5)
    assert broker.snapshot()["a"].available
    assert {status for _, status in broker.statuses()} == {"timeout"}
    assert broker.chat(MESSAGE, wait=20).text == "A"


def test_a_model_that_missed_a_budget_comes_later_for_calls_with_as_little(face: Any) -> None:
    world = World(a=ok("A", delay=2), b=ok("B"))
    broker = face(world, ladder("a", "b"))
    broker.chat(MESSAGE, wait=1)
    before = len(world.asked)
    assert broker.chat(MESSAGE, wait=0.5).llm_name == "b"
    assert world.asked[before:] == ["b"]
    assert broker.chat(MESSAGE, wait=30).llm_name == "a"


def test_a_model_that_hangs_again_and_again_rests(face: Any) -> None:
    world = World(a=[*[ok("A", delay=1)] * 10, hang()], b=ok("B", delay=1))
    broker = face(world, ladder("a", "b"))
    for _ in range(10):
        assert broker.chat(MESSAGE, wait=20).llm_name == "a"
        world.port.advance(1)
    for _ in range(20):
        assert broker.chat(MESSAGE, wait=20).llm_name == "b"
        world.port.advance(1)
    assert world.asked[10:].count("a") < 9
    assert broker.snapshot()["a"].failures > 0


def test_a_watched_call_does_not_cut_a_long_answer_of_a_quick_model(face: Any) -> None:
    world = World(a=[*[ok("A", delay=0.5)] * 10, ok("LONG", delay=100)], b=hang())
    broker = face(world, ladder("a", "b"))
    for _ in range(10):
        broker.chat(MESSAGE)
    assert broker.chat(MESSAGE, wait=400).text == "LONG"


# -- races ---------------------------------------------------------------------------------------------------------------


def test_the_fastest_of_two_answers_and_the_loser_is_not_punished(face: Any) -> None:
    world = World(a=ok("A", delay=5), b=ok("B", delay=1))
    broker = face(world, ladder("a", "b"))
    for _ in range(3):
        assert broker.chat(MESSAGE, fastest_of=2).text == "B"
    assert world.port.now() == pytest.approx(3.0)
    assert sorted(broker.statuses()) == [("a", "superseded")] * 3 + [("b", "ok")] * 3
    assert broker.snapshot()["a"].available


def test_a_lane_that_fails_in_a_race_is_replaced(face: Any) -> None:
    world = World(a=refuse(500), b=ok("B", delay=5), c=ok("C", delay=1))
    broker = face(world, ladder("a", "b", "c"))
    assert broker.chat(MESSAGE, fastest_of=2).text == "C"
    assert world.asked == ["a", "b", "c"]


def test_a_race_of_more_than_there_are_takes_those_that_are_free(face: Any) -> None:
    world = World(a=ok("A"), b=ok("B", delay=1))
    assert face(world, ladder("a", "b")).chat(MESSAGE, fastest_of=9).text == "A"


def test_the_callers_fault_ends_a_race_at_once(face: Any) -> None:
    world = World(a=refuse(400, "bad temperature"), b=hang())
    with pytest.raises(BadRequestError, match="temperature"):
        face(world, ladder("a", "b")).chat(MESSAGE, fastest_of=2, wait=60)
    assert world.port.now() == 0.0


# -- recovery ------------------------------------------------------------------------------------------------------------


def test_a_recovering_model_is_tried_out_beside_a_healthy_one(face: Any) -> None:
    world = World(a=[refuse(500), hang()], b=ok("B", delay=0.5))
    broker = face(world, ladder("a", "b"))
    broker.chat(MESSAGE)
    world.port.advance(10)
    began = world.port.now()
    assert broker.chat(MESSAGE, wait=60).text == "B"
    assert world.port.now() - began == pytest.approx(0.5)
    assert world.asked == ["a", "b", "a", "b"]


def test_a_recovered_model_is_preferred_again(face: Any) -> None:
    world = World(a=[refuse(500), ok("A")], b=ok("B", delay=0.5))
    broker = face(world, ladder("a", "b"))
    broker.chat(MESSAGE)
    world.port.advance(10)
    assert [broker.chat(MESSAGE).text for _ in range(5)] == ["A"] * 5
    assert world.asked.count("b") <= 2


def test_recovery_ends_when_the_probe_had_its_chance(face: Any) -> None:
    """A preferred but slower model must not be asked beside another for ever."""
    world = World(a=[refuse(500), ok("A", delay=1)], b=ok("B", delay=0.5))
    broker = face(world, ladder("a", "b"))
    broker.chat(MESSAGE)
    world.port.advance(10)
    replies = [broker.chat(MESSAGE).text for _ in range(10)]
    assert replies[2:] == ["A"] * 8
    assert len(world.hits) <= 14


def test_only_one_call_tries_a_recovering_model_out(face: Any) -> None:
    world = World(a=[refuse(503), ok("A", delay=1)], b=ok("B", delay=0.1))
    broker = face(world, ladder("a", "b"))
    broker.chat(MESSAGE)
    world.port.advance(10)
    before = len(world.hits)
    broker.together(*[{"wait": 60}] * 20)
    assert world.asked[before:].count("a") == 1


def test_recovery_ramps(face: Any) -> None:
    world = World(a=[*[refuse(503, delay=0.5)] * 40, ok("A", delay=1)])
    broker = face(world, ladder("a"))
    replies = broker.together(*[{"wait": 300}] * 40)
    assert all(r.text == "A" for r in replies)
    times = sorted(t for t, _, _ in world.hits[40:])
    assert len(times) == 40
    waves = [len(list(wave)) for _, wave in itertools.groupby(times, lambda t: round(t, 2))]
    assert waves[:2] == [1, 2]
    assert waves[2] <= 8, "each answer doubles what may be under way at once"


@pytest.mark.parametrize("words", ["Too many concurrent requests", "concurrency limit reached", "no"])
def test_a_key_that_bears_four_calls_at_once_gets_four_and_nobody_waits_for_ever(face: Any, words: str) -> None:
    running: list[float] = []
    refusals: list[float] = []

    def answer(_: Any) -> Any:
        now = world.port.now()
        running[:] = [end for end in running if end > now + 1e-9]
        if len(running) >= 4:
            refusals.append(now)
            return refuse(429, words, delay=0.05)
        running.append(now + 2.0)
        return ok("A", delay=2)

    world = World(a=answer)
    broker = face(world, ladder("a"))
    replies = broker.together(*[{"wait": 60}] * 60)
    assert [reply.text for reply in replies] == ["A"] * 60
    assert world.port.now() == pytest.approx(30, abs=5), "15 rounds of 2 s, four at once"
    assert sum(at > 1.0 for at in refusals) <= 3, "now and then one more is tried"


async def test_a_slot_of_a_capped_key_goes_to_who_waits_and_not_to_who_comes() -> None:
    running: list[float] = []

    def answer(_: Any) -> Any:
        now = world.port.now()
        running[:] = [end for end in running if end > now + 1e-9]
        if len(running) >= 2:
            return refuse(429, "Too many concurrent requests", delay=0.05)
        running.append(now + 2.0)
        return ok("A", delay=2)

    world = World(a=answer)
    async with AsyncBroker(pool=ladder("a"), io=world.port, journal=False) as broker:

        async def again_and_again() -> None:
            for _ in range(10):
                await broker.ask("hi", wait=20)  # 8 callers, two at once, 2 s each: its turn comes every 8 s

        await asyncio.gather(*(again_and_again() for _ in range(8)))


def test_the_error_of_a_model_that_is_free_again_does_not_say_that_the_pool_is_empty(face: Any) -> None:
    world = World(a=refuse(429, "no"))
    broker = face(world, ladder("a"))
    for _ in range(40):
        with pytest.raises(NoLLMAvailableError) as caught:
            broker.chat("hi", wait=0)
        assert caught.value.reason != "empty_pool"
        assert "empty" not in str(caught.value)
        assert ": ." not in str(caught.value)
        world.port.advance(30.0)


def test_how_long_answers_take_is_known_for_each_operation(face: Any) -> None:
    def behave(body: Any) -> Any:
        return ok("A", delay=30 if "long" in str(body["messages"]) else 1)

    world = World(a=behave, b=behave)
    broker = face(world, ladder("a", "b"))
    for _ in range(12):
        for _ in range(19):
            broker.chat("short", operation="short")
        broker.chat("long", operation="long", wait=300)
    late = broker.rows()[-100:]
    assert {(row.operation, row.llm_name, row.status) for row in late} == {("short", "a", "ok"), ("long", "a", "ok")}
    assert all(row.status != "timeout" for row in broker.rows()), "nothing was slow, so nothing was cut"


def test_a_second_longer_failure_extends_a_rest(face: Any) -> None:
    first, second = refuse(503, retry_after="5"), refuse(503, retry_after="50", delay=1)
    world = World(a=[first, second], b=ok("B"))
    broker = face(world, ladder("a", "b"))
    broker.together({"wait": 60}, {"wait": 60})
    assert broker.snapshot()["a"].until.timestamp() == pytest.approx(world.port.time() + 50, abs=1.1)


def test_an_older_calls_success_does_not_lift_a_newer_rest(face: Any) -> None:
    world = World(a=[ok("A", delay=2), refuse(503, retry_after="50")], b=ok("B", delay=3))
    broker = face(world, ladder("a", "b"))
    first, second = broker.together({"wait": 60}, {"wait": 60})
    assert (first.llm_name, second.llm_name) == ("a", "b")
    assert not broker.snapshot()["a"].available


# -- the queue -----------------------------------------------------------------------------------------------------------


def test_no_more_than_parallel_calls_run_at_once(face: Any) -> None:
    running = [0, 0]

    def slow(body: dict[str, Any]) -> Any:
        running[0] += 1
        running[1] = max(running[1], running[0] - done())
        return ok("A", delay=1)

    def done() -> int:
        return sum(1 for t, _, _ in world.hits if t + 1 <= world.port.now())

    world = World(a=slow)
    broker = face(world, [member("a", parallel=3)])
    replies = broker.together(*[{"wait": 60}] * 12)
    assert all(r.text == "A" for r in replies)
    assert running[1] <= 3
    assert world.port.now() == pytest.approx(4.0)


def test_a_full_model_lets_the_next_one_work(face: Any) -> None:
    world = World(a=ok("A", delay=1), b=ok("B", delay=1))
    broker = face(world, [member("a", 0.9, parallel=2), member("b", 0.5, parallel=2)])
    names = sorted(r.llm_name for r in broker.together(*[{"wait": 60}] * 4))
    assert names == ["a", "a", "b", "b"]
    assert world.port.now() == pytest.approx(1.0)


def test_a_call_that_cannot_wait_for_a_slot_fails_and_leaves_the_others_alone(face: Any) -> None:
    world = World(a=ok("A", delay=10))
    broker = face(world, [member("a", parallel=1)])
    results = broker.together({"wait": 60}, {"wait": 2}, {"wait": 60})
    assert [type(r).__name__ for r in results] == [type(results[0]).__name__, "NoLLMAvailableError", type(results[0]).__name__]
    assert results[1].reason == "timeout"
    assert world.port.now() == pytest.approx(20.0)


def test_calls_are_served_in_the_order_in_which_they_came(face: Any) -> None:
    world = World(a=ok("A", delay=1))
    broker = face(world, [member("a", parallel=1)])
    broker.together(*[{"wait": 60, "trace_id": str(n)} for n in range(8)])
    assert [row.trace_id for row in broker.rows()] == [str(n) for n in range(8)]


def test_waiting_calls_begin_when_a_slot_is_free_without_polling(face: Any) -> None:
    world = World(a=ok("A", delay=0.3))
    broker = face(world, [member("a", parallel=1)])
    broker.together(*[{"wait": 60}] * 10)
    assert world.port.now() == pytest.approx(3.0)
    assert [t for t, _, _ in world.hits] == pytest.approx([0.3 * n for n in range(10)])


# -- spreading -----------------------------------------------------------------------------------------------------------


def test_equal_models_share_the_calls(face: Any) -> None:
    world = World(a=ok(), b=ok(), c=ok(), d=ok())
    broker = face(world, [member(name) for name in "abcd"])
    for _ in range(400):
        broker.chat(MESSAGE)
    assert all(60 <= world.asked.count(name) <= 140 for name in "abcd")


def test_a_slower_equal_gets_fewer_calls(face: Any) -> None:
    world = World(a=ok(delay=1), b=ok(delay=10))
    broker = face(world, [member("a"), member("b")])
    for _ in range(200):
        broker.chat(MESSAGE)
    assert world.asked.count("b") < 50


def test_many_calls_at_once_spread_over_equals(face: Any) -> None:
    world = World(a=ok(delay=1), b=ok(delay=1), c=ok(delay=1), d=ok(delay=1))
    broker = face(world, [member(name) for name in "abcd"])
    broker.together(*[{"wait": 60}] * 80)
    assert all(10 <= world.asked.count(name) <= 30 for name in "abcd")


def test_no_attempt_is_begun_that_cannot_end_in_time(face: Any) -> None:
    """A slow failure must not be followed by another attempt that will only be cut."""
    world = World(a=ok("A", delay=4), b=ok("B", delay=4))
    broker = face(world, ladder("a", "b"))
    for _ in range(6):
        broker.chat(MESSAGE, fastest_of=1, wait=100)
    world.then("a", refuse(500, delay=4))
    broker.disable_llm("a")
    for _ in range(6):
        broker.chat(MESSAGE, wait=100)
    broker.enable_llm("a")
    before = len(world.hits)
    world.models["a"] = [refuse(500, delay=4.5)]
    with pytest.raises(NoLLMAvailableError) as caught:
        broker.chat(MESSAGE, wait=5, fastest_of=1)
    late = [t for t, _, _ in world.hits[before:] if world.port.now() - t < 2]
    assert late == []
    assert caught.value.attempts


def test_the_error_says_whether_the_pool_or_a_provider_held_the_call_up(face: Any) -> None:
    world = World(a=ok("A", delay=10))
    broker = face(world, [member("a", parallel=1)])
    results = broker.together({"wait": 60}, {"wait": 1})
    assert "all its slots are taken" in str(results[1])
    world.then("a", refuse(429, retry_after="30"))
    with pytest.raises(NoLLMAvailableError, match="rate limited"):
        broker.chat(MESSAGE, wait=1)


def test_a_slot_kept_for_a_call_that_leaves_goes_to_the_next_in_line() -> None:
    world = World(a=ok("A", delay=1))
    broker = AsyncBroker(pool=[member("a", parallel=1)], journal=False, io=world.port)

    async def run() -> list[Any]:
        first = asyncio.ensure_future(broker.chat("hi"))
        while not world.hits:
            await asyncio.sleep(0)
        waiting = [asyncio.ensure_future(broker.chat("hi", wait=50)) for _ in range(3)]
        while len(broker._engine.desk.queue) < 3:
            await asyncio.sleep(0)
        queue = broker._engine.desk.queue
        oldest = next(iter(queue._waiters.values()))
        while oldest.offer is None:
            await asyncio.sleep(0)
        waiting[0].cancel()
        return await asyncio.gather(first, *waiting, return_exceptions=True)

    results = asyncio.run(run())
    assert [getattr(r, "text", type(r).__name__) for r in results] == ["A", "CancelledError", "A", "A"]
    assert world.port.now() == pytest.approx(3.0)
    assert broker._engine.lanes.members[0].running == 0


def test_a_model_switched_on_wakes_those_who_wait() -> None:
    world = World(a=hang(), b=ok("B"))
    broker = AsyncBroker(pool=[member("a", 0.9, parallel=1), member("b", 0.1)], journal=False, io=world.port)

    async def run() -> str:
        await broker.disable_llm("b")
        stuck = asyncio.ensure_future(broker.chat("hi", wait=600))
        while not world.hits:
            await asyncio.sleep(0)
        waiting = asyncio.ensure_future(broker.chat("hi", wait=100))
        while not broker._engine.desk.queue:
            await asyncio.sleep(0)
        await broker.enable_llm("b")
        reply = await waiting
        stuck.cancel()
        await asyncio.gather(stuck, return_exceptions=True)
        return str(reply.text)

    assert asyncio.run(run()) == "B"


def test_one_call_at_a_time_finds_out_how_long_a_model_takes_that_nobody_knows(face: Any) -> None:
    world = World(a=[*[ok("A", delay=1)] * 10, ok("A", delay=12)], b=ok("B", delay=40))
    broker = face(world, ladder("a", "b"))
    for _ in range(10):
        broker.chat(MESSAGE, wait=30)
    assert [reply.text for reply in broker.together(*[{"wait": 30}] * 4)] == ["A"] * 4
    assert world.asked.count("b") == 1


def test_a_quick_model_that_comes_back_for_one_answers_whose_time_is_shortest(face: Any) -> None:
    """Four calls run on a slow model; the quick one takes one call in ten seconds."""
    world = World(
        a=[*[ok("A", delay=1)] * 5, refuse(429, "slow down", retry_after="10"), ok("A", delay=1), hang()], b=ok("B", delay=50)
    )
    broker = face(world, ladder("a", "b"))
    for _ in range(5):
        broker.chat(MESSAGE, wait=30)
    replies = broker.together({"wait": 300}, {"wait": 200}, {"wait": 60}, {"wait": 400})
    assert [reply.text for reply in replies] == ["B", "B", "A", "B"]


def test_an_empty_answer_is_not_taken_while_somebody_else_comes_back_in_time(face: Any) -> None:
    world = World(a=[refuse(429, "slow down", retry_after="10"), ok("A")], b=ok(""))
    broker = face(world, ladder("a", "b"))
    assert broker.chat(MESSAGE, wait=60).text == "A"
    assert world.port.now() < 15


def test_an_empty_answer_is_taken_when_nobody_comes_back_in_time(face: Any) -> None:
    world = World(a=refuse(429, "slow down", retry_after="100"), b=ok(""))
    broker = face(world, ladder("a", "b"))
    reply = broker.chat(MESSAGE, wait=60)
    assert (reply.text, reply.llm_name) == ("", "b")
    assert world.port.now() < 1


def test_empty_answers_are_not_asked_for_for_ever(face: Any) -> None:
    world = World(a=refuse(429, "slow down", retry_after="10"), b=ok(""))
    broker = face(world, ladder("a", "b"))
    assert broker.chat(MESSAGE, wait=60).llm_name == "b"
    assert world.asked.count("b") <= 4
