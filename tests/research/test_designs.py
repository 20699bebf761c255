"""Designs over rows: broadcast, sweep, compare, factorial, replicate."""

from __future__ import annotations

import json
from typing import Any

import pandas
import pytest
from tests.research.conftest import Face

from llmbroker import InvalidRequestError, build_factorial_experiments, llm_agreement, llm_config
from llmbroker.testing import Answer, made_reply, whole
from llmbroker.wire import HTTPRequest


def echo(request: HTTPRequest) -> Answer:
    body = json.loads(request.body)
    text = f"{body['model']} {body.get('temperature')} {body['messages'][-1]['content']}"
    return Answer(body=whole(made_reply(text), "openai-chat"))


@pytest.fixture
def rows(face: Face) -> Face:
    face.port.on(None, echo, times=None)
    return face


def sent(face: Face) -> list[Any]:
    return [[(m["role"], m["content"]) for m in json.loads(request.body)["messages"]] for request in face.port.requests]


def test_a_broadcast_asks_each_question(rows: Face, config: Any) -> None:
    out = rows.call_llm_broadcast(config, ["a", "b"])
    assert [row["response_text"] for row in out] == ["gpt-4o-mini 0 a", "gpt-4o-mini 0 b"]


@pytest.mark.parametrize(
    "conversation",
    [
        [("system", "s"), ("user", "u")],
        {"system": "s", "user": "u"},
        [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
    ],
)
def test_a_broadcast_of_one_conversation_keeps_its_roles(rows: Face, config: Any, conversation: Any) -> None:
    assert len(rows.call_llm_broadcast(config, conversation)) == 1
    rows.call_llm_broadcast(config, [conversation, conversation])
    assert sent(rows) == [[("system", "s"), ("user", "u")]] * 3


def test_a_series_is_a_list_of_questions(rows: Face, config: Any) -> None:
    assert len(rows.call_llm_broadcast(config, pandas.Series(["a", "b"]))) == 2


def test_no_questions_give_no_rows(rows: Face, config: Any) -> None:
    assert rows.call_llm_broadcast(config, []) == []


def test_a_sweep_sends_each_value(rows: Face, config: Any) -> None:
    out = rows.call_llm_sweep(config, "temperature", [0, 0.5, 1], "q")
    assert [row["temperature"] for row in out] == [0, 0.5, 1]
    assert [json.loads(r.body)["temperature"] for r in rows.port.requests] == [0, 0.5, 1]


def test_a_sweep_over_models_and_providers_really_changes_who_is_asked(
    rows: Face, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "g" * 20)
    rows.call_llm_sweep(config, "model", ["one", "two"], "q")
    rows.call_llm_sweep(config, "provider", ["openai", "groq"], "q")
    assert [json.loads(r.body)["model"] for r in rows.port.requests[:2]] == ["one", "two"]
    assert ["groq" in r.url for r in rows.port.requests[2:]] == [False, True]


def test_models_are_compared_on_one_question(rows: Face, config: Any) -> None:
    out = rows.call_llm_compare({"small": config, "large": config.replace(model="gpt-4o")}, [("system", "s"), ("user", "q")])
    assert [(row["config_label"], row["model"]) for row in out] == [("small", "gpt-4o-mini"), ("large", "gpt-4o")]
    assert [row["config_label"] for row in rows.call_llm_compare([config], "q")] == ["openai/gpt-4o-mini"]


def test_everything_is_crossed_with_everything(config: Any) -> None:
    other = config.replace(model="gpt-4o")
    rows = build_factorial_experiments(
        [config, other], ["p1", "p2", "p3"], ["s1", "s2"], repetitions=2, user_prompt_labels=["one", "two", "three"]
    )
    assert len(rows) == 24
    assert {(r["config_label"], r["user_prompt_label"], r["system_prompt_label"], r["repetition"]) for r in rows} == {
        (c, p, s, n)
        for c in ("openai/gpt-4o-mini", "openai/gpt-4o")
        for p in ("one", "two", "three")
        for s in ("s1", "s2")
        for n in (1, 2)
    }
    assert rows[0]["messages"] == [("system", "s1"), ("user", "p1")]
    with pytest.raises(InvalidRequestError, match="config_labels"):
        build_factorial_experiments([config], ["p"], config_labels=["a", "b"])


def test_draws_are_columns_and_a_failed_one_is_none_with_its_reason(face: Face, config: Any) -> None:
    from tests.research.conftest import refused

    face.answers("yes", refused(400, "odd"), "no", "yes", "yes", "yes")
    out = face.llm_replicate([{"text": "a"}, {"text": "b"}], config, "{text}?", times=3, output="code", max_workers=1)
    assert [[row[f"code_{n}"] for n in (1, 2, 3)] for row in out] == [["yes", None, "no"], ["yes", "yes", "yes"]]
    assert "odd" in out[0]["code_2_error"] and out[1]["code_2_error"] is None
    assert llm_agreement(out, prefix="code_").by_row[1]["unanimous"] is True


@pytest.mark.parametrize("times", [0, 1, 2.5, True])
def test_one_draw_is_no_replication(face: Face, config: Any, times: Any) -> None:
    with pytest.raises(InvalidRequestError):
        face.llm_replicate(["a"], config, times=times)


def test_draws_go_into_a_frame(rows: Face, config: Any, tmp_path: Any) -> None:
    frame = pandas.DataFrame({"text": ["a", "b"]}, index=[5, 6])
    out = rows.llm_replicate(frame, config, "{text}", times=2, run_file=tmp_path / "run.db")
    assert list(out.columns) == ["text", "draw_1", "draw_2"] and list(out.index) == [5, 6]
    assert len(rows.port.requests) == 4
    rows.llm_replicate(frame, config, "{text}", times=2, run_file=tmp_path / "run.db")
    assert len(rows.port.requests) == 4


def test_a_broker_is_not_swept(face: Face) -> None:
    with pytest.raises(InvalidRequestError, match="sweep"):
        face.call_llm_sweep(object(), "temperature", [1], "q")


def test_labels_of_configs_do_not_show_keys() -> None:
    config = llm_config("openai", "m", api_key="sk-very-secret-key-1234")
    assert "secret" not in str(build_factorial_experiments([config], ["p"]))


@pytest.mark.parametrize("design", ["broadcast", "sweep", "compare", "factorial"])
def test_every_design_goes_on_from_its_run_file(rows: Face, config: Any, tmp_path: Any, design: str) -> None:
    file = tmp_path / "run.db"

    def run() -> Any:
        if design == "broadcast":
            return rows.call_llm_broadcast(config, ["a", "b"], run_file=file)
        if design == "sweep":
            return rows.call_llm_sweep(config, "temperature", [0, 1], "q", run_file=file)
        if design == "compare":
            return rows.call_llm_compare([config, config.replace(model="gpt-4o")], "q", run_file=file)
        return rows.call_llm_par(build_factorial_experiments([config], ["p"], repetitions=2), run_file=file)

    first = run()
    assert len(rows.port.requests) == 2
    assert run() == first and len(rows.port.requests) == 2


def test_a_constant_question_is_asked_for_every_row(rows: Face, config: Any) -> None:
    out = rows.call_llm_par([{"id": n} for n in range(7)], config, "Name a capital.")
    assert len(rows.port.requests) == 7 and all(row["success"] for row in out)
