"""Two hundred journals whose truth is known: the 95 % intervals cover it in 90 to 99 of 100. The broker's own, too."""

from __future__ import annotations

import math
import statistics

import pytest
from tests.replaying.worlds import DIFFERENT, Truth, Truths, journal, near, whole

from llmbroker.replaying import replay

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

JOURNALS, CALLS = 200, 600
FAILING: Truths = {
    ("prose", "text"): Truth(0.9, 0.95),
    ("prose", "code"): Truth(0.3),
    ("coder", "text"): Truth(0.4, 0.9),
    ("coder", "code"): Truth(0.8),
}
"""As ``DIFFERENT``, with refusals."""
ALIKE: Truths = {(model, operation): Truth(0.7, 0.95) for model in "ab" for operation in "xy"}


def of_model(truths: Truths, model: str, what: str) -> float:
    """Return a figure of the policy that always asks one model; both operations are asked for as often."""
    return statistics.fmean(getattr(truth, what) for (name, _), truth in truths.items() if name == model)


@pytest.mark.parametrize(("truths", "rated"), [(DIFFERENT, 1.0), (FAILING, 0.7), (ALIKE, 0.5)], ids=["differ", "fail", "alike"])
def test_the_intervals_cover_the_truth(truths: Truths, rated: float) -> None:
    models = sorted({model for model, _ in truths})
    # What the broker comes to where nothing has to be guessed: journals in which every model served every call.
    played = [
        replay(whole(truths, CALLS, seed=9000 + seed, rated=rated), policies=["ours"], seeds=2, seed=seed).policy("ours")
        for seed in range(40)
    ]
    ours = statistics.fmean(policy.good.value for policy in played if policy is not None and policy.good is not None)
    hits: dict[str, list[bool]] = {}
    for seed in range(JOURNALS):
        rows = journal(truths, CALLS, seed=seed, rated=rated)
        found = replay(rows, policies=["ours", "best-fixed", "random"], seeds=4, seed=seed)
        policies = {policy.name: policy for policy in found.policies}
        best = of_model(truths, str(found.best), "good")
        lot = statistics.fmean(of_model(truths, model, "good") for model in models)
        for name, figure, truth in (
            ("best", policies["best-fixed"].good, best),
            ("random", policies["random"].good, lot),
            ("ours", policies["ours"].good, ours),
            ("random - best", policies["random"].against["good"], lot - best),
            ("ours - best", policies["ours"].against["good"], ours - best),
            ("median", policies["random"].p50, math.log(2)),
        ):
            hits.setdefault(name, []).append(near(figure, truth))
    covered = {name: statistics.fmean(found) for name, found in hits.items()}
    print(covered)
    # Of 200 intervals that cover in 95 of 100, fewer than 90 or more than 99 of 100 are not seen in a thousand runs.
    assert {name: share for name, share in covered.items() if not 0.9 <= share <= 0.995} == {}
