"""Durable runs: nothing that was finished is repeated, whatever kills the process and whenever."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.journal.server import new_database
from tests.loop.scripted import AsyncScripted, Scripted, calls, says

import llmbroker
from llmbroker.budget import Budget
from llmbroker.durable import Runs
from llmbroker.errors import (
    BudgetError,
    InvalidRequestError,
    RunBusyError,
    RunLostError,
    ServerError,
    StoreError,
    UnknownCallError,
)
from llmbroker.journal.runs import Note, _began
from llmbroker.loop import LoopFinished, Paused, StepFinished, StepStarted
from llmbroker.messages import validate
from llmbroker.tools import Image, tool

KILLS = int(os.environ.get("LLMBROKER_KILLS", "25"))
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked and killed")


@pytest.fixture(params=["sqlite", "postgres"])
def runs(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    made = Runs(tmp_path / "runs.db" if request.param == "sqlite" else new_database())
    yield made
    made.close()


def run(runs: Runs, kind: str, turns: Any, *given: Any, **more: Any) -> Any:
    if kind == "blocking":
        return runs.run(Scripted(*turns), *given, **more)
    return asyncio.run(runs.arun(AsyncScripted(*turns), *given, **more))


both = pytest.mark.parametrize("kind", ["blocking", "asyncio"])


def echo(n: int) -> int:
    return n


@both
def test_a_run_gives_the_reply_of_its_loop_and_gives_it_again(runs: Runs, kind: str) -> None:
    reply = run(runs, kind, [calls(("echo", '{"n": 1}')), says("one")], "Hi", run_id="r", tools=[echo])
    again = run(runs, kind, [], run_id="r", tools=[echo])
    assert (again.text, again.messages, again.tool_history) == (reply.text, reply.messages, reply.tool_history)
    assert again.tool_loop == reply.tool_loop
    assert runs.list() == [("r", "done")]
    assert runs.state("r").messages == reply.messages


def seen(runs: Runs, kind: str, turns: Any, *given: Any, leave: type | None = None, **more: Any) -> tuple[list[Any], Any]:
    """Watch a run; return the kinds of its events and its reply. ``leave``: the event after which nobody reads on."""
    events: list[Any] = []

    async def read() -> Any:
        async with runs.astream(AsyncScripted(*turns), *given, **more) as face:
            async for event in face:
                events.append(type(event))
                if type(event) is leave:
                    break
        return face.reply

    if kind == "asyncio":
        return events, asyncio.run(read())
    with runs.stream(Scripted(*turns), *given, **more) as face:
        for event in face:
            events.append(type(event))
            if type(event) is leave:
                break
    return events, face.reply


@both
def test_a_run_can_be_watched_left_and_watched_again(runs: Runs, kind: str) -> None:
    ran: list[int] = []

    def count(n: int) -> str:
        ran.append(n)
        return f"counted {n}"

    turns = [calls(("count", '{"n": 1}', "a")), calls(("count", '{"n": 2}', "b"))]
    events, reply = seen(runs, kind, turns, "Hi", run_id="r", tools=[count], leave=StepFinished)
    assert (events[-1], reply, ran) == (StepFinished, None, [1])
    assert runs.state("r").status == "failed"
    with pytest.raises(ServerError):
        seen(runs, kind, [turns[1], ServerError("down")], run_id="r", tools=[count])
    events, reply = seen(runs, kind, [says("done")], run_id="r", tools=[count])
    assert (reply.text, ran) == ("done", [1, 2])
    assert [row.result for row in reply.tool_history] == ["counted 1", "counted 2"]
    assert (events[0], events[-1]) == (StepStarted, LoopFinished)
    events, again = seen(runs, kind, [], run_id="r", tools=[count])
    assert (events, again.text, again.messages) == ([], "done", reply.messages)
    assert validate(reply.messages) == []


@both
def test_a_run_that_nobody_began_to_watch_was_never_begun(runs: Runs, kind: str) -> None:
    if kind == "blocking":
        runs.stream(Scripted(), "Hi", run_id="r").close()
    else:
        asyncio.run(runs.astream(AsyncScripted(), "Hi", run_id="r").close())
    assert runs.list() == []
    with pytest.raises(InvalidRequestError, match="max_steps"):
        seen(runs, kind, [], "Hi", run_id="r", max_steps=0)


@both
def test_an_error_leaves_a_run_that_goes_on_where_it_was(runs: Runs, kind: str) -> None:
    ran: list[int] = []

    def count(n: int) -> str:
        ran.append(n)
        return "ok"

    with pytest.raises(ServerError):
        run(runs, kind, [calls(("count", '{"n": 1}')), ServerError("down")], "Hi", run_id="r", tools=[count])
    state = runs.state("r")
    assert (state.status, state.step, state.error) == ("failed", 1, "ServerError: down")
    reply = run(runs, kind, [says("done")], run_id="r", tools=[count])
    assert reply.text == "done"
    assert ran == [1]
    assert validate(reply.messages) == []


@both
def test_a_finished_call_is_not_repeated_and_its_siblings_run(runs: Runs, kind: str) -> None:
    """The process dies between two calls of one turn: here by an interrupt, which leaves the second open."""
    ran: list[str] = []

    def first() -> Any:
        ran.append("first")
        return ["see", Image(b"x")]

    @tool(sequential=True)
    def second() -> str:
        ran.append("second")
        if len(ran) == 2:
            raise KeyboardInterrupt
        return "two"

    with pytest.raises(KeyboardInterrupt):
        run(runs, kind, [calls(("first", "{}"), ("second", "{}"))], "Hi", run_id="r", tools=[first, second])
    second.rules = llmbroker.tool(second, safe_to_repeat=True).rules
    reply = run(runs, kind, [says("done")], run_id="r", tools=[first, second])
    assert ran == ["first", "second", "second"]
    assert [row.result for row in reply.tool_history] == ["see\n[image]", "two"]
    assert next(m for m in reply.messages if m["role"] == "tool")["content"][1]["type"] == "image_url"
    assert validate(reply.messages) == []


@both
def test_a_call_that_was_under_way_is_not_repeated_unless_that_is_safe(runs: Runs, kind: str) -> None:
    ran: list[str] = []

    def pay() -> str:
        ran.append("pay")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(runs, kind, [calls(("pay", "{}"))], "Hi", run_id="r", tools=[pay])
    reply = run(runs, kind, [says("done")], run_id="r", tools=[pay])
    assert ran == ["pay"]
    assert "whether it was done is not known" in next(m for m in reply.messages if m["role"] == "tool")["content"]


@both
def test_a_run_that_died_after_its_answer_and_before_its_end_is_done(
    runs: Runs, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last note is the answer: nobody is asked again."""
    with monkeypatch.context() as patched:
        patched.setattr(runs._store, "settle", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(runs, kind, [calls(("echo", '{"n": 1}')), says("one")], "Hi", run_id="r", tools=[echo])
    reply = run(runs, kind, [], run_id="r", tools=[echo])
    assert reply.text == "one"
    assert [row.result for row in reply.tool_history] == ["1"]
    assert runs.list() == [("r", "done")]
    assert [m["role"] for m in reply.messages] == ["user", "assistant", "tool", "assistant"]


@both
def test_a_pause_outlives_the_process(runs: Runs, kind: str) -> None:
    @tool(approval=True)
    def risky(n: int) -> str:
        return f"did {n}"

    paused = run(runs, kind, [calls(("risky", '{"n": 1}'))], "Hi", run_id="r", tools=[risky])
    assert isinstance(paused, Paused)
    assert paused.run_id == "r"
    kept = runs.state("r").paused
    assert kept == paused
    assert kept is not None
    reply = run(runs, kind, [says("done")], run_id="r", tools=[risky], answers=kept.approve_all())
    assert reply.tool_history[0].result == "did 1"


def test_a_budget_counts_over_all_lives_of_a_run(runs: Runs) -> None:
    turn = calls(("echo", '{"n": 1}'))
    with pytest.raises(ServerError):
        runs.run(Scripted(turn, turn, ServerError("down")), "Hi", run_id="r", tools=[echo], budget=Budget(steps=4))
    with pytest.raises(BudgetError) as caught:
        runs.run(Scripted(turn, turn, turn), run_id="r", tools=[echo], budget=Budget(steps=4))
    assert caught.value.spent.steps >= 4


@both
@pytest.mark.parametrize("watched", [False, True], ids=["whole", "streamed"])
def test_a_run_that_goes_on_still_knows_that_it_made_a_call_of_unknown_price(runs: Runs, kind: str, watched: bool) -> None:
    go: Any = seen if watched else run
    turn = calls(("echo", '{"n": 1}'))
    with pytest.raises(ServerError):
        go(runs, kind, [turn, ServerError("down")], "Hi", run_id="r", tools=[echo], budget=Budget(cost=5, unknown_price="free"))
    with pytest.raises(BudgetError, match="Nobody knows what a call of") as caught:
        go(runs, kind, [], run_id="r", tools=[echo], budget=Budget(cost=5))
    assert caught.value.spent.unpriced >= 1
    with pytest.raises(BudgetError, match="Nobody knows"):
        go(runs, kind, [turn], "Hi", run_id="other", tools=[echo], budget=Budget(cost=5))


def test_two_processes_do_not_run_one_run(runs: Runs) -> None:
    runs._store.claim("r", runs._store.mark(), time.time())
    with pytest.raises(RunBusyError, match=f"process {os.getpid()}"):
        runs.run(Scripted(), "Hi", run_id="r")


def test_whoever_lost_a_run_cannot_write_into_it(runs: Runs) -> None:
    owner = runs._store.mark()
    runs._store.claim("r", owner, 1000.0)
    runs._store.release(owner)
    runs._store.claim("r", runs._store.mark(), 5000.0)
    with pytest.raises(RunLostError):
        runs._store.write("r", owner, 5000.0, [Note(1, "started", "c", b"")])
    with pytest.raises(RunLostError):
        runs._store.settle("r", owner, 5000.0, "done", None)


def belongs_to(runs: Runs, owner: str) -> None:
    runs._store.store.transact(lambda db: db.execute("UPDATE llmbroker_runs SET owner = ?", (owner,)))


def test_a_lease_of_another_machine_ends_by_time(runs: Runs) -> None:
    runs._store.claim("r", runs._store.mark(), 1000.0)
    belongs_to(runs, "elsewhere:1:0:x")
    with pytest.raises(RunBusyError):
        runs._store.claim("r", runs._store.mark(), 1500.0)
    runs._store.claim("r", runs._store.mark(), 1700.0)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="nothing tells when a process began")
def test_a_process_that_only_has_the_number_of_the_dead_one_does_not_hold_its_run(runs: Runs) -> None:
    """As in a container that begins anew: same name, same number."""
    owner = runs._store.mark()
    runs._store.claim("r", owner, 1000.0)
    host, pid, began, unique = owner.split(":")
    belongs_to(runs, f"{host}:{os.getppid()}:{began}0:{unique}")
    runs._store.claim("r", runs._store.mark(), 1001.0)
    belongs_to(runs, f"{host}:{pid}:{began}0:{unique}")
    runs._store.claim("r", runs._store.mark(), 1002.0)
    belongs_to(runs, f"{host}:{os.getppid()}:{_began(os.getppid())}:{unique}")
    with pytest.raises(RunBusyError):
        runs._store.claim("r", runs._store.mark(), 99999.0)  # it lives, however long it says nothing


def test_one_of_many_that_claim_a_run_at_once_gets_it(runs: Runs, tmp_path: Path) -> None:
    others = [Runs(getattr(runs._store.store, "address", tmp_path / "runs.db")) for _ in range(6)]
    gate = threading.Barrier(len(others))

    def claim(one: Runs, name: str) -> bool:
        gate.wait(20)
        try:
            one._store.claim(name, one._store.mark(), time.time())
        except RunBusyError:
            return False
        return True

    for one in others:
        one.list()
    with ThreadPoolExecutor(len(others)) as pool:
        for name in ("r", "s", "t"):
            assert sum(pool.map(claim, others, [name] * len(others))) == 1
    for one in others:
        one.close()


@both
def test_calls_side_by_side_are_all_written_down(runs: Runs, kind: str) -> None:
    turn = calls(*[("echo", f'{{"n": {n}}}', f"c{n}") for n in range(12)])
    run(runs, kind, [turn, says("done")], "Hi", run_id="r", tools=[echo])
    notes = runs._store.notes("r")
    assert sorted(note.seq for note in notes) == list(range(1, len(notes) + 1))
    for what in ("started", "result"):
        assert sorted(note.call_id for note in notes if note.kind == what) == sorted(f"c{n}" for n in range(12))


async def test_a_run_that_is_cancelled_goes_on_in_the_same_process(runs: Runs) -> None:
    begun = asyncio.Event()

    @tool(safe_to_repeat=True)
    async def hang() -> str:
        if begun.is_set():
            return "went on"
        begun.set()
        await asyncio.sleep(60)
        return ""

    task = asyncio.create_task(runs.arun(AsyncScripted(calls(("hang", "{}"))), "Hi", run_id="r", tools=[hang]))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    reply = await runs.arun(AsyncScripted(says("done")), run_id="r", tools=[hang])
    assert [row.result for row in reply.tool_history] == ["went on"]


def test_a_server_that_ends_every_connection_ends_no_run() -> None:
    """As it does when it begins anew; the next note makes a connection."""
    address = new_database()
    made = Runs(address)

    def cut(n: int) -> str:
        import psycopg

        with psycopg.connect(address, autocommit=True) as db:
            db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        return f"cut {n}"

    turns = [calls(("cut", f'{{"n": {n}}}', f"c{n}")) for n in range(3)]
    reply = made.run(Scripted(*turns, says("done")), "Hi", run_id="r", tools=[cut])
    assert [row.result for row in reply.tool_history] == ["cut 0", "cut 1", "cut 2"]
    assert made.state("r").status == "done"
    made.close()


def test_a_database_that_cannot_be_reached_ends_the_run_before_anything_is_asked() -> None:
    caller = Scripted(says("x"))
    with pytest.raises(StoreError) as caught:
        Runs("postgresql://nobody@127.0.0.1:9/none").run(caller, "Hi", run_id="r")
    assert caught.value.reason == "missing"
    assert caller.sent == []


def test_a_run_that_does_not_exist_needs_messages(runs: Runs) -> None:
    with pytest.raises(InvalidRequestError):
        runs.run(Scripted(), run_id="r")
    assert runs.list() == []
    with pytest.raises(UnknownCallError):
        runs.state("nobody")


def test_a_run_can_be_forgotten(runs: Runs) -> None:
    runs.run(Scripted(says("x")), "Hi", run_id="r")
    assert runs.forget("r")
    assert not runs.forget("r")
    assert runs.list() == []


def test_a_shortened_conversation_is_written_as_it_is(runs: Runs) -> None:
    def long(n: int) -> str:
        return "x" * 3000

    policy = llmbroker.Compaction(characters=8000, keep=1)
    turns = [calls(("long", f'{{"n": {n}}}', f"c{n}")) for n in range(6)]
    with pytest.raises(ServerError):
        runs.run(Scripted(*turns, ServerError("down")), "Hi", run_id="r", tools=[long], compaction=policy)
    kept = runs.state("r").messages
    assert sum(len(str(m)) for m in kept) < 14_000
    reply = runs.run(Scripted(says("done")), run_id="r", tools=[long], compaction=policy)
    assert reply.text == "done"
    assert validate(reply.messages) == []


# -- kill -9 -----------------------------------------------------------------------------------------------------------------

STEPS = 20


class Model:
    """Answers by what stands in the history: a step of two calls until there were twenty, then the end."""

    def chat(self, messages: Any, *, tools: Any = None) -> Any:
        done = sum(m["role"] == "assistant" for m in messages)
        if done >= STEPS:
            return says("all done")
        return calls(("safe", f'{{"n": {done}}}', f"s{done}"), ("once", f'{{"n": {done}}}', f"o{done}"))


def live(folder: Path, where: Any) -> None:
    """Run, or go on with, the run; every call of a tool is noted in a file before and after."""
    log = os.open(folder / "log", os.O_APPEND | os.O_CREAT | os.O_WRONLY)

    def note(words: str) -> None:
        os.write(log, f"{words}\n".encode())

    @tool(safe_to_repeat=True)
    def safe(n: int) -> str:
        note(f"+safe{n}")
        time.sleep(0.0005)
        note(f"-safe{n}")
        return f"safe {n}"

    @tool
    def once(n: int) -> str:
        note(f"+once{n}")
        time.sleep(0.0005)
        note(f"-once{n}")
        return f"once {n}"

    made = Runs(where)
    reply = made.run(Model(), "Go.", run_id="r", tools=[safe, once], max_steps=STEPS + 1)
    assert reply.text == "all done"
    made.close()


def lived(folder: Path, where: Any, seconds: float) -> bool:
    """Run in a process of its own and kill it after some time; return whether it ended by itself."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            live(folder, where)
            code = 0
        except BaseException as error:  # noqa: BLE001 - a child must not run the parent's tests
            print(repr(error), file=sys.stderr)
        finally:
            os._exit(code)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0
            return True
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return status == 0


def killed_runs(tmp_path: Path, wanted: int, seed: int, database: Callable[[Path], Any], seconds: float) -> int:
    dice = random.Random(seed)
    kills = number = 0
    while kills < wanted:
        folder = tmp_path / str(number)
        folder.mkdir()
        where = database(folder)
        number += 1
        finished: set[str] = set()
        while True:
            began = len((folder / "log").read_text().splitlines()) if (folder / "log").exists() else 0
            done = lived(folder, where, dice.expovariate(1 / seconds))
            lines = (folder / "log").read_text().splitlines() if (folder / "log").exists() else []
            again = {line[1:] for line in lines[began:] if line.startswith("+")}
            assert not again & finished, f"ran again although it had finished: {again & finished}"
            store = Runs(where)
            known = not isinstance(where, Path) or where.exists()
            if known and store.list():
                notes = store._store.notes("r")
                finished = {("safe" if n.call_id[0] == "s" else "once") + n.call_id[1:] for n in notes if n.kind == "result"}
            state = store.state("r") if store.list() else None
            store.close()
            if done:
                break
            kills += 1
        assert state is not None
        assert state.status == "done"
        assert state.step == STEPS + 1
        assert validate(state.messages) == []
        assert len([m for m in state.messages if m["role"] == "tool"]) == 2 * STEPS
        started = [line for line in lines if line.startswith("+once")]
        assert len(started) == len(set(started)), "a call that is not safe to repeat was repeated"
    return kills


def in_a_file(folder: Path) -> Path:
    return folder / "runs.db"


def on_a_server(_: Path) -> str:
    return new_database()


@needs_fork
def test_killed_runs_repeat_nothing_and_end_right(tmp_path: Path) -> None:
    assert killed_runs(tmp_path, KILLS, 1, in_a_file, 0.04) >= KILLS


@needs_fork
def test_killed_runs_on_a_server_repeat_nothing_and_end_right(tmp_path: Path) -> None:
    assert killed_runs(tmp_path, 8, 3, on_a_server, 0.15) >= 8


@needs_fork
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_three_hundred_kills(tmp_path: Path) -> None:
    assert killed_runs(tmp_path, 300, 2, in_a_file, 0.04) >= 300


@needs_fork
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_thirty_kills_on_a_server(tmp_path: Path) -> None:
    assert killed_runs(tmp_path, 30, 4, on_a_server, 0.15) >= 30


def test_a_caller_that_is_to_be_awaited_leaves_no_run_behind(runs: Runs) -> None:
    with pytest.raises(InvalidRequestError, match="arun"):
        runs.run(AsyncScripted(says()), "hi", run_id="r")
    assert runs.list() == []


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_run_has_a_name(runs: Runs, name: Any) -> None:
    with pytest.raises(InvalidRequestError, match="run_id is a name"):
        runs.run(Scripted(says()), "hi", run_id=name)


def test_a_state_that_no_run_has_is_refused(runs: Runs) -> None:
    with pytest.raises(InvalidRequestError, match="No state 'finished'; there are running, paused, failed, done"):
        runs.list("finished")


DAMAGED = {
    "a note that is no JSON": "UPDATE llmbroker_run_notes SET value = x'00'",
    "a note of another kind": "UPDATE llmbroker_run_notes SET value = x'7b7d'",
    "a note that is a number": "UPDATE llmbroker_run_notes SET value = 5",
    "a result that is no JSON": "UPDATE llmbroker_runs SET result = x'00'",
}


@both
@pytest.mark.parametrize("damage", DAMAGED.values(), ids=list(DAMAGED))
def test_a_run_that_cannot_be_read_says_so_and_can_be_forgotten(kind: str, damage: str, tmp_path: Path) -> None:
    runs = Runs(tmp_path / "runs.db")
    turns = [calls(("echo", '{"n": 1}')), says("done")]
    run(runs, kind, turns, "hi", run_id="r", tools=[echo])
    with sqlite3.connect(tmp_path / "runs.db") as db:
        db.execute(damage)
    db.close()
    with pytest.raises(StoreError, match="cannot be read"):
        run(runs, kind, turns, "hi", run_id="r", tools=[echo])
    with pytest.raises(StoreError, match="cannot be read"):
        runs.state("r")
    runs.forget("r")
    assert run(runs, kind, turns, "hi", run_id="r", tools=[echo]).text == "done"
    runs.close()
