"""One whole call over a pool: failover, blame, waiting, deadlines, races."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tests.broker.worlds import World, ladder, member, ok, refuse, streamed

from llmbroker import (
    AuthError,
    BadRequestError,
    ContextWindowError,
    InvalidRequestError,
    MalformedCallError,
    NoLLMAvailableError,
    UnsupportedFeatureError,
)
from llmbroker.transports.replay import Answer

MESSAGE = "hi"


def test_the_heaviest_model_answers(face: Any) -> None:
    broker = face(World(a=ok("A"), b=ok("B")), ladder("a", "b"))
    assert [broker.chat(MESSAGE).llm_name for _ in range(20)] == ["a"] * 20


FAULTS = {
    "500": refuse(500),
    "503": refuse(503),
    "529": refuse(529),
    "502 with an HTML body": Answer(status=502, headers={"content-type": "text/html"}, body="<html>bad gateway</html>"),
    "429": refuse(429),
    "401": refuse(401),
    "402": refuse(402),
    "404": refuse(404),
    "connection refused": Answer(fault="refuse"),
    "reset": Answer(fault="reset"),
    "not HTTP": Answer(fault="garbage"),
    "cut body": Answer(body=['{"choices": [{"ind'], fault="cut"),
    "not JSON": Answer(body="certainly!"),
    "200 with an error body": Answer(body={"error": {"message": "overloaded", "code": 503}}),
    "empty answer": ok(""),
    "blank answer": ok(" \n"),
    "no choices": Answer(body={"choices": []}),
    "ended in an error": ok("", finish_reason="error"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_faulty_model_is_passed_over_at_once(face: Any, fault: Answer) -> None:
    world = World(a=fault, b=ok("B"))
    broker = face(world, ladder("a", "b"))
    reply = broker.chat(MESSAGE)
    assert (reply.text, reply.llm_name, world.port.now()) == ("B", "b", 0.0)
    assert [a.llm_name for a in reply.attempts] == ["a", "b"]
    assert world.asked == ["a", "b"]
    rows = broker.rows()
    assert [(r.llm_name, r.status == "ok") for r in rows] == [("a", False), ("b", True)]
    assert [r.id for r in rows] == [a.id for a in reply.attempts]
    assert reply.call_id == rows[1].id


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_faulty_model_is_not_asked_again_at_once(face: Any, fault: Answer) -> None:
    world = World(a=fault, b=ok("B"))
    broker = face(world, ladder("a", "b"))
    for _ in range(5):
        broker.chat(MESSAGE)
    assert world.asked.count("a") == 1
    state = broker.snapshot()["a"]
    assert not state.available
    assert state.reason
    assert state.until is not None


@pytest.mark.parametrize("status", [400, 413, 422])
def test_the_callers_own_fault_comes_back_at_once_and_punishes_nobody(face: Any, status: int) -> None:
    world = World(a=refuse(status, "temperature is too high"), b=ok())
    broker = face(world, ladder("a", "b"))
    with pytest.raises(BadRequestError, match="temperature"):
        broker.chat(MESSAGE)
    assert world.asked == ["a"]
    assert broker.snapshot()["a"].available
    assert broker.statuses() == [("a", "error")]


def test_a_request_too_long_for_one_model_goes_to_another_and_is_remembered(face: Any) -> None:
    too_long = refuse(400, "maximum context length is 10 tokens", code="context_length_exceeded")
    world = World(a=[too_long, ok("A")], b=ok("B"))
    broker = face(world, ladder("a", "b"))
    assert broker.chat("x" * 1000).llm_name == "b"
    assert broker.chat("x" * 2000).llm_name == "b"
    assert world.asked == ["a", "b", "b"]
    assert broker.chat("short").llm_name == "a"


def test_a_request_too_long_for_everybody_is_the_callers_error(face: Any) -> None:
    too_long = refuse(400, "maximum context length is 10 tokens", code="context_length_exceeded")
    world = World(a=too_long, b=too_long)
    broker = face(world, ladder("a", "b"))
    with pytest.raises(ContextWindowError):
        broker.chat("x" * 1000)
    assert world.asked == ["a", "b"]
    assert broker.snapshot()["a"].available


def test_a_feature_that_one_model_lacks_is_looked_for_elsewhere_and_remembered(face: Any) -> None:
    lacks = refuse(400, "this model does not support tools", code="unsupported_parameter")
    world = World(a=[lacks, ok("A")], b=ok("B"))
    broker = face(world, ladder("a", "b"))
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    try:
        first = broker.chat(MESSAGE, tools=tools)
    except (UnsupportedFeatureError, BadRequestError):
        pytest.skip("this refusal is not read as a lacking feature")
    assert first.llm_name == "b"
    assert broker.chat(MESSAGE, tools=tools).llm_name == "b"
    assert broker.chat(MESSAGE).llm_name == "a"


def test_what_the_catalog_says_a_model_cannot_do_is_not_tried(face: Any) -> None:
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x.test/a.png"}}]}]
    world = World(**{"openai/gpt-oss-120b": ok("blind"), "b": ok("B")})
    blind = member("a", 0.9)
    pool = [
        type(blind)(name="a", model="openai/gpt-oss-120b", base_url=blind.base_url, weight=0.9, api_key_ref=""),
        member("b"),
    ]
    broker = face(world, pool)
    assert broker.chat(image).llm_name == "b"
    assert broker.chat("no image").llm_name == "a"


def test_without_anybody_who_has_the_feature_the_error_says_so(face: Any) -> None:
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x.test/a.png"}}]}]
    blind = member("a", 0.9)
    pool = [type(blind)(name="a", model="openai/gpt-oss-120b", base_url=blind.base_url, api_key_ref="")]
    broker = face(World(), pool)
    with pytest.raises(NoLLMAvailableError, match="images") as caught:
        broker.chat(image)
    assert caught.value.reason == "unable"


# -- keys ----------------------------------------------------------------------------------------------------------------


def test_a_refused_key_rests_with_all_its_models_and_is_tried_again(face: Any) -> None:
    world = World(a=refuse(401), a2=ok("A2"), b=ok("B"))
    pool = [member("a", 0.9, api_key_ref="K1"), member("a2", 0.8, api_key_ref="K1"), member("b", 0.1, api_key_ref="K2")]
    broker = face(world, pool, secrets={"K1": "one-key", "K2": "two-key"})
    assert broker.chat(MESSAGE).llm_name == "b"
    assert world.asked == ["a", "b"]
    assert broker.snapshot()["a2"].reason == "key_refused"
    world.then("a", ok("A"))
    world.port.advance(400)
    assert broker.chat(MESSAGE).llm_name in ("a", "b")
    assert "a" in world.asked[2:]


def test_a_lone_refused_key_fails_at_once_and_names_the_variable(face: Any) -> None:
    world = World(a=refuse(401))
    broker = face(world, [member("a", api_key_ref="MY_KEY")], secrets={"MY_KEY": "some-key"})
    with pytest.raises(NoLLMAvailableError, match="MY_KEY") as caught:
        broker.chat(MESSAGE)
    assert caught.value.reason == "no_keys"
    assert isinstance(caught.value.__cause__, AuthError)
    assert world.port.now() == 0.0


def test_a_403_for_one_request_does_not_rest_the_key(face: Any) -> None:
    world = World(a=[refuse(403, "not in your region"), ok("A")], a2=ok("A2"))
    pool = [member("a", 0.9, api_key_ref="K1"), member("a2", 0.8, api_key_ref="K1")]
    broker = face(world, pool, secrets={"K1": "one-key"})
    assert broker.chat(MESSAGE).llm_name == "a2"
    assert broker.chat(MESSAGE).llm_name == "a"


def test_a_model_that_denies_every_request_rests(face: Any) -> None:
    world = World(a=refuse(403, "not in your region"), b=ok("B"))
    broker = face(world, ladder("a", "b"))
    for _ in range(10):
        assert broker.chat(MESSAGE).llm_name == "b"
    assert world.asked.count("a") == 3


def test_each_attempt_carries_its_own_key(face: Any) -> None:
    world = World(a=refuse(401), b=ok("B"))
    pool = [member("a", 0.9, api_key_ref="K1"), member("b", 0.8, api_key_ref="K2")]
    face(world, pool, secrets={"K1": "one-key", "K2": "two-key"}).chat(MESSAGE)
    assert [(m, k) for _, m, k in world.hits] == [("a", "one-key"), ("b", "two-key")]


def test_no_key_at_all_says_which_would_help(face: Any) -> None:
    broker = face(World(), [member("a", api_key_ref="SOME_KEY")])
    with pytest.raises(NoLLMAvailableError, match="SOME_KEY") as caught:
        broker.chat(MESSAGE)
    assert caught.value.reason == "no_keys"


def test_an_empty_pool_says_so(face: Any) -> None:
    with pytest.raises(NoLLMAvailableError, match="empty") as caught:
        face(World(), []).chat(MESSAGE)
    assert caught.value.reason == "empty_pool"


def test_a_pool_that_is_switched_off_says_so_and_can_be_switched_on(face: Any) -> None:
    broker = face(World(a=ok("A")), ladder("a"))
    broker.disable_llm("a")
    with pytest.raises(NoLLMAvailableError, match="switched off") as caught:
        broker.chat(MESSAGE)
    assert caught.value.reason == "all_disabled"
    broker.enable_llm("a")
    assert broker.chat(MESSAGE).text == "A"


# -- quota ---------------------------------------------------------------------------------------------------------------


def test_a_spent_quota_rests_all_models_of_the_key(face: Any) -> None:
    world = World(a=refuse(429, "slow down", retry_after="7"), a2=ok("A2"), b=ok("B"))
    pool = [member("a", 0.9, api_key_ref="K1"), member("a2", 0.8, api_key_ref="K1"), member("b", 0.1, api_key_ref="K2")]
    broker = face(world, pool, secrets={"K1": "one-key", "K2": "two-key"})
    assert broker.chat(MESSAGE).llm_name == "b"
    assert world.asked == ["a", "b"]
    assert broker.rows()[0].status == "rate_limited"
    snapshot = broker.snapshot()
    assert snapshot["a2"].reason == "rate_limited"
    assert snapshot["a2"].until.timestamp() == pytest.approx(world.port.time() + 7)


def test_a_spent_quota_of_one_model_rests_that_model_alone(face: Any) -> None:
    spent = refuse(429, "Rate limit reached for model `long-model-name` on tokens per minute", retry_after="7")
    world = World(**{"long-model-name": spent, "a2": ok("A2")})
    pool = [member("long-model-name", 0.9, api_key_ref="K1"), member("a2", 0.8, api_key_ref="K1")]
    broker = face(world, pool, secrets={"K1": "one-key"})
    assert broker.chat(MESSAGE).llm_name == "a2"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after": "7"}, 7.0),
        ({"retry_after": "0.5"}, 0.5),
        ({"retry_after_ms": "1500"}, 1.5),
        ({"x_ratelimit_reset_requests": "1m30s", "x_ratelimit_remaining_requests": "0"}, 90.0),
        ({"retry_after": "99999999"}, 3600.0),
    ],
    ids=["seconds", "fraction", "milliseconds", "reset header", "absurd"],
)
def test_a_stated_wait_is_taken_as_said_within_bounds(face: Any, headers: dict[str, str], seconds: float) -> None:
    world = World(a=refuse(429, "slow down", **headers), b=ok("B"))
    broker = face(world, [member("a", 0.9, api_key_ref="K1"), member("b", 0.1)], secrets={"K1": "one-key"})
    broker.chat(MESSAGE)
    assert broker.snapshot()["a"].until.timestamp() == pytest.approx(world.port.time() + seconds, abs=0.01)


def test_a_lone_model_is_waited_for_as_long_as_it_said(face: Any) -> None:
    world = World(a=[refuse(429, retry_after="20"), ok("A")])
    broker = face(world, ladder("a"))
    reply = broker.chat(MESSAGE, wait=30)
    assert (reply.text, [t for t, _, _ in world.hits]) == ("A", [0.0, 20.0])
    assert broker.rows()[1].retry_of == broker.rows()[0].id


def test_a_wait_longer_than_the_budget_fails_at_once_and_says_when(face: Any) -> None:
    world = World(a=refuse(429, retry_after="60"))
    broker = face(world, ladder("a"))
    with pytest.raises(NoLLMAvailableError, match="rate limited") as caught:
        broker.chat(MESSAGE, wait=30)
    assert world.port.now() == 0.0
    assert caught.value.retry_at.timestamp() == pytest.approx(world.port.time() + 60)
    assert [a.status for a in caught.value.attempts] == ["rate_limited"]


def test_a_zero_wait_does_not_queue(face: Any) -> None:
    world = World(a=refuse(429, retry_after="1"), b=refuse(500))
    broker = face(world, ladder("a", "b"))
    with pytest.raises(NoLLMAvailableError):
        broker.chat(MESSAGE, wait=0)
    assert world.port.now() == 0.0
    assert world.asked == ["a", "b"]


def test_a_zero_wait_gives_an_attempt_its_time(face: Any) -> None:
    broker = face(World(a=ok("A", delay=30)), ladder("a"))
    assert broker.chat(MESSAGE, wait=0).text == "A"


def test_no_wait_given_ends_after_ten_minutes(face: Any) -> None:
    world = World(a=refuse(500))
    broker = face(world, ladder("a"))
    with pytest.raises(NoLLMAvailableError) as caught:
        broker.chat(MESSAGE)
    assert 400 < world.port.now() <= 600
    assert len(caught.value.attempts) == len(world.hits) < 25


@pytest.mark.parametrize("wait", [float("nan"), -1, float("inf"), "5", True])
def test_a_wait_that_means_nothing_is_refused(face: Any, wait: Any) -> None:
    world = World(a=ok())
    with pytest.raises(InvalidRequestError, match="wait"):
        face(world, ladder("a")).chat(MESSAGE, wait=wait)
    assert world.hits == []


def test_a_negative_wait_is_refused_in_words_that_leave_0_in(face: Any) -> None:
    with pytest.raises(InvalidRequestError, match="wait is 0 seconds or more, not -1"):
        face(World(a=ok()), ladder("a")).chat(MESSAGE, wait=-1)


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "2"])
def test_a_race_of_nobody_is_refused(face: Any, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="fastest_of"):
        face(World(a=ok()), ladder("a")).chat(MESSAGE, fastest_of=value)


# -- retries and rests ---------------------------------------------------------------------------------------------------


def test_a_lone_failing_model_is_asked_again_after_a_growing_pause(face: Any) -> None:
    world = World(a=[refuse(500)] * 4 + [ok("A")])
    broker = face(world, ladder("a"))
    assert broker.chat(MESSAGE, wait=120).text == "A"
    times = [t for t, _, _ in world.hits]
    pauses = [round(b - a, 1) for a, b in itertools.pairwise(times)]
    assert len(pauses) == 4
    assert all(later > earlier * 1.5 for earlier, later in itertools.pairwise(pauses))


def test_each_model_is_asked_once_a_pass(face: Any) -> None:
    world = World(a=refuse(500), b=refuse(500), c=refuse(500))
    broker = face(world, ladder("a", "b", "c"))
    with pytest.raises(NoLLMAvailableError):
        broker.chat(MESSAGE, wait=1.5)
    assert world.asked == ["a", "b", "c"]


def test_one_incident_met_by_many_calls_counts_once(face: Any) -> None:
    world = World(a=refuse(429, delay=0.1, retry_after="1"), b=ok("B", delay=0.1))
    broker = face(world, ladder("a", "b"))
    replies = broker.together(*[{"wait": 30}] * 12)
    assert {r.llm_name for r in replies} == {"b"}
    assert world.asked.count("a") == 12
    state = broker.snapshot()["a"]
    assert state.failures == 1
    assert state.until.timestamp() - world.port.time() <= 1.0


def test_a_dead_model_is_retired_for_a_period(face: Any) -> None:
    world = World(a=refuse(404, "no such model"), b=ok("B"))
    broker = face(world, ladder("a", "b"))
    for _ in range(30):
        broker.chat(MESSAGE)
        world.port.advance(60)
    assert world.asked.count("a") == 1
    world.port.advance(3600)
    broker.chat(MESSAGE)
    assert world.asked.count("a") == 2


def test_a_model_that_always_refuses_gets_next_to_nothing(face: Any) -> None:
    world = World(a=refuse(429), b=ok("B"))
    broker = face(world, ladder("a", "b"))
    for _ in range(600):
        broker.chat(MESSAGE)
        world.port.advance(1)
    assert world.asked.count("a") <= 12


def test_a_malformed_call_goes_to_another_model_without_punishment(face: Any) -> None:
    bad = refuse(400, "Failed to parse tool call arguments", code="tool_use_failed")
    world = World(a=[bad, ok("A")], b=ok("B"))
    broker = face(world, ladder("a", "b"))
    assert broker.chat(MESSAGE).llm_name == "b"
    assert broker.snapshot()["a"].available


def test_a_malformed_call_of_the_only_model_comes_back(face: Any) -> None:
    broker = face(World(a=refuse(400, "Failed to parse", code="tool_use_failed")), ladder("a"))
    with pytest.raises(MalformedCallError):
        broker.chat(MESSAGE, wait=100)
    assert broker.port.now() == 0.0


def test_an_empty_answer_is_better_than_none(face: Any) -> None:
    broker = face(World(a=ok("")), ladder("a"))
    reply = broker.chat(MESSAGE)
    assert (reply.text, reply.finish_reason) == ("", "stop")
    assert broker.statuses() == [("a", "ok")]


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_an_empty_answer_with_a_reason_is_an_answer(face: Any, finish: str) -> None:
    broker = face(World(a=ok("", finish_reason=finish), b=ok("B")), ladder("a", "b"))
    assert broker.chat(MESSAGE).finish_reason == finish
    assert broker.snapshot()["a"].available


def refuses(*names: str) -> Any:
    """A model that refuses each of these parameters, the first that it sees, and answers what has none of them."""

    def answer(sent: dict[str, Any]) -> Answer:
        for name in names:
            if name in sent:
                error = {"message": f"Unsupported parameter: '{name}'.", "code": "unsupported_parameter", "param": name}
                return Answer(status=400, body={"error": error})
        return streamed("he", "llo") if sent.get("stream") else ok("hello")

    return answer


@pytest.mark.parametrize("way", ["whole", "streamed"])
def test_each_refusal_that_was_mended_has_its_row_and_counts_as_an_attempt(face: Any, way: str) -> None:
    world = World(a=refuses("temperature", "seed"))
    broker = face(world, ladder("a", "b"))
    how = {"params": {"temperature": 0, "seed": 3}, "trace_id": "t"}
    reply = broker.chat(MESSAGE, **how) if way == "whole" else broker.read(MESSAGE, **how)[1].reply
    assert reply.text == "hello"
    assert [(a.llm_name, a.status) for a in reply.attempts] == [("a", "error"), ("a", "error"), ("a", "ok")]
    assert "seed" in reply.attempts[0].error + reply.attempts[1].error
    rows = broker.rows(trace_id="t")
    assert [(row.status, row.http_status, row.attempt) for row in rows] == [
        ("error", 400, 1),
        ("error", 400, 2),
        ("ok", None, 3),
    ]
    assert [row.retry_of for row in rows] == [None, rows[0].id, rows[1].id]
    assert {row.group_id for row in rows} == {rows[0].id}
    assert (reply.call_id, world.asked) == (rows[2].id, ["a"] * 3)
    assert broker.snapshot()["a"].failures == 0
    broker.chat(MESSAGE, **how)
    assert world.asked == ["a"] * 4


def test_a_refusal_that_stays_after_all_mends_is_the_caller_s_and_its_last_request_has_one_row(face: Any) -> None:
    names = ["temperature", "top_p", "seed", "user", "store", "presence_penalty", "frequency_penalty"]
    broker = face(World(a=refuses(*names)), ladder("a"))
    with pytest.raises(BadRequestError):
        broker.chat(MESSAGE, params=dict.fromkeys(names, 0) | {"user": "u", "store": False})
    rows = broker.rows()
    assert [row.attempt for row in rows] == [1, 2, 3, 4, 5, 6]
    assert {row.http_status for row in rows} == {400}
