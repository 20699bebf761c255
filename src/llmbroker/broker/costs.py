"""What a call will probably cost on a lane: prices, and the tokens that calls of its operation took. Made on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from llmbroker import prices
from llmbroker.broker.claims import Price
from llmbroker.exchange import Usage
from llmbroker.journal import Call
from llmbroker.pool import Lane, Need
from llmbroker.preference import Tokens

HOLDS = 900.0
"""Seconds for which a computed cost is used again; some prices depend on the hour."""
REMEMBERED = 4096


class Costs:
    """Expected costs. Not locked: the desk's lock is held by whoever calls.

    Args:
        price: what tokens cost on a lane now.
        clock: the time in seconds.
    """

    def __init__(self, price: Price, clock: Callable[[], float]) -> None:
        self._price = price
        self._clock = clock
        self._tokens = Tokens()
        self._known: dict[tuple[int, int | None, int | None], float | None] = {}
        self._until = 0.0

    def learn(self, name: str, operation: str | None, usage: Usage) -> None:
        """Take the tokens of a call."""
        self._tokens.learn(name, operation, usage)

    def recall(self, rows: Iterable[Call]) -> None:
        """Take the tokens of journal rows, the newest last."""
        for row in rows:
            if row.usage is not None:
                self._tokens.learn(row.llm_name, row.operation, row.usage)

    def dollars(self, lane: Lane, need: Need) -> float | None:
        """Return what such a call will probably cost on a lane, or None; a model that runs on this machine costs nothing."""
        usage = self._tokens.expected(lane.member.name, need.operation, need.size())
        key = (id(lane.member.config), usage.input_tokens, usage.output_tokens)
        now = self._clock()
        if now >= self._until or len(self._known) >= REMEMBERED:
            self._known.clear()
            self._until = now + HOLDS
        if key not in self._known:
            self._known[key] = self._cost(lane, usage)
        return self._known[key]

    def _cost(self, lane: Lane, usage: Usage) -> float | None:
        try:
            dollars, _ = self._price(lane, None, usage)
        except Exception:  # noqa: BLE001 - whatever is wrong with a price, a call does not fail for it
            dollars = None
        if dollars is None and prices.here(lane.deployment.base_url):
            return 0.0
        return dollars
