"""Gemini generateContent: what each family takes, and our parameters in its words.

https://ai.google.dev/api/generate-content#generationconfig, https://ai.google.dev/gemini-api/docs/thinking (levels from 3 on,
budgets before), https://ai.google.dev/gemini-api/docs/structured-output (JSON schema from 2 on, an OpenAPI subset before).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from llmbroker.exchange import Request
from llmbroker.providers.base import Deployment
from llmbroker.providers.params import asked, left_out, note

JSON: TypeAlias = dict[str, Any]

_VERSION = re.compile(r"gemini-(\d+)(?:\.(\d+))?", re.IGNORECASE)
NEWEST = (99, 0)


def version(model: str) -> tuple[int, int]:
    """Return the version that a model's name states: (2, 5) for ``gemini-2.5-flash``; the newest if it states none."""
    found = _VERSION.search(model)
    return (int(found[1]), int(found[2] or 0)) if found else NEWEST


class Family(msgspec.Struct, frozen=True):
    """What a family of models takes.

    Attributes:
        levels: ``thinkingLevel`` instead of ``thinkingBudget``.
        signatures: it refuses a tool call of the running turn that has no thought signature.
        media_results: a tool's result may hold images and files.
        json_tools: tools and a JSON answer go together.
        schemas: it takes JSON schema; before, an OpenAPI subset.
    """

    levels: bool
    signatures: bool
    media_results: bool
    json_tools: bool
    schemas: bool


@lru_cache(maxsize=1024)
def family(model: str) -> Family:
    """Return what the family of this model takes."""
    known = version(model)
    three = known >= (3, 0)
    return Family(
        # A name without a version may be of either age; the newer ones take budgets too.
        levels=three and known != NEWEST,
        signatures=three,
        media_results=three,
        json_tools=three,
        schemas=known >= (2, 0),
    )


_CONFIG: Mapping[str, str] = {
    "max_tokens": "maxOutputTokens",
    "max_completion_tokens": "maxOutputTokens",
    "max_output_tokens": "maxOutputTokens",
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "seed": "seed",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
    "n": "candidateCount",
    "candidate_count": "candidateCount",
    "stop_sequences": "stopSequences",
    "media_resolution": "mediaResolution",
    "speech_config": "speechConfig",
    "image_config": "imageConfig",
    "response_mime_type": "responseMimeType",
    "response_schema": "responseSchema",
    "response_json_schema": "responseJsonSchema",
    "response_modalities": "responseModalities",
}
_CONFIG_NAMES = frozenset(_CONFIG.values()) | {
    "thinkingConfig",
    "responseLogprobs",
    "enableEnhancedCivicAnswers",
    "routingConfig",
}
_TOP: Mapping[str, str] = {
    "safety_settings": "safetySettings",
    "cached_content": "cachedContent",
    "tool_config": "toolConfig",
    "model_armor_config": "modelArmorConfig",
}
_IMPOSSIBLE = frozenset(
    {
        "logit_bias", "user", "metadata", "store", "repetition_penalty", "parallel_tool_calls", "prediction", "verbosity",
        "audio", "safety_identifier", "prompt_cache_key",
    }
)  # fmt: skip
_BUDGETS = {"none": 0, "minimal": 1024, "low": 1024, "medium": 8192, "high": 24_576, "xhigh": 24_576, "max": 24_576}
_LEVELS = {
    "none": "minimal",
    "minimal": "minimal",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
_MOST_STOPS = 5


def put_params(body: JSON, request: Request, deployment: Deployment) -> None:
    """Write the request's parameters into the body: most into ``generationConfig``, what is not known to the top."""
    params = asked(request, deployment)
    left_out(params, _IMPOSSIBLE, deployment, "has no counterpart in generateContent and was left out")
    config: JSON = {}
    given = params.pop("generationConfig", None) or params.pop("generation_config", None)
    _put_thinking(config, params, deployment)
    _put_logprobs(config, params)
    stop = params.pop("stop", None)
    if stop is not None:
        config["stopSequences"] = _stops([stop] if isinstance(stop, str) else list(stop), deployment)
    modalities = params.pop("modalities", None)
    if modalities is not None:
        config["responseModalities"] = [str(word).upper() for word in modalities]
    tier = params.pop("service_tier", None)
    if tier is not None and tier not in ("auto", "default"):
        body["serviceTier"] = tier
    for name, value in params.items():
        if name in _CONFIG:
            config[_CONFIG[name]] = value
        elif name in _CONFIG_NAMES:
            config[name] = value
        else:
            body[_TOP.get(name, name)] = value
    if isinstance(given, dict):
        config.update(given)
    if config:
        body["generationConfig"] = config


def _stops(words: list[Any], deployment: Deployment) -> list[Any]:
    if len(words) > _MOST_STOPS:
        note(deployment, "stop", f"was cut to {_MOST_STOPS} sequences, the most that generateContent takes")
    return words[:_MOST_STOPS]


def _put_logprobs(config: JSON, params: JSON) -> None:
    wanted, top = params.pop("logprobs", None), params.pop("top_logprobs", None)
    if wanted or top:
        config["responseLogprobs"] = True
    if top:
        config["logprobs"] = top


def _put_thinking(config: JSON, params: JSON, deployment: Deployment) -> None:
    effort, budget = params.pop("reasoning_effort", None), params.pop("thinking_budget", None)
    shown = params.pop("include_thoughts", None)
    thinking: JSON = {}
    if budget is not None:
        thinking["thinkingBudget"] = budget
    elif effort is not None:
        if family(deployment.model).levels and "thinkingLevel" not in deployment.mended.drop:
            thinking["thinkingLevel"] = _LEVELS.get(str(effort), str(effort))
        elif str(effort) in _BUDGETS:
            thinking["thinkingBudget"] = _BUDGETS[str(effort)]
    if shown is not None:
        thinking["includeThoughts"] = bool(shown)
    if thinking:
        config["thinkingConfig"] = thinking


# -- schemas -------------------------------------------------------------------------------------------------------------

_KEPT = frozenset(
    {
        "type", "format", "title", "description", "nullable", "enum", "items", "properties", "required", "anyOf", "minItems",
        "maxItems", "minLength", "maxLength", "minProperties", "maxProperties", "minimum", "maximum", "pattern", "default",
        "example", "propertyOrdering",
    }
)  # fmt: skip
_DEEPEST = 24


def openapi_schema(schema: JSON) -> JSON:
    """Return a JSON schema in the OpenAPI subset of old models: references put in place, null as ``nullable``, no open maps.

    A schema that refers to itself is cut where it begins anew.
    """
    return _openapi(schema, {**(schema.get("$defs") or {}), **(schema.get("definitions") or {})}, (), 0)


def _openapi(schema: Any, defs: JSON, seen: tuple[str, ...], depth: int) -> JSON:
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return {"type": "object"}
    reference = schema.get("$ref")
    if isinstance(reference, str):
        name = reference.rsplit("/", 1)[-1]
        if name in seen or name not in defs:
            return {"type": "object"}
        return _openapi({**defs[name], **{k: v for k, v in schema.items() if k != "$ref"}}, defs, (*seen, name), depth + 1)
    out = {key: value for key, value in schema.items() if key in _KEPT and key not in ("type", "anyOf")}
    _put_type(out, schema, defs, seen, depth)
    if "const" in schema:
        out["enum"] = [schema["const"]]
    if "enum" in out:
        out["enum"] = [str(value) for value in out["enum"] if value is not None]
        out["type"] = "string"
    if isinstance(out.get("properties"), dict):
        out["properties"] = {name: _openapi(inner, defs, seen, depth + 1) for name, inner in out["properties"].items()}
    if "items" in out:
        out["items"] = _openapi(out["items"], defs, seen, depth + 1)
    if out.get("format") not in (None, "enum", "date-time", "int32", "int64", "float", "double"):
        del out["format"]
    return out


def _put_type(out: JSON, schema: JSON, defs: JSON, seen: tuple[str, ...], depth: int) -> None:
    """Place a type, or several as alternatives; null among them becomes ``nullable``."""
    kinds = schema.get("type")
    options = schema.get("anyOf") or schema.get("oneOf") or []
    if isinstance(kinds, list):
        options = [{**schema, "type": kind, "anyOf": None, "oneOf": None} for kind in kinds]
    elif kinds is not None:
        out["type"] = kinds
    real = [option for option in options if not (isinstance(option, dict) and option.get("type") == "null")]
    if len(real) < len(options):
        out["nullable"] = True
    made = [_openapi(option, defs, seen, depth + 1) for option in real]
    if len(made) == 1:
        out.update(made[0])
    elif made:
        out["anyOf"] = made
