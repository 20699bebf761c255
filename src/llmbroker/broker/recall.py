"""What rows of attempts teach: how long models take. Rows of this process's past, and of others on the same store."""

from __future__ import annotations

import math
from typing import Protocol

from llmbroker.pool import Member


class Taken(Protocol):
    """What is read of a row."""

    @property
    def operation(self) -> str | None:
        """The caller's label."""

    @property
    def stream(self) -> bool | None:
        """Whether it was streamed."""

    @property
    def status(self) -> str:
        """How it ended."""

    @property
    def latency_ms(self) -> float | None:
        """Milliseconds to its end."""

    @property
    def first_event_ms(self) -> float | None:
        """Milliseconds to the first event of a stream."""


def recalled(member: Member, row: Taken) -> None:
    """Take note of how long an attempt took, as its row tells."""
    took = row.first_event_ms if row.stream else row.latency_ms
    records = member.records(bool(row.stream), row.operation)
    if row.status == "ok" and took is not None and 0.0 <= took < math.inf:
        for record in records:
            record.add(took / 1000.0)
    elif (
        row.status in ("timeout", "superseded", "cancelled") and row.latency_ms is not None and 0.0 <= row.latency_ms < math.inf
    ):
        for record in records:
            record.stopped(row.latency_ms / 1000.0)
