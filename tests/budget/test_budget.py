"""The ledger against a naive count: whatever is spent in whatever order, no limit is overshot and every ledger above knows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbroker.budget import Budget, Ledger, Spent
from llmbroker.errors import InvalidRequestError
from llmbroker.exchange import Usage

limits = st.none() | st.integers(1, 6)
moves = st.lists(st.tuples(st.sampled_from(["step", "a", "b", "result"]), st.booleans(), st.integers(0, 5)), max_size=40)


@given(limits, limits, limits, limits, moves)
def test_no_count_is_overshot_by_any_order_of_spending(steps: Any, calls: Any, of_a: Any, outer: Any, made: Any) -> None:
    parent = Ledger(Budget(tool_calls=outer), None, 0.0)
    child = Ledger(Budget(steps=steps, tool_calls=calls, calls_of={"a": of_a} if of_a else {}), parent, 0.0)
    count = {"child": 0, "parent": 0, "a": 0, "steps": 0}
    for kind, inside, size in made:
        ledger = child if inside else parent
        if kind == "step":
            if child.exhausted(0.0) is None:
                child.reserve_step()
                count["steps"] += 1
        elif kind == "result":
            child.add_result(size)
        else:
            refused = ledger.reserve_call(kind)
            fits = count["parent"] < (outer or 99) and (
                not inside or (count["child"] < (calls or 99) and (kind != "a" or count["a"] < (of_a or 99)))
            )
            assert (refused is None) == fits
            if refused is None:
                count["parent"] += 1
                count["child"] += inside
                count["a"] += inside and kind == "a"
    assert child.spent.tool_calls == count["child"] <= (calls or 99)
    assert parent.spent.tool_calls == count["parent"] <= (outer or 99)
    assert child.spent.steps == count["steps"] <= (steps or 99)
    assert parent.spent.result_characters == child.spent.result_characters


def test_what_is_not_known_is_counted_as_not_known() -> None:
    ledger = Ledger(Budget(cost=1.0), None, 0.0)
    ledger.add(None, None)
    ledger.add(Usage(3, None), 0.25)
    assert (ledger.spent.tokens, ledger.spent.cost, ledger.spent.unpriced) == (3, 0.25, 1)


@pytest.mark.parametrize(
    ("policy", "spent", "limit"), [("refuse", 0.25, "cost"), ("free", 0.25, None), (0.5, 0.75, None), (0.8, 1.05, "cost")]
)
def test_a_call_of_unknown_price_counts_as_the_budget_says(policy: Any, spent: float, limit: str | None) -> None:
    ledger = Ledger(Budget(cost=1.0, unknown_price=policy), None, 0.0)
    ledger.add(Usage(3, 4), 0.25)
    assert ledger.exhausted(0.0) is None
    ledger.add(Usage(3, 4), None)
    assert ledger.spent.cost == pytest.approx(spent)
    assert ledger.exhausted(0.0) == limit


def test_a_call_of_unknown_price_inside_a_tool_counts_as_the_outer_budget_says() -> None:
    outer = Ledger(Budget(cost=1.0), None, 0.0)
    inner = Ledger(Budget(steps=5, unknown_price="free"), outer, 0.0)
    inner.add(Usage(3, 4), None)
    assert inner.exhausted(0.0) == "cost"
    assert not inner.blind
    assert outer.blind


def test_without_a_limit_of_cost_no_price_need_be_known() -> None:
    ledger = Ledger(Budget(steps=5), None, 0.0)
    ledger.add(Usage(3, 4), None)
    assert ledger.exhausted(0.0) is None


@pytest.mark.parametrize("wrong", ["never", -1.0, True, float("nan"), float("inf"), None])
def test_a_policy_for_unknown_prices_that_means_nothing_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidRequestError, match="unknown_price is refuse, free"):
        Budget(cost=1.0, unknown_price=wrong)


def test_the_nearest_deadline_counts_and_time_goes_on_after_a_pause() -> None:
    parent = Ledger(Budget(seconds=10), None, 100.0)
    assert Ledger(Budget(seconds=50), parent, 105.0).deadline == 110.0
    assert Ledger(None, parent, 105.0).deadline == 110.0
    assert Ledger(Budget(seconds=10), None, 100.0, Spent(seconds=4)).deadline == 106.0
    assert Ledger(Budget(seconds=10), None, 100.0, Spent(seconds=4)).exhausted(106.0) == "seconds"


def test_the_smallest_concurrency_counts() -> None:
    parent = Ledger(Budget(concurrency=2), None, 0.0)
    assert Ledger(Budget(concurrency=3), parent, 0.0).concurrency(8) == 2
    assert Ledger(None, None, 0.0).concurrency(8) == 8


@pytest.mark.parametrize("given", [3, {"search": -1}, {"search": "3"}, {"search": True}, ["search"]])
def test_limits_of_single_tools_that_mean_nothing_are_refused(given: Any) -> None:
    with pytest.raises(InvalidRequestError, match="calls_of maps names of tools"):
        Budget(calls_of=given)


@pytest.mark.parametrize("silent", [True, False], ids=["no tokens", "no price"])
def test_what_is_missing_for_the_cost_of_a_call_is_said(silent: bool) -> None:
    from tests.broker.worlds import Answer, World, member, ok

    import llmbroker

    def look() -> str:
        """Look."""
        return "seen"

    asks = ok("", tool_calls=[{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}])
    body = {name: value for name, value in asks.body.items() if not (silent and name == "usage")}
    world = World(a=[Answer(body=body), ok("done")])
    pool = [member("a", price={"input": 1.0, "output": 1.0} if silent else None)]
    words = "An answer of a does not say how many tokens" if silent else "Nobody knows what a call of a costs"
    with llmbroker.Broker(pool=pool, journal=False, io=world.port) as broker:
        with pytest.raises(llmbroker.BudgetError, match=words) as caught:
            llmbroker.run_tool_loop(broker, "Hi", tools=[look], budget=Budget(cost=5.0))
    assert ("Declare its price" in (caught.value.hint or "")) is not silent
