"""What both faces of a broker share: how it is made, scopes, filters."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypedDict

from llmbroker.broker.engine import Engine, checked_scope
from llmbroker.catalog import Limit, LLMConfig
from llmbroker.errors import ConfigurationError
from llmbroker.io import Port
from llmbroker.preference import Prefer


class ChatOptions(TypedDict, total=False):
    """What ``chat`` takes beside the messages; ``ask`` hands it on."""

    tools: Sequence[Any] | None
    tool_choice: Any
    response_format: Mapping[str, Any] | None
    params: Mapping[str, Any] | None
    operation: str | None
    trace_id: str | None
    wait: float | None
    fastest_of: int | None
    prefer: Prefer


CHAT_OPTIONS = frozenset(ChatOptions.__annotations__)


class Caller:
    """What both faces share."""

    _engine: Engine
    _io: Port
    _scope: str | None
    _owns_io: bool

    def _begin(
        self,
        source: Any,
        io: Port,
        owns_io: bool,
        *,
        pool: Sequence[LLMConfig] | None,
        direct: Sequence[str | LLMConfig],
        secrets: Any,
        journal: Any,
        home: str | os.PathLike[str] | None,
        shared_keys: bool,
        limits: Sequence[Limit] | None,
        rate: Any,
        prefer: Prefer = None,
    ) -> None:
        self._io = io
        self._owns_io = owns_io
        self._scope = None
        self._engine = Engine(
            source,
            io,
            pool=pool,
            direct=direct,
            secrets=secrets,
            journal=journal,
            home=home,
            shared_keys=shared_keys,
            limits=limits,
            rate=rate,
            prefer=prefer,
        )

    def for_scope(self, scope: str) -> Self:
        """Return this broker as one user sees it: that user's key first, rows and ratings under that name. Costs no I/O.

        Raises:
            InvalidRequestError: the scope is no text, or empty.
        """
        twin = copy.copy(self)
        twin._scope = checked_scope(scope)
        return twin

    @property
    def scope(self) -> str | None:
        """The user that this caller stands for, or None."""
        return self._scope

    def _whole_pool(self, what: str) -> None:
        if self._scope is not None:
            raise ConfigurationError(f"{what} concerns every user of the pool.", hint="Call it on the broker itself.")

    def _filters(self, filters: dict[str, Any]) -> dict[str, Any]:
        if self._scope is not None:
            if filters.get("scope") not in (None, self._scope):
                raise ConfigurationError(f"A caller of scope {self._scope!r} sees only its own rows.")
            filters["scope"] = self._scope
        return filters

    def __repr__(self) -> str:
        names = [member.name for member in self._engine.lanes.members]
        shown = ", ".join(names[:5]) + (f", and {len(names) - 5} more" if len(names) > 5 else "")
        scope = f", scope={self._scope!r}" if self._scope is not None else ""
        return f"{type(self).__name__}(pool=[{shown}]{scope})"


def given(**options: Any) -> dict[str, Any]:
    """Return the arguments that were given."""
    return {name: value for name, value in options.items() if value is not None}
