"""What a run may cost: every request reserves the most that it may cost before it leaves, and pays what it did cost.

The most that a request may cost rests on two bounds: the tokens of its input (a token a character, until twenty answers have
shown how many it really is) and of its output (``max_tokens``; without one 4,096, then twice the longest answer seen). An
attempt that may have cost something although no answer came keeps its reservation: it is money that may be gone.
"""

from __future__ import annotations

import threading
from typing import Any

from llmbroker.errors import InvalidRequestError, LLMBrokerError, LLMTimeoutError, StreamInterruptedError
from llmbroker.exchange import Usage
from llmbroker.io import Port, Signal
from llmbroker.journal import utc

ENOUGH = 20
UNKNOWN_OUTPUT = 4096
OVERHEAD = 64
LIMIT_WORDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


class BudgetEnd(Exception):
    """The budget does not suffice for one more request."""


def checked_max_cost(max_cost: Any) -> float | None:
    """Return the budget in US dollars.

    Raises:
        InvalidRequestError: it is no number above 0.
    """
    if max_cost is None:
        return None
    if isinstance(max_cost, bool) or not isinstance(max_cost, (int, float)) or not 0 < max_cost < float("inf"):
        raise InvalidRequestError(f"max_cost is US dollars above 0, not {max_cost!r}.", argument="max_cost")
    return float(max_cost)


class Purse:
    """The money of one run.

    Attributes:
        max_cost: US dollars, or None for no limit. spent: known costs so far, those of earlier runs included.
        unknown: reservations of attempts of which nobody knows whether they cost something.
        reserved: of requests on their way. ended: it did not suffice once.
    """

    def __init__(self, max_cost: float | None, spent: float = 0.0) -> None:
        self.max_cost = max_cost
        self.spent = spent
        self.unknown = 0.0
        self.reserved = 0.0
        self.ended = False
        self._ratio = 1.0
        self._longest = 0
        self._seen = 0
        self._seen_ratio = 0.0
        self._leaving = 0
        self._lock = threading.Lock()
        self._waiting: list[Signal] = []

    def bound(self, config: Any, characters: int, now: float) -> float:
        """Return the most that a request of so many characters may cost."""
        rates = config.rates(utc(now))
        if rates is None:
            return 0.0
        limit = next((config.params[word] for word in LIMIT_WORDS if word in config.params), None)
        if limit is None:
            limit = UNKNOWN_OUTPUT if self._seen < ENOUGH else max(256, 2 * self._longest)
        ratio = 1.0 if self._seen < ENOUGH else self._seen_ratio * 1.25
        return float(rates.cost(Usage(int(characters * ratio) + OVERHEAD, int(limit))) or 0.0)

    async def reserve(self, port: Port, config: Any, characters: int) -> float:
        """Set the most that a request may cost aside; waits for others to pay where that may help.

        Raises:
            BudgetEnd: it does not suffice.
        """
        if self.max_cost is None:
            return 0.0
        while True:
            taken = self._take(port, self.max_cost, self.bound(config, characters, port.time()))
            if isinstance(taken, float):
                return taken
            await taken.wait()

    def _take(self, port: Port, most: float, amount: float) -> float | Signal:
        """Return the reserved amount, or what to wait for; raises BudgetEnd."""
        with self._lock:
            if not self.ended and self.spent + self.unknown + self.reserved + amount <= most:
                self.reserved += amount
                self._leaving += 1
                return amount
            if self.ended or not self._leaving:
                self.ended = True
                self._wake()
                raise BudgetEnd
            signal = port.signal()
            self._waiting.append(signal)
            return signal

    def pay(self, reserved: float, cost: float | None, error: BaseException | None, usage: Any, characters: int) -> None:
        """Take what a request did cost; give the reservation back."""
        with self._lock:
            self._pay(reserved, cost, error, usage, characters)

    def _pay(self, reserved: float, cost: float | None, error: BaseException | None, usage: Any, characters: int) -> None:
        if self.max_cost is not None:
            self._leaving -= 1
        self.reserved = max(0.0, self.reserved - reserved)
        if cost is not None:
            self.spent += cost
        elif error is None or _may_have_cost(error):
            self.unknown += reserved
        if usage is not None and usage.input_tokens is not None and usage.output_tokens is not None:
            self._seen += 1
            self._longest = max(self._longest, usage.output_tokens)
            self._seen_ratio = max(self._seen_ratio, (usage.input_tokens - OVERHEAD) / max(1, characters))
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for signal in waiting:
            signal.set()


def _may_have_cost(error: BaseException) -> bool:
    """Whether the provider may have worked on a request that failed so."""
    if isinstance(error, (LLMTimeoutError, StreamInterruptedError)):
        return getattr(error, "sent", True)
    return not isinstance(error, LLMBrokerError) or (error.status is None and getattr(error, "sent", False))
