"""Every Python block of the pages for studies runs as it stands, against a scripted model; what it says has to come out."""

from __future__ import annotations

import functools
import json
import re
import warnings
from pathlib import Path
from typing import Any, get_args

import pytest

from llmbroker import transports
from llmbroker.errors import Kind
from llmbroker.research import designs, rows
from llmbroker.testing import Answer, Replay, made_reply, whole
from llmbroker.wire import HTTPRequest

CHECKOUT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted((CHECKOUT / "docs" / "research").glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.S | re.M)


def blocks() -> dict[str, str]:
    return {
        f"{page.stem}:{number}": code
        for page in PAGES
        for number, code in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")), 1)
    }


def model(request: HTTPRequest) -> Answer:
    body = json.loads(request.body)
    if "input" in body:
        data = [{"index": at, "embedding": [0.5, 0.25]} for at in range(len(body["input"]))]
        return Answer(body={"data": data, "usage": {"total_tokens": 9}})
    last = body["messages"][-1]
    text = last["content"] or ""
    if last["role"] == "tool":
        reply = made_reply(text)
    elif body.get("tools"):
        city = "Sfax" if "Sfax" in text else "Tunis"
        reply = made_reply(calls=[("get_weather", {"city": city})])
    elif "response_format" in body:
        reply = made_reply('{"sentiment": "positive", "confidence": 4}')
    elif "<score>" in text:
        reply = made_reply("<score>5</score>")
    else:
        reply = made_reply("Rome" if "Italy" in text else "Paris" if "capital" in text.lower() else "positive")
    return Answer(body=whole(reply, "openai-chat"))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Replay:
    port = Replay().on(None, model, times=None)
    monkeypatch.setattr(transports, "_shared", {False: port, True: port})
    run = rows.run
    for room in (rows, designs):
        monkeypatch.setattr(room, "run", lambda prepared, io: run(prepared, io or port))
    for name in ("GROQ_API_KEY", "VOYAGE_API_KEY"):
        monkeypatch.setenv(name, "no-real-key-of-anybody")
    return port


SAYS = {
    "index:1": "22C and clear in Tunis",
    "configs:1": "llm_config('groq', 'openai/gpt-oss-20b', api_key='env:GROQ_API_KEY,GROQ_KEY', temperature=0",
    "configs:2": "('top_k',) top_k is not taken by openai",
    "one-call:1": "Paris\nParis\n[scripted | stop | sent 10, rec 5, total 15",
    "tools:1": "22C and clear in Tunis",
    "rows:1": "1.0",
    "rows:2": "[('clear in Tunis', 2, 1), ('clear in Sfax', 2, 1)]",
    "forms:1": "Code(sentiment='positive', confidence=4) None",
    "forms:2": "{'score': '4', 'why': 'Friendly words.'}\n5 True",
    "designs:1": "['Paris', 'Rome']\n[0, 0.5, 1]\n['groq/openai/gpt-oss-20b', 'groq/llama-3.1-8b-instant']\n16 16",
    "agreement:1": "Agreement(alpha=1.000 (nominal), rows=2",
    "embeddings:1": "(2, 2) Usage(input_tokens=9",
    "audit:1": "True\n['attempt'",
    "audit:2": "30 []\nResponses were collected with llmbroker",
}


@pytest.mark.parametrize(("place", "code"), blocks().items(), ids=blocks())
def test_a_block_runs_and_says_what_it_should(
    place: str, code: str, scripted: Replay, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(compile(code, place, "exec", dont_inherit=True), {"__name__": "__main__"})
    assert SAYS[place] in capsys.readouterr().out


def test_every_expectation_belongs_to_a_block() -> None:
    assert set(SAYS) == set(blocks())


def test_every_link_leads_somewhere_and_every_page_is_in_the_list() -> None:
    index = (CHECKOUT / "docs" / "research" / "index.md").read_text(encoding="utf-8")
    assert {page.stem for page in PAGES} - {"index"} == set(re.findall(r"\]\(([\w-]+)\.md\)", index))
    dead = [
        f"{page.name}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert dead == []


def test_the_page_on_one_call_names_every_kind() -> None:
    page = (CHECKOUT / "docs" / "research" / "one-call.md").read_text(encoding="utf-8")
    assert [kind for kind in get_args(Kind) if f"`{kind}`" not in page] == []


@pytest.mark.live
def test_the_example_study_runs_on_the_model_of_this_machine(tmp_path: Path) -> None:
    import subprocess
    import sys

    study = CHECKOUT / "examples" / "study" / "study.py"
    run = functools.partial(subprocess.run, capture_output=True, text=True, timeout=1200, check=True)
    first = run([sys.executable, str(study), "--folder", str(tmp_path)])
    assert "Of 200 rows" in first.stdout and (tmp_path / "plot.svg").stat().st_size > 1000
    again = run([sys.executable, str(study), "--folder", str(tmp_path)])
    assert "0 calls for 40 rows (40 answered already" in again.stdout
    assert again.stdout.split("Agreement")[1] == first.stdout.split("Agreement")[1]


def test_the_study_that_the_page_shows_is_the_one_that_was_run() -> None:
    folder = CHECKOUT / "examples" / "study"
    said: Any = (folder / "output.txt").read_text(encoding="utf-8")
    for words in ("What it will take", "Agreement (Krippendorff's alpha, nominal)", "For the methods section", "Of 200 rows"):
        assert words in said
