"""The Ollama dialect, ``/api/chat``; its API: https://docs.ollama.com/api/chat.

Arguments of calls are objects in both directions, ids are recent and optional, a stream is one JSON object a line and each tool
call arrives whole. There is no tool choice: ``none`` leaves the tools out, anything else but ``auto`` is noted and left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from llmbroker.errors import InvalidProviderResponseError, InvalidRequestError, ProviderError
from llmbroker.exchange import (
    CallDelta,
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    Reply,
    Request,
    Started,
    TextDelta,
    ToolSet,
    Usage,
    UsageReport,
)
from llmbroker.messages import Block, Image, Part, Result, Text, encode_blocks
from llmbroker.providers import refusal
from llmbroker.providers.base import Deployment, Dialect, arguments_value, parse_json
from llmbroker.providers.params import asked, note, whole_number
from llmbroker.providers.think import ThinkSplitter
from llmbroker.wire import SSE, HTTPReply, HTTPRequest

JSON: TypeAlias = dict[str, Any]

# -- encode: https://docs.ollama.com/api/chat ----------------------------------------------------------------------------

TOP_LEVEL = frozenset({"think", "keep_alive", "format", "template", "raw", "options", "logprobs", "top_logprobs"})
OPTIONS: Mapping[str, str] = {
    # Ours to theirs: https://docs.ollama.com/modelfile#valid-parameters-and-values
    "max_tokens": "num_predict",
    "max_completion_tokens": "num_predict",
    "repetition_penalty": "repeat_penalty",
}


def encode(request: Request, deployment: Deployment) -> HTTPRequest:
    """Return the HTTP request."""
    body: JSON = {
        "model": deployment.model,
        "messages": encode_blocks(request.history, "ollama", _items, by_loop=True),
        "stream": request.stream,
    }
    choice = request.tool_choice
    if request.tools and (choice is None or choice.mode != "none"):
        body["tools"] = _tools(request.tools)
        if choice is not None and choice.mode != "auto":
            note(deployment, "tool_choice", "has no place in /api/chat and was left out")
    body.update(_params(request, deployment))
    wanted = request.response_format
    if wanted is not None and wanted["type"] != "text":
        schema = (wanted.get("json_schema") or {}).get("schema")
        body["format"] = schema if wanted["type"] == "json_schema" and schema else "json"
    return HTTPRequest(f"{deployment.base_url}/api/chat", deployment.static_headers, msgspec.json.encode(body))


def _params(request: Request, deployment: Deployment) -> JSON:
    params = asked(request, deployment)
    top: JSON = {}
    options: JSON = dict(params.pop("options", None) or {})
    for name, value in params.items():
        if value is None:
            continue
        if name in TOP_LEVEL:
            top[name] = value
        elif name in ("reasoning_effort", "thinking", "include_thoughts"):
            top["think"] = _think(value)
        elif name == "stop":
            options["stop"] = [value] if isinstance(value, str) else value
        elif name == "thinking_budget":
            top["think"] = bool(value)
        elif name == "parallel_tool_calls":
            note(deployment, name, "has no place in /api/chat and was left out")
        else:
            options[OPTIONS.get(name, name)] = value
    if options:
        top["options"] = options
    return top


def _think(value: Any) -> Any:
    """Ollama takes a bool, or low, medium and high for the models that know levels."""
    if isinstance(value, Mapping):
        return value.get("type") != "disabled"
    return False if value in ("none", "minimal", False) else value


def _tools(tools: ToolSet) -> msgspec.Raw:
    made = tools.encoded.get("ollama")
    if made is None:
        items = [
            {
                "type": "function",
                "function": {"name": spec.name, "description": spec.description, "parameters": spec.parameters},
            }
            for spec in tools.specs
        ]
        made = tools.encoded["ollama"] = msgspec.Raw(msgspec.json.encode(items))
    return made


def _items(block: Block, current: bool) -> list[JSON]:
    out: list[JSON] = []
    turn = block.assistant
    if turn is not None:
        message: JSON = {"role": "assistant", "content": turn.text}
        if turn.reasoning and current:
            message["thinking"] = turn.reasoning
        if turn.calls:
            message["tool_calls"] = [
                {"id": call.id, "function": {"name": call.name, "arguments": msgspec.Raw(call.arguments.encode())}}
                for call in turn.calls
            ]
        out.append(message)
    out += [_result(result) for result in block.results]
    for user in block.users:
        spoken: JSON = {"role": user.role, "content": user.text}
        images = [_image(part) for part in user.parts if not isinstance(part, Text)]
        if images:
            spoken["images"] = images
        out.append(spoken)
    return out


def _result(result: Result) -> JSON:
    """Return a result. It may show images; what Ollama cannot take is told in words, so that nobody waits for it."""
    text, images = result.text, []
    for part in result.parts:
        if isinstance(part, Image) and part.data:
            images.append(part.data)
        elif not isinstance(part, Text):
            text += f"\n[{type(part).__name__.lower()}: not shown, Ollama takes images as base64 only]"
    made: JSON = {
        "role": "tool", "content": text.strip() or ("(see the image)" if images else "(no text)"), "tool_name": result.name,
        "tool_call_id": result.id,
    }  # fmt: skip
    if images:
        made["images"] = images
    return made


def _image(part: Part) -> str:
    if isinstance(part, Image) and part.data:
        return part.data
    raise InvalidRequestError(
        f"Ollama takes images as base64 only, no {type(part).__name__.lower()} of this form.", argument="messages"
    )


# -- decode: a whole body -------------------------------------------------------------------------------------------------

FINISH: Mapping[str, FinishReason] = {"stop": "stop", "length": "length"}


def decode(body: JSON, deployment: Deployment) -> list[Event]:
    """Return the events of a whole answer.

    Raises:
        ProviderError: the body is an error.
        InvalidProviderResponseError: it is no answer.
    """
    decoder = Decoder(deployment)
    events = decoder.take(body)
    if not decoder.done:
        events += decoder.rest()
    if not decoder.answered:
        raise InvalidProviderResponseError(
            f"{deployment.provider.id} answered for {deployment.model} without a message.", **deployment.facts()
        )
    return events


# -- decode a stream: one object a line ----------------------------------------------------------------------------------


class Decoder:
    """The state of one stream."""

    __slots__ = ("_calls", "_deployment", "_started", "_think", "answered", "done")

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._started = False
        self._calls = 0
        self._think = ThinkSplitter()
        self.answered = False
        self.done = False

    def feed(self, event: SSE) -> list[Event]:
        """Decode one line."""
        body = parse_json(event.data, self._deployment)
        return self.take(body) if isinstance(body, dict) else []

    def take(self, body: JSON) -> list[Event]:
        """Decode one object."""
        if body.get("error"):
            facts = refusal.read_error(body)
            raise refusal.refusal_of(self._deployment, facts, status=None, headers={})
        out: list[Event] = []
        if not self._started and isinstance(body.get("model"), str):
            self._started = True
            out.append(Started(body["model"]))
        message = body.get("message")
        if isinstance(message, dict):
            self.answered = True
            out += self._message(message)
        elif isinstance(body.get("response"), str):
            # /api/generate, the older form: the same line with the text at the top.
            self.answered = True
            out += self._message({"content": body["response"], "thinking": body.get("thinking")})
        if body.get("done") is True:
            out += self.rest()
            self.done = True
            word = body.get("done_reason")
            usage = _usage(body)
            out += [UsageReport(usage)] if usage != Usage() else []
            if isinstance(word, str) and word:
                out.append(Finished(FINISH.get(word, "unknown"), word))
            else:
                # Servers of before 0.1.40 say that they are done, not why.
                out.append(Finished("unknown", None))
        return out

    def _message(self, message: JSON) -> list[Event]:
        out: list[Event] = []
        thinking = message.get("thinking")
        if isinstance(thinking, str) and thinking:
            out.append(ReasoningDelta(thinking))
        content = message.get("content")
        if isinstance(content, str) and content:
            reasoning, text = self._think.feed(content)
            out += [ReasoningDelta(reasoning)] if reasoning else []
            out += [TextDelta(text)] if text else []
        for call in message.get("tool_calls") or ():
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict):
                arguments = function.get("arguments")
                if not isinstance(arguments, str):
                    arguments = "" if arguments is None else msgspec.json.encode(arguments).decode()
                out.append(CallDelta(self._calls, call.get("id") or None, function.get("name") or None, arguments))
                self._calls += 1
        return out

    def rest(self) -> list[Event]:
        """What the splitter of thoughts still holds."""
        reasoning, text = self._think.end()
        return [*([ReasoningDelta(reasoning)] if reasoning else []), *([TextDelta(text)] if text else [])]


def _usage(body: JSON) -> Usage:
    given, made = whole_number(body.get("prompt_eval_count")), whole_number(body.get("eval_count"))
    return Usage(given, made, total_tokens=given + made if given is not None and made is not None else None)


# -- decode an error: https://docs.ollama.com/api/errors -----------------------------------------------------------------


def decode_error(http: HTTPReply, deployment: Deployment) -> ProviderError:
    """Return the typed error for a refusal."""
    return refusal.decode_error(http, deployment)


# -- encode a reply, the inverse of decode -------------------------------------------------------------------------------


def encode_reply(reply: Reply) -> JSON:
    """Return the whole body that decodes to this reply."""
    message: JSON = {"role": "assistant", "content": reply.text}
    if reply.reasoning:
        message["thinking"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [
            {
                "id": call["id"],
                "function": {
                    "index": index,
                    "name": call["function"]["name"],
                    "arguments": arguments_value(call["function"]["arguments"]),
                },
            }
            for index, call in enumerate(reply.tool_calls)
        ]
    usage = reply.usage or Usage()
    body: JSON = {
        "model": reply.model,
        "created_at": "1970-01-01T00:00:00Z",
        "message": message,
        "done": True,
        "done_reason": "length" if reply.finish_reason == "length" else "stop",
        "prompt_eval_count": usage.input_tokens,
        "eval_count": usage.output_tokens,
    }
    return {name: value for name, value in body.items() if value is not None}


# -- models: https://docs.ollama.com/api/tags ----------------------------------------------------------------------------


def decode_models(body: JSON) -> list[str]:
    """Return the names of the models that the server has."""
    return [row["name"] for row in body.get("models") or () if isinstance(row, dict) and isinstance(row.get("name"), str)]


DIALECT = Dialect(
    name="ollama",
    framing="ndjson",
    encode=encode,
    decode=decode,
    decoder=Decoder,
    decode_error=decode_error,
    encode_reply=encode_reply,
    decode_models=decode_models,
    models_path="/api/tags",
)
