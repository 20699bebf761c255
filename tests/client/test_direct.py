"""The direct clients: one behaviour in four ways (sync and async, whole and streamed), every fault typed, nothing left open."""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmbroker
from llmbroker.client import AsyncDirectClient, DirectClient
from llmbroker.client.flow import MENDS
from llmbroker.errors import (
    AuthError,
    BadRequestError,
    ConnectionFailedError,
    InvalidProviderResponseError,
    InvalidRequestError,
    LLMBrokerError,
    LLMTimeoutError,
    MissingKeyError,
    ProviderError,
    RateLimitError,
    StreamInterruptedError,
)
from llmbroker.transports.replay import Answer, Replay, sse

URL = "https://api.example.com/v1"
CANARY = "sk-canary-5f1c9d3e7a"
USAGE = {"prompt_tokens": 8, "completion_tokens": 2, "total_tokens": 10}
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}


def body(text: str | None = "hello", finish: str | None = "stop", **message: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}
    return {"id": "1", "model": "m-1", "choices": [choice], "usage": USAGE}


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"id": "1", "model": "m-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def stream_of(*pieces: str, finish: str | None = "stop", done: bool = True) -> list[bytes]:
    ends = [chunk({}, finish)] if finish else []
    usage = {"id": "1", "model": "m-1", "choices": [], "usage": USAGE}
    return sse(*(chunk({"content": piece}) for piece in pieces), *ends, usage, done=done)


SSE = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json"}
Way = Callable[..., Any]


def whole(port: Replay, **how: Any) -> Any:
    with DirectClient(base_url=URL, model="m", api_key=CANARY, io=port) as client:
        return client.chat("hi", **how)


def awhole(port: Replay, **how: Any) -> Any:
    async def run() -> Any:
        async with AsyncDirectClient(base_url=URL, model="m", api_key=CANARY, io=port) as client:
            return await client.chat("hi", **how)

    return asyncio.run(run())


def streamed(port: Replay, **how: Any) -> Any:
    client = DirectClient(base_url=URL, model="m", api_key=CANARY, io=port)
    stream = client.stream("hi", **how)
    text = "".join(stream)
    assert text == stream.reply.text
    return stream.reply


def astreamed(port: Replay, **how: Any) -> Any:
    async def run() -> Any:
        client = AsyncDirectClient(base_url=URL, model="m", api_key=CANARY, io=port)
        stream = client.stream("hi", **how)
        text = "".join([piece async for piece in stream])
        assert text == stream.reply.text
        return stream.reply

    return asyncio.run(run())


WHOLE = pytest.mark.parametrize("way", [whole, awhole], ids=["sync", "async"])
STREAMED = pytest.mark.parametrize("way", [streamed, astreamed], ids=["sync stream", "async stream"])
ALL = pytest.mark.parametrize("way", [whole, awhole, streamed, astreamed], ids=["sync", "async", "sync stream", "async stream"])


def test_the_four_ways_give_the_same_reply() -> None:
    replies = []
    for way in (whole, awhole):
        replies.append(way(Replay().on(None, body())))
    for way in (streamed, astreamed):
        replies.append(way(Replay().on(None, Answer(headers=SSE, body=stream_of("hel", "lo")))))
    facts = [(r.text, r.usage, r.finish_reason, r.raw_finish_reason, r.model, r.id, r.message) for r in replies]
    assert facts[0][0] == "hello"
    assert all(fact == facts[0] for fact in facts)


@dataclass(frozen=True)
class Fault:
    id: str
    answer: Any
    error: type[LLMBrokerError]
    facts: dict[str, Any] = field(default_factory=dict)


BOTH = [
    Fault("refused connection", Answer(fault="refuse"), ConnectionFailedError, {"sent": False}),
    Fault("reset after the request", Answer(fault="reset"), ConnectionFailedError, {"sent": True}),
    Fault("silence", Answer(delay=math.inf), LLMTimeoutError),
    Fault("not HTTP", Answer(fault="garbage"), InvalidProviderResponseError),
    Fault("not JSON", Answer(headers=JSON, body="<html>proxy</html>"), InvalidProviderResponseError),
    Fault("empty body", Answer(headers=JSON, body=b""), InvalidProviderResponseError),
    Fault("binary", Answer(headers=JSON, body=bytes(range(256))), InvalidProviderResponseError),
    Fault("no choices", Answer(body={"id": "1", "choices": []}), InvalidProviderResponseError),
    Fault("empty without a finish reason", Answer(body=body(None, None)), InvalidProviderResponseError),
    Fault("an error in a 200", Answer(body={"error": {"code": 502, "message": "upstream"}}), ProviderError, {"status": 502}),
    Fault("401", Answer(status=401, body={"error": {"message": "bad key", "code": "invalid_api_key"}}), AuthError),
    Fault("400", Answer(status=400, body={"error": {"message": "no such", "param": "n"}}), BadRequestError, {"param": "n"}),
    Fault(
        "429",
        Answer(status=429, headers={"retry-after": "7"}, body={"error": {"message": "slow"}}),
        RateLimitError,
        {"retry_after": 7.0, "status": 429},
    ),
    Fault(
        "a redirect", Answer(status=302, headers={"location": "http://evil.example"}, body=b""), ProviderError, {"status": 302}
    ),
    Fault("a huge body", Answer(headers=JSON, body=[b"x" * 1_000_000] * 40), InvalidProviderResponseError),
]
ONLY_STREAMED = [
    Fault(
        "no end", Answer(headers=SSE, body=stream_of("half", finish=None, done=False)), StreamInterruptedError, {"text": "half"}
    ),
    Fault("cut", Answer(headers=SSE, body=[stream_of("half")[0]], fault="cut"), StreamInterruptedError, {"text": "half"}),
    Fault("stalled", Answer(headers=SSE, body=[stream_of("half")[0]], fault="stall"), LLMTimeoutError, {"text": "half"}),
    Fault("cut before content", Answer(headers=SSE, body=[], fault="cut"), ConnectionFailedError),
    Fault("nothing at all", Answer(headers=SSE, body=b""), StreamInterruptedError, {"text": ""}),
    Fault(
        "an error frame after text",
        Answer(headers=SSE, body=[stream_of("half")[0], *sse({"error": {"message": "burnt", "code": 503}})]),
        StreamInterruptedError,
        {"text": "half", "status": 503},
    ),
    Fault("an error frame at once", Answer(headers=SSE, body=sse({"error": {"message": "slow", "code": 429}})), RateLimitError),
    Fault("garbage for data", Answer(headers=SSE, body=b"data: {oops\n\n"), InvalidProviderResponseError),
    Fault("an endless line", Answer(headers=SSE, body=[b"data: "] + [b"x" * 1_000_000] * 34), InvalidProviderResponseError),
]


def fails(way: Way, fault: Fault) -> None:
    port = Replay(max_body=32 * 1024 * 1024).on(None, fault.answer)
    with pytest.raises(LLMBrokerError) as caught:
        way(port, timeout=30)
    error = caught.value
    assert type(error) is fault.error or (fault.error is ProviderError and isinstance(error, ProviderError)), repr(error)
    assert (error.provider, error.model) == ("openai-compatible", "m")
    assert "m" in str(error)
    for name, value in fault.facts.items():
        assert getattr(error, name) == value, name
    assert CANARY not in repr(error) + str(error) + str(error.__dict__)
    port.check()


@pytest.mark.parametrize("fault", BOTH, ids=lambda f: f.id)
@ALL
def test_every_fault_is_typed_whole_and_streamed(way: Way, fault: Fault) -> None:
    fails(way, fault)


@pytest.mark.parametrize("fault", ONLY_STREAMED, ids=lambda f: f.id)
@STREAMED
def test_every_fault_of_a_stream_is_typed_and_keeps_the_text(way: Way, fault: Fault) -> None:
    fails(way, fault)


@ALL
def test_the_timeout_is_total_even_when_the_answer_drips(way: Way) -> None:
    drip = Answer(headers=SSE, body=stream_of(*"abcdefghij"), every=0.4)
    port = Replay().on(None, drip)
    with pytest.raises(LLMTimeoutError):
        way(port, timeout=2)
    assert port.now() == pytest.approx(2, abs=0.01)


@STREAMED
def test_a_server_that_knows_no_stream_still_answers(way: Way) -> None:
    assert way(Replay().on(None, Answer(headers=JSON, body=json.dumps(body())))).text == "hello"


@WHOLE
def test_a_server_that_only_streams_still_answers(way: Way) -> None:
    assert way(Replay().on(None, Answer(headers=SSE, body=stream_of("hel", "lo")))).text == "hello"


@ALL
def test_a_refused_parameter_is_mended_once_and_remembered(way: Way) -> None:
    refusal = {"error": {"message": "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens'.",
                         "code": "unsupported_parameter", "param": "max_tokens"}}  # fmt: skip
    good = Answer(headers=SSE, body=stream_of("hello"))
    port = Replay().on(None, Answer(status=400, body=refusal), good)
    way(port, params={"max_tokens": 5})
    sent = [json.loads(r.body) for r in port.requests]
    assert (sent[0].get("max_tokens"), sent[1].get("max_completion_tokens")) == (5, 5)
    port.check()


@ALL
def test_a_refusal_that_cannot_be_mended_is_asked_once(way: Way) -> None:
    port = Replay().on(None, Answer(status=400, body={"error": {"message": "no"}}))
    with pytest.raises(BadRequestError):
        way(port, params={"max_tokens": 5})
    assert len(port.requests) == 1


def test_a_deployment_remembers_its_mend() -> None:
    refusal = {
        "error": {"message": "Unsupported parameter: temperature", "code": "unsupported_parameter", "param": "temperature"}
    }
    port = Replay().on(None, Answer(status=400, body=refusal), body(), body())
    client = DirectClient(base_url=URL, model="m", io=port)
    client.chat("a", params={"temperature": 0})
    client.chat("b", params={"temperature": 0})
    assert len(port.requests) == 3
    assert "temperature" not in json.loads(port.requests[2].body)


def refuses(*names: str) -> Any:
    """A server that refuses each of these, the first that it sees, and answers what has none of them."""

    def answer(request: Any) -> Answer:
        sent = json.loads(request.body)
        for name in names:
            if name in sent:
                error = {"message": f"Unsupported parameter: '{name}'.", "code": "unsupported_parameter", "param": name}
                return Answer(status=400, body={"error": error})
        return Answer(headers=SSE, body=stream_of("hello"))

    return answer


MANY = {"temperature": 0, "top_p": 1, "seed": 3, "user": "u", "store": False}


@ALL
def test_parameters_refused_one_after_the_other_are_mended_within_one_call(way: Way) -> None:
    port = Replay().on(None, refuses(*MANY), times=None)
    assert way(port, params={**MANY, "stop": ["x"]}).text == "hello"
    assert len(port.requests) == 1 + len(MANY)
    last = json.loads(port.requests[-1].body)
    assert not set(MANY) & set(last)
    assert last["stop"] == ["x"]


@ALL
def test_no_call_is_mended_for_ever(way: Way) -> None:
    more = {**MANY, "presence_penalty": 0, "frequency_penalty": 0}
    port = Replay().on(None, refuses(*more), times=None)
    with pytest.raises(BadRequestError) as caught:
        way(port, params=more)
    assert caught.value.param == "presence_penalty"
    assert len(port.requests) == 1 + MENDS


@pytest.mark.parametrize("streamed", [False, True])
async def test_calls_that_are_refused_at_the_same_time_are_all_mended(streamed: bool) -> None:
    """Whoever comes second learns nothing new, and is asked again all the same."""
    server = refuses("temperature")
    port = Replay().on(None, lambda request: msgspec.structs.replace(server(request), delay=1.0), times=None)
    client = AsyncDirectClient(base_url=URL, model="m", io=port)

    async def one() -> str:
        if not streamed:
            return (await client.chat("hi", params={"temperature": 0})).text
        return "".join([piece async for piece in client.stream("hi", params={"temperature": 0})])

    assert await asyncio.gather(one(), one(), one()) == ["hello"] * 3
    assert len(port.requests) == 6


def test_leaving_a_stream_early_closes_the_connection() -> None:
    for leave in ("close", "break", "drop"):
        port = Replay().on(None, Answer(headers=SSE, body=stream_of(*"abcdef")))
        stream = DirectClient(base_url=URL, model="m", io=port).stream("hi")
        pieces = iter(stream)
        assert next(pieces) == "a"
        assert port.open_streams == 1
        if leave == "close":
            stream.close()
        elif leave == "break":
            del pieces
        else:
            del pieces, stream
        assert port.open_streams == 0, leave


def test_typed_events_come_in_order_and_calls_arrive_whole_at_the_end() -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x"'}}
    more = {"index": 0, "function": {"arguments": ":1}"}}
    events = sse(chunk({"tool_calls": [call]}), chunk({"tool_calls": [more]}), chunk({}, "tool_calls"))
    port = Replay().on(None, Answer(headers=SSE, body=events))
    stream = DirectClient(base_url=URL, model="m", io=port).stream("hi", tools=[TOOL])
    kinds = [type(event).__name__ for event in stream.events()]
    assert kinds == ["Started", "CallDelta", "CallDelta", "Finished"]
    assert stream.reply.tool_calls[0]["function"] == {"name": "f", "arguments": '{"x":1}'}
    assert list(stream.reply.raw[0]["choices"][0]["delta"]) == ["tool_calls"]


@ALL
def test_calls_leaked_as_text_are_found_at_unknown_servers(way: Way) -> None:
    leaked = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    whole_way = way in (whole, awhole)
    answer = body(leaked) if whole_way else Answer(headers=SSE, body=stream_of(leaked))
    port = Replay().on(None, answer)
    if whole_way:
        reply = way(port, tools=[TOOL])
    else:
        stream = DirectClient(base_url=URL, model="m", io=port).stream("hi", tools=[TOOL])
        list(stream)
        reply = stream.reply
    assert reply.tool_calls[0]["function"]["name"] == "f"
    assert reply.finish_reason == "tool_calls"


def test_leaked_calls_are_text_where_they_are_switched_off() -> None:
    leaked = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    client = DirectClient(base_url=URL, model="m", leaked_calls=False, io=Replay().on(None, body(leaked)))
    assert client.chat("hi", tools=[TOOL]).tool_calls is None


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "NaN timeout": ({"timeout": math.nan}, "timeout"),
    "negative timeout": ({"timeout": -1}, "timeout"),
    "no timeout at all": ({"timeout": 0}, "timeout"),
    "a timeout that is text": ({"timeout": "3"}, "timeout"),
    "a tool that is no tool": ({"tools": [3]}, "tools[0]"),
    "two tools of one name": ({"tools": [TOOL, TOOL]}, "tools[1]"),
}


@pytest.mark.parametrize(("how", "argument"), BAD.values(), ids=BAD)
@ALL
def test_bad_arguments_are_refused_before_anything_is_sent(way: Way, how: dict[str, Any], argument: str) -> None:
    port = Replay()
    with pytest.raises(InvalidRequestError) as caught:
        way(port, **how)
    assert caught.value.argument == argument
    assert port.requests == []


@pytest.mark.parametrize(
    "how",
    [
        {"model": "m"},
        {"model": "", "base_url": URL},
        {"model": "m", "provider": "no-such-provider"},
        {"model": "m", "base_url": "ftp://x"},
        {"model": "m\ud800", "base_url": URL},
        {"model": "m", "base_url": URL, "timeout": math.nan},
    ],
    ids=["no place", "no model", "unknown provider", "no http", "surrogate", "NaN timeout"],
)
def test_a_client_that_cannot_work_is_refused_at_once(how: dict[str, Any]) -> None:
    for kind in (DirectClient, AsyncDirectClient):
        with pytest.raises(InvalidRequestError):
            kind(**how)


def test_a_missing_key_names_the_variables_and_the_place_to_get_one() -> None:
    with pytest.raises(MissingKeyError, match="GROQ_API_KEY") as caught:
        DirectClient(provider="groq", model="m")
    assert "GROQ_API_KEY" in caught.value.refs


def test_a_key_of_the_environment_goes_only_to_the_address_it_was_declared_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROQ_API_KEY", CANARY)
    port = Replay().on(None, body())
    DirectClient(provider="groq", model="m", io=port).chat("hi")
    assert port.requests[0].headers["authorization"] == f"Bearer {CANARY}"
    with pytest.raises(MissingKeyError):
        DirectClient(provider="groq", model="m", base_url="https://evil.example/v1")
    port = Replay().on(None, body())
    DirectClient(base_url="https://evil.example/v1", model="m", io=port).chat("hi")
    assert CANARY not in str(port.requests[0])


def test_the_key_shows_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    echo = {"error": {"message": f"Incorrect API key provided: {CANARY}", "code": "invalid_api_key"}}
    client = DirectClient(base_url=URL, model="m", api_key=CANARY, io=Replay().on(None, Answer(status=401, body=echo)))
    with pytest.raises(AuthError) as caught:
        client.chat("hi")
    shown = f"{caught.value} {caught.value!r} {caught.value.__dict__} {client!r} {vars(client)!r}"
    assert CANARY not in shown
    assert os.environ.get("OPENAI_API_KEY") is None


def test_text_of_a_model_is_never_read_as_a_path_or_address(tmp_path: Any) -> None:
    secret = tmp_path / "x"
    secret.write_text('{"leak": true}')
    seen: list[Any] = []
    for text in (str(secret), f"file://{secret}", "http://127.0.0.1:1/x"):
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": text}}
        port = Replay().on(None, body(None, "tool_calls", tool_calls=[call]), body("done"))
        llmbroker.run_tool_loop(
            DirectClient(base_url=URL, model="m", io=port), "hi", tools=[TOOL], dispatch={"f": lambda **kw: seen.append(kw)}
        )
        assert seen == []
        assert len(port.requests) == 2


@settings(max_examples=80)
@given(st.lists(st.integers(1, 60), max_size=12), st.integers(0, 600), st.booleans())
def test_any_chunking_gives_the_same_reply_and_any_cut_is_no_finish(cuts: list[int], end: int, cut: bool) -> None:
    data = b"".join(stream_of("häl", "lo \u2028", "wörld"))
    kept = data[:end] if cut else data
    pieces, at = [], 0
    for size in cuts:
        pieces.append(kept[at : at + size])
        at += size
    pieces.append(kept[at:])
    port = Replay().on(None, Answer(headers=SSE, body=[piece for piece in pieces if piece]))
    stream = DirectClient(base_url=URL, model="m", io=port).stream("hi")
    try:
        text = "".join(stream)
    except LLMBrokerError:
        assert len(kept) < len(data)
    else:
        assert text == "häl" + "lo \u2028" + "wörld"
        assert b'"finish_reason":"stop"' in kept
