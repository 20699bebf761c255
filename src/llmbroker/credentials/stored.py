"""Keys in the store: only ever as ciphertext, each bound to its name and its user.

The master key comes from ``LLMBROKER_MASTER_KEY`` or from the system's keyring. Several in the variable, divided by commas: the
first encrypts, all decrypt, so that it can be changed. Without one nothing is stored. A row that was copied to another name or
another user does not decrypt to a key: who can write into the database still cannot send a key elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from llmbroker.credentials.redaction import Secret
from llmbroker.credentials.sources import wrapped
from llmbroker.errors import ConfigurationError, InvalidRequestError

MASTER = "LLMBROKER_MASTER_KEY"
SERVICE, ACCOUNT = "llmbroker", "master-key"
_MAKE = (
    f"export {MASTER}=\"$(python -c 'from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())')\""
    " and keep it in a safe place"
)


class SecretStore(Protocol):
    """Where ciphertext is kept; a journal's store is one."""

    def secret(self, ref: str, scope: str | None) -> bytes | None:
        """Return the ciphertext of exactly this scope, or None."""
        ...

    def set_secret(self, ref: str, scope: str | None, value: bytes | None) -> None:
        """Keep ciphertext, or delete it (None)."""
        ...

    def secrets(self) -> list[tuple[str, str | None]]:
        """Return (ref, scope) of what is kept."""
        ...


class _Sealed(msgspec.Struct, frozen=True):
    ref: str
    scope: str | None
    value: str

    def __repr__(self) -> str:
        """Show whose it is."""
        return f"_Sealed({self.ref!r}, {self.scope!r})"


class StoredKeys:
    """Keys that were stored by hand.

    Args:
        store: where the ciphertext is.
        master: finds a variable's value (the environment, then ``.env``).
        keyring: whether the system's keyring may be asked for the master key.
    """

    def __init__(self, store: SecretStore, master: Callable[[str], Secret | None], *, keyring: bool = True) -> None:
        self._store = store
        self._master = master
        self._keyring = keyring

    def find(self, ref: str, scope: str | None) -> Secret | None:
        """Return the key of exactly this scope.

        Raises:
            ConfigurationError: it is there, but cannot be decrypted.
            StoreError: the store cannot be read.
        """
        sealed = self._store.secret(ref, scope)
        if sealed is None:
            return None
        return self._open(sealed, ref, scope)

    def _open(self, sealed: bytes, ref: str, scope: str | None) -> Secret | None:
        cipher = self._cipher()
        whose = f" of {scope}" if scope is not None else ""
        if cipher is None:
            raise ConfigurationError(
                f"The stored key {ref}{whose} cannot be read: there is no master key.",
                hint=f"Set {MASTER} to the one it was stored with.",
            )
        opened: _Sealed | None
        try:
            opened = msgspec.json.decode(cipher.decrypt(sealed), type=_Sealed)
        except Exception as error:  # noqa: BLE001 - a wrong master key and a damaged row look alike
            opened, kind = None, type(error).__name__
        else:
            kind = "it belongs to another name or user"
        if opened is None or (opened.ref, opened.scope) != (ref, scope):
            del opened
            raise ConfigurationError(
                f"The stored key {ref}{whose} cannot be read ({kind}).",
                hint=f"Set {MASTER} to the one it was stored with, or store the key again: llmbroker keys set {ref}",
            )
        return wrapped(opened.value, f"stored {ref}{whose}")

    def put(self, ref: str, value: str | Secret, scope: str | None = None) -> None:
        """Store a key, encrypted.

        Raises:
            InvalidRequestError: the name or the value is empty.
            ConfigurationError: there is no master key, or what encrypts is not installed; nothing was stored.
            StoreError: the store cannot be written.
        """
        check_ref(ref)
        check_scope(scope)
        given = value if isinstance(value, Secret) else Secret(value)
        del value
        secret = wrapped(given, ref)
        if secret is None:
            raise InvalidRequestError(f"The value of {ref} is empty.", argument="value")
        cipher = self._cipher(make=True)
        if cipher is None:
            raise ConfigurationError(
                f"The key {ref} was not stored: there is no master key to encrypt it with.",
                hint=f"Either {_MAKE}, or leave the key in the environment or in .env.",
            )
        self._store.set_secret(ref, scope, cipher.encrypt(msgspec.json.encode(_Sealed(ref, scope, secret.reveal()))))

    def remove(self, ref: str, scope: str | None = None) -> bool:
        """Delete a stored key; return whether there was one."""
        there = self._store.secret(ref, scope) is not None
        self._store.set_secret(ref, scope, None)
        return there

    def names(self) -> list[tuple[str, str | None]]:
        """Return (ref, scope) of all stored keys."""
        return self._store.secrets()

    # -- the master key ----------------------------------------------------------------------------------------------------

    def _cipher(self, *, make: bool = False) -> Any:
        """Return what encrypts and decrypts, or None without a master key.

        Raises:
            ConfigurationError: the master key is malformed, or ``cryptography`` is not installed.
        """
        master = self._master(MASTER)
        where = MASTER
        if master is None and self._keyring:
            master, where = _from_keyring(make), "the keyring's master key"
        if master is None:
            return None
        try:
            from cryptography.fernet import Fernet, MultiFernet
        except ImportError:
            raise ConfigurationError(
                "Stored keys need the package cryptography.", hint="pip install 'llmbroker[keys]'"
            ) from None
        try:
            return MultiFernet([Fernet(part.strip()) for part in master.reveal().split(",") if part.strip()])
        except ValueError:
            pass
        raise ConfigurationError(f"{where} is no master key.", hint=f"Make one: {_MAKE}.")


def _from_keyring(make: bool) -> Secret | None:
    """Return the master key of the system's keyring; ``make`` one where there is none. None where there is no keyring."""
    try:
        import keyring

        if keyring.get_keyring().priority <= 0:
            return None
        found = keyring.get_password(SERVICE, ACCOUNT)
        if found is None and make:
            from cryptography.fernet import Fernet

            keyring.set_password(SERVICE, ACCOUNT, Fernet.generate_key().decode())
            found = keyring.get_password(SERVICE, ACCOUNT)
    except Exception:  # noqa: BLE001 - not installed, locked, or no desktop: the same as none
        return None
    return Secret(found, "keyring") if found else None


def check_ref(ref: Any) -> None:
    """Refuse what is no name of a key.

    Raises:
        InvalidRequestError: it is empty, or holds blanks, ``/`` or ``=``.
    """
    if not isinstance(ref, str) or not ref or any(c.isspace() or c in "/=" for c in ref):
        raise InvalidRequestError("A key's name is like OPENAI_API_KEY: not empty, no blanks, no / or =.", argument="ref")


def check_scope(scope: Any) -> None:
    """Refuse what names no user.

    Raises:
        InvalidRequestError: it is empty or no string; None is allowed.
    """
    if scope is not None and (not isinstance(scope, str) or not scope.strip()):
        raise InvalidRequestError("A scope is a user's name: a string that is not empty.", argument="scope")
