"""The packaged list beside the package that it is made from: the same entry under every name, the same rates at every hour."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmbroker import prices
from llmbroker.prices import listed, source
from llmbroker.prices.listed import Entry, Match, PriceList, Vendor
from llmbroker.prices.rates import Price, Rates, When

genai = pytest.importorskip("genai_prices")
THEIRS: list[Any] = importlib.import_module("genai_prices.data").providers
PACKAGED = listed.packaged()
same_release = pytest.mark.skipif(source.installed() != PACKAGED.source, reason="another release of genai-prices is installed")


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    prices._price_list.cache_clear()
    prices._listed.cache_clear()


@same_release
def test_the_file_is_what_make_prices_writes() -> None:
    script = Path(__file__).parents[2] / "docs" / "generate_prices.py"
    spec = importlib.util.spec_from_file_location("generate_prices", script)
    assert spec is not None and spec.loader is not None
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    assert writer.text(source.read()) == listed.FILE.read_bytes(), "run `make prices`"


def names_of(vendor: Any) -> Iterator[str]:
    every = sorted({model.id for one in THEIRS for model in one.models})
    yield from every[:: max(1, len(every) // 40)]
    for model in vendor.models[:60]:
        for name in (model.id, model.id.upper()):
            yield from (
                name,
                f"{name}-20251211",
                f"{name}-20251341",
                f"{name}:free",
                f"{name}-latest",
                f"maker/{name}",
                name[:-1],
            )


@same_release
@pytest.mark.parametrize("vendor", THEIRS, ids=lambda vendor: vendor.id)
def test_every_name_means_the_entry_that_the_source_means(vendor: Any) -> None:
    mine = PACKAGED.by_id(vendor.id)
    assert mine is not None and mine.id == vendor.id
    for name in names_of(vendor):
        theirs = vendor.find_model(name, all_providers=THEIRS)
        found = PACKAGED.find(mine, name)
        assert (found and found.name) == (theirs and theirs.id), name


@same_release
@pytest.mark.parametrize(
    "provider", [vendor.id for vendor in THEIRS] + ["gemini", " OpenAI ", "bedrock", "xai", "nobody", "vertex"]
)
def test_every_id_means_the_vendor_that_the_source_means(provider: str) -> None:
    from genai_prices.data_snapshot import find_provider_by_id

    theirs, mine = find_provider_by_id(THEIRS, provider), PACKAGED.by_id(provider)
    assert (mine and mine.id) == (theirs and theirs.id)


@same_release
@settings(max_examples=300, deadline=None)
@given(
    which=st.sampled_from([(vendor, model) for vendor in THEIRS for model in vendor.models if isinstance(model.prices, list)]),
    moment=st.datetimes(datetime(2024, 1, 1), datetime(2027, 6, 1), timezones=st.just(UTC)),
)
def test_the_rates_of_a_moment_are_those_of_the_source(which: tuple[Any, Any], moment: datetime) -> None:
    vendor, model = which
    entry = next(each for own in PACKAGED.vendors if own.id == vendor.id for each in own.models if each.name == model.id)
    if entry.rates:
        assert Price(entry.name, entry.rates).at(moment) == source._rates(model.get_prices(moment))


NIGHT = When(begin=time(23), end=time(2))
DAY = When(begin=time(9), end=time(17, 30))
HOURS: list[tuple[When, datetime, bool]] = [
    (DAY, datetime(2026, 1, 1, 9), True),
    (DAY, datetime(2026, 1, 1, 8, 59, 59), False),
    (DAY, datetime(2026, 1, 1, 17, 30), False),
    (DAY, datetime.fromisoformat("2026-01-01T12:00+04:00"), False),
    (NIGHT, datetime(2026, 1, 1, 23, tzinfo=UTC), True),
    (NIGHT, datetime(2026, 1, 1, 1, 59, tzinfo=UTC), True),
    (NIGHT, datetime(2026, 1, 1, 2, tzinfo=UTC), False),
    (When(since=date(2026, 1, 1)), datetime(2025, 12, 31, 23, 59, tzinfo=UTC), False),
    (When(since=date(2026, 1, 1)), datetime.fromisoformat("2025-12-31T23:30-02:00"), True),
]


@pytest.mark.parametrize(("when", "moment", "holds"), HOURS, ids=str)
def test_a_day_and_an_hour_are_those_of_utc(when: When, moment: datetime, holds: bool) -> None:
    assert when.holds(moment) is holds


@pytest.mark.parametrize(
    ("installed", "dollars"),
    [("genai-prices 99.0.0", 7.0), ("genai-prices 0.0.1", 5.0), (PACKAGED.source, 5.0), (None, 5.0)],
    ids=["newer", "older", "the same", "none"],
)
def test_the_newer_list_counts(installed: str | None, dollars: float, monkeypatch: pytest.MonkeyPatch) -> None:
    sevens = Entry("claude-opus-5", None, ((None, Rates(((-1, 7.0),), ((-1, 7.0),))),))
    newer = PriceList("genai-prices 99.0.0", (Vendor("anthropic", "https://api", None, (), (sevens,)),))
    monkeypatch.setattr(source, "installed", lambda: installed)
    monkeypatch.setattr(source, "read", lambda: newer)
    prices._price_list.cache_clear()
    prices._listed.cache_clear()
    found = prices.price_of("claude-opus-5", provider="anthropic")
    assert found is not None and found.at(datetime(2026, 10, 1, tzinfo=UTC)).input == ((-1, dollars),)


def test_a_newer_list_that_cannot_be_read_leaves_the_packaged_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "installed", lambda: "genai-prices 99.0.0")
    monkeypatch.setitem(sys.modules, "genai_prices.data", None)
    prices._price_list.cache_clear()
    assert prices._price_list() == PACKAGED


def test_numbers_of_releases_are_compared_as_numbers() -> None:
    assert source.is_newer("genai-prices 0.10.0", "genai-prices 0.9.5")
    assert not source.is_newer("genai-prices 0.9.5", "genai-prices 0.10.0")


def test_a_match_with_nothing_set_fits_nothing() -> None:
    assert not Match().fits("") and not Match(all=()).fits("x")
