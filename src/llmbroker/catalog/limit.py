"""What may be spent: ``Limit``, checked as it is made. How it is counted stands in ``allowances`` and ``broker.accounts``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from llmbroker.catalog.config import MOST_DOLLARS, PRICE_KINDS
from llmbroker.errors import ConfigurationError, InvalidRequestError
from llmbroker.messages import check_text, shown

EACH = "*"
"""In ``scope``, ``key`` or ``operation``: each of them apart, also one that nobody has heard of yet."""
WINDOWS = ("minute", "hour", "day", "month")
MEASURES = ("calls", "tokens", "cost")
MOST_COUNTED = 2**53
SHORTEST = 1.0
"""Seconds of a window at least."""


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """What may be spent in a window of time: by all, by one or each user, on one or each key, for one or each operation.

    Several limits hold beside each other, each with its own window; an attempt must fit into all that concern it.

    Attributes:
        calls: attempts that a provider answers or works on; those that it refuses, or never sees, are not counted.
        tokens: input and output together.
        cost: US dollars, by the model's declared price or the packaged list.
        window: ``"minute"``, ``"hour"``, ``"day"``, ``"month"`` (of the calendar, UTC), a number of seconds (counted from
            1970), or None: for ever.
        scope: a user's name, or ``"*"``: each user apart. None: whoever asks.
        key: the name of a key's variable, or ``"*"``: each key apart. None: on whichever key.
        operation: a label, or ``"*"``: each operation apart. None: for whatever.
        unknown_price: what an attempt counts towards ``cost`` where nobody knows the price: ``"refuse"`` it, ``"free"``,
            dollars for a call, or dollars per million tokens (``{"input": ..., "output": ...}``).
        strict: refuse while the store that counts for all processes cannot be reached; else this process counts alone.
        name: what it is called in errors and snapshots, and what its counts are kept under; made of the above if not given.

    Raises:
        ConfigurationError: a field is wrong, or nothing is limited; ``field`` names it.
    """

    calls: int | None = None
    tokens: int | None = None
    cost: float | None = None
    window: float | str | None = None
    scope: str | None = None
    key: str | None = None
    operation: str | None = None
    unknown_price: str | float | Mapping[str, float] = "refuse"
    strict: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        """Refuse what means nothing; give it a name."""
        for measure in ("calls", "tokens"):
            count = getattr(self, measure)
            if count is not None and (isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST_COUNTED):
                raise _wrong(measure, f"is a whole number, 0 or more, not {shown(count)}")
        if self.cost is not None and not _dollars(self.cost):
            raise _wrong("cost", f"is US dollars, 0 or more, not {shown(self.cost)}")
        if self.calls is None and self.tokens is None and self.cost is None:
            raise ConfigurationError("A limit says how many calls, tokens or dollars (cost).", field="calls")
        self._check_window()
        for field in ("scope", "key", "operation"):
            value = getattr(self, field)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise _wrong(field, f"is a name or {EACH!r} (each apart), not {shown(value)}")
        for field in ("scope", "key", "operation", "name"):
            _check_whole(field, getattr(self, field))
        self._check_unknown()
        if not isinstance(self.strict, bool):
            raise _wrong("strict", f"is True or False, not {shown(self.strict)}")
        if not self.name.strip():
            msgspec.structs.force_setattr(self, "name", self._described())

    def _check_window(self) -> None:
        window = self.window
        if window is None or (isinstance(window, str) and window in WINDOWS):
            return
        if (
            isinstance(window, (str, bool))
            or not isinstance(window, (int, float))
            or not SHORTEST <= window < MOST_COUNTED / 1e6
        ):
            known = ", ".join(WINDOWS)
            raise _wrong(
                "window", f"is {known}, a number of seconds from {SHORTEST:g}, or None (for ever), not {shown(window)}"
            )

    def _check_unknown(self) -> None:
        price = self.unknown_price
        if isinstance(price, Mapping):
            for kind, dollars in price.items():
                if kind not in PRICE_KINDS or not _dollars(dollars):
                    known = ", ".join(sorted(PRICE_KINDS))
                    raise _wrong(
                        "unknown_price", f"maps {known} to dollars per million tokens, not {shown(kind)} to {dollars!r}"
                    )
            msgspec.structs.force_setattr(self, "unknown_price", dict(price))
        elif price not in ("refuse", "free") and (isinstance(price, str) or not _dollars(price)):
            raise _wrong("unknown_price", f"is refuse, free, or a price, not {shown(price)}")

    def _described(self) -> str:
        whose = [
            f"each {field}" if value == EACH else f"{field} {value}"
            for field in ("scope", "key", "operation")
            if (value := getattr(self, field)) is not None
        ]
        what = " and ".join(measure for measure in MEASURES if getattr(self, measure) is not None)
        window = self.window
        if window is None:
            span = "for ever"
        elif isinstance(window, str):
            span = f"an {window}" if window == "hour" else f"a {window}"
        else:
            span = f"in {window:g} s"
        return f"{', '.join(whose) or 'all'}: {what} {span}"


def _dollars(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < MOST_DOLLARS


def _wrong(field: str, words: str) -> ConfigurationError:
    return ConfigurationError(f"A limit cannot be used: {field} {words}.", field=field)


def _check_whole(field: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, str) or "\0" in value:
        raise _wrong(field, f"is a text without zero bytes, not {shown(value)}")
    try:
        check_text(value, field)
    except InvalidRequestError as error:
        raise ConfigurationError(f"A limit cannot be used: {error}", field=field) from None
