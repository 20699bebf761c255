"""Rows: what comes in and goes out, failures as rows, pace, budget, run files, dry runs, tools for each row."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import sqlite3
import warnings
from pathlib import Path
from typing import Any

import pandas
import polars
import pytest
from tests.research.conftest import Face, refused

from llmbroker import Broker, ConfigurationError, Estimate, InvalidRequestError, LLMConfig, llm_config, llm_tool
from llmbroker.exchange import Usage
from llmbroker.research.pacing import Lane, Lanes
from llmbroker.research.runfile import RunFile
from llmbroker.testing import Answer, made_reply, whole
from llmbroker.wire import HTTPRequest

ADDED = [
    "response_text",
    "success",
    "finish_reason",
    "sent_tokens",
    "rec_tokens",
    "total_tokens",
    "reasoning_tokens",
    "cached_tokens",
    "cost",
    "provider",
    "model",
    "model_version",
    "response_id",
    "duration",
    "created_at",
    "attempts",
    "error_kind",
    "status_code",
    "error_code",
    "bad_param",
    "error_message",
]


def question(request: HTTPRequest) -> str:
    return json.loads(request.body)["messages"][-1]["content"]


def echo(request: HTTPRequest) -> Answer:
    """Answer with the question; fail where the question says so."""
    text = question(request)
    if "400" in text:
        return refused(400, "not like this", code="odd", param="messages")
    if "filtered" in text:
        return Answer(body=whole(made_reply("", finish="content_filter"), "openai-chat"))
    if "empty" in text:
        return Answer(body=whole(made_reply(""), "openai-chat"))
    if "cut" in text:
        return Answer(body=whole(made_reply("half an ans", finish="length"), "openai-chat"))
    return Answer(body=whole(made_reply(f"<score>{len(text)}</score> {text}"), "openai-chat"), delay=0.5)


@pytest.fixture
def rows(face: Face) -> Face:
    face.port.on(None, echo, times=None)
    return face


@pytest.fixture
def lab() -> Any:
    return llm_config("lab", "m", base_url="http://lab.example/v1", price={"input": 1.0, "output": 2.0}, max_tokens=5)


# -- in and out ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dicts", "pandas", "polars"])
def test_rows_come_back_as_they_came_with_columns_behind_them(rows: Face, lab: Any, kind: str) -> None:
    data = {"id": [7, 8, 9], "text": ["a", "b 400", "c"]}
    given: Any = {
        "dicts": [dict(zip(data, row, strict=True)) for row in zip(*data.values(), strict=True)],
        "pandas": pandas.DataFrame(data, index=[30, 10, 20]),
        "polars": polars.DataFrame(data),
    }[kind]
    out = rows.call_llm_par(given, lab, "Rate {text}.")
    if kind == "pandas":
        assert list(out.index) == [30, 10, 20]
        records = out.to_dict("records")
    else:
        records = out if kind == "dicts" else out.to_dicts()
    assert type(out) is type(given) or kind == "dicts"
    assert [list(record)[:2] for record in records] == [["id", "text"]] * 3
    assert list(records[0])[2:] == ADDED
    assert [record["id"] for record in records] == [7, 8, 9]
    assert [record["success"] for record in records] == [True, False, True]
    assert records[0]["response_text"] == "<score>7</score> Rate a."
    assert (records[1]["error_kind"], records[1]["status_code"], records[1]["error_code"]) == ("parameter", 400, "odd")
    assert "not like this" in records[1]["error_message"] and records[1]["bad_param"] == "messages"


def test_counts_stay_whole_numbers_in_a_frame_with_failures(rows: Face, lab: Any) -> None:
    out = rows.call_llm_par(pandas.DataFrame({"prompt": ["a", "b 400"]}), lab)
    assert str(out["sent_tokens"].dtype) == "Int64" and out["sent_tokens"][0] == 10


def test_nothing_of_the_users_is_overwritten(rows: Face, lab: Any) -> None:
    given = [{"prompt": "a", "success": "mine", "success.1": "mine too"}]
    with pytest.warns(UserWarning, match=r"success -> success\.2"):
        (row,) = rows.call_llm_par(given, lab)
    assert (row["success"], row["success.1"], row["success.2"]) == ("mine", "mine too", True)
    assert given == [{"prompt": "a", "success": "mine", "success.1": "mine too"}]


@pytest.mark.parametrize("kind", ["dicts", "pandas"])
def test_no_rows_have_all_columns(rows: Face, lab: Any, kind: str) -> None:
    given: Any = [] if kind == "dicts" else pandas.DataFrame({"prompt": pandas.Series([], dtype=str)})
    out = rows.call_llm_par(given, lab)
    assert len(out) == 0
    if kind == "pandas":
        assert list(out.columns) == ["prompt", *ADDED]


@pytest.mark.parametrize(
    ("messages", "system", "sent"),
    [
        ("Rate {text} for {who}. {not a column} {}", None, [("user", "Rate a {braces} for Ann. {not a column} {}")]),
        ("text", None, [("user", "a {braces}")]),
        ([("system", "You are {who}."), ("user", "{text}")], None, [("system", "You are Ann."), ("user", "a {braces}")]),
        ([{"role": "user", "content": [{"type": "text", "text": "{text}"}]}], None, [("user", "a {braces}")]),
        (lambda row: row["text"] * 2, "Hi {who}", [("system", "Hi Ann"), ("user", "a {braces}a {braces}")]),
        ({"system": "s", "user": "{text}"}, None, [("system", "s"), ("user", "a {braces}")]),
    ],
    ids=["template", "column", "pairs", "parts", "function", "mapping"],
)
def test_a_rows_question_is_a_template_a_column_messages_or_a_function(
    rows: Face, lab: Any, messages: Any, system: Any, sent: Any
) -> None:
    rows.call_llm_par([{"text": "a {braces}", "who": "Ann"}], lab, messages, system=system)
    body = json.loads(rows.port.requests[0].body)
    assert [(m["role"], m["content"]) for m in body["messages"]] == sent


def test_pairs_of_config_and_messages_are_rows(rows: Face, lab: Any) -> None:
    out = rows.call_llm_par([(lab, "a"), (lab.replace(model="other"), [("system", "s"), ("user", "b")])])
    assert [json.loads(r.body)["model"] for r in rows.port.requests] == ["m", "other"]
    assert [row["response_text"] for row in out] == ["<score>1</score> a", "<score>1</score> b"]


def test_many_rows_are_asked_at_once_and_stand_in_their_order(rows: Face, lab: Any) -> None:
    out = rows.call_llm_par([{"prompt": f"q{n}"} for n in range(300)], lab)
    assert [row["response_text"].split()[-1] for row in out] == [f"q{n}" for n in range(300)]
    assert rows.port.now() < 300 * 0.5 / 20


@pytest.mark.parametrize(
    ("text", "kind", "finish"),
    [("filtered", "filter", "content_filter"), ("empty", "empty", "stop"), ("cut", None, "length")],
)
def test_an_answer_without_content_is_no_success(rows: Face, lab: Any, text: str, kind: str | None, finish: str) -> None:
    (row,) = rows.call_llm_par([{"prompt": text}], lab)
    assert (row["success"], row["error_kind"], row["finish_reason"]) == (kind is None, kind, finish)


def test_a_row_that_cannot_be_asked_is_a_row_too(rows: Face, lab: Any) -> None:
    out = rows.call_llm_par([{"prompt": "a"}, {"prompt": None}, {"prompt": [("file", "no-such.png"), ("user", "x")]}], lab)
    assert [row["success"] for row in out] == [True, False, False]
    assert [row["error_kind"] for row in out] == [None, "parameter", "parameter"]
    assert len(rows.port.requests) == 1


def test_a_missing_key_is_a_failed_row(rows: Face) -> None:
    (row,) = rows.call_llm_par([{"prompt": "a"}], llm_config("openai", "m"))
    assert (row["success"], row["error_kind"]) == (False, "authentication")


def test_a_row_is_tried_again_after_what_time_mends(face: Face, lab: Any) -> None:
    face.answers(refused(429, headers={"retry-after": "3"}), refused(500), "a")
    (row,) = face.call_llm_par([{"prompt": "a"}], lab)
    assert (row["success"], row["attempts"], row["cost"]) == (True, 3, pytest.approx(20e-6))


@pytest.mark.parametrize(
    ("given", "config", "more"),
    [
        ("text", True, {}),
        (3, True, {}),
        ([1], True, {}),
        ([{"prompt": "a"}], None, {}),
        ([{"config": 3, "prompt": "a"}], None, {}),
        ([{"text": "a"}], True, {}),
        ([{"prompt": "a"}], 3, {}),
        ([{"prompt": "a"}], True, {"retry": "sometimes"}),
        ([{"prompt": "a"}], True, {"max_workers": 0}),
        ([{"prompt": "a"}], True, {"max_cost": 0}),
        ([{"prompt": "a"}], True, {"limits": {"rpm": 3}}),
        ([{"prompt": "a"}], True, {"limits": {"requests": -3}}),
        ([{"prompt": "a"}], True, {"tags": ["not a name"]}),
    ],
)
def test_arguments_that_mean_nothing_are_refused_before_anything_is_sent(
    rows: Face, lab: Any, given: Any, config: Any, more: Any
) -> None:
    with pytest.raises(InvalidRequestError):
        rows.call_llm_par(given, lab if config is True else config, **more)
    assert rows.port.requests == []


def test_rows_write_a_journal_row_for_each_attempt(face: Face, lab: Any, tmp_path: Path) -> None:
    from llmbroker.journal import Journal, open_store

    file = tmp_path / f"{face.name}.db"
    face.answers(refused(500), "a", refused(400))
    face.call_llm_par([{"prompt": "a"}, {"prompt": "b"}], lab, journal=str(file), max_workers=1)
    journal = Journal(open_store(file))
    assert [(row.status, row.http_status) for row in journal.calls()] == [("error", 400), ("ok", None), ("error", 500)]
    journal.close()


def test_tags_become_columns_of_their_type(rows: Face, lab: Any) -> None:
    out = rows.call_llm_par([{"prompt": "abc"}, {"prompt": "b 400"}], lab, tags=["score"])
    assert [row["score"] for row in out] == [3, None]
    assert [row["tags_ok"] for row in out] == [True, False]


def test_a_form_becomes_columns(face: Face, lab: Any) -> None:
    face.answers('{"n": 3}', "three")
    out = face.call_llm_par(
        [{"prompt": "a"}, {"prompt": "b"}],
        lab,
        response_format={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        max_workers=1,
    )
    assert [row["structured_ok"] for row in out] == [True, False]
    assert out[0]["structured_data"] == {"n": 3} and "JSON" in out[1]["structured_error"]


def test_responses_are_kept_where_that_is_asked_for(rows: Face, lab: Any) -> None:
    out = rows.call_llm_par([{"prompt": "a"}, {"prompt": "b 400"}], lab, keep_responses=True)
    assert str(out[0]["response"]) == out[0]["response_text"] and out[1]["response"] is None


def test_a_broker_answers_rows(face: Face) -> None:
    if face.name == "asyncio":
        pytest.skip("the plain broker goes with the plain verb")
    face.port.on(None, echo, times=None)
    pool = [LLMConfig(name="lab", model="m", base_url="http://lab.example/v1")]
    with Broker(pool=pool, journal=False, io=face.port) as broker:
        out = face.call_llm_par([{"prompt": "a"}, {"prompt": "b"}], broker)
    assert [row["model"] for row in out] == ["lab", "lab"] and all(row["success"] for row in out)


def test_the_loop_runs_for_each_row(face: Face, lab: Any) -> None:
    def model(request: HTTPRequest) -> Answer:
        messages = json.loads(request.body)["messages"]
        if messages[-1]["role"] == "tool":
            return Answer(body=whole(made_reply(messages[-1]["content"]), "openai-chat"))
        city = messages[-1]["content"]
        return Answer(body=whole(made_reply(calls=[("weather", {"city": city})]), "openai-chat"))

    def weather(city: str) -> str:
        if city == "Atlantis":
            raise LookupError("no such city")
        return f"clear in {city}"

    face.port.on(None, model, times=None)
    out = face.call_llm_tools_par([{"city": "Tunis"}, {"city": "Atlantis"}], lab, "city", llm_tool(weather))
    assert [row["response_text"] for row in out] == ["clear in Tunis", "Tool weather failed: no such city"]
    assert [(row["model_calls"], row["tool_calls"], row["attempts"]) for row in out] == [(2, 1, 2)] * 2
    assert out[0]["sent_tokens"] == 20 and out[0]["cost"] == pytest.approx(40e-6)
    assert out[1]["tool_history"][0]["error"] == "no such city"


def test_a_question_that_cannot_be_made_is_a_failed_row(rows: Face, lab: Any) -> None:
    out = rows.call_llm_par([{"text": "a"}, {"other": "b"}], lab, lambda row: row["text"].upper())
    assert [row["success"] for row in out] == [True, False]
    assert out[1]["error_kind"] == "parameter" and "KeyError" in out[1]["error_message"]


def test_an_embedding_config_is_refused_at_once(rows: Face) -> None:
    with pytest.raises(InvalidRequestError, match="get_batched_embeddings"):
        rows.call_llm_par([{"prompt": "a"}], llm_config("openai", "text-embedding-3-small", api_key="k" * 20))


def test_a_preview_shows_what_would_be_asked_and_what_could_not(lab: Any, tmp_path: Path) -> None:
    from llmbroker import llm_preview

    (tmp_path / "photo.png").write_bytes(b"x")
    given = [{"text": "a"}, {"text": "b" * 900}, {"text": " "}]
    shown = llm_preview(given, lab, "{text}", system="Be terse.")
    assert shown[0] == {
        "ok": True,
        "problem": None,
        "preview": "[system] Be terse.\n[user] a",
        "characters": 10,
        "attachments": 0,
    }
    assert len(shown[1]["preview"]) == 500 and shown[1]["characters"] == 909
    assert (shown[2]["ok"], shown[2]["problem"]) == (False, "The user's text is empty.")
    files = [{"name": "photo.png"}, {"name": "gone.png"}]
    shown = llm_preview(files, lab, lambda row: [("file", tmp_path / row["name"]), ("user", "What is it?")])
    assert [row["ok"] for row in shown] == [True, False]
    assert shown[0]["attachments"] == 1 and "cannot be read" in shown[1]["problem"]


# -- pace ----------------------------------------------------------------------------------------------------------------


def test_requests_a_minute_are_kept(rows: Face, lab: Any) -> None:
    rows.call_llm_par([{"prompt": f"q{n}"} for n in range(31)], lab, limits={"requests": 60})
    times = rows.port.times
    assert times[-1] - times[0] == pytest.approx(30, abs=0.01)


def test_tokens_a_minute_are_kept_by_what_answers_really_take(rows: Face, lab: Any) -> None:
    rows.call_llm_par([{"prompt": f"q{n}"} for n in range(41)], lab, limits={"lab": {}, "openai-compatible": {"tokens": 900}})
    assert rows.port.now() == pytest.approx(41 * 15 / (900 / 60), rel=0.25)


def test_no_more_are_on_their_way_than_the_limit_says(face: Face, lab: Any) -> None:
    running = [0, 0]

    def model(request: HTTPRequest) -> Answer:
        running[0] += 1
        return Answer(body=whole(made_reply("x"), "openai-chat"), delay=1.0)

    face.port.on(None, model, times=None)
    face.call_llm_par([{"prompt": f"q{n}"} for n in range(20)], lab, limits={"concurrency": 4})
    assert running[0] == 20 and face.port.now() == pytest.approx(5)


def test_nobody_waits_for_another_providers_limit(face: Face) -> None:
    slow, quick = (llm_config(name, "m", base_url=f"http://{name}.example/v1") for name in ("slow", "quick"))

    def model(request: HTTPRequest) -> Answer:
        if "slow" in request.url and face.port.now() < 50:
            return refused(429, headers={"retry-after": "60"})
        return Answer(body=whole(made_reply("x"), "openai-chat"), delay=0.5)

    face.port.on(None, model, times=None)
    out = face.call_llm_par([(slow if n % 2 else quick, f"q{n}") for n in range(200)], max_workers=4)
    assert all(row["success"] for row in out)
    ended = {
        name: max(row["created_at"].timestamp() for row in out[at::2]) - 1_700_000_000
        for at, name in enumerate(("quick", "slow"))
    }
    assert ended["quick"] < 15 and ended["slow"] > 60


def test_a_model_in_this_process_is_asked_few_at_a_time() -> None:
    assert Lanes(None, 256).of("key", "local", here=True).most == 4
    assert Lanes({"concurrency": 9}, 256).of("key", "local", here=True).most == 9
    assert Lanes(None, 256).of("key", "openai").most == 256


def test_a_lane_grows_with_answers_and_shrinks_once_for_what_was_refused_together() -> None:
    from llmbroker import RateLimitError

    lane = Lane(most=200)
    lane.running = 32
    for _ in range(32):
        lane.leave(1.0, 0.0, None)
    assert lane.limit == 64
    lane.running = 64
    error = RateLimitError("slow down", retry_after=3.0)
    for _ in range(10):
        lane.leave(2.0, 1.0, error)
    assert lane.limit == pytest.approx(64 * 0.67)
    assert lane._held_until == 5.0
    lane.running = 40
    before = lane.limit
    lane.leave(6.0, 5.5, None)
    assert before < lane.limit < before + 0.1


# -- run files -----------------------------------------------------------------------------------------------------------


def test_a_finished_row_is_not_asked_again(rows: Face, lab: Any, tmp_path: Path) -> None:
    given = [{"prompt": text} for text in ("a", "b 400", "c", "a")]
    first = rows.call_llm_par(given, lab, run_file=tmp_path / "run.db")
    assert len(rows.port.requests) == 4
    assert rows.call_llm_par(given, lab, run_file=tmp_path / "run.db") == first
    assert rows.call_llm_par(given[::-1], lab, run_file=tmp_path / "run.db")[1]["response_text"] == first[2]["response_text"]
    assert len(rows.port.requests) == 4
    rows.call_llm_par([*given, {"prompt": "new"}, {"prompt": "a"}], lab, run_file=tmp_path / "run.db")
    assert len(rows.port.requests) == 6, "an equal question more is a further draw"


@pytest.mark.parametrize("change", ["model", "temperature", "system", "form"])
def test_another_question_is_another_row(rows: Face, lab: Any, tmp_path: Path, change: str) -> None:
    rows.call_llm_par([{"prompt": "a"}], lab, run_file=tmp_path / "run.db")
    other = lab.replace(**{change: "other" if change == "model" else 1}) if change in ("model", "temperature") else lab
    more: dict[str, Any] = {"system": {"system": "s"}, "form": {"response_format": {"type": "json_object"}}}.get(change, {})
    rows.call_llm_par([{"prompt": "a"}], other, run_file=tmp_path / "run.db", **more)
    assert len(rows.port.requests) == 2


def test_a_literal_key_and_transport_are_no_part_of_a_row(rows: Face, tmp_path: Path) -> None:
    one = llm_config("openai", "gpt-4o-mini", api_key="sk-first-key-1234567890")
    rows.call_llm_par([{"prompt": "a"}], one, run_file=tmp_path / "run.db")
    rows.call_llm_par([{"prompt": "a"}], one.replace(api_key="sk-other-key", timeout=3), run_file=tmp_path / "run.db")
    assert len(rows.port.requests) == 1
    assert b"sk-first-key" not in b"".join(path.read_bytes() for path in tmp_path.glob("run.db*"))


@pytest.mark.parametrize(
    ("retry", "again"),
    [
        ((), set()),
        ("parameter", {"b 400"}),
        ("failed", {"b 400", "empty", "filtered"}),
        (["truncated", "filter"], {"cut", "filtered"}),
    ],
)
def test_failed_rows_are_asked_again_by_kind_on_request(
    rows: Face, lab: Any, tmp_path: Path, retry: Any, again: set[str]
) -> None:
    given = [{"prompt": text} for text in ("a", "b 400", "empty", "filtered", "cut")]
    rows.call_llm_par(given, lab, run_file=tmp_path / "run.db")
    before = len(rows.port.requests)
    rows.call_llm_par(given, lab, run_file=tmp_path / "run.db", retry=retry)
    assert {question(request) for request in rows.port.requests[before:]} == again
    with RunFile(tmp_path / "run.db") as run:
        assert run.counts() == {"requests": 5 + len(again), "rows": 5, "lost": 0}
        assert len(list(run.outcomes(superseded=True))) == 5 + len(again)


def test_a_request_is_noted_before_it_leaves(face: Face, lab: Any, tmp_path: Path) -> None:
    noted: list[int] = []

    def model(request: HTTPRequest) -> Answer:
        sqlite3.connect(f"file:{tmp_path}/copy.db", uri=True).close()
        noted.append(1)
        raise KeyboardInterrupt

    face.port.on(None, model, times=None)
    with pytest.raises(KeyboardInterrupt):
        face.call_llm_par([{"prompt": "a"}], lab, run_file=tmp_path / "run.db")
    with RunFile(tmp_path / "run.db") as run:
        assert run.counts() == {"requests": 1, "rows": 0, "lost": 1} and len(run.lost_rows()) == 1


def _hold(path: str, ready: Any, leave: Any) -> None:
    with RunFile(path):
        ready.set()
        leave.wait(20)


def test_one_process_at_a_time_uses_a_run_file(lab: Any, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, leave = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(str(tmp_path / "run.db"), ready, leave))
    other.start()
    try:
        assert ready.wait(20)
        with pytest.raises(ConfigurationError, match="another process"):
            RunFile(tmp_path / "run.db")
    finally:
        leave.set()
        other.join(20)


def test_a_run_file_that_is_refused_stays_free_for_its_owner(tmp_path: Path) -> None:
    RunFile(tmp_path / "run.db").close()
    with contextlib.closing(sqlite3.connect(tmp_path / "run.db", isolation_level=None)) as owner:
        owner.execute("UPDATE facts SET value = '99' WHERE name = 'version'")
    with pytest.raises(ConfigurationError, match="newer version") as refused:
        RunFile(tmp_path / "run.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "run.db", isolation_level=None, timeout=0.0)) as owner:
        owner.execute("UPDATE facts SET value = '1' WHERE name = 'version'")
    assert refused.value is not None  # until here the error holds what was open when it was raised


@pytest.mark.parametrize("content", [b"this is no database at all, only a text that is long enough", b"{}"])
def test_what_is_no_run_file_is_left_alone(rows: Face, lab: Any, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "notes.txt"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError):
        rows.call_llm_par([{"prompt": "a"}], lab, run_file=file)
    assert file.read_bytes() == content


def test_a_database_of_something_else_is_left_alone(rows: Face, lab: Any, tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db", isolation_level=None)) as other:
        other.execute("CREATE TABLE mine (a)")
    with pytest.raises(ConfigurationError, match="something else"):
        rows.call_llm_par([{"prompt": "a"}], lab, run_file=tmp_path / "other.db")


def test_reading_a_run_file_that_is_not_there_makes_none(tmp_path: Path) -> None:
    from llmbroker import llm_export, llm_usage

    for read in (llm_usage, lambda path: llm_export(path, tmp_path / "out.jsonl")):
        with pytest.raises(ConfigurationError, match="no run file"):
            read(str(tmp_path / "typo.db"))
    assert list(tmp_path.iterdir()) == []


def test_a_response_survives_pickling_without_its_key(face: Face, config: Any) -> None:
    import pickle

    response = face.answers("hello").call_llm(config, "hi")
    written = pickle.dumps(response)
    assert b"very-secret" not in written
    again = pickle.loads(written)
    assert (str(again), again.usage, again.cost, again.duration) == (
        str(response),
        response.usage,
        response.cost,
        response.duration,
    )


# -- money ---------------------------------------------------------------------------------------------------------------


def test_a_dry_run_tells_calls_tokens_and_cost_and_sends_nothing(rows: Face, lab: Any, tmp_path: Path) -> None:
    given = [{"prompt": "x" * 400} for _ in range(9)] + [{"prompt": None}]
    rows.call_llm_par(given[:3], lab, run_file=tmp_path / "run.db")
    sent = len(rows.port.requests)
    told = rows.call_llm_par(given, lab, run_file=tmp_path / "run.db", dry_run=True)
    assert told == Estimate(
        rows=10,
        answered=3,
        invalid=1,
        calls=6,
        input_tokens=6 * 108,
        output_tokens=30,
        cost=pytest.approx((6 * 108 + 60) / 1e6),
    )
    assert "6 calls for 10 rows" in str(told) and len(rows.port.requests) == sent


def test_a_dry_run_needs_no_key_and_says_which_price_is_not_known(rows: Face) -> None:
    told = rows.call_llm_par([{"prompt": "a"}], llm_config("openai", "gpt-of-tomorrow"), dry_run=True)
    assert told.cost is None and told.unpriced == ("gpt-of-tomorrow",)


def paying(face: Face, tokens: int, made: int) -> None:
    reply = made_reply("x", usage=Usage(tokens, made, None, None, None, tokens + made))
    face.port.on(None, Answer(body=whole(reply, "openai-chat"), delay=0.1), times=None)


@pytest.mark.parametrize("workers", [1, 64])
def test_a_budget_is_never_passed(face: Face, lab: Any, workers: int, tmp_path: Path) -> None:
    """Each row costs 100 + 2 * 5 = 110 millionths; 1,000 millionths are for nine rows at most."""
    paying(face, 100, 5)
    given = [{"prompt": "y" * 100 + str(n)} for n in range(50)]
    out = face.call_llm_par(given, lab, max_cost=0.001, max_workers=workers, run_file=tmp_path / "run.db")
    spent = sum(row["cost"] for row in out if row["success"])
    asked = [row for row in out if row["success"] is not None]
    assert 0.0007 < spent <= 0.001 and len(asked) == len(face.port.requests)
    assert {row["error_kind"] for row in out if row["success"] is None} == {"budget"}
    again = face.call_llm_par(given, lab, max_cost=0.001, run_file=tmp_path / "run.db")
    assert sum(row["cost"] or 0 for row in again) == pytest.approx(spent), "what was spent before counts"
    more = face.call_llm_par(given, lab, max_cost=0.02, run_file=tmp_path / "run.db")
    assert all(row["success"] for row in more) and len(face.port.requests) == 50


def test_a_budget_needs_a_price(rows: Face) -> None:
    with pytest.raises(InvalidRequestError, match="price"):
        rows.call_llm_par([{"prompt": "a"}], llm_config("lab", "m", base_url="http://lab.example/v1"), max_cost=1)
    assert rows.port.requests == []


def test_what_may_have_cost_something_counts_against_the_budget(face: Face, lab: Any) -> None:
    face.port.on(None, Answer(fault="stall"), times=None)
    out = face.call_llm_par([{"prompt": "x" * 100} for _ in range(30)], lab, max_cost=0.001, timeout=5, tries=1, max_workers=1)
    assert sum(row["success"] is None for row in out) > 15


def test_a_progress_bar_tells_spend_rate_and_failures(rows: Face, lab: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows.call_llm_par([{"prompt": "a"}, {"prompt": "b 400"}], lab, progress=True)
    shown = capsys.readouterr()
    assert "2/2" in shown.err and "$0.0000" in shown.err and "1 parameter" in shown.err and "rows/s" in shown.err
    assert shown.out == ""


def test_plain_code_inside_a_running_loop_may_ask_rows(lab: Any) -> None:
    """As in a notebook: the loop is busy, the rows run in a thread of their own."""
    import asyncio

    from tests.research.provider import Provider

    from llmbroker import call_llm_par

    async def cell(url: str) -> Any:
        return call_llm_par([{"prompt": f"q{n}"} for n in range(20)], llm_config("lab", "m", base_url=url), progress=False)

    with Provider(faults=False) as provider:
        out = asyncio.run(cell(provider.url))
    assert all(row["success"] for row in out)


# -- over real sockets ---------------------------------------------------------------------------------------------------


def test_a_plain_broker_asks_rows_in_threads_and_journals_them(tmp_path: Path) -> None:
    from tests.research.provider import Provider

    from llmbroker import call_llm_par

    with Provider(delay=0.01, faults=False) as provider:
        pool = [LLMConfig(name="lab", model="m", base_url=provider.url)]
        with Broker(tmp_path / "broker.db", pool=pool) as broker:
            out = call_llm_par([{"prompt": f"q{n}"} for n in range(60)], broker, run_file=tmp_path / "run.db", max_workers=8)
            assert broker.stats(by="all")["all"].total == 60
    assert [row["response_text"] for row in out] == [f"Answer to q{n}" for n in range(60)]
    assert sorted(provider.requests.values()) == [1] * 60


CTRL_C = """
import sys, threading
from llmbroker import call_llm_par, llm_config
config = llm_config("lab", "m", base_url=sys.argv[1])
try:
    call_llm_par([{"prompt": f"q{n}"} for n in range(100_000)], config, run_file=sys.argv[2], progress=False)
except KeyboardInterrupt:
    print("interrupted", threading.active_count())
"""


def test_ctrl_c_ends_a_run_at_once_and_keeps_what_is_done(tmp_path: Path) -> None:
    import signal
    import subprocess
    import sys
    import time

    from tests.research.provider import Provider

    with Provider(delay=0.02, faults=False) as provider:
        child = subprocess.Popen(
            [sys.executable, "-c", CTRL_C, provider.url, str(tmp_path / "run.db")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        until = time.monotonic() + 60
        while sum(provider.answered.values()) < 60 and time.monotonic() < until:
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        said, wrong = child.communicate(timeout=60)
    assert said.startswith("interrupted"), wrong
    assert "Task was destroyed" not in wrong and "never awaited" not in wrong
    with RunFile(tmp_path / "run.db") as run:
        counts = run.counts()
    assert 0 < counts["rows"] < 100_000 and counts["lost"] <= 256
