"""Faults beside what is good in the same bytes: before the end, what came first counts; behind the end, nothing does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llmbroker.client import AsyncDirectClient, DirectClient
from llmbroker.errors import InvalidProviderResponseError, LLMBrokerError, ProviderError, StreamInterruptedError
from llmbroker.exchange import TextDelta
from llmbroker.testing import Answer, Replay, content_type, made_reply, stream

DIALECTS = ["openai-chat", "openai-responses", "anthropic", "gemini", "ollama"]
KINDS = ["sync", "async"]
GOOD = made_reply("Well then.", [("f", {"x": 1})])


def framed(dialect: str, text: bytes) -> bytes:
    return text + b"\n" if dialect == "ollama" else b"data: " + text + b"\n\n"


FAULTS = {
    "what is no JSON": b"{oops",
    "an error": b'{"error": {"message": "burnt", "type": "server_error", "code": 500}, "type": "error"}',
}
ODD = {**FAULTS, "JSON that is no event": b"[7]"}


def begun(dialect: str, fault: bytes) -> tuple[bytes, bytes]:
    """Return a stream up to its first text with a fault behind it, and its rest."""
    gap = b"\n" if dialect == "ollama" else b"\n\n"
    frames = b"".join(stream(GOOD, dialect, size=4)).replace(b"\r\n", b"\n").split(gap)
    at = next(n for n, frame in enumerate(frames) if b"Well" in frame) + 1
    return gap.join(frames[:at]) + gap + framed(dialect, fault), gap.join(frames[at:])


def read(kind: str, dialect: str, *pieces: bytes, fault: Any = None) -> tuple[list[Any], Any, Any]:
    """Return events, reply and error of a stream that came in these pieces."""
    headers = {"content-type": content_type(dialect, stream=True)}
    port = Replay().on(None, Answer(headers=headers, body=list(pieces), fault=fault))
    events: list[Any] = []
    how: Any = {"base_url": "http://s.example/v1", "model": "m", "dialect": dialect, "io": port}
    face: Any

    async def run() -> Any:
        face = AsyncDirectClient(**how).stream("hi")
        async for event in face.events():
            events.append(event)
        return face

    try:
        if kind == "sync":
            face = DirectClient(**how).stream("hi")
            events.extend(face.events())
        else:
            face = asyncio.run(run())
    except LLMBrokerError as error:
        return events, None, error
    finally:
        assert port.open_streams == 0
        assert port.now() < 1.0, "nobody waits for what comes after a fault"
    return events, face.reply, None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("fault", ODD.values(), ids=ODD)
@pytest.mark.parametrize("together", [True, False], ids=["in the same bytes", "in bytes of its own"])
def test_what_comes_behind_the_end_does_not_count(kind: str, dialect: str, fault: bytes, together: bool) -> None:
    good, behind = b"".join(stream(GOOD, dialect)), framed(dialect, fault)
    _, reply, error = read(kind, dialect, *([good + behind] if together else [good, behind]))
    assert error is None
    assert (reply.text, reply.finish_reason) == ("Well then.", "tool_calls")
    assert reply.tool_calls[0]["function"]["arguments"] == '{"x":1}'


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("rest", ["the rest follows", "nothing follows", "a line without its end follows", "it stalls"])
def test_what_came_before_a_fault_in_the_same_bytes_is_handed_over_and_the_fault_then_raised(
    kind: str, dialect: str, fault: bytes, rest: str
) -> None:
    first, others = begun(dialect, fault)
    follows = {"the rest follows": others, "a line without its end follows": others.split(b"\n\n")[0].rstrip(b"\n")}
    stalls = "stall" if rest == "it stalls" else None
    events, reply, error = read(kind, dialect, first + follows.get(rest, b""), fault=stalls)
    assert reply is None
    assert isinstance(error, StreamInterruptedError)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == error.text == "Well"


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_stream_in_place_of_a_whole_answer_with_a_fault_in_it_is_no_answer(dialect: str, fault: bytes) -> None:
    body = b"".join(begun(dialect, fault))
    port = Replay().on(None, Answer(headers={"content-type": content_type(dialect, stream=True)}, body=body))
    with pytest.raises((InvalidProviderResponseError, ProviderError)):
        DirectClient(base_url="http://s.example/v1", model="m", dialect=dialect, io=port).chat("hi")


@pytest.mark.parametrize("kind", KINDS)
def test_an_end_that_comes_with_what_cannot_be_read_ends_nothing(kind: str) -> None:
    first = b'{"model": "m", "message": {"role": "assistant", "content": "Well"}, "done": false}'
    call = b'{"function": {"name": 9, "arguments": {}}}'
    last = b'{"model": "m", "message": {"content": "", "tool_calls": [' + call + b']}, "done": true, "done_reason": "stop"}'
    _, reply, error = read(kind, "ollama", framed("ollama", first) + framed("ollama", last))
    assert reply is None
    assert isinstance(error, StreamInterruptedError)
    assert error.text == "Well"
