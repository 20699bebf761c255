"""The two faces of the loop: one drives the flow, one awaits it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import isawaitable, iscoroutine
from typing import Any

from llmbroker.errors import InvalidRequestError
from llmbroker.exchange import STEP
from llmbroker.io import Port
from llmbroker.loop.flow import flow
from llmbroker.loop.run import DEFAULT_CONCURRENCY, DEFAULT_STEPS, Options, Run
from llmbroker.tools import DEFAULT_LIMIT

_default_ports: dict[str, Port] = {}


async def _ask_sync(run: Run) -> Any:
    token = STEP.set(run.step)
    try:
        reply = run.caller.chat(run.history, tools=run.box.declared, **run.parameters)
    finally:
        STEP.reset(token)
    if isawaitable(reply):
        if iscoroutine(reply):
            reply.close()
        raise InvalidRequestError(
            f"{type(run.caller).__name__}.chat is asynchronous: use await arun_tool_loop(...).", argument="caller"
        )
    return reply


async def _ask_async(run: Run) -> Any:
    token = STEP.set(run.step)
    try:
        reply = run.caller.chat(run.history, tools=run.box.declared, **run.parameters)
        return await reply if isawaitable(reply) else reply
    finally:
        STEP.reset(token)


def _port(caller: Any, kind: str) -> Port:
    """Return the caller's own port, or one that all foreign callers share."""
    own: Port | None = getattr(caller, "_io", None)
    if own is not None and hasattr(own, "call") and (kind == "async" or hasattr(own, "drive")):
        return own
    port = _default_ports.get(kind)
    if port is None:
        if kind == "async":
            from llmbroker.transports.aio import AsyncIO

            port = AsyncIO()
        else:
            from llmbroker.transports.blocking import BlockingIO

            port = BlockingIO()
        _default_ports[kind] = port
    return port


def _checked_caller(caller: Any) -> None:
    if not callable(getattr(caller, "chat", None)):
        raise InvalidRequestError(
            f"The first argument is a broker, a client or any object with chat(messages, tools=...), "
            f"not {type(caller).__name__}.",
            argument="caller",
        )


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
    **chat_parameters: Any,
) -> Any:
    """Call the model, run the tools it asks for, and repeat until it answers; return the final reply.

    It needs no event loop and may be called inside a running one.

    Args:
        caller: a broker, a direct client, a scoped caller, or any object whose ``chat(messages, tools=...)`` answers.
        messages: a string or a list of messages; it is not changed. Calls that it leaves open are run first.
        tools: declarations in OpenAI's shape.
        dispatch: functions by tool name, plain or ``async``; their results go through ``str()``.
        max_steps: model calls at most.
        max_repeats: end the loop when one call gave one result in this many steps (at least 2); None: never.
        max_concurrency: calls of one turn that run at the same time.
        result_limit: characters of one result; longer ones lose their middle. None: no limit.
        keep_tool_choice: keep a forced ``tool_choice`` for every step; else it becomes ``auto`` after the first.
        transcript: an object (or dict) that receives ``messages``, ``tool_history`` and ``tool_loop``, however the loop ends.
        **chat_parameters: handed to every ``chat``.

    Returns:
        The caller's last reply. A reply of this library also has ``messages`` (all of them), ``tool_history`` and
        ``tool_loop``; ``usage`` is that of the last call alone.

    Raises:
        ToolLoopLimitError: the last permitted step still asks for tools; they are not run.
        InvalidRequestError: an argument is wrong; nothing was sent.
        Exception: what ``chat`` raises. Every exception carries ``messages``, ``tool_history`` and ``tool_loop``.
    """
    _checked_caller(caller)
    port = _port(caller, "blocking")
    options = Options(
        tools=tools, dispatch=dispatch, max_steps=max_steps, max_repeats=max_repeats, max_concurrency=max_concurrency,
        result_limit=result_limit, keep_tool_choice=keep_tool_choice, transcript=transcript, chat_parameters=chat_parameters,
    )  # fmt: skip
    return port.drive(flow(Run(caller, messages, port, _ask_sync, options)))


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
    **chat_parameters: Any,
) -> Any:
    """Do what ``run_tool_loop`` does for callers whose ``chat`` is awaited; arguments, result and errors are the same.

    Plain functions run in threads, so that the event loop stays free.
    """
    _checked_caller(caller)
    port = _port(caller, "async")
    options = Options(
        tools=tools, dispatch=dispatch, max_steps=max_steps, max_repeats=max_repeats, max_concurrency=max_concurrency,
        result_limit=result_limit, keep_tool_choice=keep_tool_choice, transcript=transcript, chat_parameters=chat_parameters,
    )  # fmt: skip
    return await flow(Run(caller, messages, port, _ask_async, options))
