"""Generated parts about providers. What a parameter becomes is found by encoding a request with it and one without."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from llmbroker.catalog import LLMConfig
from llmbroker.credentials import Secret
from llmbroker.exchange import Reply, Usage, make_request
from llmbroker.providers import table
from llmbroker.providers.base import Deployment, Dialect, Provider

PARAMETERS: dict[str, Any] = {
    "temperature": 0.5,
    "max_tokens": 77,
    "top_p": 0.5,
    "top_k": 5,
    "stop": ["X"],
    "seed": 3,
    "presence_penalty": 0.25,
    "frequency_penalty": 0.25,
    "logprobs": True,
    "n": 2,
    "reasoning_effort": "low",
    "parallel_tool_calls": False,
    "user": "u1",
}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}}
USAGE = Usage(100_000, 20_000, 3_000, 400, 5_000, 120_000)


def deployment(provider: Provider) -> Deployment:
    base = None if provider.base_url else "https://example.com/v1"
    return table.deployment_for(LLMConfig(name="m", model="m", provider=provider.id, base_url=base), Secret("x" * 20))


def hosted() -> list[Provider]:
    """Return the providers that are reached over HTTP."""
    return [provider for provider in table.PROVIDERS.values() if provider.base_url != "local:"]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else key)
    else:
        yield path, value


def body(target: Deployment, params: dict[str, Any]) -> dict[str, Any]:
    request = make_request("hi", tools=[TOOL] if "tools" in target.provider.features else None, params=params)
    return dict(leaves(msgspec.json.decode(target.dialect.encode(request, target).body)))


def becomes(target: Deployment, name: str, value: Any) -> str:
    """Return what a parameter becomes for this provider: its path in the body, or that it is left out."""
    before, after = body(target, {}), body(target, {name: value})
    changed = [path for path in after if after[path] != before.get(path, ...)]
    return ", ".join(f"`{path}`" for path in changed) or "-"


def providers() -> tuple[list[str], list[list[str]]]:
    head = ["provider", "id", "dialects", "address", "key variables", "abilities"]
    rows = []
    for row in table.PROVIDERS.values():
        names = [row.dialect.name, *(name for name in row.dialects if name != row.dialect.name)]
        title = f"[{row.title}]({row.docs})" if row.docs else row.title
        keys = ", ".join(f"`{name}`" for name in row.key_names) or "none needed"
        able = ", ".join(sorted(feature.replace("_", " ") for feature in row.features))
        rows.append([title, f"`{row.id}`", ", ".join(names), f"`{row.base_url}`" if row.base_url else "yours", keys, able])
    return head, rows


def parameters() -> tuple[list[str], list[list[str]]]:
    rows = []
    for row in hosted():
        target = deployment(row)
        rows.append([f"`{row.id}`", *(becomes(target, name, value) for name, value in PARAMETERS.items())])
    return ["provider", *(f"`{name}`" for name in PARAMETERS)], rows


def describe(number: int) -> str | None:
    """Say which of our counts a number in a provider's usage is."""
    known = {name: getattr(USAGE, name) for name in USAGE.__struct_fields__}
    for name, count in known.items():
        if number == count:
            return name
    pieces = ("cached_input_tokens", "cache_write_tokens", "reasoning_tokens")
    for whole in ("input_tokens", "output_tokens"):
        for mask in range(1, 1 << len(pieces)):
            less = [piece for bit, piece in enumerate(pieces) if mask >> bit & 1]
            if number == known[whole] - sum(known[piece] for piece in less):
                return " - ".join([whole, *less])
    return None


def usage_of(dialect: Dialect) -> list[list[str]]:
    reply = Reply(
        text="hi",
        usage=USAGE,
        finish_reason="stop",
        reasoning="r",
        model="m",
        id="i",
        message={"role": "assistant", "content": "hi"},
    )
    rows = []
    for path, value in leaves(dialect.encode_reply(reply)):
        if type(value) is int and (what := describe(value)):
            rows.append([dialect.name, f"`{path}`", what])
    return rows


def usage() -> tuple[list[str], list[list[str]]]:
    return ["dialect", "theirs", "ours"], [row for dialect in table.DIALECTS.values() for row in usage_of(dialect)]


def error_codes() -> tuple[list[str], list[list[str]]]:
    rows = []
    for provider in table.PROVIDERS.values():
        for (status, code), cls in sorted(provider.errors.items(), key=lambda item: (item[0][0] or 0, item[0][1])):
            rows.append([f"`{provider.id}`", str(status or "any"), f"`{code}`", f"`{cls.__name__}`"])
    return ["provider", "status", "code", "error"], rows
