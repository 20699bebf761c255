"""Krippendorff's alpha on his published examples, and agreement row by row."""

from __future__ import annotations

from typing import Any

import pandas
import pytest

from llmbroker import InvalidRequestError, llm_agreement

N = None
# K. Krippendorff (2011), "Computing Krippendorff's Alpha-Reliability": example D, four observers, twelve units.
FOUR = list(
    zip(
        [1, 2, 3, 3, 2, 1, 4, 1, 2, N, N, N],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, N, 3],
        [N, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, N],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, N],
        strict=True,
    )
)
BINARY = list(zip([0, 1, 0, 0, 0, 0, 0, 0, 1, 0], [1, 1, 1, 0, 0, 1, 0, 0, 0, 0], strict=True))
NOMINAL = list(zip("aabbdcccedda", "babbbccceddd", strict=True))


@pytest.mark.parametrize(
    ("data", "metric", "alpha"),
    [
        (BINARY, "nominal", 0.095), (NOMINAL, "nominal", 0.692), (FOUR, "nominal", 0.743), (FOUR, "ordinal", 0.815),
        (FOUR, "interval", 0.849), (FOUR, "ratio", 0.797),
    ],
)  # fmt: skip
def test_the_published_examples(data: Any, metric: str, alpha: float) -> None:
    assert round(llm_agreement(data, metric=metric).alpha or 0, 3) == alpha


def test_rows_have_their_majority_share_and_ties() -> None:
    data = [{"a": "Yes", "b": "yes ", "c": "no"}, {"a": "x", "b": "y", "c": None}, {"a": None, "b": float("nan"), "c": ""}]
    result = llm_agreement(data, ["a", "b", "c"])
    assert result.by_row[0] == {
        "majority": "yes", "share": pytest.approx(2 / 3), "n_distinct": 2, "unanimous": False, "tie": False, "n_missing": 0,
    }  # fmt: skip
    assert (result.by_row[1]["majority"], result.by_row[1]["tie"], result.by_row[1]["n_missing"]) == (None, True, 1)
    assert (result.by_row[2]["share"], result.by_row[2]["unanimous"], result.by_row[2]["n_missing"]) == (None, None, 3)
    assert (result.rows, result.paired, result.codings, result.missing) == (3, 2, 5, 4)


def test_one_category_everywhere_is_perfect_and_nothing_comparable_is_unknown() -> None:
    assert llm_agreement([["a", "a"], ["a", "a"]]).alpha == 1.0
    assert llm_agreement([["a", None], [None, "b"]]).alpha is None
    assert llm_agreement([[None, None]]).alpha is None


def test_texts_are_compared_without_capitals_unless_it_is_said() -> None:
    assert llm_agreement([["A", "a"], ["b", "B "]]).alpha == 1.0
    assert llm_agreement([["A", "a"], ["b", "B"]], normalize=False).alpha == 0.0


def test_labels_without_order_need_their_levels() -> None:
    data = [["low", "mid"], ["high", "high"], ["mid", "mid"]]
    with pytest.raises(InvalidRequestError, match="levels"):
        llm_agreement(data, metric="ordinal")
    ordered = llm_agreement(data, metric="ordinal", levels=["low", "mid", "high"])
    assert ordered.alpha == llm_agreement([[1, 2], [3, 3], [2, 2]], metric="ordinal").alpha
    with pytest.raises(InvalidRequestError, match="mid"):
        llm_agreement(data, metric="ordinal", levels=["low", "high"])


def test_numbers_as_text_are_ordered_as_numbers() -> None:
    text = [["9", "10"], ["2", "2"], ["10", "10"]]
    assert llm_agreement(text, metric="ordinal").alpha == llm_agreement([[9, 10], [2, 2], [10, 10]], metric="ordinal").alpha


def test_columns_are_named_by_a_prefix_or_one_by_one() -> None:
    frame = pandas.DataFrame({"draw_1": ["a", "b"], "draw_2": ["a", "b"], "draw_2_error": ["x", "y"], "other": [1, 2]})
    assert llm_agreement(frame).alpha == 1.0
    with pytest.raises(InvalidRequestError, match="nope"):
        llm_agreement(frame, ["draw_1", "nope"])
    with pytest.raises(InvalidRequestError, match="two columns"):
        llm_agreement(frame, prefix="other")


def test_the_metric_has_a_name() -> None:
    with pytest.raises(InvalidRequestError, match="metric"):
        llm_agreement([["a", "b"]], metric="euclidean")
