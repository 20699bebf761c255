"""Every test of the loop runs on both faces."""

from __future__ import annotations

import pytest
from tests.loop.scripted import Face


@pytest.fixture(params=["blocking", "asyncio"])
def loop(request: pytest.FixtureRequest) -> Face:
    return Face(request.param)
