"""The key ring: all places of keys in their one order.

1. what the user handed in (``secrets=``)
2. the environment
3. the ``.env`` file
4. keys stored by hand, encrypted

A user's own key comes from the first or the last of these; the environment and ``.env`` belong to all. Each is asked anew
every time, so a key that was changed is used at once. The first place that has the key wins. A source that the user handed in
and that fails ends the search with an error, because the next could hold another one's key. Stored keys that cannot be read (no
master key, a damaged file, a server that is away) do not: a key that was read before is used on, else the search goes on, and
what is wrong is told.
"""

from __future__ import annotations

import copy
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from llmbroker.credentials.redaction import Secret, mask, redact
from llmbroker.credentials.sources import EnvFile, Environment, Given
from llmbroker.credentials.stored import SecretStore, StoredKeys, check_scope
from llmbroker.errors import ConfigurationError, MissingKeyError, StoreError
from llmbroker.io import Port
from llmbroker.wire import can_be_sent

REMEMBERED = 4096
PUT_OFF = 5.0
"""Seconds for which a store of keys is left alone after it failed."""


class KeyRing:
    """Finds keys.

    Args:
        port: runs the user's own source; needed for nothing else.
        secrets: the user's source, see ``Given``.
        env_file: path of the ``.env`` file, or None for none.
        store: where stored keys are, or None.
        shared: whether a user without a key of his own may use the shared one.
        environ: the environment, where it is not this process's.
        keyring: whether the system's keyring may hold the master key.

    Raises:
        InvalidRequestError: ``secrets`` is no source of keys.
    """

    def __init__(
        self,
        port: Port,
        *,
        secrets: Any = None,
        env_file: str | os.PathLike[str] | None = ".env",
        store: SecretStore | None = None,
        shared: bool = True,
        environ: Mapping[str, str] | None = None,
        keyring: bool = True,
    ) -> None:
        self._port = port
        self._given = None if secrets is None else Given(secrets)
        self._environment = Environment(environ)
        self._env_file = None if env_file is None else EnvFile(env_file)
        self.shared = shared
        self.stored = None if store is None else StoredKeys(store, self._variable, keyring=keyring)
        self._seen: OrderedDict[Secret, None] = OrderedDict()
        self._last: OrderedDict[tuple[str, str | None], Secret] = OrderedDict()
        self._failed: tuple[float, StoreError] | None = None
        """Until when the store of keys is left alone, and why."""

    @property
    def quick(self) -> bool:
        """Whether looking a shared key up costs microseconds, so that it may be done for every call."""
        return self._given is None or self._given.quick

    async def find(self, ref: str, scope: str | None = None) -> Secret | None:
        """Return the key of that name in exactly this scope (None: the one that all share), or None.

        Raises:
            ConfigurationError: a source failed, or holds something that is no key.
            StoreError: stored keys cannot be read.
        """
        found, trouble = await self.look(ref, scope)
        if trouble is not None:
            raise trouble
        return found

    async def look(self, ref: str, scope: str | None = None) -> tuple[Secret | None, ConfigurationError | None]:
        """Return what ``find`` does, and, where stored keys could not be read, why: who asks may look elsewhere.

        Raises:
            ConfigurationError: a source failed that was handed in, or one holds something that is no key.
        """
        found: Secret | None = None
        trouble: ConfigurationError | None = None
        if self._given is not None:
            found = await self._given.find(self._port, ref, scope)
        if found is None and scope is None:
            found = self._variable(ref)
        if found is None and self.stored is not None:
            found, trouble = await self._look_stored(self.stored, ref, scope)
        if found is not None:
            self._remember(found)
            if not can_be_sent("authorization", found.reveal()):
                raise ConfigurationError(
                    f"The key {ref} ({found.source}) holds a line break or a character that no header can carry: copy it again."
                )
        return found, trouble

    async def _look_stored(
        self, stored: StoredKeys, ref: str, scope: str | None
    ) -> tuple[Secret | None, ConfigurationError | None]:
        now = self._port.now()
        trouble: ConfigurationError
        if self._failed is not None and now < self._failed[0]:
            trouble = copy.copy(self._failed[1])
        else:
            try:
                found: Secret | None = await self._port.call(stored.find, ref, scope)
            except StoreError as error:
                self._failed = (now + PUT_OFF, error.with_traceback(None))
                trouble = copy.copy(error)
            except ConfigurationError as error:
                return None, error.with_traceback(None)
            else:
                self._failed = None
                if found is None:
                    self._last.pop((ref, scope), None)
                else:
                    self._last[ref, scope] = found
                    if len(self._last) > REMEMBERED:
                        self._last.popitem(last=False)
                return found, None
        known = self._last.get((ref, scope))
        return (known, None) if known is not None else (None, trouble)

    async def resolve(self, refs: Sequence[str], scope: str | None = None) -> Secret | None:
        """Return the first key that is found under one of these names: the user's own, then, if allowed, the shared one.

        Raises:
            ConfigurationError: as ``find``; for stored keys that cannot be read only where no other place has a key.
        """
        check_scope(scope)
        trouble: ConfigurationError | None = None
        for who in self.scopes(scope):
            for ref in refs:
                found, failed = await self.look(ref, who)
                if found is not None:
                    return found
                trouble = trouble or failed
        if trouble is not None:
            raise trouble
        return None

    async def which(self, refs: Sequence[str], scope: str | None = None) -> str | None:
        """Return where the key of ``resolve`` comes from (``environment OPENAI_API_KEY``), never its value."""
        found = await self.resolve(refs, scope)
        return None if found is None else found.source

    def scopes(self, scope: str | None) -> tuple[str | None, ...]:
        """Return in which scopes a caller's keys are looked for, in order."""
        if scope is None:
            return (None,)
        return (scope, None) if self.shared else (scope,)

    def places(self, scope: str | None = None) -> list[str]:
        """Return in words where keys are looked for."""
        names = []
        if self._given is not None:
            names.append("secrets=")
        if None in self.scopes(scope):
            names.append("the environment")
            if self._env_file is not None:
                names.append(str(self._env_file.path))
        if self.stored is not None:
            names.append("stored keys")
        return names

    def missing(
        self, refs: Sequence[str], *, model: str, scope: str | None = None, keys_url: str = "", **facts: Any
    ) -> MissingKeyError:
        """Return the error that says which key was looked for, where, and how to set it."""
        whose = f" of {scope}" if scope is not None else ""
        places = ", ".join(self.places(scope))
        hint = f"Get one at {keys_url} and set {refs[0]}." if keys_url and refs else f"Set {refs[0]}." if refs else None
        return MissingKeyError(
            f"{model} needs a key{whose}, and none was found under {' or '.join(refs) or 'any name'} in {places}.",
            refs=tuple(refs),
            model=model,
            hint=hint,
            **facts,
        )

    def clean(self, text: str) -> str:
        """Return the text without any key that this ring ever found, and without what looks like one."""
        return mask(redact(text, tuple(self._seen)))

    # -- keys stored by hand -------------------------------------------------------------------------------------------------

    def put(self, ref: str, value: str | Secret, scope: str | None = None) -> None:
        """Store a key, encrypted. Raises as ``StoredKeys.put`` does, and ConfigurationError without a store."""
        self._storage().put(ref, value, scope)

    def remove(self, ref: str, scope: str | None = None) -> bool:
        """Delete a stored key; return whether there was one."""
        return self._storage().remove(ref, scope)

    def names(self) -> list[tuple[str, str | None]]:
        """Return (ref, scope) of all stored keys."""
        return [] if self.stored is None else self.stored.names()

    def _storage(self) -> StoredKeys:
        if self.stored is None:
            raise ConfigurationError("There is no database to store keys in.", hint="Name one as source: broker.db")
        return self.stored

    def _variable(self, ref: str) -> Secret | None:
        found = self._environment.find(ref)
        if found is None and self._env_file is not None:
            found = self._env_file.find(ref)
        return found

    def _remember(self, found: Secret) -> None:
        self._seen[found] = None
        self._seen.move_to_end(found)
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
