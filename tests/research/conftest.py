"""Both faces of every verb over one scripted port, and a clean room: no keys, no ``.env``, no memory of notes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import llmbroker
from llmbroker.research import vocabulary
from llmbroker.testing import Answer, Replay, made_reply, whole

JSON = dict[str, Any]


class Face:
    """The plain verbs, or their awaited twins, over a scripted port."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = Replay()

    def answers(self, *given: Any, dialect: str = "openai-chat", times: int | None = 1) -> Face:
        """Script answers: a text, a reply, an Answer, an exception, or a function of the request."""
        for item in given:
            self.port.on(None, self._one(item, dialect), times=times)
        return self

    @staticmethod
    def _one(item: Any, dialect: str) -> Any:
        if isinstance(item, str):
            item = made_reply(item)
        return Answer(body=whole(item, dialect)) if isinstance(item, llmbroker.Reply) else item

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            options.setdefault("io", self.port)
            if self.name == "blocking":
                return getattr(llmbroker, verb)(*args, **options)
            return asyncio.run(getattr(llmbroker, f"a{verb}")(*args, **options))

        return call


def refused(status: int, message: str = "no", **more: Any) -> Answer:
    headers = more.pop("headers", {})
    return Answer(status=status, headers=headers, body={"error": {"message": message, **more}})


@pytest.fixture(params=["blocking", "asyncio"])
def face(request: pytest.FixtureRequest) -> Face:
    return Face(request.param)


@pytest.fixture
def port() -> Replay:
    return Replay()


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    for name in list(os.environ):
        if name.endswith(("_API_KEY", "_KEY", "OLLAMA_HOST")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(vocabulary, "_told", set())


@pytest.fixture
def config() -> Any:
    return llmbroker.llm_config("openai", "gpt-4o-mini", api_key="sk-very-secret-key-1234", temperature=0)
