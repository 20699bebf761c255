"""What each policy would have done with the calls of a stretch of time, as weighted episodes. Pure: dice are arguments.

A policy that asks one model needs no dice: how often each of the model's rows would be met is reckoned out. It asks again
after a failure that a repeat may mend, as the vendors' own clients do (``AGAIN`` times), because to compare a pool with a
client that gives up at once would flatter the pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from llmbroker.replaying.rows import Fact, Request
from llmbroker.replaying.world import Stratum, World

AGAIN = 2
"""How often a policy of one model asks again."""
PAUSE = 0.5
"""Seconds before it asks again; twice as many before the next time."""
TRANSIENT = ("rate_limited", "unavailable", "timeout")


class Episode(msgspec.Struct, frozen=True, gc=False):
    """One call under a policy.

    Attributes:
        weight: how many calls it stands for.
        kind: the kind of work.
        chain: the places of the facts that it met, in order.
        answered: an answer came in time. seconds: until it came, or until the end.
        cost: in US dollars; None: not known.
        model: who answered. score: that answer's own rating, where it has one.
        judge: the place of another fact by whose rating the answer is judged. rated: the answer itself was rated.
        borrowed: something in it was taken from other work of the model.
    """

    weight: float
    kind: str
    chain: tuple[int, ...]
    answered: bool
    seconds: float
    cost: float | None
    model: str | None = None
    score: float | None = None
    judge: int | None = None
    rated: bool = False
    borrowed: bool = False

    @property
    def attempts(self) -> int:
        """How many attempts it took."""
        return len(self.chain)


def mends(fact: Fact) -> bool:
    """Whether to ask again may help."""
    return fact.status in TRANSIENT or (fact.status == "error" and (fact.http is None or fact.http >= 500))


def added(costs: Iterable[float | None]) -> float | None:
    """Return the sum; None if one is not known."""
    total = 0.0
    for cost in costs:
        if cost is None:
            return None
        total += cost
    return total


def one_model(world: World, stratum: Stratum, start: int, budget: float) -> tuple[tuple[int, ...], bool, float]:
    """Return what happens if a model is asked, and asked again, from a row on: the places, whether it answers, and when."""
    clock = 0.0
    chain: list[int] = []
    for attempt in range(AGAIN + 1):
        place = stratum.places[min(start + attempt, len(stratum) - 1)]
        fact = world.facts[place]
        chain.append(place)
        # What timed out once is taken to have hung: it uses up what is left.
        clock = budget if fact.status == "timeout" else clock + fact.seconds
        if clock >= budget:
            return tuple(chain), False, budget
        if fact.ok:
            return tuple(chain), True, clock
        if not mends(fact):
            break
        clock += PAUSE * 2**attempt
    return tuple(chain), False, min(clock, budget)


def always(world: World, model: str, budget: float, weight: float = 1.0) -> list[Episode]:
    """Return the episodes of the policy that asks one model."""
    episodes: list[Episode] = []
    known: dict[tuple[bool, int], tuple[tuple[int, ...], bool, float]] = {}
    for (kind, start), share in world.shares(model).items():
        stratum, borrowed = world.stratum(model, kind)
        what = (borrowed, stratum.places[start])
        if what not in known:
            known[what] = one_model(world, stratum, start, budget)
        chain, answered, seconds = known[what]
        own = world.facts[chain[-1]].score if answered else None
        episodes.append(
            Episode(
                weight=weight * share,
                kind=kind,
                chain=chain,
                answered=answered,
                seconds=seconds,
                cost=added(world.facts[place].cost for place in chain),
                model=model if answered else None,
                score=None if borrowed else own,
                rated=own is not None,
                borrowed=borrowed,
            )
        )
    return episodes


def at_random(world: World, models: Sequence[str], budget: float) -> list[Episode]:
    """Return the episodes of the policy that asks any of the models, each as often."""
    return [episode for model in models for episode in always(world, model, budget, 1.0 / len(models))]


def recorded(world: World, requests: Sequence[Request], facts: Sequence[Fact], budget: float) -> list[Episode]:
    """Return what happened."""
    episodes: list[Episode] = []
    for request in requests:
        chain = tuple(place for place in request.rows if place in world.facts)
        if not chain:
            continue
        answers = [place for place in request.rows if facts[place].ok]
        last = facts[answers[0] if answers else request.rows[-1]]
        seconds = max(0.0, last.at + last.seconds - request.at)
        episodes.append(
            Episode(
                weight=1.0,
                kind=request.kind,
                chain=chain,
                answered=bool(answers) and seconds <= budget,
                seconds=min(seconds, budget),
                cost=added(facts[place].cost for place in request.rows),
                model=last.model if answers else None,
                score=last.score if answers else None,
                rated=bool(answers) and last.score is not None,
            )
        )
    return episodes
