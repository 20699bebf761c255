"""What calls teach: how good a model's answers are, and how long it takes. Pure: time and dice are arguments.

Two records, both small, both harmless when they are wrong:

* ``Beliefs``: quality for each (model, operation). It starts at the weight of the model list and moves with ratings; older
  ratings fade, so that a drift is followed. Ratings of one operation also tell a little about the others.
* ``Latency``: the last answer times of one model, with those that were cut short counted as "longer than that".
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import accumulate

PRIOR = 2.0
"""How many ratings the weight of the model list is worth."""
SHARED = 4.0
"""How many ratings of an operation the model's ratings in all operations together are worth."""
FADE = 0.96
"""What is left of a rating's vote after each later one of the same kind."""
REMEMBERED = 4096
"""Rated calls that can still be rated anew; also the most operations kept."""
STALE = 0.99
"""What is left of the certainty about a model after each later rating of another one in the same operation."""
LAST = 8
"""Ratings that are held against those before them, to see whether a model has changed."""
JUMP = 3.0
"""Standard deviations between them from which on it has."""
KEPT = 0.3
"""What is left of all votes of an operation when one of its models has changed: the others may have, too."""
DARING = 0.7
"""How far what is drawn may lie from what is expected, in standard deviations of what is thought possible."""
SAMPLES = 40
TAIL = 1.25
"""A stopped attempt says something about attempts that may last so many times as long."""


class _Votes:
    __slots__ = ("at", "count", "last", "total")

    def __init__(self) -> None:
        self.count = 0.0
        self.total = 0.0
        self.at = 0.0
        """How many ratings the operation had when this one came."""
        self.last: deque[float] = deque(maxlen=LAST)

    def add(self, score: float) -> None:
        self.count = self.count * FADE + 1.0
        self.total = self.total * FADE + score

    def jumped(self, score: float) -> bool:
        """Take the newest score; return whether the last ones can hardly be of the same model as those before."""
        last = self.last
        last.append(score)
        if len(last) < LAST or self.count <= 2 * LAST:
            return False
        recent = sum(last)
        before = min(1.0, max(0.0, (self.total - recent) / (self.count - LAST)))
        spread = math.sqrt(max(before * (1.0 - before), 0.05) / LAST)
        return abs(recent / LAST - before) > JUMP * spread

    def change(self, by: float) -> None:
        self.total = min(max(self.total + by, 0.0), self.count)


class Beliefs:
    """How good each model is thought to be, for each operation."""

    __slots__ = ("_cache", "_counts", "_models", "_operations", "_rated")

    def __init__(self) -> None:
        self._models: dict[str, _Votes] = {}
        self._operations: OrderedDict[tuple[str, str | None], _Votes] = OrderedDict()
        self._rated: OrderedDict[str, float] = OrderedDict()
        self._cache: dict[tuple[str, str | None], float] = {}
        self._counts: OrderedDict[str | None, float] = OrderedDict()

    def quality(self, name: str, weight: float, operation: str | None) -> float:
        """Return the expected quality, 0 to 1."""
        if name not in self._models:
            return weight
        key = (name, operation)
        known = self._cache.get(key)
        if known is None:
            known = self._cache[key] = self._quality(name, weight, operation)
        return known

    def _quality(self, name: str, weight: float, operation: str | None) -> float:
        model = self._models[name]
        general = (PRIOR * weight + model.total) / (PRIOR + model.count)
        own = self._operations.get((name, operation))
        if own is None:
            return general
        return (SHARED * general + own.total) / (SHARED + own.count)

    def rate(self, name: str, operation: str | None, score: float, call_id: str | None = None) -> None:
        """Take one rating. A call that is rated again has its vote changed, not doubled. What is no number 0..1 is ignored."""
        if not isinstance(score, (int, float)) or not math.isfinite(score) or not 0 <= score <= 1:
            return
        if call_id is not None and self._rated.get(call_id) == score:
            return  # heard a second time
        model = self._models.get(name)
        if model is None:
            model = self._models[name] = _Votes()
        key = (name, operation)
        own = self._operations.get(key)
        if own is None:
            own = self._operations[key] = _Votes()
            if len(self._operations) > REMEMBERED:
                self._operations.popitem(last=False)
        else:
            self._operations.move_to_end(key)
        before = self._rated.pop(call_id, None) if call_id is not None else None
        for votes in (model, own):
            if before is None:
                votes.add(score)
            else:
                votes.change(score - before)
        if before is None and own.jumped(score):
            self._doubt(operation)
        own.at = self._counts[operation] = self._counts.pop(operation, 0.0) + 1.0
        if len(self._counts) > REMEMBERED:
            self._counts.popitem(last=False)
        if call_id is not None:
            self._rated[call_id] = score
            if len(self._rated) > REMEMBERED:
                self._rated.popitem(last=False)
        self._cache.clear()

    def _doubt(self, operation: str | None) -> None:
        """Forget most of what is known of an operation, of all models that were rated for it."""
        for (name, rated), votes in self._operations.items():
            if rated == operation:
                for held in (votes, self._models[name]):
                    held.count *= KEPT
                    held.total *= KEPT
                votes.last.clear()

    def drawn(self, name: str, weight: float, operation: str | None, dice: Callable[[], float]) -> float:
        """Return the quality, drawn from what is thought possible: who is little known, or was long ago, is tried now and then.

        While nobody rates an operation it is the expected quality.
        """
        expected = self.quality(name, weight, operation)
        total = self._counts.get(operation, 0.0)
        if not total:
            return expected
        votes = self._operations.get((name, operation))
        known = PRIOR + (votes.count * STALE ** (total - votes.at) if votes else 0.0)
        spread = math.sqrt(max(expected * (1.0 - expected), 0.05) / known)
        noise = 2.0 * (dice() + dice() + dice() - 1.5)
        return min(1.0, max(0.0, expected + DARING * noise * spread))

    def count(self, name: str, operation: str | None = None) -> float:
        """Return how many ratings count for a model's operation, faded ones in part."""
        votes = self._operations.get((name, operation))
        return votes.count if votes else 0.0


class Latency:
    """The last answer times of one model, in seconds.

    An attempt that was cut after ``t`` seconds tells only that the answer takes longer than ``t``: it counts as 1.5 ``t`` where
    the record did not expect so long, else as nothing.
    """

    __slots__ = ("_answers", "_curve", "_lasted", "_order", "_runs", "_sorted", "_weights", "missed", "missed_at", "misses")

    def __init__(self) -> None:
        self._order: deque[float] = deque()
        self._sorted: list[float] = []
        self._runs: deque[tuple[float, bool]] = deque(maxlen=SAMPLES)
        self._answers: list[float] = []  # times of the answered runs, sorted
        self._curve: tuple[list[float], list[float]] | None = None
        self._lasted: list[float] = []
        self._weights: list[float] = []
        self.missed = 0.0
        """The longest time that an attempt was given lately without an answer; 0 after an answer."""
        self.missed_at = -math.inf
        self.misses = 0
        """How many attempts were cut since the last answer."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._order)

    @property
    def runs(self) -> int:
        """How many attempts it knows of, stopped ones included."""
        return len(self._runs)

    def add(self, seconds: float) -> None:
        """Take the time of an answer."""
        self.missed, self.misses = 0.0, 0
        self._run(seconds, answered=True)
        self._add(seconds)

    def _run(self, seconds: float, *, answered: bool) -> None:
        runs, answers = self._runs, self._answers
        if len(runs) == SAMPLES and runs[0][1]:
            del answers[bisect_left(answers, runs[0][0])]
        runs.append((seconds, answered))
        if answered:
            insort(answers, seconds)
        self._curve = None

    def _add(self, seconds: float) -> None:
        order, ranked = self._order, self._sorted
        if len(order) >= SAMPLES:
            del ranked[bisect_left(ranked, order.popleft())]
        order.append(seconds)
        insort(ranked, seconds)

    def cut(self, seconds: float, now: float) -> None:
        """Take an attempt that was cut off after that many seconds."""
        self.missed = max(self.missed, seconds)
        self.missed_at = now
        self.misses += 1
        self.stopped(seconds, now)
        if self._sorted and seconds > self.quantile(0.5):
            self._add(seconds * 1.5)

    def stopped(self, seconds: float, now: float = 0.0) -> None:
        """Take an attempt that was stopped after that many seconds, for whatever reason: the answer would have come later."""
        if seconds >= 0.5 * self.quantile(0.25) and seconds > 0.0:
            self._run(seconds, answered=False)

    def _lasting(self) -> tuple[list[float], list[float]]:
        """Return times of answers and the share of attempts that last longer than each (Kaplan and Meier's estimate)."""
        curve = self._curve
        if curve is None:
            left = 1.0
            times, shares = [], []
            at_risk = len(self._runs)
            ranked = sorted(self._runs, key=lambda run: (run[0], not run[1]))
            for seconds, answered in ranked:
                if answered:
                    left *= 1.0 - 1.0 / at_risk
                    times.append(seconds)
                    shares.append(left)
                at_risk -= 1
            curve = self._curve = (times, shares)
            self._lasted = [run[0] for run in ranked]
            self._weights = [0.0, *accumulate(run[0] ** 1.5 for run in reversed(ranked))]
        return curve

    def hope(self, seconds: float) -> float:
        """Return the chance of an answer within that time, attempts that were stopped included; 1 where nothing is known.

        One answer in time is added to what was seen of attempts that were given about as long (longer ones count more): a model
        of which little is known shall show more.
        """
        answers = self._answers
        if len(answers) == len(self._runs) and (not answers or seconds >= answers[-1]):
            return 1.0  # nothing was stopped and nothing took longer: the curve would say so too
        times, shares = self._lasting()
        index = bisect_right(times, seconds) - 1
        longer = len(self._lasted) - bisect_left(self._lasted, seconds / TAIL)
        weight = max(self._weights[longer] / seconds**1.5, longer) if seconds > 0 else math.inf
        return 1.0 - (shares[index] if index >= 0 else 1.0) * (1.0 - 1.0 / (weight + 1.0))

    def forgive(self, longer: float) -> None:
        """Forget attempts that were stopped after more than that: they met an incident, which is over, not the usual time."""
        self._runs = deque((run for run in self._runs if run[1] or run[0] < longer), maxlen=SAMPLES)
        self._answers = sorted(run[0] for run in self._runs if run[1])
        self._order = deque(seconds for seconds in self._order if seconds < longer)
        self._sorted = sorted(self._order)
        self._curve = None
        self.missed, self.misses = 0.0, 0

    def usual(self) -> float:
        """Return the time within which one attempt in two is answered, stopped ones included; 0 if unknown."""
        answers = self._answers
        if not self._runs:
            return 0.0
        if len(answers) == len(self._runs) and answers[0] > 0.0:
            return answers[(len(answers) + 1) // 2 - 1]  # nothing was stopped: what is computed below would be the same
        half = self.remaining(0.0)
        return half if half < math.inf else max(run[0] for run in self._runs)

    def remaining(self, elapsed: float) -> float:
        """Return how much longer an attempt will probably (one in two) take that has lasted so long; infinity if unknown."""
        answers = self._answers
        if not answers or elapsed >= answers[-1]:
            return math.inf
        if len(answers) == len(self._runs):
            # Nothing was stopped: the middle of those that lasted longer.
            lasted = bisect_right(answers, elapsed)
            return max(answers[(len(answers) + lasted + 1) // 2 - 1] - elapsed, 0.0)
        times, shares = self._lasting()
        index = bisect_right(times, elapsed) - 1
        half = (shares[index] if index >= 0 else 1.0) / 2.0
        for at in range(max(index, 0), len(times)):
            if shares[at] <= half:
                return max(times[at] - elapsed, 0.0)
        return math.inf

    def quantile(self, share: float) -> float:
        """Return the time within which that share of the answers came; 0 without a sample."""
        ranked = self._sorted
        if not ranked:
            return 0.0
        return ranked[min(len(ranked) - 1, int(share * len(ranked)))]

    def chance(self, seconds: float) -> float:
        """Return the share of answers that came within that time; 1 without a sample."""
        ranked = self._sorted
        return bisect_left(ranked, seconds) / len(ranked) if ranked else 1.0
