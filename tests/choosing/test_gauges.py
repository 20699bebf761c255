"""What replies state is left: windows, buckets, nonsense, and whether the models of a key share them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.choosing.parts import entries, half, lane, need

from llmbroker.gauges import DAY, HOUR, UNDATED, Gauges
from llmbroker.learning import Beliefs
from llmbroker.pool import Key, Lease
from llmbroker.providers.meters import Kind, Meter
from llmbroker.quotas import Quota
from llmbroker.router import plan
from llmbroker.windows import LATE


def meter(
    left: float, limit: float | None = 20.0, reset: float | None = 30.0, *, kind: Kind = "requests", **more: object
) -> Meter:
    name = str(more.pop("name", kind))
    return Meter(name, kind, left, limit, reset, **more)  # type: ignore[arg-type]


def told(*meters: Meter, started: float = 0.0, now: float = 0.0) -> Quota:
    quota = Quota()
    quota.send(started, 0)
    quota.stated(meters, started, now)
    return quota


def test_nothing_left_is_waited_for_until_the_reset() -> None:
    assert told(meter(0)).opens(1.0, 0) == 30.0 + LATE


def test_what_is_left_is_counted_down_by_what_is_sent() -> None:
    quota = told(meter(2))
    for moment in (1.0, 2.0):
        assert quota.opens(moment, 0) == moment
        quota.send(moment, 0)
    assert quota.opens(3.0, 0) == 30.0 + LATE


def test_a_refused_attempt_took_nothing() -> None:
    quota = told(meter(1))
    quota.send(1.0, 0)
    quota.refused(1.0, 1.1, 2.0, "", 0, 0.0)
    assert quota.opens(5.0, 0) == 5.0


def test_windows_of_ever_other_names_are_few_and_make_room_once_they_say_nothing() -> None:
    quota = told(*(meter(5, None, 1.0, name=f"window {number}") for number in range(40)))
    assert quota.gauges is not None
    assert len(quota.gauges.shown(0.5)) == 16
    for at in (100.0, 101.0):
        quota.stated([meter(0, name="another")], at, at)
    assert [one[0] for one in quota.gauges.shown(102.0)] == ["another"]


def test_an_attempt_that_was_never_made_took_nothing() -> None:
    quota = told(meter(1))
    quota.unsent(quota.send(1.0, 0), 1.0, 1.0)
    assert quota.opens(2.0, 0) == 2.0


def test_windows_of_requests_and_tokens_hold_back_each_for_itself() -> None:
    quota = told(meter(10), meter(100, 6000, 12.0, kind="tokens"))
    assert quota.opens(1.0, 400) == 1.0
    assert quota.opens(1.0, 404) == 12.0 + LATE
    assert told(meter(0), meter(6000, 6000, 1.0, kind="tokens")).opens(1.0, 4) == 30.0 + LATE


def test_tokens_of_the_answer_are_learnt_and_counted_in() -> None:
    quota = told(meter(1000, 6000, 12.0, kind="tokens"))
    assert quota.opens(1.0, 400) == 1.0
    for _ in range(30):
        quota.used(400, 1300)
    assert quota.opens(1.0, 400) == 12.0 + LATE


def test_a_request_that_is_larger_than_the_limit_goes_out_when_all_is_there() -> None:
    assert told(meter(6000, 6000, 60.0, kind="tokens")).opens(1.0, 10**7) == 1.0
    assert told(meter(5999, 6000, 60.0, kind="tokens")).opens(1.0, 10**7) == 60.0 + LATE


def test_after_the_reset_the_limit_goes_out_and_no_more() -> None:
    quota = told(meter(0, 3, 30.0))
    for _ in range(3):
        assert quota.opens(31.0, 0) == 31.0
        quota.send(31.0, 0)
    assert quota.opens(31.0, 0) == pytest.approx(90.0)
    quota.stated([meter(2, 3, 59.0)], 31.0, 32.0)
    assert quota.opens(33.0, 0) == 33.0


def test_a_quick_reply_about_the_same_window_makes_its_reset_exact() -> None:
    quota = told(meter(3, 20, 30.0), started=0.0, now=10.0)  # between 30 and 40
    quota.send(11.0, 0)
    quota.stated([meter(0, 20, 20.0)], 11.0, 11.5)
    assert quota.opens(12.0, 0) == 31.5 + LATE


def test_an_older_attempt_whose_reply_comes_late_fills_nothing() -> None:
    quota = told(meter(0, 20, 30.0), started=5.0, now=6.0)
    quota.stated([meter(9, 20, 29.0)], 4.0, 7.0)
    assert quota.opens(8.0, 0) > 30.0


def test_attempts_under_way_are_taken_off_what_an_earlier_one_states() -> None:
    quota = Quota()
    for moment in (0.0, 1.0, 2.0):
        quota.send(moment, 0)
    quota.stated([meter(2)], 0.0, 3.0)
    assert quota.opens(3.0, 0) > 30.0


def bucket(limit: float, period: float) -> Callable[[float], Meter]:
    """A provider whose reset is the time until it is full."""
    level, at = 0.0, 0.0

    def send(now: float) -> Meter:
        nonlocal level, at
        level, at = max(0.0, level - (now - at) * limit / period) + 1.0, now
        return meter(limit - level, limit, level * period / limit, rough=0.002)

    return send


def test_a_bucket_shows_itself_and_is_not_waited_for_until_it_is_full() -> None:
    provider, quota = bucket(30, 60.0), Quota()
    now, sent = 0.0, []
    while now < 120.0:
        now = quota.opens(now, 0)
        stated = provider(now)
        assert stated.left >= -1e-6, "it would have been refused"
        quota.send(now, 0)
        quota.stated([stated], now, now)
        sent.append(now)
        now += 0.1
    assert len(sent) == pytest.approx(90, abs=2)


def test_a_fixed_window_is_never_taken_for_a_bucket() -> None:
    quota, now = Quota(), 0.0
    for left in range(19, -1, -1):
        quota.send(now, 0)
        quota.stated([meter(left, 20, 57.3 - now, rough=0.002)], now, now)
        now += 0.5
    assert quota.opens(now, 0) == pytest.approx(57.3 + LATE)


@pytest.mark.parametrize(
    ("stated", "longest"),
    [
        (meter(0, 20, None), UNDATED),
        (meter(0, 20, None, period=6.0), 1.0),
        (meter(0, 20, 80_000.0), HOUR + LATE),
        (meter(0, 20, 80_000.0, name="requests-day"), 80_000.0 + LATE),
        (meter(0, 20, 90_000.0, period=DAY), DAY + LATE),
        (meter(0, None, 0.0), 0.0),
        (meter(0, 20, 0.0), 0.0),
    ],
    ids=["no reset", "no reset of a short window", "far", "far, of a day", "more than a day", "past", "past, limited"],
)
def test_no_statement_holds_back_longer_than_it_may(stated: Meter, longest: float) -> None:
    assert told(stated).opens(0.0, 0) == pytest.approx(longest)


def test_after_a_statement_without_a_reset_one_goes_out_and_then_as_many_as_come_back() -> None:
    quota, now, sent = told(meter(0, 6, None, period=60.0)), 0.0, []
    for _ in range(4):
        now = quota.opens(now, 0)
        sent.append(now)
        quota.send(now, 0)
    assert sent == [10.0, pytest.approx(20.0), pytest.approx(30.0), pytest.approx(40.0)]
    assert quota.opens(80.0, 0) == 80.0


def test_a_limit_that_is_larger_than_the_truth_holds_nothing_back() -> None:
    quota = told(meter(10**9, 10**9))
    assert not quota.known
    quota.send(1.0, 0)
    assert quota.refused(1.0, 1.1, None, "", 0, 0.0) is not None
    assert quota.opens(1000.0, 0) == 1000.0


def test_where_much_is_left_nothing_is_counted_and_a_crowd_is_nevertheless_seen() -> None:
    quota = told(meter(99, 100, 60.0))
    assert not quota.known
    for index in range(99):
        quota.send(1.0 + index / 1000, 0)
    assert quota.known
    assert quota.opens(2.0, 0) > 59.0


def test_a_model_whose_window_is_spent_is_passed_over_and_the_plan_says_why() -> None:
    spent, other = lane("spent", weight=0.9), lane("other", weight=0.1)
    spent.quota.stated([meter(0, 30, 25.0)], 100.0, 100.0)
    made = plan(entries(spent, other), need(), now=101.0, left=60.0, beliefs=Beliefs(), dice=half)
    assert [step.lane.member.name for step in made.steps] == ["other"]
    (passed,) = made.passed
    assert (passed.reason, passed.detail) == ("rate_limited", "its provider states 0 of 30 requests left")
    assert passed.until == pytest.approx(125.0 + LATE)
    assert passed.surely
    assert passed.room == 30


# -- the models of one key -----------------------------------------------------------------------------------------------


def talk(shared: bool, limits: tuple[int, int] = (40, 40), rounds: int = 4) -> tuple[Quota, list[float]]:
    """Two models of one key answer in turn; return the key's quota and what is left of each."""
    key = Key("key")
    lanes = [lane("a", key), lane("b", key)]
    key.members = [one.member for one in lanes]
    left = [float(limits[0]), float(limits[1])]
    for index in range(rounds):
        for which, one in enumerate(lanes):
            now = float(index * 2 + which)
            lease = Lease(one, now)
            at = 0 if shared else which
            left[at] -= 1 + 3 * (which and not shared)
            lease.hear(
                {
                    "x-ratelimit-limit-requests": str(limits[which]),
                    "x-ratelimit-remaining-requests": str(int(left[at])),
                    "x-ratelimit-reset-requests": f"{47.3 - now:.3f}",
                }
            )
            lease.learn(now + 0.1)
            lease.release()
    return key.quota, left


def test_a_window_that_counts_down_across_models_is_the_keys() -> None:
    quota, _ = talk(True)
    assert quota.gauges is not None
    assert quota.gauges.sure
    quota.stated([meter(0, 40, 38.3)], 9.0, 9.1, 1)
    assert quota.opens(10.0, 0) == pytest.approx(47.4, abs=0.2)


@pytest.mark.parametrize("limits", [(40, 40), (40, 30)], ids=["equal limits", "other limits"])
def test_models_with_windows_of_their_own_do_not_hold_back_each_other(limits: tuple[int, int]) -> None:
    quota, _ = talk(False, limits)
    assert quota.gauges is not None
    assert not quota.gauges.sure
    quota.stated([meter(0, 40, 40.0)], 9.0, 9.1, 1)
    assert quota.opens(10.0, 0) == 10.0


# -- whatever is stated --------------------------------------------------------------------------------------------------

NUMBERS = st.one_of(st.sampled_from([0.0, 1.0, 2.0, 1e9, 1e18]), st.floats(0.0, 1e6))
METERS = st.builds(
    Meter,
    name=st.sampled_from(["requests", "requests-day", "tokens", "x"]),
    kind=st.sampled_from(["requests", "tokens", "input", "output"]),
    left=NUMBERS,
    limit=st.one_of(st.none(), NUMBERS.filter(bool)),
    reset=st.one_of(st.none(), NUMBERS.filter(lambda value: value <= 90_000)),
    period=st.one_of(st.none(), st.floats(0.001, 90_000)),
    rough=st.sampled_from([0.002, 1.0]),
)


@example([([Meter("requests", "requests", 0.0, 1.0, None, 86411.0)], 10.0, 0, False)])
@given(
    st.lists(st.tuples(st.lists(METERS, max_size=3), st.floats(0.0, 100.0), st.integers(0, 10**6), st.booleans()), max_size=25)
)
@settings(max_examples=150, deadline=None)
def test_whatever_is_stated_a_key_opens_within_a_day_and_moments_are_numbers(
    story: list[tuple[list[Meter], float, int, bool]],
) -> None:
    gauges, now = Gauges(), 0.0
    for stated, pause, characters, late in story:
        gauges.state(stated, max(0.0, now - 5.0) if late else now, now)
        gauges.used(characters, characters / 3.0)
        now += pause
        gauges.send(now, characters)
        opens = gauges.opens(now, characters)
        assert now <= opens <= now + DAY + UNDATED
        assert math.isfinite(opens)
        gauges.why(now, characters)
        assert all(left >= 0 and math.isfinite(left) for _, _, left, _, _ in gauges.shown(now))
    later = now
    for _ in range(2000):  # nobody hears anything any more: it opens by itself
        opens = gauges.opens(later, 10)
        if opens <= later:
            break
        later = opens
    assert later <= now + 2 * DAY + UNDATED


@given(
    st.integers(1, 40),
    st.sampled_from([10.0, 60.0]),
    st.lists(st.floats(0.0, 3.0), min_size=30, max_size=200),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_a_provider_that_states_a_fixed_window_never_has_to_refuse(
    limit: int, period: float, pauses: list[float], digits: bool
) -> None:
    quota, now, used, window = Quota(), 0.0, 0, 0
    for pause in pauses:
        now = quota.opens(now + pause, 0)
        if int(now // period) != window:
            window, used = int(now // period), 0
        assert used < limit, "it would have been refused"
        used += 1
        reset = (window + 1) * period - now
        quota.send(now, 0)
        stated = meter(limit - used, limit, math.ceil(reset) if digits else reset, rough=1.0 if digits else 0.002)
        quota.stated([stated], now, now)


# -- what a statement does not say ---------------------------------------------------------------------------------------


def test_models_whose_limits_differ_share_no_window_however_alike_they_count_down() -> None:
    gauges = Gauges()
    for index in range(12):
        now = float(index)
        gauges.send(now, 0)
        gauges.state([meter(25 - index, (40, 30)[index % 2], 57.3 - now)], now, now, 1 + index % 2)
    assert not gauges.sure


def left(quota: Quota, now: float) -> float:
    assert quota.gauges is not None
    return quota.gauges.shown(now)[0][2]


@pytest.mark.parametrize(("reset", "shown"), [(30.0, 2), (1.0, 5)], ids=["of this window", "of the window before"])
def test_a_reply_that_comes_late_takes_off_what_it_knows_of_the_same_window(reset: float, shown: float) -> None:
    quota = told(meter(5, 20, 30.0), started=5.0, now=6.0)
    quota.stated([meter(2, 20, reset)], 4.0, 7.0)
    assert left(quota, 8.0) == shown


def test_a_reply_about_a_bucket_that_comes_late_takes_nothing_off_what_has_drained_since() -> None:
    provider, quota = bucket(30, 60.0), Quota()
    for now in (0.1, 0.2, 0.3, 0.4, 0.5):
        quota.send(now, 0)
        quota.stated([provider(now)], now, now)
    late = provider(0.7)
    newest = provider(10.0)
    assert newest.left > late.left
    for now in (0.7, 10.0):
        quota.send(now, 0)
    quota.stated([newest], 10.0, 10.0)
    quota.stated([late], 0.7, 11.0)
    assert left(quota, 11.0) == pytest.approx(newest.left + 0.5)


def test_one_statement_that_is_repeated_makes_no_bucket() -> None:
    quota = Quota()
    for now in (0.0, 40.0, 80.0, 120.0):
        quota.send(now, 0)
        quota.stated([meter(10, 20, 30.0, rough=0.002)], now, now)
    for _ in range(10):
        quota.send(121.0, 0)
    assert quota.opens(122.0, 0) == pytest.approx(150.0 + LATE)
