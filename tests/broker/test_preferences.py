"""What a caller prefers, through both faces: of a broker, of one call, of a stream, of a loop."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.broker.worlds import BASE, World, ladder, member, ok, refuse, streamed

from llmbroker import InvalidRequestError
from llmbroker.catalog import LLMConfig

MESSAGE = "hi"
PRICES = {"dear": {"input": 10.0, "output": 50.0}, "fair": {"input": 1.0, "output": 5.0}, "free": {"input": 0.0, "output": 0.0}}


def priced(*names: str) -> list[LLMConfig]:
    """Models of falling weight; those that have a price there say so."""
    return [member(name, 0.9 - 0.2 * index, price=PRICES.get(name)) for index, name in enumerate(names)]


def world() -> World:
    return World(dear=ok("D", delay=1.0), fair=ok("F", delay=4.0), free=ok("0", delay=8.0))


def test_without_a_preference_quality_decides(face: Any) -> None:
    assert face(world(), priced("dear", "fair", "free")).chat(MESSAGE).llm_name == "dear"


@pytest.mark.parametrize(
    ("prefer", "chosen"), [("quality", "dear"), ("cost", "free"), ({"quality": 1, "cost": 9}, "free")], ids=str
)
def test_a_broker_prefers_what_it_was_told_to(face: Any, prefer: Any, chosen: str) -> None:
    assert face(world(), priced("dear", "fair", "free"), prefer=prefer).chat(MESSAGE).llm_name == chosen


def test_a_call_wins_over_its_broker_in_both_directions(face: Any) -> None:
    broker = face(world(), priced("dear", "fair"), prefer="cost")
    assert broker.chat(MESSAGE).llm_name == "fair"
    assert broker.chat(MESSAGE, prefer="quality").llm_name == "dear"
    plain = face(world(), priced("dear", "fair"))
    assert plain.chat(MESSAGE, prefer="cost").llm_name == "fair"
    assert plain.chat(MESSAGE).llm_name == "dear"


def test_a_stream_and_a_scope_prefer_the_same_way(face: Any) -> None:
    models = World(dear=streamed("D"), fair=streamed("F"))
    broker = face(models, priced("dear", "fair"), prefer="cost")
    assert broker.of("user").read(MESSAGE)[1].llm_name == "fair"
    assert broker.read(MESSAGE, prefer="quality")[1].llm_name == "dear"


def test_speed_is_what_was_measured(face: Any) -> None:
    models = World(slow=ok("S", delay=9.0), quick=ok("Q", delay=1.0))
    broker = face(models, [member("slow", 0.9), member("quick", 0.5)])
    for name in ("slow", "quick"):
        other = "quick" if name == "slow" else "slow"
        broker.disable_llm(other)
        for _ in range(3):
            assert broker.chat(MESSAGE).llm_name == name
        broker.enable_llm(other)
    assert broker.chat(MESSAGE).llm_name == "slow"
    assert broker.chat(MESSAGE, prefer="speed").llm_name == "quick"


def test_when_the_cheapest_fails_the_next_cheapest_answers(face: Any) -> None:
    models = World(dear=ok("D"), fair=ok("F"), free=refuse(500))
    reply = face(models, priced("dear", "fair", "free"), prefer="cost").chat(MESSAGE)
    assert [attempt.llm_name for attempt in reply.attempts] == ["free", "fair"]


def test_a_model_of_unknown_price_counts_as_the_dearest_and_the_explanation_says_so(face: Any) -> None:
    models = World(fair=ok("F"), unknown=ok("U"))
    pool = [LLMConfig(name="unknown", model="unknown", base_url=BASE, api_key_ref="", weight=0.9), *priced("fair")]
    reply = face(models, pool, prefer={"quality": 1, "cost": 1}).chat(MESSAGE)
    told = reply.explain()
    assert "price unknown, counted as the dearest" in told
    assert "$0.0025 a call" in told
    assert "worth" in told
    assert "quality 0.90" in told


def test_a_model_on_this_machine_costs_nothing(face: Any) -> None:
    here = LLMConfig(name="here", model="here", base_url="http://127.0.0.1:1/v1", api_key_ref="", weight=0.1)
    models = World(here=ok("H"), fair=ok("F"))
    assert face(models, [*priced("fair"), here], prefer="cost").chat(MESSAGE).llm_name == "here"


def test_what_a_call_costs_is_learnt_from_the_tokens_of_its_operation(face: Any) -> None:
    def answer(sent: int, made: int) -> Any:
        made_answer = ok("x")
        body = dict(made_answer.body)  # type: ignore[arg-type]
        body["usage"] = {"prompt_tokens": sent, "completion_tokens": made, "total_tokens": sent + made}
        return type(made_answer)(body=body)

    models = World(reads=answer(1000, 1), writes=answer(1000, 1))
    pool = [
        member("reads", 0.5, price={"input": 1.0, "output": 100.0}),  # cheap where little is written
        member("writes", 0.5, price={"input": 10.0, "output": 10.0}),
    ]
    broker = face(models, pool, prefer={"cost": 1})
    assert broker.chat(MESSAGE, operation="label").llm_name == "writes"  # an answer of 500 tokens is expected
    assert broker.chat(MESSAGE, operation="label").llm_name == "reads"  # 1000 tokens in, one out
    assert broker.chat(MESSAGE, operation="other").llm_name == "writes"


def test_what_the_journal_knows_of_tokens_is_used_from_the_first_such_call_on(face: Any) -> None:
    models = World(reads=ok("r"), writes=ok("w"))
    pool = [
        member("reads", 0.5, price={"input": 1.0, "output": 100.0}),
        member("writes", 0.4, price={"input": 10.0, "output": 10.0}),
    ]
    broker = face(models, pool)
    for _ in range(5):
        broker.chat(MESSAGE, operation="op")  # 7 tokens in, 3 out: 307 against 100
    assert "$0.00010 a call" in broker.chat(MESSAGE, operation="op", prefer="cost").explain()


@pytest.mark.parametrize("prefer", ["cheap", {"price": 1}, {"cost": math.nan}, {}, 3], ids=repr)
def test_a_preference_that_is_none_is_refused_before_anything_is_sent(face: Any, prefer: Any) -> None:
    models = world()
    broker = face(models, ladder("dear"))
    with pytest.raises(InvalidRequestError, match="prefer is") as caught:
        broker.chat(MESSAGE, prefer=prefer)
    assert caught.value.argument == "prefer"
    with pytest.raises(InvalidRequestError, match="prefer is"):
        face(models, ladder("dear"), prefer=prefer)
    assert models.hits == []


def test_a_price_that_makes_no_sense_stops_no_call(face: Any) -> None:
    models = World(a=ok("A"), b=ok("B"))
    for price in ({"input": 1e6, "output": 1e6}, {"input": 5e-324, "output": 0.0}, {"output": 1.0}):
        pool = [
            LLMConfig(name="a", model="a", base_url=BASE, api_key_ref="", price=price),
            member("b", 0.1, price=PRICES["fair"]),
        ]
        assert face(models, pool, prefer="cost").chat(MESSAGE).text in ("A", "B")
