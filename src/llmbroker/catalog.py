"""Facts about models: what a deployment is, aliases, the free pool, abilities. Packaged data, never fetched on import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from llmbroker.errors import ConfigurationError
from llmbroker.exchange import RESERVED


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
        price: US dollars per million tokens, ``{"input": ..., "output": ..., "cached": ...}``, where the packaged prices
            do not know the model.
        tool_params: parameters that this model needs whenever tools are sent; a call's ``params`` win over them.
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
        """Refuse values that mean nothing.

        Raises:
            ConfigurationError: says which field of which model is wrong.
        """
        for field in ("name", "model"):
            value = getattr(self, field)
            if not isinstance(value, str) or not value.strip():
                raise ConfigurationError(f"A model needs a non-empty {field}; {self.name!r} has {value!r}.")
        if not isinstance(self.weight, (int, float)) or not 0 <= self.weight <= 1:
            raise ConfigurationError(f"weight of {self.name} is between 0 and 1, not {self.weight!r}.")
        if self.parallel is not None and (not isinstance(self.parallel, int) or self.parallel < 1):
            raise ConfigurationError(f"parallel of {self.name} is None or at least 1, not {self.parallel!r}.")
        if not self.base_url and not self.provider:
            raise ConfigurationError(f"{self.name} needs a base_url or the id of a known provider.")
        reserved = RESERVED & set(self.tool_params)
        if reserved:
            raise ConfigurationError(f"tool_params of {self.name} may not hold {', '.join(sorted(reserved))}.")
