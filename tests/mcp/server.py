"""A small MCP server, for tests: ``python server.py`` speaks stdio, ``python server.py PORT`` HTTP."""

import os
import sys

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("small")


@server.tool()
def add(a: int, b: int = 1) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool()
def fail(words: str) -> str:
    """Fail."""
    raise ToolError(words)


@server.tool()
def picture() -> Image:
    """Draw."""
    return Image(data=b"png", format="png")


@server.tool()
def environment(name: str) -> str:
    """Look up a variable."""
    return os.environ.get(name, "nothing")


@server.tool()
async def slow(steps: int, ctx: Context) -> str:
    """Take steps."""
    for step in range(steps):
        await ctx.report_progress(step + 1, steps)
    return "done"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
