"""What a loop may spend: one value with every limit, and the ledger that holds what was spent of it.

A ``Budget`` is a plain value; each loop that is given one opens a ``Ledger``. A loop inside a tool of another loop spends
from both ledgers, its own and that of the loop around it, so that nothing is won by nesting. Limits are looked at before
something is spent: a call that would go beyond a count is not made. Tokens and cost are known only afterwards: the call that
crosses such a limit is the last one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Literal

import msgspec

from llmbroker.errors import InvalidRequestError

AtLimit = Literal["raise", "stop", "answer"]
COUNTS = ("steps", "tool_calls", "tokens", "input_tokens", "output_tokens", "result_characters", "concurrency")


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What may be spent. None: no limit.

    Attributes:
        steps: model calls. tool_calls: executed tool calls. calls_of: executed calls of single tools, by name.
        tokens, input_tokens, output_tokens: of all model calls together; calls that report none count as none.
        cost: US dollars, by the declared price or the price list.
        unknown_price: what a model call counts towards ``cost`` where nobody knows its price: ``"refuse"`` to go on after one,
            ``"free"``, or dollars for a call.
        seconds: wall time of the loop; it also ends a model call or a tool that is under way.
        result_characters: characters of all tool results together; what goes beyond is cut out of the result.
        concurrency: tool calls that run at the same time.
        at_limit: ``raise`` a ``BudgetError``; ``stop`` and return the last reply as it is; or ask for one last ``answer``
            without tools, which is one more model call.
    """

    steps: int | None = None
    tool_calls: int | None = None
    calls_of: Mapping[str, int] = {}
    tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None
    unknown_price: str | float = "refuse"
    seconds: float | None = None
    result_characters: int | None = None
    concurrency: int | None = None
    at_limit: AtLimit = "raise"

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        for name in COUNTS:
            value = getattr(self, name)
            least = 0 if name == "tool_calls" else 1
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise InvalidRequestError(f"{name} is a whole number of at least {least}, not {value!r}.", argument=name)
        for name in ("cost", "seconds"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, (int, float)) or not 0 < value < math.inf):
                raise InvalidRequestError(f"{name} is a number above 0, not {value!r}.", argument=name)
        price = self.unknown_price
        if price not in ("refuse", "free") and (
            isinstance(price, (str, bool)) or not isinstance(price, (int, float)) or not 0 <= price < math.inf
        ):
            raise InvalidRequestError(
                f"unknown_price is refuse, free, or dollars for a call, not {price!r}.", argument="unknown_price"
            )
        calls_of = self.calls_of
        if not isinstance(calls_of, Mapping) or not all(
            isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in calls_of.values()
        ):
            raise InvalidRequestError(
                f"calls_of maps names of tools to whole numbers of at least 0, it is not {calls_of!r}.", argument="calls_of"
            )
        if self.at_limit not in ("raise", "stop", "answer"):
            raise InvalidRequestError(f"at_limit is raise, stop or answer, not {self.at_limit!r}.", argument="at_limit")


class Spent(msgspec.Struct):
    """What was spent so far; the names are those of ``Budget``. ``unpriced``: model calls without a known price."""

    steps: int = 0
    tool_calls: int = 0
    calls_of: dict[str, int] = {}
    tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0
    result_characters: int = 0
    unpriced: int = 0


class Ledger:
    """What one loop has spent, and the ledger of the loop around it.

    Args:
        budget: the limits, or None: only those of the loop around it count.
        parent: the ledger of the loop around it, or None.
        now: the moment at which it begins, on the port's scale.
        spent: what was spent before, where a loop goes on.
    """

    __slots__ = ("began", "budget", "parent", "spent")

    def __init__(self, budget: Budget | None, parent: Ledger | None, now: float, spent: Spent | None = None) -> None:
        self.budget = budget or Budget()
        self.parent = parent
        self.spent = spent or Spent()
        self.began = now - self.spent.seconds

    @property
    def deadline(self) -> float | None:
        """The moment at which the time is used up, its own or that of a loop around it; on the port's scale."""
        own = None if self.budget.seconds is None else self.began + self.budget.seconds
        outer = self.parent.deadline if self.parent is not None else None
        return own if outer is None else outer if own is None else min(own, outer)

    def exhausted(self, now: float) -> str | None:
        """Return the name of a limit that forbids another model call, or None."""
        budget, spent = self.budget, self.spent
        for name in ("steps", "tokens", "input_tokens", "output_tokens", "cost"):
            limit = getattr(budget, name)
            if limit is not None and getattr(spent, name) >= limit:
                return name
        if self.blind:
            return "cost"
        if budget.seconds is not None and now - self.began >= budget.seconds:
            return "seconds"
        return self.parent.exhausted(now) if self.parent is not None else None

    @property
    def blind(self) -> bool:
        """Whether a call was made whose price nobody knows, of a budget that refuses to go on then."""
        return self.budget.cost is not None and self.budget.unknown_price == "refuse" and self.spent.unpriced > 0

    def reserve_step(self) -> None:
        """Count a model call that is about to be made."""
        self.spent.steps += 1
        if self.parent is not None:
            self.parent.reserve_step()

    def may_call(self, name: str) -> str | None:
        """Return the limit that forbids a call of this tool, or None."""
        budget, spent = self.budget, self.spent
        if budget.tool_calls is not None and spent.tool_calls >= budget.tool_calls:
            return "tool_calls"
        if spent.calls_of.get(name, 0) >= budget.calls_of.get(name, math.inf):
            return f"calls_of[{name!r}]"
        return self.parent.may_call(name) if self.parent is not None else None

    def reserve_call(self, name: str) -> str | None:
        """Count a tool call that is about to run and return None, or return the limit that forbids it."""
        limit = self.may_call(name)
        ledger: Ledger | None = None if limit is not None else self
        while ledger is not None:
            ledger.spent.tool_calls += 1
            ledger.spent.calls_of[name] = ledger.spent.calls_of.get(name, 0) + 1
            ledger = ledger.parent
        return limit

    def add(self, usage: Any, cost: float | None) -> None:
        """Count the tokens and dollars of a model call."""
        spent = self.spent
        sent = getattr(usage, "input_tokens", None) or 0
        made = getattr(usage, "output_tokens", None) or 0
        spent.input_tokens += sent
        spent.output_tokens += made
        spent.tokens += sent + made
        unknown = self.budget.unknown_price
        spent.cost += cost if cost is not None else 0.0 if isinstance(unknown, str) else unknown
        spent.unpriced += cost is None
        if self.parent is not None:
            self.parent.add(usage, cost)

    def room_for_result(self) -> int | None:
        """Return how many characters of results are left, or None if there is no limit."""
        limit = self.budget.result_characters
        own = None if limit is None else max(0, limit - self.spent.result_characters)
        outer = self.parent.room_for_result() if self.parent is not None else None
        return own if outer is None else outer if own is None else min(own, outer)

    def add_result(self, size: int) -> None:
        """Count the characters of a result."""
        self.spent.result_characters += size
        if self.parent is not None:
            self.parent.add_result(size)

    def concurrency(self, wanted: int) -> int:
        """Return how many tool calls may run at the same time."""
        own = min(wanted, self.budget.concurrency or wanted)
        return self.parent.concurrency(own) if self.parent is not None else own

    def snapshot(self, now: float) -> Spent:
        """Return a copy of what was spent until now."""
        return msgspec.structs.replace(self.spent, seconds=now - self.began, calls_of=dict(self.spent.calls_of))


LEDGER: ContextVar[Ledger | None] = ContextVar("llmbroker_ledger", default=None)
"""The ledger of the loop whose tool runs now: a loop within the tool spends from it, too."""
