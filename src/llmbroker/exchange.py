"""What goes to a model and what comes back, in one shape for every dialect.

``Request`` goes in; a dialect's decoder yields events; ``Fold`` makes the ``Reply``. A whole answer takes the same way as a
streamed one (its decoder yields the events of the whole body at once), so that both give the same reply by construction.

Usage is normalised: input includes cached tokens, output includes reasoning; what a provider does not say stays None, never 0.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from llmbroker.errors import InvalidProviderResponseError, InvalidRequestError
from llmbroker.messages import History, check_text

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter", "refusal", "error", "unknown"]
JSON: TypeAlias = dict[str, Any]


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens of one call. None means that the provider did not say.

    Attributes:
        input_tokens: all tokens sent, cached ones included.
        output_tokens: all tokens produced, reasoning included.
        cached_input_tokens: the part of the input that was read from a cache.
        cache_write_tokens: the part of the input that was written to a cache.
        reasoning_tokens: the part of the output that is reasoning.
        total_tokens: the provider's total, else input + output where both are known.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    total_tokens: int | None = None

    @property
    def prompt_tokens(self) -> int | None:
        """The same as ``input_tokens``, in the words of OpenAI."""
        return self.input_tokens

    @property
    def completion_tokens(self) -> int | None:
        """The same as ``output_tokens``, in the words of OpenAI."""
        return self.output_tokens

    def merged(self, later: Usage) -> Usage:
        """Return the last known value of each field: providers repeat and complete usage, they do not add to it."""
        return Usage(*(new if new is not None else old for old, new in zip(self.fields(), later.fields(), strict=True)))

    def fields(self) -> tuple[int | None, ...]:
        """Return the six counts in order."""
        return (
            self.input_tokens,
            self.output_tokens,
            self.cached_input_tokens,
            self.cache_write_tokens,
            self.reasoning_tokens,
            self.total_tokens,
        )


# -- events --------------------------------------------------------------------------------------------------------------


class Started(msgspec.Struct, frozen=True, gc=False, tag="started"):
    """The answer began. ``model`` and ``id`` as the provider names them.

    ``restart``: the provider gave up the answer that had begun and starts another in the same stream; what came before is void.
    """

    model: str | None = None
    id: str | None = None
    restart: bool = False


class TextDelta(msgspec.Struct, frozen=True, gc=False, tag="text"):
    """A piece of the answer's text."""

    text: str


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False, tag="reasoning"):
    """A piece of the model's reasoning, where the provider shows it."""

    text: str


class RefusalDelta(msgspec.Struct, frozen=True, gc=False, tag="refusal"):
    """A piece of a refusal; it is not part of the text."""

    text: str


class CallDelta(msgspec.Struct, frozen=True, tag="call"):
    """A piece of a tool call. ``slot`` is this call's place in the turn; equal slots belong together.

    ``id`` and ``name``: the first that is not empty counts. ``arguments``: a piece of JSON text, appended. ``extra``: opaque
    keys that the provider wants back on the call (``extra_content``). ``replaces``: the arguments are the whole, in place of
    the pieces before (a provider's authoritative last word).
    """

    slot: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    extra: JSON | None = None
    replaces: bool = False


class UsageReport(msgspec.Struct, frozen=True, tag="usage"):
    """Usage so far; a later report replaces the fields that it states."""

    usage: Usage


class Native(msgspec.Struct, frozen=True, tag="native"):
    """One item of the turn in the provider's own shape, to be sent back as it is when the history goes to this dialect."""

    item: JSON


class Finished(msgspec.Struct, frozen=True, gc=False, tag="finished"):
    """The provider said how the turn ended; ``raw`` is its own word."""

    reason: FinishReason
    raw: str | None = None


Event: TypeAlias = Started | TextDelta | ReasoningDelta | RefusalDelta | CallDelta | UsageReport | Native | Finished
CONTENT_EVENTS = (TextDelta, ReasoningDelta, RefusalDelta, CallDelta)


# -- the reply -----------------------------------------------------------------------------------------------------------


class Reply(msgspec.Struct, frozen=True, kw_only=True, weakref=True):
    """A complete answer.

    Attributes:
        text: the answer's text, "" if there is none.
        tool_calls: OpenAI-shaped calls (``id``, ``type``, ``function.name``, ``function.arguments`` as JSON text), or None.
        usage: normalised token counts, or None if the provider gave none.
        finish_reason: stop, length, tool_calls, content_filter, refusal, error or unknown.
        raw_finish_reason: the provider's own word.
        reasoning: reasoning text, or None.
        refusal: the refusal's text, or None.
        model: the model as the provider names it in the answer.
        id: the provider's id of the answer.
        request_id: the provider's id of the request (a response header).
        raw: the parsed body; for a stream the list of its parsed events.
        message: this turn as an assistant message, ready to be appended to the history.
        messages, tool_history, tool_loop: set by the tool loop, else None.
    """

    text: str = ""
    tool_calls: list[JSON] | None = None
    usage: Usage | None = None
    finish_reason: FinishReason = "unknown"
    raw_finish_reason: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    model: str | None = None
    id: str | None = None
    request_id: str | None = None
    raw: Any = None
    message: JSON = {}
    messages: list[JSON] | None = None
    tool_history: Any = None
    tool_loop: Any = None

    def __str__(self) -> str:
        """Return the text."""
        return self.text

    def __repr__(self) -> str:
        """Return a short line: the text cut to 60 characters and how the turn ended."""
        text = self.text if len(self.text) <= 60 else self.text[:57] + "..."
        calls = f", tool_calls={len(self.tool_calls)}" if self.tool_calls else ""
        return f"{type(self).__name__}(text={text!r}{calls}, finish_reason={self.finish_reason!r}, model={self.model!r})"


class _Call:
    __slots__ = ("arguments", "extra", "id", "name")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.extra: JSON | None = None


class Fold:
    """Make one reply out of the events of a turn.

    Finish reasons: complete calls beat ``stop``, an empty word and silence, never ``length``; a refusal's text makes it a
    ``refusal``. Call ids that are missing, empty or used twice in the turn are replaced by fresh ones.
    """

    __slots__ = ("_calls", "_finish", "_id", "_model", "_native", "_raw_finish", "_reasoning", "_refusal", "_text", "usage")

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._calls: dict[int, _Call] = {}
        self._native: list[JSON] = []
        self.usage: Usage | None = None
        self._finish: FinishReason | None = None
        self._raw_finish: str | None = None
        self._model: str | None = None
        self._id: str | None = None

    def add(self, event: Event) -> None:
        """Take one event."""
        kind = type(event)
        if kind is TextDelta:
            self._text.append(event.text)  # type: ignore[union-attr]
        elif kind is CallDelta:
            self._add_call(event)  # type: ignore[arg-type]
        elif kind is ReasoningDelta:
            self._reasoning.append(event.text)  # type: ignore[union-attr]
        elif kind is RefusalDelta:
            self._refusal.append(event.text)  # type: ignore[union-attr]
        elif isinstance(event, UsageReport):
            self.usage = event.usage if self.usage is None else self.usage.merged(event.usage)
        elif isinstance(event, Finished):
            self._finish, self._raw_finish = event.reason, event.raw
        elif isinstance(event, Native):
            self._native.append(event.item)
        elif isinstance(event, Started):
            if event.restart:
                self.__init__()  # type: ignore[misc]
            self._model, self._id = event.model or self._model, event.id or self._id

    def _add_call(self, event: CallDelta) -> None:
        call = self._calls.get(event.slot)
        if call is None:
            call = self._calls[event.slot] = _Call()
        if event.id and not call.id:
            call.id = event.id
        if event.name and not call.name:
            call.name = event.name
        if event.replaces:
            call.arguments = [event.arguments]
        elif event.arguments:
            call.arguments.append(event.arguments)
        if event.extra:
            call.extra = {**(call.extra or {}), **event.extra}

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text)

    @property
    def finished(self) -> bool:
        """Whether the provider said how the turn ended."""
        return self._finish is not None

    @property
    def has_content(self) -> bool:
        """Whether any text, reasoning, refusal or call arrived."""
        return bool(self._text or self._calls or self._reasoning or self._refusal)

    def reply(
        self,
        *,
        dialect: str,
        provider: str,
        model: str,
        raw: Any = None,
        request_id: str | None = None,
        native: bool = False,
    ) -> Reply:
        """Return the reply.

        Args:
            dialect, provider, model: who answered; kept beside native items, which only the same dialect gets back.
            raw: the parsed body.
            request_id: from the response's headers.
            native: keep the native items in the message (they matter to this dialect: reasoning, signatures).

        Raises:
            InvalidProviderResponseError: nothing arrived and the provider gave no finish reason.
        """
        if self._finish is None and not self.has_content:
            raise InvalidProviderResponseError(
                f"{provider} sent an empty answer without a finish reason for model {model}.", provider=provider, model=model
            )
        text, reasoning, refusal = self.text, "".join(self._reasoning), "".join(self._refusal)
        finish: FinishReason = self._finish or "unknown"
        calls = self._finished_calls(finish == "length")
        if refusal and finish in ("stop", "unknown"):
            finish = "refusal"
        elif calls and (finish == "stop" or (finish == "unknown" and not self._raw_finish)):
            finish = "tool_calls"
        message: JSON = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = calls
        if reasoning:
            message["reasoning_content"] = reasoning
        if refusal:
            message["refusal"] = refusal
        if native and self._native:
            message["provider_data"] = {"dialect": dialect, "provider": provider, "model": model, "items": self._native}
        return Reply(
            text=text,
            tool_calls=calls or None,
            usage=self.usage,
            finish_reason=finish,
            raw_finish_reason=self._raw_finish,
            reasoning=reasoning or None,
            refusal=refusal or None,
            model=self._model or model,
            id=self._id,
            request_id=request_id,
            raw=raw,
            message=message,
        )

    def _finished_calls(self, cut: bool) -> list[JSON]:
        out: list[JSON] = []
        seen: set[str] = set()
        for slot in self._calls:
            call = self._calls[slot]
            arguments = "".join(call.arguments)
            if not cut and arguments.strip() in ("", "null"):
                arguments = "{}"
            if not call.id or call.id in seen:
                call.id = new_call_id()
            seen.add(call.id)
            item: JSON = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
            if call.extra:
                item.update(call.extra)
            out.append(item)
        return out


def fold(events: Iterable[Event], *, dialect: str = "", provider: str = "", model: str = "") -> Reply:
    """Return the reply that these events make."""
    state = Fold()
    for event in events:
        state.add(event)
    return state.reply(dialect=dialect, provider=provider, model=model)


def new_call_id() -> str:
    """Return a fresh call id: 9 letters and digits, the one form that every provider accepts (Mistral wants exactly 9)."""
    return "c" + secrets.token_hex(4)


# -- the request ---------------------------------------------------------------------------------------------------------


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as it is declared to a model. ``parameters`` is a JSON schema of type object."""

    name: str
    description: str
    parameters: JSON
    strict: bool | None = None
    cache: bool = False


class Choice(msgspec.Struct, frozen=True):
    """Which tools the model may, must or must not call: auto, none, required, or the one tool ``name``."""

    mode: Literal["auto", "none", "required", "tool"]
    name: str | None = None


class ToolSet(list[JSON]):
    """A checked list of tool declarations in OpenAI's shape, with the specs that it stands for.

    It is a plain list to any caller that accepts ``tools=``; our own clients reuse the check and the encoding.
    """

    def __init__(self, tools: Sequence[Any]) -> None:
        self.specs: tuple[ToolSpec, ...] = tuple(_tool_spec(tool, index) for index, tool in enumerate(tools))
        names: set[str] = set()
        for index, spec in enumerate(self.specs):
            if spec.name in names:
                raise InvalidRequestError(f"Two tools have the name {spec.name!r}.", argument=f"tools[{index}]")
            names.add(spec.name)
        self.by_name: dict[str, ToolSpec] = {spec.name: spec for spec in self.specs}
        self.encoded: dict[str, msgspec.Raw] = {}
        super().__init__(tools)


def _tool_spec(tool: Any, index: int) -> ToolSpec:
    where = f"tools[{index}]"
    if not isinstance(tool, Mapping):
        raise InvalidRequestError(f"A tool is a mapping, not {type(tool).__name__}.", argument=where)
    function = tool.get("function", None if "type" in tool and "name" not in tool else tool)
    if tool.get("type", "function") != "function" or not isinstance(function, Mapping):
        raise InvalidRequestError("A tool needs type 'function' and a mapping 'function'.", argument=where)
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        raise InvalidRequestError("A tool needs a name.", argument=f"{where}.function.name")
    check_text(name, f"{where}.function.name")
    description = function.get("description") or ""
    if not isinstance(description, str):
        raise InvalidRequestError("A tool's description is a string.", argument=f"{where}.function.description")
    check_text(description, f"{where}.function.description")
    parameters = function.get("parameters")
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping):
        raise InvalidRequestError("A tool's parameters are a JSON schema (a mapping).", argument=f"{where}.function.parameters")
    if parameters.get("type", "object") != "object":
        raise InvalidRequestError(
            f"A tool's parameters have type object, not {parameters.get('type')!r}.", argument=f"{where}.function.parameters"
        )
    try:
        msgspec.json.encode(parameters)
    except (TypeError, ValueError, UnicodeEncodeError) as error:
        raise InvalidRequestError(
            f"The parameters of tool {name!r} cannot be written as JSON: {error}.", argument=f"{where}.function.parameters"
        ) from None
    return ToolSpec(name, description, dict(parameters), strict=function.get("strict"), cache=bool(tool.get("cache_control")))


def tool_set(tools: Sequence[Any] | None) -> ToolSet | None:
    """Check declarations of tools; None and an empty list mean no tools.

    Raises:
        InvalidRequestError: something is no tool, or two tools have one name.
    """
    if tools is None or isinstance(tools, ToolSet):
        return tools or None
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence):
        raise InvalidRequestError(f"tools is a list of tools, not {type(tools).__name__}.", argument="tools")
    return ToolSet(tools) if tools else None


def tool_choice(choice: Any, tools: ToolSet | None) -> Choice | None:
    """Check a tool choice: None, auto, none, required (or any), a tool's name, or OpenAI's mapping for one function.

    Raises:
        InvalidRequestError: it names no tool of the list, or means nothing.
    """
    if choice is None or isinstance(choice, Choice):
        return choice
    name: Any = None
    if isinstance(choice, str):
        if choice in ("auto", "none", "required"):
            mode: Any = choice
            if mode == "required" and not tools:
                raise InvalidRequestError("tool_choice 'required' needs tools.", argument="tool_choice")
            return Choice(mode)
        if choice == "any":
            return tool_choice("required", tools)
        name = choice
    elif isinstance(choice, Mapping):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else choice.get("name")
    if not isinstance(name, str) or not tools or name not in tools.by_name:
        known = ", ".join(tools.by_name) if tools else "none declared"
        raise InvalidRequestError(
            f"tool_choice {choice!r} is neither auto, none, required nor a tool of this call ({known}).", argument="tool_choice"
        )
    return Choice("tool", name)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request, checked, in no dialect.

    Attributes:
        history: the conversation.
        tools, tool_choice: what the model may call.
        response_format: None, ``{"type": "json_object"}`` or OpenAI's ``json_schema`` mapping.
        params: further parameters in OpenAI's words; a dialect renames, moves or refuses them.
        stream: whether the answer shall come as it is made.
    """

    history: History
    tools: ToolSet | None = None
    tool_choice: Choice | None = None
    response_format: JSON | None = None
    params: Mapping[str, Any] = {}
    stream: bool = False


RESERVED = frozenset({"model", "messages", "stream", "stream_options", "tools"})


def make_request(
    messages: Any,
    *,
    tools: Sequence[Any] | None = None,
    choice: Any = None,
    response_format: Any = None,
    params: Mapping[str, Any] | None = None,
    tool_params: Mapping[str, Any] | None = None,
    stream: bool = False,
) -> Request:
    """Check the arguments of a call and return the request. ``params`` win over ``tool_params`` (sent only with tools).

    Raises:
        InvalidRequestError: names the argument that is wrong.
    """
    declared = tool_set(tools)
    merged: Mapping[str, Any] = {}
    if params is not None:
        merged = _checked_params(params, "params")
    if declared and tool_params:
        merged = {**_checked_params(tool_params, "tool_params"), **merged}
    if "tool_choice" in merged and choice is None:
        merged = dict(merged)
        choice = merged.pop("tool_choice")
    if "response_format" in merged and response_format is None:
        merged = dict(merged)
        response_format = merged.pop("response_format")
    if response_format is not None and (not isinstance(response_format, Mapping) or "type" not in response_format):
        raise InvalidRequestError(
            "response_format is a mapping with a type: text, json_object or json_schema.", argument="response_format"
        )
    return Request(
        history=messages if isinstance(messages, History) else History(messages),
        tools=declared,
        tool_choice=tool_choice(choice, declared),
        response_format=dict(response_format) if response_format is not None else None,
        params=merged,
        stream=stream,
    )


def _checked_params(params: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(params, Mapping):
        raise InvalidRequestError(f"{where} is a mapping, not {type(params).__name__}.", argument=where)
    for name, value in params.items():
        if not isinstance(name, str):
            raise InvalidRequestError(f"{where} has a name that is no string: {name!r}.", argument=where)
        if name in RESERVED:
            raise InvalidRequestError(
                f"{name!r} is set by the call itself and may not stand in {where}.", argument=f"{where}[{name!r}]"
            )
        if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
            raise InvalidRequestError(f"{name!r} is not a finite number.", argument=f"{where}[{name!r}]")
    return params
