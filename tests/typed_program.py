"""A program of a user, for the type checkers: what it says of each value has to be what they see. It is never run."""

from __future__ import annotations

from typing import assert_type

import llmbroker
from llmbroker import (
    AsyncBroker,
    AsyncDirectClient,
    Broker,
    Call,
    Conversation,
    DirectClient,
    LLMConfig,
    Reply,
    Response,
    Snapshot,
    Stats,
    Usage,
)
from llmbroker.broker import AsyncPooledStream, PooledReply, PooledStream
from llmbroker.client import AsyncStream, Stream
from llmbroker.exchange import Event
from llmbroker.loop import AsyncToolLoopStream, ToolLoopStream
from llmbroker.research.config import ModelConfig
from llmbroker.research.stream import AsyncResponseStream, ResponseStream


def brokers(broker: Broker) -> None:
    assert_type(broker.ask("hi", wait=5, params={"temperature": 0}, operation="o", fastest_of=2), PooledReply)
    assert_type(broker.chat([{"role": "user", "content": "hi"}], trace_id="t"), PooledReply)
    stream = broker.stream("hi")
    assert_type(stream, PooledStream)
    for piece in stream:
        assert_type(piece, str)
    for event in stream.events():
        assert_type(event, Event)
    assert_type(stream.reply, PooledReply | None)
    assert_type(broker.stats(by="llm_name"), dict[str, Stats])
    assert_type(broker.calls(limit=3), list[Call])
    assert_type(broker.snapshot(), Snapshot)
    assert_type(broker.for_scope("ann"), Broker)
    assert_type(broker.direct("opus"), DirectClient)
    with broker as same:
        assert_type(same, Broker)
    reply = broker.ask("hi")
    assert_type(reply.text, str)
    assert_type(reply.usage, Usage | None)
    assert_type(reply.llm_name, str)


def clients(client: DirectClient) -> None:
    assert_type(client.ask("hi", timeout=3), Reply)
    assert_type(client.chat("hi"), Reply)
    stream = client.stream("hi")
    assert_type(stream, Stream)
    for piece in stream:
        assert_type(piece, str)
    assert_type(stream.reply, Reply | None)


def loops(broker: Broker, talk: Conversation) -> None:
    assert_type(llmbroker.stream_tool_loop(broker, "hi", tools=[]), ToolLoopStream)
    assert_type(llmbroker.astream_tool_loop(broker, "hi", tools=[]), AsyncToolLoopStream)
    assert_type(talk.stream(broker, "hi"), ToolLoopStream)
    assert_type(talk.astream(broker, "hi"), AsyncToolLoopStream)
    assert_type(talk.fork(), Conversation)


def studies(config: ModelConfig) -> None:
    assert_type(llmbroker.llm_config("m", "openai"), ModelConfig)
    assert_type(llmbroker.call_llm(config, "hi"), Response)
    assert_type(llmbroker.call_llm_robust(config, "hi"), Response)
    assert_type(llmbroker.call_llm_stream(config, "hi"), ResponseStream)
    assert_type(llmbroker.call_llm_stream(config, "hi").reply, Response | None)
    assert_type(llmbroker.call_llm_stream(config, "hi", print), Response)


async def awaited(broker: AsyncBroker, client: AsyncDirectClient, config: ModelConfig) -> None:
    assert_type(await broker.ask("hi", wait=5, tools=[]), PooledReply)
    assert_type(await broker.chat("hi"), PooledReply)
    pooled = broker.stream("hi")
    assert_type(pooled, AsyncPooledStream)
    assert_type([piece async for piece in pooled], list[str])
    assert_type(pooled.reply, PooledReply | None)
    assert_type(await broker.calls(), list[Call])
    assert_type(await client.ask("hi"), Reply)
    assert_type(client.stream("hi"), AsyncStream)
    assert_type(await llmbroker.acall_llm(config, "hi"), Response)
    assert_type(await llmbroker.acall_llm_stream(config, "hi"), AsyncResponseStream)
    assert_type(await llmbroker.acall_llm_stream(config, "hi", print), Response)


def mistakes(broker: Broker) -> None:
    broker.ask("hi", wayt=5)  # type: ignore[call-arg]
    broker.ask("hi", wait="soon")  # type: ignore[arg-type]
    LLMConfig(name=3)  # type: ignore[call-arg, arg-type]
