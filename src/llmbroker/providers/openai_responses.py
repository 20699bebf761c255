"""The OpenAI Responses dialect, ``/responses``; its API: https://platform.openai.com/docs/api-reference/responses.

A turn is a list of output items. They are kept whole and in order in the message and sent back as they came, since a reasoning
item must stand beside the item it belongs to. Calls and results are paired by ``call_id``, never by ``id``. There is no finish
word for tool calls: the presence of ``function_call`` items decides. Calls that the provider runs itself (search, code, MCP,
custom tools that we never declare) are kept for the way back and are no calls for us.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from llmbroker.errors import BadRequestError, InvalidProviderResponseError, ProviderError
from llmbroker.exchange import Event, Reply, Request, ToolSet, Usage
from llmbroker.messages import Assistant, Audio, Block, File, Image, Part, Text, encode_blocks
from llmbroker.providers import refusal
from llmbroker.providers.base import Deployment, Dialect, Mend
from llmbroker.providers.openai_responses_stream import Decoder, whole
from llmbroker.providers.params import asked, left_out
from llmbroker.wire import HTTPReply, HTTPRequest

JSON: TypeAlias = dict[str, Any]
NAME = "openai-responses"

# -- encode: https://platform.openai.com/docs/api-reference/responses/create -------------------------------------------

NO_PLACE = frozenset(
    {"stop", "seed", "frequency_penalty", "presence_penalty", "repetition_penalty", "top_k", "n", "logit_bias"}
)


def encode(request: Request, deployment: Deployment) -> HTTPRequest:
    """Return the HTTP request."""
    provider = deployment.provider.id
    body: JSON = {
        "model": deployment.model,
        "input": encode_blocks(request.history, (NAME, provider), lambda block, _: _items(block, provider), by_loop=False),
    }
    if request.stream:
        body["stream"] = True
    if request.tools:
        body["tools"] = _tools(request.tools)
        choice = request.tool_choice
        if choice is not None and "tool_choice" not in deployment.mended.drop:
            body["tool_choice"] = {"type": "function", "name": choice.name} if choice.mode == "tool" else choice.mode
    body.update(_params(request, deployment))
    _format(request, body)
    return HTTPRequest(_url(deployment), deployment.static_headers, msgspec.json.encode(body))


def _url(deployment: Deployment) -> str:
    base, mark, query = deployment.base_url.partition("?")
    return f"{base}/responses{mark}{query}"


def _params(request: Request, deployment: Deployment) -> JSON:
    params = asked(request, deployment)
    for name in ("max_completion_tokens", "max_tokens"):
        if name in params:
            value = params.pop(name)
            params.setdefault("max_output_tokens", value)
    effort = params.pop("reasoning_effort", None)
    if effort is not None:
        params["reasoning"] = {**(params.get("reasoning") or {}), "effort": effort}
    verbosity = params.pop("verbosity", None)
    if verbosity is not None:
        params["text"] = {**(params.get("text") or {}), "verbosity": verbosity}
    if params.pop("logprobs", None):
        params["include"] = [*(params.get("include") or ()), "message.output_text.logprobs"]
    if params.get("store") is False and "include" not in params and params.get("reasoning"):
        # Without stored state the reasoning must travel in the items, encrypted.
        params["include"] = ["reasoning.encrypted_content"]
    left_out(params, NO_PLACE, deployment, "has no place in the Responses API and was left out")
    return {name: value for name, value in params.items() if value is not None}


def _format(request: Request, body: JSON) -> None:
    wanted = request.response_format
    if wanted is None:
        return
    made: JSON = {"type": wanted["type"]}
    if wanted["type"] == "json_schema":
        inner = wanted.get("json_schema") or {}
        made.update({key: inner[key] for key in ("name", "description", "schema", "strict") if key in inner})
        made.setdefault("name", "answer")
    body["text"] = {**(body.get("text") or {}), "format": made}


def _tools(tools: ToolSet) -> msgspec.Raw:
    made = tools.encoded.get(NAME)
    if made is None:
        items = [
            {
                "type": "function",
                "name": spec.name,
                "description": spec.description,
                "parameters": spec.parameters,
                # Unset means strict here, which refuses schemas that are fine elsewhere.
                "strict": bool(spec.strict),
            }
            for spec in tools.specs
        ]
        made = tools.encoded[NAME] = msgspec.Raw(msgspec.json.encode(items))
    return made


def _items(block: Block, provider: str) -> list[JSON]:
    out: list[JSON] = []
    turn = block.assistant
    if turn is not None:
        out += _native(turn, provider) or _canonical(turn)
    for result in block.results:
        plain = all(isinstance(part, Text) for part in result.parts)
        output: Any = result.text if plain else [_part(part) for part in result.parts]
        out.append({"type": "function_call_output", "call_id": result.id, "output": output})
    for user in block.users:
        plain = all(isinstance(part, Text) for part in user.parts)
        content: Any = user.text if plain else [_part(part) for part in user.parts]
        out.append({"role": user.role, "content": content})
    return out


def _native(turn: Assistant, provider: str) -> list[JSON]:
    """Return the provider's own items with the history's call ids in them; nothing if they do not fit this turn."""
    native = turn.native
    if native is None or native.get("dialect") != NAME or native.get("provider") != provider:
        return []
    items: list[JSON] = native["items"]
    calls = [item for item in items if item.get("type") == "function_call"]
    if len(calls) != len(turn.calls):
        return []
    ids = iter(turn.calls)
    out: list[JSON] = []
    for item in items:
        if item.get("type") == "function_call":
            call = next(ids)
            item = {**item, "call_id": call.id, "name": call.name, "arguments": call.arguments}
        out.append(item)
    return out


def _canonical(turn: Assistant) -> list[JSON]:
    out: list[JSON] = []
    text = turn.text or turn.refusal
    if text:
        # llama.cpp knows a message of the assistant only by its type.
        out.append({"type": "message", "role": "assistant", "content": text})
    out += [
        {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments} for call in turn.calls
    ]
    return out


def _part(part: Part) -> JSON:
    if isinstance(part, Text):
        return {"type": "input_text", "text": part.text}
    if isinstance(part, Image):
        url = part.url or f"data:{part.media_type};base64,{part.data}"
        return {"type": "input_image", "image_url": url, "detail": part.detail or "auto"}
    if isinstance(part, Audio):
        return {"type": "input_audio", "input_audio": {"data": part.data, "format": part.format}}
    return _file(part)


def _file(part: File) -> JSON:
    if part.file_id:
        return {"type": "input_file", "file_id": part.file_id}
    if part.url:
        return {"type": "input_file", "file_url": part.url}
    name = part.name or "file." + (part.media_type or "application/pdf").rsplit("/", 1)[-1]
    return {"type": "input_file", "filename": name, "file_data": f"data:{part.media_type};base64,{part.data}"}


# -- decode: a whole body; a stream is in openai_responses_stream ----------------------------------------------------------


def decode(body: JSON, deployment: Deployment) -> list[Event]:
    """Return the events of a whole answer.

    Raises:
        ProviderError: the response failed.
        InvalidProviderResponseError: it is no response, or one that is not finished.
    """
    if not isinstance(body.get("output"), list):
        if body.get("error"):
            raise refusal.refusal_of(deployment, refusal.read_error(body), status=None, headers={})
        raise InvalidProviderResponseError(
            f"{deployment.provider.id} answered for {deployment.model} without output items.", **deployment.facts()
        )
    return whole(body, deployment)


# -- decode an error: https://platform.openai.com/docs/guides/error-codes --------------------------------------------------


def decode_error(http: HTTPReply, deployment: Deployment) -> ProviderError:
    """Return the typed error for a refusal."""
    return refusal.decode_error(http, deployment)


# -- encode a reply, the inverse of decode ---------------------------------------------------------------------------------


def encode_reply(reply: Reply) -> JSON:
    """Return the whole body that decodes to this reply."""
    output: list[JSON] = []
    if reply.reasoning:
        output.append({"type": "reasoning", "id": "rs_0", "summary": [{"type": "summary_text", "text": reply.reasoning}]})
    content: list[JSON] = []
    if reply.text:
        content.append({"type": "output_text", "text": reply.text, "annotations": []})
    if reply.refusal:
        content.append({"type": "refusal", "refusal": reply.refusal})
    if content:
        output.append({"type": "message", "id": "msg_0", "role": "assistant", "status": "completed", "content": content})
    for index, call in enumerate(reply.tool_calls or ()):
        function = call["function"]
        output.append(
            {
                "type": "function_call",
                "id": f"fc_{index}",
                "call_id": call["id"],
                "name": function["name"],
                "arguments": function["arguments"],
                "status": "completed",
            }
        )
    reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
    reason = reasons.get(reply.finish_reason)
    body: JSON = {
        "id": reply.id or "resp_0",
        "object": "response",
        "model": reply.model,
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "output": output,
    }
    if reply.usage is not None:
        body["usage"] = _usage(reply.usage)
    return body


def _usage(usage: Usage) -> JSON:
    body: JSON = {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_input_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
    for key in ("input_tokens_details", "output_tokens_details"):
        body[key] = {name: value for name, value in body[key].items() if value is not None}
    return {name: value for name, value in body.items() if value not in (None, {})}


# -- models: https://platform.openai.com/docs/api-reference/models ---------------------------------------------------------


def decode_models(body: JSON) -> list[str]:
    """Return the names of the models that the key may use."""
    return [row["id"] for row in body.get("data") or () if isinstance(row, dict) and isinstance(row.get("id"), str)]


# -- mending ---------------------------------------------------------------------------------------------------------------

OURS: Mapping[str, tuple[str, ...]] = {
    "max_output_tokens": ("max_output_tokens", "max_completion_tokens", "max_tokens"),
    "reasoning.effort": ("reasoning_effort", "reasoning"),
    "reasoning": ("reasoning_effort", "reasoning"),
    "text.verbosity": ("verbosity",),
    "include": ("include", "logprobs"),
    "top_logprobs": ("top_logprobs", "logprobs"),
}


def mend(error: ProviderError, request: Request, deployment: Deployment) -> Mend | None:
    """Return the change that would make this refused request acceptable, or None."""
    if not isinstance(error, BadRequestError) or error.code not in ("unsupported_parameter", "unsupported_value"):
        return None
    named = error.param or ""
    if named == "tool_choice" and request.tool_choice is not None and request.tool_choice.mode in ("required", "tool"):
        return Mend(drop=frozenset({"tool_choice"}))
    drop = frozenset(name for name in OURS.get(named, (named,)) if name in request.params)
    return Mend(drop=drop) if drop else None


DIALECT = Dialect(
    name=NAME,
    framing="sse",
    encode=encode,
    decode=decode,
    decoder=Decoder,
    decode_error=decode_error,
    encode_reply=encode_reply,
    decode_models=decode_models,
    native=True,
    mend=mend,
)
