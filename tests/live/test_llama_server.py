"""A real server on this machine (llama.cpp in `xllamacpp`, the 135M model): three dialects, whole and streamed, with tools.

The small model is no judge of tools; what is tested is the wire: real bytes of a real server become replies, whole and
streamed agree, usage and finish reasons arrive, errors are typed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import llmbroker
from llmbroker.errors import BadRequestError, ContextWindowError
from llmbroker.transports.model_store import ModelUnavailableError, data_home, model_path

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

SERVER = """
import sys, time, xllamacpp
p = xllamacpp.CommonParams()
p.model.path, p.port, p.n_ctx, p.n_parallel, p.use_jinja = sys.argv[1], 0, 2048, 1, True
p.cpuparams.n_threads = 2
server = xllamacpp.Server(p)
print(server.listening_address, flush=True)
time.sleep(600)
"""
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
DIALECTS = ["openai-chat", "openai-responses", "anthropic"]


@pytest.fixture(scope="module")
def model_file() -> str:
    pytest.importorskip("xllamacpp", reason="the extra 'local' is not installed")
    try:
        return str(model_path("smollm2-135m-instruct"))
    except ModelUnavailableError as error:
        pytest.skip(f"the small model cannot be had: {error} ({data_home()})")


@pytest.fixture(scope="module")
def server(model_file: str) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, model_file], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    with process:
        for line in process.stdout:
            if line.startswith("http"):
                yield line.strip() + "/v1"
                break
        process.kill()


@pytest.fixture(params=DIALECTS)
def client(server: str, request: pytest.FixtureRequest) -> Iterator[llmbroker.DirectClient]:
    with llmbroker.DirectClient(base_url=server, model="smollm2", dialect=request.param, timeout=120) as made:
        yield made


SHORT: dict[str, Any] = {"temperature": 0, "max_tokens": 24}


def test_whole_and_streamed_say_the_same(client: llmbroker.DirectClient) -> None:
    whole = client.chat("Say hello to Paris.", params=SHORT)
    stream = client.stream("Say hello to Paris.", params=SHORT)
    text = "".join(stream)
    assert whole.text
    assert text == stream.reply.text == whole.text
    assert stream.reply.finish_reason == whole.finish_reason
    for reply in (whole, stream.reply):
        assert reply.usage is not None
        assert reply.usage.input_tokens
        assert reply.usage.output_tokens


def test_the_token_limit_is_told(client: llmbroker.DirectClient) -> None:
    # This server calls every response completed, cut or not; we say what it says and invent nothing.
    cut = "stop" if client.dialect == "openai-responses" else "length"
    limited = {"temperature": 0, "max_tokens": 4}
    assert client.chat("Count from 1 to 100.", params=limited).finish_reason == cut
    stream = client.stream("Count from 1 to 100.", params=limited)
    list(stream)
    assert stream.reply.finish_reason == cut


def test_a_turn_with_tools_goes_there_and_back(client: llmbroker.DirectClient) -> None:
    call = {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    history = [
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call00001", "content": "It is 20 degrees in Paris."},
    ]
    reply = client.chat(history, tools=[TOOL], params=SHORT)
    assert reply.text or reply.tool_calls
    stream = client.stream(messages=history, tools=[TOOL], params=SHORT)
    list(stream)
    assert (stream.reply.text, bool(stream.reply.tool_calls)) == (reply.text, bool(reply.tool_calls))


def test_a_conversation_may_change_dialect_in_the_middle(server: str) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Say one word."}]
    for dialect in DIALECTS:
        with llmbroker.DirectClient(base_url=server, model="smollm2", dialect=dialect, timeout=120) as one:
            reply = one.chat(messages, params=SHORT)
        assert reply.text
        messages += [reply.message, {"role": "user", "content": "And another."}]


def test_structured_output_holds(client: llmbroker.DirectClient) -> None:
    import json

    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema, "strict": True}}
    reply = client.chat(
        "Which city is the capital of France? Answer as JSON.",
        response_format=form,
        params={"temperature": 0, "max_tokens": 60},
    )
    if reply.finish_reason == "stop" and reply.text.lstrip().startswith("{"):
        assert list(json.loads(reply.text)) == ["city"]


def test_a_prompt_that_is_too_long_is_a_typed_error(client: llmbroker.DirectClient) -> None:
    with pytest.raises((ContextWindowError, BadRequestError)) as caught:
        client.chat("word " * 9000, params=SHORT)
    assert caught.value.status == 400


async def test_the_asyncio_port_reads_the_same_server(server: str) -> None:
    for dialect in DIALECTS:
        async with llmbroker.AsyncDirectClient(base_url=server, model="smollm2", dialect=dialect, timeout=120) as client:
            whole = await client.chat("Say hello to Paris.", params=SHORT)
            stream = client.stream("Say hello to Paris.", params=SHORT)
            assert "".join([piece async for piece in stream]) == whole.text
