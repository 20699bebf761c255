"""Figures of policies with intervals, and of their differences. Pure: dice are arguments.

Theory of operation
-------------------
All policies are judged by the same rows of the journal, so what is uncertain is mostly these rows: a thousand calls that are
answered out of thirty rows of a model tell no more than thirty rows. The bootstrap therefore draws rows, not calls, and one
draw serves every policy, so that differences are paired. Rows that follow each other in a stratum are drawn together, in blocks
of the cube root of their number, because failures come in clusters.

To play the broker anew for each draw would take hours. Instead each figure is taken as a sum of *influences*: by how much it
changes as a row counts more. A draw gives each block a random weight (exponential, mean 1) and adds weight times influence. The
influence of a row is what the episodes that met it came to, less the mean of the episodes that met its stratum at that place.
Latency quantiles are no sums: they are taken anew from the weighted episodes.

Strata in which everything went alike would have no spread. As in the adjusted interval of Agresti and Coull, two good and
two bad answers are thought into each stratum, for the interval alone.
"""

from __future__ import annotations

import math
import random
from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import mul
from typing import TypeAlias

import msgspec

from llmbroker.replaying.policies import Episode
from llmbroker.replaying.world import World

DRAWS = 1000
QUANTILE_DRAWS = 300
Z = 1.959964
LINEAR = ("good", "answered", "quality", "cost", "attempts")
QUANTILES = {"p50": 0.5, "p95": 0.95}
_BOUNDS = {"good": (0.0, 1.0), "answered": (0.0, 1.0), "quality": (0.0, 1.0)}
NEUTRAL = 0.5
"""How good an answer is where no answer at all was rated."""
_THOUGHT = (0.0, 0.0, 1.0, 1.0)

Slot: TypeAlias = tuple[int, int]
"""A stratum, and at which place of a chain it was met (0, 1, 2 or later)."""


class Figure(msgspec.Struct, frozen=True):
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float


def quality_of(world: World, episode: Episode) -> float | None:
    """Return the quality of an answer: its own rating, its judge's, else the mean of the model's; None: nobody knows."""
    if not _ratable(world, episode):
        return None
    ratings = world.ratings(str(episode.model), episode.kind)
    if not ratings:
        return None
    if episode.score is not None:
        return episode.score
    if episode.judge is not None:
        return world.facts[episode.judge].score
    return mean_rating(world, ratings)


def _ratable(world: World, episode: Episode) -> bool:
    return episode.answered and episode.model is not None and episode.kind in world.rated_kinds


def mean_rating(world: World, ratings: Sequence[int]) -> float:
    """Return the mean of the ratings at these places."""
    return math.fsum(world.facts[place].score or 0.0 for place in ratings) / len(ratings)


def good(world: World, episode: Episode, quality: float | None, neutral: float = NEUTRAL) -> float:
    """Return how good an episode's answer is: in work that nobody rates, an answer is a good one."""
    if not episode.answered or episode.kind not in world.rated_kinds:
        return float(episode.answered)
    return neutral if quality is None else quality


class Blocks:
    """Rows that are drawn together, and those that are thought into each stratum."""

    def __init__(self, world: World) -> None:
        self.of: dict[int, int] = {}
        self.stratum_of: dict[int, int] = {}
        self.rows: list[int] = []
        """Rows of each stratum."""
        self.counts: list[int] = []
        """Blocks of each stratum."""
        self.strata: list[int] = []
        """The stratum of each block."""
        self.names = list(world.strata)
        for number, stratum in enumerate(world.strata.values()):
            size = max(1, round(len(stratum) ** (1 / 3)))
            first = len(self.strata)
            for index, place in enumerate(stratum.places):
                self.of[place] = first + index // size
                self.stratum_of[place] = number
            count = -(-len(stratum) // size)
            self.strata += [number] * count
            self.rows.append(len(stratum))
            self.counts.append(count)
        self.real = len(self.strata)
        self.total = self.real + 2 * len(_THOUGHT) * len(self.counts)

    def thought(self, stratum: int, *, of_ratings: bool) -> int:
        """Return the first of the blocks that are thought into a stratum."""
        return self.real + len(_THOUGHT) * (2 * stratum + of_ratings)


class Sample:
    """The episodes of one policy, with the value and the influences of each figure."""

    def __init__(self, world: World, blocks: Blocks, episodes: Sequence[Episode]) -> None:
        self._world = world
        self._blocks = blocks
        self._episodes = [episode for episode in episodes if episode.chain]
        self.weight = sum(episode.weight for episode in episodes) or 1.0
        # A call that met no row at all (nobody was free) is no answer; it has no row that it depends on.
        self.empty = sum(episode.weight for episode in episodes if not episode.chain)
        self._filled: dict[tuple[str, str], float] = {}
        self._judged: dict[tuple[str, str], float] = {}
        self._judges: dict[tuple[str, str], list[tuple[int, float]]] = {}
        self.unjudged = 0.0
        self._quality = [self._judge(episode) for episode in self._episodes]
        self.values: dict[str, float | None] = {}
        self.influences: dict[str, list[float]] = {}
        self._linear()
        self._prepare_quantiles()
        for name, share in QUANTILES.items():
            self.values[name] = self.quantiles(None)[share]

    # -- shares of what is known -----------------------------------------------------------------------------------------

    def share(self, told: Callable[[Episode], bool], among: Callable[[Episode], bool] = lambda _: True) -> float:
        """Return the weight of some episodes among others; 0 if there are no others."""
        whole = sum(episode.weight for episode in self._episodes if among(episode))
        return sum(e.weight for e in self._episodes if among(e) and told(e)) / whole if whole else 0.0

    @property
    def effective(self) -> float:
        """How many equally used rows would be worth as much (Kish)."""
        uses: dict[int, float] = {}
        for episode in self._episodes:
            uses[episode.chain[0]] = uses.get(episode.chain[0], 0.0) + episode.weight
        squares = sum(use * use for use in uses.values())
        return sum(uses.values()) ** 2 / squares if squares else 0.0

    def _judge(self, episode: Episode) -> float | None:
        """Return the quality of an answer, and note by what it is judged."""
        if not _ratable(self._world, episode):
            return None
        quality = quality_of(self._world, episode)
        if quality is None:
            self.unjudged += episode.weight / self.weight
            return None
        known = (str(episode.model), episode.kind)
        self._judged[known] = self._judged.get(known, 0.0) + episode.weight
        if episode.score is not None:
            return quality
        if episode.judge is not None:
            self._judges.setdefault(known, []).append((episode.judge, episode.weight))
        else:
            self._filled[known] = self._filled.get(known, 0.0) + episode.weight
        return quality

    # -- sums ------------------------------------------------------------------------------------------------------------

    def _linear(self) -> None:
        episodes, whole = self._episodes, self.weight
        answered = [float(episode.answered) for episode in episodes]
        ones = [1.0] * len(episodes)
        judged = [float(quality is not None) for quality in self._quality]
        expected = self._expected()
        self._ratio("good", self._good(self._quality), ones, whole, self._good(expected))
        self._ratio("answered", answered, ones, whole)
        self._ratio("attempts", [float(episode.attempts) for episode in episodes], ones, whole)
        self._ratio("quality", [q or 0.0 for q in self._quality], judged, None, [q or 0.0 for q in expected])
        priced = [float(episode.cost is not None) for episode in episodes]
        self._ratio("cost", [episode.cost or 0.0 for episode in episodes], priced)
        self._add_ratings()
        # What scatters around its own mean scatters too little.
        blocks = self._blocks
        more = [math.sqrt(count / (count - 1)) if count > 1 else 1.0 for count in blocks.counts]
        for found in self.influences.values():
            for block, stratum in enumerate(blocks.strata):
                found[block] *= more[stratum]

    def _good(self, qualities: Sequence[float | None]) -> list[float]:
        """Return how good each episode's answer is; that of a model that nobody rated is as good as the mean."""
        neutral = self._neutral()
        return [good(self._world, e, quality, neutral) for e, quality in zip(self._episodes, qualities, strict=True)]

    def _expected(self) -> list[float | None]:
        """Return the qualities with the judges' mean in place of each: what is chance in these is the judges' influence."""
        means = {}
        for known, judges in self._judges.items():
            total = sum(weight for _, weight in judges)
            means[known] = sum((self._world.facts[place].score or 0.0) * weight for place, weight in judges) / total
        return [
            means[e.model, e.kind] if quality is not None and e.score is None and e.judge is not None and e.model else quality
            for e, quality in zip(self._episodes, self._quality, strict=True)
        ]

    def _neutral(self) -> float:
        known = [(quality, e.weight) for quality, e in zip(self._quality, self._episodes, strict=True) if quality is not None]
        total = sum(weight for _, weight in known)
        return sum(quality * weight for quality, weight in known) / total if total else NEUTRAL

    def _ratio(
        self,
        name: str,
        above: list[float],
        below: list[float],
        whole: float | None = None,
        expected: list[float] | None = None,
    ) -> None:
        """Take a figure that is a sum over a sum.

        ``whole``: the second sum, where it is known. ``expected``: what the rows of the chain account for, where it is not all.
        """
        episodes, blocks = self._episodes, self._blocks
        under = sum(e.weight * b for e, b in zip(episodes, below, strict=True)) if whole is None else whole
        if not under:
            self.values[name] = None
            return
        value = sum(e.weight * a for e, a in zip(episodes, above, strict=True)) / under
        found = [0.0] * blocks.total
        offsets = [a - value * b for a, b in zip(expected or above, below, strict=True)]
        sums: dict[Slot, list[float]] = {}
        for episode, offset in zip(episodes, offsets, strict=True):
            for at, place in enumerate(episode.chain):
                entry = sums.setdefault((blocks.stratum_of[place], min(at, 2)), [0.0, 0.0])
                entry[0] += episode.weight * offset
                entry[1] += episode.weight
        means = {slot: total / weight for slot, (total, weight) in sums.items()}
        for episode, offset in zip(episodes, offsets, strict=True):
            for at, place in enumerate(episode.chain):
                slot = (blocks.stratum_of[place], min(at, 2))
                found[blocks.of[place]] += episode.weight * (offset - means[slot]) / under
        if name in ("good", "answered"):
            for (stratum, at), (total, weight) in sums.items():
                if at == 0:
                    mean = total / weight + value
                    self._think(found, stratum, False, weight / under, blocks.rows[stratum], mean)
        self.values[name] = value
        self.influences[name] = found

    def _think(self, found: list[float], stratum: int, of_ratings: bool, share: float, rows: int, mean: float) -> None:
        first = self._blocks.thought(stratum, of_ratings=of_ratings)
        for number, thought in enumerate(_THOUGHT):
            found[first + number] += share / (rows + len(_THOUGHT)) * (thought - mean)

    def _add_ratings(self) -> None:
        """Add the influence of ratings on the answers that have none of their own."""
        blocks, facts = self._blocks, self._world.facts
        numbers = {name: number for number, name in enumerate(blocks.names)}
        judged = sum(self._judged.values())
        for name, under in (("good", self.weight), ("quality", judged)):
            found = self.influences.get(name)
            if found is None or not under:
                continue
            for known, weight in self._judged.items():
                ratings = self._world.ratings(*known)
                mean = mean_rating(self._world, ratings)
                filled = self._filled.get(known, 0.0)
                for place in ratings:
                    found[blocks.of[place]] += filled / under * ((facts[place].score or 0.0) - mean) / len(ratings)
                judges = self._judges.get(known, [])
                given = sum(weight for _, weight in judges)
                middle = sum((facts[place].score or 0.0) * weight for place, weight in judges) / given if given else 0.0
                for place, share in judges:
                    found[blocks.of[place]] += share / under * ((facts[place].score or 0.0) - middle)
                stratum = numbers.get(known)
                counted = filled + given if name == "good" else weight
                if stratum is not None and counted:
                    self._think(found, stratum, True, counted / under, len(ratings), mean)

    # -- quantiles -------------------------------------------------------------------------------------------------------

    def _prepare_quantiles(self) -> None:
        ranked = sorted((e for e in self._episodes if e.answered), key=lambda e: e.seconds)
        of = self._blocks.of
        self._seconds = [episode.seconds for episode in ranked]
        self._weights = [episode.weight for episode in ranked]
        self._firsts = [of[episode.chain[0]] for episode in ranked]
        self._more = [(at, [of[p] for p in e.chain[1:]]) for at, e in enumerate(ranked) if len(e.chain) > 1]

    def quantiles(self, draw: array[float] | None) -> dict[float, float | None]:
        """Return the latency quantiles of the answers, of a draw (weights less 1) or of the episodes as they are."""
        weights = self._weights
        if draw is not None:
            weights = [weight * (1.0 + draw[block]) for weight, block in zip(weights, self._firsts, strict=True)]
            for at, blocks in self._more:
                for block in blocks:
                    weights[at] *= 1.0 + draw[block]
        sums = list(accumulate(weights))
        if not sums or sums[-1] <= 0:
            return dict.fromkeys(QUANTILES.values())
        last = len(sums) - 1
        return {share: self._seconds[min(bisect_left(sums, share * sums[-1]), last)] for share in QUANTILES.values()}


class Comparison:
    """Policies side by side, on the same draws."""

    def __init__(self, world: World, episodes: Mapping[str, Sequence[Episode]], *, seed: int) -> None:
        self.blocks = Blocks(world)
        self.samples = {name: Sample(world, self.blocks, found) for name, found in episodes.items()}
        self._drawn: dict[tuple[str, str], list[float]] = {}
        self._draw(random.Random(f"{seed} draws").expovariate)  # noqa: S311 - a run can be repeated

    def _draw(self, weight: Callable[[float], float]) -> None:
        """Draw, and keep by how much each figure differs."""
        total = self.blocks.total
        linear = [
            (self._drawn.setdefault((name, figure), []), array("d", influences))
            for name, sample in self.samples.items()
            for figure, influences in sample.influences.items()
        ]
        for number in range(DRAWS if total > 0 else 0):
            draw = array("d", [weight(1.0) - 1.0 for _ in range(total)])
            for kept, influences in linear:
                kept.append(sum(map(mul, influences, draw)))
            if number < QUANTILE_DRAWS:
                for name, sample in self.samples.items():
                    found = sample.quantiles(draw)
                    for figure, share in QUANTILES.items():
                        value, now = sample.values[figure], found[share]
                        if value is not None and now is not None:
                            self._drawn.setdefault((name, figure), []).append(now - value)

    def figure(self, name: str, figure: str) -> Figure | None:
        """Return a figure of a policy; None where nothing is known."""
        sample = self.samples[name]
        value, drawn = sample.values[figure], self._drawn.get((name, figure))
        if value is None or not drawn:
            return None
        return self._figure(value, drawn, sample.influences.get(figure), _BOUNDS.get(figure, (0.0, math.inf)))

    def difference(self, name: str, other: str, figure: str) -> Figure | None:
        """Return by how much a policy's figure is higher than another's."""
        mine, theirs = self.samples[name].values[figure], self.samples[other].values[figure]
        drawn, others = self._drawn.get((name, figure)), self._drawn.get((other, figure))
        if mine is None or theirs is None or not drawn or not others or len(drawn) != len(others):
            return None
        here, there = self.samples[name].influences.get(figure), self.samples[other].influences.get(figure)
        influences = [a - b for a, b in zip(here, there, strict=True)] if here is not None and there is not None else None
        low = -math.inf if figure not in _BOUNDS else -1.0
        return self._figure(mine - theirs, [a - b for a, b in zip(drawn, others, strict=True)], influences, (low, -low))

    def _figure(self, value: float, drawn: list[float], influences: list[float] | None, bounds: tuple[float, float]) -> Figure:
        ranked = sorted(drawn)
        wider = self._wider(influences) if influences is not None else 1.0
        low = value + wider * min(0.0, ranked[int(0.025 * (len(ranked) - 1))])
        high = value + wider * max(0.0, ranked[math.ceil(0.975 * (len(ranked) - 1))])
        return Figure(value, max(bounds[0], low), min(bounds[1], high))

    def _wider(self, influences: Sequence[float]) -> float:
        """Return by how much an interval grows because few blocks say how far they scatter (Student's t, Satterthwaite)."""
        spread: dict[int, float] = {}
        for block, stratum in enumerate(self.blocks.strata):
            spread[stratum] = spread.get(stratum, 0.0) + influences[block] ** 2
        total = sum(spread.values())
        lost = sum(part**2 / max(1, self.blocks.counts[stratum] - 1) for stratum, part in spread.items())
        if not lost:
            return 1.0
        freedom = total**2 / lost
        return 1.0 + (Z**2 + 1) / (4 * freedom) + (5 * Z**4 + 16 * Z**2 + 3) / (96 * freedom**2)
