"""The packaged model is shared with the tests of the engine."""

from __future__ import annotations

from tests.local.conftest import model, packaged_model

__all__ = ["model", "packaged_model"]
