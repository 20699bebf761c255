"""``--prefer``: what is asked for on the command line reaches the call."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faces.processes import Served, called


@pytest.fixture
def two(served: Served, tmp_path: Path) -> str:
    """A better and a cheaper model, of the same server."""
    path = tmp_path / "two.toml"
    rows = [("better", 0.9, 10.0), ("cheaper", 0.5, 1.0)]
    path.write_text("\n".join(
        f'[[llms]]\nname = "{name}"\nmodel = "small"\nbase_url = "{served.url}"\napi_key_ref = ""\nweight = {weight}\n'
        f"price = {{ input = {price}, output = {price} }}\n"
        for name, weight, price in rows
    ))  # fmt: skip
    return str(path)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ((), "better"),
        (("--prefer", "quality"), "better"),
        (("--prefer", "cost"), "cheaper"),
        (("--prefer", "quality=9,cost=1"), "better"),
        (("--prefer", "quality=1, cost=9"), "cheaper"),
    ],
    ids=str,
)
def test_what_is_preferred_answers(two: str, words: tuple[str, ...], name: str) -> None:
    done = called("ask", "hi", "--no-stdin", "--no-stream", "-u", "--source", two, *words)
    assert (done.code, done.err.split(":")[0]) == (0, name)


@pytest.mark.parametrize("value", ["cheap", "cost=x", "cost=-1", "price=1", "cost=0", ""])
def test_a_preference_that_is_none_is_a_wrong_argument(two: str, value: str) -> None:
    done = called("ask", "hi", "--no-stdin", "--source", two, "--prefer", value)
    assert done.code == 2
    assert "quality, speed, cost" in done.err
