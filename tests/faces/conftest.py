"""What the tests of the command line share: a provider on loopback, a model list with it, the packaged model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faces.processes import Served
from tests.local.conftest import model, packaged_model

__all__ = ["model", "models", "packaged_model", "served"]


@pytest.fixture
def served() -> Iterator[Served]:
    """A server that runs for one test."""
    made = Served()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.stopping.set()
    made.server.shutdown()
    made.server.server_close()
    thread.join()


@pytest.fixture
def models(served: Served, tmp_path: Path) -> str:
    """A model list whose one model is the server."""
    path = tmp_path / "models.toml"
    path.write_text(f'[[llms]]\nname = "mine"\nmodel = "small"\nbase_url = "{served.url}"\napi_key_ref = ""\n')
    return str(path)
