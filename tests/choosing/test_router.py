"""Plans and decisions."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.choosing.parts import entries, half, lane, need

from llmbroker import errors
from llmbroker.health import BROKEN, KEY_REFUSED, RATE_LIMITED, judge
from llmbroker.learning import Beliefs
from llmbroker.pool import Key, Lane, Lease
from llmbroker.router import GiveUp, Next, Passed, Plan, Retry, Step, alone, decide, patience, plan


def order(*lanes: Lane, **more: Any) -> list[str]:
    """Names of the steps of a plan."""
    return [step.lane.member.name for step in look(*lanes, **more).steps]


def look(*lanes: Lane, **more: Any) -> Any:
    arguments: dict[str, Any] = {"now": 100.0, "left": 60.0, "beliefs": Beliefs(), "dice": half, **more}
    return plan(entries(*lanes), arguments.pop("need", need()), **arguments)


def test_weights_order() -> None:
    assert order(lane("a", weight=0.1), lane("b", weight=0.9), lane("c", weight=0.5)) == ["b", "c", "a"]


def test_ratings_move_the_order() -> None:
    beliefs = Beliefs()
    for _ in range(20):
        beliefs.rate("b", "op", 0.0)
    lanes = lane("a", weight=0.5), lane("b", weight=0.9)
    assert order(*lanes, beliefs=beliefs, need=need(operation="op")) == ["a", "b"]


def test_who_cannot_is_filtered_before_weights_count() -> None:
    able, unable = lane("a", weight=0.1), lane("b", weight=0.9, lacks=frozenset({"json_schema"}))
    wanted = need(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {}}})
    assert order(able, unable, need=wanted) == ["a"]


def test_who_is_probably_too_late_comes_last() -> None:
    slow, quick = lane("slow", weight=0.9), lane("quick", weight=0.1)
    for _ in range(10):
        slow.member.latency.add(30.0)
    assert order(slow, quick, left=60.0) == ["slow", "quick"]
    assert order(slow, quick, left=5.0) == ["quick", "slow"]


def test_a_missed_budget_counts_for_calls_with_as_little_and_for_a_while() -> None:
    one, other = lane("one", weight=0.9), lane("other", weight=0.1)
    one.member.latency.cut(2.0, now=100.0)
    assert order(one, other, left=2.0) == ["other", "one"]
    assert order(one, other, left=20.0) == ["one", "other"]
    assert order(one, other, left=2.0, now=800.0) == ["one", "other"]


def test_the_same_dice_give_the_same_plan() -> None:
    lanes = [lane(name) for name in "abcdef"]
    plans = [order(*lanes, dice=random.Random(7).random) for _ in range(5)]
    assert all(one == plans[0] for one in plans)


def test_equals_are_drawn_by_lot_and_busy_ones_less_often() -> None:
    lanes = [lane(name) for name in "ab"]
    for _ in range(9):
        Lease(lanes[0], 0.0)
    dice = random.Random(1).random
    first = [order(*lanes, dice=dice)[0] for _ in range(1000)]
    assert 50 < first.count("a") < 150


@pytest.mark.parametrize(
    ("prepare", "reason", "returns"),
    [
        (lambda one: setattr(one.member, "disabled", True), "disabled", False),
        (lambda one: one.member.health.fail(BROKEN, 99.0, 98.0, 50.0, half), "error", True),
        (lambda one: one.key.health.fail(RATE_LIMITED, 99.0, 98.0, 50.0, half), "rate_limited", True),
        (lambda one: one.key.health.fail(KEY_REFUSED, 99.0, 98.0, None, half), "key_refused", False),
        (lambda one: Lease(one, 99.0), "busy", True),
    ],
    ids=["disabled", "ill", "quota", "key", "full"],
)
def test_who_is_passed_over_has_a_reason(prepare: Any, reason: str, returns: bool) -> None:
    one = lane("a", parallel=1)
    prepare(one)
    made = look(one)
    assert made.steps == ()
    assert (made.passed[0].reason, made.passed[0].returns) == (reason, returns)


def test_without_a_key_there_is_no_lane() -> None:
    one = lane("a")
    made = plan([(one.member, ())], need(), now=0.0, left=1.0, beliefs=Beliefs(), dice=half)
    assert (made.passed[0].reason, made.verdict) == ("no_key", "no_keys")


def test_a_second_key_of_the_caller_is_used_when_the_first_rests() -> None:
    own = lane("a", Key("own"))
    shared = Lane(own.member, Key("shared"), own.deployment)
    own.key.health.fail(KEY_REFUSED, 99.0, 98.0, None, half)
    made = plan([(own.member, (own, shared))], need(), now=100.0, left=1.0, beliefs=Beliefs(), dice=half)
    assert made.steps[0].lane is shared


def test_next_at_is_when_the_first_comes_back() -> None:
    one, other = lane("a"), lane("b")
    one.member.health.fail(BROKEN, 99.0, 98.0, 50.0, half)
    other.member.health.fail(BROKEN, 99.0, 98.0, 20.0, half)
    made = look(one, other)
    assert made.next_at == pytest.approx(119.0)
    assert made.wants == {"a", "b"}


@given(
    st.lists(
        st.tuples(
            st.floats(0, 1), st.sampled_from(["well", "ill", "keyless", "disabled", "full", "unable", "barred", "recovering"])
        ),
        max_size=8,
    ),
    st.integers(0, 100),
)
def test_a_plan_names_everybody_once_and_nobody_who_may_not(members: list[tuple[float, str]], seed: int) -> None:
    """If any eligible member exists, one is returned; never one that is cooling, unable or switched off."""
    beliefs, barred, pool = Beliefs(), set(), []
    for index, (weight, state) in enumerate(members):
        one = lane(f"m{index}", weight=weight, parallel=1, lacks=frozenset({"tools"} if state == "unable" else ()))
        one.member.index = index
        if state == "ill":
            one.member.health.fail(BROKEN, 99.0, 98.0, 50.0, half)
        elif state == "recovering":
            one.member.health.fail(BROKEN, 50.0, 40.0, 1.0, half)
        elif state == "disabled":
            one.member.disabled = True
        elif state == "full":
            Lease(one, 0.0)
        elif state == "barred":
            barred.add(id(one))
        pool.append((one.member, () if state == "keyless" else (one,)))
    tools = [{"type": "function", "function": {"name": "f"}}]
    made = plan(pool, need(tools=tools), now=100.0, left=9.0, beliefs=beliefs, dice=random.Random(seed).random, barred=barred)
    free = {f"m{i}" for i, (_, state) in enumerate(members) if state in ("well", "recovering")}
    assert {step.lane.member.name for step in made.steps} == free
    assert {passed.name for passed in made.passed} == {f"m{i}" for i in range(len(members))} - free
    qualities = [round(step.quality * 100) for step in made.steps]
    assert qualities == sorted(qualities, reverse=True)
    assert made.verdict in {"empty_pool", "all_disabled", "no_keys", "unable", "failed"}


def test_patience_grows_with_the_record_and_leaves_the_others_time() -> None:
    one = lane("a")
    assert patience(one, stream=False, left=600.0) == 12.0
    assert patience(one, stream=False, left=2.0) == 1.0
    for _ in range(10):
        one.member.latency.add(4.0)
    assert patience(one, stream=False, left=600.0) == pytest.approx(6.0)


def test_only_a_known_quick_model_with_much_time_left_runs_unwatched() -> None:
    one = lane("a")
    assert alone(one, stream=False, left=600.0) is None
    for _ in range(5):
        one.member.latency.add(1.0)
    assert alone(one, stream=False, left=600.0) == 15.0
    assert alone(one, stream=False, left=30.0) is None
    assert alone(one, stream=True, left=600.0) is None
    one.member.lost = 1
    assert alone(one, stream=False, left=600.0) is None


def test_a_quick_model_runs_watched_in_an_operation_until_it_is_known_there_too() -> None:
    one = lane("a")
    for _ in range(5):
        one.member.latency.add(1.0)
    assert alone(one, stream=False, left=600.0, operation="essays") is None
    for _ in range(5):
        for record in one.member.records(False, "essays"):
            record.add(1.0)
    assert alone(one, stream=False, left=600.0, operation="essays") == 15.0


# -- decisions -----------------------------------------------------------------------------------------------------------


def move(error: Exception, *others: Lane, queue_until: float = 160.0, tried: Lane | None = None) -> Any:
    one = tried or lane("a")
    verdict = judge(error, model="a", granted=60.0, normal=10.0)
    if verdict.illness is not None and not verdict.strike:
        target = {"member": one.member.health, "key": one.key.health, "lane": one.health}[verdict.where]
        target.fail(verdict.illness, 100.0, 99.0, verdict.stated, half)
    rest = look(one, *others, tried={id(one)})
    return decide(verdict, one, rest, now=100.0, queue_until=queue_until)


def test_the_callers_fault_is_raised() -> None:
    assert move(errors.BadRequestError("x", status=400), lane("b")) == GiveUp(error=True)


def test_what_one_model_lacks_is_looked_for_elsewhere_only() -> None:
    assert move(errors.ContextWindowError("x", status=400), lane("b")) == Next(bar=True)
    assert move(errors.ContextWindowError("x", status=400)) == GiveUp(error=True)


def test_a_failing_provider_means_the_next_one_while_there_is_one() -> None:
    assert move(errors.ServerError("x", status=500), lane("b")) == Next()


def test_a_failing_provider_alone_means_a_retry_in_time() -> None:
    assert move(errors.ServerError("x", status=500)) == Retry(pytest.approx(102.0))
    assert move(errors.ServerError("x", status=500, retry_after=90.0)) == GiveUp(error=False)
    assert move(errors.ServerError("x", status=500), queue_until=100.0) == GiveUp(error=False)


def test_a_dead_key_or_model_alone_ends_the_call() -> None:
    assert move(errors.AuthError("x", status=401)) == GiveUp(error=False)
    assert move(errors.ModelNotFoundError("x", status=404)) == GiveUp(error=False)


def test_others_that_come_back_in_time_are_waited_for() -> None:
    other = lane("b")
    other.member.health.fail(BROKEN, 99.0, 98.0, 20.0, half)
    assert move(errors.AuthError("x", status=401), other) == Next()


def test_a_malformed_call_bars_its_model_and_is_raised_if_it_is_alone() -> None:
    assert move(errors.MalformedCallError("x", status=400), lane("b")) == Next(bar=True)
    assert move(errors.MalformedCallError("x", status=400)) == GiveUp(error=True)


# -- a pool against a naive model ----------------------------------------------------------------------------------------


class Pool(RuleBasedStateMachine):
    """Three members on two keys: slots and rests against plain lists of what happened."""

    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        shared = Key("shared")
        self.lanes = [lane("a", shared, parallel=2), lane("b", shared), lane("c", parallel=1)]
        self.leases: list[Lease] = []
        self.rests: dict[str, float] = {}

    def ready(self) -> set[str]:
        return {step.lane.member.name for step in look(*self.lanes, now=self.now).steps}

    @rule(seconds=st.floats(0.01, 30))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def take(self) -> None:
        steps = look(*self.lanes, now=self.now).steps
        if steps:
            self.leases.append(Lease(steps[0].lane, self.now))

    @precondition(lambda self: self.leases)
    @rule(index=st.integers(0, 9), error=st.sampled_from([500, 429, 401, None]), wait=st.none() | st.floats(0.1, 60))
    def end(self, index: int, error: int | None, wait: float | None) -> None:
        lease = self.leases.pop(index % len(self.leases))
        one = lease.lane
        if error is None:
            for health in (one.member.health, one.key.health, one.health):
                health.succeed(lease.started)
        else:
            health, illness = {
                500: (one.member.health, BROKEN),
                429: (one.key.health, RATE_LIMITED),
                401: (one.key.health, KEY_REFUSED),
            }[error]
            health.fail(illness, self.now, lease.started, wait, half)
            names = "ab" if health is self.lanes[0].key.health else one.member.name
            for name in names:
                if wait is not None and health.incidents <= 3:
                    self.rests[name] = max(self.rests.get(name, 0.0), self.now + wait)
        lease.release()

    @invariant()
    def nobody_is_asked_inside_a_rest(self) -> None:
        ready = self.ready()
        for name, until in self.rests.items():
            assert name not in ready or self.now >= until - 1e-9

    @invariant()
    def caps_hold_and_counts_are_exact(self) -> None:
        for one in self.lanes:
            held = [lease for lease in self.leases if lease.lane is one]
            assert one.member.running == len(held)
            parallel = one.member.config.parallel
            assert parallel is None or one.member.running <= parallel
        for key in {id(one.key): one.key for one in self.lanes}.values():
            assert key.running == sum(1 for lease in self.leases if lease.lane.key is key)

    @invariant()
    def nobody_is_stuck(self) -> None:
        """Whoever is neither ready nor full comes back by itself."""
        if self.leases:
            return
        made = look(*self.lanes, now=self.now)
        for passed in made.passed:
            assert passed.until is not None
            later = look(*self.lanes, now=passed.until + 4000.0)
            assert passed.name in {step.lane.member.name for step in later.steps}


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_one_missed_budget_among_many_that_were_met_changes_nothing_but_two_do() -> None:
    quick, other = lane("quick", weight=0.9), lane("other", weight=0.1)
    for _ in range(20):
        quick.member.latency.add(2.0)
    quick.member.latency.cut(25.0, now=100.0)
    assert order(quick, other, left=25.0) == ["quick", "other"]
    quick.member.latency.cut(25.0, now=100.0)
    assert order(quick, other, left=25.0) == ["other", "quick"]


@pytest.mark.parametrize(("crowd", "back", "held"), [(1, 110.0, True), (2, 110.0, False), (1, 140.0, False)])
def test_a_slow_model_is_not_begun_with_while_a_quick_one_will_have_answered_before_it(
    crowd: int, back: float, held: bool
) -> None:
    quick, slow = lane("quick", weight=0.9), lane("slow", weight=0.8)
    for _ in range(20):
        quick.member.latency.add(2.0)
        slow.member.latency.add(30.0)
    quick.key.health.rest(RATE_LIMITED, 90.0, 90.0, back)
    assert look(quick, slow, left=60.0).hold(100.0, crowd) is held


@pytest.mark.parametrize(("crowd", "held"), [(1, True), (4, True), (9, False)])
def test_nobody_is_sent_to_a_slow_model_for_the_moment_in_which_another_call_tries_a_quota_out(crowd: int, held: bool) -> None:
    """As many wait as it let in the last times; a refusal would come within a second and a half."""
    quick, slow = lane("quick", weight=0.9), lane("slow", weight=0.85)
    for _ in range(20):
        quick.member.latency.add(2.0)
        slow.member.latency.add(30.0)
    now = 0.0
    for _ in range(2):  # six were let in, then none
        for _ in range(6):
            quick.quota.send(now, 0)
            quick.quota.admitted(now)
            now += 0.5
        quick.quota.send(now, 0)
        quick.quota.refused(now, now + 0.1, None, "", 0, 0.0)
        now += 60.0
    quick.health.rest(RATE_LIMITED, now - 60.0, now - 60.0, now)
    first = Lease(quick, now)
    made = look(quick, slow, now=now + 0.1, left=60.0)
    assert [step.lane.member.name for step in made.steps] == ["slow"]
    assert made.hold(now + 0.1, crowd) is held
    first.release()


# -- waiting for somebody better -----------------------------------------------------------------------------------------


def holds(hope: float, value: float, *, crowd: int = 1, **passed: Any) -> bool:
    """Whether a call waits for somebody of that value rather than ask a model of quality 0.5 that has this hope."""
    best = Step(lane("free"), 0.5, hope=hope)
    return Plan((best,), (Passed("away", "rate_limited", returns=True, value=value, **passed),)).hold(100.0, crowd)


@pytest.mark.parametrize(
    ("hope", "value", "crowd", "held"),
    [(0.15, 0.2, 1, True), (0.15, 0.14, 1, False), (0.15, 0.2, 2, False), (0.25, 0.3, 1, False)],
    ids=["twice as good", "less than twice", "but only for one of two calls", "a model that answers one in four"],
)
def test_a_model_that_hardly_answers_in_time_is_not_asked_while_one_twice_as_good_comes_back(
    hope: float, value: float, crowd: int, held: bool
) -> None:
    assert holds(hope, value, crowd=crowd) is held


@pytest.mark.parametrize(("hope", "surely", "held"), [(0.05, False, True), (0.05, True, False), (0.15, False, False)])
def test_a_model_that_never_answers_in_time_is_not_asked_while_anybody_may_come_back_earlier_than_thought(
    hope: float, surely: bool, held: bool
) -> None:
    assert holds(hope, 0.0, surely=surely) is held


@pytest.mark.parametrize(
    ("hope", "until", "held"),
    [(0.3, 150.0, True), (0.55, 150.0, False), (0.3, None, False)],
    ids=["at a known moment", "a model that answers one in two", "at no known moment"],
)
def test_a_model_worth_a_fifth_of_one_that_comes_back_at_a_known_moment_is_not_begun_with(
    hope: float, until: float | None, held: bool
) -> None:
    assert holds(hope, 0.9, until=until) is held


@pytest.mark.parametrize(("weight", "held"), [(0.5, True), (0.8, False)], ids=["much better", "little better"])
def test_a_much_better_model_that_is_back_soon_is_waited_for_though_the_other_may_be_quicker(weight: float, held: bool) -> None:
    better, uneven = lane("better", weight=0.9), lane("uneven", weight=weight)
    for number in range(20):
        better.member.latency.add(2.0)
        uneven.member.latency.add(5.0 if number < 8 else 30.0)
    better.key.health.rest(RATE_LIMITED, 99.0, 99.0, 105.0)
    assert look(better, uneven).hold(100.0) is held


def test_a_model_that_refuses_most_of_what_it_is_sent_comes_after_a_worse_one_until_that_is_long_ago() -> None:
    refusing, worse = lane("refusing", weight=0.9), lane("worse", weight=0.6)
    for at in (70.0, 80.0, 90.0):
        refusing.quota.refused(at, at + 0.1, None, "", 10, 0.0)
    assert order(refusing, worse) == ["worse", "refusing"]
    assert order(refusing, worse, now=9000.0) == ["refusing", "worse"]
