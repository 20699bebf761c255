"""The packaged catalog holds together, and a newer one is used only as the user says and only when it is the one they meant."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from llmbroker import io
from llmbroker.catalog import LLMConfig, aliases, fetch_catalog, free_pool, home_catalog, keep_catalog, load_catalog
from llmbroker.catalog.packaged import read_catalog
from llmbroker.errors import ConfigurationError
from llmbroker.exchange import RESERVED
from llmbroker.wire import HTTPReply, HTTPRequest

NEWER = b"""
as_of = 2026-11-01
[[llms]]
name = "groq-next"
provider = "groq"
model = "next"
api_key_ref = "GROQ_API_KEY"
weight = 0.4
context_tokens = 8192
[[llms]]
name = "other"
base_url = "https://api.example.com/v1"
model = "other-1"
api_key_ref = "OTHER_KEY"
weight = 0.6
[[direct]]
alias = "opus"
name = "anthropic-claude-opus-6"
provider = "anthropic"
model = "claude-opus-6"
api_key_ref = "ANTHROPIC_API_KEY"
[keys.OTHER_KEY]
help = "Ask."
"""
DIGEST = hashlib.sha256(NEWER).hexdigest()


def every_model() -> list[LLMConfig]:
    return [*free_pool(), *aliases().values()]


# -- the packaged one ------------------------------------------------------------------------------------------------------


def test_the_free_pool_is_ordered_best_first() -> None:
    weights = [config.weight for config in free_pool()]
    assert weights == sorted(weights, reverse=True)
    assert free_pool()[0].name == "google-gemini-3.5-flash-lite"


def test_the_aliases_are_the_published_ones() -> None:
    assert set(aliases()) == {
        *("opus", "fable", "sonnet", "haiku", "gpt", "gpt-mini", "gpt-fast", "flash", "grok", "deepseek", "deepseek-flash")
    }  # fmt: skip


def test_an_alias_carries_no_version() -> None:
    assert [alias for alias in aliases() if any(character.isdigit() for character in alias)] == []


@pytest.mark.parametrize("config", every_model(), ids=lambda config: config.name)
def test_a_name_is_a_provider_and_a_model(config: LLMConfig) -> None:
    maker, _, model = config.name.partition("-")
    known_as = {"gemini": "google"}.get(config.provider or "", config.provider)
    assert maker == known_as
    assert config.model.split("/")[-1].startswith(model)


@pytest.mark.parametrize("config", every_model(), ids=lambda config: config.name)
def test_every_key_has_help_and_a_page(config: LLMConfig) -> None:
    help_ = load_catalog().keys[config.api_key_ref or ""]
    assert help_.help
    assert help_.url.startswith("https://")


def test_the_keys_of_the_pool_are_free_and_those_of_the_aliases_have_their_pages() -> None:
    keys = load_catalog().keys
    assert {config.api_key_ref for config in free_pool()} == {ref for ref, key in keys.items() if key.free}


@pytest.mark.parametrize("alias", ["gpt", "gpt-mini", "gpt-fast"])
def test_an_alias_brings_the_parameters_that_its_model_requires_with_tools(alias: str) -> None:
    assert aliases()[alias].tool_params == {"reasoning_effort": "none"}


def test_tool_parameters_leave_the_request_itself_alone() -> None:
    assert [config.name for config in every_model() if RESERVED & set(config.tool_params)] == []


def test_every_model_of_the_pool_takes_tools() -> None:
    catalog = load_catalog()
    assert [config.name for config in catalog.pool if not catalog.able(config).tools] == []


def test_what_the_catalog_does_not_know_rules_nothing_out() -> None:
    unknown = load_catalog().able(LLMConfig(name="a", model="nobody-knows", provider="groq"))
    assert (unknown.tools, unknown.images, unknown.json_schema, unknown.context_tokens) == (None, None, None, None)


def test_a_pinned_name_finds_its_model() -> None:
    catalog = load_catalog()
    assert catalog.named("anthropic-claude-opus-5") is catalog.aliases["opus"]
    assert catalog.named("opus") is None


def test_the_packaged_catalog_is_read_once() -> None:
    assert load_catalog() is load_catalog()


# -- a newer one -----------------------------------------------------------------------------------------------------------


def test_a_newer_file_is_used_when_the_user_names_it(tmp_path: Path) -> None:
    path = tmp_path / "newer.toml"
    path.write_bytes(NEWER)
    catalog = load_catalog(path, sha256=DIGEST)
    assert [config.name for config in catalog.pool] == ["other", "groq-next"]
    assert catalog.aliases["opus"].model == "claude-opus-6"
    assert catalog.able(catalog.pool[1]).context_tokens == 8192
    assert (catalog.source, catalog.digest) == (str(path), DIGEST)


@pytest.mark.parametrize("form", [DIGEST.upper(), f"sha256:{DIGEST}", f" {DIGEST}\n"])
def test_a_digest_may_be_written_as_tools_write_it(form: str) -> None:
    assert read_catalog(NEWER, source="newer", sha256=form).digest == DIGEST


def test_another_digest_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="does not match"):
        read_catalog(NEWER + b"\n", source="newer", sha256=DIGEST)


WRONG = {
    "no date": (b"as_of = 2026-11-01\n", b"", "as_of"),
    "a date as a text": (b"2026-11-01", b'"2026-11-01"', "as_of"),
    "a misspelt ability": (b"context_tokens", b"context_token", "'context_tokens'"),
    "an ability of the wrong type": (b"context_tokens = 8192", b"context_tokens = true", "context_tokens"),
    "an ability that is a number": (b"context_tokens = 8192", b"tools = 1", "tools"),
    "no alias": (b'alias = "opus"\n', b"", "alias is missing"),
    "one name twice": (b'name = "other"', b'name = "groq-next"', "comes twice"),
    "an open line": (b"https://api.example.com", b"http://api.example.com", "https"),
    "a known key for another provider": (b'provider = "groq"', b'provider = "openai"', "GROQ_API_KEY"),
    "a known key for another host": (b'"OTHER_KEY"\n', b'"OPENAI_API_KEY"\n', "OPENAI_API_KEY"),
    "an unknown section": (b"[[direct]]", b"[[directs]]", "'directs'"),
}


@pytest.mark.parametrize(("old", "new", "said"), WRONG.values(), ids=WRONG)
def test_a_bad_catalog_is_refused(tmp_path: Path, old: bytes, new: bytes, said: str) -> None:
    assert old in NEWER
    path = tmp_path / "newer.toml"
    path.write_bytes(NEWER.replace(old, new, 1))
    with pytest.raises(ConfigurationError) as caught:
        load_catalog(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_kept_catalog_is_found_in_its_folder_and_an_empty_folder_gives_the_packaged_one(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert home_catalog(home) is load_catalog()
    keep_catalog(NEWER, home, sha256=DIGEST)
    assert home_catalog(home).as_of.isoformat() == "2026-11-01"
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_a_catalog_that_fails_its_check_leaves_the_kept_one_alone(tmp_path: Path) -> None:
    keep_catalog(NEWER, tmp_path)
    with pytest.raises(ConfigurationError):
        keep_catalog(b"as_of = 3", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["catalog.toml"]
    assert home_catalog(tmp_path).digest == DIGEST


# -- over the port ---------------------------------------------------------------------------------------------------------


class OneAnswer:
    """The part of a port that a fetch uses: one scripted answer, and what was asked."""

    def __init__(self, status: int, body: bytes) -> None:
        self.reply = HTTPReply(status, {}, body)
        self.asked: list[HTTPRequest] = []

    async def send(self, request: HTTPRequest, deadline: float | None = None) -> HTTPReply:
        self.asked.append(request)
        return self.reply

    def now(self) -> float:
        return 0.0


def fetch(port: OneAnswer, url: str, **options: Any) -> bytes:
    return io.drive(fetch_catalog(port, url, **options))  # type: ignore[arg-type]


def test_a_catalog_comes_over_the_port_when_its_digest_is_right() -> None:
    port = OneAnswer(200, NEWER)
    assert fetch(port, "https://example.com/catalog.toml", sha256=DIGEST) == NEWER
    (asked,) = port.asked
    assert asked.method == "GET"
    sent: Mapping[str, str] = asked.headers
    assert set(sent) == {"accept"}


REFUSED = {
    "an open line": ("http://example.com/c.toml", 200, NEWER, DIGEST, "https"),
    "a host that only looks local": ("http://127.0.0.1.example.com/c.toml", 200, NEWER, DIGEST, "https"),
    "another status": ("https://example.com/c.toml", 302, NEWER, DIGEST, "302"),
    "another file": ("https://example.com/c.toml", 200, NEWER, "0" * 64, "does not match"),
}


@pytest.mark.parametrize(("url", "status", "body", "digest", "said"), REFUSED.values(), ids=REFUSED)
def test_a_fetch_is_refused_with_the_reason(url: str, status: int, body: bytes, digest: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        fetch(OneAnswer(status, body), url, sha256=digest)
