"""Durable runs over many machines: a queue on PostgreSQL, workers that take from it, through DBOS (extra ``durable``).

Theory of operation
-------------------
An agent is a function that says how a loop is run: by whom, with which tools. A run is a DBOS workflow; each model call and
each tool call in it is a step, whose result is committed before the next begins. When a run begins again, elsewhere, DBOS
gives the recorded results of its steps back and the loop takes the same way up to where it stood: what was finished is not
repeated. Tools of one turn run one after the other, so that the steps come in the same order every time.

Before a tool runs, a step records who is about to run it. If the run comes by again and that was somebody else, the tool was
under way when its process died: it runs again only if it is safe to repeat.

A worker holds a lock in the database as long as it lives, and takes it anew when the server was away. The others look now and
then whose lock is free: that worker is dead, however it died, and its runs go back into the queue.
"""

from __future__ import annotations

import logging
import os
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from llmbroker.errors import ConfigurationError, InvalidRequestError, LLMTimeoutError, StoreError, UnknownCallError
from llmbroker.exchange import Reply
from llmbroker.journal import new_id
from llmbroker.journal.postgres_link import driver, plain, shown
from llmbroker.loop.approval import Decision, Paused
from llmbroker.loop.execute import INTERRUPTED
from llmbroker.loop.faces import run_tool_loop
from llmbroker.tools import FunctionTool, ToolHistory, ToolLoop, ToolRow, made_tools, tool
from llmbroker.transports.blocking import BlockingIO

log = logging.getLogger("llmbroker.durable")

JSON: TypeAlias = dict[str, Any]
Agent: TypeAlias = Callable[[], Mapping[str, Any]]
VERSION = "llmbroker-1"
"""What workers that can take over each other's runs have in common."""
LOCKS = 0x6C6C6D62
PATIENCE = 10
"""Seconds that a server is given to let somebody in."""


class _Question(msgspec.Struct):
    """What is in the queue. ``messages`` begin a run; ``paused`` and ``answers`` go on with one."""

    agent: str
    messages: list[JSON] | None = None
    paused: Paused | None = None
    answers: list[Decision] = []


class _Answer(msgspec.Struct):
    """How a run ended."""

    reply: Reply | None = None
    rows: list[JSON] = []
    sums: ToolLoop | None = None
    paused: Paused | None = None


class Queue:
    """A queue of runs, for those who submit and for those who work.

    Args:
        url: ``postgresql://user:password@host/database``; DBOS keeps its tables in a schema of its own there.
        name: the queue's name. Workers of one name must know the same agents.
        concurrency: runs at the same time over all workers. per_worker: on one worker.
        rate: so many runs begin within so many seconds, over all workers, as (runs, seconds).
        look_every: seconds between two looks for workers that died, and for new runs.

    Raises:
        ConfigurationError: it is no address of PostgreSQL.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "llmbroker",
        concurrency: int | None = None,
        per_worker: int | None = None,
        rate: tuple[int, float] | None = None,
        look_every: float = 1.0,
    ) -> None:
        url = plain(url)
        if not url.startswith("postgresql://"):
            raise ConfigurationError("A queue lives in PostgreSQL: postgresql://user:password@host/database.")
        self._url = url
        self._name = name
        self._limits = (concurrency, per_worker, rate)
        self._look_every = look_every
        self._agents: dict[str, Agent] = {}
        self._client: Any = None
        self._made_by = 0
        self._over = threading.Event()
        self.executor = ""

    def agent(self, name: str) -> Callable[[Agent], Agent]:
        """Register a function that says how runs of this name are made.

        It is called once a run, in the worker, and returns the arguments of ``run_tool_loop``: ``caller``, ``tools``, and any
        other.
        """

        def register(make: Agent) -> Agent:
            self._agents[name] = make
            return make

        return register

    # -- submitting ------------------------------------------------------------------------------------------------------------

    def submit(self, agent: str, messages: Any, *, run_id: str | None = None) -> str:
        """Put a run into the queue and return its name. A name that is there already is not run again.

        Raises:
            ConfigurationError: the package is missing.
            StoreError: the server cannot be reached.
        """
        said = [{"role": "user", "content": messages}] if isinstance(messages, str) else [dict(m) for m in messages]
        return self._enqueue(_Question(agent, said), run_id)

    def go_on(self, agent: str, paused: Paused, answers: Sequence[Decision], *, run_id: str | None = None) -> str:
        """Put a paused run into the queue again, with decisions, as a run of its own; return its name."""
        return self._enqueue(_Question(agent, None, paused, list(answers)), run_id)

    def _enqueue(self, question: _Question, run_id: str | None) -> str:
        identity = run_id or new_id()
        options = {
            "workflow_name": "llmbroker_run", "queue_name": self._name, "workflow_id": identity, "app_version": VERSION,
        }  # fmt: skip
        self._connected().enqueue(options, msgspec.json.encode(question).decode())
        return identity

    def result(self, run_id: str, *, timeout: float = 600.0) -> Any:
        """Wait for a run and return its reply, or a ``Paused``.

        Raises:
            LLMTimeoutError: it is not done within ``timeout`` seconds.
            InvalidRequestError: ``timeout`` is no number of seconds.
            UnknownCallError: there is no such run.
            Exception: what ended the run.
        """
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
            raise InvalidRequestError(f"timeout is a number of seconds, 0 or more, not {timeout!r}.", argument="timeout")
        clock, pause = BlockingIO(), threading.Event()
        until = clock.now() + min(timeout, 1e9)  # a whole number may be too large for a clock
        while self.state(run_id) in ("ENQUEUED", "PENDING", "DELAYED"):
            left = until - clock.now()
            if left <= 0:
                raise LLMTimeoutError(f"The run {run_id!r} is not done after {timeout:g} seconds; it goes on.")
            pause.wait(min(0.1, left))
        text = self._connected().retrieve_workflow(run_id).get_result()
        return _opened(msgspec.json.decode(text, type=_Answer))

    def state(self, run_id: str) -> str:
        """Return ``ENQUEUED``, ``PENDING`` (at work), ``SUCCESS``, ``ERROR``, ``CANCELLED`` or another word of DBOS.

        Raises:
            UnknownCallError: there is no such run.
        """
        found = self._connected().list_workflows(workflow_ids=[run_id], load_input=False, load_output=False)
        if not found:
            raise UnknownCallError(f"There is no run {run_id!r} in the queue {self._name!r}.")
        return str(found[0].status)

    def _connected(self) -> Any:
        if self._client is None or self._made_by != os.getpid():  # a connection of the parent is not ours
            dbos = _dbos()
            self._made_by = os.getpid()
            self._reached().close()  # DBOS would end the program
            dbos.run_dbos_database_migrations(self._url)  # a queue that nobody has worked on yet has no tables
            self._client = dbos.DBOSClient(system_database_url=self._url)
        return self._client

    def _reached(self) -> Any:
        psycopg = driver()
        try:
            return psycopg.connect(self._url, autocommit=True, connect_timeout=PATIENCE)
        except psycopg.OperationalError as error:
            words = str(error).strip().partition("\n")[0]
            raise StoreError(
                f"The queue in {shown(self._url)} cannot be used: {words}.",
                reason="missing",
                hint="Check that the server runs and lets this user in.",
            ) from error

    def close(self) -> None:
        """Close the connection of whoever submits; a worker is ended with ``stop``."""
        client, self._client = self._client, None
        if client is not None:
            client.destroy()

    # -- working ---------------------------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Take runs and work until ``stop`` is called; a process works on one queue.

        Raises:
            ConfigurationError: no agent is registered, or the package is missing.
            StoreError: the server cannot be reached.
        """
        if not self._agents:
            raise ConfigurationError("A worker needs agents.", hint="Register one: @queue.agent('name').")
        dbos = _dbos()
        alive = self._reached()
        self.executor = f"{os.getpid()}-{new_id()}"  # a process that works is one worker, whoever made the queue
        try:
            alive.execute("SELECT pg_advisory_lock(%s, %s)", (LOCKS, _number(self.executor)))
            dbos.DBOS(
                config={
                    "name": "llmbroker", "system_database_url": self._url, "executor_id": self.executor,
                    "application_version": VERSION, "log_level": "WARNING",
                }
            )  # fmt: skip

            def llmbroker_run(text: str) -> str:
                return self._run(text)

            dbos.DBOS.workflow(name="llmbroker_run")(llmbroker_run)
            dbos.DBOS.launch()
            try:
                concurrency, per_worker, rate = self._limits
                dbos.DBOS.register_queue(
                    self._name, global_concurrency=concurrency, worker_concurrency=per_worker,
                    limiter=None if rate is None else {"limit": rate[0], "period": rate[1]},
                    polling_interval_sec=self._look_every, on_conflict="always_update",
                )  # fmt: skip
                while not self._over.wait(self._look_every):
                    try:
                        self._rescue(dbos, alive)
                    except Exception as error:  # noqa: BLE001 - a server that is away for a while ends no worker
                        log.warning("The queue %s is not looked after now: %s", self._name, str(error).partition("\n")[0])
                        alive = self._locked_anew(alive)
            finally:
                dbos.DBOS.destroy(workflow_completion_timeout_sec=5)
        finally:
            alive.close()

    def stop(self) -> None:
        """End ``work``; runs that are under way have five seconds, then another worker takes them."""
        self._over.set()

    def _locked_anew(self, alive: Any) -> Any:
        """Return a new connection with this worker's lock; where that cannot be had now, the one before, closed."""
        alive.close()
        try:
            new = self._reached()
        except StoreError:
            return alive
        # Where the server has not noticed yet that the connection before is gone, that one still has the lock.
        if not new.execute("SELECT pg_try_advisory_lock(%s, %s)", (LOCKS, _number(self.executor))).fetchone()[0]:
            new.close()
            return alive
        return new

    def _rescue(self, dbos: Any, alive: Any) -> None:
        """Put runs of workers that died back into the queue."""
        alive.execute("SELECT 1")  # a connection that broke has lost its lock: that must not wait until somebody dies
        pending = dbos.DBOS.list_workflows(status="PENDING", load_input=False, load_output=False)
        for executor in {run.executor_id for run in pending if run.executor_id != self.executor}:
            key = (LOCKS, _number(executor or ""))
            if not alive.execute("SELECT pg_try_advisory_lock(%s, %s)", key).fetchone()[0]:
                continue
            try:
                # Again, under its lock: another survivor may have been quicker.
                left = dbos.DBOS.list_workflows(status="PENDING", executor_id=executor, load_input=False, load_output=False)
                for run in left:
                    dbos.DBOS.resume_workflow(run.workflow_id, queue_name=self._name)
            finally:
                alive.execute("SELECT pg_advisory_unlock(%s, %s)", key)

    def _run(self, text: str) -> str:
        """Run a loop: the workflow."""
        question = msgspec.json.decode(text, type=_Question)
        make = self._agents.get(question.agent)
        if make is None:
            raise InvalidRequestError(f"This worker knows no agent {question.agent!r}.", argument="agent")
        how = dict(make())
        life = new_id()
        steps = _dbos().DBOS
        tools, dispatch = _recorded_tools(steps, life, how.pop("tools", None), how.pop("dispatch", None))
        caller = _RecordedCaller(steps, how.pop("caller"))
        begun: Any = question.paused or question.messages
        how.update(max_concurrency=1, answers=question.answers or None)
        reply = run_tool_loop(caller, begun, tools=tools, dispatch=dispatch, **how)
        if isinstance(reply, Paused):
            answer = _Answer(paused=reply)
        else:
            rows = [dict(row) for row in reply.tool_history]
            kept = msgspec.structs.replace(reply, tool_history=None, tool_loop=None, raw=None)
            answer = _Answer(kept, rows, reply.tool_loop)
        return msgspec.json.encode(answer, enc_hook=repr).decode()


class _RecordedCaller:
    """A caller whose every call is a step of the workflow."""

    def __init__(self, steps: Any, caller: Any) -> None:
        self._steps = steps
        self._caller = caller
        self.scope = getattr(caller, "scope", None)

    def chat(self, messages: Any, *, tools: Any = None, **parameters: Any) -> Reply:
        """Ask, or return the recorded answer."""

        def ask() -> str:
            reply = self._caller.chat(messages, tools=tools, **parameters)
            if not isinstance(reply, Reply):
                raise InvalidRequestError("A queue takes brokers and clients of this library as callers.", argument="caller")
            fields = {name: getattr(reply, name) for name in Reply.__struct_fields__ if name != "raw"}
            return msgspec.json.encode(Reply(**fields), enc_hook=repr).decode()

        return msgspec.json.decode(self._steps.run_step({"name": "model"}, ask), type=Reply)


def _recorded_tools(steps: Any, life: str, tools: Any, dispatch: Any) -> tuple[list[Any], JSON | None]:
    """Return the same tools, each call of which is a step of the workflow."""
    declared, functions = made_tools(tools)
    out: list[Any] = [
        item if (item.get("function") or item).get("name") not in functions else _recorded(steps, life, functions[_name(item)])
        for item in declared or ()
    ]
    if dispatch is None:
        return out, None
    return out, {name: _step(steps, life, name, fn, False) for name, fn in dispatch.items()}


def _name(item: JSON) -> str:
    return str((item.get("function") or item)["name"])


def _recorded(steps: Any, life: str, made: FunctionTool) -> FunctionTool:
    fn = _step(steps, life, made.name, made.fn, made.rules.safe_to_repeat)
    twin = tool(fn, name=made.name, description=made.description, parameters=made.schema)
    found: FunctionTool = twin
    found.rules, found.signature = made.rules, made.signature
    return found


def _step(steps: Any, life: str, name: str, fn: Callable[..., Any], safe: bool) -> Callable[..., Any]:
    """Return the function as a step that is not begun twice by two lives of a run, unless that is safe."""

    def recorded(*args: Any, **kwargs: Any) -> Any:
        first = steps.run_step({"name": f"begin {name}"}, lambda: life)

        def body() -> Any:
            if first != life and not safe:
                raise RuntimeError(INTERRUPTED)
            return fn(*args, **kwargs)

        return steps.run_step({"name": f"tool {name}"}, body)

    return recorded


def _opened(answer: _Answer) -> Any:
    if answer.paused is not None:
        return answer.paused
    rows = ToolHistory(ToolRow(row) for row in answer.rows)
    return None if answer.reply is None else msgspec.structs.replace(answer.reply, tool_history=rows, tool_loop=answer.sums)


def _number(executor: str) -> int:
    """Return the number of a worker's lock."""
    return zlib.crc32(executor.encode()) - 2**31


def _dbos() -> Any:
    try:
        import dbos
    except ImportError as error:
        raise ConfigurationError(
            f"The package dbos is not installed ({error}).", hint="Install it: pip install 'llmbroker[durable]'"
        ) from None
    return dbos
