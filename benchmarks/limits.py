"""What limits and sharing cost: CPU of a pooled call over a port that answers at once, and of a look at what others told.

python benchmarks/limits.py
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llmbroker
from llmbroker import Limit, LLMConfig
from llmbroker.transports.blocking import BlockingIO
from llmbroker.wire import HTTPReply

BODY = (
    b'{"id":"x","model":"m0","choices":[{"index":0,"message":{"role":"assistant","content":"It is 20 degrees."},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}}'
)
ANSWER = HTTPReply(200, {"content-type": "application/json"}, BODY)
ONE = [Limit(calls=10**9, window="day", scope="*")]
THREE = [*ONE, Limit(tokens=10**12, window="month"), Limit(cost=10**6, window="day", operation="bench")]
ROUNDS, CALLS = 20, 100


class AtOnce(BlockingIO):
    """A port whose provider needs no time."""

    async def send(self, request: Any, deadline: float | None = None) -> HTTPReply:
        return ANSWER


def broker(journal: Any, limits: list[Limit]) -> llmbroker.Broker:
    pool = [
        LLMConfig(name=f"m{n}", model=f"m{n}", base_url="http://x.test/v1", api_key_ref="", price={"input": 1.0, "output": 2.0})
        for n in range(3)
    ]
    return llmbroker.Broker(pool=pool, journal=journal, limits=limits, io=AtOnce())


def microseconds(work: Callable[[], Any], calls: int = CALLS) -> float:
    """Return the CPU of one of these, the best round of several."""
    work()
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(calls):
            work()
        best = min(best, (time.process_time() - began) / calls)
    return best * 1e6


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for where in ("memory", "file"):
            for name, limits in (("no limit", []), ("one limit", ONE), ("three limits, one of dollars", THREE)):
                journal = Path(folder) / f"{len(limits)}.db" if where == "file" else False
                with broker(journal, limits) as made:
                    user = made.for_scope("anna")
                    cost = microseconds(lambda user=user: user.ask("?", operation="bench"))  # type: ignore[misc]
                print(f"{where:7} {name:30} {cost:6.0f} us a call")
        with broker(Path(folder) / "look.db", []) as made:
            made.ask("?")
            shared = made._engine.core.shared

            def look() -> None:
                shared._next = 0.0
                made._io.drive(shared.follow())

            print(f"{'file':7} {'a look at what others told':30} {microseconds(look):6.0f} us, at most every half second")


if __name__ == "__main__":
    main()
