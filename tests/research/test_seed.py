"""The published example, in Python spelling, over real sockets to a server on this machine."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from llmbroker import call_llm_tools, llm_config, llm_tool


class Server(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[tuple[str, Any, Any]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.seen.append((self.path, self.headers.get("authorization"), body))
        last = body["messages"][-1]
        if last["role"] == "tool":
            message, finish = {"role": "assistant", "content": f"It is {last['content']}."}, "stop"
        else:
            function = {"name": "get_weather", "arguments": '{"city": "Tunis"}'}
            call = {"id": "call_1", "type": "function", "function": function}
            message, finish = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
        usage = {"prompt_tokens": 20, "completion_tokens": 7, "total_tokens": 27}
        choice = {"index": 0, "message": message, "finish_reason": finish}
        out = json.dumps({"id": "1", "model": body["model"], "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(out)))
        self.end_headers()
        self.wfile.write(out)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    Server.seen = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/openai/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_example_of_the_interface(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "gsk_of-this-test")
    weather = llm_tool(
        lambda city: f"22C and clear in {city}",
        name="get_weather",
        description="Current weather for a city.",
        parameters={"city": {"type": "string"}},
    )
    cfg = llm_config("groq", "openai/gpt-oss-20b", temperature=0, base_url=address, api_key="GROQ_API_KEY")
    r = call_llm_tools(cfg, "What is the weather in Tunis?", tools=weather)

    assert str(r) == "It is 22C and clear in Tunis."
    (row,) = r.tool_history.to_pandas().to_dict("records")
    assert (row["round"], row["name"], row["arguments"], row["result"]) == (
        1,
        "get_weather",
        '{"city": "Tunis"}',
        "22C and clear in Tunis",
    )
    assert (r.tool_loop.model_calls, r.tool_loop.sent, r.tool_loop.rec, r.tool_loop.tool_calls) == (2, 40, 14, 1)
    path, key, body = Server.seen[0]
    assert (path, key) == ("/openai/v1/chat/completions", "Bearer gsk_of-this-test")
    assert body["temperature"] == 0 and body["tools"][0]["function"]["parameters"]["required"] == ["city"]
    assert Server.seen[1][2]["messages"][-1] == {"role": "tool", "tool_call_id": "call_1", "content": "22C and clear in Tunis"}
