"""The twenty known weak points of the system whose verbs these are, each done right. The number is that of the list."""

from __future__ import annotations

import http.server
import json
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
from tests.research.conftest import Face, refused

from llmbroker import (
    InvalidRequestError,
    LLMBrokerError,
    RateLimitError,
    StreamInterruptedError,
    ToolLimitError,
    llm_config,
    llm_log_disable,
    llm_log_enable,
    llm_parse_structured,
    llm_request_hash,
    llm_tool,
    tokens,
    tool_calls,
)
from llmbroker.exchange import Usage
from llmbroker.research.structured import form_of
from llmbroker.testing import Answer, made_reply, stream


def body(face: Face, at: int = -1) -> Any:
    return json.loads(face.port.requests[at].body)


def test_01_no_answer_and_no_argument_is_opened_as_a_file_or_fetched(face: Face, config: Any, tmp_path: Path) -> None:
    fetched: list[str] = []

    class Trap(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fetched.append(self.path)

        def log_message(self, *_: Any) -> None: ...

    (tmp_path / "secret.json").write_text('{"x": "secret"}')
    with http.server.HTTPServer(("127.0.0.1", 0), Trap) as trap:
        thread = threading.Thread(target=trap.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{trap.server_address[1]}/x.json"
        ran: list[Any] = []
        tool = llm_tool(lambda x=None: ran.append(x), "f", "", {"x": "string"})
        for text in (url, str(tmp_path / "secret.json"), f'"{url}"'):
            face.answers(made_reply(calls=[("f", text)]), "done")
            history = face.call_llm_tools(config, "q", tool).tool_history
            assert "secret" not in history[0]["result"].replace("secret.json", "")
            assert llm_parse_structured(text) is None
            assert tool_calls(made_reply(calls=[("f", text)]))[0]["arguments"] is None
        trap.shutdown()
        thread.join()
    assert ran == [] and fetched == []


@pytest.mark.parametrize("provider", ["Anthropic", "ANTHROPIC"])
def test_02_a_key_never_goes_to_another_vendor(face: Face, monkeypatch: pytest.MonkeyPatch, provider: str) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key-of-anthropic")
    face.answers("a", dialect="anthropic").call_llm(llm_config(provider, "m"), "hi")
    assert face.port.requests[0].url.startswith("https://api.anthropic.com/")
    assert face.port.requests[0].headers["x-api-key"] == "key-of-anthropic"
    with pytest.raises(InvalidRequestError):
        llm_config("antropic", "m")


def test_03_calls_with_broken_arguments_are_answered_not_run(face: Face, config: Any) -> None:
    ran: list[Any] = []
    tool = llm_tool(lambda city="Berlin": ran.append(city), "f", "", {"city": "string"}, required=[])
    face.answers(made_reply(calls=[("f", '{"city": "Tu')]), "done")
    history = face.call_llm_tools(config, "q", tool).tool_history
    assert ran == [] and "end in the middle" in history[0]["result"]


def test_04_numbers_are_never_rounded_on_the_way(face: Face, config: Any, tmp_path: Path) -> None:
    tool = llm_tool(lambda: [3.141592653589793, 12345678901234567], "f", "", {})
    llm_log_enable(tmp_path / "log.jsonl")
    face.answers(made_reply(calls=[("f", "{}")]), "done")
    try:
        response = face.call_llm_tools(config.replace(temperature=0.123456789), "q", tool)
    finally:
        llm_log_disable()
    assert response.tool_history[0]["result"] == "[3.141592653589793, 12345678901234567]"
    assert "3.141592653589793" in body(face)["messages"][-1]["content"]
    assert "0.123456789" in (tmp_path / "log.jsonl").read_text()


def test_05_limits_and_errors_in_the_middle_keep_what_was_spent(face: Face, config: Any) -> None:
    tool = llm_tool(lambda: "x", "f", "", {})
    for limit, answers, kind in ((1, ("f", "f"), ToolLimitError), (9, ("f", "500"), LLMBrokerError)):
        face.answers(*(refused(400) if a == "500" else made_reply(calls=[("f", "{}")]) for a in answers))
        with pytest.raises(kind) as caught:
            face.call_llm_tools(config, "q", tool, max_tool_calls=limit)
        error = caught.value
        assert (
            error.messages and len(error.tool_history) == 1 and error.tool_loop.sent and error.tool_loop.cost and error.response
        )


def test_06_the_last_round_runs_nothing_that_nobody_reads(face: Face, config: Any) -> None:
    ran: list[int] = []
    tool = llm_tool(lambda: ran.append(1), "f", "", {})
    face.answers(made_reply(calls=[("f", "{}")]))
    with pytest.warns(UserWarning, match="max_rounds"):
        response = face.call_llm_tools(config, "q", tool, max_rounds=1)
    assert ran == [] and response.tool_calls
    with pytest.raises(InvalidRequestError):
        face.call_llm_tools(config, "q", tool, max_rounds=0)
    face.answers("the answer")
    assert face.call_llm_tools(config, "q", tool).messages[-1] == {"role": "assistant", "content": "the answer"}


def test_07_calls_without_usage_are_counted_as_unknown(face: Face, config: Any) -> None:
    tool = llm_tool(lambda: "x", "f", "", {})
    face.answers(
        made_reply(calls=[("f", "{}")]), Answer(body={"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]})
    )
    sums = face.call_llm_tools(config, "q", tool).tool_loop
    assert (sums.sent, sums.unknown_usage) == (10, 1)


def test_08_a_forced_choice_and_a_form_do_not_force_calls_for_ever(face: Face) -> None:
    tool = llm_tool(lambda: "x", "f", "", {})
    config = llm_config(
        "anthropic",
        "claude-haiku-4-5",
        api_key="k" * 20,
        tool_choice="required",
        response_format={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    )
    face.answers(made_reply(calls=[("f", "{}")]), '{"n": 1}', dialect="anthropic")
    response = face.call_llm_tools(config, "q", tool)
    assert response.parsed == {"n": 1} and response.tool_loop.model_calls == 2
    assert body(face).get("tool_choice", {"type": "auto"})["type"] == "auto"


def test_09_a_log_without_messages_is_made_of_allowed_names(face: Face, tmp_path: Path) -> None:
    llm_log_enable(tmp_path / "log.jsonl", include_messages=False)
    try:
        config = llm_config(
            "openai",
            "o3",
            api_key="k" * 20,
            dialect="openai-responses",
            instructions="MARK",
            prompt_note="MARK",
            no_change=True,
        )
        face.answers("MARK", dialect="openai-responses").call_llm(config, [("system", "MARK"), ("user", "MARK")])
    finally:
        llm_log_disable()
    assert "MARK" not in (tmp_path / "log.jsonl").read_text()


def test_10_what_is_no_answer_is_no_success(face: Face, config: Any) -> None:
    chunks = stream(made_reply("Half of it."), "openai-chat")[:3]
    for answer, kind in (
        (Answer(body={"error": {"message": "upstream broke", "code": 502}}), LLMBrokerError),
        (Answer(headers={"content-type": "text/event-stream"}, body=chunks), StreamInterruptedError),
    ):
        with pytest.raises(kind):
            face.answers(answer).call_llm(config, "hi")
    blocked = Face(face.name).answers(Answer(body={"promptFeedback": {"blockReason": "SAFETY"}}))
    (row,) = blocked.call_llm_par([{"prompt": "x"}], llm_config("gemini", "m", api_key="k" * 20))
    assert (row["success"], row["error_kind"], row["finish_reason"]) == (False, "filter", "content_filter")
    (row,) = face.answers("").call_llm_par([{"prompt": "x"}], config)
    assert (row["success"], row["error_kind"]) == (False, "empty")


@pytest.mark.parametrize(
    ("provider", "answer", "counts"),
    [
        (
            "anthropic",
            {
                "content": [{"type": "text", "text": "x"}],
                "stop_reason": "end_turn",
                "usage": {
                    "input_tokens": 100,
                    "cache_read_input_tokens": 40,
                    "cache_creation_input_tokens": 10,
                    "output_tokens": 5,
                },
            },
            (150, 5, 40, None),
        ),
        (
            "gemini",
            {
                "candidates": [{"content": {"parts": [{"text": "x"}]}, "finishReason": "STOP"}],
                "usageMetadata": {
                    "promptTokenCount": 100,
                    "cachedContentTokenCount": 40,
                    "candidatesTokenCount": 5,
                    "thoughtsTokenCount": 7,
                    "totalTokenCount": 112,
                },
            },
            (100, 12, 40, 7),
        ),
        (
            "openai",
            {
                "choices": [{"message": {"content": "x"}, "finish_reason": "stop"}],
                "usage": {
                    "prompt_tokens": 100,
                    "completion_tokens": 12,
                    "total_tokens": 112,
                    "prompt_tokens_details": {"cached_tokens": 40},
                    "completion_tokens_details": {"reasoning_tokens": 7},
                },
            },
            (100, 12, 40, 7),
        ),
    ],
)
def test_11_tokens_mean_the_same_everywhere_and_cost_what_they_cost(
    face: Face, provider: str, answer: Any, counts: Any
) -> None:
    price = {"input": 3.0, "output": 15.0, "cached": 0.3, "cache_write": 3.75}
    response = face.answers(Answer(body=answer)).call_llm(llm_config(provider, "m", api_key="k" * 20, price=price), "hi")
    got = tokens(response)
    assert (got.sent, got.rec, got.cached, got.reasoning) == counts
    usage: Usage = response.usage
    written = usage.cache_write_tokens or 0
    expected = (counts[0] - 40 - written) * 3 + 40 * 0.3 + written * 3.75 + counts[1] * 15
    assert response.cost == pytest.approx(expected / 1e6)


def test_12_parts_are_one_text_prose_beside_calls_is_kept_native_parts_arrive(face: Face, config: Any) -> None:
    parts = {
        "content": [
            {"type": "text", "text": "One "},
            {"type": "text", "text": "answer."},
            {"type": "tool_use", "id": "t", "name": "f", "input": {}},
        ],
        "stop_reason": "tool_use",
        "usage": {},
    }
    response = face.answers(Answer(body=parts)).call_llm(llm_config("anthropic", "m", api_key="k" * 20), "hi")
    assert str(response) == "One answer." and len(tool_calls(response)) == 1
    image = {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}
    face.answers("a").call_llm(config, [{"role": "user", "content": [{"type": "text", "text": "x"}, image]}])
    assert image in body(face)["messages"][0]["content"]


def test_13_digits_in_a_message_are_no_reason_to_ask_again_and_a_day_is_not_waited(
    face: Face, config: Any, tmp_path: Path
) -> None:
    (tmp_path / "img_429.txt").mkdir()
    with pytest.raises(InvalidRequestError):
        face.call_llm_robust(config, [("file", tmp_path / "img_429.txt"), ("user", "x")])
    with pytest.raises(LLMBrokerError):
        face.answers(refused(400, "max_tokens=500 thinking_budget=1024 timeout overloaded")).call_llm_robust(config, "x")
    assert len(face.port.requests) == 1 and face.port.now() == 0
    with pytest.raises(RateLimitError):
        face.answers(refused(429, headers={"retry-after": "86400"})).call_llm_robust(config, "x")
    assert face.port.now() == 0


def test_14_identity_is_the_same_on_both_sides_and_tells_calls_apart(face: Face, tmp_path: Path) -> None:
    config = llm_config("anthropic", "claude-haiku-4-5", api_key="k" * 20)  # a limit of tokens is added on the way out
    log = tmp_path / "log.jsonl"
    llm_log_enable(log)
    try:
        face.answers("a", dialect="anthropic").call_llm(config, [("system", "a"), ("system", "b"), ("user", "c")])
    finally:
        llm_log_disable()
    line = json.loads(log.read_text())
    assert line["request_hash"] == llm_request_hash(config, [("system", "a"), ("system", "b"), ("user", "c")])
    one, two = (
        [
            {"role": "user", "content": "x"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}],
            },
        ]
        for arguments in ('{"n":1}', '{"n":2}')
    )
    assert llm_request_hash(config, one) != llm_request_hash(config, two)


def test_15_what_a_server_taught_is_remembered_on_every_path(face: Face) -> None:
    refusal = refused(
        400,
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        param="max_tokens",
        code="unsupported_parameter",
    )
    config = llm_config("groq", f"taught-{face.name}", api_key="k" * 20, max_tokens=7)
    face.answers(refusal, "a", "b", made_reply("c"))
    face.call_llm(config, "x")
    face.call_llm_robust(config, "x")
    face.call_llm_tools(config, "x", llm_tool(lambda: 1, "f", "", {}))
    assert len(face.port.requests) == 4 and body(face)["max_completion_tokens"] == 7


def test_16_a_form_is_asked_for_on_every_server_hardened_whole_and_read_rightly(face: Face) -> None:
    form = {"type": "object", "properties": {"score": {"type": "integer"}, "why": {"type": "string"}}, "required": ["score"]}
    config = llm_config("unlisted", "m", base_url="http://lab.example/v1", response_format=form)
    plan = '{"plan": [1, 2, 3, 4, 5, 6, 7, 8, 9]}'
    face.answers(f'<think>{plan}</think> {{"score": 4, "why": null}}')
    assert face.call_llm(config, "x").parsed == {"score": 4}
    sent = body(face)["response_format"]["json_schema"]["schema"]
    assert sent["required"] == ["score", "why"] and sent["additionalProperties"] is False
    assert form_of(list[int]).read("Here: [1, 2, 3] and that is all.") == ([1, 2, 3], None)


def test_17_resuming_leaves_lasting_failures_alone_and_takes_cut_ones_on_request(
    face: Face, config: Any, tmp_path: Path
) -> None:
    rows = [{"prompt": "a"}, {"prompt": "b"}]
    face.answers(refused(400), made_reply("half", finish="length"))
    face.call_llm_par(rows, config, run_file=tmp_path / "run.db", max_workers=1)
    face.call_llm_par(rows, config, run_file=tmp_path / "run.db")
    assert len(face.port.requests) == 2
    face.answers("whole")
    out = face.call_llm_par(rows, config, run_file=tmp_path / "run.db", retry="truncated")
    assert [row["response_text"] for row in out] == [None, "whole"] and len(face.port.requests) == 3


def test_18_failed_tools_are_marked_as_such(face: Face, config: Any) -> None:
    def broken() -> str:
        raise ValueError("out of order")

    tools = [
        llm_tool(broken),
        llm_tool(lambda: "ERROR: only a text", "fine", "", {}),
        llm_tool(lambda: None, "nothing", "", {}),
    ]
    face.answers(
        made_reply(calls=[("broken", "{}"), ("fine", "{}"), ("nothing", "{}"), ("unknown", "{}")]), "done", dialect="anthropic"
    )
    response = face.call_llm_tools(llm_config("anthropic", "m", api_key="k" * 20), "q", tools)
    assert [row["error"] for row in response.tool_history] == ["out of order", None, None, "unknown tool"]
    blocks = body(face)["messages"][-1]["content"]
    assert [block.get("is_error", False) for block in blocks if block["type"] == "tool_result"] == [True, False, False, True]


def test_19_an_empty_answer_does_not_poison_the_history(face: Face, config: Any) -> None:
    silent = face.answers(made_reply("", finish="stop")).call_llm(config, "x")
    history = [{"role": "user", "content": "x"}, silent.message, {"role": "user", "content": "and?"}]
    face.answers("y").call_llm(config, history)
    assert all(message["content"] is not None for message in body(face)["messages"])


def test_20_a_broadcast_keeps_roles(face: Face, config: Any) -> None:
    face.answers("a").call_llm_broadcast(config, {"system": "s", "user": "u"})
    assert [message["role"] for message in body(face)["messages"]] == ["system", "user"]


def test_no_warning_is_given_for_nothing(face: Face, config: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        face.answers("a", "b").call_llm(config, "x")
        face.call_llm_par([{"prompt": "x"}], config)
