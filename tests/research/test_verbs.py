"""Single calls: what they send and return, which errors are tried again, streams, brokers, journals."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from tests.research.conftest import Face, refused

from llmbroker import (
    AsyncBroker,
    AuthError,
    BillingError,
    Broker,
    InvalidProviderResponseError,
    InvalidRequestError,
    LLMBrokerError,
    LLMConfig,
    RateLimitError,
    ServerError,
    StreamInterruptedError,
    acall_llm,
    acall_llm_stream,
    call_llm,
    call_llm_stream,
    finish_reason,
    llm_config,
    tokens,
    tool_calls,
)
from llmbroker.exchange import Usage
from llmbroker.testing import Answer, Replay, made_reply, stream, whole


def said(face: Face, at: int = -1) -> Any:
    return json.loads(face.port.requests[at].body)["messages"]


# -- answers -------------------------------------------------------------------------------------------------------------


def test_an_answer_is_its_text_and_tells_what_it_took(face: Face, config: Any) -> None:
    usage = Usage(10, 7, 4, None, 3, 17)
    face.answers(made_reply("Tunis.", usage=usage, model="gpt-4o-mini-2024"))
    response = face.call_llm(config, "hi")
    assert str(response) == response.text == "Tunis."
    assert dict(tokens(response)) == {"sent": 10, "rec": 7, "total": 17, "reasoning": 3, "cached": 4}
    assert tokens(response).sent == tokens(response)["sent"] == 10
    assert finish_reason(response) == "stop"
    assert response.provider == "openai" and response.model_version == "gpt-4o-mini-2024"
    text, status = repr(response).rsplit("\n", 1)
    assert text == "Tunis." and status == "[gpt-4o-mini-2024 | stop | sent 10, rec 7, total 17 | 0.00 s]"


def test_unknown_counts_are_none_not_zero(face: Face, config: Any) -> None:
    body = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}
    face.answers(Answer(body=body))
    response = face.call_llm(config, "hi")
    assert set(dict(tokens(response)).values()) == {None}
    assert "tokens unknown" in repr(response)
    assert response.cost is None


@pytest.mark.parametrize("helper", [tokens, finish_reason, tool_calls])
def test_helpers_take_what_is_no_answer(helper: Any) -> None:
    assert not any(dict(helper(None)).values()) if helper is tokens else helper(None) in (None, [])


def test_what_an_answer_cost_is_known_where_the_price_is(face: Face, config: Any) -> None:
    priced = llm_config("lab", "m", base_url="http://lab.example/v1", price={"input": 1.0, "output": 2.0})
    face.answers("a", "b")
    assert face.call_llm(priced, "hi").cost == pytest.approx((10 * 1 + 5 * 2) / 1e6)
    assert face.call_llm(config, "hi").cost == pytest.approx((10 * 0.15 + 5 * 0.6) / 1e6)


def test_tool_calls_are_read_as_json_and_nothing_else(face: Face, config: Any) -> None:
    calls = [
        ("f", '{"n": 12345678901234567890, "x": 0.1234567890123}'),
        ("f", '{"path": "/etc/passwd"'),
        ("f", "http://x.example/a"),
    ]
    face.answers(made_reply(calls=calls))
    rows = tool_calls(face.call_llm(config, "hi"))
    assert rows[0]["arguments"] == {"n": 12345678901234567890, "x": 0.1234567890123}
    assert [row["arguments"] for row in rows[1:]] == [None, None]
    assert all(row["problem"] for row in rows[1:])


@pytest.mark.parametrize(
    ("raw", "finish"), [("eos_token_id", "unknown"), ("sensitive", "content_filter"), (None, "unknown"), ("length", "length")]
)
def test_the_status_line_shows_how_an_answer_ended_and_no_end_is_invented(
    face: Face, config: Any, raw: str | None, finish: str
) -> None:
    body = {
        "choices": [{"message": {"content": "x"}, "finish_reason": raw}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }
    response = face.answers(Answer(body=body)).call_llm(config, "hi")
    assert finish_reason(response) == finish and f"| {finish} |" in repr(response)
    assert response.truncated is (finish == "length")


def test_a_refusal_is_shown_as_one(face: Face, config: Any) -> None:
    body = {"choices": [{"message": {"content": None, "refusal": "I cannot help."}, "finish_reason": "stop"}]}
    response = face.answers(Answer(body=body)).call_llm(config, "hi")
    assert (str(response), response.refusal, finish_reason(response)) == ("", "I cannot help.", "refusal")
    (row,) = face.answers(Answer(body=body)).call_llm_par([{"prompt": "hi"}], config)
    assert (row["success"], row["error_kind"], row["error_message"]) == (False, "filter", "I cannot help.")


# -- errors and trying again ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "error", "kind", "tries"),
    [
        (refused(400, "max_tokens=500 and thinking_budget=1024 do not go together", param="q"), LLMBrokerError, "parameter", 1),
        (refused(401, code="invalid_api_key"), AuthError, "authentication", 1),
        (refused(402), BillingError, "billing", 1),
        (refused(429, code="insufficient_quota", type="insufficient_quota"), BillingError, "billing", 1),
        (refused(404, code="model_not_found"), LLMBrokerError, "parameter", 1),
        (refused(429, "slow down"), RateLimitError, "rate_limit", 3),
        (refused(500), ServerError, "server", 3),
        (refused(529), ServerError, "server", 3),
        (Answer(fault="refuse"), LLMBrokerError, "server", 3),
        (Answer(fault="reset"), LLMBrokerError, "server", 3),
        (Answer(body="<html>"), InvalidProviderResponseError, "server", 3),
    ],
)
def test_an_error_says_its_kind_and_only_what_time_mends_is_tried_again(
    face: Face, config: Any, answer: Answer, error: type[Exception], kind: str, tries: int
) -> None:
    face.answers(answer, times=None)
    with pytest.raises(error) as caught:
        face.call_llm_robust(config, "hi", tries=3, wait_seconds=1)
    assert caught.value.kind == kind
    assert len(face.port.requests) == tries


def test_pauses_grow_a_little_unevenly_and_none_follows_the_last_try(face: Face, config: Any) -> None:
    face.answers(refused(500), times=None)
    with pytest.raises(ServerError):
        face.call_llm_robust(config, "hi", tries=4, wait_seconds=2, backoff_factor=3)
    times = face.port.times
    pauses = [b - a for a, b in itertools.pairwise(times)]
    assert all(0.8 * 2 * 3**n <= pause <= 1.2 * 2 * 3**n for n, pause in enumerate(pauses))
    assert face.port.now() == times[-1]


def test_what_the_provider_asks_to_wait_wins(face: Face, config: Any) -> None:
    face.answers(refused(429, headers={"retry-after": "7"}), refused(429, headers={"retry-after-ms": "1500"}), "a")
    face.call_llm_robust(config, "hi")
    assert face.port.times[1:] == pytest.approx([7, 8.5])


def test_a_wait_of_a_day_is_not_waited(face: Face, config: Any) -> None:
    face.answers(refused(429, headers={"retry-after": "86400"}))
    with pytest.raises(RateLimitError) as caught:
        face.call_llm_robust(config, "hi")
    assert caught.value.retry_after == 86400
    assert face.port.now() == 0


@pytest.mark.parametrize(
    "options", [{"tries": 0}, {"tries": 1.5}, {"wait_seconds": -1}, {"backoff_factor": float("nan")}, {"timeout": 0}]
)
def test_numbers_that_mean_nothing_are_refused(face: Face, config: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        face.call_llm_robust(config, "hi", **options)


def test_an_answer_counts_its_requests(face: Face, config: Any) -> None:
    face.answers(refused(500), refused(500), "a")
    assert face.call_llm_robust(config, "hi").attempts == 3


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"error": {"message": "Provider returned error", "code": 502}}, LLMBrokerError),
        ({"choices": []}, InvalidProviderResponseError),
        ({}, InvalidProviderResponseError),
    ],
)
def test_a_200_that_is_no_answer_is_an_error(face: Face, config: Any, body: Any, error: type[Exception]) -> None:
    face.answers(Answer(body=body))
    with pytest.raises(error):
        face.call_llm(config, "hi")


@pytest.mark.parametrize("config", [None, "openai", 3, {"provider": "openai"}])
def test_what_is_no_config_is_refused(face: Face, config: Any) -> None:
    with pytest.raises(InvalidRequestError, match="config"):
        face.call_llm(config, "hi")


def test_an_embedding_config_is_no_chat_config(face: Face) -> None:
    with pytest.raises(InvalidRequestError, match="get_batched_embeddings"):
        face.call_llm(llm_config("openai", "text-embedding-3-small", api_key="k"), "hi")


# -- streams -------------------------------------------------------------------------------------------------------------


def streamed(reply: Any = None) -> Answer:
    return Answer(
        headers={"content-type": "text/event-stream"}, body=stream(reply or made_reply("Hello there, you."), "openai-chat")
    )


def test_a_stream_gives_pieces_and_then_the_response(config: Any) -> None:
    got = call_llm_stream(config, "hi", io=Replay().on(None, streamed()))
    pieces = list(got)
    assert len(pieces) > 1 and "".join(pieces) == got.reply.text == "Hello there, you."
    assert finish_reason(got.reply) == "stop" and tokens(got.reply).total == 15


def test_a_callback_gets_the_pieces_and_the_response_is_returned(face: Face, config: Any) -> None:
    pieces: list[str] = []
    face.answers(streamed())
    response = face.call_llm_stream(config, "hi", pieces.append)
    assert "".join(pieces) == str(response) == "Hello there, you."


def test_an_awaited_stream_is_iterated_over(config: Any) -> None:
    async def main() -> tuple[str, Any]:
        got = await acall_llm_stream(config, "hi", io=Replay().on(None, streamed()))
        return "".join([piece async for piece in got]), got.reply

    text, reply = asyncio.run(main())
    assert text == reply.text == "Hello there, you."


def test_a_stream_that_was_cut_is_no_answer(face: Face, config: Any) -> None:
    chunks = stream(made_reply("Hello there, you."), "openai-chat")[:3]
    face.answers(Answer(headers={"content-type": "text/event-stream"}, body=chunks))
    with pytest.raises(StreamInterruptedError) as caught:
        face.call_llm_stream(config, "hi", lambda piece: None)
    assert caught.value.text and "Hello there, you.".startswith(caught.value.text)


def test_streamed_and_whole_answers_are_the_same(config: Any) -> None:
    reply = made_reply("Two parts, one answer.", reasoning="hm")
    whole_one = call_llm(config, "hi", io=Replay().on(None, Answer(body=whole(reply, "openai-chat"))))
    streamed_one = call_llm_stream(config, "hi", lambda piece: None, io=Replay().on(None, streamed(reply)))
    fields = ("text", "reasoning", "finish_reason", "usage", "model", "provider")
    assert [getattr(whole_one, f) for f in fields] == [getattr(streamed_one, f) for f in fields]


# -- brokers and journals ------------------------------------------------------------------------------------------------


def pool() -> list[LLMConfig]:
    return [LLMConfig(name="lab", model="m", base_url="http://lab.example/v1")]


def test_a_broker_or_a_scope_can_be_asked(port: Replay) -> None:
    port.on(None, Answer(body=whole(made_reply("pooled"), "openai-chat")), times=None)
    with Broker(pool=pool(), journal=False, io=port) as broker:
        for who in (broker, broker.for_scope("ann")):
            response = call_llm(who, [("system", "Be terse."), ("user", "hi")])
            assert str(response) == "pooled" and response.llm_name == "lab" and response.call_id == response.pooled.call_id


async def test_an_async_broker_is_awaited(port: Replay) -> None:
    port.on(None, Answer(body=whole(made_reply("pooled"), "openai-chat")), times=None)
    async with AsyncBroker(pool=pool(), journal=False, io=port) as broker:
        assert str(await acall_llm(broker, "hi")) == "pooled"


async def test_a_broker_streams_too(port: Replay) -> None:
    port.on(None, streamed(), streamed())
    with Broker(pool=pool(), journal=False, io=port) as broker:
        plain = call_llm_stream(broker, "hi", lambda piece: None)
    async with AsyncBroker(pool=pool(), journal=False, io=port) as other:
        awaited = await acall_llm_stream(other, "hi", lambda piece: None)
    for response in (plain, awaited):
        assert (str(response), response.llm_name) == (
            "Hello there, you.",
            "lab",
        ) and response.pooled.call_id == response.call_id


def test_a_broker_of_the_other_kind_is_refused(port: Replay) -> None:
    with pytest.raises(InvalidRequestError, match="AsyncBroker does not go"):
        call_llm(AsyncBroker(pool=pool(), journal=False, io=port), "hi")


def test_a_journal_gets_a_row_for_each_attempt_and_no_key(face: Face, config: Any, tmp_path: Path) -> None:
    from llmbroker.journal import Journal, open_store

    file = tmp_path / f"{face.name}.db"
    face.answers(refused(500), "a")
    face.call_llm_robust(config, "hi", wait_seconds=0, journal=str(file))
    rows = Journal(open_store(file)).calls()
    assert [(row.status, row.attempt, row.model) for row in rows] == [("ok", 2, "gpt-4o-mini"), ("error", 1, "gpt-4o-mini")]
    assert rows[0].cost == pytest.approx((10 * 0.15 + 5 * 0.6) / 1e6)
    assert b"sk-very-secret" not in b"".join(path.read_bytes() for path in tmp_path.glob(f"{face.name}.db*"))


def test_a_broken_journal_breaks_no_call(face: Face, config: Any, caplog: pytest.LogCaptureFixture) -> None:
    face.answers("a", "b")

    class Broken(Exception):
        pass

    def watcher(event: Any) -> None:
        raise Broken

    from llmbroker.research import watch

    watch.ALWAYS.append(watcher)
    try:
        assert str(face.call_llm(config, "hi")) == "a"
        assert str(face.call_llm(config, "hi")) == "b"
    finally:
        watch.ALWAYS.remove(watcher)
    assert sum("could not be kept" in record.message for record in caplog.records) == 1
