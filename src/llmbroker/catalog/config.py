"""What one model is to the broker: ``LLMConfig``, checked as it is made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from llmbroker.errors import ConfigurationError, InvalidRequestError
from llmbroker.exchange import RESERVED
from llmbroker.messages import check_text, plain, shown
from llmbroker.wire import can_be_sent

MOST_DOLLARS = 1e9
MOST_PARALLEL = 1_000_000
PRICE_KINDS = frozenset({"input", "output", "cached", "cache_write"})


class LLMConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One model as a pool member or a direct model.

    Attributes:
        name: its name in the broker; ``reply.llm_name`` and journal rows bear it.
        model: the provider's name of the model.
        base_url: where the provider's API begins; for OpenAI-compatible servers it ends before ``/chat/completions``.
        provider: id of a known provider (``openai``, ``anthropic``, ...); needed where ``base_url`` is not given.
        dialect: wire format, where it is not the provider's usual one: ``openai-chat``, ``openai-responses``,
            ``anthropic``, ``gemini``, ``ollama``.
        api_key_ref: name of the variable that holds the key. None: the provider's usual names; "": no key is needed.
        headers: further headers, sent with every request.
        weight: 0 to 1, how good it is thought to be before any rating.
        parallel: the most calls at once, or None for no cap.
        price: US dollars per million tokens, ``{"input": ..., "output": ..., "cached": ..., "cache_write": ...}``, where
            the packaged prices do not know the model.
        tool_params: parameters that this model needs whenever tools are sent; a call's ``params`` win over them.

    Raises:
        ConfigurationError: a value means nothing; says which field of which model.
    """

    name: str
    model: str
    base_url: str | None = None
    provider: str | None = None
    dialect: str | None = None
    api_key_ref: str | None = None
    headers: Mapping[str, str] = {}
    weight: float = 0.5
    parallel: int | None = None
    price: Mapping[str, float] | None = None
    tool_params: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        """Refuse values that mean nothing; keep copies of what the caller may change later."""
        for field in ("name", "model"):
            value = getattr(self, field)
            if not isinstance(value, str) or not value.strip():
                raise ConfigurationError(
                    f"A model needs a non-empty {field}; {shown(self.name)} has {shown(value)}.", field=field
                )
            _check_whole(field, value)
        for field in ("base_url", "provider", "dialect", "api_key_ref"):
            value = getattr(self, field)
            if not isinstance(value, str | None):
                raise ConfigurationError(f"{field} of {self.name} is a string, not {shown(value)}.", field=field)
            _check_whole(field, value or "")
        if not _is_number(self.weight) or not 0 <= self.weight <= 1:
            raise ConfigurationError(f"weight of {self.name} is between 0 and 1, not {shown(self.weight)}.", field="weight")
        if self.parallel is not None and (type(self.parallel) is not int or not 1 <= self.parallel <= MOST_PARALLEL):
            raise ConfigurationError(
                f"parallel of {self.name} is None or at least 1, not {shown(self.parallel)}.", field="parallel"
            )
        if not self.base_url and not self.provider:
            raise ConfigurationError(f"{self.name} needs a base_url or the id of a known provider.", field="base_url")
        if self.base_url is not None:
            _check_url(self.name, self.base_url)
        keep = msgspec.structs.force_setattr
        keep(self, "headers", _checked_headers(self.name, self.headers))
        keep(self, "tool_params", _checked_params(self.name, self.tool_params))
        if self.price is not None:
            keep(self, "price", _checked_price(self.name, self.price))

    def __repr__(self) -> str:
        """Show what was set, but no value of a header or of the address's query: it may be a credential."""
        words = []
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if field == "headers":
                value = dict.fromkeys(value, "***")
            elif field == "base_url" and value is not None:
                value = re.sub(r"(?<=[?&])([^=&#]*)=[^&#]*", r"\1=***", value)
            if value not in (None, {}):
                words.append(f"{field}={value!r}")
        return f"LLMConfig({', '.join(words)})"


def _check_whole(field: str, value: str) -> None:
    try:
        check_text(value, field)
    except InvalidRequestError as error:
        raise ConfigurationError(f"A model cannot be used: {error}", field=field) from None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_url(name: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:  # its words hold the address, and that may hold a password
        raise ConfigurationError(f"base_url of {name} is no URL.", field="base_url") from None
    if parts.scheme not in {"http", "https"} or not host:
        found = url.rpartition("@")[2].partition("?")[0][:40]
        raise ConfigurationError(
            f"base_url of {name} begins with https:// or http:// and a host, not {found!r}.", field="base_url"
        )
    if parts.username is not None:
        raise ConfigurationError(
            f"base_url of {name} may not hold a credential: name its variable in api_key_ref.", field="base_url"
        )
    if any(character <= " " or character == "\x7f" for character in url):
        raise ConfigurationError(f"base_url of {name} holds a space or a control character.", field="base_url")


def _checked_headers(name: str, headers: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise ConfigurationError(f"headers of {name} map names to values, not {type(headers).__name__}.", field="headers")
    for key, value in headers.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ConfigurationError(f"headers of {name} are strings; {shown(key)} is not.", field="headers")
        if not can_be_sent(key, value):
            raise ConfigurationError(
                f"header {shown(key)} of {name} cannot be sent: its name is none, or it holds a line break or a character "
                "that no header can carry.",
                field="headers",
            )
    return dict(headers)


def _checked_params(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(params, Mapping) or not all(isinstance(key, str) for key in params):
        raise ConfigurationError(f"tool_params of {name} map parameter names to values.", field="tool_params")
    reserved = RESERVED & set(params)
    if reserved:
        raise ConfigurationError(f"tool_params of {name} may not hold {', '.join(sorted(reserved))}.", field="tool_params")
    try:
        made: dict[str, Any] = plain(params, "tool_params")
    except InvalidRequestError as error:
        raise ConfigurationError(f"{name}: {error}", field="tool_params") from None
    return made


def _checked_price(name: str, price: Mapping[str, float]) -> dict[str, float]:
    if not isinstance(price, Mapping):
        raise ConfigurationError(f"price of {name} maps kinds of tokens to dollars per million.", field="price")
    unknown = set(price) - PRICE_KINDS
    if unknown:
        known = ", ".join(sorted(PRICE_KINDS))
        raise ConfigurationError(
            f"price of {name} has no kind {shown(sorted(unknown, key=shown)[0])}; known are {known}.", field="price"
        )
    for kind, dollars in price.items():
        if not _is_number(dollars) or not 0 <= dollars < MOST_DOLLARS:
            raise ConfigurationError(
                f"price of {name}: {kind} is dollars per million tokens, 0 or more, not {shown(dollars)}.", field="price"
            )
    return dict(price)
