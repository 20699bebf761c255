"""What the figures of a replay say, where its rows may come from, and how it is drawn."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.broker.worlds import World, member, ok, refuse
from tests.journal.server import new_database
from tests.replaying.worlds import DIFFERENT, DOMINATED, T0, TWO, Truth, journal, near

from llmbroker import Broker, ConfigurationError, InvalidRequestError, LLMConfig, StoreError
from llmbroker.journal import Call, Journal, Rating, Store, open_store, utc
from llmbroker.replaying import replay
from llmbroker.replaying.measure import Comparison
from llmbroker.replaying.policies import always
from llmbroker.replaying.rows import gather
from llmbroker.replaying.run import _Means, _Run
from llmbroker.transports.replay import Answer

# -- what the figures say --------------------------------------------------------------------------------------------------


def test_the_same_arguments_give_the_same_result_and_another_seed_another() -> None:
    rows = journal(DIFFERENT, 400)
    first = replay(rows, seeds=2)
    assert first == replay(list(reversed(rows)), seeds=2)
    assert first != replay(rows, seeds=2, seed=1)


def test_answers_beyond_the_budget_are_none() -> None:
    truths = {("a", "x"): Truth(1.0, seconds=10.0), ("b", "x"): Truth(1.0, seconds=10.0)}
    found = replay(journal(truths, 800), budget=10.0, seeds=2)
    ours, fixed = found.policy("ours"), found.policy("best-fixed")
    assert ours is not None and fixed is not None and ours.p95 is not None and fixed.p95 is not None
    assert near(fixed.answered, 1 - 2.718281828**-1)
    assert max(ours.p95.value, fixed.p95.value) <= 10.0
    assert any("took longer than 10 s" in note for note in found.notes)


@pytest.mark.parametrize("rated", [0.0, 0.1, 1.0])
def test_models_are_chosen_by_the_figure_by_which_they_are_judged(rated: float) -> None:
    unrated = {("unrated", kind): Truth() for _, kind in DIFFERENT}
    rows = journal({**DIFFERENT, **unrated}, 600, rated=rated)
    rows = [msgspec.structs.replace(row, score=None) if row.llm_name == "unrated" else row for row in rows]
    material = gather(rows, since=None, operation=None, pool=None)
    half = _Run(material, ["best-fixed"], 60.0, 2, 0).first
    for model in material.models:
        episodes = always(half, model, 60.0)
        judged = Comparison(half, {model: episodes}, seed=0).figure(model, "good")
        assert judged is not None
        assert _Means(half, episodes).good == pytest.approx(judged.value)


def test_costs_that_are_not_known_are_told_and_not_counted_as_nothing() -> None:
    truths = {("priced", "x"): Truth(cost=0.5), ("unpriced", "x"): Truth(cost=None)}
    found = replay(journal(truths, 400), policies=["priced", "unpriced", "random", "cheapest"])
    priced, unpriced, lot = found.policy("priced"), found.policy("unpriced"), found.policy("random")
    assert priced is not None and unpriced is not None and lot is not None and priced.cost is not None
    assert (priced.cost.value, priced.unpriced) == (0.5, 0.0)
    assert (unpriced.cost, unpriced.unpriced) == (None, 1.0)
    assert lot.unpriced == pytest.approx(0.5)
    assert found.policy("cheapest").model == "priced"  # type: ignore[union-attr]


def test_an_outage_stays_an_outage_and_the_pool_goes_round_it() -> None:
    rows, dice = [], random.Random(2)
    for number in range(1000):
        model = dice.choice(["a", "b"])
        down = model == "a" and 600 <= number < 800
        facts: dict[str, Any] = {"status": "unavailable", "http_status": 503} if down else {"status": "ok"}
        rows.append(Call(ts=utc(T0 + 2.0 * number), llm_name=model, operation="x", latency_ms=400.0, **facts))
    pool = [LLMConfig(name=name, model=name, base_url="http://x.test/v1", weight=w) for name, w in (("a", 0.9), ("b", 0.4))]
    found = replay(rows, pool=pool, seeds=2, policies=["ours", "a"])
    ours, fixed = found.policy("ours"), found.policy("a")
    assert ours is not None and fixed is not None and ours.answered is not None and ours.attempts is not None
    assert near(fixed.answered, 0.6)
    assert ours.answered.value > 0.99
    # 200 of 500 calls meet the outage; a broker that did not rest a would make 0.4 more attempts a call than calls.
    assert ours.attempts.value < 1.2


def test_refusals_of_a_shared_key_rest_both_its_models() -> None:
    """The pool is the real one: who shared a key in the journal shares one here."""
    from llmbroker.replaying.pool import configs_of
    from llmbroker.replaying.rows import gather

    rows = [msgspec.structs.replace(row, key_source="environment K") for row in journal(DOMINATED, 60)]
    rows = [msgspec.structs.replace(row, key_source="environment L") if row.llm_name == "quick" else row for row in rows]
    pool, secrets = configs_of(gather(rows, since=None, operation=None, pool=None), ["best", "cheap", "quick"])
    assert [config.api_key_ref for config in pool] == ["REPLAYED_0", "REPLAYED_0", ""]
    assert pool[0].base_url == pool[1].base_url
    assert list(secrets) == ["REPLAYED_0"]


def test_attempts_that_were_stopped_do_not_make_a_model_seem_quick() -> None:
    """Half of the attempts are stopped after a second: those that would have taken longer still count as long."""
    dice = random.Random(4)
    rows = []
    for number in range(3000):
        seconds, stopped = dice.expovariate(1 / 3.0), dice.random() < 0.5
        cut = stopped and seconds > 1.0
        status: Any = "superseded" if cut else "ok"
        shown = 1000.0 if cut else 1000.0 * seconds
        rows.append(
            Call(ts=utc(T0 + 30.0 * number), llm_name=dice.choice("ab"), status=status, operation="x", latency_ms=shown)
        )
    found = replay(rows, policies=["a"])
    policy = found.policy("a")
    assert policy is not None
    assert near(policy.p50, 3.0 * 0.6931)
    assert any("had been stopped before their end" in note for note in found.notes)


def test_seldom_operations_are_taken_together() -> None:
    dice = random.Random(3)
    rows = [msgspec.structs.replace(row, operation=f"op-{dice.randrange(200)}") for row in journal(TWO, 600)]
    found = replay(rows, policies=["random"])
    assert any("are taken together" in note for note in found.notes)
    assert near(found.policy("random").good, 0.8)  # type: ignore[union-attr]


def test_several_attempts_of_a_call_are_one_request() -> None:
    rows = []
    for row in journal(TWO, 200):
        refused = msgspec.structs.replace(
            row, id=row.id + "r", group_id=row.id, status="rate_limited", http_status=429, latency_ms=100.0, score=None,
            llm_name="c", cost=None,
        )  # fmt: skip
        rows += [refused, msgspec.structs.replace(row, group_id=row.id, attempt=2, ts=row.ts + timedelta(seconds=0.1))]
    found = replay(rows, policies=["recorded"])
    recorded = found.policy("recorded")
    assert recorded is not None and recorded.attempts is not None and recorded.answered is not None
    assert (found.rows, found.requests) == (400, 200)
    assert (recorded.attempts.value, recorded.answered.value) == (2.0, 1.0)


# -- sources ---------------------------------------------------------------------------------------------------------------


def fill(store: Store, rows: list[Call]) -> None:
    for at in range(0, len(rows), 100):
        store.record(rows[at : at + 100])
    ratings = [
        Rating(call_id=row.id, score=row.score, ts=row.score_ts) for row in rows if row.score is not None and row.score_ts
    ]
    for at in range(0, len(ratings), 100):
        store.record(ratings[at : at + 100])


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_database_gives_what_its_rows_give(kind: str, tmp_path: Path) -> None:
    rows = journal(DIFFERENT, 1200, seed=1)
    where = str(tmp_path / "broker.db") if kind == "sqlite" else new_database()
    store = open_store(where)
    fill(store, rows)
    expected = replay(rows, policies=["random", "recorded"])
    assert replay(where, policies=["random", "recorded"]) == expected
    kept = Journal(store)
    assert replay(kept, policies=["random", "recorded"]) == expected
    since = rows[600].ts
    part = replay(where, since=since, operation="text", policies=["random"])
    assert part.rows == sum(row.ts >= since and row.operation == "text" for row in rows)
    kept.close()


def test_the_model_list_of_a_database_gives_the_weights(tmp_path: Path) -> None:
    from llmbroker.replaying.rows import gather

    store = open_store(tmp_path / "broker.db")
    store.set_models([LLMConfig(name="best", model="m", base_url="http://x.test/v1", weight=0.77)])
    fill(store, journal(DOMINATED, 20))
    store.close()
    found = gather(str(tmp_path / "broker.db"), since=None, operation=None, pool=None)
    assert (found.configs["best"].weight, found.listed) == (0.77, {"best"})


def test_a_database_that_is_none_or_is_not_there_says_so(tmp_path: Path) -> None:
    for where in (str(tmp_path / "nope.db"), f"sqlite:///{tmp_path}/nope.db"):
        with pytest.raises(ConfigurationError, match="There is no database"):
            replay(where)
        assert not (tmp_path / "nope.db").exists(), "to read makes no file"
    (tmp_path / "bad.db").write_bytes(b"this is no database at all" * 100)
    with pytest.raises((StoreError, ConfigurationError)):
        replay(tmp_path / "bad.db")
    assert not (tmp_path / "nope.db").exists()


WRONG: dict[str, dict[str, Any]] = {
    "a policy that is none": {"policies": ["ours", "nobody"]},
    "no policies": {"policies": []},
    "one text": {"policies": "ours"},
    "no budget": {"budget": 0},
    "a budget that is no number": {"budget": float("nan")},
    "no seeds": {"seeds": 0},
    "a time without a zone": {"since": datetime(2026, 1, 1)},
    "rows that are none": {"source": [1, 2]},
    "a source of no kind": {"source": 5},
}


@pytest.mark.parametrize("arguments", WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        replay(**{"source": journal(TWO, 30), **arguments})


# -- drawings --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_a_replay_is_drawn(ending: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"replay.{ending}"
    found = replay(journal(DOMINATED, 300), policies=["best-fixed", "random", "cheapest"])
    found.plot(path)
    assert path.stat().st_size > 5000
    if ending == "svg":
        assert "<svg" in path.read_text()
    with pytest.raises(ConfigurationError, match="cannot be written"):
        found.plot(tmp_path / "nowhere" / "x.svg")


def test_without_matplotlib_the_way_to_it_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.backends.backend_agg", None)
    found = replay(journal(DOMINATED, 300), policies=["random"])
    with pytest.raises(ConfigurationError) as caught:
        found.plot(tmp_path / "x.svg")
    assert "llmbroker[plot]" in str(caught.value)


def test_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(ConfigurationError, match="nothing to draw"):
        replay([]).plot(tmp_path / "x.svg")


def test_a_journal_that_a_broker_wrote_is_played(tmp_path: Path) -> None:
    dice = random.Random(7)

    def answering(refused: float) -> Any:
        def answer(_: dict[str, Any]) -> Answer:
            return refuse(503, delay=0.2) if dice.random() < refused else ok("yes", delay=dice.expovariate(1.0) + 0.1)

        return answer

    world = World(a=answering(0.2), b=answering(0.0))
    broker = Broker(pool=[member("a", 0.6), member("b", 0.6)], io=world.port, journal=tmp_path / "broker.db")
    quality = {"a": 0.9, "b": 0.5}
    for number in range(400):
        reply = broker.ask("hi", operation="x" if number % 2 else "y", wait=30)
        if dice.random() < 0.5:
            reply.record_quality(float(dice.random() < quality[reply.llm_name]))
        world.port.advance(dice.expovariate(1 / 20.0))
    broker.close()
    found = replay(tmp_path / "broker.db", seeds=2)
    recorded, ours = found.policy("recorded"), found.policy("ours")
    assert recorded is not None and ours is not None and ours.answered is not None and recorded.answered is not None
    assert found.requests == 400
    assert found.rows > 400
    assert found.rows + sum(int(note.split()[0]) for note in found.notes if "rows were left out" in note) >= len(world.hits)
    assert recorded.answered.value == 1.0
    assert ours.answered.value > 0.98


IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "a duration beyond all": {"latency_ms": 10**400},
    "a moment before 1970": {"ts": utc(-5.0)},
    "a moment at the end of time": {"ts": datetime.max.replace(tzinfo=utc(0.0).tzinfo)},
}


@pytest.mark.parametrize("facts", IMPOSSIBLE.values(), ids=list(IMPOSSIBLE))
def test_rows_that_cannot_be_true_are_left_out(facts: dict[str, Any]) -> None:
    rows = [Call(ts=utc(T0 + n), llm_name="ab"[n % 2], status="ok", latency_ms=100.0, cost=10**400) for n in range(60)]  # type: ignore[arg-type]
    found = replay([*rows, *(msgspec.structs.replace(row, **facts) for row in rows[:5])], seeds=1)
    assert any(note.startswith("5 rows were left out") for note in found.notes)


@pytest.mark.parametrize("pool", [[1], "a", member("a"), {"a": 1}], ids=["numbers", "a text", "one model", "a table"])
def test_a_pool_that_is_none_is_refused(pool: Any) -> None:
    with pytest.raises(InvalidRequestError, match="LLMConfig"):
        replay([], pool=pool)
