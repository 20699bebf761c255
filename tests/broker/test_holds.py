"""What calls under way hold of a limit, in the store and in memory, is not there for others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.broker.worlds import World, ladder, ok

from llmbroker import AsyncBroker, Limit


@pytest.mark.parametrize("kept", ["in a file", "in memory"])
async def test_what_calls_under_way_hold_is_not_there_for_others(kept: str, tmp_path: Path) -> None:
    world = World(a=ok("A", delay=0.5))
    journal: Any = tmp_path / "journal.db" if kept == "in a file" else False
    limit = Limit(tokens=400, window="minute")
    async with AsyncBroker(pool=ladder("a"), io=world.port, journal=journal, limits=[limit]) as broker:
        calls = [broker.ask("hi", wait=0.4, params={"max_tokens": 100}) for _ in range(5)]
        await asyncio.gather(*calls, return_exceptions=True)
        assert len(world.hits) == 3, "each holds some 110 of 400 until it has ended"
