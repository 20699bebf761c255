"""The price list: vendors, the models that each sells, and how the name in a request is matched with an entry.

``data/prices.json`` is written by ``make prices`` from ``genai-prices``, whose makers keep these facts; the file says from
which release. Where a newer release of that package is installed, its list is read instead (``prices.source``).
"""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache
from pathlib import Path

import msgspec

from llmbroker.prices.rates import FREE, Price, Rates, When

FILE = Path(__file__).resolve().parent.parent / "data" / "prices.json"
FREE_SUFFIX = ":free"
_COMPACT_DAY = re.compile(r"-(20\d\d)([01]\d)([0-3]\d)(?=-|:|$)")


class Match(msgspec.Struct, frozen=True, omit_defaults=True):
    """A test of a name in lower case; exactly one field is set."""

    equals: str | None = None
    starts: str | None = None
    ends: str | None = None
    contains: str | None = None
    regex: str | None = None
    any: tuple[Match, ...] = ()
    all: tuple[Match, ...] = ()

    def fits(self, name: str) -> bool:
        """Tell whether the name is meant."""
        if self.equals is not None:
            return name == self.equals
        if self.starts is not None:
            return name.startswith(self.starts)
        if self.ends is not None:
            return name.endswith(self.ends)
        if self.contains is not None:
            return self.contains in name
        if self.regex is not None:
            return re.search(self.regex, name) is not None
        if self.any:
            return any(each.fits(name) for each in self.any)
        return bool(self.all) and all(each.fits(name) for each in self.all)


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One model of a vendor. ``match`` None: its own name alone. No ``rates``: its price is not known."""

    name: str
    match: Match | None = None
    rates: tuple[tuple[When | None, Rates], ...] = ()

    def fits(self, model: str) -> bool:
        """Tell whether a request for that model means this entry."""
        return model == self.name if self.match is None else self.match.fits(model)


class Vendor(msgspec.Struct, frozen=True, omit_defaults=True):
    """One who sells models.

    Attributes:
        id: its name in the list.
        url: a regular expression that fits the beginning of its addresses.
        match: other ids that mean it.
        resells: vendors whose models it sells at their price.
        models: its entries; the first that fits counts.
    """

    id: str
    url: str
    match: Match | None = None
    resells: tuple[str, ...] = ()
    models: tuple[Entry, ...] = ()

    def find(self, model: str) -> Entry | None:
        """Return the first entry that fits a name in lower case."""
        return next((entry for entry in self.models if entry.fits(model)), None)

    def names_free_models(self) -> bool:
        """Whether its free models bear the suffix: the list holds some of them, without rates."""
        return any(entry.name.endswith(FREE_SUFFIX) and not entry.rates for entry in self.models)


class PriceList(msgspec.Struct, frozen=True):
    """All vendors. ``source`` names what it was made from."""

    source: str
    vendors: tuple[Vendor, ...]

    def by_id(self, provider: str) -> Vendor | None:
        """Return the vendor of that id."""
        wanted = provider.lower().strip()
        exact = next((vendor for vendor in self.vendors if vendor.id == wanted), None)
        return exact or next(
            (vendor for vendor in self.vendors if vendor.match is not None and vendor.match.fits(wanted)), None
        )

    def by_url(self, base_url: str) -> Vendor | None:
        """Return the vendor behind an address."""
        return next((vendor for vendor in self.vendors if re.match(vendor.url, base_url)), None)

    def find(self, vendor: Vendor, model: str) -> Entry | None:
        """Return what a vendor sells under a name: its own entry, or that of one whose models it resells."""
        model = model.lower()
        for name in dict.fromkeys((model, _COMPACT_DAY.sub(_with_dashes, model))):
            found = vendor.find(name)
            for other in vendor.resells:
                if found is None and (maker := next((one for one in self.vendors if one.id == other), None)) is not None:
                    found = maker.find(name)
            if found is not None:
                return found
        return None

    def price(self, model: str, provider: str | None, base_url: str | None) -> Price | None:
        """Return the price of a model, ``FREE``, or None. The id counts before the address.

        A known provider behind a company's own address still costs what it costs.
        """
        for vendor in (self.by_id(provider) if provider else None, self.by_url(base_url) if base_url else None):
            if vendor is None:
                continue
            found = self.find(vendor, model)
            if model.endswith(FREE_SUFFIX) and not (found and found.rates) and vendor.names_free_models():
                return FREE
            if found is not None:
                return Price(found.name, found.rates) if found.rates else None
        return None


def _with_dashes(day: re.Match[str]) -> str:
    """Write the day of ``-20251211`` as the list does; digits that are no day stay."""
    year, month, number = day.groups()
    try:
        date(int(year), int(month), int(number))
    except ValueError:
        return day[0]
    return f"-{year}-{month}-{number}"


@lru_cache(maxsize=1)
def packaged() -> PriceList:
    """Return the list that came with this package."""
    return msgspec.json.decode(FILE.read_bytes(), type=PriceList)
