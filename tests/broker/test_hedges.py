"""Which lane is opened beside one that takes long."""

from __future__ import annotations

from typing import Any

import pytest
from tests.broker.worlds import World, hang, member, ok

MESSAGE = "hi"


def test_help_comes_from_another_provider_rather_than_from_another_model_of_the_same_one(face: Any) -> None:
    world = World(a=hang(), sister=hang(), other=ok("OTHER"))
    pool = [
        member("a", 0.9, api_key_ref="ONE"),
        member("sister", 0.8, api_key_ref="ONE"),
        member("other", 0.7, api_key_ref="TWO"),
    ]
    reply = face(world, pool, secrets={"ONE": "key-one", "TWO": "key-two"}).chat(MESSAGE, wait=20)
    assert reply.text == "OTHER"
    assert world.asked == ["a", "other"]


def test_another_model_of_the_same_provider_helps_where_there_is_no_other(face: Any) -> None:
    world = World(a=hang(), sister=ok("SISTER"))
    pool = [member("a", 0.9, api_key_ref="ONE"), member("sister", 0.8, api_key_ref="ONE")]
    assert face(world, pool, secrets={"ONE": "key-one"}).chat(MESSAGE, wait=20).text == "SISTER"


def test_help_comes_from_a_quick_model_rather_than_from_a_better_one_that_never_answered(face: Any) -> None:
    world = World(usual=[*[ok("U", delay=1)] * 30, hang()], silent=hang(), quick=ok("Q", delay=1))
    broker = face(world, [member("usual", 0.9), member("silent", 0.8), member("quick", 0.7)])
    for _ in range(30):
        broker.chat(MESSAGE, wait=25)
    assert broker.chat(MESSAGE, wait=25).text == "Q"
    assert world.asked[30:] == ["usual", "silent", "quick"], "nothing was known of either: the better one comes first"
    assert broker.chat(MESSAGE, wait=25).text == "Q"
    assert world.asked[33:] == ["usual", "quick"]


def test_of_models_that_are_about_as_quick_the_better_one_helps(face: Any) -> None:
    world = World(usual=[*[ok("U", delay=1)] * 30, hang()], better=ok("B", delay=2.5), quicker=ok("Q", delay=2))
    broker = face(world, [member("usual", 0.9), member("better", 0.8), member("quicker", 0.7)])
    for name in ("better", "quicker"):
        others = {"usual", "better", "quicker"} - {name}
        for other in others:
            broker.disable_llm(other)
        for _ in range(3):
            broker.chat(MESSAGE, wait=25)
        for other in others:
            broker.enable_llm(other)
    for _ in range(30):
        broker.chat(MESSAGE, wait=25)
    assert broker.chat(MESSAGE, wait=25).text == "B"


@pytest.mark.parametrize(("saved", "text"), [(0.0, "SLOW"), (5.0, "B")])
def test_help_of_a_model_that_was_free_all_the_time_is_paid_for(face: Any, saved: float, text: str) -> None:
    world = World(a=[*[ok("A", delay=1)] * 30, ok("SLOW", delay=18)], b=ok("B", delay=1))
    broker = face(world, [member("a", 0.9), member("b", 0.8)])
    broker.disable_llm("a")
    for _ in range(6):
        broker.chat(MESSAGE, wait=25)
    broker.enable_llm("a")
    for _ in range(30):
        broker.chat(MESSAGE, wait=25)
    broker.broker._engine.desk.credit.saved = saved
    assert broker.chat(MESSAGE, wait=25).text == text
