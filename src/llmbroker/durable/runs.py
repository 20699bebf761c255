"""Tool loops that survive the death of their process: everything is written down before the next thing begins.

Theory of operation
-------------------
A run has a name. Its loop writes three kinds of notes: the messages, when a turn of the model is in the history; a mark before
a tool begins; its result when it ended. A run that was killed is begun again under its name, in any process: the messages are
read, finished calls get their results from the notes and are not repeated, and the loop goes on with what is open. A call that
was under way at the moment of death runs again only if its tool is ``safe_to_repeat``; else the model is told that nobody knows
whether it was done. A model call that was under way is made again: its answer was seen by nobody.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import msgspec

from llmbroker.budget import Spent
from llmbroker.errors import InvalidRequestError, StoreError, UnknownCallError
from llmbroker.exchange import FinishReason, Reply, Usage
from llmbroker.io import drive
from llmbroker.journal import Store, open_store
from llmbroker.journal.runs import Note, RunRow, RunStore
from llmbroker.loop.approval import Paused
from llmbroker.loop.faces import arun_tool_loop, port_of, run_tool_loop, watched
from llmbroker.loop.run import DEFAULT_STEPS, Plan, Run
from llmbroker.loop.stream import AsyncToolLoopStream, ToolLoopStream
from llmbroker.loop.watch import Pump, Watch
from llmbroker.messages import History, check_text, shown
from llmbroker.tools import ToolHistory, ToolLoop, ToolRow

JSON: TypeAlias = dict[str, Any]
T = TypeVar("T")


class _Done(msgspec.Struct):
    """How a run ended."""

    text: str = ""
    finish_reason: FinishReason = "unknown"
    model: str | None = None
    usage: Usage | None = None
    parsed: Any = None
    rows: list[JSON] = []
    sums: ToolLoop = ToolLoop()
    paused: Paused | None = None
    error: str | None = None


class _Turn(msgspec.Struct):
    """A note of messages: those since the note before; ``whole``: all of them, in place of those before."""

    messages: list[JSON]
    step: int = 0
    spent: Spent | None = None
    whole: bool = False
    final: _Done | None = None


class _Result(msgspec.Struct):
    text: str
    content: Any = None
    error: str | None = None
    duration: float | None = None
    row: JSON = {}


STATES = ("running", "paused", "failed", "done")


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """A durable run as it stands.

    Attributes:
        id, status: its name; ``running``, ``paused``, ``failed`` or ``done``.
        began, changed: seconds since 1970.
        messages: the conversation as far as it was written down. step: model calls so far.
        reply: of a run that is done. paused: of one that waits for decisions. error: of one that failed.
    """

    id: str
    status: str
    began: float
    changed: float
    messages: list[JSON]
    step: int
    reply: Reply | None = None
    paused: Paused | None = None
    error: str | None = None


def _read(value: Any, kind: type[T]) -> T:
    """Return what was written down of a run."""
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.DecodeError, TypeError) as error:
        raise StoreError(
            f"What was written down of this run cannot be read: {error}.",
            reason="corrupt",
            hint="forget(run_id) deletes it; a new one begins at its first message.",
        ) from error


class _Recorder:
    """Writes one run down."""

    def __init__(self, store: RunStore, run_id: str, owner: str, clock: Callable[[], float]) -> None:
        self.run_id = run_id
        self.owner = owner
        self._store = store
        self._clock = clock
        self.row, notes = store.claim(_named(run_id), owner, clock())
        # Calls of one turn are written down from threads of their own: taking a number must not be two things.
        self._numbers = itertools.count(max((note.seq for note in notes), default=0) + 1)
        self.messages, self.step, self.spent, self.final = _messages(notes)
        self._written = len(self.messages)
        self._started = {note.call_id for note in notes if note.kind == "started"}
        self.results = {n.call_id: _read(n.value, _Result) for n in notes if n.kind == "result"}

    def begin(self, messages: Any) -> None:
        """Write the question of a new run."""
        self.messages = list(History(messages))
        self._note("messages", "", _Turn(self.messages))
        self._written = len(self.messages)

    def _note(self, kind: str, call_id: str, value: Any) -> None:
        note = Note(next(self._numbers), kind, call_id, msgspec.json.encode(value))
        self._store.write(self.run_id, self.owner, self._clock(), [note])

    async def replied(self, run: Run, final: Any) -> None:
        """Write the messages since the last turn; with the answer that ends the loop, how it ended."""
        spent = run.ledger.snapshot(run.port.now()) if run.ledger is not None else None
        whole = run.shortened or len(run.history) < self._written
        run.shortened = False
        new = list(run.history) if whole else run.history[self._written :]
        done = None if final is None else self.done(final, run.rows, run.tally.closed(len(run.rows), None))
        await self._write(run, "messages", "", _Turn(new, run.step, spent, whole, done))
        self._written = len(run.history)

    async def started(self, run: Run, plan: Plan) -> None:
        """Write that a call begins."""
        await self._write(run, "started", plan.call.id, None)

    async def finished(self, run: Run, plan: Plan) -> None:
        """Write a call's result."""
        row = {
            "round": run.step, "id": plan.call.id, "name": plan.call.name, "arguments": plan.written, "result": plan.text,
            "error": plan.error, "repaired": plan.repaired, "duration": plan.duration,
        }  # fmt: skip
        result = _Result(plan.text or "", plan.content, plan.error, plan.duration, row)
        await self._write(run, "result", plan.call.id, result)

    async def _write(self, run: Run, kind: str, call_id: str, value: Any) -> None:
        if self._store.store.direct:
            self._note(kind, call_id, value)
        else:
            await run.port.call(self._note, kind, call_id, value)

    def recall(self, run: Run, plan: Plan) -> bool:
        """Give an open call the result that was written down, or say that it was under way."""
        known = self.results.get(plan.call.id)
        if known is not None:
            plan.text, plan.content, plan.error, plan.duration = known.text, known.content, known.error, known.duration
            return True
        plan.began = plan.call.id in self._started
        return False

    def rows(self, rows: Any) -> list[JSON]:
        """Return the rows of all lives: of calls that ended in an earlier one, then those of this."""
        here = {row["id"] for row in rows}
        return [r.row for name, r in self.results.items() if name not in here and r.row] + [dict(row) for row in rows]

    def done(self, reply: Any, rows: Any, sums: ToolLoop) -> _Done:
        """Return how the run ended."""
        if not isinstance(reply, Reply):
            return _Done(str(getattr(reply, "text", reply)))
        return _Done(reply.text, reply.finish_reason, reply.model, reply.usage, reply.parsed, self.rows(rows), sums)

    def settle(self, status: str, done: _Done | None) -> None:
        """Write how it ended."""
        result = None if done is None else msgspec.json.encode(done, enc_hook=repr)
        self._store.settle(self.run_id, self.owner, self._clock(), status, result)


def _named(run_id: Any) -> str:
    """Return the name of a run, where it is one."""
    if not isinstance(run_id, str) or not run_id:
        raise InvalidRequestError(f"run_id is a name, not {shown(run_id)}.", argument="run_id")
    return check_text(run_id, "run_id")


def _messages(notes: list[Note]) -> tuple[list[JSON], int, Spent | None, _Done | None]:
    messages: list[JSON] = []
    step, spent, final = 0, None, None
    for note in notes:
        if note.kind == "messages":
            turn = _read(note.value, _Turn)
            messages = turn.messages if turn.whole else [*messages, *turn.messages]
            step, spent, final = max(step, turn.step), turn.spent or spent, turn.final
    return messages, step, spent, final


class Runs:
    """Durable tool loops, kept in a journal's database.

    Args:
        where: a SQLite file (``runs.db``) or a PostgreSQL address, the journal's own or another; or a store.
        lease: seconds after its last sign of life for which a run is not taken over from another machine.

    Raises:
        ConfigurationError: it is no address of a store.
    """

    def __init__(self, where: str | os.PathLike[str] | Store, *, lease: float = 600.0) -> None:
        store = open_store(where) if isinstance(where, (str, os.PathLike)) else where
        self._store = RunStore(store, lease)

    def run(self, caller: Any, messages: Any = None, *, run_id: str, **loop: Any) -> Any:
        """Run a loop to its end, or go on with one; return its reply, or a ``Paused``.

        Args:
            caller: as of ``run_tool_loop``.
            messages: the question; None, or anything, where the run exists already: it goes on with its own.
            run_id: its name. A run that is done returns its reply again; nothing is called.
            **loop: further arguments of ``run_tool_loop``; the same tools must be given again.

        Raises:
            RunBusyError: another process is at work with it.
            RunLostError: another process has taken it over.
            Exception: what the loop raises; the run can be begun again and goes on where it was.
        """
        port_of(caller, "blocking")  # a caller that is to be awaited is refused before anything is written

        async def play(begun: Any, recorder: _Recorder) -> Any:
            return run_tool_loop(caller, begun, recorder=recorder, **loop)

        return drive(self._flow(caller, messages, run_id, _inline, play, loop))

    async def arun(self, caller: Any, messages: Any = None, *, run_id: str, **loop: Any) -> Any:
        """Do what ``run`` does, awaited."""

        async def play(begun: Any, recorder: _Recorder) -> Any:
            return await arun_tool_loop(caller, begun, recorder=recorder, **loop)

        do = _inline if self._store.store.direct else port_of(caller, "async").call
        return await self._flow(caller, messages, run_id, do, play, loop)

    def stream(self, caller: Any, messages: Any = None, *, run_id: str, **loop: Any) -> ToolLoopStream:
        """Do what ``run`` does and see what happens: iterate the result for events; afterwards ``reply`` is the reply.

        It begins when it is read. Left early, or broken, the run goes on where it was when it is begun again. A run that is
        done has no events any more, only its reply.
        """
        port = port_of(caller, "blocking")
        watch = Watch(port)
        return ToolLoopStream(port, Pump(self._watched(caller, messages, run_id, "blocking", watch, loop), watch))

    def astream(self, caller: Any, messages: Any = None, *, run_id: str, **loop: Any) -> AsyncToolLoopStream:
        """Do what ``stream`` does for asynchronous callers: ``async for`` over the result; it need not be awaited."""
        port = port_of(caller, "async")
        watch = Watch(port)
        return AsyncToolLoopStream(port, Pump(self._watched(caller, messages, run_id, "async", watch, loop), watch))

    async def _watched(self, caller: Any, messages: Any, run_id: str, kind: str, watch: Watch, loop: JSON) -> Any:
        async def play(begun: Any, recorder: _Recorder) -> Any:
            return await watched(caller, begun, kind, watch, recorder=recorder, **loop)

        do = _inline if self._store.store.direct or kind == "blocking" else port_of(caller, kind).call
        return await self._flow(caller, messages, run_id, do, play, loop)

    async def _flow(self, caller: Any, messages: Any, run_id: str, do: Any, play: Any, loop: JSON) -> Any:
        """Do a run. ``do`` calls a function that uses the store, ``play`` runs the loop from where the run stands."""
        owner = self._store.mark()
        try:
            recorder = await do(_Recorder, self._store, run_id, owner, _clock_of(caller))
            if (known := await do(self._known, recorder)) is not None:
                return known
            begun = await do(self._begun, recorder, messages, loop)
            try:
                reply = await play(begun, recorder)
            except BaseException as error:
                await do(self._failed, recorder, error)
                raise
            return await do(self._ended, recorder, reply)
        finally:
            self._store.release(owner)

    def _known(self, recorder: _Recorder) -> Reply | None:
        """Return the reply of a run that is done; also of one that died after its answer was written and before it was done."""
        if recorder.row.status == "done":
            return _reply_of(_done(recorder.row), recorder.messages)
        if recorder.final is None:
            return None
        recorder.settle("done", recorder.final)
        return _reply_of(recorder.final, recorder.messages)

    def _begun(self, recorder: _Recorder, messages: Any, loop: JSON) -> Any:
        """Return what the loop begins with; a new run is written down first."""
        if loop.get("max_steps") is None:
            loop["max_steps"] = DEFAULT_STEPS
        if recorder.messages:
            return Paused(messages=recorder.messages, pending=[], step=recorder.step, spent=recorder.spent)
        if isinstance(messages, Paused):
            messages = messages.messages
        if messages is None:
            self.forget(recorder.run_id)
            raise InvalidRequestError(
                f"There is no run {recorder.run_id!r} yet: give messages to begin it.", argument="messages"
            )
        recorder.begin(messages)
        return recorder.messages

    def _ended(self, recorder: _Recorder, reply: Any) -> Any:
        if isinstance(reply, Paused):
            recorder.settle("paused", _Done(paused=reply))
            return reply
        sums = reply.tool_loop if isinstance(reply, Reply) else ToolLoop()
        done = recorder.done(reply, reply.tool_history if isinstance(reply, Reply) else (), sums)
        recorder.settle("done", done)
        if isinstance(reply, Reply):
            return msgspec.structs.replace(reply, tool_history=ToolHistory(ToolRow(row) for row in done.rows))
        return reply

    def _failed(self, recorder: _Recorder, error: BaseException) -> None:
        """Write that it ended with an error; where even that fails, the error itself is what counts."""
        try:
            recorder.settle("failed", _Done(error=f"{type(error).__name__}: {error}"))
        except Exception:  # noqa: BLE001 - a lost run or a broken file must not hide why the loop ended
            return

    def state(self, run_id: str) -> RunState:
        """Return how a run stands.

        Raises:
            UnknownCallError: there is no such run.
        """
        row = self._store.row(_named(run_id))
        if row is None:
            raise UnknownCallError(f"There is no run {shown(run_id)} in {self._store.store.where}.")
        messages, step, _, _ = _messages(self._store.notes(run_id))
        done = _done(row)
        return RunState(
            id=row.id, status=row.status, began=row.began, changed=row.changed, messages=messages, step=step,
            reply=_reply_of(done, messages) if row.status == "done" else None, paused=done.paused, error=done.error,
        )  # fmt: skip

    def list(self, status: str | None = None, limit: int = 100) -> list[tuple[str, str]]:
        """Return names and states of runs, the newest first; ``status`` names one of the states.

        Raises:
            InvalidRequestError: there is no such state.
        """
        if status is not None and status not in STATES:
            raise InvalidRequestError(f"No state {shown(status)}; there are {', '.join(STATES)}.", argument="status")
        return [(row.id, row.status) for row in self._store.rows(status, limit)]

    def forget(self, run_id: str) -> bool:
        """Delete a run; False if there was none."""
        return self._store.forget(_named(run_id))

    def close(self) -> None:
        """Close the file; a later use opens it again."""
        self._store.store.close()


def _done(row: RunRow) -> _Done:
    return _Done() if row.result is None else _read(row.result, _Done)


def _reply_of(done: _Done, messages: list[JSON]) -> Reply:
    """Return the reply of a run that ended in an earlier process."""
    last = messages[-1] if messages and messages[-1].get("role") == "assistant" else {}
    return Reply(
        text=done.text, finish_reason=done.finish_reason, model=done.model, usage=done.usage, parsed=done.parsed,
        message=last, messages=messages, tool_history=ToolHistory(ToolRow(r) for r in done.rows), tool_loop=done.sums,
    )  # fmt: skip


async def _inline(fn: Callable[..., Any], *args: Any) -> Any:
    """Call a function here: a store in a file is quick."""
    return fn(*args)


def _clock_of(caller: Any) -> Callable[[], float]:
    return getattr(getattr(caller, "_io", None), "time", None) or _wall


def _wall() -> float:
    return time.time()  # noqa: TID251 - a foreign caller has no port; a run's times are for people and leases
