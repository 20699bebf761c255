"""Where a request goes: host, port, path, the proxy in between, and the words for what may go wrong on the way.

Pure, but for the environment that ``Proxies.from_environment`` reads once. Errors made here name host and port, never path,
query or fields of a request: keys may stand in them.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from llmbroker.errors import (
    ConfigurationError,
    ConnectionFailedError,
    InvalidProviderResponseError,
    InvalidRequestError,
    LLMBrokerError,
    LLMTimeoutError,
)
from llmbroker.transports._http1 import MAX_HEADERS, TooLarge, Truncated, WireError, head_end, parse_head, request_head
from llmbroker.wire import HTTPRequest

if TYPE_CHECKING:
    import ssl

_SAFE = "!#$%&'()*+,/:;=?@[]~"


class Proxy(NamedTuple):
    """An HTTP proxy. ``authorization`` is the complete value of its field, or None."""

    host: str
    port: int
    authorization: str | None


class Target(NamedTuple):
    """Where a URL leads.

    Attributes:
        key: what a kept connection must share: scheme, host, port.
        tls: whether the way is encrypted.
        host, port: the server.
        host_field: the Host field of requests.
        path: path and query, as they go on the wire.
        authorization: the value that user and password in the URL make, or None.
        proxy: the proxy in between, or None.
    """

    key: tuple[str, str, int]
    tls: bool
    host: str
    port: int
    host_field: str
    path: str
    authorization: str | None
    proxy: Proxy | None

    def __repr__(self) -> str:
        """Show where it leads, neither query nor password."""
        return f"Target({self.host!r}, {self.port}, {self.path.partition('?')[0]!r})"


class Proxies:
    """Which proxy serves which host.

    Args:
        http, https: proxy URLs (``http://user:password@host:port``; the scheme may be left out), or None.
        no_proxy: comma-separated hosts that are reached directly: ``*``, a name (its subdomains too), ``name:port``, an
            address or a network (``10.0.0.0/8``).
    """

    def __init__(self, http: str | None = None, https: str | None = None, no_proxy: str = "") -> None:
        self._urls = {"http": http, "https": https}
        self._made: dict[str, Proxy] = {}
        self._direct = [entry.strip().lower() for entry in no_proxy.split(",") if entry.strip()]

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Proxies:
        """Read ``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY``, ``NO_PROXY``; the lower-case spelling wins.

        Under CGI (``REQUEST_METHOD`` is set) the upper-case ``HTTP_PROXY`` comes from the network and is not used.
        """
        env = os.environ if environ is None else environ

        def read(name: str) -> str:
            if name == "http_proxy" and "REQUEST_METHOD" in env:
                return env.get(name, "")
            return env.get(name) or env.get(name.upper(), "")

        every = read("all_proxy")
        return cls(read("http_proxy") or every or None, read("https_proxy") or every or None, read("no_proxy"))

    def find(self, scheme: str, host: str, port: int) -> Proxy | None:
        """Return the proxy for this host, or None.

        Raises:
            ConfigurationError: the proxy's URL cannot be used.
        """
        url = self._urls.get(scheme)
        if not url or (self._direct and self._goes_direct(host, port)):
            return None
        if url not in self._made:
            self._made[url] = _read_proxy(url)
        return self._made[url]

    def _goes_direct(self, host: str, port: int) -> bool:
        import ipaddress

        host = host.strip("[]").lower().rstrip(".")
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            address = None
        for entry in self._direct:
            if entry == "*":
                return True
            if address is not None:
                try:
                    if address in ipaddress.ip_network(entry.strip("[]"), strict=False):
                        return True
                except ValueError:
                    pass
            name, _, wanted = entry.rpartition(":") if entry.count(":") == 1 or entry.startswith("[") else (entry, "", "")
            if not name:
                name, wanted = entry, ""
            if wanted and wanted != str(port):
                continue
            name = name.strip("[]").lstrip("*").lstrip(".").rstrip(".")
            if host == name or (address is None and host.endswith("." + name)):
                return True
        return False


def _read_proxy(url: str) -> Proxy:
    try:
        parts = urlsplit(url if "://" in url else "http://" + url)
        port = parts.port or 80
    except ValueError:
        raise ConfigurationError("The proxy in the environment (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY) is no URL.") from None
    if parts.scheme != "http" or not parts.hostname:
        raise ConfigurationError(
            f"The proxy in the environment has the scheme {parts.scheme!r}; only http:// proxies can be used.",
            hint="Set HTTP_PROXY and HTTPS_PROXY to an http:// proxy, or NO_PROXY to the hosts that need none.",
        )
    return Proxy(parts.hostname, port, _basic(parts.username, parts.password))


def _basic(user: str | None, password: str | None) -> str | None:
    if user is None:
        return None
    pair = f"{unquote(user)}:{unquote(password or '')}"
    return "Basic " + base64.b64encode(pair.encode()).decode()


def read_target(url: str, proxies: Proxies) -> Target:
    """Take a URL apart.

    Raises:
        InvalidRequestError: it is no http or https URL.
        ConfigurationError: its proxy cannot be used.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in ("http", "https"):
        raise InvalidRequestError("A base URL begins with http:// or https:// and names a host.", argument="base_url")
    if not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError:
            raise InvalidRequestError("The host of the base URL is no valid name.", argument="base_url") from None
    tls = parts.scheme == "https"
    usual = 443 if tls else 80
    if port is None:
        port = usual
    path = quote(parts.path, safe=_SAFE) or "/"
    if parts.query:
        path += "?" + quote(parts.query, safe=_SAFE)
    bracketed = f"[{host}]" if ":" in host else host
    host_field = bracketed if port == usual else f"{bracketed}:{port}"
    proxy = proxies.find(parts.scheme, host, port)
    return Target((parts.scheme, host, port), tls, host, port, host_field, path, _basic(parts.username, parts.password), proxy)


class Targets:
    """Remembers where URLs lead: a program uses few of them, many times. ``proxies``: None reads the environment."""

    def __init__(self, proxies: Proxies | None = None) -> None:
        self._proxies = proxies if proxies is not None else Proxies.from_environment()
        self._known: dict[str, Target] = {}

    def find(self, url: str) -> Target:
        """Return where the URL leads; raises as ``read_target`` does."""
        target = self._known.get(url)
        if target is None:
            target = read_target(url, self._proxies)
            if len(self._known) >= 256:
                self._known.clear()
            self._known[url] = target
        return target


def can_be_kept(target: Target, headers: Mapping[str, str]) -> bool:
    """Whether the connection of a finished answer may carry another request.

    Model servers that are reached without TLS often close a connection some time after a stream without announcing it
    (llama.cpp: up to a second later); a request that crosses this close is lost, and nobody can tell whether it was read. A new
    connection to such a server costs next to nothing, so one that carried a stream is not used again.
    """
    return target.tls or not headers.get("content-type", "").startswith(("text/event-stream", "application/x-ndjson"))


# -- bytes that depend on the way ----------------------------------------------------------------------------------------


def message(target: Target, request: HTTPRequest) -> memoryview:
    """Return the request as bytes, head and body in one piece: one system call, one packet where it fits.

    As a view, because that does not show its bytes: crash reporters print the variables of every frame, and this holds the key.
    """
    path = target.path
    more: tuple[str, ...] = ()
    if target.proxy is not None and not target.tls:
        path = f"http://{target.host_field}{path}"
        if target.proxy.authorization:
            more = (f"proxy-authorization: {target.proxy.authorization}",)
    headers: Mapping[str, str] = request.headers
    if target.authorization and not any(name.lower() == "authorization" for name in headers):
        headers = {**headers, "authorization": target.authorization}
    return memoryview(request_head(request.method, path, target.host_field, headers, len(request.body), more) + request.body)


def connect_message(target: Target) -> bytes:
    """Return what asks a proxy for a way to the server."""
    where = f"[{target.host}]:{target.port}" if ":" in target.host else f"{target.host}:{target.port}"
    lines = [f"CONNECT {where} HTTP/1.1", f"host: {where}"]
    if target.proxy is not None and target.proxy.authorization:
        lines.append(f"proxy-authorization: {target.proxy.authorization}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def connected(target: Target, data: bytes) -> bool:
    """Whether the proxy has opened the way, after these bytes; False: it says more.

    Raises:
        ConnectionFailedError: it refuses, or does not speak HTTP.
    """
    if not data:
        raise not_connected(target, "the proxy closed the connection")
    found = head_end(data)
    if found is None:
        if len(data) > MAX_HEADERS:
            raise not_connected(target, "the proxy's answer does not end")
        return False
    try:
        status = parse_head(data[: found[0]]).status
    except WireError:
        raise not_connected(target, "the proxy does not speak HTTP") from None
    if not 200 <= status < 300:
        more = " (it wants a user and password in its URL)" if status == 407 else ""
        raise not_connected(target, f"the proxy answered with status {status}{more}")
    return True


def interleaved(addresses: list[Any]) -> list[Any]:
    """Order addresses so that the families take turns (RFC 8305): one that is broken costs one wait, not all."""
    first = [entry for entry in addresses if entry[0] == addresses[0][0]]
    other = [entry for entry in addresses if entry[0] != addresses[0][0]]
    turns = [entry for pair in zip(first, other, strict=False) for entry in pair]
    return turns + first[len(other) :] + other[len(first) :]


# -- the words for faults ------------------------------------------------------------------------------------------------


def place(target: Target) -> str:
    """Name the server, and the proxy if there is one."""
    where = f"{target.host}:{target.port}"
    return f"{where} (through the proxy {target.proxy.host}:{target.proxy.port})" if target.proxy else where


def timed_out(target: Target, *, sent: bool) -> LLMTimeoutError:
    """The deadline passed."""
    if sent:
        return LLMTimeoutError(f"The time was over before {place(target)} had answered.", sent=True)
    return LLMTimeoutError(f"The time was over before the request to {place(target)} was sent.", sent=False)


def reason(error: BaseException) -> str:
    """The system's words for a fault, without anything of the request in them."""
    if hasattr(error, "library") and hasattr(error, "reason"):  # ssl.SSLError; its module need not be loaded for this
        return f"TLS failed ({error.reason or type(error).__name__})"
    if isinstance(error, OSError) and error.strerror:
        words = os.strerror(error.errno) if isinstance(error.errno, int) and error.errno > 0 else error.strerror
        return words[:1].lower() + words[1:]
    return type(error).__name__


def not_connected(target: Target, why: BaseException | str) -> ConnectionFailedError:
    """No connection came to be."""
    hint = None
    if hasattr(why, "verify_message"):
        why = f"its certificate is not trusted: {why.verify_message}"
        hint = "If your network has a certificate authority of its own, point SSL_CERT_FILE at its file."
    elif isinstance(why, BaseException):
        why = reason(why)
    return ConnectionFailedError(f"No connection to {place(target)}: {why}.", sent=False, hint=hint)


def broken(target: Target, why: str, *, sent: bool = True) -> ConnectionFailedError:
    """The connection broke."""
    return ConnectionFailedError(f"The connection to {place(target)} broke: {why}.", sent=sent)


def unreadable(target: Target, why: WireError) -> LLMBrokerError:
    """Turn a fault of the protocol into the library's error."""
    if isinstance(why, Truncated):
        return broken(target, f"the answer was cut, {why}")
    if isinstance(why, TooLarge):
        return InvalidProviderResponseError(f"The answer of {place(target)} is too large: {why}.")
    return InvalidProviderResponseError(f"The answer of {place(target)} cannot be read: {why}.")


# -- certificates --------------------------------------------------------------------------------------------------------


def context_for(verify: bool | ssl.SSLContext) -> ssl.SSLContext:
    """Return the TLS context for a port's ``verify``."""
    if not isinstance(verify, bool):
        return verify
    if verify:
        return default_context()
    import ssl

    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


_contexts: dict[tuple[str | None, str | None], ssl.SSLContext] = {}


def default_context() -> ssl.SSLContext:
    """Return the TLS context for these settings of the environment, made once: loading certificates costs milliseconds.

    ``SSL_CERT_FILE`` and ``SSL_CERT_DIR`` are honoured. Where the system has no certificates, those of certifi are taken, if
    it is installed.
    """
    import ssl

    where = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    context = _contexts.get(where)
    if context is None:
        context = ssl.create_default_context()
        paths = ssl.get_default_verify_paths()
        if where == (None, None) and paths.cafile is None and paths.capath is None:
            try:
                import certifi

                context.load_verify_locations(certifi.where())
            except ImportError:
                pass
        context.set_alpn_protocols(["http/1.1"])
        _contexts[where] = context
    return context
