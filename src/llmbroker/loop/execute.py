"""How calls are run: which side by side and which alone, how long, how often; who is asked first; what becomes of results."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from inspect import isawaitable
from typing import Any

from llmbroker.budget import LEDGER
from llmbroker.io import gather
from llmbroker.loop.approval import Decision, PendingCall, decision_of, fingerprint
from llmbroker.loop.events import CallReady, ToolFinished, ToolProgress, ToolStarted
from llmbroker.loop.run import Plan, Run
from llmbroker.tools import FunctionTool, ToolContext, Wrong, content_of, error_words, fit, result_text

_log = logging.getLogger("llmbroker.loop")
INTERRUPTED = (
    "the run was killed while this call was under way, and the tool is not marked safe to repeat: whether it was done is not "
    "known. Find out before you do it again."
)


def bind(plan: Plan, made: FunctionTool) -> str | None:
    """Bring checked arguments into the form that the function takes; return what is wrong with them, or None."""
    assert plan.arguments is not None
    try:
        plan.bound = made.bind(plan.arguments)
    except Wrong as wrong:
        return str(wrong)
    if made.rules.check is not None:
        problem = made.rules.check(**plan.arguments)
        if problem:
            return str(problem)
    return None


async def run_all(run: Run, plans: Sequence[Plan]) -> None:
    """Run calls side by side, as far as their tools allow it.

    A tool that is ``sequential`` is a barrier: what stands before it in the turn ends first, what stands after it waits.
    Calls of one ``group`` follow each other in the model's order.
    """
    limit = run.max_concurrency if run.ledger is None else run.ledger.concurrency(run.max_concurrency)
    batch: list[list[Plan]] = []
    groups: dict[str, list[Plan]] = {}
    for plan in plans:
        made = plan.tool.made if plan.tool is not None else None
        if made is None or not (made.rules.sequential or made.rules.group):
            batch.append([plan])
        elif made.rules.sequential:
            await _run_batch(run, batch, limit)
            await _run_batch(run, [[plan]], limit)
            batch, groups = [], {}
        else:
            name = made.rules.group or ""
            if name not in groups:
                batch.append(groups.setdefault(name, []))
            groups[name].append(plan)
    await _run_batch(run, batch, limit)


async def _run_batch(run: Run, batch: list[list[Plan]], limit: int) -> None:
    if not batch:
        return
    flows = [run_tool(run, chain[0]) if len(chain) == 1 else _run_chain(run, chain) for chain in batch]
    outcomes = await (gather(run.port, flows, limit) if run.watch is None else run.watch.gather(flows, limit))
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


async def _run_chain(run: Run, chain: list[Plan]) -> None:
    for plan in chain:
        await run_tool(run, plan)


async def run_tool(run: Run, plan: Plan) -> None:
    """Run one call; its result or failure stands in the plan afterwards."""
    tool, arguments = plan.tool, plan.arguments
    assert tool is not None
    assert arguments is not None
    if run.recorder is not None:
        await run.recorder.started(run, plan)
    if run.watch is not None:
        run.watch.note(ToolStarted(plan.call.id, plan.call.name))
    token = LEDGER.set(run.ledger) if run.ledger is not None else None
    span = run.trace.tool(plan) if run.trace is not None else None
    began = run.port.now()
    try:
        if tool.made is not None:
            await _run_made(run, plan, tool.made)
        elif run.deadline is not None:
            plan.text = result_text(await _by_deadline(run, run.deadline, tool.run, (), arguments), run.result_limit)
        else:
            fn, _, arguments = _callable(tool.run, (), arguments)
            plan.text = result_text(await run.port.call(fn, **arguments), run.result_limit)
    except Exception as fault:  # the model reads what went wrong; that is the contract
        _log.debug("the tool %s failed", plan.call.name, exc_info=True)
        plan.error = fit(error_words(fault), run.result_limit)
        plan.text = fit(f"Tool {plan.call.name} failed: {error_words(fault)}", run.result_limit)
    finally:
        plan.duration = run.port.now() - began
        if token is not None:
            LEDGER.reset(token)
        if span is not None:
            span.end(plan)
    if run.ledger is not None:
        _charge(run, plan)
    if run.recorder is not None:
        await run.recorder.finished(run, plan)
    if run.watch is not None:
        run.watch.note(ToolFinished(plan.call.id, plan.call.name, plan.text or "", plan.error, plan.duration))


def _charge(run: Run, plan: Plan) -> None:
    """Count the characters of a result, and cut out what the budget has no room for."""
    assert run.ledger is not None
    room = run.ledger.room_for_result()
    if room is not None and len(plan.text or "") > room:
        plan.text = fit(plan.text or "", room) if room else "[the result is left out: the budget for results is used up]"
        plan.content = None
    run.ledger.add_result(len(plan.text or ""))


async def _run_made(run: Run, plan: Plan, made: FunctionTool) -> None:
    """Run a tool made of a function by its rules: in time, and again where it failed and may be tried again."""
    rules = made.rules
    limit = rules.result_limit if rules.limited else run.result_limit
    for attempt in range(1, rules.retries + 2):
        if attempt > 1 and run.watch is not None:
            run.watch.note(ToolStarted(plan.call.id, plan.call.name, attempt))
        try:
            value = await _in_time(run, plan, made, attempt)
            plan.text, plan.content = content_of(value, limit)
        except rules.retry_on as fault:
            if attempt > rules.retries or not isinstance(fault, Exception):
                raise
            await run.port.sleep(rules.backoff * 2 ** (attempt - 1))
        else:
            return


async def _in_time(run: Run, plan: Plan, made: FunctionTool, attempt: int) -> Any:
    args, kwargs = plan.bound or ((), plan.arguments or {})
    seconds = made.rules.timeout
    now = run.port.now()
    deadline = None if seconds is None else now + seconds
    if run.deadline is not None:
        deadline = run.deadline if deadline is None else min(deadline, run.deadline)
    if made.signature.context is not None:
        kwargs = {**kwargs, made.signature.context: _context(run, plan, attempt, deadline)}
    if deadline is None:
        fn, args, kwargs = _callable(made.fn, args, kwargs)
        return await run.port.call(fn, *args, **kwargs)
    return await _by_deadline(run, deadline, made.fn, args, kwargs)


def _callable(fn: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
    """Return function and arguments such that no argument has a name that the port's own method uses."""
    if "fn" in kwargs or "self" in kwargs:
        return functools.partial(fn, *args, **kwargs), (), {}
    return fn, args, kwargs


async def _by_deadline(run: Run, deadline: float, fn: Any, args: Any, kwargs: Any) -> Any:
    seconds = max(0.0, deadline - run.port.now())
    fn, args, kwargs = _callable(fn, args, kwargs)
    job = run.port.start(_called(run, fn, args, kwargs))
    try:
        if not await run.port.wait([job], seconds):
            raise TimeoutError(f"it took longer than {seconds:.3g} seconds; a result that comes later is thrown away.")
        return job.result()
    finally:
        if not job.done():
            job.cancel()
            await run.port.wait([job], 1.0)


async def _called(run: Run, fn: Any, args: Any, kwargs: Any) -> Any:
    return await run.port.call(fn, *args, **kwargs)


def _context(run: Run, plan: Plan, attempt: int, deadline: float | None) -> ToolContext:
    watch, call = run.watch, plan.call
    return ToolContext(
        call_id=call.id,
        tool=call.name,
        step=run.step,
        attempt=attempt,
        trace_id=run.parameters.get("trace_id"),
        operation=run.parameters.get("operation"),
        scope=getattr(run.caller, "scope", None),
        deadline=deadline,
        messages=list(run.history),
        now=run.port.now,
        over=lambda: run.over or (watch is not None and watch.left),
        emit=None if watch is None else lambda value: watch.note(ToolProgress(call.id, call.name, value)),
    )


# -- who is asked first --------------------------------------------------------------------------------------------------------


async def review(run: Run, ready: list[Plan]) -> list[PendingCall]:
    """Ask who must be asked; return the calls that wait. Calls that were refused or answered elsewhere have their text then."""
    waiting: list[PendingCall] = []
    for plan in ready:
        made = plan.tool.made if plan.tool is not None else None
        if made is None or not (made.rules.external or made.rules.approval):
            continue
        arguments = plan.arguments or {}
        if not made.rules.external and not await _needs_approval(run, made, arguments):
            continue
        pending = PendingCall(
            plan.call.id,
            plan.call.name,
            arguments,
            fingerprint(plan.call.id, plan.call.name, arguments),
            "external" if made.rules.external else "approval",
        )
        decision = run.approvals.known(pending)
        if decision is None and run.approvals.ask is not None and pending.kind == "approval":
            decision = decision_of(await run.port.call(run.approvals.ask, pending), pending)
        if not _apply(run, plan, pending, decision):
            waiting.append(pending)
    return waiting


async def _needs_approval(run: Run, made: FunctionTool, arguments: dict[str, Any]) -> bool:
    """Whether this call needs a yes; a rule that fails says yes."""
    rule = made.rules.approval
    if not callable(rule):
        return bool(rule)
    try:
        said = await run.port.call(rule, **arguments)
        return bool(await said if isawaitable(said) else said)
    except Exception:  # a rule that cannot say it must not let the call through
        _log.warning("the approval rule of the tool %s failed; the call is held", made.name, exc_info=True)
        return True


def _apply(run: Run, plan: Plan, pending: PendingCall, decision: Decision | None) -> bool:
    """Do what was decided; return whether the call waits no more."""
    if decision is None:
        return False
    if decision.verdict == "rejected":
        words = f"the call was not approved{': ' + decision.text if decision.text else '.'}"
        plan.text = fit(f"Tool {plan.call.name} was not run: {words}", run.result_limit)
        plan.error = fit(words, run.result_limit)
        return True
    if decision.verdict != ("result" if pending.kind == "external" else "approved"):
        return False
    if decision.verdict == "result":
        plan.text = fit(decision.text, run.result_limit)
    return True


def ready_event(run: Run, plan: Plan) -> CallReady:
    """Return the event of a call that was read."""
    return CallReady(run.step, plan.call.id, plan.call.name, plan.arguments if plan.text is None else None)


def interrupted(run: Run, plan: Plan) -> None:
    """Give a call that was under way when the run was killed its result: that nobody knows it."""
    plan.text = fit(f"Tool {plan.call.name} failed: {INTERRUPTED}", run.result_limit)
    plan.error = fit(INTERRUPTED, run.result_limit)
