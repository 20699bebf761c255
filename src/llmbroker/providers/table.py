"""The table of providers: who is known, by which names, and how a model's entry becomes a deployment.

Rows stand in ``vendors``; ``local`` has a file of its own. Nobody else in the library looks a provider up by name or chooses an
address: what is unknown is refused here, before a key leaves.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from llmbroker.catalog import LLMConfig
from llmbroker.credentials import Secret
from llmbroker.errors import InvalidRequestError
from llmbroker.providers import anthropic, gemini, local, ollama, openai_chat, openai_responses
from llmbroker.providers.base import Deployment, Dialect, Provider
from llmbroker.providers.urls import normal_base
from llmbroker.providers.vendors import COMPATIBLE, HOSTS, ROWS, face
from llmbroker.wire import can_be_sent

DIALECTS: dict[str, Dialect] = {
    module.DIALECT.name: module.DIALECT for module in (openai_chat, openai_responses, anthropic, gemini, ollama)
}
"""Wire formats by name."""

PROVIDERS: dict[str, Provider] = {row.id: row for row in (*ROWS, local.PROVIDER)}
"""Providers by id."""

ALIASES: dict[str, str] = {
    "aistudio": "gemini",
    "azure-openai": "azure",
    "azure_openai": "azure",
    "bigmodel": "zhipu",
    "claude": "anthropic",
    "dashscope": "alibaba",
    "fireworks-ai": "fireworks",
    "fireworks_ai": "fireworks",
    "glm": "zhipu",
    "google": "gemini",
    "grok": "xai",
    "hf": "huggingface",
    "kimi": "moonshot",
    "mimo": "xiaomi",
    "mistralai": "mistral",
    "moonshotai": "moonshot",
    "nvidia-nim": "nvidia",
    "pplx": "perplexity",
    "qwen": "alibaba",
    "together-ai": "together",
    "together_ai": "together",
    "togetherai": "together",
    "x-ai": "xai",
    "x.ai": "xai",
    "z.ai": "zai",
    "z-ai": "zai",
    "zhipuai": "zhipu",
}
"""Other names that people use, to ids."""


def lookup(name: str) -> Provider:
    """Return the provider of that id or alias; capitals do not matter.

    Raises:
        InvalidRequestError: nobody of that name is known; the message names those that are near.
    """
    folded = name.strip().casefold() if isinstance(name, str) else ""
    found = PROVIDERS.get(ALIASES.get(folded, folded))
    if found is not None:
        return found
    import difflib

    near = difflib.get_close_matches(folded, [*PROVIDERS, *ALIASES], n=3, cutoff=0.6)
    meant = f" Did you mean {' or '.join(near)}?" if near else ""
    raise InvalidRequestError(
        f"Unknown provider {name!r}.{meant} Known: {', '.join(sorted(PROVIDERS))}; any other server: give its base_url.",
        argument="provider",
    )


def dialect_of(name: str) -> Dialect:
    """Return the wire format of that name.

    Raises:
        InvalidRequestError: there is none.
    """
    found = DIALECTS.get(name)
    if found is None:
        raise InvalidRequestError(f"Unknown dialect {name!r}. Known: {', '.join(DIALECTS)}.", argument="dialect")
    return found


def _hosts() -> dict[str, Provider]:
    hosts: dict[str, Provider] = {}
    for row in PROVIDERS.values():
        for base in (row.base_url, *(url for _, url in row.dialects.values())):
            address = urlsplit(base) if base else None
            if address is not None and address.hostname and address.hostname != "localhost":
                hosts.setdefault(address.hostname, row)
    return {**hosts, **{host: PROVIDERS[name] for host, name in HOSTS.items()}}


def compatible(base_url: str) -> Provider:
    """Return who serves at an address: the vendor whose host it is, else a plain OpenAI-compatible server.

    Raises:
        InvalidRequestError: it is no http or https address.
    """
    host = urlsplit(normal_base(base_url)).hostname or ""
    found = _HOSTS.get(host)
    if found is None:
        found = next((PROVIDERS[name] for end, name in HOSTS.items() if end.startswith(".") and host.endswith(end)), COMPATIBLE)
    return found


def key_names(row: Provider, base_url: str | None) -> tuple[str, ...]:
    """Return the variables whose keys were declared for an address; none for an address that is not the vendor's.

    Args:
        row: the vendor.
        base_url: the address as the user gave it; None for the vendor's own (``deployment_for`` goes where the key belongs).
            Where the vendor has no address of its own, every address is the user's and gets the vendor's keys.
    """
    if base_url is None or row.base_url is None:
        return row.key_names
    there = _site(base_url)
    own = {_site(row.base_url), *(_site(url) for _, url in row.dialects.values())}
    return tuple(name for name in row.key_names if (there == _site(row.bases[name]) if name in row.bases else there in own))


def _site(url: str) -> tuple[str, str | None]:
    """Return scheme and host: a key that goes over TLS is never sent without."""
    address = urlsplit(url.strip())
    return address.scheme.lower(), address.hostname


def deployment_for(
    config: LLMConfig,
    key: Secret | None,
    *,
    leaked_calls: bool | None = None,
    environ: Mapping[str, str] | None = None,
) -> Deployment:
    """Return the deployment of a model's entry.

    Args:
        config: the entry.
        key: its key, or None.
        leaked_calls: look for tool calls in the text; None: as the provider's row says (on for local and unknown servers).
        environ: where a base URL may be found that only the user knows (``AZURE_OPENAI_ENDPOINT``); the environment if None.

    Raises:
        InvalidRequestError: the provider or dialect is unknown, the base URL is missing or no address, or the key holds what
            no header can carry.
    """
    if key is not None and not can_be_sent("authorization", key.reveal()):
        raise InvalidRequestError(
            f"The key of {config.name} ({key.source or 'as it was given'}) holds a line break or a character that no header "
            "can carry: copy it again.",
            argument="api_key",
        )
    given = normal_base(config.base_url) if config.base_url else None
    if config.provider:
        row = lookup(config.provider)
    elif given is not None:
        row = compatible(given)
    else:
        raise InvalidRequestError(f"{config.name} needs a provider or a base_url.", argument="base_url")
    dialect = dialect_of(config.dialect) if config.dialect else _usual(row, given)
    provider = _provider(row, dialect, given)
    base = (
        _with_path(given, row, dialect)
        if given is not None
        else _base(row, dialect, key, os.environ if environ is None else environ)
    )
    return Deployment(
        name=config.name,
        provider=provider,
        dialect=dialect,
        base_url=base,
        model=config.model,
        key=key,
        headers=config.headers,
        tool_params=config.tool_params,
        leaked_calls="leaked-calls" in provider.quirks if leaked_calls is None else leaked_calls,
        named=bool(config.provider),
        price=config.price,
    )


def _usual(row: Provider, given: str | None) -> Dialect:
    """Return the dialect at an address: the one of its path, where a vendor has several there, else its usual one."""
    if given is not None and row.base_url is not None and given != row.base_url:
        path = urlsplit(given).path
        for dialect, url in row.dialects.values():
            if urlsplit(url).path == path and urlsplit(row.base_url).path != path:
                return dialect
    return row.dialect


def _provider(row: Provider, dialect: Dialect, given: str | None) -> Provider:
    if dialect.name == row.dialect.name or dialect.name in row.dialects:
        return face(row, dialect)
    if row is COMPATIBLE:
        first = _FIRST[dialect.name]
        return msgspec.structs.replace(
            COMPATIBLE,
            id=COMPATIBLE.id if first is COMPATIBLE else f"{dialect.name}-compatible",
            title=f"a server that speaks {dialect.name}",
            dialect=dialect,
            auth=first.auth,
            headers=first.headers,
            reasoning=first.reasoning,
            features=first.features,
            quirks=COMPATIBLE.quirks,
        )
    if given is not None:
        return face(row, dialect)
    spoken = ", ".join([row.dialect.name, *row.dialects])
    raise InvalidRequestError(
        f"{row.title} has no known address for {dialect.name}; it speaks {spoken}. Give base_url to use another.",
        argument="dialect",
    )


def _base(row: Provider, dialect: Dialect, key: Secret | None, environ: Mapping[str, str]) -> str:
    """Return where the API of a known vendor begins."""
    for name in row.base_names:
        value = environ.get(name, "").strip()
        if value:
            return _with_path(normal_base(_with_scheme(value)), row, dialect)
    if key is not None and dialect.name == row.dialect.name:
        for name, url in row.bases.items():
            if name in key.source.split():
                return url
    if dialect.name in row.dialects:
        return row.dialects[dialect.name][1]
    if row.base_url is None:
        names = f" or set {row.base_names[0]}" if row.base_names else ""
        raise InvalidRequestError(f"{row.title} has no address of its own: give base_url{names}.", argument="base_url")
    return row.base_url


def _with_scheme(value: str) -> str:
    """Return an address out of ``127.0.0.1:11434`` or ``0.0.0.0``, as Ollama's own variable holds it."""
    if "://" in value:
        return value
    host, _, port = value.partition(":")
    if host in ("", "0.0.0.0"):  # noqa: S104 - where a server listens; a client calls the machine itself
        host = "127.0.0.1"
    return f"http://{host}:{port or 11434}"


def _with_path(base: str, row: Provider, dialect: Dialect) -> str:
    """Return a base URL that was given without a path with the one that this vendor's API has."""
    address = urlsplit(base)
    if address.path or row is COMPATIBLE:
        return base
    known = row.dialects[dialect.name][1] if dialect.name in row.dialects else row.base_url
    path = urlsplit(known).path if known else row.path
    return address._replace(path=path).geturl()


_FIRST: dict[str, Provider] = {name: next((row for row in ROWS if row.dialect.name == name), COMPATIBLE) for name in DIALECTS}
"""For each dialect the vendor that speaks it first: how its keys and headers look."""

_HOSTS = _hosts()
