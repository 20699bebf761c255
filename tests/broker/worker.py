"""A process with a broker of its own: takes a command a line, as JSON, and answers with a line.

Usage: worker.py STORE URL sync|async
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from llmbroker import AsyncBroker, Broker, LLMConfig
from llmbroker.errors import LLMBrokerError


class Worker:
    """What the commands do; ``do`` runs a call of either face."""

    def __init__(self, store: str, url: str, kind: str, do: Callable[[Any], Any]) -> None:
        self.store, self.url = store, url
        self.kind = Broker if kind == "sync" else AsyncBroker
        self.do = do
        self.brokers: dict[str, Any] = {}

    def open(self, models: list[str]) -> Any:
        """Make a broker over these models, the best first; look once."""
        pool = [
            LLMConfig(name=name, model=name, base_url=self.url, weight=0.9 * 0.2**at, api_key_ref=f"K_{name}")
            for at, name in enumerate(models)
        ]
        broker = self.brokers[models[0]] = self.kind(
            pool=pool, journal=self.store, secrets={f"K_{name}": f"secret-of-{name}" for name in models}
        )
        self.do(lambda: broker.snapshot())
        return True

    def chat(self, model: str, **options: Any) -> Any:
        """Return who answered and the call's id; or the error's reason."""
        try:
            reply = self.do(lambda: self.brokers[model].chat("hi", **options))
        except LLMBrokerError as error:
            return {"error": getattr(error, "reason", type(error).__name__)}
        return {"by": reply.llm_name, "id": reply.call_id}

    def many(self, model: str, seconds: float, every: float) -> Any:
        """Chat again and again."""
        end = time.monotonic() + seconds
        count = 0
        while time.monotonic() < end:
            self.chat(model)
            count += 1
            time.sleep(every)
        return count

    def rate(self, model: str, call_id: str, score: float) -> Any:
        """Rate a call."""
        self.do(lambda: self.brokers[model].record_quality(score, call_id=call_id))
        return True

    def switch(self, model: str, off: bool) -> Any:
        """Switch a model off or on."""
        broker = self.brokers[model]
        self.do(lambda: broker.disable_llm(model) if off else broker.enable_llm(model))
        return True

    def state(self, model: str) -> Any:
        """Return how the model is."""
        state = self.do(lambda: self.brokers[model].snapshot())[model]
        return {"reason": state.reason, "quality": state.quality, "ratings": state.ratings, "detail": state.detail}

    def close(self) -> Any:
        """Close everything."""
        for broker in self.brokers.values():
            self.do(broker.close)
        return True


def main() -> None:
    """Obey until the input ends."""
    store, url, kind = sys.argv[1:4]
    runner = asyncio.Runner()

    def awaited(call: Callable[[], Any]) -> Any:
        async def run() -> Any:
            found = call()
            return await found if hasattr(found, "__await__") else found

        return runner.run(run())

    worker = Worker(store, url, kind, (lambda call: call()) if kind == "sync" else awaited)
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(getattr(worker, command.pop("do"))(**command)), flush=True)
    runner.close()


if __name__ == "__main__":
    main()
