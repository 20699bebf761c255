"""Accounts of limits in the journal's store, shared by all its processes; the rules are those of ``allowances.Book``.

Theory of operation
-------------------
To hold an amount is one conditional statement for each account: it adds what is wanted only where what is spent, held and
wanted together fits. All accounts of an attempt are asked in one transaction, in their order, so that nobody waits in a
circle; one that has no room undoes the others. The hold is a row of its own, written first: work that is done twice, because
a connection broke, finds it there. ``settle`` takes that row away and counts what was used, and so is done once, too; a hold
that comes after its end, because its caller left meanwhile, finds its name taken and holds nothing. A row whose moment has
passed belongs to a process that died: whoever finds no room gives back what it held and tries once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from llmbroker.allowances import NOTHING, SECOND, Account, Demand, Hold, Reserved, Settled, Triple, empty, short_of
from llmbroker.catalog import Limit
from llmbroker.errors import StoreError
from llmbroker.journal.contract import Store
from llmbroker.journal.statements import Statements
from llmbroker.journal.tables import read_list, replace_list

T = TypeVar("T")
KEPT = 7 * 86_400 * SECOND
"""An account is kept for so long after its window ended: an attempt that began in it may still be under way."""
MOST_DEAD = 200
MOST_SHOWN = 1000
UNDER_WAY, LAPSED, ELSEWHERE = 0, 1, 2

_MEASURES = ("calls", "tokens", "cost")
_COLUMNS = ("name", "subject", "start", "ends", *(f"{what}_{m}" for what in ("spent", "held") for m in _MEASURES), "unpriced")
_PLACE = "name = ? AND subject = ? AND start = ?"
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM llmbroker_accounts"  # noqa: S608 - our names
_INSERT = f"INSERT INTO llmbroker_accounts ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608
_ADD_HELD = ", ".join(f"held_{m} = llmbroker_accounts.held_{m} + excluded.held_{m}" for m in _MEASURES)
_FITS = " AND ".join(
    f"(excluded.held_{m} = 0 OR llmbroker_accounts.spent_{m} + llmbroker_accounts.held_{m} + excluded.held_{m} <= ?"
    f" OR (llmbroker_accounts.held_{m} = 0 AND llmbroker_accounts.spent_{m} <= ?))"
    for m in _MEASURES
)
_OPEN = f"{_INSERT} ON CONFLICT (name, subject, start) DO UPDATE SET {_ADD_HELD} WHERE {_FITS}"
_ADD_SPENT = ", ".join(
    f"{column} = llmbroker_accounts.{column} + excluded.{column}" for column in (*(f"spent_{m}" for m in _MEASURES), "unpriced")
)
_COUNT = f"{_INSERT} ON CONFLICT (name, subject, start) DO UPDATE SET {_ADD_SPENT}"
_CLOSE = (
    "UPDATE llmbroker_accounts SET "  # noqa: S608 - our names
    + ", ".join([*(f"held_{m} = held_{m} - ?" for m in _MEASURES), *(f"spent_{m} = spent_{m} + ?" for m in _MEASURES)])
    + f", unpriced = unpriced + ? WHERE {_PLACE}"
)
_HOLD = "INSERT INTO llmbroker_holds (id, expires, state, value) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"
_END = "DELETE FROM llmbroker_holds WHERE id = ? AND state = ?"


class _NoRoomError(Exception):
    """An account has no room; raised to undo the transaction."""

    def __init__(self, place: int) -> None:
        self.place = place


class Ledger:
    """The accounts in a store. Every method may raise ``StoreError``.

    ``brief`` arguments: give up soon where another process writes, so that an event loop is not held up.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def reserve(self, hold: Hold, now: int, *, brief: bool = False) -> Reserved:
        """Hold what an attempt asks for, of all accounts or of none."""
        place = 0
        for again in (True, False):
            try:
                return self.store.transact(lambda db: _reserve(db, hold), brief=brief)
            except _NoRoomError as full:
                place = full.place
            if not (again and self.lapse(now, brief=brief)):
                break
        found = self.store.transact(lambda db: tuple(_account(db, demand) for demand in hold.demands), reads=True, brief=brief)
        return Reserved(place, found)

    def settle(self, settled: Settled, now: int, *, brief: bool = False) -> None:
        """Count what an attempt used, once, and give back what it held, if it still did."""
        self.store.transact(lambda db: _settle(db, settled, now), brief=brief)

    def lapse(self, now: int, *, brief: bool = False) -> int:
        """Give back what is held by those that are given up for dead; return how many there were."""
        sql = "SELECT id, value FROM llmbroker_holds WHERE expires <= ? AND state = ? ORDER BY expires LIMIT ?"
        values = now, UNDER_WAY, MOST_DEAD
        dead = self.store.transact(lambda db: db.execute(sql, values).fetchall(), reads=True, brief=brief)
        return sum(self._give_back(*row, brief=brief) for row in dead)

    def _give_back(self, ident: str, value: str, *, brief: bool) -> bool:
        try:
            demands = msgspec.json.decode(value, type=tuple[Demand, ...])
        except msgspec.DecodeError:
            demands = ()  # nobody knows what it held

        def work(db: Statements) -> bool:
            sql = f"UPDATE llmbroker_holds SET state = {LAPSED} WHERE id = ? AND state = {UNDER_WAY}"  # noqa: S608
            if not db.execute(sql, (ident,)).rowcount:
                return False
            for demand in demands:
                _close(db, demand, NOTHING, back=True, unpriced=0)
            return True

        return self.store.transact(work, brief=brief)

    def accounts(self, names: Sequence[str], now: int, prefix: str = "", *, brief: bool = False) -> list[Account]:
        """Return accounts of these limits in their present windows, the busiest first; ``prefix``: how their subjects begin."""
        if not names:
            return []
        self.lapse(now, brief=brief)
        sql = (
            f"{_SELECT} WHERE name IN ({', '.join('?' * len(names))}) AND (ends IS NULL OR ends > ?)"
            " AND substr(subject, 1, ?) = ? ORDER BY spent_calls DESC, name, subject LIMIT ?"
        )
        values = (*names, now, len(prefix), prefix, MOST_SHOWN)
        return self.store.transact(
            lambda db: [_read(row) for row in db.execute(sql, values).fetchall()], reads=True, brief=brief
        )

    def tidy(self, now: int, *, brief: bool = False) -> None:
        """Delete what nobody asks for any more."""

        def work(db: Statements) -> None:
            db.execute("DELETE FROM llmbroker_accounts WHERE ends < ?", (now - KEPT,))
            db.execute(f"DELETE FROM llmbroker_holds WHERE expires < ? AND state <> {UNDER_WAY}", (now - KEPT,))  # noqa: S608

        self.store.transact(work, brief=brief)


def read_limits(store: Store, *, brief: bool = False) -> list[Limit]:
    """Return the limits that are kept in a database, in their order.

    Raises:
        StoreError: the store cannot be used, or a limit in it cannot be read.
    """
    return read_list(store, "llmbroker_limits", Limit, "list of limits", brief=brief)


def write_limits(store: Store, limits: Sequence[Limit]) -> None:
    """Replace the limits that are kept in a database, all at once."""
    rows = [(limit.name, msgspec.json.encode(limit).decode()) for limit in limits]
    store.transact(lambda db: replace_list(db, "llmbroker_limits", rows))


def _reserve(db: Statements, hold: Hold) -> Reserved:
    value = msgspec.json.encode(hold.demands).decode()
    if not db.execute(_HOLD, (hold.id, hold.expires, UNDER_WAY, value)).rowcount:
        return Reserved(None, tuple(_account(db, demand) for demand in hold.demands))
    found = []
    for place, demand in enumerate(hold.demands):
        if short_of(empty(demand), demand) is not None:
            raise _NoRoomError(place)  # it would not fit into an account of its own
        whole = (demand.name, demand.subject, demand.start, demand.ends, *NOTHING, *demand.wants, 0)
        room = (value for most, least in zip(demand.most, demand.least, strict=True) for value in (most, most - least))
        if not db.execute(_OPEN, (*whole, *room)).rowcount:
            raise _NoRoomError(place)
        found.append(_account(db, demand))
    return Reserved(None, tuple(found))


def _settle(db: Statements, settled: Settled, now: int) -> None:
    hold = settled.hold
    if settled.foreign:
        if db.execute(_HOLD, (hold.id, now, ELSEWHERE, "")).rowcount:
            for demand, spent in zip(hold.demands, settled.spent, strict=True):
                whole = (demand.name, demand.subject, demand.start, demand.ends, *spent, *NOTHING, settled.unpriced)
                db.execute(_COUNT, whole)
        return
    back = bool(db.execute(_END, (hold.id, UNDER_WAY)).rowcount)
    if not back and not db.execute(_END, (hold.id, LAPSED)).rowcount:
        # It was settled before; or its caller left while it was being made, and it comes only now: its name is taken then.
        db.execute(_HOLD, (hold.id, now, ELSEWHERE, ""))
        return
    for demand, spent in zip(hold.demands, settled.spent, strict=True):
        _close(db, demand, spent, back=back, unpriced=settled.unpriced)


def _close(db: Statements, demand: Demand, spent: Triple, *, back: bool, unpriced: int) -> None:
    db.execute(_CLOSE, (*(demand.wants if back else NOTHING), *spent, unpriced, *demand.key))


def _account(db: Statements, demand: Demand) -> Account:
    row = db.execute(f"{_SELECT} WHERE {_PLACE}", demand.key).fetchone()
    return empty(demand) if row is None else _read(row)


def _read(row: Sequence[Any]) -> Account:
    name, subject, start, ends, *amounts = row
    if any(type(amount) is not int for amount in amounts) or not isinstance(ends, int | None):
        raise StoreError(f"The account of {name!r} in llmbroker_accounts is damaged.", reason="corrupt", hint="Delete its row.")
    return Account(name, subject, start, ends, (*amounts[:3],), (*amounts[3:6],), amounts[6])


__all__ = ["Ledger", "read_limits", "write_limits"]
