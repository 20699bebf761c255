"""Reported faults of assembly, history and replay, end to end: through the clients and the loop, over both ports.

The letters and numbers are those of the page of faults. What a decoder or an encoder does by itself is tested beside it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.providers.test_openai_chat_stream import WAYS, calls, chunk, tool, wire
from tests.providers.vendor_wires import calls_of

import llmbroker
from llmbroker import AsyncDirectClient, DirectClient, arun_tool_loop, run_tool_loop
from llmbroker.errors import ContextWindowError, LLMBrokerError, RateLimitError, ServerError, StreamInterruptedError
from llmbroker.exchange import Reply
from llmbroker.providers.table import DIALECTS
from llmbroker.testing import content_type, made_reply, stream, whole
from llmbroker.transports.replay import Answer, Replay

JSON = dict[str, Any]
FACES = ["blocking", "asyncio"]
FORMS = ["whole", "streamed"]
SSE = {"content-type": "text/event-stream"}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def address(port: Replay, dialect: str) -> JSON:
    return {"base_url": "https://host.example.com/v1", "model": "m", "dialect": dialect, "io": port}


def ask(face: str, form: str, port: Replay, dialect: str = "openai-chat", messages: Any = "hi", **how: Any) -> Reply:
    """Ask once, in one of the four ways."""
    if face == "blocking":
        client = DirectClient(**address(port, dialect))
        if form == "whole":
            return client.chat(messages, **how)
        source = client.stream(messages=messages, **how)
        list(source)
        return source.reply  # type: ignore[no-any-return]

    async def run() -> Reply:
        client = AsyncDirectClient(**address(port, dialect))
        if form == "whole":
            return await client.chat(messages, **how)
        source = client.stream(messages=messages, **how)
        async for _ in source:
            pass
        return source.reply  # type: ignore[no-any-return]

    return asyncio.run(run())


def loop(face: str, port: Replay, dialect: str = "openai-chat", messages: Any = "hi", **how: Any) -> Any:
    if face == "blocking":
        return run_tool_loop(DirectClient(**address(port, dialect)), messages, **how)
    return asyncio.run(arun_tool_loop(AsyncDirectClient(**address(port, dialect)), messages, **how))


FOUR = [(face, form) for face in FACES for form in FORMS]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("pieces", [None, 1], ids=["as it comes", "byte by byte"])
@pytest.mark.parametrize("way", WAYS)
def test_A_every_way_of_streaming_calls_gives_those_calls(way: str, pieces: int | None, face: str) -> None:
    events, wanted = WAYS[way]
    port = Replay().on(None, Answer(headers=SSE, body=wire(*events, chunk(finish="tool_calls")), pieces=pieces))
    reply = ask(face, "streamed", port, tools=[WEATHER])
    assert calls_of(reply) == wanted
    ids = [call["id"] for call in reply.tool_calls or ()]
    assert len(set(ids)) == len(ids) == len(wanted)
    assert all(ids)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("way", WAYS)
def test_A7_each_call_of_every_way_is_run_once_by_the_loop(way: str, face: str) -> None:
    events, wanted = WAYS[way]
    ran: list[tuple[str, JSON]] = []

    def noted(name: str) -> Callable[..., str]:
        return lambda **arguments: ran.append((name, arguments)) or "ok"  # type: ignore[func-returns-value]

    port = Replay().on(None, Answer(headers=SSE, body=wire(*events, chunk(finish="tool_calls"))))
    port.on(None, whole(made_reply("done"), "openai-chat"))
    reply = loop(face, port, dispatch={name: noted(name) for name, _ in wanted}, max_concurrency=1)
    assert reply.text == "done"
    assert ran == wanted


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("end", ["cut", "complete"])
def test_A9_A10_nothing_runs_before_the_stream_has_ended(end: str, face: str) -> None:
    ran: list[float] = []
    port = Replay()
    complete_at_once = [calls(tool(0, "a", "get_weather", '{"city": "Paris"}'))]
    events: list[Any] = [wire(event, done=False) for event in complete_at_once]
    events += [5.0, wire(chunk(finish="tool_calls"))] if end == "complete" else [5.0]
    port.on(None, Answer(headers=SSE, body=events, fault="cut" if end == "cut" else None))
    port.on(None, Answer(headers=SSE, body=wire(chunk({"content": "done"}), chunk(finish="stop"))))

    def get_weather(city: str) -> str:
        ran.append(port.now())
        return city

    async def watch() -> None:
        client = AsyncDirectClient(**address(port, "openai-chat"))
        async for _ in llmbroker.astream_tool_loop(client, "hi", tools=[get_weather]):
            pass

    def run() -> None:
        if face == "asyncio":
            asyncio.run(watch())
        else:
            list(llmbroker.stream_tool_loop(DirectClient(**address(port, "openai-chat")), "hi", tools=[get_weather]))

    if end == "cut":
        with pytest.raises(StreamInterruptedError):
            run()
        assert ran == []
    else:
        run()
        assert len(ran) == 1 and ran[0] >= 5.0


def frames(*events: JSON) -> bytes:
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def anthropic(*deltas: str, start: JSON | None = None, word: str = "tool_use") -> bytes:
    block = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": start or {}}
    pieces = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": delta}}
        for delta in deltas
    ]
    return frames(
        {"type": "message_start", "message": {"id": "1", "model": "m", "content": [], "usage": {"input_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *pieces,
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": word}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    )


def responses(*deltas: str, end: JSON | None = None) -> bytes:
    item = {"type": "function_call", "id": "fc", "call_id": "c", "name": "get_weather", "arguments": "".join(deltas)}
    pieces = [{"type": "response.function_call_arguments.delta", "output_index": 0, "delta": delta} for delta in deltas]
    done = end or {"type": "response.completed", "response": {"id": "r", "model": "m", "status": "completed", "output": [item]}}
    return frames(
        {"type": "response.created", "response": {"id": "r", "model": "m", "status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "arguments": ""}},
        *pieces,
        done,
    )


PARIS = '{"city": "Paris"}'
OTHERS: dict[str, tuple[str, bytes, JSON]] = {
    "A11 the empty input of the start is not joined with the pieces": (
        "anthropic", anthropic("", PARIS[:5], PARIS[5:]), {"city": "Paris"},
    ),
    "A11 a start that says all": ("anthropic", anthropic(start={"city": "Paris"}), {"city": "Paris"}),
    "A21 no piece at all": ("anthropic", anthropic(), {}),
    "A21 one empty piece": ("anthropic", anthropic(""), {}),
    "A14 an empty delta": ("openai-responses", responses("", PARIS, ""), {"city": "Paris"}),
    "A21 no delta": ("openai-responses", responses(), {}),
}  # fmt: skip


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(("dialect", "body", "wanted"), OTHERS.values(), ids=OTHERS)
def test_A_calls_of_other_dialects_are_put_together(dialect: str, body: bytes, wanted: JSON, face: str) -> None:
    for pieces in (None, 1):
        port = Replay().on(None, Answer(headers=SSE, body=body, pieces=pieces))
        assert calls_of(ask(face, "streamed", port, dialect, tools=[WEATHER])) == [("get_weather", wanted)]


FAILED = {
    "failed": {"type": "response.failed", "response": {"status": "failed", "error": {"code": "server_error", "message": "no"}}},
    "an error": {"type": "error", "code": "server_error", "message": "no"},
}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("end", FAILED.values(), ids=FAILED)
@pytest.mark.parametrize("before", [True, False], ids=["after content", "at once"])
def test_A25_a_stream_that_ends_in_failure_raises_and_is_closed(end: JSON, before: bool, face: str) -> None:
    port = Replay().on(None, Answer(headers=SSE, body=responses(PARIS, end=end) if before else frames(end)))
    with pytest.raises(StreamInterruptedError if before else ServerError):
        ask(face, "streamed", port, "openai-responses")
    port.check()


@pytest.mark.parametrize("face", FACES)
def test_A25_an_incomplete_response_is_a_cut_answer_whose_calls_are_not_run(face: str) -> None:
    end = {
        "type": "response.incomplete",
        "response": {"id": "r", "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": []},
    }
    port = Replay().on(None, Answer(headers=SSE, body=responses(PARIS[:8], end=end)))
    port.on(None, whole(made_reply("done"), "openai-responses"))
    ran: list[Any] = []
    reply = loop(face, port, "openai-responses", tools=[WEATHER], dispatch={"get_weather": lambda **more: ran.append(more)})
    assert (reply.text, ran) == ("done", [])


# -- history ---------------------------------------------------------------------------------------------------------------


def turn(*made: tuple[str, str], **more: Any) -> JSON:
    items = [{"id": ident, "type": "function", "function": {"name": "f", "arguments": text}} for ident, text in made]
    return {"role": "assistant", "content": None, "tool_calls": items, **more}


def result(ident: str, content: Any = "r") -> JSON:
    return {"role": "tool", "tool_call_id": ident, "content": content}


USER = {"role": "user", "content": "hi"}


def sent(dialect: str, messages: list[JSON], **how: Any) -> JSON:
    port = Replay().on(None, whole(made_reply("ok"), dialect))
    ask("blocking", "whole", port, dialect, messages, **how)
    out: JSON = json.loads(port.requests[0].body)
    return out


def arguments_sent(dialect: str, body: JSON) -> Any:
    """Return what stands in a request as the arguments of its first call."""
    if dialect == "openai-responses":
        return next(item for item in body["input"] if item.get("type") == "function_call")["arguments"]
    if dialect == "gemini":
        return next(part for c in body["contents"] for part in c["parts"] if "functionCall" in part)["functionCall"].get("args")
    message = body["messages"][1]
    if dialect == "anthropic":
        return message["content"][0]["input"]
    return message["tool_calls"][0]["function"]["arguments"]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("given", ["", "null", "  ", None, "{}", {}])
def test_B1_E16_no_arguments_are_an_empty_object_in_every_history(dialect: str, given: Any) -> None:
    history = [USER, turn(("a", given)), result("a")]
    value = arguments_sent(dialect, sent(dialect, history))
    assert (json.loads(value) if isinstance(value, str) else value or {}) == {}
    assert isinstance(value, str) == (dialect in ("openai-chat", "openai-responses"))


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("given", ['{"a": ', "[1]", '"x"', "no json", '{"a": 1} {"b": 2}'])
def test_B15_B16_what_no_server_could_read_goes_back_as_an_object(dialect: str, given: str) -> None:
    value = arguments_sent(dialect, sent(dialect, [USER, turn(("a", given)), result("a")]))
    read = json.loads(value) if isinstance(value, str) else value
    assert isinstance(read, dict)
    assert "_unreadable" in read


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("given", ['{"city": "Paris"}', {"city": "Paris"}])
def test_B7_arguments_may_come_as_text_or_object_and_go_as_the_dialect_has_them(dialect: str, given: Any) -> None:
    value = arguments_sent(dialect, sent(dialect, [USER, turn(("a", given)), result("a")]))
    assert isinstance(value, str) == (dialect in ("openai-chat", "openai-responses"))
    assert (json.loads(value) if isinstance(value, str) else value) == {"city": "Paris"}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_B21_an_open_mapping_stays_one_and_no_strictness_is_asked_for_unasked(dialect: str) -> None:
    schema = {"type": "object", "properties": {"by_name": {"type": "object", "additionalProperties": {"type": "integer"}}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    text = json.dumps(sent(dialect, [USER], tools=tools))
    assert '"additionalProperties": {"type": "integer"}' in text
    assert '"strict": true' not in text


@pytest.mark.parametrize(("face", "form"), FOUR)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_C17_an_empty_answer_that_cost_tokens_says_so(dialect: str, face: str, form: str) -> None:
    meant = made_reply("", usage=llmbroker.Usage(10, 40, None, None, None, 50))
    if form == "whole":
        answer = Answer(headers={"content-type": "application/json"}, body=whole(meant, dialect))
    else:
        answer = Answer(headers={"content-type": content_type(dialect, stream=True)}, body=stream(meant, dialect))
    reply = ask(face, form, Replay().on(None, answer), dialect)
    assert (reply.text, reply.tool_calls, reply.finish_reason) == ("", None, "stop")
    assert reply.usage is not None and reply.usage.output_tokens == 40


def test_E12_a_result_of_text_parts_is_a_string_where_lists_are_refused() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for dialect in ("openai-chat", "ollama"):
        assert sent(dialect, [USER, turn(("a", "{}")), result("a", parts)])["messages"][2]["content"] == "ab"


def answered(dialect: str, body: JSON) -> JSON:
    """Return the message of an answer of the provider itself, as it stands in a saved history."""
    port = Replay().on(None, Answer(body=body))
    return json.loads(json.dumps(ask("blocking", "whole", port, dialect).message))  # type: ignore[no-any-return]


def test_E14_F5_reasoning_goes_with_its_calls_and_without_them_stays_out() -> None:
    output = [
        {"type": "reasoning", "id": "rs1", "summary": [], "encrypted_content": "opaque"},
        {"type": "function_call", "id": "fc1", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "reasoning", "id": "rs2", "summary": [], "encrypted_content": "opaque too"},
        {"type": "function_call", "id": "fc2", "call_id": "c2", "name": "f", "arguments": "{}"},
    ]
    message = answered("openai-responses", {"id": "r", "model": "m", "status": "completed", "output": output})
    results = [result("c1"), result("c2")]
    assert sent("openai-responses", [USER, message, *results])["input"][1:5] == output
    fewer = {**message, "tool_calls": message["tool_calls"][:1]}
    left = sent("openai-responses", [USER, fewer, results[0]])["input"]
    assert [item.get("type") for item in left[1:]] == ["function_call", "function_call_output"]


def test_F6_F7_signed_thinking_stands_first_and_once_however_many_calls_there_are() -> None:
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
        {"type": "redacted_thinking", "data": "opaque"},
        {"type": "tool_use", "id": "t1", "name": "f", "input": {}},
        {"type": "tool_use", "id": "t2", "name": "f", "input": {}},
    ]
    body = {"id": "1", "model": "m", "role": "assistant", "content": blocks, "stop_reason": "tool_use", "usage": {}}
    message = answered("anthropic", body)
    messages = sent("anthropic", [USER, message, result("t1"), result("t2")])["messages"]
    assert messages[1] == {"role": "assistant", "content": blocks}
    assert [block["type"] for block in messages[2]["content"]] == ["tool_result", "tool_result"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("face", FACES)
def test_F1_E6_signatures_and_results_of_gemini_go_back_on_their_parts(face: str, form: str) -> None:
    parts = [
        {"functionCall": {"name": "f", "args": {"n": 1}}, "thoughtSignature": "AbC="},
        {"functionCall": {"name": "f", "args": {"n": 2}}},
    ]
    body = {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]}
    answer = (
        Answer(body=body) if form == "whole" else Answer(headers=SSE, body=b"data: " + json.dumps(body).encode() + b"\r\n\r\n")
    )
    message = json.loads(json.dumps(ask(face, form, Replay().on(None, answer), "gemini").message))
    ids = [call["id"] for call in message["tool_calls"]]
    contents = sent("gemini", [USER, message, *(result(ident, f"r{n}") for n, ident in enumerate(ids))])["contents"]
    assert contents[1]["parts"] == parts
    assert [list(part) for part in contents[2]["parts"]] == [["functionResponse"], ["functionResponse"]]
    assert len(contents) == 3


# -- quirks ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("face", "form"), FOUR)
def test_quirk_13_a_wait_on_a_good_answer_means_nothing(face: str, form: str) -> None:
    meant = made_reply("hello")
    for _ in range(2):
        if form == "whole":
            answer = Answer(headers={"content-type": "application/json", "retry-after": "61"}, body=whole(meant, "openai-chat"))
        else:
            answer = Answer(headers={**SSE, "retry-after": "61"}, body=stream(meant, "openai-chat"))
        port = Replay().on(None, answer, answer)
        entry = llmbroker.LLMConfig(name="n", model="m", base_url="https://host.example.com/v1", api_key_ref="")
        if face == "blocking":
            with llmbroker.Broker(pool=[entry], journal=False, io=port) as broker:
                texts = [broker.ask("hi").text if form == "whole" else "".join(broker.stream("hi")) for _ in range(2)]
        else:

            async def run(port: Replay = port, entry: llmbroker.LLMConfig = entry) -> list[str]:
                async with llmbroker.AsyncBroker(pool=[entry], journal=False, io=port) as broker:
                    if form == "whole":
                        return [(await broker.ask("hi")).text for _ in range(2)]
                    return ["".join([piece async for piece in broker.stream("hi")]) for _ in range(2)]

            texts = asyncio.run(run())
        assert texts == ["hello", "hello"]
        assert port.now() < 1


TOO_LONG: dict[str, tuple[str, int, JSON, str]] = {
    "OpenAI": ("openai", 400, {"error": {"message": "Your input exceeds", "code": "context_length_exceeded"}}, "window"),
    "Vertex": (
        "gemini",
        400,
        {"error": {"code": 400, "message": "The input token count (2) exceeds the maximum number of tokens allowed (1)."}},
        "window",
    ),
    "Gemini, a quota of tokens a minute": (
        "gemini",
        429,
        {"error": {"code": 429, "message": "You exceeded your current quota.", "status": "RESOURCE_EXHAUSTED"}},
        "rate",
    ),
    "Bedrock": (
        "server",
        400,
        {"message": "The model returned: Input Tokens Exceeded: Number of input tokens exceeds"},
        "window",
    ),
    "Bedrock, Claude": ("server", 400, {"message": "Input is too long for requested model."}, "window"),
    "Cohere": ("cohere", 400, {"error_type": "TOO_MANY_TOKENS", "message": "too many tokens: size limit exceeded"}, "window"),
    "Perplexity": (
        "perplexity",
        400,
        {"error": {"message": "The total length is too long.", "type": "too_many_prompt_tokens", "code": 400}},
        "window",
    ),
    "llama.cpp": ("server", 400, {"error": {"type": "exceed_context_size_error", "n_ctx": 512, "message": "x"}}, "window"),
}


async def awaited(client: AsyncDirectClient, form: str) -> None:
    if form == "whole":
        await client.ask("hi")
    else:
        async for _ in client.stream("hi"):
            pass


@pytest.mark.parametrize(("face", "form"), FOUR)
@pytest.mark.parametrize(("provider", "status", "body", "kind"), TOO_LONG.values(), ids=TOO_LONG)
def test_quirk_15_a_prompt_that_is_too_long_is_known_by_every_word(
    provider: str, status: int, body: JSON, kind: str, face: str, form: str
) -> None:
    port = Replay().on(None, Answer(status=status, body=body))
    where: JSON = {"base_url": "https://host.example.com/v1"} if provider == "server" else {"provider": provider}
    given = {**where, "model": "m", "api_key": "some-key", "io": port}
    with pytest.raises(ContextWindowError if kind == "window" else RateLimitError) as caught:
        if face == "asyncio":
            asyncio.run(awaited(AsyncDirectClient(**given), form))
        elif form == "whole":
            DirectClient(**given).ask("hi")
        else:
            list(DirectClient(**given).stream("hi"))
    assert caught.value.status == status


PADDED = {"obfuscation": "abcdefgh", "p": "abcdefghijkl", "padding": "xxxx"}


@pytest.mark.parametrize("face", FACES)
def test_quirk_25_padding_is_passed_over(face: str) -> None:
    events = [chunk({"content": "hi", **PADDED}, **PADDED), chunk(finish="stop", **PADDED)]
    reply = ask(face, "streamed", Replay().on(None, Answer(headers=SSE, body=wire(*events))))
    assert (reply.text, reply.finish_reason) == ("hi", "stop")
    assert not any(word in json.dumps(reply.message) for word in PADDED)


@pytest.mark.parametrize(("face", "form"), FOUR)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_quirk_9_nothing_but_an_error_with_a_status_inside_a_200_is_that_error(dialect: str, face: str, form: str) -> None:
    error = {"type": "error", "error": {"message": "filtered", "code": "content_filter", "status": 400, "type": "x"}}
    data = json.dumps(error).encode()
    if form == "whole":
        answer = Answer(body=error)
    else:
        line = data + b"\n" if DIALECTS[dialect].framing == "ndjson" else b"data: " + data + b"\n\n"
        answer = Answer(headers={"content-type": content_type(dialect, stream=True)}, body=line)
    with pytest.raises(LLMBrokerError) as caught:
        ask(face, form, Replay().on(None, answer), dialect)
    assert caught.value.status == 400
    assert caught.value.kind == "parameter"
