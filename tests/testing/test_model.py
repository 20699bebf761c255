"""The test kit tested: scripts are strict; loops get over every fault of the catalogue, in every dialect and on sockets."""

from __future__ import annotations

import asyncio
import json
import math
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import llmbroker
from llmbroker.errors import LLMBrokerError, LLMTimeoutError
from llmbroker.testing import FAULTS, Answer, ScriptedModel, UnexpectedRequest, made_reply, record, replay
from llmbroker.testing.faults import applicable
from llmbroker.transports.aio import AsyncIO
from llmbroker.transports.blocking import BlockingIO

DIALECTS = ["openai-chat", "openai-responses", "anthropic", "gemini", "ollama"]
STEPS = (
    made_reply("", [("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4})]),
    made_reply("", [("add", {"a": 5, "b": 6})]),
    made_reply("Done."),
)
WIRE = [name for name, fault in FAULTS.items() if fault.answer is not None and fault.spoils]
SAID = [name for name, fault in FAULTS.items() if fault.reply is not None]
GENTLE = [name for name, fault in FAULTS.items() if not fault.spoils]


def client(dialect: str, port: Any, url: str = "http://scripted.example/v1", **more: Any) -> Any:
    return llmbroker.DirectClient(base_url=url, model="m", dialect=dialect, io=port, **more)


def looped(caller: Any, streamed: bool) -> tuple[Any, list[tuple[int, int]]]:
    ran: list[tuple[int, int]] = []

    def add(a: int, b: int) -> int:
        """Add."""
        ran.append((a, b))
        return a + b

    if streamed:
        face = llmbroker.stream_tool_loop(caller, "Add.", tools=[add], max_steps=12, max_concurrency=1)
        list(face)
        return face.reply, ran
    return llmbroker.run_tool_loop(caller, "Add.", tools=[add], max_steps=12, max_concurrency=1), ran


ways = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
dialects = pytest.mark.parametrize("dialect", DIALECTS)


@ways
@dialects
def test_one_script_serves_every_dialect(dialect: str, streamed: bool) -> None:
    with ScriptedModel(*STEPS) as model:
        port = model.port()
        reply, ran = looped(client(dialect, port), streamed)
    assert reply.text == "Done."
    assert ran == [(1, 2), (3, 4), (5, 6)]
    assert [asked.tools for asked in model.asked] == [["add"]] * 3
    assert model.asked[-1].results == ["3", "7", "11"]
    assert {(asked.dialect, asked.stream) for asked in model.asked} == {(dialect, streamed)}
    port.check()


@ways
@dialects
@pytest.mark.parametrize("fault", SAID + [name for name in GENTLE if name not in SAID])
def test_a_loop_gets_over_every_fault_of_a_model_and_runs_each_call_once(fault: str, dialect: str, streamed: bool) -> None:
    if not applicable(FAULTS[fault], dialect, streamed):
        pytest.skip("arguments are no text there")
    with ScriptedModel(*STEPS, faults=[fault, None, fault]) as model:
        reply, ran = looped(client(dialect, model.port()), streamed)
    assert reply.text == "Done."
    assert ran == [(1, 2), (3, 4), (5, 6)]
    assert llmbroker.validate(reply.messages) == []


@dialects
@pytest.mark.parametrize("fault", WIRE)
def test_a_pool_gets_over_every_fault_of_a_server(fault: str, dialect: str) -> None:
    pool = [
        llmbroker.LLMConfig(name=name, model="m", base_url=f"http://{name}.example/v1", dialect=dialect, api_key_ref="")
        for name in ("one", "two", "three")
    ]
    model = ScriptedModel(*STEPS, faults=[fault, None, fault])
    with llmbroker.Broker(pool=pool, journal=False, io=model.port()) as broker:
        reply, ran = looped(broker, False)
    model.check()
    assert reply.text == "Done."
    assert ran == [(1, 2), (3, 4), (5, 6)]


@ways
@dialects
@pytest.mark.parametrize("seed", range(5))
def test_a_storm_of_faults_breaks_no_loop(seed: int, dialect: str, streamed: bool) -> None:
    kinds = [name for name in FAULTS if FAULTS[name].reply is not None or name in GENTLE]
    with ScriptedModel(*STEPS, rate=0.5, seed=seed, kinds=kinds) as model:
        reply, ran = looped(client(dialect, model.port()), streamed)
    assert reply.text == "Done."
    assert ran == [(1, 2), (3, 4), (5, 6)]


@ways
@dialects
def test_the_same_model_stands_behind_a_real_socket(dialect: str, streamed: bool) -> None:
    port = BlockingIO()
    try:
        with ScriptedModel(*STEPS) as model, model.serve() as server:
            reply, ran = looped(client(dialect, port, server.url + "/v1"), streamed)
        assert reply.text == "Done."
        assert ran == [(1, 2), (3, 4), (5, 6)]
        assert server.failures == []
    finally:
        port.close()


@pytest.mark.parametrize("fault", WIRE)
@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_a_fault_on_a_real_socket_is_the_error_that_it_is_on_the_replay_port(fault: str, kind: str) -> None:
    def told(url: str, port: Any) -> str:
        try:
            if kind == "blocking":
                client("openai-chat", port, url, timeout=0.4).chat("Hi")
            else:

                async def ask() -> None:
                    async with llmbroker.AsyncDirectClient(base_url=url, model="m", io=port, timeout=0.4) as caller:
                        await caller.chat("Hi")

                asyncio.run(ask())
        except LLMBrokerError as error:
            return type(error).__name__
        return "nothing"

    scripted = told("http://scripted.example/v1", ScriptedModel(made_reply("x"), faults=[fault]).port())
    with ScriptedModel(made_reply("x"), faults=[fault]).serve() as server:
        port = BlockingIO() if kind == "blocking" else AsyncIO()
        real = told(server.url + "/v1", port)
        if kind == "blocking":
            port.close()
        else:
            asyncio.run(port.aclose())
    assert real == scripted != "nothing"


def test_any_client_can_be_pointed_at_it() -> None:
    model = ScriptedModel(lambda asked: made_reply(f"{asked.items[-1]['content']}, you said."), forever=True)
    with model.serve() as server:
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}).encode()
        for _ in range(3):
            request = urllib.request.Request(f"{server.url}/v1/chat/completions", body, {"content-type": "application/json"})
            with urllib.request.urlopen(request) as answer:
                assert json.load(answer)["choices"][0]["message"]["content"] == "Hi, you said."


def test_a_script_is_strict() -> None:
    with pytest.raises(AssertionError, match="2 of 2 steps were never asked for"), ScriptedModel(*STEPS[:2]):
        pass
    model = ScriptedModel(made_reply("x"))
    caller = client("openai-chat", model.port())
    caller.chat("Hi")
    with pytest.raises(UnexpectedRequest):
        caller.chat("Hi")
    with pytest.raises(AssertionError, match="request 2"):
        model.check()
    with pytest.raises(AssertionError, match="faults were never met"):
        ScriptedModel(faults=["reset"]).check()
    with pytest.raises(ValueError, match="There is no fault 'colour'"):
        ScriptedModel(faults=["colour"])


def test_an_error_of_the_test_itself_is_not_hidden_by_the_script() -> None:
    with pytest.raises(ZeroDivisionError), ScriptedModel(made_reply("x")):
        raise ZeroDivisionError


def test_a_whole_answer_can_stand_in_a_script() -> None:
    model = ScriptedModel(Answer(delay=math.inf), made_reply("x"))
    caller = client("openai-chat", model.port(), timeout=5)
    with pytest.raises(LLMTimeoutError):
        caller.chat("Hi")
    assert caller.chat("Hi").text == "x"


def test_what_belongs_to_no_dialect_is_said() -> None:
    from llmbroker.testing.model import read_request
    from llmbroker.wire import HTTPRequest

    for url, body in (("http://h/v1/unknown", b"{}"), ("http://h/v1/chat/completions", b"[]")):
        with pytest.raises(UnexpectedRequest):
            read_request(HTTPRequest(url, {}, body))


# -- recordings --------------------------------------------------------------------------------------------------------------


@ways
@dialects
def test_a_recorded_loop_plays_again_without_its_provider(dialect: str, streamed: bool, tmp_path: Path) -> None:
    model = ScriptedModel(*STEPS)
    key = "sk-recorded-loops-hold-no-key"
    first, _ = looped(client(dialect, record(tmp_path / "loop.jsonl", model.port()), api_key=key), streamed)
    port = replay(tmp_path / "loop.jsonl")
    again, ran = looped(client(dialect, port, api_key="another"), streamed)
    port.check()
    assert (again.text, again.messages) == (first.text, first.messages)
    assert ran == [(1, 2), (3, 4), (5, 6)]
    assert key.encode() not in (tmp_path / "loop.jsonl").read_bytes()


def test_a_recording_of_a_real_socket_plays_again(tmp_path: Path) -> None:
    port = BlockingIO()
    with ScriptedModel(*STEPS).serve() as server:
        url = server.url + "/v1"
        first, _ = looped(client("anthropic", record(tmp_path / "loop.jsonl", port), url), True)
    port.close()
    again, _ = looped(client("anthropic", replay(tmp_path / "loop.jsonl"), url), True)
    assert again.messages == first.messages


def test_a_request_that_differs_is_shown_where_it_differs(tmp_path: Path) -> None:
    client("openai-chat", record(tmp_path / "r.jsonl", ScriptedModel(made_reply("x")).port())).chat("Hi")
    with pytest.raises(UnexpectedRequest, match=r"body.messages\[0\].content is 'Ho', recorded was 'Hi'"):
        client("openai-chat", replay(tmp_path / "r.jsonl")).chat("Ho")
