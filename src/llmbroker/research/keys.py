"""The key of a config: a reference to a variable, read at each call, or a literal that nobody gets to see.

Of the forms that people write: nothing at all means the provider's own variables; capitals (``MY_LAB_KEY``) or ``env:name``
are a variable; a list is several of them, the first that is set counts; anything else is the key itself.
"""

from __future__ import annotations

import os
import re
import warnings
from typing import Any

from llmbroker.credentials import Secret
from llmbroker.credentials.sources import EnvFile, wrapped
from llmbroker.errors import InvalidRequestError, MissingKeyError
from llmbroker.providers import table
from llmbroker.providers.base import Provider

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_ANY_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Key:
    """Where a key comes from: ``names`` of variables, or ``literal``. It shows names, never a value."""

    __slots__ = ("_file", "literal", "names")

    def __init__(self, names: tuple[str, ...] = (), literal: Secret | None = None) -> None:
        self.names = names
        self.literal = literal
        self._file = EnvFile(".env")

    def find(self, *, needed: bool = True) -> Secret | None:
        """Return the key: the literal, else the first variable that is set (environment first, then ``.env`` if needed)."""
        if self.literal is not None:
            return self.literal
        for name in self.names:
            value = os.environ.get(name)
            if value and not value.isspace():
                return wrapped(value, f"environment {name}")
        if not needed:
            return None
        return next((found for name in self.names if (found := self._file.find(name)) is not None), None)

    def __repr__(self) -> str:
        """Show where it comes from."""
        return "'***'" if self.literal is not None else repr("env:" + ",".join(self.names) if self.names else None)

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive pickling as a reference; a literal value is left behind."""
        return Key, (self.names, None)


class Unread(Secret):
    """An ``api_key=`` argument as it was given, wrapped before anything can go wrong: no frame of ours holds it in clear."""


def hidden(given: Any) -> Any:
    """Return the argument with every text in it wrapped."""
    if isinstance(given, str):
        return Unread(given)
    return [hidden(item) for item in given] if isinstance(given, (list, tuple)) else given


def read_key(given: Any, provider: Provider, base_url: str | None, label: str) -> Key:
    """Return the key that an ``api_key=`` argument means.

    Args:
        given: the argument, ``hidden``.
        provider: who serves.
        base_url: where, if the user said so.
        label: the provider's name as the user wrote it; servers that nobody knows look for ``<LABEL>_API_KEY``.

    Raises:
        InvalidRequestError: it is neither text, a ``Secret`` nor a list of names.
    """
    if isinstance(given, Unread) and not given.reveal().strip():
        warnings.warn("api_key is empty: the provider's usual variables are looked at instead.", UserWarning, stacklevel=4)
        given = None
    if given is None:
        upper = re.sub(r"[^A-Z0-9]", "_", label.upper())
        own = (f"{upper}_API_KEY", f"{upper}_KEY") if provider.base_url is None and provider.auth != "none" else ()
        return Key((*table.key_names(provider, base_url), *own))
    if isinstance(given, Key):
        return given
    if isinstance(given, Unread):
        return _one(given)
    if isinstance(given, Secret):
        return Key(literal=given)
    if isinstance(given, list) and given and all(isinstance(name, Unread) for name in given):
        return Key(tuple(_name(name) for name in given))
    raise InvalidRequestError("api_key is the name of a variable, a list of names, or the key itself.", argument="api_key")


def _one(given: Unread) -> Key:
    if given.reveal().strip().startswith("env:"):
        return Key((_name(given),))
    # Capitals and digits alone may be a key too (AWS writes such): a name has an underscore, or is set.
    if _VARIABLE.fullmatch(given.reveal().strip()) and ("_" in given.reveal() or given.reveal().strip() in os.environ):
        return Key((given.reveal().strip(),))
    return Key(literal=wrapped(Secret(given.reveal(), "argument api_key"), "argument api_key"))


def _name(given: Unread) -> str:
    if not _ANY_VARIABLE.fullmatch(given.reveal().strip().removeprefix("env:").strip()):
        raise InvalidRequestError(
            "A list of keys names variables (OPENAI_API_KEY); a key itself is given alone.", argument="api_key"
        )
    return given.reveal().strip().removeprefix("env:").strip()


def missing(provider: Provider, key: Key, base_url: str | None, model: str) -> MissingKeyError:
    """Return the error for a config whose key cannot be found."""
    if key.names:
        hint = f"Set {' or '.join(key.names[:2])}."
    elif provider.key_names:
        named = provider.key_names[0]
        hint = f"Keys of {provider.title} are not sent to {base_url} unasked: name the one that is meant, api_key='{named}'."
    else:
        hint = "Give api_key=."
    return MissingKeyError(
        f"{provider.title} needs a key for model {model} and none was found.",
        refs=key.names or provider.key_names,
        provider=provider.id,
        model=model,
        hint=hint + (f" Keys: {provider.keys_url}" if provider.keys_url and key.names else ""),
    )
