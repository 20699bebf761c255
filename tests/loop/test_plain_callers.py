"""An awaited loop over a caller for plain code: the event loop stays free while a model answers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import llmbroker
from llmbroker.loop import LoopFinished

CALL = [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}]


class Gate:
    """A server that answers only when it is told to: a call, then a text."""

    def __init__(self) -> None:
        self.asked, self.free = threading.Event(), threading.Event()
        gate, answers = self, iter([{"content": None, "tool_calls": CALL}, {"content": "20 degrees"}])

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                gate.asked.set()
                in_time = gate.free.wait(5)  # a loop that is held up never frees it
                message = {"role": "assistant", **next(answers)}
                body = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
                self.send_response(200 if in_time else 400)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def close(self) -> None:
        self.free.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.close()


@pytest.fixture(params=["broker", "scoped", "client"])
def caller(request: Any, gate: Gate, tmp_path: Path) -> Iterator[Any]:
    if request.param == "client":
        with llmbroker.DirectClient(base_url=gate.url, model="m") as made:
            yield made
        return
    pool = [llmbroker.LLMConfig(name="m", model="m", base_url=gate.url, api_key_ref="")]
    with llmbroker.Broker(pool=pool, journal=tmp_path / "calls.db") as broker:
        yield broker.for_scope("anna") if request.param == "scoped" else broker


async def weather(city: str) -> str:
    """Tell the weather."""
    return f"20 in {city}"


async def watched(caller: Any) -> Any:
    events = [event async for event in llmbroker.astream_tool_loop(caller, "Hi", tools=[weather])]
    assert isinstance(events[-1], LoopFinished)
    return events[-1].reply


async def asked(caller: Any) -> Any:
    return await llmbroker.arun_tool_loop(caller, "Hi", tools=[weather])


@pytest.mark.parametrize("run", [asked, watched])
def test_the_event_loop_is_free_while_a_plain_caller_waits(caller: Any, gate: Gate, run: Any) -> None:
    async def main() -> Any:
        task = asyncio.create_task(run(caller))
        while not gate.asked.is_set():
            await asyncio.sleep(0.005)  # who held the loop up would never let this run again
        assert not task.done()
        gate.free.set()
        return await task

    reply = asyncio.run(main())
    assert reply.text == "20 degrees"
    assert [row["result"] for row in reply.tool_history] == ["20 in Paris"]
    if hasattr(caller, "calls"):
        assert sorted(row.step for row in caller.calls()) == [1, 2]
