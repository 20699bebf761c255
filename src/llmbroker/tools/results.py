"""A tool's result as the text that a model gets: always valid UTF-8, never empty, never longer than the limit."""

from __future__ import annotations

from typing import Any

from llmbroker.errors import InvalidRequestError
from llmbroker.messages import EMPTY_RESULT, shown

DEFAULT_LIMIT = 100_000
"""Characters of one result that reach the model."""


def checked_limit(limit: Any) -> int | None:
    """Return the limit of a result in characters; None means that there is none.

    Raises:
        InvalidRequestError: it is no whole number above zero.
    """
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InvalidRequestError(
            f"result_limit is a number of characters above 0, or None, not {shown(limit)}.", argument="result_limit"
        )
    return limit


def result_text(value: Any, limit: int | None = DEFAULT_LIMIT) -> str:
    """Return ``str(value)`` fit for a message. An empty text becomes ``(no output)``.

    Raises:
        Exception: whatever ``str()`` of the value raises.
    """
    return fit(value if type(value) is str else str(value), limit) or EMPTY_RESULT


def error_words(error: BaseException) -> str:
    """Return what an exception says, or its class where it says nothing or cannot say it."""
    try:
        text = str(error)
    except Exception:  # a broken __str__ must not end the loop
        text = ""
    return text if text.strip() else type(error).__name__


def fit(text: str, limit: int | None) -> str:
    """Return the text with whole characters only and, if it is too long, without its middle."""
    text = whole(text)
    if limit is None or len(text) <= limit:
        return text
    room = limit - len(_gap(len(text), len(text)))
    if room < 2:
        room = max(2, limit)
    head = (room + 1) // 2
    tail = room - head
    return text[:head] + _gap(len(text) - room, len(text)) + text[len(text) - tail :]


def _gap(left_out: int, total: int) -> str:
    return f"\n[... {left_out:,} of {total:,} characters are left out here ...]\n"


def whole(text: str) -> str:
    """Return the text as plain ``str`` that UTF-8 can carry: halves of characters are joined, lone ones replaced."""
    if text.isascii():
        return text if type(text) is str else "".join(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text if type(text) is str else "".join(text)
