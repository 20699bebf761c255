"""Addresses: a base URL as the user writes it to one that paths can be joined to.

The query of a base URL (Azure's ``?api-version=``) stays at the end of every address made from it. Nothing but http and https
is an address, and none carries a user name or password: keys go into headers.
"""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from llmbroker.errors import InvalidRequestError

_ENDPOINTS = ("/chat/completions", "/responses", "/messages", "/api/chat", "/embeddings")


def normal_base(url: str) -> str:
    """Return a base URL without slash, fragment or endpoint at its end.

    Raises:
        InvalidRequestError: it is no http or https address, or it carries a user name or password.
    """
    text = url.strip() if isinstance(url, str) else ""
    try:
        parts = urlsplit(text)
        port, host = parts.port, parts.hostname
    except ValueError:
        parts, port, host = urlsplit(""), None, None
    if parts.scheme.lower() not in ("http", "https") or not host or port == 0 or any(c <= " " or c == "\x7f" for c in text):
        shown = text.rpartition("@")[2].partition("?")[0][:200]
        raise InvalidRequestError(
            f"base_url is an http: or https: address such as http://localhost:8080/v1, not {shown!r}.", argument="base_url"
        )
    if parts.username is not None or parts.password is not None:
        raise InvalidRequestError(
            "base_url carries a user name or password; give the key as api_key, or a header in headers.", argument="base_url"
        )
    path = parts.path.rstrip("/")
    for endpoint in _ENDPOINTS:
        path = path.removesuffix(endpoint)
    return urlunsplit((parts.scheme.lower(), parts.netloc, path.rstrip("/"), parts.query, ""))


def join(base: str, path: str) -> str:
    """Return the address of a path below a base URL; a query of the base stays at the end, one of the path goes before it."""
    if "?" not in base:
        return base + path
    front, _, query = base.partition("?")
    return f"{front}{path}{'&' if '?' in path else '?'}{query}"
