"""The two faces of the loop: one drives the flow, one awaits it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from inspect import Parameter, isawaitable, iscoroutine, iscoroutinefunction, signature
from typing import Any

from llmbroker.budget import Budget
from llmbroker.errors import InvalidRequestError, unexpected
from llmbroker.exchange import STEP, ReasoningDelta, RefusalDelta, Started, TextDelta
from llmbroker.io import Port
from llmbroker.loop.approval import Decision
from llmbroker.loop.compaction import Compaction
from llmbroker.loop.flow import flow
from llmbroker.loop.run import DEFAULT_CONCURRENCY, DEFAULT_STEPS, Options, Run
from llmbroker.loop.stream import AsyncToolLoopStream, ToolLoopStream
from llmbroker.loop.watch import Pump, Watch
from llmbroker.tools import DEFAULT_LIMIT
from llmbroker.transports import shared


async def _ask_sync(run: Run) -> Any:
    token = STEP.set(run.step)
    try:
        reply = run.caller.chat(run.history, tools=run.offered, **_parameters(run))
    finally:
        STEP.reset(token)
    if isawaitable(reply):
        if iscoroutine(reply):
            reply.close()
        raise _to_be_awaited(run.caller)
    return reply


def _to_be_awaited(caller: Any) -> InvalidRequestError:
    return InvalidRequestError(
        f"{type(caller).__name__}.chat is asynchronous: use await arun_tool_loop(...), or async for "
        "with astream_tool_loop(...); elsewhere arun, aask, astream.",
        argument="caller",
    )


async def _ask_async(run: Run) -> Any:
    token = STEP.set(run.step)
    try:
        if run.in_thread:
            return await run.port.call(run.caller.chat, run.history, tools=run.offered, **_parameters(run))
        reply = run.caller.chat(run.history, tools=run.offered, **_parameters(run))
        return await reply if isawaitable(reply) else reply
    finally:
        STEP.reset(token)


async def _ask_streamed(run: Run) -> Any:
    """Ask for a stream and hand its pieces on; a caller without streams is asked for the whole."""
    watch = run.watch
    assert watch is not None
    if not run.own or run.in_thread or not callable(getattr(run.caller, "stream", None)):
        reply = await (_ask_sync if hasattr(run.port, "drive") and not run.awaited else _ask_async)(run)
        text = getattr(reply, "text", None)
        if isinstance(text, str) and text:
            watch.note(TextDelta(text))
        return reply
    face = run.caller.stream(messages=run.history, tools=run.offered, **_parameters(run))
    source = face._source
    try:
        while True:
            token = STEP.set(run.step)
            try:
                events = await source.next_events()
            finally:
                STEP.reset(token)
            if not events:
                return face.reply
            for event in events:
                if isinstance(event, _SHOWN) or (isinstance(event, Started) and event.restart):
                    watch.note(event)
            await watch.flush()
    finally:
        await source.close()


_SHOWN = (TextDelta, ReasoningDelta, RefusalDelta)


def _parameters(run: Run) -> Mapping[str, Any]:
    """Return the parameters of a model call; it ends when the loop's time is over, where the caller can be told so."""
    if run.deadline is None or not run.own:
        return run.parameters
    left = max(0.001, run.deadline - run.port.now())
    word = "timeout" if hasattr(run.caller, "_deployment") else "wait"
    given = run.parameters.get(word)
    return {**run.parameters, word: left if given is None else min(given, left)}


def _traced(ask: Any) -> Any:
    """Return the same with a span around each model call."""

    async def asked(run: Run) -> Any:
        span = run.trace.model(run)
        try:
            reply = await ask(run)
        except BaseException as error:
            span.failed(error)
            raise
        span.replied(reply)
        return reply

    return asked


def _run(caller: Any, messages: Any, kind: str, ask: Any, options: Options) -> Run:
    """Return a loop that is ready to run."""
    _checked_caller(caller)
    if options.chat_parameters:
        _checked_parameters(caller, options.chat_parameters, kind, ask)
    run = Run(caller, messages, port_of(caller, kind), ask, options)
    run.awaited = kind == "async"
    run.in_thread = run.awaited and _plain(caller)
    if run.trace is not None:
        run.ask = _traced(ask)
    return run


def port_of(caller: Any, kind: str) -> Port:
    """Return the caller's own port, or one that all foreign callers share.

    Raises:
        InvalidRequestError: plain code was given a caller whose ``chat`` is to be awaited.
    """
    if kind == "blocking" and iscoroutinefunction(getattr(caller, "chat", None)):
        raise _to_be_awaited(caller)
    own: Port | None = getattr(caller, "_io", None)
    if own is not None and hasattr(own, "call") and (not _plain(caller) if kind == "async" else hasattr(own, "drive")):
        return own
    port: Port = shared(awaited=kind == "async")
    return port


def _plain(caller: Any) -> bool:
    """Whether it is one of this library's callers for plain code: in an event loop its ``chat`` belongs into a thread."""
    return getattr(caller, "_io", None) is not None and not iscoroutinefunction(getattr(caller, "chat", None))


def _checked_caller(caller: Any) -> None:
    if not callable(getattr(caller, "chat", None)):
        raise InvalidRequestError(
            f"The first argument is a broker, a client or any object with chat(messages, tools=...), "
            f"not {type(caller).__name__}.",
            argument="caller",
        )


def _checked_parameters(caller: Any, given: Mapping[str, Any], kind: str, ask: Any) -> None:
    """Refuse what neither the loop nor one of this library's callers takes; what others take, only they know.

    Raises:
        TypeError: there is such an argument.
    """
    taken = _taken(type(caller).chat) if getattr(caller, "_io", None) is not None else None
    if taken is not None and given.keys() - taken:
        function = ("a" if kind == "async" else "") + ("stream_tool_loop" if ask is _ask_streamed else "run_tool_loop")
        if strange := unexpected(function, given, taken | _SETTINGS):
            raise strange


@cache
def _taken(chat: Any) -> frozenset[str] | None:
    """Return the keywords that a ``chat`` takes, or None where it takes any."""
    parameters = signature(chat).parameters.values()
    if any(one.kind is Parameter.VAR_KEYWORD for one in parameters):
        return None
    return frozenset(one.name for one in parameters if one.kind is Parameter.KEYWORD_ONLY)


_SETTINGS = frozenset(Options.__struct_fields__) - {"max_tool_calls", "recorder", "then", "chat_parameters"}
"""The arguments of the loop itself: what a word that nobody takes may have been meant to be."""


def run_tool_loop(
    caller: Any,
    messages: Any,
    *,
    tools: Sequence[Any] | None = None,
    dispatch: Mapping[str, Callable[..., Any]] | None = None,
    max_steps: int = DEFAULT_STEPS,
    max_repeats: int | None = None,
    max_concurrency: int = DEFAULT_CONCURRENCY,
    result_limit: int | None = DEFAULT_LIMIT,
    keep_tool_choice: bool = False,
    transcript: Any = None,
    budget: Budget | None = None,
    approve: Any = None,
    answers: Sequence[Decision] | None = None,
    stop_when: Any = None,
    prepare_step: Any = None,
    output: Any = None,
    compaction: Compaction | None = None,
    **chat_parameters: Any,
) -> Any:
    """Call the model, run the tools it asks for, and repeat until it answers; return the final reply.

    It needs no event loop and may be called inside a running one.

    Args:
        caller: a broker, a direct client, a scoped caller, or any object whose ``chat(messages, tools=...)`` answers.
        messages: a string or a list of messages; it is not changed. Calls that it leaves open are run first. Or a ``Paused``.
        tools: functions, tools made by ``@tool``, or declarations in OpenAI's shape.
        dispatch: functions by tool name for declarations, plain or ``async``; their results go through ``str()``.
        max_steps: model calls at most.
        max_repeats: end the loop when one call gave one result in this many steps (at least 2); None: never.
        max_concurrency: calls of one turn that run at the same time.
        result_limit: characters of one result; longer ones lose their middle. None: no limit.
        keep_tool_choice: keep a forced ``tool_choice`` for every step; else it becomes ``auto`` after the first.
        transcript: an object (or dict) that receives ``messages``, ``tool_history`` and ``tool_loop``, however the loop ends.
        budget: what may be spent, see ``Budget``; a loop inside a tool also spends from the budget around it.
        approve: who is asked about calls that need a yes: a function of a ``PendingCall`` that returns True, False, a reason
            to refuse, or None to wait. Without one, or with ``"pause"``, the loop pauses and returns a ``Paused``.
        answers: decisions about the calls of a ``Paused``.
        stop_when: a function of a ``StepInfo``, or several: the loop ends after a step where one is true.
        prepare_step: a function of a ``StepInfo`` before each model call; it returns None or a mapping with ``tools`` (names),
            ``tool_choice``, ``params``, ``append`` (messages) for this step.
        output: the type or JSON schema of the final answer; the value is ``reply.parsed``.
        compaction: how a conversation that grows too long is made shorter, see ``Compaction``.
        **chat_parameters: handed to every ``chat``.

    Returns:
        The caller's last reply. A reply of this library also has ``messages`` (all of them), ``tool_history`` and
        ``tool_loop``; ``usage`` is that of the last call alone. Or a ``Paused`` where calls wait for somebody.

    Raises:
        ToolLoopLimitError: the last permitted step still asks for tools; they are not run.
        BudgetError: a limit of the budget is reached, and it says ``at_limit="raise"``.
        InvalidRequestError: an argument is wrong; nothing was sent.
        Exception: what ``chat`` raises. Every exception carries ``messages``, ``tool_history`` and ``tool_loop``.
    """
    options = Options(
        tools=tools, dispatch=dispatch, max_steps=max_steps, max_repeats=max_repeats, max_concurrency=max_concurrency,
        result_limit=result_limit, keep_tool_choice=keep_tool_choice, transcript=transcript, budget=budget, approve=approve,
        answers=answers, stop_when=stop_when, prepare_step=prepare_step, output=output, compaction=compaction,
        recorder=chat_parameters.pop("recorder", None), then=chat_parameters.pop("then", ()), chat_parameters=chat_parameters,
    )  # fmt: skip
    run = _run(caller, messages, "blocking", _ask_sync, options)
    return run.port.drive(flow(run))


async def arun_tool_loop(
    caller: Any,
    messages: Any,
    *,
    tools: Sequence[Any] | None = None,
    dispatch: Mapping[str, Callable[..., Any]] | None = None,
    max_steps: int = DEFAULT_STEPS,
    max_repeats: int | None = None,
    max_concurrency: int = DEFAULT_CONCURRENCY,
    result_limit: int | None = DEFAULT_LIMIT,
    keep_tool_choice: bool = False,
    transcript: Any = None,
    budget: Budget | None = None,
    approve: Any = None,
    answers: Sequence[Decision] | None = None,
    stop_when: Any = None,
    prepare_step: Any = None,
    output: Any = None,
    compaction: Compaction | None = None,
    **chat_parameters: Any,
) -> Any:
    """Do what ``run_tool_loop`` does for callers whose ``chat`` is awaited; arguments, result and errors are the same.

    Plain functions run in threads, so that the event loop stays free.
    """
    options = Options(
        tools=tools, dispatch=dispatch, max_steps=max_steps, max_repeats=max_repeats, max_concurrency=max_concurrency,
        result_limit=result_limit, keep_tool_choice=keep_tool_choice, transcript=transcript, budget=budget, approve=approve,
        answers=answers, stop_when=stop_when, prepare_step=prepare_step, output=output, compaction=compaction,
        recorder=chat_parameters.pop("recorder", None), then=chat_parameters.pop("then", ()), chat_parameters=chat_parameters,
    )  # fmt: skip
    return await flow(_run(caller, messages, "async", _ask_async, options))


def stream_tool_loop(
    caller: Any,
    messages: Any,
    *,
    tools: Sequence[Any] | None = None,
    dispatch: Mapping[str, Callable[..., Any]] | None = None,
    max_steps: int = DEFAULT_STEPS,
    max_repeats: int | None = None,
    max_concurrency: int = DEFAULT_CONCURRENCY,
    result_limit: int | None = DEFAULT_LIMIT,
    keep_tool_choice: bool = False,
    transcript: Any = None,
    budget: Budget | None = None,
    approve: Any = None,
    answers: Sequence[Decision] | None = None,
    stop_when: Any = None,
    prepare_step: Any = None,
    output: Any = None,
    compaction: Compaction | None = None,
    **chat_parameters: Any,
) -> ToolLoopStream:
    """Run a loop and see what happens: iterate the result for events; afterwards ``reply`` is the reply.

    Arguments, reply and errors are those of ``run_tool_loop``; errors are raised while it is read. Leaving early stops
    everything: the connection is cut, tools that run are cancelled.
    """
    options = Options(
        tools=tools, dispatch=dispatch, max_steps=max_steps, max_repeats=max_repeats, max_concurrency=max_concurrency,
        result_limit=result_limit, keep_tool_choice=keep_tool_choice, transcript=transcript, budget=budget, approve=approve,
        answers=answers, stop_when=stop_when, prepare_step=prepare_step, output=output, compaction=compaction,
        recorder=chat_parameters.pop("recorder", None), then=chat_parameters.pop("then", ()), chat_parameters=chat_parameters,
    )  # fmt: skip
    run = _run(caller, messages, "blocking", _ask_streamed, options)
    run.watch = Watch(run.port)
    return ToolLoopStream(run.port, Pump(flow(run), run.watch))


def astream_tool_loop(
    caller: Any,
    messages: Any,
    *,
    tools: Sequence[Any] | None = None,
    dispatch: Mapping[str, Callable[..., Any]] | None = None,
    max_steps: int = DEFAULT_STEPS,
    max_repeats: int | None = None,
    max_concurrency: int = DEFAULT_CONCURRENCY,
    result_limit: int | None = DEFAULT_LIMIT,
    keep_tool_choice: bool = False,
    transcript: Any = None,
    budget: Budget | None = None,
    approve: Any = None,
    answers: Sequence[Decision] | None = None,
    stop_when: Any = None,
    prepare_step: Any = None,
    output: Any = None,
    compaction: Compaction | None = None,
    **chat_parameters: Any,
) -> AsyncToolLoopStream:
    """Do what ``stream_tool_loop`` does for asynchronous callers: ``async for`` over the result; it need not be awaited."""
    options = Options(
        tools=tools, dispatch=dispatch, max_steps=max_steps, max_repeats=max_repeats, max_concurrency=max_concurrency,
        result_limit=result_limit, keep_tool_choice=keep_tool_choice, transcript=transcript, budget=budget, approve=approve,
        answers=answers, stop_when=stop_when, prepare_step=prepare_step, output=output, compaction=compaction,
        recorder=chat_parameters.pop("recorder", None), then=chat_parameters.pop("then", ()), chat_parameters=chat_parameters,
    )  # fmt: skip
    run = _run(caller, messages, "async", _ask_streamed, options)
    run.watch = Watch(run.port)
    return AsyncToolLoopStream(run.port, Pump(flow(run), run.watch))


async def watched(caller: Any, messages: Any, kind: str, watch: Watch, **loop: Any) -> Any:
    """Run a loop whose events go to ``watch``, as a flow of ``kind``; return its reply. For rooms that put more around a loop.

    ``loop``: the arguments of ``run_tool_loop``, and a ``recorder``.
    """
    settings = {name: loop.pop(name) for name in list(loop) if name in Options.__struct_fields__}
    run = _run(caller, messages, kind, _ask_streamed, Options(**settings, chat_parameters=loop))
    run.watch = watch
    return await flow(run)
