"""Usage in the words of OpenAI-compatible servers, normalised.

The vendors differ in where they count (see "Usage" in the notes of the wire formats): xAI keeps reasoning outside
``completion_tokens``, Mistral keeps sound outside ``prompt_tokens``, Gemini's compatible face keeps thoughts out of everything
but the total. The rule is one: the parts add up to the provider's own total. What is not said stays None.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from llmbroker.exchange import Usage
from llmbroker.providers.params import whole_number

JSON: TypeAlias = dict[str, Any]

_INPUT = ("prompt_tokens", "input_tokens")
_OUTPUT = ("completion_tokens", "output_tokens")
_INPUT_DETAILS = ("prompt_tokens_details", "input_tokens_details")
_OUTPUT_DETAILS = ("completion_tokens_details", "output_tokens_details")
_CACHED = (
    "cached_tokens",  # Together, Moonshot
    "prompt_cache_hit_tokens",  # DeepSeek
    "num_cached_tokens",  # Mistral
    "cache_read_input_tokens",  # Databricks, Venice
    "cached_input_tokens",
    "cachedContentTokenCount",
    "cacheReadInputTokens",
    "cacheReadInputTokenCount",
)
_WRITTEN = ("cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens")


_SELDOM = frozenset({*_CACHED, *_WRITTEN})
"""Names outside the details, which most servers do not use."""


def _first(table: JSON, names: tuple[str, ...]) -> int | None:
    for name in names:
        value = table.get(name)
        if value is not None:
            found = whole_number(value)
            if found is not None:
                return found
    return None


def _details(table: JSON, names: tuple[str, ...]) -> JSON:
    for name in names:
        value = table.get(name)
        if isinstance(value, dict):
            return value
    return {}


def read_usage(usage: JSON) -> Usage | None:
    """Return the normalised usage of one usage object, or None if it says nothing."""
    sent, made = _first(usage, _INPUT), _first(usage, _OUTPUT)
    total = whole_number(usage.get("total_tokens"))
    of_input, of_output = _details(usage, _INPUT_DETAILS), _details(usage, _OUTPUT_DETAILS)
    cached = whole_number(of_input.get("cached_tokens"))
    written = _first(of_input, _WRITTEN) if of_input else None
    if not usage.keys().isdisjoint(_SELDOM):
        if cached is None:
            cached = _first(usage, _CACHED)
        if written is None:
            written = _first(usage, _WRITTEN)
    reasoning = whole_number(of_output.get("reasoning_tokens"))
    if reasoning is None:
        reasoning = whole_number(usage.get("reasoning_tokens"))
    if sent is not None and made is not None:
        if total is None:
            total = sent + made
        elif total > sent + made:
            sent, made = _added_up(sent, made, total, reasoning, whole_number(of_input.get("audio_tokens")))
    if sent is None and made is None and total is None:
        return None
    return Usage(sent, made, cached, written, reasoning, total)


def _added_up(sent: int, made: int, total: int, reasoning: int | None, audio: int | None) -> tuple[int, int]:
    """Return input and output that make the total, where something stands outside both."""
    missing = total - sent - made
    if reasoning and missing == reasoning:  # xAI
        return sent, made + reasoning
    if audio and missing == audio:  # Mistral
        return sent + audio, made
    if audio and reasoning and missing == audio + reasoning:
        return sent + audio, made + reasoning
    return sent, total - sent  # Gemini behind its compatible face: thoughts are in the total alone


def overlay(old: JSON, new: JSON) -> JSON:
    """Return usage with the last known value of each field: a later chunk completes or repeats, it never adds or wipes."""
    merged = dict(old)
    for name, value in new.items():
        if value is None:
            continue
        before = merged.get(name)
        merged[name] = overlay(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return merged
