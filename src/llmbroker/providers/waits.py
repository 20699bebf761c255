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


_RESET = re.compile(r"^(?:x-|anthropic-)?ratelimit(?:bysize)?-(?:reset-?(?P<after>.*)|(?P<before>.+)-reset)$")


def reset_seconds(headers: Mapping[str, str], limit: str | None = None) -> tuple[float | None, str | None]:
    """Return when the window that refused opens again, and which it is (requests, tokens, day), from rate-limit headers.

    The window with nothing left is the one that refused; where none says so, the one that the error names (``limit``), else
    the one that opens first.
    """
    open_at: dict[str, float] = {}
    empty: dict[str, float] = {}
    for name, text in headers.items():
        found = _RESET.match(name)
        wait = seconds(text, headers=headers) if found else None
        if found is None or wait is None:
            continue
        window = found["after"] or found["before"] or ""
        open_at[window] = wait
        if _left(headers, name) == 0:
            empty[window] = wait
    for group, choose in ((empty, max), ({w: s for w, s in open_at.items() if limit and limit in w}, max), (open_at, min)):
        if group:
            window = choose(group, key=lambda name: group[name])
            return group[window], _window(window) if group is not open_at or len(open_at) == 1 else None
    return None, None


def _left(headers: Mapping[str, str], reset: str) -> float | None:
    text = headers.get(reset.replace("reset", "remaining"))
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


def _window(name: str) -> str | None:
    for word in ("day", "token", "request"):
        if word in name:
            return word if word == "day" else f"{word}s"
    return None
