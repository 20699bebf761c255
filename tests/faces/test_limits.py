"""``llmbroker limits``: for people and for programs."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
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


def nothing() -> None:
    """Do nothing: a tool."""


def test_limits_are_listed_with_what_is_used_and_left(served: Served, models: str) -> None:
    Path(models).write_text(Path(models).read_text() + ROWS)
    assert called("ask", "hi", "--no-stream", "--no-stdin", "--source", models).code == 0
    refused = called("ask", "hi", "--no-stream", "--no-stdin", "--source", models)
    assert refused.code != 0
    assert "1 of 1 calls used" in refused.err
    assert refused.err.splitlines()[-1] == f"llmbroker limits --source {models} shows what is left and when it opens."
    for options in (["--json"], ["--scope", "bob m"], ["--tool", f"{__name__}:nothing"]):
        also = called("ask", "hi", *options, "--no-stdin", "--source", models)
        assert also.code == 4, also.err
        whose = " --scope 'bob m'" if "--scope" in options else ""
        assert also.err.splitlines()[-1].startswith(f"llmbroker limits --source {models}{whose} shows")
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


def test_a_conversation_that_reaches_a_limit_says_what_shows_it_and_goes_on(
    served: Served, models: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(models).write_text(Path(models).read_text() + ROWS)
    lines = iter(["first", "second", "/usage", "/exit"])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    monkeypatch.setattr("sys.stdin", type("Terminal", (io.StringIO,), {"isatty": lambda self: True})())
    talk = called("chat", "--source", models)
    assert talk.code == 0
    assert f"llmbroker limits --source {models} shows what is left and when it opens.\n" in talk.err
    assert talk.err.index("1 of 1 calls used") < talk.err.index("llmbroker limits --source")
    assert next(lines, None) is None


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
