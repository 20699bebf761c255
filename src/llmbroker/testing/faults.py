"""What goes wrong with models, their servers and the way to them: a catalogue of faults that can be injected by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from llmbroker.exchange import Reply
from llmbroker.transports.replay import Answer

JSON: TypeAlias = dict[str, Any]
TEXT = frozenset({"openai-chat", "openai-responses"})
"""Dialects in which arguments travel as text, whole and streamed; in Anthropic's they do in streams."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault.

    Attributes:
        name, words: its name, and what it is.
        reply: changes what is said. answer: changes what goes over the wire.
        spoils: nothing usable arrives: whoever is asked again says the same step again.
        text: it is about arguments as text. calls: it needs a reply with tool calls. streamed: it needs a stream.
    """

    name: str
    words: str
    reply: Callable[[Reply], Reply] | None = None
    answer: Callable[[Answer], Answer] | None = None
    spoils: bool = False
    text: bool = False
    calls: bool = False
    streamed: bool = False


def applicable(fault: Fault, dialect: str, stream: bool) -> bool:
    """Whether a fault can happen in that dialect."""
    if fault.streamed and not stream:
        return False
    return not fault.text or dialect in TEXT or (dialect == "anthropic" and stream)


def _arguments(change: Callable[[str], str]) -> Callable[[Reply], Reply]:
    def changed(reply: Reply) -> Reply:
        made = []
        for call in reply.tool_calls or ():
            function = call["function"]
            made.append({**call, "function": {**function, "arguments": change(function["arguments"])}})
        return msgspec.structs.replace(reply, tool_calls=made or None)

    return changed


def _calls(change: Callable[[JSON, int], JSON]) -> Callable[[Reply], Reply]:
    def changed(reply: Reply) -> Reply:
        made = [change(call, index) for index, call in enumerate(reply.tool_calls or ())]
        return msgspec.structs.replace(reply, tool_calls=made or None)

    return changed


def _named(change: Callable[[str], str]) -> Callable[[Reply], Reply]:
    return _calls(lambda call, _: {**call, "function": {**call["function"], "name": change(call["function"]["name"])}})


def _finish(reason: Any) -> Callable[[Reply], Reply]:
    return lambda reply: msgspec.structs.replace(reply, finish_reason=reason)


def _status(status: int, body: Any, **headers: str) -> Callable[[Answer], Answer]:
    return lambda _: Answer(status=status, body=body, headers=headers)


def _half(answer: Answer) -> list[bytes]:
    pieces = [piece for piece in answer.body if isinstance(piece, bytes)]
    text = b"".join(pieces)
    return [text[: len(text) // 2]]


def _error(message: str) -> JSON:
    return {"error": {"message": message, "type": "error", "code": "error"}}


def _quoted(text: str) -> str:
    return repr(msgspec.json.decode(text)) if "'" not in text and "\\" not in text else text


_ALL = (
    # the server
    Fault(name="rate_limited", words="429 with Retry-After", spoils=True,
          answer=_status(429, _error("slow down"), **{"retry-after": "1"})),
    Fault(name="server_error", words="500 with a JSON error", spoils=True, answer=_status(500, _error("broken"))),
    Fault(name="overloaded", words="503 with a JSON error", spoils=True, answer=_status(503, _error("overloaded"))),
    Fault(name="bad_gateway", words="502 with a page of HTML", spoils=True,
          answer=_status(502, "<html><body>Bad Gateway</body></html>", **{"content-type": "text/html"})),
    Fault(name="empty_body", words="200 with nothing", spoils=True,
          answer=lambda a: msgspec.structs.replace(a, body=b"")),
    Fault(name="not_json", words="200 with a page of HTML", spoils=True,
          answer=_status(200, "<html>Welcome</html>", **{"content-type": "text/html"})),
    # the way to it
    Fault(name="reset", words="the connection breaks before a byte came back", spoils=True,
          answer=lambda a: msgspec.structs.replace(a, fault="reset")),
    Fault(name="garbage", words="what comes back is not HTTP", spoils=True,
          answer=lambda a: msgspec.structs.replace(a, fault="garbage")),
    Fault(name="cut", words="the connection breaks in the middle of the answer", spoils=True,
          answer=lambda a: msgspec.structs.replace(a, body=_half(a), fault="cut")),
    Fault(name="stall", words="nothing more comes after the middle of the answer", spoils=True,
          answer=lambda a: msgspec.structs.replace(a, body=_half(a), fault="stall")),
    Fault(name="never", words="the answer never begins", spoils=True,
          answer=lambda a: msgspec.structs.replace(a, delay=math.inf)),
    Fault(name="slow", words="a pause before every piece", answer=lambda a: msgspec.structs.replace(a, every=0.02)),
    Fault(name="crumbs", words="cut into single bytes", answer=lambda a: msgspec.structs.replace(a, pieces=1)),
    # arguments that can be mended
    Fault(name="fenced", words="arguments in a code fence", text=True, calls=True,
          reply=_arguments(lambda t: f"```json\n{t}\n```")),
    Fault(name="trailing_comma", words="a comma before the last bracket", text=True, calls=True,
          reply=_arguments(lambda t: t[:-1] + ",}" if len(t) > 2 else t)),
    Fault(name="single_quotes", words="Python's quotes", text=True, calls=True, reply=_arguments(_quoted)),
    Fault(name="twice_encoded", words="arguments as a JSON string", text=True, calls=True,
          reply=_arguments(lambda t: msgspec.json.encode(t).decode())),
    Fault(name="byte_order_mark", words="a mark before the arguments", text=True, calls=True,
          reply=_arguments(lambda t: "\ufeff" + t)),
    # arguments that cannot
    Fault(name="cut_arguments", words="arguments that end in the middle, marked complete", text=True, calls=True, spoils=True,
          reply=_arguments(lambda t: t[: len(t) // 2] if len(t) > 2 else '{"')),
    Fault(name="no_object", words="arguments that are a list", text=True, calls=True, spoils=True,
          reply=_arguments(lambda t: f"[{t}]")),
    Fault(name="nonsense", words="arguments that are prose", text=True, calls=True, spoils=True,
          reply=_arguments(lambda t: "as you wish")),
    # calls
    Fault(name="unknown_tool", words="a tool that nobody declared", calls=True, spoils=True,
          reply=_named(lambda n: n + "_now")),
    Fault(name="spaced_name", words="spaces around the tool's name", calls=True, reply=_named(lambda n: f" {n} ")),
    Fault(name="same_ids", words="all calls of a turn have one id", calls=True,
          reply=_calls(lambda c, _: {**c, "id": "call_1"})),
    Fault(name="missing_ids", words="calls without ids", calls=True, reply=_calls(lambda c, _: {**c, "id": ""})),
    # ends
    Fault(name="ends_with_stop", words="calls, and the finish reason says stop", calls=True, reply=_finish("stop")),
    Fault(name="ends_with_length", words="the answer was cut at the token limit", calls=True, spoils=True,
          reply=_finish("length")),
)  # fmt: skip

FAULTS: dict[str, Fault] = {fault.name: fault for fault in _ALL}
"""Every fault by name."""
