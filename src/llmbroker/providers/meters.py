"""Meters: what the headers of a reply state about the quotas that it was counted in, or that refused it.

Four families of notations, whoever uses them: ``x-ratelimit-remaining-requests`` (also without a unit, with ``-day`` or
``-minute`` behind it, with the reset as ``1m2.5s``, as seconds, as an epoch in seconds or milliseconds, or with
``x-ratelimit-renewalperiod-requests`` in its place), ``anthropic-ratelimit-tokens-remaining`` (RFC 3339), the three
``ratelimit-remaining`` headers of the older IETF drafts, and ``RateLimit`` with ``RateLimit-Policy`` of the newer ones
(draft-ietf-httpapi-ratelimit-headers). What is no number, is negative, or has a limit of 0 is no statement: placeholders, -1
for "not metered" and the like are met in practice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

from llmbroker.providers.base import duration
from llmbroker.providers.waits import seconds

Kind: TypeAlias = Literal["requests", "tokens", "input", "output"]
LONGEST = 90_000.0
"""Seconds: a reset that is further away than a day and an hour is not believed."""
FINE = 0.002
"""Seconds by which a reset may be rounded that is stated with a unit or a fraction; one in whole numbers by a second."""


class Meter(NamedTuple):
    """One window of one quota, as a reply states it.

    Attributes:
        name: its unit and span in the provider's words; tells the windows of one quota apart.
        kind: what it counts: requests, tokens, or those of the input or the output alone.
        left: how many are left.
        limit: how many it lets through, or None.
        reset: seconds until it is as if nothing had been sent, or None.
        period: its length in seconds, where that is said, else None.
        rough: seconds by which ``reset`` may be rounded.
    """

    name: str
    kind: Kind
    left: float
    limit: float | None = None
    reset: float | None = None
    period: float | None = None
    rough: float = 1.0


_NAME = re.compile(
    r"^(?:x-|anthropic-)?ratelimit-(?:(limit|remaining|reset|renewalperiod)(?:-(.+))?|(.+)-(limit|remaining|reset))$"
)
_UNITS: dict[str, Kind] = {
    "": "requests",
    "req": "requests",
    "request": "requests",
    "requests": "requests",
    "token": "tokens",
    "tokens": "tokens",
    "tokens_usage_based": "tokens",
    "input-tokens": "input",
    "tokens-prompt": "input",
    "output-tokens": "output",
    "tokens-generated": "output",
}
_SPANS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0, "1s": 1.0, "1m": 60.0, "1h": 3600.0, "1d": 86400.0}
_OTHER = ("month", "year")
_FIELDS = {"limit": 0, "remaining": 1, "reset": 2, "renewalperiod": 3}


@lru_cache(maxsize=256)
def _place(name: str) -> tuple[tuple[str, Kind, float | None], int] | None:
    """Return which window a header speaks of, and which of its fields; None: of none that can be used."""
    found = _NAME.match(name)
    if found is None:
        return None
    window = found[2] or found[3] or ""
    unit, _, span = window.rpartition("-")
    period = _SPANS.get(span)
    if period is None:
        if span in _OTHER:
            return None
        unit = window
    kind = _UNITS.get(unit)
    if kind is None:
        return None
    return (window or "requests", kind, period), _FIELDS[found[1] or found[4]]


def meters(headers: Mapping[str, str]) -> tuple[Meter, ...]:
    """Return the windows that a reply's headers state something about; names are in lower case."""
    found: dict[tuple[str, Kind, float | None], list[str | None]] = {}
    structured = False
    for name in headers:
        if "ratelimit" not in name:
            continue
        place = _place(name)
        if place is not None:
            window, field = place
            if window not in found:
                found[window] = [None, None, None, None]
            found[window][field] = headers[name]
        elif name == "ratelimit":
            structured = True
    if structured:
        return tuple(_structured(headers))
    if not found:
        return ()
    out = []
    for (name, kind, period), (limit, left, reset, renewal) in found.items():
        if left is not None:
            made = _meter(name, kind, limit, left, reset, period or _number(renewal), headers)
            if made is not None:
                out.append(made)
    return tuple(out)


def _meter(
    name: str,
    kind: Kind,
    limit_text: str | None,
    left_text: str,
    reset_text: str | None,
    period: float | None,
    headers: Mapping[str, str],
) -> Meter | None:
    left = _number(left_text)
    limit = None
    if limit_text is not None:
        first, _, policy = limit_text.partition(",")  # older drafts: the policies stand behind the limit
        limit = _number(first.partition(";")[0])
        if limit is None or limit <= 0:
            return None
        if policy and (width := re.search(r";\s*w=(\d+)", policy)):
            period = _number(width[1])
    if left is None or (limit is not None and left > 2 * limit):
        return None
    if limit is not None:
        limit = max(limit, left)
    reset, rough = None, 1.0
    if reset_text:
        if reset_text[-1] == "s":
            reset, rough = _duration(reset_text), FINE
        else:
            reset = seconds(reset_text, headers=headers)
            rough = FINE if "." in reset_text else 1.0
        if reset is not None and reset > LONGEST:
            reset = None
    if period is not None and not 0 < period <= LONGEST:
        period = None
    return Meter(name, kind, left, limit, reset, period, rough)


_duration = lru_cache(maxsize=512)(duration)  # a few of them come again and again


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text else math.nan
    except ValueError:
        return None
    return value if 0 <= value < math.inf else None


# Possessive throughout: what a piece has taken is not tried in another way, which would take for ever.
_ITEM = re.compile(r'\s*+("(?:[^"\\]|\\.)*+"|[^,;"]*+)((?:\s*+;[^,;"]*+(?:"[^"]*+")?+)*+)\s*+(?:,|$)')


def _structured(headers: Mapping[str, str]) -> list[Meter]:
    """Read ``RateLimit: "name";r=9;t=30`` with its policy, or ``limit=10, remaining=9, reset=30``."""
    text = headers["ratelimit"][:1000]
    policies = dict(_items(headers.get("ratelimit-policy", "")[:1000]))
    out = []
    listed = _items(text)
    old = {name.partition("=")[0].strip().lower(): name.partition("=")[2].strip() for name, _ in listed if "=" in name}
    if "remaining" in old:
        width = next((facts.get("w") for facts in policies.values()), None)
        made = _meter("requests", "requests", old.get("limit"), old["remaining"], old.get("reset"), _number(width), {})
        return [made] if made is not None else []
    for name, facts in listed:
        if "r" not in facts:
            continue
        policy = policies.get(name, {})
        unit = policy.get("qu", "requests").strip('"')
        kind = _UNITS.get(unit)
        if kind is None:
            continue
        made = _meter(name or "requests", kind, policy.get("q"), facts["r"], facts.get("t"), _number(policy.get("w")), {})
        if made is not None:
            out.append(made)
    return out


def _items(text: str) -> list[tuple[str, dict[str, str]]]:
    out = []
    for found in _ITEM.finditer(text):
        name = found[1].strip().strip('"')
        pairs = (piece.partition("=") for piece in found[2].split(";") if "=" in piece)
        facts = {key.strip(): value.strip() for key, _, value in pairs}
        if name or facts:
            out.append((name, facts))
    return out


# -- of a refusal --------------------------------------------------------------------------------------------------------

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
    for meter in _structured(headers) if "ratelimit" in headers else ():
        if meter.reset is not None:
            window = f"{meter.name} {'day' if meter.period == _SPANS['day'] else meter.kind}"
            open_at[window] = meter.reset
            if meter.left == 0:
                empty[window] = meter.reset
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
