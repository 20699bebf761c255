"""The commands of durable runs, as far as they need no database."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmbroker.faces.cli import main


@pytest.mark.parametrize(
    ("name", "words"), [("nonsense", "module:name"), ("no_such:queue", "leads to no queue"), ("json:dumps", "is no Queue")]
)
@pytest.mark.parametrize("command", [["worker"], ["submit"]])
def test_a_name_that_leads_to_no_queue_is_refused(
    name: str,
    words: str,
    command: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    more = ["agent", "question"] if command == ["submit"] else []
    assert main([*command, name, *more]) != 0
    assert words in capsys.readouterr().err
