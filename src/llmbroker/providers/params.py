"""Parameters on their way to a provider: the table's renames and drops, what a deployment taught, and one note in the log.

Shared by dialects that move parameters to other places of the body (Anthropic, Gemini). Pure but for the log.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from llmbroker.exchange import Request
from llmbroker.providers.base import Deployment

JSON: TypeAlias = dict[str, Any]

_MOST = 4096
_said: set[tuple[str, str, str, str]] = set()


def note(deployment: Deployment, name: str, why: str) -> None:
    """Log once a deployment that a parameter was left out or changed; ``why`` ends the sentence ``temperature ...``."""
    key = (deployment.provider.id, deployment.name, deployment.model, name)
    if key in _said:
        return
    if len(_said) < _MOST:
        _said.add(key)
    import logging

    logging.getLogger("llmbroker.providers").info(
        "%s of %s for model %s %s.", name, deployment.provider.id, deployment.model, why
    )


def asked(request: Request, deployment: Deployment) -> JSON:
    """Return the request's parameters with the provider's renames and drops, and those that the deployment taught, applied."""
    provider, mended = deployment.provider, deployment.mended
    if not request.params:
        return {}
    params = dict(request.params)
    if deployment.verbatim:
        return params
    for renames in (provider.rename, mended.rename):
        for ours, theirs in renames.items():
            if ours in params:
                params[theirs] = params.pop(ours)
    for drops, why in (
        (provider.drop, "is not taken there and was left out"),
        (mended.drop, "was refused there and is left out"),
    ):
        for name in drops:
            if name in params:
                del params[name]
                note(deployment, name, why)
    return params


def left_out(params: JSON, names: frozenset[str], deployment: Deployment, why: str) -> None:
    """Remove parameters that the dialect has no place for, with a note; not where they are to be sent as they are."""
    if deployment.verbatim:
        return
    for name in names & params.keys():
        if params.pop(name) is not None:
            note(deployment, name, why)


MOST_COUNTED = 10**12
"""What a body states beyond this counts no tokens of one answer."""


def whole_number(value: Any) -> int | None:
    """Return a count of tokens as it stands in a body; None for anything else, also for what cannot be one."""
    if type(value) is float and value.is_integer():
        value = int(value)  # some servers write 12.0
    return value if type(value) is int and 0 <= value <= MOST_COUNTED else None
