"""The researcher's verbs for single calls, and their awaited twins: thin faces over flows (``calls``, ``tool_loop``)."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, overload

from llmbroker.io import Port
from llmbroker.research import calls
from llmbroker.research.calls import Ask
from llmbroker.research.response import Response
from llmbroker.research.stream import AsyncResponseStream, CallStream, ResponseStream
from llmbroker.research.tool import LLMTool
from llmbroker.research.tool_loop import Plan, call_tools
from llmbroker.research.watch import journal_watcher

PRINT: Any = object()
"""``callback=PRINT``: write each piece to standard output."""


def call_llm(
    config: Any,
    messages: Any,
    *,
    response_format: Any = None,
    reask: int = 0,
    timeout: float | None = None,
    journal: Any = None,
    io: Port | None = None,
) -> Response:
    """Ask a model once and return its answer; ``str(response)`` is the text.

    Args:
        config: what ``llm_config`` returns, or a ``Broker`` (or one of its scopes).
        messages: a string, (role, text) pairs, a mapping of roles, or dicts; ``("file", path)`` attaches a file.
        response_format: the form of the answer, as of ``llm_config``; then ``response.parsed`` is the value.
        reask: how often the model is asked again, with the reason, when its answer does not have that form.
        timeout: seconds of one attempt; None: the config's.
        journal: a path or a journal that gets a row for each attempt. None: none.
        io: another port (a scripted one in tests).

    Raises:
        InvalidRequestError, MissingKeyError: nothing was sent.
        ProviderError, ConnectionFailedError, LLMTimeoutError, InvalidProviderResponseError: ``kind`` says whether it is the
            parameters, the key, the bill, a limit or the server.
    """
    watchers = journal_watcher(journal)
    ask = Ask(config, messages, response_format=response_format, reask=reask, timeout=timeout, watchers=watchers)
    port = calls.blocking_port(config, io)
    return port.drive(calls.call(port, ask))


async def acall_llm(
    config: Any,
    messages: Any,
    *,
    response_format: Any = None,
    reask: int = 0,
    timeout: float | None = None,
    journal: Any = None,
    io: Port | None = None,
) -> Response:
    """Await what ``call_llm`` does."""
    watchers = journal_watcher(journal)
    ask = Ask(config, messages, response_format=response_format, reask=reask, timeout=timeout, watchers=watchers)
    return await calls.call(calls.async_port(config, io), ask)


def call_llm_robust(
    config: Any,
    messages: Any,
    tries: int = 5,
    wait_seconds: float = 2,
    backoff_factor: float = 3,
    *,
    response_format: Any = None,
    reask: int = 0,
    timeout: float | None = None,
    journal: Any = None,
    io: Port | None = None,
) -> Response:
    """Ask as ``call_llm`` does, and again after rate limits, outages and broken connections.

    Args:
        config: as of ``call_llm``.
        messages: as of ``call_llm``.
        tries: requests at most.
        wait_seconds: the pause after the first failure; what the provider asks for (``Retry-After``, up to 10 minutes) wins.
        backoff_factor: by which the pause grows from one failure to the next.
        response_format: as of ``call_llm``.
        reask: as of ``call_llm``.
        timeout: as of ``call_llm``.
        journal: as of ``call_llm``.
        io: as of ``call_llm``.

    Raises:
        LLMBrokerError: the last error as it came. Wrong parameters, refused keys and unpaid bills are never tried again.
    """
    ask = Ask(
        config, messages, tries=tries, wait_seconds=wait_seconds, backoff_factor=backoff_factor,
        response_format=response_format, reask=reask, timeout=timeout, watchers=journal_watcher(journal),
    )  # fmt: skip
    port = calls.blocking_port(config, io)
    return port.drive(calls.call(port, ask))


async def acall_llm_robust(
    config: Any,
    messages: Any,
    tries: int = 5,
    wait_seconds: float = 2,
    backoff_factor: float = 3,
    *,
    response_format: Any = None,
    reask: int = 0,
    timeout: float | None = None,
    journal: Any = None,
    io: Port | None = None,
) -> Response:
    """Await what ``call_llm_robust`` does."""
    ask = Ask(
        config, messages, tries=tries, wait_seconds=wait_seconds, backoff_factor=backoff_factor,
        response_format=response_format, reask=reask, timeout=timeout, watchers=journal_watcher(journal),
    )  # fmt: skip
    return await calls.call(calls.async_port(config, io), ask)


@overload
def call_llm_stream(
    config: Any,
    messages: Any,
    callback: None = None,
    *,
    response_format: Any = None,
    timeout: float | None = None,
    journal: Any = None,
    io: Port | None = None,
) -> ResponseStream: ...


@overload
def call_llm_stream(
    config: Any,
    messages: Any,
    callback: Callable[[str], Any],
    *,
    response_format: Any = None,
    timeout: float | None = None,
    journal: Any = None,
    io: Port | None = None,
) -> Response: ...


def call_llm_stream(
    config: Any,
    messages: Any,
    callback: Callable[[str], Any] | None = None,
    *,
    response_format: Any = None,
    timeout: float | None = None,
    journal: Any = None,
    io: Port | None = None,
) -> Response | ResponseStream:
    """Ask as ``call_llm`` does and get the answer as it is made.

    Args:
        config: as of ``call_llm``.
        messages: as of ``call_llm``.
        callback: called with each piece of text (``PRINT`` writes it out); the whole response is returned at the end. None: a
            stream is returned, to be iterated over; its ``reply`` is the response, once it was read to its end.
        response_format: as of ``call_llm``.
        timeout: as of ``call_llm``.
        journal: as of ``call_llm``.
        io: as of ``call_llm``.

    Raises:
        StreamInterruptedError: the stream ended before the answer was complete; ``text`` is what had come.
        LLMBrokerError: as ``call_llm``.
    """
    port = calls.blocking_port(config, io)
    ask = Ask(config, messages, response_format=response_format, timeout=timeout, watchers=journal_watcher(journal))
    stream = ResponseStream(port, CallStream(port, ask))
    if callback is None:
        return stream
    tell = sys.stdout.write if callback is PRINT else callback
    for piece in stream:
        tell(piece)
    assert stream.reply is not None
    return stream.reply


@overload
async def acall_llm_stream(
    config: Any,
    messages: Any,
    callback: None = None,
    *,
    response_format: Any = None,
    timeout: float | None = None,
    journal: Any = None,
    io: Port | None = None,
) -> AsyncResponseStream: ...


@overload
async def acall_llm_stream(
    config: Any,
    messages: Any,
    callback: Callable[[str], Any],
    *,
    response_format: Any = None,
    timeout: float | None = None,
    journal: Any = None,
    io: Port | None = None,
) -> Response: ...


async def acall_llm_stream(
    config: Any,
    messages: Any,
    callback: Callable[[str], Any] | None = None,
    *,
    response_format: Any = None,
    timeout: float | None = None,
    journal: Any = None,
    io: Port | None = None,
) -> Response | AsyncResponseStream:
    """Await what ``call_llm_stream`` does: the whole response with a callback, else a stream for ``async for``."""
    port = calls.async_port(config, io)
    ask = Ask(config, messages, response_format=response_format, timeout=timeout, watchers=journal_watcher(journal))
    stream = AsyncResponseStream(port, CallStream(port, ask))
    if callback is None:
        return stream
    tell = sys.stdout.write if callback is PRINT else callback
    async for piece in stream:
        tell(piece)
    assert stream.reply is not None
    return stream.reply


def call_llm_tools(
    config: Any,
    messages: Any,
    tools: LLMTool | Sequence[LLMTool],
    max_rounds: int = 8,
    max_tool_calls: float = math.inf,
    verbose: bool = False,
    tries: int = 3,
    wait_seconds: float = 2,
    *,
    response_format: Any = None,
    timeout: float | None = None,
    journal: Any = None,
    io: Port | None = None,
) -> Response:
    """Ask with tools, run what the model calls, hand the results back, until it answers in plain text.

    Args:
        config: as of ``call_llm``.
        messages: as of ``call_llm``.
        tools: one ``llm_tool`` or a list of them.
        max_rounds: model calls at most. When they are used up the last response is returned as it is, with a warning; the
            calls that it asks for were not run.
        max_tool_calls: tool executions at most, over all rounds.
        verbose: print each tool call as it happens.
        tries: requests at most, for each model call.
        wait_seconds: as of ``call_llm_robust``.
        response_format: as of ``call_llm``.
        timeout: seconds of one model call.
        journal: as of ``call_llm``.
        io: as of ``call_llm``.

    Returns:
        The final response. ``messages`` is the whole conversation, the answer included; ``tool_history`` the executed calls
        (round, name, arguments as JSON, result; id, error, repaired, duration; ``to_pandas()``); ``tool_loop`` the sums over
        all model calls (model_calls, sent, rec, tool_calls, reasoning, cached, unknown_usage, cost). ``tokens(response)`` is
        of the final call alone.

    Raises:
        ToolLimitError: before the call that would exceed ``max_tool_calls``.
        LLMBrokerError: as ``call_llm_robust``. Every exception bears ``messages``, ``tool_history``, ``tool_loop``,
            ``response`` (the last).
    """
    plan = Plan(tools, max_rounds, max_tool_calls, verbose)
    ask = Ask(
        config, messages, tries=tries, wait_seconds=wait_seconds, response_format=response_format, timeout=timeout,
        watchers=journal_watcher(journal),
    )  # fmt: skip
    port = calls.blocking_port(config, io)
    return port.drive(call_tools(port, ask, plan))


async def acall_llm_tools(
    config: Any,
    messages: Any,
    tools: LLMTool | Sequence[LLMTool],
    max_rounds: int = 8,
    max_tool_calls: float = math.inf,
    verbose: bool = False,
    tries: int = 3,
    wait_seconds: float = 2,
    *,
    response_format: Any = None,
    timeout: float | None = None,
    journal: Any = None,
    io: Port | None = None,
) -> Response:
    """Await what ``call_llm_tools`` does."""
    plan = Plan(tools, max_rounds, max_tool_calls, verbose)
    ask = Ask(
        config, messages, tries=tries, wait_seconds=wait_seconds, response_format=response_format, timeout=timeout,
        watchers=journal_watcher(journal),
    )  # fmt: skip
    return await call_tools(calls.async_port(config, io), ask, plan)
