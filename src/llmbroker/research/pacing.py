"""How fast a provider is asked: requests and tokens a minute, and how many at once, learnt from its refusals.

A ``Lane`` is one provider at one address with one key. ``enter`` waits until a request may leave, ``leave`` says what came of
it. The number at once begins small, grows with every answer, quickly at first, and falls by a third when the provider refuses
for having too much or keeps a request waiting for too long; what it asks to wait holds the whole lane back. No lock is held
across an await; time is the port's.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from llmbroker.errors import InvalidRequestError, LLMBrokerError, LLMTimeoutError, RateLimitError, ServerError
from llmbroker.io import Port, Signal

FIRST = 32
MOST = 256
FEW = 4
"""Requests at once for a model in this process, which works on one after the other anyway."""
OVERLOADED = frozenset({503, 529})
LONGEST_PAUSE = 120.0
WORDS = frozenset({"requests", "tokens", "concurrency"})


class Lane:
    """The pace of one provider.

    Args:
        most: requests at once at most.
        requests: a minute, or None. tokens: a minute, or None.
    """

    def __init__(self, most: int = MOST, requests: float | None = None, tokens: float | None = None) -> None:
        self.most = most
        self.limit = float(min(FIRST, most))
        self.running = 0
        self.gap = 60.0 / requests if requests else 0.0
        self.token_gap = 60.0 / tokens if tokens else 0.0
        self._slow_start = True
        self._next = 0.0
        self._next_tokens = 0.0
        self._held_until = 0.0
        self._cut_at = -1.0
        self._waiting: deque[Signal] = deque()
        self._lock = threading.Lock()

    async def enter(self, port: Port, tokens: float) -> float:
        """Wait until one more request may leave, and count it; return when it left."""
        while (signal := self._slot(port)) is not None:
            await signal.wait()
        try:
            while (left := self._leaving(port.now(), tokens)) > 0:
                await port.sleep(left)
        except BaseException:
            self.give_back()
            raise
        return port.now()

    def _slot(self, port: Port) -> Signal | None:
        """Take a slot, or return what to wait for."""
        with self._lock:
            if self.running < int(self.limit):
                self.running += 1
                return None
            signal = port.signal()
            self._waiting.append(signal)
            return signal

    def _leaving(self, now: float, tokens: float) -> float:
        """Return how long a request has to wait for its turn; 0: it leaves now and takes its share of the minute."""
        with self._lock:
            wait = self._wait(now)
            if wait <= 0:
                self._next = max(now, self._next) + self.gap
                self._next_tokens = max(now - 1.0, self._next_tokens) + tokens * self.token_gap
            return wait

    def _wait(self, now: float) -> float:
        until = self._held_until
        if self.gap:
            until = max(until, self._next)
        if self.token_gap:
            until = max(until, self._next_tokens)
        return until - now

    def leave(self, now: float, left_at: float, error: BaseException | None, more_tokens: float = 0.0) -> None:
        """Take note of what came: ``left_at`` is what ``enter`` returned, ``more_tokens`` what it took beyond the estimate."""
        with self._lock:
            self._next_tokens += more_tokens * self.token_gap
            if error is None:
                if self.limit < self.most:
                    self.limit = min(self.most, self.limit + (1.0 if self._slow_start else 1.0 / self.limit))
            elif _too_much(error):
                self._slow_start = False
                if left_at > self._cut_at:  # requests that were on their way then say nothing new
                    self.limit = max(1.0, min(self.limit, self.running) * 0.67)
                    self._cut_at = now
                asked = error.retry_after if isinstance(error, LLMBrokerError) else None
                if asked:
                    self._held_until = max(self._held_until, now + min(asked, LONGEST_PAUSE))
            self._free()

    def give_back(self) -> None:
        """The request does not leave after all."""
        with self._lock:
            self._free()

    def _free(self) -> None:
        self.running -= 1
        for _ in range(min(len(self._waiting), max(0, int(self.limit) - self.running))):
            self._waiting.popleft().set()


def _too_much(error: BaseException) -> bool:
    if isinstance(error, (RateLimitError, LLMTimeoutError)):
        return True
    return isinstance(error, ServerError) and error.status in OVERLOADED


def checked_limits(limits: Any) -> dict[str, dict[str, float]]:
    """Return limits by provider id; those for all stand under "".

    Raises:
        InvalidRequestError: it is no mapping of ``requests``, ``tokens``, ``concurrency`` to positive numbers.
    """
    if limits is None:
        return {}
    if not isinstance(limits, Mapping):
        raise InvalidRequestError("limits is a mapping, such as {'openai': {'requests': 500}}.", argument="limits")
    by_provider = limits if all(isinstance(value, Mapping) for value in limits.values()) else {"": limits}
    out: dict[str, dict[str, float]] = {}
    for provider, facts in by_provider.items():
        for word, value in facts.items():
            if word not in WORDS:
                raise InvalidRequestError(
                    f"limits knows requests and tokens (a minute) and concurrency, not {word!r}.", argument="limits"
                )
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
                raise InvalidRequestError(f"{word} is a number above 0, not {value!r}.", argument="limits")
        out[str(provider).casefold()] = dict(facts)
    return out


class Lanes:
    """The lanes of one run."""

    def __init__(self, limits: Any, most: int) -> None:
        self._limits = checked_limits(limits)
        self._most = most
        self._lanes: dict[Any, Lane] = {}

    def of(self, key: Any, provider: str, *, here: bool = False) -> Lane:
        """Return the lane of this key (provider, address, API key); ``here``: the model is in this process."""
        lane = self._lanes.get(key)
        if lane is None:
            facts = {**self._limits.get("", {}), **self._limits.get(provider, {})}
            usual = min(self._most, FEW) if here else self._most
            most = int(min(self._most, facts.get("concurrency", usual)))
            lane = self._lanes[key] = Lane(max(1, most), facts.get("requests"), facts.get("tokens"))
        return lane

    @property
    def running(self) -> int:
        """Requests on their way."""
        return sum(lane.running for lane in self._lanes.values())
