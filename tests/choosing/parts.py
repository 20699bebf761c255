"""Members, lanes and needs for tests of the pure rooms."""

from __future__ import annotations

from typing import Any

from llmbroker.catalog import LLMConfig
from llmbroker.credentials import Secret
from llmbroker.exchange import make_request
from llmbroker.pool import Key, Lane, Member, Need
from llmbroker.providers.table import deployment_for
from llmbroker.router import Entry


def half() -> float:
    """Dice that always show the middle."""
    return 0.5


def lane(name: str, key: Key | None = None, *, lacks: frozenset[str] = frozenset(), **fields: Any) -> Lane:
    """Make a member with one lane."""
    config = LLMConfig(name=name, model=name, base_url="http://x.test/v1", api_key_ref="K", **fields)
    return Lane(Member(config, 0, lacks, None), key or Key(f"key of {name}"), deployment_for(config, Secret("some-secret")))


def entries(*lanes: Lane) -> list[Entry]:
    """Return a pool of these lanes."""
    for index, one in enumerate(lanes):
        one.member.index = index
    return [(one.member, (one,)) for one in lanes]


def need(messages: Any = "hi", *, operation: str | None = None, stream: bool = False, **request: Any) -> Need:
    """Return what a request needs."""
    return Need(make_request(messages, stream=stream, **request), operation)
