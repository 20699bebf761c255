"""``kill -9`` in the middle of a run: after it is resumed every row has one result, and the totals are the provider's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from tests.research.provider import LASTING, Provider, fault_of, tokens_of

from llmbroker.research import call_llm_par, llm_config
from llmbroker.research.runfile import RunFile

CHILD = textwrap.dedent(
    """
    import resource, sys
    from llmbroker.research import call_llm_par, llm_config
    url, rows, file = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    config = llm_config("lab", "local", base_url=url, price={"input": 1, "output": 2})
    out = call_llm_par(
        [{"prompt": f"Question {n}"} for n in range(rows)], config, tries=6, wait_seconds=0.05, backoff_factor=1.5,
        timeout=20, run_file=file, progress=False,
    )
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, len(out))
    """
)


def child(provider: Provider, rows: int, file: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, provider.url, str(rows), str(file)], stdout=subprocess.PIPE, text=True
    )


def killed_run(provider: Provider, rows: int, file: Path) -> None:
    running = child(provider, rows, file)
    until = time.monotonic() + 60
    while sum(provider.answered.values()) < rows * 0.4:
        assert running.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < until
        time.sleep(0.002)
    os.kill(running.pid, signal.SIGKILL)
    running.communicate()
    assert running.returncode == -signal.SIGKILL


def check(provider: Provider, rows: int, file: Path, lost: set[bytes]) -> dict[str, Any]:
    """Every question has exactly one result; what the file counts is what the provider counts."""
    texts = [f"Question {n}" for n in range(rows)]
    with RunFile(file) as run:
        asked = [(what["messages"], outcome) for what, outcome in run.outcomes()]
        counts = run.counts()
    assert sorted(text for text, _ in asked) == sorted(texts)
    lasting = {text for text in texts if fault_of(text) in LASTING}
    assert {text for text, outcome in asked if not outcome.success} == lasting
    assert all(outcome.response_text == f"Answer to {text}" for text, outcome in asked if outcome.success)
    twice = sum(tokens_of(text)[0] + tokens_of(text)[1] for text, n in provider.answered.items() for _ in range(n - 1))
    served = sum(n * sum(tokens_of(text)) for text, n in provider.answered.items())
    assert sum(outcome.total_tokens or 0 for _, outcome in asked) == served - twice
    # A row is answered twice only if its first answer was on its way when the run was killed, and the file says so.
    assert sum(n - 1 for n in provider.answered.values()) <= len(lost) <= counts["lost"]
    sent = sum(provider.requests.values())
    assert counts["requests"] - counts["lost"] <= sent <= counts["requests"]
    return counts


def scenario(provider: Provider, rows: int, file: Path) -> tuple[dict[str, Any], float]:
    killed_run(provider, rows, file)
    with RunFile(file) as run:
        before = run.counts()
        lost = run.lost_rows()
    assert 0 < before["rows"] < rows
    resumed = child(provider, rows, file)
    output, _ = resumed.communicate(timeout=100)
    assert resumed.returncode == 0
    memory, returned = output.split()
    assert int(returned) == rows
    return check(provider, rows, file, lost), float(memory)


def test_a_run_that_is_killed_goes_on_and_every_row_has_one_result(tmp_path: Path) -> None:
    with Provider(delay=0.02) as provider:
        counts, _ = scenario(provider, 600, tmp_path / "run.db")
    assert counts["rows"] == 600


@pytest.mark.slow
def test_ten_thousand_rows_survive_a_kill_in_less_than_300_megabytes(tmp_path: Path) -> None:
    with Provider(delay=0.05) as provider:
        counts, memory = scenario(provider, 10_000, tmp_path / "run.db")
    print(counts, f"{memory:.0f} MB", f"{provider.most} at once")
    assert counts["rows"] == 10_000
    assert memory < 300


def test_a_finished_run_asks_nothing_again_but_what_is_named(tmp_path: Path) -> None:
    rows = [{"prompt": f"Question {n}"} for n in range(300)]
    file = tmp_path / "run.db"

    def run(provider: Provider, **more: Any) -> Any:
        config = llm_config("lab", "local", base_url=provider.url)
        return call_llm_par(rows, config, tries=6, wait_seconds=0.02, backoff_factor=1, run_file=file, progress=False, **more)

    with Provider() as provider:
        first = run(provider)
        sent = sum(provider.requests.values())
        assert run(provider) == first
        assert sum(provider.requests.values()) == sent
        failed = [row["prompt"] for row in first if not row["success"]]
        assert failed and all(fault_of(text) in LASTING for text in failed)
        kinds = {row["error_kind"] for row in first if not row["success"]}
        again = run(provider, retry=kinds)
        assert sum(provider.requests.values()) == sent + len(failed)
        assert [row["response_text"] for row in again] == [row["response_text"] for row in first]
