"""A replay from its arguments to its result."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from llmbroker.catalog import LLMConfig
from llmbroker.errors import InvalidRequestError
from llmbroker.journal import utc
from llmbroker.replaying.measure import LINEAR, QUANTILES, Comparison, good, quality_of
from llmbroker.replaying.policies import Episode, always, at_random, recorded
from llmbroker.replaying.pool import Played
from llmbroker.replaying.result import ModelRows, Policy, Replayed
from llmbroker.replaying.rows import Material, gather
from llmbroker.replaying.verdict import BEST, CHEAPEST, OURS, conclude, notes_of
from llmbroker.replaying.world import FEW, World

FASTEST, RANDOM, RECORDED = "fastest", "random", "recorded"
POLICIES = (OURS, BEST, CHEAPEST, FASTEST, RANDOM, RECORDED)
"""The policies that have a name; a model's name is the policy that always asks it."""
PLAYED = 12_000
"""About so many calls are played by the broker, where nobody says how often."""
MOST_SEEDS = 100


def replay(
    source: Any = None,
    *,
    since: datetime | None = None,
    operation: str | None = None,
    policies: Sequence[str] = POLICIES,
    budget: float = 60.0,
    seeds: int | None = None,
    seed: int = 0,
    pool: Sequence[LLMConfig] | None = None,
) -> Replayed:
    """Play a journal against other policies and say whether routing was worth it. No model is called.

    What a model would have done with a call that it did not serve is taken from its own rows of the same operation, near in
    time. Models are chosen by the earlier half of the calls and judged by the later half. ``ours`` is the real broker, in
    virtual time. The same arguments give the same result.

    Args:
        source: None (the journal in llmbroker's own folder), a path or address of a database, or rows of ``calls()``.
        since: the oldest call that counts, an aware time.
        operation: only this one.
        policies: of ``ours``, ``best-fixed``, ``cheapest``, ``fastest``, ``random``, ``recorded``, and names of models.
        budget: seconds that a call may take, the same for every policy.
        seeds: how often the broker is played; by default as often as makes some 12,000 calls.
        seed: of all dice.
        pool: the model list, for weights and caps, where the source holds none.

    Raises:
        InvalidRequestError: an argument means nothing.
        ConfigurationError, StoreError: the source cannot be read.
    """
    names = _checked(policies, budget, seeds)
    if since is not None and (not isinstance(since, datetime) or since.tzinfo is None):
        raise InvalidRequestError(f"since is a datetime with a time zone, not {since!r}.", argument="since")
    material = gather(source, since=since, operation=operation, pool=pool)
    unknown = [name for name in names if name not in POLICIES and name not in material.models]
    if unknown and material.facts:
        known = ", ".join([*POLICIES, *material.models])
        raise InvalidRequestError(
            f"There is no policy or model {unknown[0]!r} here.", argument="policies", hint=f"Known: {known}."
        )
    return _Run(material, names, float(budget), seeds, seed).result()


def _checked(policies: Any, budget: Any, seeds: Any) -> list[str]:
    if isinstance(policies, str) or not isinstance(policies, Iterable):
        raise InvalidRequestError("policies is a list of names.", argument="policies")
    names = list(dict.fromkeys(policies))
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidRequestError("policies is a list of names, at least one.", argument="policies")
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not math.isfinite(budget) or budget <= 0:
        raise InvalidRequestError(f"budget is a number of seconds above 0, not {budget!r}.", argument="budget")
    if seeds is not None and (isinstance(seeds, bool) or not isinstance(seeds, int) or not 1 <= seeds <= MOST_SEEDS):
        raise InvalidRequestError(f"seeds is a whole number from 1 to {MOST_SEEDS}, not {seeds!r}.", argument="seeds")
    return names


class _Run:
    """One replay."""

    def __init__(self, material: Material, names: list[str], budget: float, seeds: int | None, seed: int) -> None:
        self.material = material
        self.names = names
        self.budget = budget
        self.seed = seed
        self.missing: dict[str, str] = {}
        requests = material.requests
        self.split = requests[len(requests) // 2].at if requests else 0.0
        border = bisect_left(requests, self.split, key=lambda request: request.at)
        dice = random.Random(f"{seed} ends").random  # noqa: S311 - a run can be repeated
        parts = (requests[:border], requests[border:])
        self.first, self.second = (
            World(material.facts, part, sorted(place for request in part for place in request.rows), dice) for part in parts
        )
        self.models = [
            name for name in material.models if all(len(w.whole.get(name, ())) >= FEW for w in (self.first, self.second))
        ]
        self.seeds = seeds or max(2, min(20, 2 * (PLAYED // max(1, 2 * len(requests)))))
        self.fixed: dict[str, str] = {}
        """The model of each policy that asks one."""

    def result(self) -> Replayed:
        if not self.models:
            return self._made(None, {})
        self._choose()
        episodes = self._episodes()
        comparison = Comparison(self.second, episodes, seed=self.seed) if episodes else None
        return self._made(comparison, episodes)

    def _choose(self) -> None:
        """Choose models by the earlier half."""
        comparison = {model: _Means(self.first, always(self.first, model, self.budget)) for model in self.models}
        best = max(self.models, key=lambda m: (comparison[m].good, comparison[m].answered, -comparison[m].seconds))
        self.fixed[BEST] = best
        priced = [model for model in self.models if comparison[model].priced > 0.5 and comparison[model].answered > 0]
        if priced:
            self.fixed[CHEAPEST] = min(priced, key=lambda m: (comparison[m].cost, -comparison[m].good))
        else:
            self.missing[CHEAPEST] = "the cost of most calls is not known, so nobody can say which model is the cheapest"
        answering = [model for model in self.models if comparison[model].answered > 0]
        if answering:
            self.fixed[FASTEST] = min(answering, key=lambda m: comparison[m].seconds)
        else:
            self.missing[FASTEST] = "no model answered in the earlier half"
        for name in self.names:
            if name not in POLICIES:
                if name in self.models:
                    self.fixed[name] = name
                else:
                    self.missing[name] = f"it has fewer than {FEW} rows in one of the halves"

    def _episodes(self) -> dict[str, list[Episode]]:
        found: dict[str, list[Episode]] = {}
        wanted = list(dict.fromkeys([*self.names, BEST]))  # the yardstick is always there
        for name in wanted:
            if name in self.missing:
                continue
            if name == OURS:
                found[name] = [episode for number in range(self.seeds) for episode in self._ours(number)]
            elif name == RANDOM:
                found[name] = at_random(self.second, self.models, self.budget)
            elif name == RECORDED:
                found[name] = recorded(self.second, self.second.requests, self.material.facts, self.budget)
            else:
                found[name] = always(self.second, self.fixed[name], self.budget)
        return found

    def _ours(self, number: int) -> list[Episode]:
        played = Played(self.material, self.first, self.second, self.models, budget=self.budget, seed=1000 * self.seed + number)
        return played.run()

    def _made(self, comparison: Comparison | None, episodes: Mapping[str, Sequence[Episode]]) -> Replayed:
        verdict, reason = conclude(comparison, self.fixed, self.models, self.material, self.second)
        requests = self.material.requests
        return Replayed(
            verdict=verdict,
            reason=reason,
            policies=tuple(self._policy(comparison, name, found) for name, found in episodes.items()) if comparison else (),
            models=tuple(self._model(name) for name in self.material.models),
            rows=len(self.material.facts),
            requests=len(requests),
            judged=len(self.second.requests),
            since=utc(requests[0].at) if requests else None,
            split=utc(self.split) if requests else None,
            until=utc(requests[-1].at) if requests else None,
            budget=self.budget,
            seeds=self.seeds if OURS in episodes else 0,
            seed=self.seed,
            best=self.fixed.get(BEST),
            notes=notes_of(self.material, self.first, self.second, self.models, self.missing, comparison, self.budget),
        )

    def _policy(self, comparison: Comparison, name: str, episodes: Sequence[Episode]) -> Policy:
        sample = comparison.samples[name]
        figures = {figure: comparison.figure(name, figure) for figure in (*LINEAR, *QUANTILES)}
        against = {
            figure: difference
            for figure in (*LINEAR, *QUANTILES)
            if name != BEST and (difference := comparison.difference(name, BEST, figure)) is not None
        }
        return Policy(
            name=name,
            model=self.fixed.get(name),
            rated=sample.share(lambda e: e.rated, lambda e: e.answered),
            unpriced=sample.share(lambda e: e.cost is None),
            effective=sample.effective,
            against=against,
            **figures,
        )

    def _model(self, name: str) -> ModelRows:
        rows = [fact for fact in self.material.facts if fact.model == name]
        judged = self.second.whole.get(name)
        return ModelRows(
            name=name,
            rows=len(rows),
            judged=len(judged) if judged is not None else 0,
            answered=sum(fact.ok for fact in rows),
            rated=sum(fact.ok and fact.score is not None for fact in rows),
            priced=sum(fact.cost is not None for fact in rows),
            played=name in self.models,
        )


class _Means:
    """What a policy comes to, without intervals: enough to choose by."""

    def __init__(self, world: World, episodes: Sequence[Episode]) -> None:
        total = sum(episode.weight for episode in episodes) or 1.0
        self.answered = sum(e.weight for e in episodes if e.answered) / total
        self.good = sum(e.weight * good(world, e, quality_of(world, e)) for e in episodes) / total
        priced = [episode for episode in episodes if episode.cost is not None]
        weight = sum(episode.weight for episode in priced)
        self.priced = weight / total
        self.cost = sum(e.weight * (e.cost or 0.0) for e in priced) / weight if weight else math.inf
        ranked = sorted((e.seconds, e.weight) for e in episodes if e.answered)
        half, passed = 0.5 * sum(weight for _, weight in ranked), 0.0
        self.seconds = math.inf
        for seconds, weight in ranked:
            passed += weight
            if passed >= half:
                self.seconds = seconds
                break
