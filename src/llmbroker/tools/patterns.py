"""Regular expressions of strangers: ``pattern`` of a schema against a text, in bounded time.

Python's engine backtracks: a few nested or neighbouring repetitions take time that grows with a power of the text's length, or
exponentially. A pattern is therefore only tried on texts so short that the worst case stays in the milliseconds; what cannot be
tried is passed over, as if the schema had no pattern.
"""

from __future__ import annotations

import re
from functools import lru_cache

_WORK = 1e6
"""Steps of the worst case that are acceptable."""
_LONGEST_PATTERN = 500
_LONGEST_TEXT = 10_000
_NESTED = re.compile(r"[+*}?|][^()]*\)+(?:[+*]|\{\d+,?\d*\})|\\[1-9]|\(\?P=")
_REPEATED = re.compile(r"(?<!\\)(?:[+*]|\{\d+,\d*\})")


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> tuple[re.Pattern[str] | None, int]:
    """Return the pattern and the longest text that it may meet."""
    if len(pattern) > _LONGEST_PATTERN:
        return None, 0
    try:
        made = re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return None, 0
    repeated = len(_REPEATED.findall(pattern))
    if _NESTED.search(pattern):
        return made, 20
    # One more power: `search` begins anew at every character.
    power = repeated + (0 if pattern.startswith(("^", r"\A")) else 1)
    return made, min(_LONGEST_TEXT, int(_WORK ** (1 / power))) if power else _LONGEST_TEXT


def matches(pattern: object, text: str, *, default: bool) -> bool:
    """Whether the pattern is found in the text; ``default`` where that cannot be said in bounded time."""
    if not isinstance(pattern, str):
        return default
    made, longest = _compiled(pattern)
    if made is None or len(text) > longest:
        return default
    return made.search(text) is not None
