"""A transaction of any SQL store, as those see it who keep something in tables of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Statements(Protocol):
    """A transaction. Values stand as ``?`` in the statements."""

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Any:
        """Run a statement; the result has ``fetchone``, ``fetchall`` and ``rowcount``."""
        ...
