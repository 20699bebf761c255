"""Limits through the broker: held before an attempt is sent, settled after it, passed over and waited for."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.broker.test_days import faults
from tests.broker.worlds import Face, World, hang, ladder, member, ok, refuse, streamed

from llmbroker import (
    AsyncBroker,
    Broker,
    Limit,
    LimitReachedError,
    LLMBrokerError,
    LLMConfig,
    NoLLMAvailableError,
    run_tool_loop,
)
from llmbroker.broker.engine import request_of
from llmbroker.errors import ConfigurationError, LLMTimeoutError, ServerError, StoreError, StreamInterruptedError
from llmbroker.journal import Journal, open_store, worked
from llmbroker.journal.ledger import write_limits
from llmbroker.prices import price_of
from llmbroker.transports.replay import Answer

DOLLAR = {"input": 0.0, "output": 100_000.0}
"""A price at which ten tokens of an answer are a dollar."""


def used(prompt: int, completion: int, *, delay: float = 0.0) -> Answer:
    """An answer that states these tokens."""
    made = ok(delay=delay)
    body = made.body
    assert isinstance(body, dict)
    body["usage"] = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return made


def spent(broker: Any, name: str | None = None) -> dict[str, float]:
    """What is used of a limit."""
    return next(one.used for one in broker.snapshot().limits if name in (None, one.name))


def held(broker: Any) -> list[dict[str, float]]:
    """What is held of all limits."""
    return [one.reserved for one in broker.snapshot().limits]


def nothing_held(broker: Any) -> bool:
    """Whether every hold was settled."""
    return all(amount == 0 for one in held(broker) for amount in one.values())


# -- refusing and waiting ------------------------------------------------------------------------------------------------


def test_a_limit_of_calls_lets_exactly_so_many_through_and_says_which_how_much_and_until_when(face: Any) -> None:
    world = World(a=ok())
    broker = face(world, ladder("a"), limits=[Limit(calls=3, window="day")])
    for _ in range(3):
        broker.chat("hi")
    with pytest.raises(LimitReachedError) as caught:
        broker.chat("hi", wait=5)
    error = caught.value
    assert (error.reason, error.limit, error.measure, error.used, error.most) == ("limit", "all: calls a day", "calls", 3, 3)
    now = datetime.fromtimestamp(world.port.time(), UTC)
    assert error.retry_at is not None
    assert error.retry_at == datetime(now.year, now.month, now.day + 1, tzinfo=UTC)
    assert "3 of 3 calls" in str(error)
    assert "no provider refused" in str(error)
    assert len(world.hits) == 3
    assert world.port.now() < 1


@pytest.mark.parametrize(("window", "opens"), [("day", True), (None, False)])
def test_the_hint_speaks_of_waiting_only_where_the_limit_opens(face: Any, window: Any, opens: bool) -> None:
    broker = face(World(a=ok()), ladder("a"), limits=[Limit(calls=1, window=window)])
    broker.chat("hi")
    with pytest.raises(LimitReachedError) as caught:
        broker.chat("hi")
    assert ("wait until it opens" in str(caught.value)) == opens


def test_a_call_waits_for_a_window_that_opens_before_its_deadline_and_not_for_a_later_one(face: Any) -> None:
    world = World(a=ok())
    broker = face(world, ladder("a"), limits=[Limit(calls=1, window="minute")])
    broker.chat("hi")
    opens = 60 - world.port.time() % 60
    before = world.port.now()
    with pytest.raises(LimitReachedError):
        broker.chat("hi", wait=opens - 1)
    assert world.port.now() == before
    broker.chat("hi", wait=opens + 1)
    assert world.port.now() - before == pytest.approx(opens, abs=0.1)
    assert world.port.time() % 60 < 1


def test_with_no_wait_a_limit_refuses_at_once(face: Any) -> None:
    broker = face(World(a=ok()), ladder("a"), limits=[Limit(calls=0, window="minute")])
    with pytest.raises(LimitReachedError):
        broker.chat("hi", wait=0)


def test_a_limit_for_ever_never_opens(face: Any) -> None:
    world = World(a=ok())
    broker = face(world, ladder("a"), limits=[Limit(calls=1)])
    broker.chat("hi")
    world.port.advance(1e7)
    with pytest.raises(LimitReachedError) as caught:
        broker.chat("hi")
    assert caught.value.retry_at is None


def test_a_spent_limit_costs_no_provider_its_health_and_no_call_its_slot(face: Any) -> None:
    broker = face(World(a=ok()), [member("a", parallel=1)], limits=[Limit(calls=1, window="hour")])
    broker.chat("hi")
    for _ in range(5):
        with pytest.raises(LimitReachedError):
            broker.chat("hi", wait=1)
    state = broker.snapshot()["a"]
    assert (state.available, state.running, state.failures) == (True, 0, 0)


def test_who_limited_is_told_apart_our_limit_or_a_provider(face: Any) -> None:
    world = World(a=refuse(429, "slow down", retry_after="3600"), b=ok())
    broker = face(world, ladder("a", "b"), limits=[Limit(scope="bob", calls=1)])
    bob = broker.of("bob")
    bob.chat("hi")
    with pytest.raises(NoLLMAvailableError) as caught:
        bob.chat("hi", wait=1)
    assert caught.value.reason == "timeout"
    assert "a rate limited (slow down)" in str(caught.value)
    assert "b limit (limit 'scope bob: calls for ever'" in str(caught.value)


def test_the_choice_says_that_a_limit_passed_a_model_over(face: Any) -> None:
    world = World(a=ok("A"), b=ok("B"))
    pool = [member("a", 0.9, api_key_ref="K1"), member("b", 0.1)]
    broker = face(world, pool, secrets={"K1": "one"}, limits=[Limit(key="K1", calls=1, window="day")])
    assert broker.chat("hi").text == "A"
    reply = broker.chat("hi")
    assert reply.text == "B"
    assert "a: limit (limit 'key K1: calls a day'" in reply.explain()


# -- whose limit ---------------------------------------------------------------------------------------------------------


def test_each_user_has_an_own_account_a_fresh_one_too(face: Any) -> None:
    world = World(a=ok())
    broker = face(world, ladder("a"), limits=[Limit(scope="*", calls=1, window="day")])
    for name in ("bob", "eve", "somebody new"):
        broker.of(name).chat("hi")
        with pytest.raises(LimitReachedError):
            broker.of(name).chat("hi", wait=1)
    for _ in range(3):
        broker.chat("hi")  # nobody's user
    assert len(world.hits) == 6


def test_a_limit_concerns_only_its_scope_and_its_operation(face: Any) -> None:
    world = World(a=ok())
    limits = [Limit(scope="bob", operation="poems", calls=1), Limit(operation="*", calls=2)]
    broker = face(world, ladder("a"), limits=limits)
    broker.of("bob").chat("hi", operation="poems")
    with pytest.raises(LimitReachedError, match="scope bob, operation poems"):
        broker.of("bob").chat("hi", operation="poems", wait=1)
    broker.of("eve").chat("hi", operation="poems")
    with pytest.raises(LimitReachedError, match=r"each operation.* of poems"):
        broker.of("eve").chat("hi", operation="poems", wait=1)
    broker.of("bob").chat("hi", operation="prose")
    broker.of("bob").chat("hi")


def test_a_keys_limit_holds_on_every_path_to_that_key(face: Any) -> None:
    """Two models, two names of one value, a failover, a second lane beside a slow one: all of them spend one account."""
    world = World(a=ok("A"), b=ok("B"), c=ok("C"), d=[hang(), ok("D")])
    pool = [
        member("a", 0.9, api_key_ref="K1"),
        member("b", 0.8, api_key_ref="K1"),
        member("c", 0.7, api_key_ref="K2"),
        member("d", 0.1),
    ]
    broker = face(world, pool, secrets={"K1": "same-key", "K2": "same-key"}, limits=[Limit(key="K1", calls=1, window="day")])
    assert broker.chat("hi").text == "A"
    with pytest.raises(NoLLMAvailableError):
        broker.chat("hi", wait=20)
    assert world.asked == ["a", "d"]
    assert broker.chat("hi", fastest_of=4).text == "D"
    assert world.asked == ["a", "d", "d"]
    (state,) = broker.snapshot().limits
    assert state.used == {"calls": 1}
    assert "same-key" not in str(state)


def test_one_value_is_one_key_wherever_it_is_sent(face: Any) -> None:
    """By a provider's name or by its address, in one pool or as a direct model: the account is that of the value."""
    world = World(a=ok("A"), b=ok("B"))
    other = LLMConfig(name="b", model="b", base_url="http://other.test/v1", api_key_ref="K2", weight=0.1)
    pool = [member("a", 0.9, api_key_ref="K1"), other]
    broker = face(world, pool, secrets={"K1": "same-key", "K2": "same-key"}, limits=[Limit(key="K2", calls=1)])
    broker.chat("hi")
    with pytest.raises(LimitReachedError):
        broker.chat("hi", wait=1)


def test_a_failover_stays_within_the_keys_limit(face: Any) -> None:
    world = World(a=refuse(500), b=ok("B"), c=ok("C"))
    pool = [member("a", 0.9, api_key_ref="K1"), member("b", 0.8, api_key_ref="K1"), member("c", 0.1)]
    broker = face(world, pool, secrets={"K1": "one"}, limits=[Limit(key="*", calls=1, window="day")])
    assert broker.chat("hi").text == "B", "what a refused attempt held was given back to the next"
    world.then("a", ok("A"))
    world.port.advance(300)
    assert broker.chat("hi").text == "C"


def test_a_users_own_key_has_an_own_account_of_a_keys_limit(face: Any) -> None:
    world = World(a=ok())
    secrets = {("K1", None): "shared", ("K1", "bob"): "bobs"}
    pool = [member("a", api_key_ref="K1")]
    limit = Limit(key="K1", calls=1, window="day")
    broker = face(world, pool, secrets=lambda ref, scope: secrets.get((ref, scope)), limits=[limit])
    broker.of("eve").chat("hi")
    broker.of("bob").chat("hi")
    assert [key for _, _, key in world.hits] == ["shared", "bobs"]


# -- nothing is consumed by what is refused ------------------------------------------------------------------------------


def test_who_is_refused_by_one_limit_has_taken_nothing_of_the_others(face: Any) -> None:
    limits = [Limit(calls=10, window="day"), Limit(scope="*", calls=1, window="day"), Limit(tokens=10**6, window="minute")]
    broker = face(World(a=ok()), ladder("a"), limits=limits)
    bob = broker.of("bob")
    bob.chat("hi")
    for _ in range(4):
        with pytest.raises(LimitReachedError):
            bob.chat("hi", wait=1)
    assert [one.used for one in broker.snapshot().limits] == [{"calls": 1}, {"calls": 1}, {"tokens": 10}]
    assert nothing_held(broker)


def test_who_was_refused_a_slot_has_spent_nothing_of_a_limit(face: Any) -> None:
    world = World(a=ok(delay=10))
    broker = face(world, [member("a", parallel=1)], limits=[Limit(calls=5, window="day"), Limit(tokens=5000)])
    results = broker.together({}, {"wait": 0}, {"wait": 2})
    assert [isinstance(result, NoLLMAvailableError) for result in results] == [False, True, True]
    assert spent(broker) == {"calls": 1}
    assert nothing_held(broker)


REFUSED = {
    "500": refuse(500),
    "429": refuse(429),
    "401": refuse(401),
    "503": refuse(503),
    "no connection": Answer(fault="refuse"),
}


@pytest.mark.parametrize("answer", REFUSED.values(), ids=REFUSED)
def test_what_a_provider_refused_is_given_back(face: Any, answer: Answer) -> None:
    broker = face(World(a=[answer, ok()], b=ok()), ladder("a", "b"), limits=[Limit(calls=9, tokens=9000)])
    assert broker.chat("hi").llm_name == "b"
    assert spent(broker) == {"calls": 1, "tokens": 10}
    assert nothing_held(broker)


def without_temperature(sent: dict[str, Any]) -> Answer:
    """A model that knows no temperature."""
    if "temperature" in sent:
        return refuse(400, "Unsupported parameter: 'temperature' is not supported.", code="unsupported_parameter")
    return streamed("hello", delay=1.0) if sent.get("stream") else ok(delay=1.0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("beside", [1, 3])
def test_a_request_sent_again_without_a_refused_parameter_is_one_attempt_of_a_limit(
    face: Any, stream: bool, beside: int, tmp_path: Path
) -> None:
    """Also where others run beside it while its row is written: each holds and settles its own."""
    names = ("a", "b", "c")[:beside]
    world = World(**dict.fromkeys(names, without_temperature))
    journal = Journal(open_store(tmp_path / "j.db", full=True), clock=world.port.now, wall=world.port.time)
    assert not journal.direct
    broker = face(world, ladder(*names), journal=journal, limits=[Limit(calls=5, window="day")])
    options = {"params": {"temperature": 0.1}, "fastest_of": beside}
    if stream:
        broker.read("hi", **options)
    else:
        broker.chat("hi", **options)
    if beside == 1:
        assert world.asked == ["a", "a"]
    assert nothing_held(broker)
    assert spent(broker) == {"calls": len(set(world.asked))}, "one for each that was asked before the first answer"


# -- tokens and dollars --------------------------------------------------------------------------------------------------


def test_reserved_and_spent_equal_the_ledger_under_many_calls_at_once(face: Any) -> None:
    """At any moment what is spent and held is within the limit, and at the end spent is what the rows say."""
    world = World(a=lambda body: used(5, 1 + len(world.hits) % 7, delay=0.1 * (len(world.hits) % 5)))
    broker = face(world, [member("a", price={"input": 100.0, "output": 1000.0})], limits=[Limit(tokens=10**6, cost=1.0)])
    results = broker.together(*({"wait": 60} for _ in range(40)))
    assert not [result for result in results if isinstance(result, BaseException)]
    rows = broker.rows()
    assert spent(broker)["cost"] == pytest.approx(sum(row.cost for row in rows), abs=1e-12)
    assert spent(broker)["tokens"] == sum(row.usage.total_tokens for row in rows)
    assert nothing_held(broker)


@pytest.mark.parametrize("stream", [False, True])
def test_no_more_is_spent_than_the_budget(face: Any, stream: bool) -> None:
    """Answers of ten dollars, a budget of thirty: three pass, whatever runs at once."""
    answer = streamed("hello") if stream else used(0, 100)
    pool = [member("a", price={"input": 0.0, "output": 10_000_000.0 / 3} if stream else DOLLAR)]
    broker = face(World(a=answer), pool, limits=[Limit(cost=30.0, window="month")])
    params = {"max_tokens": 3 if stream else 100}
    passed = 0
    for _ in range(6):
        try:
            broker.read("hi", params=params, wait=1) if stream else broker.chat("hi", params=params, wait=1)
            passed += 1
        except LimitReachedError as error:
            assert (error.measure, error.used, error.most) == ("cost", 30.0, 30.0)
    assert passed == 3
    assert spent(broker) == {"cost": 30.0}


def test_a_declared_price_is_enforced(face: Any) -> None:
    broker = face(World(a=used(0, 100)), [member("a", price=DOLLAR)], limits=[Limit(cost=10.0)])
    assert broker.chat("hi").usage.output_tokens == 100
    with pytest.raises(LimitReachedError):
        broker.chat("hi", wait=1)


def test_a_price_is_reserved_at_the_tier_that_applies(face: Any) -> None:
    """A long input costs its tier: a budget that would bear it at the base price only refuses it before it is sent."""
    name, long = "gemini-2.5-pro", "word " * 240_000
    price = price_of(name, provider="google")
    assert price is not None
    tiers = price.rates[0][1].input
    assert tiers is not None
    assert len(tiers) > 1, "the list has no tiers for it any more: take another model"
    tokens = len(long) / 4
    base, applies = tokens * tiers[0][1] / 1e6, tokens * tiers[-1][1] / 1e6
    limit = Limit(cost=(base + applies) / 2)
    world = World(**{name: used(300_000, 10)})
    broker = face(world, [member(name, provider="google", dialect="openai-chat")], limits=[limit])
    with pytest.raises(LimitReachedError) as caught:
        broker.chat(long, params={"max_tokens": 10}, wait=1)
    assert caught.value.measure == "cost"
    assert world.hits == []
    broker.chat("short", params={"max_tokens": 10})


def test_a_limit_of_tokens_holds_under_parallel_calls(face: Any) -> None:
    """A hundred tokens a minute and five calls of 133 at once: at most the limit and one estimate pass."""
    world = World(a=used(33, 100, delay=0.5))
    broker = face(world, ladder("a"), limits=[Limit(tokens=60, window="minute")])
    results = broker.together(*({"wait": 5} for _ in range(5)))
    passed = [result for result in results if not isinstance(result, BaseException)]
    assert len(passed) == 1
    assert {type(result) for result in results if isinstance(result, BaseException)} == {LimitReachedError}
    assert spent(broker) == {"tokens": 133}


def test_windows_are_independent(face: Any) -> None:
    """A spent minute of tokens opens a minute later, whatever the hour of calls has seen."""
    world = World(a=used(50, 50))
    broker = face(world, ladder("a"), limits=[Limit(tokens=60, window="minute"), Limit(calls=3, window="hour")])
    minutes = []
    for _ in range(3):
        broker.chat("hi", wait=70)
        minutes.append(world.port.time() // 60)
        assert spent(broker, "all: tokens a minute") == {"tokens": 100}
    assert minutes[1:] == [minutes[0] + 1, minutes[0] + 2]
    assert spent(broker, "all: calls an hour") == {"calls": 3}
    with pytest.raises(LimitReachedError, match="calls an hour"):
        broker.chat("hi", wait=70)


def test_calls_wait_for_room_that_others_give_back(face: Any) -> None:
    """An answer that took less than was held for it makes room at once, in the order of those who wait."""
    world = World(a=lambda body: used(1, 9, delay=1.0))
    broker = face(world, ladder("a"), limits=[Limit(tokens=100, window="month")])
    results = broker.together(*({"wait": 60} for _ in range(4)))
    assert not [result for result in results if isinstance(result, BaseException)]
    assert world.port.now() < 5
    assert spent(broker) == {"tokens": 40}


def test_who_waits_for_room_is_woken_when_an_answer_gives_it_back_and_does_not_find_it_at_the_next_look(face: Any) -> None:
    world = World(a=lambda body: used(1, 9, delay=1.1))
    broker = face(world, ladder("a"), limits=[Limit(tokens=100, window="month")])
    broker.together({"wait": 60}, {"wait": 60})
    first, second = (at for at, *_ in world.hits)
    assert second == pytest.approx(first + 1.1, abs=0.01)


def test_the_usual_length_of_an_answer_is_learnt(face: Any) -> None:
    """What was thought to take 500 tokens takes 10: after some calls several fit at once."""
    world = World(a=lambda body: used(1, 9, delay=1.0))
    broker = face(world, ladder("a"), limits=[Limit(tokens=1000, window="month")])
    broker.together({}, {})
    for _ in range(20):
        broker.chat("hi")
    began = world.port.now()
    broker.together(*({"wait": 60} for _ in range(8)))
    assert world.port.now() - began == pytest.approx(1.0, abs=0.3)


def test_a_request_that_fits_into_no_window_is_refused_at_once_and_says_so(face: Any) -> None:
    world = World(a=ok())
    broker = face(world, ladder("a"), limits=[Limit(tokens=60, window="minute")])
    with pytest.raises(LimitReachedError, match="this call alone takes"):
        broker.chat("word " * 400)
    with pytest.raises(LimitReachedError, match="this call alone takes"):
        broker.chat("hi", params={"max_tokens": 200})
    assert world.port.now() < 1
    broker.chat("hi", params={"max_tokens": 50})


def test_a_free_model_stays_open_when_the_budget_is_spent(face: Any) -> None:
    free = {"input": 0.0, "output": 0.0}
    world = World(paid=used(0, 100), free=ok("free"))
    pool = [member("paid", 0.9, price=DOLLAR), member("free", 0.1, price=free)]
    broker = face(world, pool, limits=[Limit(cost=10.0)])
    assert broker.chat("hi").llm_name == "paid"
    for _ in range(3):
        assert broker.chat("hi").llm_name == "free"
    assert spent(broker) == {"cost": 10.0}


# -- prices that nobody knows --------------------------------------------------------------------------------------------


def test_a_model_without_a_price_is_passed_over_by_default_and_the_error_says_what_to_do(face: Any) -> None:
    world = World(a=ok("A"), b=ok("B"))
    broker = face(world, [member("a", 0.9), member("b", 0.1, price=DOLLAR)], limits=[Limit(cost=100.0)])
    assert broker.chat("hi").text == "B"
    alone = face(World(a=ok()), ladder("a"), limits=[Limit(cost=100.0)])
    with pytest.raises(LimitReachedError, match="price of a is not known") as caught:
        alone.chat("hi")
    assert caught.value.measure == "price"
    assert "unknown_price=" in str(caught.value)


POLICIES: dict[str, tuple[Any, float]] = {
    "free": ("free", 0.0),
    "a call": (0.25, 0.5),
    "tokens": ({"input": 1e6, "output": 2e6}, 26.0),
}


@pytest.mark.parametrize(("policy", "cost"), POLICIES.values(), ids=POLICIES)
def test_a_price_that_is_not_known_counts_by_policy_and_is_reported_as_unknown(face: Any, policy: Any, cost: float) -> None:
    broker = face(World(a=ok()), ladder("a"), limits=[Limit(cost=10_000.0, unknown_price=policy)])
    broker.chat("hi")
    broker.chat("hi")
    (state,) = broker.snapshot().limits
    assert (state.used, state.unpriced) == ({"cost": cost}, 2)
    assert [row.cost for row in broker.rows()] == [None, None]


def test_a_price_for_a_call_is_enforced(face: Any) -> None:
    broker = face(World(a=ok()), ladder("a"), limits=[Limit(cost=0.5, unknown_price=0.25)])
    broker.chat("hi")
    broker.chat("hi")
    with pytest.raises(LimitReachedError):
        broker.chat("hi", wait=1)


# -- streams, races, loops, cuts -----------------------------------------------------------------------------------------


def test_a_stream_settles_with_what_its_end_says(face: Any) -> None:
    broker = face(World(a=streamed("one ", "two")), ladder("a"), limits=[Limit(calls=5, tokens=5000)])
    broker.read("hi")
    assert spent(broker) == {"calls": 1, "tokens": 10}
    assert nothing_held(broker)


def test_a_stream_that_breaks_keeps_the_estimate(face: Any) -> None:
    broker = face(World(a=streamed("one ", "two", end=False)), ladder("a"), limits=[Limit(calls=5, tokens=5000)])
    with pytest.raises(StreamInterruptedError):
        broker.read("hi", params={"max_tokens": 300})
    assert spent(broker)["calls"] == 1
    assert 300 < spent(broker)["tokens"] < 320
    assert nothing_held(broker)


def test_a_stream_that_is_left_early_keeps_the_estimate(face: Any) -> None:
    broker = face(World(a=streamed("one ", "two", "three")), ladder("a"), limits=[Limit(calls=5, tokens=5000)])

    if broker.kind == "sync":
        stream = broker.broker.stream("hi", params={"max_tokens": 300})
        next(iter(stream))
        stream.close()
    else:

        async def leave() -> None:
            stream = broker.broker.stream("hi", params={"max_tokens": 300})
            async for _ in stream:
                break
            await stream.close()

        asyncio.run(leave())
    assert spent(broker)["calls"] == 1
    assert 300 < spent(broker)["tokens"] < 320
    assert nothing_held(broker)


def test_a_stream_that_is_dropped_is_counted_at_the_next_occasion(face: Any) -> None:
    broker = face(World(a=streamed("one ", "two", "three")), ladder("a"), limits=[Limit(calls=5)])
    if broker.kind == "async":
        pytest.skip("a dropped stream is closed by its loop")
    stream = broker.broker.stream("hi")
    next(iter(stream))
    del stream
    assert spent(broker) == {"calls": 1}
    assert nothing_held(broker)


def test_each_lane_of_a_race_holds_and_settles_for_itself(face: Any) -> None:
    world = World(a=used(1, 9, delay=0.1), b=used(1, 9, delay=5), c=used(1, 9, delay=5))
    broker = face(world, ladder("a", "b", "c"), limits=[Limit(calls=3, tokens=10_000, window="day")])
    broker.chat("hi", fastest_of=3)
    assert spent(broker)["calls"] == 3
    assert spent(broker)["tokens"] > 1000, "what became of the slower two is not known: their estimates count"
    assert nothing_held(broker)


def test_a_race_is_no_wider_than_the_limit(face: Any) -> None:
    world = World(a=ok(delay=0.1), b=ok(delay=0.2), c=ok(delay=0.3))
    broker = face(world, ladder("a", "b", "c"), limits=[Limit(calls=2, window="day")])
    broker.chat("hi", fastest_of=3)
    assert world.asked == ["a", "b"]


def test_a_lane_beside_a_slow_one_needs_room_too(face: Any) -> None:
    world = World(a=ok(delay=20), b=ok())
    broker = face(world, ladder("a", "b"), limits=[Limit(calls=1, window="day")])
    assert broker.chat("hi", wait=60).llm_name == "a"
    assert world.asked == ["a"]
    assert spent(broker) == {"calls": 1}


def test_a_timeout_keeps_the_estimate(face: Any) -> None:
    broker = face(World(a=hang()), ladder("a"), limits=[Limit(tokens=5000)])
    with pytest.raises((NoLLMAvailableError, LLMTimeoutError)):
        broker.chat("hi", wait=2, params={"max_tokens": 300})
    assert 300 < spent(broker)["tokens"] < 320
    assert nothing_held(broker)


async def test_a_cancelled_call_keeps_the_estimate_and_holds_nothing() -> None:
    world = World(a=hang())
    broker: Any = AsyncBroker(pool=ladder("a"), io=world.port, journal=":memory:", limits=[Limit(calls=5, tokens=5000)])

    async def leave() -> None:
        task = asyncio.ensure_future(broker.chat("hi", params={"max_tokens": 300}))
        await asyncio.sleep(0)
        while not world.hits:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    await leave()
    (state,) = (await broker.snapshot()).limits
    assert (state.used["calls"], state.reserved) == (1, {"calls": 0, "tokens": 0})
    assert state.used["tokens"] > 300
    await broker.close()


def test_a_tool_loop_is_metered_step_by_step() -> None:
    def look() -> str:
        """Look."""
        return "seen"

    calls = [{"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    world = World(a=[ok("", tool_calls=calls), ok("", tool_calls=calls), ok("done")])
    limits = [Limit(calls=2, window="day")]
    with Broker(pool=ladder("a"), io=world.port, journal=":memory:", limits=limits) as broker:
        with pytest.raises(LimitReachedError) as caught:
            run_tool_loop(broker, "go", tools=[look])
        assert len(world.hits) == 2
        assert caught.value.messages, "the loop can go on when the limit opens"
        world.port.advance(86400)
        assert run_tool_loop(broker, caught.value.messages, tools=[look]).text == "done"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("journal", [":memory:", False], ids=["store", "memory"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_day_of_random_faults_stays_within_every_limit_and_holds_nothing_at_its_end(
    kind: str, journal: Any, seed: int
) -> None:
    """Many callers, streams left early, races, cancelled attempts, providers that fail in every way."""
    dice = random.Random(seed)

    def mood(name: str) -> Any:
        luck = faults(random.Random(f"{seed}{name}"))

        def behave(body: dict[str, Any]) -> Answer:
            answer: Answer = luck(body)
            return refuse(500) if answer.status in (401, 404) else answer  # keys and models stay in play

        return behave

    world = World(**{name: mood(name) for name in "abc"})
    pool = [
        member("a", 0.9, parallel=2, api_key_ref="K1", price={"input": 1.0, "output": 3.0}),
        member("b", 0.8, api_key_ref="K1", price={"input": 1.0, "output": 3.0}),
        member("c", 0.6, api_key_ref="K2"),
    ]
    limits = [
        Limit(calls=10**6, tokens=10**9, cost=1e6, unknown_price="free", name="ledger"),
        Limit(key="*", calls=40, window="hour"),
        Limit(tokens=60, window="minute"),
        Limit(scope="*", calls=12, window=900),
    ]
    broker = Face(kind, world, pool, secrets={"K1": "one-key", "K2": "two-key"}, limits=limits, journal=journal)
    outcomes: Counter[str] = Counter()
    begun: list[tuple[float, str, str | None]] = []
    engine = broker.broker._engine
    admit = engine.core.admit

    async def noted(ask: Any, lease: Any) -> bool:
        let: bool = await admit(ask, lease)
        if let:
            begun.append((world.port.time(), lease.lane.key.mark, ask.scope))
        return let

    engine.core.admit = noted

    async def one() -> None:
        scope, options = dice.choice([None, "bob", "eve"]), {"wait": dice.choice([0, 5, 60])}
        request = request_of(None, "hi", None, None, None, {"max_tokens": 10}, stream=dice.random() < 0.3)
        try:
            if request.stream:
                source = engine.source(request, None, scope, options)
                leave = dice.random() < 0.3
                while await source.next_events() and not leave:
                    pass
                await source.close()
            else:
                await engine.chat(request, None, scope, {**options, "fastest_of": dice.choice([None, None, 2])})
            outcomes["ok"] += 1
        except LLMBrokerError as error:
            outcomes[type(error).__name__] += 1

    async def caller() -> None:
        for _ in range(40):
            await one()
            await world.port.sleep(dice.expovariate(1 / 60))

    async def day() -> None:
        jobs = [world.port.start(caller()) for _ in range(5)]
        while left := [job for job in jobs if not job.done()]:
            await world.port.wait(left)
        for job in jobs:
            job.result()

    world.port.drive(day()) if kind == "sync" else asyncio.run(day())
    assert broker.idle()
    assert nothing_held(broker)
    assert outcomes["ok"] > 40, outcomes
    assert outcomes["LimitReachedError"] > 5, outcomes
    assert len(begun) == len(world.hits)
    ledger = next(one for one in broker.snapshot().limits if one.name == "ledger")
    if journal is not False:
        rows = broker.rows()
        sure = [row for row in rows if worked(row)]
        maybe = [row for row in rows if row.status in ("error", "unavailable") and row.http_status is None]
        assert len(sure) <= ledger.used["calls"] <= len(sure) + len(maybe)
        assert ledger.used["cost"] >= sum(row.cost or 0.0 for row in rows) - 1e-9
        assert ledger.used["tokens"] >= sum(row.usage.total_tokens for row in rows if row.usage and row.usage.total_tokens)
        for key, window, most in (("key_source", 3600, 40), ("scope", 900, 12)):
            counts = Counter(
                (getattr(row, key), row.ts.timestamp() // window) for row in sure if getattr(row, key) not in (None, "no key")
            )
            assert not counts or max(counts.values()) <= most
        minutes: Counter[float] = Counter()
        for row in rows:
            if row.status == "ok" and row.usage is not None:
                minutes[row.ts.timestamp() // 60] += row.usage.total_tokens
        assert max(minutes.values()) <= 60


# -- direct models -------------------------------------------------------------------------------------------------------


def direct(broker: Any, stream: bool, **arguments: Any) -> Any:
    """Ask the direct model of a broker, whole or streamed; return the reply."""
    client = broker.broker.direct("d")
    if broker.kind == "sync":
        if not stream:
            return client.chat("hi", **arguments)
        made = client.stream("hi", **arguments)
        list(made)
        return made.reply

    async def run() -> Any:
        if not stream:
            return await client.chat("hi", **arguments)
        made = client.stream("hi", **arguments)
        async for _ in made:
            pass
        return made.reply

    return asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
def test_a_direct_model_is_another_path_to_the_same_key(face: Any, stream: bool) -> None:
    world = World(a=ok("A"), d=streamed("D") if stream else ok("D"))
    broker = face(
        world,
        [member("a", api_key_ref="K1")],
        direct=[member("d", api_key_ref="K2")],
        secrets={"K1": "same-key", "K2": "same-key"},
        limits=[Limit(key="K1", calls=2, window="day"), Limit(scope="*", tokens=10_000)],
    )
    broker.chat("hi")
    assert direct(broker.of("bob"), stream).text == "D"
    for ask in (lambda: broker.chat("hi", wait=1), lambda: direct(broker, stream)):
        with pytest.raises(LimitReachedError, match="2 of 2 calls"):
            ask()
    assert world.asked == ["a", "d"]
    assert [(one.scope, one.used) for one in broker.snapshot().limits] == [(None, {"calls": 2}), ("bob", {"tokens": 10})]
    assert nothing_held(broker)


@pytest.mark.parametrize("stream", [False, True])
def test_a_direct_call_waits_for_a_window_and_what_failed_is_given_back(face: Any, stream: bool) -> None:
    good = streamed("D") if stream else ok("D")
    world = World(d=[refuse(500), good])
    broker = face(world, [], direct=[member("d")], limits=[Limit(calls=1, window="minute")])
    with pytest.raises(ServerError):
        direct(broker, stream)
    assert spent(broker) == {"calls": 0}
    direct(broker, stream)
    opens = 60 - world.port.time() % 60
    before = world.port.now()
    assert direct(broker, stream, timeout=opens + 5).text == "D"
    assert world.port.now() - before == pytest.approx(opens, abs=0.1)
    with pytest.raises(LimitReachedError):
        direct(broker, stream, timeout=5)
    assert nothing_held(broker)


def test_a_direct_stream_that_breaks_or_is_left_keeps_the_estimate(face: Any) -> None:
    world = World(d=streamed("one", "two", end=False))
    broker = face(world, [], direct=[member("d")], limits=[Limit(tokens=10_000)])
    with pytest.raises(StreamInterruptedError):
        direct(broker, True, params={"max_tokens": 300})
    assert 300 < spent(broker)["tokens"] < 320
    client = broker.broker.direct("d")
    if broker.kind == "sync":
        with client.stream("hi", params={"max_tokens": 300}) as stream:
            next(iter(stream))
    else:

        async def leave() -> None:
            async with client.stream("hi", params={"max_tokens": 300}) as stream:
                async for _ in stream:
                    break

        asyncio.run(leave())
    assert 600 < spent(broker)["tokens"] < 640
    assert nothing_held(broker)


def test_a_direct_stream_that_is_closed_before_it_is_read_takes_nothing(face: Any) -> None:
    world = World(d=streamed("one"))
    broker = face(world, [], direct=[member("d")], limits=[Limit(calls=1)])
    stream = broker.broker.direct("d").stream("hi")
    if broker.kind == "sync":
        stream.close()
        assert list(stream) == []
    else:

        async def read() -> list[str]:
            await stream.close()
            return [piece async for piece in stream]

        assert asyncio.run(read()) == []
    assert (spent(broker), world.asked) == ({"calls": 0}, [])
    assert nothing_held(broker)


def test_without_limits_a_direct_client_is_the_plain_one() -> None:
    from llmbroker import DirectClient

    with Broker(pool=[], direct=[member("d")], journal=False, io=World(d=ok()).port) as broker:
        assert type(broker.direct("d")) is DirectClient


# -- stores --------------------------------------------------------------------------------------------------------------


def test_without_a_journal_limits_are_counted_in_memory(face: Any) -> None:
    broker = face(World(a=ok()), ladder("a"), journal=False, limits=[Limit(calls=2)])
    broker.chat("hi")
    broker.chat("hi")
    with pytest.raises(LimitReachedError):
        broker.chat("hi", wait=1)
    (state,) = broker.snapshot().limits
    assert (state.used, state.shared) == ({"calls": 2}, False)


def test_what_is_spent_outlives_the_broker_and_is_shared(face: Any, tmp_path: Path) -> None:
    world = World(a=ok())
    where, limits = tmp_path / "calls.db", [Limit(calls=3, window="day")]
    one, other = (face(world, ladder("a"), journal=where, limits=limits) for _ in range(2))
    one.chat("hi")
    other.chat("hi")
    one.close()
    third = face(world, ladder("a"), journal=where, limits=limits)
    third.chat("hi")
    for broker in (other, third):
        with pytest.raises(LimitReachedError):
            broker.chat("hi", wait=1)
    assert spent(third) == {"calls": 3}


def test_a_hold_of_a_process_that_died_is_given_back_when_its_time_is_over(face: Any, tmp_path: Path) -> None:
    world = World(a=ok())
    where, limits = tmp_path / "calls.db", [Limit(calls=1)]
    broker = face(world, ladder("a"), journal=where, limits=limits)
    engine = broker.broker._engine

    async def begin_and_die() -> None:
        request = request_of(None, "hi", None, None, None, None, stream=False)
        ask = await engine.ask(request, None, None, {"wait": 30})
        entries = await engine.core.entries(None)
        _, lease = engine.desk.take(entries, ask, world.port.now())
        assert await engine.core.admit(ask, lease)
        engine.desk.drop(lease, world.port.now())

    asyncio.run(begin_and_die()) if broker.kind == "async" else world.port.drive(begin_and_die())
    with pytest.raises(LimitReachedError, match="1 calls held by calls under way"):
        broker.chat("hi", wait=5)
    assert broker.chat("hi", wait=120).text == "hello"
    assert 30 < world.port.now() < 70


def test_a_store_that_is_away_fails_no_call_and_this_process_counts_on(face: Any, tmp_path: Path) -> None:
    folder = tmp_path / "volume"
    folder.write_text("not mounted yet")
    world = World(a=ok())
    broker = face(world, ladder("a"), journal=folder / "calls.db", limits=[Limit(calls=3)])
    broker.chat("hi")
    broker.chat("hi")
    snapshot = broker.snapshot()
    assert [(one.used, one.shared) for one in snapshot.limits] == [({"calls": 2}, False)]
    assert any("counted by this process alone" in note for note in snapshot.notes)
    folder.unlink()
    folder.mkdir()
    world.port.advance(60)
    broker.chat("hi")
    assert [(one.used, one.shared) for one in broker.snapshot().limits] == [({"calls": 3}, True)]
    with pytest.raises(LimitReachedError):
        broker.chat("hi", wait=1)


def test_what_was_counted_alone_is_told_to_the_store_once(face: Any, tmp_path: Path) -> None:
    world = World(a=used(1, 9))
    where, limits = tmp_path / "calls.db", [Limit(calls=100, tokens=10**6)]
    broker = face(world, ladder("a"), journal=where, limits=limits)
    broker.chat("hi")
    accounts = broker.broker._engine.core.accounts
    accounts._down(StoreError("gone", reason="missing"))
    accounts._next_try = world.port.now() + 100
    for _ in range(5):
        broker.chat("hi")
    assert spent(broker) == {"calls": 6, "tokens": 60}
    world.port.advance(200)
    broker.chat("hi")
    other = face(world, ladder("a"), journal=where, limits=limits)
    assert spent(other) == {"calls": 7, "tokens": 70}
    assert nothing_held(other)


def test_a_file_that_another_program_locks_for_long_is_counted_without_and_told_later(tmp_path: Path) -> None:
    where = tmp_path / "calls.db"
    world = World(a=ok())
    with Broker(pool=ladder("a"), io=world.port, journal=where, limits=[Limit(calls=9)]) as broker:
        broker.chat("hi")
        other = sqlite3.connect(where, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        broker.chat("hi")
        broker.chat("hi")
        assert broker._engine.core.accounts is not None
        assert "another program holds it" in broker._engine.core.accounts.trouble
        other.execute("ROLLBACK")
        other.close()
        world.port.advance(60)
        broker.chat("hi")
        (state,) = broker.snapshot().limits
        assert (state.used, state.reserved, state.shared) == ({"calls": 4}, {"calls": 0}, True)


def test_no_fault_of_a_store_reaches_a_call(face: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(a=ok())
    broker = face(world, ladder("a"), limits=[Limit(calls=3)])

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("who divides here?")

    monkeypatch.setattr(broker.broker._engine.journal.store, "transact", broken)
    for _ in range(3):
        broker.chat("hi")
    with pytest.raises(LimitReachedError):
        broker.chat("hi", wait=1)
    for later in (0, 60):  # then the store is asked again
        world.port.advance(later)
        snapshot = broker.snapshot()
        assert any("who divides here?" in note for note in snapshot.notes)
        assert snapshot.limits[0].used == {"calls": 3}


def test_no_value_of_a_key_is_in_what_limits_keep(face: Any, tmp_path: Path) -> None:
    broker = face(
        World(a=ok()),
        [member("a", api_key_ref="K1")],
        secrets={"K1": "canary-7Qp2xV"},
        journal=tmp_path / "calls.db",
        limits=[Limit(key="K1", calls=1)],
    )
    broker.chat("hi")
    with pytest.raises(LimitReachedError) as caught:
        broker.chat("hi", wait=1)
    assert "canary" not in f"{caught.value!r} {caught.value.__dict__} {broker.snapshot()!r}"
    for file in tmp_path.iterdir():
        assert b"canary" not in file.read_bytes()


def test_a_strict_limit_refuses_while_nobody_counts_for_all(face: Any, tmp_path: Path) -> None:
    folder = tmp_path / "volume"
    folder.write_text("not mounted yet")
    world = World(a=ok())
    broker = face(world, ladder("a"), journal=folder / "calls.db", limits=[Limit(calls=3, strict=True)])
    with pytest.raises(LimitReachedError, match="strict") as caught:
        broker.chat("hi", wait=3)
    assert (caught.value.measure, world.hits) == ("store", [])
    folder.unlink()
    folder.mkdir()
    world.port.advance(60)
    broker.chat("hi")


# -- where limits come from ----------------------------------------------------------------------------------------------

LIST = """
[[llms]]
name = "a"
model = "a"
base_url = "http://models.test/v1"
api_key_ref = ""

[[limits]]
scope = "*"
calls = 1
window = "day"
"""


def test_a_model_list_may_hold_limits(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(LIST)
    world = World(a=ok())
    with Broker(tmp_path / "models.toml", io=world.port, journal=":memory:") as broker:
        broker.for_scope("bob").chat("hi")
        with pytest.raises(LimitReachedError):
            broker.for_scope("bob").chat("hi", wait=1)
    with Broker(tmp_path / "models.toml", io=world.port, journal=":memory:", limits=[]) as broker:
        assert broker.snapshot().limits == ()
        assert broker._engine.core.accounts is None


def test_a_database_may_hold_limits(tmp_path: Path) -> None:
    store = open_store(tmp_path / "broker.db")
    store.set_models(ladder("a"))
    limits = [Limit(calls=1, window=90), Limit(cost=1.5, unknown_price={"input": 1.0}, strict=True, key="K")]
    write_limits(store, limits)
    store.close()
    world = World(a=ok())
    with Broker(tmp_path / "broker.db", io=world.port) as broker:
        assert list(broker._engine.setup.limits) == limits
        broker.chat("hi")
        with pytest.raises(LimitReachedError):
            broker.chat("hi", wait=1)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "nothing limited": ({"scope": "bob"}, "calls"),
    "negative": ({"calls": -1}, "calls"),
    "a truth": ({"calls": True}, "calls"),
    "a fraction of a call": ({"calls": 1.5}, "calls"),
    "not a number": ({"cost": float("nan")}, "cost"),
    "endless": ({"cost": float("inf")}, "cost"),
    "an unknown window": ({"calls": 1, "window": "week"}, "window"),
    "no window at all": ({"calls": 1, "window": 0}, "window"),
    "an endless window": ({"calls": 1, "window": float("inf")}, "window"),
    "an empty scope": ({"calls": 1, "scope": " "}, "scope"),
    "a scope that is none": ({"calls": 1, "scope": 7}, "scope"),
    "half a character": ({"calls": 1, "operation": "\ud800"}, "operation"),
    "a zero byte": ({"calls": 1, "name": "a\0"}, "name"),
    "an unknown policy": ({"cost": 1, "unknown_price": "guess"}, "unknown_price"),
    "a price of what": ({"cost": 1, "unknown_price": {"images": 1}}, "unknown_price"),
    "strict as a word": ({"calls": 1, "strict": "yes"}, "strict"),
}


@pytest.mark.parametrize(("fields", "field"), WRONG.values(), ids=WRONG)
def test_a_limit_that_means_nothing_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Limit(**fields)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ([Limit(calls=1), Limit(calls=2)], "Two limits bear the name"),
        (Limit(calls=1), "limits is a list"),
        ([{"calls": 1}], "one of them is dict"),
    ],
    ids=["twins", "one alone", "a mapping"],
)
def test_limits_that_cannot_be_used_are_refused_when_the_broker_is_made(limits: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Broker(pool=[LLMConfig(name="a", model="a", base_url="http://x.test", api_key_ref="")], journal=False, limits=limits)


def test_an_unknown_field_of_a_limit_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(LIST.replace("calls = 1", "calls = 1\nbudget = 3"))
    with pytest.raises(ConfigurationError, match=r"limits row 1: unknown field 'budget'"):
        Broker(tmp_path / "models.toml", journal=False)


# -- what is shown -------------------------------------------------------------------------------------------------------


def test_a_snapshot_shows_what_is_used_held_and_left_and_when_it_resets(face: Any) -> None:
    world = World(a=used(1, 9))
    broker = face(world, ladder("a"), limits=[Limit(calls=5, tokens=1000, window="hour"), Limit(scope="*", calls=2)])
    broker.of("bob").chat("hi")
    first, second = broker.snapshot().limits
    assert (first.used, first.reserved) == ({"calls": 1, "tokens": 10}, {"calls": 0, "tokens": 0})
    assert (first.most, first.left) == ({"calls": 5, "tokens": 1000}, {"calls": 4, "tokens": 990})
    assert first.resets_at.timestamp() == world.port.time() // 3600 * 3600 + 3600
    assert (second.scope, second.used, second.resets_at) == ("bob", {"calls": 1}, None)


def test_a_user_sees_the_own_account_a_fresh_one_too_and_nobody_elses(face: Any) -> None:
    broker = face(World(a=ok()), ladder("a"), limits=[Limit(scope="*", calls=2), Limit(scope="eve", calls=7), Limit(calls=9)])
    broker.of("bob").chat("hi")
    seen = {(one.name, one.scope, one.used["calls"]) for one in broker.of("eve").snapshot().limits}
    assert seen == {
        ("each scope: calls for ever", "eve", 0),
        ("scope eve: calls for ever", "eve", 0),
        ("all: calls for ever", None, 1),
    }


# -- an answer that says nothing, where only a limit keeps others from a better one ------------------------------------------


LAST = {"one call is left": Limit(calls=1, window="month"), "the next one is too dear": Limit(tokens=38, window="month")}


@pytest.mark.parametrize("limit", LAST.values(), ids=list(LAST))
@pytest.mark.parametrize("fastest_of", [1, 2])
def test_an_empty_answer_is_better_than_a_limit_error(face: Any, limit: Limit, fastest_of: int) -> None:
    world = World(a=ok(""), b=ok("B"), c=ok("C"))
    broker = face(world, ladder("a", "b", "c"), limits=[limit])
    reply = broker.chat("hi", params={"max_tokens": 20}, wait=30, fastest_of=fastest_of)
    assert (reply.text, reply.llm_name) == ("", "a")
    assert world.asked == ["a"]
    assert world.port.now() < 1
    row = broker.calls()[0]
    assert (row.id, row.status, row.usage.total_tokens) == (reply.call_id, "ok" if fastest_of == 2 else "error", 10)
    assert nothing_held(broker)


@pytest.mark.parametrize("fastest_of", [1, 2])
def test_an_empty_stream_is_better_than_a_limit_error(face: Any, fastest_of: int) -> None:
    world = World(a=streamed(), b=streamed("B"))
    broker = face(world, ladder("a", "b"), limits=[Limit(calls=1, window="minute")])
    pieces, stream = broker.read("hi", wait=30, fastest_of=fastest_of)
    assert (pieces, stream.reply.text, stream.llm_name) == ([], "", "a")
    assert stream.reply.call_id == stream.call_id == broker.calls()[0].id
    assert world.asked == ["a"]
    assert nothing_held(broker)


@pytest.mark.parametrize("stream", [False, True])
def test_an_empty_answer_waits_for_who_comes_back_in_time_also_where_a_limit_keeps_another_away(
    face: Any, stream: bool
) -> None:
    good = streamed("B") if stream else ok("B")
    world = World(
        a=streamed() if stream else ok(""), b=[refuse(429, retry_after="4"), good], c=streamed("C") if stream else ok("C")
    )
    pool = [member("b", 0.9), member("a", 0.8), member("c", 0.1, api_key_ref="K")]
    broker = face(world, pool, secrets={"K": "c-key"}, limits=[Limit(key="K", calls=0, window="minute")])
    text = "".join(broker.read("hi", wait=50)[0]) if stream else broker.chat("hi", wait=50).text
    assert (text, world.asked[:2], world.asked[-1]) == ("B", ["b", "a"], "b")
    assert "c" not in world.asked


# -- limits that cannot be read when the broker is made -----------------------------------------------------------------------


def damage(file: Path) -> None:
    """Make a database that is none."""
    file.write_bytes(b"no database at all " * 100)


def newer(file: Path) -> None:
    """A database of a version that is not made yet."""
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE llmbroker_schema (version INTEGER NOT NULL)")
        db.execute("INSERT INTO llmbroker_schema VALUES (999)")
    db.close()


def misspell(file: Path) -> None:
    store = open_store(file)
    write_limits(store, [Limit(calls=3, window="month", name="few")])
    store.transact(lambda db: db.execute("UPDATE llmbroker_limits SET config = '{'"))
    store.close()


@pytest.mark.parametrize("spoil", [damage, newer, misspell])
def test_a_broker_whose_models_come_from_code_starts_without_its_store_and_reads_the_limits_later(
    face: Any, spoil: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, good = tmp_path / "broker.db", tmp_path / "good.db"
    store = open_store(good)
    write_limits(store, [Limit(calls=3, window="month", name="few")])
    store.close()
    spoil(file)
    world = World(a=ok())
    broker = face(world, ladder("a"), source=str(file), journal=None)
    assert "cannot be read" in caplog.text
    for _ in range(5):
        assert broker.chat("hi").text == "hello"
    assert any("limits" in note and "cannot be read" in note for note in broker.snapshot().notes)
    assert broker.snapshot().limits == ()
    file.unlink()
    good.rename(file)
    world.port.advance(10)
    assert [one.name for one in broker.snapshot().limits] == ["few"]
    for _ in range(3):
        broker.chat("hi")
    with pytest.raises(LimitReachedError):
        broker.chat("hi", wait=1)
    assert not any("cannot be read" in note for note in broker.snapshot().notes)


def test_a_locked_store_does_not_stop_a_broker_whose_models_come_from_code(face: Any, tmp_path: Path) -> None:
    file = tmp_path / "broker.db"
    store = open_store(file)
    write_limits(store, [Limit(calls=1, window="month", name="few")])
    store.close()
    with sqlite3.connect(file, isolation_level=None) as other:
        other.execute("PRAGMA journal_mode = DELETE")
        other.execute("BEGIN EXCLUSIVE")
        world = World(a=ok())
        broker = face(world, ladder("a"), source=str(file), journal=False)
        assert broker.chat("hi").text == "hello"
        other.execute("ROLLBACK")
    other.close()
    world.port.advance(10)
    broker.chat("hi")
    with pytest.raises(LimitReachedError):
        broker.chat("hi", wait=1)


@pytest.mark.parametrize("stream", [False, True])
def test_direct_models_are_counted_once_limits_can_be_read(face: Any, stream: bool, tmp_path: Path) -> None:
    file, good = tmp_path / "broker.db", tmp_path / "good.db"
    store = open_store(good)
    write_limits(store, [Limit(calls=1, window="month", name="few")])
    store.close()
    damage(file)
    world = World(a=ok(), d=streamed("D") if stream else ok("D"))
    broker = face(world, ladder("a"), source=str(file), journal=None, direct=[member("d")])

    assert [direct(broker, stream).text for _ in range(2)] == ["D", "D"]
    file.unlink()
    good.rename(file)
    world.port.advance(10)
    assert direct(broker, stream).text == "D"
    with pytest.raises(LimitReachedError):
        direct(broker, stream)


def test_a_broker_whose_models_are_in_the_store_needs_it(tmp_path: Path) -> None:
    damage(tmp_path / "broker.db")
    with pytest.raises(ConfigurationError, match="model list"):
        Broker(str(tmp_path / "broker.db"))
