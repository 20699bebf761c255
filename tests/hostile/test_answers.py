"""Whatever a server says: a reply that it ended itself, or one typed error; the same however it is cut, awaited or not."""

from __future__ import annotations

import asyncio
import json
import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmbroker import AsyncDirectClient, DirectClient
from llmbroker.errors import LLMBrokerError
from llmbroker.exchange import Reply
from llmbroker.providers.table import DIALECTS
from llmbroker.testing import content_type, made_reply, stream, whole
from llmbroker.transports.replay import Answer, Replay

JSON = dict[str, Any]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}} for name in ("f", "g")
]
MEANT = [
    made_reply("Hello wörld, this is a longer text.", reasoning="thinking hard"),
    made_reply("", [("f", {"x": 1, "y": 'é"}'}), ("g", {})]),
    made_reply("partial te", finish="length"),
    made_reply("", [("f", '{"x": 1, "y')], finish="length"),
    made_reply('<tool_call>{"name":"f","arguments":{"x":1}}</tool_call>'),
]
JUNK = [
    b"null", b"{}", b"[]", b"-1", b"1e999", b'"\\ud800"', b"\xff\xfe", b"\x00", b"data: ", b"\n\n", b"true", b"9" * 5000,
    b'"error":{"message":"x"},', b"[" * 3000, b'{"a":' * 3000, b'"' + b"a" * 300,
]  # fmt: skip
VALUES: list[Any] = [None, True, -1, 1.5, "x", "", [], {}, [None], {"a": {"b": []}}, 10**30]
WORDS = {"stop", "length", "tool_calls", "content_filter", "refusal", "error"}


def by_bytes(dice: random.Random, data: bytes) -> bytes:
    """Damage an answer as wires and proxies do."""
    made = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 5])):
        if not made:
            break
        at = dice.randrange(len(made))
        end = min(len(made), at + dice.choice([1, 2, 5, 30, 200]))
        kind = dice.randrange(7)
        if kind == 0:
            made[at] = dice.randrange(256)
        elif kind == 1:
            del made[at:end]
        elif kind == 2:
            made[at:at] = made[at:end]
        elif kind == 3:
            made[at:at] = dice.choice(JUNK)
        elif kind == 4:
            del made[at:]
        elif kind == 5:
            made[at:end] = dice.choice(JUNK)
        else:
            events = bytes(made).split(b"\n\n")
            dice.shuffle(events)
            made = bytearray(b"\n\n".join(events))
    return bytes(made)


def by_shape(dice: random.Random, data: bytes) -> bytes:
    """Say something else in places, as servers do that nearly speak a dialect: keys gone, values of another kind."""

    def changed(line: bytes) -> bytes:
        head, mark, text = (b"", b"", line) if line[:1] in (b"{", b"[") else line.partition(b"data: ")
        if text[:1] not in (b"{", b"[") or text == b"[DONE]":
            return line
        value = json.loads(text)
        places: list[tuple[Any, Any]] = []

        def walk(inside: Any) -> None:
            for key, item in list(inside.items()) if isinstance(inside, dict) else list(enumerate(inside)):
                places.append((inside, key))
                if isinstance(item, (dict, list)):
                    walk(item)

        walk(value)
        for _ in range(dice.choice([0, 0, 1, 2])):
            inside, key = dice.choice(places)
            if dice.random() < 0.5 and isinstance(inside, dict):
                inside.pop(key, None)
            elif isinstance(inside, dict) or key < len(inside):
                inside[key] = dice.choice(VALUES)
        return head + mark + json.dumps(value).encode()

    return b"\n".join(changed(line) for line in data.split(b"\n"))


def ask(way: str, dialect: str, answer: Answer) -> Reply | LLMBrokerError:
    port = Replay(record=False).on(None, answer)
    how: JSON = {"base_url": "https://a.example/v1", "model": "m", "dialect": dialect, "io": port}

    async def run() -> Reply:
        client = AsyncDirectClient(**how)
        if way == "awhole":
            return await client.chat("hi", tools=TOOLS)
        source = client.stream("hi", tools=TOOLS)
        async for _ in source:
            pass
        return source.reply  # type: ignore[no-any-return]

    try:
        if way.startswith("a"):
            return asyncio.run(run())
        if way == "whole":
            return DirectClient(**how).chat("hi", tools=TOOLS)
        source = DirectClient(**how).stream("hi", tools=TOOLS)
        text = "".join(source)
        assert text == source.reply.text or source.reply.tool_calls
        return source.reply  # type: ignore[no-any-return]
    except LLMBrokerError as error:
        repr(error)
        return error
    finally:
        assert port.open_streams == 0


def facts(outcome: Reply | LLMBrokerError) -> str:
    """Return what two ways of reading one answer have in common; ids that were made up are left out."""
    if isinstance(outcome, LLMBrokerError):
        made: Any = (type(outcome), str(outcome), getattr(outcome, "text", None), outcome.status, outcome.code)
    else:
        calls = [call["function"] for call in outcome.tool_calls or ()]
        made = (outcome.text, calls, outcome.finish_reason, outcome.raw_finish_reason, outcome.usage, outcome.reasoning)
        made = (*made, outcome.refusal, outcome.model, outcome.id)
    return re.sub(r"\bc[0-9a-f]{8}\b", "ID", repr(made))


def check(reply: Reply, data: bytes) -> None:
    """See that the provider itself said how the answer ended, and that the reply can be written down."""
    json.dumps(reply.message)
    for text in (reply.text, reply.reasoning or "", reply.model):
        text.encode()
    for call in reply.tool_calls or ():
        assert isinstance(call["id"], str)
        assert isinstance(call["function"]["name"], str)
        assert isinstance(call["function"]["arguments"], str)
    if reply.finish_reason not in WORDS or (reply.finish_reason in ("tool_calls", "refusal") and not reply.raw_finish_reason):
        return
    word = reply.raw_finish_reason
    assert isinstance(word, str)
    assert word.lower().encode() in data.lower() or json.dumps(word).encode()[1:-1] in data


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("damage", [by_bytes, by_shape])
@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 32), st.booleans(), st.integers(0, len(MEANT) - 1))
def test_no_damage_invents_a_finish_or_depends_on_how_it_is_read(
    damage: Any, dialect: str, seed: int, streamed: bool, which: int
) -> None:
    dice = random.Random(seed)
    reply = MEANT[which]
    data = damage(dice, b"".join(stream(reply, dialect)) if streamed else whole(reply, dialect))
    headers = {"content-type": content_type(dialect, stream=streamed)}
    ways = [("streamed" if streamed else "whole", None), ("streamed" if streamed else "whole", dice.choice([1, 7, 100]))]
    ways.append(("astreamed" if streamed else "awhole", None))
    if streamed:
        ways.append(("whole", None))
    outcomes = [ask(way, dialect, Answer(headers=headers, body=data, pieces=pieces)) for way, pieces in ways]
    for outcome in outcomes:
        if isinstance(outcome, Reply):
            check(outcome, data)
    assert len({facts(outcome) for outcome in outcomes[:3]}) == 1
    # Read as one body the same stream gives the same answer; only the words of an error may differ.
    assert len({facts(outcome) if isinstance(outcome, Reply) else "error" for outcome in outcomes}) == 1


def said(dialect: str) -> Any:
    """Return a whole answer of a dialect that says nothing about its end."""
    body = json.loads(whole(made_reply("Hello"), dialect))
    for inside in (body, *body.get("choices", ()), *body.get("candidates", ())):
        for key in ("finish_reason", "finishReason", "stop_reason", "done_reason", "status", "incomplete_details"):
            inside.pop(key, None)
    return body


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("way", ["whole", "awhole"])
def test_a_whole_answer_that_does_not_say_why_it_ended_is_unknown(dialect: str, way: str) -> None:
    reply = ask(way, dialect, Answer(body=said(dialect)))
    assert isinstance(reply, Reply)
    assert (reply.text, reply.finish_reason) == ("Hello", "unknown")


@pytest.mark.parametrize("way", ["streamed", "astreamed"])
def test_an_event_of_an_incomplete_response_needs_no_status_inside(way: str) -> None:
    events = [
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "half"},
        {"type": "response.incomplete", "response": {"id": "r", "incomplete_details": {"reason": "max_output_tokens"}}},
    ]
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    reply = ask(way, "openai-responses", Answer(headers={"content-type": "text/event-stream"}, body=body))
    assert isinstance(reply, Reply)
    assert (reply.text, reply.finish_reason) == ("half", "length")


@pytest.mark.parametrize("pieces", [None, 1])
@pytest.mark.parametrize("way", ["streamed", "astreamed", "whole", "awhole"])
def test_a_fault_in_the_last_event_is_not_lost_behind_the_end(way: str, pieces: int | None) -> None:
    data = b"".join(stream(made_reply("Hello"), "anthropic"))
    # A block of a kind that nobody knows is put together at the very end, and this one cannot be.
    data = data.replace(b'"text":"Hello"', b'"text":{"a":1}').replace(
        b'"content_block":{"type":"text"', b'"content_block":{"type":"x"'
    )
    answer = Answer(headers={"content-type": "text/event-stream"}, body=data, pieces=pieces)
    assert isinstance(ask(way, "anthropic", answer), LLMBrokerError)


@pytest.mark.parametrize("way", ["streamed", "astreamed", "whole"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_stream_that_ends_inside_bottomless_json_is_a_typed_error(dialect: str, way: str) -> None:
    body = (b"" if DIALECTS[dialect].framing == "ndjson" else b"data: ") + b"[" * 100_000
    headers = {"content-type": content_type(dialect, stream=True)}
    assert isinstance(ask(way, dialect, Answer(headers=headers, body=body)), LLMBrokerError)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("streamed", [False, True])
def test_arguments_that_were_cut_can_be_written_and_read_in_every_dialect(dialect: str, streamed: bool) -> None:
    meant = made_reply("", [("f", '{"x": 1, "y')], finish="length")
    data = b"".join(stream(meant, dialect)) if streamed else whole(meant, dialect)
    headers = {"content-type": content_type(dialect, stream=streamed)}
    reply = ask("streamed" if streamed else "whole", dialect, Answer(headers=headers, body=data))
    assert isinstance(reply, Reply)
    assert reply.finish_reason == "length"
    assert [call["function"]["name"] for call in reply.tool_calls or ()] == ["f"]
