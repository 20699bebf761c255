"""A key shows nowhere in the rooms above the client either: studies, durable runs, recordings, conversations, MCP, the broker.

The server repeats key and header in whatever it says. Looked at are errors with their causes and tracebacks, log records,
warnings, what is printed, what the objects show of themselves, and every byte of every file that was written.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hostile.test_canary import HEADER, KEY, PARTS, error, everything

import llmbroker
from llmbroker import (
    AsyncBroker,
    AsyncDirectClient,
    Broker,
    Conversation,
    DirectClient,
    LLMConfig,
    Runs,
    llm_config,
)
from llmbroker.io import Port
from llmbroker.testing import Answer, Replay, made_reply, whole
from llmbroker.testing.record import record, replay

JSON = dict[str, Any]
REFUSALS = {
    "a refused key": 401,
    "a refused request": 400,
    "no such model": 404,
    "no money": 402,
    "too many": 429,
    "a broken server": 500,
}


class Room:
    """Where a test works: a folder, a port that repeats the key, and a list of all that could be seen."""

    def __init__(self, folder: Path, status: int, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.status = status
        self.shown: list[str] = []
        self.capfd = capfd
        self.caplog = caplog

    def port(self, *first: Answer) -> Replay:
        made = Replay()
        for answer in first:
            made.on(None, answer)
        return made.on(None, Answer(status=self.status, headers={"x-request-id": KEY}, body=error(param=KEY)), times=None)

    def client(self, port: Port) -> JSON:
        return {
            "base_url": "https://api.example.com/v1", "model": "m", "api_key": KEY, "headers": {"x-own": HEADER}, "io": port,
        }  # fmt: skip

    def config(self, **more: Any) -> Any:
        return llm_config("acme", "m", base_url="https://api.example.com/v1", api_key=KEY, headers={"x-own": HEADER}, **more)

    def see(self, *things: Any) -> None:
        for thing in things:
            self.shown += [str(thing), repr(thing)]

    @contextlib.contextmanager
    def fails(self) -> Iterator[None]:
        """Run what may fail, and keep all that the failure shows."""
        try:
            yield
        except Exception as fault:  # noqa: BLE001 - any kind: what it shows is what counts
            self.shown += [everything(fault), everything(copy.deepcopy(fault)), pickle.dumps(fault).decode("latin-1")]
            for name in ("messages", "tool_history", "tool_loop", "response", "reply", "attempts"):
                self.shown.append(repr(getattr(fault, name, None)))

    def check(self, *, files: bool = True) -> None:
        out, err = self.capfd.readouterr()
        self.shown += [out, err, self.caplog.text, repr([record.__dict__ for record in self.caplog.records])]
        written = [path for path in self.folder.rglob("*") if path.is_file()]
        assert bool(written) == files
        self.shown += [path.name + path.read_bytes().decode("latin-1") for path in written]
        text = "\n".join(self.shown)
        for part in PARTS:
            at = text.find(part)
            assert at < 0, text[max(0, at - 300) : at + 60]


@pytest.fixture(params=REFUSALS.values(), ids=REFUSALS)
def room(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Room]:
    caplog.set_level(logging.DEBUG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LLMBROKER_HOME", str(tmp_path / "home"))
    made = Room(tmp_path, request.param, caplog, capfd)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield made
    assert not any(part in str(warning.message) for warning in told for part in PARTS)


# -- studies ---------------------------------------------------------------------------------------------------------------

Verb = Callable[[Any, JSON], Any]
VERBS: dict[str, Verb] = {
    "one call": lambda config, how: llmbroker.call_llm(config, "hi", **how),
    "one call, awaited": lambda config, how: asyncio.run(llmbroker.acall_llm(config, "hi", **how), debug=True),
    "again and again": lambda config, how: llmbroker.call_llm_robust(config, "hi", tries=2, wait_seconds=0, **how),
    "streamed": lambda config, how: llmbroker.call_llm_stream(config, "hi", print, **how),
    "with tools": lambda config, how: llmbroker.call_llm_tools(
        config, "hi", llmbroker.llm_tool(f, description="Say f."), tries=1, **how
    ),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_a_call_of_a_study_shows_no_key(room: Room, verb: Verb) -> None:
    config = room.config()
    room.see(config, vars(config) if hasattr(config, "__dict__") else "", config.deployment())
    with room.fails():
        verb(config, {"io": room.port(), "journal": room.folder / "calls.db"})
    assert b"canary-5f1c9d" not in pickle.dumps(config), "headers travel with a pickled config, its key does not"
    room.check()


def test_rows_of_a_study_show_no_key(room: Room) -> None:
    config = room.config()
    rows = [{"prompt": "one"}, {"prompt": "two"}]
    made = None
    with room.fails():
        made = llmbroker.call_llm_par(
            rows, config, io=room.port(), tries=1, run_file=room.folder / "run.jsonl", journal=room.folder / "calls.db",
            progress=True, request_hash=True, keep_responses=True,
        )  # fmt: skip
    room.see(made, llmbroker.llm_hash(config), llmbroker.llm_preview(rows, config))
    if made is not None:
        room.see(llmbroker.llm_failures(made), made.to_pandas().to_csv())
    with room.fails():
        room.see(llmbroker.call_llm_par(rows, config, io=room.port(), dry_run=True))
    room.check()


def test_the_log_of_a_study_shows_no_key(room: Room) -> None:
    llmbroker.llm_log_enable(room.folder / "log.jsonl")
    try:
        with room.fails():
            llmbroker.call_llm(room.config(), "hi", io=room.port())
        room.see(llmbroker.llm_log_read(room.folder / "log.jsonl"), llmbroker.llm_log_status())
    finally:
        llmbroker.llm_log_disable()
    room.check()


def test_vectors_show_no_key(room: Room) -> None:
    with room.fails():
        made = llmbroker.get_batched_embeddings(["a", "b"], room.config(embedding=True), tries=1, io=room.port())
        room.see(made, made.failures)
    room.check(files=False)


# -- loops, runs, conversations, recordings --------------------------------------------------------------------------------


def says_it() -> Answer:
    """A call of a tool that fails with the key in its words would be the user's own doing; the model's words are not."""
    return Answer(body=whole(made_reply("", [("f", {})]), "openai-chat"), headers={"x-request-id": KEY, "set-cookie": KEY})


def f() -> str:
    """Say f."""
    return "f"


@pytest.mark.parametrize("kind", ["plain", "awaited"])
def test_a_durable_run_shows_no_key(room: Room, kind: str) -> None:
    runs = Runs(room.folder / "runs.db")
    client = (DirectClient if kind == "plain" else AsyncDirectClient)(**room.client(room.port(says_it())))
    with room.fails():
        if kind == "plain":
            runs.run(client, "hi", run_id="r", tools=[f])
        else:
            asyncio.run(runs.arun(client, "hi", run_id="r", tools=[f]), debug=True)
    room.see(runs, runs.list(), runs.state("r"))
    runs.close()
    room.check()


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_conversation_that_is_saved_shows_no_key(room: Room, streamed: bool) -> None:
    talk = Conversation(system="Be brief.", tools=[f])
    client = DirectClient(**room.client(room.port(says_it())))
    with room.fails():
        if streamed:
            list(talk.stream(client, "hi"))
        else:
            talk.ask(client, "hi")
    talk.save(room.folder / "talk.json")
    room.see(talk, talk.messages, talk.to_json(), talk.fork())
    room.check()


@pytest.mark.parametrize("way", ["whole", "streamed"])
def test_a_recording_holds_no_key_though_the_provider_repeats_it(room: Room, way: str) -> None:
    path = room.folder / "taken.jsonl"
    client = DirectClient(**room.client(record(path, room.port())))
    with room.fails():
        if way == "whole":
            client.ask("hi")
        else:
            list(client.stream("hi"))
    again = DirectClient(**{**room.client(replay(path)), "api_key": "another"})
    with room.fails():
        again.ask("hi") if way == "whole" else list(again.stream("hi"))
    room.check()


def test_a_key_that_is_cut_between_two_pieces_is_not_recorded(tmp_path: Path) -> None:
    half = len(KEY) // 2
    text = f"data: {KEY}\n\n".encode()
    answer = Answer(headers={"content-type": "text/event-stream"}, body=[text[: 6 + half], text[6 + half :]])
    port = record(tmp_path / "taken.jsonl", Replay().on(None, answer))
    client = DirectClient(base_url="https://api.example.com/v1", model="m", api_key=KEY, io=port)
    with contextlib.suppress(llmbroker.LLMBrokerError):
        list(client.stream("hi"))
    written = (tmp_path / "taken.jsonl").read_text()
    assert "pieces" in written
    import base64
    import json

    pieces = [base64.b64decode(piece) for line in written.splitlines() for piece in json.loads(line)["pieces"]]
    assert b"***" in b"".join(pieces)
    assert b"canary" not in b"".join(pieces)


# -- the broker ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "awaited", "streamed"])
def test_a_broker_its_journal_and_its_snapshot_show_no_key(room: Room, kind: str) -> None:
    pool = [LLMConfig(name=name, model="m", base_url="https://api.example.com/v1", api_key_ref="K") for name in ("one", "two")]
    how: JSON = {"pool": pool, "secrets": {"K": KEY}, "journal": str(room.folder / "journal.db"), "io": room.port(says_it())}

    async def awaited() -> None:
        broker = AsyncBroker(**how)
        with room.fails():
            await llmbroker.arun_tool_loop(broker, "hi", tools=[f], wait=1)
        room.see(broker, await broker.snapshot(), await broker.calls(), await broker.stats())
        await broker.close()

    if kind == "awaited":
        asyncio.run(awaited())
    else:
        with Broker(**how) as broker:
            with room.fails():
                if kind == "plain":
                    llmbroker.run_tool_loop(broker, "hi", tools=[f], wait=1)
                else:
                    list(broker.stream("hi", wait=1))
                    list(broker.stream("hi", wait=1))
            room.see(broker, broker.snapshot(), broker.calls(), broker.stats(), broker.for_scope("ann"))
    room.check()


# -- MCP -------------------------------------------------------------------------------------------------------------------

WHERE: dict[str, tuple[Any, JSON]] = {
    "a header": ("http://127.0.0.1:9/mcp", {"headers": {"authorization": HEADER}}),
    "a query": (f"http://127.0.0.1:9/mcp?key={PARTS[0]}", {}),
    "an address with a password": (f"http://user:{PARTS[0]}@127.0.0.1:9/mcp", {}),
    "an argument of a command": ([sys.executable, "-c", "raise SystemExit(1)", f"--key={KEY}"], {}),
    "a command that is not there": (["no-such-command-here", f"--key={KEY}"], {}),
    "an environment": ([sys.executable, "-c", "raise SystemExit(1)"], {"env": {"TOKEN": KEY}}),
}


@pytest.mark.parametrize(("where", "more"), WHERE.values(), ids=WHERE)
@pytest.mark.filterwarnings("ignore")
def test_an_mcp_server_that_fails_shows_no_key(
    where: Any, more: JSON, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mcp")
    from llmbroker import MCPServer

    caplog.set_level(logging.DEBUG, "llmbroker")
    room = Room(tmp_path, 0, caplog, capfd)
    server = MCPServer(where, timeout=5, **more)
    with room.fails(), server:
        raise AssertionError("nobody is there")
    room.see(server, server.name)
    assert room.shown and "AssertionError" not in room.shown[0]
    room.check(files=False)
