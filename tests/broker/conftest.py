"""Both faces, over the same world."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.broker.worlds import Face, World


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest) -> Iterator[Callable[..., Face]]:
    """Make a broker of either kind; afterwards no slot, waiter or stream may be left."""
    made: list[Face] = []

    def make(world: World, pool: list[Any], **arguments: Any) -> Face:
        one = Face(request.param, world, pool, **arguments)
        made.append(one)
        return one

    yield make
    for one in made:
        assert one.idle(), "a slot, a waiter or a stream was left"
        one.close()
