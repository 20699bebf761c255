"""Tools of MCP servers as tools of a loop, over the official ``mcp`` package (extra ``mcp``): stdio, HTTP, or in process.

A server's tool becomes a tool like any other: its arguments are read, repaired and checked against the schema that the server
declares before they are sent, rules (``timeout``, ``approval``, ``group``) hold for it, and its result reaches the model as
text, images and files. What a server says about itself ("read only", "idempotent") is a claim and changes nothing: say it
yourself.

The package speaks asyncio in a task of its own. It is run in one thread a server, so that the same object serves plain and
asynchronous loops, from any thread.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeAlias

from llmbroker.credentials import mask, redact
from llmbroker.errors import ConfigurationError, MCPError
from llmbroker.tools import File, FunctionTool, Image, ToolContext, tool

JSON: TypeAlias = dict[str, Any]
_CONNECTION_CLOSED = -32000
"""The code of a call whose connection ended, in the package's words."""
_BY_HAND = ToolContext()
"""What a call outside of any loop knows of one."""


class MCPServer:
    """A connection to an MCP server; a context manager, or ``open`` and ``close``.

    Args:
        where: a URL (streamable HTTP), a command with its arguments as a list (stdio), or a server object of the ``mcp``
            package (in process, for tests).
        headers: of every HTTP request, an ``authorization`` for one.
        env: environment of the command, beside the few harmless variables that every command gets. Nothing else is inherited:
            keys of this process do not reach the server.
        cwd: folder in which the command runs.
        timeout: seconds for connecting, and for a call whose tool has no timeout of its own.

    Raises:
        ConfigurationError: the package is not installed, or ``where`` is none of these.
    """

    def __init__(
        self,
        where: Any,
        *,
        headers: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        timeout: float = 30.0,
    ) -> None:
        if isinstance(where, str) and not where.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"{where!r} is no address of an MCP server.", hint="A command is given as a list: ['uvx', 'some-server']."
            )
        if (
            isinstance(where, Sequence)
            and not isinstance(where, str)
            and not (where and all(isinstance(p, str) for p in where))
        ):
            raise ConfigurationError("A command of an MCP server is a list of strings, the program first.")
        if where is None:
            raise ConfigurationError("None is no MCP server.", hint="Give a URL, a command as a list, or a server object.")
        self._where = where
        self._headers = dict(headers or {})
        self._env = dict(env or {})
        self._cwd = cwd
        self._timeout = timeout
        self._held = contextlib.ExitStack()
        self._portal: Any = None
        self._client: Any = None
        self._ended = False

    @property
    def name(self) -> str:
        """What the server is called here: its address without query and password, its command, or its class."""
        if isinstance(self._where, str):
            return mask(self._where.partition("?")[0])
        if isinstance(self._where, Sequence):
            return str(self._where[0])
        return type(self._where).__name__

    def _words(self, error: BaseException) -> str:
        """Return what an error says, without the keys that were given to reach the server."""
        given = [*self._headers.values(), *self._env.values()]
        hidden = [*given, *(value.partition(" ")[2] for value in given)]
        if isinstance(self._where, str):
            hidden.append(self._where.partition("?")[2])
        return mask(redact(_words(error), hidden))

    def open(self) -> Self:
        """Connect; does nothing if it is connected. A server that ended is connected to, or begun, anew.

        Raises:
            MCPError: it cannot be reached.
        """
        if self._client is not None and not self._ended:
            return self
        self.close()
        from_thread, client = _package()
        try:
            self._portal = self._held.enter_context(from_thread.start_blocking_portal())
            made = self._portal.call(self._make, client)
            self._client = self._held.enter_context(self._portal.wrap_async_context_manager(made))
        except Exception as error:
            self.close()
            raise MCPError(f"The MCP server {self.name} cannot be reached: {self._words(error)}.") from None
        return self

    async def _make(self, client: Any) -> Any:
        """Make the client, in its own thread."""
        target = self._where
        if isinstance(target, str):
            if self._headers:
                from mcp.client.streamable_http import streamable_http_client
                from mcp.shared._httpx_utils import create_mcp_http_client

                target = streamable_http_client(target, http_client=create_mcp_http_client(headers=self._headers))
        elif isinstance(target, Sequence):
            from mcp import StdioServerParameters

            target = StdioServerParameters(
                command=target[0], args=[*target[1:]], env=self._env or None, cwd=None if self._cwd is None else str(self._cwd)
            )
        return client(target, read_timeout_seconds=self._timeout)

    def tools(self, *, only: Sequence[str] | None = None, prefix: str = "", **rules: Any) -> list[FunctionTool]:
        """Return the server's tools; connects if need be. Each can be called by hand, with its arguments as keywords.

        Args:
            only: names of those that are wanted; None: all.
            prefix: put before each name, so that two servers do not collide.
            **rules: options of ``llmbroker.tool`` for all of them: ``timeout``, ``approval``, ``group`` and the others.

        Raises:
            MCPError: the server cannot be reached, fails, or has no tool of a name in ``only``; also out of a call by hand.
        """
        self.open()
        found: list[Any] = []
        cursor: str | None = None
        try:
            while True:
                page = self._portal.call(functools.partial(self._client.list_tools, cursor=cursor))
                found += page.tools
                cursor = page.next_cursor
                if not cursor:
                    break
        except Exception as error:
            raise MCPError(f"The MCP server {self.name} does not list its tools: {self._words(error)}.") from None
        if only is not None:
            missing = [name for name in only if name not in {one.name for one in found}]
            if missing:
                raise MCPError(f"The MCP server {self.name} has no tool {missing[0]!r}.")
            found = [one for one in found if one.name in only]
        return [
            tool(
                self._caller(one.name), name=prefix + one.name, description=one.description or one.title or "",
                parameters=one.input_schema, **rules,
            )
            for one in found
        ]  # fmt: skip

    def _caller(self, name: str) -> Callable[..., Any]:
        def called(*, llmbroker_context: ToolContext = _BY_HAND, **arguments: Any) -> Any:
            return self._call(name, arguments, llmbroker_context)

        called.__name__ = called.__qualname__ = name
        return called

    def _call(self, name: str, arguments: JSON, context: ToolContext) -> Any:
        left = context.seconds_left
        seconds = self._timeout if left is None else min(self._timeout, left) if left else 0.001

        async def progress(done: float, total: float | None, message: str | None) -> None:
            context.progress({"done": done, "total": total, "message": message})

        async def asked() -> Any:
            return await self._client.call_tool(name, arguments, read_timeout_seconds=seconds, progress_callback=progress)

        if self._client is None:
            raise MCPError(f"The connection to the MCP server {self.name} is closed.")
        try:
            result = self._portal.call(asked)
            value = [_content(block) for block in result.content]
        except ValueError as error:
            raise MCPError(f"the server's result cannot be read: {self._words(error)}") from None
        except Exception as error:
            self._ended = self._ended or getattr(error, "code", None) == _CONNECTION_CLOSED
            if self._ended:
                raise MCPError(f"the MCP server {self.name} has ended; whether this call was done is not known") from None
            raise MCPError(self._words(error)) from None
        if result.is_error:
            raise MCPError("\n".join(str(part) for part in value) or "the server reports an error")
        if not value:
            return result.structured_content
        return value[0] if len(value) == 1 else value if any(not isinstance(v, str) for v in value) else "\n".join(value)

    def close(self) -> None:
        """Disconnect; a command is ended. May be called twice."""
        self._client, self._ended = None, False
        with contextlib.suppress(Exception):
            self._held.close()

    def __enter__(self) -> Self:
        """Connect."""
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Disconnect."""
        self.close()

    def __repr__(self) -> str:
        return f"MCPServer({self.name})"


def _package() -> tuple[Any, Any]:
    try:
        from anyio import from_thread

        from mcp import Client
    except ImportError as error:
        raise ConfigurationError(
            f"The package mcp is not installed ({error}).", hint="Install it: pip install 'llmbroker[mcp]'"
        ) from None
    return from_thread, Client


def _words(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return (str(error) or type(error).__name__).rstrip(".")


def _content(block: Any) -> Any:
    """Return a block of a result as the value that stands for it."""
    kind = block.type
    if kind == "text":
        return block.text
    if kind == "image":
        return Image(base64.b64decode(block.data), block.mime_type)
    if kind == "audio":
        return {"type": "input_audio", "input_audio": {"data": block.data, "format": block.mime_type.rpartition("/")[2]}}
    if kind == "resource":
        resource = block.resource
        if getattr(resource, "text", None) is not None:
            return resource.text
        return File(base64.b64decode(resource.blob), resource.mime_type or "application/octet-stream", str(resource.uri))
    return f"[{kind}: {getattr(block, 'uri', '')}]"
