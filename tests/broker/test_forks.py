"""Limits in the child of a fork: what the parent's calls hold is the parent's."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.broker.served import models

from llmbroker import Broker, Limit, LLMBrokerError, LLMConfig


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("journal", [":memory:", False, "file"])
def test_the_child_of_a_fork_does_not_wait_for_what_its_parent_holds_in_memory(journal: Any, tmp_path: Path) -> None:
    with models() as served:
        begun, go_on = threading.Event(), threading.Event()

        def slow() -> tuple[int, dict[str, str]]:
            begun.set()
            go_on.wait(20)
            return 200, {}

        served.answers["a"] = slow
        where = str(tmp_path / "broker.db") if journal == "file" else journal
        broker = Broker(
            pool=[LLMConfig(name="a", model="a", base_url=served.url, api_key_ref="")],
            journal=where,
            limits=[Limit(calls=1, window="month")],
        )
        caller = threading.Thread(target=lambda: broker.ask("hi", wait=20))
        caller.start()
        assert begun.wait(20)
        child = os.fork()
        if not child:
            held = -1.0
            with contextlib.suppress(BaseException):
                with contextlib.suppress(LLMBrokerError):
                    broker.ask("hi", wait=0.5)
                held = broker.snapshot().limits[0].reserved["calls"]
            os._exit(int(held) if journal != "file" else int(held) - 1)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        go_on.set()
        caller.join()
        assert ended == 0
        broker.close()
