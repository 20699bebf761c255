"""A conversation that is kept from one question to the next: asked, saved, loaded, forked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, TypeAlias

import msgspec

from llmbroker.errors import InvalidRequestError
from llmbroker.files import replace
from llmbroker.loop.approval import Paused
from llmbroker.loop.faces import arun_tool_loop, astream_tool_loop, run_tool_loop, stream_tool_loop
from llmbroker.loop.stream import AsyncToolLoopStream, ToolLoopStream
from llmbroker.messages import History, validate

JSON: TypeAlias = dict[str, Any]
FORMAT = 1


class Conversation:
    """Messages that grow with every question.

    Args:
        messages: what was said before; it is copied.
        system: the system's words, put in front.
        **loop: arguments of ``run_tool_loop`` for every question (``tools``, ``budget``, ``compaction``, ...).

    Attributes:
        messages: the conversation; it may be read and changed between questions.
        paused: the run that waits for decisions, or None.
    """

    def __init__(self, messages: Any = (), *, system: str | None = None, **loop: Any) -> None:
        given = [{"role": "user", "content": messages}] if isinstance(messages, str) else [dict(m) for m in messages]
        self.messages: list[JSON] = [{"role": "system", "content": system}, *given] if system is not None else given
        self.paused: Paused | None = None
        self._loop = loop

    def ask(self, caller: Any, question: Any = None, **more: Any) -> Any:
        """Put a question and return the reply; what was said stands in ``messages`` then, an exception or not.

        Args:
            caller: as of ``run_tool_loop``.
            question: text, or a message; None goes on with what is there (open calls, a paused run with ``answers=``). Calls
                that were left open are run first, and then it is put; if that fails or pauses, it is not kept.
            **more: arguments of ``run_tool_loop`` for this question.

        Raises:
            InvalidRequestError: calls wait for a decision, and neither ``answers=`` nor ``approve=`` gives it.
            Exception: what the loop raises.
        """
        kept: JSON = {}
        try:
            reply = run_tool_loop(caller, transcript=kept, **self._next(question, more))
        finally:
            self._keep(kept)
        return self._settled(reply)

    async def aask(self, caller: Any, question: Any = None, **more: Any) -> Any:
        """Do what ``ask`` does, awaited."""
        kept: JSON = {}
        try:
            reply = await arun_tool_loop(caller, transcript=kept, **self._next(question, more))
        finally:
            self._keep(kept)
        return self._settled(reply)

    def stream(self, caller: Any, question: Any = None, **more: Any) -> ToolLoopStream:
        """Return the events of the loop; what was said is kept when they were read. ``reply`` is there afterwards."""
        face = stream_tool_loop(caller, transcript=_Kept(self), **self._next(question, more))
        self.paused = None
        return face

    def astream(self, caller: Any, question: Any = None, **more: Any) -> AsyncToolLoopStream:
        """Do what ``stream`` does, for ``async for``."""
        face = astream_tool_loop(caller, transcript=_Kept(self), **self._next(question, more))
        self.paused = None
        return face

    def _next(self, question: Any, more: JSON) -> JSON:
        """Return the arguments of the loop for this question: calls that were left open come before it."""
        given = {**self._loop, **more}
        if question is None:
            return {**given, "messages": self.paused or self.messages}
        message = _message(question)
        if not (self.messages and History(self.messages).open_calls()):
            return {**given, "messages": [*self.messages, message]}
        if self.paused is not None and not callable(given.get("approve")):
            decided = {getattr(answer, "id", None) for answer in given.get("answers") or ()}
            waiting = [call.name for call in self.paused.pending if call.id not in decided]
            if waiting:
                raise InvalidRequestError(
                    f"Before the next question, {len(waiting)} call(s) wait for a decision: {', '.join(waiting)[:200]}.",
                    argument="answers",
                    hint="Hand in answers=: a call.approve(), call.reject(...) or call.result(...) for each of paused.pending.",
                )
        return {**given, "messages": self.paused or self.messages, "then": [message]}

    def _keep(self, kept: JSON) -> None:
        if kept.get("messages"):
            self.messages = list(kept["messages"])

    def _settled(self, reply: Any) -> Any:
        self.paused = reply if isinstance(reply, Paused) else None
        return reply

    def fork(self) -> Self:
        """Return a conversation that goes on from here by itself."""
        made = type(self)(self.messages, **self._loop)
        made.paused = self.paused
        return made

    def to_json(self) -> str:
        """Return it as JSON text; tools and settings are not in it."""
        return msgspec.json.encode({"format": FORMAT, "messages": self.messages, "paused": self.paused}).decode()

    @classmethod
    def from_json(cls, text: str | bytes, **loop: Any) -> Self:
        """Return it again.

        Raises:
            InvalidRequestError: the text holds no conversation, or one of a newer format.
        """
        try:
            held = msgspec.json.decode(text, type=_Saved)
        except msgspec.DecodeError as error:
            raise InvalidRequestError(f"This is no saved conversation: {error}.", argument="text") from None
        if held.format > FORMAT:
            raise InvalidRequestError(f"This conversation has format {held.format}; {FORMAT} is known here.", argument="text")
        made = cls(held.messages, **loop)
        made.paused = held.paused
        return made

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, at once: a reader sees the old one or the new one, never a half.

        A new file is readable by its owner alone; one that is there keeps its permissions.

        Raises:
            OSError: it cannot be written; what was there is untouched.
        """
        replace(Path(path), self.to_json().encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str], **loop: Any) -> Self:
        """Read it from a file; raises as ``from_json``."""
        return cls.from_json(Path(path).read_bytes(), **loop)

    def faults(self) -> list[str]:
        """Return what a provider would not take, one sentence a fault."""
        return validate(self.messages) if self.messages else []

    def __len__(self) -> int:
        return len(self.messages)

    def __repr__(self) -> str:
        waits = f", {len(self.paused.pending)} calls wait" if self.paused is not None else ""
        return f"Conversation({len(self.messages)} messages{waits})"


def _message(question: Any) -> JSON:
    if isinstance(question, (str, list)):
        return {"role": "user", "content": question}
    if isinstance(question, Mapping):
        return dict(question)
    raise InvalidRequestError(
        f"question is a text or a message, not {type(question).__name__}. Conversation.ask(broker, question): the caller "
        "comes first.",
        argument="question",
    )


class _Saved(msgspec.Struct):
    messages: list[JSON]
    format: int = FORMAT
    paused: Paused | None = None


class _Kept:
    """Receives what happened in a streamed loop."""

    def __init__(self, owner: Conversation) -> None:
        object.__setattr__(self, "_owner", owner)

    def take_pause(self, paused: Paused) -> None:
        self._owner.paused = paused  # type: ignore[attr-defined]

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "messages" and value:
            self._owner.messages = list(value)  # type: ignore[attr-defined]
