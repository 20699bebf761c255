"""Anthropic Messages: what each family of Claude takes, and our parameters in its words.

Facts about families: https://docs.claude.com/en/docs/about-claude/models/overview (output limits),
https://docs.claude.com/en/docs/build-with-claude/extended-thinking (budgets, what thinking excludes),
https://docs.claude.com/en/docs/build-with-claude/adaptive-thinking (4.6: both ways; 4.7 and 5: adaptive only, no sampling
parameters), https://docs.claude.com/en/docs/build-with-claude/structured-outputs (from 4.1 on).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from llmbroker.exchange import Request
from llmbroker.providers.base import Deployment
from llmbroker.providers.params import asked, left_out, note

JSON: TypeAlias = dict[str, Any]

LEAST_BUDGET = 1024
"""Tokens; the API takes no smaller thinking budget."""

_VERSION = re.compile(
    r"claude-(?:(?P<a>\d)(?:[-.](?P<b>\d))?-)?[a-z]+(?:-(?P<c>\d)(?!\d)(?:[-.](?P<d>\d{1,2})(?!\d))?)?", re.IGNORECASE
)


class Family(msgspec.Struct, frozen=True):
    """What a family of models takes.

    Attributes:
        max_tokens: sent where the caller gives no limit, since the API demands one.
        budget: it takes ``thinking: enabled`` with a token budget.
        adaptive: it takes ``thinking: adaptive`` with an effort.
        sampling: it takes temperature, top_p and top_k; ``one_sampling``: of temperature and top_p only one.
        schema: it takes ``output_config.format`` and strict tools.
        xhigh: it knows the effort ``xhigh``.
    """

    max_tokens: int
    budget: bool = False
    adaptive: bool = False
    sampling: bool = True
    one_sampling: bool = False
    schema: bool = False
    xhigh: bool = False


_FAMILIES: tuple[tuple[tuple[int, int], Family], ...] = (
    ((4, 7), Family(32_000, adaptive=True, sampling=False, one_sampling=True, schema=True, xhigh=True)),
    ((4, 6), Family(32_000, budget=True, adaptive=True, one_sampling=True, schema=True)),
    ((4, 1), Family(32_000, budget=True, one_sampling=True, schema=True)),
    ((3, 7), Family(32_000, budget=True)),
    ((3, 5), Family(8_192)),
    ((0, 0), Family(4_096)),
)
_UNKNOWN = Family(8_192, budget=True)


def version(model: str) -> tuple[int, int] | None:
    """Return the version that a model's name states: (4, 5) for ``claude-haiku-4-5-20251001``; None if it states none."""
    found = _VERSION.search(model)
    if found is None:
        return None
    major, minor = (found["a"], found["b"]) if found["a"] else (found["c"], found["d"])
    return (int(major), int(minor or 0)) if major else None


@lru_cache(maxsize=1024)
def family(model: str) -> Family:
    """Return what the family of this model takes; a name that is not Claude's gets a careful guess."""
    known = version(model)
    if known is None:
        return _UNKNOWN
    return next(facts for least, facts in _FAMILIES if known >= least)


_IMPOSSIBLE = frozenset(
    {
        "seed", "logprobs", "top_logprobs", "logit_bias", "frequency_penalty", "presence_penalty", "repetition_penalty", "n",
        "include_thoughts", "store", "modalities", "audio", "prediction", "verbosity", "safety_identifier", "prompt_cache_key",
    }
)  # fmt: skip
_PLAIN = frozenset({"max_tokens", "temperature", "top_p", "top_k", "stop_sequences"})
"""Names that stand where they are: nothing else has to be looked for."""
_LIMITS = ("max_completion_tokens", "max_output_tokens")
_EFFORT_BUDGETS = {"minimal": 1024, "low": 1024, "medium": 4096, "high": 16_384, "xhigh": 24_576, "max": 24_576}
_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}
_TIERS = {"default": "standard_only"}


def put_params(body: JSON, request: Request, deployment: Deployment) -> None:
    """Write the request's parameters into the body in Anthropic's words.

    ``thinking`` stands in the body afterwards if the model shall think, ``tool_choice`` wishes are the caller's to place.
    """
    facts = family(deployment.model)
    params = asked(request, deployment)
    if params.keys() <= _PLAIN:
        _put_limit(body, params, facts, deployment)
        if params:
            _put_sampling(body, params, facts, deployment)
            body.update(params)
        return
    params.pop("parallel_tool_calls", None)
    if params.get("n") == 1:
        del params["n"]
    left_out(params, _IMPOSSIBLE, deployment, "has no counterpart in the Messages API and was left out")
    for name in _LIMITS:
        if name in params:
            value = params.pop(name)
            params.setdefault("max_tokens", value)
    limited = _put_limit(body, params, facts, deployment)
    _put_thinking(body, params, facts, limited, deployment)
    _put_sampling(body, params, facts, deployment)
    stop = params.pop("stop", None)
    if stop is not None and "stop_sequences" not in params:
        # A sequence of white space alone is refused by the API.
        sequences = [text for text in ([stop] if isinstance(stop, str) else list(stop)) if text.strip()]
        if sequences:
            body["stop_sequences"] = sequences
    user = params.pop("user", None)
    metadata = params.pop("metadata", None)
    if isinstance(metadata, dict) and metadata.get("user_id"):
        body["metadata"] = {"user_id": metadata["user_id"]}
    elif user:
        body["metadata"] = {"user_id": str(user)}
    tier = params.pop("service_tier", None)
    if tier is not None:
        body["service_tier"] = _TIERS.get(tier, tier)
    config = params.pop("output_config", None)
    if isinstance(config, dict):
        body["output_config"] = {**body.get("output_config", {}), **config}
    body.update(params)


def _put_limit(body: JSON, params: JSON, facts: Family, deployment: Deployment) -> bool:
    """Place max_tokens, which the API demands; return whether the caller set it."""
    limit = params.pop("max_tokens", None)
    if limit is not None:
        body["max_tokens"] = limit
        return True
    # A deployment that refused the family's limit gets one that every model takes.
    body["max_tokens"] = 4096 if "max_tokens" in deployment.mended.drop else facts.max_tokens
    return False


def _put_thinking(body: JSON, params: JSON, facts: Family, limited: bool, deployment: Deployment) -> None:
    effort, budget = params.pop("reasoning_effort", None), params.pop("thinking_budget", None)
    given = params.pop("thinking", None)
    if isinstance(given, dict):
        body["thinking"] = given
    elif given is False or budget == 0 or effort == "none":
        if facts.budget or facts.adaptive:
            body["thinking"] = {"type": "disabled"}
    elif budget is not None or effort is not None or given is True:
        _choose_thinking(body, effort, budget, facts, deployment)
    thinking = body.get("thinking")
    wanted = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    if type(wanted) is int and type(body["max_tokens"]) is int and body["max_tokens"] <= wanted:
        _fit_budget(body, wanted, limited, deployment)


def _choose_thinking(body: JSON, effort: Any, budget: Any, facts: Family, deployment: Deployment) -> None:
    refused = deployment.mended.drop
    adaptive = facts.adaptive or "thinking.enabled" in refused
    if adaptive and "thinking.adaptive" not in refused and (budget is None or not facts.budget):
        body["thinking"] = {"type": "adaptive"}
        word = _EFFORTS.get(str(effort))
        if word == "xhigh" and not facts.xhigh:
            word = "high"
        if word and "output_config.effort" not in refused:
            body["output_config"] = {"effort": word}
    elif facts.budget:
        tokens = budget if type(budget) is int else _EFFORT_BUDGETS.get(str(effort), 4096)
        body["thinking"] = {"type": "enabled", "budget_tokens": max(tokens, LEAST_BUDGET)}
    else:
        note(deployment, "reasoning_effort", "means nothing to a model that does not think, and was left out")


def _fit_budget(body: JSON, wanted: int, limited: bool, deployment: Deployment) -> None:
    """Make the budget smaller than the limit, which the API demands: a limit that was asked for wins over the budget."""
    if not limited:
        body["max_tokens"] = wanted + body["max_tokens"]
    elif body["max_tokens"] > LEAST_BUDGET:
        body["thinking"] = {**body["thinking"], "budget_tokens": body["max_tokens"] - 1}
        note(deployment, "thinking_budget", "was cut: it has to be smaller than max_tokens")
    else:
        del body["thinking"]
        note(deployment, "thinking_budget", f"was left out: max_tokens leaves less than {LEAST_BUDGET} tokens to think")


def thinks(body: JSON) -> bool:
    """Whether the model is asked to think."""
    thinking = body.get("thinking")
    return isinstance(thinking, dict) and thinking.get("type") in ("enabled", "adaptive")


def _put_sampling(body: JSON, params: JSON, facts: Family, deployment: Deployment) -> None:
    """Place temperature, top_p and top_k as far as the model and its thinking allow them."""
    temperature = params.get("temperature")
    if not facts.sampling:
        left_out(params, frozenset({"temperature", "top_p", "top_k"}), deployment, "is refused by this model and was left out")
        return
    if thinks(body):
        if temperature is not None and temperature != 1:
            left_out(params, frozenset({"temperature"}), deployment, "cannot go with thinking and was left out")
        left_out(params, frozenset({"top_k"}), deployment, "cannot go with thinking and was left out")
        top_p = params.get("top_p")
        if isinstance(top_p, (int, float)) and top_p < 0.95:
            left_out(params, frozenset({"top_p"}), deployment, "below 0.95 cannot go with thinking and was left out")
    elif isinstance(temperature, (int, float)) and temperature > 1:
        params["temperature"] = 1.0
        note(deployment, "temperature", "was cut to 1, the most that the Messages API takes")
    if facts.one_sampling and params.get("temperature") is not None and params.get("top_p") is not None:
        left_out(params, frozenset({"top_p"}), deployment, "cannot go with temperature in this model and was left out")


# -- schemas -------------------------------------------------------------------------------------------------------------

_REFUSED = frozenset(
    {
        "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "maxItems",
        "uniqueItems", "minProperties", "maxProperties", "contains", "minContains", "maxContains", "patternProperties",
        "propertyNames", "if", "then", "else", "not", "dependentRequired", "dependentSchemas", "unevaluatedProperties",
        "prefixItems",
    }
)  # fmt: skip
_NESTED = ("anyOf", "allOf", "oneOf")


def output_schema(schema: JSON) -> JSON:
    """Return a schema that structured output takes: limits it refuses become words of the description, objects are closed."""
    out: JSON = {}
    hints: list[str] = []
    for key, value in schema.items():
        if key in _REFUSED or (key == "minItems" and value not in (0, 1)):
            hints.append(f"{key}: {msgspec.json.encode(value).decode()}")
        elif key in ("properties", "$defs", "definitions") and isinstance(value, dict):
            out[key] = {name: output_schema(inner) if isinstance(inner, dict) else inner for name, inner in value.items()}
        elif key in _NESTED and isinstance(value, list):
            name = "anyOf" if key == "oneOf" else key
            out[name] = [output_schema(inner) if isinstance(inner, dict) else inner for inner in value]
        elif key == "items" and isinstance(value, dict):
            out[key] = output_schema(value)
        else:
            out[key] = value
    if out.get("type") == "object" or "properties" in out:
        out["additionalProperties"] = False
    if hints:
        out["description"] = "; ".join([*([out["description"]] if out.get("description") else []), *hints])
    return out
