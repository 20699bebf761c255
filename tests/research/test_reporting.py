"""What a study used, what failed, what its methods section says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas
import pytest
from tests.research.conftest import Face, refused

from llmbroker import InvalidRequestError, llm_config, llm_failures, llm_usage, report
from llmbroker.exchange import Usage
from llmbroker.testing import made_reply


@pytest.fixture
def study(face: Face, tmp_path: Path) -> tuple[Any, Any, Path]:
    config = llm_config("openai", "gpt-4o-mini", api_key="k" * 20, temperature=0.2, max_tokens=50)
    face.answers(
        made_reply("a", usage=Usage(100, 20, 40, None, 5, 120), model="gpt-4o-mini-2024-07-18"),
        refused(400, "odd"),
        made_reply("half", finish="length", usage=Usage(10, 50, None, None, None, 60), model="gpt-4o-mini-2024-07-18"),
        made_reply("", finish="content_filter"),
    )
    file = tmp_path / "run.db"
    rows = face.call_llm_par([{"prompt": p} for p in "abcd"], config, run_file=file, max_workers=1)
    return rows, config, file


@pytest.mark.parametrize("kind", ["rows", "frame", "file"])
def test_usage_is_counted_from_rows_frames_and_files(study: Any, kind: str) -> None:
    rows, _, file = study
    used = llm_usage({"rows": rows, "frame": pandas.DataFrame(rows), "file": file}[kind])
    assert (used.rows, used.ok, used.failed, used.truncated, used.filtered, used.requests) == (4, 2, 2, 1, 1, 4)
    assert (used.sent, used.rec, used.cached, used.reasoning) == (120, 75, 40, 5)
    assert used.ok_rate == 0.5 and used.unknown_tokens == 0
    assert used.cost == pytest.approx((80 * 0.15 + 40 * 0.075 + 75 * 0.6) / 1e6)
    assert used.by_model["gpt-4o-mini"]["rows"] == 4


def test_a_price_table_of_ones_own_wins_and_cached_tokens_cost_what_it_says(study: Any) -> None:
    table = [{"model": "gpt-4o-mini", "input": 3.0, "output": 15.0, "cached": 0.3}]
    used = llm_usage(study[0], price_table=table)
    assert used.cost == pytest.approx((80 * 3 + 40 * 0.3 + 75 * 15) / 1e6)
    assert llm_usage(study[0], price_table=[{"model": "other", "input": 1, "output": 1}]).cost is None


def test_failures_are_listed_with_their_reason(study: Any) -> None:
    failed = llm_failures(study[0])
    assert [(row["row"], row["error_kind"], row["finish_reason"]) for row in failed] == [
        (1, "parameter", None),
        (2, None, "length"),
        (3, "filter", "content_filter"),
    ]
    assert [row["row"] for row in llm_failures(study[2], include="truncated")] == [2]
    assert [row["row"] for row in llm_failures(study[0], include="failed")] == [1, 3]


def test_the_methods_paragraph_names_models_settings_failures_and_spend(study: Any) -> None:
    rows, config, file = study
    text = report(rows, config=config)
    assert text == report(file, config=config)
    for words in (
        "gpt-4o-mini (served as gpt-4o-mini-2024-07-18) by openai",
        "2023-11-14",
        "temperature = 0.2, max_tokens = 50",
        "Of 4 rows, 2 were answered and 2 failed",
        "1 parameter",
        "1 filter",
        "1 answers were cut",
        "120 and produced 75 tokens",
        "US$ 0.0001",
    ):
        assert words in text, words


def test_renamed_columns_are_found_and_two_sets_are_not_guessed_at(face: Face) -> None:
    config = llm_config("openai", "gpt-4o-mini", api_key="k" * 20)
    face.answers("a", "b", "c")
    with pytest.warns(UserWarning, match="success"):
        rows = face.call_llm_par([{"prompt": "x", "success": 3}], config)
    assert llm_usage(rows).ok == 1
    with pytest.warns(UserWarning):
        twice = face.call_llm_par(rows, config, "prompt")
    with pytest.raises(InvalidRequestError, match="several runs"):
        llm_usage(twice)


@pytest.mark.parametrize("data", [[{"text": "a"}], pandas.DataFrame({"a": [1]})])
def test_rows_without_results_are_refused(data: Any) -> None:
    with pytest.raises(InvalidRequestError, match="no results"):
        llm_usage(data)


def test_unknown_is_told_from_zero(face: Face) -> None:
    from llmbroker.testing import Answer

    face.answers(Answer(body={"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}))
    rows = face.call_llm_par([{"prompt": "x"}], llm_config("lab", "m", base_url="http://lab.example/v1"))
    used = llm_usage(rows)
    assert (used.total, used.cost, used.unknown_tokens, used.unpriced) == (None, None, 1, 1)
