"""The desk: the state of a pool behind one short lock. It takes slots, takes note of what came of them, and wakes who waits.

All decisions are made by the pure rooms; here they are made one after another, from any thread. Nothing here awaits, sleeps,
sends or reads a clock.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from llmbroker.broker.replies import Ask
from llmbroker.health import BROKEN, HANGING, HOUR, RATE_LIMITED, Dice, Health, Verdict, judge
from llmbroker.learning import Beliefs
from llmbroker.limits import Credit, Queue, Waiter
from llmbroker.pool import Key, Lane, Lease, Member, Need
from llmbroker.router import HOPELESS, SURE, Entry, Move, Passed, Plan, Step, decide, plan

SPARED = 0.75
"""Of a quota with a known end, an attempt must have so large a part of the chance that it would have with the whole time."""
LOST = 4
"""Races in a row that a model may lose after more than its usual time before it is taken to hang."""
ALIKE = 1.5
"""Times of models that differ by less than this factor are alike: the better model counts."""
DENIALS = 3
"""Refusals of single requests in a row, after which a lane rests."""
MOMENT = 0.02
"""Seconds after which a call looks again at a slot that it left to others."""
IN_LINE = 2.0
"""By which factor an answer took longer than usual under a bound for it to have stood in line before."""
CROWD = 64
"""So many calls are looked at, the oldest, to see who must have an answer first."""


class Desk:
    """Slots, health, beliefs and the queue of one pool."""

    def __init__(self, dice: Dice) -> None:
        # Reentrant: a forgotten stream is collected at any moment, in a thread that may hold the lock, and frees its slot.
        self.lock = threading.RLock()
        self.dice = dice
        self.beliefs = Beliefs()
        self.dollars: Callable[[Lane, Need], float | None] | None = None
        """What a call will probably cost on a lane; there once somebody prefers the cheaper."""
        self.queue = Queue()
        self.credit = Credit()
        self.calls: dict[int, Ask] = {}
        """Calls that have no answer yet, the oldest first, by ``id``."""

    # -- taking slots ----------------------------------------------------------------------------------------------------

    def take(
        self,
        entries: Sequence[Entry],
        ask: Ask,
        now: float,
        *,
        wake: Callable[[], Callable[[], None]] | None = None,
        fit: Callable[[Step], bool] | None = None,
        quick: Callable[[Step], float] | None = None,
    ) -> tuple[Plan, Lease | None]:
        """Take the best slot that is free; without one, and with ``wake``, put the call to sleep in the queue.

        Args:
            entries: the pool as the caller sees it.
            ask: the call.
            now: the time.
            wake: makes the function that will wake this call.
            quick: what to prefer among those that fit, the lowest first; by default the plan's order.
            fit: which steps may be taken; by default the best, unless somebody better is worth waiting for.
        """
        with self.lock:
            waiter = ask.waiter
            offered: Member | None = None
            if waiter is not None:
                waiter.asleep = False
                offered = _unkept(waiter)
            made = self._plan(entries, ask, now)
            if fit is None and len(self.calls) > 1:
                made = self._spared(made, ask, now)
                fit = _sparing(ask) if made.steps and not self._holds(made, ask, now) else _nobody
            if fit is not None:
                step = _quick(list(filter(fit, made.steps)), quick) if quick else next(filter(fit, made.steps), None)
            else:
                step = made.steps[0] if made.steps and not self._holds(made, ask, now) else None
            lease = Lease(step.lane, now, ask.need) if step is not None else None
            if lease is not None:
                ask.tried.add(id(lease.lane))
                if waiter is not None:
                    self.queue.remove(waiter)
                    ask.waiter = None
            elif wake is not None and made.wants:
                if waiter is None:
                    waiter = ask.waiter = Waiter(wake())
                    self.queue.add(waiter)
                else:
                    waiter.wake = wake()
                waiter.pool = entries
                waiter.wants = made.offers if ask.limited else made.wants
                waiter.asleep = True
            if offered is not None and (lease is None or lease.lane.member is not offered):
                # Who stands further behind may be able to use it; to offer it to anybody before would go on for ever.
                self._wake((offered,), 1, now, after=waiter.ticket if waiter is not None else 0)
            return made, lease

    def _plan(self, entries: Sequence[Entry], ask: Ask, now: float) -> Plan:
        return plan(
            entries,
            ask.need,
            now=now,
            left=ask.deadline - now,
            beliefs=self.beliefs,
            dice=self.dice,
            tried=ask.tried,
            barred=ask.barred,
            again=bool(ask.attempts),
            preference=ask.preference,
            dollars=self.dollars,
            limited=ask.limited,
        )

    def _spared(self, made: Plan, ask: Ask, now: float) -> Plan:
        """Leave scarce slots, in which an answer would probably come too late, to waiting calls that have more time left.

        A call does so once: when nobody took the slot, it looks again in a moment and takes it.
        """
        short = [step for step in made.steps if step.hope < SURE and step.lane.bounded and not _worth(step, ask)]
        ask.yielded = bool(short) and not ask.yielded and self._awaited(ask, {step.lane.member.name for step in short})
        if not ask.yielded:
            return made
        text = "its slots are for calls with more time left"
        kept = [Passed(step.lane.member.name, "busy", text, now + MOMENT, True, value=0.0, surely=False) for step in short]
        return Plan(tuple(step for step in made.steps if step not in short), (*made.passed, *kept))

    def _awaited(self, ask: Ask, names: set[str]) -> bool:
        """Whether a call that has more time left waits for a slot of one of these members."""
        return any(
            other.deadline > ask.deadline and other.waiter is not None and other.waiter.asleep and names & other.waiter.wants
            for other in islice(self.calls.values(), CROWD)
        )

    def _holds(self, made: Plan, ask: Ask, now: float) -> bool:
        return any(passed.returns for passed in made.passed) and made.hold(now, self.rank(ask))

    def rank(self, ask: Ask) -> int:
        """Return the how-many-th a call is among those without an answer: who has the least time left is the first."""
        rank, older = 1, True
        with self.lock:
            for other in islice(self.calls.values(), CROWD):
                if other is ask:
                    older = False
                elif other.deadline < ask.deadline or (older and other.deadline == ask.deadline):
                    rank += 1
        return rank

    def look(self, entries: Sequence[Entry], ask: Ask, now: float) -> Plan:
        """Return what could be done now, without doing it."""
        with self.lock:
            return self._plan(entries, ask, now)

    def enter(self, ask: Ask) -> None:
        """A call begins."""
        with self.lock:
            self.calls[id(ask)] = ask
            self.credit.earn()

    def leave(self, ask: Ask, now: float) -> None:
        """The call is over; a slot that was kept for it goes to the next."""
        with self.lock:
            self.calls.pop(id(ask), None)
            waiter = ask.waiter
            if waiter is None:
                return
            ask.waiter = None
            waiter.asleep = False
            self.queue.remove(waiter)
            if (member := _unkept(waiter)) is not None:
                self._wake((member,), 1, now)

    def _wake(self, members: Iterable[Member], count: int, now: float, after: int = 0) -> None:
        """Keep up to ``count`` free slots of these members for those that waited longest, and wake them."""
        if not self.queue:
            return
        for member in members:
            parallel = member.config.parallel
            if not member.health.free(now):
                continue
            while count > 0 and (parallel is None or member.running < parallel):
                keys = _Keys(member, now)
                waiter = self.queue.next_for(member.name, after, keys.of)
                if waiter is None:
                    break
                waiter.offer, waiter.key = member, keys.of(waiter)
                member.running += 1
                member.kept += 1
                waiter.key.kept += 1
                count -= 1
                waiter.wake()

    def _release(self, lease: Lease, now: float, more: int = 0) -> None:
        if lease.release():
            if lease.headers is not None:
                lease.learn(now)
            lane = lease.lane
            siblings = lane.key.members
            if len(siblings) > 1 and lane.key.bound is not None:
                self._wake(sorted(siblings, key=self._first), 1 + more, now)  # one slot for all of them
                return
            self._wake((lane.member,), 1 + more, now)
            if len(siblings) > 1 and more:
                self._wake([m for m in siblings if m is not lane.member], 1 + more, now)

    def _first(self, member: Member) -> float:
        waiter = self.queue.next_for(member.name)
        return waiter.ticket if waiter is not None else math.inf

    # -- what came of it -------------------------------------------------------------------------------------------------

    def answered(self, lease: Lease, now: float, first: float | None, used: float | None = None) -> None:
        """A whole answer arrived; its slot is free. ``first``: seconds to a stream's first piece; ``used``: tokens."""
        lane, started = lease.lane, lease.started
        member = lane.member
        with self.lock:
            if first is None:
                for record in member.records(False, lease.operation):
                    record.add(now - started)
            lane.strikes = 0
            member.lost = 0
            member.answered_at = now
            if member.health.illness is HANGING:
                for record in (*member.records(False, lease.operation), *member.records(True, lease.operation)):
                    record.forgive(max(4.0 * record.quantile(0.25), 2.0))
            more = lane.answered(started)
            lane.quota.settle(lease.of_lane, used, now)
            lane.key.quota.settle(lease.of_key, used, now)
            if lease.size and used is not None:
                lane.quota.used(lease.size, used)
                lane.key.quota.used(lease.size, used)
            lane.key.cap.answered()
            more += self._uncrowded(lease, now)
            self._release(lease, now, more)

    def _uncrowded(self, lease: Lease, now: float) -> int:
        """Learn how many the key serves at once; return how many more may begin for that."""
        key = lease.lane.key
        crowding = key.crowding
        more = crowding.answered(lease.beside, key.running - 1, now - lease.started, now)
        if crowding.news:
            crowding.news = False
            for member in key.members:
                for record in member.all_records():
                    record.forgive(IN_LINE * crowding.usual)
        return more

    def began(self, lease: Lease, now: float) -> None:
        """The first piece of a stream arrived."""
        with self.lock:
            for record in lease.lane.member.records(True, lease.operation):
                record.add(now - lease.started)
            lease.learn(now)

    def failed(self, lease: Lease, error: BaseException, now: float, granted: float, ask: Ask) -> Verdict:
        """An attempt failed: say who is to blame, note it, free its slot."""
        lane = lease.lane
        member = lane.member
        verdict = judge(
            error, model=lane.deployment.model, granted=granted, normal=member.normal(ask.need.stream, ask.operation)
        )
        with self.lock:
            records = member.records(ask.need.stream, ask.operation)
            hangs = member.health.illness is HANGING and len(records[0]) > 0  # a cut says nothing about its usual time then
            self._note(lease, verdict, error, now)
            if verdict.lacks is not None:
                lane.learn_lack(verdict.lacks, ask.need, now)
            if verdict.illness is None:
                for health in (member.health, lane.key.health, lane.health):
                    health.settle(lease.started)
            if verdict.blame != "quota" and now - lease.started > lane.quota.no_takes:
                lane.quota.admitted(lease.started)
                lane.key.quota.admitted(lease.started)
            if verdict.status == "timeout" and not hangs:
                for record in records:
                    record.cut(now - lease.started, now)
            self._release(lease, now)
        return verdict

    def _note(self, lease: Lease, verdict: Verdict, error: BaseException, now: float) -> None:
        lane = lease.lane
        illness = verdict.illness
        if verdict.strike:
            lane.strikes += 1
            if lane.strikes < DENIALS:
                return
            illness = illness or BROKEN
        if illness is None:
            return
        health = _health(lane, verdict)
        detail = str(getattr(error, "detail", None) or error)[:300]
        if verdict.blame == "quota":
            self._refused(lease, verdict, error, now, health, detail)
            return
        health.fail(illness, now, lease.started, verdict.stated, self.dice, detail)

    def _refused(self, lease: Lease, verdict: Verdict, error: BaseException, now: float, health: Health, detail: str) -> None:
        """A quota refused: rest until it opens, as far as that is stated or learnt."""
        lane, key = lease.lane, lease.lane.key
        window = getattr(error, "limit", None)
        crowded = window == "concurrency" and key.running > 1
        if crowded or (window is verdict.stated is None and key.cap.suspects(lease.beside, lease.started, now)):
            key.cap.refused(key.running - 1 if crowded else lease.beside)
            if verdict.stated is None:
                # Nothing is spent: there is room as soon as one of those that run has ended.
                lane.quota.unsent(lease.of_lane, lease.started, now)
                key.quota.unsent(lease.of_key, lease.started, now)
                return
        quota, reserved, other, kept = key.quota, lease.of_key, lane.quota, lease.of_lane
        if verdict.where != "key":
            quota, reserved, other, kept = other, kept, quota, reserved
        other.unsent(kept, lease.started, now)  # the other of the two did not refuse, but nothing was taken of it
        stated = verdict.stated
        if stated is not None and getattr(error, "limit", None) == "day" and health.room is not None:
            # A day's quota whose provider names a wait of a minute: obeyed and refused again, it is not believed as often.
            obeyed = health.incidents - (lease.started <= health.since)
            stated = max(stated, min(stated * 2.0 ** min(obeyed, 12), HOUR))
        at = quota.refused(lease.started, now, stated, detail, lease.size, reserved)
        if at is None:
            health.fail(verdict.illness or RATE_LIMITED, now, lease.started, stated, self.dice, detail)
        else:
            health.rest(verdict.illness or RATE_LIMITED, now, lease.started, at, detail)

    def cut(self, lease: Lease, now: float, *, lost: bool, usual: float, stream: bool = False) -> None:
        """An attempt was stopped by us: it lost a race (``lost``) or its caller left. Nobody is punished for one of these.

        ``usual``: seconds within which an answer could be expected.
        """
        lane, spent = lease.lane, now - lease.started
        member = lane.member
        with self.lock:
            records = member.records(stream, lease.operation)
            if member.health.illness is not HANGING or not len(records[0]):
                for record in records:
                    (record.cut if lost and spent >= usual else record.stopped)(spent, now)
            if lost and spent >= usual:
                member.lost += 1
                sick = member.health.room is not None and member.answered_at < member.health.since
                if member.lost >= (1 if sick else LOST):
                    member.lost = 0
                    member.health.fail(HANGING, now, lease.started, None, self.dice, "no answer in its usual time")
            if spent > lane.quota.no_takes:
                lane.quota.admitted(lease.started)
                lane.key.quota.admitted(lease.started)
            more = max(health.settle(lease.started) for health in (member.health, lane.key.health, lane.health))
            self._release(lease, now, more)

    def drop(self, lease: Lease, now: float) -> None:
        """Free a slot about which nothing is known."""
        with self.lock:
            self._release(lease, now)

    def unsent(self, lease: Lease, ask: Ask, now: float) -> None:
        """Free a slot whose attempt was never made."""
        lane = lease.lane
        with self.lock:
            ask.tried.discard(id(lane))
            lane.quota.unsent(lease.of_lane, lease.started, now)
            lane.key.quota.unsent(lease.of_key, lease.started, now)
            self._release(lease, now)

    def next_move(self, verdict: Verdict, lane: Lane, entries: Sequence[Entry], ask: Ask, now: float) -> Move:
        """Return what the call does after an attempt failed."""
        with self.lock:
            rest = self._plan(entries, ask, now)
        return decide(verdict, lane, rest, now=now, queue_until=ask.queue_until)

    def wake_all(self) -> None:
        """The pool is another one: let everybody who waits look anew."""
        with self.lock:
            for waiter in self.queue.sleeping():
                waiter.wake()

    def may_hedge(self) -> bool:
        """Whether one more attempt beside a slow one can be afforded; it is paid for."""
        with self.lock:
            return self.credit.spend()

    def rate(self, name: str, operation: str | None, score: float, call_id: str) -> None:
        """Take a rating."""
        with self.lock:
            self.beliefs.rate(name, operation, score, call_id)

    def after_fork(self) -> None:
        """In the child of a fork: nobody waits and nothing runs here."""
        self.lock = threading.RLock()
        self.queue = Queue()
        self.calls = {}


def _sparing(ask: Ask) -> Callable[[Step], bool]:
    """Return which attempts are worth their quota: others of a short one are for calls that have more time left."""

    def worth(step: Step) -> bool:
        if step.hope < HOPELESS and step.late:
            return False
        if not step.lane.metered or step.hope >= SURE:
            return True
        return _worth(step, ask)

    return worth


def _worth(step: Step, ask: Ask) -> bool:
    record = step.lane.member.record(ask.need.stream, ask.operation)
    return step.hope >= SPARED * record.hope(ask.deadline - ask.began)


def _quick(steps: list[Step], seconds: Callable[[Step], float]) -> Step | None:
    """Return the best of those that are about as quick as the quickest."""
    if not steps:
        return None
    times = [seconds(step) for step in steps]
    bound = ALIKE * min(times)
    return next(step for step, time in zip(steps, times, strict=True) if time <= bound)


class _Keys:
    """With which key each call that waits for a member could begin now."""

    def __init__(self, member: Member, now: float) -> None:
        self._member = member
        self._now = now
        self._found: dict[int, Key | None] = {}

    def of(self, waiter: Waiter) -> Key | None:
        """Return the first one that is free; calls of one scope have the same."""
        pool = waiter.pool
        if id(pool) not in self._found:
            lanes = next((lanes for member, lanes in pool if member is self._member), ())
            self._found[id(pool)] = next((lane.key for lane in lanes if lane.key.free(self._now)), None)
        return self._found[id(pool)]


def _unkept(waiter: Waiter) -> Member | None:
    """Take back what is kept for a call; return whose slot that was."""
    member: Member | None = waiter.offer
    if member is not None:
        member.running -= 1
        member.kept -= 1
        waiter.key.kept -= 1
        waiter.offer = waiter.key = None
    return member


def _nobody(step: Step) -> bool:
    return False


def _health(lane: Lane, verdict: Verdict) -> Health:
    if verdict.where == "key":
        return lane.key.health
    return lane.health if verdict.where == "lane" else lane.member.health
