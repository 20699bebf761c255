"""What a loop says that its model calls cost: what the broker's journal says, whoever is called."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import llmbroker
from llmbroker import Budget, LLMConfig
from llmbroker.exchange import Usage
from llmbroker.loop import StepUsage
from llmbroker.testing import Answer, Replay, made_reply, whole

MILLION = Usage(1_000_000, 0, total_tokens=1_000_000)
PRICED = {"model": "in-house", "base_url": "http://a.example/v1", "api_key_ref": "", "price": {"input": 2.0, "output": 2.0}}


def port(model: str | None = None) -> Replay:
    script = Replay()
    made = made_reply("Hi.", usage=MILLION, model=model) if model else made_reply("Hi.", usage=MILLION)
    script.on(None, Answer(headers={"content-type": "application/json"}, body=whole(made, "openai-chat")))
    return script


def cost(events: Any) -> float | None:
    (told,) = [event for event in events if isinstance(event, StepUsage)]
    return told.cost


@pytest.mark.parametrize("limits", [None, [llmbroker.Limit(calls=9, window="day")]], ids=["plain", "metered"])
def test_a_direct_model_of_a_broker_costs_what_was_declared(limits: Any) -> None:
    config = LLMConfig(name="mine", **PRICED)
    with llmbroker.Broker(pool=[], direct=[config], journal=False, io=port(), limits=limits) as broker:
        events = list(llmbroker.stream_tool_loop(broker.direct(name="mine"), "Hi", budget=Budget(cost=5.0)))
    assert cost(events) == 2.0


def test_an_awaited_direct_model_costs_the_same() -> None:
    async def run() -> list[Any]:
        config = LLMConfig(name="mine", **PRICED)
        async with llmbroker.AsyncBroker(pool=[], direct=[config], journal=False, io=port()) as broker:
            face = llmbroker.astream_tool_loop(broker.direct(name="mine"), "Hi", budget=Budget(cost=5.0))
            return [event async for event in face]

    assert cost(asyncio.run(run())) == 2.0


@pytest.mark.parametrize("dialect", [None, "anthropic"])
def test_a_server_known_by_its_address_alone_is_not_charged_by_the_makers_list(dialect: str | None) -> None:
    from llmbroker.loop.bounds import cost_of

    name = "claude-opus-5" if dialect else "gpt-4o"
    client = llmbroker.DirectClient(model=name, base_url="http://a.example/v1", dialect=dialect, io=Replay())
    run: Any = type("Run", (), {"caller": client, "port": client._io})
    assert cost_of(run, made_reply("Hi.", usage=MILLION, model=name)) is None


def test_a_pooled_call_under_a_name_of_ones_own_costs_what_its_answer_names_as_in_the_journal() -> None:
    config = LLMConfig(name="mine", provider="openai", model="my-deployment", api_key_ref="MINE")
    with llmbroker.Broker(pool=[config], journal=False, io=port("gpt-4o"), secrets={"MINE": "key-of-mine"}) as broker:
        events = list(llmbroker.stream_tool_loop(broker, "Hi", budget=Budget(cost=5.0)))
    assert cost(events) == 2.5
