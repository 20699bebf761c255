"""A stretch of a journal as a world in which every model can be asked at any time. Pure: dice are arguments.

Theory of operation
-------------------
What a model would have done is taken from its own rows of the same operation, near in time. A *stratum* is what one model did
in one operation, in order of time. Whoever is asked at a moment does what it did in one of the ``NEAR`` rows around it:
so days on which it was down stay such days, and a drift stays a drift. Asked again by the same call it does what it did in the
row after that, so that refusals come in a row as they came.

An attempt that was stopped (its caller had left, another model was faster) shows only that its answer takes longer than that:
it is taken to end like one of the model's attempts that lasted longer. Where there is none it is left out.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from llmbroker.replaying.rows import STOPPED, Fact, Request

NEAR = 8
"""Rows around a moment, one of which is taken."""
NEAR_RATINGS = 20
"""The same of ratings: each says less, and quality changes more slowly than health."""
FEW = 5
"""With fewer rows in an operation, a model's rows of all operations are taken."""

Dice = Callable[[], float]


class Stratum:
    """What one model did in one operation: places of its facts in order of time."""

    __slots__ = ("places", "times")

    def __init__(self) -> None:
        self.places: list[int] = []
        self.times: list[float] = []

    def add(self, place: int, at: float) -> None:
        """Take the next fact."""
        self.places.append(place)
        self.times.append(at)

    def __len__(self) -> int:
        return len(self.places)

    def near(self, at: float, most: int = NEAR) -> tuple[int, int]:
        """Return from where to where the rows around a moment stand."""
        count = min(most, len(self.places))
        low = min(max(bisect_left(self.times, at) - most // 2, 0), len(self.places) - count)
        return low, low + count


class World:
    """The rows of a stretch of time.

    Attributes:
        facts: all facts, by place; those of attempts that were stopped have another's end.
        requests: the calls of that time.
        strata: by model and kind of work. whole: by model.
        completed: attempts that were stopped and were given another's end. unknown: those for which there was none.
        rated_kinds: the kinds of work of which any answer was rated.
    """

    def __init__(self, facts: Sequence[Fact], requests: Sequence[Request], places: Sequence[int], dice: Dice) -> None:
        self.requests = requests
        self.strata: dict[tuple[str, str], Stratum] = {}
        self.whole: dict[str, Stratum] = {}
        self.unknown = 0
        self.completed = 0
        self.facts: dict[int, Fact] = dict(self._ended(facts, places, dice))
        for place, fact in self.facts.items():
            self.strata.setdefault((fact.model, fact.kind), Stratum()).add(place, fact.at)
            self.whole.setdefault(fact.model, Stratum()).add(place, fact.at)
        self._ratings = _ratings(self.facts)
        self._judges = _folds(self._ratings, self.facts)
        self.rated_kinds = {kind for _, kind in self._ratings if kind is not None}

    def _ended(self, facts: Sequence[Fact], places: Sequence[int], dice: Dice) -> Iterator[tuple[int, Fact]]:
        """Yield the facts, each with an end of its own or of another that lasted longer."""
        whole: dict[tuple[str, str], list[tuple[float, int]]] = {}
        for place in places:
            fact = facts[place]
            if fact.status not in STOPPED:
                whole.setdefault((fact.model, fact.kind), []).append((fact.seconds, place))
        for ended in whole.values():
            ended.sort()
        for place in places:
            fact = facts[place]
            if fact.status not in STOPPED:
                yield place, fact
                continue
            longer = whole.get((fact.model, fact.kind), [])
            start = bisect_right(longer, fact.seconds, key=lambda one: one[0])
            if start == len(longer):
                self.unknown += 1
                continue
            self.completed += 1
            like = facts[longer[start + int(dice() * (len(longer) - start))][1]]
            yield place, msgspec.structs.replace(
                fact, status=like.status, seconds=like.seconds, cost=like.cost, http=like.http, fault=like.fault,
                detail=like.detail, tokens=like.tokens, score=None,
            )  # fmt: skip

    def stratum(self, model: str, kind: str) -> tuple[Stratum, bool]:
        """Return what a model's answers to a kind of work are taken from, and whether that is other work of its."""
        own = self.strata.get((model, kind))
        if own is not None and len(own) >= FEW:
            return own, False
        return self.whole[model], True

    def ratings(self, model: str, kind: str) -> tuple[int, ...]:
        """Return the places of the ratings by which a model's answers to a kind of work are judged; none: nobody knows."""
        own = self._ratings.get((model, kind), ())
        return tuple(own if len(own) >= FEW else self._ratings.get((model, None), ()))

    def rated(self, model: str, kind: str) -> int:
        """Return how many of a model's answers to a kind of work were rated."""
        return len(self._ratings.get((model, kind), ()))

    def judge(self, model: str, kind: str, at: float, fold: int, dice: Dice) -> int | None:
        """Return the place of a rated answer near a moment, of one half of them (``fold`` 0 or 1); None: nobody rated any."""
        own = self._judges.get((model, kind))
        folds = own if own is not None and len(own[0]) + len(own[1]) >= FEW else self._judges.get((model, None))
        if folds is None:
            return None
        stratum = folds[fold] if len(folds[fold]) else folds[1 - fold]
        low, high = stratum.near(at, NEAR_RATINGS)
        return stratum.places[low + int(dice() * (high - low))]

    def draw(self, model: str, request: Request, at: float, dice: Dice) -> tuple[Stratum, int, bool]:
        """Return the stratum, the place in it from which a model goes on for a call, and whether it is of other work."""
        stratum, borrowed = self.stratum(model, request.kind)
        low, high = stratum.near(at)
        return stratum, low + int(dice() * (high - low)), borrowed

    def shares(self, model: str) -> dict[tuple[str, int], float]:
        """Return how often each place of a stratum is what a model begins with, if it serves every request.

        The keys are (kind of the request, place of the fact).
        """
        steps: dict[str, tuple[Stratum, list[float]]] = {}
        for request in self.requests:
            entry = steps.get(request.kind)
            if entry is None:
                stratum = self.stratum(model, request.kind)[0]
                entry = steps[request.kind] = (stratum, [0.0] * (len(stratum) + 1))
            low, high = entry[0].near(request.at)
            entry[1][low] += 1.0 / (high - low)
            entry[1][high] -= 1.0 / (high - low)
        out: dict[tuple[str, int], float] = {}
        for kind, (stratum, changes) in steps.items():
            height = 0.0
            for index in range(len(stratum)):
                height += changes[index]
                if height > 1e-9:
                    out[kind, index] = height
        return out


def _ratings(facts: Mapping[int, Fact]) -> dict[tuple[str, str | None], list[int]]:
    """Return the places of rated answers by model and kind, and by model (kind None)."""
    found: dict[tuple[str, str | None], list[int]] = {}
    for place, fact in facts.items():
        if fact.ok and fact.score is not None:
            found.setdefault((fact.model, fact.kind), []).append(place)
            found.setdefault((fact.model, None), []).append(place)
    return found


def _folds(
    ratings: Mapping[tuple[str, str | None], list[int]], facts: Mapping[int, Fact]
) -> dict[tuple[str, str | None], tuple[Stratum, Stratum]]:
    """Return each list of rated answers as two of every other one."""
    folds = {}
    for name, places in ratings.items():
        folds[name] = (Stratum(), Stratum())
        for number, place in enumerate(places):
            folds[name][number % 2].add(place, facts[place].at)
    return folds
