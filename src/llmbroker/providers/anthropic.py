"""Anthropic Messages: a dialect.

Our history in its words, ours out of its answers. Parameters are in ``anthropic_params``, answers in ``anthropic_stream``.
The API: https://docs.claude.com/en/api/messages
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from llmbroker.errors import BadRequestError, InvalidRequestError, ProviderError, UnsupportedFeatureError
from llmbroker.exchange import Reply, Request, ToolSet, Usage
from llmbroker.messages import Assistant, Audio, Block, File, History, Image, Part, Result, Text, encode_blocks
from llmbroker.providers.anthropic_mend import mend
from llmbroker.providers.anthropic_params import family, output_schema, put_params, thinks
from llmbroker.providers.anthropic_stream import ANSWER_TOOL, FINISH, Decoder, decode
from llmbroker.providers.base import Deployment, Dialect, arguments_value
from llmbroker.providers.params import note
from llmbroker.providers.refusal import decode_error as read_refusal
from llmbroker.providers.urls import join
from llmbroker.wire import HTTPReply, HTTPRequest

JSON: TypeAlias = dict[str, Any]

NAME = "anthropic"
_EPHEMERAL = {"type": "ephemeral"}
OPENING = "Continue."
"""What the user says where a history has the assistant speak first: the API wants the user to begin."""
JSON_ONLY = "Answer with one JSON object and nothing else: no words around it, no code fence."


# -- encode: https://docs.claude.com/en/api/messages ---------------------------------------------------------------------


def encode(request: Request, deployment: Deployment) -> HTTPRequest:
    """Return the HTTP request.

    Raises:
        UnsupportedFeatureError: the history holds something that this API cannot take (sound).
        InvalidRequestError: a file cannot be read.
    """
    history, quirks = request.history, deployment.provider.quirks
    body: JSON = {"model": deployment.model}
    put_params(body, request, deployment)
    _check_thinking(body, history, deployment)
    _put_format(body, request, deployment)
    _put_tools(body, request, deployment)
    system = bytes(encode_blocks(history, "anthropic-system", _system, by_loop=False))
    given = body.pop("system", None)  # the caller's own, or words that ask for JSON
    if given:
        system = _joined(system, [{"type": "text", "text": given}] if isinstance(given, str) else given)
    if system != b"[]":
        body["system"] = msgspec.Raw(system)
    keep = "thinking_blocks" not in deployment.mended.drop
    messages = encode_blocks(history, (NAME, keep), _with_thinking if keep else _without_thinking, by_loop=False)
    first = history.finished_blocks[0] if history.finished_blocks else history.last_block
    if first.assistant is not None:
        messages = msgspec.Raw(_joined(bytes(messages), [{"role": "user", "content": OPENING}], before=True))
    body["messages"] = messages
    if request.stream:
        body["stream"] = True
    url = join(deployment.base_url, "/messages")
    if "raw-predict" in quirks:
        # Claude on Vertex: https://docs.claude.com/en/docs/build-with-claude/claude-on-vertex-ai
        verb = "streamRawPredict" if request.stream else "rawPredict"
        url = join(deployment.base_url, f"/models/{body.pop('model')}:{verb}")
        body.setdefault("anthropic_version", "vertex-2023-10-16")
    return HTTPRequest(url, deployment.static_headers, msgspec.json.encode(body))


def _joined(array: bytes, items: list[JSON], before: bool = False) -> bytes:
    """Put items into an array that is JSON text already."""
    if array == b"[]":
        return msgspec.json.encode(items)
    more = msgspec.json.encode(items)
    return more[:-1] + b"," + array[1:] if before else array[:-1] + b"," + more[1:]


def _check_thinking(body: JSON, history: History, deployment: Deployment) -> None:
    """Switch thinking off for a turn whose running tool loop was begun without it.

    With a thinking budget the API demands that the last assistant turn begin with a thinking block, which a turn of another
    provider does not have.
    """
    if not thinks(body) or body["thinking"].get("type") != "enabled":
        return
    block = history.last_block
    if block.results and block.assistant is not None:
        items = _native_items(block.assistant)
        if not items or items[0].get("type") not in ("thinking", "redacted_thinking"):
            del body["thinking"]
            note(deployment, "thinking", "was left out for tool results that answer a turn made without it")


def _put_format(body: JSON, request: Request, deployment: Deployment) -> None:
    """Place a response format: structured output, else a tool to be called with the answer, else words.

    https://docs.claude.com/en/docs/build-with-claude/structured-outputs
    """
    wanted = request.response_format
    if wanted is None or wanted["type"] == "text":
        return
    if wanted["type"] == "json_schema":
        schema = wanted.get("json_schema") or {}
        found = schema.get("schema") or wanted.get("schema") or {"type": "object"}
        if family(deployment.model).schema and "output_config.format" not in deployment.mended.drop:
            config = body.get("output_config", {})
            body["output_config"] = {**config, "format": {"type": "json_schema", "schema": output_schema(found)}}
            return
        described = f" {schema['description']}" if schema.get("description") else ""
        body["tools"] = [
            {
                "name": ANSWER_TOOL,
                "description": f"Give the final answer by calling this tool, always and only so.{described}",
                "input_schema": {"type": "object", **found},
            }
        ]
        return
    given = body.get("system") or []
    own = [{"type": "text", "text": given}] if isinstance(given, str) else given
    body["system"] = [*own, {"type": "text", "text": JSON_ONLY}]


def _put_tools(body: JSON, request: Request, deployment: Deployment) -> None:
    """Place tools and choice: https://docs.claude.com/en/docs/agents-and-tools/tool-use/implement-tool-use."""
    answer = body.pop("tools", None)
    strict = family(deployment.model).schema and "strict" not in deployment.mended.drop
    tools = _tools(request.tools, strict) if request.tools else None
    if answer:
        body["tools"] = msgspec.Raw(_joined(bytes(tools), answer)) if tools is not None else answer
    elif tools is not None:
        body["tools"] = tools
    else:
        # Tool blocks in the history want their tools declared, called or not.
        names = _called_names(request.history)
        if names:
            body["tools"] = [{"name": name, "input_schema": {"type": "object"}} for name in names]
            body["tool_choice"] = {"type": "none"}
        return
    choice, wish = request.tool_choice, body.pop("tool_choice", None)
    made: JSON | None = wish if isinstance(wish, dict) else None
    if choice is not None:
        made = {"auto": {"type": "auto"}, "none": {"type": "none"}, "required": {"type": "any"}}.get(choice.mode)
        made = made or {"type": "tool", "name": choice.name}
    if answer and (made is None or made["type"] in ("auto", "none")):
        made = {"type": "any"} if request.tools and made != {"type": "none"} else {"type": "tool", "name": ANSWER_TOOL}
    if made and made["type"] in ("any", "tool") and (thinks(body) or "tool_choice" in deployment.mended.drop):
        note(deployment, "tool_choice", "became auto: a choice cannot be forced while the model thinks")
        made = {"type": "auto"}
    if request.params.get("parallel_tool_calls") is False and (made is None or made["type"] != "none"):
        made = {**(made or {"type": "auto"}), "disable_parallel_tool_use": True}
    if made:
        body["tool_choice"] = made


def _tools(tools: ToolSet, strict: bool) -> msgspec.Raw:
    key = f"{NAME}-{strict}"
    made = tools.encoded.get(key)
    if made is None:
        out: list[JSON] = []
        for spec in tools.specs:
            item: JSON = {"name": spec.name, "input_schema": {**spec.parameters, "type": "object"}}
            if spec.description:
                item["description"] = spec.description
            if spec.strict and strict:
                item["strict"] = True
            if spec.cache:
                item["cache_control"] = _EPHEMERAL
            out.append(item)
        made = tools.encoded[key] = msgspec.Raw(msgspec.json.encode(out))
    return made


def _called_names(history: History) -> list[str]:
    names: dict[str, None] = {}
    for block in history.blocks:
        if block.assistant is not None:
            names.update(dict.fromkeys(call.name for call in block.assistant.calls))
    return list(names)


# -- the history ---------------------------------------------------------------------------------------------------------


def _system(block: Block, _current: bool) -> list[JSON]:
    return [
        _marked({"type": "text", "text": part.text}, part.cache)
        for message in block.users
        if message.role == "system"
        for part in message.parts
        if isinstance(part, Text) and part.text.strip()
    ]


def _marked(item: JSON, cache: bool) -> JSON:
    if cache:
        item["cache_control"] = _EPHEMERAL
    return item


def _with_thinking(block: Block, _current: bool) -> list[JSON]:
    return _messages(block, True)


def _without_thinking(block: Block, _current: bool) -> list[JSON]:
    return _messages(block, False)


def _messages(block: Block, thinking: bool) -> list[JSON]:
    """Return a block as one assistant and one user message: all tool results first, whatever else was said after them."""
    content: list[JSON] = [_result(result) for result in block.results]
    for message in block.users:
        if message.role == "user":
            content += _content(message.parts)
    out: list[JSON] = []
    if block.assistant is not None:
        said = _assistant(block.assistant, thinking)
        if not content and said and said[-1].get("type") == "text":
            # An answer that is to be continued may not end in white space.
            last = said[-1]["text"].rstrip()
            said = [*said[:-1], {**said[-1], "text": last}] if last else said[:-1]
        if said:
            out.append({"role": "assistant", "content": said})
    elif not content:
        content = [{"type": "text", "text": OPENING}]
    if content:
        out.append({"role": "user", "content": _short(content)})
    return out


def _short(content: list[JSON]) -> list[JSON] | str:
    """Return content that is one plain text as a string."""
    if len(content) == 1 and len(content[0]) == 2 and content[0]["type"] == "text":
        return str(content[0]["text"])
    return content


def _native_items(assistant: Assistant) -> list[JSON]:
    native = assistant.native
    if native is None or native.get("dialect") != NAME:
        return []
    return [item for item in native["items"] if isinstance(item, dict) and isinstance(item.get("type"), str)]


def _assistant(assistant: Assistant, thinking: bool) -> list[JSON]:
    """Return an assistant turn: the provider's own blocks where they still say what the message says, else made anew."""
    items = _native_items(assistant)
    if not thinking:
        items = [item for item in items if item["type"] not in ("thinking", "redacted_thinking")]
    calls = [call for call in assistant.calls if call.name != ANSWER_TOOL]
    own_calls = [item for item in items if item["type"] == "tool_use"]
    own_text = "".join(str(item.get("text") or "") for item in items if item["type"] == "text")
    if items and len(own_calls) == len(calls) and own_text == assistant.text:
        waiting = iter(calls)
        out: list[JSON] = []
        for item in items:
            if item["type"] == "tool_use":
                call = next(waiting)
                out.append({**item, "id": call.id, "name": call.name, "input": msgspec.Raw(call.arguments.encode())})
            elif item["type"] != "text" or str(item.get("text") or "").strip():
                out.append(item)
        return out
    made = [item for item in items if item["type"] in ("thinking", "redacted_thinking")]
    made += _content(assistant.parts)
    if assistant.refusal and not assistant.parts:
        made.append({"type": "text", "text": assistant.refusal})
    made += [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": msgspec.Raw(call.arguments.encode())} for call in calls
    ]
    return made


def _result(result: Result) -> JSON:
    parts = result.parts
    if len(parts) == 1 and isinstance(parts[0], Text) and not parts[0].cache and not parts[0].text.isspace():
        item: JSON = {"type": "tool_result", "tool_use_id": result.id, "content": parts[0].text or "(no output)"}
        if result.is_error:
            item["is_error"] = True
        return item
    content = _content(parts)
    item = {"type": "tool_result", "tool_use_id": result.id, "content": _short(content) if content else "(no output)"}
    if result.is_error:
        item["is_error"] = True
    return _marked(item, any(getattr(part, "cache", False) for part in result.parts))


def _content(parts: Iterable[Part]) -> list[JSON]:
    """Return parts as content blocks; empty text, which the API refuses, is left out."""
    out: list[JSON] = []
    for part in parts:
        if isinstance(part, Text):
            if part.text and not part.text.isspace():
                out.append(_marked({"type": "text", "text": part.text}, part.cache))
        elif isinstance(part, Image):
            source: JSON = {"type": "base64", "media_type": part.media_type, "data": part.data}
            out.append(_marked({"type": "image", "source": source if part.data else _url(part.url)}, part.cache))
        elif isinstance(part, File):
            out.append(_marked(_document(part), part.cache))
        elif isinstance(part, Audio):
            raise UnsupportedFeatureError(
                "The Messages API takes no sound.", feature="audio", hint="Use a model that has audio, or send a transcript."
            )
    return out


def _url(url: str | None) -> JSON:
    return {"type": "url", "url": url}


def _document(part: File) -> JSON:
    """Return a file: https://docs.claude.com/en/docs/build-with-claude/pdf-support, .../files for ``file_id``."""
    media = (part.media_type or "application/pdf").partition(";")[0]
    if part.file_id:
        source: JSON = {"type": "file", "file_id": part.file_id}
    elif part.url:
        source = _url(part.url)
    elif media.startswith("text/") or media == "application/json":
        try:
            text = base64.b64decode(part.data or "", validate=True).decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise InvalidRequestError(
                f"The file {part.name or media} is not base64 of UTF-8 text: {error}.", argument="file.file_data"
            ) from None
        source = {"type": "text", "media_type": "text/plain", "data": text}
    else:
        source = {"type": "base64", "media_type": media, "data": part.data}
    if media.startswith("image/"):
        return {"type": "image", "source": source}
    return {"type": "document", "source": source, **({"title": part.name} if part.name else {})}


# -- decode, decoder: in anthropic_stream --------------------------------------------------------------------------------
# -- decode_error: https://docs.claude.com/en/api/errors -----------------------------------------------------------------

_NAMED = re.compile(r"^`?([a-z_][a-z0-9_.]*)`?: ")


def decode_error(http: HTTPReply, deployment: Deployment) -> ProviderError:
    """Return the typed error of a refusal; the parameter that its sentence begins with is its ``param``."""
    error = read_refusal(http, deployment)
    if isinstance(error, BadRequestError) and error.param is None and error.detail:
        found = _NAMED.match(error.detail)
        if found and found[1] != "model":
            error.param = found[1]
    return error


# -- encode_reply --------------------------------------------------------------------------------------------------------

_WORDS = {reason: word for word, reason in reversed(list(FINISH.items()))}


def encode_reply(reply: Reply) -> JSON:
    """Return a reply as the body that this API would have sent."""
    native = reply.message.get("provider_data") if reply.message else None
    content: list[JSON] = []
    if isinstance(native, dict) and native.get("dialect") == NAME:
        content = list(native["items"])
    else:
        if reply.reasoning:
            content.append({"type": "thinking", "thinking": reply.reasoning, "signature": ""})
        if reply.text:
            content.append({"type": "text", "text": reply.text})
        for call in reply.tool_calls or ():
            function = call["function"]
            made = arguments_value(function["arguments"])
            content.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": made})
    raw = reply.raw_finish_reason
    meant = FINISH.get(raw, "unknown") if raw else None
    known = meant == reply.finish_reason or (meant == "stop" and reply.finish_reason == "tool_calls")
    word = raw if known else _WORDS.get(reply.finish_reason)
    body: JSON = {
        "id": reply.id or "msg_0",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": content,
        "stop_reason": word,
        "stop_sequence": None,
        "usage": _usage(reply.usage),
    }
    if reply.refusal:
        body["stop_reason"], body["stop_details"] = "refusal", {"type": "refusal", "explanation": reply.refusal}
    return body


def _usage(usage: Usage | None) -> JSON | None:
    if usage is None:
        return None
    read, written = usage.cached_input_tokens, usage.cache_write_tokens
    fresh = None if usage.input_tokens is None else usage.input_tokens - (read or 0) - (written or 0)
    out: JSON = {
        "input_tokens": fresh,
        "output_tokens": usage.output_tokens,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
    }
    if usage.reasoning_tokens is not None:
        out["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
    return {key: value for key, value in out.items() if value is not None}


# -- decode_models: https://docs.claude.com/en/api/models-list -----------------------------------------------------------


def decode_models(body: JSON) -> list[str]:
    """Return the model names of a model list."""
    return [item["id"] for item in body.get("data") or () if isinstance(item, dict) and isinstance(item.get("id"), str)]


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
