"""What a call cost, in US dollars: from the user's own price, else from the packaged price list.

Unknown stays None, never 0: a model that is not listed, an entry without rates, a call whose tokens are not known. A model is
free where its name says so (``:free``) and its provider is one that the list knows to name free models like this. Nothing is
ever fetched; the list is as old as this package, or as an installed ``genai-prices`` that is newer (``llmbroker[prices]``).
``load()`` reads it while a provider is at work, else the first ``cost`` of a listed model does.

Cached and cache-write tokens have own rates where the list states them, else they cost what input costs. Rates that depend on
the length of the input, the date or the hour are those of this very call. Searches, images and audio are not in a call's usage
and so not in its cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from llmbroker.errors import ConfigurationError
from llmbroker.exchange import Usage
from llmbroker.prices.rates import FREE, Price, Rates, When

if TYPE_CHECKING:
    from llmbroker.prices.listed import PriceList

__all__ = ["CURRENCY", "FREE", "KINDS", "Price", "Rates", "When", "cost", "declared", "here", "load", "price_of"]

CURRENCY = "USD"
KINDS = ("input", "output", "cached", "cache_write")


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
    """Load the price list now, so that the first call need not wait for it. Never raises."""
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
    if provider is None and here(base_url):
        return None  # nobody lists this machine: the list need not be loaded to know that
    prices = _price_list()
    try:
        return None if prices is None else prices.price(model, provider, base_url)
    except Exception:  # noqa: BLE001 - a fault of the list is an unknown price
        return None


def here(base_url: str | None) -> bool:
    """Whether an address is one of this machine."""
    try:
        host = urlsplit(base_url or "").hostname or ""
    except ValueError:
        return False
    return host in ("localhost", "::1", "") or host.startswith("127.")


@lru_cache(maxsize=1)
def _price_list() -> PriceList | None:
    try:
        from llmbroker.prices import listed, source

        packaged = listed.packaged()
        there = source.installed()
        if there is not None and source.is_newer(there, packaged.source):
            try:
                return source.read()
            except Exception:  # noqa: BLE001 - broken, or a shape of the future: the older list is still right
                return packaged
    except Exception:  # noqa: BLE001 - a file that cannot be read: prices are unknown, calls go on
        return None
    return packaged
