"""The faces: scopes, ratings, rows, direct models, sources, snapshot; equal on both."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.broker.worlds import BASE, World, ladder, member, ok, refuse, streamed

import llmbroker
from llmbroker import (
    AsyncBroker,
    Broker,
    ConfigurationError,
    InvalidRequestError,
    LLMConfig,
    MissingKeyError,
    PoolModelError,
    ServerError,
    UnknownCallError,
    UnknownModelError,
)


def test_both_faces_have_the_same_methods_arguments_and_first_sentences() -> None:
    names = {n for n in dir(Broker) if not n.startswith("_")}
    assert names | {"aclose"} == {n for n in dir(AsyncBroker) if not n.startswith("_")}
    for name in sorted(names):
        one, other = getattr(Broker, name), getattr(AsyncBroker, name)
        if not callable(one):
            continue
        if name != "direct":
            assert list(inspect.signature(one).parameters.items()) == list(inspect.signature(other).parameters.items()), name
        assert one.__doc__.split(".")[0] == other.__doc__.split(".")[0], name
    assert inspect.signature(Broker.__init__) == inspect.signature(AsyncBroker.__init__)


# -- replies and rows ----------------------------------------------------------------------------------------------------


def test_a_pooled_reply_is_a_reply_and_says_who_gave_it(face: Any) -> None:
    broker = face(World(a=refuse(500, "boom"), b=ok("B")), ladder("a", "b"))
    reply = broker.chat("hi", operation="greet")
    assert isinstance(reply, llmbroker.Reply)
    assert (reply.text, reply.llm_name, reply.operation, reply.finish_reason) == ("B", "b", "greet", "stop")
    assert reply.usage.total_tokens == 10
    assert [(a.llm_name, a.status) for a in reply.attempts] == [("a", "error"), ("b", "ok")]
    text = reply.explain()
    assert "a: chosen" in text
    assert "boom" in text
    assert "b: chosen" in text


def test_a_reply_can_be_copied_and_pickled(face: Any) -> None:
    reply = face(World(a=ok("A")), ladder("a")).chat("hi")
    for twin in (copy.copy(reply), copy.deepcopy(reply), pickle.loads(pickle.dumps(reply))):
        assert (twin.text, twin.call_id, twin.llm_name) == (reply.text, reply.call_id, reply.llm_name)


def test_a_row_says_everything_about_its_attempt(face: Any) -> None:
    broker = face(World(a=ok("A", delay=0.25)), ladder("a"))
    reply = broker.chat("hi", operation="greet", trace_id="t1")
    row = broker.rows()[0]
    assert (row.id, row.llm_name, row.operation, row.trace_id, row.status) == (reply.call_id, "a", "greet", "t1", "ok")
    assert (row.model, row.model_answered, row.dialect, row.finish_reason) == ("a", "answered", "openai-chat", "stop")
    assert (row.usage.input_tokens, row.usage.output_tokens) == (7, 3)
    assert row.latency_ms == pytest.approx(250)
    assert row.ts.tzinfo is not None
    assert (row.cost, row.stream, row.attempt) == (None, False, 1)


def test_a_declared_price_makes_a_cost(face: Any) -> None:
    broker = face(World(a=ok("A")), [member("a", price={"input": 1.0, "output": 10.0})])
    broker.chat("hi")
    row = broker.rows()[0]
    assert (row.cost, row.currency) == (pytest.approx((7 + 30) / 1e6), "USD")


def test_rows_of_one_call_belong_together(face: Any) -> None:
    broker = face(World(a=refuse(500), b=refuse(503), c=ok("C")), ladder("a", "b", "c"))
    broker.chat("hi")
    rows = broker.rows()
    assert len({row.group_id for row in rows}) == 1
    assert [row.attempt for row in rows] == [1, 2, 3]
    assert [row.http_status for row in rows] == [500, 503, None]


def test_the_row_is_committed_before_the_reply_is_there(face: Any, tmp_path: Path) -> None:
    import sqlite3

    broker = face(World(a=ok("A")), ladder("a"), journal=tmp_path / "j.db")
    reply = broker.chat("hi")
    with sqlite3.connect(tmp_path / "j.db") as other:
        assert other.execute("SELECT count(*) FROM llmbroker_calls").fetchone() == (1,)
    other.close()
    assert reply.call_id


def test_a_cancelled_call_has_its_row_and_frees_its_slot() -> None:
    world = World(a=ok("A", delay=50))
    broker = AsyncBroker(pool=[member("a", parallel=1)], journal=":memory:", io=world.port)

    async def run() -> list[Any]:
        task = asyncio.ensure_future(broker.chat("hi"))
        while not world.hits:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        return await broker.calls()

    rows = asyncio.run(run())
    assert [row.status for row in rows] == ["cancelled"]
    assert broker._engine.lanes.members[0].running == 0


def test_a_fault_of_the_program_frees_the_slot_and_is_written_down(face: Any) -> None:
    world = World(a=lambda body: 1 / 0)  # type: ignore[arg-type, return-value]
    broker = face(world, [member("a", parallel=1)])
    with pytest.raises(ZeroDivisionError):
        broker.chat("hi")
    world.then("a", ok("A"))
    assert broker.chat("hi", wait=0).text == "A"
    assert broker.statuses() == [("a", "error"), ("a", "ok")]


@pytest.mark.parametrize("message", ["\ud800", [{"role": "nobody", "content": "x"}], [], None, 7])
def test_a_hundred_malformed_requests_cost_nothing(face: Any, message: Any) -> None:
    world = World(a=ok("A"))
    broker = face(world, [member("a", parallel=1)])
    for _ in range(100):
        with pytest.raises(InvalidRequestError):
            broker.chat(message)
    assert world.hits == []
    assert broker.chat("hi", wait=0).text == "A"


def test_calls_are_filtered_and_paged(face: Any) -> None:
    broker = face(World(a=ok("A")), ladder("a"))
    for n in range(5):
        broker.chat("hi", operation=f"op{n % 2}", trace_id=f"t{n}")
    assert [row.trace_id for row in broker.calls(limit=2)] == ["t4", "t3"]
    page = broker.calls(limit=2)
    assert [row.trace_id for row in broker.calls(limit=2, cursor=page[-1].cursor)] == ["t2", "t1"]
    assert len(broker.calls(operation="op0")) == 3
    assert len(broker.calls(trace_id="t1")) == 1
    assert len(broker.calls(status=["ok", "error"], llm_name="a")) == 5
    assert broker.calls(since=datetime(2100, 1, 1, tzinfo=UTC)) == []
    with pytest.raises(InvalidRequestError):
        broker.calls(limit=0)
    with pytest.raises(InvalidRequestError):
        broker.calls(since=datetime(2020, 1, 1))


def test_stats_add_up(face: Any) -> None:
    broker = face(World(a=refuse(500), b=ok("B")), ladder("a", "b"))
    for _ in range(3):
        broker.chat("hi")
    stats = broker.stats()
    assert stats["b"].usage.total_tokens == 30
    assert stats["a"].by_status == {"error": 1}
    assert [s.total for s in broker.stats(by="all", status="ok").values()] == [3]


def test_without_a_journal_calls_work_and_reading_says_why_not(face: Any) -> None:
    broker = face(World(a=ok("A")), ladder("a"), journal=False)
    assert broker.chat("hi").text == "A"
    with pytest.raises(ConfigurationError, match="journal"):
        broker.calls()
    assert broker.snapshot().journal["state"] == "off"


def test_a_broken_journal_never_breaks_a_call_and_shows(face: Any, tmp_path: Path) -> None:
    place = tmp_path / "j.db"
    place.write_bytes(b"this is no database, but long enough to be read as one" * 100)
    broker = face(World(a=ok("A")), ladder("a"), journal=place)
    assert broker.chat("hi").text == "A"
    assert broker.snapshot().journal["state"] == "degraded"
    assert broker.snapshot().degraded


# -- ratings -------------------------------------------------------------------------------------------------------------


def test_ratings_move_the_order(face: Any) -> None:
    broker = face(World(a=ok("A"), b=ok("B")), [member("a", 0.7), member("b", 0.5)])
    for n in range(10):
        reply = broker.chat("hi", trace_id=f"t{n}")
        broker.record_quality(0.0 if reply.llm_name == "a" else 1.0, call_id=reply.call_id)
    assert broker.chat("hi").llm_name == "b"
    assert broker.snapshot()["b"].quality > broker.snapshot()["a"].quality


def test_ratings_of_one_operation_hardly_move_another(face: Any) -> None:
    broker = face(World(a=ok("A"), b=ok("B")), [member("a", 0.9), member("b", 0.1)])
    for _ in range(30):
        reply = broker.chat("hi", operation="poetry")
        broker.record_quality(0.0 if reply.llm_name == "a" else 1.0, call_id=reply.call_id)
    broker.chat("hi", operation="prose")
    for _ in range(6):
        reply = broker.chat("hi", operation="prose")
        broker.record_quality(1.0, call_id=reply.call_id)
    assert broker.chat("hi", operation="poetry").llm_name == "b"


def test_a_reply_rates_itself(face: Any) -> None:
    broker = face(World(a=ok("A")), ladder("a"))
    if broker.kind == "sync":
        broker.chat("hi").record_quality(0.25)
    else:

        async def run() -> None:
            reply = await broker.broker.chat("hi")
            await reply.record_quality(0.25)

        asyncio.run(run())
    assert broker.rows()[0].score == 0.25


def test_a_rating_by_trace_goes_to_its_most_recent_successful_call(face: Any) -> None:
    broker = face(World(a=[ok("1"), ok("2"), refuse(500)], b=refuse(500)), ladder("a", "b"))
    broker.chat("hi", trace_id="t")
    broker.chat("hi", trace_id="t")
    with pytest.raises(llmbroker.NoLLMAvailableError):
        broker.chat("hi", trace_id="t", wait=0)
    broker.record_quality(0.9, trace_id="t")
    assert [row.score for row in broker.rows()] == [None, 0.9, None, None]


@pytest.mark.parametrize("score", [-0.1, 1.1, float("nan"), "good", None, True])
def test_a_score_that_means_nothing_is_refused(face: Any, score: Any) -> None:
    broker = face(World(a=ok("A")), ladder("a"))
    reply = broker.chat("hi")
    with pytest.raises(InvalidRequestError):
        broker.record_quality(score, call_id=reply.call_id)


def test_a_rating_needs_exactly_one_id_that_exists(face: Any) -> None:
    broker = face(World(a=ok("A")), ladder("a"))
    broker.chat("hi")
    with pytest.raises(InvalidRequestError):
        broker.record_quality(1.0)
    with pytest.raises(InvalidRequestError):
        broker.record_quality(1.0, call_id="x", trace_id="y")
    with pytest.raises(UnknownCallError):
        broker.record_quality(1.0, call_id="nothing")


def test_ratings_outlive_the_broker(face: Any, tmp_path: Path) -> None:
    pool = [member("a", 0.7), member("b", 0.5)]
    first = face(World(a=ok("A"), b=ok("B")), pool, journal=tmp_path / "j.db")
    for _ in range(12):
        reply = first.chat("hi")
        first.record_quality(0.0 if reply.llm_name == "a" else 1.0, call_id=reply.call_id)
    second = face(World(a=ok("A"), b=ok("B")), pool, journal=tmp_path / "j.db")
    assert second.chat("hi").llm_name == "b"


def test_switched_off_models_stay_off_in_the_next_broker(face: Any, tmp_path: Path) -> None:
    first = face(World(a=ok("A"), b=ok("B")), ladder("a", "b"), journal=tmp_path / "j.db")
    first.disable_llm("a")
    second = face(World(a=ok("A"), b=ok("B")), ladder("a", "b"), journal=tmp_path / "j.db")
    assert second.chat("hi").llm_name == "b"
    with pytest.raises(UnknownModelError, match="a, b"):
        second.disable_llm("zzz")


# -- scopes --------------------------------------------------------------------------------------------------------------


def users_keys(ref: str, scope: str | None) -> str | None:
    return {("K", None): "shared-key", ("K", "ann"): "anns-key", ("K", "bob"): "bobs-key"}.get((ref, scope))


def test_a_scope_uses_its_own_key_and_others_the_shared_one(face: Any) -> None:
    world = World(a=ok("A"))
    broker = face(world, [member("a", api_key_ref="K")], secrets=users_keys)
    broker.chat("hi")
    broker.of("ann").chat("hi")
    broker.of("bob").chat("hi")
    broker.of("eve").chat("hi")
    assert [key for _, _, key in world.hits] == ["shared-key", "anns-key", "bobs-key", "shared-key"]
    assert [row.scope for row in broker.rows()] == [None, "ann", "bob", "eve"]


def test_a_scope_sees_and_rates_only_its_own_rows(face: Any) -> None:
    broker = face(World(a=ok("A")), ladder("a"))
    mine = broker.of("ann").chat("hi", trace_id="t")
    broker.of("bob").chat("hi", trace_id="t")
    assert [row.scope for row in broker.of("ann").calls()] == ["ann"]
    with pytest.raises(UnknownCallError):
        broker.of("bob").record_quality(1.0, call_id=mine.call_id)
    broker.of("ann").record_quality(0.5, trace_id="t")
    assert {row.scope: row.score for row in broker.rows()} == {"ann": 0.5, "bob": None}
    with pytest.raises(ConfigurationError):
        broker.of("ann").calls(scope="bob")


def test_a_users_dead_key_falls_back_to_the_shared_one_and_hurts_nobody_else(face: Any) -> None:
    world = World()
    world.models["a"] = [lambda body: refuse(401) if world.hits[-1][2] == "anns-key" else ok("A")]
    broker = face(world, [member("a", api_key_ref="K")], secrets=users_keys)
    assert broker.of("ann").chat("hi").text == "A"
    assert [key for _, _, key in world.hits] == ["anns-key", "shared-key"]
    broker.of("bob").chat("hi")
    assert world.hits[-1][2] == "bobs-key"


def test_a_users_spent_quota_is_not_the_quota_of_others(face: Any) -> None:
    world = World()
    world.models["a"] = [lambda body: refuse(429, retry_after="60") if world.hits[-1][2] == "anns-key" else ok("A")]
    broker = face(world, [member("a", api_key_ref="K")], secrets=users_keys)
    broker.of("ann").chat("hi")
    broker.of("bob").chat("hi")
    broker.of("ann").chat("hi")
    assert [key for _, _, key in world.hits] == ["anns-key", "shared-key", "bobs-key", "shared-key"]


@pytest.mark.parametrize("scope", ["", "  ", None, 7])
def test_a_scope_has_a_name(face: Any, scope: Any) -> None:
    with pytest.raises(InvalidRequestError):
        face(World(), ladder("a")).broker.for_scope(scope)


def test_what_concerns_everybody_is_not_a_users_business(face: Any) -> None:
    broker = face(World(a=ok()), ladder("a"))
    with pytest.raises(ConfigurationError):
        broker.of("ann").disable_llm("a")


def test_a_rotated_key_is_picked_up(face: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTATING_KEY", "old-key")
    world = World()
    world.models["a"] = [lambda body: refuse(401) if world.hits[-1][2] == "old-key" else ok("A")]
    broker = face(world, [member("a", api_key_ref="ROTATING_KEY")])
    with pytest.raises(llmbroker.NoLLMAvailableError):
        broker.chat("hi")
    monkeypatch.setenv("ROTATING_KEY", "new-key")
    world.port.advance(2)
    assert broker.chat("hi").text == "A"


class Vault:
    """Keys of an asynchronous kind."""

    async def resolve(self, ref: str, scope: str | None) -> str | None:
        await asyncio.sleep(0)
        return f"{scope or 'shared'}-{ref}"


def test_keys_may_come_from_an_object_that_is_asked_asynchronously(face: Any) -> None:
    world = World(a=ok("A"))
    broker = face(world, [member("a", api_key_ref="K")], secrets=Vault())
    broker.of("ann").chat("hi")
    assert world.hits[-1][2] == "ann-K"


def test_a_place_of_keys_that_fails_costs_a_model_its_key_but_not_the_call(face: Any) -> None:
    def vault(ref: str, scope: str | None) -> str:
        raise OSError("the vault is sealed")

    world = World(a=ok("A"), free=ok("F"))
    broker = face(world, [member("a", 0.9, api_key_ref="K"), member("free", 0.1)], secrets=vault)
    assert broker.chat("hi").llm_name == "free"
    assert any("K" in note for note in broker.snapshot().notes)
    alone = face(World(), [member("a", api_key_ref="K")], secrets=vault)
    with pytest.raises(llmbroker.NoLLMAvailableError, match="K"):
        alone.chat("hi")


def test_secrets_of_the_wrong_kind_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="secrets"):
        Broker(pool=[], secrets=7, journal=False)


# -- direct models -------------------------------------------------------------------------------------------------------


def test_a_direct_model_has_no_row_and_no_failover(face: Any) -> None:
    world = World(d=[ok("D"), refuse(500, "boom")], a=ok("A"))
    broker = face(world, ladder("a"), direct=[member("d")])
    if broker.kind == "sync":
        chat = broker.broker.direct(name="d").chat
        assert chat("hi").text == "D"
        with pytest.raises(ServerError, match="boom"):
            chat("hi")
    else:

        async def run() -> None:
            client = broker.broker.direct(name="d")
            assert (await client.chat("hi")).text == "D"
            with pytest.raises(ServerError, match="boom"):
                await client.chat("hi")
            client = await broker.broker.direct("d")
            assert client.model == "d"

        asyncio.run(run())
    assert world.asked == ["d", "d"]
    assert broker.rows() == []


def test_an_alias_of_the_catalog_needs_its_key(face: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = face(World(), ladder("a"), direct=["opus"])

    def call() -> Any:
        if broker.kind == "sync":
            return broker.broker.direct("opus")

        async def run() -> Any:
            return await broker.broker.direct("opus")

        return asyncio.run(run())

    with pytest.raises(MissingKeyError, match="ANTHROPIC_API_KEY"):
        call()
    monkeypatch.setenv("ANTHROPIC_API_KEY", "some-key")
    assert "opus" in call().model


def test_pool_models_and_unknown_ones_cannot_be_called_directly(face: Any) -> None:
    broker = face(World(), ladder("a"), direct=["opus"])
    with pytest.raises(PoolModelError):
        broker.broker.direct(name="a")
    with pytest.raises(UnknownModelError, match="opus"):
        broker.broker.direct("oppus")
    with pytest.raises(InvalidRequestError):
        broker.broker.direct()
    with pytest.raises(InvalidRequestError):
        broker.broker.direct("opus", name="x")


def test_tool_parameters_are_sent_with_tools_and_the_callers_win(face: Any) -> None:
    world = World(d=ok("D"), a=ok("A"))
    declared = {"reasoning_effort": "none", "temperature": 0.5}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    broker = face(world, [member("a", tool_params=declared)])
    broker.chat("hi")
    broker.chat("hi", tools=tools, params={"temperature": 0.1})
    assert "reasoning_effort" not in world.bodies[0]
    assert (world.bodies[1]["reasoning_effort"], world.bodies[1]["temperature"]) == ("none", 0.1)


def test_a_direct_stream_of_the_asyncio_face_looks_its_key_up_first() -> None:
    world = World(d=streamed("D"))
    broker = AsyncBroker(pool=[], direct=[member("d", api_key_ref="K")], secrets=Vault(), journal=False, io=world.port)

    async def run() -> tuple[list[str], Any]:
        stream = broker.for_scope("ann").direct("d").stream("hi")
        pieces = [piece async for piece in stream]
        return pieces, stream.reply

    pieces, reply = asyncio.run(run())
    assert (pieces, reply.text, world.hits[0][2]) == (["D"], "D", "ann-K")


def test_a_changed_model_list_keeps_what_is_known_of_the_models_that_stay(face: Any) -> None:
    world = World(a=refuse(500), b=ok("B"), c=ok("C"))
    broker = face(world, ladder("a", "b"))
    broker.chat("hi")
    broker.broker._engine.lanes.replace([*ladder("a"), member("c", 0.1)])
    assert broker.chat("hi").llm_name == "c"
    assert world.asked == ["a", "b", "c"]


def test_a_snapshot_reads_like_a_mapping(face: Any) -> None:
    broker = face(World(a=ok(), b=ok()), ladder("a", "b"))
    snapshot = broker.snapshot()
    assert (list(snapshot), len(snapshot), "a" in snapshot) == (["a", "b"], 2, True)
    assert list(snapshot.keys()) == ["a", "b"]
    assert [state.name for state in snapshot.values()] == ["a", "b"]
    assert dict(snapshot.items())["a"] is snapshot["a"]
    assert not snapshot.degraded


def test_ask_is_a_chat_of_one_message(face: Any) -> None:
    world = World(a=ok("A"))
    assert face(world, ladder("a")).ask("hi", operation="x").operation == "x"
    assert world.bodies[0]["messages"] == [{"role": "user", "content": "hi"}]


# -- sources -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["ask", "chat", "stream", "run"])
@pytest.mark.parametrize("broker", [Broker, AsyncBroker])
def test_an_argument_that_a_call_does_not_take_is_named_by_the_function_that_was_called(broker: Any, method: str) -> None:
    world = World(a=ok())
    made = broker(pool=ladder("a"), io=world.port, journal=False)
    with pytest.raises(TypeError, match=rf"{broker.__name__}\.{method}\(\) got an unexpected keyword argument 'temprature'"):
        got = getattr(made, method)("hi", temprature=0.5)
        asyncio.run(got)
    with pytest.raises(TypeError, match=rf"{broker.__name__}\.ask\(\) .*'waits'\. Did you mean 'wait'\? .*params=\{{'waits'"):
        got = made.ask("hi", waits=1)
        asyncio.run(got)
    assert world.asked == []


def test_a_model_list_is_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = tmp_path / "models.toml"
    listed.write_text(f'[[llms]]\nname = "a"\nmodel = "a"\nbase_url = "{BASE}"\napi_key_ref = ""\nweight = 0.7\n')
    world = World(a=ok("A"))
    with Broker(listed, io=world.port, home=tmp_path) as broker:
        assert broker.chat("hi").llm_name == "a"
        assert broker.snapshot()["a"].weight == 0.7
    assert (tmp_path / "journal.db").exists()


def test_a_database_is_a_source_and_the_pool_in_code_replaces_its_list(tmp_path: Path) -> None:
    world = World(a=ok("A"), b=ok("B"))
    place = str(tmp_path / "broker.db")
    with Broker(place, pool=ladder("a"), io=world.port) as broker:
        broker.chat("hi")
        broker._engine.setup.store.set_models(ladder("b"))  # type: ignore[union-attr]
    with Broker(place, io=world.port) as broker:
        assert broker.chat("hi").llm_name == "b"
        assert [row.llm_name for row in broker.calls()] == ["b", "a"]


def test_no_source_is_the_packaged_free_pool_with_keys_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(**{"openai/gpt-oss-120b": ok("free")})
    monkeypatch.setenv("GROQ_API_KEY", "some-key")
    with Broker(io=world.port) as broker:
        assert broker.chat("hi").text == "free"
        assert world.hits[0][2] == "some-key"
        assert "GEMINI_API_KEY" in broker.snapshot().missing_keys


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"source": 7}, "source"),
        ({"source": "nowhere.toml"}, "nowhere.toml"),
        ({"pool": "a"}, "pool"),
        ({"pool": [7]}, "pool"),
        ({"pool": [member("a"), member("a")]}, "'a'"),
        ({"pool": [member("a")], "direct": [member("a")]}, "'a'"),
        ({"pool": [], "journal": 7}, "journal"),
    ],
    ids=["source", "missing file", "pool", "member", "twins", "direct twin", "journal"],
)
def test_a_source_that_cannot_be_used_is_refused_by_name(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Broker(**arguments)


def test_an_unknown_provider_is_refused_before_a_key_leaves() -> None:
    with pytest.raises((InvalidRequestError, ConfigurationError)):
        Broker(pool=[LLMConfig(name="x", model="m", provider="nobody")], journal=False)


# -- the tool loop -------------------------------------------------------------------------------------------------------

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Current weather in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
CALL = [{"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}]


def loop(broker: Any, **parameters: Any) -> Any:
    arguments = {
        "tools": TOOLS,
        "dispatch": {"get_weather": lambda city: f"It is 20°C in {city}"},
        **parameters,
    }
    if broker.kind == "sync":
        return llmbroker.run_tool_loop(broker.broker, "What is the weather in Paris?", **arguments)

    async def run() -> Any:
        return await llmbroker.arun_tool_loop(broker.broker, "What is the weather in Paris?", **arguments)

    return asyncio.run(run())


def test_the_tool_loop_runs_over_the_pool_and_survives_a_failure_between_steps(face: Any) -> None:
    world = World(a=[ok("", tool_calls=CALL), refuse(500)], b=ok("20 degrees"))
    broker = face(world, ladder("a", "b"))
    reply = loop(broker, operation="weather-agent", trace_id="t1")
    assert (reply.text, reply.llm_name) == ("20 degrees", "b")
    assert world.bodies[-1]["messages"][-1]["content"] == "It is 20°C in Paris"
    rows = broker.rows(trace_id="t1")
    assert [(row.llm_name, row.status) for row in rows] == [("a", "ok"), ("a", "error"), ("b", "ok")]
    assert {row.operation for row in rows} == {"weather-agent"}
    assert [row.step for row in rows] == [1, 2, 2]
    total = broker.stats(by="trace_id")["t1"].usage.total_tokens
    assert total == 20
    broker.record_quality(1.0, trace_id="t1")
    assert broker.rows()[-1].score == 1.0


def test_the_tool_loop_runs_for_a_user(face: Any) -> None:
    world = World(a=[ok("", tool_calls=CALL), ok("20")])
    broker = face(world, [member("a", api_key_ref="K")], secrets=users_keys)
    loop(broker.of("ann"))
    assert {key for _, _, key in world.hits} == {"anns-key"}
    assert {row.scope for row in broker.rows()} == {"ann"}


def test_streams_of_a_scope_carry_it(face: Any) -> None:
    broker = face(World(a=streamed("A")), ladder("a"))
    broker.of("ann").read("hi")
    assert broker.rows()[0].scope == "ann"
