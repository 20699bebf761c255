"""What a dialect and a provider are.

A *dialect* is a wire format: six pure functions in a fixed order. A *provider* is who serves: a row of ``vendors.py`` with its
base URL, key names, header form and its differences from the dialect. A *deployment* is a provider, a model and a key. The rest
of the library handles these values and never compares a provider's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import msgspec

from llmbroker.credentials import Secret, redact
from llmbroker.errors import InvalidProviderResponseError, InvalidRequestError, LLMBrokerError, ProviderError
from llmbroker.exchange import Event, Fold, Reply, Request
from llmbroker.wire import SSE, HTTPReply, HTTPRequest

JSON: TypeAlias = dict[str, Any]


class StreamDecoder(Protocol):
    """Turns the payloads of one stream into events. It holds the state of that stream and nothing else."""

    done: bool
    """The dialect's own end was seen; what follows is ignored."""

    def feed(self, event: SSE) -> list[Event]:
        """Decode one payload.

        Raises:
            ProviderError: the payload is an error frame.
            InvalidProviderResponseError: it cannot be read.
        """
        ...


class Dialect(msgspec.Struct, frozen=True):
    """A wire format.

    Attributes:
        name: ``openai-chat``, ``openai-responses``, ``anthropic``, ``gemini``, ``ollama``.
        framing: how a stream is cut: ``sse`` or ``ndjson``.
        encode: request and deployment to the HTTP request (whole or streamed as the request says).
        decode: a parsed whole body (a dict) to its events; raises ProviderError for an error in a 200.
        decoder: makes the decoder of one stream.
        decode_error: status, headers, body of a refusal to the typed error (redacted).
        encode_reply: the inverse of decode, for gateways and tests: a reply to a whole body in this dialect.
        decode_models: the body of the model list to model names.
        models_path: where the model list is, below the base URL.
        native: whether native items belong in the message (the dialect wants its own items back).
        mend: given a refusal and the request, which parameter change could mend it (see ``Mend``), or None.
        arrays: whether a whole body may be a list of bodies; ``decode`` then gets ``{"chunks": list}``.
    """

    name: str
    framing: str
    encode: Callable[[Request, Deployment], HTTPRequest]
    decode: Callable[[JSON, Deployment], list[Event]]
    decoder: Callable[[Deployment], StreamDecoder]
    decode_error: Callable[[HTTPReply, Deployment], ProviderError]
    encode_reply: Callable[[Reply], JSON]
    decode_models: Callable[[JSON], list[str]]
    models_path: str = "/models"
    native: bool = False
    mend: Callable[[ProviderError, Request, Deployment], Mend | None] | None = None
    arrays: bool = False


class Mend(msgspec.Struct, frozen=True):
    """A change that makes a refused request acceptable; remembered for the deployment that refused.

    ``rename``: parameter names, ours to theirs. ``drop``: parameters (or ``tool_choice``) not to send.
    """

    rename: Mapping[str, str] = {}
    drop: frozenset[str] = frozenset()


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """Who serves: one row of the table.

    Attributes:
        id: lower-case id.
        title: the vendor's name.
        dialect: its usual wire format.
        base_url: where its API begins, or None where each user has an own one (azure) or there is none (local).
        auth: ``bearer``, ``none``, or the name of the header that carries the bare key.
        key_names: variables that may hold the key, in order.
        needs_key: whether calls without a key are pointless.
        headers: sent with every request.
        rename: parameters, our name to theirs.
        drop: parameters that it refuses and that are left out (with one note in the log).
        features: what it can do: tools, tool_choice, parallel_tools, json_object, json_schema, images, files, audio, stream,
            stream_usage, cache_marks, reasoning; ``embeddings_only``: it makes vectors and no answers.
        quirks: differences that its dialect's functions know by name.
        reasoning: when reasoning text goes back to it in history: ``never``, ``loop`` (inside the running tool loop) or
            ``always``.
        errors: (status or None, code) to error class; wins over the status alone. Source: ``errors_source``.
        docs: the vendor's API page. ``keys_url``: where to get a key.
        dialects: further dialects it speaks, with their base URLs.
        bases: base URL by key variable, where one vendor's keys belong to different addresses (Zhipu's two sites).
        base_names: variables that may hold the user's own base URL (AZURE_OPENAI_ENDPOINT, OLLAMA_HOST).
        path: where the API begins at an address that was given without a path.
    """

    id: str
    title: str
    dialect: Dialect
    base_url: str | None
    auth: str = "bearer"
    key_names: tuple[str, ...] = ()
    needs_key: bool = True
    headers: Mapping[str, str] = {}
    rename: Mapping[str, str] = {}
    drop: frozenset[str] = frozenset()
    features: frozenset[str] = frozenset()
    quirks: frozenset[str] = frozenset()
    reasoning: str = "never"
    errors: Mapping[tuple[int | None, str], type[ProviderError]] = {}
    errors_source: str = ""
    docs: str = ""
    keys_url: str = ""
    dialects: Mapping[str, tuple[Dialect, str]] = {}
    bases: Mapping[str, str] = {}
    base_names: tuple[str, ...] = ()
    path: str = ""


class Deployment(msgspec.Struct, kw_only=True):
    """A provider, a model, a key: what a request is sent to.

    Attributes:
        name: the pool's name of it, or the model.
        provider, dialect, base_url, model: where and how; ``base_url`` has no slash at its end.
        key: the key or None.
        headers: the user's further headers.
        tool_params: parameters sent whenever tools are.
        leaked_calls: look for tool calls in the text of replies.
        named: the user named the provider; else it is known by its address alone.
        price: the user's dollars per million tokens, as of ``LLMConfig.price``.
        mended: what this deployment taught by refusing (parameter changes); filled by the client.
        verbatim: send parameters under the names and with the values that the caller gave, even those that are not taken there.
        static_headers: the complete headers, made once.
    """

    name: str
    provider: Provider
    dialect: Dialect
    base_url: str
    model: str
    key: Secret | None = None
    headers: Mapping[str, str] = {}
    tool_params: Mapping[str, Any] = {}
    leaked_calls: bool = False
    named: bool = False
    price: Mapping[str, float] | None = None
    mended: Mend = Mend()
    verbatim: bool = False
    static_headers: dict[str, str] = {}

    def __post_init__(self) -> None:
        """Make the headers once: they are the same for every request."""
        made = {"content-type": "application/json", "user-agent": "llmbroker/0.1", **self.provider.headers}
        if self.key and self.provider.auth == "bearer":
            made["authorization"] = f"Bearer {self.key.reveal()}"
        elif self.key and self.provider.auth != "none":
            made[self.provider.auth] = self.key.reveal()
        self.static_headers = {**made, **{name.lower(): value for name, value in self.headers.items()}}

    def __repr__(self) -> str:
        """Show no headers: they hold the key."""
        return f"Deployment(name={self.name!r}, provider={self.provider.id!r}, model={self.model!r})"

    @property
    def in_process(self) -> bool:
        """Whether the model runs in this process; its calls cost nothing."""
        return not self.base_url.startswith("http")

    def facts(self) -> dict[str, Any]:
        """Return what every error about this deployment carries."""
        return {"provider": self.provider.id, "model": self.model}

    def repeated_in(self, value: str) -> bool:
        """Whether a header of an answer holds a secret of this deployment as it is; quicker than ``clean``."""
        return bool(self.key and self.key.reveal() in value) or any(secret in value for secret in self.headers.values())

    def clean(self, text: str) -> str:
        """Return a provider's text without this deployment's secrets, cut to 2,000 characters."""
        hidden = [self.key, *(value for value in self.headers.values() if len(value) > 12)]
        return redact(text, hidden)[:2000]


def parse_json(body: bytes, deployment: Deployment) -> Any:
    """Parse a body as JSON; nothing in it is ever taken for a path or URL.

    Raises:
        InvalidProviderResponseError: it is not JSON.
    """
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        shown = deployment.clean(body[:200].decode("utf-8", "replace"))
        raise InvalidProviderResponseError(
            f"{deployment.provider.id} answered for {deployment.model} with something that is not JSON ({error}).",
            detail=shown,
            **deployment.facts(),
        ) from None


def encode_request(request: Request, deployment: Deployment) -> HTTPRequest:
    """Write a request in the deployment's dialect.

    Raises:
        InvalidRequestError: it cannot be written, whatever the reason.
        UnsupportedFeatureError: the provider does not have what the request needs.
    """
    try:
        return deployment.dialect.encode(request, deployment)
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        if isinstance(error, LLMBrokerError):
            raise
        raise InvalidRequestError(
            f"The request cannot be written in {deployment.dialect.name} for {deployment.model}: "
            f"{deployment.clean(str(error))}.",
            argument="params" if request.params else "messages",
            **deployment.facts(),
        ) from error


def decode_reply(http: HTTPReply, deployment: Deployment) -> Reply:
    """Decode a whole answer of status 2xx.

    Raises:
        ProviderError: the body holds an error.
        InvalidProviderResponseError: it is no answer.
    """
    dialect = deployment.dialect
    body = parse_json(http.body, deployment)
    if dialect.arrays and isinstance(body, list):
        body = {"chunks": body}
    if not isinstance(body, dict):
        raise InvalidProviderResponseError(
            f"{deployment.provider.id} answered for {deployment.model} with JSON that is no object.", **deployment.facts()
        )
    state = Fold()
    try:
        for event in dialect.decode(body, deployment):
            state.add(event)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, LLMBrokerError):
            raise
        raise InvalidProviderResponseError(
            f"{deployment.provider.id} answered for {deployment.model} in a shape that {dialect.name} does not have: "
            f"{error!r}.",
            **deployment.facts(),
        ) from error
    return state.reply(
        dialect=dialect.name,
        provider=deployment.provider.id,
        model=deployment.model,
        raw=body,
        request_id=request_id(http.headers, deployment),
        native=dialect.native,
    )


def arguments_value(text: str) -> Any:
    """Return a call's arguments as dialects with objects write them; what is cut or no JSON stays the text that it is."""
    try:
        return msgspec.json.decode(text) if text.strip() else {}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text


_REQUEST_IDS = ("x-request-id", "request-id", "x-goog-request-id", "apim-request-id", "cf-ray")


def request_id(headers: Mapping[str, str], deployment: Deployment) -> str | None:
    """Return the provider's id of the request, if a header bears one; a server that repeats the key there gets stars."""
    for name in _REQUEST_IDS:
        value = headers.get(name)
        if value:
            return deployment.clean(value) if deployment.repeated_in(value) else value
    return None


_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|d|h|m|s)")
_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration(text: str) -> float | None:
    """Return seconds out of ``120ms``, ``1.061s``, ``1h27m50.4s``, ``48s`` or a bare number of seconds; None if unreadable."""
    text = text.strip()
    try:
        value = float(text)
    except ValueError:
        pieces = _DURATION.findall(text)
        if not pieces or "".join(number + unit for number, unit in pieces) != text:
            return None
        return float(sum(float(number) * _UNIT[unit] for number, unit in pieces))
    return value if 0 <= value < float("inf") else None
