"""``Response``: what the verbs return, and the small questions that are asked of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from llmbroker.exchange import Reply, Usage
from llmbroker.journal import utc
from llmbroker.tools import read_arguments


class Response(Reply, frozen=True, kw_only=True, weakref=True):
    """An answer: all of ``Reply``, and what a study wants to know of it. ``str(response)`` is its text.

    Attributes:
        provider: id of who answered, where the config says so.
        duration: seconds of the attempt that brought it.
        started: when that attempt began, seconds since 1970.
        attempts: how many requests it took, this one included.
        parsed: the value that the answer holds, where a form was asked for (``response_format``); None if it is not valid.
        problem: why ``parsed`` is None although a form was asked for.
        llm_name, call_id: as of ``PooledReply``, where a broker was asked.
        pooled: the broker's own reply, else None.
    """

    provider: str | None = None
    duration: float | None = None
    started: float | None = None
    attempts: int = 1
    parsed: Any = None
    problem: str | None = None
    llm_name: str | None = None
    call_id: str | None = None
    pooled: Any = None
    config: Any = None

    @property
    def cost(self) -> float | None:
        """US dollars of this answer, or None where price or tokens are not known."""
        if self.config is None or self.started is None:
            return None
        return self.config.cost(self.usage, utc(self.started))  # type: ignore[no-any-return]

    @property
    def model_version(self) -> str | None:
        """The model as the provider names it in the answer."""
        return self.model

    @property
    def response_id(self) -> str | None:
        """The provider's id of the answer."""
        return self.id

    @property
    def thinking(self) -> str | None:
        """The reasoning text, where the provider shows it."""
        return self.reasoning

    @property
    def truncated(self) -> bool:
        """Whether the answer was cut at the token limit."""
        return self.finish_reason == "length"

    def __repr__(self) -> str:
        """Return the text and a status line."""
        counts = tokens(self)
        known = [f"{name} {value}" for name, value in counts.items() if value is not None and name in ("sent", "rec", "total")]
        parts = [str(self.model), self.finish_reason, ", ".join(known) or "tokens unknown"]
        if self.duration is not None:
            parts.append(f"{self.duration:.2f} s")
        if self.tool_calls:
            parts.insert(2, "calls " + ", ".join(call["function"]["name"] for call in self.tool_calls[:5]))
        if self.tool_loop is not None:
            parts.append(f"{self.tool_loop.model_calls} model calls, {self.tool_loop.tool_calls} tool calls")
        return f"{self.text}\n[{' | '.join(parts)}]"


class Tokens(msgspec.Struct, frozen=True):
    """Token counts of one answer; None where the provider did not say. Also a mapping: ``dict(tokens(response))``.

    Attributes:
        sent: all that was sent, cached tokens included.
        rec: all that was produced, reasoning included.
        total: the provider's total, else the sum.
        reasoning: the part of ``rec`` that is reasoning.
        cached: the part of ``sent`` that came from a cache.
    """

    sent: int | None = None
    rec: int | None = None
    total: int | None = None
    reasoning: int | None = None
    cached: int | None = None

    def keys(self) -> tuple[str, ...]:
        """Return the names."""
        return self.__struct_fields__

    def items(self) -> Iterator[tuple[str, int | None]]:
        """Iterate over (name, count)."""
        return ((name, getattr(self, name)) for name in self.__struct_fields__)

    def __getitem__(self, name: str) -> int | None:
        """Return a count by its name."""
        if name not in self.__struct_fields__:
            raise KeyError(name)
        return getattr(self, name)  # type: ignore[no-any-return]


def made(reply: Reply, **facts: Any) -> Response:
    """Return the reply as a response."""
    return Response(
        text=reply.text, tool_calls=reply.tool_calls, usage=reply.usage, finish_reason=reply.finish_reason,
        raw_finish_reason=reply.raw_finish_reason, reasoning=reply.reasoning, refusal=reply.refusal, model=reply.model,
        id=reply.id, request_id=reply.request_id, raw=reply.raw, message=reply.message, messages=reply.messages,
        tool_history=reply.tool_history, tool_loop=reply.tool_loop, **facts,
    )  # fmt: skip


def tokens(response: Any) -> Tokens:
    """Return the token counts of an answer (of the final call, where tools ran); all None for what is no answer."""
    usage = getattr(response, "usage", None)
    if not isinstance(usage, Usage):
        return Tokens()
    return Tokens(
        usage.input_tokens, usage.output_tokens, usage.total_tokens, usage.reasoning_tokens, usage.cached_input_tokens
    )


def finish_reason(response: Any) -> str | None:
    """Return how the answer ended: stop, length, tool_calls, content_filter, refusal, error, unknown; None for no answer."""
    return response.finish_reason if isinstance(response, Reply) else None


def tool_calls(response: Any) -> list[dict[str, Any]]:
    """Return the tool calls of an answer, in order: ``id``, ``name``, ``arguments`` (a dict).

    Arguments are read as JSON and nothing else; where they cannot be read they are None and ``problem`` says why.
    """
    out = []
    for call in getattr(response, "tool_calls", None) or ():
        function = call["function"]
        read = read_arguments(function.get("arguments"))
        row = {"id": call.get("id"), "name": function.get("name"), "arguments": read.value}
        out.append({**row, "problem": read.problem} if read.problem else row)
    return out
