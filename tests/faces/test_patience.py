"""Who waits in a terminal is told what for."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from llmbroker import Broker, LLMConfig, NoLLMAvailableError
from llmbroker.broker import Snapshot
from llmbroker.faces.cli.patience import patience, waiting
from llmbroker.testing import Answer, Replay, made_reply, whole


def dead() -> Broker:
    port = Replay().on(None, Answer(fault="refuse"), times=None)
    pool = [LLMConfig(name=name, model="m", base_url="https://a.example/v1", api_key_ref="") for name in ("one", "two")]
    return Broker(pool=pool, io=port, journal=False)


def test_whom_a_call_waits_for_why_and_until_when_is_said() -> None:
    broker = dead()
    assert waiting(broker.snapshot()) is None, "everybody could be asked"
    with pytest.raises(NoLLMAvailableError):
        broker.ask("hi", wait=0.1)
    text = waiting(broker.snapshot())
    assert text is not None and "Ctrl-C" in text and "--timeout" in text
    assert [line.split(",")[0].strip() for line in text.splitlines()[1:]] == ["one: unreachable", "two: unreachable"]
    assert "asked again at" in text


def test_nothing_is_said_where_nobody_has_a_key() -> None:
    pool = [LLMConfig(name="one", model="m", base_url="https://a.example/v1", api_key_ref="A_KEY_THAT_NOBODY_HAS")]
    assert waiting(Broker(pool=pool, io=Replay(), journal=False).snapshot()) is None


class Looked:
    """A caller that tells when its state was looked at."""

    def __init__(self, look: Callable[[], Snapshot]) -> None:
        self.look = look
        self.seen = threading.Semaphore(0)

    def snapshot(self) -> Snapshot:
        self.seen.release()
        return self.look()


def test_it_is_said_once_and_not_for_a_quick_answer(capsys: pytest.CaptureFixture[str]) -> None:
    broker = dead()
    with pytest.raises(NoLLMAvailableError):
        broker.ask("hi", wait=0.1)
    state = broker.snapshot()
    with patience(Looked(lambda: state), after=60):
        pass
    assert capsys.readouterr().err == ""
    slow = Looked(lambda: state)
    with patience(slow, after=0.001):
        assert slow.seen.acquire(timeout=5)
    assert capsys.readouterr().err.count("waiting") <= 1


def test_a_model_at_work_is_not_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    port = Replay().on(None, Answer(body=whole(made_reply("hi"), "openai-chat")), times=None)
    pool = [LLMConfig(name="one", model="m", base_url="https://a.example/v1", api_key_ref="")]
    caller = Looked(Broker(pool=pool, io=port, journal=False).snapshot)
    with patience(caller, after=0.001):
        assert all(caller.seen.acquire(timeout=5) for _ in range(3)), "it goes on looking"
    assert capsys.readouterr().err == ""


def test_a_caller_without_a_pool_is_not_looked_at() -> None:
    with patience(object(), after=0.001):
        assert "llmbroker-patience" not in [thread.name for thread in threading.enumerate()]
