"""Which models a server offers, by its own list."""

from __future__ import annotations

from llmbroker.providers.base import Deployment, parse_json
from llmbroker.providers.urls import join
from llmbroker.transports.blocking import BlockingIO
from llmbroker.wire import HTTPRequest


def offered(deployment: Deployment, seconds: float = 20.0) -> list[str]:
    """Return the names in a server's list of models.

    Raises:
        ProviderError, ConnectionFailedError, LLMTimeoutError, InvalidProviderResponseError: there is no list to be had.
    """
    if deployment.base_url.startswith("local:"):
        from llmbroker.transports.model_store import MODELS

        return list(MODELS)
    port = BlockingIO()
    try:
        dialect = deployment.dialect
        request = HTTPRequest(join(deployment.base_url, dialect.models_path), deployment.static_headers, b"", "GET")
        reply = port.drive(port.send(request, port.now() + seconds))
        if not 200 <= reply.status < 300:
            raise dialect.decode_error(reply, deployment)
        return dialect.decode_models(parse_json(reply.body, deployment))
    finally:
        port.close()
