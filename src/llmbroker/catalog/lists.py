"""Model lists: TOML files with one ``[[llms]]`` row a model and, if wanted, ``[keys.NAME]`` with help on where to get a key.

``[[limits]]`` rows say what may be spent. A field that is not known is refused with the nearest known one: a typing error must
not become a default. Reading a list reads one file; nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from llmbroker.catalog.config import LLMConfig
from llmbroker.catalog.limit import Limit
from llmbroker.errors import ConfigurationError

LARGEST = 4 * 1024 * 1024
"""Bytes; a longer file is no model list."""


class KeyHelp(msgspec.Struct, frozen=True):
    """Where a key comes from.

    Attributes:
        ref: the variable's name.
        help: one sentence for the person who has to get the key.
        url: the page to get it from, or "".
        free: whether it costs nothing, or None where that is not said.
    """

    ref: str
    help: str = ""
    url: str = ""
    free: bool | None = None


class ModelList(msgspec.Struct, frozen=True):
    """What a model list holds: the models in the file's order, help on keys by the variable's name, and what may be spent."""

    llms: tuple[LLMConfig, ...]
    keys: Mapping[str, KeyHelp] = {}
    limits: tuple[Limit, ...] = ()


def read_model_list(path: str | Path) -> list[LLMConfig]:
    """Return the models of a TOML file's ``[[llms]]`` rows, in its order.

    Raises:
        ConfigurationError: the file cannot be read, a row is wrong (the message names it), two rows bear one name.
    """
    return list(load_model_list(path).llms)


def load_model_list(path: str | Path) -> ModelList:
    """Return models and key help of a TOML file.

    Raises:
        ConfigurationError: as ``read_model_list``.
    """
    where = str(path)
    table = parse_toml(read_bytes(path), where)
    refuse_unknown(table, ("llms", "keys", "limits"), where)
    rows = table_rows(table, "llms", where)
    if not rows:
        raise ConfigurationError(f"{where} holds no model: it needs a [[llms]] row with name, model and base_url or provider.")
    llms = tuple(config_of(row, f"{where}, {label}") for row, label in rows)
    refuse_repeated((llm.name for llm in llms), "name", where)
    return ModelList(llms, key_help(table, where), limits_of(table, where))


# -- pieces that the catalog uses too ------------------------------------------------------------------------------------


def read_bytes(path: str | Path) -> bytes:
    """Return a small file's bytes.

    Raises:
        ConfigurationError: it is not there, not readable or too long.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    if len(data) > LARGEST:
        raise ConfigurationError(f"{path} is longer than {LARGEST} bytes: that is no model list.")
    return data


def parse_toml(data: bytes, where: str) -> dict[str, Any]:
    """Parse TOML.

    Raises:
        ConfigurationError: it is none; says where.
    """
    import tomllib

    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{where} is not TOML: {error}.") from None


def refuse_unknown(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Raise ConfigurationError for a field that is not known, with the nearest one that is."""
    names = tuple(known)
    for field in table:
        if field not in names:
            import difflib

            near = difflib.get_close_matches(field, names, 1, 0.5)
            meant = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(names))}."
            raise ConfigurationError(f"{where}: unknown field {field!r}; {meant}")


def refuse_repeated(names: Iterable[str], what: str, where: str) -> None:
    """Raise ConfigurationError for a name that comes twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigurationError(f"{where}: the {what} {name!r} comes twice; each has its own.")
        seen.add(name)


def table_rows(table: Mapping[str, Any], section: str, where: str) -> list[tuple[dict[str, Any], str]]:
    """Return the rows of a section, each with a label for messages: its number and, where it has one, its name.

    Raises:
        ConfigurationError: the section is not a list of tables.
    """
    rows = table.get(section, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigurationError(f"{where}: {section} is a list of tables; write [[{section}]] above each.")
    labelled = []
    for number, row in enumerate(rows, 1):
        name = row.get("name") or row.get("alias")
        label = f"{section} row {number}" + (f" ({name})" if isinstance(name, str) else "")
        labelled.append((row, label))
    return labelled


def config_of(row: Mapping[str, Any], where: str, further: Iterable[str] = ()) -> LLMConfig:
    """Make the model of one row; ``further`` are fields of the row that are not the model's.

    Raises:
        ConfigurationError: a field is unknown, missing or wrong; says which row.
    """
    extra = frozenset(further)
    refuse_unknown(row, (*LLMConfig.__struct_fields__, *extra), where)
    for field in ("name", "model"):
        if field not in row:
            raise ConfigurationError(f"{where}: {field} is missing.")
    try:
        return LLMConfig(**{field: value for field, value in row.items() if field not in extra})
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None


def limits_of(table: Mapping[str, Any], where: str) -> tuple[Limit, ...]:
    """Return the ``[[limits]]`` rows.

    Raises:
        ConfigurationError: a field is unknown or wrong, or two bear one name; says which row.
    """
    found = []
    for row, label in table_rows(table, "limits", where):
        refuse_unknown(row, Limit.__struct_fields__, f"{where}, {label}")
        try:
            found.append(Limit(**row))
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}, {label}: {error}") from None
    refuse_repeated((limit.name for limit in found), "name", where)
    return tuple(found)


def key_help(table: Mapping[str, Any], where: str) -> dict[str, KeyHelp]:
    """Return the ``[keys.NAME]`` tables; ``NAME = "text"`` below ``[keys]`` is the same as its help.

    Raises:
        ConfigurationError: a field is unknown or of a wrong type.
    """
    keys = table.get("keys", {})
    if not isinstance(keys, dict):
        raise ConfigurationError(f"{where}: keys is a table; write [keys.NAME] with a help text.")
    known = ("help", "url", "free")
    types = {"help": str, "url": str, "free": bool}
    found = {}
    for ref, row in keys.items():
        entry = {"help": row} if isinstance(row, str) else row
        if not isinstance(entry, dict):
            raise ConfigurationError(f"{where}: keys.{ref} is a table or a text, not {row!r}.")
        refuse_unknown(entry, known, f"{where}, keys.{ref}")
        for field, value in entry.items():
            if not isinstance(value, types[field]):
                raise ConfigurationError(f"{where}, keys.{ref}: {field} is of type {types[field].__name__}, not {value!r}.")
        found[ref] = KeyHelp(ref, **entry)
    return found
