"""One vocabulary of parameters: what a config's words become in the words of its dialect, and what has no effect there.

The providers' own files rename, move and leave out (``providers``). Here stand only the words that no provider's file can know,
since they belong to another vendor, and the question which of a config's parameters change nothing in what is sent.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import msgspec

from llmbroker.errors import InvalidRequestError, LLMBrokerError
from llmbroker.exchange import make_request
from llmbroker.providers.base import Deployment

_CHAT: Mapping[str, str | None] = {
    "stop_sequences": "stop",
    "max_output_tokens": "max_tokens",
    "include_thoughts": None,
    "thinking_budget": None,
    "response_mime_type": None,
    "safety_settings": None,
}
_WORDS: Mapping[str, Mapping[str, str | None]] = {
    "openai-chat": _CHAT,
    "openai-responses": {**_CHAT, "max_output_tokens": "max_output_tokens"},
    "anthropic": {"response_mime_type": None, "safety_settings": None},
    "gemini": {"thinking": None},
    "ollama": {**_CHAT, "thinking_budget": "thinking_budget", "include_thoughts": "include_thoughts"},
    "local": _CHAT,
}
"""For each dialect: words of other vendors, to its own word or to None (it has none)."""

NUMBERS = frozenset({"temperature", "top_p", "frequency_penalty", "presence_penalty", "repetition_penalty"})
WHOLE = frozenset({"max_tokens", "max_completion_tokens", "max_output_tokens", "top_k", "seed", "n", "top_logprobs"})
_told: set[tuple[str, str, str]] = set()


def checked(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters without those that are None.

    Raises:
        InvalidRequestError: a number is none, or is not finite.
    """
    out = {name: value for name, value in params.items() if value is not None}
    for name, value in out.items():
        whole = name in WHOLE
        if not whole and name not in NUMBERS:
            continue
        number = isinstance(value, int) if whole else isinstance(value, (int, float))
        if isinstance(value, float) and whole and value.is_integer():
            out[name], number = int(value), True
        if isinstance(value, bool) or not number or not math.isfinite(value):
            kind = "a whole number" if whole else "a finite number"
            raise InvalidRequestError(f"{name} is {kind}, not {value!r}.", argument=name)
    return out


def in_words_of(deployment: Deployment, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters without what belongs to other vendors."""
    words = _WORDS.get(deployment.dialect.name, {})
    out: dict[str, Any] = {}
    for name, value in params.items():
        if name in words and f"takes-{name}" not in deployment.provider.quirks:
            ours = words[name]
            if ours is not None:
                out.setdefault(ours, value)
        else:
            out[name] = value
    return out


def body_of(deployment: Deployment, params: Mapping[str, Any]) -> bytes | None:
    """Return what would be sent for a short message with these parameters, or None where nothing would be."""
    try:
        return deployment.dialect.encode(make_request("x", params=in_words_of(deployment, params)), deployment).body
    except LLMBrokerError:
        return None


def without_effect(deployment: Deployment, params: Mapping[str, Any]) -> list[str]:
    """Return the parameters that change nothing in what is sent: neither their absence nor another value would show.

    What another parameter implies (``logprobs`` where ``top_logprobs`` stands) is sent all the same and does not count.
    """
    if deployment.verbatim or not params:
        return []
    whole, bare = body_of(deployment, params), body_of(deployment, {})
    if whole is None or bare is None:
        return []
    out = []
    for name, value in params.items():
        rest = {key: item for key, item in params.items() if key != name}
        if body_of(deployment, rest) != whole or body_of(deployment, {**rest, name: _other(value)}) != whole:
            continue
        alone = _leaves(body_of(deployment, {name: value}) or b"{}") - _leaves(bare)
        if not alone or not alone <= _leaves(whole):
            out.append(name)
    return out


def _leaves(body: bytes) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()

    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                walk(inner, f"{path}/{key}")
        else:
            found.add((path, repr(value)))

    walk(msgspec.json.decode(body), "")
    return found


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1 if isinstance(value, int) else value / 2 + 0.125
    return "another" if isinstance(value, str) else ["another"] if isinstance(value, list) else value


def tell(deployment: Deployment, names: list[str]) -> None:
    """Warn once about each parameter that is left out for this model."""
    fresh = [name for name in names if (deployment.provider.id, deployment.model, name) not in _told]
    _told.update((deployment.provider.id, deployment.model, name) for name in fresh)
    if fresh:
        verb = "is" if len(fresh) == 1 else "are"
        warnings.warn(
            f"{', '.join(fresh)} {verb} not taken by {deployment.provider.id} for model {deployment.model} and left out of "
            "what is sent; llm_config(..., no_change=True) keeps everything as you wrote it.",
            UserWarning,
            stacklevel=4,
        )
