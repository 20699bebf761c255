"""The tool loop: call the model, run what it asks for, hand back the results, until it answers.

Theory of operation
-------------------
One flow (``_flow``) serves both faces. It knows a caller only by ``chat`` and the world only by the port. All that a run knows
stands in one ``Run``; every step is a small function over it, so that a run can be watched, bounded or resumed from outside.

Each turn of the model passes three gates. How it ended: calls of an answer that was cut, filtered, refused or broken off are
not run. What it says: a name that nobody knows, arguments that cannot be read or do not fit the schema become a result that
says what would be right. Only then are the functions run, side by side, and their results stand in the model's order.

The history is valid at every moment that anyone can see it. The assistant's message goes in with unique ids, legal names and
readable arguments; each call gets exactly one result; a call whose result is not known when the loop is left stays open, and a
later loop runs open calls before anything else. What can never be run (cut or unreadable arguments) is answered at once, so
that it cannot be run later by mistake.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from llmbroker.errors import MalformedCallError, ToolLimitError, ToolLoopLimitError
from llmbroker.exchange import Reply
from llmbroker.loop.approval import PauseLoop, PendingCall
from llmbroker.loop.bounds import bounded_flow, cost_of, may_go_on, prepared, spent, told
from llmbroker.loop.execute import bind, ready_event, run_all
from llmbroker.loop.run import JSON, Plan, Run, used_ids
from llmbroker.messages import History, shown
from llmbroker.tools import Call, ToolRow, Turn, canonical, fit, read_arguments, read_turn

MOST_MALFORMED = 3
"""Calls in a row that the provider could not read before the loop gives up."""

_log = logging.getLogger("llmbroker.loop")


async def flow(run: Run) -> Any:
    """Run the loop to its end; return the final reply. Every exception that leaves carries what happened."""
    if run.bounded or run.watch is not None:
        return await bounded_flow(run, _begin, _step)
    try:
        await _begin(run)
        while run.step < run.max_steps:
            run.step += 1
            reply, done = await _step(run)
            if done:
                return run.finished(reply)
        raise AssertionError("the last step ends the loop")
    except PauseLoop as pause:
        run.stop = "paused"
        return run.paused(pause.pending)
    except BaseException as error:
        run.leave(error)
        raise


async def _step(run: Run) -> tuple[Any, bool]:
    """Make one model call and do what it asks for; return its reply and whether the loop is over."""
    run.tally.calls += 1
    try:
        reply = await run.ask(run)
    except BaseException as error:
        run.tally.add(None)
        if not isinstance(error, MalformedCallError) or run.last or not _may_correct(run):
            raise
        _correct(run, error.generation, error.detail or str(error))
        return None, False
    turn = read_turn(reply, run.used)
    cost = cost_of(run, reply)
    run.tally.pay(cost)
    if run.bounded or run.watch is not None:
        told(run, reply, cost)
    run.own = isinstance(reply, Reply)
    run.tally.add(_member(reply, "usage"))
    if not run.keep_tool_choice:
        run.parameters = relaxed(run.parameters)
    if turn.malformed:
        return reply, _malformed(run, turn)
    run.malformed = 0
    if turn.calls:
        await _answer(run, turn)
        return reply, turn.finish in ("content_filter", "refusal") or (turn.finish == "error" and not turn.broken)
    if not turn.empty:
        run.history.append(turn.message)
        if run.recorder is not None:
            await run.recorder.replied(run, None if turn.goes_on or run.output is not None else reply)
    if not turn.goes_on:
        return reply, True
    if run.last:
        raise _limit(run, reply, "the provider only paused its turn")
    return reply, False


async def _answer(run: Run, turn: Turn) -> None:
    """Give every call of a turn its result.

    Raises:
        ToolLoopLimitError: this was the last permitted step; what could have been run stays open.
    """
    plans = [_plan(run, call, turn.not_run or run.no_tools) for call in turn.calls]
    run.history.append(turn.written({plan.call.id: plan.written for plan in plans}))
    if run.watch is not None:
        for plan in plans:
            run.watch.note(ready_event(run, plan))
        await run.watch.flush()
    if run.recorder is not None:
        await run.recorder.replied(run, None)
    if run.ledger is not None and run.ledger.budget.at_limit == "raise":
        may_go_on(run)
    goes_on = turn.finish not in ("content_filter", "refusal", "error") or turn.broken
    if run.last and goes_on:
        _record(run, [plan for plan in plans if not plan.open])
        names = ", ".join(dict.fromkeys(call.name for call in turn.calls))
        raise _limit(run, turn.reply, f"the model still asks for tools ({names[:200]})")
    await _run_plans(run, plans, turn.reply)


async def _begin(run: Run) -> None:
    """Run what the given history left open, then say what comes after it."""
    await _open_calls(run)
    for message in run.then:
        run.history.append(message)


async def _open_calls(run: Run) -> None:
    """Run the calls that the given history left open; results that stand there already are kept."""
    history = run.history
    if not history.open_calls():
        return
    at = max(index for index, message in enumerate(history) if message.get("role") in ("assistant", "model"))
    message, *results = history[at:]
    given = [call.get("id") for call in message["tool_calls"]]
    used = used_ids(History(history[:at])) if at else set()
    turn = read_turn({"message": {**message, "role": "assistant"}}, used)
    run.used |= used
    del history[at:]
    known = _paired(turn.calls, given, results)
    plans = [_plan(run, call, None, reopened=True) for call in turn.calls]
    for plan in plans:
        if plan.call.id in known:
            plan.text = ""
    history.append(turn.written({plan.call.id: plan.written for plan in plans}))
    await _run_plans(run, plans, None, known)


def _paired(calls: Sequence[Call], given: Sequence[Any], results: Sequence[JSON]) -> dict[str, JSON]:
    """Return the results that stand there by call, paired as ``History`` pairs them; ``given`` are the ids in the message."""
    known: dict[str, JSON] = {}
    for result in results:
        waiting = [(call, identity or "") for call, identity in zip(calls, given, strict=True) if call.id not in known]
        wanted = result.get("tool_call_id") or ""
        call = next((call for call, identity in waiting if identity == wanted), None)
        if call is None and not wanted and waiting:
            call = next((call for call, _ in waiting if call.name == result.get("name")), waiting[0][0])
        if call is not None:
            known[call.id] = result
    return known


# -- single calls ------------------------------------------------------------------------------------------------------------


def _plan(run: Run, call: Call, not_run: str | None, *, reopened: bool = False) -> Plan:
    """Decide what becomes of a call."""
    tool = run.box.find(call.name)
    if run.allowed is not None and tool is not None and tool.name not in run.allowed:
        tool = None
    read = read_arguments(call.arguments, tool.schema if tool else None)
    plan = Plan(call, written=read.text or "", repaired=read.repaired)
    if reopened and read.value is not None and list(read.value) == ["_unreadable"]:
        read = msgspec.structs.replace(read, value=None, problem="the arguments could not be read; send the call again.")
    if not_run is not None:
        plan.written, plan.open = "", False
        _refuse(run, plan, f"Tool {call.name} failed: {not_run}", not_run)
    elif tool is None:
        plan.open = read.text is not None
        _refuse(run, plan, run.box.unknown(call.name, run.allowed), "unknown tool")
    elif read.value is None:
        plan.open = read.text is not None
        _refuse(run, plan, f"Tool {call.name} failed: {read.problem}", read.problem or "")
    else:
        plan.tool, plan.arguments = tool, read.value
        if tool.made is not None and (problem := bind(plan, tool.made)) is not None:
            _refuse(run, plan, f"Tool {call.name} failed: {problem}", problem)
    return plan


def _refuse(run: Run, plan: Plan, text: str, error: str) -> None:
    plan.text = fit(text, run.result_limit)
    plan.error = fit(error, run.result_limit)


async def _run_plans(run: Run, plans: list[Plan], reply: Any, known: Mapping[str, JSON] | None = None) -> None:
    """Run what is to be run, then write all results in the model's order, those of an interrupted turn included."""
    ready = [plan for plan in plans if plan.text is None]
    beyond: list[Plan] = []
    waiting: list[PendingCall] = []
    over: str | None = None
    if ready and (run.box.functions or run.bounded):
        ready, waiting, over = await prepared(run, ready)
    if run.tool_calls_left is not None:
        permitted = int(min(len(ready), run.tool_calls_left))
        run.tool_calls_left -= permitted
        ready, beyond = ready[:permitted], ready[permitted:]
    try:
        if ready:
            await run_all(run, ready)
    finally:
        repeated = _record(run, plans, known or {})
    if waiting:
        raise PauseLoop(waiting)
    if over is not None:
        raise spent(run, over)
    if beyond:
        raise _too_many(run, beyond[0])
    if repeated is not None:
        raise ToolLoopLimitError(
            f"The tool {repeated} was called {run.max_repeats} times with the same arguments and gave the same result. "
            "Its results are in error.messages.",
            reply=reply,
            reason="repeats",
        )


def _too_many(run: Run, plan: Plan) -> ToolLimitError:
    done = sum(row["duration"] is not None for row in run.rows)
    return ToolLimitError(
        f"The tool {plan.call.name} was not run: {done} tool calls are done, and max_tool_calls permits no more.",
        limit=done,
        hint="Raise max_tool_calls, or hand error.messages to the loop again: it runs the open calls first and goes on.",
    )


def _record(run: Run, plans: Sequence[Plan], known: Mapping[str, JSON] = {}) -> str | None:
    """Write the results that are known into history and rows; return the name of a call that repeats too often."""
    too_often: str | None = None
    met: set[tuple[str, str, str]] = set()
    for plan in plans:
        if plan.call.id in known:
            run.history.append({**known[plan.call.id], "role": "tool", "tool_call_id": plan.call.id})
            continue
        if plan.text is None:
            continue
        text = plan.text
        if run.max_repeats is not None and not (plan.tool is not None and plan.tool.made and plan.tool.made.rules.polls):
            key = (plan.call.name, _same_arguments(plan), text)
            if key not in met:
                met.add(key)
                run.seen[key] = run.seen.get(key, 0) + 1
            if run.seen[key] >= run.max_repeats:
                too_often = plan.call.name
            elif run.seen[key] > 1:
                text += f"\n(This is the same result as before, for the same call: {run.seen[key]} times now.)"
        message: JSON = {"role": "tool", "tool_call_id": plan.call.id, "content": plan.content or text}
        if plan.error is not None and run.own:
            # A word of this library, for the dialects that have one for it; a foreign caller sends messages as they are.
            message["is_error"] = True
        run.history.append(message)
        run.rows.append(_row(run, plan, text))
    return too_often


def _same_arguments(plan: Plan) -> str:
    return canonical(plan.arguments) if plan.arguments is not None else plan.written or shown(plan.call.arguments)


def _row(run: Run, plan: Plan, text: str) -> ToolRow:
    given = plan.call.arguments
    return ToolRow(
        round=run.step,
        id=plan.call.id,
        name=plan.call.name,
        arguments=plan.written or (given if isinstance(given, str) else "" if given is None else shown(given)),
        result=text,
        error=plan.error,
        repaired=plan.repaired,
        duration=plan.duration,
    )


# -- turns that are no answer ------------------------------------------------------------------------------------------------


def _may_correct(run: Run) -> bool:
    run.malformed += 1
    return run.malformed < MOST_MALFORMED


def _malformed(run: Run, turn: Turn) -> bool:
    """Tell the model that its call could not be read; return whether the loop is over."""
    if run.last:
        raise _limit(run, turn.reply, f"the model's call could not be read ({turn.raw_finish})")
    if not _may_correct(run):
        return True
    text = turn.message.get("content")
    _correct(run, text if isinstance(text, str) else None, f"the provider reports {turn.raw_finish}")
    return False


def _correct(run: Run, generation: str | None, words: str) -> None:
    if generation and generation.strip():
        run.history.append({"role": "assistant", "content": fit(generation, 4000)})
    names = ", ".join(run.box.declared.by_name) if run.box.declared else ""
    run.history.append(
        {
            "role": "user",
            "content": f"Your tool call could not be read: {fit(words, 1000)}\n"
            "Call the tool again, with its exact name and one JSON object of arguments that fits its parameters, "
            f"or answer without a tool.{f' Tools: {fit(names, 500)}.' if names else ''}",
        }
    )


def _limit(run: Run, reply: Any, why: str) -> ToolLoopLimitError:
    model = _member(reply, "model")
    return ToolLoopLimitError(
        f"The loop reached max_steps={run.max_steps} and {why}.",
        reply=reply,
        model=model if isinstance(model, str) else None,
        hint="Raise max_steps, or hand error.messages to the loop again: it runs the open calls first and goes on.",
    )


def relaxed(parameters: JSON) -> JSON:
    """Return the parameters without a forced choice of tool: kept, it would force a call in every step for ever."""
    out = parameters
    if _forces(parameters.get("tool_choice")):
        out = {**out, "tool_choice": "auto"}
    inner = parameters.get("params")
    if inner is not None and isinstance(inner, Mapping) and _forces(inner.get("tool_choice")):
        out = {**out, "params": {**inner, "tool_choice": "auto"}}
    return out


def _forces(choice: Any) -> bool:
    return choice is not None and choice not in ("auto", "none")


def _member(source: Any, name: str) -> Any:
    return getattr(source, name, None) if isinstance(source, Reply) or not isinstance(source, Mapping) else source.get(name)
