"""What a pooled call is, and what it gives back: ``Ask`` inside; ``Attempt``, ``PooledReply`` and its asyncio twin outside."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from llmbroker.allowances import Held, Refused
from llmbroker.catalog import Limit
from llmbroker.exchange import STEP, Reply, Request, make_request
from llmbroker.io import Signal
from llmbroker.journal import new_id
from llmbroker.limits import Waiter
from llmbroker.pool import Lane, Need
from llmbroker.preference import Preference
from llmbroker.router import Plan


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One try on one model, as its caller sees it; the journal's row of the same ``id`` says more.

    Attributes:
        id: the row's id.
        llm_name: the model.
        status: ok, rate_limited, unavailable, error, timeout, cancelled or superseded.
        error: what went wrong, in a sentence, or None.
        seconds: how long it took.
    """

    id: str
    llm_name: str
    status: str
    error: str | None = None
    seconds: float = 0.0


class Choice(NamedTuple):
    """One moment of a call: what was chosen, if anything, and who was passed over. ``at`` is on the port's scale."""

    at: float
    lane: Lane | None
    plan: Plan
    why: str = ""


class Ask:
    """One call on the pool, from its arguments to its end. Not a value: the flow writes into it.

    Attributes:
        step: the tool loop's step, or None.
        request: what is asked, before a model's own parameters.
        need: what that takes.
        scope, operation, trace_id: as the caller named them.
        began: when, on the port's scale.
        deadline: when everything ends. ``queue_until``: until when it may wait for a free model.
        fastest_of: how many are asked at once.
        preference: what the caller prefers, or None: quality alone.
        tried: ``id`` of lanes that were asked in this pass. ``barred``: of those not asked again.
        attempts, choices: what happened.
        empty: makes what the caller gets of an answer that said nothing, where only limits keep others from a better one.
        watched: an attempt was cut for taking long: no other runs without one beside it.
        won: one attempt has the answer; others that come later are superseded.
        group_id: shared by the rows of this call.
        limits: those that concern it, once looked for. limited: why lanes are closed to it. holds: what its lanes hold.
        waits: the accounts in which it waits for room.
        cost: US dollars of its answer, None where nobody knows; looked up once it is ``priced``.
        yielded: it left a scarce slot to calls that have more time left, when it looked last.
    """

    __slots__ = (
        "_arguments",
        "attempts",
        "barred",
        "began",
        "choices",
        "cost",
        "deadline",
        "empty",
        "error",
        "fastest_of",
        "group_id",
        "holds",
        "last_id",
        "limited",
        "limits",
        "need",
        "numbers",
        "operation",
        "preference",
        "priced",
        "queue_until",
        "request",
        "scope",
        "signal",
        "step",
        "trace_id",
        "tried",
        "waiter",
        "waits",
        "watched",
        "won",
        "yielded",
    )

    def __init__(
        self,
        request: Request,
        *,
        params: Mapping[str, Any] | None,
        scope: str | None,
        operation: str | None,
        trace_id: str | None,
        began: float,
        deadline: float,
        queue_until: float,
        fastest_of: int,
        preference: Preference | None = None,
    ) -> None:
        self.request = request
        self._arguments = params
        self.need = Need(request, operation)
        self.scope = scope
        self.operation = operation
        self.trace_id = trace_id
        self.began = began
        self.deadline = deadline
        self.queue_until = queue_until
        self.fastest_of = fastest_of
        self.preference = preference
        self.tried: set[int] = set()
        self.barred: set[int] = set()
        self.attempts: list[Attempt] = []
        self.choices: list[Choice] = []
        self.error: BaseException | None = None
        self.empty: Callable[[], Any] | None = None
        self.waiter: Waiter | None = None
        self.signal: Signal | None = None
        self.won = False
        self.step = STEP.get()
        self.watched = False
        self.yielded = False
        self.cost: float | None = None
        self.priced = False
        self.numbers = itertools.count(1)
        self.group_id = new_id()
        self.last_id: dict[int, str] = {}
        self.limits: tuple[Limit, ...] | None = None
        self.limited: dict[int, Refused] | None = None
        self.holds: dict[int, Held] | None = None
        self.waits: set[tuple[str, str, int]] | None = None

    def request_for(self, lane: Lane) -> Request:
        """Return the request with the parameters that this model needs with tools; the caller's own win."""
        tool_params = lane.member.config.tool_params
        request = self.request
        if not tool_params or not request.tools:
            return request
        return make_request(
            request.history,
            tools=request.tools,
            choice=request.tool_choice,
            response_format=request.response_format,
            params=self._arguments,
            tool_params=tool_params,
            stream=request.stream,
        )

    def explain(self) -> str:
        """Return why each model was chosen or passed over, one line a fact."""
        lines: list[str] = []
        for choice in self.choices:
            lines += _lines(choice, self.began, self.preference)
        for attempt in self.attempts:
            error = f": {attempt.error}" if attempt.error else ""
            lines.append(f"{'':11}-> {attempt.llm_name} {attempt.status} after {attempt.seconds:.2f} s{error}")
        return "\n".join(lines)


def _lines(choice: Choice, began: float, preference: Preference | None) -> Iterator[str]:
    at = f"{choice.at - began:7.2f} s  "
    if choice.lane is None:
        yield f"{at}waited: nobody was free"
    for step in choice.plan.steps:
        if step.worth is not None and preference is not None:
            facts = step.worth.words(preference)
        else:
            facts = [f"quality {step.quality:.2f}"]
        if step.probe is not None:
            facts.append(f"tried out after {step.probe.word}")
        if step.late:
            facts.append("probably too slow")
        name = step.lane.member.name
        if step.lane is choice.lane:
            yield f"{at}{name}: chosen ({', '.join([*facts, choice.why] if choice.why else facts)})"
        else:
            yield f"{'':11}{name}: free ({', '.join(facts)})"
    for passed in choice.plan.passed:
        detail = f" ({passed.detail})" if passed.detail else ""
        more = f", for {passed.until - choice.at:.1f} s more" if passed.until is not None and passed.until > choice.at else ""
        yield f"{'':11}{passed.name}: {passed.reason}{detail}{more}"


class PooledReply(Reply, frozen=True, kw_only=True, weakref=True):
    """A reply of the pool: all of ``Reply``, and who gave it.

    Attributes:
        llm_name: the model's name in the pool.
        call_id: the id of its journal row.
        operation: as the caller named it.
        attempts: the tries of this call that had ended, in that order, this one included; who lost a race is in the journal.
    """

    llm_name: str
    call_id: str
    operation: str | None = None
    attempts: tuple[Attempt, ...] = ()
    ask_: Any = None
    rate_: Any = None

    def explain(self) -> str:
        """Return why this model was chosen and the others were not, as text."""
        return self.ask_.explain() if self.ask_ is not None else ""

    def record_quality(self, score: float) -> Any:
        """Rate this reply, 0 (useless) to 1 (perfect). From an ``AsyncBroker``: await it.

        Raises:
            InvalidRequestError: the score is no number from 0 to 1.
        """
        rate: Callable[..., Awaitable[None] | None] = self.rate_
        return rate(score, call_id=self.call_id)

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive pickling and copying, without the ties to its broker."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__ if name not in ("ask_", "rate_")}
        return _remade, (fields,)


def _remade(fields: dict[str, Any]) -> PooledReply:
    return PooledReply(**fields)


def pooled(reply: Reply, *, llm_name: str, call_id: str, ask: Ask, rate: Any) -> PooledReply:
    """Return the reply with what the pool adds."""
    return PooledReply(
        text=reply.text,
        tool_calls=reply.tool_calls,
        usage=reply.usage,
        finish_reason=reply.finish_reason,
        raw_finish_reason=reply.raw_finish_reason,
        reasoning=reply.reasoning,
        refusal=reply.refusal,
        model=reply.model,
        id=reply.id,
        request_id=reply.request_id,
        raw=reply.raw,
        message=reply.message,
        llm_name=llm_name,
        call_id=call_id,
        operation=ask.operation,
        attempts=tuple(ask.attempts),
        ask_=ask,
        rate_=rate,
    )
