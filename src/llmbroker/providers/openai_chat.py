"""Chat Completions: OpenAI's first dialect, spoken by every compatible server.

Here is the way out: a request to the body of ``POST /chat/completions``, a reply back to a body, the model list. The way in is
``openai_chat_stream``, the mends of a refused parameter are in ``openai_chat_mend``. What a vendor does otherwise is a word in
its row (``quirks``, ``features``, ``rename``, ``drop``), read here; no name of a vendor is.

Source: https://platform.openai.com/docs/api-reference/chat
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from llmbroker.errors import UnsupportedFeatureError
from llmbroker.exchange import Choice, Reply, Request, ToolSet
from llmbroker.messages import Assistant, Audio, Block, Call, File, Image, Part, Result, Text, User, encode_pieces
from llmbroker.providers.base import Deployment, Dialect, StreamDecoder
from llmbroker.providers.openai_chat_mend import mend
from llmbroker.providers.openai_chat_stream import OPAQUE, ChatDecoder, decode
from llmbroker.providers.params import asked, note
from llmbroker.providers.refusal import decode_error
from llmbroker.providers.urls import join
from llmbroker.wire import HTTPRequest

JSON: TypeAlias = dict[str, Any]
NAME = "openai-chat"

# -- the request ---------------------------------------------------------------------------------------------------------


def encode(request: Request, deployment: Deployment) -> HTTPRequest:
    """Return the HTTP request for a request.

    Raises:
        UnsupportedFeatureError: the provider takes no tools, images, sound or files at all.
    """
    provider = deployment.provider
    body: JSON = {}
    if request.tools is not None:
        if "tools" not in provider.features:
            raise unsupported(deployment, "tools")
        body["tools"] = _tools(request.tools, "cache_marks" in provider.features)
        if request.tool_choice is not None:
            _put_choice(body, request.tool_choice, request.tools, deployment)
    word = _put_format(body, request, deployment) if request.response_format is not None else None
    if request.params:
        for name, value in asked(request, deployment).items():
            if value is not None and (name != "parallel_tool_calls" or request.tools is not None):
                body[name] = value
    if request.stream:
        body["stream"] = True
        if "stream_usage" in provider.features and "stream_options" not in deployment.mended.drop:
            body["stream_options"] = {"include_usage": True}
    messages = _messages(request, deployment, word)
    rest = msgspec.json.encode(body)
    # Joined, not encoded: the messages may be a megabyte that was written before.
    model = msgspec.json.encode(deployment.model)
    data = b"".join((b'{"model":', model, b',"messages":', *messages, b"," if body else b"", rest[1:]))
    return HTTPRequest(join(deployment.base_url, "/chat/completions"), deployment.static_headers, data)


def _tools(tools: ToolSet, marks: bool) -> msgspec.Raw:
    key = f"{NAME}+marks" if marks else NAME
    made = tools.encoded.get(key)
    if made is None:
        items: list[JSON] = []
        for spec in tools.specs:
            function: JSON = {"name": spec.name}
            if spec.description:
                function["description"] = spec.description
            function["parameters"] = spec.parameters
            if spec.strict is not None:
                function["strict"] = spec.strict
            item: JSON = {"type": "function", "function": function}
            if marks and spec.cache:
                item["cache_control"] = {"type": "ephemeral"}
            items.append(item)
        made = tools.encoded[key] = msgspec.Raw(msgspec.json.encode(items))
    return made


def _put_choice(body: JSON, choice: Choice, tools: ToolSet, deployment: Deployment) -> None:
    provider, mended = deployment.provider, deployment.mended
    if "tool_choice" not in provider.features or "tool_choice" in mended.drop or "tool_choice" in provider.drop:
        if choice.mode == "none":
            del body["tools"]  # without tools none can be called
        elif choice.mode != "auto":
            note(deployment, "tool_choice", "is not taken there and was left out")
        return
    if choice.mode == "tool" and choice.name is not None:
        if "tool_choice" in mended.rename:  # a server that knows only words
            body["tool_choice"] = mended.rename["tool_choice"]
            body["tools"] = _tools(ToolSet([tool for tool in tools if _named(tool, choice.name)]), False)
        else:
            body["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    elif choice.mode == "required" and "required-is-any" in provider.quirks:
        body["tool_choice"] = "any"
    else:
        body["tool_choice"] = choice.mode


def _named(tool: JSON, name: str) -> bool:
    return bool((tool.get("function") or tool).get("name") == name)


def _put_format(body: JSON, request: Request, deployment: Deployment) -> str | None:
    """Put the response format; return the sentence that the messages must hold for it, or None."""
    wanted = request.response_format or {}
    kind, features = wanted.get("type"), deployment.provider.features
    weaker = deployment.mended.rename.get("response_format")
    if kind == "json_schema" and ("json_schema" not in features or weaker == "json_object"):
        schema = (wanted.get("json_schema") or {}).get("schema") or {}
        text = msgspec.json.encode(schema).decode()
        if "json_object" in features:
            body["response_format"] = {"type": "json_object"}
        return f"Answer with one JSON object, and nothing else, that is valid under this JSON schema: {text}"
    if kind == "json_object" and "json_object" not in features:
        return "Answer with one JSON object and nothing else."
    body["response_format"] = wanted
    # The word must stand in the messages: https://platform.openai.com/docs/guides/structured-outputs#json-mode
    return _JSON_WORD if kind == "json_object" else None


_JSON_WORD = "Answer with one JSON object."


# -- messages ------------------------------------------------------------------------------------------------------------


def _messages(request: Request, deployment: Deployment, word: str | None) -> tuple[bytes | bytearray, ...]:
    """Return the array of messages in pieces that are to be joined."""
    provider = deployment.provider
    policy = "never" if "reasoning_content" in deployment.mended.drop else provider.reasoning
    writer = _Writer(deployment, policy)
    key = (NAME, provider.id, deployment.model, policy)
    made = encode_pieces(request.history, key, writer.block, by_loop=policy == "loop")
    if word is None or (word == _JSON_WORD and any(b"json" in piece.lower() for piece in made)):
        return made
    first = msgspec.json.encode({"role": "system", "content": word})
    return b"[", first, b",", *made[1:]


class _Writer:
    """Blocks of a history to Chat Completions messages, as one provider wants them."""

    __slots__ = ("_deployment", "_features", "_policy", "_quirks")

    def __init__(self, deployment: Deployment, policy: str) -> None:
        self._deployment = deployment
        self._features = deployment.provider.features
        self._quirks = deployment.provider.quirks
        self._policy = policy

    def block(self, block: Block, current: bool) -> list[JSON]:
        """Return the messages of one block: the assistant's, the results of its calls in order, what came after."""
        out: list[JSON] = []
        if block.assistant is not None:
            # Where the user speaks in the same block, the assistant's turn came before: it is of an earlier loop.
            out.append(self._assistant(block.assistant, current and not block.has_user))
            shown: list[JSON] = []
            given = {call.id: self._id(call) for call in block.assistant.calls}
            out += [self._result(result, given[result.id], shown) for result in block.results]
            if shown:
                out.append({"role": "user", "content": shown})
        out += [self._user(message) for message in block.users]
        return out

    def _assistant(self, message: Assistant, current: bool) -> JSON:
        text = message.text or message.refusal or ""
        made: JSON = {"role": "assistant", "content": text}
        if message.calls:
            if not text and "content-not-null" not in self._quirks:
                made["content"] = None
            echo = self._own(message.native) if message.native else "call-extra" in self._quirks
            made["tool_calls"] = [self._call(call, echo) for call in message.calls]
        if message.native is not None and self._own(message.native):
            for item in message.native["items"]:
                made.update({key: value for key, value in item.items() if key != "calls"})
        if self._policy == "always" or (self._policy == "loop" and current):
            field = "reasoning" if "reasoning-field-reasoning" in self._quirks else "reasoning_content"
            if message.reasoning:
                made[field] = message.reasoning
            elif message.calls and "reasoning-required" in self._quirks:
                made[field] = ""
        return made

    def _own(self, native: JSON) -> bool:
        """Whether opaque items were written by this provider in this dialect; nobody else can read them.

        They belong to a model too, except where signatures may pass from one model to the next (``call-extra``).
        """
        deployment = self._deployment
        if native.get("dialect") != NAME or native.get("provider") != deployment.provider.id:
            return False
        return native.get("model") == deployment.model or "call-extra" in self._quirks

    def _call(self, call: Call, echo: bool) -> JSON:
        made: JSON = {
            "id": self._id(call),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        if call.extra and echo:
            made.update({key: value for key, value in call.extra.items() if key in OPAQUE})
        return made

    def _id(self, call: Call) -> str:
        """Return a call's id as the server takes it: as it came, unless it is too long or of a form that is refused.

        Mistral wants exactly nine letters and digits, OpenAI at most 40 characters. What is made is the same each time.
        """
        wanted = call.given or call.id
        if "ids-of-nine" in self._quirks:
            fits, length = len(wanted) == 9 and wanted.isalnum() and wanted.isascii(), 9
        else:
            fits, length = len(wanted) <= 40 or "ids-of-forty" not in self._quirks, 40
        if fits:
            return wanted
        import hashlib

        return hashlib.sha256(wanted.encode("utf-8", "replace")).hexdigest()[:length]

    def _result(self, result: Result, call_id: str, shown: list[JSON]) -> JSON:
        """Return a result; images and files of it go to ``shown``, as a tool message can hold only text."""
        text = result.text
        others = [part for part in result.parts if not isinstance(part, Text)]
        if others:
            shown.append({"type": "text", "text": f"Attached by the result of {result.name} ({call_id}):"})
            shown += [self._part(part) for part in others]
            text = text or "(see the attachment in the next message)"
        made: JSON = {"role": "tool", "tool_call_id": call_id, "content": text}
        if "cache_marks" in self._features and any(isinstance(part, Text) and part.cache for part in result.parts):
            made["content"] = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]
        if "result-name" in self._quirks:
            made["name"] = result.name
        return made

    def _user(self, message: User) -> JSON:
        made: JSON = {"role": message.role, "content": self._content(message.parts)}
        if message.name:
            made["name"] = message.name
        return made

    def _content(self, parts: tuple[Part, ...]) -> Any:
        """Return a string where there is one text (or none), else the parts."""
        if not parts:
            return ""
        marks = "cache_marks" in self._features
        if len(parts) == 1:
            only = parts[0]
            if isinstance(only, Text) and not (only.cache and marks):
                return only.text
        return [self._part(part) for part in parts]

    def _part(self, part: Part) -> JSON:
        made: JSON
        if isinstance(part, Text):
            made = {"type": "text", "text": part.text}
        elif isinstance(part, Image):
            self._need("images")
            image: JSON = {"url": part.url or f"data:{part.media_type};base64,{part.data}"}
            if part.detail:
                image["detail"] = part.detail
            made = {"type": "image_url", "image_url": image}
        elif isinstance(part, Audio):
            self._need("audio")
            return {"type": "input_audio", "input_audio": {"data": part.data, "format": part.format}}
        else:
            self._need("files")
            made = self._file(part)
        if part.cache and "cache_marks" in self._features:
            made["cache_control"] = {"type": "ephemeral"}
        return made

    def _file(self, part: File) -> JSON:
        data = part.url or (f"data:{part.media_type};base64,{part.data}" if part.data is not None else None)
        if "document-url" in self._quirks and data is not None:
            return {"type": "document_url", "document_url": data}
        if data is None:
            return {"type": "file", "file": {"file_id": part.file_id}}
        suffix = (part.media_type or "application/pdf").rpartition("/")[2]
        return {"type": "file", "file": {"filename": part.name or f"file.{suffix}", "file_data": data}}

    def _need(self, feature: str) -> None:
        if feature not in self._features:
            raise unsupported(self._deployment, feature)


def unsupported(deployment: Deployment, feature: str) -> UnsupportedFeatureError:
    """Return the error for what a provider cannot do at all; nothing is sent, so that another one can be asked."""
    return UnsupportedFeatureError(
        f"{deployment.provider.id} takes no {feature} in requests to {deployment.model}; nothing was sent.",
        feature=feature,
        hint=f"Use a model that has {feature}, or leave them out.",
        **deployment.facts(),
    )


# -- the way in ----------------------------------------------------------------------------------------------------------


def decoder(deployment: Deployment) -> StreamDecoder:
    """Make the decoder of one stream."""
    return ChatDecoder(deployment)


_FINISH = {"stop": "stop", "length": "length", "tool_calls": "tool_calls", "content_filter": "content_filter"}


def encode_reply(reply: Reply) -> JSON:
    """Return a reply as a whole Chat Completions body, for gateways and tests; ``created`` is left to who sends it."""
    message: JSON = {"role": "assistant", "content": reply.text or None}
    if reply.tool_calls:
        message["tool_calls"] = reply.tool_calls
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.refusal:
        message["refusal"] = reply.refusal
    choice: JSON = {"index": 0, "message": message, "finish_reason": _FINISH.get(reply.finish_reason)}
    if reply.finish_reason == "refusal":
        choice["finish_reason"] = "stop" if reply.refusal else "refusal"
    elif reply.finish_reason == "error":
        choice["finish_reason"] = "error"
        choice["native_finish_reason"] = reply.raw_finish_reason or "unknown"
    elif reply.finish_reason == "unknown":
        choice["finish_reason"] = reply.raw_finish_reason
    body: JSON = {
        "id": reply.id or "",
        "object": "chat.completion",
        "created": 0,
        "model": reply.model or "",
        "choices": [choice],
    }
    usage = reply.usage
    if usage is not None:
        said: JSON = {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": usage.total_tokens,
        }
        cache = {"cached_tokens": usage.cached_input_tokens, "cache_write_tokens": usage.cache_write_tokens}
        said["prompt_tokens_details"] = {name: value for name, value in cache.items() if value is not None}
        if usage.reasoning_tokens is not None:
            said["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
        body["usage"] = {name: value for name, value in said.items() if value is not None and value != {}}
    return body


def decode_models(body: Any) -> list[str]:
    """Return the names in a model list: ``{"data": [{"id": ...}]}``, a bare list (Together), or ``models``."""
    items = (body.get("data") or body.get("models")) if isinstance(body, dict) else body
    found: list[str] = []
    for item in items if isinstance(items, list) else ():
        name = (item.get("id") or item.get("name")) if isinstance(item, dict) else item
        if isinstance(name, str):
            found.append(name)
    return found


DIALECT = Dialect(
    name=NAME,
    framing="sse",
    encode=encode,
    decode=decode,
    decoder=decoder,
    decode_error=decode_error,
    encode_reply=encode_reply,
    decode_models=decode_models,
    native=True,
    mend=mend,
)
