"""The table of providers: names, addresses, keys, faces; what is unknown is refused before a key leaves."""

from __future__ import annotations

import re
from typing import Any

import pytest

from llmbroker.catalog import LLMConfig
from llmbroker.credentials import Secret
from llmbroker.errors import InvalidRequestError, ProviderError
from llmbroker.exchange import make_request
from llmbroker.providers import table
from llmbroker.providers.base import Deployment
from llmbroker.providers.urls import join, normal_base

VENDORS = [
    "alibaba",
    "anthropic",
    "azure",
    "cerebras",
    "cohere",
    "deepseek",
    "fireworks",
    "gemini",
    "groq",
    "huggingface",
    "mistral",
    "moonshot",
    "nvidia",
    "ollama",
    "openai",
    "openrouter",
    "perplexity",
    "together",
    "xai",
    "xiaomi",
    "zhipu",
]
KEY = "sk-canary-0123456789"


def made(key: str | None = "environment X_API_KEY", environ: dict[str, str] | None = None, **fields: Any) -> Deployment:
    config = LLMConfig(name="n", model="m", **fields)
    return table.deployment_for(config, Secret(KEY, key) if key else None, environ=environ or {})


@pytest.mark.parametrize("name", VENDORS)
def test_every_vendor_has_a_complete_row(name: str) -> None:
    row = table.PROVIDERS[name]
    assert row.id == name and row.title
    assert row.key_names[:2] == (f"{name.upper()}_API_KEY", f"{name.upper()}_KEY")
    assert row.base_url is None or row.base_url == normal_base(row.base_url)
    assert row.docs.startswith("https://") and row.keys_url.startswith("https://")
    assert row.reasoning in ("never", "loop", "always")
    assert all(issubclass(error, ProviderError) for error in row.errors.values())
    assert not row.errors or row.errors_source.startswith("https://")
    for dialect, base in row.dialects.values():
        assert base == normal_base(base) and table.DIALECTS[dialect.name] is dialect


FEATURES = {
    "audio",
    "cache_marks",
    "embeddings_only",
    "files",
    "images",
    "json_object",
    "json_schema",
    "parallel_tools",
    "reasoning",
    "stream",
    "stream_usage",
    "tool_choice",
    "tools",
}


def test_rows_use_known_words_alone() -> None:
    assert {word for row in table.PROVIDERS.values() for word in row.features} <= FEATURES


def test_no_key_variable_belongs_to_two_addresses() -> None:
    owners: dict[str, set[str | None]] = {}
    for row in table.PROVIDERS.values():
        for name in row.key_names:
            owners.setdefault(name, set()).add(row.bases.get(name, row.base_url))
    assert {name: bases for name, bases in owners.items() if len(bases) > 1} == {}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("openai", "openai"),
        ("OpenAI", "openai"),
        (" Anthropic ", "anthropic"),
        ("google", "gemini"),
        ("kimi", "moonshot"),
        ("z.ai", "zai"),
        ("HF", "huggingface"),
        ("grok", "xai"),
        ("qwen", "alibaba"),
    ],
)
def test_a_provider_is_found_by_id_or_alias_whatever_the_capitals(name: str, found: str) -> None:
    assert table.lookup(name).id == found


@pytest.mark.parametrize(("name", "near"), [("opneai", "openai"), ("antropic", "anthropic"), ("mistrall", "mistral")])
def test_an_unknown_provider_is_refused_and_the_near_ones_are_named(name: str, near: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"Did you mean .*{near}") as caught:
        table.lookup(name)
    assert caught.value.argument == "provider"


@pytest.mark.parametrize("name", ["", "nobody-like-this", 12, None])
def test_what_is_no_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidRequestError, match="Unknown provider"):
        table.lookup(name)


def test_aliases_lead_to_rows_and_hide_none() -> None:
    assert set(table.ALIASES.values()) <= set(table.PROVIDERS)
    assert not set(table.ALIASES) & set(table.PROVIDERS)


# -- addresses -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("https://host/v1", "https://host/v1"),
        ("https://host/v1/", "https://host/v1"),
        ("  https://host/v1//  ", "https://host/v1"),
        ("HTTP://Host/v1", "http://Host/v1"),
        ("https://host/v1/chat/completions", "https://host/v1"),
        ("https://host/v1?api-version=1", "https://host/v1?api-version=1"),
        ("https://host/v1/?api-version=1", "https://host/v1?api-version=1"),
        ("https://host/v1#top", "https://host/v1"),
        ("http://[::1]:8080/v1", "http://[::1]:8080/v1"),
    ],
)
def test_a_base_url_is_brought_to_one_form(given: str, base: str) -> None:
    assert normal_base(given) == base
    assert normal_base(base) == base


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host/v1",
        "ftp://host/v1",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "https://",
        "http://:80",
        "https://ho st/",
        None,
        12,
        "http://host:99999/v1",
        "https://host/\r\nx: y",
    ],
)
def test_what_is_no_address_is_refused(url: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        normal_base(url)
    assert caught.value.argument == "base_url"


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    for url in ("https://user:canary-1234@host/v1", "ftp://user:canary-1234@host/v1"):
        with pytest.raises(InvalidRequestError) as caught:
            normal_base(url)
        assert "canary" not in str(caught.value)


def test_a_path_is_joined_before_the_query() -> None:
    assert join("https://host/v1", "/models") == "https://host/v1/models"
    assert join("https://host/v1?a=b", "/models") == "https://host/v1/models?a=b"
    assert join("https://host/v1?a=b", "/m:stream?alt=sse") == "https://host/v1/m:stream?alt=sse&a=b"


@pytest.mark.parametrize(
    ("url", "provider"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://api.z.ai/api/paas/v4", "zai"),
        ("https://generativelanguage.googleapis.com/v1beta/openai/", "gemini"),
        ("https://name.openai.azure.com/openai/v1", "azure"),
        ("https://name.cognitiveservices.azure.com/openai/deployments/x?api-version=1", "azure"),
        ("https://api.moonshot.cn/v1", "moonshot"),
        ("https://dashscope.aliyuncs.com/compatible-mode/v1", "alibaba"),
        ("http://localhost:8080/v1", "openai-compatible"),
        ("https://api.openai.com.evil.example/v1", "openai-compatible"),
        ("https://notopenai.azure.com.evil.example/v1", "openai-compatible"),
    ],
)
def test_a_server_is_known_by_its_host(url: str, provider: str) -> None:
    assert table.compatible(url).id == provider
    assert made(base_url=url).provider.id == provider


# -- deployments -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "base", "dialect"),
    [
        ({"provider": "openai"}, "https://api.openai.com/v1", "openai-chat"),
        ({"provider": "openai", "dialect": "openai-responses"}, "https://api.openai.com/v1", "openai-responses"),
        ({"provider": "anthropic"}, "https://api.anthropic.com/v1", "anthropic"),
        ({"provider": "gemini"}, "https://generativelanguage.googleapis.com/v1beta", "gemini"),
        (
            {"provider": "gemini", "dialect": "openai-chat"},
            "https://generativelanguage.googleapis.com/v1beta/openai",
            "openai-chat",
        ),
        (
            {"base_url": "https://generativelanguage.googleapis.com/v1beta/openai"},
            "https://generativelanguage.googleapis.com/v1beta/openai",
            "openai-chat",
        ),
        ({"provider": "ollama"}, "http://localhost:11434", "ollama"),
        ({"provider": "ollama", "base_url": "http://gpu:11434/v1"}, "http://gpu:11434/v1", "openai-chat"),
        (
            {"provider": "azure", "base_url": "https://r.openai.azure.com/"},
            "https://r.openai.azure.com/openai/v1",
            "openai-chat",
        ),
        ({"base_url": "https://api.openai.com"}, "https://api.openai.com/v1", "openai-chat"),
        ({"base_url": "http://localhost:8080"}, "http://localhost:8080", "openai-chat"),
        ({"base_url": "http://localhost:8080/v1", "dialect": "anthropic"}, "http://localhost:8080/v1", "anthropic"),
        ({"provider": "deepseek", "dialect": "anthropic"}, "https://api.deepseek.com/anthropic/v1", "anthropic"),
    ],
)
def test_an_entry_becomes_a_deployment(fields: dict[str, Any], base: str, dialect: str) -> None:
    deployment = made(**fields)
    assert (deployment.base_url, deployment.dialect.name) == (base, dialect)


def test_the_key_goes_into_the_header_of_the_dialect() -> None:
    def headers(**fields: Any) -> set[str]:
        return {name for name, value in made(**fields).static_headers.items() if KEY in value}

    assert headers(provider="openai") == {"authorization"}
    assert headers(provider="anthropic") == {"x-api-key"}
    assert headers(provider="gemini") == {"x-goog-api-key"}
    assert headers(provider="gemini", dialect="openai-chat") == {"authorization"}
    assert headers(provider="xiaomi") == {"api-key"}
    assert headers(provider="azure", base_url="https://r.openai.azure.com") == {"api-key"}
    assert headers(base_url="http://localhost/v1") == {"authorization"}
    assert headers(base_url="http://localhost/v1", dialect="anthropic") == {"x-api-key"}
    assert headers(provider="openai", key=None) == set()


def test_the_key_stands_in_no_address_and_no_repr() -> None:
    for name in VENDORS:
        deployment = made(provider=name, base_url="https://r.openai.azure.com" if name == "azure" else None)
        assert KEY not in deployment.base_url and KEY not in repr(deployment)


def test_one_vendor_with_two_sites_is_asked_where_the_key_belongs() -> None:
    assert made(provider="zhipu", key="environment ZHIPUAI_API_KEY").base_url == "https://open.bigmodel.cn/api/paas/v4"
    assert made(provider="zhipu", key="environment ZAI_API_KEY").base_url == "https://api.z.ai/api/paas/v4"


def test_the_users_own_address_is_taken_from_its_variable() -> None:
    azure = made(provider="azure", environ={"AZURE_OPENAI_ENDPOINT": "https://r.openai.azure.com/"})
    assert azure.base_url == "https://r.openai.azure.com/openai/v1"
    for value, base in (
        ("gpu:9999", "http://gpu:9999"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("https://o.example", "https://o.example"),
    ):
        assert made(provider="ollama", environ={"OLLAMA_HOST": value}).base_url == base
    assert made(provider="ollama", dialect="openai-chat", environ={"OLLAMA_HOST": "gpu"}).base_url == "http://gpu:11434/v1"


def test_a_vendor_without_an_address_asks_for_one() -> None:
    with pytest.raises(InvalidRequestError, match="AZURE_OPENAI_ENDPOINT") as caught:
        made(provider="azure")
    assert caught.value.argument == "base_url"


def test_a_dialect_that_a_vendor_does_not_speak_is_refused_unless_an_address_is_given() -> None:
    with pytest.raises(InvalidRequestError, match="it speaks openai-chat") as caught:
        made(provider="groq", dialect="anthropic")
    assert caught.value.argument == "dialect"
    assert made(provider="groq", dialect="anthropic", base_url="https://proxy.example/v1").dialect.name == "anthropic"
    with pytest.raises(InvalidRequestError, match="Unknown dialect 'latin'"):
        made(provider="groq", dialect="latin")


def test_renames_of_the_usual_dialect_do_not_follow_into_another() -> None:
    row = made(provider="openai", dialect="openai-responses").provider
    assert row.id == "openai" and not row.rename and not row.drop and row.errors == table.PROVIDERS["openai"].errors


def test_leaked_calls_are_looked_for_on_local_and_unknown_servers_alone() -> None:
    assert made(base_url="http://localhost:8080/v1").leaked_calls
    assert made(provider="ollama").leaked_calls
    assert not made(provider="openai").leaked_calls
    config = LLMConfig(name="n", model="m", provider="openai")
    assert table.deployment_for(config, None, leaked_calls=True).leaked_calls


def test_own_headers_win_over_the_rows() -> None:
    deployment = made(provider="anthropic", headers={"Anthropic-Version": "2099-01-01", "X-Trace": "t"})
    assert deployment.static_headers["anthropic-version"] == "2099-01-01" and deployment.static_headers["x-trace"] == "t"


def test_every_row_writes_a_request_and_reads_its_own_dialect() -> None:
    for name in VENDORS:
        row = table.PROVIDERS[name]
        for dialect in (row.dialect.name, *row.dialects):
            base = "https://r.openai.azure.com" if name == "azure" else None
            deployment = made(provider=name, dialect=dialect, base_url=base)
            for stream in (False, True):
                http = deployment.dialect.encode(make_request("hi", stream=stream, params={"max_tokens": 5}), deployment)
                assert re.match(r"https?://", http.url) and KEY not in http.url and KEY.encode() not in http.body


@pytest.mark.parametrize(
    ("provider", "base_url", "names"),
    [
        ("openai", None, ("OPENAI_API_KEY", "OPENAI_KEY")),
        ("openai", "https://api.openai.com/v1/", ("OPENAI_API_KEY", "OPENAI_KEY")),
        ("openai", "http://api.openai.com/v1", ()),
        ("openai", "https://api.openai.com.evil.example/v1", ()),
        ("openai", "https://proxy.example/v1", ()),
        ("zhipu", "https://api.z.ai/api/paas/v4", ("ZAI_API_KEY", "ZAI_KEY")),
        ("zai", "https://api.z.ai/api/paas/v4", ("ZAI_API_KEY", "ZAI_KEY")),
        ("azure", "https://r.openai.azure.com", ("AZURE_API_KEY", "AZURE_KEY", "AZURE_OPENAI_API_KEY")),
    ],
)
def test_keys_go_only_to_the_address_they_were_declared_for(
    provider: str, base_url: str | None, names: tuple[str, ...]
) -> None:
    assert table.key_names(table.lookup(provider), base_url) == names


def test_a_key_of_one_site_is_not_sent_to_the_other() -> None:
    names = table.key_names(table.lookup("zhipu"), "https://open.bigmodel.cn/api/paas/v4")
    assert "ZHIPUAI_API_KEY" in names and "ZAI_API_KEY" not in names
