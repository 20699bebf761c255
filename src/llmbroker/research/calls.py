"""The flows of single calls: one attempt, attempts again after errors that time mends, answers asked for in a form.

``Ask`` is one question, made once; a *target* answers it: a config (through the client's flow) or a broker (through its own).
Nothing here is a face: the verbs drive or await these flows.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable, iscoroutinefunction
from typing import Any, Protocol

import msgspec

from llmbroker.client import checked_seconds, complete
from llmbroker.errors import InvalidRequestError, LLMBrokerError
from llmbroker.exchange import Request, make_request
from llmbroker.io import Port
from llmbroker.messages import History
from llmbroker.providers.base import Deployment
from llmbroker.research import watch
from llmbroker.research.config import LONGEST, ModelConfig
from llmbroker.research.prompts import read_messages, with_marks
from llmbroker.research.response import Response, made
from llmbroker.research.structured import Form, form_of
from llmbroker.transports import shared

TRANSIENT = frozenset({"rate_limit", "server"})
"""Kinds of errors that time may mend; nothing else is tried again."""
LONGEST_WAIT = 600.0
"""Seconds that a provider may ask to wait; for more the error is raised instead."""

Recorder = Any


class Gate(Protocol):
    """What each request of a row passes: pace, budget, the run file."""

    async def enter(self, port: Port, config: Any, deployment: Deployment | None, request: Request) -> None:
        """Wait until it may leave."""
        ...

    def leave(self, port: Port, response: Response | None, error: BaseException | None) -> None:
        """Take note of what came."""
        ...


class Ask:
    """One question: to whom, what, in which form the answer is wanted.

    Attributes:
        config: a config, or a broker. messages: as the engine takes them. form: the wanted form, or None.
        timeout: seconds of one attempt, or None for the config's. watchers: who is told of each attempt.
        tries, wait_seconds, backoff_factor: how often, after which pauses.
        attempts: requests so far. gate: what each request passes on its way out and back, or None.
    """

    __slots__ = (
        "attempts", "backoff_factor", "config", "form", "gate", "messages", "params", "reask", "scope", "timeout", "tries",
        "wait_seconds", "watchers",
    )  # fmt: skip

    def __init__(
        self,
        config: Any,
        messages: Any,
        *,
        response_format: Any = None,
        reask: int = 0,
        timeout: float | None = None,
        tries: int = 1,
        wait_seconds: float = 2,
        backoff_factor: float = 3,
        watchers: Sequence[Recorder] = (),
    ) -> None:
        checked_tries(tries, wait_seconds, backoff_factor)
        self.params: Any = None
        if type(config) is ModelConfig:
            if config.embedding:
                raise InvalidRequestError(
                    f"{config.model} makes vectors, not answers: use get_batched_embeddings, or embedding=False.",
                    argument="config",
                )
            self.params = config._sent
            response_format = config.response_format if response_format is None else response_format
            if timeout is None:
                timeout = config.timeout
        else:
            checked_target(config)
        self.config = config
        self.messages = read_messages(messages)
        if type(config) is ModelConfig and config.cache:
            self.messages = with_marks(self.messages)
        self.form: Form | None = None if response_format is None else form_of(response_format)
        self.reask = reask
        self.timeout = checked_seconds(timeout, "timeout")
        self.tries = tries
        self.wait_seconds = wait_seconds
        self.backoff_factor = backoff_factor
        self.watchers = watchers
        self.attempts = 0
        self.gate: Gate | None = None

    def request(self, messages: Any, tools: Any = None, params: Any = None, *, stream: bool = False) -> Request:
        """Return the request for a config, checked."""
        return make_request(
            messages,
            tools=tools,
            params=self.params if params is None else params,
            response_format=self.form.wire if self.form is not None and tools is None else None,
            stream=stream,
        )


def checked_target(config: Any) -> None:
    """Refuse what can answer nothing.

    Raises:
        InvalidRequestError: it is neither a config nor a broker.
    """
    if type(config) is not ModelConfig and not (callable(getattr(config, "chat", None)) and hasattr(config, "_io")):
        raise InvalidRequestError(
            f"config is what llm_config returns, or a broker, not {type(config).__name__}.", argument="config"
        )


def checked_tries(tries: Any, wait_seconds: Any, backoff_factor: Any = 1) -> None:
    """Refuse numbers that mean nothing.

    Raises:
        InvalidRequestError: fewer than one try, or a pause below 0.
    """
    if isinstance(tries, bool) or not isinstance(tries, int) or tries < 1:
        raise InvalidRequestError(f"tries is a whole number of at least 1, not {tries!r}.", argument="tries")
    for name, value in (("wait_seconds", wait_seconds), ("backoff_factor", backoff_factor)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
            raise InvalidRequestError(f"{name} is a number of at least 0, not {value!r}.", argument=name)


# -- ports ---------------------------------------------------------------------------------------------------------------


def blocking_port(config: Any, io: Port | None) -> Port:
    """Return the port of plain calls: the one handed in, the broker's own, or one that all configs share."""
    return _port(config, awaited=False) if io is None else io


def async_port(config: Any, io: Port | None) -> Port:
    """Return the port of awaited calls."""
    return _port(config, awaited=True) if io is None else io


def _port(config: Any, *, awaited: bool) -> Port:
    port: Port = shared(awaited=awaited) if type(config) is ModelConfig else _own_port(config, awaited=awaited)
    return port


def _own_port(broker: Any, *, awaited: bool) -> Port:
    checked_target(broker)
    if iscoroutinefunction(broker.chat) != awaited:
        twin = "a Broker, or the awaited verb (acall_llm)" if not awaited else "an AsyncBroker, or the plain verb (call_llm)"
        raise InvalidRequestError(f"{type(broker).__name__} does not go with this verb: use {twin}.", argument="config")
    port: Port = broker._io
    return port


# -- one attempt ---------------------------------------------------------------------------------------------------------


async def attempt(port: Port, ask: Ask, messages: Any, tools: Any = None, params: Any = None) -> Response:
    """Ask once; the attempt is told to the gate and to who watches, answered or not."""
    config, gate = ask.config, ask.gate
    direct = type(config) is ModelConfig
    deployment = config.deployment() if direct else None
    request = ask.request(messages, tools, params)
    if gate is not None:
        await gate.enter(port, config, deployment, request)
    ask.attempts += 1
    began, started = port.now(), port.time()
    try:
        if deployment is not None:
            reply = await complete(port, deployment, request, began + (ask.timeout or LONGEST))
            facts: dict[str, Any] = {"provider": deployment.provider.id, "config": config}
        else:
            reply = await _of_broker(ask, messages, tools, params)
            facts = {name: getattr(reply, name, None) for name in ("llm_name", "call_id")}
            facts["pooled"] = reply
    except BaseException as error:
        if gate is not None:
            gate.leave(port, None, error)
        _tell(ask, deployment, request, started, port.now() - began, error=error)
        raise
    seconds = port.now() - began
    response = made(reply, duration=seconds, started=started, attempts=ask.attempts, **facts)
    if gate is not None:
        gate.leave(port, response, None)
    _tell(ask, deployment, request, started, seconds, response=response)
    return response


def _tell(ask: Ask, deployment: Any, request: Request, started: float, seconds: float, **outcome: Any) -> None:
    if ask.watchers or watch.ALWAYS:
        event = watch.Event(ask.config, deployment, request, started, seconds, ask.attempts, **outcome)
        watch.tell((*ask.watchers, *watch.ALWAYS), event)


async def _of_broker(ask: Ask, messages: Any, tools: Any, params: Any) -> Any:
    options: dict[str, Any] = {}
    if ask.form is not None and tools is None:
        options["response_format"] = ask.form.wire
    if ask.timeout is not None:
        options["wait"] = ask.timeout
    if params:
        options["params"] = params
    reply = ask.config.chat(messages, tools=tools, **options)
    return await reply if isawaitable(reply) else reply


# -- again ---------------------------------------------------------------------------------------------------------------


def pause_after(error: BaseException, ask: Any, failed: int) -> float | None:
    """Return the seconds to wait before asking again, or None if that is pointless.

    What the provider asks for counts; else the pause grows with each try and is a little uneven, so that many callers that
    failed together do not come back together.
    """
    if not isinstance(error, LLMBrokerError) or error.kind not in TRANSIENT or failed >= ask.tries:
        return None
    asked = error.retry_after
    if asked is not None and asked > 0:
        return asked if asked <= LONGEST_WAIT else None
    seconds: float = min(ask.wait_seconds * ask.backoff_factor ** (failed - 1), LONGEST_WAIT)
    return seconds * random.uniform(0.8, 1.2)  # noqa: S311 - no secret depends on it


async def persistent(port: Port, ask: Ask, messages: Any, tools: Any = None, params: Any = None) -> Response:
    """Ask until it is answered, at most ``ask.tries`` times; the last error is raised as it is."""
    failed = 0
    while True:
        try:
            return await attempt(port, ask, messages, tools, params)
        except LLMBrokerError as error:
            failed += 1
            seconds = pause_after(error, ask, failed)
            if seconds is None:
                raise
        await port.sleep(seconds)


async def call(port: Port, ask: Ask) -> Response:
    """Ask, and read the answer in the form that was wanted; where it does not fit, ask again with the reason."""
    once: Callable[..., Awaitable[Response]] = attempt if ask.tries == 1 else persistent
    if ask.form is None:
        return await once(port, ask, ask.messages)
    history = History(ask.messages)
    for left in range(ask.reask, -1, -1):
        response = in_form(await once(port, ask, history), ask.form)
        if response.problem is None or left == 0:
            return response
        history.append(response.message)
        history.append({"role": "user", "content": ask.form.complaint(response.problem)})
    raise AssertionError("the last round returns")


def in_form(response: Response, form: Form) -> Response:
    """Return the response with the value that its text holds, or with the reason why it holds none."""
    value, problem = form.read(response.text, response.finish_reason)
    return msgspec.structs.replace(response, parsed=value, problem=problem)
