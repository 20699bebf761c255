"""``llmbroker ask`` as its users meet it: a process, its output, its exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.faces.processes import Served, called, run, without_engine


def test_an_answer_streams_to_stdout_alone(served: Served, models: str) -> None:
    done = run("ask", "Say", "hello", "--source", models)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"Hello there. \n", b"")
    assert served.requests[0]["stream"] is True
    assert served.requests[0]["messages"] == [{"role": "user", "content": "Say hello"}]


def test_text_file_and_pipe_become_one_question(served: Served, models: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("from a file\n")
    run("ask", "Explain", "-f", str(tmp_path / "a.txt"), "-s", "Be brief.", "--source", models, stdin=b"from a pipe\n")
    assert served.requests[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Explain\n\nfrom a file\n\nfrom a pipe"},
    ]


def test_any_server_answers_without_a_model_list(served: Served) -> None:
    done = run(
        "ask", "hi", "--base-url", served.url, "-m", "small", "--key", "MY_KEY", "-p", "temperature=0.5", MY_KEY="k-12345"
    )
    assert (done.returncode, done.stdout) == (0, b"Hello there. \n")
    assert served.requests[0]["authorization"] == "Bearer k-12345"
    assert served.requests[0]["temperature"] == 0.5


def test_usage_and_json_for_programs(served: Served, models: str) -> None:
    done = run("ask", "hi", "--json", "-u", "--source", models)
    answer = json.loads(done.stdout)
    assert (answer["text"], answer["llm_name"], answer["finish_reason"]) == ("Hello there.", "mine", "stop")
    assert b"in 3, out 2" in done.stderr
    lines = run("ask", "hi", "--jsonl", "--source", models).stdout.splitlines()
    assert "text" in {json.loads(line)["type"] for line in lines}


def test_a_fenced_block_is_cut_out(served: Served, models: str) -> None:
    served.text = "Here:\n```python\nprint(1)\n```\nDone."
    assert run("ask", "code", "-x", "--source", models).stdout == b"print(1)\n"


TOOL = '''
def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    Args:
        a: the first
    """
    return a + b
'''


def test_a_function_becomes_a_tool_and_runs(served: Served, models: str, tmp_path: Path) -> None:
    (tmp_path / "mytools.py").write_text(TOOL)
    served.calls = [{"name": "add", "arguments": {"a": 2, "b": 3}}]
    done = run("ask", "add", "-T", "mytools:add", "--show-tools", "--source", models, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"Hello there.\n")
    assert b"add(a=2, b=3) -> 5" in done.stderr
    declared = served.requests[0]["tools"][0]["function"]
    assert (declared["name"], declared["description"]) == ("add", "Add two numbers.")
    assert declared["parameters"]["properties"] == {
        "a": {"type": "integer", "description": "the first"},
        "b": {"type": "integer", "default": 1},
    }
    assert declared["parameters"]["required"] == ["a"]
    assert served.requests[1]["messages"][-1]["content"] == "5"


# -- what goes wrong -----------------------------------------------------------------------------------------------------


def test_a_cut_answer_is_printed_and_has_its_code(served: Served, models: str) -> None:
    served.finish = "length"
    done = run("ask", "hi", "--source", models)
    assert (done.returncode, done.stdout) == (5, b"Hello there. \n")
    assert b"cut at the token limit" in done.stderr


def test_a_stream_without_an_end_is_printed_and_has_its_code(served: Served, models: str) -> None:
    served.finish = None
    done = run("ask", "hi", "--source", models)
    assert (done.returncode, done.stdout) == (5, b"Hello there. \n")
    assert done.stderr.count(b"\n") == 1


def test_a_failing_provider_is_one_line(served: Served) -> None:
    served.status = 500
    done = run("ask", "hi", "--base-url", served.url, "-m", "small")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.count(b"\n") == 1
    assert b"Broken today" in done.stderr
    assert b"Traceback" not in done.stderr


def test_the_traceback_is_there_for_who_asks(served: Served) -> None:
    served.status = 500
    assert b"Traceback" in run("ask", "hi", "--base-url", served.url, "-m", "small", LLMBROKER_DEBUG="1").stderr


def test_too_many_steps_are_a_limit(served: Served, models: str, tmp_path: Path) -> None:
    (tmp_path / "mytools.py").write_text(TOOL)
    served.calls = [{"name": "add", "arguments": {"a": n}} for n in range(5)]
    assert run("ask", "x", "-T", "mytools:add", "--max-steps", "2", "--source", models, cwd=tmp_path).returncode == 4


WRONG = {
    "no question": ["ask"],
    "an unknown command": ["aks"],
    "an unknown option": ["ask", "hi", "--modle", "x"],
    "an unknown model": ["ask", "hi", "-m", "opuss"],
    "a server without a model": ["ask", "hi", "--base-url", "http://127.0.0.1:9/v1"],
    "a file that is not there": ["ask", "hi", "-f", "/nowhere/x.txt"],
    "a parameter without a value": ["ask", "hi", "-p", "temperature"],
    "a tool that is none": ["ask", "hi", "-m", "local", "-T", "json"],
    "a status that is none": ["calls", "--status", "fine"],
    "a time that is none": ["calls", "--since", "yesterday"],
    "a chat without a terminal": ["chat"],
    "nothing": [],
}


@pytest.mark.parametrize("words", WRONG.values(), ids=WRONG)
def test_wrong_usage_is_one_line_and_code_2(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    done = called(*words)
    assert done.code == 2
    assert "Traceback" not in done.err
    if words:
        assert done.out == ""
        assert done.err.count("\n") == 1


def test_a_near_name_is_suggested() -> None:
    assert "Did you mean opus?" in called("ask", "hi", "-m", "opuss", "--no-stdin").err
    assert "Did you mean ask?" in called("aks").err


def test_binary_input_is_refused() -> None:
    done = run("ask", "what is this", stdin=b"\x89PNG\r\n\x1a\n\x00\x00")
    assert done.returncode == 2
    assert b"no UTF-8 text" in done.stderr


def test_without_a_key_six_lines_lead_to_an_answer() -> None:
    done = without_engine("ask", "hi")
    lines = done.stderr.decode().splitlines()
    assert done.returncode == 3
    assert len(lines) <= 6
    text = "\n".join(lines)
    for word in ("GEMINI_API_KEY", "https://", "export ", "llmbroker keys set", "llmbroker demo", "llmbroker[local]"):
        assert word in text


def test_a_chosen_model_without_its_key_says_where_to_get_it() -> None:
    done = run("ask", "hi", "-m", "opus")
    assert done.returncode == 3
    assert b"ANTHROPIC_API_KEY" in done.stderr
    assert b"https://" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="signals are of POSIX")
def test_an_interrupted_answer_has_its_row(served: Served, models: str) -> None:
    served.text, served.pause = "one two three four five six seven eight nine ten", 1.0
    process = subprocess.Popen(
        [sys.executable, "-m", "llmbroker", "ask", "count", "--no-stdin", "--source", models],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.read(4) == b"one "
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert out.endswith(b"\n")
    assert b"Traceback" not in err
    assert [row["status"] for row in json.loads(run("calls", "--json").stdout)] == ["cancelled"]


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
def test_a_reader_that_goes_away_ends_it_quietly(served: Served, models: str) -> None:
    served.text, served.pause = " ".join(["word"] * 200), 0.01
    process = subprocess.Popen(
        [sys.executable, "-m", "llmbroker", "ask", "count", "--no-stdin", "--source", models],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(5)
    process.stdout.close()
    assert process.wait(20) == 141
    assert process.stderr.read() == b""
    process.stderr.close()
    assert len(json.loads(run("calls", "--json").stdout)) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
def test_an_idle_pipe_is_named(served: Served, models: str) -> None:
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "llmbroker", "ask", "hi", "--source", models],
        stdin=reading, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(reading)
    assert process.stderr is not None
    assert b"waiting for stdin" in process.stderr.readline()
    os.close(writing)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, b"Hello there. \n")


def test_a_model_file_that_is_not_there_is_named_at_once() -> None:
    done = run("ask", "-m", "nope.gguf", "hi")
    assert (done.returncode, done.stderr) == (2, b"llmbroker: There is no file 'nope.gguf' to load a model from.\n")
