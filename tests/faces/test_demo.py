"""``llmbroker demo`` and the embedded model at the command line."""

from __future__ import annotations

import json

from tests.faces.processes import run, without_engine


def test_the_demo_works(model: str) -> None:
    done = run("demo")
    text = done.stdout.decode()
    assert done.returncode == 0, text
    assert 'get_weather(city="Paris") -> It is 20°C in Paris' in text
    answer = next(line for line in text.splitlines() if line.startswith("Answer:"))
    assert "20" in answer and "Paris" in answer
    assert [row["operation"] for row in json.loads(run("calls", "--json").stdout)] == ["demo", "demo"]


def test_the_demo_says_how_to_get_what_is_missing() -> None:
    done = without_engine("demo")
    assert done.returncode == 1
    assert b"pip install xllamacpp" in done.stderr


def test_the_embedded_model_answers_where_there_is_no_key(model: str) -> None:
    done = run("ask", "Say hello.", "-p", "max_tokens=40", "-u")
    assert done.stdout.strip()
    assert b"local" in done.stderr
