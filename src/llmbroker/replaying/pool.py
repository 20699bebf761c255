"""The policy ``ours``: the real broker, with its flow, desk and router, over the replay port in virtual time.

Only the wire is made up: a model that is asked answers as ``World.draw`` says, after as many virtual seconds, with the status
and the words of that row. Calls begin when they began, so that they are in flight together as they were. Ratings come when
they came, so many seconds after the answer. The first half of the journal is played, too, so that the broker has learnt from it
what it would have learnt; only the second counts.

What the broker learns from and what it is judged by are different ratings, each every other one of those near in time:
otherwise it would seem to be good at guessing what is mere chance in them.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from llmbroker.broker import AsyncBroker
from llmbroker.catalog import LLMConfig
from llmbroker.errors import LLMBrokerError
from llmbroker.replaying.policies import Episode, added
from llmbroker.replaying.rows import Fact, Material
from llmbroker.replaying.world import Stratum, World
from llmbroker.transports.replay import Answer, Replay
from llmbroker.wire import HTTPRequest

_JSON = {"content-type": "application/json"}


class _Asked(msgspec.Struct):
    """What the port has to know of a request body."""

    model: str
    messages: list[dict[str, Any]]


def configs_of(material: Material, models: Sequence[str]) -> tuple[list[LLMConfig], dict[str, str]]:
    """Return the pool and its keys: weights and caps of the user's list; who shared a key shares one here."""
    keys = {fact.model: fact.key for fact in material.facts}  # the newest counts
    shared = Counter(keys[model] for model in models if keys[model])
    numbers = {key: number for number, key in enumerate(key for key, count in shared.items() if count > 1)}
    pool, secrets = [], {}
    for place, model in enumerate(models):
        number = numbers.get(keys[model])
        known = material.configs.get(model)
        if number is not None:
            secrets[f"REPLAYED_{number}"] = f"replayed-key-{number}"
        pool.append(
            LLMConfig(
                name=model,
                model=model,
                base_url=f"http://own-{place}.invalid/v1" if number is None else f"http://key-{number}.invalid/v1",
                api_key_ref="" if number is None else f"REPLAYED_{number}",
                weight=known.weight if known is not None else 0.5,
                parallel=known.parallel if known is not None else None,
            )
        )
    return pool, secrets


def answer_of(fact: Fact) -> Answer:
    """Return what comes over the wire for a row."""
    if fact.ok:
        usage = b"" if fact.tokens is None else b',"usage":{"total_tokens":%d}' % fact.tokens
        return Answer(
            headers=_JSON,
            delay=fact.seconds,
            body=b'{"id":"r","model":"m","choices":[{"index":0,"finish_reason":"stop","message":'
            b'{"role":"assistant","content":"answer"}}]' + usage + b"}",
        )
    if fact.status == "timeout" and fact.http is None:
        return Answer(delay=math.inf)
    if fact.fault == "EmptyAnswerError":
        return Answer(
            headers=_JSON,
            delay=fact.seconds,
            body=b'{"id":"r","model":"m","choices":[{"index":0,"finish_reason":"stop","message":'
            b'{"role":"assistant","content":""}}]}',
        )
    status = fact.http or {"rate_limited": 429, "unavailable": 503}.get(fact.status, 500)
    if fact.status == "unavailable" and fact.http is None:
        return Answer(delay=fact.seconds, fault="refuse")
    return Answer(status=status, headers=_JSON, delay=fact.seconds, body={"error": {"message": fact.detail or fact.status}})


class Played:
    """One run of the broker through both halves.

    Args:
        material: the rows. first, second: the two halves. models: the pool.
        budget: seconds a call may take. seed: of all dice.
    """

    def __init__(
        self, material: Material, first: World, second: World, models: Sequence[str], *, budget: float, seed: int
    ) -> None:
        self._requests = [*first.requests, *second.requests]
        self._from = len(first.requests)
        self._first, self._second = first, second
        self._budget = budget
        self._fold = seed % 2
        self._dice = random.Random(f"{seed} wire").random  # noqa: S311 - no secret depends on it
        self._chains: dict[int, list[tuple[int, str]]] = {}
        self._drawn: dict[tuple[int, str], tuple[Stratum, int, bool]] = {}
        self._ratings: list[tuple[float, int, str, str | None, float]] = []
        self._begun = self._requests[0].at if self._requests else 0.0
        self.episodes: list[Episode] = []
        self._port = Replay(wall=self._begun, record=False).on(None, self._answer, times=None)
        pool, secrets = configs_of(material, models)
        self._broker = AsyncBroker(pool=pool, secrets=secrets, journal=False, io=self._port)
        self._desk = self._broker._engine.desk
        self._desk.dice = random.Random(f"{seed} lots").random  # noqa: S311 - a run can be repeated

    def run(self) -> list[Episode]:
        """Return the episodes of the second half."""
        if self._requests:
            self._port.drive(self._all())
        self._port.close()
        return self.episodes

    def _world(self, number: int) -> World:
        return self._first if number < self._from else self._second

    def _answer(self, request: HTTPRequest) -> Answer:
        asked = msgspec.json.decode(request.body, type=_Asked)
        number = int(asked.messages[0]["content"])
        world, call = self._world(number), self._requests[number]
        key = (number, asked.model)
        before = self._drawn.get(key)
        if before is None:
            drawn = world.draw(asked.model, call, self._begun + self._port.now(), self._dice)
        else:
            stratum, index, borrowed = before
            drawn = (stratum, min(index + 1, len(stratum) - 1), borrowed)
        self._drawn[key] = drawn
        place = drawn[0].places[drawn[1]]
        self._chains.setdefault(number, []).append((place, asked.model))
        return answer_of(world.facts[place])

    async def _all(self) -> None:
        port = self._port
        jobs: list[Any] = []
        for number, request in enumerate(self._requests):
            wait = request.at - self._begun - port.now()
            if wait > 0:
                await port.sleep(wait)
            self._rate(port.now())
            if number + 1 < len(self._requests) and self._requests[number + 1].at < request.at + self._budget:
                jobs.append(port.start(self._one(number)))
            else:
                await self._one(number)  # nobody comes before it ends
            if len(jobs) > 64:
                jobs = [job for job in jobs if not self._over(job)]
        while jobs:
            await port.wait(jobs)
            jobs = [job for job in jobs if not self._over(job)]

    def _over(self, job: Any) -> bool:
        if job.done():
            job.result()
            return True
        return False

    def _rate(self, now: float) -> None:
        """Give the ratings that have come by now."""
        while self._ratings and self._ratings[0][0] <= now:
            _, number, model, operation, score = heapq.heappop(self._ratings)
            self._desk.rate(model, operation, score, f"replayed {number}")

    async def _one(self, number: int) -> None:
        request, port = self._requests[number], self._port
        began = port.now()
        model: str | None = None
        try:
            reply = await self._broker.chat(str(number), operation=request.operation, wait=self._budget)
            model = reply.llm_name
        except LLMBrokerError:
            pass
        chain = self._chains.pop(number, [])
        facts = self._world(number).facts
        borrowed = any(self._drawn.pop((number, asked), (None, 0, False))[2] for asked in {asked for _, asked in chain})
        place = next((place for place, asked in reversed(chain) if asked == model), None)
        if place is not None and model is not None and facts[place].score is not None:
            fact = facts[place]
            later = max(0.0, fact.scored_at - fact.at - fact.seconds)
            heapq.heappush(self._ratings, (port.now() + later, number, model, request.operation, self._lesson(number, place)))
        if number < self._from:
            return
        self.episodes.append(
            Episode(
                weight=1.0,
                kind=request.kind,
                chain=tuple(place for place, _ in chain),
                answered=model is not None,
                seconds=min(port.now() - began, self._budget),
                cost=added(facts[place].cost for place, _ in chain),
                model=model,
                judge=self._judge(number, model, self._fold) if model is not None else None,
                rated=place is not None and facts[place].score is not None,
                borrowed=borrowed,
            )
        )

    def _judge(self, number: int, model: str, fold: int) -> int | None:
        request = self._requests[number]
        return self._world(number).judge(model, request.kind, request.at, fold, self._dice)

    def _lesson(self, number: int, place: int) -> float:
        """Return the score that the broker is told for an answer that was rated."""
        facts = self._world(number).facts
        other = self._judge(number, facts[place].model, 1 - self._fold)
        return facts[place if other is None else other].score or 0.0
