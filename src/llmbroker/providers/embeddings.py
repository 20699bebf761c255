"""Embeddings: texts to a request and an answer to vectors, in the dialects that have them.

Sources: https://platform.openai.com/docs/api-reference/embeddings (spoken by every compatible server, Voyage's included),
https://ai.google.dev/api/embeddings#method:-models.batchembedcontents,
https://docs.ollama.com/api/embed. The Messages API has none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from llmbroker.errors import InvalidProviderResponseError, InvalidRequestError
from llmbroker.exchange import Usage
from llmbroker.providers.base import Deployment, parse_json
from llmbroker.providers.openai_usage import read_usage
from llmbroker.providers.params import whole_number
from llmbroker.providers.urls import join
from llmbroker.wire import HTTPReply, HTTPRequest

JSON: TypeAlias = dict[str, Any]
Vector: TypeAlias = list[float]

CHAT_ONLY = frozenset(
    {
        "temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "max_output_tokens", "frequency_penalty",
        "presence_penalty", "repetition_penalty", "seed", "stop", "stop_sequences", "logprobs", "top_logprobs", "logit_bias",
        "reasoning_effort", "thinking", "thinking_budget", "include_thoughts", "tool_choice", "parallel_tool_calls", "n",
        "response_format", "stream", "stream_options", "tools",
    }
)  # fmt: skip
"""Parameters of answers, which no embedding request may bear."""


class EmbeddingDialect(msgspec.Struct, frozen=True):
    """How a dialect makes vectors: ``most`` texts in one request, ``body`` and ``path`` of it, ``read`` for the answer."""

    most: int
    path: Callable[[Deployment], str]
    body: Callable[[Sequence[str], Deployment, JSON], JSON]
    read: Callable[[JSON, int], list[Any]]


def encode(texts: Sequence[str], deployment: Deployment, params: Mapping[str, Any]) -> HTTPRequest:
    """Return the request for these texts.

    Raises:
        InvalidRequestError: the dialect has no embeddings.
    """
    dialect = dialect_of(deployment)
    wanted = {name: value for name, value in params.items() if name not in CHAT_ONLY and value is not None}
    body = msgspec.json.encode(dialect.body(texts, deployment, wanted))
    return HTTPRequest(join(deployment.base_url, dialect.path(deployment)), deployment.static_headers, body)


def most_texts(deployment: Deployment) -> int:
    """Return how many texts one request may hold."""
    return dialect_of(deployment).most


def dialect_of(deployment: Deployment) -> EmbeddingDialect:
    """Return how this deployment makes vectors.

    Raises:
        InvalidRequestError: it makes none.
    """
    found = _DIALECTS.get(deployment.dialect.name)
    if found is None:
        raise InvalidRequestError(
            f"{deployment.provider.title} makes no embeddings in the dialect {deployment.dialect.name}.", argument="provider"
        )
    return found


def decode(http: HTTPReply, deployment: Deployment, count: int) -> tuple[list[Vector], Usage | None]:
    """Return the vectors in the order of the texts, and the usage.

    Raises:
        ProviderError: the provider refused.
        InvalidProviderResponseError: it is no answer, or not one vector for each text.
    """
    if not 200 <= http.status < 300:
        raise deployment.dialect.decode_error(http, deployment)
    body = parse_json(http.body, deployment)
    try:
        vectors = [[float(number) for number in vector] for vector in dialect_of(deployment).read(body, count)]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        if isinstance(body, dict) and body.get("error"):
            raise deployment.dialect.decode_error(http, deployment) from None
        raise InvalidProviderResponseError(
            f"{deployment.provider.id} answered for {deployment.model} without embeddings: {error!r}.", **deployment.facts()
        ) from None
    if len(vectors) != count or len({len(vector) for vector in vectors}) > 1:
        raise InvalidProviderResponseError(
            f"{deployment.provider.id} returned {len(vectors)} vectors of {sorted({len(v) for v in vectors})} numbers for "
            f"{count} texts.",
            **deployment.facts(),
        )
    return vectors, _usage(body)


def _usage(body: JSON) -> Usage | None:
    if isinstance(body.get("usage"), dict):
        found = read_usage(body["usage"])
        if found is not None:
            return msgspec.structs.replace(found, input_tokens=found.input_tokens or found.total_tokens, output_tokens=0)
    counted = whole_number(body.get("prompt_eval_count"))
    return Usage(input_tokens=counted, output_tokens=0, total_tokens=counted) if counted is not None else None


def _chat_body(texts: Sequence[str], deployment: Deployment, params: JSON) -> JSON:
    return {"model": deployment.model, "input": list(texts), **params}


def _chat_read(body: JSON, count: int) -> list[Any]:
    items = body["data"]
    if all(type(item.get("index")) is int for item in items):
        items = sorted(items, key=lambda item: item["index"])
    return [item["embedding"] for item in items]


def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)


def _gemini_model(deployment: Deployment) -> str:
    return deployment.model if "/" in deployment.model else f"models/{deployment.model}"


def _gemini_body(texts: Sequence[str], deployment: Deployment, params: JSON) -> JSON:
    given = {"output_dimensionality" if name == "dimensions" else name: value for name, value in params.items()}
    more = {_camel(name): value for name, value in given.items()}
    model = _gemini_model(deployment)
    return {"requests": [{"model": model, "content": {"parts": [{"text": text}]}, **more} for text in texts]}


def _ollama_body(texts: Sequence[str], deployment: Deployment, params: JSON) -> JSON:
    return {"model": deployment.model, "input": list(texts), **params}


_CHAT = EmbeddingDialect(2048, lambda deployment: "/embeddings", _chat_body, _chat_read)
_DIALECTS: Mapping[str, EmbeddingDialect] = {
    "openai-chat": _CHAT,
    "openai-responses": _CHAT,
    "gemini": EmbeddingDialect(
        100,
        lambda deployment: f"/{_gemini_model(deployment)}:batchEmbedContents",
        _gemini_body,
        lambda body, count: [item["values"] for item in body["embeddings"]],
    ),
    "ollama": EmbeddingDialect(2048, lambda deployment: "/api/embed", _ollama_body, lambda body, count: body["embeddings"]),
}
