"""The pages of reported faults and of what a loop does name tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_page_of_faults_names_is_there() -> None:
    text = (ROOT / "docs" / "faults.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)", text)
    assert len(named) > 280
    missing = [f"{path}::{name}" for path, name in named if not re.search(rf"def {name}\(", _text(path))]
    assert missing == []


def test_every_fault_of_the_page_has_a_test_or_an_owner() -> None:
    text = (ROOT / "docs" / "faults.md").read_text()
    rows = re.findall(r"^\| ([A-GQ]?\d+) \| [^|]+ \| ([^|]*) \| ([^|]*) \|$", text, re.MULTILINE)
    assert len(rows) > 210
    assert [number for number, held, owner in rows if not held.strip() and not owner.strip()] == []
    listed = [number for number, _, _ in rows]
    assert len(set(listed)) == len(listed)


def test_every_feature_of_the_loop_is_shown_by_tests_that_there_are_or_declined_with_a_reason() -> None:
    text = (ROOT / "docs" / "loop-features.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]*) \|$", text, re.MULTILINE)[1:]
    assert len(rows) >= 55
    for feature, answer, shown in rows:
        if answer.startswith("declined: "):
            assert not shown.strip(), feature
            continue
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", shown)
        assert named, f"{feature}: nothing shows it"
        assert [name for path, name in named if not re.search(rf"def {name}\(", _text(path))] == [], feature


def _text(path: str) -> str:
    file = ROOT / path
    return file.read_text() if file.exists() else ""
