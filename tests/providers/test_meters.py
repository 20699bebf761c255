"""What headers of good replies state about quotas: every notation, nonsense, and all recorded replies."""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import shared_folder

from llmbroker.providers.meters import FINE, LONGEST, Meter, meters

DATE = {"date": "Tue, 01 Sep 2026 12:00:00 GMT"}

NOTATIONS: list[tuple[str, dict[str, str], list[Meter]]] = [
    (
        "units and go durations",
        {
            "x-ratelimit-limit-requests": "14400",
            "x-ratelimit-remaining-requests": "14395",
            "x-ratelimit-reset-requests": "1m2.5s",
            "x-ratelimit-limit-tokens": "6000",
            "x-ratelimit-remaining-tokens": "0",
            "x-ratelimit-reset-tokens": "120ms",
        },
        [
            Meter("requests", "requests", 14395, 14400, 62.5, None, FINE),
            Meter("tokens", "tokens", 0, 6000, 0.12, None, FINE),
        ],
    ),
    (
        "rfc 3339",
        {
            "anthropic-ratelimit-requests-limit": "50",
            "anthropic-ratelimit-requests-remaining": "49",
            "anthropic-ratelimit-requests-reset": "2026-09-01T12:00:07Z",
            "anthropic-ratelimit-input-tokens-limit": "40000",
            "anthropic-ratelimit-input-tokens-remaining": "39000",
            "anthropic-ratelimit-input-tokens-reset": "2026-09-01T12:00:02Z",
            "anthropic-ratelimit-output-tokens-limit": "8000",
            "anthropic-ratelimit-output-tokens-remaining": "8000",
            "anthropic-ratelimit-output-tokens-reset": "2026-09-01T11:59:00Z",
            **DATE,
        },
        [
            Meter("requests", "requests", 49, 50, 7.0, None, 1.0),
            Meter("input-tokens", "input", 39000, 40000, 2.0, None, 1.0),
            Meter("output-tokens", "output", 8000, 8000, 0.0, None, 1.0),
        ],
    ),
    (
        "spans in the name and fractions",
        {
            "x-ratelimit-limit-requests-day": "1440000",
            "x-ratelimit-remaining-requests-day": "1439972",
            "x-ratelimit-reset-requests-day": "3503.5",
            "x-ratelimit-limit-tokens-minute": "1000000",
            "x-ratelimit-remaining-tokens-minute": "999296",
            "x-ratelimit-reset-tokens-minute": "23.5",
        },
        [
            Meter("requests-day", "requests", 1439972, 1440000, 3503.5, 86400.0, FINE),
            Meter("tokens-minute", "tokens", 999296, 1000000, 23.5, 60.0, FINE),
        ],
    ),
    (
        "no reset, other words",
        {"x-ratelimit-limit-req-minute": "100", "x-ratelimit-remaining-req-minute": "94"},
        [Meter("req-minute", "requests", 94, 100, None, 60.0, 1.0)],
    ),
    (
        "a period of renewal",
        {
            "x-ratelimit-limit-requests": "10000",
            "x-ratelimit-remaining-requests": "9993",
            "x-ratelimit-renewalperiod-requests": "60",
        },
        [Meter("requests", "requests", 9993, 10000, None, 60.0, 1.0)],
    ),
    (
        "no unit, epoch milliseconds",
        {"x-ratelimit-limit": "20", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "1788264015000", **DATE},
        [Meter("requests", "requests", 0, 20, 15.0, None, 1.0)],
    ),
    (
        "no unit, epoch seconds",
        {"x-ratelimit-limit": "20", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "1788264015", **DATE},
        [Meter("requests", "requests", 0, 20, 15.0, None, 1.0)],
    ),
    (
        "seconds, no limit",
        {"x-ratelimit-remaining": "3", "x-ratelimit-reset": "2"},
        [Meter("requests", "requests", 3, None, 2.0)],
    ),
    (
        "a span alone",
        {"x-ratelimit-limit-minute": "60", "x-ratelimit-remaining-minute": "59"},
        [Meter("minute", "requests", 59, 60, None, 60.0)],
    ),
    (
        "prompt and generated",
        {
            "x-ratelimit-limit-tokens-prompt": "60000",
            "x-ratelimit-remaining-tokens-prompt": "59000",
            "x-ratelimit-limit-tokens-generated": "6000",
            "x-ratelimit-remaining-tokens-generated": "5900",
        },
        [Meter("tokens-prompt", "input", 59000, 60000), Meter("tokens-generated", "output", 5900, 6000)],
    ),
    (
        "older drafts, three headers with a policy",
        {"ratelimit-limit": "100, 100;w=60", "ratelimit-remaining": "3", "ratelimit-reset": "20"},
        [Meter("requests", "requests", 3, 100, 20.0, 60.0)],
    ),
    (
        "older drafts, one header",
        {"ratelimit": "limit=10, remaining=0, reset=4", "ratelimit-policy": "10;w=60"},
        [Meter("requests", "requests", 0, 10, 4.0, 60.0)],
    ),
    (
        "newer drafts, several policies",
        {
            "ratelimit": '"burst";r=12;t=5, "day";r=900;t=40000',
            "ratelimit-policy": '"burst";q=100;w=60, "day";q=1000;w=86400;pk=:cHNsvN==:',
        },
        [Meter("burst", "requests", 12, 100, 5.0, 60.0), Meter("day", "requests", 900, 1000, 40000.0, 86400.0)],
    ),
    ("newer drafts, no policy", {"ratelimit": '"default";r=50;t=30'}, [Meter("default", "requests", 50, None, 30.0)]),
    (
        "newer drafts, a policy of bytes beside one of requests",
        {
            "ratelimit": '"size";r=0;t=30, "calls";r=4;t=3',
            "ratelimit-policy": '"size";q=9;w=9;qu="content-bytes", "calls";q=9;w=9',
        },
        [Meter("calls", "requests", 4, 9, 3.0, 9.0)],
    ),
]


@pytest.mark.parametrize(("headers", "expected"), [row[1:] for row in NOTATIONS], ids=[row[0] for row in NOTATIONS])
def test_every_notation_is_read(headers: dict[str, str], expected: list[Meter]) -> None:
    assert sorted(meters(headers)) == sorted(expected)


NONSENSE = {
    "not metered": {"limit": "-1", "remaining": "-1", "reset": "0"},
    "a limit of 0": {"limit": "0", "remaining": "0", "reset": "10"},
    "placeholders": {"limit": "X-RATELIMIT", "remaining": "XXX", "reset": "XXX"},
    "nan": {"limit": "nan", "remaining": "nan", "reset": "nan"},
    "infinite": {"limit": "inf", "remaining": "inf", "reset": "inf"},
    "less than nothing left": {"limit": "10", "remaining": "-5", "reset": "10"},
    "a limit without what is left": {"limit": "10"},
    "far more left than the limit": {"limit": "10", "remaining": "1000"},
    "empty": {"limit": "", "remaining": "", "reset": ""},
}


@pytest.mark.parametrize("fields", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_states_nothing(fields: dict[str, str]) -> None:
    assert meters({f"x-ratelimit-{name}-requests": value for name, value in fields.items()}) == ()


@pytest.mark.parametrize("reset", ["3000-01-01T00:00:00Z", "99999999", "4102444800", "-5", "soon"])
def test_a_reset_that_makes_no_sense_is_none(reset: str) -> None:
    (found,) = meters({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": reset, **DATE})
    assert found.reset is None


@pytest.mark.parametrize(
    "name", ["x-ratelimit-remaining-input-images", "x-ratelimit-remaining-audio-seconds-minute", "x-ratelimit-remaining-month"]
)
def test_what_a_call_cannot_be_held_against_is_left_out(name: str) -> None:
    assert meters({name: "0"}) == ()


@given(
    st.dictionaries(
        st.one_of(
            st.sampled_from(["ratelimit", "ratelimit-policy", "ratelimit-limit", "ratelimit-remaining", "x-ratelimit-reset"]),
            st.from_regex(r"(x-|anthropic-)?ratelimit-(limit|remaining|reset)-?[a-z-]{0,12}", fullmatch=True),
        ),
        st.one_of(st.text(max_size=40), st.from_regex(r'[-0-9.eE:TZmsh;=,"rtqw ]{0,30}', fullmatch=True)),
        max_size=8,
    )
)
@settings(max_examples=300, deadline=None)
def test_whatever_headers_hold_every_meter_is_sane(headers: dict[str, str]) -> None:
    for meter in meters(headers):
        sane(meter)


def sane(meter: Meter) -> None:
    assert 0 <= meter.left < math.inf
    assert meter.limit is None or (0 < meter.limit < math.inf and meter.left <= meter.limit)
    assert meter.reset is None or 0 <= meter.reset <= LONGEST
    assert meter.period is None or 0 < meter.period <= LONGEST


STATING = {
    "anthropic": 35, "azure": 62, "cerebras": 49, "groq": 65, "mistral": 27, "openai": 66, "openrouter": 1, "portkey": 2,
    "together": 2, "xai": 27,
}  # fmt: skip
"""Recorded replies whose headers state something, by provider."""


@pytest.mark.traffic
def test_all_recorded_replies_are_read_and_what_they_state_is_sane() -> None:
    folder = shared_folder()
    if folder is None:
        pytest.skip("the recorded traffic is not here (LLMBROKER_SHARED names its folder)")
    counts: Counter[str] = Counter()
    unread = []
    for path in sorted((folder / "traffic").glob("*.jsonl.gz")):
        with gzip.open(path, "rt") as lines:
            for record in map(json.loads, lines):
                headers = {name.lower(): value for name, value in record["response"]["headers"].items()}
                found = meters({"date": "Wed, 19 Aug 2026 14:34:30 GMT", **headers})
                for meter in found:
                    sane(meter)
                counts[record["provider"]] += bool(found)
                left = [value for name, value in headers.items() if "ratelimit" in name and "remaining" in name]
                if not found and any(value.isdigit() for value in left):
                    unread.append((record["id"], left))
    assert {name: count for name, count in counts.items() if count} == STATING
    assert len(unread) == 3  # tokens by size, whose cost for a request cannot be known before it is sent


BOTTOMLESS = {
    "spaces between semicolons": "a" + ";   " * 240 + '"',
    "quotes": '"a' * 400,
    "parameters": '"a"' + ";r=1 " * 190 + '"',
    "quoted parameters": '"a"' + ';x="y"  ' * 120 + '"',
    "spaces": " " * 990 + '"',
    "escapes": '"' + "\\" * 990,
}


@pytest.mark.parametrize("text", BOTTOMLESS.values(), ids=list(BOTTOMLESS))
@pytest.mark.parametrize("name", ["ratelimit", "ratelimit-policy"])
def test_no_header_is_read_for_ever(name: str, text: str) -> None:
    meters({"ratelimit": '"a";r=1;t=1', "ratelimit-policy": '"a";q=2;w=1', name: text})
