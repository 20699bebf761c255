"""llmbroker in the routing simulator: the adapter that is copied beside the simulator's others.

The broker runs whole and with its default settings: wire format, journal in memory, keys, queue. Only the sockets are the
simulator's, and the dice are seeded so that a run can be repeated. Nothing is read but what a router can see: the pool's list
and what comes back over HTTP.
"""

from __future__ import annotations

import inspect
import json
import random
from typing import Any

from sim import Answer  # type: ignore[import-not-found]

from llmbroker import AsyncBroker, LLMConfig
from llmbroker.errors import LLMTimeoutError
from llmbroker.transports.aio import AsyncIO
from llmbroker.wire import HTTPReply, HTTPRequest


class SimulatedIO(AsyncIO):
    """The asyncio port with the simulator's wire."""

    def __init__(self, env: Any) -> None:
        super().__init__()
        self._post = env.post

    async def send(self, request: HTTPRequest, deadline: float | None = None) -> HTTPReply:
        """Exchange one request; the deadline becomes the read timeout."""
        left = None if deadline is None else max(0.001, deadline - self.now())
        try:
            status, headers, body = await self._post(request.url, request.headers, json.loads(request.body), left)
        except TimeoutError:
            raise LLMTimeoutError("The simulated provider did not answer in time.") from None
        return HTTPReply(status, {name.lower(): value for name, value in headers.items()}, body)

    async def call(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        """Run what may block at once: a thread's time is not the simulator's, which would go on to the next event meanwhile."""
        result = fn(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result


class Adapter:
    """What the simulator calls."""

    def __init__(self, env: Any) -> None:
        pool = [
            LLMConfig(
                name=one["name"], base_url=one["base_url"], model=one["model"], api_key_ref=one["key"], weight=one["weight"]
            )
            for one in env.pool
        ]
        secrets = {one["key"]: "k-" + one["key"] for one in env.pool}
        self.broker = AsyncBroker(pool=pool, secrets=secrets, journal=":memory:", io=SimulatedIO(env))
        self.broker._engine.desk.dice = random.Random(env.seed).random

    async def start(self) -> None:
        """Nothing is learnt before the first call."""

    async def chat(self, messages: list[dict[str, Any]], *, wait: float, operation: str) -> Answer:
        """Return the broker's answer within ``wait`` seconds."""
        reply = await self.broker.chat(messages, wait=wait, operation=operation)
        return Answer(reply.llm_name, reply.text, reply)

    async def record_quality(self, answer: Answer, score: float) -> None:
        """Rate an answer."""
        await answer.handle.record_quality(score)

    async def aclose(self) -> None:
        """Close the broker."""
        await self.broker.aclose()
