"""What a call cost, in US dollars: from the user's own price, else from the packaged list of ``genai-prices``.

Unknown stays None, never 0: a model that is not listed, an entry without rates, a call whose tokens are not known. A model is
free where its name says so (``:free``) and its provider is one that the list knows to name free models like this. Nothing is
ever fetched; the list is as old as the installed ``genai-prices``. It takes a tenth of a second to load: ``load()`` does it
while a provider is at work, else the first ``cost`` of a listed model does.

Cached and cache-write tokens have own rates where the list states them, else they cost what input costs. Rates that depend on
the length of the input, the date or the hour are those of this very call. Searches, images and audio are not in a call's usage
and so not in its cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import msgspec

from llmbroker.errors import ConfigurationError
from llmbroker.exchange import Usage

CURRENCY = "USD"
KINDS = ("input", "output", "cached", "cache_write")
FREE_SUFFIX = ":free"
_MILLION = 1_000_000.0
Tiers = tuple[tuple[int, float], ...]
"""(more input tokens than this, dollars per million), rising; the first begins at -1."""


class Rates(msgspec.Struct, frozen=True):
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


class Price(msgspec.Struct, frozen=True):
    """The rates of one model; several where they depend on the time of the call.

    ``name`` is the entry's name in the list, ``declared`` where the user stated the price.
    """

    name: str
    rates: tuple[tuple[Callable[[datetime], bool] | None, Rates], ...]

    def at(self, moment: datetime) -> Rates:
        """Return the rates that hold at that moment."""
        if len(self.rates) == 1:
            return self.rates[0][1]
        for active, rates in reversed(self.rates):
            if active is None or active(moment):
                return rates
        return self.rates[0][1]


FREE = Price("free", ((None, Rates(((-1, 0.0),), ((-1, 0.0),))),))


def cost(
    usage: Usage | None,
    *,
    at: datetime,
    model: str,
    provider: str | None = None,
    base_url: str | None = None,
    price: Mapping[str, float] | None = None,
) -> float | None:
    """Return what a call cost in US dollars, or None when that is not known. Never raises for the packaged list.

    Args:
        usage: its tokens.
        at: when it began; some prices depend on the hour.
        model: the provider's name of the model.
        provider: id of the provider.
        base_url: where its API is, for those that the list knows by address.
        price: the user's dollars per million tokens (``LLMConfig.price``); it wins over the list.

    Raises:
        ConfigurationError: ``price`` has a kind of tokens that does not exist.
    """
    known = declared(price) if price is not None else price_of(model, provider=provider, base_url=base_url)
    if known is FREE:
        return 0.0
    return None if known is None or usage is None else known.at(at).cost(usage)


def price_of(model: str, *, provider: str | None = None, base_url: str | None = None) -> Price | None:
    """Return the listed price of a model, ``FREE``, or None when it is not known."""
    return _listed(model, provider, base_url)


def declared(price: Mapping[str, float]) -> Price:
    """Return the price that a user stated.

    Raises:
        ConfigurationError: a kind of tokens does not exist: it would be neither charged nor missed.
    """
    return _declared(tuple(price.items()))


def load() -> None:
    """Load the packaged list now, so that the first call need not wait for it. Never raises."""
    _price_list()


@lru_cache(maxsize=1024)
def _declared(items: tuple[tuple[str, float], ...]) -> Price:
    given = dict(items)
    unknown = sorted(set(given) - set(KINDS))
    if unknown:
        raise ConfigurationError(f"A price has no kind {unknown[0]!r}; known are {', '.join(KINDS)}.")
    return Price("declared", ((None, Rates(**{kind: ((-1, float(given[kind])),) for kind in given})),))


@lru_cache(maxsize=4096)
def _listed(model: str, provider: str | None, base_url: str | None) -> Price | None:
    """Find a model in the list. Whatever is wrong with the list, a call does not fail for it."""
    if provider is None and _is_here(base_url):
        return None  # nobody lists this machine: the list need not be loaded to know that
    prices = _price_list()
    if prices is None:
        return None
    found = None
    # The id first: a known provider behind a company's own address still costs what it costs.
    for who in ({"provider_id": provider}, {"provider_api_url": base_url}):
        if not next(iter(who.values())):
            continue
        ask = {"provider_id": None, "provider_api_url": None, **who}
        try:
            vendor = prices.find_provider(None, **ask)
            found = vendor.find_model(model.lower(), all_providers=prices.providers)
        except Exception:  # noqa: BLE001, S112 - LookupError by contract; a fault of the list must not fail a call
            continue
        if model.endswith(FREE_SUFFIX) and _names_free_models(vendor) and not (found and _has_rates(found)):
            return FREE
        if found is not None:
            break
    try:
        return None if found is None or not _has_rates(found) else _convert(found)
    except Exception:  # noqa: BLE001 - an entry in a shape of the future is an unknown price
        return None


def _is_here(base_url: str | None) -> bool:
    try:
        host = urlsplit(base_url or "").hostname or ""
    except ValueError:
        return False
    return host in ("localhost", "::1", "") or host.startswith("127.")


@lru_cache(maxsize=1)
def _price_list() -> Any:
    try:
        from genai_prices import data_snapshot

        return data_snapshot.get_snapshot()
    except Exception:  # noqa: BLE001 - not installed, or broken: prices are unknown, calls go on
        return None


def _variants(entry: Any) -> list[tuple[Any, Any]]:
    """Return (condition or None, prices) of an entry, later ones winning."""
    if isinstance(entry.prices, list):
        return [(item.constraint, item.prices) for item in entry.prices]
    return [(None, entry.prices)]


def _has_rates(entry: Any) -> bool:
    return any(prices.input_mtok is not None or prices.output_mtok is not None for _, prices in _variants(entry))


def _names_free_models(vendor: Any) -> bool:
    """Whether this vendor's free models bear the suffix: the list holds some of them, without rates."""
    return any(entry.id.endswith(FREE_SUFFIX) and not _has_rates(entry) for entry in vendor.models)


def _convert(entry: Any) -> Price:
    return Price(
        entry.id,
        tuple(
            (
                None if condition is None else condition.active,
                Rates(
                    _tiers(prices.input_mtok),
                    _tiers(prices.output_mtok),
                    _tiers(prices.cache_read_mtok),
                    _tiers(prices.cache_write_mtok),
                ),
            )
            for condition, prices in _variants(entry)
        ),
    )


def _tiers(value: Any) -> Tiers | None:
    if value is None:
        return None
    if not hasattr(value, "tiers"):
        return ((-1, float(value)),)
    return ((-1, float(value.base)), *((tier.start, float(tier.price)) for tier in value.tiers))


def _at(tiers: Tiers | None, input_tokens: int) -> float:
    """Return the rate for a call of that much input; all its tokens cost it."""
    if tiers is None:
        return 0.0
    rate = tiers[0][1]
    for start, dollars in tiers[1:]:
        if input_tokens > start:
            rate = dollars
    return rate
