"""What a replay says: values, and the same in words."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

from llmbroker.replaying.measure import Figure

Verdict: TypeAlias = Literal["route", "do_not_route", "undecided"]


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """One policy in a replay. Figures are a request's, with 95 % intervals; None: nothing is known.

    Attributes:
        name: as it was asked for. model: the one model that it asks, if it asks one.
        good: mean over all requests of the answer's quality, 0 where no answer came in time; unrated work counts as 1.
        answered: share of the requests with an answer in time.
        quality: mean quality of the answers in rated work. rated: the share of the answers with a rating of their own.
        cost: mean cost in US dollars of the requests whose cost is known. unpriced: the share whose cost is not.
        p50, p95: seconds until an answer.
        attempts: how many a request took.
        effective: how many rows, equally used, are worth as much as those behind these figures.
        against: differences to the best fixed model, by the figure's name.
    """

    name: str
    model: str | None = None
    good: Figure | None = None
    answered: Figure | None = None
    quality: Figure | None = None
    rated: float = 0.0
    cost: Figure | None = None
    unpriced: float = 0.0
    p50: Figure | None = None
    p95: Figure | None = None
    attempts: Figure | None = None
    effective: float = 0.0
    against: dict[str, Figure] = {}


class ModelRows(msgspec.Struct, frozen=True, kw_only=True):
    """What the journal knows of a model: rows, those of the half that is judged, how many of them answered, rated, priced."""

    name: str
    rows: int
    judged: int
    answered: int
    rated: int
    priced: int
    played: bool


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """The journal played against other policies.

    Attributes:
        verdict: ``route``, ``do_not_route`` or ``undecided``. ``reason`` says it in words.
        policies: what each policy would have come to. models: what the journal knows of each model.
        rows, requests: what was read. judged: the requests of the later half, by which policies are judged.
        since, until: when the first and last request began; split: where the later half begins.
        budget: seconds that a request may take. seeds: how often the broker was played. seed: of all dice.
        best: the fixed model that the earlier half recommends.
        notes: what has to be known to read the figures rightly.
    """

    verdict: Verdict
    reason: str
    policies: tuple[Policy, ...] = ()
    models: tuple[ModelRows, ...] = ()
    rows: int = 0
    requests: int = 0
    judged: int = 0
    since: datetime | None = None
    split: datetime | None = None
    until: datetime | None = None
    budget: float = 0.0
    seeds: int = 0
    seed: int = 0
    best: str | None = None
    notes: tuple[str, ...] = ()

    def policy(self, name: str) -> Policy | None:
        """Return a policy by its name, or None."""
        return next((policy for policy in self.policies if policy.name == name), None)

    def __str__(self) -> str:
        """Say everything, with tables."""
        return "\n".join(_lines(self))

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the policies with their intervals into a file (.svg, .png, .pdf): good answers, latency, differences.

        Raises:
            ConfigurationError: matplotlib is not installed, there is nothing to draw, or the file cannot be written.
        """
        from llmbroker.replaying.plot import draw

        shown = [policy for policy in self.policies if policy.good is not None]
        draw(
            path,
            f"{self.judged} requests, 95 % intervals: {self.verdict.replace('_', ' ')}",
            [_named(policy) for policy in shown],
            [
                ("good answers a request, %", [policy.good for policy in shown], 100.0),
                ("seconds until an answer, median", [policy.p50 for policy in shown], 1.0),
                (f"good answers more than always {self.best}, points", [p.against.get("good") for p in shown], 100.0),
            ],
        )


def _named(policy: Policy) -> str:
    return policy.name if policy.model in (None, policy.name) else f"{policy.name}: {policy.model}"


HEAD = ("policy", "good", "answered", "quality", "rated", "cost", "unpriced", "p50", "p95", "attempts", "rows")


def table(result: Replayed) -> list[tuple[str, ...]]:
    """Return a row of text for each policy, in the order of ``HEAD``."""
    return [
        (
            _named(policy),
            _percent(policy.good),
            _percent(policy.answered),
            _percent(policy.quality),
            f"{100 * policy.rated:.0f} %",
            _dollars(policy.cost),
            f"{100 * policy.unpriced:.0f} %",
            _seconds(policy.p50),
            _seconds(policy.p95),
            "-" if policy.attempts is None else f"{policy.attempts.value:.2f}",
            f"{policy.effective:.0f}",
        )
        for policy in result.policies
    ]


DIFFERENCES = ("policy", "good", "answered", "quality", "cost", "p50", "p95")


def differences(result: Replayed) -> list[tuple[str, ...]]:
    """Return a row of text for each policy with its differences to the best fixed model, in the order of ``DIFFERENCES``."""
    shown = {"good": _points, "answered": _points, "quality": _points, "cost": _more_dollars, "p50": _more, "p95": _more}
    return [
        (policy.name, *(show(policy.against.get(name)) for name, show in shown.items()))
        for policy in result.policies
        if policy.against
    ]


MODELS = ("model", "rows", "judged", "answered", "rated", "priced", "")


def model_rows(result: Replayed) -> list[tuple[str, ...]]:
    """Return a row of text for each model, in the order of ``MODELS``."""
    return [
        (m.name, f"{m.rows}", f"{m.judged}", f"{m.answered}", f"{m.rated}", f"{m.priced}", "" if m.played else "left out")
        for m in result.models
    ]


def head(result: Replayed) -> str:
    """Return what was played, in a sentence."""
    if result.since is None or result.until is None or result.split is None:
        return f"{result.rows} rows, {result.requests} requests."
    return (
        f"{result.rows} rows, {result.requests} requests from {result.since:%Y-%m-%d} to {result.until:%Y-%m-%d}; chosen by "
        f"what came before {result.split:%Y-%m-%d %H:%M} UTC, judged by the {result.judged} requests since; "
        f"{result.budget:g} s a request."
    )


def _lines(result: Replayed) -> Iterator[str]:
    yield head(result)
    if result.policies:
        yield ""
        yield from _aligned(HEAD, table(result))
    against = differences(result)
    if against:
        yield ""
        yield f"More than always {result.best}:"
        yield from _aligned(DIFFERENCES, against)
    if result.models:
        yield ""
        yield from _aligned(MODELS, model_rows(result))
    yield ""
    yield result.reason
    yield from (f"- {note}" for note in result.notes)


def _aligned(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[at]) for row in [columns, *rows]) for at in range(len(columns))]
    for row in [columns, *rows]:
        cells = [
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _percent(figure: Figure | None) -> str:
    return "-" if figure is None else f"{100 * figure.value:.1f} [{100 * figure.low:.1f}, {100 * figure.high:.1f}]"


def _points(figure: Figure | None) -> str:
    return "-" if figure is None else f"{100 * figure.value:+.1f} [{100 * figure.low:+.1f}, {100 * figure.high:+.1f}]"


def _seconds(figure: Figure | None) -> str:
    return "-" if figure is None else f"{figure.value:.2f} s [{figure.low:.2f}, {figure.high:.2f}]"


def _more(figure: Figure | None) -> str:
    return "-" if figure is None else f"{figure.value:+.2f} s [{figure.low:+.2f}, {figure.high:+.2f}]"


def _dollars(figure: Figure | None) -> str:
    return "unknown" if figure is None else f"${figure.value:.6f}"


def _more_dollars(figure: Figure | None) -> str:
    return "unknown" if figure is None else f"{figure.value:+.6f} [{figure.low:+.6f}, {figure.high:+.6f}]"
