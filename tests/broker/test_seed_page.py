"""The page on tools and agents, over servers on loopback: every dialect, some of them failing, both faces, real sockets."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.servers import Provider, garbled, hung_up, providers, refused

import llmbroker
from llmbroker import AsyncBroker, Broker, ServerError, ToolLoopLimitError

DIALECTS = ("openai-chat", "openai-responses", "anthropic", "gemini", "ollama")
MESSAGES = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Current weather in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
KEYS = {"LOCAL_KEY": "the-house-key", "bob/LOCAL_KEY": "bobs-own-key"}


def get_weather(city: str) -> str:
    return f"It is 20°C in {city}"


class Watched:
    """A caller that keeps every reply which the loop got from it; what the loop takes is any object with ``chat``."""

    def __init__(self, caller: Any) -> None:
        self._caller = caller
        self.replies: list[Any] = []

    def chat(self, messages: Any, **named: Any) -> Any:
        found = self._caller.chat(messages, **named)
        if not asyncio.iscoroutine(found):
            self.replies.append(found)
            return found

        async def wait() -> Any:
            self.replies.append(await found)
            return self.replies[-1]

        return wait()


class Page:
    """A broker of one kind, and what the page does with it."""

    def __init__(self, kind: str, made: dict[str, Provider], folder: Path, **arguments: Any) -> None:
        self.kind = kind
        self.made = made
        make = Broker if kind == "sync" else AsyncBroker
        pool = [one.config for one in made.values()]
        self.broker: Any = make(pool=pool, secrets=KEYS, journal=folder / f"{kind}.db", **arguments)

    def plainly(self, found: Any) -> Any:
        """Wait for what a method of either face gave."""
        if self.kind == "sync":
            return found

        async def wait() -> Any:
            return await found

        return asyncio.run(wait())

    def loop(self, caller: Any = None, **named: Any) -> Any:
        arguments: dict[str, Any] = {"tools": TOOLS, "dispatch": {"get_weather": get_weather}, **named}
        run = llmbroker.run_tool_loop if self.kind == "sync" else llmbroker.arun_tool_loop
        return self.plainly(run(caller if caller is not None else self.broker, MESSAGES, **arguments))

    def rows(self, **filters: Any) -> list[Any]:
        return list(reversed(self.plainly(self.broker.calls(limit=1000, **filters))))


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened() -> Iterator[list[Any]]:
    pages: list[Page] = []
    yield pages
    for page in pages:
        page.plainly(page.broker.close())


def tokens(usages: Any) -> tuple[int, int, int]:
    found = [usage for usage in usages if usage is not None]
    return tuple(
        sum(getattr(usage, name) or 0 for usage in found) for name in ("input_tokens", "output_tokens", "total_tokens")
    )  # type: ignore[return-value]


@pytest.mark.parametrize("first", DIALECTS)
def test_the_loop_answers_while_servers_fail_and_the_journal_adds_up(
    kind: str, first: str, tmp_path: Path, opened: list[Page]
) -> None:
    others = [dialect for dialect in DIALECTS if dialect != first]
    wanted = [
        ("dead", "openai-chat"),
        ("limited", "anthropic"),
        ("page", "gemini"),
        (first, first),
        *zip(others, others, strict=True),
    ]
    with providers(*wanted) as made:
        made["dead"].faults = itertools.repeat(hung_up)
        made["limited"].faults = itertools.repeat(refused(429, retry_after="60"))
        made["page"].faults = itertools.repeat(garbled)
        made[first].faults = iter([None, refused(503)])  # it calls the tool, and is down when the result comes
        page = Page(kind, made, tmp_path)
        opened.append(page)
        watched = Watched(page.broker)
        reply = page.loop(watched, operation="weather-agent", trace_id="t1", wait=20)

        assert reply.text == "It is mild in Paris."
        assert reply.llm_name == others[0]
        rows = page.rows(trace_id="t1")
        assert [(row.llm_name, row.status, row.step) for row in rows if row.status == "ok"] == [
            (first, "ok", 1),
            (others[0], "ok", 2),
        ]
        assert {row.llm_name for row in rows if row.status != "ok"} == {"dead", "limited", "page", first}
        assert {row.operation for row in rows} == {"weather-agent"}
        assert [row.id for row in rows if row.status == "ok"] == [one.call_id for one in watched.replies]
        for row in rows:
            assert row.dialect == made[row.llm_name].dialect

        sent = tokens(usage for one in made.values() for usage in one.sent)
        assert tokens(one.usage for one in watched.replies) == sent
        assert tokens(row.usage for row in rows) == sent
        sums = page.plainly(page.broker.stats(by="trace_id"))["t1"]
        assert tokens([sums.usage]) == sent
        assert (sums.by_status["ok"], sums.total) == (2, len(rows))
        assert reply.usage == watched.replies[-1].usage, "the reply's usage covers the final call alone"


def test_totals_of_many_loops_side_by_side_are_those_of_their_replies(tmp_path: Path) -> None:
    with providers(*((dialect, dialect) for dialect in DIALECTS)) as made:
        for at, one in enumerate(made.values()):
            one.faults = itertools.cycle(
                [refused(500), None] if at == 1 else [None, None, refused(429, retry_after="0.05"), None]
            )
        page = Page("async", made, tmp_path)
        watched = [Watched(page.broker) for _ in range(12)]

        async def run() -> None:
            await asyncio.gather(
                *(
                    llmbroker.arun_tool_loop(
                        one, MESSAGES, tools=TOOLS, dispatch={"get_weather": get_weather}, trace_id=f"t{at}", wait=30
                    )
                    for at, one in enumerate(watched)
                )
            )

        asyncio.run(run())
        sums = page.plainly(page.broker.stats(by="trace_id"))
        for at, one in enumerate(watched):
            ok = [row for row in page.rows(trace_id=f"t{at}") if row.status == "ok"]
            assert [row.id for row in ok] == [reply.call_id for reply in one.replies]
            assert tokens(row.usage for row in ok) == tokens(reply.usage for reply in one.replies)
            assert sums[f"t{at}"].by_status["ok"] == len(one.replies) == 2
        page.plainly(page.broker.close())


def test_a_rating_by_trace_goes_to_the_last_call_and_by_id_to_another(kind: str, tmp_path: Path, opened: list[Page]) -> None:
    with providers(("a", "anthropic"), ("b", "gemini")) as made:
        page = Page(kind, made, tmp_path)
        opened.append(page)
        watched = Watched(page.broker)
        page.loop(watched, trace_id="t1", operation="weather-agent")
        page.plainly(page.broker.record_quality(0.9, trace_id="t1"))
        assert [row.score for row in page.rows()] == [None, 0.9]
        page.plainly(page.broker.record_quality(0.2, call_id=watched.replies[0].call_id))
        assert [row.score for row in page.rows()] == [0.2, 0.9]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_direct_model_has_no_row_no_name_and_no_failover(kind: str, dialect: str, tmp_path: Path, opened: list[Page]) -> None:
    with providers(("opus", dialect), ("pooled", "openai-chat")) as made:
        pooled = {"pooled": made["pooled"]}
        page = Page(kind, pooled, tmp_path, direct=[made["opus"].config])
        opened.append(page)
        reply = page.loop(page.broker.direct("opus"), params={"temperature": 0}, timeout=20)
        assert reply.text == "It is mild in Paris."
        assert not hasattr(reply, "llm_name")
        assert not hasattr(reply, "call_id")
        assert tokens([reply.usage]) == tokens(made["opus"].sent[-1:])
        made["opus"].faults = itertools.repeat(refused(500))
        with pytest.raises(ServerError):
            page.loop(page.broker.direct("opus"))
        assert page.rows() == []
        assert made["pooled"].sent == []


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_scoped_loop_uses_that_users_key_and_rows_bear_the_scope(
    kind: str, dialect: str, tmp_path: Path, opened: list[Page]
) -> None:
    with providers(("a", dialect)) as made:
        page = Page(kind, made, tmp_path)
        opened.append(page)
        page.loop(page.broker.for_scope("bob"))
        assert all("bobs-own-key" in headers for headers in made["a"].keys)
        assert [(row.scope, row.status) for row in page.rows()] == [("bob", "ok")] * 2
        assert page.rows(scope="ann") == []


def test_tool_faults_are_told_to_the_model_and_the_limit_to_the_caller(kind: str, tmp_path: Path, opened: list[Page]) -> None:
    def broken(city: str) -> str:
        raise RuntimeError(f"no sensor in {city}")

    with providers(("a", "openai-chat")) as made:
        page = Page(kind, made, tmp_path)
        opened.append(page)
        for dispatch, said in (
            ({"get_weather": broken}, "Tool get_weather failed: no sensor in Paris"),
            ({}, "Unknown tool get_weather"),
        ):
            with pytest.raises(ToolLoopLimitError) as caught:
                page.loop(dispatch=dispatch, max_steps=2)
            results = [m["content"] for m in caught.value.messages if m["role"] == "tool"]
            assert said in results[0]
        assert [row.status for row in page.rows()] == ["ok"] * 4


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_stream_fails_over_between_dialects_and_its_row_has_the_usage(
    kind: str, dialect: str, tmp_path: Path, opened: list[Page]
) -> None:
    with providers(("down", "openai-chat"), ("page", dialect), ("well", dialect)) as made:
        made["down"].faults = itertools.repeat(refused(500))
        made["page"].faults = itertools.repeat(garbled)
        page = Page(kind, made, tmp_path)
        opened.append(page)
        if kind == "sync":
            stream = page.broker.stream("hi", wait=20)
            text = "".join(stream)
        else:

            async def read() -> tuple[str, Any]:
                stream = page.broker.stream("hi", wait=20)
                return "".join([piece async for piece in stream]), stream

            text, stream = asyncio.run(read())
        assert text == "It is mild in Paris."
        assert stream.llm_name == "well"
        rows = page.rows()
        assert [(row.llm_name, row.status == "ok") for row in rows] == [("down", False), ("page", False), ("well", True)]
        assert tokens([rows[-1].usage]) == tokens([stream.reply.usage]) == tokens(made["well"].sent)
