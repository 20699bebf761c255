"""The contract of a store, over every store there is."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmbroker.catalog import Limit, LLMConfig
from llmbroker.errors import InvalidRequestError, StoreError
from llmbroker.exchange import Usage
from llmbroker.journal import Call, Query, Rating, Store, open_store, utc
from llmbroker.journal.ledger import read_limits, write_limits
from llmbroker.journal.records import STATUSES
from llmbroker.journal.tidings import KEPT, MOST_RATINGS, Sent, Since, Tidings

from .conftest import T0, make_call

ANY = Query()


def read(store: Store, query: Query = ANY, limit: int = 1000) -> list[Call]:
    return store.calls(query, limit=limit)


def bare(call: Call) -> Call:
    """A call as it was written: without what only reading fills in."""
    return Call(**{**{name: getattr(call, name) for name in call.__struct_fields__}, "cursor": None})


FULL_CALL = make_call(
    1.234567,
    group_id="g",
    attempt=2,
    retry_of="r",
    scope="bob",
    operation="weather",
    trace_id="t",
    provider="groq",
    dialect="openai-chat",
    model="m",
    model_answered="m-2026",
    stream=True,
    step=3,
    http_status=200,
    error_class="X",
    error_detail="why",
    finish_reason="stop",
    usage=Usage(10, 5, 4, 3, 2, 15),
    first_event_ms=1.5,
    latency_ms=9.25,
    cost=0.00125,
    currency="USD",
    key_source="environment GROQ_API_KEY",
)


def test_every_field_of_a_call_comes_back_as_it_was_written(store: Store) -> None:
    store.record([FULL_CALL])
    assert [bare(call) for call in read(store)] == [FULL_CALL]


def test_a_field_that_is_not_known_stays_unknown(store: Store) -> None:
    call = make_call()
    store.record([call])
    assert [bare(call) for call in read(store)] == [call]
    assert read(store)[0].usage is None


def test_zero_tokens_and_unknown_tokens_differ(store: Store) -> None:
    store.record([make_call(usage=Usage(0, None, 0))])
    assert read(store)[0].usage == Usage(0, None, 0)


def test_bodies_are_read_only_when_asked_for(store: Store) -> None:
    store.record([make_call(request='{"q":1}', response='{"a":2}')])
    assert read(store)[0].request is None
    (call,) = store.calls(ANY, limit=1, bodies=True)
    assert (call.request, call.response) == ('{"q":1}', '{"a":2}')


def test_calls_come_newest_first_whatever_the_order_of_writing(store: Store) -> None:
    store.record([make_call(second, operation=str(second)) for second in (3, 1, 2)])
    assert [call.operation for call in read(store)] == ["3", "2", "1"]


def test_a_row_that_is_there_already_is_left_as_it_is(store: Store) -> None:
    call = make_call(operation="first")
    store.record([call])
    store.record([make_call(id=call.id, operation="second"), make_call(1, operation="other")])
    assert [call.operation for call in read(store)] == ["other", "first"]


def test_many_calls_of_the_same_microsecond_are_all_kept_and_paged(store: Store) -> None:
    written = [make_call() for _ in range(2500)]
    for start in range(0, 2500, 500):
        store.record(written[start : start + 500])
    assert {call.id for call in pages(store, 400)} == {call.id for call in written}


def pages(store: Store, size: int, query: Query = ANY) -> list[Call]:
    out: list[Call] = []
    cursor = None
    while page := store.calls(query, limit=size, cursor=cursor):
        out += page
        cursor = page[-1].cursor
    return out


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seconds=st.lists(st.sampled_from([0.0, 0.000001, 1.0, 2.0, 3600.0]), max_size=12), size=st.integers(1, 5))
def test_pages_laid_end_to_end_are_the_whole_in_order(store: Store, seconds: list[float], size: int) -> None:
    mark = make_call().id
    store.record([make_call(second, trace_id=mark) for second in seconds])
    query = Query(trace_id=mark)
    assert pages(store, size, query) == read(store, query)
    assert len(read(store, query)) == len(seconds)


def test_rows_written_between_two_pages_do_not_shift_the_second(store: Store) -> None:
    store.record([make_call(second, operation=str(second)) for second in range(4)])
    first = store.calls(ANY, limit=2)
    store.record([make_call(9)])
    assert [call.operation for call in store.calls(ANY, limit=2, cursor=first[-1].cursor)] == ["1", "0"]


@pytest.mark.parametrize("cursor", ["", "x", "1.5", "1; DROP TABLE llmbroker_calls"])
def test_a_cursor_that_no_row_gave_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        store.calls(ANY, limit=1, cursor=cursor)
    assert caught.value.argument == "cursor"


FILTERS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "operation": ({"operation": "x"}, {"a"}),
    "trace": ({"trace_id": "t1"}, {"a", "b"}),
    "id": ({"call_id": "b"}, {"b"}),
    "scope": ({"scope": "bob"}, {"c"}),
    "status": ({"status": "error"}, {"b"}),
    "several statuses": ({"status": ("error", "timeout")}, {"b", "c"}),
    "no status at all": ({"status": ()}, set()),
    "model": ({"llm_name": "beta"}, {"c"}),
    "several models": ({"llm_name": ("alpha", "beta")}, {"a", "b", "c", "d"}),
    "provider": ({"provider": "groq"}, {"d"}),
    "group": ({"group_id": "c"}, {"c", "d"}),
    "since": ({"since": utc(T0 + 3)}, {"c", "d"}),
    "until": ({"until": utc(T0 + 3)}, {"a", "b"}),
    "two at once": ({"trace_id": "t1", "status": "ok"}, {"a"}),
    "since in another zone": ({"since": datetime.fromtimestamp(T0 + 3, UTC).astimezone()}, {"c", "d"}),
    "hostile text": ({"operation": "' OR 1=1 --"}, set()),
}


@pytest.mark.parametrize(("filters", "expected"), FILTERS.values(), ids=FILTERS)
def test_filters_choose_rows(store: Store, filters: dict[str, Any], expected: set[str]) -> None:
    store.record(
        [
            make_call(1, id="a", operation="x", trace_id="t1"),
            make_call(2, id="b", trace_id="t1", status="error"),
            make_call(3, id="c", llm_name="beta", scope="bob", status="timeout", group_id="c"),
            make_call(4, id="d", provider="groq", group_id="c", attempt=2),
        ]
    )
    assert {call.id for call in read(store, Query(**filters))} == expected


def test_the_newest_rating_counts(store: Store) -> None:
    call = make_call()
    store.record([call])
    store.record([Rating(call_id=call.id, score=0.2, ts=utc(T0 + 5)), Rating(call_id=call.id, score=0.9, ts=utc(T0 + 9))])
    store.record([Rating(call_id=call.id, score=0.4, ts=utc(T0 + 7))])
    assert (read(store)[0].score, read(store)[0].score_ts) == (0.9, utc(T0 + 9))


def test_of_two_ratings_of_one_moment_the_later_written_counts(store: Store) -> None:
    call = make_call()
    store.record([call, *(Rating(call_id=call.id, score=score, ts=utc(T0)) for score in (0.1, 0.7))])
    assert read(store)[0].score == 0.7


def test_a_rating_written_twice_is_one_rating(store: Store) -> None:
    call = make_call()
    rating = Rating(call_id=call.id, score=0.5, ts=utc(T0))
    store.record([call, rating])
    store.record([rating])
    assert store.stats(ANY)["alpha"].rated == 1


def test_the_call_that_a_trace_means_is_its_newest_successful_one(store: Store) -> None:
    store.record(
        [
            make_call(1, id="old", trace_id="t"),
            make_call(2, id="new", trace_id="t"),
            make_call(3, id="failed", trace_id="t", status="error"),
            make_call(4, id="theirs", trace_id="t", scope="eve"),
        ]
    )
    found = store.find(scope=None, trace_id="t"), store.find(scope="eve", trace_id="t"), store.find(scope="bob", trace_id="t")
    assert [call and call.id for call in found] == ["theirs", "theirs", None]


def test_a_call_is_found_by_its_id_whatever_its_status_but_only_in_its_scope(store: Store) -> None:
    store.record([make_call(id="a", status="error", scope="bob")])
    found = store.find(scope=None, call_id="a"), store.find(scope="bob", call_id="a"), store.find(scope="eve", call_id="a")
    assert [call and call.id for call in found] == ["a", "a", None]


# -- sums ----------------------------------------------------------------------------------------------------------------


def test_stats_count_by_status_and_add_what_is_known(store: Store) -> None:
    store.record(
        [
            make_call(1, usage=Usage(10, 5, total_tokens=15), cost=0.5),
            make_call(2, usage=Usage(1, None), cost=None),
            make_call(3, status="rate_limited", http_status=429),
        ]
    )
    stats = store.stats(ANY)["alpha"]
    assert (stats.total, stats.by_status) == (3, {"ok": 2, "rate_limited": 1})
    assert stats.usage == Usage(11, 5, total_tokens=15)
    assert (stats.cost, stats.unpriced) == (0.5, 1)
    assert (stats.first_at, stats.last_at, stats.last_status) == (utc(T0 + 1), utc(T0 + 3), "rate_limited")


UNPRICED: dict[str, tuple[dict[str, Any], int]] = {
    "answered, price unknown": ({"status": "ok"}, 1),
    "answered, priced": ({"status": "ok", "cost": 0.1}, 0),
    "free": ({"status": "ok", "cost": 0.0}, 0),
    "refused before any work": ({"status": "rate_limited", "http_status": 429}, 0),
    "never reached": ({"status": "unavailable"}, 0),
    "caller left, provider at work": ({"status": "cancelled"}, 1),
    "timed out, provider at work": ({"status": "timeout"}, 1),
    "lost the race": ({"status": "superseded"}, 1),
    "garbage in a 200": ({"status": "error", "http_status": 200}, 1),
    "broke after some tokens": ({"status": "error", "usage": Usage(3, 1)}, 1),
    "refused": ({"status": "error", "http_status": 400}, 0),
}


@pytest.mark.parametrize(("facts", "unpriced"), UNPRICED.values(), ids=UNPRICED)
def test_what_may_have_cost_something_without_a_price_is_counted(store: Store, facts: dict[str, Any], unpriced: int) -> None:
    store.record([make_call(**facts)])
    assert store.stats(ANY)["alpha"].unpriced == unpriced


def test_no_known_cost_is_unknown_not_zero(store: Store) -> None:
    store.record([make_call()])
    stats = store.stats(ANY)["alpha"]
    assert (stats.cost, stats.usage, stats.unmeasured) == (None, Usage(), 1)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40))
def test_quantiles_are_those_of_the_sorted_list(store: Store, latencies: list[int]) -> None:
    mark = make_call().id
    store.record([make_call(latency_ms=float(ms), trace_id=mark) for ms in latencies])
    store.record([make_call(latency_ms=1e6, trace_id=mark, status="error"), make_call(trace_id=mark)])
    found = store.stats(Query(trace_id=mark))["alpha"].latency
    in_order = sorted(latencies)
    nearest = [float(in_order[-(-len(in_order) * percent // 100) - 1]) for percent in (50, 95, 99)]
    assert [found.p50, found.p95, found.p99] == nearest


def test_quality_is_the_mean_of_the_newest_ratings(store: Store) -> None:
    calls = [make_call(1), make_call(2), make_call(3)]
    store.record(calls)
    for call, score, second in ((calls[0], 0.0, 1), (calls[0], 1.0, 2), (calls[1], 0.5, 1)):
        store.record([Rating(call_id=call.id, score=score, ts=utc(T0 + second))])
    stats = store.stats(ANY)["alpha"]
    assert (stats.rated, stats.quality) == (2, 0.75)


GROUPS: dict[str, set[str]] = {
    "llm_name": {"alpha", "beta"},
    "provider": {"", "groq"},
    "operation": {"", "x"},
    "scope": {"", "bob"},
    "status": {"ok", "error"},
    "trace_id": {"t", ""},
    "model": {"m", ""},
    "day": {"2026-09-21", "2026-09-22"},
    "all": {"all"},
}


@pytest.mark.parametrize(("by", "keys"), GROUPS.items(), ids=GROUPS)
def test_stats_group_by(store: Store, by: Any, keys: set[str]) -> None:
    store.record(
        [
            make_call(0, operation="x", trace_id="t", scope="bob", model="m"),
            make_call(86400, llm_name="beta", provider="groq", status="error"),
        ]
    )
    found = store.stats(ANY, by=by)
    assert set(found) == keys
    assert sum(stats.total for stats in found.values()) == 2


def test_stats_refuse_a_grouping_that_does_not_exist(store: Store) -> None:
    with pytest.raises(InvalidRequestError, match="grouping"):
        store.stats(ANY, by="id; DROP TABLE llmbroker_calls")  # type: ignore[arg-type]


def test_stats_of_nothing_are_empty(store: Store) -> None:
    assert store.stats(Query(operation="none")) == {}


# -- retention -----------------------------------------------------------------------------------------------------------


def test_pruning_takes_the_oldest_in_batches_and_their_ratings_with_them(store: Store) -> None:
    calls = [make_call(second, id=f"c{second}", request="q") for second in range(5)]
    store.record([*calls, *(Rating(call_id=call.id, score=1.0, ts=call.ts) for call in calls)])
    before = utc(T0 + 3)
    assert [store.prune(before, batch=2) for _ in range(3)] == [2, 1, 0]
    assert [call.id for call in read(store)] == ["c4", "c3"]
    store.record([make_call(0, id="c0")])
    (again,) = store.calls(Query(call_id="c0"), limit=1, bodies=True)
    assert (again.score, again.request) == (None, None)


# -- what goes with the journal --------------------------------------------------------------------------------------------


def test_the_model_list_is_replaced_as_a_whole_and_keeps_its_order(store: Store) -> None:
    first = LLMConfig(name="z", model="m", provider="groq", weight=0.7, parallel=3, price={"input": 1.0, "output": 2.0})
    second = LLMConfig(
        name="a", model="m", base_url="http://localhost:1/v1", api_key_ref="", tool_params={"reasoning_effort": "none"}
    )
    store.set_models([first, second])
    assert store.models() == [first, second]
    store.set_models([second])
    assert store.models() == [second]


def test_a_model_list_with_a_name_twice_leaves_the_old_list(store: Store) -> None:
    first = LLMConfig(name="a", model="m", provider="groq")
    store.set_models([first])
    with pytest.raises(Exception, match="cannot be used"):
        store.set_models([first, first])
    assert store.models() == [first]


def test_lists_that_are_replaced_at_the_same_time_follow_each_other(store: Store) -> None:
    errors: list[BaseException] = []
    names = [tuple(f"{writer}{n}" for n in range(writer + 1)) for writer in range(4)]

    def write(own: Store, mine: tuple[str, ...]) -> None:
        try:
            for _ in range(10):
                own.set_models([LLMConfig(name=name, model="m", provider="groq") for name in mine])
                write_limits(own, [Limit(name=name, calls=1) for name in mine])
        except BaseException as error:  # noqa: BLE001 - shown by the assertion
            errors.append(error)

    memory = store.where == ":memory:"
    store.models()
    owns = [store if memory else open_store(store.where) for _ in names]
    threads = [threading.Thread(target=write, args=pair) for pair in zip(owns, names, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for own in owns if not memory else ():
        own.close()
    assert errors == []
    assert tuple(model.name for model in store.models()) in names
    assert tuple(limit.name for limit in read_limits(store)) in names


def test_a_damaged_model_list_is_named_with_what_to_do(store: Store) -> None:
    store.set_models([LLMConfig(name="a", model="m", provider="groq")])
    store.transact(lambda db: db.execute("UPDATE llmbroker_models SET config = '{'"))
    with pytest.raises(StoreError, match=r"model list in .* is damaged") as caught:
        store.models()
    assert caught.value.reason == "corrupt"
    store.set_models([])
    assert store.models() == []


@pytest.mark.parametrize("text", ["{", '{"calls": -1}', '{"calls": "many"}'])
def test_a_damaged_list_of_limits_is_an_error_of_the_store(store: Store, text: str) -> None:
    write_limits(store, [Limit(calls=1)])
    store.transact(lambda db: db.execute("UPDATE llmbroker_limits SET config = ?", (text,)))
    with pytest.raises(StoreError, match=r"list of limits in .* is damaged") as caught:
        read_limits(store)
    assert caught.value.reason == "corrupt"
    write_limits(store, [])
    assert read_limits(store) == []


def test_disabled_models_are_remembered(store: Store) -> None:
    store.set_disabled("a", True)
    store.set_disabled("b", True)
    store.set_disabled("b", False)
    assert store.disabled() == {"a": True, "b": False}


def test_ciphertext_is_kept_by_ref_and_scope(store: Store) -> None:
    store.set_secret("K", None, b"shared")
    store.set_secret("K", "bob", b"bobs")
    store.set_secret("K", "bob", b"bobs new\x00\xff")
    assert [store.secret("K", scope) for scope in (None, "bob", "eve")] == [b"shared", b"bobs new\x00\xff", None]
    assert store.secrets() == [("K", None), ("K", "bob")]
    store.set_secret("K", None, None)
    assert store.secrets() == [("K", "bob")]


def test_small_state_is_kept_by_name(store: Store) -> None:
    store.set_state("learning", b"1")
    store.set_state("learning", b"2")
    assert (store.state("learning"), store.state("other")) == (b"2", None)
    store.set_state("learning", None)
    assert store.state("learning") is None


# -- odd values and many hands ---------------------------------------------------------------------------------------------


ODD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "lone surrogate": ({"operation": "a\ud800b"}, {"operation": "a?b"}),
    "zero byte": ({"operation": "a\0b", "trace_id": "\ud800"}, {"operation": "a\ufffdb"}),
    "huge count": ({"usage": Usage(2**70, 5)}, {"usage": Usage(None, 5)}),
    "not a number": ({"cost": float("nan")}, {"cost": None}),
    "far future": ({"ts": datetime(9999, 1, 1, tzinfo=UTC)}, {"ts": datetime(2250, 1, 1, tzinfo=UTC)}),
    "before 1970": ({"ts": datetime(1960, 1, 1, tzinfo=UTC)}, {"ts": datetime(1960, 1, 1, tzinfo=UTC)}),
    "another type": ({"operation": ("a", 1)}, {"operation": "('a', 1)"}),
    "all of Unicode": ({"operation": "grüße 🦜 日本 \u2028"}, {"operation": "grüße 🦜 日本 \u2028"}),
}


@pytest.mark.parametrize(("given", "kept"), ODD.values(), ids=ODD)
def test_odd_values_are_mended_and_the_row_is_kept(store: Store, given: dict[str, Any], kept: dict[str, Any]) -> None:
    store.record([make_call(**given)])
    (call,) = read(store)
    assert {name: getattr(call, name) for name in kept} == kept


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(max_size=20),
    status=st.sampled_from(STATUSES),
    tokens=st.lists(st.none() | st.integers(0, 2**63 - 1), min_size=6, max_size=6),
    cost=st.none() | st.floats(0, 1e6),
    second=st.floats(-1e8, 1e8),
)
def test_any_call_makes_the_round_trip(
    store: Store, text: str, status: Any, tokens: list[int | None], cost: float | None, second: float
) -> None:
    usage = Usage(*tokens) if any(n is not None for n in tokens) else None
    call = make_call(second, status=status, operation=text, error_detail=text, usage=usage, cost=cost)
    store.record([call])
    (back,) = store.calls(Query(call_id=call.id), limit=1)
    if "\0" not in text:
        assert bare(back) == call


def test_threads_write_and_read_together_and_nothing_is_lost(store: Store) -> None:
    def write(name: str) -> None:
        for index in range(60):
            store.record([make_call(index, operation=name)])
            if index % 20 == 0:
                store.stats(ANY)

    threads = [threading.Thread(target=write, args=(str(n),)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {key: stats.total for key, stats in store.stats(ANY, by="operation").items()} == {str(n): 60 for n in range(6)}


def test_a_closed_store_opens_again_when_it_is_used(store: Store) -> None:
    if store.where == ":memory:":
        pytest.skip("what is in memory ends with its connection")
    store.record([make_call()])
    store.close()
    store.close()
    assert len(read(store)) == 1


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="time zone"):
        Query(since=datetime(2026, 1, 1))


def test_a_status_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="rate_limited"):
        Query(status="slow")


def test_a_day_is_a_day_of_utc(store: Store) -> None:
    midnight = datetime(2026, 3, 1, tzinfo=UTC)
    store.record([make_call(ts=midnight - timedelta(microseconds=1)), make_call(ts=midnight)])
    assert list(store.stats(ANY, by="day")) == ["2026-02-28", "2026-03-01"]


# -- what processes tell each other ----------------------------------------------------------------------------------------


def tell(store: Store, **what: Any) -> None:
    store.tell(Tidings(at=what.pop("at", T0), **what))


def test_a_note_is_told_once_and_again_when_it_changes(store: Store) -> None:
    tell(store, notes={"a": b"1", "b": b"2"})
    first = store.look(Since())
    assert first.notes == {"a": b"1", "b": b"2"}
    assert store.look(Since(stamp=first.stamp)).notes == {}
    tell(store, notes={"a": b"3"})
    assert store.look(Since(stamp=first.stamp)).notes == {"a": b"3"}


def test_counts_are_told_whole_and_the_newest_holds(store: Store) -> None:
    tell(store, sent=[Sent("k", "me", 5, 1), Sent("k", "you", 5, 2, 7.5)])
    first = store.look(Since())
    assert sorted((one.sender, one.number, one.size) for one in first.sent) == [("me", 1, 0.0), ("you", 2, 7.5)]
    tell(store, sent=[Sent("k", "me", 5, 4)])
    assert [one.number for one in store.look(Since(stamp=first.stamp)).sent] == [4]


def test_old_counts_and_notes_are_forgotten_and_no_stamp_is_given_twice(store: Store) -> None:
    tell(store, notes={"old": b"x"}, sent=[Sent("k", "me", 5, 1), Sent("other", "me", 5, 1)])
    tell(store, sent=[Sent("k", "me", 50, 1)])
    last = store.look(Since()).stamp
    tell(store, at=T0 + KEPT + 5, stale={"k": 60})
    tell(store, at=T0 + KEPT + 5, notes={"new": b"y"}, stale={"k": 60})
    look = store.look(Since())
    assert set(look.notes) == {"new"}
    assert [one.name for one in look.sent if one.second < 50] == ["other"]
    assert look.stamp > last
    assert set(store.look(Since(stamp=last)).notes) == {"new"}


def test_a_rating_is_seen_once_with_its_call_and_what_counts_of_it(store: Store) -> None:
    call = make_call(operation="op")
    store.record([call, Rating(call_id=call.id, score=0.2, ts=utc(T0 + 5)), Rating(call_id="nobody", score=1.0, ts=utc(T0))])
    look = store.look(Since())
    assert [(one.llm_name, one.operation, one.score) for one in look.rated] == [("alpha", "op", 0.2), (None, None, 1.0)]
    assert store.look(Since(rated=look.highest)).rated == []
    store.record([Rating(call_id=call.id, score=0.9, ts=utc(T0 + 4))])  # late: an older judgement does not replace a newer one
    assert [one.score for one in store.look(Since(rated=look.highest)).rated] == [0.2]


def test_ratings_that_became_visible_late_are_asked_for_again(store: Store) -> None:
    call = make_call()
    store.record([call, *(Rating(call_id=call.id, score=0.5, ts=utc(T0 + n)) for n in range(3))])
    look = store.look(Since())
    numbers = [one.number for one in look.rated]
    assert [one.number for one in store.look(Since(rated=numbers[-1], missed=(numbers[0],))).rated] == [numbers[0]]


def test_ratings_whose_numbers_are_given_anew_are_seen(store: Store) -> None:
    old = make_call()
    store.record([old, *(Rating(call_id=old.id, score=0.5, ts=utc(T0)) for _ in range(5))])
    highest = store.look(Since()).highest
    assert store.prune(utc(T0 + 1), batch=10) == 1
    new = make_call(60)
    store.record([new, Rating(call_id=new.id, score=0.7, ts=utc(T0 + 60))])
    assert [one.call_id for one in store.look(Since(rated=highest)).rated] == [new.id]


def test_a_flood_of_ratings_is_taken_from_its_new_end(store: Store) -> None:
    call = make_call()
    store.record([call, *(Rating(call_id=call.id, score=0.5, ts=utc(T0 + n)) for n in range(MOST_RATINGS + 5))])
    look = store.look(Since())
    assert len(look.rated) == MOST_RATINGS
    assert look.rated[-1].number == look.highest


def test_switched_models_are_told_with_every_look(store: Store) -> None:
    store.set_disabled("a", True)
    store.set_disabled("b", False)
    assert store.look(Since()).switched == {"a": True, "b": False}


def test_stamps_are_not_given_twice_by_writers_at_once(store: Store) -> None:
    def write(name: str) -> None:
        for number in range(20):
            tell(store, notes={f"{name}{number}": b"x"})

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    seen: dict[str, bytes] = {}
    stamp = 0
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        look = store.look(Since(stamp=stamp))
        assert not seen.keys() & look.notes.keys()
        seen.update(look.notes)
        stamp = look.stamp
    for thread in threads:
        thread.join()
    seen.update(store.look(Since(stamp=stamp)).notes)
    assert len(seen) == 60


def test_rows_of_one_moment_stay_in_the_order_in_which_they_were_written(store: Store) -> None:
    calls = [make_call(float(n % 3), id=f"c{n}") for n in range(1200)]
    for start in range(0, 1200, 300):
        store.record(calls[start : start + 300])
    for second in range(3):
        ids = [call.id for call in read(store, Query(), limit=2000) if call.ts == utc(T0 + second)]
        assert ids == [f"c{n}" for n in reversed(range(1200)) if n % 3 == second]
