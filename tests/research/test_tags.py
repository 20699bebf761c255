"""Tags in answers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbroker import InvalidRequestError, llm_parse_tags
from llmbroker.research.tags import typed


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<score>4</score>", {"score": "4"}),
        ("<SCORE> 4 </Score> and <score>5</score>", {"score": "4"}),
        ('<score kind="x">4 &lt; 5</score>', {"score": "4 < 5"}),
        ("<think><score>1</score></think><score>4</score>", {"score": "4"}),
        ("<score>4", None),
        ("<why>because</why>\n<score>\n4\n</score>", {"score": "4", "why": "because"}),
        ("<scores>4</scores>", None),
        ("", None),
    ],
)
def test_the_first_closed_tag_of_each_name_counts(text: str, found: Any) -> None:
    assert llm_parse_tags(text, ["score", "why"]) == found


def test_a_thinking_tag_can_be_asked_for() -> None:
    assert llm_parse_tags("<think>hm</think>", "think") == {"think": "hm"}


@pytest.mark.parametrize(
    ("values", "made"),
    [
        (["1", "2", None], [1, 2, None]),
        (["1", "2.5"], [1.0, 2.5]),
        (["true", "False"], [True, False]),
        (["5.10", "x"], ["5.10", "x"]),
        (["true", "1"], ["true", "1"]),
        (["nan", "1"], ["nan", "1"]),
        ([None], [None]),
    ],
)
def test_a_column_is_typed_only_where_every_value_allows_it(values: Any, made: Any) -> None:
    assert typed(values) == made


@pytest.mark.parametrize("tags", ["a b", ["<x>"], [""], [3]])
def test_a_tag_has_a_name(tags: Any) -> None:
    with pytest.raises(InvalidRequestError):
        llm_parse_tags("x", tags)


@given(st.text(max_size=200))
def test_reading_tags_never_raises(text: str) -> None:
    llm_parse_tags(text, ["a", "b"])
