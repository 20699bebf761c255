"""Conversations that go on, rows as they are written, old rows that go, copies: what stands around ``ask`` and ``calls``."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.faces.processes import Served, called, run
from tests.journal.server import new_database

from llmbroker import Conversation
from llmbroker.faces.cli.kept import kept_path
from llmbroker.journal import Call, Journal, open_store

ASK = ("ask", "--no-stdin")


def said(served: Served, at: int = -1) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in served.requests[at]["messages"]]


def test_what_belongs_to_a_model_list_is_read_where_its_broker_writes_it(served: Served, models: str, tmp_path: Path) -> None:
    assert called(*ASK, "One?", "--source", models).code == 0
    assert json.loads(called("calls", "--json", "--source", models).out)[0]["status"] == "ok"
    assert "1" in called("stats", "--source", models).out
    assert called("journal", "backup", str(tmp_path / "copy.db"), "--source", models).code == 0
    assert len(json.loads(called("calls", "--json", "--source", str(tmp_path / "copy.db")).out)) == 1
    assert called("keys", "list", "--source", models).code == 0


# -- ask --continue --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [[], ["--no-stream"], ["--json"], ["--jsonl"]], ids=["stream", "whole", "json", "jsonl"])
def test_a_question_goes_on_with_the_last_conversation(how: list[str], served: Served, models: str) -> None:
    assert called(*ASK, "One?", "-s", "Be brief.", *how, "--source", models).code == 0
    assert called(*ASK, "-c", "Two?", *how, "--source", models).code == 0
    assert called(*ASK, "--continue", "Three?", *how, "--source", models).code == 0
    answer = served.text if how in (["--no-stream"], ["--json"]) else f"{served.text} "
    assert said(served) == [
        ("system", "Be brief."),
        ("user", "One?"),
        ("assistant", answer),
        ("user", "Two?"),
        ("assistant", answer),
        ("user", "Three?"),
    ]


def test_a_question_without_c_begins_anew_and_a_new_system_message_replaces_the_old(served: Served, models: str) -> None:
    called(*ASK, "One?", "-s", "Be brief.", "--source", models)
    called(*ASK, "-c", "Two?", "-s", "Be long.", "--no-stream", "--source", models)
    assert said(served)[0] == ("system", "Be long.")
    assert [role for role, _ in said(served)].count("system") == 1
    called(*ASK, "Three?", "--source", models)
    assert said(served) == [("user", "Three?")]


def test_a_conversation_with_tools_goes_on_with_its_calls(served: Served, models: str, tmp_path: Path) -> None:
    (tmp_path / "mytools.py").write_text('def add(a: int) -> int:\n    """Add."""\n    return a + 1\n')
    served.calls = [{"name": "add", "arguments": {"a": 2}}]
    assert run("ask", "add", "-T", "mytools:add", "--source", models, cwd=tmp_path).returncode == 0
    assert run("ask", "-c", "and again", "--source", models, cwd=tmp_path).returncode == 0
    assert [message["role"] for message in served.requests[-1]["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]


def test_the_conversation_is_a_file_of_its_owner_that_python_reads(served: Served, models: str) -> None:
    called(*ASK, "One?", "--no-stream", "--source", models)
    assert [message["content"] for message in Conversation.load(kept_path()).messages] == ["One?", served.text]
    if os.name == "posix":
        assert kept_path().stat().st_mode & 0o077 == 0


def test_no_keep_leaves_nothing_and_a_failed_answer_leaves_the_last_one(served: Served, models: str) -> None:
    called(*ASK, "One?", "--no-keep", "--source", models)
    assert not kept_path().exists()
    done = called(*ASK, "-c", "Two?", "--source", models)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "no conversation to go on with" in done.err
    called(*ASK, "Three?", "--no-stream", "--source", models)
    served.status = 500
    assert called(*ASK, "-c", "Four?", "--base-url", served.url, "-m", "small").code == 1
    assert [message["content"] for message in Conversation.load(kept_path()).messages] == ["Three?", served.text]


def test_a_spoilt_conversation_is_said_in_a_line(served: Served, models: str) -> None:
    kept_path().parent.mkdir(parents=True, exist_ok=True)
    kept_path().write_text("no json")
    done = called(*ASK, "-c", "Two?", "--source", models)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert str(kept_path()) in done.err


# -- calls --tail ----------------------------------------------------------------------------------------------------------


def rows_of(path: Path, *ages: float) -> Journal:
    """Write a row of each age in days."""
    journal = Journal(open_store(path), retention=None)
    for number, age in enumerate(ages):
        ts = datetime.now(UTC) - timedelta(days=age)
        journal.record(Call(id=f"row-{number}", ts=ts, llm_name="mine", status="ok", latency_ms=5.0))
    journal.flush()
    return journal


@pytest.mark.skipif(sys.platform == "win32", reason="signals are of POSIX")
@pytest.mark.parametrize("how", [["--json"], []], ids=["json", "table"])
def test_new_rows_are_followed_until_ctrl_c(how: list[str], tmp_path: Path) -> None:
    journal = rows_of(tmp_path / "a.db", 3, 2, 0.001)
    process = subprocess.Popen(
        [sys.executable, "-m", "llmbroker", "calls", "--tail", "-n", "2", *how, "--source", str(tmp_path / "a.db")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2 if how else 3)]
    now = datetime.now(UTC)
    journal.record(Call(id="row-new", ts=now, llm_name="mine", status="ok"))
    lines.append(process.stdout.readline())
    # An attempt that began before and ended later is not lost.
    journal.record(Call(id="row-slow", ts=now - timedelta(minutes=9), llm_name="mine", status="timeout"))
    lines.append(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=20)
    journal.close()
    found = [json.loads(line)["id"] for line in lines] if how else [line.split()[-1] for line in lines[1:]]
    assert found == ["row-1", "row-2", "row-new", "row-slow"]
    assert (process.returncode, rest, err) == (0, "", "")


@pytest.mark.skipif(sys.platform == "win32", reason="signals are of POSIX")
def test_following_waits_for_a_journal_that_is_not_there_yet(served: Served, models: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "llmbroker", "calls", "--tail", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    called(*ASK, "hi", "--no-stream", "--source", models)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["llm_name"] == "mine"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20) == ("", "")
    assert process.returncode == 0


# -- journal prune, journal backup -----------------------------------------------------------------------------------------


def ids(path: Path | str) -> set[str]:
    return {row["id"] for row in json.loads(called("calls", "--json", "-n", "100", "--source", str(path)).out)}


def test_old_rows_go_and_young_ones_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    rows_of(path, 40, 20, 1, 0).close()
    dry = called("journal", "prune", "--keep", "30", "--dry-run", "--source", str(path))
    assert dry.out.startswith("1 row from before ")
    assert len(ids(path)) == 4
    assert called("journal", "prune", "--keep", "30", "--source", str(path)).code == 0
    assert ids(path) == {"row-1", "row-2", "row-3"}
    gone = json.loads(called("journal", "prune", "--before", "10d", "--json", "--source", str(path)).out)
    assert (gone["rows"], gone["deleted"]) == (1, True)
    assert ids(path) == {"row-2", "row-3"}


def test_where_nothing_was_ever_written_nothing_is_pruned_and_no_file_is_made() -> None:
    assert called("journal", "prune", "--keep", "1").out.startswith("0 rows")
    done = called("journal", "backup", "copy.db")
    assert (done.code, done.out) == (2, "")
    assert not Path("copy.db").exists()


def test_a_copy_holds_everything_and_is_made_while_others_write(tmp_path: Path) -> None:
    path, copy = tmp_path / "a.db", tmp_path / "copy.db"
    journal = rows_of(path, 2, 1, 0)
    journal.rate(0.5, call_id="row-1")
    done = json.loads(called("journal", "backup", str(copy), "--json", "--source", str(path)).out)
    journal.record(Call(id="later", ts=datetime.now(UTC), llm_name="mine", status="ok"))
    journal.close()
    assert (done["rows"], done["complete"], done["bytes"]) == (3, True, copy.stat().st_size)
    assert ids(copy) == {"row-0", "row-1", "row-2"}
    with_score = json.loads(called("calls", "show", "row-1", "--json", "--source", str(copy)).out)
    assert with_score["score"] == 0.5
    assert sorted(file.name for file in tmp_path.iterdir() if file.name.startswith((".copy", "copy"))) == ["copy.db"]
    if os.name == "posix":
        assert copy.stat().st_mode & 0o077 == 0


def test_a_copy_overwrites_nothing(tmp_path: Path) -> None:
    rows_of(tmp_path / "a.db", 0).close()
    (tmp_path / "copy.db").write_text("mine")
    done = called("journal", "backup", str(tmp_path / "copy.db"), "--source", str(tmp_path / "a.db"))
    assert (done.code, done.out) == (2, "")
    assert "is there already" in done.err
    assert (tmp_path / "copy.db").read_text() == "mine"


def test_a_damaged_journal_is_not_copied_in_silence(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    rows_of(path, *range(200)).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.execute("PRAGMA journal_mode=DELETE")
    db.close()
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2 : len(whole) // 2 + 4096] = b"\xff" * 4096
    path.write_bytes(whole)
    done = called("journal", "backup", str(tmp_path / "copy.db"), "--source", str(path))
    assert done.code != 0
    assert done.err.count("\n") == 1
    assert not (tmp_path / "copy.db").exists()


def test_postgresql_is_copied_by_its_own_tool(tmp_path: Path) -> None:
    done = called("journal", "backup", str(tmp_path / "copy.db"), "--source", new_database())
    assert done.code == 2
    assert "pg_dump" in done.err


WRONG = {
    "neither border": ["prune"],
    "both borders": ["prune", "--keep", "3", "--before", "2d"],
    "a time that is none": ["prune", "--before", "yesterday"],
    "days that are none": ["prune", "--keep", "-1"],
    "no file": ["backup"],
    "a database that is not there": ["prune", "--keep", "3", "--source", "nowhere.db"],
    "something else": ["mend"],
}


@pytest.mark.parametrize("words", WRONG.values(), ids=WRONG)
def test_wrong_words_are_one_line(words: list[str]) -> None:
    done = called("journal", *words)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
