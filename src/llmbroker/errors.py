"""Every exception of the library, one tree, split by who must act.

* the caller: ``InvalidRequestError``, ``UnknownModelError``, ``PoolModelError``, ``MissingKeyError``,
  ``ToolLoopLimitError``, ``BudgetError``;
* the holder of the key: ``AuthError``, ``BillingError``;
* the provider, or time: ``RateLimitError``, ``ServerError``, ``ConnectionFailedError``, ``LLMTimeoutError``,
  ``InvalidProviderResponseError``, ``StreamInterruptedError``;
* the broker itself: ``NoLLMAvailableError``.

Facts are fields (``status``, ``code``, ``retry_after``), so that nobody has to search in a message. This room uses nothing
else of the package. Texts that come from a provider are redacted by whoever raises the error.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, ClassVar, Literal

Kind = Literal["parameter", "authentication", "billing", "rate_limit", "server", "unknown"]


def _rebuild(cls: type[LLMBrokerError], args: tuple[Any, ...], state: dict[str, Any]) -> LLMBrokerError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class LLMBrokerError(Exception):
    """The root of every error that this library raises on purpose.

    Attributes:
        provider: id of the provider concerned, or None.
        model: model name as it was asked for, or None.
        status: HTTP status (or the status that the body states), or None.
        code: the provider's own word for the fault, or None.
        request_id: the provider's id of the request, or None.
        retry_after: seconds that the provider asked to wait, or None.
        detail: the provider's words, redacted and cut to 2,000 characters, or None.
        hint: the next thing to do, or None; it is part of the message.
        kind: ``parameter``, ``authentication``, ``billing``, ``rate_limit``, ``server`` or ``unknown``.
        messages, tool_history, tool_loop: set when the error leaves a tool loop; else None.
        response: the last response before it, when it leaves ``call_llm_tools``; else None.
    """

    kind: ClassVar[Kind] = "unknown"

    def __init__(
        self,
        message: str,
        *,
        provider: str | None = None,
        model: str | None = None,
        status: int | None = None,
        code: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
        detail: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(f"{message} {hint}" if hint else message)
        self.provider = provider
        self.model = model
        self.status = status
        self.code = code
        self.request_id = request_id
        self.retry_after = retry_after
        self.detail = detail
        self.hint = hint
        self.messages: list[dict[str, Any]] | None = None
        self.tool_history: Any = None
        self.tool_loop: Any = None
        self.response: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive pickling and copying with every field."""
        return _rebuild, (type(self), self.args, self.__dict__)


# -- the caller must act -------------------------------------------------------------------------------------------------


class InvalidRequestError(LLMBrokerError, ValueError):
    """An argument is wrong; nothing was sent. ``argument`` names it (``messages[2].content``, ``timeout``)."""

    kind: ClassVar[Kind] = "parameter"

    def __init__(self, message: str, *, argument: str, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.argument = argument


class UnknownModelError(LLMBrokerError, LookupError):
    """No direct model of that alias or name is declared."""

    kind: ClassVar[Kind] = "parameter"


class PoolModelError(UnknownModelError):
    """The name belongs to the pool, which chooses by itself; it cannot be called directly."""


class MissingKeyError(LLMBrokerError):
    """A key is needed and none was found. ``refs`` names the variables that were looked for."""

    kind: ClassVar[Kind] = "authentication"

    def __init__(self, message: str, *, refs: tuple[str, ...] = (), **facts: Any) -> None:
        super().__init__(message, **facts)
        self.refs = refs


class ConfigurationError(LLMBrokerError, ValueError):
    """A model list, catalog, database or setting cannot be used. ``field`` names the setting, where it is one."""

    kind: ClassVar[Kind] = "parameter"

    def __init__(self, message: str, *, field: str | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.field = field


def unexpected(function: str, given: Iterable[str], known: Iterable[str]) -> TypeError | None:
    """Return the error for an argument that a function does not take, with what was probably meant; None: it takes all."""
    names = set(known)
    strange = next((name for name in given if name not in names), None)
    if strange is None:
        return None
    import difflib

    near = difflib.get_close_matches(strange, sorted(names), n=1, cutoff=0.7)
    meant = f"Did you mean {near[0]!r}? " if near else ""
    return TypeError(
        f"{function}() got an unexpected keyword argument {strange!r}. {meant}"
        f"A parameter of the model goes into params={{{strange!r}: ...}}."
    )


def missing_package(name: str, install: str) -> ConfigurationError:
    """Return the error for a package that only some need and that is not installed."""
    return ConfigurationError(f"This needs the package {name}.", hint=f"pip install {install}")


class StoreError(ConfigurationError):
    """A journal, model list or key store could not be used. A call never fails for it; reading or managing the store may.

    ``reason``: ``locked``, ``full``, ``missing``, ``readonly``, ``corrupt``, ``newer`` (made by a newer version),
    ``refused`` (a row that does not fit), ``unreachable`` or ``other``.
    """

    def __init__(self, message: str, *, reason: str = "other", **facts: Any) -> None:
        super().__init__(message, **facts)
        self.reason = reason


class UnknownCallError(LLMBrokerError, LookupError):
    """No journal row answers to that call_id or trace_id in this scope."""

    kind: ClassVar[Kind] = "parameter"


class ToolLoopLimitError(LLMBrokerError):
    """The last permitted step still asks for tools. ``reply`` is that step's reply; its calls were not run.

    ``messages`` can be handed to the loop again: it runs the open calls first and goes on. ``reason`` is ``steps`` or
    ``repeats`` (one call gave one result ``max_repeats`` times; its results stand in ``messages``).
    """

    def __init__(self, message: str, *, reply: Any = None, reason: str = "steps", **facts: Any) -> None:
        super().__init__(message, **facts)
        self.reply = reply
        self.reason = reason


class ToolLimitError(LLMBrokerError):
    """More tool executions were asked for than ``max_tool_calls`` permits. Those within it have run, the next has not.

    ``limit`` is the number permitted; ``messages``, ``tool_history``, ``tool_loop`` and ``response`` hold what happened.
    """

    def __init__(self, message: str, *, limit: int | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.limit = limit


class BudgetError(LLMBrokerError):
    """A limit of a ``Budget`` is reached: ``limit`` names it, ``spent`` says what was spent, ``reply`` is the last reply.

    ``messages`` can be handed to the loop again, with a larger budget: it runs the open calls first and goes on.
    """

    def __init__(self, message: str, *, limit: str = "", reply: Any = None, spent: Any = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.limit = limit
        self.reply = reply
        self.spent = spent


class MCPError(LLMBrokerError):
    """An MCP server cannot be reached, or its tool reports an error; inside a loop the model reads it."""


class RunBusyError(LLMBrokerError):
    """Another process is at work with this durable run."""


class RunLostError(LLMBrokerError):
    """Another process has taken this durable run over; this one must not go on with it."""


# -- the provider said no ------------------------------------------------------------------------------------------------


class ProviderError(LLMBrokerError):
    """The provider answered with an error. ``status`` and ``detail`` say what it said."""


class BadRequestError(ProviderError):
    """The provider refuses the request itself (400, 413, 422): retrying it unchanged cannot help.

    ``param`` is the parameter that the provider names, or None.
    """

    kind: ClassVar[Kind] = "parameter"

    def __init__(self, message: str, *, param: str | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.param = param


class ContextWindowError(BadRequestError):
    """The request is longer than the model's context window."""


class UnsupportedFeatureError(BadRequestError):
    """This model cannot do what the request needs. ``feature``: tools, images, schema, or the provider's word."""

    def __init__(self, message: str, *, feature: str | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.feature = feature


class ContentFilterError(BadRequestError):
    """The provider's filter refused the prompt."""


class MalformedCallError(BadRequestError):
    """The provider threw the model's tool call away because it could not be read (Groq ``tool_use_failed``).

    ``generation`` is the text that the model wrote, where the provider gives it.
    """

    def __init__(self, message: str, *, generation: str | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.generation = generation


class ModelNotFoundError(ProviderError):
    """The provider does not have this model, or not for this key (404)."""

    kind: ClassVar[Kind] = "parameter"


class AuthError(ProviderError):
    """The key is refused: 401, or a 403 whose code says so."""

    kind: ClassVar[Kind] = "authentication"


class PermissionDeniedError(ProviderError):
    """403 for this request (region, moderation, permission); the key itself is not in doubt."""

    kind: ClassVar[Kind] = "authentication"


class BillingError(ProviderError):
    """The account is out of money or quota that time alone does not bring back (402 and named codes)."""

    kind: ClassVar[Kind] = "billing"


class RateLimitError(ProviderError):
    """Too many requests or tokens for now. ``retry_after`` is in seconds where the provider states it.

    ``limit`` says which window refused, where the provider says: ``requests``, ``tokens``, ``day``, ``concurrency``.
    """

    kind: ClassVar[Kind] = "rate_limit"

    def __init__(self, message: str, *, limit: str | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.limit = limit


class ServerError(ProviderError):
    """The provider failed or is overloaded (408, 409, 5xx, 529)."""

    kind: ClassVar[Kind] = "server"


# -- the wire failed -----------------------------------------------------------------------------------------------------


class ConnectionFailedError(LLMBrokerError, ConnectionError):
    """No connection, or it broke. ``sent`` is False when the provider cannot have seen the request."""

    kind: ClassVar[Kind] = "server"

    def __init__(self, message: str, *, sent: bool, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.sent = sent


class LLMTimeoutError(LLMBrokerError, TimeoutError):
    """The deadline passed. ``text`` is what had arrived of the answer. ``sent``: the provider may be working on it."""

    kind: ClassVar[Kind] = "server"

    def __init__(self, message: str, *, sent: bool = True, text: str = "", **facts: Any) -> None:
        super().__init__(message, **facts)
        self.sent = sent
        self.text = text


class InvalidProviderResponseError(LLMBrokerError):
    """The answer is not what the dialect promises: not JSON, no choices, empty without a finish reason, too large."""

    kind: ClassVar[Kind] = "server"


class StreamInterruptedError(InvalidProviderResponseError):
    """A stream broke, or reported an error, before its end. ``text`` is what had arrived; ``__cause__`` says why."""

    def __init__(self, message: str, *, text: str = "", **facts: Any) -> None:
        super().__init__(message, **facts)
        self.text = text


# -- the broker has nothing to offer -------------------------------------------------------------------------------------


class NoLLMAvailableError(LLMBrokerError):
    """The pool could not answer.

    Attributes:
        reason: ``empty_pool``, ``no_keys``, ``all_disabled``, ``unable`` (no member has the feature), ``limit`` (an own
            limit refused), ``timeout`` or ``failed``.
        retry_at: when the first member may be free again (aware datetime), or None.
        attempts: what was tried, in order.
    """

    def __init__(
        self, message: str, *, reason: str, retry_at: datetime | None = None, attempts: tuple[Any, ...] = (), **facts: Any
    ) -> None:
        super().__init__(message, **facts)
        self.reason = reason
        self.retry_at = retry_at
        self.attempts = attempts


class LimitReachedError(NoLLMAvailableError):
    """A ``Limit`` of this broker keeps the call from every model that could answer; no provider refused it.

    Attributes:
        limit: the limit's name.
        measure: ``calls``, ``tokens``, ``cost``; ``price``: it is not known; ``store``: who counts cannot be reached.
        used, reserved, most: how much was used, is held by calls under way, and is permitted; US dollars where that is cost.
        reason, retry_at, attempts: as of ``NoLLMAvailableError``; ``retry_at`` is when its window ends.
    """

    def __init__(
        self,
        message: str,
        *,
        limit: str = "",
        measure: str = "",
        used: float = 0,
        reserved: float = 0,
        most: float = 0,
        reason: str = "limit",
        **facts: Any,
    ) -> None:
        super().__init__(message, reason=reason, **facts)
        self.limit = limit
        self.measure = measure
        self.used = used
        self.reserved = reserved
        self.most = most
