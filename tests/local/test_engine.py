"""The engine with the packaged model: one for all, interruptible, nothing left behind. No test depends on what it says."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

import llmbroker
from llmbroker.errors import ContextWindowError, LLMTimeoutError, ModelNotFoundError
from llmbroker.transports import local
from llmbroker.wire import HTTPRequest, SSEDecoder

HELLO = [{"role": "user", "content": "Say hello."}]
STORY = [{"role": "user", "content": "Tell a very long story about a ship."}]


def request(name: str, said: Any = HELLO, /, **body: Any) -> HTTPRequest:
    made = {"model": name, "messages": said, "temperature": 0, "max_tokens": 12, **body}
    return HTTPRequest("local:/chat/completions", {}, msgspec.json.encode(made))


def running() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "llmbroker-local"]


def wait_until_idle() -> None:
    for thread in running():
        thread.join(30)
    assert running() == []


def payloads(stream: Any) -> list[bytes]:
    decoder = SSEDecoder()
    found = []
    while chunk := stream.read():
        found += [event.data for event in decoder.feed(chunk)]
    return found


def test_whole_and_streamed_answers_say_the_same(model: str) -> None:
    local.send(request(model), None, time.monotonic)  # so that both find the prompt in the cache
    whole = msgspec.json.decode(local.send(request(model, llmbroker="m"), None, time.monotonic).body)
    stream = local.open(request(model, llmbroker="m"), None, time.monotonic)
    assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream")
    events = payloads(stream)
    assert events.pop() == b"[DONE]"
    chunks = [msgspec.json.decode(event) for event in events]
    text = "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])
    assert text == whole["choices"][0]["message"]["content"] != ""
    assert {chunk["llmbroker"] for chunk in [whole, *chunks]} == {"m"}
    usage = chunks[-1]["usage"]
    assert usage["completion_tokens"] == whole["usage"]["completion_tokens"] > 0
    wait_until_idle()


def test_a_limit_is_said_as_such(model: str) -> None:
    reply = llmbroker.DirectClient(provider="local", model=model).ask("Tell a long story.", params={"max_tokens": 4})
    assert reply.finish_reason == "length"
    assert reply.usage is not None and reply.usage.output_tokens == 4


def test_a_deadline_ends_the_wait_and_the_computation(model: str) -> None:
    local.send(request(model), None, time.monotonic)
    with pytest.raises(LLMTimeoutError) as caught:
        local.send(request(model, STORY, max_tokens=4000), time.monotonic() + 0.3, time.monotonic)
    assert caught.value.sent
    wait_until_idle()


def test_a_place_in_line_is_waited_for_under_the_deadline(model: str) -> None:
    stream = local.open(request(model, STORY, max_tokens=4000), None, time.monotonic)
    with pytest.raises(LLMTimeoutError) as caught:
        local.send(request(model), time.monotonic() + 0.05, time.monotonic)
    assert not caught.value.sent
    stream.close()
    wait_until_idle()


def test_a_closed_or_dropped_stream_computes_no_further(model: str) -> None:
    for drop in (False, True):
        stream: Any = local.open(request(model, STORY, max_tokens=4000), None, time.monotonic)
        assert stream.read()
        if drop:
            del stream
        else:
            stream.close()
            assert stream.read() == b""
            stream.close()
        wait_until_idle()


def test_callers_of_many_threads_share_one_engine(model: str) -> None:
    def one(_: int) -> str:
        reply = local.send(request(model, max_tokens=3), None, time.monotonic)
        return str(msgspec.json.decode(reply.body)["choices"][0]["finish_reason"])

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(one, range(16))) == {"length"}
    assert len(local._engines) == 1
    wait_until_idle()


FAULTS = {
    "too long for the context": ({"messages": [{"role": "user", "content": "x " * 9000}]}, 400, "exceed_context_size_error"),
    "a parameter of the wrong kind": ({"temperature": "hot"}, 400, "invalid_request_error"),
    "an unknown model": ({"model": "gpt-9"}, 404, "model_not_found"),
    "a file that is not there": ({"model": "/nowhere/m.gguf"}, 404, "model_not_found"),
}


@pytest.mark.parametrize(("body", "status", "code"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_a_reply_with_a_status(model: str, body: dict[str, Any], status: int, code: str) -> None:
    for reply in (
        local.send(request(model, **body), None, time.monotonic),
        local.open(request(model, **body), None, time.monotonic),
    ):
        text = reply.read() if hasattr(reply, "read") else reply.body
        assert (reply.status, msgspec.json.decode(text)["error"]["code"]) == (status, code)
    wait_until_idle()


def test_a_file_that_is_no_model_is_refused(model: str, tmp_path: Any) -> None:
    path = tmp_path / "noise.gguf"
    path.write_bytes(os.urandom(5000))
    with pytest.raises(ModelNotFoundError, match="could not be loaded"):
        llmbroker.DirectClient(provider="local", model=str(path)).ask("hi")


def test_faults_reach_the_caller_as_their_class(model: str) -> None:
    client = llmbroker.DirectClient(provider="local", model=model)
    with pytest.raises(ContextWindowError):
        client.ask("x " * 9000)
    with pytest.raises(ContextWindowError):
        list(client.stream("x " * 9000))


async def test_the_asyncio_client_gives_the_same(model: str) -> None:
    client = llmbroker.AsyncDirectClient(provider="local", model=model)
    reply = await client.ask("Say hello.", params={"max_tokens": 5})
    pieces = [piece async for piece in client.stream("Say hello.", params={"max_tokens": 5})]
    assert reply.text and "".join(pieces)
    await client.close()
    wait_until_idle()


def test_nobody_can_connect_to_the_engine(model: str) -> None:
    local.send(request(model), None, time.monotonic)
    address = local._engines[model].server().listening_address
    if sys.platform == "win32":
        assert address.startswith("http://127.0.0.1:")
        return
    path = address.removeprefix("unix://")
    with socket.socket(socket.AF_UNIX) as plug, pytest.raises(OSError, match="No such file"):
        plug.connect(path)


SPEAK = """
import os, sys, time, msgspec
from llmbroker.transports import local
from llmbroker.wire import HTTPRequest
body = {"model": sys.argv[1], "messages": [{"role": "user", "content": "Tell a long story."}], "max_tokens": int(sys.argv[2])}
def speak():
    return local.send(HTTPRequest("local:/x", {}, msgspec.json.encode(body)), None, time.monotonic).status
"""


def script(model: str, tokens: int, rest: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SPEAK + rest, model, str(tokens)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_process_ends_well_in_the_middle_of_an_answer(model: str) -> None:
    process = script(
        model, 4000, "s = local.open(HTTPRequest('local:/x', {}, msgspec.json.encode(body)), None, time.monotonic)\n"
    )
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.skipif(not hasattr(os, "fork") or sys.platform == "darwin", reason="fork with threads is for Linux")
def test_a_forked_child_makes_an_engine_of_its_own_and_ends_well(model: str) -> None:
    rest = (
        "speak()\n"
        "for uses in (False, True):\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        status = speak() if uses else 200\n"
        "        sys.exit(7 if status == 200 else 1)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "print(speak())\n"
    )
    process = script(model, 4, rest)
    out, err = process.communicate(timeout=60)
    assert (out.split(), err, process.returncode) == (["7", "7", "200"], "", 0)


@pytest.mark.skipif(sys.platform == "win32", reason="signals are of POSIX")
def test_ctrl_c_ends_an_answer_at_once(model: str) -> None:
    rest = "print('ready', flush=True)\ntry:\n    speak()\nexcept KeyboardInterrupt:\n    print('stopped')\n"
    process = script(model, 4000, rest)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (out.strip(), err, process.returncode) == ("stopped", "", 0)
