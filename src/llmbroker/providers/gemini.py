"""Gemini generateContent: a dialect, as Google serves it to developers and on Vertex AI.

Our history in its words. Parameters are in ``gemini_params``, answers in ``gemini_stream``. The key travels in a header, never
in the URL. The API: https://ai.google.dev/api/generate-content
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from llmbroker.errors import BadRequestError, ProviderError
from llmbroker.exchange import Reply, Request, ToolSet, Usage
from llmbroker.messages import Assistant, Audio, Block, Call, Encoded, File, History, Image, Part, Result, Text, encode_blocks
from llmbroker.providers.base import Deployment, Dialect, Mend, arguments_value
from llmbroker.providers.gemini_params import Family, family, openapi_schema, put_params
from llmbroker.providers.gemini_stream import FINISH, Decoder, decode
from llmbroker.providers.params import note
from llmbroker.providers.refusal import decode_error
from llmbroker.providers.urls import join
from llmbroker.wire import HTTPRequest

JSON: TypeAlias = dict[str, Any]

NAME = "gemini"
OPENING = "Continue."
"""What the user says where a history has the model speak first: a call has to follow something that the user said."""
PLACEHOLDER = "skip_thought_signature_validator"
"""Stands for the thought signature that calls of another provider do not have.

https://ai.google.dev/gemini-api/docs/thought-signatures, "FAQs"; https://docs.cloud.google.com/vertex-ai/generative-ai/docs/thought-signatures
"""


# -- encode: https://ai.google.dev/api/generate-content ------------------------------------------------------------------


def encode(request: Request, deployment: Deployment) -> HTTPRequest:
    """Return the HTTP request."""
    history, facts, refused = request.history, family(deployment.model), deployment.mended.drop
    body: JSON = {}
    put_params(body, request, deployment)
    words = _put_format(body, request, facts, deployment)
    _put_tools(body, request, facts, deployment)
    contents = bytes(
        encode_blocks(
            history,
            (NAME, facts.signatures, facts.media_results),
            _encoders[facts.signatures, facts.media_results],
            by_loop=False,
        )
    )
    first = history.finished_blocks[0] if history.finished_blocks else history.last_block
    if first.assistant is not None:
        contents = _before(contents, {"role": "user", "parts": [{"text": OPENING}]})
    if _model_twice(history):
        contents = _joined_turns(contents)
    system = bytes(encode_blocks(history, "gemini-system", _system, by_loop=False))
    if words:
        system = _before(system, {"text": words})
    if system != b"[]":
        if "systemInstruction" in refused:
            contents = b'[{"role":"user","parts":' + system + b"}" + (b"," if contents != b"[]" else b"") + contents[1:]
        else:
            body["systemInstruction"] = {"parts": msgspec.Raw(system)}
    body["contents"] = msgspec.Raw(contents)
    verb = "streamGenerateContent?alt=sse" if request.stream else "generateContent"
    model = deployment.model if "/" in deployment.model else f"models/{deployment.model}"
    return HTTPRequest(join(deployment.base_url, f"/{model}:{verb}"), deployment.static_headers, msgspec.json.encode(body))


def _before(array: bytes, item: JSON) -> bytes:
    """Put an item at the front of an array that is JSON text already."""
    made = msgspec.json.encode(item)
    return b"[" + made + (b"," if array != b"[]" else b"") + array[1:]


def _model_twice(history: History) -> bool:
    """Whether the model speaks twice without anybody in between, which a user's history may hold and the API refuses.

    What was looked at is remembered beside the encoded blocks: a longer history costs no more.
    """
    blocks = history.finished_blocks
    kept = history.encoded.get("gemini-turns")
    if kept is None or kept.count > len(blocks):
        kept = history.encoded["gemini-turns"] = Encoded()
    for index in range(kept.count, len(blocks)):
        block = blocks[index]
        if block.assistant is not None and not block.results and not _user_speaks(block):
            kept.body += b"1"
    kept.count = len(blocks)
    return bool(kept.body)


def _user_speaks(block: Block) -> bool:
    spoken = (part for message in block.users if message.role == "user" for part in message.parts)
    return any(not isinstance(part, Text) or part.text for part in spoken)


def _joined_turns(contents: bytes) -> bytes:
    out: list[JSON] = []
    for content in msgspec.json.decode(contents):
        if out and content["role"] == "model" and out[-1]["role"] == "model":
            out[-1]["parts"] += content["parts"]
        else:
            out.append(content)
    return msgspec.json.encode(out)


def _put_format(body: JSON, request: Request, facts: Family, deployment: Deployment) -> str | None:
    """Place a response format; return the words that ask for it where the model takes none (with tools, before 3)."""
    wanted = request.response_format
    if wanted is None or wanted["type"] == "text":
        return None
    named = wanted.get("json_schema") or {}
    schema = named.get("schema") or wanted.get("schema")
    tools_too = request.tools and (not facts.json_tools or "response_format.tools" in deployment.mended.drop)
    if tools_too or "response_format" in deployment.mended.drop:
        asked_for = f" that fits this JSON schema: {msgspec.json.encode(schema).decode()}" if schema else ""
        return f"Give the final answer as one JSON object and nothing else{asked_for}."
    config = body.setdefault("generationConfig", {})
    config["responseMimeType"] = "application/json"
    if schema and facts.schemas and "responseJsonSchema" not in deployment.mended.drop:
        config["responseJsonSchema"] = schema
    elif schema:
        config["responseSchema"] = openapi_schema(schema)
    return None


def _put_tools(body: JSON, request: Request, facts: Family, deployment: Deployment) -> None:
    """Place tools and choice: https://ai.google.dev/gemini-api/docs/function-calling."""
    if not request.tools:
        return
    schemas = facts.schemas and "parametersJsonSchema" not in deployment.mended.drop
    declared = {"functionDeclarations": _declarations(request.tools, schemas)}
    given = body.get("tools")
    body["tools"] = [*given, declared] if isinstance(given, list) else [declared]
    choice = request.tool_choice
    if choice is None:
        return
    if "tool_choice" in deployment.mended.drop and choice.mode in ("required", "tool"):
        note(deployment, "tool_choice", "became auto: this model takes no forced choice")
        return
    mode: JSON = {"mode": {"auto": "AUTO", "none": "NONE"}.get(choice.mode, "ANY")}
    if choice.mode == "tool":
        mode["allowedFunctionNames"] = [choice.name]
    config = body.get("toolConfig")
    body["toolConfig"] = {**(config if isinstance(config, dict) else {}), "functionCallingConfig": mode}


def _declarations(tools: ToolSet, schemas: bool) -> msgspec.Raw:
    key = f"{NAME}-{schemas}"
    made = tools.encoded.get(key)
    if made is None:
        out: list[JSON] = []
        for spec in tools.specs:
            item: JSON = {"name": spec.name, "description": spec.description or spec.name}
            if schemas:
                item["parametersJsonSchema"] = spec.parameters
            elif spec.parameters.get("properties"):
                item["parameters"] = openapi_schema(spec.parameters)
            out.append(item)
        made = tools.encoded[key] = msgspec.Raw(msgspec.json.encode(out))
    return made


# -- the history ---------------------------------------------------------------------------------------------------------


def _system(block: Block, _current: bool) -> list[JSON]:
    return [
        {"text": part.text}
        for message in block.users
        if message.role == "system"
        for part in message.parts
        if isinstance(part, Text) and part.text
    ]


def _contents(block: Block, signatures: bool, media: bool) -> list[JSON]:
    """Return a block as contents: the model's turn, one content with the results of all its calls, what the user said."""
    out: list[JSON] = []
    own_ids: tuple[bool, ...] = ()
    if block.assistant is not None:
        parts, own_ids = _model_parts(block.assistant, signatures)
        if parts:
            out.append({"role": "model", "parts": parts})
    beside: list[JSON] = []
    if block.results:
        results = [_result(result, media, beside) for result in block.results]
        for made, has_id, result in zip(results, own_ids, block.results, strict=False):
            if has_id:
                made["id"] = result.id
        out.append({"role": "user", "parts": [{"functionResponse": made} for made in results]})
    for message in block.users:
        if message.role == "user":
            beside += _parts(message.parts)
    if beside or (block.assistant is None and not out):
        out.append({"role": "user", "parts": beside or [{"text": OPENING}]})
    return out


_encoders = {
    (signatures, media): lambda block, _current, signatures=signatures, media=media: _contents(block, signatures, media)
    for signatures in (False, True)
    for media in (False, True)
}


def _model_parts(assistant: Assistant, signatures: bool) -> tuple[list[JSON], tuple[bool, ...]]:
    """Return the parts of a model's turn, and for each call whether the provider gave its id.

    The provider's own parts are taken where they still say what the message says; their signatures stay where they were.
    """
    native, calls = assistant.native, assistant.calls
    if native is None or native.get("dialect") != NAME:
        return _made_parts(assistant, signatures), ()
    items = [item for item in native["items"] if isinstance(item, dict)]
    own_calls = [item["functionCall"] for item in items if isinstance(item.get("functionCall"), dict)]
    own_text = "".join(
        item["text"] for item in items if isinstance(item.get("text"), str) and not item.get("thought") and not _is_call(item)
    )
    if not items or len(own_calls) != len(calls) or own_text != assistant.text:
        return _made_parts(assistant, signatures), ()
    own_ids = tuple(bool(call.get("id")) for call in own_calls)
    made = iter(_calls(calls, own_ids, [item for item in items if _is_call(item)], signatures))
    out = [next(made) if _is_call(item) else item for item in items if item != {"text": ""}]
    return out, own_ids


def _made_parts(assistant: Assistant, signatures: bool) -> list[JSON]:
    """Return the parts of a turn that has none of this provider's own."""
    parts = _parts(assistant.parts)
    if assistant.refusal and not parts:
        parts.append({"text": assistant.refusal})
    missing = PLACEHOLDER if signatures else None
    for call in assistant.calls:
        part: JSON = {"functionCall": {"name": call.name, "args": msgspec.Raw(call.arguments.encode())}}
        signature = (_borrowed(call) if call.extra else None) or missing
        if signature:
            part["thoughtSignature"] = signature
        parts.append(part)
        missing = None
    return parts


def _is_call(item: JSON) -> bool:
    return isinstance(item.get("functionCall"), dict)


def _calls(calls: tuple[Call, ...], own_ids: tuple[bool, ...], items: list[JSON], signatures: bool) -> list[JSON]:
    out: list[JSON] = []
    for index, (call, has_id, item) in enumerate(zip(calls, own_ids, items, strict=True)):
        made: JSON = {"name": call.name, "args": msgspec.Raw(call.arguments.encode())}
        if has_id:
            made["id"] = call.id
        part = {**item, "functionCall": made}
        signature = item.get("thoughtSignature") or _borrowed(call)
        if signature is None and signatures and index == 0:
            signature = PLACEHOLDER
        if signature:
            part["thoughtSignature"] = signature
        out.append(part)
    return out


def _borrowed(call: Call) -> str | None:
    """Return the signature that the OpenAI-compatible face of this provider put on a call."""
    extra = (call.extra or {}).get("extra_content")
    google = extra.get("google") if isinstance(extra, dict) else None
    signature = google.get("thought_signature") if isinstance(google, dict) else None
    return signature if isinstance(signature, str) and signature else None


def _result(result: Result, media: bool, beside: list[JSON]) -> JSON:
    """Return a result; its images and files go into it where the model takes them there, else beside it."""
    parts, answer = result.parts, "error" if result.is_error else "result"
    plain = parts[0] if len(parts) == 1 else None
    text = plain.text if isinstance(plain, Text) else result.text
    value: Any = text
    if text[:1] in ("{", "["):
        try:
            msgspec.json.decode(text)
            value = msgspec.Raw(text.encode())
        except (msgspec.DecodeError, RecursionError):
            pass
    made: JSON = {"name": result.name, "response": {answer: value}}
    if not isinstance(plain, Text):
        others = _parts(part for part in parts if not isinstance(part, Text))
        if others and media:
            made["parts"] = others
        else:
            beside += others
    return made


_MEDIA = {
    "png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "webp": "image/webp", "gif": "image/gif",
    "heic": "image/heic", "pdf": "application/pdf", "mp4": "video/mp4", "mp3": "audio/mp3", "wav": "audio/wav",
    "txt": "text/plain",
}  # fmt: skip


def _parts(parts: Iterable[Part]) -> list[JSON]:
    out: list[JSON] = []
    for part in parts:
        if isinstance(part, Text):
            if part.text:
                out.append({"text": part.text})
        elif isinstance(part, Audio):
            out.append(_inline(f"audio/{part.format}", part.data))
        elif isinstance(part, (Image, File)):
            where = part.url or (part.file_id if isinstance(part, File) else None)
            if where is None:
                out.append(_inline(part.media_type or "application/octet-stream", part.data or ""))
                continue
            ending = where.partition("?")[0].rpartition(".")[2].lower()
            media = part.media_type or _MEDIA.get(ending) or ("image/jpeg" if isinstance(part, Image) else "application/pdf")
            out.append({"fileData": {"mimeType": media, "fileUri": where}})
    return out


def _inline(media: str, data: str) -> JSON:
    return {"inlineData": {"mimeType": media.partition(";")[0], "data": data}}


# -- decode, decoder: in gemini_stream; decode_error: in refusal, https://ai.google.dev/gemini-api/docs/troubleshooting ---
# -- encode_reply --------------------------------------------------------------------------------------------------------

_WORDS = {
    "stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP", "content_filter": "SAFETY", "refusal": "REFUSAL",
    "error": "MALFORMED_RESPONSE", "unknown": None,
}  # fmt: skip


def encode_reply(reply: Reply) -> JSON:
    """Return a reply as the body that this API would have sent."""
    native = reply.message.get("provider_data") if reply.message else None
    parts: list[JSON] = []
    if isinstance(native, dict) and native.get("dialect") == NAME:
        parts = list(native["items"])
    else:
        if reply.reasoning:
            parts.append({"text": reply.reasoning, "thought": True})
        if reply.text:
            parts.append({"text": reply.text})
        for call in reply.tool_calls or ():
            function = call["function"]
            made = arguments_value(function["arguments"])
            parts.append({"functionCall": {"id": call["id"], "name": function["name"], "args": made}})
    raw = reply.raw_finish_reason
    meant = FINISH.get(raw, "unknown") if raw else None
    known = meant == reply.finish_reason or (meant == "stop" and reply.finish_reason == "tool_calls")
    candidate: JSON = {"content": {"role": "model", "parts": parts}, "index": 0}
    word = raw if known else _WORDS[reply.finish_reason]
    if reply.refusal:
        word, candidate["finishMessage"] = "REFUSAL", reply.refusal
    if word:
        candidate["finishReason"] = word
    body: JSON = {"candidates": [candidate], "modelVersion": reply.model, "responseId": reply.id}
    if reply.usage is not None:
        body["usageMetadata"] = _usage(reply.usage)
    return body


def _usage(usage: Usage) -> JSON:
    output, thoughts = usage.output_tokens, usage.reasoning_tokens
    counts = {
        "promptTokenCount": usage.input_tokens,
        "candidatesTokenCount": None if output is None else output - (thoughts or 0),
        "thoughtsTokenCount": thoughts,
        "cachedContentTokenCount": usage.cached_input_tokens,
        "totalTokenCount": usage.total_tokens,
    }
    return {name: count for name, count in counts.items() if count is not None}


# -- decode_models: https://ai.google.dev/api/models#method:-models.list -------------------------------------------------


def decode_models(body: JSON) -> list[str]:
    """Return the names of the models that generate content, without ``models/``."""
    out: list[str] = []
    for item in body.get("models") or body.get("publisherModels") or ():
        name = item.get("name") if isinstance(item, dict) else None
        methods = item.get("supportedGenerationMethods") if isinstance(item, dict) else None
        if isinstance(name, str) and (methods is None or "generateContent" in methods):
            out.append(name.removeprefix("models/"))
    return out


# -- mend ----------------------------------------------------------------------------------------------------------------

# What a refusal says, to what is left out from then on; names in camel case and ``response_format*`` are parts of the body.
_MENDS: tuple[tuple[re.Pattern[str], frozenset[str]], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), frozenset(drops))
    for pattern, drops in (
        (r"thinking.?level.{0,40}(not supported|unknown)|unknown name \"thinking_?level\"", {"thinkingLevel"}),
        (r"thinking.{0,40}not supported|only works in thinking mode|thinking.?budget.{0,80}(invalid|not supported|range)",
         {"reasoning_effort", "thinking_budget", "include_thoughts"}),
        (r"function calling with a response mime type", {"response_format.tools"}),
        (r"json mode is not (enabled|supported)", {"response_format"}),
        (r"unknown name \"response_?json_?schema\"", {"responseJsonSchema"}),
        (r"unknown name \"parameters_?json_?schema\"", {"parametersJsonSchema"}),
        (r"developer instruction is not enabled|system.?instruction.{0,40}not supported", {"systemInstruction"}),
        (r"penalty is not enabled|penalty.{0,40}not supported", {"presence_penalty", "frequency_penalty"}),
        (r"logprobs.{0,40}not (enabled|supported)", {"logprobs", "top_logprobs"}),
        (r"multiple candidates is not enabled|candidate.?count.{0,40}not supported", {"n"}),
        (r"forced function calling|function calling mode.{0,60}not supported", {"tool_choice"}),
    )
)  # fmt: skip


def mend(error: ProviderError, request: Request, deployment: Deployment) -> Mend | None:
    """Return what to leave out so that this request is taken, or None. A wrong value of the caller's stays his error."""
    if not isinstance(error, BadRequestError) or not error.detail:
        return None
    for pattern, drops in _MENDS:
        if pattern.search(error.detail):
            fresh = drops - deployment.mended.drop
            return Mend(drop=fresh) if fresh and any(_concerns(name, request) for name in fresh) else None
    return None


def _concerns(name: str, request: Request) -> bool:
    """Whether what is to be left out is in this request at all: else the refusal is about something else."""
    if name in ("parametersJsonSchema", "tool_choice"):
        return request.tools is not None
    if name.startswith("response"):
        return request.response_format is not None
    if name == "thinkingLevel":
        return "reasoning_effort" in request.params
    return name == "systemInstruction" or name in request.params


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
    arrays=True,
)
