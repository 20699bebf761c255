"""Windows and buckets by themselves: what resets tell, what fits."""

from __future__ import annotations

import pytest

from llmbroker.windows import Bucket, Window


def test_what_does_not_fit_is_held_back_and_what_was_not_used_is_given_back() -> None:
    bucket = Bucket(100.0, 1.0)
    bucket.state(100.0, 1.0, 0.0, 60.0, 0, 0.0)
    bucket.add(60.0, 0.0)
    assert bucket.opens(0.0, 0) == pytest.approx(20.0)
    bucket.add(-40.0, 0.0)
    assert bucket.opens(0.0, 0) == 0.0


def test_resets_at_a_minute_tell_the_minute_from_shorter_periods() -> None:
    window = Window()
    for n in range(1, 5):
        window.closed(60 * n - 30, 60 * n - 1)
        window.reset(60 * n - 1, 60 * n + 1, {})
    assert window.best() == (60.0, 4)
    low, high = window.arc(60.0, 290.0)
    assert (low, high) == pytest.approx((299.0, 301.0))
