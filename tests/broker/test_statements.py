"""Quotas that replies state: what cannot fit is not sent, whole and streamed, and nothing that is stated ends a call."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest
from tests.broker.worlds import World, ladder, member, ok, refuse, streamed

from llmbroker import AsyncBroker, NoLLMAvailableError
from llmbroker.transports.replay import Answer
from llmbroker.windows import LATE

MESSAGE = "hi"


def stating(answer: Answer, **headers: str) -> Answer:
    """An answer with more headers; names with underscores."""
    return msgspec.structs.replace(answer, headers={**answer.headers, **{k.replace("_", "-"): v for k, v in headers.items()}})


def left(count: int, reset: str = "20s", limit: int = 5, unit: str = "requests") -> dict[str, str]:
    return {
        f"x_ratelimit_limit_{unit}": str(limit),
        f"x_ratelimit_remaining_{unit}": str(count),
        f"x_ratelimit_reset_{unit}": reset,
    }


def test_after_a_reply_that_leaves_nothing_the_next_call_goes_elsewhere(face: Any) -> None:
    world = World(a=stating(ok("A"), **left(0)), b=ok("B"))
    broker = face(world, ladder("a", "b"))
    replies = [broker.chat(MESSAGE) for _ in range(2)]
    assert [reply.llm_name for reply in replies] == ["a", "b"]
    assert "its provider states 0 of 5 requests left" in replies[1].explain()
    assert "for 20.1 s more" in replies[1].explain()


def test_a_lone_model_is_waited_for_exactly_until_its_window_opens(face: Any) -> None:
    world = World(a=[stating(ok("A"), **left(0)), stating(ok("A"), **left(4))])
    broker = face(world, ladder("a"))
    for _ in range(2):
        assert broker.chat(MESSAGE, wait=30).text == "A"
    assert [at for at, _, _ in world.hits] == [0.0, 20.0 + LATE]


def test_what_the_key_refused_took_nothing_of_what_its_model_has_left(face: Any) -> None:
    world = World(a=[stating(ok("A", delay=1.0), **left(1)), refuse(429, retry_after="1"), ok("A")])
    broker = face(world, ladder("a"))
    for _ in range(2):
        assert broker.chat(MESSAGE, wait=30).text == "A"
    assert [at for at, _, _ in world.hits] == [0.0, 1.0, 2.0]


def test_a_window_that_opens_too_late_fails_at_once_and_says_when(face: Any) -> None:
    world = World(a=stating(ok("A"), **left(0, "2m0s")))
    broker = face(world, ladder("a"))
    broker.chat(MESSAGE)
    with pytest.raises(NoLLMAvailableError, match="states 0 of 5 requests left") as caught:
        broker.chat(MESSAGE, wait=30)
    assert world.port.now() == 0.0
    assert caught.value.retry_at.timestamp() == pytest.approx(world.port.time() + 120 + LATE)


def test_a_stream_states_as_much_as_a_whole_reply_and_as_soon_as_it_begins(face: Any) -> None:
    world = World(a=stating(streamed("A", "A", every=1.0), **left(0)), b=streamed("B"))
    broker = face(world, ladder("a", "b"))
    names = [broker.read(MESSAGE)[1].llm_name for _ in range(2)]
    assert names == ["a", "b"]


def test_a_prompt_that_does_not_fit_in_the_tokens_left_goes_elsewhere_and_a_short_one_does_not(face: Any) -> None:
    world = World(a=stating(ok("A"), **left(1000, "20s", 6000, "tokens")), b=ok("B"))
    broker = face(world, ladder("a", "b"))
    broker.chat(MESSAGE)
    assert broker.chat("x" * 40_000).llm_name == "b"
    assert broker.chat(MESSAGE).llm_name == "a"


def test_an_empty_answer_states_as_much_as_any(face: Any) -> None:
    world = World(a=stating(ok(""), **left(0)), b=ok("B"))
    broker = face(world, ladder("a", "b"))
    broker.chat(MESSAGE)
    assert broker.snapshot()["a"].quotas[0].left == 0


def test_the_snapshot_shows_what_is_left_and_when_it_is_back(face: Any) -> None:
    world = World(a=stating(ok("A"), **left(0, "20s"), **left(900, "3s", 1000, "tokens")))
    broker = face(world, ladder("a"))
    broker.chat(MESSAGE)
    state = broker.snapshot()["a"]
    assert (state.available, state.reason, state.detail) == (False, "rate_limited", "its provider states 0 of 5 requests left")
    assert state.until.timestamp() == pytest.approx(world.port.time() + 20 + LATE)
    shown = {
        quota.name: (quota.kind, quota.left, quota.limit, quota.until.timestamp() - world.port.time()) for quota in state.quotas
    }
    assert shown == {
        "requests": ("requests", 0, 5, pytest.approx(20)),
        "tokens": ("tokens", 900, 1000, pytest.approx(3)),
    }


def test_two_models_of_a_key_hold_back_each_other_once_their_window_has_shown_to_be_one(face: Any) -> None:
    sent: list[float] = []

    def answer(_: dict[str, Any]) -> Answer:
        sent.append(world.port.now())
        return stating(ok("x", delay=1.0), **left(20 - len(sent), f"{100.0 - sent[-1]:.3f}s", 20))

    world = World(a=answer, b=answer, c=ok("C"))
    pool = [member("a", 0.5, api_key_ref="K"), member("b", 0.5, api_key_ref="K"), member("c", 0.1)]
    broker = face(world, pool, secrets={"K": "one-key"})
    names = [broker.chat(MESSAGE).llm_name for _ in range(23)]
    assert (len(sent), set(names[:20])) == (20, {"a", "b"})
    assert names[20:] == ["c"] * 3


def test_two_models_of_a_key_with_windows_of_their_own_are_used_up_each(face: Any) -> None:
    world = World(
        a=[stating(ok("A"), **left(count, "30s", 6)) for count in range(5, -1, -1)],
        b=[stating(ok("B"), **left(count, "30s", 6)) for count in range(5, -1, -1)],
        c=ok("C"),
    )
    pool = [member("a", 0.9, api_key_ref="K"), member("b", 0.8, api_key_ref="K"), member("c", 0.1)]
    broker = face(world, pool, secrets={"K": "one-key"})
    assert [broker.chat(MESSAGE).llm_name for _ in range(13)] == ["a"] * 6 + ["b"] * 6 + ["c"]


@pytest.mark.parametrize(
    "headers",
    [
        {"x_ratelimit_remaining_requests": "-1", "x_ratelimit_limit_requests": "-1"},
        left(0, "0s"),
        left(0, "2020-01-01T00:00:00Z"),
        left(0, "nan", 0),
        {"x_ratelimit_remaining_requests": "nan", "x_ratelimit_reset_requests": "inf"},
        {"ratelimit": '";;;r=,t"', "ratelimit_policy": "===,;"},
        left(10**12, "1h", 10**12),
    ],
    ids=["-1", "over", "past", "a limit of 0", "nan", "garbage", "huge"],
)
def test_nonsense_holds_nothing_back(face: Any, headers: dict[str, str]) -> None:
    world = World(a=stating(ok("A"), **headers))
    broker = face(world, ladder("a"))
    for _ in range(5):
        broker.chat(MESSAGE, wait=0)
    assert broker.snapshot()["a"].available


def test_a_far_reset_is_believed_for_an_hour(face: Any) -> None:
    world = World(a=[stating(ok("A"), **left(0, "20h0m0s")), ok("A")])
    broker = face(world, ladder("a"))
    broker.chat(MESSAGE)
    broker.chat(MESSAGE, wait=4000)
    assert world.hits[1][0] == pytest.approx(3600, abs=1)


async def test_a_crowd_sends_what_the_window_holds_and_no_more() -> None:
    sent: list[float] = []
    refused: list[float] = []
    period, size = 10.0, 4

    def answer(_: dict[str, Any]) -> Answer:
        now = world.port.now()
        window = int(now // period)
        used = sum(1 for at in sent if int(at // period) == window)
        rest = (window + 1) * period - now
        if used >= size:
            refused.append(now)
            return Answer(status=429, headers={"retry-after": f"{rest:.3f}"}, body={"error": {"message": "slow down"}})
        sent.append(now)
        return stating(ok("A", delay=0.5), **left(size - used - 1, f"{rest:.3f}s", size))

    world = World(a=answer)
    async with AsyncBroker(pool=ladder("a"), io=world.port, journal=False) as broker:
        await broker.chat(MESSAGE)
        replies = await asyncio.gather(*(broker.chat(MESSAGE, wait=300) for _ in range(12)))
    assert len(replies) == 12
    assert len(sent) == 13
    assert refused == []


# -- refusals ------------------------------------------------------------------------------------------------------------

DAY = {
    "error": {
        "code": 429,
        "status": "RESOURCE_EXHAUSTED",
        "message": "You exceeded your current quota.",
        "details": [
            {"@type": "x/google.rpc.QuotaFailure", "violations": [{"quotaId": "GenerateRequestsPerDayPerProject-FreeTier"}]},
            {"@type": "x/google.rpc.RetryInfo", "retryDelay": "30s"},
        ],
    }
}


def test_a_call_that_fits_a_little_later_than_was_stated_goes_out_then(face: Any) -> None:
    words = "tokens per day (TPD): Limit 100000, Used 99990, Requested 500. Please try again in 7m3.5s."
    world = World(a=[refuse(429, f"Rate limit reached on {words}"), ok("A")])
    reply = face(world, ladder("a")).chat("a longer question than that", wait=900)
    assert reply.text == "A"
    assert 423.5 < world.hits[-1][0] < 440


def test_a_days_quota_that_names_a_wait_of_seconds_is_asked_ever_more_seldom(face: Any) -> None:
    world = World(a=Answer(status=429, body=DAY))
    broker = face(world, ladder("a"))
    for _ in range(24 * 60):
        with contextlib.suppress(NoLLMAvailableError):
            broker.chat(MESSAGE, wait=0)
        world.port.advance(60.0)
    asked = [at for at, _, _ in world.hits]
    assert 12 <= len(asked) <= 8 + 24  # by and by every hour
    assert asked[-1] - asked[-2] == pytest.approx(3600, abs=60)


def test_a_model_whose_quota_was_spent_is_used_again_when_it_is_back(face: Any) -> None:
    world = World(a=[*[refuse(429, retry_after="1")] * 4, ok("A")], b=ok("B"))
    broker = face(world, ladder("a", "b"))
    names = []
    for _ in range(120):
        names.append(broker.chat(MESSAGE).llm_name)
        world.port.advance(60.0)
    assert names[:3] == ["b"] * 3
    assert names[-30:] == ["a"] * 30


def test_a_quota_that_says_to_be_the_models_own_rests_that_model_alone(face: Any) -> None:
    body = {
        "error": {
            **DAY["error"],
            "details": [{"violations": [{"quotaId": "GenerateRequestsPerMinutePerProjectPerModel-FreeTier"}]}],
        }
    }
    world = World(a=Answer(status=429, body=body), b=ok("B"))
    pool = [member("a", 0.9, api_key_ref="K"), member("b", 0.5, api_key_ref="K")]
    assert face(world, pool, secrets={"K": "one-key"}).chat(MESSAGE).llm_name == "b"
