"""Notes: what one process tells the others about a member, a key or a lane, and how they take it over. Pure.

A note has a name (a kind and what it is about) and a value that says who wrote it. A key is named by a hash of its place and
value, never by its value. Moments are told in seconds since 1970; ``shift`` is what is added to this process's clock to get
them. A note that cannot be read, or that cannot be true, teaches nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from llmbroker import health as illnesses
from llmbroker.gauges import Statement
from llmbroker.health import HOUR, Health, Illness
from llmbroker.pool import Key, Lane, Member
from llmbroker.providers.meters import Meter
from llmbroker.quotas import Quota
from llmbroker.windows import Learnt

MINUTE = 60.0
MOST_METERS, MOST_STATED = 16, 1e12
SHORT = 0.5
"""A rest of so few seconds is over before others hear of it: it is not told."""
_BY_WORD: dict[str, Illness] = {one.word: one for one in vars(illnesses).values() if isinstance(one, Illness)}


class Told(msgspec.Struct, frozen=True):
    """What somebody suffers from, until when, the how-manieth time, who says so. Without a word it is well."""

    word: str
    until: float
    incidents: int
    by: str
    detail: str = ""


class Taught(msgspec.Struct, frozen=True):
    """What the refusals of a quota taught."""

    by: str
    learnt: Learnt


class Capped(msgspec.Struct, frozen=True):
    """How many attempts at once a key bears; None: nothing is known."""

    by: str
    limit: float | None


class Lacking(msgspec.Struct, frozen=True):
    """Features that a lane was found to lack, each with the moment until which this is believed; and what is too long."""

    by: str
    lacks: dict[str, float]
    too_long: int = 0


class Stated(msgspec.Struct, frozen=True):
    """What a reply stated to be left of a quota of which little is left; when its attempt began, and when it came."""

    by: str
    meters: list[Meter]
    started: float
    at: float


Note: TypeAlias = Told | Taught | Capped | Lacking | Stated
Thing: TypeAlias = Member | Key | Lane
_KINDS: dict[str, Any] = {"rest": Told, "quota": Taught, "cap": Capped, "lacks": Lacking, "gauge": Stated}


def read(name: str, value: bytes) -> Note | None:
    """Return what a note says, or None."""
    kind = _KINDS.get(name.partition(":")[0])
    if kind is None:
        return None
    try:
        found: Note = msgspec.json.decode(value, type=kind)
    except (msgspec.DecodeError, ValueError):
        return None
    return found


def healths(lane: Lane) -> tuple[tuple[str, Health], ...]:
    """Return the names under which a lane's three healths are told, with them."""
    member, key = lane.member, lane.key
    return (
        (f"rest:member:{member.name}", member.health),
        (f"rest:key:{key.mark}", key.health),
        (f"rest:lane:{member.name}:{key.mark}", lane.health),
    )


def quotas(lane: Lane) -> tuple[tuple[str, Quota], ...]:
    """Return the names under which a lane's two quotas are told, with them."""
    return ((f"quota:key:{lane.key.mark}", lane.key.quota), (f"quota:lane:{lane.member.name}:{lane.key.mark}", lane.quota))


def things(lane: Lane) -> Iterator[tuple[str, Thing]]:
    """Return the names of all notes about a lane, with what they are about."""
    member, key = lane.member, lane.key
    yield f"rest:member:{member.name}", member
    for kind in ("rest", "quota", "cap", "gauge"):
        yield f"{kind}:key:{key.mark}", key
    for kind in ("rest", "quota", "lacks", "gauge"):
        yield f"{kind}:lane:{member.name}:{key.mark}", lane


def capped(lane: Lane, me: str) -> tuple[str, Capped]:
    """Return the note on a key's cap."""
    return f"cap:key:{lane.key.mark}", Capped(me, lane.key.cap.limit)


def lacking(lane: Lane, me: str, shift: float) -> tuple[str, Lacking]:
    """Return the note on what a lane lacks."""
    lacks = {feature: until + shift for feature, until in lane.lacks.items()}
    return f"lacks:lane:{lane.member.name}:{lane.key.mark}", Lacking(me, lacks, lane.too_long)


def stated(statement: Statement, me: str, shift: float) -> Stated:
    """Return the note on what is left of a quota."""
    meters, started, at = statement
    return Stated(me, list(meters), started + shift, at + shift)


def statement(thing: Thing) -> Statement | None:
    """Return the newest statement about a quota, if there is one."""
    gauges = None if isinstance(thing, Member) else thing.quota.gauges
    return None if gauges is None else gauges.last


def scarce(lane: Lane) -> Iterator[tuple[str, Statement]]:
    """Return the names under which a lane's two quotas are told that state little to be left, with the newest statements."""
    for name, quota in (
        (f"gauge:key:{lane.key.mark}", lane.key.quota),
        (f"gauge:lane:{lane.member.name}:{lane.key.mark}", lane.quota),
    ):
        gauges = quota.gauges
        if gauges is not None and gauges.scarce and gauges.last is not None:
            yield name, gauges.last


def resting(health: Health, me: str, now: float, shift: float) -> Told | None:
    """Return the note on a rest that begins, if it is worth one."""
    if health.room is None or health.illness is None or health.until - now < SHORT:
        return None
    return Told(health.illness.word, health.until + shift, health.incidents, me, health.detail)


def well(me: str) -> Told:
    """Return the note that somebody is well."""
    return Told("", 0.0, 0, me)


def take(thing: Thing, note: Note, before: Note | None, me: str, now: float, shift: float) -> bool:
    """Take over what another process wrote; return whether that may matter to who waits. ``before``: the note before it."""
    if isinstance(note, Told):
        return _take_rest(thing.health, note, before, me, now, shift)
    if isinstance(note, Taught):
        return not isinstance(thing, Member) and thing.quota.adopt(note.learnt, shift, now)
    if isinstance(note, Stated):
        if not isinstance(thing, Member):
            _take_statement(thing.quota, note, now, shift)
        return False
    if isinstance(note, Capped):
        if isinstance(thing, Key) and thing.cap.limit is None and note.limit is not None and 1.0 <= note.limit <= 64.0:
            thing.cap.limit = note.limit
    elif isinstance(thing, Lane):
        for feature, until in list(note.lacks.items())[:64]:
            at = min(until - shift, now + HOUR)
            if at > now:
                thing.lacks[feature] = max(at, thing.lacks.get(feature, 0.0))
        if note.too_long > 0:
            thing.too_long = min(thing.too_long or note.too_long, note.too_long)
    return False


def _take_statement(quota: Quota, note: Stated, now: float, shift: float) -> None:
    started, at = note.started - shift, note.at - shift
    meters = [meter for meter in note.meters[:MOST_METERS] if _can_be(meter)]
    if meters and started <= at <= now + MINUTE and at - started <= HOUR:
        quota.stated(meters, started, at)


def _can_be(meter: Meter) -> bool:
    amounts = (meter.left, meter.limit or 0.0, meter.reset or 0.0, meter.period or 0.0, meter.rough)
    return all(0.0 <= amount <= MOST_STATED for amount in amounts)  # NaN is none of these


def _take_rest(health: Health, told: Told, before: Note | None, me: str, now: float, shift: float) -> bool:
    if not told.word:
        if before is not None and before.by != me and health.until > now:
            health.until = now  # somebody found it well
            return True
        return False
    illness = _BY_WORD.get(told.word)
    until = min(told.until - shift, now + illnesses.DAY)
    if illness is not None and until > now and (health.room is None or until > health.until + SHORT):
        health.adopt(illness, now, until, max(0, min(told.incidents, 30)), told.detail)
        return True
    return False
