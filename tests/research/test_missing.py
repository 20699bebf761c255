"""Without the packages that only some need, what wants one of them says so and how to get it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from llmbroker import ConfigurationError
from llmbroker.research.embeddings import Embeddings
from llmbroker.research.frames import Rows
from llmbroker.tools.records import ToolHistory

WANTS: dict[str, tuple[str, Callable[[], Any], str]] = {
    "rows to pandas": ("pandas", Rows([{"a": 1}]).to_pandas, "llmbroker[frames]"),
    "rows to polars": ("polars", Rows([{"a": 1}]).to_polars, "pip install polars"),
    "vectors": ("pandas", Embeddings([[0.5]]).to_numpy, "llmbroker[frames]"),
    "tool history": ("pandas", ToolHistory().to_pandas, "llmbroker[frames]"),
}


@pytest.mark.parametrize(("package", "wants", "way"), WANTS.values(), ids=WANTS)
def test_a_package_that_is_not_there_is_named_with_the_way_to_get_it(
    package: str, wants: Callable[[], Any], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wants() is not None
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigurationError) as caught:
        wants()
    assert package in str(caught.value)
    assert way in str(caught.value)
