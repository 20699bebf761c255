"""Where keys come from, and how they are kept out of sight.

A key value travels as a ``Secret``: its repr, str and JSON show stars. ``redact`` removes known values from a text that came
from outside. Nothing here prints, logs or stores a value.
"""

from __future__ import annotations

from collections.abc import Iterable


class Secret:
    """A key value that does not show itself. ``source`` says where it was found (``environment OPENAI_API_KEY``)."""

    __slots__ = ("_value", "source")

    def __init__(self, value: str, source: str = "") -> None:
        self._value = value
        self.source = source

    def reveal(self) -> str:
        """Return the value; only for the header that carries it."""
        return self._value

    def __bool__(self) -> bool:
        """Whether there is a value."""
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        """Compare values."""
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        """Hash the value."""
        return hash(self._value)

    def __repr__(self) -> str:
        """Show stars."""
        return "Secret('***')"

    __str__ = __repr__

    def __reduce__(self) -> tuple[type[Secret], tuple[str, str]]:
        """Refuse to be written to disk with its value: only the source survives pickling."""
        return Secret, ("", self.source)


def redact(text: str, secrets: Iterable[Secret | str | None]) -> str:
    """Return the text with every known key value replaced by stars, the longest first; also its JSON-escaped form."""
    values = {s.reveal() if isinstance(s, Secret) else s for s in secrets if s}
    for value in sorted((v for v in values if len(v) >= 4), key=len, reverse=True):
        text = text.replace(value, "***")
    return text
