"""A model that says what a script says, in whatever dialect it is asked, and fails as real ones do.

``ScriptedModel`` stands behind the replay port (``port()``, no network, virtual time) or behind a real server on this machine
(``serve()``, see ``server``), to which any client of any language can be pointed. It reads the dialect off the request, so that
one script serves all five, whole and streamed.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypeAlias

import msgspec

from llmbroker.exchange import Reply
from llmbroker.testing.faults import FAULTS, Fault, applicable
from llmbroker.testing.wires import content_type, stream, whole
from llmbroker.transports.replay import Answer, Replay, UnexpectedRequest
from llmbroker.wire import HTTPRequest

JSON: TypeAlias = dict[str, Any]
PATHS = (
    ("/chat/completions", "openai-chat"),
    ("/responses", "openai-responses"),
    ("/messages", "anthropic"),
    ("enerateContent", "gemini"),
    ("/api/chat", "ollama"),
)
_LISTS = {"openai-responses": "input", "gemini": "contents"}


class Asked(msgspec.Struct, frozen=True):
    """A request as a script may look at it.

    Attributes:
        dialect, stream: how it was asked. body: what was sent.
        number: how many requests came before it.
    """

    dialect: str
    stream: bool
    body: JSON
    number: int

    @property
    def items(self) -> list[JSON]:
        """The conversation in the dialect's own words."""
        found = self.body.get(_LISTS.get(self.dialect, "messages"))
        return found if isinstance(found, list) else [{"role": "user", "content": found}]

    @property
    def tools(self) -> list[str]:
        """The names of the tools that are offered."""
        out: list[str] = []
        for tool in self.body.get("tools") or ():
            inner = tool.get("functionDeclarations") or tool.get("function_declarations")
            out += [one["name"] for one in inner] if inner else [(tool.get("function") or tool).get("name", "")]
        return out

    @property
    def results(self) -> list[str]:
        """The tool results that it holds, as text, in order."""
        out: list[str] = []
        for item in self.items:
            if item.get("role") == "tool":
                out.append(_text(item.get("content")))
            elif item.get("type") == "function_call_output":
                out.append(_text(item.get("output")))
            for part in _parts(item):
                if part.get("type") == "tool_result":
                    out.append(_text(part.get("content")))
                elif "functionResponse" in part:
                    response = part["functionResponse"].get("response") or {}
                    out.append(_text(next(iter(response.values()), "")))
        return out


def _parts(item: JSON) -> list[JSON]:
    found = item.get("parts") or item.get("content")
    return [part for part in found if isinstance(part, dict)] if isinstance(found, list) else []


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") if isinstance(part, dict) else str(part) for part in content)
    return content if isinstance(content, str) else msgspec.json.encode(content).decode()


Step: TypeAlias = Reply | Answer | Callable[[Asked], Reply | Answer]


class ScriptedModel:
    """A model with a script.

    Args:
        *steps: what it says, one a request: a reply (``made_reply``), a whole ``Answer``, or a function of the request. A
            single function with ``forever=True`` answers every request.
        faults: names of ``FAULTS``, one a request, None for none; requests beyond the list have none. A fault that spoils an
            answer does not use the step up: the next request gets it.
        rate, seed: in place of a list: this share of requests has a fault, drawn with that seed from ``kinds`` (None: all).
        forever: the script begins again when it is at its end.

    Attributes:
        asked: the requests so far. injected: the fault of each, or None.
    """

    def __init__(
        self,
        *steps: Step,
        faults: Iterable[str | None] = (),
        rate: float = 0.0,
        seed: int = 0,
        kinds: Sequence[str] | None = None,
        forever: bool = False,
        size: int = 8,
    ) -> None:
        self._steps = list(steps)
        self._faults = list(faults)
        self._rate = rate
        self._kinds = tuple(FAULTS) if kinds is None else tuple(kinds)
        self._dice = random.Random(seed)  # noqa: S311 - no secret depends on it
        self._forever = forever
        self._size = size
        self._at = 0
        self._lock = threading.Lock()
        self._unexpected: list[str] = []
        self.asked: list[Asked] = []
        self.injected: list[str | None] = []
        unknown = [name for name in (*self._faults, *self._kinds) if name is not None and name not in FAULTS]
        if unknown:
            raise ValueError(f"There is no fault {unknown[0]!r}; there are {', '.join(FAULTS)}.")

    # -- answering --

    def answer(self, request: HTTPRequest) -> Answer:
        """Return what comes back for a request.

        Raises:
            UnexpectedRequest: the script is at its end.
        """
        with self._lock:
            return self._answer(request)

    def _answer(self, request: HTTPRequest) -> Answer:
        asked = read_request(request, len(self.asked))
        self.asked.append(asked)
        fault = self._fault(asked)
        if self._at >= len(self._steps) and self._forever:
            self._at = 0
        if self._at >= len(self._steps):
            self._unexpected.append(f"request {asked.number + 1} ({asked.dialect})")
            raise UnexpectedRequest(f"The script has {len(self._steps)} steps; request {asked.number + 1} has no answer.")
        step = self._steps[self._at]
        said = step(asked) if callable(step) else step
        if fault is not None and fault.calls and not getattr(said, "tool_calls", None):
            fault = None
        self.injected.append(None if fault is None else fault.name)
        if fault is None or not fault.spoils:
            self._at += 1
        if isinstance(said, Answer):
            return said
        if fault is not None and fault.reply is not None:
            said = fault.reply(said)
        how = {"content-type": content_type(asked.dialect, stream=asked.stream)}
        body: Any = stream(said, asked.dialect, size=self._size) if asked.stream else [whole(said, asked.dialect)]
        made = Answer(headers=how, body=body)
        return made if fault is None or fault.answer is None else fault.answer(made)

    def _fault(self, asked: Asked) -> Fault | None:
        if self._faults:
            name = self._faults.pop(0)
            return None if name is None else FAULTS[name]
        if self._rate and self._dice.random() < self._rate:
            found = [FAULTS[name] for name in self._kinds if applicable(FAULTS[name], asked.dialect, asked.stream)]
            return self._dice.choice(found) if found else None
        return None

    # -- where it stands --

    def port(self) -> Replay:
        """Return a replay port behind which this model answers every request."""
        return Replay().on(None, self.answer, times=None)

    def serve(self, host: str = "127.0.0.1", port: int = 0) -> Any:
        """Return a context manager: a real HTTP server on this machine; its value has ``url``, the base URL for clients."""
        from llmbroker.testing.server import Server

        return Server(self, host, port)

    def check(self) -> None:
        """See that every step was used and nothing else was asked for.

        Raises:
            AssertionError: says what is left.
        """
        faults = [f"{name} had no answer" for name in self._unexpected]
        left = len(self._steps) - self._at
        if left and not self._forever:
            faults.append(f"{left} of {len(self._steps)} steps were never asked for")
        if self._faults:
            faults.append(f"{len(self._faults)} faults were never met: {self._faults[:5]}")
        if faults:
            raise AssertionError("; ".join(faults))

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Check, unless something else went wrong already."""
        if kind is None:
            self.check()


def read_request(request: HTTPRequest, number: int = 0) -> Asked:
    """Return what a request asks.

    Raises:
        UnexpectedRequest: its address belongs to no dialect, or its body is no JSON object.
    """
    path = request.url.partition("?")[0]
    dialect = next((name for end, name in PATHS if path.endswith(end)), None)
    try:
        body = msgspec.json.decode(request.body, type=dict[str, Any])
    except msgspec.DecodeError:
        dialect = None
        body = {}
    if dialect is None:
        raise UnexpectedRequest(f"{request.method} {path} is a request of no dialect.")
    streamed = "streamGenerateContent" in path if dialect == "gemini" else bool(body.get("stream"))
    if dialect == "ollama" and "stream" not in body:
        streamed = True
    return Asked(dialect, streamed, body, number)
