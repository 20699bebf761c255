"""``llm_config``: provider, model, key and parameters as one value, checked when it is made; a key is read at a call only."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import msgspec

from llmbroker import prices
from llmbroker.catalog import LLMConfig
from llmbroker.client import checked_seconds
from llmbroker.credentials import Secret
from llmbroker.errors import ConfigurationError, InvalidRequestError
from llmbroker.providers import table
from llmbroker.providers.base import Deployment
from llmbroker.research import keys, vocabulary

LONGEST = 600.0
"""Seconds of one attempt, where the config does not say: reasoning models take minutes."""

_MOST = 1024
_known: OrderedDict[Any, Deployment] = OrderedDict()
_lock = threading.Lock()


class ModelConfig:
    """A model and how it is to be asked, made by ``llm_config``; it does not change, ``replace`` makes another.

    Attributes:
        provider: id of the provider, or the name that was given to a server of one's own.
        model: the provider's name of the model.
        base_url: where the API is, if it was given.
        embedding: whether texts become vectors instead of answers.
        no_change: parameters are sent as they were written.
        params: generation parameters, in the one vocabulary.
        response_format: the form of the answer that was asked for, or None.
        timeout: seconds of one attempt. price: dollars per million tokens, where the packaged list does not know the model.
        left_out: parameters that this model cannot take and that are not sent.
    """

    __slots__ = (
        "_deployment", "_entry", "_key", "_needs_key", "_sent", "base_url", "cache", "embedding", "left_out", "model",
        "no_change", "params", "price", "provider", "response_format", "timeout",
    )  # fmt: skip

    provider: str
    model: str
    base_url: str | None
    embedding: bool
    no_change: bool
    params: Mapping[str, Any]
    response_format: Any
    timeout: float
    price: Mapping[str, float] | None
    cache: bool
    left_out: tuple[str, ...]
    _entry: LLMConfig
    _key: keys.Key
    _needs_key: bool
    _sent: Mapping[str, Any]

    def __init__(self, **fields: Any) -> None:
        self._deployment: Deployment | None = None
        for name, value in fields.items():
            setattr(self, name, value)

    def replace(self, **changes: Any) -> ModelConfig:
        """Return a config with other parameters, another provider, model, key or anything else that ``llm_config`` takes."""
        facts = self._arguments()
        if "provider" in changes and "base_url" not in changes and changes["provider"] != self.provider:
            facts["base_url"] = facts["api_key"] = facts["dialect"] = None
        return llm_config(**{**facts, **changes})

    def _arguments(self) -> dict[str, Any]:
        entry = self._entry
        return {
            "provider": self.provider, "model": self.model, "api_key": self._key, "base_url": self.base_url,
            "embedding": self.embedding, "no_change": self.no_change, "timeout": self.timeout, "dialect": entry.dialect,
            "headers": entry.headers, "price": self.price, "cache": self.cache, "response_format": self.response_format,
            **self.params,
        }  # fmt: skip

    def deployment(self) -> Deployment:
        """Return whom to send requests to; reads the key.

        Raises:
            MissingKeyError: the provider needs a key and none is found.
        """
        key = self._key.find(needed=self._needs_key)
        made = self._deployment
        if made is None or made.key != key:
            made = self._deployment = _deployment(self._entry, key, self.no_change)
            if key is None and made.provider.needs_key:
                self._deployment = None
                raise keys.missing(made.provider, self._key, self.base_url, self.model)
        return made

    @property
    def sent(self) -> Mapping[str, Any]:
        """The parameters in the words of the provider's dialect, before its own renames."""
        return self._sent

    def cost(self, usage: Any, at: Any) -> float | None:
        """Return what a call cost in US dollars, or None where that is not known."""
        entry = self._entry
        return prices.cost(usage, at=at, model=self.model, provider=entry.provider, base_url=entry.base_url, price=self.price)

    def rates(self, at: Any) -> Any:
        """Return the rates of this model at that moment (``prices.Rates``), or None where they are not known."""
        entry = self._entry
        found = (
            prices.declared(self.price)
            if self.price is not None
            else prices.price_of(self.model, provider=entry.provider, base_url=entry.base_url)
        )
        return found.at(at) if found is not None else None

    def __eq__(self, other: object) -> bool:
        """Compare all that can be written down; keys by their references."""
        return isinstance(other, ModelConfig) and self._facts() == other._facts()

    def __hash__(self) -> int:
        """Hash provider, model and address."""
        return hash((self.provider, self.model, self.base_url))

    def _facts(self) -> Any:
        facts = self._arguments()
        key = facts.pop("api_key")
        return facts, key.names, key.literal

    def __repr__(self) -> str:
        """Show everything but the value of a key."""
        shown = [f"{self.provider!r}, {self.model!r}", f"api_key={self._key!r}"]
        if self.base_url:
            shown.append(f"base_url={self.base_url!r}")
        shown += [f"{name}=True" for name in ("embedding", "no_change") if getattr(self, name)]
        return f"llm_config({', '.join([*shown, *(f'{name}={value!r}' for name, value in self.params.items())])})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive pickling; a literal key is left behind, references are kept."""
        return _remade, (self._arguments(),)


def _remade(facts: dict[str, Any]) -> ModelConfig:
    return llm_config(**facts)


def _deployment(entry: LLMConfig, key: Secret | None, verbatim: bool) -> Deployment:
    """Return the deployment of an entry; configs that differ only in parameters share one, and what it learns."""
    mark = (
        entry.provider, entry.base_url, entry.model, entry.dialect, verbatim, key, key.source if key else "",
        tuple(entry.headers.items()),
    )  # fmt: skip
    with _lock:
        found = _known.get(mark)
        if found is not None:
            _known.move_to_end(mark)
            return found
    made = table.deployment_for(entry, key)
    if verbatim:
        made.verbatim = True
        made.dialect = msgspec.structs.replace(made.dialect, mend=None)
    with _lock:
        while len(_known) >= _MOST:
            _known.popitem(last=False)
        return _known.setdefault(mark, made)


def llm_config(
    provider: str,
    model: str,
    *,
    api_key: Any = None,
    base_url: str | None = None,
    embedding: bool | None = None,
    no_change: bool = False,
    timeout: float | None = None,
    dialect: str | None = None,
    headers: Mapping[str, str] | None = None,
    price: Mapping[str, float] | None = None,
    cache: bool = False,
    response_format: Any = None,
    **params: Any,
) -> ModelConfig:
    """Return a config: who is asked, with which parameters. Nothing is sent, no key is read.

    Args:
        provider: a known provider, capitals do not matter; any other name with ``base_url``.
        model: the provider's name of the model.
        api_key: name of the variable that holds the key (``OPENAI_API_KEY``, ``env:my_key``), a list of names, or the key
            itself, which is shown and stored nowhere. None: the provider's usual variables.
        base_url: an OpenAI-compatible server, up to before ``/chat/completions``.
        embedding: texts become vectors. None: as the provider and the model's name say.
        no_change: send parameters under the names and with the values given, also those that this model does not take.
        timeout: seconds of one attempt; None: 600.
        dialect: another wire format than the provider's usual one (``openai-responses``).
        headers: further headers.
        price: US dollars per million tokens: ``{"input": 0.15, "output": 0.6}``, also ``cached`` and ``cache_write``.
        cache: mark system message and tools for the provider's prompt cache, where it wants marks.
        response_format: the form of the answer: a pydantic model, a dataclass, a JSON schema, or OpenAI's mapping.
        **params: temperature, top_p, top_k, max_tokens, seed, stop, frequency_penalty, presence_penalty, repetition_penalty,
            logprobs, top_logprobs, reasoning_effort, thinking_budget, tool_choice and whatever else the provider knows.

    Raises:
        InvalidRequestError: an unknown provider without ``base_url``, or an argument that means nothing.

    Warns:
        UserWarning: once for each parameter that the model does not take and that is left out.
    """
    api_key = keys.hidden(api_key)
    if not isinstance(provider, str) or not provider.strip():
        raise InvalidRequestError(f"provider is the name of a provider, not {provider!r}.", argument="provider")
    if not isinstance(model, str) or not model.strip():
        raise InvalidRequestError(f"model is the name of a model, not {model!r}.", argument="model")
    for name, instead in (("api_url", "base_url, up to before /chat/completions"), ("api_key_env", "api_key")):
        if name in params:
            raise InvalidRequestError(f"{name} is not known here: give {instead}.", argument=name)
    known = _known_provider(provider, base_url)
    entry = _entry(known, model.strip(), base_url, _dialect(params, dialect), headers)
    probe = table.deployment_for(entry, None) if base_url or known is None else _probe(entry)
    key = keys.read_key(api_key, probe.provider, base_url, known or provider.strip())
    if price is None and probe.base_url == "local:":
        price = {"input": 0.0, "output": 0.0}  # nobody asks money for the model in this process
    given = vocabulary.checked(params)
    probe.verbatim = bool(no_change)
    embeds = _embeds(embedding, probe)
    made = ModelConfig(
        provider=known or provider.strip().casefold(), model=entry.model, base_url=base_url, embedding=embeds,
        no_change=bool(no_change), params=given, timeout=checked_seconds(timeout, "timeout") or LONGEST, price=price,
        cache=bool(cache), response_format=response_format, _entry=entry, _key=key, _needs_key=probe.provider.needs_key,
        left_out=() if embeds else tuple(vocabulary.without_effect(probe, given)),
        _sent=given if no_change else vocabulary.in_words_of(probe, given),
    )  # fmt: skip
    vocabulary.tell(probe, list(made.left_out))
    return made


def _dialect(params: dict[str, Any], dialect: str | None) -> str | None:
    return "openai-responses" if params.pop("use_responses_api", False) and dialect is None else dialect


def _known_provider(provider: str, base_url: str | None) -> str | None:
    """Return the id of a known provider; None for a name of the user's own, which needs an address."""
    try:
        return table.lookup(provider).id
    except InvalidRequestError:
        if base_url is None:
            raise
        return None


def _entry(
    provider: str | None, model: str, base_url: str | None, dialect: str | None, headers: Mapping[str, str] | None
) -> LLMConfig:
    try:
        return LLMConfig(
            name=model, model=model, provider=provider, base_url=base_url, dialect=dialect, headers=dict(headers or {})
        )
    except ConfigurationError as error:
        named = next((name for name in ("base_url", "headers", "dialect") if name in str(error)), "model")
        raise InvalidRequestError(str(error), argument=named) from None


def _probe(entry: LLMConfig) -> Deployment:
    """Return a deployment to encode with, also where the provider's address is known only at the call (its variable)."""
    try:
        return table.deployment_for(entry, None)
    except InvalidRequestError:
        row = table.lookup(entry.provider or "")
        if row.base_url is not None or not row.base_names:
            raise
        return table.deployment_for(msgspec.structs.replace(entry, base_url="https://address.invalid"), None)


def _embeds(wanted: bool | None, probe: Deployment) -> bool:
    features = probe.provider.features
    if "embeddings_only" in features:
        return True
    return "embed" in probe.model.lower() if wanted is None else bool(wanted)
