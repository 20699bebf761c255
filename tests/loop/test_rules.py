"""Tools made of functions in the loop: results, timeouts, retries, order, context, and the limits and questions around them."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import decimal
import enum
import json
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest
from tests.loop.scripted import Face, calls, results, says

from llmbroker.budget import Budget
from llmbroker.errors import BudgetError, InvalidRequestError, ToolLoopLimitError
from llmbroker.exchange import Usage
from llmbroker.loop import Compaction, Paused, run_tool_loop
from llmbroker.messages import validate
from llmbroker.tools import File, Image, ToolContext, tool


def go(loop: Face, turns: Any, tools: Any, messages: Any = "Hi", **more: Any) -> Any:
    return loop.run(turns, messages, tools=tools, dispatch=None, **more)


# -- calling -----------------------------------------------------------------------------------------------------------------


def test_a_function_is_declared_called_and_answered(loop: Face) -> None:
    def add(a: int, b: int = 1) -> int:
        """Add."""
        return a + b

    reply = go(loop, [calls(("add", '{"a": "2"}')), says()], [add])
    assert results(reply.messages) == ["3"]
    assert loop.caller.tools[0][0]["function"]["name"] == "add"


def test_functions_and_declarations_stand_side_by_side(loop: Face) -> None:
    def add(a: int) -> int:
        return a

    other = {"type": "function", "function": {"name": "other", "parameters": {"type": "object", "properties": {}}}}
    reply = loop.run([calls(("add", '{"a": 2}'), ("other", "{}")), says()], tools=[add, other], dispatch={"other": lambda: "o"})
    assert results(reply.messages) == ["2", "o"]


class Order(pydantic.BaseModel):
    item: str
    count: int

    @pydantic.field_validator("count")
    @classmethod
    def positive(cls, value: int) -> int:
        if value < 1:
            raise ValueError("order at least one")
        return value


def test_values_that_do_not_fit_their_type_go_back_field_by_field(loop: Face) -> None:
    ran: list[Any] = []

    def order(what: Order, when: dt.date) -> str:
        ran.append((what, when))
        return "ok"

    wrong = '{"what": {"item": "tea", "count": 0}, "when": "2026-02-30"}'
    right = '{"what": {"item": "tea", "count": 2}, "when": "2026-02-28"}'
    reply = go(loop, [calls(("order", wrong)), calls(("order", right)), says()], [order])
    first, second = results(reply.messages)
    assert "what.count: Value error, order at least one" in first
    assert "when: " in first
    assert second == "ok"
    assert ran == [(Order(item="tea", count=2), dt.date(2026, 2, 28))]


def test_a_check_of_the_tool_s_own_is_told_to_the_model(loop: Face) -> None:
    @tool(check=lambda a, b: None if a < b else "a: must be less than b.")
    def span(a: int, b: int) -> int:
        return b - a

    reply = go(loop, [calls(("span", '{"a": 2, "b": 1}')), says()], [span])
    assert results(reply.messages) == ["Tool span failed: a: must be less than b."]


def test_the_context_says_where_the_tool_is(loop: Face) -> None:
    seen: list[ToolContext] = []

    def look(n: int, ctx: ToolContext) -> str:
        seen.append(ctx)
        ctx.progress("nobody watches")
        return "ok"

    class Scoped:
        scope = "bob"

    go(loop, [calls(("look", '{"n": 1}', "c1")), says()], [look], trace_id="t1", operation="op")
    (ctx,) = seen
    assert (ctx.call_id, ctx.tool, ctx.step, ctx.trace_id, ctx.operation) == ("c1", "look", 1, "t1", "op")
    assert ctx.messages[0]["content"] == "Hi"
    assert ctx.cancelled  # the loop is over by now
    with pytest.raises(Exception, match="not wanted any more"):
        ctx.check()


CALLABLES = ["def", "async", "method", "partial", "object", "async object", "lambda"]


@pytest.mark.parametrize("kind", CALLABLES)
def test_every_kind_of_callable_is_run_and_awaited(loop: Face, kind: str) -> None:
    import functools

    class Thing:
        def method(self, a: int) -> int:
            return a

        def __call__(self, a: int) -> int:
            return a

    class AsyncThing:
        async def __call__(self, a: int) -> int:
            return a

    async def coroutine(a: int) -> int:
        return a

    def plain(a: int, b: int = 0) -> int:
        return a

    fn = {
        "def": plain, "async": coroutine, "method": Thing().method, "partial": functools.partial(plain, b=1), "object": Thing(),
        "async object": AsyncThing(), "lambda": lambda a: a,
    }[kind]  # fmt: skip
    reply = go(loop, [calls(("t", '{"a": 7}')), says()], [tool(fn, name="t")])
    assert results(reply.messages) == ["7"]


# -- results -----------------------------------------------------------------------------------------------------------------


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int


class Model(pydantic.BaseModel):
    d: dt.date


RESULTS = [
    ("text", "text"),
    (None, "(no output)"),
    ("", "(no output)"),
    (3, "3"),
    (True, "true"),
    (float("nan"), "null"),
    ([1, float("inf")], "[1,null]"),
    ({"a": None}, '{"a":null}'),
    ({1: "one"}, '{"1":"one"}'),
    ({3}, "[3]"),
    ((1, "a"), '[1,"a"]'),
    (Point(1), '{"x":1}'),
    (Color.RED, '"red"'),
    (Model(d=dt.date(2026, 1, 2)), '{"d":"2026-01-02"}'),
    (dt.datetime(2026, 1, 2, tzinfo=dt.UTC), '"2026-01-02T00:00:00Z"'),
    (decimal.Decimal("1.50"), '"1.50"'),
    (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
    (b"ab", '"YWI="'),
    (Path("a/b"), '"a/b"'),
    (range(2), "[0,1]"),
    ("\ud83d", "\ufffd"),
    ({"k": "\ud83d"}, '{"k":"\ufffd"}'),
    (ValueError("no"), '{"error":"ValueError","message":"no"}'),
    ({"deep": [Point(1), {Color.RED: {2}}]}, '{"deep":[{"x":1},{"red":[2]}]}'),
]


@pytest.mark.parametrize(("value", "text"), RESULTS, ids=[str(text)[:30] for _, text in RESULTS])
def test_a_result_of_any_common_type_is_valid_json_in_valid_text(value: Any, text: str) -> None:
    reply = go(Face("blocking"), [calls(("t", "{}")), says()], [tool(lambda: value, name="t")])
    assert results(reply.messages) == [text]


def test_a_table_of_pandas_is_its_rows() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1, 2], "b": ["x", None]})
    reply = go(Face("blocking"), [calls(("t", "{}")), says()], [tool(lambda: frame, name="t")])
    assert json.loads(results(reply.messages)[0]) == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]


def looped() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


@pytest.mark.parametrize(
    ("value", "words"), [(object(), "type object"), (looped(), "nested too deeply"), (iter([1]), "iterator")]
)
def test_a_result_that_nobody_can_send_is_an_error_that_names_its_type(loop: Face, value: Any, words: str) -> None:
    reply = go(loop, [calls(("t", "{}")), says()], [tool(lambda: value, name="t")])
    assert words in results(reply.messages)[0]
    assert reply.tool_history[0].error


def test_images_and_files_reach_the_model_as_parts(loop: Face) -> None:
    def shot() -> Any:
        return ["Here it is:", Image(b"png", "image/png"), File(b"pdf", name="a.pdf")]

    reply = go(loop, [calls(("shot", "{}")), says()], [shot])
    content = next(m for m in reply.messages if m["role"] == "tool")["content"]
    assert [part["type"] for part in content] == ["text", "image_url", "file"]
    assert content[1]["image_url"]["url"] == "data:image/png;base64,cG5n"
    assert reply.tool_history[0].result == "Here it is:\n[image]\n[file]"
    assert validate(reply.messages) == []


def test_a_tool_s_own_limit_of_results_counts(loop: Face) -> None:
    @tool(result_limit=200)
    def long() -> str:
        return "x" * 10_000

    reply = go(loop, [calls(("long", "{}")), says()], [long])
    (text,) = results(reply.messages)
    assert len(text) <= 200
    assert "of 10,000 characters are left out" in text


# -- timeouts, retries, order ------------------------------------------------------------------------------------------------


def test_a_tool_that_takes_too_long_is_given_up_and_the_model_told(loop: Face) -> None:
    release = threading.Event()

    @tool(timeout=0.05)
    def hangs() -> str:
        release.wait(5)
        return "late"

    @tool(timeout=0.05)
    async def ahangs() -> str:
        await asyncio.sleep(5)
        return "late"

    reply = go(loop, [calls(("hangs", "{}"), ("ahangs", "{}")), says()], [hangs, ahangs])
    release.set()
    assert [text.split(";")[0] for text in results(reply.messages)] == [
        "Tool hangs failed: it took longer than 0.05 seconds",
        "Tool ahangs failed: it took longer than 0.05 seconds",
    ]


def test_a_failing_tool_is_tried_again_as_often_as_it_may(loop: Face) -> None:
    tries: list[int] = []

    @tool(retries=2, backoff=0.001, retry_on=ConnectionError)
    def flaky(ctx: ToolContext) -> str:
        tries.append(ctx.attempt)
        if len(tries) < 3:
            raise ConnectionError("down")
        return "up"

    @tool(retries=2, backoff=0.001, retry_on=ConnectionError)
    def wrong() -> str:
        tries.append(0)
        raise ValueError("no")

    reply = go(loop, [calls(("flaky", "{}")), calls(("wrong", "{}")), says()], [flaky, wrong])
    assert results(reply.messages) == ["up", "Tool wrong failed: no"]
    assert tries == [1, 2, 3, 0]


def test_a_sequential_tool_is_a_barrier_and_a_group_is_a_queue(loop: Face) -> None:
    log: list[str] = []
    lock = threading.Lock()

    def made(name: str, **rules: Any) -> Any:
        def run(n: int) -> str:
            with lock:
                log.append(f"+{name}{n}")
            time.sleep(0.02)
            with lock:
                log.append(f"-{name}{n}")
            return f"{name}{n}"

        return tool(run, name=name, **rules)

    given = [("free", 1), ("free", 2), ("alone", 3), ("git", 4), ("git", 5), ("free", 6)]
    turn = calls(*[(name, json.dumps({"n": n}), f"c{n}") for name, n in given])
    reply = go(loop, [turn, says()], [made("free"), made("alone", sequential=True), made("git", group="repository")])
    assert results(reply.messages) == [f"{name}{n}" for name, n in given]
    at = {entry: index for index, entry in enumerate(log)}
    assert max(at["-free1"], at["-free2"]) < at["+alone3"] < at["-alone3"] < min(at["+git4"], at["+free6"])
    assert at["-git4"] < at["+git5"]
    assert at["+free6"] < at["-git5"]


# -- hooks between the steps ---------------------------------------------------------------------------------------------------


def echo(n: int) -> int:
    """Return it."""
    return n


def other(n: int) -> int:
    return n


def test_a_condition_of_the_user_ends_the_loop_after_a_step(loop: Face) -> None:
    turns = [calls(("echo", '{"n": 1}')), calls(("echo", '{"n": 2}')), says()]
    reply = go(loop, turns, [echo], stop_when=lambda info: info.tool_history[-1].result == "2")
    assert reply.tool_loop.stop == "stop_when"
    assert reply.tool_loop.model_calls == 2
    assert validate(reply.messages) == []


def test_each_step_may_have_its_own_tools_choice_and_parameters(loop: Face) -> None:
    def prepare(info: Any) -> Any:
        if info.step == 1:
            return {"tools": ["echo"], "tool_choice": "required", "params": {"temperature": 0}}
        return {"tools": [], "append": [{"role": "user", "content": "Answer now."}]}

    reply = go(loop, [calls(("other", '{"n": 1}')), says()], [echo, other], prepare_step=prepare)
    assert [[t["function"]["name"] for t in tools or []] for tools in loop.caller.tools] == [["echo"], []]
    assert loop.caller.parameters[0]["tool_choice"] == "required"
    assert loop.caller.parameters[0]["params"] == {"temperature": 0}
    assert loop.caller.sent[1][-1] == {"role": "user", "content": "Answer now."}
    assert "Unknown tool other" in results(reply.messages)[0]  # it exists, but not in this step


@pytest.mark.parametrize("said", [{"tools": ["nope"]}, {"colour": 1}])
def test_a_step_that_is_prepared_wrongly_is_refused(loop: Face, said: Any) -> None:
    loop.fail(InvalidRequestError, [says()], "Hi", tools=[echo], dispatch=None, prepare_step=lambda info: said)


@dataclasses.dataclass
class Weather:
    city: str
    degrees: int


def test_the_final_answer_comes_in_a_form(loop: Face) -> None:
    text = '```json\n{"city": "Paris", "degrees": 20}\n```'
    reply = go(loop, [calls(("echo", '{"n": 1}')), says(text)], [echo], output=Weather)
    assert reply.parsed == Weather("Paris", 20)
    assert "response_format" not in loop.caller.parameters[1]


def test_an_answer_without_the_form_is_asked_for_it_without_tools(loop: Face) -> None:
    turns = [says("It is warm."), says('{"city": "Paris"}'), says('{"city": "Paris", "degrees": 20}')]
    reply = go(loop, turns, [echo], output=Weather)
    assert reply.parsed == Weather("Paris", 20)
    assert loop.caller.tools[1] is None
    assert loop.caller.parameters[1]["response_format"]["type"] == "json_schema"
    assert "degrees: missing" in loop.caller.sent[2][-1]["content"]


def test_a_plain_type_is_wrapped_for_providers_and_unwrapped_for_the_user(loop: Face) -> None:
    reply = go(loop, [says("well"), says('{"value": [1, 2]}')], [echo], output=list[int])
    assert reply.parsed == [1, 2]


def test_a_model_that_never_finds_the_form_is_an_error(loop: Face) -> None:
    error = loop.fail(InvalidRequestError, [says("no")] * 4, "Hi", tools=[echo], dispatch=None, output=Weather)
    assert "holds no JSON" in str(error)
    assert len(error.messages) == 8


@pytest.mark.parametrize("said", ['{"city": "Paris", "degrees": 20}', "It is warm."], ids=["in the form", "in words"])
@pytest.mark.parametrize(
    "end", [{"budget": Budget(steps=1, at_limit="answer")}, {"stop_when": lambda info: True}], ids=["at a limit", "stopped"]
)
def test_where_nothing_more_may_be_asked_the_last_words_count_as_far_as_they_have_the_form(
    loop: Face, end: Any, said: str
) -> None:
    asked = msgspec.structs.replace(calls(("echo", '{"n": 1}')), text=said)
    reply = go(loop, [asked, says(said)], [echo], output=Weather, **end)
    assert reply.tool_loop.stop in ("budget", "stop_when")
    assert reply.parsed == (Weather("Paris", 20) if said.startswith("{") else None)


# -- budgets -----------------------------------------------------------------------------------------------------------------

FIVE = calls(*[("echo", json.dumps({"n": n}), f"c{n}") for n in range(5)])


def test_a_budget_of_calls_is_never_overshot(loop: Face) -> None:
    error = loop.fail(BudgetError, [FIVE, says()], "Hi", tools=[echo], dispatch=None, budget=Budget(tool_calls=3))
    assert error.limit == "tool_calls"
    assert error.spent.tool_calls == 3
    assert len(error.tool_history) == 3
    again = go(loop, [says()], [echo], error.messages)
    assert results(again.messages) == ["0", "1", "2", "3", "4"]


def test_single_tools_have_budgets_of_their_own(loop: Face) -> None:
    turn = calls(("echo", '{"n": 1}'), ("other", '{"n": 1}'), ("other", '{"n": 2}'))
    reply = go(loop, [turn, says()], [echo, other], budget=Budget(calls_of={"other": 1}, at_limit="stop"))
    assert results(reply.messages)[:2] == ["1", "1"]
    assert "the budget permits no more of these calls (calls_of['other'])" in results(reply.messages)[2]


@pytest.mark.parametrize(
    ("budget", "limit"),
    [
        ({"steps": 1}, "steps"),
        ({"tokens": 15}, "tokens"),
        ({"input_tokens": 10}, "input_tokens"),
        ({"output_tokens": 5}, "output_tokens"),
    ],
)
def test_a_limit_is_looked_at_before_the_next_model_call(loop: Face, budget: Any, limit: str) -> None:
    error = loop.fail(BudgetError, [FIVE], "Hi", tools=[echo], dispatch=None, budget=Budget(**budget))
    assert error.limit == limit
    assert error.reply.tool_calls
    assert error.tool_history == []
    assert len(loop.caller.sent) == 1


def test_at_the_limit_the_last_reply_can_be_had_as_it_is(loop: Face) -> None:
    turn = calls(("echo", '{"n": 1}'))
    reply = go(loop, [turn, turn], [echo], budget=Budget(steps=2, at_limit="stop"))
    assert reply.tool_loop.stop == "budget"
    assert len(loop.caller.sent) == 2
    assert validate(reply.messages) == []


def test_at_the_limit_one_last_answer_without_tools_can_be_had(loop: Face) -> None:
    turn = calls(("echo", '{"n": 1}'))
    reply = go(loop, [turn, turn, says("The best I know.")], [echo], budget=Budget(steps=2, at_limit="answer"))
    assert reply.text == "The best I know."
    assert loop.caller.parameters[2]["tool_choice"] == "none"
    assert "budget of this run is used up (steps)" in loop.caller.sent[2][-1]["content"]
    assert reply.tool_loop.stop == "budget"


def test_a_model_that_calls_tools_even_then_runs_none(loop: Face) -> None:
    ran: list[int] = []

    def count(n: int) -> int:
        ran.append(n)
        return n

    turn = calls(("count", '{"n": 1}'))
    reply = go(loop, [turn, turn], [count], budget=Budget(steps=1, at_limit="answer"))
    assert ran == [1]
    assert validate(reply.messages) == []


def test_results_together_have_a_budget(loop: Face) -> None:
    def long(n: int) -> str:
        return "x" * 3000

    turn = calls(*[("long", json.dumps({"n": n}), f"c{n}") for n in range(3)])
    reply = go(loop, [turn, says()], [long], budget=Budget(result_characters=4000), max_concurrency=1)
    sizes = [len(text) for text in results(reply.messages)]
    assert sizes[:2] == [3000, 1000]
    assert "left out" in results(reply.messages)[2]


def test_a_loop_within_a_tool_spends_from_the_budget_around_it(loop: Face) -> None:
    class Inner:
        def chat(self, messages: Any, *, tools: Any = None) -> Any:
            return calls(("echo", '{"n": 1}'), usage=Usage(1, 1))

    def nested(n: int) -> str:
        try:
            run_tool_loop(Inner(), "Hi", tools=[echo], max_steps=50)
        except BudgetError as error:
            return error.limit
        return "never"

    error = loop.fail(BudgetError, [calls(("nested", '{"n": 1}'))], "Hi", tools=[nested], dispatch=None, budget=Budget(steps=5))
    assert error.spent.steps == 5
    assert [row.result for row in error.tool_history] == ["steps"]
    assert error.spent.tool_calls == 4  # the outer call and three inner ones: the fourth had no step left for its answer


def test_time_is_a_budget_for_tools_too(loop: Face) -> None:
    release = threading.Event()

    def hangs(n: int) -> str:
        release.wait(5)
        return "late"

    reply = go(loop, [calls(("hangs", '{"n": 1}'))], [hangs], budget=Budget(seconds=0.1, at_limit="stop"))
    release.set()
    assert "it took longer than" in results(reply.messages)[0]
    assert reply.tool_loop.stop == "budget"


def test_cost_is_counted_by_the_price_list() -> None:
    import llmbroker
    from llmbroker.testing import Answer, Replay, made_reply, whole

    port = Replay()
    for _ in range(3):
        made = made_reply("", [("echo", {"n": 1})], usage=Usage(1_000_000, 0, total_tokens=1_000_000))
        port.on(None, Answer(headers={"content-type": "application/json"}, body=whole(made, "openai-chat")))
    pool = [
        llmbroker.LLMConfig(
            name="a", model="m", base_url="http://a.example/v1", api_key_ref="", price={"input": 2.0, "output": 2.0}
        )
    ]
    with llmbroker.Broker(pool=pool, journal=False, io=port) as broker:
        with pytest.raises(BudgetError) as caught:
            llmbroker.run_tool_loop(broker, "Hi", tools=[echo], budget=Budget(cost=5.0))
    assert caught.value.limit == "cost"
    assert caught.value.spent.cost == 6.0


@pytest.mark.parametrize(
    ("price", "cost"), [({"input": 2.0, "output": 2.0}, 4.0), ({"input": 0, "output": 0}, 0.0), (None, None)]
)
@pytest.mark.parametrize("scope", [None, "bob"])
def test_the_sums_of_a_plain_loop_have_what_its_calls_cost(price: Any, cost: float | None, scope: str | None) -> None:
    import llmbroker
    from llmbroker.testing import ScriptedModel, made_reply

    used = Usage(1_000_000, 0, total_tokens=1_000_000)
    model = ScriptedModel(made_reply("", [("echo", {"n": 1})], usage=used), made_reply("done", usage=used))
    pool = [llmbroker.LLMConfig(name="a", model="m", base_url="http://a.example/v1", api_key_ref="", price=price)]
    with llmbroker.Broker(pool=pool, journal=False, io=model.port()) as broker:
        caller = broker if scope is None else broker.for_scope(scope)
        assert llmbroker.run_tool_loop(caller, "Hi", tools=[echo]).tool_loop.cost == cost


def test_a_loop_whose_cost_is_limited_ends_after_a_call_that_nobody_can_price(loop: Face) -> None:
    with pytest.raises(BudgetError, match=r"Nobody knows what a call of .* costs, so the loop's budget of 5 dollars") as caught:
        go(loop, [calls(("echo", '{"n": 1}')), says("done")], [echo], budget=Budget(cost=5.0))
    assert "unknown_price" in (caught.value.hint or "")
    assert caught.value.spent.unpriced == 1
    reply = go(loop, [calls(("echo", '{"n": 1}')), says("done")], [echo], budget=Budget(cost=5.0, unknown_price="free"))
    assert reply.text == "done"
    reply = go(loop, [calls(("echo", '{"n": 1}')), says("done")], [echo], budget=Budget(cost=5.0, at_limit="stop"))
    assert reply.tool_loop.stop == "budget"


@pytest.mark.parametrize(
    "wrong", [{"steps": 0}, {"cost": -1}, {"seconds": float("inf")}, {"at_limit": "explode"}, {"tokens": 1.5}]
)
def test_a_budget_that_means_nothing_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidRequestError):
        Budget(**wrong)


# -- approval and external tools ---------------------------------------------------------------------------------------------


def guarded() -> tuple[list[str], list[Any]]:
    ran: list[str] = []

    @tool(approval=True)
    def delete(path: str) -> str:
        ran.append(path)
        return f"deleted {path}"

    def read(path: str) -> str:
        ran.append(f"read {path}")
        return "text"

    return ran, [delete, read]


MIXED = calls(("delete", '{"path": "a"}', "c1"), ("read", '{"path": "b"}', "c2"), ("delete", '{"path": "c"}', "c3"))


@pytest.mark.parametrize(
    ("said", "result"),
    [(True, "deleted a"), (False, "Tool delete was not run: the call was not approved."),
     ("too dangerous", "Tool delete was not run: the call was not approved: too dangerous")],
)  # fmt: skip
def test_a_callback_decides(loop: Face, said: Any, result: str) -> None:
    ran, tools = guarded()
    reply = go(loop, [calls(("delete", '{"path": "a"}')), says()], tools, approve=lambda call: said)
    assert results(reply.messages) == [result]
    assert ran == (["a"] if said is True else [])


def test_a_run_pauses_with_all_that_waits_and_goes_on_after_a_restart(loop: Face) -> None:
    ran, tools = guarded()
    paused = go(loop, [MIXED], tools)
    assert isinstance(paused, Paused)
    assert [(call.id, call.name, call.arguments) for call in paused.pending] == [
        ("c1", "delete", {"path": "a"}), ("c3", "delete", {"path": "c"})
    ]  # fmt: skip
    assert ran == ["read b"]
    again = Paused.from_json(paused.to_json())
    assert again == paused
    one, two = again.pending
    reply = go(loop, [says()], tools, again, answers=[one.approve(), two.reject("keep it")])
    assert sorted(ran) == ["a", "read b"]
    assert results(reply.messages) == ["deleted a", "text", "Tool delete was not run: the call was not approved: keep it"]
    assert validate(reply.messages) == []
    assert reply.tool_history[0].round == 1


def test_what_is_not_decided_waits_on(loop: Face) -> None:
    ran, tools = guarded()
    paused = go(loop, [MIXED], tools)
    paused = go(loop, [], tools, paused, answers=[paused.pending[0].approve()])
    assert [call.id for call in paused.pending] == ["c3"]
    assert ran == ["read b", "a"]
    reply = go(loop, [says()], tools, paused, answers=paused.approve_all())
    assert ran == ["read b", "a", "c"]
    assert validate(reply.messages) == []


@pytest.mark.parametrize("change", ["id", "name", "arguments"])
def test_a_decision_fits_no_other_call(loop: Face, change: str) -> None:
    ran, tools = guarded()
    paused = go(loop, [calls(("delete", '{"path": "a"}', "c1"))], tools)
    decision = paused.pending[0].approve()
    call = {"id": "c1", "type": "function", "function": {"name": "delete", "arguments": '{"path": "a"}'}}
    if change == "id":
        call["id"] = "c2"
    elif change == "name":
        tools.append(tool(lambda path: ran.append(path), name="erase", approval=True))
        call["function"] = {**call["function"], "name": "erase"}  # type: ignore[dict-item]
    else:
        call["function"] = {**call["function"], "arguments": '{"path": "/"}'}  # type: ignore[dict-item]
    history = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    if change == "id":
        with pytest.raises(InvalidRequestError, match="call 'c1' belongs to another run: in this one these wait: 'c2'"):
            go(loop, [], tools, history, answers=[decision])
    else:
        assert isinstance(go(loop, [], tools, history, answers=[decision]), Paused)
    assert ran == []


def test_an_answer_about_other_arguments_of_a_call_that_waits_is_refused(loop: Face) -> None:
    ran, tools = guarded()
    paused = go(loop, [calls(("delete", '{"path": "a"}', "c1"))], tools)
    other = go(loop, [calls(("delete", '{"path": "/"}', "c1"))], tools)
    with pytest.raises(InvalidRequestError, match=r"call 'c1' is about another tool or other arguments.* these wait: 'c1'"):
        go(loop, [], tools, paused, answers=[other.pending[0].approve()])
    assert ran == []


def test_an_answer_where_nothing_waits_is_refused(loop: Face) -> None:
    _, tools = guarded()
    decision = go(loop, [calls(("delete", '{"path": "a"}', "c1"))], tools).pending[0].approve()
    with pytest.raises(InvalidRequestError, match="these wait: none"):
        go(loop, [], tools, "Hi", answers=[decision])


def test_an_answer_that_belongs_to_another_run_is_refused_and_one_that_was_given_before_is_not(loop: Face) -> None:
    ran, tools = guarded()
    paused = go(loop, [calls(("delete", '{"path": "a"}', "c1"))], tools)
    strange = go(loop, [calls(("delete", '{"path": "a"}', "c9"))], tools).pending[0].approve()
    with pytest.raises(InvalidRequestError, match="the call 'c9' belongs to another run: in this one these wait: 'c1'"):
        go(loop, [], tools, paused, answers=[strange])
    assert ran == []
    first = paused.pending[0].approve()
    again = go(loop, [calls(("delete", '{"path": "b"}', "c2"))], tools, paused, answers=[first])
    reply = go(loop, [says()], tools, again, answers=[first, again.pending[0].approve()])
    assert ran == ["a", "b"]
    assert validate(reply.messages) == []


def test_an_answer_of_the_wrong_kind_is_refused(loop: Face) -> None:
    ran, tools = guarded()
    tools.append(tool(lambda path: ran.append(path), name="elsewhere", external=True))
    paused = go(loop, [calls(("delete", '{"path": "a"}', "c1"), ("elsewhere", '{"path": "b"}', "c2"))], tools)
    one, two = paused.pending
    with pytest.raises(InvalidRequestError, match=r"'c1' of delete is 'result', but it waits for a yes: call.approve\(\)"):
        go(loop, [], tools, paused, answers=[one.result("gone")])
    with pytest.raises(InvalidRequestError, match=r"'c2' of elsewhere is 'approved', but it waits for its result"):
        go(loop, [], tools, paused, answers=[one.approve(), two.approve()])
    assert ran == []


def test_an_answer_to_a_call_whose_tool_was_not_handed_in_again_is_refused_but_a_no_is_not(loop: Face) -> None:
    _, tools = guarded()
    paused = go(loop, [calls(("delete", '{"path": "a"}', "c1"))], tools)
    for missing in ([], None):
        with pytest.raises(InvalidRequestError, match=r"its tool delete is not there\. Hand in the run's tools again"):
            go(loop, [], missing, paused, answers=paused.approve_all())
    assert go(loop, [says("kept")], [], paused, answers=[paused.pending[0].reject()]).text == "kept"


def test_a_yes_in_the_history_is_no_yes(loop: Face) -> None:
    ran, tools = guarded()
    call = {"id": "c1", "type": "function", "approved": True, "function": {"name": "delete", "arguments": '{"path": "a"}'}}
    history = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "approved": True, "tool_calls": [call]},
    ]
    assert isinstance(go(loop, [], tools, history), Paused)
    assert ran == []


def test_resumed_calls_are_checked_again(loop: Face) -> None:
    _, tools = guarded()
    paused = go(loop, [calls(("delete", '{"path": "a"}', "c1"))], tools)

    @tool(approval=True)
    def delete(name: str) -> str:
        raise AssertionError("the schema has changed: this call fits no more")

    reply = go(loop, [says()], [delete], paused, answers=paused.approve_all())
    assert "path: not known" in results(reply.messages)[0]


def test_a_rule_may_say_which_calls_need_a_yes_and_one_that_fails_says_yes(loop: Face) -> None:
    def rule(amount: int) -> bool:
        if amount < 0:
            raise ValueError("cannot say")
        return amount > 100

    @tool(approval=rule)
    def pay(amount: int) -> str:
        return f"paid {amount}"

    turn = calls(*[("pay", json.dumps({"amount": n}), f"c{n}") for n in (5, 500, -1)])
    paused = go(loop, [turn], [pay])
    assert [call.id for call in paused.pending] == ["c500", "c-1"]


def test_a_tool_that_runs_elsewhere_is_answered_by_id(loop: Face) -> None:
    @tool(external=True)
    def ask_human(question: str) -> str:
        raise AssertionError("it runs elsewhere")

    paused = go(loop, [calls(("ask_human", '{"question": "ok?"}', "c1"))], [ask_human])
    (call,) = paused.pending
    assert call.kind == "external"
    reply = go(loop, [says()], [ask_human], paused, answers=[call.result({"answer": "yes"})])
    assert results(reply.messages) == ['{"answer":"yes"}']


def test_a_budget_goes_on_where_it_was(loop: Face) -> None:
    _, tools = guarded()
    paused = go(loop, [calls(("delete", '{"path": "a"}', "c1"))], tools, budget=Budget(steps=2))
    paused = Paused.from_json(paused.to_json())
    assert paused.spent is not None
    assert paused.spent.steps == 1
    turns = [calls(("read", '{"path": "b"}'))]
    with pytest.raises(BudgetError):
        go(loop, turns, tools, paused, answers=paused.approve_all(), budget=Budget(steps=2))


def test_wrong_answers_are_refused(loop: Face) -> None:
    _, tools = guarded()
    for wrong in ({"answers": [True]}, {"approve": 3}, {"approve": lambda call: 7}):
        with pytest.raises(InvalidRequestError):
            go(loop, [calls(("delete", '{"path": "a"}', "c1"))], tools, **wrong)
    with pytest.raises(InvalidRequestError):
        Paused.from_json("{}")


# -- compaction --------------------------------------------------------------------------------------------------------------


def long_history(steps: int) -> list[Any]:
    history: list[Any] = [{"role": "system", "content": "Be good."}, {"role": "user", "content": "Count."}]
    for n in range(steps):
        call = {"id": f"h{n}", "type": "function", "function": {"name": "echo", "arguments": "{}"}}
        history.append({"role": "assistant", "content": None, "tool_calls": [call]})
        history.append({"role": "tool", "tool_call_id": f"h{n}", "content": f"{n}:" + "x" * 2000})
    return history


def test_old_results_are_shortened_before_anything_is_taken_out(loop: Face) -> None:
    reply = go(loop, [says()], [echo], long_history(10), compaction=Compaction(characters=15_000, target=9_000))
    assert len(results(reply.messages)) == 10
    assert all(len(text) <= 400 for text in results(reply.messages)[:8])
    assert all(len(text) > 2000 for text in results(reply.messages)[8:])
    assert validate(reply.messages) == []


def test_whole_turns_are_replaced_by_a_summary_and_no_call_loses_its_result(loop: Face) -> None:
    told: list[int] = []

    def summarise(messages: list[Any]) -> str:
        told.append(len(messages))
        return "It counted."

    reply = go(
        loop, [says()], [echo], long_history(30), compaction=Compaction(characters=10_000, target=7_000, summarise=summarise)
    )
    assert told == [len(long_history(30)) + 2 - len(reply.messages)]
    assert "[Summary of" in reply.messages[2]["content"]
    assert "It counted." in reply.messages[2]["content"]
    assert reply.messages[0]["content"] == "Be good."
    assert reply.messages[1]["content"] == "Count."
    assert validate(reply.messages) == []


def test_a_note_stands_where_nobody_summarises(loop: Face) -> None:
    reply = go(loop, [says()], [echo], long_history(30), compaction=Compaction(characters=10_000, target=7_000))
    assert "are left out" in reply.messages[2]["content"]


def test_a_short_conversation_is_left_alone(loop: Face) -> None:
    history = long_history(3)
    reply = go(loop, [says()], [echo], history, compaction=Compaction(characters=100_000))
    assert reply.messages[:-1] == history


def test_the_limit_of_steps_still_counts(loop: Face) -> None:
    turn = calls(("echo", '{"n": 1}'))
    loop.fail(ToolLoopLimitError, [turn, turn], "Hi", tools=[echo], dispatch=None, max_steps=2, stop_when=lambda info: False)
