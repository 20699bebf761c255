"""A server that serves a few at once and lets the others stand in line, in silence."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.broker.worlds import World, member, ok, streamed
from tests.choosing.parts import entries, half, lane

from llmbroker import AsyncBroker, LLMBrokerError, NoLLMAvailableError
from llmbroker.broker.desk import Desk
from llmbroker.broker.replies import Ask
from llmbroker.exchange import make_request
from llmbroker.limits import Waiter

MESSAGE = "hi"


def queueing(world: World, name: str, seconds: float, slots: int = 1, made: Any = ok) -> None:
    """Let a model serve so many at once, in the order of arrival. ``made``: makes its answers, whole or streamed."""
    free = [0.0] * slots

    def answer(body: dict[str, Any]) -> Any:
        now = world.port.now()
        place = min(range(slots), key=free.__getitem__)
        free[place] = max(now, free[place]) + seconds
        return made(name.upper(), delay=free[place] - now)

    world.then(name, answer)


async def crowd(broker: AsyncBroker, callers: int, calls: int, wait: float) -> list[Any]:
    """Return what each call of some callers got, one after another."""

    async def caller() -> list[Any]:
        got: list[Any] = []
        for _ in range(calls):
            try:
                got.append((await broker.chat(MESSAGE, wait=wait)).llm_name)
            except LLMBrokerError as error:
                got.append(error)
        return got

    return [one for each in await asyncio.gather(*(caller() for _ in range(callers))) for one in each]


async def test_how_many_a_server_serves_at_once_is_found_and_the_others_wait_here_or_go_elsewhere() -> None:
    world = World(home=ok(), cloud=ok("C", delay=9.0))
    queueing(world, "home", 2.0)
    async with AsyncBroker(pool=[member("home", 0.8), member("cloud", 0.5)], io=world.port, journal=":memory:") as broker:
        await crowd(broker, 16, 20, 60.0)
        states = await broker.snapshot()
        state = states["home"]
        assert state.at_once is not None
        assert state.at_once <= 6
        assert states["cloud"].at_once is None
        before, asked = world.port.now(), len(world.hits)
        got = await crowd(broker, 16, 10, 60.0)
        assert not any(isinstance(one, Exception) for one in got)
        assert got.count("cloud") > got.count("home") > 0
        assert len(world.hits) - asked < 1.1 * len(got), "hardly an attempt was for nothing"
        assert world.port.now() - before < 160 * 2.0 / 3.0, "the one server alone would take three times as long"


async def test_alone_it_answers_those_who_have_time_left_and_works_for_nobody_who_left() -> None:
    world = World(home=ok())
    queueing(world, "home", 2.0)
    async with AsyncBroker(pool=[member("home", 0.8)], io=world.port, journal=":memory:") as broker:
        await crowd(broker, 16, 20, 25.0)
        began, asked = world.port.now(), len(world.hits)
        got = await crowd(broker, 16, 20, 25.0)
        answered = sum(one == "home" for one in got)
        took = world.port.now() - began
        assert answered > 0.85 * took / 2.0, "it is at work nearly all the time for somebody who gets his answer"
        assert len(world.hits) - asked < 1.15 * answered
        failed = [str(one) for one in got if isinstance(one, Exception)]
        assert any("at once, more would wait in line there" in text for text in failed)


async def test_who_waited_for_a_slot_in_which_no_answer_would_come_in_time_is_told_so_and_what_to_do() -> None:
    world = World(home=ok(delay=2.0))
    async with AsyncBroker(pool=[member("home", 0.8, parallel=1)], io=world.port, journal=False) as broker:
        await crowd(broker, 1, 4, 60.0)  # how long it takes is known now
        failed = [one for one in await crowd(broker, 9, 1, 9.5) if isinstance(one, NoLLMAvailableError)]
        untried = [error for error in failed if not error.attempts]
        assert untried
        assert {error.reason for error in untried} == {"timeout"}
        assert any("home takes 2.0 s, 1.5 s are left" in str(error) for error in untried)
        assert all("(wait=)" in str(error.hint) for error in failed)


async def test_a_scarce_slot_is_left_to_a_call_that_has_more_time_but_not_to_an_empty_line() -> None:
    world = World(a=[*[ok("A", delay=seconds) for seconds in (2.0, 3.0, 4.0, 5.0, 6.0)] * 4, ok("A", delay=4.0)])
    async with AsyncBroker(pool=[member("a", parallel=1)], io=world.port, journal=":memory:") as broker:
        for _ in range(20):
            await broker.chat(MESSAGE, wait=60.0)

        async def ask(wait: float, after: float) -> str:
            await world.port.sleep(after)
            try:
                reply = await broker.chat(f"within {wait:.1f} s", wait=wait)
            except LLMBrokerError as error:
                return type(error).__name__
            return str(reply.text)

        def asked() -> list[str]:
            return [str(body["messages"][0]["content"]) for body in world.bodies]

        before = len(asked())
        got = await asyncio.gather(ask(60.0, 0.0), ask(7.0, 0.5), ask(50.0, 1.0))
        assert got == ["A", "NoLLMAvailableError", "A"]
        assert asked()[before:] == ["within 60.0 s", "within 50.0 s"], "3.5 s were left, in which 2 of 5 answers come"
        before = len(asked())
        assert (await asyncio.gather(ask(60.0, 0.0), ask(7.0, 0.5)))[0] == "A"
        assert asked()[before:] == ["within 60.0 s", "within 7.0 s"], "nobody else waits: it is tried"


def test_a_slot_that_was_left_to_others_and_that_nobody_took_is_taken() -> None:
    desk, scarce = Desk(half), lane("a", parallel=1)
    for seconds in (2.0, 3.0, 4.0, 5.0, 6.0) * 4:
        scarce.member.latency.add(seconds)

    def call(deadline: float) -> Ask:
        ask = Ask(
            make_request(MESSAGE),
            params=None,
            scope=None,
            operation=None,
            trace_id=None,
            began=0.0,
            deadline=deadline,
            queue_until=deadline,
            fastest_of=1,
        )
        desk.enter(ask)
        return ask

    idle, short = call(100.0), call(20.0)
    idle.waiter = Waiter(lambda: None)
    idle.waiter.asleep, idle.waiter.wants = True, frozenset({"a"})
    plan, lease = desk.take(entries(scarce), short, 16.5)
    assert lease is None
    assert plan.next_at == pytest.approx(16.52)
    _, lease = desk.take(entries(scarce), short, 16.52)
    assert lease is not None


@pytest.mark.parametrize("scopes", [(None,), (None, "u")], ids=["one key", "some with a key of their own"])
async def test_nobody_who_waits_for_a_key_of_several_models_is_overtaken(scopes: Any) -> None:
    names = ("a", "b", "c")
    world = World(**{name: ok(name, delay=2.0) for name in names})
    pool = [member(name, 0.5, api_key_ref="K") for name in names]
    keys = {"K": "sk-ours", "u/K": "sk-theirs"}
    async with AsyncBroker(pool=pool, io=world.port, journal=":memory:", secrets=keys) as broker:
        faces = [broker if scope is None else broker.for_scope(scope) for scope in scopes]
        for face in faces:
            await face.chat(MESSAGE, wait=60.0)
        for one in broker._engine.lanes.all():
            one.key.crowding.limit = 3.0
        world.bodies.clear()
        world.hits.clear()

        async def ask(number: int) -> None:
            await world.port.sleep(0.001 * number)
            await faces[number % len(faces)].chat(str(number), wait=600.0)

        await asyncio.gather(*(ask(number) for number in range(40)))
        states = (await broker.snapshot()).values()
        assert [state.running for state in states] == [0, 0, 0]
        assert len({key for _, _, key in world.hits}) == len(scopes)
        asked = [int(body["messages"][0]["content"]) for body in world.bodies]
        for part in range(len(faces)):
            own = [number for number in asked if number % len(faces) == part]
            turns = zip(own, sorted(own), strict=True)
            assert all(abs(number - turn) < 3 * len(faces) for number, turn in turns), "three are woken in one moment"


def test_plain_callers_find_it_too(face: Any) -> None:
    world = World(home=ok())
    queueing(world, "home", 2.0)
    broker = face(world, [member("home", 0.8)])
    for _ in range(8):
        replies = broker.together(*[{"wait": 90.0}] * 16)
        assert [getattr(reply, "text", None) for reply in replies] == ["HOME"] * 16
    bound = broker.snapshot()["home"].at_once
    assert bound is not None
    assert bound <= 8


async def test_streams_stand_in_line_like_whole_answers() -> None:
    world = World(home=ok())
    queueing(world, "home", 2.0, made=streamed)
    async with AsyncBroker(pool=[member("home", 0.8)], io=world.port, journal=":memory:") as broker:

        async def read() -> str:
            return "".join([piece async for piece in broker.stream(MESSAGE, wait=90.0)])

        for _ in range(8):
            assert await asyncio.gather(*(read() for _ in range(16))) == ["HOME"] * 16
        bound = (await broker.snapshot())["home"].at_once
        assert bound is not None
        assert bound <= 8
