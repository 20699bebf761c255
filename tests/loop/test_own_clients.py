"""The loop over the library's own clients: five dialects, one history whose bytes are kept, calls found in text."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest
from tests.loop.scripted import WEATHER, calls, get_weather, noted, results, says

import llmbroker
from llmbroker import Conversation
from llmbroker.client import AsyncDirectClient, DirectClient
from llmbroker.errors import MalformedCallError, ToolLoopLimitError
from llmbroker.exchange import Reply
from llmbroker.loop import arun_tool_loop, run_tool_loop
from llmbroker.messages import validate
from llmbroker.providers import table
from llmbroker.transports.replay import Answer, Replay

DIALECTS = {
    "openai-chat": "groq",
    "openai-responses": "openai",
    "anthropic": "anthropic",
    "gemini": "gemini",
    "ollama": "ollama",
}
PARIS = ("get_weather", '{"city": "Paris"}')


class Own:
    """Runs a loop over a direct client on scripted answers, on either face."""

    def __init__(self, face: str) -> None:
        self.face = face
        self.replay = Replay()

    def run(
        self, answers: list[Any], *, dialect: str = "openai-chat", client: dict[str, Any] | None = None, **more: Any
    ) -> Any:
        self.replay = Replay()
        encode = table.DIALECTS[dialect].encode_reply
        self.replay.on(None, *(Answer(body=encode(a)) if isinstance(a, Reply) else a for a in answers))
        kind: Any = DirectClient if self.face == "blocking" else AsyncDirectClient
        setting = {"provider": DIALECTS[dialect], "dialect": dialect, "model": "m", "api_key": "k" * 20, **(client or {})}
        caller = kind(io=self.replay, **setting)
        more = {"tools": WEATHER, "dispatch": {"get_weather": get_weather}, **more}
        question = more.pop("messages", "What is the weather in Paris?")
        if self.face == "blocking":
            return run_tool_loop(caller, question, **more)
        return asyncio.run(arun_tool_loop(caller, question, **more))

    def bodies(self) -> list[Any]:
        return [json.loads(request.body) for request in self.replay.requests]


@pytest.fixture(params=["blocking", "asyncio"])
def own(request: pytest.FixtureRequest) -> Own:
    return Own(request.param)


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_every_dialect_runs_the_loop(own: Own, dialect: str) -> None:
    reply = own.run([calls(PARIS, ("get_weather", '{"city": "Rome"}')), calls(("nobody", "{}")), says()], dialect=dialect)
    own.replay.check()
    assert reply.text == "It is 20°C in Paris."
    assert results(reply.messages)[:2] == ["It is 20°C in Paris", "It is 20°C in Rome"]
    assert (reply.tool_loop.model_calls, reply.tool_loop.tool_calls, reply.tool_loop.sent) == (3, 3, 30)
    assert validate(reply.messages) == []
    second, third = (json.dumps(body, ensure_ascii=False) for body in own.bodies()[1:])
    assert "It is 20°C in Rome" in second and "Unknown tool nobody" in third


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_what_was_sent_once_is_sent_again_byte_for_byte(own: Own, dialect: str) -> None:
    own.run([calls(PARIS)] * 4 + [says()], dialect=dialect)
    bodies = own.bodies()
    key = next(key for key in ("messages", "input", "contents") if key in bodies[0])
    for before, after in pairwise(bodies):
        assert json.dumps(after[key]).startswith(json.dumps(before[key])[:-1])


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_an_open_history_goes_on_in_another_dialect(own: Own, dialect: str) -> None:
    with pytest.raises(ToolLoopLimitError) as caught:
        own.run([calls(PARIS)], max_steps=1)
    reply = own.run([says("done")], dialect=dialect, messages=caught.value.messages)
    assert reply.text == "done" and len(reply.tool_history) == 1
    assert "It is 20°C in Paris" in json.dumps(own.bodies()[0], ensure_ascii=False)


def test_D9_a_refused_generation_is_told_to_the_model(own: Own) -> None:
    refusal = {
        "error": {
            "message": "Failed to call a function. Please adjust your prompt.",
            "type": "invalid_request_error",
            "code": "tool_use_failed",
            "failed_generation": '<function=get_weather>{"city": Paris}</function>',
        }
    }
    reply = own.run([Answer(status=400, body=refusal), calls(PARIS), says()])
    assert reply.tool_loop.model_calls == 3
    assert own.bodies()[1]["messages"][1]["content"] == '<function=get_weather>{"city": Paris}</function>'
    with pytest.raises(MalformedCallError) as caught:
        own.run([Answer(status=400, body=refusal)] * 3)
    assert caught.value.tool_loop.model_calls == 3


def test_D7_a_malformed_call_of_gemini_is_told_to_the_model(own: Own) -> None:
    malformed = {
        "candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "index": 0}],
        "usageMetadata": {"promptTokenCount": 9},
    }
    reply = own.run([Answer(body=malformed), calls(PARIS), says()], dialect="gemini")
    assert reply.tool_loop.model_calls == 3 and len(reply.tool_history) == 1


def test_D3_a_paused_turn_of_anthropic_goes_back_as_it_came(own: Own) -> None:
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
    paused = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "pause_turn",
        "content": [{"type": "text", "text": "Searching"}, search], "usage": {"input_tokens": 3, "output_tokens": 4},
    }  # fmt: skip
    reply = own.run([Answer(body=paused), says("found")], dialect="anthropic")
    assert reply.text == "found"
    assert search in own.bodies()[1]["messages"][-1]["content"]


def test_calls_in_the_text_of_an_unknown_server_are_run(own: Own) -> None:
    got: list[Any] = []
    local = {"provider": None, "base_url": "http://127.0.0.1:9/v1", "api_key": None}
    text = says('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris",}}\n</tool_call>')
    reply = own.run([text, says("done")], client=local, dispatch={"get_weather": noted(got)})
    assert got == [{"city": "Paris"}] and reply.text == "done"
    assert reply.tool_history[0].repaired
    reply = own.run([text], client={**local, "leaked_calls": False}, dispatch={"get_weather": noted(got)})
    assert reply.text.startswith("<tool_call>") and len(got) == 1


def test_a_wrapper_around_a_client_is_a_caller_like_any_other(own: Own) -> None:
    class Wrapper:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def chat(self, messages: Any, **more: Any) -> Any:
            return self.inner.chat(messages, **more)

    own.replay = Replay()
    own.replay.on(None, *(Answer(body=table.DIALECTS["openai-chat"].encode_reply(a)) for a in (calls(PARIS), says())))
    kind: Any = DirectClient if own.face == "blocking" else AsyncDirectClient
    caller = Wrapper(kind(base_url="http://127.0.0.1:9/v1", model="m", io=own.replay))
    more: dict[str, Any] = {"tools": WEATHER, "dispatch": {"get_weather": get_weather}}
    run = run_tool_loop(caller, "q", **more) if own.face == "blocking" else asyncio.run(arun_tool_loop(caller, "q", **more))
    assert run.text == "It is 20°C in Paris."


def test_parameters_reach_the_wire(own: Own) -> None:
    own.run([calls(PARIS), says()], params={"temperature": 0, "tool_choice": "required"})
    assert [(body["temperature"], body["tool_choice"]) for body in own.bodies()] == [(0, "required"), (0, "auto")]


@pytest.mark.parametrize(
    ("given", "says_"),
    [
        ({"max_stepz": 3}, r"'max_stepz'\. Did you mean 'max_steps'\?"),
        ({"timeot": 3}, r"'timeot'\. Did you mean 'timeout'\?"),
        ({"temperature": 0}, r"'temperature'\. A parameter of the model goes into params=\{'temperature': \.\.\.\}"),
    ],
    ids=["of the loop", "of a call", "of a model"],
)
@pytest.mark.parametrize("way", ["run", "arun", "stream", "astream", "conversation"])
def test_an_argument_that_nobody_takes_is_named_before_anything_is_sent(way: str, given: Any, says_: str) -> None:
    port = Replay()
    kind: Any = AsyncDirectClient if way.startswith("a") else DirectClient
    caller = kind(io=port, provider="groq", model="m", api_key="k" * 20)
    name = {"conversation": "run_tool_loop"}.get(way, f"{way}_tool_loop")

    def go() -> None:
        if way == "conversation":
            Conversation().ask(caller, "Hi", **given)
        elif way == "arun":
            asyncio.run(arun_tool_loop(caller, "Hi", **given))
        else:
            getattr(llmbroker, name)(caller, "Hi", **given)

    with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument {says_}"):
        go()
    assert port.requests == []


def test_what_a_caller_of_its_own_takes_is_its_own_affair() -> None:
    asked: list[Any] = []

    class Mine(DirectClient):
        def chat(self, messages: Any, **options: Any) -> Any:
            asked.append(options.pop("colour", None))
            return super().chat(messages, **options)

    port = Replay()
    port.on(None, Answer(body=table.DIALECTS["openai-chat"].encode_reply(says())))
    run_tool_loop(Mine(io=port, provider="groq", model="m", api_key="k" * 20), "Hi", colour="red", timeout=3)
    assert asked == ["red"]
