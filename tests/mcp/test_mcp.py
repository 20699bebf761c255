"""Tools of MCP servers in the loop: in process, over stdio and over HTTP, with the same checks as functions."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.loop.scripted import Face, calls, results, says

pytest.importorskip("mcp")

import llmbroker
from llmbroker.errors import ConfigurationError, MCPError
from llmbroker.loop import Paused, ToolProgress
from llmbroker.mcp import MCPServer

SERVER = Path(__file__).parent / "server.py"
# Sockets that the package's own server leaves to the collector are not ours to complain about.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen([sys.executable, str(SERVER), str(port)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
            break
        except OSError:
            time.sleep(0.05)
    yield f"http://127.0.0.1:{port}/mcp"
    process.terminate()
    process.wait(10)


@pytest.fixture(params=["stdio", "http"])
def server(request: pytest.FixtureRequest) -> Iterator[MCPServer]:
    where: Any = [sys.executable, str(SERVER)] if request.param == "stdio" else request.getfixturevalue("url")
    with MCPServer(where, timeout=20) as made:
        yield made


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_a_server_s_tools_are_called_like_functions(server: MCPServer, kind: str) -> None:
    turns = [
        calls(("add", '{"a": "2"}'), ("fail", '{"words": "no way"}'), ("picture", "{}"), ("add", '{"c": 1}')),
        says("done"),
    ]
    reply = Face(kind).run(turns, tools=server.tools(), dispatch=None)
    added, failed, picture, refused = [m["content"] for m in reply.messages if m["role"] == "tool"]
    assert added == "3"
    assert "no way" in failed
    assert picture[0]["image_url"]["url"] == "data:image/png;base64,cG5n"
    assert "a: missing" in refused  # refused here: the server never saw it


def test_names_can_be_chosen_and_prefixed_and_rules_hold(server: MCPServer) -> None:
    tools = server.tools(only=["add"], prefix="small_", approval=True)
    assert [made.name for made in tools] == ["small_add"]
    assert tools[0].schema["properties"]["a"]["type"] == "integer"
    paused = Face("blocking").run([calls(("small_add", '{"a": 1}'))], tools=tools, dispatch=None)
    assert isinstance(paused, Paused)
    with pytest.raises(MCPError, match="has no tool 'nope'"):
        server.tools(only=["nope"])


def test_progress_of_a_server_is_told(server: MCPServer) -> None:
    class Caller:
        def __init__(self) -> None:
            self.turns = [calls(("slow", '{"steps": 3}')), says("done")]

        def chat(self, messages: Any, *, tools: Any = None) -> Any:
            return self.turns.pop(0)

    events = list(llmbroker.stream_tool_loop(Caller(), "Go.", tools=server.tools(only=["slow"])))
    assert [e.value["done"] for e in events if isinstance(e, ToolProgress)][-1] == 3


def test_keys_of_this_process_do_not_reach_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-servers")
    with MCPServer([sys.executable, str(SERVER)], env={"GIVEN": "this"}) as server:
        turn = calls(("environment", '{"name": "OPENAI_API_KEY"}'), ("environment", '{"name": "GIVEN"}'))
        reply = Face("blocking").run([turn, says()], tools=server.tools(), dispatch=None)
    assert results(reply.messages) == ["nothing", "this"]


async def test_it_serves_loops_in_a_running_event_loop(url: str) -> None:
    from tests.loop.scripted import AsyncScripted

    server = await asyncio.to_thread(MCPServer(url).open)
    try:
        tools = await asyncio.to_thread(server.tools)
        turn = calls(*[("add", f'{{"a": {n}}}', f"c{n}") for n in range(5)])
        reply = await llmbroker.arun_tool_loop(AsyncScripted(turn, says()), "Go.", tools=tools)
        assert results(reply.messages) == ["1", "2", "3", "4", "5"]
    finally:
        await asyncio.to_thread(server.close)


def test_what_cannot_be_reached_says_so() -> None:
    with pytest.raises(MCPError, match="cannot be reached"):
        MCPServer(f"http://127.0.0.1:{free_port()}/mcp", timeout=5).open()
    with pytest.raises(MCPError, match="cannot be reached"):
        MCPServer(["no-such-command-anywhere"], timeout=5).open()
    for wrong in ("uvx server", ["python", 3]):
        with pytest.raises(ConfigurationError):
            MCPServer(wrong)


def test_a_closed_server_fails_its_calls_and_not_the_loop(url: str) -> None:
    server = MCPServer(url).open()
    tools = server.tools()
    server.close()
    server.close()
    reply = Face("blocking").run([calls(("add", '{"a": 1}')), says()], tools=tools, dispatch=None)
    assert "is closed" in results(reply.messages)[0]
