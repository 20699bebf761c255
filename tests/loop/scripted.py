"""Callers that answer from a script, and the two faces of the loop as one function."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any

from llmbroker.exchange import CallDelta, Fold, Reply, TextDelta, Usage, UsageReport
from llmbroker.exchange import Finished as End
from llmbroker.loop import arun_tool_loop, run_tool_loop

JSON = dict[str, Any]
FEW = Usage(10, 5)
CITY = {"city": {"type": "string"}}


def declare(name: str, properties: JSON | None = None, required: list[str] | None = None, **more: Any) -> JSON:
    parameters: JSON = {"type": "object", "properties": CITY if properties is None else properties, **more}
    if required is not None:
        parameters["required"] = required
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


WEATHER = [declare("get_weather", required=["city"])]


def get_weather(city: str) -> str:
    return f"It is 20°C in {city}"


def says(text: str = "It is 20°C in Paris.", finish: Any = "stop", raw: str | None = None, usage: Usage | None = FEW) -> Reply:
    state = Fold()
    if text:
        state.add(TextDelta(text))
    if usage:
        state.add(UsageReport(usage))
    state.add(End(finish, raw or finish))
    return state.reply(dialect="", provider="p", model="m")


def calls(
    *given: tuple[str, Any] | tuple[str, Any, str],
    finish: Any = "tool_calls",
    raw: str | None = None,
    usage: Usage | None = FEW,
) -> Reply:
    state = Fold()
    for slot, (name, arguments, *identity) in enumerate(given):
        state.add(CallDelta(slot, identity[0] if identity else f"id{slot}", name, arguments))
    if usage:
        state.add(UsageReport(usage))
    state.add(End(finish, raw or finish))
    return state.reply(dialect="", provider="p", model="m")


class Scripted:
    """Answers turn by turn; keeps a copy of everything that it was sent."""

    def __init__(self, *turns: Any) -> None:
        self.turns = list(turns)
        self.sent: list[list[JSON]] = []
        self.tools: list[Any] = []
        self.parameters: list[JSON] = []

    def answer(self, messages: Any, tools: Any, parameters: JSON) -> Any:
        self.sent.append(copy.deepcopy(list(messages)))
        self.tools.append(tools)
        self.parameters.append(copy.deepcopy(parameters))
        turn = self.turns.pop(0)
        if isinstance(turn, BaseException):
            raise turn
        return turn(messages) if callable(turn) else turn

    def chat(self, messages: Any, *, tools: Any = None, **parameters: Any) -> Any:
        return self.answer(messages, tools, parameters)


class AsyncScripted(Scripted):
    async def chat(self, messages: Any, *, tools: Any = None, **parameters: Any) -> Any:
        return self.answer(messages, tools, parameters)


class Face:
    """One face of the loop. ``run`` gives the reply, ``caller`` is what was asked, ``fail`` gives the exception."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.caller = Scripted()

    def run(self, turns: Any, messages: Any = "What is the weather in Paris?", *, tools: Any = WEATHER, **more: Any) -> Any:
        self.caller = (Scripted if self.name == "blocking" else AsyncScripted)(*turns)
        more.setdefault("dispatch", {"get_weather": get_weather})
        if self.name == "blocking":
            return run_tool_loop(self.caller, messages, tools=tools, **more)
        return asyncio.run(arun_tool_loop(self.caller, messages, tools=tools, **more))

    def fail(self, kind: type[BaseException], *given: Any, **more: Any) -> Any:
        try:
            self.run(*given, **more)
        except kind as error:
            return error
        raise AssertionError(f"{kind.__name__} was expected")


def results(messages: list[JSON]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "tool"]


def noted(into: list[Any]) -> Callable[..., str]:
    """A tool that notes its arguments."""

    def tool(**arguments: Any) -> str:
        into.append(arguments)
        return "ok"

    return tool
