"""``llmbroker models``, ``snapshot`` and ``catalog``: which models there are, and how they are now."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmbroker.catalog import fetch_catalog, home_catalog, keep_catalog, load_model_list
from llmbroker.errors import ConfigurationError, InvalidRequestError
from llmbroker.faces.cli.output import local_time, note, print_json, print_table
from llmbroker.journal import is_store, open_store
from llmbroker.journal.ledger import write_limits
from llmbroker.transports.model_store import data_home

HELP = {
    "models": "The models of the pool: which could answer now, and why not.\n"
    "With --base-url or --provider: the models that a server offers.\n\n"
    "  llmbroker models --source broker.db --take models.toml     puts a model list into a database",
    "snapshot": "How each model of the pool is now: health, running calls, belief in its quality; how the journal is.",
    "catalog": "The facts about models in force: the free pool and the aliases, with their date.\n"
    "A newer file is taken only from a path or URL that you name, and a URL only with its digest.",
}


def models_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--source", metavar="PATH", help="a model list (models.toml) or a database (broker.db)")
    parser.add_argument("--scope", metavar="USER", help="as this user sees it")
    parser.add_argument("--take", metavar="PATH", help="replace the model list of the database --source by this file's")
    parser.add_argument("--base-url", metavar="URL", help="ask this server what it offers")
    parser.add_argument("--provider", metavar="ID", help="ask this provider what it offers")
    parser.add_argument("--key", metavar="VARIABLE", help="the variable that holds the key for --base-url")
    parser.add_argument("--json", action="store_true", help="print JSON")


def snapshot_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--source", metavar="PATH", help="a model list (models.toml) or a database (broker.db)")
    parser.add_argument("--scope", metavar="USER", help="as this user sees it")
    parser.add_argument("--json", action="store_true", help="print JSON")


def catalog_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--take", metavar="PATH-OR-URL", help="put a newer catalog into llmbroker's own folder")
    parser.add_argument("--sha256", metavar="HEX", help="the digest that the file must have; needed for a URL")
    parser.add_argument("--json", action="store_true", help="print JSON")


def models(arguments: argparse.Namespace) -> int:
    """Print the pool, or what a server offers."""
    if arguments.base_url or arguments.provider:
        return _offered(arguments)
    if arguments.take:
        return _take_list(arguments.take, arguments.source)
    snapshot = _snapshot(arguments)
    if arguments.json:
        print_json(snapshot.models)
        return 0
    columns = ("name", "provider", "model", "now", "key")
    rows = [(name, s.provider, s.model, _now(s), s.key_source) for name, s in snapshot.models.items()]
    print_table(columns, rows, empty="The pool is empty.")
    if snapshot.missing_keys:
        note(f"Keys that would bring models into play: {', '.join(snapshot.missing_keys)}. Where to get them: llmbroker env")
    return 0


def _take_list(path: str, source: str | None) -> int:
    if source is None or not is_store(source):
        raise InvalidRequestError("A model list goes into a database: --source broker.db.", argument="--source")
    listed = load_model_list(path)
    store = open_store(source)
    try:
        store.set_models(listed.llms)
        write_limits(store, listed.limits)
    finally:
        store.close()
    note(
        f"{source} has {_count(listed.llms, 'model')} now"
        + (f" and {_count(listed.limits, 'limit')}." if listed.limits else ".")
    )
    return 0


def _count(things: Sequence[Any], word: str) -> str:
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}"


def _snapshot(arguments: argparse.Namespace) -> Any:
    from llmbroker.broker import Broker

    with Broker(arguments.source) as broker:
        return (broker.for_scope(arguments.scope) if arguments.scope else broker).snapshot()


def _now(state: Any) -> str:
    if state.available:
        return "ready"
    word = str(state.reason).replace("_", " ")
    return f"{word} until {local_time(state.until)}" if state.until is not None else word


def snapshot(arguments: argparse.Namespace) -> int:
    """Print the state of the pool."""
    now = _snapshot(arguments)
    if arguments.json:
        print_json(now)
        return 0
    columns = ("name", "now", "failures", "running", "quality", "weight", "ratings", "half within", "detail")
    rows = [
        (
            name, _now(s), s.failures, s.running, f"{s.quality:.2f}", f"{s.weight:.2f}", f"{s.ratings:.0f}",
            None if s.seconds is None else f"{s.seconds:.1f} s", s.detail,
        )
        for name, s in now.models.items()
    ]  # fmt: skip
    print_table(columns, rows, right=columns[2:-1], empty="The pool is empty.")
    journal = now.journal
    print(f"journal: {journal.get('state', 'unknown')}" + (f", {journal['where']}" if journal.get("where") else ""))
    for line in now.notes:
        print(f"note: {line}")
    return 0


def catalog(arguments: argparse.Namespace) -> int:
    """Print the catalog in force, or take a newer one."""
    if arguments.take:
        return _take(arguments.take, arguments.sha256)
    current = home_catalog(data_home())
    if arguments.json:
        facts = {
            "as_of": current.as_of, "source": current.source, "sha256": current.digest, "pool": current.pool,
            "aliases": current.aliases, "keys": current.keys,
        }  # fmt: skip
        print_json(facts)
        return 0
    columns = ("alias", "name", "provider", "model", "key", "tools", "context")
    rows = [_row("", config, current) for config in current.pool]
    rows += [_row(alias, config, current) for alias, config in current.aliases.items()]
    print_table(columns, rows, right=("context",))
    note(f"As of {current.as_of}, from {current.source}. Rows without an alias are the free pool.")
    return 0


def _row(alias: str, config: Any, current: Any) -> tuple[Any, ...]:
    able = current.able(config)
    tools = None if able.tools is None else "yes" if able.tools else "no"
    context = None if able.context_tokens is None else f"{able.context_tokens:,}"
    return (alias, config.name, config.provider, config.model, config.api_key_ref, tools, context)


def _take(where: str, sha256: str | None) -> int:
    if "://" in where:
        if not sha256:
            raise InvalidRequestError("A catalog from a URL needs its digest: --sha256 HEX.", argument="--sha256")
        from llmbroker.transports.blocking import BlockingIO

        port = BlockingIO()
        try:
            data = port.drive(fetch_catalog(port, where, sha256=sha256))
        finally:
            port.close()
    else:
        try:
            data = Path(where).expanduser().read_bytes()
        except OSError as error:
            raise ConfigurationError(f"The catalog {where!r} cannot be read: {error.strerror}.") from None
    kept = keep_catalog(data, data_home(), sha256=sha256)
    print(f"The catalog of {kept.as_of} is in force ({len(kept.pool)} free models, {len(kept.aliases)} aliases).")
    return 0


def _offered(arguments: argparse.Namespace) -> int:
    """Ask a server for its list of models."""
    from llmbroker.client.direct import direct_deployment
    from llmbroker.faces.cli.offered import offered
    from llmbroker.faces.cli.target import key_from

    deployment = direct_deployment(
        base_url=arguments.base_url, provider=arguments.provider, model="any", api_key=key_from(arguments.key), headers=None,
        tool_params=None, leaked_calls=None, dialect=None,
    )  # fmt: skip
    names = offered(deployment)
    if arguments.json:
        print_json(names)
    else:
        for name in names:
            print(name)
        if not names:
            note("The server offers no models.")
    return 0
