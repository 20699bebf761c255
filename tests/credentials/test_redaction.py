"""Keys do not show: not in a secret's own words, not in texts that came from outside."""

from __future__ import annotations

import copy
import json
import pickle
import traceback
from urllib.parse import quote, quote_plus

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbroker.credentials import Secret, mask, redact

CANARY = "canary-1234567890-abcdef"


def shown(secret: Secret) -> dict[str, str]:
    try:
        raise ValueError(secret)
    except ValueError as error:
        trace = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    return {
        "repr": repr(secret),
        "str": str(secret),
        "format": f"{secret} {secret!r} {secret:>40} {[secret]}",
        "percent": str.__mod__("%s %r", (secret, secret)),
        "json": json.dumps({"k": secret}, default=str),
        "msgspec": msgspec.json.encode({"k": secret}, enc_hook=str).decode(),
        "pickle": repr(pickle.dumps(secret)),
        "traceback": trace,
        "vars": repr([getattr(secret, name, None) for name in dir(secret) if not name.startswith("_") and name != "reveal"]),
    }


@pytest.mark.parametrize("way", sorted(shown(Secret("x"))))
def test_a_secret_shows_itself_in_no_way(way: str) -> None:
    assert CANARY not in shown(Secret(CANARY, "environment X"))[way]


def test_a_secret_keeps_its_source_but_not_its_value_when_pickled() -> None:
    back = pickle.loads(pickle.dumps(Secret(CANARY, "environment X")))
    assert (back.reveal(), back.source, bool(back)) == ("", "environment X", False)


def test_copies_within_the_process_keep_the_value() -> None:
    secret = Secret(CANARY)
    assert copy.copy(secret).reveal() == copy.deepcopy([secret])[0].reveal() == CANARY


def test_secrets_of_one_value_are_equal() -> None:
    assert len({Secret("a", "x"), Secret("a", "y"), Secret("b")}) == 2
    assert Secret("a") != "a"


AWKWARD = 'k"e\\y/1+2 3=ä\n'
FORMS = {
    "as it is": AWKWARD,
    "json": json.dumps(AWKWARD, ensure_ascii=False),
    "json with escaped slashes": json.dumps(AWKWARD, ensure_ascii=False).replace("/", "\\/"),
    "repr": repr(AWKWARD),
    "url": quote(AWKWARD, safe=""),
    "url, slashes kept": quote(AWKWARD),
    "form": quote_plus(AWKWARD),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_known_value_is_replaced_in_every_spelling(form: str) -> None:
    assert redact(f"before {form} after", [AWKWARD]).strip("'\" ") in (
        "before *** after",
        'before "***" after',
        "before '***' after",
    )


def test_the_longest_value_is_replaced_first() -> None:
    assert redact("key abcdefgh and abcd", ["abcd", Secret("abcdefgh"), None, ""]) == "key *** and ***"


def test_short_values_do_not_spoil_the_text() -> None:
    assert redact("ok, x is 12", ["ok", "x", "12"]) == "ok, x is 12"


@given(value=st.text(min_size=4, max_size=20), before=st.text(max_size=10), after=st.text(max_size=10))
def test_no_value_is_left_in_any_text(value: str, before: str, after: str) -> None:
    assert value not in redact(before + value + after, [value]).replace("***", "\0" if "*" in value else "***")


LOOKS_LIKE_A_KEY = {
    "openai": ("Incorrect API key provided: sk-proj-abcdEFGH1234_x-y.", "abcdEFGH"),
    "openai, masked by them": ("Incorrect API key provided: sk-ab***********wxyz. You can", "wxyz"),
    "anthropic": ("bad key sk-ant-api03-AbCd_1234-xyz", "AbCd"),
    "google": ("API key AIzaSyA1234567890-bcdefg_hij not valid", "SyA123"),
    "google, new": ("API key AQ.Ab8RN6Jabcdefghijkl not valid", "Ab8RN6"),
    "groq": ("Invalid API Key gsk_abcdefghij0123", "abcdefghij"),
    "xai": ("key xai-abcdefgh01234", "abcdefgh"),
    "hugging face": ("token hf_AbCdEfGhIj", "AbCdEf"),
    "aws": ("AKIAIOSFODNN7EXAMPLE was", "IOSFODNN"),
    "github": ("ghp_abcdefghijklmnop", "abcdefgh"),
    "jwt": ("token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-DEF_123", "eyJzdWI"),
    "bearer": ("Authorization: Bearer abc.def.ghi-12345", "abc.def"),
    "bearer in json": ('{"authorization":"Bearer abcdef123456"}', "abcdef"),
    "basic": ("authorization: Basic dXNlcjpwYXNzd29yZA==", "dXNlcj"),
    "header": ("x-api-key: 0123456789abcdef", "01234567"),
    "goog header": ("x-goog-api-key: 0123456789abcdef", "01234567"),
    "json": ('{"api_key": "mysecret99"}', "mysecret99"),
    "escaped json": ('{\\"apiKey\\":\\"mysecret99\\"}', "mysecret99"),
    "query": ("https://host/v1beta/models?key=mysecret99&alt=sse", "mysecret99"),
    "second in query": ("https://host/x?alt=sse&access_token=mysecret99", "mysecret99"),
    "address": ("cannot reach postgresql://bob:pass%2Fword@host/db", "pass%2Fword"),
    "password": ("password=hunter2hunter2", "hunter2"),
}


@pytest.mark.parametrize(("text", "part"), LOOKS_LIKE_A_KEY.values(), ids=LOOKS_LIKE_A_KEY)
def test_what_looks_like_a_key_is_masked(text: str, part: str) -> None:
    assert part in text
    assert part not in mask(text)
    assert "***" in mask(text)


HARMLESS = (
    "The model `sk` does not exist",
    "Rate limit reached for model openai/gpt-oss-120b in organization org_01 on tokens per day (TPD)",
    "risk-management and task-oriented ask-me-anything",
    "API key not valid. Please pass a valid API key.",
    "Bearer token missing",
    "password: too short",
    "authorization failed",
    "see https://platform.openai.com/account/api-keys",
    "key=value",
    "http://localhost:8080/v1",
    "gemini-3.5-flash-lite is not found for API version v1beta",
    '{"error":{"code":"invalid_api_key","param":null}}',
    "desk-0123456789 disk-abcdefghij",
)


@pytest.mark.parametrize("text", HARMLESS)
def test_words_of_an_error_that_are_no_key_stay(text: str) -> None:
    assert mask(text) == text


@given(st.text())
def test_masking_twice_changes_nothing_more(text: str) -> None:
    once = mask(text)
    assert mask(once) == once
