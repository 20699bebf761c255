"""A small MCP server, for tests: ``python server.py`` speaks stdio, ``python server.py PORT`` HTTP; ``made()`` is one."""

import asyncio
import os
import sys
import typing

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import AudioContent, BlobResourceContents, EmbeddedResource, ResourceLink, TextContent, TextResourceContents


class Point(typing.TypedDict):
    x: int
    y: int


def made():
    """Return a server of its own."""
    server = MCPServer("small")
    for function in (add, fail, broken, picture, environment, slow, hang, die, odd, nothing, point, untrue, learn, unlearn):
        server.add_tool(function)
    return server


def add(a: int, b: int = 1) -> str:
    """Add two numbers."""
    return str(a + b)


def fail(words: str) -> str:
    """Fail."""
    raise ToolError(words)


def picture() -> Image:
    """Draw."""
    return Image(data=b"png", format="png")


def environment(name: str) -> str:
    """Look up a variable."""
    return os.environ.get(name, "nothing")


async def slow(steps: int, ctx: Context) -> str:
    """Take steps."""
    for step in range(steps):
        await ctx.report_progress(step + 1, steps)
    return "done"


def broken() -> str:
    """Break."""
    raise ZeroDivisionError("a fault of the server")


async def hang() -> str:
    """Never answer."""
    await asyncio.sleep(3600)
    return "too late"


def die() -> str:
    """End the server."""
    os._exit(3)


def odd() -> list:
    """Return a part of every kind."""
    return [
        TextContent(type="text", text="words"),
        AudioContent(type="audio", data="d2F2", mime_type="audio/wav"),
        EmbeddedResource(type="resource", resource=TextResourceContents(uri="file:///a.txt", text="a text")),
        EmbeddedResource(
            type="resource", resource=BlobResourceContents(uri="file:///a.pdf", blob="cGRm", mime_type="application/pdf")
        ),
        ResourceLink(type="resource_link", name="there", uri="https://example.com/there"),
    ]


def nothing() -> None:
    """Return nothing."""


def point() -> Point:
    """Return a value."""
    return {"x": 1, "y": 2}


def untrue() -> Point:
    """Return what is not what was promised."""
    return {"x": "far"}


def triple(n: int) -> str:
    """Triple a number."""
    return str(3 * n)


async def learn(ctx: Context) -> str:
    """Have one more tool."""
    ctx.mcp_server.add_tool(triple)
    return "learnt"


async def unlearn(ctx: Context) -> str:
    """Have one tool less."""
    ctx.mcp_server.remove_tool("add")
    return "forgotten"


server = made()

if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
