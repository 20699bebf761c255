"""How fast ratings are followed: shares of the best model and regret, when they reverse the list's order and when they drift.

python benchmarks/ratings.py
"""

from __future__ import annotations

import random
import statistics

from llmbroker.broker.desk import Desk
from llmbroker.broker.replies import Ask
from llmbroker.catalog import LLMConfig
from llmbroker.credentials import Secret
from llmbroker.exchange import make_request
from llmbroker.pool import Key, Lane, Member
from llmbroker.providers.table import deployment_for

WEIGHTS = (0.9, 0.7, 0.5, 0.3)
REVERSED = (0.3, 0.5, 0.7, 0.9)
"""True quality, from which ratings are drawn as 0 or 1."""
SEEDS, CALLS, DRIFT_AT = 100, 400, 200


def run(seed: int, before: tuple[float, ...], after: tuple[float, ...]) -> tuple[list[bool], float]:
    """Return for each call whether the truly best was chosen, and the mean regret."""
    dice = random.Random(seed)
    desk = Desk(dice.random)
    entries = []
    for index, weight in enumerate(WEIGHTS):
        config = LLMConfig(name=f"m{index}", model=f"m{index}", base_url="http://x.test/v1", api_key_ref="K", weight=weight)
        member = Member(config, index, frozenset(), None)
        entries.append((member, (Lane(member, Key(f"key {index}"), deployment_for(config, Secret("some-secret"))),)))
    request = make_request("hi")
    hits, regret = [], 0.0
    for call in range(CALLS):
        truth = before if call < DRIFT_AT else after
        now = call * 10.0
        ask = Ask(
            request, params=None, scope=None, operation="op", trace_id=None, began=now, deadline=now + 60.0,
            queue_until=now + 60.0, fastest_of=1,
        )  # fmt: skip
        _, lease = desk.take(entries, ask, now)
        assert lease is not None
        desk.answered(lease, now + 1.0, None)
        chosen = lease.lane.member.index
        hits.append(truth[chosen] == max(truth))
        regret += max(truth) - truth[chosen]
        desk.rate(f"m{chosen}", "op", float(dice.random() < truth[chosen]), f"call {seed} {call}")
    return hits, regret / CALLS


def main() -> None:
    """Print shares of the best by blocks of 20 calls, and the regret."""
    for name, before, after in (
        ("reversed, then the list's order", REVERSED, WEIGHTS),
        ("the list's order, then reversed", WEIGHTS, REVERSED),
        ("nearly alike", (0.6, 0.65, 0.7, 0.75), (0.75, 0.7, 0.65, 0.6)),
    ):
        runs = [run(seed, before, after) for seed in range(SEEDS)]
        shares = [statistics.fmean(hits[at + k] for hits, _ in runs for k in range(20)) for at in range(0, CALLS, 20)]
        regret = statistics.fmean(loss for _, loss in runs)
        print(f"{name}: regret {regret:.3f} a call; best chosen, by 20 calls: {' '.join(f'{100 * s:.0f}' for s in shares)}")


if __name__ == "__main__":
    main()
