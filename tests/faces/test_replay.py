"""``llmbroker replay``: what it prints for people and for programs, and what it draws."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.faces.processes import called
from tests.replaying.worlds import DOMINATED, journal

from llmbroker.journal import Rating, open_store
from llmbroker.transports.model_store import data_home


@pytest.fixture
def kept() -> Path:
    """A journal in llmbroker's own folder."""
    rows = journal(DOMINATED, 400)
    path = data_home() / "journal.db"
    store = open_store(path)
    store.record(rows)
    store.record([Rating(call_id=row.id, score=row.score, ts=row.ts) for row in rows if row.score is not None])
    store.close()
    return path


def test_the_own_journal_is_played_and_told(kept: Path) -> None:
    done = called("replay", "--seeds", "1")
    assert done.code == 0
    for text in ("400 rows, 400 requests", "best-fixed: best", "cheapest: cheap", "fastest: quick", "More than always best"):
        assert text in done.out
    assert "These rows are no experiment" in done.out


def test_programs_get_the_same_as_json(kept: Path) -> None:
    done = called("replay", str(kept), "--policies", "random,quick", "--json", "--since", "2020-01-01", "-o", "sum")
    found = json.loads(done.out)
    assert [policy["name"] for policy in found["policies"]] == ["random", "quick", "best-fixed"]
    assert found["verdict"] == "undecided"
    assert found["rows"] < 400
    assert found["policies"][0]["good"]["low"] < found["policies"][0]["good"]["value"]


def test_it_is_drawn_where_it_is_asked_for(kept: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = called("replay", "--policies", "random", "--plot", str(tmp_path / "r.svg"))
    assert done.code == 0
    assert "<svg" in (tmp_path / "r.svg").read_text()


def test_without_matplotlib_one_line_says_what_to_install(kept: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    done = called("replay", "--policies", "random", "--plot", str(tmp_path / "r.svg"))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "llmbroker[plot]" in done.err


def test_where_nothing_was_called_nothing_is_concluded() -> None:
    done = called("replay")
    assert done.code == 0
    assert "Nothing can be concluded: the journal has no rows" in done.out


WRONG = {
    "no such policy": ["--policies", "ours,nobody"],
    "no policies": ["--policies", ","],
    "no database": ["nowhere.db"],
    "no time": ["--since", "yesterday"],
    "no budget": ["--budget", "0"],
    "no seeds": ["--seeds", "0"],
}


@pytest.mark.parametrize("words", WRONG.values(), ids=WRONG)
def test_wrong_words_are_one_line(words: list[str], kept: Path) -> None:
    done = called("replay", *words)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
