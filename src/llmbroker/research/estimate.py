"""What a run would take, before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from llmbroker.exchange import Usage
from llmbroker.journal import utc
from llmbroker.messages import History
from llmbroker.research.config import ModelConfig
from llmbroker.research.purse import LIMIT_WORDS

if TYPE_CHECKING:
    from llmbroker.research.study import Study

CHARACTERS_A_TOKEN = 4
UNKNOWN_ANSWER = 256
"""Tokens of an answer whose limit is not stated."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a run would take.

    Attributes:
        rows: all rows. answered: those that the run file has already. invalid: those that cannot be asked.
        calls: requests that would be made, one a row (retries and tools come on top).
        input_tokens: about a token for four characters.
        output_tokens: the limit (``max_tokens``) where it is stated, else 256 an answer.
        cost: US dollars at these tokens, or None where a price is not known.
        unpriced: models whose price is not known.
    """

    rows: int
    answered: int
    invalid: int
    calls: int
    input_tokens: int
    output_tokens: int
    cost: float | None
    unpriced: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Say it in a sentence."""
        cost = f"about ${self.cost:.4f}" if self.cost is not None else f"cost unknown (no price for {', '.join(self.unpriced)})"
        return (
            f"{self.calls} calls for {self.rows} rows ({self.answered} answered already, {self.invalid} invalid): about "
            f"{self.input_tokens:,} tokens in, at most about {self.output_tokens:,} out, {cost}."
        )


def estimate(study: Study) -> Estimate:
    """Return what a run would take. Nothing is sent, no key is read."""
    answered = invalid = calls = sent = made = 0
    cost = 0.0
    unpriced: dict[str, None] = {}
    for record in study.records:
        try:
            ask = study.ask_of(record)
            key, _ = study.key_of(ask)
            characters = History(ask.messages).characters
        except Exception:  # noqa: BLE001 - as in the run itself: such a row cannot be asked
            invalid += 1
            continue
        if study._recall(key) is not None:
            answered += 1
            continue
        calls += 1
        tokens = characters // CHARACTERS_A_TOKEN + 8
        params = ask.config.params if isinstance(ask.config, ModelConfig) else {}
        answer = next((int(params[word]) for word in LIMIT_WORDS if word in params), UNKNOWN_ANSWER)
        sent, made = sent + tokens, made + answer
        rates = ask.config.rates(utc(0)) if isinstance(ask.config, ModelConfig) else None
        if rates is None:
            unpriced[getattr(ask.config, "model", type(ask.config).__name__)] = None
        else:
            cost += rates.cost(Usage(tokens, answer)) or 0.0
    return Estimate(
        rows=len(study.records), answered=answered, invalid=invalid, calls=calls, input_tokens=sent, output_tokens=made,
        cost=None if unpriced else cost, unpriced=tuple(unpriced),
    )  # fmt: skip
