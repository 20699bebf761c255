"""A reply put into any dialect's bytes, whole or streamed in any pieces, is read back as the same reply by the clients."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmbroker.client import DirectClient
from llmbroker.exchange import Reply, Usage
from llmbroker.testing import Answer, Replay, content_type, made_reply, stream, whole

DIALECTS = ["openai-chat", "openai-responses", "anthropic", "gemini", "ollama"]
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]

words = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=40).map(
    lambda t: "a" + t + "z"
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
calls = st.lists(st.tuples(st.sampled_from(["f", "g"]), st.dictionaries(words, values, max_size=3)), max_size=3)


def read(reply: Reply, dialect: str, *, streamed: bool, size: int = 8) -> Any:
    body: Any = stream(reply, dialect, size=size) if streamed else whole(reply, dialect)
    port = Replay().on(None, Answer(headers={"content-type": content_type(dialect, stream=streamed)}, body=body))
    client = DirectClient(base_url="http://scripted.example/v1", model="m", dialect=dialect, leaked_calls=False, io=port)
    if not streamed:
        return client.chat("hi", tools=TOOLS)
    answer = client.stream("hi", tools=TOOLS)
    assert "".join(answer) == answer.reply.text
    port.check()
    return answer.reply


def facts(reply: Any) -> tuple[Any, ...]:
    made = [(c["function"]["name"], c["function"]["arguments"]) for c in reply.tool_calls or ()]
    return reply.text, made, reply.reasoning, reply.usage, reply.finish_reason


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=40)
@given(text=words | st.just(""), made=calls, size=st.integers(1, 50), thought=st.none() | words)
def test_what_is_sent_is_what_is_read(dialect: str, text: str, made: Any, size: int, thought: str | None) -> None:
    if not text and not made:
        text = "x"
    reply = made_reply(text, made, reasoning=thought, usage=Usage(input_tokens=7, output_tokens=3, total_tokens=10))
    assert facts(read(reply, dialect, streamed=False)) == facts(reply)
    assert facts(read(reply, dialect, streamed=True, size=size)) == facts(reply)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_cut_answer_is_told_as_cut(dialect: str) -> None:
    reply = made_reply("half an ans", finish="length")
    for streamed in (False, True):
        assert read(reply, dialect, streamed=streamed).finish_reason == "length"
