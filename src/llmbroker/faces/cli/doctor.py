"""``llmbroker doctor`` and ``llmbroker paths``: whether everything is in its place, and where that is."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from llmbroker.errors import LLMBrokerError
from llmbroker.faces.cli.codes import FAILED
from llmbroker.faces.cli.output import note, print_json, print_table
from llmbroker.journal import FILE_NAME
from llmbroker.transports.model_store import DEFAULT, data_home, is_ready, stored_path

HELP = {
    "doctor": "Check keys, journal, model store, clock and versions. Nothing is sent unless --ping asks for it.",
    "paths": "Where llmbroker keeps its files. LLMBROKER_HOME moves them all.",
}


class Check(NamedTuple):
    """One thing that was looked at: ok, note (works, but know this) or fault."""

    what: str
    state: str
    says: str


def doctor_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--ping", action="store_true", help="ask each provider with a key for its list of models")
    parser.add_argument("--json", action="store_true", help="print JSON")


def paths_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def paths(arguments: argparse.Namespace) -> int:
    """Print the places."""
    home = data_home()
    places = {
        "home": home,
        "journal": home / FILE_NAME,
        "catalog": home / "catalog.toml",
        "model": stored_path(DEFAULT),
        "env file": (importlib.import_module("pathlib").Path(".env")).absolute(),
    }
    if arguments.json:
        print_json({name: str(path) for name, path in places.items()})
        return 0
    width = max(map(len, places))
    for name, path in places.items():
        print(f"{name:<{width}}  {path}" + ("" if path.exists() else "  (not there yet)"))
    return 0


def doctor(arguments: argparse.Namespace) -> int:
    """Check, print, and return 1 if there is a fault."""
    checks = [*_machine(), *_home(), *_journal(), *_keys(), *_model()]
    if arguments.ping:
        checks += _ping()
    if arguments.json:
        print_json([check._asdict() for check in checks])
    else:
        print_table(("what", "state", "says"), checks)
    faults = [check for check in checks if check.state == "fault"]
    if faults and not arguments.json:
        note(f"llmbroker: {len(faults)} fault(s): {', '.join(check.what for check in faults)}.")
    return FAILED if faults else 0


def _machine() -> Iterator[Check]:
    from llmbroker import __version__

    yield Check("llmbroker", "ok", __version__)
    yield Check("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    wrong = not 1_700_000_000 < time.time() < 4_000_000_000
    yield Check("clock", "fault" if wrong else "ok", time.strftime("%Y-%m-%d %H:%M:%S %z"))
    proxies = [name for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY") if os.environ.get(name)]
    if proxies:
        yield Check("proxy", "note", f"set by {', '.join(proxies)}")


def _home() -> Iterator[Check]:
    home = data_home()
    if not home.exists():
        parent = next(path for path in home.parents if path.exists())
        usable = os.access(parent, os.W_OK)
        yield Check("home", "note" if usable else "fault", f"{home} will be made" if usable else f"{home} cannot be made")
        return
    usable = os.access(home, os.W_OK)
    yield Check("home", "ok" if usable else "fault", str(home) if usable else f"{home} cannot be written; see LLMBROKER_HOME")
    if sys.platform != "win32" and home.stat().st_mode & 0o077:
        yield Check("home", "note", f"{home} can be read by others: chmod 700 {home}")


def _journal() -> Iterator[Check]:
    from llmbroker.faces.cli.rows import opened

    try:
        with opened(None) as journal:
            if journal is None:
                yield Check("journal", "note", "nothing was written yet")
                return
            newest = journal.calls(limit=1)
            health: dict[str, Any] = journal.health()
    except LLMBrokerError as error:
        yield Check("journal", "fault", str(error))
        return
    says = (
        f"{health.get('where')}; last call {newest[0].ts:%Y-%m-%d %H:%M} UTC" if newest else f"{health.get('where')}; no calls"
    )
    yield Check("journal", "ok" if health["state"] == "ok" else "fault", says)


def _keys() -> Iterator[Check]:
    from llmbroker.catalog import home_catalog
    from llmbroker.faces.cli.keys import ring, state_of

    names: dict[str, None] = {}
    try:
        catalog = home_catalog(data_home())
    except LLMBrokerError as error:
        yield Check("catalog", "fault", str(error))
    else:
        yield Check("catalog", "ok", f"as of {catalog.as_of}, {catalog.source}")
        names = dict.fromkeys(c.api_key_ref for c in (*catalog.pool, *catalog.aliases.values()) if c.api_key_ref)
    try:
        with ring() as keys:
            stored = [name for name, scope in keys.names() if scope is None]
            states = {name: state_of(keys, name) for name in dict.fromkeys([*names, *stored])}
    except LLMBrokerError as refused:
        yield Check("keys", "fault", str(refused))
        return
    known = [(name, source, trouble) for name, (source, trouble) in states.items() if source or trouble]
    for name, source, trouble in known:
        yield Check(f"key {name}", "fault" if trouble else "ok", trouble or f"from {source}")
    if not known:
        yield Check("keys", "note", "none was found; llmbroker env says where to get one, llmbroker demo needs none")


def _model() -> Iterator[Check]:
    if importlib.util.find_spec("xllamacpp") is None:
        yield Check("embedded model", "note", "not installed: pip install xllamacpp (the extra llmbroker[local])")
        return
    version = importlib.metadata.version("xllamacpp")
    state = str(stored_path(DEFAULT)) if is_ready() else "will be fetched on first use"
    yield Check("embedded model", "ok", f"xllamacpp {version}; {DEFAULT.name}: {state}")


def _ping() -> Iterator[Check]:
    from llmbroker.catalog import home_catalog
    from llmbroker.client.direct import direct_deployment
    from llmbroker.errors import MissingKeyError
    from llmbroker.faces.cli.offered import offered

    catalog = home_catalog(data_home())
    for provider in dict.fromkeys(c.provider for c in (*catalog.pool, *catalog.aliases.values()) if c.provider):
        try:
            deployment = direct_deployment(
                base_url=None, provider=provider, model="any", api_key=None, headers=None, tool_params=None,
                leaked_calls=None, dialect=None,
            )  # fmt: skip
        except MissingKeyError:
            continue
        began = time.monotonic()
        try:
            names = offered(deployment)
        except LLMBrokerError as error:
            yield Check(f"ping {provider}", "fault", str(error))
        else:
            yield Check(f"ping {provider}", "ok", f"{len(names)} models in {time.monotonic() - began:.2f} s")
