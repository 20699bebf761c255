"""The commands of durable runs, as far as they need no database."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from llmbroker.faces.cli import main


@pytest.mark.parametrize(
    ("name", "words"), [("nonsense", "module:name"), ("no_such:queue", "cannot be loaded"), ("json:dumps", "is no Queue")]
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


@pytest.mark.parametrize("command", [["worker", "afar:queue"], ["submit", "afar:queue", "a", "Hi"]], ids=["worker", "submit"])
def test_a_server_that_is_not_there_is_named_with_what_to_do(
    command: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dbos")
    (tmp_path / "afar.py").write_text(
        "from llmbroker.durable import Queue\n"
        "queue = Queue('postgresql+psycopg://nobody:secret@127.0.0.1:1/none')\n"
        "queue.agent('a')(dict)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # these of the tests' own process stay
    assert main(command) == 2
    told = capsys.readouterr().err
    assert "postgresql://nobody@127.0.0.1:1/none cannot be used" in told
    assert "Check that the server runs" in told
    assert "secret" not in told
