"""Identity and audit: digests that are the same in R, for config and log, and depend on what the model sees alone."""

from __future__ import annotations

import json
import locale
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.research.conftest import Face, refused

from llmbroker import (
    ConfigurationError,
    InvalidRequestError,
    LLMBrokerError,
    llm_config,
    llm_export,
    llm_hash,
    llm_log_disable,
    llm_log_enable,
    llm_log_read,
    llm_log_status,
    llm_request_from_log,
    llm_request_hash,
    llm_tool,
)
from llmbroker.research.hashing import canonical

PINNED = "a35e70aafb008c3875246eee63844231a93ac9ec27d20b2b3440f3b0a713ca88"
HELLO = [("system", "Be terse."), ("user", "Hello")]


@pytest.fixture(autouse=True)
def no_log() -> Any:
    yield
    llm_log_disable()


# -- pinned --------------------------------------------------------------------------------------------------------------


def test_the_two_digests_that_llmr_pins_are_ours() -> None:
    assert llm_hash({"model": "gpt-oss-20b", "temperature": 0}) == (
        "7c5ffbb0b308f20bf188a3efd962a2895f45ad202307234ee1965d86abc0606c"
    )
    assert llm_request_hash(llm_config("openai", "gpt-4o-mini", temperature=0), HELLO) == PINNED


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (100000, "100000"),
        (1e15, "1e+15"),
        (1e-5, "1e-05"),
        (0.1 + 0.2, "0.3"),
        (1 / 3, "0.333333333333333"),
        (2048.0, "2048"),
        (-0.0, "0"),
        (float("inf"), '"Inf"'),
        (float("nan"), "null"),
        (True, "true"),
        (None, "null"),
        ([], "[]"),
        ({}, "{}"),
        (123456.789012, "123456.789012"),
        (-2.5e-7, "-2.5e-07"),
        (1e100, "1e+100"),
        ("é", '"é"'),
        ("</script>", '"<\\/script>"'),
        ('\x01\n"', '"\\u0001\\n\\""'),
        ({"b": 1, "B": 2, "a": [1, {"z": None}]}, '{"B":2,"a":[1,{"z":null}],"b":1}'),
    ],
)
def test_values_are_written_as_r_writes_them(value: Any, text: str) -> None:
    assert canonical(value) == text


@given(st.dictionaries(st.text(max_size=6), st.integers() | st.text(max_size=4), max_size=6))
def test_the_order_of_names_does_not_matter(value: dict[str, Any]) -> None:
    assert llm_hash(value) == llm_hash(dict(reversed(value.items())))


def test_the_locale_does_not_matter() -> None:
    value = {"ä": 1, "Z": 2, "a": 3, "A": 4}
    before = llm_hash(value)
    kept = locale.setlocale(locale.LC_ALL)
    try:
        for name in ("C.UTF-8", "de_DE.UTF-8", "C"):
            try:
                locale.setlocale(locale.LC_ALL, name)
            except locale.Error:
                continue
            assert llm_hash(value) == before
    finally:
        locale.setlocale(locale.LC_ALL, kept)


# -- what counts ---------------------------------------------------------------------------------------------------------


def digest(messages: Any = HELLO, **more: Any) -> str:
    params = {"temperature": 0, **more}
    return llm_request_hash(
        llm_config(params.pop("provider", "openai"), params.pop("model", "gpt-4o-mini"), **params), messages
    )


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "Hello"}],
        {"system": "Be terse.", "user": "Hello"},
        [("developer", "Be terse."), ("user", "Hello")],
        [("system", "Be terse."), {"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
    ],
)
def test_the_shape_of_the_messages_does_not_matter(messages: Any) -> None:
    assert digest(messages) == PINNED


@pytest.mark.parametrize(
    "more",
    [
        {"api_key": "sk-another-key"},
        {"base_url": "https://proxy.example/v1"},
        {"timeout": 5},
        {"cache": True},
        {"headers": {"x-a": "b"}},
        {"price": {"input": 1, "output": 1}},
        {"top_p": None},
    ],
)
def test_key_address_and_transport_do_not_matter(more: Any) -> None:
    assert digest(**more) == PINNED


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 0.1},
        {"temperature": 0.12345678},
        {"top_p": 0.5},
        {"max_tokens": 5},
        {"seed": 3},
        {"stop": "x"},
        {"logprobs": True},
        {"reasoning_effort": "low"},
        {"model": "gpt-4o"},
        {"provider": "groq"},
        {"response_format": {"type": "json_object"}},
    ],
)
def test_every_parameter_that_the_model_sees_matters(more: Any) -> None:
    assert digest(**more) != PINNED


def test_names_for_one_thing_are_one_thing() -> None:
    assert digest(max_tokens=5) == digest(max_completion_tokens=5)
    assert digest(stop="x") == digest(stop=["x"]) == digest(stop_sequences=["x"])


def test_arguments_of_tool_calls_and_roles_matter() -> None:
    def turn(arguments: str) -> Any:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        return [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "y"},
        ]

    assert digest(turn('{"a":1}')) != digest(turn('{"a":2}'))
    assert digest([("user", "x"), ("assistant", "y")]) != digest([("user", "x"), ("user", "y")])


def test_attachments_matter(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"one")
    (tmp_path / "b.png").write_bytes(b"two")
    one, two = (digest([("user", "x"), ("file", tmp_path / name)]) for name in ("a.png", "b.png"))
    assert one != two != digest("x")
    (tmp_path / "b.png").write_bytes(b"one")
    assert digest([("user", "x"), ("file", tmp_path / "b.png")]) == one


def test_tools_matter() -> None:
    config = llm_config("openai", "gpt-4o-mini", temperature=0)
    tool = llm_tool(lambda x: x, "f", "d", {"x": "string"})
    assert llm_request_hash(config, HELLO, tools=tool) == llm_request_hash(config, HELLO, tools=[tool.declaration]) != PINNED


def test_a_request_without_messages_has_no_identity() -> None:
    with pytest.raises(InvalidRequestError):
        llm_request_hash(llm_config("openai", "m"))


# -- the log -------------------------------------------------------------------------------------------------------------

CASES = [
    ("openai", "gpt-4o-mini", "openai-chat", {"temperature": 0.123456789}),
    ("groq", "m", "openai-chat", {"max_tokens": 9, "stop": "x"}),
    ("anthropic", "claude-haiku-4-5", "anthropic", {}),
    ("anthropic", "claude-sonnet-4-5", "anthropic", {"thinking_budget": 2000, "max_tokens": 4000}),
    ("gemini", "gemini-2.5-flash", "gemini", {"logprobs": True, "top_logprobs": 2, "stop_sequences": ["x"], "top_k": 3}),
    ("deepseek", "deepseek-chat", "openai-chat", {"response_format": {"type": "json_object"}}),
]


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize(("provider", "model", "dialect", "params"), CASES)
def test_config_and_log_have_one_identity(
    face: Face, tmp_path: Path, provider: str, model: str, dialect: str, params: dict[str, Any], include: bool
) -> None:
    config = llm_config(provider, model, api_key="sk-very-secret-key-1234", **params)
    llm_log_enable(tmp_path / "log.jsonl", include_messages=include)
    messages = [("system", "One."), ("system", "Two."), ("user", "Hello")]
    face.answers('{"a": 1}', dialect=dialect).call_llm(config, messages)
    (line,) = llm_log_read(tmp_path / "log.jsonl")
    assert line["request_hash"] == llm_request_hash(config, messages) == llm_request_hash(line)
    assert line["parameters"].get("temperature") == params.get("temperature")
    if include:
        again, said = llm_request_from_log(line)
        assert llm_request_hash(again, said) == line["request_hash"]


def test_the_tools_of_a_loop_are_part_of_its_identity_in_the_log(face: Face, config: Any, tmp_path: Path) -> None:
    tool = llm_tool(lambda x: x, "f", "d", {"x": "string"})
    llm_log_enable(tmp_path / "log.jsonl")
    face.answers("done").call_llm_tools(config, HELLO, tool)
    (line,) = llm_log_read(tmp_path / "log.jsonl")
    assert line["request_hash"] == llm_request_hash(config, HELLO, tools=tool) == llm_request_hash(line)


def test_a_form_beside_tools_is_asked_for_later_on_both_sides(face: Face, config: Any, tmp_path: Path) -> None:
    tool = llm_tool(lambda x: x, "f", "d", {"x": "string"})
    formed = config.replace(response_format={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    llm_log_enable(tmp_path / "log.jsonl")
    face.answers("seven", '{"n": 7}').call_llm_tools(formed, HELLO, tool)
    first, second = llm_log_read(tmp_path / "log.jsonl")
    assert first["request_hash"] == llm_request_hash(formed, HELLO, tools=tool) == llm_request_hash(first)
    assert second["request"]["response_format"]["type"] == "json_schema" and llm_request_hash(second) == second["request_hash"]


def test_a_log_without_messages_holds_no_text_of_anybody(face: Face, tmp_path: Path) -> None:
    secret = "MARK-OF-A-PARTICIPANT"
    llm_log_enable(tmp_path / "log.jsonl", include_messages=False)
    for provider, dialect in (("openai", "openai-responses"), ("anthropic", "anthropic"), ("gemini", "gemini")):
        config = llm_config(
            provider,
            "m",
            api_key="k" * 20,
            dialect=dialect,
            stop=[secret],
            user=secret,
            metadata={"user_id": secret},
            no_change=True,
        )
        face.answers(secret, dialect=dialect).call_llm(config, [("system", secret), ("user", secret)])
        face.answers(refused(400, f"cannot take {secret}"))
        with pytest.raises(LLMBrokerError):
            face.call_llm(config, secret)
    written = (tmp_path / "log.jsonl").read_text()
    assert secret not in written and written.count("\n") == 6


def test_every_attempt_is_a_line_failed_ones_and_streams_too(face: Face, config: Any, tmp_path: Path) -> None:
    from llmbroker.testing import Answer, made_reply, stream

    chunks = stream(made_reply("Hello."), "openai-chat")
    llm_log_enable(tmp_path / "log.jsonl")
    face.answers(
        Answer(fault="reset"), Answer(body="<html>"), "a", Answer(headers={"content-type": "text/event-stream"}, body=chunks)
    )
    face.call_llm_robust(config, HELLO, wait_seconds=0)
    face.call_llm_stream(config, HELLO, lambda piece: None)
    lines = llm_log_read(tmp_path / "log.jsonl")
    assert [(line["kind"], line["status"], line["attempt"]) for line in lines] == [
        ("call", "error", 1),
        ("call", "error", 2),
        ("call", "ok", 3),
        ("stream", "ok", 1),
    ]
    assert {line["request_hash"] for line in lines} == {PINNED}
    assert lines[0]["error"]["class"] == "ConnectionFailedError"
    assert lines[2]["usage"] == {"sent": 10, "rec": 5, "total": 15, "reasoning": None, "cached": None}
    assert {"ts", "schema_version", "llmbroker_version", "model_version", "cost"} <= set(lines[2])
    assert "sk-very-secret" not in (tmp_path / "log.jsonl").read_text()


def test_a_log_that_cannot_be_written_is_refused_at_once_and_a_disk_that_fills_breaks_no_call(
    face: Face, config: Any, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError):
        llm_log_enable(tmp_path / "no" / "such" / "folder.jsonl")
    assert llm_log_status()["active"] is False
    llm_log_enable(tmp_path / "log.jsonl")
    (tmp_path / "log.jsonl").unlink()
    (tmp_path / "log.jsonl").mkdir()
    face.answers("a", "b")
    face.call_llm(config, HELLO)
    face.call_llm(config, HELLO)
    assert llm_log_status() == {"active": True, "path": str(tmp_path / "log.jsonl"), "written": 0, "failed": 2}


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"a": 1}\n\nnot json\n')
    with pytest.raises(InvalidRequestError, match="Line 3"):
        llm_log_read(tmp_path / "log.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ConfigurationError, match="empty"):
        llm_log_read(tmp_path / "empty.jsonl")


def test_a_run_file_gives_the_same_lines(face: Face, config: Any, tmp_path: Path) -> None:
    face.answers("a", refused(400, "odd"))
    out = face.call_llm_par(
        [{"prompt": HELLO}, {"prompt": "b"}], config, run_file=tmp_path / "run.db", max_workers=1, request_hash=True
    )
    assert llm_export(tmp_path / "run.db", tmp_path / "audit.jsonl") == 2
    lines = llm_log_read(tmp_path / "audit.jsonl")
    assert [line["request_hash"] for line in lines] == [PINNED, out[1]["request_hash"]]
    assert [llm_request_hash(line) for line in lines] == [line["request_hash"] for line in lines]
    assert lines[0]["text"] == "a" and lines[1]["error"]["kind"] == "parameter"
    llm_export(tmp_path / "run.db", tmp_path / "bare.jsonl", include_messages=False)
    bare = (tmp_path / "bare.jsonl").read_text()
    assert "Be terse" not in bare and json.loads(bare.splitlines()[0])["request_hash"] == PINNED


def test_a_long_question_keeps_its_identity_in_the_run_file(face: Face, config: Any, tmp_path: Path) -> None:
    long = "word " * 20_000
    face.answers("a").call_llm_par([{"prompt": long}], config, run_file=tmp_path / "run.db")
    llm_export(tmp_path / "run.db", tmp_path / "audit.jsonl")
    (line,) = llm_log_read(tmp_path / "audit.jsonl")
    assert line["request_hash"] == llm_request_hash(config, long) == llm_request_hash(line)
    assert (tmp_path / "audit.jsonl").stat().st_size < 2000


def test_long_data_is_kept_as_its_digest(face: Face, config: Any, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(b"\x00" * 9000)
    llm_log_enable(tmp_path / "log.jsonl")
    face.answers("a").call_llm(config, [("user", "x"), ("file", tmp_path / "photo.png")])
    assert len((tmp_path / "log.jsonl").read_text()) < 3000
    (line,) = llm_log_read(tmp_path / "log.jsonl")
    with pytest.raises(InvalidRequestError, match="digest"):
        llm_request_from_log(line)
