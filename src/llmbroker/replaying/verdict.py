"""What follows from a replay, and what has to be known to read it: the verdict, or why there is none, and the notes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from llmbroker.replaying.measure import Comparison, Figure
from llmbroker.replaying.policies import AGAIN
from llmbroker.replaying.result import Verdict
from llmbroker.replaying.rows import MOST_ROWS, OTHERS, SELDOM, Material
from llmbroker.replaying.world import FEW, NEAR, World

OURS, BEST, CHEAPEST = "ours", "best-fixed", "cheapest"
MARGIN = 0.02
"""A difference in good answers that is not worth a pool."""
FEWEST_CALLS = 40
FEWEST_ROWS = 30
"""Rows, equally used, that must stand behind a policy."""
GUESSED = 0.1
"""The share of answers that may be borrowed from other work, or judged by nobody."""
OFTEN = 0.1
"""An operation with so large a share of the calls must have rows of its own."""


def conclude(
    comparison: Comparison | None,
    fixed: Mapping[str, str],
    models: Sequence[str],
    material: Material,
    world: World,
) -> tuple[Verdict, str]:
    """Return the verdict and its reason."""
    lacking = _lacking(comparison, fixed, models, material, world)
    if lacking or comparison is None:
        return "undecided", f"Nothing can be concluded: {lacking}."
    if OURS not in comparison.samples:
        return "undecided", "Whether routing is worth it was not asked: the policy ours was left out."
    for name in (CHEAPEST, BEST):
        if name not in fixed or name not in comparison.samples or _weak(name, fixed, comparison):
            continue
        found = comparison.difference(OURS, name, "good")
        if found is not None and found.high <= MARGIN:
            return "do_not_route", _no_route(name, fixed[name], found)
    found = comparison.difference(OURS, BEST, "good")
    if found is None:
        return "undecided", "Nothing can be concluded: no difference could be reckoned."
    model = fixed[BEST]
    if found.low > 0:
        cost = comparison.difference(OURS, BEST, "cost")
        dearer = f" It costs {cost.value:+.6f} dollars more a request." if cost is not None and cost.low > 0 else ""
        return "route", (
            f"Route: in 100 requests the pool gives {_more(found)} than always {model} {_interval(found)}.{dearer}"
        )
    return "undecided", (
        f"Not shown: in 100 requests the pool gives {_more(found)} than always {model} {_interval(found)}. More rows, or more "
        "ratings, would tell."
    )


def _no_route(name: str, model: str, found: Figure) -> str:
    why = "is the cheapest and " if name == CHEAPEST else ""
    return (
        f"Do not route: always {model} {why}is as good. In 100 requests the pool gives {_more(found)} {_interval(found)}; "
        f"less than {100 * MARGIN:g} is no gain."
    )


def _more(found: Figure) -> str:
    return f"{100 * abs(found.value):.1f} {'more' if found.value >= 0 else 'fewer'} good answers"


def _interval(found: Figure) -> str:
    return f"(95 % interval {100 * found.low:+.1f} to {100 * found.high:+.1f})"


def _lacking(
    comparison: Comparison | None, fixed: Mapping[str, str], models: Sequence[str], material: Material, world: World
) -> str:
    """Return what is lacking for a conclusion, or ""."""
    if not material.facts:
        return "the journal has no rows that can be used"
    if len(models) < 2:
        return (
            f"only {len(models)} of {len(material.models)} models has {FEW} rows in each half, and what a model "
            "without rows would have done nobody knows"
        )
    if len(world.requests) < FEWEST_CALLS:
        return f"{len(world.requests)} requests are too few to judge by; {FEWEST_CALLS} are needed in the later half"
    if comparison is None:
        return "no policy could be played"
    idle = _idle(material, models)
    if idle:
        return idle
    for name in (OURS, BEST):
        if name in comparison.samples and (weak := _weak(name, fixed, comparison)):
            return weak
    return _thin(fixed, world)


def _weak(name: str, fixed: Mapping[str, str], comparison: Comparison) -> str:
    """Say why a policy's figures rest on too little, or ""."""
    sample = comparison.samples[name]
    shown = f"always {fixed[name]}" if name in fixed else name
    if sample.effective < FEWEST_ROWS:
        return f"{shown} rests on {sample.effective:.0f} rows that are equally used; {FEWEST_ROWS} are needed"
    borrowed = sample.share(lambda e: e.borrowed)
    if borrowed > GUESSED:
        return f"for {100 * borrowed:.0f} % of the calls {shown} has no rows of the same operation"
    if sample.unjudged > GUESSED:
        return f"{100 * sample.unjudged:.0f} % of the answers of {shown} come from models that nobody rated in rated work"
    return ""


def _idle(material: Material, models: Sequence[str]) -> str:
    """Say which model that served many calls cannot be played."""
    counts = Counter(fact.model for fact in material.facts)
    for name, count in counts.items():
        if name not in models and count > 0.2 * len(material.facts):
            return f"{name} has {count} of {len(material.facts)} rows, but hardly any in one of the halves"
    return ""


def _thin(fixed: Mapping[str, str], world: World) -> str:
    """Say in which frequent operation the best fixed model has too few rows or ratings."""
    kinds = Counter(request.kind for request in world.requests)
    model = fixed[BEST]
    for kind, count in kinds.items():
        if count < OFTEN * len(world.requests):
            continue
        rows = len(world.strata.get((model, kind), ()))
        if rows < FEWEST_ROWS // 2:
            return f"{model} has {rows} rows of the operation {kind}; {FEWEST_ROWS // 2} are needed"
        ratings = world.rated(model, kind)
        if kind in world.rated_kinds and ratings < FEWEST_ROWS // 2:
            return f"{model} has {ratings} ratings of the operation {kind}; {FEWEST_ROWS // 2} are needed"
    return ""


def notes_of(
    material: Material,
    first: World,
    second: World,
    models: Sequence[str],
    missing: Mapping[str, str],
    comparison: Comparison | None,
    budget: float,
) -> tuple[str, ...]:
    """Return what has to be known to read the figures."""
    notes = [
        "These rows are no experiment. A model was asked when the router thought it best or when others had failed, so its "
        "rows may be of easier or harder requests, and of better or worse hours, than those that it did not serve.",
        f"What a model would have done is one of {NEAR} of its own rows of the same operation around that moment; refusals "
        "come as often as they came, though a policy that asks a model more often would meet more, and without the wait that "
        "the provider stated, which no row holds.",
        f"Policies of one model ask it up to {AGAIN} times more after a failure that may pass; the pool fails over as always.",
    ]
    for why, count in sorted(material.left_out.items()):
        notes.append(f"{count} rows were left out: {why}.")
    if material.cut:
        notes.append(f"Only the newest {MOST_ROWS:,} rows were read.")
    completed, unknown = first.completed + second.completed, first.unknown + second.unknown
    if completed or unknown:
        notes.append(
            f"{completed + unknown} attempts had been stopped before their end; {completed} are taken to end like one of the "
            f"same model that lasted longer, {unknown} are left out."
        )
    notes += [
        f"{name} has fewer than {FEW} rows in one of the halves: it is in no policy."
        for name in material.models
        if name not in models
    ]
    silent = sorted(material.listed - set(material.models))
    if silent and material.facts:
        notes.append(f"Of {', '.join(silent)} there is no row: nothing is said about them.")
    notes += [f"{name} is not shown: {why}." for name, why in missing.items()]
    notes += _of_ratings(second)
    late = sum(fact.ok and fact.seconds > budget for fact in material.facts)
    if late:
        notes.append(f"{late} answers took longer than {budget:g} s and count as none.")
    if comparison is not None:
        for name, sample in comparison.samples.items():
            borrowed = sample.share(lambda e: e.borrowed)
            if borrowed > 0.005:
                notes.append(
                    f"{name}: {100 * borrowed:.0f} % of the calls are answered from the model's rows of other operations, for "
                    "want of own ones."
                )
    return tuple(notes)


def _of_ratings(world: World) -> list[str]:
    kinds = {request.kind for request in world.requests}
    answers = [fact for fact in world.facts.values() if fact.ok]
    if not answers:
        return []
    rated = sum(fact.score is not None for fact in answers)
    if not rated:
        return ["Nothing was rated: a good answer is one that came in time, whatever it said."]
    notes = [
        f"{100 * rated / len(answers):.0f} % of the answers were rated. The others are taken to be as good as the rated ones "
        "of the same model and operation; if only striking answers were rated, that is wrong."
    ]
    unrated = len(kinds - world.rated_kinds)
    if unrated:
        notes.append(f"{unrated} of {len(kinds)} operations have no ratings: there a good answer is one that came in time.")
    if OTHERS in kinds:
        notes.append(f"Operations with fewer than {SELDOM} requests are taken together.")
    return notes
