"""The journal and the keys as a broker's user meets them: rows of attempts, sums, broken stores, and canaries."""

from __future__ import annotations

import json
import logging
import pickle
import sqlite3
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmbroker import Broker, LLMConfig, Usage
from llmbroker.errors import LLMBrokerError, NoLLMAvailableError
from llmbroker.journal import Journal, open_store
from llmbroker.journal.bodies import MAX_BODY, body_text
from llmbroker.transports.replay import Answer, Replay, sse

CANARY = 'canary/k3y+with "quotes" 1234'.replace(" ", "_")
ESCAPED = json.dumps(CANARY)[1:-1]
WALL = 1_790_000_000.0


def answer(text: str = "hello") -> Answer:
    return Answer(
        body={
            "model": "answered",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
            "usage": {
                "prompt_tokens": 1000,
                "completion_tokens": 100,
                "total_tokens": 1100,
                "prompt_tokens_details": {"cached_tokens": 400},
            },
        }
    )


def refusal(status: int, message: str, **headers: str) -> Answer:
    return Answer(status=status, headers=headers, body={"error": {"message": message, "code": "x"}})


def model(name: str, at: str | None = None, **fields: Any) -> LLMConfig:
    return LLMConfig(name=name, model=f"m-{name}", base_url=f"https://{at or name}.test/v1", api_key_ref="K", **fields)


@pytest.fixture
def port() -> Replay:
    return Replay(wall=WALL)


@pytest.fixture
def brokers() -> Iterator[list[Broker]]:
    made: list[Broker] = []
    yield made
    for broker in made:
        broker.close()


def make(port: Replay, brokers: list[Broker], database: Any, *models: LLMConfig, **options: Any) -> Broker:
    broker = Broker(pool=list(models), io=port, journal=database, secrets={"K": CANARY}, **options)
    brokers.append(broker)
    return broker


def test_every_attempt_of_a_call_is_a_row_of_its_group(port: Replay, brokers: list[Broker], database: Path) -> None:
    port.on("a.test", refusal(500, "broken"), times=None).on("b.test", answer(), times=None)
    broker = make(port, brokers, database, model("a", weight=1.0), model("b", weight=0.1))
    reply = broker.ask("hi", operation="op", trace_id="t")
    rows = broker.calls()
    assert [(row.llm_name, row.status, row.attempt) for row in rows] == [("b", "ok", 2), ("a", "error", 1)]
    assert rows[0].id == reply.call_id
    assert rows[0].group_id == rows[1].group_id == rows[1].id
    assert {(row.operation, row.trace_id) for row in rows} == {("op", "t")}
    assert broker._engine.journal.calls(group_id=rows[0].group_id) == rows
    assert len(reply.attempts) == len(rows)


def test_the_sums_of_the_journal_are_the_sums_of_the_replies(port: Replay, brokers: list[Broker], database: Path) -> None:
    port.on("a.test", answer(), times=None)
    price = {"input": 2.0, "output": 10.0, "cached": 0.5}
    broker = make(port, brokers, database, model("a", price=price))
    replies = [broker.ask("hi") for _ in range(5)]
    stats = broker.stats()["a"]
    assert stats.total == 5
    assert stats.usage == Usage(
        input_tokens=sum(reply.usage.input_tokens for reply in replies),
        output_tokens=sum(reply.usage.output_tokens for reply in replies),
        cached_input_tokens=2000,
        total_tokens=5500,
    )
    assert stats.cost == pytest.approx(5 * (600 * 2 + 400 * 0.5 + 100 * 10) / 1e6)
    assert (stats.unpriced, stats.unmeasured) == (0, 0)


def test_a_model_without_a_known_price_is_counted_as_unpriced(port: Replay, brokers: list[Broker], database: Path) -> None:
    port.on("a.test", answer(), times=None)
    broker = make(port, brokers, database, model("a"))
    broker.ask("hi")
    stats = broker.stats()["a"]
    assert (stats.cost, stats.unpriced) == (None, 1)
    assert broker.calls(limit=1)[0].cost is None


def test_bodies_are_kept_only_where_they_are_asked_for_and_without_keys(
    port: Replay, brokers: list[Broker], database: Path
) -> None:
    port.on("a.test", answer(f"your key is {CANARY}"), times=None)
    journal = Journal(open_store(database), bodies=True)
    broker = make(port, brokers, journal, model("a"))
    picture = "data:image/png;base64," + "A" * 5000
    parts = [{"type": "text", "text": f"is {CANARY} a key?"}, {"type": "image_url", "image_url": {"url": picture}}]
    broker.chat([{"role": "user", "content": parts}], params={"temperature": 0.5})
    (row,) = journal.calls(bodies=True)
    asked, answered = json.loads(row.request or ""), json.loads(row.response or "")
    assert asked["messages"][0]["content"][0]["text"] == "is *** a key?"
    assert asked["messages"][0]["content"][1]["image_url"]["url"] == "data:image/png;base64,(5000 characters)"
    assert asked["temperature"] == 0.5
    assert answered["content"] == "your key is ***"
    assert journal.calls()[0].request is None


def test_without_asking_no_body_is_stored(port: Replay, brokers: list[Broker], database: Path) -> None:
    port.on("a.test", answer("words-of-the-answer"), times=None)
    broker = make(port, brokers, database, model("a"))
    broker.ask("words-of-the-question")
    broker.close()
    stored = b"".join(path.read_bytes() for path in database.parent.glob("broker.db*"))
    assert b"words-of-the-" not in stored


@pytest.mark.parametrize(
    "value",
    [{"a": float("nan")}, {1: 2}, "\ud800", {"x": object()}, [b"\xff"]],
    ids=["nan", "number", "surrogate", "object", "bytes"],
)
def test_whatever_a_body_holds_there_is_a_text_for_it(value: Any) -> None:
    assert isinstance(body_text(value), str)


def test_a_body_is_cut_where_it_is_very_long() -> None:
    assert len(body_text("a b " * 200_000)) < MAX_BODY + 100


@pytest.mark.parametrize("broken", ["garbage", "folder", "locked"])
def test_a_broken_journal_does_not_break_a_call_and_shows_in_the_snapshot(
    port: Replay, brokers: list[Broker], database: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    holder = None
    if broken == "garbage":
        database.write_bytes(b"not a database " * 300)
    elif broken == "folder":
        database.mkdir()
    else:
        holder = sqlite3.connect(database, isolation_level=None)
        holder.execute("CREATE TABLE mine (x)")
        holder.execute("BEGIN EXCLUSIVE")
    port.on("a.test", answer(), times=None)
    broker = make(port, brokers, database, model("a"))
    assert [broker.ask("hi").text for _ in range(3)] == ["hello"] * 3
    journal = broker.snapshot().journal
    assert (journal["state"], journal["spooled"], journal["dropped"]) == ("degraded", 3, 0)
    assert sum("Calls go on" in record.getMessage() for record in caplog.records) == 1
    if holder is not None:
        holder.execute("ROLLBACK")
        holder.close()
        assert len(broker.calls()) == 3
        assert broker.snapshot().journal["state"] == "ok"


def test_rows_of_a_broker_that_died_broken_are_there_when_the_next_reads(
    port: Replay, brokers: list[Broker], database: Path
) -> None:
    holder = sqlite3.connect(database, isolation_level=None)
    holder.execute("CREATE TABLE mine (x)")
    holder.execute("BEGIN EXCLUSIVE")
    port.on("a.test", answer(), times=None)
    first = make(port, brokers, database, model("a"))
    reply = first.ask("hi")
    first.close()
    holder.execute("ROLLBACK")
    holder.close()
    second = make(port, brokers, database, model("a"))
    assert [row.id for row in second.calls()] == [reply.call_id]


# -- canaries: a provider that echoes the key wherever it can ----------------------------------------------------------------

ECHOES = {
    "401 with the key": refusal(401, f"Incorrect API key provided: {CANARY}"),
    "400 with the headers": refusal(400, f"bad request: authorization: Bearer {CANARY}, try again"),
    "429 with the key in a header": refusal(429, f"limit for {CANARY}", **{"retry-after": "3", "x-key": CANARY}),
    "500 as html": Answer(status=500, headers={"content-type": "text/html"}, body=f"<h1>{CANARY}</h1>".encode()),
    "200 that is no json": Answer(body=f"key {CANARY} {{".encode()),
    "200 with an error": Answer(body={"error": {"message": f"no such key {CANARY}", "code": 500}}),
    "200 in a strange shape": Answer(body={"choices": CANARY}),
    "a redirect": Answer(status=302, headers={"location": f"https://evil.test/?key={CANARY}"}, body=b""),
    "an error in the stream": Answer(
        headers={"content-type": "text/event-stream"}, body=sse({"error": {"message": f"bad {CANARY}"}}, done=False)
    ),
    "a broken connection": Answer(fault="reset"),
}


SILENT = {
    "401": refusal(401, "bad key"),
    "500 as html": Answer(status=500, body=b"<h1>oops</h1>"),
    "200 that is no json": Answer(body=b"{"),
    "a broken connection": Answer(fault="reset"),
    "refused": Answer(fault="refuse"),
    "an error in the stream": Answer(
        headers={"content-type": "text/event-stream"}, body=sse({"error": {"message": "bad"}}, done=False)
    ),
}


def everything_about(error: BaseException, variables: bool = False) -> str:
    """All that a log or a crash reporter shows of an error and its causes; with the variables of our frames, if wanted."""
    shown = "".join(traceback.TracebackException.from_exception(error, capture_locals=variables).format())
    return shown + repr(error) + str(vars(error)) + repr(pickle.dumps(error))


def leaks(text: str) -> bool:
    return CANARY in text or ESCAPED in text or json.dumps(ESCAPED)[1:-1] in text


@pytest.mark.parametrize("way", ["chat", "stream", "direct"])
@pytest.mark.parametrize("echo", ECHOES.values(), ids=ECHOES)
def test_no_row_log_error_or_traceback_shows_the_key(
    port: Replay, brokers: list[Broker], database: Path, caplog: pytest.LogCaptureFixture, echo: Answer, way: str
) -> None:
    port.on("a.test", echo, times=None)
    broker = make(port, brokers, database, model("a"), direct=[model("d", at="a")])
    with caplog.at_level(logging.DEBUG):
        shown = [everything_about(fault_of(broker, way))]
    shown += [repr(broker.calls()), repr(broker.snapshot()), repr(broker), repr(vars(broker)), caplog.text]
    broker.close()
    shown += [path.read_bytes().decode("utf-8", "replace") for path in database.parent.glob("broker.db*")]
    assert [text for text in shown if leaks(text)] == []


@pytest.mark.parametrize("way", ["chat", "stream", "direct"])
@pytest.mark.parametrize("fault", SILENT.values(), ids=SILENT)
def test_no_variable_of_our_frames_shows_the_key(
    port: Replay, brokers: list[Broker], database: Path, fault: Answer, way: str
) -> None:
    port.on("a.test", fault, times=None)
    broker = make(port, brokers, database, model("a"), direct=[model("d", at="a")])
    error = fault_of(broker, way)
    assert "messages" in (shown := everything_about(error, variables=True))  # the frames are really looked into
    assert not leaks(shown)


def fault_of(broker: Broker, way: str) -> LLMBrokerError:
    """The error that a call raises; its traceback begins where the library does."""
    try:
        if way == "chat":
            broker.chat([{"role": "user", "content": "hi"}], wait=30)
        elif way == "stream":
            list(broker.stream("hi", wait=30))
        else:
            broker.direct("d").ask("hi")
    except LLMBrokerError as error:
        return error.with_traceback(error.__traceback__.tb_next if error.__traceback__ else None)
    raise AssertionError("the provider's fault must reach the caller")


def test_a_user_whose_own_key_cannot_be_read_does_not_spend_the_shared_one(port: Replay, brokers: list[Broker]) -> None:
    down = True

    def vault(ref: str, scope: str | None) -> str | None:
        if scope == "bob" and down:
            raise OSError("vault down")
        return "bobs" if scope == "bob" else "shared"

    port.on("a.test", answer(), times=None)
    broker = Broker(pool=[model("a")], io=port, journal=False, secrets=vault)
    brokers.append(broker)
    with pytest.raises(NoLLMAvailableError):
        broker.for_scope("bob").ask("hi", wait=1)
    assert port.requests == []
    assert broker.for_scope("eve").ask("hi").text == "hello"
    down = False
    port.advance(120)
    broker.for_scope("bob").ask("hi")
    assert [request.headers["authorization"] for request in port.requests] == ["Bearer shared", "Bearer bobs"]


@pytest.mark.parametrize("broken", ["no master key", "damaged file"])
def test_stored_keys_that_cannot_be_read_leave_a_user_the_shared_one_and_say_so(
    port: Replay, brokers: list[Broker], database: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.setenv("K", "shared")
    monkeypatch.delenv("LLMBROKER_MASTER_KEY", raising=False)
    monkeypatch.setattr("llmbroker.credentials.stored._from_keyring", lambda make: None)
    port.on("a.test", answer(), times=None)
    if broken == "damaged file":
        database.write_bytes(b"not a database " * 300)
    else:
        store = open_store(database)
        store.set_secret("K", "bob", b"sealed")
        store.close()
    broker = Broker(str(database), pool=[model("a")], limits=[], io=port)
    brokers.append(broker)
    bob = broker.for_scope("bob")
    assert bob.ask("hi").text == "hello"
    assert port.requests[0].headers["authorization"] == "Bearer shared"
    assert any(("no master key" if broken == "no master key" else "is not a database") in note for note in bob.snapshot().notes)


def test_stored_keys_that_cannot_be_read_are_named_where_no_other_place_has_a_key(
    port: Replay, brokers: list[Broker], database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("K", raising=False)
    database.write_bytes(b"not a database " * 300)
    broker = Broker(str(database), pool=[model("a")], limits=[], io=port)
    brokers.append(broker)
    with pytest.raises(NoLLMAvailableError, match="is not a database") as caught:
        broker.for_scope("bob").ask("hi", wait=1)
    assert caught.value.reason == "no_keys"


def test_the_key_goes_to_its_host_and_nowhere_else(port: Replay, brokers: list[Broker], database: Path) -> None:
    port.on("a.test", Answer(status=302, headers={"location": "https://evil.test/v1"}, body=b""), times=None)
    port.on("evil.test", answer(), times=None)
    broker = make(port, brokers, database, model("a"))
    with pytest.raises((NoLLMAvailableError, LLMBrokerError)):
        broker.ask("hi", wait=1)
    assert {request.url.split("/")[2] for request in port.requests} == {"a.test"}
    assert all(CANARY not in request.url and CANARY.encode() not in request.body for request in port.requests)
