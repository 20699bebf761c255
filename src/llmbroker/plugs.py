"""Places for what a room offers although it lives in a room above: the package root fills them, on import, with functions.

A room declares what it needs as a protocol and takes it from here; nothing is imported before it is first used. Nothing else
may be in here: no code, no values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

loops: Callable[[], Any]
"""Returns the room of the tool loop: what ``broker.run`` runs."""
