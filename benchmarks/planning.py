"""What planning costs: CPU of one plan, taken and given back, over pools of 5 to 200 members.

python benchmarks/planning.py
"""

from __future__ import annotations

import random
import sys
import time
from datetime import UTC, datetime

from llmbroker.broker.costs import Costs
from llmbroker.broker.desk import Desk
from llmbroker.broker.engine import price_of
from llmbroker.broker.replies import Ask
from llmbroker.catalog import LLMConfig
from llmbroker.credentials import Secret
from llmbroker.exchange import make_request
from llmbroker.pool import Key, Lane, Member
from llmbroker.preference import Preference, preference
from llmbroker.providers.table import deployment_for
from llmbroker.router import Entry

WANTED = preference({"quality": 1, "speed": 1, "cost": 1})
NOW = datetime(2026, 9, 1, tzinfo=UTC)
MOST = 60.0
"""Microseconds that a plan over 5 members may take."""


def pool(size: int) -> list[Entry]:
    """Members with records, as after some use."""
    entries: list[Entry] = []
    dice = random.Random(size)
    for index in range(size):
        config = LLMConfig(
            name=f"m{index}",
            model=f"m{index}",
            base_url="http://x.test/v1",
            api_key_ref="K",
            weight=dice.random(),
            price={"input": dice.random(), "output": 5.0 * dice.random()},
        )
        member = Member(config, index, frozenset(), None)
        for _ in range(40):
            member.latency.add(dice.uniform(1, 20))
            member.latency.stopped(dice.uniform(1, 20))
        entries.append((member, (Lane(member, Key("key"), deployment_for(config, Secret("some-secret"))),)))
    return entries


def microseconds(size: int, rounds: int, wanted: Preference | None = None) -> float:
    """Return the CPU of one plan, the best of five runs."""
    entries = pool(size)
    desk = Desk(random.Random(1).random)
    if wanted is not None:
        desk.dollars = Costs(lambda lane, _, usage: price_of(lane, None, usage, NOW), NOW.timestamp).dollars
    request = make_request("hi")
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        for n in range(rounds):
            ask = Ask(
                request, params=None, scope=None, operation="op", trace_id=None, began=float(n), deadline=n + 30.0,
                queue_until=n + 30.0, fastest_of=1, preference=wanted,
            )  # fmt: skip
            _, lease = desk.take(entries, ask, float(n))
            assert lease is not None
            desk.answered(lease, n + 2.0, None, 100)
        best = min(best, (time.process_time() - began) / rounds * 1e6)
    return best


def main() -> None:
    """Print the table; the exit code says whether it keeps to its bounds."""
    print("| members | us a call | us a member | with prefer | us a member |\n|---|---|---|---|---|")
    smallest: list[float] = []
    kept = True
    for size in (5, 20, 50, 100, 200):
        rounds = max(50, (10_000 if size == 5 else 4000) // size)
        took = [microseconds(size, rounds, wanted) for wanted in (None, WANTED)]
        smallest = smallest or took
        kept = (
            kept and smallest[0] <= MOST and all(n <= small * size / 5 * 1.2 for n, small in zip(took, smallest, strict=True))
        )
        print(f"| {size} | " + " | ".join(f"{n:.1f} | {n / size:.2f}" for n in took) + " |")
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
