"""Waits: the notations in which providers say when to come back, to seconds.

``120ms``, ``1h27m50.4s``, bare seconds, milliseconds, HTTP dates, RFC 3339, epoch seconds and milliseconds. A wait is finite
and not negative, or it is None. Absolute times are measured against the reply's own ``date`` header, so that a clock that is
wrong here does no harm; only without one is the local clock read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache

from llmbroker.providers.base import duration


def _clock(headers: Mapping[str, str]) -> float:
    date = _date(headers.get("date"))
    return date if date is not None else datetime.now(UTC).timestamp()  # noqa: TID251 - an absolute time from a server without a clock


_HTTP_DATE = re.compile(r"(\d{1,2})[ -](\w{3})[ -](\d{4}) (\d\d):(\d\d):(\d\d)")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@lru_cache(maxsize=64)  # one reply states the same moments several times
def _date(text: str | None) -> float | None:
    """Return epoch seconds out of an HTTP date (always GMT) or an RFC 3339 time."""
    if not text:
        return None
    text = text.strip()
    try:
        found = _HTTP_DATE.search(text)
        if found:
            day, month, year, hour, minute, second = found.groups()
            when = datetime(int(year), _MONTHS.index(month) + 1, int(day), int(hour), int(minute), int(second), tzinfo=UTC)
        else:
            when = datetime.fromisoformat(text)
        return when.replace(tzinfo=when.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        return None


def seconds(text: str | None, *, unit: float = 1.0, headers: Mapping[str, str] | None = None) -> float | None:
    """Return the seconds to wait that a value states; None where it cannot be read or makes no sense.

    Args:
        text: the value of a header or field.
        unit: seconds that a bare number counts in.
        headers: of the reply; its ``date`` is the moment that absolute times are measured against.
    """
    if not text:
        return None
    value = None if "T" in text else duration(text)
    if value is not None:
        if value >= 1e9 and unit == 1.0:  # an epoch: no wait is 30 years
            value = max(0.0, value / (1000.0 if value >= 1e11 else 1.0) - _clock(headers or {}))
        elif unit != 1.0:
            value *= unit
        return value if math.isfinite(value) else None
    when = _date(text)
    return None if when is None else max(0.0, when - _clock(headers or {}))
