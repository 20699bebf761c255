"""Tools named on the command line: ``module:function`` to tools, shown or asked about as the options say."""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from llmbroker.errors import InvalidRequestError
from llmbroker.faces.cli.named import named
from llmbroker.faces.cli.output import note
from llmbroker.tools import FunctionTool, tool


def load(names: Sequence[str], *, approve: bool = False, show: bool = False) -> list[FunctionTool]:
    """Return tools of ``module:function`` names; modules of the working directory are found.

    Args:
        names: what the user named.
        approve: ask the person at the terminal before each call.
        show: show each call and its result on stderr.

    Raises:
        InvalidRequestError: a name leads to no function.
    """
    made = []
    for name in names:
        found = _found(name)
        one = copy.copy(found) if isinstance(found, FunctionTool) else tool(found)
        if approve or show:
            one.fn = _watched(one, approve=approve, show=show)
        made.append(one)
    return made


def _found(name: str) -> Any:
    found = named(name, what="tool", argument="--tool")
    if not callable(found):
        raise InvalidRequestError(f"{name!r} is no function.", argument="--tool")
    return found


def _watched(one: FunctionTool, *, approve: bool, show: bool) -> Callable[..., Any]:
    """Return the tool's function with a look at each of its calls."""
    function = one.fn

    def permitted(args: tuple[Any, ...], given: dict[str, Any]) -> tuple[str, bool]:
        values = [*map(repr, args), *(f"{key}={value!r}" for key, value in given.items())]
        shown = f"{one.name}({', '.join(values)})"
        return shown, not approve or _approved(shown)

    def told(shown: str, result: Any) -> Any:
        if show:
            note(f"  {shown} -> {result}")
        return result

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def later(*args: Any, **given: Any) -> Any:
            shown, allowed = permitted(args, given)
            return told(shown, await function(*args, **given)) if allowed else _REFUSED

        return later

    @functools.wraps(function)
    def now(*args: Any, **given: Any) -> Any:
        shown, allowed = permitted(args, given)
        return told(shown, function(*args, **given)) if allowed else _REFUSED

    return now


_REFUSED = "The person at the keyboard did not allow this call."


def _approved(shown: str) -> bool:
    note(f"Call {shown}? [y/N] ")
    try:
        with Path("/dev/tty" if sys.platform != "win32" else "CON").open(encoding="utf-8") as terminal:
            return terminal.readline().strip().lower() in ("y", "yes")
    except OSError:
        note("(there is no terminal to ask at, so: no)")
        return False
