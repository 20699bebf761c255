"""``genai-prices`` as a source: its list in the form of ``prices.listed``, for ``make prices`` and for who keeps it newer."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time
from importlib.util import find_spec
from typing import Any

from llmbroker.prices.listed import Entry, Match, PriceList, Vendor
from llmbroker.prices.rates import Rates, Tiers, When

PACKAGE = "genai-prices"
_TESTS = {"equals": "equals", "starts_with": "starts", "ends_with": "ends", "contains": "contains", "regex": "regex"}


def installed() -> str | None:
    """Return which release is installed, as ``genai-prices 0.2.3``."""
    if find_spec("genai_prices") is None:  # the usual case, told without loading what reads metadata
        return None
    from importlib import metadata

    try:
        return f"{PACKAGE} {metadata.version(PACKAGE)}"
    except metadata.PackageNotFoundError:
        return None


def is_newer(source: str, than: str) -> bool:
    """Compare two releases by their numbers."""
    return _numbers(source) > _numbers(than)


def _numbers(source: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", source)]


def read() -> PriceList:
    """Return the list of the installed release.

    Raises:
        Exception: whatever its import or a shape of the future raises.
    """
    from genai_prices.data import providers

    return PriceList(installed() or PACKAGE, tuple(_vendor(provider) for provider in providers))


def _vendor(provider: Any) -> Vendor:
    return Vendor(
        provider.id,
        provider.api_pattern,
        None if provider.provider_match is None else _match(provider.provider_match),
        tuple(provider.fallback_model_providers or ()),
        tuple(_entry(model) for model in provider.models),
    )


def _entry(model: Any) -> Entry:
    match: Match | None = _match(model.match)
    if match == Match(equals=model.id):
        match = None
    variants = model.prices if isinstance(model.prices, list) else [None]
    rates = tuple(
        (None, _rates(model.prices)) if each is None else (_when(each.constraint), _rates(each.prices)) for each in variants
    )
    known = any(one.input is not None or one.output is not None for _, one in rates)
    return Entry(model.id, match, rates if known else ())


def _match(clause: Any) -> Match:
    for theirs, ours in _TESTS.items():
        text = getattr(clause, theirs, None)
        if text is not None:
            return Match(**{ours: text if theirs == "regex" else text.lower()})
    if hasattr(clause, "or_"):
        return Match(any=tuple(_match(each) for each in clause.or_))
    return Match(all=tuple(_match(each) for each in clause.and_))


def _when(constraint: Any) -> When | None:
    if constraint is None:
        return None
    start: date | None = getattr(constraint, "start_date", None)
    return When(since=start) if start is not None else When(begin=_utc(constraint.start_time), end=_utc(constraint.end_time))


def _utc(clock: time) -> time:
    if clock.tzinfo is None:
        return clock
    return datetime.combine(date(1970, 1, 1), clock).astimezone(UTC).time()


def _rates(prices: Any) -> Rates:
    return Rates(
        _tiers(prices.input_mtok), _tiers(prices.output_mtok), _tiers(prices.cache_read_mtok), _tiers(prices.cache_write_mtok)
    )


def _tiers(value: Any) -> Tiers | None:
    if value is None:
        return None
    if not hasattr(value, "tiers"):
        return ((-1, float(value)),)
    return ((-1, float(value.base)), *((tier.start, float(tier.price)) for tier in value.tiers))
