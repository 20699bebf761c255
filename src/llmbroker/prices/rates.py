"""What tokens cost: rates, and the time at which they hold. Pure values; where they come from is no matter here."""

from __future__ import annotations

from datetime import UTC, date, datetime, time

import msgspec

from llmbroker.exchange import Usage

_MILLION = 1_000_000.0
Tiers = tuple[tuple[int, float], ...]
"""(more input tokens than this, dollars per million), rising; the first begins at -1."""


class Rates(msgspec.Struct, frozen=True, omit_defaults=True):
    """Dollars per million tokens; None where no rate is stated."""

    input: Tiers | None = None
    output: Tiers | None = None
    cached: Tiers | None = None
    cache_write: Tiers | None = None

    def cost(self, usage: Usage) -> float | None:
        """Return what these tokens cost, or None where a count or a rate is missing."""
        tokens, made = usage.input_tokens, usage.output_tokens
        if tokens is None or made is None or (self.input is None and tokens) or (self.output is None and made):
            return None
        read = min(usage.cached_input_tokens or 0, tokens)
        written = min(usage.cache_write_tokens or 0, tokens - read)
        plain = _at(self.input, tokens)
        total = (tokens - read - written) * plain + made * _at(self.output, tokens)
        if read:
            total += read * (plain if self.cached is None else _at(self.cached, tokens))
        if written:
            total += written * (plain if self.cache_write is None else _at(self.cache_write, tokens))
        return total / _MILLION


class When(msgspec.Struct, frozen=True, omit_defaults=True):
    """From a day on, or between two times of every day, which may lie around midnight; both in UTC."""

    since: date | None = None
    begin: time | None = None
    end: time | None = None

    def holds(self, moment: datetime) -> bool:
        """Tell whether it holds at that moment; one without a zone is UTC."""
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        if self.since is not None and moment.date() < self.since:
            return False
        if self.begin is None or self.end is None:
            return True
        clock = moment.time()
        if self.end < self.begin:
            return clock >= self.begin or clock < self.end
        return self.begin <= clock < self.end


class Price(msgspec.Struct, frozen=True):
    """The rates of one model; several where they depend on the time of the call, and then the last that holds counts.

    ``name`` is the entry's name in the list, ``declared`` where the user stated the price.
    """

    name: str
    rates: tuple[tuple[When | None, Rates], ...]

    def at(self, moment: datetime) -> Rates:
        """Return the rates that hold at that moment."""
        if len(self.rates) == 1:
            return self.rates[0][1]
        for when, rates in reversed(self.rates):
            if when is None or when.holds(moment):
                return rates
        return self.rates[0][1]


FREE = Price("free", ((None, Rates(((-1, 0.0),), ((-1, 0.0),))),))


def _at(tiers: Tiers | None, input_tokens: int) -> float:
    """Return the rate for a call of that much input; all its tokens cost it."""
    if tiers is None:
        return 0.0
    rate = tiers[0][1]
    for start, dollars in tiers[1:]:
        if input_tokens > start:
            rate = dollars
    return rate
