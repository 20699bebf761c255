"""Where a request goes: URLs, proxies of the environment and the exceptions from them."""

from __future__ import annotations

import ssl

import pytest

from llmbroker.errors import ConfigurationError, ConnectionFailedError, InvalidRequestError
from llmbroker.transports import _target
from llmbroker.transports._target import Proxies, Proxy, read_target


@pytest.mark.parametrize(
    ("url", "key", "host_field", "path"),
    [
        ("https://api.example.com/v1/chat", ("https", "api.example.com", 443), "api.example.com", "/v1/chat"),
        ("https://api.example.com:443/", ("https", "api.example.com", 443), "api.example.com", "/"),
        ("http://API.example.com", ("http", "api.example.com", 80), "api.example.com", "/"),
        ("http://h:8080/a?b=c&d=%20e#f", ("http", "h", 8080), "h:8080", "/a?b=c&d=%20e"),
        ("http://[::1]:99/x", ("http", "::1", 99), "[::1]:99", "/x"),
        ("http://bücher.example/ü", ("http", "xn--bcher-kva.example", 80), "xn--bcher-kva.example", "/%C3%BC"),
        ("http://h/a:b@c/models/x:generate", ("http", "h", 80), "h", "/a:b@c/models/x:generate"),
        ("http://h/a%2Fb", ("http", "h", 80), "h", "/a%2Fb"),
        ("http://h/a b\u00a0c", ("http", "h", 80), "h", "/a%20b%C2%A0c"),
    ],
)
def test_a_url_is_taken_apart(url: str, key: tuple[str, str, int], host_field: str, path: str) -> None:
    target = read_target(url, Proxies())
    assert (target.key, target.host_field, target.path, target.authorization) == (key, host_field, path, None)


def test_user_and_password_in_a_url_become_a_field_and_leave_the_url() -> None:
    target = read_target("http://me:p%40ss@h/x", Proxies())
    assert target.authorization == "Basic bWU6cEBzcw=="
    assert (target.host_field, target.path) == ("h", "/x")


@pytest.mark.parametrize(
    "url", ["", "h/x", "file:///etc/passwd", "http://", "https://:80/", "http://h:x/", "http://a\u2100b.example/"]
)
def test_what_is_no_http_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_target(url, Proxies())
    assert caught.value.argument == "base_url"


@pytest.mark.parametrize(
    ("environ", "scheme", "proxy"),
    [
        ({}, "http", None),
        ({"HTTP_PROXY": "http://p:1"}, "http", Proxy("p", 1, None)),
        ({"HTTP_PROXY": "http://p:1"}, "https", None),
        ({"HTTPS_PROXY": "http://p:1"}, "https", Proxy("p", 1, None)),
        ({"ALL_PROXY": "p"}, "https", Proxy("p", 80, None)),
        ({"all_proxy": "http://p:1", "HTTPS_PROXY": "http://q:2"}, "https", Proxy("q", 2, None)),
        ({"https_proxy": "http://small:1", "HTTPS_PROXY": "http://large:2"}, "https", Proxy("small", 1, None)),
        ({"HTTP_PROXY": "http://u:p%20w@p:1"}, "http", Proxy("p", 1, "Basic dTpwIHc=")),
        ({"HTTP_PROXY": ""}, "http", None),
        ({"HTTP_PROXY": "http://evil:1", "REQUEST_METHOD": "GET"}, "http", None),
    ],
)
def test_proxies_come_from_the_environment(environ: dict[str, str], scheme: str, proxy: Proxy | None) -> None:
    assert Proxies.from_environment(environ).find(scheme, "far.example", 443) == proxy


@pytest.mark.parametrize(
    ("no_proxy", "host", "direct"),
    [
        ("", "a.example", False),
        ("*", "a.example", True),
        ("a.example", "a.example", True),
        ("a.example", "A.Example.", True),
        ("a.example", "b.a.example", True),
        (".a.example", "b.a.example", True),
        ("*.a.example", "b.a.example", True),
        (".a.example", "a.example", True),
        ("a.example", "ba.example", False),
        ("b.example, a.example", "a.example", True),
        ("a.example:8080", "a.example", True),
        ("a.example:81", "a.example", False),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("127.0.0.1", "127.0.0.1", True),
        ("0.0.1", "127.0.0.1", False),
        ("127.0.0.1:8080", "127.0.0.1", True),
        ("::1", "::1", True),
        ("[::1]", "::1", True),
        ("[::1]:8080", "::1", True),
        ("[::1]:81", "::1", False),
        ("fe80::/10", "fe80::1", True),
        ("localhost", "127.0.0.1", False),
    ],
)
def test_no_proxy_names_who_is_reached_directly(no_proxy: str, host: str, direct: bool) -> None:
    proxies = Proxies(http="http://p:1", no_proxy=no_proxy)
    assert (proxies.find("http", host, 8080) is None) is direct


@pytest.mark.parametrize("url", ["socks5://p:1", "https://p:1", "http://", "http://p:x"])
def test_a_proxy_that_cannot_be_used_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Proxies(http=url.replace("//", "//u:SECRET@")).find("http", "far.example", 80)
    assert "SECRET" not in str(caught.value)


def test_the_tls_context_is_made_once_for_one_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    first = _target.context_for(True)
    assert _target.context_for(True) is first
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere")
    assert _target.context_for(True) is not first
    assert first.verify_mode == ssl.CERT_REQUIRED
    assert _target.context_for(False).verify_mode == ssl.CERT_NONE
    own = ssl.create_default_context()
    assert _target.context_for(own) is own


def test_errors_survive_pickling() -> None:
    import pickle

    error = _target.not_connected(read_target("http://h/", Proxies()), OSError(111, "Connection refused"))
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, ConnectionFailedError)
    assert (str(again), again.sent) == (str(error), False)
