"""What a call cost: the user's price, the packaged list, and what is not known."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmbroker import prices
from llmbroker.errors import ConfigurationError
from llmbroker.exchange import Usage

MOMENT = datetime(2026, 10, 1, 12, tzinfo=UTC)


def cost(usage: Usage | None, **where: Any) -> float | None:
    return prices.cost(usage, **{"at": MOMENT, "model": "m", **where})


DECLARED: dict[str, tuple[dict[str, float], Usage | None, float | None]] = {
    "input and output": ({"input": 2.0, "output": 10.0}, Usage(1_000_000, 500_000), 7.0),
    "cached at its rate": ({"input": 2.0, "output": 0.0, "cached": 0.2}, Usage(1_000_000, 0, 400_000), 1.28),
    "cached without a rate costs input": ({"input": 2.0, "output": 0.0}, Usage(1_000_000, 0, 400_000), 2.0),
    "cache write": ({"input": 1.0, "output": 0.0, "cache_write": 1.25}, Usage(1_000_000, 0, None, 1_000_000), 1.25),
    "read and written": (
        {"input": 1, "output": 0, "cached": 0.1, "cache_write": 2},
        Usage(10**6, 0, 5 * 10**5, 2 * 10**5),
        0.75,
    ),
    "more cached than sent": ({"input": 1.0, "output": 0.0, "cached": 0.5}, Usage(1_000_000, 0, 9_000_000), 0.5),
    "reasoning is part of the output": ({"input": 0.0, "output": 1.0}, Usage(0, 1_000_000, None, None, 900_000), 1.0),
    "free": ({"input": 0, "output": 0}, Usage(5, 5), 0.0),
    "no tokens": ({"input": 1, "output": 1}, Usage(0, 0), 0.0),
    "tokens unknown": ({"input": 1, "output": 1}, None, None),
    "output unknown": ({"input": 1, "output": 1}, Usage(5), None),
    "input unknown": ({"input": 1, "output": 1}, Usage(None, 5), None),
    "no rate for the output": ({"input": 1}, Usage(5, 5), None),
    "no rate needed for no output": ({"input": 1}, Usage(1_000_000, 0), 1.0),
}


@pytest.mark.parametrize(("price", "usage", "expected"), DECLARED.values(), ids=DECLARED)
def test_a_declared_price_is_dollars_per_million(price: dict[str, float], usage: Usage | None, expected: float | None) -> None:
    found = cost(usage, price=price)
    assert found == (None if expected is None else pytest.approx(expected))


def test_a_declared_price_wins_over_the_list() -> None:
    usage = Usage(1_000_000, 0)
    assert cost(usage, model="claude-opus-5", provider="anthropic") == pytest.approx(5.0)
    assert cost(usage, model="claude-opus-5", provider="anthropic", price={"input": 1, "output": 1}) == pytest.approx(1.0)


def test_a_kind_of_tokens_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="imput"):
        cost(Usage(1, 1), price={"imput": 1.0})


UNKNOWN = {
    "model not listed": ("no-such-model-at-all", "openai", None),
    "provider not listed": ("gpt-5.6-sol", "nobody", None),
    "no provider": ("gpt-5.6-sol", None, None),
    "listed without any rate": ("gemma-3", "gemini", None),
    "address not listed": ("gpt-5.6-sol", None, "https://models.test/v1"),
    "no address at all": ("gpt-5.6-sol", None, "http://[::1"),
    "free by name at one who does not name free models so": ("x/y:free", "groq", None),
}


@pytest.mark.parametrize(("model", "provider", "url"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_not_known_is_none_and_not_zero(model: str, provider: str | None, url: str | None) -> None:
    assert cost(Usage(1000, 1000), model=model, provider=provider, base_url=url) is None


def test_a_provider_is_found_by_its_address_too() -> None:
    found = cost(Usage(1_000_000, 0), model="openai/gpt-oss-120b", base_url="https://api.groq.com/openai/v1")
    assert found == pytest.approx(0.15)


@pytest.mark.parametrize("model", ["nvidia/nemotron-3-ultra-550b-a55b:free", "somebody/a-model-of-tomorrow:free"])
@pytest.mark.parametrize("usage", [Usage(10, 10), Usage(), None], ids=["tokens", "tokens unknown", "no usage"])
def test_a_free_model_of_one_who_names_them_so_costs_nothing(model: str, usage: Usage | None) -> None:
    assert cost(usage, model=model, provider="openrouter") == 0.0


def test_a_long_input_costs_its_tier_with_all_its_tokens() -> None:
    where = {"model": "gemini-2.5-pro", "provider": "gemini"}
    short, long = cost(Usage(200_000, 0), **where), cost(Usage(200_001, 0), **where)
    assert (short, long) == (pytest.approx(0.25), pytest.approx(0.5000025))


def test_a_price_depends_on_the_date_and_the_hour_where_the_list_says_so() -> None:
    usage = Usage(1_000_000, 0)
    where = {"model": "deepseek-v4-pro", "provider": "deepseek"}
    found = [cost(usage, at=datetime(2026, month, 20, hour, tzinfo=UTC), **where) for month, hour in ((8, 12), (9, 12), (9, 2))]
    assert found == [pytest.approx(0.66), pytest.approx(0.66), pytest.approx(1.32)]
    assert cost(usage, at=datetime(2026, 8, 1, 12, tzinfo=UTC), **where) == pytest.approx(0.435)


MODELS = (
    ("anthropic", "claude-opus-5"),
    ("openai", "gpt-5.6-sol"),
    ("openai", "gpt-5.6-luna"),
    ("gemini", "gemini-2.5-pro"),
    ("groq", "openai/gpt-oss-120b"),
    ("deepseek", "deepseek-v4-pro"),
    ("mistral", "mistral-large-latest"),
)


@settings(max_examples=150, deadline=None)
@given(
    which=st.sampled_from(MODELS),
    tokens=st.tuples(st.integers(0, 600_000), st.integers(0, 200_000), st.integers(0, 100_000), st.integers(0, 100_000)),
    hour=st.integers(0, 23),
)
def test_a_listed_cost_is_what_the_list_s_own_sum_says(
    which: tuple[str, str], tokens: tuple[int, int, int, int], hour: int
) -> None:
    """The library is the oracle; it refuses more cached tokens than there are, so they are kept below."""
    from genai_prices import Usage as TheirUsage
    from genai_prices import calc_price

    sent, made, read, written = tokens
    read, written = min(read, sent // 2), min(written, sent // 2)
    moment = datetime(2026, 10, 1, hour, 30, tzinfo=UTC)
    theirs = calc_price(
        TheirUsage(input_tokens=sent, output_tokens=made, cache_read_tokens=read, cache_write_tokens=written),
        which[1],
        provider_id=which[0],
        genai_request_timestamp=moment,
    )
    ours = cost(Usage(sent, made, read, written), at=moment, model=which[1], provider=which[0])
    assert ours == pytest.approx(float(theirs.total_price), abs=1e-12)


def run(code: str) -> list[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_nothing_is_fetched_and_no_other_package_is_needed() -> None:
    code = """
import socket, sys
def refuse(*a, **k): raise AssertionError("network")
socket.socket.connect = refuse
socket.getaddrinfo = refuse
sys.modules["genai_prices"] = None
from llmbroker import prices
from llmbroker.exchange import Usage
from datetime import datetime, UTC
prices.load()
print(prices.cost(Usage(1000000, 0), at=datetime(2026, 10, 1, tzinfo=UTC), model="claude-opus-5", provider="anthropic"))
print("pydantic" in sys.modules)
"""
    assert run(code) == ["5.0", "False"]


@pytest.mark.parametrize(
    "content", [None, b"", b"[]", b'{"source": 1}'], ids=["no file", "empty", "another shape", "a wrong type"]
)
def test_a_list_that_cannot_be_read_breaks_nothing(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "prices.json"
    if content is not None:
        file.write_bytes(content)
    code = f"""
from pathlib import Path
from llmbroker.prices import listed
from llmbroker import prices
listed.FILE = Path({str(file)!r})
prices.load()
print(prices.price_of("claude-opus-5", provider="anthropic"))
"""
    assert run(code) == ["None"]


@pytest.mark.parametrize("url", [None, "http://127.0.0.1:8080/v1", "http://localhost:1/v1", "http://[::1]:1/v1"])
def test_a_server_of_this_machine_is_looked_for_in_no_list(url: str | None) -> None:
    code = f"""
import sys
from llmbroker import prices
print(prices.price_of("m", base_url={url!r}), "llmbroker.prices.listed" in sys.modules)
"""
    assert run(code) == ["None", "False"]


def test_importing_prices_does_not_load_the_list() -> None:
    assert run("import llmbroker.prices, sys; print('llmbroker.prices.listed' in sys.modules)") == ["False"]
