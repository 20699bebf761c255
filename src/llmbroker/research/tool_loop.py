"""``call_llm_tools`` as a flow: the one tool loop (``loop``), asked through this room's attempts, with limits and sums."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

import msgspec

from llmbroker.errors import InvalidRequestError, ToolLoopLimitError
from llmbroker.exchange import Reply, ToolSet
from llmbroker.io import Port
from llmbroker.loop import flow as loop
from llmbroker.loop.run import Options, Run
from llmbroker.messages import History
from llmbroker.research.calls import Ask, in_form, persistent
from llmbroker.research.response import Response
from llmbroker.research.tool import LLMTool, checked_tools
from llmbroker.tools import ToolLoop


class Plan:
    """What a loop needs beside the question: tools and limits, checked once for many questions."""

    __slots__ = ("declared", "dispatch", "max_rounds", "max_tool_calls")

    def __init__(self, tools: Any, max_rounds: Any, max_tool_calls: Any, verbose: bool) -> None:
        if isinstance(max_rounds, bool) or not isinstance(max_rounds, int) or max_rounds < 1:
            raise InvalidRequestError(f"max_rounds is a whole number of at least 1, not {max_rounds!r}.", argument="max_rounds")
        number = isinstance(max_tool_calls, (int, float)) and not isinstance(max_tool_calls, bool)
        if not number or math.isnan(max_tool_calls) or max_tool_calls < 0:
            raise InvalidRequestError(
                f"max_tool_calls is a number of at least 0 (math.inf: no limit), not {max_tool_calls!r}.",
                argument="max_tool_calls",
            )
        listed = checked_tools(tools)
        self.declared = ToolSet([tool.declaration for tool in listed])
        self.dispatch = {tool.name: _told(tool) if verbose else tool.run for tool in listed}
        self.max_rounds = max_rounds
        self.max_tool_calls = float(max_tool_calls)

    def marked(self) -> ToolSet:
        """Return the tools with a mark for the provider's prompt cache behind the last."""
        declared = list(self.declared)
        return ToolSet([*declared[:-1], {**declared[-1], "cache_control": {"type": "ephemeral"}}])


def _told(tool: LLMTool) -> Callable[..., Any]:
    """Return the function, saying on standard output when it is called."""

    def say(arguments: dict[str, Any]) -> None:
        shown = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        print(f"[tool] {tool.name}({shown})", flush=True)  # noqa: T201 - that is what verbose asks for

    if iscoroutinefunction(tool.run):

        @functools.wraps(tool.run)
        async def awaited(**arguments: Any) -> Any:
            say(arguments)
            return await tool.run(**arguments)

        return awaited

    @functools.wraps(tool.run)
    def plain(**arguments: Any) -> Any:
        say(arguments)
        return tool.run(**arguments)

    return plain


class _Caller:
    """What the loop knows of who is asked: that it is one of ours."""

    def __init__(self, port: Port) -> None:
        self._io = port


async def call_tools(port: Port, ask: Ask, plan: Plan) -> Response:
    """Run the loop. At ``max_rounds`` the last response is returned with one warning; its pending calls were not run.

    Raises:
        ToolLimitError: before the call that would exceed ``max_tool_calls``.
        LLMBrokerError: what a model call raises. Every exception bears ``messages``, ``tool_history``, ``tool_loop`` and the
            last ``response``.
    """
    costs: list[float] = []
    last: list[Response] = []
    marked = getattr(ask.config, "cache", False)

    async def once(run: Run) -> Any:
        response = await persistent(port, ask, run.history, run.box.declared, run.parameters["params"])
        last[:] = [response]
        if (cost := response.cost) is not None:
            costs.append(cost)
        return response

    options = Options(
        tools=plan.marked() if marked else plan.declared,
        dispatch=plan.dispatch,
        max_steps=plan.max_rounds,
        max_tool_calls=plan.max_tool_calls,
        chat_parameters={"params": dict(ask.params or {})},
    )
    run = Run(_Caller(port), ask.messages, port, once, options)
    try:
        response = await loop.flow(run)
    except ToolLoopLimitError as error:
        if not isinstance(error.reply, Reply):
            raise
        warnings.warn(
            f"max_rounds={plan.max_rounds} is reached and the model still asks for tools; its calls were not run. "
            "response.messages can be handed to call_llm_tools again: it runs them first.",
            UserWarning,
            stacklevel=2,
        )
        response = msgspec.structs.replace(
            error.reply, messages=error.messages, tool_history=error.tool_history, tool_loop=error.tool_loop
        )
    except BaseException as error:
        _explain(error, last, costs)
        raise
    if ask.form is not None and not response.tool_calls:
        response = await _formed(port, ask, run, response, last, costs)
    done: Response = msgspec.structs.replace(response, tool_loop=_priced(response.tool_loop, costs))
    return done


async def _formed(port: Port, ask: Ask, run: Run, response: Response, last: list[Response], costs: list[float]) -> Response:
    """Return the answer in its form: read from what the model said, else asked for once more, without tools.

    Not every provider takes tools and a form in one request, so the loop itself runs without.
    """
    assert ask.form is not None
    made = in_form(response, ask.form)
    history = History(response.messages)
    for left in range(ask.reask, -1, -1):
        if made.problem is None:
            break
        history.append({"role": "user", "content": ask.form.complaint(made.problem)})
        run.tally.calls += 1
        try:
            made = in_form(await persistent(port, ask, history), ask.form)
        except BaseException as error:
            run.tally.add(None)
            error.messages, error.tool_history = list(history), run.rows  # type: ignore[attr-defined]
            error.tool_loop = run.tally.closed(len(run.rows))  # type: ignore[attr-defined]
            _explain(error, last, costs)
            raise
        run.tally.add(made.usage)
        if made.cost is not None:
            costs.append(made.cost)
        last[:] = [made]
        history.append(made.message)
        if left == 0:
            break
    return msgspec.structs.replace(
        made, messages=list(history), tool_history=run.rows, tool_loop=run.tally.closed(len(run.rows))
    )


def _explain(error: BaseException, last: list[Response], costs: list[float]) -> None:
    """Let an exception that leaves bear the last response, and the sums with their cost."""
    try:
        error.response = last[0] if last else None  # type: ignore[attr-defined]
        error.tool_loop = _priced(getattr(error, "tool_loop", None), costs)  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001, S110 - an exception with slots of its own stays as it is
        pass


def _priced(sums: Any, costs: list[float]) -> Any:
    if not isinstance(sums, ToolLoop):
        return sums
    return msgspec.structs.replace(sums, cost=sum(costs) if costs else None)
