"""What every store behind the journal can do. One contract, one test-suite (``tests/journal``), several databases.

The methods are plain and synchronous: a flow calls them in place where ``direct`` is true (``record`` then takes tens of
microseconds), else through ``port.call``. A store may be used from any thread. Every failure is a ``StoreError`` that says why.
A store holds no values of keys in clear: ``set_secret`` takes ciphertext.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, TypeVar

from llmbroker.catalog import LLMConfig
from llmbroker.journal.records import Call, Grouping, Query, Row, Stats

if TYPE_CHECKING:
    from llmbroker.journal.statements import Statements
    from llmbroker.journal.tidings import Look, Since, Tidings

T = TypeVar("T")


class Store(Protocol):
    """A place for journal rows, and for the model list, disabled models, stored keys and small state that go with it."""

    where: str
    """What to show to a human: a path, or an address without its password."""

    @property
    def direct(self) -> bool:
        """Whether ``record`` is quick enough to be called from an event loop."""
        ...

    @property
    def spool_beside(self) -> str | None:
        """Path beside which unwritten rows may be kept in files, or None."""
        ...

    def record(self, rows: Sequence[Row]) -> None:
        """Write rows, all or none; when it returns they outlive the process. A row whose id is there already is left out.

        Raises:
            StoreError: nothing was written.
        """
        ...

    def calls(self, query: Query, *, limit: int, cursor: str | None = None, bodies: bool = False) -> list[Call]:
        """Return at most ``limit`` calls, the newest first, older than ``cursor``; each with its newest rating."""
        ...

    def find(self, *, scope: str | None, call_id: str | None = None, trace_id: str | None = None) -> Call | None:
        """Return the call of that id, or the newest successful call of that trace; only within ``scope`` unless it is None."""
        ...

    def stats(self, query: Query, *, by: Grouping = "llm_name") -> dict[str, Stats]:
        """Return sums by group; the group of rows that have no value there is ``""``."""
        ...

    def prune(self, before: datetime, *, batch: int) -> int:
        """Delete at most ``batch`` of the oldest calls that began before then, with their ratings; return how many."""
        ...

    def disabled(self) -> dict[str, bool]:
        """Return which models were switched off (True) or on again (False) by hand."""
        ...

    def set_disabled(self, name: str, value: bool) -> None:
        """Remember that a model is switched off or on."""
        ...

    def models(self) -> list[LLMConfig]:
        """Return the model list in its order."""
        ...

    def set_models(self, models: Sequence[LLMConfig]) -> None:
        """Replace the whole model list, at once."""
        ...

    def secret(self, ref: str, scope: str | None) -> bytes | None:
        """Return the ciphertext stored for exactly this scope, or None."""
        ...

    def set_secret(self, ref: str, scope: str | None, value: bytes | None) -> None:
        """Store ciphertext, or delete it (None)."""
        ...

    def secrets(self) -> list[tuple[str, str | None]]:
        """Return (ref, scope) of all stored keys, sorted."""
        ...

    def state(self, name: str) -> bytes | None:
        """Return a small value that another room keeps here, or None."""
        ...

    def set_state(self, name: str, value: bytes | None) -> None:
        """Keep a small value under a name, or delete it (None)."""
        ...

    def transact(self, work: Callable[[Statements], T], *, reads: bool = False, brief: bool = False) -> T:
        """Do work in one transaction, committed when it returns, and return its result; what it raises undoes it.

        ``reads``: it writes nothing and need wait for nobody who does. ``brief``: it is quick, and gives up soon where another
        process writes. Where a connection breaks, work may be done twice; it
        must be right then, too.
        """
        ...

    def look(self, since: Since) -> Look:
        """Return what the processes of this store told each other since then; quick, or a ``StoreError``."""
        ...

    def tell(self, tidings: Tidings) -> None:
        """Write what this process has to tell, all or none; quick, or a ``StoreError``."""
        ...

    def close(self) -> None:
        """Give everything back; may be called twice. Using the store again opens it again."""
        ...
