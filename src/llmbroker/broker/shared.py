"""What the processes of one store learn from each other: who rests, quotas, ratings, models switched by hand.

Theory of operation
-------------------
Every ``EVERY`` seconds somebody who begins a call (or waits for one) *trades*: he writes what this process has to tell and
reads what is new since the last stamp, in one go (``journal.tidings``). An incident (a rest, a refused key, a cap) is told at
once, by who met it. So what one process finds out, the others follow within a second.

* *Rests*: whoever meets an illness writes a note about what is ill; who finds it well again writes that. See ``notes``.
* *Quotas*: from its first refusal on, what was learnt about a quota is told, and what is sent on it: counts for each second.
  The counts of the others are laid to the own ones. What they sent since they were last heard of is not known; each process
  takes it that they did as much as itself, so that several together keep a window that is known. The bound: where the others
  suddenly do more, a window can be overrun by what they send in ``2 * EVERY`` seconds, once.
* *Statements*: of a quota of which a reply states that little is left, the newest statement is told, with what is sent on it
  since then by each process for itself: several together may overrun it by what they send between two trades.
* *Times* are rows, too: every few seconds the newest attempts of the others are read, so that a model that one finds slow, or
  quick again, is known to be so by all.
* *Ratings* are rows; new ones move the beliefs here as if they had been given here. A call that is rated anew, or whose rating
  is one's own, is not counted twice.
* *Switches*: what changes in the store is followed. A switch that could not be stored is written later.

Where nothing was refused there is nothing to tell, and a trade is one question with an empty answer. A store that fails or a
row that cannot be read teaches nothing and delays nothing: the next look is then put off.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from llmbroker.broker import notes
from llmbroker.broker.counts import EVERY, Counts
from llmbroker.broker.desk import Desk
from llmbroker.broker.keys import Lanes
from llmbroker.broker.notes import Note
from llmbroker.broker.recall import recalled
from llmbroker.gauges import Statement
from llmbroker.health import Verdict
from llmbroker.io import Port
from llmbroker.journal import Journal, Store, new_id
from llmbroker.journal.tidings import MOST_RATINGS, Look, Rated, Since, Tidings, Took
from llmbroker.pool import Lane
from llmbroker.quotas import Quota

log = logging.getLogger("llmbroker.broker")

PUT_OFF = (1.0, 30.0)
"""Seconds after which a store that failed is looked at again, at first and at most."""
REMEMBERED = 16_384
"""Notes of others that are kept for lanes that are made later."""
AGAIN = 30.0
"""Seconds for which a number that was missed among the ratings is asked for."""
MOST_ASKED = 1024
"""Missed numbers that are asked for at once; the latest."""
TIMES_EVERY, TIMES_BACK = 2.0, 120.0
"""Seconds between two looks at the attempts of others; how long ago one of these may have begun."""
OWN = 1024
"""Attempts of one's own, and of others, that are known by name."""
LATELY, MOST_MISSED = 64, 256
"""Numbers below the highest that may still be on their way when the first look is taken; numbers that are asked for again."""


class Shared:
    """What all processes of a journal's store know together."""

    def __init__(self, port: Port, journal: Journal, desk: Desk, lanes: Lanes) -> None:
        self._port = port
        self._journal = journal
        self._desk = desk
        self._lanes = lanes
        self._me = new_id()
        self._next = 0.0
        self._busy = self._began = False
        self._pause = PUT_OFF[0]
        self._shift = port.time() - port.now()
        self._stamp = self._rated = 0
        self._missed: dict[int, float] = {}
        self._heard: dict[str, Note] = {}
        self._rests: dict[str, notes.Told] = {}
        self._pending: dict[str, bytes] = {}
        self._switched: dict[str, bool] = {}
        self._unsaid: dict[str, bool] = {}
        self._suspects: list[Lane] = []
        self._counts = Counts(self._me)
        self._times_from = self._shift + port.now()
        self._times_at = self._times_from - self._shift + TIMES_EVERY
        self._mine: deque[str] = deque(maxlen=OWN)
        self._seen: deque[str] = deque(maxlen=OWN)
        self._stated: dict[str, Statement] = {}
        self._unstated: dict[str, Statement] = {}
        self.trouble = ""
        """Why the last look failed, or ""."""
        journal.brokers += 1
        lanes.greet = self._greet

    @property
    def off(self) -> bool:
        """Whether there is nobody to talk to: a store in memory has no other processes."""
        store = self._journal.store
        return store is None or (store.spool_beside is None and self._journal.brokers < 2)

    # -- for calls -------------------------------------------------------------------------------------------------------

    async def follow(self) -> bool:
        """Look what the others found out, if the last look is long enough ago; return whether it may matter to who waits."""
        now = self._port.now()
        if now < self._next:
            return False
        return await self._trade(now)

    async def wait(self, wait: Callable[[float], Any], seconds: float) -> None:
        """Wait for a flag, and meanwhile follow what the others find out."""
        if self.off:
            await wait(seconds)
            return
        until = self._port.now() + seconds
        while (left := until - self._port.now()) > 0.0:
            if await wait(min(left, EVERY)) or await self.follow():
                return

    async def tell(self, lane: Lane, verdict: Verdict) -> None:
        """Tell what an attempt met."""
        if (verdict.illness is None and verdict.lacks is None) or self.off:
            return
        now = self._port.now()
        with self._desk.lock:
            self._note_rests(lane, now)
            if verdict.lacks is not None:
                self._note(*notes.lacking(lane, self._me, self._shift))
            if verdict.blame == "quota":
                name, quota = notes.quotas(lane)[0 if verdict.where == "key" else 1]
                self._counts.meet(name, quota, now, self._shift)
                if lane.key.cap.limit is not None and not lane.key.cap.suspected:
                    self._note(*notes.capped(lane, self._me))
        if self._pending:
            await self._trade(now)

    def begins(self, identity: str) -> None:
        """An attempt begins here: its row is no news."""
        self._mine.append(identity)

    def knows(self, identities: Sequence[str]) -> None:
        """Rows that taught already are no news either."""
        self._seen.extend(identities)

    def cut(self, lane: Lane) -> None:
        """An attempt was stopped here: if its model is thought to hang for that, the next trade tells it."""
        if lane.member.health.room is not None and not self.off:
            self._suspects.append(lane)

    def _look_after(self) -> None:
        while self._suspects:
            self._note_rests(self._suspects.pop(), self._port.now())

    def _note_rests(self, lane: Lane, now: float) -> None:
        for name, health in notes.healths(lane):
            told = notes.resting(health, self._me, now, self._shift)
            known = self._rests.get(name)
            if told is not None and (known is None or told.until > known.until + notes.SHORT):
                self._rests[name] = told
                self._note(name, told)

    async def well(self, lane: Lane) -> None:
        """An attempt was answered: tell what is well again, and what was sent, if nobody is left who will do so soon."""
        gauges, of_key = lane.quota.gauges, lane.key.quota.gauges
        states = (gauges is not None and gauges.scarce) or (of_key is not None and of_key.scarce)
        if not self._rests and not self._counts.met and not states:
            return
        if self.off:
            return
        now = self._port.now()
        with self._desk.lock:
            for name, statement in notes.scarce(lane) if states else ():
                if self._stated.get(name) is not statement:
                    self._stated[name] = self._unstated[name] = statement
            for name, health in notes.healths(lane):
                if health.room is None and self._rests.pop(name, None) is not None:
                    self._heard.pop(name, None)
                    self._note(name, notes.well(self._me))
        shares = states or lane.quota.own is not None or lane.key.quota.own is not None
        if self._pending or (shares and (now >= self._next or len(self._desk.calls) <= 1)):
            await self._trade(now)

    def _note(self, name: str, note: Note) -> None:
        self._pending[name] = msgspec.json.encode(note)

    # -- switches --------------------------------------------------------------------------------------------------------

    def switch(self, name: str, off: bool) -> None:
        """A model was switched off or on here: store it; where that cannot be done now it is done with a later trade."""
        store = self._journal.store
        if store is None:
            return
        try:
            store.set_disabled(name, off)
        except Exception as error:  # noqa: BLE001 - it holds here, and is stored when the store can be written
            self._unsaid[name] = off
            log.warning("That %s is switched %s could not be stored yet: %s", name, "off" if off else "on", error)
        else:
            self._unsaid.pop(name, None)

    # -- trading ---------------------------------------------------------------------------------------------------------

    async def _trade(self, now: float) -> bool:
        """Tell what there is to tell and look what is new."""
        store = self._journal.store
        with self._desk.lock:
            if self._busy or store is None or self.off:
                self._next = max(self._next, now + EVERY)
                return False
            self._busy, self._next = True, now + EVERY
        news = False
        try:
            for _ in range(2):  # what is noted while one is at it goes with a second one
                if self._journal.failing:
                    break
                news = await self._exchange(store, now) or news
                with self._desk.lock:
                    if not self._pending:
                        self._busy = False
                        break
        except Exception as error:  # noqa: BLE001 - what others know is welcome, never needed
            self._failed(error, now)
        finally:
            self._busy = False
        return news

    async def _exchange(self, store: Store, now: float) -> bool:
        with self._desk.lock:
            self._look_after()
            for name, statement in self._unstated.items():
                self._note(name, notes.stated(statement, self._me, self._shift))
            self._unstated.clear()
            pending, self._pending = self._pending | self._counts.learnt(self._shift), {}
            sent, stale = self._counts.sent(now, self._shift)
            unsaid = dict(self._unsaid)
        tidings = Tidings(now + self._shift, pending, sent, stale)
        began = None
        if now >= self._times_at:
            self._times_at = now + TIMES_EVERY
            began = int(max(self._times_from, now + self._shift - TIMES_BACK) * 1e6)
        since = Since(self._stamp, self._rated, tuple(self._missed), began)
        told = False

        def work() -> Look:
            nonlocal told
            for name, off in unsaid.items():
                store.set_disabled(name, off)
            if tidings:
                store.tell(tidings)
            told = True
            return store.look(since)

        try:
            look = work() if store.direct and self._began else await self._port.call(work)
        finally:
            with self._desk.lock:
                if told:
                    self._counts.were_told(sent)
                    for name, off in unsaid.items():
                        if self._unsaid.get(name) == off:
                            del self._unsaid[name]
                else:
                    self._pending = pending | self._pending
        self._began = True
        self.trouble, self._pause = "", PUT_OFF[0]
        return self._hear(look, now)

    def _failed(self, error: Exception, now: float) -> None:
        self._next = now + self._pause
        self._pause = min(2.0 * self._pause, PUT_OFF[1])
        if not self.trouble:
            log.warning("What other processes learnt could not be shared: %s", error)
        self.trouble = f"What other processes learnt could not be shared: {error}"

    # -- hearing ---------------------------------------------------------------------------------------------------------

    def _hear(self, look: Look, now: float) -> bool:
        """Take over what is new; return whether it may matter to who waits."""
        shift = self._port.time() - self._port.now()
        if abs(shift - self._shift) > 1.0:
            self._shift = shift  # somebody set the clock
        fresh: dict[str, tuple[Note, Note | None]] = {}
        with self._desk.lock:
            self._stamp = look.stamp
            news = self._follow_switches(look)
            self._learn(look.rated, look.highest, now)
            self._recall(look.took)
            for name, value in look.notes.items():
                note = notes.read(name, value)
                if note is not None and note.by != self._me:
                    fresh[name] = (note, self._rests.get(name))
                    self._keep(name, note)
        # Lanes that are made from here on are greeted with what was kept.
        lanes = self._lanes.all() if fresh else ()
        with self._desk.lock:
            for lane in lanes:
                news = self._take(lane, fresh, now) or news
            self._counts.hear(look.sent, now, self._shift)
        if news:
            self._desk.wake_all()
        return news

    def _keep(self, name: str, note: Note) -> None:
        self._heard.pop(name, None)
        self._heard[name] = note
        while len(self._heard) > REMEMBERED:
            oldest = next(iter(self._heard))
            del self._heard[oldest]
            self._rests.pop(oldest, None)
        if isinstance(note, notes.Told):
            if note.word:
                self._rests[name] = note
            else:
                self._rests.pop(name, None)

    def _take(self, lane: Lane, fresh: dict[str, tuple[Note, Note | None]], now: float) -> bool:
        news = False
        for name, thing in notes.things(lane):
            if (found := fresh.get(name)) is not None:
                taken = notes.take(thing, *found, self._me, now, self._shift)
                if isinstance(found[0], notes.Stated) and (said := notes.statement(thing)) is not None:
                    self._stated[name] = said  # it is not told back
                news = taken or news
                if isinstance(found[0], notes.Taught):
                    quota: Quota = thing.quota  # type: ignore[union-attr]
                    self._counts.meet(name, quota, now, self._shift)
                    if taken:
                        self._counts.adopted(name, quota)
        return news

    def _greet(self, lane: Lane) -> None:
        """A lane was made: take over what is known about it."""
        if self._heard:
            with self._desk.lock:
                known: dict[str, tuple[Note, Note | None]] = {
                    name: (self._heard[name], None) for name, _ in notes.things(lane) if name in self._heard
                }
                if known:
                    self._take(lane, known, self._port.now())

    def _recall(self, took: Sequence[Took]) -> None:
        """Learn from attempts of the others how long the models take."""
        if not took:
            return
        known = {*self._mine, *self._seen}
        members = {member.name: member for member in self._lanes.members}
        for one in reversed(took):
            if one.id not in known:
                self._seen.append(one.id)
                if (member := members.get(one.llm_name)) is not None:
                    recalled(member, one)

    def _follow_switches(self, look: Look) -> bool:
        changed = {name: off for name, off in look.switched.items() if self._switched.get(name) != off}
        self._switched.update(changed)
        for member in self._lanes.members:
            if member.name in changed and member.name not in self._unsaid:
                member.disabled = changed[member.name]
        return bool(changed)

    def _learn(self, rated: Sequence[Rated], highest: int, now: float) -> None:
        """Take new ratings; note which numbers between them were not seen, because their writers are not done yet."""
        for one in rated:
            self._missed.pop(one.number, None)
            if isinstance(one.llm_name, str) and one.score is not None:
                self._desk.beliefs.rate(one.llm_name, one.operation, one.score, one.call_id)
        if highest < self._rated:
            self._missed.clear()
        elif highest > self._rated:
            seen = {one.number for one in rated}
            after = self._rated or max(0, highest - LATELY)
            if len(rated) >= MOST_RATINGS:
                after = max(after, min(seen))
            for number in range(max(after + 1, highest - MOST_MISSED), highest):
                if number not in seen:
                    self._missed[number] = now + AGAIN
        self._rated = highest
        if self._missed:
            late = [(number, until) for number, until in self._missed.items() if until > now]
            self._missed = dict(late[-MOST_ASKED:])

    def after_fork(self) -> None:
        """In the child of a fork: this is another process now, and nobody trades here."""
        self._me = new_id()
        self._seen.extend(self._mine)  # what the parent began and learnt is known here
        self._mine.clear()
        self._busy = False
        self._counts.after_fork(self._me)
