"""Who answers: the pool, an alias, one model of a provider, any compatible server, the embedded model."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from llmbroker.errors import InvalidRequestError, UnknownModelError


class Target(NamedTuple):
    """A caller with ``chat`` and ``stream``, the options that each of its calls gets, and what it is called."""

    caller: Any
    options: dict[str, Any]
    name: str


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that choose who answers."""
    target = parser.add_argument_group("who answers")
    target.add_argument(
        "-m", "--model", metavar="NAME", default=os.environ.get("LLMBROKER_MODEL") or None,
        help="a model of the pool, an alias, provider/model, local, or a .gguf file\n"
        "(else $LLMBROKER_MODEL, else the pool chooses)",
    )  # fmt: skip
    target.add_argument("--base-url", metavar="URL", help="any OpenAI-compatible server; needs -m")
    target.add_argument("--provider", metavar="ID", help="a known provider; needs -m")
    target.add_argument("--key", metavar="VARIABLE", help="the variable that holds the key for --base-url")
    target.add_argument("--source", metavar="PATH", help="a model list (models.toml) or a database (broker.db)")
    target.add_argument("--scope", metavar="USER", help="call with this user's keys, under this user's name")
    target.add_argument("-o", "--operation", metavar="NAME", help="what this is for; kept in the journal")
    target.add_argument("--trace", metavar="ID", help="groups calls in the journal")
    target.add_argument(
        "--prefer", type=preferred, metavar="WHAT", help="quality, speed, cost, or weights such as quality=1,cost=2"
    )
    target.add_argument("--timeout", type=float, metavar="SECONDS", help="for everything together")
    target.add_argument(
        "-p", "--param", action="append", default=[], metavar="NAME=VALUE", help="a parameter such as temperature=0.2"
    )


@contextlib.contextmanager
def open_target(arguments: argparse.Namespace) -> Iterator[Target]:
    """Give the caller that the options name, and close it.

    Raises:
        InvalidRequestError: the options contradict each other.
        UnknownModelError: nobody bears the name; a near one is suggested.
    """
    announce()
    params = parameters(arguments.param)
    if arguments.base_url or arguments.provider:
        client = _addressed(arguments)
        with client:
            yield Target(client, _direct_options(arguments, params), client.model)
        return
    from llmbroker.broker import Broker

    chosen = _chosen(arguments.model, arguments.source)
    with Broker(arguments.source, pool=[chosen] if chosen is not None else None) as broker:
        caller = broker.for_scope(arguments.scope) if arguments.scope else broker
        if arguments.model and chosen is None:
            client = caller.direct(arguments.model)
            yield Target(client, _direct_options(arguments, params), client.model)
            return
        options: dict[str, Any] = {
            "params": params or None,
            "operation": arguments.operation,
            "trace_id": arguments.trace,
            "wait": arguments.timeout,
            "prefer": arguments.prefer,
        }
        yield Target(caller, {name: value for name, value in options.items() if value is not None}, "the pool")


def announce() -> None:
    """Say on stderr that the embedded model is fetched or started: that takes its time, and it is a very small model."""
    import logging

    logger = logging.getLogger("llmbroker.local")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("llmbroker: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)


def _direct_options(arguments: argparse.Namespace, params: dict[str, Any]) -> dict[str, Any]:
    options = {"params": params or None, "timeout": arguments.timeout}
    return {name: value for name, value in options.items() if value is not None}


def _addressed(arguments: argparse.Namespace) -> Any:
    if not arguments.model:
        raise InvalidRequestError("--base-url and --provider need the name of a model: -m NAME.", argument="--model")
    from llmbroker.client import DirectClient

    return DirectClient(
        base_url=arguments.base_url, provider=arguments.provider, model=arguments.model, api_key=key_from(arguments.key)
    )


def key_from(variable: str | None) -> str | None:
    """Return the key that a variable holds, None where no variable is named.

    Raises:
        InvalidRequestError: it is not set.
    """
    if not variable:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise InvalidRequestError(f"The variable {variable} is not set.", argument="--key")
    return key


def _chosen(name: str | None, source: str | None) -> Any:
    """Return the one model that shall make up the pool, None for the whole pool or a direct alias."""
    if not name:
        return None
    from llmbroker.catalog import LLMConfig, home_catalog, read_model_list
    from llmbroker.journal import is_store, open_store
    from llmbroker.providers import table
    from llmbroker.transports.model_store import DEFAULT, MODELS, data_home

    embedded = {"local": DEFAULT.name, **{known: known for known in MODELS}}.get(name)
    is_file = embedded is None and name.lower().endswith(".gguf")
    if is_file and not Path(name).expanduser().is_file():
        raise InvalidRequestError(f"There is no file {name!r} to load a model from.", argument="--model")
    if embedded is not None or is_file:
        return LLMConfig(name="local", provider="local", model=embedded or name, api_key_ref="")
    catalog = home_catalog(data_home())
    pool: Sequence[LLMConfig] = catalog.pool
    if source and is_store(source):
        store = open_store(source)
        try:
            pool = store.models() or pool
        finally:
            store.close()
    elif source:
        pool = read_model_list(source)
    for config in pool:
        if config.name == name:
            return config
    if name in catalog.aliases:
        return None
    exact = catalog.named(name)
    if exact is not None:
        return exact
    provider, slash, model = name.partition("/")
    if slash and model and provider.lower() in {*table.PROVIDERS, *table.ALIASES}:
        row = table.lookup(provider)
        return LLMConfig(name=name, provider=row.id, model=model, api_key_ref=None if row.needs_key else "")
    import difflib

    known = [*(config.name for config in pool), *catalog.aliases, "local"]
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
    meant = f" Did you mean {' or '.join(near)}?" if near else ""
    raise UnknownModelError(
        f"There is no model {name!r}.{meant} llmbroker models and llmbroker catalog list the names; provider/model names any."
    )


def preferred(text: str) -> Any:
    """Return what --prefer names: a word, or a mapping of weights.

    Raises:
        argparse.ArgumentTypeError: it is neither.
    """
    from llmbroker.preference import preference

    try:
        if "=" not in text:
            return preference(text.strip())
        weights: dict[str, float] = {}
        for pair in text.split(","):
            name, _, weight = pair.partition("=")
            weights[name.strip()] = float(weight)
        return preference(weights)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither quality, speed, cost nor weights such as quality=1,cost=2"
        ) from None


def parameters(pairs: list[str]) -> dict[str, Any]:
    """Return parameters of the form ``name=value``; a value that is JSON is taken as such.

    Raises:
        InvalidRequestError: one has no name or no value.
    """
    import msgspec

    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise InvalidRequestError(f"A parameter is NAME=VALUE, not {pair!r}.", argument="--param")
        try:
            found[name.strip()] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            found[name.strip()] = value
    return found
