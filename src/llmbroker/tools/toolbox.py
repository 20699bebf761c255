"""Names to functions: what may be called, what a name that nobody knows was meant to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from llmbroker.errors import InvalidRequestError
from llmbroker.exchange import ToolSet, tool_set
from llmbroker.messages import shown, wire_name
from llmbroker.tools.functions import FunctionTool, made_tools
from llmbroker.tools.schema import listed, nearest


class Tool(msgspec.Struct, frozen=True):
    """Something that can be called: its name, the function, the schema of its arguments (None if none was declared).

    ``made`` is the tool's own description where it was made of a function, with its rules; None for ``dispatch``.
    """

    name: str
    run: Callable[..., Any]
    schema: Mapping[str, Any] | None
    made: FunctionTool | None = None


class Toolbox:
    """The declared tools and the functions behind them.

    Args:
        tools: declarations in OpenAI's shape, or functions, or None.
        dispatch: functions by name, or None.

    Raises:
        InvalidRequestError: something is no tool, two have one name, or a value of ``dispatch`` cannot be called.
    """

    def __init__(self, tools: Sequence[Any] | None, dispatch: Mapping[str, Any] | None) -> None:
        tools, functions = made_tools(tools)
        self.declared: ToolSet | None = tool_set(tools)
        specs = self.declared.by_name if self.declared else {}
        if dispatch is not None and not isinstance(dispatch, Mapping):
            raise InvalidRequestError(
                f"dispatch is a mapping of names to functions, not {type(dispatch).__name__}.", argument="dispatch"
            )
        self._tools: dict[str, Tool] = {}
        for name, function in (dispatch or {}).items():
            if not isinstance(name, str):
                raise InvalidRequestError(f"dispatch has a name that is no string: {shown(name)}.", argument="dispatch")
            if not callable(function):
                raise InvalidRequestError(
                    f"The tool {name!r} cannot be called: it is {type(function).__name__}.", argument=f"dispatch[{name!r}]"
                )
            if name in functions:
                raise InvalidRequestError(f"The tool {name!r} is a function of tools= already.", argument=f"dispatch[{name!r}]")
            spec = specs.get(name)
            self._tools[name] = Tool(name, function, spec.parameters if spec else None)
        for name, made in functions.items():
            self._tools[name] = Tool(name, made.fn, made.schema, made)
        self.functions = functions
        self._by_wire: dict[str, str | None] = {}
        for name in self._tools:
            sent = wire_name(name)
            self._by_wire[sent] = None if sent in self._by_wire else name

    def find(self, name: str) -> Tool | None:
        """Return the tool of that name, or None. A name that was changed for the wire finds its tool again."""
        found = self._tools.get(name)
        if found is None:
            original = self._by_wire.get(name) or name.strip()
            found = self._tools.get(original)
        return found

    def unknown(self, name: str, allowed: frozenset[str] | None = None) -> str:
        """Return what the model is told about a name that no tool has, or none of those that are ``allowed`` now."""
        known = [known for known in self._tools if allowed is None or known in allowed]
        lines = [f"Unknown tool {name if len(name) <= 200 else name[:200] + '...'}"]
        near = nearest(name, known)
        if near:
            lines.append(f"Did you mean {near}?")
        lines.append(f"Known tools: {listed(known, 1000)}." if known else "There are no tools to call: answer without one.")
        return "\n".join(lines)
