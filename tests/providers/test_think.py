"""A think block at the very start of the content is reasoning, wherever the reads cut it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbroker.providers.think import ThinkSplitter


def split(pieces: list[str]) -> tuple[str, str]:
    splitter = ThinkSplitter()
    found = [splitter.feed(piece) for piece in pieces] + [splitter.end()]
    return "".join(reasoning for reasoning, _ in found), "".join(text for _, text in found)


CASES = [
    ("no-block", "hello", ("", "hello")),
    ("block", "<think>why</think>answer", ("why", "answer")),
    ("white-space-around-the-tags", "\n<think>\nwhy\n</think>\n\nanswer\n", ("why", "answer\n")),
    ("empty-block", "<think>\n\n</think>\n\nanswer", ("", "answer")),
    ("never-closed", "<think>why and", ("why and", "")),
    ("half-a-closing-tag-at-the-end", "<think>why </thi", ("why </thi", "")),
    ("only-the-beginning-of-a-tag", "<thin", ("", "<thin")),
    ("another-tag", "<thinker>x</thinker>", ("", "<thinker>x</thinker>")),
    ("later-in-the-text", "I <think>so</think>", ("", "I <think>so</think>")),
    ("a-second-block", "<think>a</think>b<think>c</think>", ("a", "b<think>c</think>")),
    ("angle-brackets-inside", "<think>a < b </b> c</think>d", ("a < b </b> c", "d")),
    ("white-space-alone", "  \n", ("", "  \n")),
    ("nothing", "", ("", "")),
]


@pytest.mark.parametrize(("content", "wanted"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_think_block_is_split_off_at_once_and_letter_by_letter(content: str, wanted: tuple[str, str]) -> None:
    assert split([content]) == wanted
    assert split(list(content)) == wanted


@given(st.lists(st.sampled_from(["<think>", "</think>", "<", "th", "ink>", "</", " ", "\n", "a", "é"]), max_size=12), st.data())
def test_any_cutting_gives_the_same(parts: list[str], data: st.DataObject) -> None:
    content = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=6)))
    pieces = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]
    assert split(pieces) == split([content])
