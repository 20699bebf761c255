"""Reasoning that a server leaves in the text: a ``<think>`` block at the very start of the content.

One small machine takes the content as it arrives, cut anywhere, and says which pieces are reasoning and which are the answer.
Only a block at the start counts; the same words later in an answer are the answer's. The white space around the tags belongs to
neither side.
"""

from __future__ import annotations

OPEN = "<think>"
CLOSE = "</think>"
_START, _INSIDE, _AFTER, _TEXT = range(4)


class ThinkSplitter:
    """Split content into reasoning and text, whatever the borders of the pieces."""

    __slots__ = ("_begun", "_held", "_state")

    def __init__(self) -> None:
        self._state = _START
        self._held = ""
        self._begun = False

    def feed(self, piece: str) -> tuple[str, str]:
        """Return the reasoning and the text that this piece makes certain; either may be empty."""
        if self._state == _TEXT:
            return "", piece
        text, self._held = self._held + piece, ""
        if self._state == _START:
            start = text.lstrip()
            if not start.startswith(OPEN):
                if len(start) < len(OPEN) and OPEN.startswith(start):
                    self._held = text
                    return "", ""
                self._state = _TEXT
                return "", text
            self._state, text = _INSIDE, start[len(OPEN) :]
        reasoning = ""
        if self._state == _INSIDE:
            reasoning, text = self._reasoning(text)
        if self._state == _AFTER:
            text = text.lstrip()
            if text:
                self._state = _TEXT
        return reasoning, text

    def _reasoning(self, text: str) -> tuple[str, str]:
        if not self._begun:
            text = text.lstrip()
        at = text.find(CLOSE)
        if at >= 0:
            self._state = _AFTER
            return text[:at].rstrip(), text[at + len(CLOSE) :]
        # Hold back what may be the beginning of the closing tag, and white space that may stand before it.
        tag = max((size for size in range(1, len(CLOSE)) if text.endswith(CLOSE[:size])), default=0)
        sure = len(text[: len(text) - tag].rstrip())
        self._held = text[sure:]
        self._begun = self._begun or sure > 0
        return text[:sure], ""

    def end(self) -> tuple[str, str]:
        """Return what is still held back: the content is over."""
        held, self._held = self._held, ""
        if self._state == _INSIDE:
            return held.rstrip(), ""
        if self._state == _START:
            self._state = _TEXT
        return "", held
