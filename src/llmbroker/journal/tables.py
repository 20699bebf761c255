"""What stands beside the rows of a journal in any SQL store: model list, disabled models, stored keys, small state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from llmbroker.catalog import LLMConfig
from llmbroker.errors import StoreError
from llmbroker.journal.contract import Store
from llmbroker.journal.statements import Statements

T = TypeVar("T")


class Tables:
    """A SQL store's part of the contract that is the same in every database; see ``contract.Store``."""

    where: str

    def transact(self, work: Callable[[Statements], T], *, reads: bool = False, brief: bool = False) -> T:
        """Do work in one transaction."""
        raise NotImplementedError

    def _ask(self, statement: str, *values: Any) -> list[Any]:
        """Run one statement, which a call may wait for; return its rows. Values stand as ``?`` in it."""
        raise NotImplementedError

    def disabled(self) -> dict[str, bool]:
        """Return which models were switched by hand."""
        return {name: bool(value) for name, value in sorted(self._ask("SELECT name, disabled FROM llmbroker_disabled"))}

    def set_disabled(self, name: str, value: bool) -> None:
        """Remember that a model is switched off or on."""
        self._ask(
            "INSERT INTO llmbroker_disabled VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET disabled = excluded.disabled",
            name,
            value,
        )

    def models(self) -> list[LLMConfig]:
        """Return the model list in its order."""
        return read_list(self, "llmbroker_models", LLMConfig, "model list")

    def set_models(self, models: Sequence[LLMConfig]) -> None:
        """Replace the whole model list, at once."""
        rows = [(model.name, msgspec.json.encode(model).decode()) for model in models]
        self.transact(lambda db: replace_list(db, "llmbroker_models", rows))

    def secret(self, ref: str, scope: str | None) -> bytes | None:
        """Return the ciphertext stored for exactly this scope, or None."""
        rows = self._ask("SELECT value FROM llmbroker_secrets WHERE ref = ? AND scope = ?", ref, scope or "")
        return rows[0][0] if rows else None

    def set_secret(self, ref: str, scope: str | None, value: bytes | None) -> None:
        """Store ciphertext, or delete it (None)."""
        if value is None:
            self._ask("DELETE FROM llmbroker_secrets WHERE ref = ? AND scope = ?", ref, scope or "")
        else:
            self._ask(
                "INSERT INTO llmbroker_secrets VALUES (?, ?, ?) ON CONFLICT (ref, scope) DO UPDATE SET value = excluded.value",
                ref, scope or "", value,
            )  # fmt: skip

    def secrets(self) -> list[tuple[str, str | None]]:
        """Return (ref, scope) of all stored keys, sorted."""
        rows = self.transact(lambda db: db.execute("SELECT ref, scope FROM llmbroker_secrets").fetchall(), reads=True)
        return [(ref, scope or None) for ref, scope in sorted(rows)]

    def state(self, name: str) -> bytes | None:
        """Return a small value that another room keeps here, or None."""
        rows = self._ask("SELECT value FROM llmbroker_state WHERE name = ?", name)
        return rows[0][0] if rows else None

    def set_state(self, name: str, value: bytes | None) -> None:
        """Keep a small value under a name, or delete it (None)."""
        if value is None:
            self._ask("DELETE FROM llmbroker_state WHERE name = ?", name)
        else:
            self._ask(
                "INSERT INTO llmbroker_state VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value", name, value
            )


def read_list(store: Tables | Store, table: str, kind: type[T], what: str, *, brief: bool = False) -> list[T]:
    """Return the configurations of a table, in their order.

    Raises:
        StoreError: the store cannot be used, or one of them cannot be read.
    """
    statement = f"SELECT config FROM {table} ORDER BY position"  # noqa: S608 - our names
    rows = store.transact(lambda db: db.execute(statement).fetchall(), reads=True, brief=brief)
    try:
        return [msgspec.json.decode(row[0], type=kind) for row in rows]
    except (msgspec.DecodeError, TypeError) as error:
        raise StoreError(
            f"The {what} in {store.where} is damaged: {error}.", reason="corrupt", hint="Store it again, or delete its rows."
        ) from error


def replace_list(db: Statements, table: str, rows: Sequence[tuple[str, str]]) -> None:
    """Put names and configurations in place of those of a table, in their order."""
    # One at a time: whoever waits here sees, and deletes, what was written meanwhile.
    db.execute("UPDATE llmbroker_schema SET version = version")
    db.execute(f"DELETE FROM {table}")  # noqa: S608 - our names
    for place, row in enumerate(rows):
        db.execute(f"INSERT INTO {table} VALUES (?, ?, ?)", (place, *row))  # noqa: S608 - our names
