"""Anthropic and Gemini through the direct clients and the tool loop: whole and streamed, sync and async, one behaviour."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.conftest import traffic
from tests.providers.vendor_wires import body_bytes, deployment, essence, is_stream
from tests.providers.vendor_wires import streamed as read_stream
from tests.providers.vendor_wires import whole as read_whole

from llmbroker.client import AsyncDirectClient, DirectClient
from llmbroker.errors import (
    AuthError,
    InvalidProviderResponseError,
    RateLimitError,
    ServerError,
    StreamInterruptedError,
)
from llmbroker.loop import arun_tool_loop, run_tool_loop
from llmbroker.providers import anthropic, gemini
from llmbroker.transports.replay import Answer, Replay
from llmbroker.wire import HTTPRequest

JSON = dict[str, Any]
CANARY = "sk-canary-5f1c9d3e7a"
VENDORS = [("anthropic", "claude-sonnet-4-5"), ("gemini", "gemini-3-flash-preview")]
WAYS = ["whole", "streamed", "awhole", "astreamed"]
SSE = {"content-type": "text/event-stream"}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def ask(way: str, vendor: tuple[str, str], port: Replay, messages: Any = "hi", **how: Any) -> Any:
    given = {"provider": vendor[0], "model": vendor[1], "api_key": CANARY, "io": port}
    if way == "whole":
        return DirectClient(**given).chat(messages, **how)
    if way == "streamed":
        stream = DirectClient(**given).stream(messages=messages, **how)
        assert "".join(stream) == stream.reply.text
        return stream.reply

    async def run() -> Any:
        client = AsyncDirectClient(**given)
        if way == "awhole":
            return await client.chat(messages, **how)
        stream = client.stream(messages=messages, **how)
        text = "".join([piece async for piece in stream])
        assert text == stream.reply.text
        return stream.reply

    return asyncio.run(run())


def told(*events: JSON, named: bool) -> list[bytes]:
    return [(f"event: {e['type']}\n" if named else "").encode() + b"data: " + json.dumps(e).encode() + b"\n\n" for e in events]


def answer(vendor: tuple[str, str], way: str, blocks: list[JSON], word: str) -> Answer:
    """Write an answer as the vendor does, whole or streamed as the way asks."""
    stream = way.endswith("streamed")
    if vendor[0] == "gemini":
        counts = {"promptTokenCount": 9, "candidatesTokenCount": 3, "thoughtsTokenCount": 2, "totalTokenCount": 14}
        body = {"candidates": [{"content": {"role": "model", "parts": blocks}, "finishReason": word}], "usageMetadata": counts}
        body = {**body, "responseId": "r1", "modelVersion": "m"}
        return Answer(headers=SSE, body=told(body, named=False)) if stream else Answer(body=body)
    usage = {"input_tokens": 9, "output_tokens": 5, "output_tokens_details": {"thinking_tokens": 2}}
    message = {"id": "r1", "model": "m", "content": blocks, "stop_reason": word, "usage": usage}
    if not stream:
        return Answer(body=message)
    events: list[JSON] = [{"type": "message_start", "message": {**message, "content": []}}]
    for index, block in enumerate(blocks):
        start = {**block, "input": {}} if "input" in block else block
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        if "input" in block:
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    events += [{"type": "message_delta", "delta": {"stop_reason": word}, "usage": usage}, {"type": "message_stop"}]
    return Answer(headers=SSE, body=told(*events, named=True))


def hello(vendor: tuple[str, str], way: str) -> Answer:
    if vendor[0] == "gemini":
        return answer(vendor, way, [{"text": "Hm.", "thought": True}, {"text": "Hello"}], "STOP")
    return answer(
        vendor, way, [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "text", "text": "Hello"}], "end_turn"
    )


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor[0])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_reply(vendor: tuple[str, str], way: str) -> None:
    port = Replay()
    port.on(None, hello(vendor, way))
    reply = ask(way, vendor, port)
    assert (reply.text, reply.reasoning, reply.finish_reason) == ("Hello", "Hm.", "stop")
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.reasoning_tokens) == (9, 5, 2)
    assert json.loads(json.dumps(reply.message)) == reply.message
    port.check()


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor[0])
@pytest.mark.parametrize("way", WAYS)
def test_the_key_goes_to_its_header_alone(vendor: tuple[str, str], way: str) -> None:
    seen: list[HTTPRequest] = []
    port = Replay()

    def look(request: HTTPRequest) -> Answer:
        seen.append(request)
        return hello(vendor, way)

    port.on(None, look)
    ask(way, vendor, port)
    holders = [name for name, value in seen[0].headers.items() if CANARY in value]
    assert holders == ["x-goog-api-key" if vendor[0] == "gemini" else "x-api-key"]
    assert CANARY not in seen[0].url
    assert CANARY.encode() not in seen[0].body


REFUSED = {
    "anthropic": {"type": "error", "error": {"type": "authentication_error", "message": f"bad key {CANARY}"}},
    "gemini": {"error": {"code": 401, "message": f"bad key {CANARY}", "status": "UNAUTHENTICATED"}},
}


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor[0])
@pytest.mark.parametrize("way", WAYS)
def test_a_refusal_is_typed_in_every_way_and_hides_the_key(vendor: tuple[str, str], way: str) -> None:
    port = Replay()
    port.on(None, Answer(status=401, body=REFUSED[vendor[0]]))
    with pytest.raises(AuthError) as caught:
        ask(way, vendor, port)
    assert caught.value.provider == vendor[0]
    assert CANARY not in str(caught.value) + str(caught.value.detail)


OVERLOADED = {
    "anthropic": {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    "gemini": {"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}},
}


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor[0])
@pytest.mark.parametrize("way", ["streamed", "astreamed"])
def test_an_error_frame_before_any_content_is_the_error_itself(vendor: tuple[str, str], way: str) -> None:
    port = Replay()
    port.on(None, Answer(headers=SSE, body=told(OVERLOADED[vendor[0]], named=False)))
    with pytest.raises(ServerError):
        ask(way, vendor, port)


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor[0])
@pytest.mark.parametrize("way", ["streamed", "astreamed"])
def test_an_error_frame_after_content_interrupts_with_the_text_so_far(vendor: tuple[str, str], way: str) -> None:
    if vendor[0] == "gemini":
        begun = [{"candidates": [{"content": {"parts": [{"text": "Half"}]}}]}]
    else:
        begun = [
            {"type": "message_start", "message": {"usage": {}}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Half"}},
        ]
    port = Replay()
    port.on(None, Answer(headers=SSE, body=told(*begun, OVERLOADED[vendor[0]], named=False)))
    with pytest.raises(StreamInterruptedError) as caught:
        ask(way, vendor, port)
    assert caught.value.text == "Half"
    assert isinstance(caught.value.__cause__, ServerError)


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor[0])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "junk", [{"foo": 1}, {"content": 3}, {"candidates": 3}, {"candidates": [{"content": {"parts": [{"text": 1}]}}]}]
)
def test_an_answer_of_another_shape_is_an_invalid_response(vendor: tuple[str, str], way: str, junk: JSON) -> None:
    port = Replay()
    port.on(None, Answer(headers=SSE, body=told(junk, named=False)) if way.endswith("streamed") else Answer(body=junk))
    with pytest.raises(InvalidProviderResponseError):
        ask(way, vendor, port)


@pytest.mark.parametrize("way", WAYS)
def test_a_parameter_that_is_refused_is_left_out_at_once_and_from_then_on(way: str) -> None:
    vendor, bodies = VENDORS[0], []
    refused = {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "`temperature` is deprecated for this model."},
    }

    def look(request: HTTPRequest) -> Answer:
        bodies.append(json.loads(request.body))
        return Answer(status=400, body=refused) if "temperature" in bodies[-1] else hello(vendor, way)

    port = Replay()
    port.on(None, look, times=None)
    assert ask(way, vendor, port, params={"temperature": 0.5}).text == "Hello"
    assert ["temperature" in body for body in bodies] == [True, False]


@pytest.mark.parametrize("way", WAYS)
def test_a_wait_that_is_asked_for_is_a_fact_of_the_error(way: str) -> None:
    body = {
        "error": {
            "code": 429,
            "message": "quota",
            "status": "RESOURCE_EXHAUSTED",
            "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.4s"}],
        }
    }
    port = Replay()
    port.on(None, Answer(status=429, body=body))
    with pytest.raises(RateLimitError) as caught:
        ask(way, VENDORS[1], port)
    assert caught.value.retry_after == 34.4


VERTEX = "https://us-central1-aiplatform.googleapis.com/v1/projects/p/locations/us-central1/publishers"


@pytest.mark.parametrize(
    ("dialect", "base", "model", "path"),
    [
        (None, f"{VERTEX}/google", "gemini-2.5-pro", "/models/gemini-2.5-pro:generateContent"),
        ("anthropic", f"{VERTEX}/anthropic", "claude-sonnet-4-5@20250929", "/models/claude-sonnet-4-5@20250929:rawPredict"),
    ],
)
def test_vertex_takes_a_bearer_token_and_the_model_in_the_address(
    dialect: str | None, base: str, model: str, path: str
) -> None:
    seen: list[HTTPRequest] = []

    def look(request: HTTPRequest) -> Answer:
        seen.append(request)
        return hello(VENDORS[1] if dialect is None else VENDORS[0], "whole")

    port = Replay()
    port.on(None, look)
    client = DirectClient(provider="vertex", dialect=dialect, base_url=base, model=model, api_key=CANARY, io=port)
    assert client.chat("hi").text == "Hello"
    assert seen[0].url == base + path
    assert seen[0].headers["authorization"] == f"Bearer {CANARY}"
    assert ("anthropic_version" in json.loads(seen[0].body)) is (dialect is not None)


def test_claude_on_azure_gets_the_version_header() -> None:
    seen: list[HTTPRequest] = []

    def look(request: HTTPRequest) -> Answer:
        seen.append(request)
        return hello(VENDORS[0], "whole")

    port = Replay()
    port.on(None, look)
    base = "https://example.services.ai.azure.com/anthropic/v1"
    DirectClient(provider="azure", dialect="anthropic", base_url=base, model="claude", api_key=CANARY, io=port).chat("hi")
    assert seen[0].url == f"{base}/messages"
    assert (seen[0].headers["anthropic-version"], seen[0].headers["api-key"]) == ("2023-06-01", CANARY)


# -- the tool loop ---------------------------------------------------------------------------------------------------------


def calls_then_words(vendor: tuple[str, str], bodies: list[JSON]) -> Callable[[HTTPRequest], Answer]:
    def serve(request: HTTPRequest) -> Answer:
        bodies.append(json.loads(request.body))
        if len(bodies) > 1:
            return hello(vendor, "whole")
        if vendor[0] == "gemini":
            first = {"functionCall": {"name": "weather", "args": {"city": "Rome"}}, "thoughtSignature": "c2ln"}
            second = {"functionCall": {"name": "weather", "args": {"city": "Oslo"}}}
            return answer(vendor, "whole", [{"text": "Hm.", "thought": True}, first, second], "STOP")
        thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
        use = [{"type": "tool_use", "id": f"toolu_{c}", "name": "weather", "input": {"city": c}} for c in ("Rome", "Oslo")]
        return answer(vendor, "whole", [thought, {"type": "redacted_thinking", "data": "x"}, *use], "tool_use")

    return serve


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor[0])
@pytest.mark.parametrize("face", ["sync", "async"])
def test_the_loop_sends_thoughts_and_signatures_back_unchanged_and_all_results_together(
    vendor: tuple[str, str], face: str
) -> None:
    bodies: list[JSON] = []
    port = Replay()
    port.on(None, calls_then_words(vendor, bodies), times=None)
    given = {"provider": vendor[0], "model": vendor[1], "api_key": CANARY, "io": port}
    how = {"tools": [TOOL], "dispatch": {"weather": lambda city: f"sunny in {city}"}}
    if face == "sync":
        reply = run_tool_loop(DirectClient(**given), "Weather?", **how)
    else:
        reply = asyncio.run(arun_tool_loop(AsyncDirectClient(**given), "Weather?", **how))
    assert reply.text == "Hello"
    if vendor[0] == "gemini":
        model, results = bodies[1]["contents"][1:]
        assert model["parts"] == [
            {"text": "Hm.", "thought": True},
            {"functionCall": {"name": "weather", "args": {"city": "Rome"}}, "thoughtSignature": "c2ln"},
            {"functionCall": {"name": "weather", "args": {"city": "Oslo"}}},
        ]
        said = [part["functionResponse"]["response"]["result"] for part in results["parts"]]
    else:
        model, results = bodies[1]["messages"][1:]
        assert model["content"] == [
            {"type": "thinking", "thinking": "Hm.", "signature": "s"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "tool_use", "id": "toolu_Rome", "name": "weather", "input": {"city": "Rome"}},
            {"type": "tool_use", "id": "toolu_Oslo", "name": "weather", "input": {"city": "Oslo"}},
        ]
        said = [block["content"] for block in results["content"]]
    assert said == ["sunny in Rome", "sunny in Oslo"]


def test_a_conversation_may_change_provider_in_the_middle() -> None:
    bodies: list[JSON] = []
    port = Replay()
    port.on(None, calls_then_words(VENDORS[0], bodies), times=None)
    client = DirectClient(provider="anthropic", model="claude-sonnet-4-5", api_key=CANARY, io=port)
    first = run_tool_loop(client, "Weather?", tools=[TOOL], dispatch={"weather": lambda city: city})
    history = [*first.messages, {"role": "user", "content": "And now?"}]
    seen: list[JSON] = []

    def look(request: HTTPRequest) -> Answer:
        seen.append(json.loads(request.body))
        return hello(VENDORS[1], "whole")

    other = Replay()
    other.on(None, look)
    assert ask("whole", VENDORS[1], other, history).text == "Hello"
    roles = [content["role"] for content in seen[0]["contents"]]
    assert roles == ["user", "model", "user", "model", "user"]
    calls = [part for part in seen[0]["contents"][1]["parts"] if "functionCall" in part]
    assert [part.get("thoughtSignature") for part in calls] == [gemini.PLACEHOLDER, None]


# -- everything recorded, through the clients ------------------------------------------------------------------------------


@pytest.mark.traffic
@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.parametrize(
    ("vendor", "api", "files"),
    [(VENDORS[0], "anthropic-messages", ("anthropic", "azure", "vertex")), (VENDORS[1], "gemini", ("gemini", "vertex"))],
    ids=["anthropic", "gemini"],
)
def test_every_recorded_answer_reads_alike_through_the_clients(
    vendor: Any, api: str, files: tuple[str, ...], face: str
) -> None:
    dialect = (anthropic if api == "anthropic-messages" else gemini).DIALECT
    at, compared = deployment(dialect, vendor[1]), 0
    for record in (record for name in files for record in traffic(name)):
        if record["api"] != api or record["response"]["status"] != 200:
            continue
        raw, stream = body_bytes(record), is_stream(record)
        port = Replay()
        kind = SSE if stream else {"content-type": "application/json"}
        port.on(None, Answer(headers=kind, body=raw, pieces=97))
        reply = ask(("" if face == "sync" else "a") + ("streamed" if stream else "whole"), vendor, port)
        known = read_stream([raw], at) if stream else read_whole(raw, at)
        made, wanted = essence(reply), essence(known)
        for side in (made, wanted):
            side["native"] = (side["native"] or {}).get("items")
        assert made == wanted, record["id"]
        compared += 1
    assert compared == (135 if api == "anthropic-messages" else 169)
