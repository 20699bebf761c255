"""Where a broker's model list, keys and journal come from: nothing, a TOML model list, or a database.

Nothing is opened or fetched here but what the user named; the journal's file is made by its first row.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from llmbroker.catalog import Abilities, Catalog, KeyHelp, Limit, LLMConfig, home_catalog, load_catalog, load_model_list
from llmbroker.errors import ConfigurationError, StoreError
from llmbroker.journal import FILE_NAME, Journal, Store, is_store, open_store
from llmbroker.journal.ledger import read_limits
from llmbroker.providers import table
from llmbroker.transports.model_store import DEFAULT, data_home

T = TypeVar("T")
EMBEDDED = "local"
"""The provider that runs a model in this process."""


class Setup(msgspec.Struct, frozen=True):
    """What a broker works with.

    Attributes:
        pool: the model list.
        direct: direct models by alias; those given as a value bear their name as alias.
        journal: the journal.
        store: the database that the user named as source, or None.
        own_store: the database in llmbroker's own folder, where the journal is there and no source was named; or None.
        catalog: the catalog in force.
        key_help: help on keys of the model list.
        fallback: the embedded model, for the case that no model has a key; None where it is not installed or not wanted.
        limits: what may be spent.
        unread: why the limits that ``store`` keeps could not be read yet, or None: they are those above.
    """

    pool: tuple[LLMConfig, ...]
    direct: Mapping[str, LLMConfig]
    journal: Journal
    store: Store | None
    own_store: Store | None
    catalog: Catalog
    key_help: Mapping[str, KeyHelp]
    fallback: LLMConfig | None
    limits: tuple[Limit, ...] = ()
    unread: StoreError | None = None

    @property
    def key_store(self) -> Store | None:
        """Where stored keys are: the database named as source, else the one in llmbroker's own folder."""
        return self.store if self.store is not None else self.own_store

    def able(self, config: LLMConfig) -> Abilities:
        """Return what is known about a model's abilities."""
        return self.catalog.able(config)

    def help_for(self, ref: str) -> KeyHelp | None:
        """Return where a key comes from, if that is known."""
        return self.key_help.get(ref) or self.catalog.keys.get(ref)


def read_setup(
    source: Any,
    *,
    pool: Sequence[LLMConfig] | None,
    direct: Sequence[str | LLMConfig],
    journal: Any,
    home: str | os.PathLike[str] | None,
    limits: Sequence[Limit] | None = None,
    clock: Callable[[], float],
    wall: Callable[[], float],
) -> Setup:
    """Return what a broker works with; see ``Broker`` for the arguments.

    Raises:
        ConfigurationError: a source cannot be used, or two models bear one name.
    """
    if not isinstance(home, (str, os.PathLike, type(None))):
        raise ConfigurationError(f"home is the path of a folder, not {type(home).__name__}.")
    folder = Path(home).expanduser() if home is not None else data_home()
    catalog = home_catalog(folder)
    key_help: Mapping[str, KeyHelp] = {}
    store: Store | None = None
    configs: Sequence[LLMConfig] = ()
    listed_limits: Sequence[Limit] = ()
    unread: StoreError | None = None
    if source is None:
        configs = catalog.pool if pool is None else ()
    elif not isinstance(source, (str, os.PathLike)):
        raise ConfigurationError(
            f"A broker's source is a model list (models.toml) or a database (broker.db), not {type(source).__name__}.",
            hint="A list of models in code goes to pool=.",
        )
    elif is_store(source) or "://" in os.fspath(source):
        store = open_store(source, home=folder)
        configs = _stored(store, catalog) if pool is None else ()
        if limits is None:
            listed_limits, unread = _stored_limits(store, needed=pool is None)
    else:
        listed = load_model_list(os.fspath(source))
        configs, key_help, listed_limits = listed.llms, listed.keys, listed.limits
    chosen = _listed(pool, LLMConfig, "pool") if pool is not None else tuple(configs)
    _refuse_twins(chosen, "models of the pool")
    allowed = _listed(limits, Limit, "limits") if limits is not None else tuple(listed_limits)
    _refuse_twins(allowed, "limits")
    kept = _journal(journal, store, folder, clock, wall)
    return Setup(
        pool=chosen,
        direct=_direct(direct, chosen, catalog),
        journal=kept,
        store=store,
        own_store=kept.store if source is None and journal is None else None,
        catalog=catalog,
        key_help=key_help,
        fallback=_embedded() if source is None and pool is None else None,
        limits=allowed,
        unread=unread,
    )


def _listed(values: Any, kind: type[T], argument: str) -> tuple[T, ...]:
    """Return what an argument lists, all of one kind."""
    if isinstance(values, (kind, str, bytes)) or not isinstance(values, Sequence):
        raise ConfigurationError(f"{argument} is a list of {kind.__name__}, not {type(values).__name__}.")
    for value in values:
        if not isinstance(value, kind):
            raise ConfigurationError(f"{argument} is a list of {kind.__name__}; one of them is {type(value).__name__}.")
    return tuple(values)


def _refuse_twins(named: Sequence[LLMConfig] | Sequence[Limit], what: str) -> None:
    seen: set[str] = set()
    for one in named:
        if one.name in seen:
            raise ConfigurationError(f"Two {what} bear the name {one.name!r}.", hint="Give one of them another name=.")
        seen.add(one.name)


def _stored(store: Store, catalog: Catalog) -> Sequence[LLMConfig]:
    """Return the model list of a database; the catalog's free pool where it has none."""
    try:
        return store.models() or catalog.pool
    except StoreError as error:
        raise ConfigurationError(
            f"The model list cannot be read from {store.where}: {error}", hint="Give the models by pool=."
        ) from error


def _stored_limits(store: Store, *, needed: bool) -> tuple[Sequence[Limit], StoreError | None]:
    """Return the limits of a database. One whose limits cannot be read is not taken for one that has none.

    A database that cannot be used now does not stop a broker that needs nothing of it (``needed``): then why is returned.
    """
    try:
        return read_limits(store), None
    except StoreError as error:
        if not needed:
            return (), error
        raise ConfigurationError(
            f"The limits cannot be read from {store.where}: {error}", hint="Give them by limits=; limits=[] is none."
        ) from error


def _direct(direct: Sequence[str | LLMConfig], pool: Sequence[LLMConfig], catalog: Catalog) -> dict[str, LLMConfig]:
    if isinstance(direct, (str, LLMConfig)):
        direct = (direct,)
    names = {config.name for config in pool}
    found: dict[str, LLMConfig] = {}
    for entry in direct:
        if isinstance(entry, LLMConfig):
            config = entry
            alias = entry.name
        elif isinstance(entry, str):
            known = catalog.aliases.get(entry)
            if known is None:
                continue  # said when it is asked for: an alias that the catalog dropped does not break the rest
            config, alias = known, entry
        else:
            raise ConfigurationError(f"direct is a list of aliases and LLMConfig; one of them is {type(entry).__name__}.")
        if config.name in names or alias in found:
            raise ConfigurationError(f"Two models bear the name {config.name!r}.")
        found[alias] = config
    return found


def _journal(journal: Any, store: Store | None, folder: Path, clock: Callable[[], float], wall: Callable[[], float]) -> Journal:
    if isinstance(journal, Journal):
        return journal
    if journal is False:
        return Journal(None)
    if journal is None:
        return Journal(store if store is not None else open_store(folder / FILE_NAME), clock=clock, wall=wall)
    if not isinstance(journal, (str, os.PathLike)):
        raise ConfigurationError(f"journal is a path, an address, False or None, not {type(journal).__name__}.")
    where = os.fspath(journal)
    named = is_store(where) or "://" in where  # an address of a kind that is not known is refused, not taken for a path
    return Journal(open_store(where if named else f"sqlite:///{where}", home=folder), clock=clock, wall=wall)


def _embedded() -> LLMConfig | None:
    if importlib.util.find_spec("xllamacpp") is None or EMBEDDED not in table.PROVIDERS:
        return None
    return LLMConfig(name=EMBEDDED, provider=EMBEDDED, model=DEFAULT.name, api_key_ref="", weight=0.1)


def pinned(name: str, setup_direct: Mapping[str, LLMConfig], catalog: Catalog | None = None) -> LLMConfig | None:
    """Return the direct model of that name."""
    for config in setup_direct.values():
        if config.name == name:
            return config
    return (catalog or load_catalog()).named(name)
