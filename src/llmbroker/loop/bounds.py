"""The loop with more to see and more to bound: events, budgets, hooks between the steps, compaction, the answer in a form.

It is the same loop: ``flow`` hands its own steps in, and this file only does what stands around a step. A plain loop never
comes here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from llmbroker.budget import Ledger
from llmbroker.errors import BudgetError, InvalidRequestError, LLMTimeoutError, NoLLMAvailableError
from llmbroker.exchange import Reply, tool_set
from llmbroker.loop.approval import PauseLoop, PendingCall
from llmbroker.loop.compaction import note_of, shortened, summary_of
from llmbroker.loop.events import Compacted, FailedOver, LoopFinished, StepFinished, StepStarted, StepUsage
from llmbroker.loop.execute import interrupted, review
from llmbroker.loop.output import TRIES
from llmbroker.loop.run import Plan, Run
from llmbroker.providers.paid import paid
from llmbroker.tools import fit

Opening = Callable[[Run], Awaitable[None]]
Step = Callable[[Run], Awaitable[tuple[Any, bool]]]
LAST_WORDS = "The budget of this run is used up ({limit}). Answer now with what you have; no tool can be called any more."


async def bounded_flow(run: Run, open_calls: Opening, step: Step) -> Any:
    """Run the loop to its end with all that was asked for around its steps."""
    if run.trace is not None:
        run.trace.begin(run)
    failure: BaseException | None = None
    try:
        reply = await _bounded(run, open_calls, step)
        made = run.finished(reply)
        if run.watch is not None:
            run.watch.note(LoopFinished(made))
            await run.watch.flush()
        return made
    except PauseLoop as pause:
        run.stop = "paused"
        paused = run.paused(pause.pending)
        if run.watch is not None:
            run.watch.note(LoopFinished(paused))
            await run.watch.flush()
        return paused
    except BaseException as error:
        failure = error
        run.leave(error)
        raise
    finally:
        if run.trace is not None:
            run.trace.end(run, failure)


async def _bounded(run: Run, open_calls: Opening, step: Step) -> Any:
    try:
        await open_calls(run)
        if run.watch is not None:
            await run.watch.flush()
        reply, done = run.last_reply, False
        while not done:
            reply, done = await _one(run, step)
        if run.output is not None and run.stop is None:
            return await _in_form(run, reply, step)
    except BudgetError as error:
        reply = await _at_limit(run, error, step)
    if run.output is not None:
        # Nothing more may be asked; what the last words hold of the form counts.
        run.value, _ = run.output.read(getattr(reply, "text", "") or "")
    return reply


async def _one(run: Run, step: Step) -> tuple[Any, bool]:
    """Run one step and what stands around it."""
    run.step += 1
    await _compact(run)
    if run.prepare_step is not None:
        await _prepare(run)
    if run.ledger is not None:
        try:
            may_go_on(run)
        except BudgetError:
            run.step -= 1  # it was not begun
            raise
        run.ledger.reserve_step()
    if run.watch is not None:
        run.watch.note(StepStarted(run.step))
        await run.watch.flush()
    try:
        reply, done = await step(run)
    except (LLMTimeoutError, NoLLMAvailableError) as error:
        if run.deadline is not None and run.port.now() >= run.deadline - 0.001:
            raise spent(run, "seconds") from error
        raise
    except PauseLoop:
        if run.watch is not None:
            run.watch.note(StepFinished(run.step, run.last_reply))
        raise
    if run.watch is not None:
        run.watch.note(StepFinished(run.step, reply))
        await run.watch.flush()
    for rule in () if done else run.stop_when:
        if await run.port.call(rule, run.info):
            run.stop = "stop_when"
            return reply, True
    return reply, done


def told(run: Run, reply: Any, cost: float | None) -> None:
    """Count what a model call took, and tell who watches."""
    run.last_reply = reply
    usage = getattr(reply, "usage", None)
    if run.ledger is not None:
        run.ledger.add(usage, cost)
    if run.watch is None:
        return
    for attempt in getattr(reply, "attempts", ()):
        if attempt.status != "ok" and attempt.llm_name != getattr(reply, "llm_name", None):
            detail = getattr(attempt, "detail", None) or getattr(attempt, "error", None)
            run.watch.note(FailedOver(run.step, attempt.llm_name, str(attempt.status), None if detail is None else str(detail)))
    run.watch.note(StepUsage(run.step, usage if isinstance(reply, Reply) else None, cost))


def cost_of(run: Run, reply: Any) -> float | None:
    """Return what a model call cost in US dollars, as the journal has it; None where that is not known."""
    if not isinstance(reply, Reply) or reply.usage is None:
        return None
    ask = getattr(reply, "ask_", None)
    if ask is not None and ask.priced:
        cost: float | None = ask.cost  # its row says so already
        return cost
    caller = run.caller
    deployment = getattr(caller, "_deployment", None)
    if deployment is None and (engine := getattr(caller, "_engine", None)) is not None:
        deployment = engine.lanes.deployment(getattr(reply, "llm_name", None))
    if deployment is None:
        return None
    if deployment.in_process:
        return 0.0
    return paid(deployment, reply.model, reply.usage, datetime.fromtimestamp(run.port.time(), UTC))


# -- between the steps ---------------------------------------------------------------------------------------------------------


async def _prepare(run: Run) -> None:
    """Ask what this step shall be like: which tools, which choice, which parameters."""
    said = await run.port.call(run.prepare_step, run.info)
    run.offered, run.allowed = run.box.declared, None
    if said is None:
        return
    unknown = set(said) - {"tools", "tool_choice", "params", "append"}
    if unknown:
        raise InvalidRequestError(
            f"prepare_step returned {', '.join(sorted(unknown))}: there are tools (names), tool_choice, params and append.",
            argument="prepare_step",
        )
    if "tools" in said:
        declared = run.box.declared.by_name if run.box.declared else {}
        missing = [name for name in said["tools"] if name not in declared]
        if missing:
            raise InvalidRequestError(
                f"prepare_step names the tool {missing[0]!r}, which is not declared.", argument="prepare_step"
            )
        run.allowed = frozenset(said["tools"])
        run.offered = tool_set([item for item in run.box.declared or () if _name(item) in run.allowed])
    if "tool_choice" in said:
        run.parameters = {**run.parameters, "tool_choice": said["tool_choice"]}
    if "params" in said:
        run.parameters = {**run.parameters, "params": {**(run.parameters.get("params") or {}), **said["params"]}}
    for message in said.get("append") or ():
        run.history.append(dict(message))


def _name(item: Any) -> str:
    return str((item.get("function") or item).get("name"))


async def _compact(run: Run) -> None:
    policy = run.compaction
    change = shortened(run.history, policy) if policy is not None else None
    if policy is None or change is None:
        return
    before = run.history.characters
    messages = change.messages
    if change.out:
        stand_in = note_of(change.out)
        if policy.summarise is not None:
            stand_in = summary_of(str(await run.port.call(policy.summarise, change.out)), change.out)
        messages.insert(change.place, stand_in)
    run.history[:] = messages
    if run.watch is not None:
        run.watch.note(Compacted(before, run.history.characters, change.how))
        await run.watch.flush()
    run.shortened = True


async def _in_form(run: Run, reply: Any, step: Step) -> Any:
    """Return the reply with its value; ask for the form where the text does not have it."""
    output = run.output
    assert output is not None
    for count in range(TRIES + 1):
        value, problem = output.read(getattr(reply, "text", "") or "")
        if problem is None:
            run.value = value
            return reply
        if count == TRIES:
            break
        run.history.append({"role": "user", "content": output.request(problem if count else None)})
        run.parameters = {**run.parameters, "response_format": output.wire}
        run.parameters.pop("tool_choice", None)
        run.offered, run.no_tools = None, "only the final answer is wanted now, so this call was not run."
        run.max_steps += 1
        reply, _ = await _one(run, step)
    raise InvalidRequestError(
        f"The model's answer does not fit the form that was asked for: {fit(problem or '', 500)}", argument="output"
    )


# -- limits --------------------------------------------------------------------------------------------------------------------


def spent(run: Run, limit: str) -> BudgetError:
    """Return the error that says which limit is reached."""
    assert run.ledger is not None
    sums = run.ledger.snapshot(run.port.now())
    ledger: Ledger | None = run.ledger
    while ledger is not None and not (limit == "cost" and ledger.blind):
        ledger = ledger.parent
    if ledger is not None:
        name = getattr(run.last_reply, "llm_name", None) or getattr(run.last_reply, "model", None) or "the model"
        silent = isinstance(run.last_reply, Reply) and run.last_reply.usage is None
        why = f"Nobody knows what a call of {name} costs"
        if silent:
            why = f"An answer of {name} does not say how many tokens it took"
        price = "Say" if silent else "Declare its price (LLMConfig(price=...)), or say"
        return BudgetError(
            f"{why}, so the loop's budget of {ledger.budget.cost:g} dollars cannot be kept.",
            limit=limit,
            reply=run.last_reply,
            spent=sums,
            hint=f'{price} how it counts: Budget(unknown_price="free"), or dollars.',
        )
    return BudgetError(
        f"The budget of the loop is used up: {limit}, after {sums.steps} model calls and {sums.tool_calls} tool calls.",
        limit=limit,
        reply=run.last_reply,
        spent=sums,
        hint="Hand error.messages to the loop again with a larger budget: it runs the open calls first and goes on.",
    )


def may_go_on(run: Run) -> None:
    """See that another model call may be made.

    Raises:
        BudgetError: a limit is reached.
    """
    assert run.ledger is not None
    if run.no_tools is not None:
        return
    limit = run.ledger.exhausted(run.port.now())
    if limit is not None:
        raise spent(run, limit)


async def _at_limit(run: Run, error: BudgetError, step: Step) -> Any:
    """End a loop whose budget is used up in the way that the budget says."""
    assert run.ledger is not None
    how = run.ledger.budget.at_limit
    if how == "raise" or (how == "stop" and run.last_reply is None):
        raise error
    run.stop = "budget"
    for call in run.history.open_calls():
        text = f"Tool {call['function'].get('name')} was not run: the budget of this run is used up ({error.limit})."
        run.history.append({"role": "tool", "tool_call_id": call.get("id"), "content": text})
    if how == "stop" or error.limit == "seconds":
        if run.last_reply is None:
            raise error
        return run.last_reply
    run.no_tools = "the budget of this run is used up; only an answer is wanted now."
    run.history.append({"role": "user", "content": LAST_WORDS.format(limit=error.limit)})
    if run.offered is not None:
        run.parameters = {**run.parameters, "tool_choice": "none"}
    run.step += 1
    run.max_steps = max(run.max_steps, run.step + 1)
    run.ledger.reserve_step()
    if run.watch is not None:
        run.watch.note(StepStarted(run.step))
    reply, _ = await step(run)
    if run.watch is not None:
        run.watch.note(StepFinished(run.step, reply))
    return reply


async def prepared(run: Run, ready: list[Plan]) -> tuple[list[Plan], list[PendingCall], str | None]:
    """Sort out calls that need not run, may not run, or must wait.

    Returns:
        Those that run now, those that wait, and the limit that ends the loop after them, or None.
    """
    if run.recorder is not None:
        ready = [plan for plan in ready if not run.recorder.recall(run, plan)]
        for plan in ready:
            if plan.began and not _repeatable(plan):
                interrupted(run, plan)
        ready = [plan for plan in ready if plan.text is None]
    waiting = await review(run, ready) if run.box.functions else []
    held = {call.id for call in waiting}
    ready = [plan for plan in ready if plan.text is None and plan.call.id not in held]
    if run.ledger is None:
        return ready, waiting, None
    permitted: list[Plan] = []
    over: str | None = None
    for plan in ready:
        limit = run.ledger.reserve_call(plan.tool.name if plan.tool is not None else plan.call.name)
        if limit is None:
            permitted.append(plan)
        elif run.ledger.budget.at_limit == "raise":
            over = over or limit
        else:
            plan.text = f"Tool {plan.call.name} was not run: the budget permits no more of these calls ({limit})."
            plan.error = f"not run: {limit}"
    return permitted, waiting, over


def _repeatable(plan: Plan) -> bool:
    return plan.tool is not None and plan.tool.made is not None and plan.tool.made.rules.safe_to_repeat
