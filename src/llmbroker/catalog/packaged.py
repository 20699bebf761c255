"""The catalog: a dated list of free models for the pool, aliases of paid ones, what they can do, where their keys come from.

It is packaged data. A newer one is a file that the user names, by path or by URL and digest; nothing here fetches by itself.
An alias carries no version: what ``opus`` means moves with the catalog's date, while a name (``anthropic-claude-opus-5``) pins
one model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from llmbroker.catalog.config import LLMConfig
from llmbroker.catalog.lists import (
    LARGEST,
    KeyHelp,
    config_of,
    key_help,
    parse_toml,
    read_bytes,
    refuse_repeated,
    refuse_unknown,
    table_rows,
)
from llmbroker.errors import ConfigurationError
from llmbroker.files import replace
from llmbroker.io import Port
from llmbroker.wire import HTTPRequest

FILE_NAME = "catalog.toml"
_PACKAGED = Path(__file__).resolve().parent.parent / "data" / FILE_NAME


class Abilities(msgspec.Struct, frozen=True):
    """What a model can do. None: the catalog does not know, and nothing is ruled out.

    Attributes:
        tools: takes tool definitions and calls them.
        images: reads images.
        json_schema: keeps to a JSON schema (``response_format``).
        context_tokens: the longest input and output together.
    """

    tools: bool | None = None
    images: bool | None = None
    json_schema: bool | None = None
    context_tokens: int | None = None


class Catalog(msgspec.Struct, frozen=True, kw_only=True):
    """A dated catalog.

    Attributes:
        as_of: the day on which its facts were true.
        pool: models that cost nothing, best first.
        aliases: alias to direct model.
        abilities: by the provider's model name; see ``able``.
        keys: help on keys, by the variable's name.
        source: ``packaged``, or the path or URL it came from.
        digest: SHA-256 of the file, in hexadecimal.
    """

    as_of: date
    pool: tuple[LLMConfig, ...]
    aliases: Mapping[str, LLMConfig]
    abilities: Mapping[str, Abilities]
    keys: Mapping[str, KeyHelp]
    source: str
    digest: str

    def able(self, config: LLMConfig) -> Abilities:
        """Return what is known about a model's abilities; all None where nothing is."""
        return self.abilities.get(config.model, _UNKNOWN)

    def named(self, name: str) -> LLMConfig | None:
        """Return the direct model of that name (not alias), or None."""
        return next((config for config in self.aliases.values() if config.name == name), None)


_UNKNOWN = Abilities()
_ABILITIES = Abilities.__struct_fields__


def free_pool() -> tuple[LLMConfig, ...]:
    """Return the packaged catalog's models that cost nothing, best first."""
    return load_catalog().pool


def aliases() -> Mapping[str, LLMConfig]:
    """Return the packaged catalog's aliases."""
    return load_catalog().aliases


def load_catalog(path: str | Path | None = None, *, sha256: str | None = None) -> Catalog:
    """Return the packaged catalog, or the one in a file that the user names.

    Args:
        path: a TOML file, or None for the packaged one.
        sha256: the file's digest in hexadecimal; when given it must match.

    Raises:
        ConfigurationError: the file cannot be read, does not match the digest, or is no catalog.
    """
    if path is None:
        return _packaged()
    return read_catalog(read_bytes(path), source=str(path), sha256=sha256, known=_packaged())


@cache
def _packaged() -> Catalog:
    return read_catalog(_PACKAGED.read_bytes(), source="packaged")


def home_catalog(home: str | Path) -> Catalog:
    """Return the catalog that ``keep_catalog`` put into a folder, else the packaged one.

    Raises:
        ConfigurationError: there is one and it cannot be used; remove it or put another there.
    """
    path = Path(home) / FILE_NAME
    return load_catalog(path) if path.is_file() else _packaged()


def keep_catalog(data: bytes, home: str | Path, *, sha256: str | None = None) -> Catalog:
    """Check a catalog and put it into a folder, where ``home_catalog`` finds it; replaces an earlier one whole or not at all.

    Raises:
        ConfigurationError: it is no catalog, does not match the digest, or the folder cannot be written.
    """
    path = Path(home) / FILE_NAME
    checked = read_catalog(data, source=str(path), sha256=sha256, known=_packaged())
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace(path, data)
    except OSError as error:
        raise ConfigurationError(f"The catalog cannot be kept in {home}: {error.strerror or error}.") from None
    return checked


async def fetch_catalog(port: Port, url: str, *, sha256: str, timeout: float = 30.0) -> bytes:
    """Fetch a catalog from a URL that the user names, over the port, and return its bytes once they match the digest.

    No key and no header of the user's goes with the request; a redirect is not followed.

    Raises:
        ConfigurationError: the URL is not https (http only on this machine), the answer is not 200 or does not match.
        ConnectionFailedError, LLMTimeoutError: as the port says.
    """
    address = urlsplit(url)
    local = address.scheme == "http" and address.hostname in {"127.0.0.1", "localhost", "::1"}
    if address.scheme != "https" and not local:
        raise ConfigurationError(f"A catalog is fetched over https only, not from {url[:60]!r}.")
    reply = await port.send(HTTPRequest(url, {"accept": "application/toml, text/plain"}, b"", "GET"), port.now() + timeout)
    if reply.status != 200:
        raise ConfigurationError(f"{url} answered with status {reply.status}, not with a catalog.", status=reply.status)
    if len(reply.body) > LARGEST:
        raise ConfigurationError(f"{url} answered with more than {LARGEST} bytes: that is no catalog.")
    _check_digest(reply.body, url, sha256)
    return reply.body


def read_catalog(data: bytes, *, source: str, sha256: str | None = None, known: Catalog | None = None) -> Catalog:
    """Make a catalog of a file's bytes.

    Args:
        data: TOML.
        source: what messages call it.
        sha256: the digest that it must have.
        known: a catalog whose keys may not be sent to other hosts by this one.

    Raises:
        ConfigurationError: the bytes do not match the digest or are no catalog; the message names the row.
    """
    digest = _check_digest(data, source, sha256)
    table = parse_toml(data, source)
    refuse_unknown(table, ("as_of", "llms", "direct", "keys"), source)
    as_of = table.get("as_of")
    if type(as_of) is not date:
        raise ConfigurationError(f"{source}: as_of is a date such as 2026-08-17, not {as_of!r}.")
    able: dict[str, Abilities] = {}
    pool = [_entry(row, f"{source}, {label}", able) for row, label in table_rows(table, "llms", source)]
    direct = table_rows(table, "direct", source)
    named = [(_alias(row, f"{source}, {label}"), _entry(row, f"{source}, {label}", able)) for row, label in direct]
    refuse_repeated((alias for alias, _ in named), "alias", source)
    refuse_repeated([config.name for config in pool] + [config.name for _, config in named], "name", source)
    if known is not None:
        _check_keys_stay([*pool, *(config for _, config in named)], known, source)
    return Catalog(
        as_of=as_of,
        pool=tuple(sorted(pool, key=lambda config: -config.weight)),
        aliases=dict(named),
        abilities=able,
        keys=key_help(table, source),
        source=source,
        digest=digest,
    )


def _check_digest(data: bytes, source: str, expected: str | None) -> str:
    import hashlib

    digest = hashlib.sha256(data).hexdigest()
    if expected is not None and digest != expected.strip().lower().removeprefix("sha256:"):
        raise ConfigurationError(f"{source} does not match its digest: expected {expected}, got {digest}. It was not used.")
    return digest


def _check_keys_stay(configs: Iterable[LLMConfig], known: Catalog, source: str) -> None:
    """Refuse a catalog that would send a key to another host than the one it was declared for."""
    homes: dict[str, set[tuple[str | None, str | None]]] = {}
    for config in (*known.pool, *known.aliases.values()):
        homes.setdefault(config.api_key_ref or "", set()).add(_goes_to(config))
    for config in configs:
        allowed = homes.get(config.api_key_ref or "")
        if allowed and _goes_to(config) not in allowed:
            raise ConfigurationError(
                f"{source}: {config.name} would send {config.api_key_ref} to {config.base_url or config.provider},"
                " for which that key was not declared. It was not used."
            )


def _goes_to(config: LLMConfig) -> tuple[str | None, str | None]:
    return config.provider, urlsplit(config.base_url).netloc if config.base_url else None


def _alias(row: Mapping[str, Any], where: str) -> str:
    alias = row.get("alias")
    if not isinstance(alias, str) or not alias.strip():
        raise ConfigurationError(f"{where}: alias is missing.")
    return alias


def _entry(row: Mapping[str, Any], where: str, able: dict[str, Abilities]) -> LLMConfig:
    """Make a row's model; what it can do goes into ``able``."""
    config = config_of(row, where, ("alias", *_ABILITIES))
    if config.base_url is not None and not config.base_url.startswith("https://"):
        raise ConfigurationError(f"{where}: a catalog's base_url is https.")
    facts = {field: row[field] for field in _ABILITIES if field in row}
    for field, value in facts.items():
        wanted = int if field == "context_tokens" else bool
        if type(value) is not wanted or (wanted is int and value < 1):
            raise ConfigurationError(f"{where}: {field} is of type {wanted.__name__}, not {value!r}.")
    able[config.model] = Abilities(**facts)
    return config
