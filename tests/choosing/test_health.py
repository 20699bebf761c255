"""Incidents, rests, recovery, blame."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.choosing.parts import half

from llmbroker import errors
from llmbroker.exchange import Reply
from llmbroker.health import (
    BROKEN,
    DAY,
    HANGING,
    HEALED,
    HOUR,
    RATE_LIMITED,
    UNAVAILABLE,
    EmptyAnswerError,
    Health,
    Illness,
    is_empty,
    judge,
)


def test_a_new_thing_is_well() -> None:
    health = Health()
    assert health.free(0.0)
    assert health.succeed(0.0) == 0


def test_a_failure_begins_a_rest_and_its_end_lets_one_attempt_in() -> None:
    health = Health()
    health.fail(BROKEN, 10.0, 9.0, None, half)
    assert not health.free(11.9)
    assert health.free(12.0)
    health.trials = 1
    assert not health.free(12.0)


@pytest.mark.parametrize("attempts", [1, 2, 12, 50])
def test_many_attempts_of_one_incident_count_once(attempts: int) -> None:
    health = Health()
    for n in range(attempts):
        health.fail(BROKEN, 10.0 + n * 0.001, 9.0, None, half)
    assert health.incidents == 1
    assert health.until <= 10.0 + attempts * 0.001 + 2.0


def test_incidents_in_a_row_double_the_rest_up_to_its_bound() -> None:
    health, now = Health(), 0.0
    rests = []
    for _ in range(12):
        health.fail(BROKEN, now, now, None, half)
        rests.append(health.until - now)
        now = health.until + 0.1
    assert rests[:5] == pytest.approx([2, 4, 8, 16, 32])
    assert rests[-1] == pytest.approx(60)


def test_dice_spread_the_rest_by_a_tenth() -> None:
    low, high = Health(), Health()
    low.fail(BROKEN, 0.0, 0.0, None, lambda: 0.0)
    high.fail(BROKEN, 0.0, 0.0, None, lambda: 1.0)
    assert (low.until, high.until) == (pytest.approx(1.8), pytest.approx(2.2))


def test_a_stated_rest_is_taken_as_said() -> None:
    health, now = Health(), 0.0
    for _ in range(3):
        health.fail(RATE_LIMITED, now, now, 7.0, half)
        assert health.until - now == pytest.approx(7.0)
        now = health.until + 0.1


def test_a_statement_that_proves_wrong_again_and_again_is_outgrown() -> None:
    health, now = Health(), 0.0
    for _ in range(12):
        health.fail(RATE_LIMITED, now, now, 0.05, half)
        rest = health.until - now
        now = health.until + 0.01
    assert rest > 10


def test_a_longer_failure_extends_a_rest_and_a_shorter_one_does_not_cut_it() -> None:
    health = Health()
    health.fail(UNAVAILABLE, 1.0, 0.0, 5.0, half)
    health.fail(UNAVAILABLE, 2.0, 0.0, 50.0, half)
    health.fail(UNAVAILABLE, 3.0, 0.0, 1.0, half)
    assert health.until == pytest.approx(52.0)


def test_an_older_success_does_not_lift_a_newer_rest() -> None:
    health = Health()
    health.fail(UNAVAILABLE, 1.0, 0.5, 10.0, half)
    assert health.succeed(0.7) == 0
    assert not health.free(5.0)


def test_recovery_doubles_its_room_and_ends() -> None:
    health = Health()
    health.fail(UNAVAILABLE, 0.0, 0.0, 1.0, half)
    rooms = []
    while health.room is not None:
        rooms.append(health.room)
        health.succeed(2.0)
    assert rooms == [1, 2, 4, 8]
    assert health.incidents == 0


def test_a_probe_that_neither_failed_nor_answered_had_its_chance() -> None:
    health = Health()
    health.fail(HANGING, 0.0, 0.0, 1.0, half)
    health.settle(0.5)
    assert health.room == 1, "it began before the rest was over"
    health.settle(2.0)
    assert health.room == 2


class Twin(RuleBasedStateMachine):
    """Health against a naive account of the same events: everything that ever happened, looked through anew each time."""

    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.health = Health()
        self.open: list[tuple[float, int, bool]] = []  # (started, epoch, counted)
        self.until = 0.0
        self.well = True
        self.room = 0

    @rule(seconds=st.floats(0, 100))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def begin_attempt(self) -> None:
        """An attempt may begin if and only if it is well, or its rest is over and the room is not taken."""
        running = sum(1 for started, epoch, counted in self.open if counted and epoch == self.health.epoch)
        expected = self.well or (self.now >= self.until and running < self.room)
        assert self.health.free(self.now) == expected
        if expected:
            counted = self.health.room is not None
            if counted:
                self.health.trials += 1
            self.open.append((self.now, self.health.epoch, counted))

    def end(self, index: int) -> tuple[float, int, bool]:
        attempt = self.open.pop(index % len(self.open))
        if attempt[2] and attempt[1] == self.health.epoch:
            self.health.trials -= 1
        return attempt

    @precondition(lambda self: self.open)
    @rule(index=st.integers(0, 10), stated=st.none() | st.floats(0.05, 200))
    def fail(self, index: int, stated: float | None) -> None:
        started, *_ = attempt = self.open[index % len(self.open)]
        before = self.health.until
        incidents = self.health.incidents
        since = self.health.since
        self.health.fail(BROKEN, self.now, started, stated, half)
        self.end(index)
        assert self.health.until >= before
        assert self.health.until >= self.now
        if not self.well and started <= since:
            assert self.health.incidents == incidents
        if stated is not None and self.health.incidents <= 3:
            assert self.health.until == pytest.approx(max(before, self.now + stated))
        assert attempt
        self.well, self.room, self.until = False, 1, self.health.until

    @precondition(lambda self: self.open)
    @rule(index=st.integers(0, 10))
    def succeed(self, index: int) -> None:
        started, *_ = self.open[index % len(self.open)]
        self.health.succeed(started)
        self.end(index)
        if not self.well and started >= self.until:
            self.room *= 2
            self.well = self.room > HEALED
            if self.well:
                self.until = 0.0

    @invariant()
    def counts_hold(self) -> None:
        running = sum(1 for _, epoch, counted in self.open if counted and epoch == self.health.epoch)
        assert self.health.trials == (running if not self.well else 0)
        assert (self.health.room is None) == self.well
        assert self.health.until - self.now <= max(200.0, BROKEN.longest * 1.1)


TestTwin = Twin.TestCase
TestTwin.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


# -- blame ---------------------------------------------------------------------------------------------------------------

HANG = errors.LLMTimeoutError("late")


@pytest.mark.parametrize(
    ("error", "blame", "where", "status", "word"),
    [
        (errors.BadRequestError("x", status=400), "caller", "member", "error", None),
        (errors.ContentFilterError("x", status=400), "caller", "member", "error", None),
        (errors.InvalidRequestError("x", argument="y"), "caller", "member", "error", None),
        (errors.MalformedCallError("x", status=400), "model", "member", "error", None),
        (errors.AuthError("x", status=401), "key", "key", "error", "key_refused"),
        (errors.PermissionDeniedError("x", status=403), "model", "lane", "error", "denied"),
        (errors.BillingError("x", status=402), "model", "lane", "error", "out_of_credit"),
        (errors.ModelNotFoundError("x", status=404), "model", "lane", "error", "not_found"),
        (errors.RateLimitError("x", status=429), "quota", "key", "rate_limited", "rate_limited"),
        (errors.ServerError("x", status=500), "provider", "member", "error", "error"),
        (errors.ServerError("x", status=503), "provider", "member", "unavailable", "unavailable"),
        (errors.ServerError("x", status=529), "provider", "member", "unavailable", "unavailable"),
        (errors.ProviderError("x", status=418), "provider", "member", "error", "error"),
        (errors.ConnectionFailedError("x", sent=False), "network", "member", "unavailable", "unreachable"),
        (errors.InvalidProviderResponseError("x"), "provider", "member", "error", "error"),
        (EmptyAnswerError("x", reply=Reply()), "provider", "member", "error", "empty"),
        (errors.StreamInterruptedError("x"), "provider", "member", "error", "error"),
        (HANG, "provider", "member", "timeout", "timeout"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_blame(error: Exception, blame: str, where: str, status: str, word: str | None) -> None:
    verdict = judge(error, model="m", granted=60.0, normal=10.0)
    assert (verdict.blame, verdict.where, verdict.status) == (blame, where, status)
    assert (verdict.illness.word if verdict.illness else None) == word


def test_a_timeout_shorter_than_the_normal_time_is_ours() -> None:
    verdict = judge(HANG, model="m", granted=5.0, normal=10.0)
    assert (verdict.blame, verdict.illness) == ("ours", None)


def test_a_broken_stream_is_judged_by_what_broke_it() -> None:
    error = errors.StreamInterruptedError("x")
    error.__cause__ = errors.RateLimitError("slow down", status=429)
    assert judge(error, model="m", granted=1, normal=1).blame == "quota"


@pytest.mark.parametrize(
    ("detail", "code", "where"),
    [
        ("You exceeded your quota", None, "key"),
        ("Rate limit reached for model `gpt-oss-120b` on tokens per minute", None, "lane"),
        ("quota GenerateRequestsPerDayPerProjectPerModel-FreeTier", None, "lane"),
        ("temporarily rate-limited upstream", None, "lane"),
        ("free-models-per-day", None, "key"),
        (None, "rate_limit_exceeded", "key"),
    ],
)
def test_a_spent_quota_is_the_keys_unless_the_model_is_named(detail: str | None, code: str | None, where: str) -> None:
    error = errors.RateLimitError("x", status=429, detail=detail, code=code)
    assert judge(error, model="openai/gpt-oss-120b", granted=1, normal=1).where == where


@pytest.mark.parametrize(
    ("stated", "limit", "expected"),
    [
        (None, None, None),
        (7.0, None, 7.0),
        (0.0, None, 0.05),
        (-5.0, None, None),
        (math.nan, None, None),
        (1e12, None, HOUR),
        (1e12, "day", DAY),
    ],
)
def test_stated_waits_are_bounded(stated: float | None, limit: str | None, expected: float | None) -> None:
    error = errors.RateLimitError("x", status=429, retry_after=stated, limit=limit)
    assert judge(error, model="m", granted=1, normal=1).stated == expected


@given(st.sampled_from([e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, Exception)]))
def test_every_error_has_a_verdict(kind: Any) -> None:
    error = kind.__new__(kind)
    error.__init__("x", **_needed(kind))
    verdict = judge(error, model="m", granted=1.0, normal=1.0)
    assert verdict.status in {"rate_limited", "unavailable", "error", "timeout"}
    assert verdict.illness is None or isinstance(verdict.illness, Illness)


def _needed(kind: Any) -> dict[str, Any]:
    extra: dict[str, Any] = {
        errors.InvalidRequestError: {"argument": "x"},
        errors.ConnectionFailedError: {"sent": True},
        errors.NoLLMAvailableError: {"reason": "failed"},
    }
    for known, arguments in extra.items():
        if issubclass(kind, known):
            return arguments
    return {"reason": "other"} if kind.__name__ == "StoreError" else {}


@pytest.mark.parametrize(
    ("reply", "empty"),
    [
        (Reply(text="x", finish_reason="stop"), False),
        (Reply(text="", finish_reason="stop"), True),
        (Reply(text=" \n", finish_reason="unknown"), True),
        (Reply(text="", finish_reason="length"), False),
        (Reply(text="", finish_reason="content_filter"), False),
        (Reply(text="", finish_reason="refusal", refusal="no"), False),
        (Reply(text="", finish_reason="tool_calls", tool_calls=[{}]), False),
        (Reply(text="x", finish_reason="error"), True),
    ],
)
def test_empty_answers(reply: Reply, empty: bool) -> None:
    assert is_empty(reply) == empty
