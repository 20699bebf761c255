"""The commands beside ``ask``: what they print for people and for programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.faces.processes import Served, called, run
from tests.journal.conftest import make_call

from llmbroker.journal import Journal, open_store

ESCAPE = "\x1b"


def test_what_was_called_can_be_listed_shown_and_summed(served: Served, models: str) -> None:
    assert "There are no such calls" in called("calls").err
    for operation in ("one", "two"):
        called("ask", "hi", "--no-stream", "--no-stdin", "--source", models, "-o", operation)
    rows = json.loads(called("calls", "--json").out)
    assert [(row["operation"], row["status"]) for row in rows] == [("two", "ok"), ("one", "ok")]
    assert [row["operation"] for row in json.loads(called("calls", "--json", "-o", "one", "--since", "1h").out)] == ["one"]
    shown = called("calls", "show", rows[0]["id"]).out
    assert "in 3, out 2" in shown
    assert "not stored" in shown
    sums = json.loads(called("stats", "--json").out)
    assert (sums["mine"]["total"], sums["mine"]["usage"]["input_tokens"]) == (2, 6)
    assert called("calls").out.count("\n") == 3
    assert called("calls", "show", "nothing").code == 2


def test_models_of_the_pool_and_of_a_server(served: Served, models: str) -> None:
    pool = json.loads(called("models", "--json", "--source", models).out)
    assert pool["mine"]["available"] is True
    assert called("models", "--base-url", served.url).out.split() == ["small", "large"]
    state = json.loads(called("snapshot", "--json", "--source", models).out)
    assert state["models"]["mine"]["available"] is True


def test_env_says_what_is_set_and_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "gsk-secret-value-123")
    text = called("env").out
    assert "GEMINI_API_KEY=\n" in text
    assert "# GROQ_API_KEY is set (environment GROQ_API_KEY)" in text
    assert "secret-value" not in text
    free = called("env", "--free").out
    assert "ANTHROPIC_API_KEY" not in free


def test_keys_are_stored_unseen_and_their_source_is_told(tmp_path: Path) -> None:
    fernet = pytest.importorskip("cryptography.fernet", reason="stored keys need cryptography")
    master = fernet.Fernet.generate_key().decode()
    assert run("keys", "which", "GEMINI_API_KEY").returncode == 3
    done = run("keys", "set", "GEMINI_API_KEY", stdin=b"secret-value-123\n", LLMBROKER_MASTER_KEY=master)
    assert (done.returncode, done.stdout) == (0, b"")
    listed = run("keys", "list", LLMBROKER_MASTER_KEY=master)
    which = run("keys", "which", "GEMINI_API_KEY", LLMBROKER_MASTER_KEY=master)
    assert b"stored GEMINI_API_KEY" in listed.stdout
    assert which.stdout == b"stored GEMINI_API_KEY\n"
    beats = run("keys", "which", "GEMINI_API_KEY", LLMBROKER_MASTER_KEY=master, GEMINI_API_KEY="other")
    assert beats.stdout == b"environment GEMINI_API_KEY\n"
    for output in (done, listed, which):
        assert b"secret-value" not in output.stdout + output.stderr
    assert run("keys", "remove", "GEMINI_API_KEY", LLMBROKER_MASTER_KEY=master).returncode == 0
    assert run("keys", "remove", "GEMINI_API_KEY", LLMBROKER_MASTER_KEY=master).returncode == 3


COMMANDS = [
    ["--help"],
    ["calls"],
    ["stats"],
    ["models"],
    ["snapshot"],
    ["catalog"],
    ["env"],
    ["doctor"],
    ["paths"],
    ["keys", "list"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_escape_byte_leaves_but_to_a_terminal(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    done = called(*words)
    assert done.code == 0
    assert ESCAPE not in done.out + done.err


@pytest.mark.parametrize("words", [[*words, "--json"] for words in COMMANDS[1:]], ids=" ".join)
def test_every_command_speaks_json(words: list[str]) -> None:
    json.loads(called(*words).out)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_know_every_command(shell: str) -> None:
    script = called("completion", shell).out
    for word in ("ask", "snapshot", "base-url"):
        assert word in script
    if shell == "bash":
        checked = subprocess.run(["bash", "-n"], input=script.encode(), capture_output=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, b"")


def test_help_and_the_journal_start_without_the_heavy_rooms() -> None:
    for words, heavy in (
        (["--help"], {"msgspec", "llmbroker.broker", "http.client"}),
        (["calls"], {"llmbroker.broker", "rich", "aiohttp"}),
    ):
        code = f"import sys; from llmbroker.faces.cli import main; main({words!r}); print(*sys.modules, file=sys.stderr)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert heavy.isdisjoint(done.stderr.split())


def test_reading_a_database_that_is_not_there_says_so_and_makes_none(tmp_path: Path) -> None:
    for words in (["calls"], ["stats"], ["keys", "list"], ["keys", "which", "K"]):
        done = called(*words, "--source", str(tmp_path / "nope.db"))
        assert (done.code, done.out) == (2, ""), words
        assert "nope.db" in done.err
    assert not (tmp_path / "nope.db").exists()


def test_a_model_list_goes_into_a_database_and_its_models_have_names_there(served: Served, models: str, tmp_path: Path) -> None:
    database = str(tmp_path / "broker.db")
    assert called("models", "--source", database, "--take", models).code == 0
    assert list(json.loads(called("models", "--source", database, "--json").out)) == ["mine"]
    done = called("ask", "hi", "-m", "mine", "--source", database, "--no-stdin", "--no-stream")
    assert (done.code, done.out.strip()) == (0, served.text)
    assert called("models", "--source", models, "--take", models).code == 2


def test_the_missing_keys_are_those_of_the_list_that_was_named(tmp_path: Path) -> None:
    listed = tmp_path / "mine.toml"
    listed.write_text('[[llms]]\nname = "a"\nmodel = "a"\nbase_url = "http://models.test/v1"\napi_key_ref = "MY_OWN_KEY"\n')
    done = called("ask", "hi", "--source", str(listed), "--no-stdin")
    assert done.code == 3
    assert "MY_OWN_KEY" in done.err
    assert "GEMINI" not in done.err


def test_a_stored_key_that_cannot_be_read_is_listed_beside_those_that_can(tmp_path: Path) -> None:
    fernet = pytest.importorskip("cryptography.fernet", reason="stored keys need cryptography")
    master = fernet.Fernet.generate_key().decode()
    for words in (["GEMINI_API_KEY"], ["OWN_KEY", "--scope", "bob"]):
        assert run("keys", "set", *words, stdin=b"secret-value-123\n", LLMBROKER_MASTER_KEY=master).returncode == 0
    whole = json.loads(run("keys", "list", "--json", LLMBROKER_MASTER_KEY=master).stdout)
    assert [(row["name"], row["scope"], row["source"]) for row in whole] == [
        ("GEMINI_API_KEY", None, "stored GEMINI_API_KEY"),
        ("OWN_KEY", "bob", "stored OWN_KEY of bob"),
    ]
    lost = run("keys", "list", GROQ_API_KEY="gsk-other-value-456")
    assert lost.returncode == 0
    assert b"environment GROQ_API_KEY" in lost.stdout
    assert lost.stdout.count(b"cannot be read") == 2
    assert b"LLMBROKER_MASTER_KEY" in lost.stderr
    doctor = run("doctor")
    assert doctor.returncode == 1
    assert b"key GEMINI_API_KEY" in doctor.stdout
    for output in (lost, doctor):
        assert b"-value-" not in output.stdout + output.stderr


def test_the_doctor_names_a_broken_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMBROKER_HOME", str(tmp_path))
    (tmp_path / "catalog.toml").write_text("not toml [")
    done = called("doctor", "--json")
    states = {check["what"]: check["state"] for check in json.loads(done.out)}
    assert (done.code, states["catalog"]) == (1, "fault")


@pytest.mark.parametrize(
    "words", [("keys", "which", "K\udcff"), ("keys", "which", "K", "--scope", "\udcff"), ("calls", "--trace", "\udcff")]
)
def test_a_word_that_is_no_text_is_wrong_usage(words: tuple[str, ...], tmp_path: Path) -> None:
    Journal(open_store(tmp_path / "b.db")).record(make_call())
    done = called(*words, "--source", str(tmp_path / "b.db"))
    assert done.code == 2
    assert "surrogate" in done.err
