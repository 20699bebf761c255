"""``llmbroker env`` and ``llmbroker keys``: which keys there are, from where, and how to get more. No value is ever printed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llmbroker.catalog import Catalog, home_catalog
from llmbroker.credentials import KeyRing
from llmbroker.errors import ConfigurationError, InvalidRequestError, MissingKeyError, StoreError
from llmbroker.faces.cli.output import note, print_json, print_table
from llmbroker.journal import FILE_NAME, Store, is_model_list, is_store, open_store
from llmbroker.messages import check_text
from llmbroker.transports.blocking import BlockingIO
from llmbroker.transports.model_store import data_home

HELP = {
    "env": "The keys that would help, as lines for a .env file, each with where to get it.\n\n  llmbroker env >> .env",
    "keys": "Stored keys. They are encrypted; the master key is in the system's keyring or in LLMBROKER_MASTER_KEY.\n\n"
    "  llmbroker keys set GEMINI_API_KEY      asks for the value, unseen\n"
    "  pass show gemini | llmbroker keys set GEMINI_API_KEY\n"
    "  llmbroker keys list\n"
    "  llmbroker keys which GEMINI_API_KEY    says the source that wins\n"
    "  llmbroker keys remove GEMINI_API_KEY",
}


def env_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--free", action="store_true", help="only keys that cost nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")


def keys_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("what", metavar="set|list|remove|which", choices=("set", "list", "remove", "which"))
    parser.add_argument("name", nargs="?", help="the key's name, such as GEMINI_API_KEY")
    parser.add_argument("--scope", metavar="USER", help="this user's own key")
    parser.add_argument("--source", "--db", metavar="PATH", help="the database that holds the keys")
    parser.add_argument("--json", action="store_true", help="print JSON")


@contextmanager
def ring(source: str | None = None, *, write: bool = False) -> Iterator[KeyRing]:
    """Give the key ring over environment, ``.env`` and the stored keys."""
    store: Store | None
    if source is not None and not is_model_list(source):
        if not write and "://" not in source and not Path(source).exists():
            raise ConfigurationError(f"There is no database {source}.")  # to read makes no file
        store = open_store(source if is_store(source) or "://" in source else f"sqlite:///{source}")
    else:
        path = data_home() / FILE_NAME
        store = open_store(path) if write or path.exists() else None
    port = BlockingIO()
    try:
        yield KeyRing(port, store=store)
    finally:
        if store is not None:
            store.close()
        port.close()


def source_of(keys: KeyRing, name: str, scope: str | None = None) -> str | None:
    """Return where a key would come from, never its value."""
    from llmbroker.io import drive

    return drive(keys.which((name,), scope))


def state_of(keys: KeyRing, name: str, scope: str | None = None) -> tuple[str | None, str | None]:
    """Return where a key would come from, and what is wrong if it cannot be read."""
    try:
        return source_of(keys, name, scope), None
    except StoreError:
        raise
    except ConfigurationError as error:
        return None, str(error)


def env(arguments: argparse.Namespace) -> int:
    """Print the skeleton."""
    catalog = home_catalog(data_home())
    names = [
        name for name in _wanted(catalog) if not arguments.free or (catalog.keys[name].free if name in catalog.keys else False)
    ]
    with ring() as keys:
        found = {name: state_of(keys, name)[0] for name in names}
    if arguments.json:
        print_json(
            [
                {"name": name, "found": found[name], **({"url": h.url, "help": h.help, "free": h.free} if h else {})}
                for name in names
                for h in (catalog.keys.get(name),)
            ]
        )
        return 0
    for name in names:
        known = catalog.keys.get(name)
        if known is not None:
            print(f"# {known.help} {known.url}".rstrip())
        print(f"# {name} is set ({found[name]})" if found[name] else f"{name}=")
    return 0


def _wanted(catalog: Catalog) -> list[str]:
    configs = (*catalog.pool, *catalog.aliases.values())
    return list(dict.fromkeys([*(config.api_key_ref for config in configs if config.api_key_ref), *catalog.keys]))


def keys(arguments: argparse.Namespace) -> int:
    """Do what was asked."""
    for place, text in (("the key's name", arguments.name), ("--scope", arguments.scope)):
        check_text(text or "", place)
    if arguments.what == "list":
        return _list(arguments)
    if not arguments.name:
        raise InvalidRequestError(f"Write: llmbroker keys {arguments.what} NAME.", argument="name")
    if arguments.what == "which":
        return _which(arguments)
    with ring(arguments.source, write=True) as held:
        if arguments.what == "set":
            held.put(arguments.name, _value(arguments.name), arguments.scope)
            note(f"{arguments.name} is stored, encrypted.")
            return 0
        if not held.remove(arguments.name, arguments.scope):
            raise MissingKeyError(f"There is no stored key {arguments.name}.", refs=(arguments.name,))
        note(f"{arguments.name} is removed.")
    return 0


def _value(name: str) -> str:
    if sys.stdin is not None and sys.stdin.isatty():
        import getpass

        return getpass.getpass(f"{name}: ").strip()
    return sys.stdin.readline().strip() if sys.stdin is not None else ""


def _which(arguments: argparse.Namespace) -> int:
    with ring(arguments.source) as held:
        source = source_of(held, arguments.name, arguments.scope)
        places = ", ".join(held.places(arguments.scope))
    if arguments.json:
        print_json({"name": arguments.name, "source": source})
    elif source is not None:
        print(source)
    if source is None:
        raise MissingKeyError(f"{arguments.name} was not found in {places}.", refs=(arguments.name,))
    return 0


def _list(arguments: argparse.Namespace) -> int:
    catalog = home_catalog(data_home())
    with ring(arguments.source) as held:
        stored = held.names()
        names = list(dict.fromkeys([*_wanted(catalog), *(name for name, scope in stored if scope is None)]))
        wanted = [*((name, None) for name in names), *(pair for pair in stored if pair[1] is not None)]
        rows = [(name, scope, *state_of(held, name, scope)) for name, scope in wanted]
    rows = [row for row in rows if row[2] or row[3]]
    if arguments.json:
        print_json([{"name": name, "scope": scope, "source": source, "error": error} for name, scope, source, error in rows])
        return 0
    shown = [(name, scope, source or "nowhere: it cannot be read") for name, scope, source, _ in rows]
    print_table(("name", "scope", "used from"), shown, empty="No keys were found. llmbroker env says where to get one.")
    for error in dict.fromkeys(row[3] for row in rows if row[3]):
        note(f"llmbroker: {error}")
    return 0
