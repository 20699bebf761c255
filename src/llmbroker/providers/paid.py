"""What a call cost on a deployment: the one place that knows under which names the price list is asked."""

from __future__ import annotations

from datetime import datetime

from llmbroker import prices
from llmbroker.exchange import Usage
from llmbroker.providers.base import Deployment


def paid(deployment: Deployment, answered: str | None, usage: Usage | None, at: datetime) -> float | None:
    """Return the US dollars of a call, or None where its tokens or their price are not known.

    Args:
        deployment: who was asked; the price that the user declared for it wins over the list.
        answered: the model as the answer names it, for names of the user's that the list does not know.
        usage: its tokens.
        at: when it began.
    """
    # A server known by its address alone has no entry in the list under the id of its dialect.
    provider = deployment.provider.id if deployment.named else None
    for model in dict.fromkeys((deployment.model, answered or deployment.model)):
        dollars = prices.cost(
            usage, at=at, model=model, provider=provider, base_url=deployment.base_url, price=deployment.price
        )
        if dollars is not None:
            return dollars
    return None
