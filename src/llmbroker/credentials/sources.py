"""Places where a key may be: what the user hands in, the environment, a ``.env`` file. Each finds a reference in one scope.

A source answers with a ``Secret`` or None; blank values count as missing. It never writes, and copies nothing from one place
to another. A plain string is wrapped before anything can go wrong with it, so that no frame of ours holds it when an error is
shown with its local variables.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from llmbroker.credentials.redaction import Secret
from llmbroker.errors import ConfigurationError, InvalidRequestError, LLMBrokerError
from llmbroker.io import Port

log = logging.getLogger("llmbroker.credentials")


def wrapped(value: Any, source: str) -> Secret | None:
    """Return a value as a secret, without the blanks around it; None if nothing is left.

    Raises:
        ConfigurationError: it is no text, or holds what no header can carry. The value is not shown.
    """
    if value is None:
        return None
    fault = None
    if isinstance(value, Secret):
        secret = Secret(value.reveal().strip(), value.source or source)
    elif isinstance(value, str):
        secret = Secret(value.strip(), source)
    else:
        secret, fault = Secret(""), f"is of type {type(value).__name__}, not a string"
    del value
    if fault is None and not _fits(secret):
        fault = "holds a line break, a space or another character that no header can carry"
    if fault is not None:
        raise ConfigurationError(f"The key of {source} {fault}.", hint="Set it again, without quotes or line breaks.")
    return secret if secret else None


def _fits(secret: Secret) -> bool:
    return all("!" <= character <= "~" for character in secret.reveal())


def _takes_two(ask: Callable[..., Any]) -> bool:
    import inspect

    try:
        inspect.signature(ask).bind("ref", None)
    except TypeError:
        return False
    except ValueError:  # written in C, without a signature
        return True
    return True


class Given:
    """What the user hands in as ``secrets=``.

    A mapping holds ``{"OPENAI_API_KEY": "..."}``, for one user ``{"bob/OPENAI_API_KEY": "..."}``. A callable takes
    ``(ref, scope)``, an object has ``resolve(ref, scope)``, either may be ``async``; the scope is None when the key is wanted
    that all share. They return a string, or None (or raise ``KeyError``) where there is no key.
    """

    def __init__(self, secrets: Any) -> None:
        """Take it.

        Raises:
            InvalidRequestError: it is nothing of the three.
        """
        self._mapping: Mapping[str, Any] | None = secrets if isinstance(secrets, Mapping) else None
        self._ask: Callable[..., Any] | None = None
        if self._mapping is None:
            ask = getattr(secrets, "resolve", secrets)
            if not callable(ask) or isinstance(secrets, type):
                raise InvalidRequestError(
                    "secrets is a mapping, a callable (ref, scope), or an object with resolve(ref, scope); this is "
                    f"{'a class' if isinstance(secrets, type) else type(secrets).__name__}.",
                    argument="secrets",
                )
            if not _takes_two(ask):
                raise InvalidRequestError(
                    "The source given as secrets= takes two arguments, (ref, scope); scope is None for the key that all share.",
                    argument="secrets",
                )
            self._ask = ask

    @property
    def quick(self) -> bool:
        """Whether it only looks into memory."""
        return self._mapping is not None

    async def find(self, port: Port, ref: str, scope: str | None) -> Secret | None:
        """Return the key of exactly this scope.

        Raises:
            ConfigurationError: it failed, or gave something that is no key.
        """
        source = f"secrets {ref}" if scope is None else f"secrets {ref} of {scope}"
        if self._mapping is not None:
            return wrapped(self._mapping.get(ref if scope is None else f"{scope}/{ref}"), source)
        try:
            return wrapped(await port.call(self._ask or str, ref, scope), source)
        except LLMBrokerError:
            raise
        except KeyError:
            return None
        except Exception as error:
            # Its text may hold anything, so only its kind is told; the cause is the user's own and stays attached.
            raise ConfigurationError(
                f"The key source given as secrets= failed for {ref} with {type(error).__name__}.",
                hint="No other place was asked, since this one may hold another key.",
            ) from error


class Environment:
    """The variables of this process, read anew each time."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ

    def find(self, ref: str) -> Secret | None:
        """Return the variable's value."""
        return wrapped(self._environ.get(ref), f"environment {ref}")


class EnvFile:
    """A ``.env`` file; read when it is first needed and again when it has changed.

    It fills no variable of the process. A file that cannot be read is said once in the log and holds no keys.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser().absolute()
        self._stamp: tuple[int, int, int] | None = None
        self._values: dict[str, Secret] = {}

    def find(self, ref: str) -> Secret | None:
        """Return the value that the file gives this name."""
        self._refresh()
        found = self._values.get(ref)
        return wrapped(found, f".env {ref}") if found is not None else None

    def _refresh(self) -> None:
        try:
            found = os.stat(self.path)  # noqa: PTH116 - on the way of every call
        except OSError:
            self._stamp, self._values = None, {}
            return
        stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
        if stamp != self._stamp:
            self._stamp = stamp
            self._values = self._read()

    def _read(self) -> dict[str, Secret]:
        from dotenv import dotenv_values

        try:
            pairs = dotenv_values(self.path, encoding="utf-8-sig").items()
            return {name: Secret(value, f".env {name}") for name, value in pairs if value is not None}
        except (OSError, ValueError) as error:
            log.warning("%s cannot be read (%s); no keys are taken from it.", self.path, type(error).__name__)
            return {}
