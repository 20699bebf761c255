"""The broker: a pool that answers, a journal that never forgets, a key for every user.

``flow`` and ``stream`` are the attempt flows, ``desk`` holds the pool's state, ``accounts`` what is spent of its limits,
``keys`` its lanes, ``sources`` says where all of it comes from; ``sync`` and ``aio`` are the faces.
"""

from __future__ import annotations

from llmbroker.broker.aio import AsyncBroker
from llmbroker.broker.replies import Attempt, PooledReply
from llmbroker.broker.states import LimitState, ModelState, QuotaState, Snapshot
from llmbroker.broker.streams import AsyncPooledStream, PooledStream
from llmbroker.broker.sync import Broker

__all__ = [
    "AsyncBroker",
    "AsyncPooledStream",
    "Attempt",
    "Broker",
    "LimitState",
    "ModelState",
    "PooledReply",
    "PooledStream",
    "QuotaState",
    "Snapshot",
]
