"""What a caller prefers: quality, speed and cost, weighed into one worth for each model. Pure.

Theory of operation
-------------------
The worth of a model is the weighted mean of three scores from 0 to 1 (additive multi-attribute utility, as of Keeney and
Raiffa):

* *quality*: the believed quality;
* *speed*: ``1 / (1 + t / T)`` of its usual time ``t``, where ``T`` is the geometric mean of the pool's usual times;
* *cost*: ``1 / (1 + c / C)`` of what such a call probably costs there, ``c``, where ``C`` is the geometric mean in the pool.

So only ratios count, whatever a call of this operation costs: twice as quick is worth as much for a word as for a book. Nothing
costs more than 1 or less than 0, free is 1, and a model that is cheaper, everything else equal, is always worth more. A model
whose time is not known counts as the quickest that is (so that it is tried); one whose price is not known as the dearest.

The worth takes the place of quality everywhere in the plan; the chance of an answer in time still counts on top of it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from llmbroker.errors import InvalidRequestError
from llmbroker.exchange import Usage

Prefer: TypeAlias = "str | Mapping[str, float] | None"
"""``quality`` (the default), ``speed``, ``cost``, or weights of them."""
MAIN = 0.75
"""The weight of what is named; quality keeps the rest."""
USUAL_OUTPUT = 500.0
"""Tokens of an answer where no call has told."""
FADE = 0.95
"""What is left of a call's vote about tokens after each later one."""
SHARED = 3.0
"""How many calls of a model the calls of all models in an operation are worth."""
REMEMBERED = 1024
NAMES = ("quality", "speed", "cost")


class Preference(msgspec.Struct, frozen=True):
    """Weights, together 1."""

    quality: float
    speed: float
    cost: float

    @property
    def plain(self) -> bool:
        """Whether quality alone counts."""
        return not self.speed and not self.cost


_NAMED = {
    "quality": Preference(1.0, 0.0, 0.0),
    "speed": Preference(1.0 - MAIN, MAIN, 0.0),
    "cost": Preference(1.0 - MAIN, 0.0, MAIN),
}


def preference(prefer: Any) -> Preference | None:
    """Return the weights that a caller asks for; None where it asks for none.

    Raises:
        InvalidRequestError: it is neither a name, nor a mapping of names to weights of which at least one is above 0.
    """
    if prefer is None or (isinstance(prefer, Preference)):
        return prefer
    if isinstance(prefer, str):
        if prefer not in _NAMED:
            raise _wrong(prefer)
        return _NAMED[prefer]
    if not isinstance(prefer, Mapping) or not set(prefer) <= set(NAMES):
        raise _wrong(prefer)
    weights = []
    for name in NAMES:
        weight = prefer.get(name, 0.0)
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight < 1e100:
            raise _wrong(prefer)
        weights.append(float(weight))
    total = sum(weights)
    if total <= 0:
        raise _wrong(prefer)
    quality, speed, cost = (weight / total for weight in weights)
    return Preference(quality, speed, cost)


def _wrong(prefer: Any) -> InvalidRequestError:
    return InvalidRequestError(
        f'prefer is "quality", "speed", "cost", or weights like {{"quality": 1, "cost": 2}}, not {prefer!r:.80}.',
        argument="prefer",
    )


class Worth(msgspec.Struct, frozen=True, gc=False):
    """How a model was weighed.

    Attributes:
        worth: what it was ordered by, 0 to 1.
        quality: its believed quality.
        seconds: its usual time; 0: not known.
        dollars: what the call probably costs there; None: not known, or not asked for.
    """

    worth: float
    quality: float
    seconds: float
    dollars: float | None

    def words(self, preference: Preference) -> list[str]:
        """Return the parts that counted, in words."""
        out = [f"worth {self.worth:.2f}", f"quality {self.quality:.2f}"]
        if preference.speed:
            out.append(f"usually {self.seconds:.1f} s" if self.seconds else "time unknown, counted as the quickest")
        if preference.cost:
            out.append(
                "price unknown, counted as the dearest" if self.dollars is None else f"about {shown(self.dollars)} a call"
            )
        return out


def shown(dollars: float) -> str:
    """Return an amount of dollars with two telling digits."""
    if dollars <= 0:
        return "$0"
    digits = max(2, 1 - math.floor(math.log10(dollars)))
    return f"${dollars:.{digits}f}" if digits < 12 else "$0"


class Scale:
    """What times and costs are measured by: those of a whole pool.

    Args:
        preference: what counts.
        times: usual seconds of each model; 0 where they are not known.
        costs: dollars of the call on each model; None where they are not known.
    """

    __slots__ = ("_cost", "_dearest", "_preference", "_quickest", "_time")

    def __init__(self, preference: Preference, times: Iterable[float], costs: Iterable[float | None]) -> None:
        self._preference = preference
        known = [seconds for seconds in times if 0.0 < seconds < math.inf]
        self._time = _middle(known)
        self._quickest = min(known, default=self._time)
        dollars = [cost for cost in costs if cost is not None and 0.0 <= cost < math.inf]
        self._cost = _middle([cost for cost in dollars if cost > 0.0])
        self._dearest = max(dollars, default=self._cost)

    def worth(self, quality: float, seconds: float, dollars: float | None) -> Worth:
        """Return what a model is worth to this caller."""
        weights = self._preference
        seconds = seconds if 0.0 < seconds < math.inf else 0.0
        if dollars is not None and not 0.0 <= dollars < math.inf:
            dollars = None
        worth = weights.quality * quality
        if weights.speed:
            worth += weights.speed / (1.0 + (seconds or self._quickest) / self._time)
        if weights.cost:
            worth += weights.cost / (1.0 + (self._dearest if dollars is None else dollars) / self._cost)
        return Worth(worth, quality, seconds, dollars)


def _middle(values: list[float]) -> float:
    """Return the geometric mean; 1 of nothing."""
    if not values:
        return 1.0
    return max(math.exp(sum(map(math.log, values)) / len(values)), 1e-300)


class _Tokens:
    __slots__ = ("calls", "made", "sent")

    def __init__(self) -> None:
        self.calls = self.sent = self.made = 0.0

    def add(self, sent: float, made: float) -> None:
        self.calls = self.calls * FADE + 1.0
        self.sent = self.sent * FADE + sent
        self.made = self.made * FADE + made


class Tokens:
    """How many tokens a call of an operation takes, learnt from usage: of all models, and of each."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str | None, str | None], _Tokens] = OrderedDict()

    def learn(self, name: str, operation: str | None, usage: Usage) -> None:
        """Take the usage of one call; one that is not complete teaches nothing."""
        sent, made = usage.input_tokens, usage.output_tokens
        if sent is None or made is None or not 0 <= sent < 1e9 or not 0 <= made < 1e9:
            return
        for key in ((None, operation), (name, operation)):
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = _Tokens()
                if len(self._known) > REMEMBERED:
                    self._known.popitem(last=False)
            else:
                self._known.move_to_end(key)
            known.add(sent, made)

    def expected(self, name: str, operation: str | None, characters: int) -> Usage:
        """Return the tokens that a call will probably take, to two digits: that many are told apart."""
        general = self._known.get((None, operation))
        if general is None:
            return Usage(_rounded(characters / 4.0), _rounded(USUAL_OUTPUT))
        own = self._known.get((name, operation))
        calls, sent, made = SHARED, SHARED * general.sent / general.calls, SHARED * general.made / general.calls
        if own is not None:
            calls, sent, made = calls + own.calls, sent + own.sent, made + own.made
        return Usage(_rounded(sent / calls), _rounded(made / calls))


def _rounded(count: float) -> int:
    if count < 100:
        return max(1, int(count))
    step = 10.0 ** (int(math.log10(count)) - 1)
    return int(int(count / step + 0.5) * step)
