"""OpenTelemetry: spans by the conventions where a program set a tracer up, nothing at all where it did not."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.loop.scripted import AsyncScripted, Face, Scripted, calls, says

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import llmbroker
from llmbroker.errors import ServerError


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield kept
    provider.shutdown()


def echo(n: int) -> int:
    return n


def test_a_loop_is_a_tree_of_spans(loop: Face, exporter: InMemorySpanExporter) -> None:
    with trace.get_tracer("t").start_as_current_span("outer") as outer:
        loop.run([calls(("echo", '{"n": 1}', "c1")), says()], tools=[echo], dispatch=None)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    root, tool = spans["invoke_agent"], spans["execute_tool echo"]
    chats = [span for span in exporter.get_finished_spans() if span.name == "chat"]
    assert root.parent is not None
    assert root.parent.span_id == outer.get_span_context().span_id
    assert {span.parent.span_id for span in [*chats, tool] if span.parent} == {root.context.span_id}
    assert tool.attributes is not None
    assert dict(tool.attributes) == {
        "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "echo", "gen_ai.tool.call.id": "c1",
        "gen_ai.tool.type": "function",
    }  # fmt: skip
    assert chats[0].attributes is not None
    assert chats[0].attributes["gen_ai.usage.input_tokens"] == 10
    assert chats[0].attributes["gen_ai.response.finish_reasons"] == ("tool_calls",)
    assert root.attributes is not None
    assert root.attributes["gen_ai.usage.input_tokens"] == 20


def test_faults_are_marked_and_every_span_ends(loop: Face, exporter: InMemorySpanExporter) -> None:
    def broken() -> str:
        raise ValueError("no")

    loop.fail(ServerError, [calls(("broken", "{}")), ServerError("down")], "Hi", tools=[broken], dispatch=None)
    spans = exporter.get_finished_spans()
    failed = {span.name for span in spans if span.status.status_code is trace.StatusCode.ERROR}
    assert failed == {"execute_tool broken", "chat", "invoke_agent"}
    assert len(spans) == 4


def test_streamed_loops_have_the_same_spans(exporter: InMemorySpanExporter) -> None:
    list(llmbroker.stream_tool_loop(Scripted(calls(("echo", '{"n": 1}')), says()), "Hi", tools=[echo]))

    async def read() -> None:
        async for _ in llmbroker.astream_tool_loop(AsyncScripted(calls(("echo", '{"n": 1}')), says()), "Hi", tools=[echo]):
            pass

    asyncio.run(read())
    names = [span.name for span in exporter.get_finished_spans()]
    assert sorted(names) == sorted(["invoke_agent", "chat", "chat", "execute_tool echo"] * 2)


def test_texts_and_arguments_are_in_no_span(exporter: InMemorySpanExporter) -> None:
    Face("blocking").run([calls(("echo", '{"n": 424242}')), says("a secret answer")], "a secret", tools=[echo], dispatch=None)
    text = str([(span.name, dict(span.attributes or {})) for span in exporter.get_finished_spans()])
    assert "secret" not in text
    assert "424242" not in text


def test_without_a_tracer_nothing_is_loaded() -> None:
    code: Any = (
        "import sys, llmbroker\n"
        "class C:\n def chat(self, m, tools=None): return {'text': 'x'}\n"
        "llmbroker.run_tool_loop(C(), 'Hi'); assert not [m for m in sys.modules if m.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
