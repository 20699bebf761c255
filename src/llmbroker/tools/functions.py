"""Tools made of functions: ``tools=[get_weather]``, and ``@tool(...)`` where more must be said than the function says itself.

A ``FunctionTool`` is the function with a declaration for the model and rules for the loop. It stays callable as before, in a
class it binds like a method, and it never calls a model.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, overload

import msgspec

from llmbroker.errors import InvalidRequestError
from llmbroker.tools.docwords import docwords
from llmbroker.tools.results import checked_limit
from llmbroker.tools.signature import Bound, Signature, read_signature
from llmbroker.tools.types import Wrong

JSON: TypeAlias = dict[str, Any]
_UNSET: Any = object()


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for the calls of one tool; the attributes are the arguments of ``tool``."""

    timeout: float | None = None
    retries: int = 0
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    backoff: float = 0.5
    sequential: bool = False
    group: str | None = None
    approval: bool | Callable[..., Any] = False
    check: Callable[..., Any] | None = None
    result_limit: Any = _UNSET
    safe_to_repeat: bool = False
    external: bool = False
    polls: bool = False

    @property
    def limited(self) -> bool:
        """Whether a limit of its own is set for results."""
        return self.result_limit is not _UNSET


class FunctionTool:
    """A function that a model may call.

    Attributes:
        name, description: as the model sees them. schema: JSON schema of the arguments.
        fn: the function. rules: what holds for its calls.
    """

    def __init__(
        self, fn: Callable[..., Any], name: str, description: str, signature: Signature, rules: Rules, extra: JSON
    ) -> None:
        self.fn = fn
        self.name = name
        self.description = description
        self.signature = signature
        self.rules = rules
        self._extra = extra
        functools.update_wrapper(self, fn, updated=())

    @property
    def schema(self) -> JSON:
        """JSON schema of the arguments."""
        return self.signature.schema

    @property
    def declaration(self) -> JSON:
        """The tool in OpenAI's shape, for ``tools=`` of any caller."""
        function: JSON = {"name": self.name, "description": self.description, "parameters": self.schema}
        made: JSON = {"type": "function", "function": function}
        if self._extra.get("strict") is not None:
            function["strict"] = self._extra["strict"]
        if self._extra.get("cache"):
            made["cache_control"] = {"type": "ephemeral"}
        return made

    def bind(self, arguments: JSON) -> Bound:
        """Return what the function is called with; raises ``Wrong`` where a value does not fit its type."""
        return self.signature.bind(arguments)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, as if it were no tool."""
        return self.fn(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> FunctionTool:
        """Bind a tool that was declared in a class to an instance of it."""
        if instance is None:
            return self
        made = FunctionTool.__new__(FunctionTool)
        made.__dict__.update(self.__dict__)
        made.fn = self.fn.__get__(instance, owner)
        made.signature = self._extra["unbound"](made.fn)
        return made

    def __repr__(self) -> str:
        return f"tool({self.name}({', '.join(self.schema.get('properties') or ())}))"


def _name_of(fn: Any) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__name__", None) or type(fn).__name__
    return str(name)


@overload
def tool(fn: Callable[..., Any], /, **said: Any) -> FunctionTool: ...
@overload
def tool(
    fn: None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    retries: int = 0,
    retry_on: type[BaseException] | tuple[type[BaseException], ...] = Exception,
    backoff: float = 0.5,
    sequential: bool = False,
    group: str | None = None,
    approval: bool | Callable[..., Any] = False,
    check: Callable[..., Any] | None = None,
    result_limit: int | None = _UNSET,
    safe_to_repeat: bool = False,
    external: bool = False,
    polls: bool = False,
    strict: bool | None = None,
    cache: bool = False,
) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(fn: Callable[..., Any] | None = None, /, **said: Any) -> Any:  # noqa: D417 - the arguments stand in the overload
    """Make a tool of a function; as ``@tool``, as ``@tool(...)`` or as ``tool(fn, ...)``.

    Args:
        fn: a function, method, partial or callable object, plain or ``async``.
        name: None: the function's own. description: None: the docstring up to its first section.
        parameters: a JSON schema in place of the one read off the signature; arguments then come as keywords, as JSON values.
        timeout: seconds for one call. A plain function in a thread cannot be stopped: its late result is thrown away.
        retries: how often a call that raised is tried again; ``retry_on`` says after which exceptions, ``backoff`` the seconds
            before the first (doubled each time).
        sequential: no other call runs at the same time: those before it end first, those after it wait.
        group: calls of tools of one group run one after the other.
        approval: a call needs a yes (see ``approve=``); or a function of the arguments that says whether this one does.
        check: a function of the arguments (as keywords) that returns what is wrong with them, or None.
        result_limit: characters of a result; else the loop's.
        safe_to_repeat: doing it twice does no harm; only such calls run again when a run was killed in the middle of them.
        external: it is not run here: the loop pauses, and the result is given by the call's id later.
        polls: the same call with the same result is no sign of a loop.
        strict, cache: handed to providers that know them.

    Raises:
        InvalidRequestError: a type has no JSON schema, or an option means nothing.
    """
    if fn is None:
        return lambda function: tool(function, **said)
    inner = fn.__func__ if isinstance(fn, (staticmethod, classmethod)) else fn
    if isinstance(inner, FunctionTool):
        return inner if not said else tool(inner.fn, **{"name": inner.name, "description": inner.description, **said})
    if not callable(inner):
        raise InvalidRequestError(f"A tool is a function, not {type(fn).__name__}.", argument="tools")
    extra: JSON = {key: said.pop(key) for key in ("strict", "cache") if key in said}
    name = said.pop("name", None) or _name_of(inner)
    words, told = docwords(inner if inspect.isroutine(inner) or isinstance(inner, functools.partial) else _documented(inner))
    if isinstance(inner, functools.partial):
        words, told = docwords(inner.func)
    description = said.pop("description", None)
    parameters = said.pop("parameters", None)
    rules = _rules(name, said)

    def signature(function: Callable[..., Any]) -> Signature:
        if parameters is None:
            return read_signature(function, name, told)
        return Signature(_given(parameters, name), _context_only(function, name))

    if _is_unbound(inner):
        extra["unbound"] = signature
    return FunctionTool(inner, name, words if description is None else description, signature(inner), rules, extra)


def _documented(obj: Any) -> Any:
    """Return where a callable object or class keeps its words: its ``__call__`` if that has some."""
    call = type(obj).__dict__.get("__call__")
    return call if not isinstance(obj, type) and getattr(call, "__doc__", None) else obj


def _is_unbound(fn: Any) -> bool:
    return inspect.isfunction(fn) and "." in fn.__qualname__ and not fn.__qualname__.split(".")[-2].endswith("<locals>")


def _given(parameters: Any, name: str) -> JSON:
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise InvalidRequestError(f"parameters of the tool {name} are a JSON schema of type object.", argument="parameters")
    return {"type": "object", "properties": {}, **parameters}


def _context_only(fn: Callable[..., Any], name: str) -> str | None:
    try:
        return read_signature(fn, name, {}).context
    except InvalidRequestError:
        return None


def _rules(name: str, said: JSON) -> Rules:
    if isinstance(said.get("retry_on"), type):
        said["retry_on"] = (said["retry_on"],)
    try:
        rules = Rules(**said)
    except TypeError as error:
        raise InvalidRequestError(f"The tool {name}: {error}.", argument="tools") from None
    if rules.limited:
        checked_limit(rules.result_limit)
    wrong = None
    if rules.timeout is not None and not (isinstance(rules.timeout, (int, float)) and 0 < rules.timeout < math.inf):
        wrong = f"timeout is a number of seconds above 0, not {rules.timeout!r}"
    elif not isinstance(rules.retries, int) or rules.retries < 0:
        wrong = f"retries is a whole number of at least 0, not {rules.retries!r}"
    elif rules.external and (rules.retries or rules.timeout):
        wrong = "an external tool is not run here: it has neither timeout nor retries"
    if wrong:
        raise InvalidRequestError(f"The tool {name}: {wrong}.", argument="tools")
    return rules


def made_tools(tools: Sequence[Any] | None) -> tuple[Sequence[Any] | None, dict[str, FunctionTool]]:
    """Return declarations of all tools given, and those that are functions by their name.

    Raises:
        InvalidRequestError: something is neither a declaration nor a function, or a function cannot be declared.
    """
    if tools is None or isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence):
        return tools, {}
    if all(isinstance(item, Mapping) for item in tools):
        return tools, {}
    declared: list[Any] = []
    functions: dict[str, FunctionTool] = {}
    for index, item in enumerate(tools):
        if isinstance(item, Mapping):
            declared.append(item)
            continue
        made = _made(item, index)
        declared.append(made.declaration)
        if made.name in functions:
            raise InvalidRequestError(f"Two tools have the name {made.name!r}.", argument=f"tools[{index}]")
        functions[made.name] = made
    return declared, functions


def _made(item: Any, index: int) -> FunctionTool:
    if isinstance(item, FunctionTool):
        return item
    given = getattr(item, "declaration", None)
    run = getattr(item, "run", None)
    if isinstance(given, Mapping) and callable(run):
        # A tool of another face (llm_tool): it brings its own schema and takes keywords.
        function = given["function"]
        parameters = function.get("parameters") or {}
        made: FunctionTool = tool(
            run, name=function["name"], description=function.get("description") or "", parameters=parameters
        )
        return made
    if not callable(item):
        held = " Its tools: *server.tools()." if callable(getattr(item, "tools", None)) else ""
        raise InvalidRequestError(
            f"A tool is a function or a mapping, not {type(item).__name__}.{held}", argument=f"tools[{index}]"
        )
    plain: FunctionTool = tool(item)
    return plain


__all__ = ["Bound", "FunctionTool", "Rules", "Wrong", "made_tools", "tool"]
