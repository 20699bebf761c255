"""Every provider of the list is sent the right address, headers, body and tool shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.research.golden import MODELS, first_request, shown

GOLDEN: dict[str, Any] = json.loads(Path(__file__).with_name("golden.json").read_text(encoding="utf-8"))


def test_the_table_holds_every_provider_of_the_list() -> None:
    assert set(GOLDEN) == set(MODELS)
    assert set(MODELS) >= {
        "openai", "groq", "together", "deepseek", "xai", "alibaba", "zhipu", "moonshot", "xiaomi", "ollama", "anthropic",
        "gemini", "openrouter", "mistral",
    }  # fmt: skip


@pytest.mark.parametrize("provider", MODELS)
def test_a_provider_is_sent_what_the_table_says(provider: str) -> None:
    assert shown(first_request(provider)) == GOLDEN[provider]
