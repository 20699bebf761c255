"""What the processes of one store tell each other: who rests, and until when.

Theory of operation
-------------------
Whoever meets an illness writes one small row for what is ill (a member, a key, a lane) into the store behind the journal;
whoever begins a call reads the rows again if the last look is ``EVERY`` seconds ago. So a quota that one process found spent,
or a key that was refused to it, is left alone by the others within a second. When a process finds it well again it deletes the
row, and the others may try, too. Moments are told in wall-clock time. A key is named by a hash of its place and value, never by
its value.

A store that fails or a row that cannot be read teaches nothing and delays nothing: the next look is then put off.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import msgspec

from llmbroker import health as illnesses
from llmbroker.broker.desk import Desk
from llmbroker.broker.keys import Lanes
from llmbroker.health import Health, Illness, Verdict
from llmbroker.io import Port
from llmbroker.journal import Journal, new_id
from llmbroker.pool import Lane

log = logging.getLogger("llmbroker.broker")

EVERY = 0.5
"""Seconds between two looks."""
PUT_OFF = 5.0
"""Seconds after which a store that failed is looked at again."""
SHORT = 0.5
"""A rest of so few seconds is over before others hear of it: it is not told."""
PREFIX = "rest:"
_BY_WORD: dict[str, Illness] = {one.word: one for one in vars(illnesses).values() if isinstance(one, Illness)}


class Told(msgspec.Struct, frozen=True):
    """One row: what somebody suffers from, until when (seconds since 1970), the how-manieth time, who says so."""

    word: str
    until: float
    incidents: int
    by: str
    detail: str = ""


class Shared:
    """The rests of all processes of a journal's store."""

    def __init__(self, port: Port, journal: Journal, desk: Desk, lanes: Lanes) -> None:
        self._port = port
        self._journal = journal
        self._desk = desk
        self._lanes = lanes
        self._me = new_id()
        self._next = 0.0
        self._known: dict[str, Told] = {}
        self.trouble = ""
        """Why the last look failed, or ""."""

    @property
    def _off(self) -> bool:
        store = self._journal.store
        return store is None or store.spool_beside is None  # a store in memory has no other processes

    async def follow(self, scope: str | None) -> None:
        """Look what the others found out, if the last look is long enough ago."""
        now = self._port.now()
        if now < self._next or self._off:
            return
        self._next = now + EVERY
        store = self._journal.store
        assert store is not None
        await self._lanes.entries(scope, now)  # before the first call of a scope its lanes are not there
        if self._journal.health()["state"] == "degraded":
            self._next = now + PUT_OFF
            return
        try:
            rows = store.states(PREFIX) if store.direct else await self._port.call(store.states, PREFIX)
        except Exception as error:  # noqa: BLE001 - what others know is welcome, never needed
            self._failed(error, now)
            return
        self.trouble = ""
        found: dict[str, Told] = {}
        for name, value in rows.items():
            try:
                found[name] = msgspec.json.decode(value, type=Told)
            except msgspec.DecodeError:
                continue
        with self._desk.lock:
            self._apply(found)

    def _apply(self, found: dict[str, Told]) -> None:
        now, wall = self._port.now(), self._port.time()
        known, self._known = self._known, found
        if not found and not known:
            return
        for name, health in self._things():
            told = found.get(name)
            if told is not None and told.by != self._me:
                illness = _BY_WORD.get(told.word)
                until = now + min(told.until - wall, illnesses.DAY)
                if illness is not None and until > now and (health.room is None or until > health.until + SHORT):
                    health.adopt(illness, now, until, told.incidents, told.detail)
            elif told is None and name in known and known[name].by != self._me and health.until > now:
                health.until = now  # somebody found it well

    def _things(self) -> Iterator[tuple[str, Health]]:
        for lane in self._lanes.all():
            yield from names_of(lane)

    async def tell(self, lane: Lane, verdict: Verdict) -> None:
        """Write down what an attempt met."""
        if verdict.illness is None or self._off:
            return
        now = self._port.now()
        for name, health in names_of(lane):
            rest = health.until - now
            if health.room is None or health.illness is None or rest < SHORT:
                continue
            told = Told(health.illness.word, self._port.time() + rest, health.incidents, self._me, health.detail)
            known = self._known.get(name)
            if known is None or told.until > known.until + SHORT:
                self._known[name] = told
                await self._write(name, msgspec.json.encode(told))

    async def well(self, lane: Lane) -> None:
        """An attempt was answered: what is well again is told to the others."""
        if not self._known:
            return
        for name, health in names_of(lane):
            if health.room is None and self._known.pop(name, None) is not None:
                await self._write(name, None)

    async def _write(self, name: str, value: bytes | None) -> None:
        store = self._journal.store
        assert store is not None
        if self._journal.health()["state"] == "degraded":
            return
        try:
            if store.direct:
                store.set_state(name, value)
            else:
                await self._port.call(store.set_state, name, value)
        except Exception as error:  # noqa: BLE001 - others will find out for themselves
            self._failed(error, self._port.now())

    def _failed(self, error: Exception, now: float) -> None:
        self._next = now + PUT_OFF
        if not self.trouble:
            log.warning("What other processes learnt could not be shared: %s", error)
        self.trouble = f"What other processes learnt could not be shared: {error}"


def names_of(lane: Lane) -> tuple[tuple[str, Health], ...]:
    """Return the names under which a lane's three healths are told, with them."""
    member, key = lane.member, lane.key
    return (
        (f"{PREFIX}member:{member.name}", member.health),
        (f"{PREFIX}key:{key.mark}", key.health),
        (f"{PREFIX}lane:{member.name}:{key.mark}", lane.health),
    )
