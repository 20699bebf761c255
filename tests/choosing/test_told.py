"""What one process tells another about a quota: taken over whole where it is newer and can be true, else not at all."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from llmbroker.broker.counts import RECENT, Counts
from llmbroker.journal.tidings import Sent
from llmbroker.quotas import Quota
from llmbroker.windows import MINUTE, Learnt

SHIFT = 1_700_000_000.0
DAY = 86_400.0
SAID = "Rate limit reached on tokens per minute (TPM): Limit 8000, Used 7000, Requested 2500. Please try again in 11.25s."


def used(events: list[tuple[float, int]]) -> tuple[Quota, float]:
    """A quota after these attempts: seconds later, and whether it is let in (0), refused (1), or refused in numbers (2)."""
    quota, now = Quota(), 0.0
    for later, what in events:
        now += later
        reserved = quota.send(now, 100)
        if what:
            quota.refused(now, now + 0.1, None, SAID if what == 2 else "slow down", 100, reserved)
        else:
            quota.admitted(now)
    return quota, now


EVENTS = st.lists(st.tuples(st.floats(0.05, 40.0), st.integers(0, 2)), min_size=1, max_size=80)


@given(events=EVENTS, apart=st.floats(-1e6, 1e6))
def test_a_quota_that_was_told_says_what_the_one_that_learnt_it_says(events: list[tuple[float, int]], apart: float) -> None:
    quota, now = used(events)
    assume(quota.learnt > -math.inf)
    value = msgspec.json.encode(quota.told(SHIFT))
    other = Quota()
    assert other.adopt(msgspec.json.decode(value, type=Learnt), SHIFT - apart, now + apart)
    assert other.room == quota.room
    for at in quota._sent:
        other.hear(at + apart, 1, 0.0, now + apart)
    assert other.window.best() == quota.window.best()
    assert other.opens(now + apart, 100) - apart == pytest.approx(quota.opens(now, 100), abs=1e-3)


@given(
    st.builds(
        Learnt,
        at=st.floats(allow_nan=False),
        arcs=st.dictionaries(
            st.sampled_from([60.0, 1.0, 7.0, 86_400.0]) | st.floats(allow_nan=False),
            st.tuples(st.floats(allow_nan=False), st.floats(allow_nan=False), st.integers(-10, 2**40)),
            max_size=3,
        ),
        slides=st.dictionaries(st.sampled_from([60.0, 7.0]), st.integers(-(2**40), 2**40)),
        counts=st.lists(st.integers(-5, 600), max_size=8).map(tuple),
        opened=st.none() | st.floats(allow_nan=False),
        last_no=st.none() | st.floats(allow_nan=False) | st.just(SHIFT),
        spent=st.none() | st.floats(allow_nan=False) | st.just(SHIFT),
        tries=st.integers(-5, 2**40),
        no_takes=st.floats(allow_nan=False),
        luck=st.floats(allow_nan=False),
        bucket=st.none() | st.tuples(*[st.floats(allow_nan=False)] * 4),
        sizes=st.lists(st.floats(allow_nan=False), max_size=12).map(tuple),
    ),
    st.booleans(),
)
def test_nothing_that_can_be_told_raises_or_closes_a_quota_for_more_than_a_day(learnt: Learnt, plausible: bool) -> None:
    if plausible:
        learnt = msgspec.structs.replace(learnt, at=SHIFT, luck=0.5, no_takes=1.0)
    quota = Quota()
    quota.adopt(learnt, SHIFT, 0.0)
    for second in range(40):
        at = quota.opens(float(second), 50)
        assert second <= at <= second + 2 * DAY + MINUTE
        quota.hear(second + 0.5, 3, 10.0, float(second))
        reserved = quota.send(float(second), 50)
        if second % 7 == 3:
            again = quota.refused(float(second), second + 0.1, None, "no", 50, reserved)
            assert again is None or second <= again <= second + 2 * DAY
        else:
            quota.admitted(float(second))
    assert msgspec.json.decode(msgspec.json.encode(quota.told(SHIFT)), type=Learnt).at > 0


def test_what_is_older_than_what_is_known_is_not_taken() -> None:
    quota, now = used([(1.0, 0), (1.0, 1)])
    old = msgspec.structs.replace(quota.told(SHIFT), at=SHIFT + 0.5, luck=0.1)
    assert not quota.adopt(old, SHIFT, now)
    assert quota.luck != 0.1


@given(st.lists(st.tuples(st.integers(0, 1), st.floats(0.0, 3.0), st.booleans()), max_size=60))
def test_two_processes_that_tell_all_they_sent_know_the_same_number(steps: list[tuple[int, float, bool]]) -> None:
    """A naive count of all that was let in is what each of the two has after both told and heard."""
    quotas, counts = [Quota(), Quota()], [Counts("x"), Counts("y")]
    now, kept = 0.0, 0
    for quota, count in zip(quotas, counts, strict=True):
        count.meet("q", quota, now, SHIFT)

    def trade() -> None:
        told: list[list[Sent]] = []
        for count in counts:
            sent, _ = count.sent(now, SHIFT)
            count.were_told(sent)
            told.append(sent)
        counts[0].hear(told[1], now, SHIFT)
        counts[1].hear(told[0], now, SHIFT)

    for who, later, refused in steps:
        now += later
        reserved = quotas[who].send(now, 10)
        if refused:
            trade()  # it was told as sent, and is taken back
            quotas[who].refused(now, now + 0.1, None, "no", 10, reserved)
        else:
            kept += 1
        if later > 1.0:
            trade()
    trade()
    assert [len(quota._sent) for quota in quotas] == [kept, kept]
    assert [list(quota._sent) == sorted(quota._sent) for quota in quotas] == [True, True]


def test_nothing_is_told_twice_and_nothing_of_what_was_heard() -> None:
    quota, now = used([(1.0, 0), (1.0, 1)])
    counts = Counts("x")
    counts.meet("q", quota, now, SHIFT)
    assert list(counts.learnt(SHIFT)) == ["q"]
    assert counts.learnt(SHIFT) == {}
    sent, _ = counts.sent(now, SHIFT)
    counts.were_told(sent)
    counts.hear([Sent("q", "y", int(SHIFT), 5)], now, SHIFT)
    assert counts.sent(now + RECENT / 2, SHIFT)[0] == []
