"""Every Python block of README and documentation runs as it stands, against a scripted model; what it says has to come out."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest

import llmbroker
from llmbroker.transports import Answer, Replay
from llmbroker.wire import HTTPRequest

CHECKOUT = Path(__file__).resolve().parent.parent.parent
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|toml)\n(.*?)^```", re.S | re.M)
ARGUMENTS = {"get_weather": {"city": "Paris"}, "add": {"a": 17, "b": 25}}
FACES = ("AsyncBroker", "AsyncDirectClient", "Broker", "DirectClient")


def blocks(language: str) -> dict[str, str]:
    found = {}
    for page in PAGES:
        for number, (kind, code) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")), 1):
            if kind == language:
                found[f"{page.relative_to(CHECKOUT).as_posix()}:{number}"] = code
    return found


def model(request: HTTPRequest) -> Answer:
    """Answer as a model would: call the tool that is offered, then say what it said; else name the capital."""
    body = json.loads(request.body)
    last = body["messages"][-1]
    message: dict[str, Any] = {"role": "assistant", "content": "Paris"}
    finish = "stop"
    if last["role"] == "tool":
        message["content"] = last["content"]
    elif body.get("tools"):
        name = body["tools"][0]["function"]["name"]
        call = {"id": "call00001", "type": "function", "function": {"name": name, "arguments": json.dumps(ARGUMENTS[name])}}
        message, finish = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return Answer(body={"id": "c1", "object": "chat.completion", "model": "scripted", "choices": [choice], "usage": usage})


def models_toml() -> str:
    (text,) = (code for code in blocks("toml").values() if "[[llms]]" in code)
    return text


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Replay:
    port = Replay().on("/chat/completions", model, times=None)
    for face in FACES:
        monkeypatch.setattr(llmbroker, face, functools.partial(getattr(llmbroker, face), io=port))
    for name in ("GROQ_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "no-real-key-of-anybody")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.toml").write_text(models_toml(), encoding="utf-8")
    return port


SAYS = {
    "README.md:1": "It is 20°C in Paris — by groq-gpt-oss-120b",
    "docs/index.md:1": "Paris",
    "docs/first-answer.md:1": "Paris — by groq-gpt-oss-120b",
    "docs/first-answer.md:2": "Paris",
    "docs/tools.md:1": "42",
    "docs/tools.md:2": "42",
    "docs/tools.md:3": '"degrees":20',
    "docs/loops.md:1": "ToolProgress",
    "docs/loops.md:2": "It is 20°C in Paris 2 rows",
    "docs/loops.md:3": "It is 20°C in Paris",
    "docs/loops.md:4": "Sum(total=42)",
    "docs/loops.md:5": "Paris\n3 5",
    "docs/budgets.md:1": "It is 20°C in Paris None",
    "docs/durable.md:1": "It is 20°C in Paris [('weather-1', 'done')]",
    "docs/budgets.md:2": "May I? get_weather",
    "docs/ports.md:2": "Hello! after 22.5 seconds",
    "docs/ports.md:3": "cut after: It is 20°C",
    "docs/journal.md:1": "groq-gpt-oss-120b ok Usage(",
    "docs/journal.md:2": "groq-gpt-oss-120b 1 ",
    "docs/limits.md:1": "Paris\neach scope: calls and tokens a day {'calls': 1, 'tokens': 12} {'calls': 199, 'tokens': 499988}",
    "docs/limits.md:3": "all: calls a day 1 1 True\nA limit of this broker is reached",
    "docs/replay.md:1": "Route: in 100 requests the pool gives",
    "docs/keys.md:1": "Paris",
    "docs/keys.md:2": "[('GROQ_API_KEY', 'bob')]",
    "docs/testing.md:1": "Hello. after 20 seconds",
    "docs/testing.md:3": "It is 42. ['fenced', 'server_error', None]\n['42']",
    "docs/testing.md:4": "Paris.",
    "docs/testing.md:2": "cut after 'Once upon'",
}


@pytest.mark.parametrize(("place", "code"), blocks("python").items(), ids=blocks("python"))
def test_a_block_runs_and_says_what_it_should(
    place: str, code: str, scripted: Replay, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(compile(code, place, "exec"), {"__name__": "__main__"})
    assert SAYS.get(place, "") in capsys.readouterr().out
    scripted.check()


def test_every_expectation_belongs_to_a_block() -> None:
    assert set(SAYS) <= set(blocks("python"))


def test_the_model_list_of_the_pool_page_is_one(scripted: Replay) -> None:
    with llmbroker.Broker("models.toml") as broker:
        assert broker.ask("hi").llm_name == "house"


def test_every_link_between_pages_leads_somewhere() -> None:
    dead = [
        f"{page.relative_to(CHECKOUT)}: {target}"
        for page in [*PAGES, CHECKOUT / "CONTRIBUTING.md", *(CHECKOUT / "docs" / "decisions").glob("*.md")]
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert dead == []


def test_readme_and_index_lead_to_every_page() -> None:
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    index = (CHECKOUT / "docs" / "index.md").read_text(encoding="utf-8").splitlines()
    pages = {page.stem for page in (CHECKOUT / "docs").glob("*.md")} - {"index"}
    assert pages - set(index) == set()
    assert {page for page in pages if f"(docs/{page}.md)" not in readme} == set()
