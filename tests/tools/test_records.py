"""Rows, sums and the transcript."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest

from llmbroker.exchange import Usage
from llmbroker.tools import Tally, ToolHistory, ToolLoop, ToolRow

ROW = ToolRow(round=1, id="c1", name="f", arguments="{}", result="ok", error=None, repaired=False, duration=0.5)


def test_a_row_is_a_dict_whose_columns_are_attributes() -> None:
    assert ROW["name"] == ROW.name == "f"
    assert json.loads(json.dumps(ROW))["duration"] == 0.5
    with pytest.raises(AttributeError):
        _ = ROW.nothing


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row.update(name="g"),
        lambda row: row.__setitem__("name", "g"),
        lambda row: row.pop("name"),
        lambda row: setattr(row, "name", "g"),
        lambda row: row.clear(),
        lambda row: row.setdefault("x", 1),
    ],
)
def test_a_row_does_not_change(change: Any) -> None:
    with pytest.raises(TypeError, match="does not change"):
        change(ROW)
    assert ROW.name == "f"


def test_a_history_survives_copying_and_pickling() -> None:
    history = ToolHistory([ROW])
    for other in (pickle.loads(pickle.dumps(history)), copy.deepcopy(history)):
        assert other == history and isinstance(other, ToolHistory) and other[0].name == "f"


def test_a_history_becomes_a_data_frame() -> None:
    pandas = pytest.importorskip("pandas")
    columns = ["round", "id", "name", "arguments", "result", "error", "repaired", "duration"]
    frame = ToolHistory([ROW, ROW]).to_pandas()
    assert list(frame.columns) == columns and len(frame) == 2
    assert list(ToolHistory().to_pandas().columns) == columns
    assert isinstance(frame, pandas.DataFrame)


def test_G24_sums_add_what_is_known_and_count_what_is_not() -> None:
    tally = Tally()
    for usage in (
        Usage(10, 5, 2, None, 1),
        None,
        {"prompt_tokens": 3},
        {"completion_tokens": 4.0},
        {"prompt_tokens": None},
        "?",
        Usage(),
    ):
        tally.calls += 1
        tally.add(usage)
    assert tally.closed(2) == ToolLoop(7, 13, 9, 2, 4, 1, 2)


def test_nothing_known_is_not_zero() -> None:
    tally = Tally()
    tally.calls = 1
    tally.add(None)
    assert tally.closed(0) == ToolLoop(1, None, None, 0, 1, None, None)
