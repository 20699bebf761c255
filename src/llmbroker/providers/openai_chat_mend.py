"""Chat Completions: which change mends a refused parameter.

Servers refuse names and values of parameters that their neighbours want. A refusal that names one parameter we sent, and says
that it is not supported, is mended by leaving it out or by its other name; the client asks once more and the deployment
remembers. Only what leaves the meaning of the request is left out (``MAY_GO``). A value out of range is the caller's to mend.
"""

from __future__ import annotations

import re

from llmbroker.errors import BadRequestError, ContentFilterError, ContextWindowError, ProviderError, UnsupportedFeatureError
from llmbroker.exchange import Request
from llmbroker.providers.base import Deployment, Mend

_REFUSED = re.compile(
    r"unsupported|not supported|not support|only support|unknown|unrecognized|unrecognised|unexpected|not permitted|not allowed"
    r"|extra inputs|extra fields|extraneous|unavailable|not compatible|incompatible|not available|deprecated",
    re.IGNORECASE,
)
MAY_GO = frozenset(
    {
        "frequency_penalty",
        "metadata",
        "min_p",
        "parallel_tool_calls",
        "presence_penalty",
        "prompt_cache_key",
        "reasoning_content",
        "reasoning_effort",
        "repetition_penalty",
        "safety_identifier",
        "seed",
        "service_tier",
        "store",
        "stream_options",
        "temperature",
        "top_k",
        "top_p",
        "user",
        "verbosity",
    }
)
"""Parameters without which a request still asks the same; ``stop``, ``logprobs`` and the like are not among them."""

_OTHER_NAME = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
_STATUSES = frozenset({400, 404, 422, 500, 501, None})


def mend(error: ProviderError, request: Request, deployment: Deployment) -> Mend | None:
    """Return the change that could mend this refusal, or None.

    Seen in: OpenAI (``unsupported_parameter``, ``unsupported_value``), DeepSeek (forced tool choice while thinking), Azure
    (tool choice as a word only), xAI (parameters in camel case), Mistral and Fireworks (extra inputs), Groq (properties of
    messages).
    """
    if not isinstance(error, BadRequestError) or isinstance(error, (ContentFilterError, ContextWindowError)):
        return None
    if error.status not in _STATUSES:
        return None
    words = error.detail or ""
    named = _name(error, words, _sent(request, deployment), request)
    if named is None:
        return None
    if named == "tool_choice":
        return _choice_mend(error, words, request, deployment)
    if named == "response_format":
        kind = (request.response_format or {}).get("type")
        if kind != "json_schema" or not _REFUSED.search(words) or "response_format" in deployment.mended.rename:
            return None
        return Mend(rename={"response_format": "json_object"})
    if not (_REFUSED.search(words) or error.code in ("unsupported_parameter", "unsupported_value", "unknown_parameter")):
        return None
    other = _OTHER_NAME.get(named)
    if other is not None:
        ours = named if named in request.params else next((o for o, t in _renames(deployment).items() if t == named), named)
        if deployment.mended.rename.get(ours):
            return None
        return Mend(rename={ours: other} if ours == named else {ours: other, named: other})
    ours = next((o for o, t in _renames(deployment).items() if t == named and o in request.params), named)
    return Mend(drop=frozenset({named})) if named in MAY_GO or ours in MAY_GO else None


def _renames(deployment: Deployment) -> dict[str, str]:
    return {**deployment.provider.rename, **deployment.mended.rename}


def _sent(request: Request, deployment: Deployment) -> list[str]:
    """Return the names that the request bore on the wire, those first that are long."""
    renames, dropped = _renames(deployment), deployment.provider.drop | deployment.mended.drop
    names = {renames.get(name, name) for name in request.params} - dropped
    if request.tool_choice is not None and "tool_choice" not in dropped:
        names.add("tool_choice")
    if request.response_format is not None:
        names.add("response_format")
    if request.stream and "stream_options" not in dropped:
        names.add("stream_options")
    if deployment.provider.reasoning != "never" and "reasoning_content" not in dropped:
        names.add("reasoning_content")
        if "reasoning-field-reasoning" in deployment.provider.quirks:
            names.add("reasoning")
    return sorted(names, key=len, reverse=True)


def _name(error: BadRequestError, words: str, sent: list[str], request: Request) -> str | None:
    """Return the name of a sent parameter that the refusal is about."""
    if error.param:
        first = error.param.split(".")[0].split("[")[0]
        if first in sent:
            return first
        if first not in ("body", "messages", "input"):
            words = f"{words} {error.param}"
    if isinstance(error, UnsupportedFeatureError) and error.feature in sent:
        return error.feature
    for name in sent:
        if _mentions(words, name):
            return "reasoning_content" if name == "reasoning" and name not in request.params else name
    return None


def _mentions(words: str, name: str) -> bool:
    """Whether a text names a parameter: as a word of its own where it is long, else in quotes; also in camel case or spaced."""
    quoted = rf"[`'\"]{re.escape(name)}[`'\"]"
    whole = rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])"
    if re.search(whole if "_" in name or len(name) > 7 else quoted, words):
        return True
    loose = re.sub(r"[_\- ]", "", words).lower()
    return "_" in name and name.replace("_", "") in loose


def _choice_mend(error: BadRequestError, words: str, request: Request, deployment: Deployment) -> Mend | None:
    choice = request.tool_choice
    if choice is None or choice.mode == "auto":
        return None
    word_only = choice.mode == "tool" and "string" in words.lower() and "tool_choice" not in deployment.mended.rename
    if word_only:
        return Mend(rename={"tool_choice": "required"})
    if _REFUSED.search(words) or isinstance(error, UnsupportedFeatureError) or error.param == "tool_choice":
        return Mend(drop=frozenset({"tool_choice"}))
    return None
