"""Journals whose truth is known: models with given chances, qualities and times, asked by lot or by a rule."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from llmbroker.exchange import Usage
from llmbroker.journal import Call, utc
from llmbroker.replaying import Figure

T0 = 1_790_000_000.0


class Truth(msgspec.Struct, frozen=True):
    """What a model really is, in one operation."""

    quality: float = 0.8
    answers: float = 1.0
    seconds: float = 1.0
    cost: float | None = 0.001

    @property
    def good(self) -> float:
        """Good answers a request, asked once."""
        return self.answers * self.quality


Truths = Mapping[tuple[str, str], Truth]
Pick = Callable[[int, Sequence[str], random.Random], str]


def by_lot(_: int, models: Sequence[str], dice: random.Random) -> str:
    """Ask each model as often."""
    return dice.choice(models)


def outcome(truth: Truth, dice: random.Random, *, rated: float = 1.0) -> dict[str, Any]:
    """Draw what an attempt comes to."""
    if dice.random() >= truth.answers:
        return {"status": "error", "http_status": 400, "error_class": "BadRequestError", "latency_ms": 200.0}
    score = float(dice.random() < truth.quality) if dice.random() < rated else None
    return {
        "status": "ok",
        "latency_ms": 1000.0 * dice.expovariate(1.0 / truth.seconds),
        "cost": truth.cost,
        "currency": "USD" if truth.cost is not None else None,
        "score": score,
        "usage": Usage(input_tokens=10, output_tokens=5, total_tokens=15),
    }


def journal(
    truths: Truths, count: int, *, seed: int = 0, rated: float = 1.0, pick: Pick = by_lot, every: float = 30.0
) -> list[Call]:
    """Return rows of so many calls, one attempt each; operations and models are drawn."""
    dice = random.Random(seed)
    models = sorted({model for model, _ in truths})
    operations = sorted({operation for _, operation in truths})
    rows = []
    for number in range(count):
        model, operation = pick(number, models, dice), dice.choice(operations)
        facts = outcome(truths[model, operation], dice, rated=rated)
        at = utc(T0 + every * number)
        rows.append(
            Call(
                id=f"{number:013x}{seed:012x}", ts=at, llm_name=model, operation=operation, provider="p",
                score_ts=at if facts.get("score") is not None else None, **facts,
            )
        )  # fmt: skip
    return rows


def whole(truths: Truths, count: int, *, seed: int = 0, rated: float = 1.0, every: float = 30.0) -> list[Call]:
    """Return rows in which every call was served by every model: nothing has to be guessed in it."""
    dice = random.Random(seed)
    models = sorted({model for model, _ in truths})
    operations = sorted({operation for _, operation in truths})
    rows = []
    for number in range(count):
        operation, group = dice.choice(operations), f"{number:013x}{seed:012x}"
        for at, model in enumerate(models):
            facts = outcome(truths[model, operation], dice, rated=rated)
            when = utc(T0 + every * number)
            rows.append(
                Call(
                    id=group if at == 0 else f"{group}-{at}", group_id=group, attempt=at + 1, ts=when, llm_name=model,
                    operation=operation, provider="p", score_ts=when if facts.get("score") is not None else None, **facts,
                )
            )  # fmt: skip
    return rows


DOMINATED: Truths = {
    (model, operation): truth
    for operation in ("sum", "code")
    for model, truth in (("best", Truth(0.9)), ("cheap", Truth(0.6, cost=0.0001)), ("quick", Truth(0.5, seconds=0.2)))
}
DIFFERENT: Truths = {
    ("prose", "text"): Truth(0.9),
    ("prose", "code"): Truth(0.3),
    ("coder", "text"): Truth(0.4, cost=0.0001),
    ("coder", "code"): Truth(0.8, cost=0.0001),
}
TWO: Truths = {("a", "x"): Truth(), ("b", "x"): Truth()}


def near(figure: Figure | None, truth: float) -> bool:
    """Whether an interval covers the truth."""
    assert figure is not None
    return figure.low <= truth <= figure.high
