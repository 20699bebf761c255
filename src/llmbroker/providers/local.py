"""The embedded model: a provider without an address, whose engine runs in this process (``transports/local``).

The dialect is Chat Completions with two differences. Conversations with tools are put in the words of ``local_prompt`` and the
answer is held to a schema; the request then bears a mark that the engine copies into every chunk, and the decoder reads such an
answer by ``local_answer``. Without tools the model's own chat template is used and the answer is plain text.

Parameters: https://github.com/ggml-org/llama.cpp/tree/master/tools/server
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from llmbroker.errors import BadRequestError, ContextWindowError, ModelNotFoundError, ServerError
from llmbroker.exchange import Event, Finished, Request, TextDelta, ToolSpec
from llmbroker.messages import Block, Text
from llmbroker.providers import local_schema, openai_chat, openai_chat_stream, refusal
from llmbroker.providers.base import Deployment, Dialect, Provider, StreamDecoder
from llmbroker.providers.local_answer import AnswerReader
from llmbroker.providers.local_prompt import SMALL, Wish, turn
from llmbroker.providers.params import asked
from llmbroker.wire import SSE, HTTPRequest

JSON: TypeAlias = dict[str, Any]
NAME = "local"
URL = "local:/chat/completions"
MARK = "calls"
MOST_TOKENS = 1024
"""The limit of an answer whose request gives none: a small model does not always find an end by itself."""
MOST_TOKENS_SMALL = 512
NO_REPETITION: JSON = {
    "dry_multiplier": 0.8,
    "dry_allowed_length": 6,
    "dry_sequence_breakers": ["\u2603"],  # the list may not be empty; the usual ones (colon, quote) hide a repetition
}
"""What keeps a very small model from saying one thing over and over. Not where it may call: a call repeats its examples."""
BRIEFLY = "You are a helpful assistant. You answer briefly and correctly."
"""The system message of a very small model where there is none: with it, it knows what it otherwise babbles about."""

# -- the request ---------------------------------------------------------------------------------------------------------


def encode(request: Request, deployment: Deployment) -> HTTPRequest:
    """Return the request for the engine.

    Raises:
        UnsupportedFeatureError: the conversation holds images, sound or files.
    """
    params = {name: value for name, value in asked(request, deployment).items() if value is not None}
    parallel = params.pop("parallel_tool_calls", True) is not False
    small = deployment.model in SMALL
    body: JSON = {
        "model": deployment.model,
        "temperature": 0,
        "max_tokens": MOST_TOKENS_SMALL if small else MOST_TOKENS,
    }
    blocks = request.history.blocks
    _refuse_media(blocks, deployment)
    tools, must_call = _in_reach(request)
    if tools:
        wish = Wish(tools, must_call, parallel, _answer_form(request.response_format))
        put = turn(blocks, wish, small=small)
        body["messages"] = put.messages
        words_only = not put.may_call
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "turn", "schema": put.schema}}
        body["llmbroker"] = MARK
    else:
        messages = [message for block in blocks for message in _plain(block)]
        if small and not any(message["role"] == "system" for message in messages):
            messages.insert(0, {"role": "system", "content": BRIEFLY})
        body["messages"] = messages
        words_only = True
        if request.response_format is not None:
            body["response_format"] = _format(request.response_format)
    if small and words_only:
        body.update(NO_REPETITION)
    if request.stream:
        body["stream"] = True
    body.update(params)
    return HTTPRequest(URL, {"content-type": "application/json"}, msgspec.json.encode(body))


def _in_reach(request: Request) -> tuple[tuple[ToolSpec, ...], bool]:
    """Return the tools that this turn may call, and whether it must call one."""
    if request.tools is None:
        return (), False
    choice = request.tool_choice
    if choice is None or choice.mode == "auto":
        return request.tools.specs, False
    if choice.mode == "none":
        return (), False
    if choice.mode == "tool" and choice.name is not None:
        return (request.tools.by_name[choice.name],), True
    return request.tools.specs, True


def _answer_form(wanted: JSON | None) -> JSON | None:
    kind = wanted.get("type") if wanted else None
    if wanted and kind == "json_schema":
        return local_schema.fit((wanted.get("json_schema") or {}).get("schema") or {})
    return {"type": "object"} if kind == "json_object" else None


def _format(wanted: JSON) -> JSON:
    if wanted.get("type") != "json_schema":
        return wanted
    inner = wanted.get("json_schema") or {}
    return {"type": "json_schema", "json_schema": {**inner, "schema": local_schema.fit(inner.get("schema") or {})}}


def _refuse_media(blocks: list[Block], deployment: Deployment) -> None:
    for block in blocks:
        spoken = [part for message in block.users for part in message.parts]
        for part in (*spoken, *(part for result in block.results for part in result.parts)):
            if not isinstance(part, Text):
                raise openai_chat.unsupported(deployment, "images")


def _plain(block: Block) -> list[JSON]:
    """A turn as chat templates without tools know it; calls and results of earlier turns are told in words."""
    out: list[JSON] = []
    if block.assistant is not None and block.assistant.text:
        out.append({"role": "assistant", "content": block.assistant.text})
    told = "\n".join(f"Result of {result.name}: {result.text}" for result in block.results)
    for message in block.users:
        if message.role == "system":
            out.append({"role": "system", "content": message.text})
        else:
            out.append({"role": "user", "content": f"{told}\n\n{message.text}" if told else message.text})
            told = ""
    if told:
        out.append({"role": "user", "content": told})
    return out


# -- the answer ----------------------------------------------------------------------------------------------------------


class _Decoder:
    """The decoder of one answer: Chat Completions, and a constrained text read on the way."""

    def __init__(self, deployment: Deployment) -> None:
        self.done = False
        self._chat = openai_chat_stream.ChatDecoder(deployment)
        self._reader: AnswerReader | None = None

    def feed(self, event: SSE) -> list[Event]:
        """Decode one payload; raises as the decoder of Chat Completions does."""
        # Inside a JSON string these bytes cannot stand: its quotes are escaped.
        if self._reader is None and b'"llmbroker":' in event.data:
            self._reader = AnswerReader()
        events = self._chat.feed(event)
        self.done = self._chat.done
        return events if self._reader is None else _read(events, self._reader)


def _read(events: list[Event], reader: AnswerReader) -> list[Event]:
    out: list[Event] = []
    for event in events:
        if isinstance(event, TextDelta):
            out += reader.feed(event.text)
            continue
        if isinstance(event, Finished):
            out += reader.end()
        out.append(event)
    return out


def decode(body: JSON, deployment: Deployment) -> list[Event]:
    """Decode a whole body; raises as the decoder of Chat Completions does."""
    events = openai_chat_stream.decode(body, deployment)
    return _read(events, AnswerReader()) if "llmbroker" in body else events


def decoder(deployment: Deployment) -> StreamDecoder:
    """Make the decoder of one stream."""
    return _Decoder(deployment)


DIALECT = Dialect(
    name=NAME,
    framing="sse",
    encode=encode,
    decode=decode,
    decoder=decoder,
    decode_error=refusal.decode_error,
    encode_reply=openai_chat.encode_reply,
    decode_models=openai_chat.decode_models,
)

PROVIDER = Provider(
    id="local",
    title="The embedded model",
    dialect=DIALECT,
    base_url="local:",
    auth="none",
    needs_key=False,
    rename={"max_completion_tokens": "max_tokens"},
    drop=frozenset({"user", "metadata", "store", "service_tier", "reasoning_effort", "n"}),
    features=frozenset({"tools", "tool_choice", "parallel_tools", "json_object", "json_schema", "stream", "stream_usage"}),
    errors={
        (None, "exceed_context_size_error"): ContextWindowError,
        (None, "invalid_request_error"): BadRequestError,
        (None, "model_not_found"): ModelNotFoundError,
        (None, "local_extra_missing"): ModelNotFoundError,
        (None, "download_failed"): ModelNotFoundError,
        (None, "load_failed"): ModelNotFoundError,
        (None, "engine_failed"): ServerError,
    },
    errors_source="transports/local",
    docs="https://github.com/ggml-org/llama.cpp",
)
