"""The attempt flow: one call on the pool, from the queue to the answer or the error.

Theory of operation
-------------------
``obtain`` takes the best free slot and races it: usually one lane runs alone to its end. A second lane is opened beside it when
the first takes longer than it usually does, when it is being tried out after an illness, or when the caller asked for
``fastest_of``. The first answer wins; the others are cancelled and waited for, each writes its row. When all lanes failed,
``decide`` says whether to go on; without a free slot the call sleeps in the queue until somebody wakes it or time mends a
member. One deadline stands over all of it.

A *trial* is what runs on a lane: ``Whole`` here, ``Opening`` in ``stream``. It never raises for a provider's fault but
returns an ``Outcome``; its row is committed before it returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec

from llmbroker.broker.claims import reached
from llmbroker.broker.core import Core
from llmbroker.broker.replies import Ask, Choice, pooled
from llmbroker.client import complete
from llmbroker.errors import LimitReachedError, LLMBrokerError, LLMTimeoutError, NoLLMAvailableError
from llmbroker.health import EMPTY, EmptyAnswerError, Verdict, is_empty
from llmbroker.io import Flow, Job
from llmbroker.pool import Lane, Lease
from llmbroker.router import SURE, GiveUp, Next, Passed, Plan, Step, alone, patience

BREATH = 0.02
"""Seconds between two looks at the pool at least, where nothing was asked between them."""
UNKNOWN = 12.0
"""Seconds that a model of which nothing is known is taken to need, where the quickest is looked for."""
KIN = 2.0
"""By how much longer a lane is taken to need beside another one with the same key."""
HEDGED = 3
"""Lanes that may run at once for a call, unless a much quicker one comes back."""
WORTH = 0.7
"""A chance from which on a lane is opened beside one that takes long."""
AGAIN = 1.0
"""Seconds between two looks for another lane, where nobody knows when one is free."""
BESIDE = 3
"""Lanes that may run at once for one call that did not ask for more."""
IN_TIME = 0.5
"""A lane beside one that takes long must usually answer within this share of the time that is left."""
TURN = 0.02
"""Seconds that a call lets each one pass that has less time left, where a quicker model comes back for several."""


class Outcome(msgspec.Struct, frozen=True):
    """What came of a trial: an answer, or an error with its verdict; neither if another lane was faster."""

    lane: Lane
    answer: Any = None
    error: LLMBrokerError | None = None
    verdict: Verdict | None = None


Trial: TypeAlias = Callable[[Core, Ask, Lease, float], Flow[Outcome]]


async def whole(core: Core, ask: Ask, lease: Lease, deadline: float) -> Outcome:
    """Run one attempt for a whole reply."""
    lane, port = lease.lane, core.port
    row = core.begin(ask, lane)

    async def refused(error: LLMBrokerError) -> None:
        nonlocal row
        row = await core.mended(ask, row, error)

    try:
        reply = await complete(port, lane.deployment, ask.request_for(lane), deadline, lease.hear, refused)
        if is_empty(reply) and (core.others(ask) or core.later(ask, lane)):
            raise EmptyAnswerError(
                f"{lane.member.name} answered with nothing (finish reason {reply.finish_reason}).",
                reply=reply,
                **lane.deployment.facts(),
            )
    except EmptyAnswerError as error:
        said = error.reply
        verdict = await core.failed(ask, lease, row, error, deadline, usage=said.usage)
        name, rate = lane.member.name, core.rating(ask.scope)
        ask.empty = lambda: pooled(said, llm_name=name, call_id=row.id, ask=ask, rate=rate)
        return Outcome(lane, error=error, verdict=verdict)
    except LLMBrokerError as error:
        verdict = await core.failed(ask, lease, row, error, deadline)
        return Outcome(lane, error=error, verdict=verdict)
    except BaseException as error:
        core.cut(ask, lease, row, error)
        raise
    won = core.claim(ask)
    usage = reply.usage
    core.desk.answered(lease, port.now(), None, usage.total_tokens if usage is not None else None)
    await core.close_row(ask, row, "ok" if won else "superseded", reply=reply)
    if not won:
        return Outcome(lane)
    await core.shared.well(lane)
    return Outcome(lane, answer=pooled(reply, llm_name=lane.member.name, call_id=row.id, ask=ask, rate=core.rating(ask.scope)))


async def obtain(core: Core, ask: Ask, trial: Trial) -> Any:
    """Return the first answer that the pool gives to a call.

    Raises:
        ProviderError: the caller's own fault, in the provider's words.
        NoLLMAvailableError: nobody could answer; says why, who was tried, and when somebody may be free.
    """
    desk, port = core.desk, core.port
    desk.enter(ask)
    try:
        while True:
            now = port.now()
            entries = core.lanes.ready(ask.scope, now) or await core.entries(ask.scope)
            plan, lease = desk.take(entries, ask, now, wake=core.waker(ask))
            if lease is not None and core.accounts is not None and now < ask.deadline and not await core.admit(ask, lease):
                continue
            ask.choices.append(Choice(now, lease.lane if lease else None, plan))
            if lease is None and ask.limited and ask.empty is not None and not _others_come(ask, plan):
                return ask.empty()  # better than to wait for a limit
            if lease is None:
                await _sleep(core, ask, plan, now)
            elif now >= ask.deadline:
                desk.drop(lease, now)
                raise nobody(core, ask, plan, "timeout")
            else:
                answer = await _race(core, ask, trial, plan, lease)
                if answer is not None:
                    return answer
    except LimitReachedError:
        if ask.empty is None:
            raise
        return ask.empty()
    finally:
        desk.leave(ask, port.now())
        if core.accounts is not None:
            await core.accounts.leave(ask)


_NO_BETTER = frozenset({"limit", EMPTY.word, "tried"})


def _others_come(ask: Ask, plan: Plan) -> bool:
    """Whether somebody comes back in time who did not answer with nothing, and whom no limit keeps away."""
    return any(
        p.returns and p.reason not in _NO_BETTER and p.until is not None and p.until <= ask.queue_until for p in plan.passed
    )


async def _sleep(core: Core, ask: Ask, plan: Plan, now: float) -> None:
    """Wait until a slot is offered or a member comes back by itself; raise if that is not worth waiting for."""
    if not plan.wants:
        # Whoever is free while the call begins nothing would answer too late.
        raise nobody(core, ask, plan, "timeout" if plan.steps else plan.verdict)
    at = plan.next_at
    somebody_runs = any(passed.returns and passed.until is None for passed in plan.passed)
    if now >= ask.queue_until or (not somebody_runs and at is not None and at > ask.queue_until and plan.sure):
        tried = ask.attempts and now < ask.queue_until
        raise nobody(core, ask, plan, "failed" if tried else "timeout")
    if at is not None and at <= now and ask.tried:
        ask.tried.clear()
        return
    until = ask.queue_until if at is None else min(max(at, now + BREATH), ask.queue_until)
    await core.sleep(ask, until - now)
    ask.tried.clear()
    if ask.limited and core.accounts is not None:
        core.accounts.again(ask)


async def _race(core: Core, ask: Ask, trial: Trial, plan: Plan, lease: Lease) -> Any:
    """Run a lane, and others beside it as need be. Return the answer; None: all failed and the call goes on."""
    first = plan.steps[0]
    wanted = ask.fastest_of
    if wanted == 1 and first.probe is not None and first.probe.beside:
        wanted = 2
    if len(plan.steps) == 1 and not plan.wants:
        return await _finish(core, ask, await trial(core, ask, lease, ask.deadline))
    if wanted == 1 and not ask.watched:
        limit = alone(lease.lane, stream=ask.need.stream, left=ask.deadline - lease.started, operation=ask.operation)
        if limit is not None:
            return await _finish(core, ask, await trial(core, ask, lease, lease.started + limit))
    race = Race(core, ask, trial)
    try:
        race.add(lease)
        for _ in range(wanted - 1):
            await race.widen("fastest_of" if ask.fastest_of > 1 else "beside the one that is tried out")
        return await race.run(max(wanted, 1))
    finally:
        if race.jobs:
            await race.stop()


class Race:
    """Lanes that run side by side for one call."""

    def __init__(self, core: Core, ask: Ask, trial: Trial) -> None:
        self._core = core
        self._ask = ask
        self._trial = trial
        self.jobs: dict[int, tuple[Job[Outcome], Lease]] = {}
        self._back = math.inf

    def add(self, lease: Lease) -> None:
        """Start a lane."""
        job = self._core.port.start(self._trial(self._core, self._ask, lease, self._ask.deadline))
        self.jobs[id(job)] = (job, lease)

    async def widen(
        self,
        why: str,
        *,
        again: bool = False,
        fit: Callable[[Step], bool] | None = None,
        quick: Callable[[Step], float] | None = None,
    ) -> Plan | None:
        """Start one more lane, if one is free; else return what the pool looks like.

        ``again``: lanes that were asked in this pass and do not run now may be asked anew.
        """
        core, ask = self._core, self._ask
        entries = core.lanes.last(ask.scope)
        while True:
            now = core.port.now()
            plan, lease = core.desk.take(entries, ask, now, fit=fit, quick=quick)
            if lease is None and again:
                ask.tried = {id(running.lane) for _, running in self.jobs.values()}
                plan, lease = core.desk.take(entries, ask, now, fit=fit, quick=quick)
            if lease is None:
                return plan
            if core.accounts is None or await core.admit(ask, lease):
                break
        ask.choices.append(Choice(now, lease.lane, plan, why))
        self.add(lease)
        return None

    async def run(self, wanted: int) -> Any:
        """Wait for the first answer. ``wanted``: lanes to keep running while some are free."""
        core, ask = self._core, self._ask
        port = core.port
        failed: Outcome | None = None
        hedge_at = self._look_at(self._core.port.now())
        while self.jobs:
            now = port.now()
            timeout = None if hedge_at is None else max(0.0, hedge_at - now)
            done = await port.wait([job for job, _ in self.jobs.values()], timeout)
            for job in done:
                self.jobs.pop(id(job))
                outcome = job.result()
                if outcome.answer is not None:
                    return outcome.answer
                if outcome.verdict is not None:
                    failed = outcome
                    if outcome.verdict.blame == "caller" and outcome.verdict.lacks is None:
                        return await _finish(core, ask, outcome)
            if done:
                while self.jobs and len(self.jobs) < wanted and await self.widen("in place of one that failed") is None:
                    pass
            elif hedge_at is not None:
                hedge_at = await self._help()
        assert failed is not None
        return await _finish(core, ask, failed)

    async def _help(self) -> float | None:
        """Open a lane beside those that take long, if that can be afforded; return when to look again."""
        desk = self._core.desk
        now = self._core.port.now()
        if self._back <= now < (turn := self._turn()):
            return turn  # calls with less time came meanwhile
        back = now >= self._back
        if len(self.jobs) < BESIDE and (back or desk.may_hedge()):
            why = "it comes back and is much quicker" if back else "it is much quicker than what the first one still needs"
            if await self.widen(why, again=True, fit=self._better(now), quick=self._quickest) is None:
                return self._look_at(now)
            if not back:
                desk.credit.refund()
        hedge_at = self._hedge_at()
        if len(self.jobs) < HEDGED and hedge_at is not None and now >= hedge_at and desk.may_hedge():
            slow = await self.widen("the first one takes long", again=True, fit=self._worth(now), quick=self._quickest)
            if slow is not None:
                desk.credit.refund()
        return self._look_at(now)

    def _better(self, now: float) -> Callable[[Step], bool]:
        return lambda step: step.hope >= SURE and self._quicker(step.usual, now)

    def _worth(self, now: float) -> Callable[[Step], bool]:
        running = self._remaining(now)
        usual = min(running, IN_TIME * (self._ask.deadline - now))
        least = 0.3 * max(lease.lane.member.config.weight for _, lease in self.jobs.values())

        def worth(step: Step) -> bool:
            if not step.usual and step.lane.member.running:
                return False  # one at a time finds out how long a model takes
            return step.hope >= WORTH and step.usual < usual and step.quality >= least

        return worth

    def _quickest(self, step: Step) -> float:
        """Return the seconds a lane will probably take; more where its key is in use here: what delays one may delay both."""
        shared = any(lease.lane.key is step.lane.key for _, lease in self.jobs.values())
        return (step.usual or UNKNOWN) * (KIN if shared else 1.0)

    def _look_at(self, now: float) -> float | None:
        """Return when to look for another lane: when the newest had its usual time, or a much quicker one comes back."""
        core, ask = self._core, self._ask
        hedge_at = self._hedge_at()
        if hedge_at is None or len(self.jobs) >= BESIDE:
            return None
        if len(self.jobs) < HEDGED and now < hedge_at:
            times = [hedge_at]
        else:
            times = [now + AGAIN]
        plan = core.desk.look(core.lanes.last(ask.scope), ask, now)
        back = [p.until for p in plan.passed if p.until is not None and p.until > now and self._hopes(p, now)]
        self._back = min(back, default=math.inf)
        times.append(self._turn())
        at = min(times)
        return at if at < ask.deadline else None

    def _turn(self) -> float:
        """Return when it is this call's turn to ask the quicker model that comes back."""
        return self._back + TURN * (self._core.desk.rank(self._ask) - 1) if self._back < math.inf else math.inf

    def _hopes(self, passed: Passed, now: float) -> bool:
        return passed.returns and passed.value > 0 and self._quicker(passed.usual, now)

    def _quicker(self, usual: float, now: float) -> bool:
        """Whether a lane that usually takes so long would probably answer long before those that run."""
        return bool(usual) and self._remaining(now) >= 2.0 * usual

    def _remaining(self, now: float) -> float:
        """Return how much longer the lanes that run will probably take; infinity if nobody knows."""
        need = self._ask.need
        left = math.inf
        for _, lease in self.jobs.values():
            member = lease.lane.member
            left = min(left, member.record(need.stream, need.operation).remaining(now - lease.started))
        return left

    def _hedge_at(self) -> float | None:
        """Return when the newest lane has had its usual time."""
        ask = self._ask
        if ask.fastest_of > 1:
            return None
        _, lease = list(self.jobs.values())[-1]
        left = ask.deadline - lease.started
        return lease.started + patience(lease.lane, stream=ask.need.stream, left=left, operation=ask.operation)

    async def stop(self) -> None:
        """Cancel what still runs and wait until it has written its rows."""
        for job, _ in self.jobs.values():
            job.cancel()
        while self.jobs:
            for job in await self._core.port.wait([job for job, _ in self.jobs.values()], 5.0) or list(self._running()):
                _, lease = self.jobs.pop(id(job))
                if job.done() and not lease.released:
                    self._core.never_made(self._ask, lease)

    def _running(self) -> list[Job[Outcome]]:
        return [job for job, _ in self.jobs.values()]


async def _finish(core: Core, ask: Ask, outcome: Outcome) -> Any:
    """Return the answer of the last lane; after its failure raise, or return None: the call goes on."""
    if outcome.verdict is None:
        return outcome.answer
    error = ask.error = outcome.error
    assert error is not None
    now = core.port.now()
    entries = core.lanes.ready(ask.scope, now) or await core.entries(ask.scope)
    move = core.desk.next_move(outcome.verdict, outcome.lane, entries, ask, now)
    if isinstance(move, GiveUp):
        if move.error:
            raise error
        plan = core.desk.look(entries, ask, now)
        late = isinstance(error, LLMTimeoutError) and now >= ask.deadline
        raise nobody(core, ask, plan, "timeout" if late else "failed" if plan.wants else plan.verdict)
    if isinstance(move, Next) and move.bar:
        ask.barred.add(id(outcome.lane))
    return None


# -- nobody --------------------------------------------------------------------------------------------------------------

_HINTS = {
    "empty_pool": "Give Broker(pool=[LLMConfig(...)]) or a model list.",
    "all_disabled": "Switch one on again with enable_llm(name).",
    "unable": "Add a model to the pool that has it, or leave it out of the call.",
    "timeout": "Give the call more time (wait=), ask fewer at once, or add a model; snapshot() shows who is busy.",
}


def nobody(core: Core, ask: Ask, plan: Plan, reason: str) -> NoLLMAvailableError:
    """Make the error that says why nobody answered and what to do."""
    port = core.port
    now, wall = port.now(), port.time()
    if ask.limited and (reason == "limit" or plan.limited):
        return _reached(ask, plan, now)
    at = plan.next_at
    retry_at = datetime.fromtimestamp(wall + max(0.0, at - now), UTC) if at is not None else None
    left = f"{max(0.0, ask.deadline - now):.1f} s are left"
    late = plan.steps if reason == "timeout" else ()
    whys = [
        *(_why(passed, now) for passed in plan.passed),
        *(f"{s.lane.member.name} takes {s.usual:.1f} s, {left}" for s in late),
    ]
    shown = "; ".join(whys[:8]) + (f"; and {len(whys) - 8} more" if len(whys) > 8 else "")
    heads = {
        "empty_pool": "The pool is empty.",
        "no_keys": "No model of the pool has a key that works",
        "all_disabled": "All models of the pool are switched off",
        "unable": "No model of the pool can do what this call needs",
        "timeout": _late(ask, now),
        "failed": "No model of the pool answered",
        "limit": "A limit of this broker is reached",
    }
    head = heads[reason]
    if reason == "no_keys" and core.lanes.troubles:
        shown += f"; {' '.join(core.lanes.troubles.values()).rstrip('.')}"
    tried = f" Tried {len(ask.attempts)}: {_tried(ask)}." if ask.attempts else ""
    error = NoLLMAvailableError(
        head if reason == "empty_pool" else f"{head}{': ' if shown else ''}{shown}.{tried}",
        reason=reason,
        retry_at=retry_at,
        attempts=tuple(ask.attempts),
        hint=core.key_hint() if reason == "no_keys" else _HINTS.get(reason),
    )
    error.__cause__ = ask.error
    return error


def _reached(ask: Ask, plan: Plan, now: float) -> LimitReachedError:
    """Make the error that says which limit is reached, how much of it is used, and when it opens."""
    others = [_why(passed, now) for passed in plan.passed if passed.reason != "limit"]
    further = f"; and {len(others) - 3} more" if len(others) > 3 else ""
    more = f" Besides: {'; '.join(others[:3])}{further}." if others else ""
    tried = f" Tried {len(ask.attempts)}: {_tried(ask)}." if ask.attempts else ""
    error = reached((ask.limited or {}).values(), more + tried, tuple(ask.attempts))
    error.__cause__ = ask.error
    return error


def _late(ask: Ask, now: float) -> str:
    if ask.attempts or now - ask.began >= 0.05:  # less is planning, not waiting
        return f"No model was free and answered within {now - ask.began:.1f} s"
    if ask.queue_until <= ask.began:
        return "No model is free, and with wait=0 none is waited for"
    return f"No model is free, and none comes back within {ask.queue_until - ask.began:.1f} s"


def _why(passed: Passed, now: float) -> str:
    text = f"{passed.name} {passed.reason.replace('_', ' ')}"
    if passed.detail:
        text += f" ({passed.detail[:120]})"
    if passed.until is not None and passed.until > now:
        text += f" for {passed.until - now:.0f} s more"
    return text


def _tried(ask: Ask) -> str:
    shown = [f"{a.llm_name} {a.status}" + (f" ({a.error[:120]})" if a.error else "") for a in ask.attempts[-6:]]
    return ", ".join(shown)
