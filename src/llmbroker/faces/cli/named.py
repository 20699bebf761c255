"""What the user names as ``module:name``; modules of the working directory are found."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from llmbroker.errors import InvalidRequestError


def named(name: str, *, what: str, argument: str) -> Any:
    """Return what a name leads to; ``name`` after the colon may have dots.

    Args:
        name: what the user wrote.
        what: what it should be, for the message: ``tool``, ``queue``.
        argument: the option that it was given to.

    Raises:
        InvalidRequestError: it leads to nothing.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise InvalidRequestError(f"A {what} is named module:name, not {name!r}.", argument=argument)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise InvalidRequestError(f"The {what} {name!r} cannot be loaded: {error}.", argument=argument) from error
    try:
        for step in attribute.split("."):
            found = getattr(found, step)
    except AttributeError:
        raise InvalidRequestError(f"The module {module_name} has no {attribute}.", argument=argument) from None
    return found
