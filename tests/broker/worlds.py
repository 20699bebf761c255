"""A scripted world for broker tests: models that answer as they are told, over the replay port, with either face."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any

from llmbroker import AsyncBroker, Broker, LLMConfig
from llmbroker.transports.replay import Answer, Replay, sse
from llmbroker.wire import HTTPRequest

BASE = "http://models.test/v1"
Behaviour = Answer | Callable[[dict[str, Any]], Answer]


def ok(text: str = "hello", *, delay: float = 0.0, **message: Any) -> Answer:
    """A whole answer."""
    finish = message.pop("finish_reason", "tool_calls" if message.get("tool_calls") else "stop")
    return Answer(
        delay=delay,
        body={
            "id": "x",
            "model": "answered",
            "choices": [{"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text, **message}}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
        },
    )


def refuse(status: int, message: str = "no", *, code: str | None = None, delay: float = 0.0, **headers: str) -> Answer:
    """An error answer; header names with underscores."""
    error: dict[str, Any] = {"message": message}
    if code:
        error["code"] = code
    return Answer(
        status=status, delay=delay, headers={k.replace("_", "-"): v for k, v in headers.items()}, body={"error": error}
    )


def hang() -> Answer:
    """An answer that never comes."""
    return Answer(delay=math.inf)


def chunk(text: str | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """One event of a streamed answer."""
    delta: dict[str, Any] = {} if text is None else {"content": text}
    return {"id": "x", "model": "answered", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


USAGE_CHUNK = {"id": "x", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}


def streamed(*pieces: str, delay: float = 0.0, every: float = 0.0, fault: Any = None, end: bool = True) -> Answer:
    """A streamed answer; without ``end`` it lacks its finish."""
    events: list[Any] = [chunk(piece) for piece in pieces]
    if end:
        events += [chunk(finish="stop"), USAGE_CHUNK]
    return Answer(
        headers={"content-type": "text/event-stream"},
        body=sse(*events, done=end),
        delay=delay,
        every=every,
        fault=fault,
    )


class World:
    """Models by name, each with a list of answers; the last one stays. ``hits``: (time, model, key) of every request."""

    def __init__(self, **models: Behaviour | list[Behaviour]) -> None:
        self.models: dict[str, list[Behaviour]] = {
            name: list(value) if isinstance(value, list) else [value] for name, value in models.items()
        }
        self.hits: list[tuple[float, str, str]] = []
        self.bodies: list[dict[str, Any]] = []
        self.port = Replay()
        self.port.on(None, self._answer, times=None)

    def _answer(self, request: HTTPRequest) -> Answer:
        body = json.loads(request.body)
        key = next((v for k, v in request.headers.items() if k.lower() == "authorization"), "").removeprefix("Bearer ")
        self.hits.append((round(self.port.now(), 3), body["model"], key))
        self.bodies.append(body)
        line = self.models[body["model"]]
        behaviour = line.pop(0) if len(line) > 1 else line[0]
        return behaviour if isinstance(behaviour, Answer) else behaviour(body)

    def then(self, name: str, *answers: Behaviour) -> None:
        """Let a model answer so from now on."""
        self.models[name] = list(answers)

    @property
    def asked(self) -> list[str]:
        """Which models were asked, in order."""
        return [model for _, model, _ in self.hits]


def member(name: str, weight: float = 0.5, **fields: Any) -> LLMConfig:
    """One model of the world, keyless unless told otherwise."""
    fields.setdefault("api_key_ref", "")
    return LLMConfig(name=name, model=name, base_url=BASE, weight=weight, **fields)


def ladder(*names: str) -> list[LLMConfig]:
    """Models in a strict order of weights."""
    return [member(name, 0.9 - 0.1 * index) for index, name in enumerate(names)]


class Face:
    """A broker of one kind, called plainly whatever it is."""

    def __init__(self, kind: str, world: World, pool: list[LLMConfig], **arguments: Any) -> None:
        self.kind = kind
        self.world = world
        self.port = world.port
        arguments.setdefault("journal", ":memory:")
        make = Broker if kind == "sync" else AsyncBroker
        self.broker: Any = make(pool=pool, io=world.port, **arguments)

    def of(self, scope: str) -> Face:
        """The same as one user."""
        twin = object.__new__(Face)
        twin.__dict__.update(self.__dict__)
        twin.broker = self.broker.for_scope(scope)
        return twin

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.broker, name)
        if self.kind == "sync":
            return method

        def call(*arguments: Any, **named: Any) -> Any:
            async def run() -> Any:
                return await method(*arguments, **named)

            return asyncio.run(run())

        return call

    def read(self, *arguments: Any, **named: Any) -> tuple[list[str], Any]:
        """Stream to the end; return pieces and stream. An error carries what was read as ``pieces``."""
        pieces: list[str] = []
        try:
            if self.kind == "sync":
                stream = self.broker.stream(*arguments, **named)
                pieces.extend(iter(stream))
                return pieces, stream

            async def run() -> Any:
                stream = self.broker.stream(*arguments, **named)
                async for piece in stream:
                    pieces.append(piece)
                return stream

            return pieces, asyncio.run(run())
        except Exception as error:
            error.pieces = pieces  # type: ignore[attr-defined]
            raise

    def together(self, *calls: dict[str, Any]) -> list[Any]:
        """Several chats at once; results or exceptions in order."""
        if self.kind == "async":

            async def run() -> list[Any]:
                return await asyncio.gather(*(self.broker.chat("hi", **call) for call in calls), return_exceptions=True)

            return asyncio.run(run())
        from llmbroker.io import gather

        engine = self.broker._engine

        async def one(call: dict[str, Any]) -> Any:
            from llmbroker.broker.engine import request_of

            return await engine.chat(request_of(None, "hi", None, None, None, None, stream=False), None, None, call)

        return self.port.drive(gather(self.port, [one(call) for call in calls]))

    def rows(self, **filters: Any) -> list[Any]:
        """All rows, the oldest first."""
        return list(reversed(self.calls(limit=1000, **filters)))

    def statuses(self) -> list[tuple[str, str]]:
        """(model, status) of all rows, the oldest first."""
        return [(row.llm_name, row.status) for row in self.rows()]

    def idle(self) -> bool:
        """Nothing runs and nobody waits."""
        engine = self.broker._engine
        return (
            all(m.running == 0 for m in engine.lanes.members)
            and all(k.running == 0 for k in engine.lanes._keys.values())
            and all(
                h.trials == 0
                for lane in engine.lanes._lanes.values()
                for h in (lane.health, lane.key.health, lane.member.health)
                if h.room is not None
            )
            and len(engine.desk.queue) == 0
            and self.port.open_streams == 0
        )
