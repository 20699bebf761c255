"""What a caller reads when nobody answered in time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from llmbroker.broker.flow import _late

CASES: dict[str, tuple[list[Any], float, float, str]] = {
    "told at once, a moment of planning apart": ([], 0.0004, 3.0, "none comes back within 3.0 s"),
    "not waited for": ([], 0.0004, 0.0, "with wait=0 none is waited for"),
    "waited in vain": ([], 3.0, 3.0, "answered within 3.0 s"),
    "tried in vain": (["an attempt"], 0.0004, 3.0, "answered within 0.0 s"),
}


@pytest.mark.parametrize(("attempts", "passed", "wait", "said"), CASES.values(), ids=CASES)
def test_the_time_that_is_named_is_the_one_that_was_missing(attempts: list[Any], passed: float, wait: float, said: str) -> None:
    ask: Any = SimpleNamespace(attempts=attempts, began=100.0, queue_until=100.0 + wait)
    assert said in _late(ask, 100.0 + passed)
