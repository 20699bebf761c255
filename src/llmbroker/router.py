"""Which model next, and what to do about an error. Pure: the state of the pool, the time and the dice are arguments.

Theory of operation
-------------------
``plan`` looks once at every member and sorts it into one of two lists. *Steps* may begin now, the best first: members that can
probably answer in the time that is left, then those of higher believed quality, then, among equals, by lot: a lot is the better
the fewer attempts run on a member and the faster it usually answers. *Passed* members each have a reason, and where time will
mend it, the moment. ``decide`` turns one error into the next move of a call. Neither changes anything but what they look at
through ``Lane.cannot`` (which forgets outdated facts).

A call asks each lane once a pass. When nothing is left that may begin now, it waits for the first that comes back, if that is
inside its deadline and worth waiting for; then a new pass begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from llmbroker.allowances import Refused
from llmbroker.health import RATE_LIMITED, Dice, Illness, Verdict
from llmbroker.learning import Beliefs, Latency
from llmbroker.pool import Lane, Member, Need
from llmbroker.preference import Preference, Scale, Worth

Entry: TypeAlias = tuple[Member, Sequence[Lane]]
"""A member with the lanes that a caller may use, its own key first."""

MISSED_COUNTS = 600.0
"""Seconds for which a missed budget sends calls with as little time elsewhere, unless it was one of many that were met."""
LIKELY = 0.2
"""A model that answers in time less often than this is asked only when nobody else is there."""
POOR = 0.2
"""What is worth less than this share of what comes back in time is not begun with."""
DOUBT = 0.5
"""From this chance on a model is begun with at once, however little it is worth."""
VAIN = 0.2
"""A model that answers in time less often than this is not asked while a much better one will come back in time."""
HOPELESS = 0.1
"""A model that answers in time less often than this is not asked while anybody else may come back."""
SURE = 0.8
"""From this chance on the differences between the chances of models do not count: quality alone does."""
SOON = 8.0
"""Seconds for which a call holds out for a better model that comes back by then."""
USELESS = 0.3
"""A model that answers before a better one that comes back less often than this is not begun with."""
UNWATCHED = 15.0
"""Seconds that an attempt may take at least before it is cut, where it runs with nobody beside it."""
FIRST_PATIENCE = 12.0
"""Seconds before a second lane is opened beside a model of which nothing is known."""


_BESIDE_LIMITS = frozenset({"limit", "disabled", "no_key", "key_refused", "unable"})


class Step(msgspec.Struct, frozen=True, gc=False):
    """A lane that may begin now.

    Attributes:
        lane: what to run on.
        quality: what it was ordered by: the believed quality, or its worth where a caller prefers something else.
        late: it will probably not answer in time.
        hope: the chance that it answers in time.
        usual: seconds in which half of its answers come; 0 if unknown.
        probe: the illness that it recovers from; this attempt tries it out. None: it is well.
        worth: how it was weighed, where a caller prefers something else than quality.
        record: how long its answers take.
    """

    lane: Lane
    quality: float
    late: bool = False
    hope: float = 1.0
    usual: float = 0.0
    probe: Illness | None = None
    worth: Worth | None = None
    record: Latency | None = None


class Passed(msgspec.Struct, frozen=True, gc=False):
    """A member that was passed over.

    Attributes:
        name: the member.
        reason: disabled, no_key, unable, tried, busy, limit, or the word of its illness.
        detail: what it lacks, the provider's words, or those of a limit of our own.
        until: when that ends, on the scale of ``now``, or None.
        returns: whether it is worth waiting for.
        value: believed quality times the chance that it is well then and answers in time.
        usual: seconds in which half of its answers come; 0 if unknown.
        room: how many calls it can serve at once then.
        surely: the moment was stated; otherwise it is an estimate.
    """

    name: str
    reason: str
    detail: str = ""
    until: float | None = None
    returns: bool = False
    value: float = 1.0
    usual: float = 0.0
    room: int = 1
    surely: bool = True


class Plan(msgspec.Struct, frozen=True):
    """What may be done now. ``steps``: the best first. ``passed``: everybody else, with reasons."""

    steps: tuple[Step, ...]
    passed: tuple[Passed, ...]

    @property
    def next_at(self) -> float | None:
        """When the first member that was passed over may be free by itself; None if only an answer or nothing frees one."""
        times = [p.until for p in self.passed if p.returns and p.until is not None]
        return min(times) if times else None

    def hold(self, now: float, crowd: int = 1) -> bool:
        """Whether to wait for somebody better rather than to begin with the best that is free.

        ``crowd``: calls that have no answer yet and must have it before this one, this one included.
        """
        if not self.steps:
            return False
        best = self.steps[0]
        luck = best.lane.luck
        value = best.quality * best.hope * luck
        if best.hope < VAIN and any(p.returns and p.value * min(1.0, p.room / crowd) > 2.0 * value for p in self.passed):
            return True
        if best.hope < HOPELESS and any(p.returns and not p.surely for p in self.passed):
            return True
        if best.hope * luck < DOUBT and any(p.returns and p.until is not None and p.value * POOR > value for p in self.passed):
            return True
        usual, slow = best.usual, best.record
        for p in self.passed:
            if not p.returns or p.until is None or p.room < crowd:
                continue
            there = p.until - now + p.usual
            if p.value > 1.3 * value and p.until - now <= min(SOON, 0.25 * usual) and there < 0.7 * usual:
                return True
            if p.usual and p.value > value and slow is not None and slow.hope(there) * luck < USELESS:
                return True
        return False

    @property
    def sure(self) -> bool:
        """Whether the moments at which members come back were stated by their providers."""
        return all(p.surely for p in self.passed if p.returns)

    @property
    def wants(self) -> frozenset[str]:
        """Names of the members that are worth waiting for."""
        return frozenset(p.name for p in self.passed if p.returns)

    @property
    def offers(self) -> frozenset[str]:
        """Names of the members of which a free slot would help: all but those that a limit of our own closes."""
        return frozenset(p.name for p in self.passed if p.returns and p.reason != "limit")

    @property
    def limited(self) -> bool:
        """Whether limits of our own are all that keeps the call from an answer."""
        if self.steps:
            return False
        reasons = {p.reason for p in self.passed}
        return "limit" in reasons and reasons <= _BESIDE_LIMITS

    @property
    def verdict(self) -> str:
        """Return why nobody can serve: empty_pool, no_keys, all_disabled, limit, unable, or failed."""
        reasons = {p.reason for p in self.passed} - {"disabled"} if self.passed else set()
        if not self.passed:
            return "failed" if self.steps else "empty_pool"
        if not reasons:
            return "all_disabled"
        if reasons <= {"no_key", "key_refused"}:
            return "no_keys"
        if self.limited:
            return "limit"
        if "unable" in reasons and reasons <= {"unable", "no_key", "key_refused"}:
            return "unable"
        return "failed"


def plan(
    entries: Sequence[Entry],
    need: Need,
    *,
    now: float,
    left: float,
    beliefs: Beliefs,
    dice: Dice,
    tried: frozenset[int] | set[int] = frozenset(),
    barred: frozenset[int] | set[int] = frozenset(),
    again: bool = False,
    limited: Mapping[int, Refused] | None = None,
    preference: Preference | None = None,
    dollars: Callable[[Lane, Need], float | None] | None = None,
) -> Plan:
    """Return what a call may do now.

    Args:
        entries: the pool as this caller sees it.
        need: what the call asks of a model.
        now: the time.
        left: seconds until the call's deadline.
        beliefs: what ratings say.
        dice: decides among equals.
        tried: ``id`` of lanes that were asked in this pass.
        barred: ``id`` of lanes that are not asked again by this call at all.
        again: the call asked somebody already: a model that never answered in so little time is not begun with.
        limited: ``id`` of lanes that a limit of our own closes to this call, and why.
        preference: what the caller prefers; None: quality alone.
        dollars: what such a call will probably cost on a lane, or None; asked only where the preference is about cost.
    """
    weigh = _weigh(entries, need, preference, dollars) if preference is not None and not preference.plain else None
    ranked: list[tuple[bool, int, float, int, Step]] = []
    passed: list[Passed] = []
    for member, lanes in entries:
        if member.disabled:
            passed.append(Passed(member.name, "disabled"))
            continue
        found = _look(member, lanes, need, now, tried, barred, limited)
        quality = beliefs.drawn(member.name, member.config.weight, need.operation, dice)
        record = member.record(need.stream, need.operation)
        worth: Worth | None = None
        if weigh is not None:
            worth = weigh(member, quality)
            quality = worth.worth
        if type(found) is Passed:
            passed.append(_valued(found, quality, record, now, left) if found.returns else found)
            continue
        lane: Lane = found  # type: ignore[assignment]
        hope = record.hope(left)
        late = False if hope == 1.0 and not record.missed else _late(record, left, now)
        if late and again and _hopeless(record, left):
            passed.append(Passed(member.name, "too_slow", f"it never answered within {left:.1f} s"))
            continue
        well = lane.health.room is None and member.health.room is None and lane.key.health.room is None
        step = Step(lane, quality, late, hope, record.usual(), None if well else lane.recovering(), worth, record)
        value = quality if hope >= SURE else quality * hope
        if lane.quota.luck < SURE or lane.key.quota.luck < SURE:
            lane.quota.forget(now)
            lane.key.quota.forget(now)
            value *= lane.luck
        # Differences of less than a hundredth are none, but for who asked for the cheaper or the quicker.
        ranked.append((late, -round(value * (100 if worth is None else 1e9)), 0.0, member.index, step))
    if len(ranked) > 1:
        ranked = _by_lot(ranked, dice)
        ranked.sort()  # no two members have one index, so steps are never compared
    return Plan(tuple(entry[4] for entry in ranked), tuple(passed))


def _weigh(
    entries: Sequence[Entry], need: Need, preference: Preference, dollars: Callable[[Lane, Need], float | None] | None
) -> Callable[[Member, float], Worth]:
    """Return what weighs a member of that quality, measured by all members that this caller may use."""
    facts: dict[str, tuple[float, float | None]] = {}
    for member, lanes in entries:
        if lanes and not member.disabled:
            record = member.record(need.stream, need.operation)
            seconds = record.usual() if preference.speed else 0.0
            facts[member.name] = (seconds, dollars(lanes[0], need) if dollars is not None and preference.cost else None)
    scale = Scale(preference, [fact[0] for fact in facts.values()], [fact[1] for fact in facts.values()])

    def weigh(member: Member, quality: float) -> Worth:
        seconds, cost = facts.get(member.name, (0.0, None))
        return scale.worth(quality, seconds, cost)

    return weigh


def _valued(passed: Passed, quality: float, record: Latency, now: float, left: float) -> Passed:
    wait = max(0.0, passed.until - now) if passed.until is not None else 0.0
    return msgspec.structs.replace(
        passed, value=passed.value * quality * record.hope(left - wait) if wait < left else 0.0, usual=record.usual()
    )


def _look(
    member: Member,
    lanes: Sequence[Lane],
    need: Need,
    now: float,
    tried: frozenset[int] | set[int],
    barred: frozenset[int] | set[int],
    limited: Mapping[int, Refused] | None,
) -> Lane | Passed:
    """Return the first lane of a member that may begin now, else why none may."""
    best: Passed | None = None
    for lane in lanes:
        if id(lane) in barred:
            why = Passed(member.name, "tried")
        elif (need.features or lane.lacks or lane.too_long or member.window) and (lack := lane.cannot(need, now)):
            why = Passed(member.name, "unable", lack)
        elif limited and (refused := limited.get(id(lane))) is not None and (refused.until is None or now < refused.until):
            value = 1.0 if refused.sure else 0.0  # where nobody knows when it opens, nobody holds out for it
            why = Passed(member.name, "limit", refused.words, refused.until, refused.returns, value, surely=refused.sure)
        elif id(lane) not in tried and lane.free(now, need):
            return lane
        else:
            why = _why_not(lane, now, id(lane) in tried, need)
        if best is None or (why.returns and (not best.returns or (why.until or now) < (best.until or now))):
            best = why
    return best or Passed(member.name, "no_key", member.config.api_key_ref or "")


def _why_not(lane: Lane, now: float, tried: bool, need: Need) -> Passed:
    ill = lane.ill(now)
    if ill is not None and ill.illness is not None:
        quota = ill.illness is RATE_LIMITED
        return Passed(
            lane.member.name,
            ill.illness.word,
            ill.detail,
            ill.until,
            ill.illness.queue,
            value=1.0 if quota else 1.0 / (1 + ill.incidents),
            room=lane.room if quota else 1,
            surely=ill.stated,
        )
    if tried:
        return Passed(lane.member.name, "tried", "", now, True)
    recovering = lane.recovering()
    if recovering is not None and lane.tried_out:
        text = f"another call tries it out after {recovering.word}"
        room = lane.room if recovering is RATE_LIMITED else 1
        return Passed(lane.member.name, "busy", text, lane.admits_at(), True, room=room)
    opens = lane.fits_at(now, need) if lane.metered else now
    if opens > now:
        said = lane.why(now, need)
        return Passed(
            lane.member.name,
            "rate_limited",
            said or "its quota is used up as far as is known",
            opens,
            True,
            room=lane.room,
            surely=bool(said),
        )
    key = lane.key
    if key.crowding.limit is not None and not key.crowding.free(key.running + key.kept, now):
        text = f"it serves about {key.bound} at once, more would wait in line there"
        until = key.crowding.until if key.crowding.until < math.inf else None
        return Passed(lane.member.name, "busy", text, until, True, surely=False)
    return Passed(lane.member.name, "busy", "all its slots are taken", None, True)


def _late(record: Latency, left: float, now: float) -> bool:
    if record.missed and left <= record.missed * 1.2 and now - record.missed_at < MISSED_COUNTS:
        return record.misses > 1 or record.hope(left) < SURE
    return len(record) >= 5 and record.chance(left) < LIKELY


def _hopeless(record: Latency, left: float) -> bool:
    return len(record) >= 5 and left < 0.8 * record.quantile(0.0)


def _by_lot(ranked: list[tuple[bool, int, float, int, Step]], dice: Dice) -> list[tuple[bool, int, float, int, Step]]:
    """Draw lots among those of equal rank: the chance of a member is inverse to its usual time and to what runs on it."""
    groups: dict[tuple[bool, int], int] = {}
    for entry in ranked:
        group = entry[:2]
        groups[group] = groups.get(group, 0) + 1
    out = []
    for late, quality, _, index, step in ranked:
        lot = 0.0
        if groups[late, quality] > 1:
            member = step.lane.member
            usual = (step.record.quantile(0.5) if step.record is not None else 0.0) or 1.0
            lot = -math.log(1.0 - dice()) * usual * (1 + member.running)
        out.append((late, quality, lot, index, step))
    return out


def patience(lane: Lane, *, stream: bool, left: float, operation: str | None = None) -> float:
    """Return the seconds after which a second lane is opened beside this one, when another is free."""
    member = lane.member
    record = member.record(stream, operation)
    if len(record) >= 5:
        slow = record.quantile(0.9)
        wanted = max(1.5 * slow, slow + 1.0)
    else:
        wanted = max(FIRST_PATIENCE, 2.0 * record.quantile(0.95))
    return min(wanted, 0.5 * left)


def alone(lane: Lane, *, stream: bool, left: float, operation: str | None = None) -> float | None:
    """Return the seconds after which an attempt may be cut that runs without anybody beside it; None: do not run it so.

    To watch an attempt costs more than to make it. Where a model is known to answer quickly and so much time is left that a
    cut does no harm, it runs unwatched; whoever was cut once is watched for the rest of its call.
    """
    member = lane.member
    record = member.record(stream, operation)
    if len(record) < 5 or member.lost or record.missed or member.new_to(stream, operation):
        return None
    limit = max(UNWATCHED, 6.0 * record.quantile(0.95))
    return limit if 3.0 * limit <= left else None


# -- after an error ------------------------------------------------------------------------------------------------------


class Retry(msgspec.Struct, frozen=True):
    """Ask the same lane again, at the earliest ``at``; nobody else is there."""

    at: float


class Next(msgspec.Struct, frozen=True):
    """Ask another lane at once. ``bar``: this lane cannot serve this call at all."""

    bar: bool = False


class GiveUp(msgspec.Struct, frozen=True):
    """Raise. ``error``: the provider's error itself goes to the caller, else "nobody is available" with that as its cause."""

    error: bool


Move: TypeAlias = Retry | Next | GiveUp


def decide(verdict: Verdict, lane: Lane, rest: Plan, *, now: float, queue_until: float) -> Move:
    """Return the next move of a call after an attempt on ``lane`` failed.

    Args:
        verdict: who is to blame.
        lane: what failed.
        rest: what the pool offers now, this lane counted as tried.
        now: the time.
        queue_until: until when the call may wait for somebody to come back.
    """
    if verdict.blame == "caller":
        if verdict.lacks is None:
            return GiveUp(error=True)
        if rest.steps or any(p.returns and p.name != lane.member.name for p in rest.passed):
            return Next(bar=True)
        return GiveUp(error=True)
    if rest.steps:
        return Next(bar=verdict.strike)
    others = any(p.returns and p.name != lane.member.name for p in rest.passed)
    at = rest.next_at
    if others and (at is None or at <= queue_until):
        return Next(bar=verdict.strike)
    if verdict.strike or verdict.illness is None or not verdict.illness.queue:
        return GiveUp(error=verdict.strike)
    if at is not None and at <= queue_until:
        return Retry(at)
    return GiveUp(error=False)
