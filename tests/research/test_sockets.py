"""The verbs over real sockets: from many threads, from one event loop after another, after fork; nothing is left open."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.research.provider import Provider

from llmbroker import acall_llm, acall_llm_par, call_llm, call_llm_par, llm_config


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider(faults=False, delay=0.005) as running:
        yield running


def test_one_config_serves_many_threads(provider: Provider) -> None:
    config = llm_config("lab", "m", base_url=provider.url)
    with ThreadPoolExecutor(12) as pool:
        texts = list(pool.map(lambda n: str(call_llm(config, f"q{n}")), range(120)))
    assert texts == [f"Answer to q{n}" for n in range(120)]


def test_one_config_serves_one_event_loop_after_another(provider: Provider) -> None:
    config = llm_config("lab", "m", base_url=provider.url)

    async def main() -> list[Any]:
        return await asyncio.gather(*[acall_llm(config, f"q{n}") for n in range(60)])

    for _ in range(3):
        assert [str(r) for r in asyncio.run(main())] == [f"Answer to q{n}" for n in range(60)]


async def test_rows_may_be_awaited_beside_each_other(provider: Provider) -> None:
    config = llm_config("lab", "m", base_url=provider.url)
    one, two = await asyncio.gather(
        *[acall_llm_par([{"prompt": f"{name}{n}"} for n in range(50)], config, progress=False) for name in "ab"]
    )
    assert [row["response_text"] for row in one] == [f"Answer to a{n}" for n in range(50)]
    assert [row["response_text"] for row in two] == [f"Answer to b{n}" for n in range(50)]


async def test_a_run_that_is_cancelled_keeps_what_is_done_and_frees_its_file(provider: Provider, tmp_path: Any) -> None:
    config = llm_config("lab", "m", base_url=provider.url)
    rows = [{"prompt": f"q{n}"} for n in range(3000)]
    run = asyncio.create_task(acall_llm_par(rows, config, run_file=tmp_path / "run.db", progress=False))
    while sum(provider.answered.values()) < 100:
        await asyncio.sleep(0.005)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    told = call_llm_par(rows, config, run_file=tmp_path / "run.db", dry_run=True)
    assert 0 < told.answered < 3000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_both_sides_of_a_fork_can_ask_and_nothing_is_left_open(provider: Provider) -> None:
    code = textwrap.dedent(
        """
        import asyncio, os, sys
        from llmbroker import acall_llm, call_llm, call_llm_par, llm_config
        config = llm_config("lab", "m", base_url=sys.argv[1])
        print(call_llm(config, "before"), flush=True)
        pid = os.fork()
        if pid == 0:
            print(call_llm(config, "child"), flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        print(call_llm(config, "parent"))
        print(asyncio.run(acall_llm(config, "awaited")))
        print(len(call_llm_par([{"prompt": "row"}], config, progress=False)))
        """
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code, provider.url], capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n") == ["Answer to before", "Answer to child", "Answer to parent", "Answer to awaited", "1", ""]
    assert done.stderr == ""
