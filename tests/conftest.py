"""What every test may use: where the recorded traffic lies, and a home of its own for whatever is written to disk."""

from __future__ import annotations

import gzip
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure: examples have no deadline of their own, the whole test has one.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

# A shell has Ctrl-C ignored in what it runs in the background; tests press it, in this process and in those that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

CHECKOUT = Path(__file__).resolve().parent.parent


def shared_folder() -> Path | None:
    """Return the folder of shared files: named by LLMBROKER_SHARED, else beside the checkout, else None."""
    named = os.environ.get("LLMBROKER_SHARED")
    folder = Path(named) if named else CHECKOUT.parent / "shared"
    return folder if folder.is_dir() else None


def traffic(provider: str) -> Iterator[dict[str, Any]]:
    """Yield the recorded exchanges of one provider; skip the test, saying so, where there are none."""
    folder = shared_folder()
    path = folder / "traffic" / f"{provider}.jsonl.gz" if folder else None
    if path is None or not path.is_file():
        reason = "the recorded traffic is not here (LLMBROKER_SHARED names its folder)"
        if os.environ.get("LLMBROKER_NEED_TRAFFIC"):
            pytest.fail(reason)
        pytest.skip(reason)
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests off the user's files, keys and proxies."""
    monkeypatch.setenv("LLMBROKER_HOME", str(tmp_path_factory.mktemp("home")))
    for name in list(os.environ):
        if name.endswith("_API_KEY") or name.lower() in {"http_proxy", "https_proxy", "all_proxy", "no_proxy"}:
            monkeypatch.delenv(name)
