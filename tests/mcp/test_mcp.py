"""Tools of MCP servers in the loop: in process, over stdio and over HTTP, with the same checks as functions."""

from __future__ import annotations

import asyncio
import json
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
from llmbroker.errors import BudgetError, ConfigurationError, MCPError
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


def begun(port: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, str(SERVER), str(port)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    for _ in range(400):
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
            break
        except OSError:
            time.sleep(0.05)
    return process


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    port = free_port()
    process = begun(port)
    yield f"http://127.0.0.1:{port}/mcp"
    process.terminate()
    process.wait(10)


WAYS = ["in process", "stdio", "http"]


def where(way: str, request: pytest.FixtureRequest) -> Any:
    if way == "in process":
        from tests.mcp.server import made

        return made()
    return [sys.executable, str(SERVER)] if way == "stdio" else request.getfixturevalue("url")


@pytest.fixture(params=WAYS, scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[MCPServer]:
    with MCPServer(where(request.param, request), timeout=20) as made:
        yield made


@pytest.fixture
def own_url() -> Iterator[tuple[str, Any]]:
    """A server that a test may end, and what begins it."""
    port, processes = free_port(), []

    def begin() -> subprocess.Popen[bytes]:
        processes.append(begun(port))
        return processes[-1]

    begin()
    yield f"http://127.0.0.1:{port}/mcp", begin
    for process in processes:
        process.kill()
        process.wait(10)


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


def test_a_server_s_tools_can_be_called_by_hand(server: MCPServer) -> None:
    tools = {made.name: made for made in server.tools(prefix="my_", timeout=5)}
    assert tools["my_add"](a=2) == "3"
    assert tools["my_add"](a=2, b=3) == "5"
    assert tools["my_slow"](steps=1) == "done"
    assert tools["my_picture"]().media_type == "image/png"
    with pytest.raises(MCPError, match="no way"):
        tools["my_fail"](words="no way")
    with pytest.raises(MCPError, match="required"):
        tools["my_add"]()  # nothing is checked here: the server refuses it
    with pytest.raises(TypeError, match=r"add\(\) takes 0 positional arguments"):
        tools["my_add"](2)
    server.close()
    with pytest.raises(MCPError, match="is closed"):
        tools["my_add"](a=2)
    server.open()
    assert tools["my_add"](a=2) == "3"


async def test_a_server_s_tools_can_be_called_by_hand_beside_an_event_loop(server: MCPServer) -> None:
    made = (await asyncio.to_thread(server.tools, only=["add"]))[0]
    assert await asyncio.gather(*(asyncio.to_thread(made, a=number) for number in (1, 2, 3))) == ["2", "3", "4"]


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


def called(server: MCPServer, *wanted: tuple[str, str], **rules: Any) -> list[Any]:
    """Return the messages of the results of these calls."""
    turn = calls(*[(name, arguments, f"c{n}") for n, (name, arguments) in enumerate(wanted)])
    reply = Face("blocking").run([turn, says("done")], tools=server.tools(**rules), dispatch=None)
    return [message for message in reply.messages if message["role"] == "tool"]


def test_results_of_every_kind_reach_the_model(server: MCPServer) -> None:
    parts, empty, value = (message["content"] for message in called(server, ("odd", "{}"), ("nothing", "{}"), ("point", "{}")))
    assert [part["type"] for part in parts] == ["text", "input_audio", "text", "file", "text"]
    assert parts[3]["file"]["file_data"] == "data:application/pdf;base64,cGRm"
    assert parts[4]["text"] == "[resource_link: https://example.com/there]"
    assert "null" in empty
    assert json.loads(value) == {"x": 1, "y": 2}


def test_what_fails_in_the_server_is_an_error_result(server: MCPServer) -> None:
    messages = called(server, ("broken", "{}"), ("untrue", "{}"), ("add", '{"a": 4}'))
    assert [message.get("is_error", False) for message in messages] == [True, True, False]
    assert "broken" in messages[0]["content"]


def test_arguments_are_checked_here_before_the_server_sees_them(server: MCPServer) -> None:
    """Repaired where nothing is lost, refused field by field where they do not fit."""
    wanted = [("add", "{'a': '2', 'b': 3,}"), ("add", '{"a": "two"}'), ("add", '{"a": 1, "c": 2}'), ("add", '{"a": ')]
    mended, wrong, unknown, cut = called(server, *wanted)
    assert mended["content"] == "5"
    assert "a: expected integer" in wrong["content"]
    assert "c: not known" in unknown["content"]
    assert cut["is_error"]


def test_a_tool_that_takes_too_long_is_given_up_and_the_next_call_answers(server: MCPServer) -> None:
    began = time.monotonic()
    (late,) = called(server, ("hang", "{}"), timeout=0.3)
    assert any(words in late["content"].lower() for words in ("longer than 0.3 seconds", "timed out"))
    assert called(server, ("add", '{"a": 4}'))[0]["content"] == "5"
    assert time.monotonic() - began < 15


def test_the_server_s_own_limit_holds_where_a_tool_has_none(server: MCPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(server, "_timeout", 0.5)
        (late,) = called(server, ("hang", "{}"))
    assert "timed out" in late["content"].lower()
    assert called(server, ("add", '{"a": 4}'))[0]["content"] == "5"


def test_the_deadline_of_a_loop_ends_a_call(server: MCPServer) -> None:
    began = time.monotonic()
    with pytest.raises(BudgetError):
        Face("blocking").run(
            [calls(("hang", "{}")), says()], tools=server.tools(), dispatch=None, budget=llmbroker.Budget(seconds=0.5)
        )
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("way", ["in process", "stdio"])
def test_a_list_of_tools_that_changes_is_seen_when_it_is_asked_for_again(way: str, request: pytest.FixtureRequest) -> None:
    with MCPServer(where(way, request), timeout=20) as server:
        before = server.tools()
        assert called(server, ("learn", "{}"), ("unlearn", "{}"))[0]["content"] == "learnt"
        after = {one.name for one in server.tools()}
        assert after - {one.name for one in before} == {"triple"}
        assert "add" not in after
        assert called(server, ("triple", '{"n": 3}'))[0]["content"] == "9"
        turn = calls(("add", '{"a": 1}'))
        reply = Face("blocking").run([turn, says()], tools=before, dispatch=None)  # a list of before: the server refuses
        assert "Unknown tool" in results(reply.messages)[0]


def test_tools_by_step_are_those_that_the_server_has_then(request: pytest.FixtureRequest) -> None:
    """A loop is declared what it was given; a step may leave out, and what is left out is refused."""
    with MCPServer(where("in process", request)) as server:
        turns = [calls(("add", '{"a": 1}', "a")), calls(("add", '{"a": 2}', "b")), says()]
        steps = {"prepare_step": lambda info: {"tools": ["add"] if info.step == 1 else ["point"]}}
        reply = Face("blocking").run(turns, tools=server.tools(), dispatch=None, **steps)
    assert results(reply.messages)[0] == "2"
    assert results(reply.messages)[1].startswith("Unknown tool add")


def test_a_command_that_dies_in_a_call_fails_the_call_and_begins_anew_when_asked() -> None:
    with MCPServer([sys.executable, str(SERVER)], timeout=20) as server:
        tools = server.tools()
        turn = calls(("die", "{}", "a"))
        reply = Face("blocking").run([turn, calls(("add", '{"a": 1}', "b")), says("done")], tools=tools, dispatch=None)
        died, after = results(reply.messages)
        assert "has ended; whether this call was done is not known" in died
        assert "has ended" in after
        server.open()
        assert called(server, ("add", '{"a": 1}'))[0]["content"] == "2"
        again = Face("blocking").run([calls(("add", '{"a": 1}')), says()], tools=tools, dispatch=None)
        assert results(again.messages) == ["2"]  # the tools of before know the new one


def test_a_server_that_dies_in_a_call_over_http_fails_the_call_in_time_and_can_be_opened_again(own_url: Any) -> None:
    url, begin = own_url
    with MCPServer(url, timeout=4) as server:
        tools = server.tools()
        reply = Face("blocking").run([calls(("die", "{}")), says("done")], tools=tools, dispatch=None)
        assert reply.messages[2]["is_error"]
        begin()
        server.close()
        server.open()
        assert called(server, ("add", '{"a": 1}'))[0]["content"] == "2"


class Raw:
    """A server that says what a test wants, true or not."""

    def __init__(self, schema: Any, content: Any = (), structured: Any = None) -> None:
        from mcp import types
        from mcp.server import Server

        made = types.Tool(name="raw", input_schema=schema)

        async def listed(context: Any, params: Any) -> Any:
            return types.ListToolsResult(tools=[made])

        async def answer(context: Any, params: Any) -> Any:
            return types.CallToolResult(content=list(content), structured_content=structured)

        self.server = Server("raw", on_list_tools=listed, on_call_tool=answer)


@pytest.mark.parametrize("kind", ["image", "file", "audio"])
def test_a_result_that_cannot_be_read_is_an_error_and_not_the_end(kind: str) -> None:
    from mcp import types

    block: Any = {
        "image": types.ImageContent(type="image", data="a", mime_type="image/png"),
        "audio": types.AudioContent(type="audio", data="\x00", mime_type=""),
        "file": types.EmbeddedResource(type="resource", resource=types.BlobResourceContents(uri="x://y", blob="a")),
    }[kind]
    with MCPServer(Raw({"type": "object"}, [block]).server) as server:
        (message,) = called(server, ("raw", "{}"))
        if kind == "audio":
            assert message["content"]
        else:
            assert "cannot be read" in message["content"]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}},
        {"type": "object", "properties": {"a": {"type": "no such type"}}},
        {"type": "object", "properties": {"a": {"pattern": "("}}},
        {"type": "object", "properties": {"a": True}, "required": ["b"]},
    ],
    ids=["reference", "type", "pattern", "required"],
)
def test_a_schema_that_is_no_good_neither_breaks_the_loop_nor_lets_the_wrong_through(schema: Any) -> None:
    from mcp import types

    with MCPServer(Raw(schema, [types.TextContent(type="text", text="fine")]).server) as server:
        (message,) = called(server, ("raw", '{"a": 1}'))
        assert message["content"] == "fine" or message.get("is_error")


def test_a_list_of_tools_that_is_none_says_so() -> None:
    with (
        MCPServer(Raw({"type": "array"}).server) as server,
        pytest.raises(MCPError, match="does not list its tools"),
    ):
        server.tools()


@pytest.mark.parametrize("where", [[], None, "python server.py", ["python", 3]])
def test_what_is_no_server_is_refused_before_anything_is_begun(where: Any) -> None:
    with pytest.raises(ConfigurationError, match="MCP server"):
        MCPServer(where)
