"""``llmbroker limits``: for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

from tests.faces.processes import Served, called

ROWS = """
[[limits]]
calls = 1
window = "day"

[[limits]]
scope = "*"
calls = 5
tokens = 1000
"""


def test_limits_are_listed_with_what_is_used_and_left(served: Served, models: str) -> None:
    Path(models).write_text(Path(models).read_text() + ROWS)
    assert called("ask", "hi", "--no-stream", "--no-stdin", "--source", models).code == 0
    refused = called("ask", "hi", "--no-stream", "--no-stdin", "--source", models)
    assert refused.code != 0
    assert "1 of 1 calls used" in refused.err
    assert len(served.requests) == 1
    day, each = json.loads(called("limits", "--json", "--source", models).out)
    assert (day["used"], day["left"]) == ({"calls": 1}, {"calls": 0})
    assert day["resets_at"].endswith("Z")
    assert (each["scope"], each["used"], each["resets_at"]) == ("*", {"calls": 0, "tokens": 0}, None)
    text = called("limits", "--source", models).out
    assert "all: calls a day" in text
    assert "never" in text
    bobs = json.loads(called("limits", "--json", "--source", models, "--scope", "bob").out)
    assert [one["scope"] for one in bobs] == [None, "bob"]


def test_without_limits_it_says_how_to_set_some(models: str) -> None:
    shown = called("limits", "--source", models)
    assert (shown.code, shown.out) == (0, "")
    assert "[[limits]]" in shown.err
    assert json.loads(called("limits", "--json", "--source", models).out) == []


def test_a_database_takes_limits_in_with_a_model_list(served: Served, models: str, tmp_path: Path) -> None:
    Path(models).write_text(Path(models).read_text() + ROWS)
    database = str(tmp_path / "broker.db")
    assert "1 model now and 2 limits" in called("models", "--source", database, "--take", models).err
    assert [one["name"] for one in json.loads(called("limits", "--json", "--source", database).out)] == [
        "all: calls a day",
        "each scope: calls and tokens for ever",
    ]
