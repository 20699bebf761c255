"""A key shows nowhere: whatever fails, wherever the provider repeats it, in errors, logs and tracebacks."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import math
import pickle
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from llmbroker import AsyncDirectClient, DirectClient
from llmbroker.errors import LLMBrokerError
from llmbroker.providers.table import DIALECTS
from llmbroker.testing import content_type, made_reply, stream
from llmbroker.transports.replay import Answer, Replay

JSON = dict[str, Any]
KEY = 'sk-canary-5f1c9d"3e/7a+b%c'
HEADER = "Bearer hdr-canary-77aa/bb"
PARTS = ("canary-5f1c9d", "3e/7a", "hdr-canary")
WAYS = ["whole", "awhole", "streamed", "astreamed"]
TEXT = {"content-type": "text/plain"}


def told(dialect: str, body: JSON) -> Answer:
    """Return an error inside a stream."""
    data = json.dumps(body).encode()
    line = data + b"\n" if DIALECTS[dialect].framing == "ndjson" else b"data: " + data + b"\n\n"
    return Answer(headers={"content-type": content_type(dialect, stream=True)}, body=line)


def error(**facts: Any) -> JSON:
    return {
        "type": "error",
        "error": {"message": f"Bad key: {KEY} ({HEADER})", "type": KEY, "code": KEY, "status": KEY, **facts},
    }


Make = Callable[[str], Answer]
FAILURES: dict[str, Make] = {
    "no connection": lambda _: Answer(fault="refuse"),
    "a reset": lambda _: Answer(fault="reset"),
    "silence": lambda _: Answer(delay=math.inf),
    "no HTTP": lambda _: Answer(fault="garbage"),
    "a refused key": lambda _: Answer(status=401, body=error()),
    "a refused request": lambda _: Answer(status=400, body=error(param=KEY)),
    "too many": lambda _: Answer(status=429, headers={"x-request-id": KEY, "retry-after": "1"}, body=error()),
    "a broken server": lambda _: Answer(status=500, headers=TEXT, body=f"Traceback: authorization: Bearer {KEY}"),
    "a page": lambda _: Answer(status=502, headers={"content-type": "text/html"}, body=f"<html>{KEY}</html>"),
    "a redirect": lambda _: Answer(status=302, headers={"location": f"https://evil.example/?key={KEY}"}, body=b""),
    "no JSON": lambda _: Answer(headers=TEXT, body=f"{KEY} {HEADER}"),
    "another shape": lambda _: Answer(body={"choices": KEY, "candidates": KEY, "output": KEY, "content": KEY, "message": KEY}),
    "an error in a 200": lambda _: Answer(body=error()),
    "a bare error in a 200": lambda _: Answer(body={"error": KEY}),
    "a detail": lambda _: Answer(status=422, body={"detail": [{"loc": [KEY], "msg": KEY}]}),
    "a nested error": lambda _: Answer(status=400, body={"error": {"message": json.dumps(error()), "metadata": {"raw": KEY}}}),
    "an error in a stream": lambda dialect: told(dialect, error()),
    "no JSON in a stream": lambda dialect: Answer(
        headers={"content-type": content_type(dialect, stream=True)}, body=f"data: {{{KEY}\n\n{{{KEY}\n"
    ),
    "a cut stream": lambda dialect: Answer(
        headers={"content-type": content_type(dialect, stream=True)},
        body=stream(made_reply("Hello there, long text"), dialect)[:3],
        fault="cut",
    ),
}


def fails(way: str, dialect: str, answer: Answer) -> LLMBrokerError | None:
    port = Replay().on(None, answer, times=None)
    how: JSON = {"base_url": "https://api.example.com/v1", "model": "m", "dialect": dialect, "api_key": KEY, "io": port}
    how["headers"] = {"x-own": HEADER}

    async def run() -> None:
        client = AsyncDirectClient(**how)
        if way == "awhole":
            await client.chat("hi", timeout=5)
        else:
            async for _ in client.stream("hi", timeout=5):
                pass

    try:
        if way.startswith("a"):
            asyncio.run(run(), debug=True)
        elif way == "whole":
            DirectClient(**how).chat("hi", timeout=5)
        else:
            list(DirectClient(**how).stream("hi", timeout=5))
    except LLMBrokerError as caught:
        return caught
    return None


def everything(fault: BaseException) -> str:
    """Return all that could be shown of an error: itself, its fields, its causes, its traceback."""
    shown = []
    one: BaseException | None = fault
    while one is not None:
        shown += [str(one), repr(one), repr(one.__dict__), repr(one.args)]
        one = one.__cause__ or one.__context__
    return "\n".join([*shown, *traceback.format_exception(fault)])


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_key_shows_whatever_fails(dialect: str, way: str, failure: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    caught = fails(way, dialect, failure(dialect))
    assert caught is not None
    shown = everything(caught) + everything(copy.deepcopy(caught)) + caplog.text
    shown += pickle.dumps(caught).decode("latin-1") + repr([record.__dict__ for record in caplog.records])
    for part in PARTS:
        at = shown.find(part)
        assert at < 0, shown[max(0, at - 300) : at + 60]


def test_a_client_shows_no_key() -> None:
    for kind in (DirectClient, AsyncDirectClient):
        client = kind(base_url="https://api.example.com/v1", model="m", api_key=KEY, headers={"x-own": HEADER}, io=Replay())
        shown = f"{client!r} {client!s} {vars(client)!r} {client._deployment!r}"
        assert not any(part in shown for part in PARTS)
