"""What a loop promises holds in every dialect, on both faces: forms, images and files, choices by step, pauses, compaction."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
from typing import Any

import pytest

import llmbroker
from llmbroker.loop import Compacted, Paused
from llmbroker.messages import validate
from llmbroker.testing import ScriptedModel, made_reply
from llmbroker.tools import File, Image, ToolContext, tool

DIALECTS = ["openai-chat", "openai-responses", "anthropic", "gemini", "ollama"]
WAYS = ["sync", "async", "sync stream", "async stream"]
every = pytest.mark.parametrize("dialect", DIALECTS)
ways = pytest.mark.parametrize("way", WAYS)


def client(model: ScriptedModel, dialect: str, way: str) -> Any:
    make = llmbroker.AsyncDirectClient if way.startswith("async") else llmbroker.DirectClient
    return make(base_url="http://s.example/v1", model="claude-sonnet-4-5" if dialect == "anthropic" else "m", dialect=dialect,
                io=model.port())  # fmt: skip


def run(model: ScriptedModel, dialect: str, way: str, messages: Any, events: list[Any] | None = None, **how: Any) -> Any:
    """Run a loop in one of the four ways; every step of the script must be used."""
    caller = client(model, dialect, way)
    seen = [] if events is None else events

    async def read() -> Any:
        face = llmbroker.astream_tool_loop(caller, messages, **how)
        seen.extend([event async for event in face])
        return face.reply

    if way == "sync":
        reply = llmbroker.run_tool_loop(caller, messages, **how)
    elif way == "async":
        reply = asyncio.run(llmbroker.arun_tool_loop(caller, messages, **how))
    elif way == "sync stream":
        face = llmbroker.stream_tool_loop(caller, messages, **how)
        seen.extend(face)
        reply = face.reply
    else:
        reply = asyncio.run(read())
    model.check()
    return reply


@dataclasses.dataclass
class Weather:
    city: str
    degrees: int


def look(city: str) -> str:
    """Look out of the window."""
    return f"20 in {city}"


LOOK = made_reply("", [("look", {"city": "Paris"})])


@every
@ways
def test_the_answer_comes_in_a_form_after_tools_ran(dialect: str, way: str) -> None:
    model = ScriptedModel(LOOK, made_reply('{"city": "Paris", "degrees": 20}'))
    reply = run(model, dialect, way, "How warm?", tools=[look], output=Weather)
    assert reply.parsed == Weather("Paris", 20)
    assert validate(reply.messages) == []


@every
@ways
def test_an_answer_in_prose_is_asked_for_the_form_in_the_dialect_s_own_way(dialect: str, way: str) -> None:
    model = ScriptedModel(LOOK, made_reply("It is warm."), made_reply('{"city": "Paris", "degrees": 20}'))
    reply = run(model, dialect, way, "How warm?", tools=[look], output=Weather)
    assert reply.parsed == Weather("Paris", 20)
    last = model.asked[-1]
    assert last.tools == [] or last.body["tool_choice"] == {"type": "none"}
    assert "degrees" in json.dumps(last.body), "the form stands in the request"


SHOWN = {
    "openai-chat": (True, True),
    "openai-responses": (True, True),
    "anthropic": (True, True),
    "gemini": (True, True),
    "ollama": (True, False),
}
"""Whether images and files of a result reach the model."""


@every
@ways
def test_images_and_files_of_a_result_go_out_where_the_dialect_takes_them(dialect: str, way: str) -> None:
    def camera() -> Any:
        return ["a view", Image(b"an image", "image/png")]

    def archive() -> Any:
        return ["a page", File(b"a file", "application/pdf", "page.pdf")]

    model = ScriptedModel(made_reply("", [("camera", {}), ("archive", {})]), made_reply("Seen."))
    image, file = SHOWN[dialect]
    reply = run(model, dialect, way, "Look.", tools=[camera, archive])
    sent = json.dumps(model.asked[1].body)
    assert "a view" in sent
    assert "a page" in sent
    assert (base64.b64encode(b"an image").decode() in sent) is image
    assert (base64.b64encode(b"a file").decode() in sent) is file
    assert ("not shown" in sent) is not file
    assert validate(reply.messages) == []


CHOICES = {
    "openai-chat": lambda body: body.get("tool_choice"),
    "openai-responses": lambda body: body.get("tool_choice"),
    "anthropic": lambda body: (body.get("tool_choice") or {}).get("type"),
    "gemini": lambda body: ((body.get("toolConfig") or {}).get("functionCallingConfig") or {}).get("mode"),
}
FORCED = {"openai-chat": "required", "openai-responses": "required", "anthropic": "any", "gemini": "ANY"}


@every
@ways
def test_each_step_has_its_own_tools_and_choice(dialect: str, way: str) -> None:
    def other() -> str:
        return "other"

    def prepare(info: Any) -> Any:
        return {"tools": ["look"], "tool_choice": "required"} if info.step == 1 else {"tools": ["other"]}

    turns = [LOOK, made_reply("", [("look", {"city": "Rome"}), ("other", {})]), made_reply("Done.")]
    model = ScriptedModel(*turns)
    reply = run(model, dialect, way, "Go.", tools=[look, other], prepare_step=prepare)
    assert [asked.tools for asked in model.asked] == [["look"], ["other"], ["other"]]
    if dialect in CHOICES:
        assert CHOICES[dialect](model.asked[0].body) == FORCED[dialect]
        assert CHOICES[dialect](model.asked[1].body) != FORCED[dialect]
    texts = [row.result for row in reply.tool_history]
    assert texts[0] == "20 in Paris"
    assert texts[1].startswith("Unknown tool look")
    assert texts[2] == "other"


@every
@ways
def test_a_pause_goes_through_json_and_goes_on_in_a_new_client(dialect: str, way: str) -> None:
    ran: list[int] = []

    @tool(approval=True)
    def pay(amount: int) -> str:
        ran.append(amount)
        return f"paid {amount}"

    @tool(external=True)
    def ask_the_boss(question: str) -> str:
        raise AssertionError("it runs elsewhere")

    calls = [("pay", {"amount": 5}), ("ask_the_boss", {"question": "May I?"}), ("look", {"city": "Oslo"})]
    tools = [pay, ask_the_boss, look]
    paused = run(ScriptedModel(made_reply("", calls)), dialect, way, "Pay.", tools=tools)
    assert isinstance(paused, Paused)
    paused = Paused.from_json(paused.to_json())
    assert [(call.name, call.kind) for call in paused.pending] == [("pay", "approval"), ("ask_the_boss", "external")]
    answers = [paused.pending[0].approve(), paused.pending[1].result({"answer": "yes"})]
    model = ScriptedModel(made_reply("Paid."))
    reply = run(model, dialect, way, paused, tools=tools, answers=answers)
    assert ran == [5]
    assert model.asked[0].results == ["paid 5", '{"answer":"yes"}', "20 in Oslo"]
    assert reply.text == "Paid."


@every
@ways
def test_a_conversation_that_grows_is_cut_between_turns(dialect: str, way: str) -> None:
    def long(n: int) -> str:
        return f"{n} " + "x" * 3000

    turns = [made_reply("", [("long", {"n": n}), ("long", {"n": n + 100})]) for n in range(6)]
    model, events = ScriptedModel(*turns, made_reply("Done.")), []
    reply = run(model, dialect, way, "Go.", events, tools=[long], compaction=llmbroker.Compaction(characters=9000, keep=1))
    assert reply.text == "Done."
    assert validate(reply.messages) == []
    for asked in model.asked[1:]:
        assert len(json.dumps(asked.body)) < 25_000
        assert len(asked.results) % 2 == 0, "no call has lost its result"
    assert ("stream" not in way) or any(isinstance(event, Compacted) for event in events)


@every
@ways
def test_a_loop_within_a_tool_spends_the_budget_around_it(dialect: str, way: str) -> None:
    inner = ScriptedModel(*[LOOK] * 10)

    def deeper(ctx: ToolContext) -> str:
        reply = llmbroker.run_tool_loop(client(inner, dialect, "sync"), "Deeper.", tools=[look])
        return str(reply.text)

    model = ScriptedModel(made_reply("", [("deeper", {})]))
    with pytest.raises(llmbroker.BudgetError) as caught:
        run(model, dialect, way, "Go.", tools=[deeper], budget=llmbroker.Budget(steps=4))
    assert len(inner.asked) == 3
    assert caught.value.spent.steps == 4
