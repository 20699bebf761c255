"""Answers in tags: ``<score>4</score>``. The first of each name counts, capitals do not matter, entities are decoded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from llmbroker.errors import InvalidRequestError

_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_THINKING = re.compile(r"<(think|thinking)>.*?(</\1>|\Z)", re.S | re.I)
_WHOLE = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?")


def checked_tags(tags: Any) -> tuple[str, ...]:
    """Return the names.

    Raises:
        InvalidRequestError: one is no name.
    """
    names = (tags,) if isinstance(tags, str) else tuple(tags)
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidRequestError(f"{name!r} is no name of a tag.", argument="tags")
    return names


def llm_parse_tags(response: Any, tags: str | Sequence[str]) -> dict[str, str] | None:
    """Return the text in each of these tags that the answer has; None if it has none of them.

    A tag that is opened and never closed counts as absent: the answer was cut there. What stands in thinking tags is passed
    over, unless such a tag is asked for.
    """
    text = response if isinstance(response, str) else getattr(response, "text", "") or ""
    names = checked_tags(tags)
    if not {name.lower() for name in names} & {"think", "thinking"}:
        text = _THINKING.sub("", text)
    found: dict[str, str] = {}
    for name in names:
        match = re.search(rf"<{re.escape(name)}(?:\s[^<>]*)?>(.*?)</{re.escape(name)}\s*>", text, re.S | re.I)
        if match:
            found[name] = _decoded(match[1].strip())
    return found or None


def _decoded(text: str) -> str:
    if "&" not in text:
        return text
    import html

    return html.unescape(text)


def typed(values: Sequence[str | None]) -> list[Any]:
    """Return a column as numbers or booleans where every value allows it, else as the texts that were written."""
    known = [value for value in values if value is not None]
    if known and all(_WHOLE.fullmatch(value) and len(value) < 19 for value in known):
        return [None if value is None else int(value) for value in values]
    if known and all(_DECIMAL.fullmatch(value) for value in known):
        return [None if value is None else float(value) for value in values]
    if known and all(value.lower() in ("true", "false") for value in known):
        return [None if value is None else value.lower() == "true" for value in values]
    return list(values)
