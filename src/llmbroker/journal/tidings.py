"""What the processes of one store tell each other: notes, counts of what was sent, ratings, models switched by hand.

Functions over a transaction of any SQL store. Everything that is written gets the next *stamp*: stamps grow in the order of the
commits, so a reader that remembers the last one it saw is handed what is new and nothing twice. Ratings are in their own table
and have numbers instead; in PostgreSQL a lower number may become visible after a higher one, so a reader keeps a list of the
numbers that it missed and asks for those again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from llmbroker.journal.records import id_at
from llmbroker.journal.statements import Statements

MOST_RATINGS = 1000
"""Ratings that one look takes, the newest; older ones have faded."""
MOST_TAKEN = 48
"""Attempts that one look takes, the newest: a model's record holds no more."""
MOST = 10**11
"""No moment in seconds, number of attempts or of tokens within a second is larger."""
KEPT = 30 * 86400
"""Seconds after which a note that nobody wrote again is forgotten."""


class Sent(msgspec.Struct, frozen=True):
    """What one process sent on one quota within one second: so many attempts of so large a size together."""

    name: str
    sender: str
    second: int
    number: int
    size: float = 0.0


class Tidings(msgspec.Struct, frozen=True):
    """What one process has to tell.

    Attributes:
        at: seconds since 1970.
        notes: values by name; the newest counts.
        sent: counts; the newest of a (name, sender, second) counts.
        stale: for each name, the second before which its counts are forgotten.
    """

    at: float
    notes: Mapping[str, bytes] = {}
    sent: Sequence[Sent] = ()
    stale: Mapping[str, int] = {}

    def __bool__(self) -> bool:
        """Whether there is anything to tell."""
        return bool(self.notes or self.sent or self.stale)


class Since(msgspec.Struct, frozen=True):
    """What a reader knows already: the last stamp, the highest number of a rating, and lower ones that it missed.

    ``began``: attempts are wanted, too, the newest that began after this moment (microseconds since 1970).
    """

    stamp: int = 0
    rated: int = 0
    missed: Sequence[int] = ()
    began: int | None = None


class Rated(msgspec.Struct, frozen=True):
    """A rating that is new: its number, its call, and what the newest rating of that call says. Unknown calls have no name."""

    number: int
    call_id: str
    llm_name: str | None
    operation: str | None
    score: float | None


class Took(msgspec.Struct, frozen=True):
    """How long an attempt took, in the words of its row."""

    id: str
    llm_name: str
    operation: str | None
    stream: bool
    status: str
    latency_ms: float | None
    first_event_ms: float | None


class Look(msgspec.Struct, frozen=True):
    """What is new. ``switched`` is always the whole. ``took``: attempts, the newest first, where they are wanted."""

    stamp: int
    notes: Mapping[str, bytes]
    sent: Sequence[Sent]
    switched: Mapping[str, bool]
    rated: Sequence[Rated]
    highest: int
    took: Sequence[Took] = ()


# One statement: over a network every other one would cost as much again. The last two rows are always there.
_LOOK = """
SELECT 0, name, '', stamp, 0, 0, 0.0, value FROM llmbroker_notes WHERE stamp > ?
UNION ALL SELECT 1, name, sender, stamp, second, number, size, NULL FROM llmbroker_sent WHERE stamp > ?
UNION ALL SELECT 2, name, '', disabled, 0, 0, 0.0, NULL FROM llmbroker_disabled
UNION ALL SELECT 3, '', '', (SELECT max(seq) FROM llmbroker_ratings), 0, 0, 0.0, NULL
"""
_STAMP = """
SELECT coalesce((SELECT max(stamp) FROM llmbroker_notes), 0), coalesce((SELECT max(stamp) FROM llmbroker_sent), 0)
"""
_TOOK = """
SELECT id, llm_name, operation, stream, status, latency_ms, first_event_ms FROM llmbroker_calls
WHERE id > ? ORDER BY id DESC LIMIT ?
"""
_NEWEST = "SELECT n.score FROM llmbroker_ratings n WHERE n.call_id = r.call_id ORDER BY n.ts DESC, n.seq DESC LIMIT 1"


def look(db: Statements, since: Since) -> Look:
    """Return what is new."""
    notes: dict[str, bytes] = {}
    sent: list[Sent] = []
    switched: dict[str, bool] = {}
    stamp, highest = since.stamp, 0
    for kind, name, sender, mark, second, number, size, value in db.execute(_LOOK, (stamp, stamp)).fetchall():
        if kind == 3:
            highest = mark if isinstance(mark, int) else 0
        elif not isinstance(mark, int) or not isinstance(name, str):
            continue  # damaged rows say nothing
        elif kind == 2:
            switched[name] = bool(mark)
        else:
            stamp = max(stamp, mark)
            if kind == 0 and isinstance(value, bytes):
                notes[name] = value
            elif kind == 1 and _credible(second, number, size):
                sent.append(Sent(name, sender, second, number, size))
    rated: list[Rated] = []
    if highest != since.rated or since.missed:
        # Fewer than there were: some were deleted, and numbers may be given a second time.
        rated = _rated(db, since.rated if highest >= since.rated else 0, since.missed)
    return Look(stamp, notes, sent, switched, rated, highest, _took(db, since.began) if since.began is not None else ())


def _took(db: Statements, began: int) -> list[Took]:
    rows = db.execute(_TOOK, (id_at(began), MOST_TAKEN)).fetchall()  # ids grow with time
    return [
        Took(number, name, operation, bool(stream), status, latency, first)
        for number, name, operation, stream, status, latency, first in rows
        if isinstance(name, str) and all(value is None or isinstance(value, int | float) for value in (latency, first))
    ]


def _rated(db: Statements, after: int, missed: Sequence[int]) -> list[Rated]:
    among = f" OR r.seq IN ({', '.join('?' * len(missed))})" if missed else ""
    rows = db.execute(
        f"SELECT r.seq, r.call_id, c.llm_name, c.operation, ({_NEWEST}) FROM llmbroker_ratings r"  # noqa: S608 - our names
        f" LEFT JOIN llmbroker_calls c ON c.id = r.call_id WHERE r.seq > ?{among} ORDER BY r.seq DESC LIMIT ?",
        (after, *missed, MOST_RATINGS),
    ).fetchall()
    return [Rated(*row) for row in reversed(rows) if row[4] is None or (isinstance(row[4], int | float) and 0 <= row[4] <= 1)]


def _credible(second: Any, number: Any, size: Any) -> bool:
    """Whether a count can be true."""
    return (
        isinstance(second, int)
        and isinstance(number, int)
        and isinstance(size, int | float)
        and 0 <= second < MOST
        and 0 <= number < MOST
        and -MOST < size < MOST
    )


def tell(db: Statements, tidings: Tidings) -> None:
    """Write what one process has to tell; the transaction lets in one writer at a time."""
    stamp = max(db.execute(_STAMP).fetchone()) + 1
    for name, value in tidings.notes.items():
        db.execute(
            "INSERT INTO llmbroker_notes (name, stamp, ts, value) VALUES (?, ?, ?, ?) ON CONFLICT (name)"
            " DO UPDATE SET stamp = excluded.stamp, ts = excluded.ts, value = excluded.value",
            (name, stamp, int(tidings.at), value),
        )
    for one in tidings.sent:
        db.execute(
            "INSERT INTO llmbroker_sent (name, second, sender, stamp, number, size) VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (name, second, sender)"
            " DO UPDATE SET stamp = excluded.stamp, number = excluded.number, size = excluded.size",
            (one.name, one.second, one.sender, stamp, one.number, one.size),
        )
    for name, second in tidings.stale.items():
        # What bears the last stamp stays, so that no stamp is given twice.
        db.execute("DELETE FROM llmbroker_sent WHERE name = ? AND second < ? AND stamp < ?", (name, second, stamp - 1))
    if tidings.stale:
        db.execute("DELETE FROM llmbroker_notes WHERE ts < ? AND stamp < ?", (int(tidings.at) - KEPT, stamp - 1))
