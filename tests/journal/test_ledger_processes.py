"""Four processes with one limit pass exactly what is permitted; callers that leave at any moment leave nothing held."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.broker.served import models

from llmbroker import AsyncBroker, Limit, LLMConfig
from llmbroker.allowances import NOTHING
from llmbroker.journal import open_store
from llmbroker.journal.ledger import Ledger

from .server import new_database

WORKER = """
import sys, time
from llmbroker import Broker, Limit, LimitReachedError, LLMConfig
from llmbroker.testing import ScriptedModel, made_reply

where, calls, begin, tries = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
port = ScriptedModel(lambda asked: made_reply("fine"), forever=True).port()
model = LLMConfig(name="m", model="m", base_url="http://scripted.example/v1", api_key_ref="")
passed = 0
with Broker(pool=[model], io=port, journal=where, limits=[Limit(calls=calls), Limit(scope="*", tokens=10**9)]) as broker:
    user = broker.for_scope("bob")
    while time.time() < begin:
        pass
    for _ in range(tries):
        try:
            user.chat("hi", wait=0)
        except LimitReachedError:
            continue
        passed += 1
    trouble = broker._engine.core.accounts.trouble
print(passed, trouble)
"""


def race(where: str, calls: int, tries: int, environment: dict[str, str]) -> list[int]:
    """Let four processes call as often as they may; return how often each did."""
    begin = time.time() + 2.0
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, where, str(calls), str(begin), str(tries)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
            text=True,
        )
        for _ in range(4)
    ]
    passed = []
    for process in processes:
        out, err = process.communicate(timeout=100)
        assert process.returncode == 0, err
        count, _, trouble = out.strip().partition(" ")
        assert trouble == ""
        passed.append(int(count))
    return passed


def test_four_processes_of_one_file_pass_exactly_what_is_permitted(tmp_path: Path) -> None:
    where = str(tmp_path / "broker.db")
    passed = race(where, 1000, 400, {"LLMBROKER_HOME": str(tmp_path)})
    assert sum(passed) == 1000
    ledger = Ledger(open_store(where))
    assert [(one.spent, one.held) for one in ledger.accounts(["all: calls for ever"], 0)] == [((1000, 0, 0), NOTHING)]
    ledger.store.close()


def test_four_processes_of_one_server_pass_exactly_what_is_permitted(tmp_path: Path) -> None:
    where = new_database()
    passed = race(where, 200, 100, {"LLMBROKER_HOME": str(tmp_path)})
    assert sum(passed) == 200
    ledger = Ledger(open_store(where))
    assert [(one.spent, one.held) for one in ledger.accounts(["all: calls for ever"], 0)] == [((200, 0, 0), NOTHING)]
    ledger.store.close()


@pytest.mark.parametrize("place", ["memory", "sqlite", "postgres"])
def test_callers_that_leave_at_any_moment_leave_nothing_held_and_every_attempt_counted(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMBROKER_HOME", str(tmp_path))
    where: Any = {"memory": ":memory:", "sqlite": tmp_path / "broker.db"}.get(place) or new_database()
    dice = random.Random(7)

    async def one(broker: Any, at: int) -> None:
        user = broker.for_scope(f"user {at % 3}")
        if at % 3:
            await user.chat("hi", fastest_of=1 + at % 2)
            return
        async for _ in user.stream("hi"):
            pass

    async def storm(pool: list[LLMConfig]) -> None:
        limits = [Limit(calls=10**6), Limit(scope="*", tokens=10**6, window="day")]
        async with AsyncBroker(pool=pool, journal=where, limits=limits) as broker:
            tasks = []
            for at in range(150):
                tasks.append(asyncio.ensure_future(one(broker, at)))
                asyncio.get_running_loop().call_later(dice.random() * 0.3, tasks[-1].cancel)
                await asyncio.sleep(0.002)
            await asyncio.gather(*tasks, return_exceptions=True)
            for _ in range(100):
                states, rows = (await broker.snapshot()).limits, await broker.calls(limit=1000)
                if len(rows) == states[0].used["calls"] and not any(one.reserved[name] for one in states for name in one.most):
                    break
                await asyncio.sleep(0.1)  # what a thread was at work with when its caller left
            assert len(rows) == states[0].used["calls"]
            assert [one.reserved for one in states if any(one.reserved.values())] == []
            assert all(member.running == 0 for member in broker._engine.lanes.members)

    with models() as served:
        asyncio.run(storm([LLMConfig(name=name, model=name, base_url=served.url, api_key_ref="") for name in ("a", "b")]))
