"""Anthropic Messages, mends: what to leave out so that a refused request is taken.

Sentences of the API, from its error page and from recorded refusals: https://docs.claude.com/en/api/errors
"""

from __future__ import annotations

import re

from llmbroker.errors import BadRequestError, ProviderError
from llmbroker.exchange import Request
from llmbroker.providers.base import Deployment, Mend

# What a refusal says, to what is left out from then on. Names with a dot and ``thinking_blocks``, ``strict`` are ours for parts
# of the body (see anthropic_params).
_MENDS: tuple[tuple[re.Pattern[str], frozenset[str]], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), frozenset(drops))
    for pattern, drops in (
        (r"thinking may not be enabled when tool_choice forces|tool_choice.{0,40}not (supported|allowed)", {"tool_choice"}),
        (r"`temperature` and `top_p` cannot both", {"top_p"}),
        (r"temperature.{0,60}(deprecated|not supported|unsupported|may only be set to 1|cannot)", {"temperature"}),
        (r"top_p.{0,60}(deprecated|not supported|unsupported|cannot|must be)", {"top_p"}),
        (r"top_k.{0,60}(deprecated|not supported|unsupported|cannot|must be unset)", {"top_k"}),
        (r"invalid.{0,20}signature.{0,20}thinking|signature.{0,40}thinking.{0,40}invalid", {"thinking_blocks"}),
        (r"(thinking\.)?type.{0,3}enabled.{0,40}(not supported|no longer)", {"thinking.enabled"}),
        (r"adaptive.{0,40}not supported", {"thinking.adaptive"}),
        (r"does not support (the )?effort|output_config\.effort", {"output_config.effort"}),
        (r"not support (extended )?thinking|thinking.{0,30}not supported", {"reasoning_effort", "thinking_budget", "thinking"}),
        (r"output_config|output_format|structured output|output format", {"output_config.format"}),
        (r"too many strict tools|schema is too complex|schemas contains too many|tools\.\d+\.custom(\.strict)?:", {"strict"}),
        (r"max_tokens: \d+ >|maximum allowed number of output tokens", {"max_tokens"}),
    )
)  # fmt: skip
_EXTRA = re.compile(r"^([a-z_][a-z0-9_]*): extra inputs are not permitted", re.IGNORECASE)


def mend(error: ProviderError, request: Request, deployment: Deployment) -> Mend | None:
    """Return what to leave out so that this request is taken, or None. A wrong value of the caller's stays his error."""
    if not isinstance(error, BadRequestError) or not error.detail:
        return None
    extra = _EXTRA.match(error.detail)
    if extra and extra[1] in request.params:
        return Mend(drop=frozenset({extra[1]}))
    for pattern, drops in _MENDS:
        if pattern.search(error.detail):
            fresh = drops - deployment.mended.drop
            return Mend(drop=fresh) if fresh and any(_concerns(name, request) for name in fresh) else None
    return None


_THINKING = frozenset({"reasoning_effort", "thinking_budget", "thinking"})


def _concerns(name: str, request: Request) -> bool:
    """Whether what is to be left out is in this request at all: else the refusal is about something else."""
    if name in ("thinking_blocks", "max_tokens"):  # the history's, and sent where nobody asked
        return True
    if name == "strict":
        return request.tools is not None and any(spec.strict for spec in request.tools.specs)
    if name == "tool_choice":
        return request.tool_choice is not None or request.response_format is not None
    if name == "output_config.format":
        return request.response_format is not None
    if name.startswith(("thinking.", "output_config.")):
        return not _THINKING.isdisjoint(request.params)
    return name in request.params
