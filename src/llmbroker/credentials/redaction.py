"""Secrets that do not show themselves, and the cleaning of texts that came from outside.

``redact`` removes values that are known; ``mask`` removes what looks like a key although nobody knows it. Nothing here prints,
logs or stores a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

import msgspec

STARS = "***"
MIN_SECRET = 4
"""Values shorter than this are placeholders (``x``, ``ok``): replacing them would spoil every text."""


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

    def __format__(self, spec: str) -> str:
        """Show stars, whatever the format."""
        return repr(self)

    def __reduce__(self) -> tuple[type[Secret], tuple[str, str]]:
        """Refuse to be written to disk with its value: only the source survives pickling."""
        return Secret, ("", self.source)

    def __copy__(self) -> Secret:
        """Return itself: it never changes."""
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        """Return itself: it never changes."""
        return self


def _forms(value: str) -> Iterable[str]:
    """Yield the value as it is, and as JSON, URL and Python's repr write it."""
    yield value
    if value.isalnum():
        return
    # A lone surrogate cannot be quoted, and neither JSON nor a URL can hold it.
    quotable = value.encode("utf-8", "replace").decode()
    escaped = msgspec.json.encode(quotable).decode()[1:-1]
    yield escaped
    yield escaped.replace("/", "\\/")
    yield repr(value)[1:-1]
    yield quote(quotable, safe="")
    yield quote(quotable)
    yield quote_plus(quotable)


def redact(text: str, secrets: Iterable[Secret | str | None]) -> str:
    """Return the text with every known key value replaced by stars, the longest first.

    Its JSON-escaped, URL-quoted and ``repr`` forms go too. Values of fewer than four characters are left alone.
    """
    values = {s.reveal() if isinstance(s, Secret) else s for s in secrets if s}
    forms = {form for value in values if len(value) >= MIN_SECRET for form in _forms(value)}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, STARS)
    return text


# Each pattern keeps its group 1 and hides the rest. Sources: the vendors' own pages on key formats.
_KEYS = re.compile(
    r"""(?x)
    (?<![A-Za-z0-9])(?:
        (sk-|pk-|rk-|gsk_|xai-|pplx-|nvapi-|hf_|r8_|csk-|fw_|tgp_v1_|co-|gho_|ghp_|github_pat_|glpat-|xox[abp]-|AKIA|ASIA|AIza|ya29\.|AQ\.)
        [A-Za-z0-9_\-./+*]{8,}=*
      | (eyJ)[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{4,}(?:\.[A-Za-z0-9_\-]*)?
    )
    """
)
_LABELLED = re.compile(
    r"""(?xi)
    ( \b(?:bearer|basic)\s+
    | \b(?:x-)?(?:goog-)?(?:api[-_ ]?key|apikey|access[-_]?token|authorization|auth[-_]?token|secret[-_]?key|password|passwd)
      \\?["']?\s*[:=]\s*\\?["']?(?:bearer\s+|basic\s+)?
    | [?&](?:key|api_key|apikey|token|access_token|sig|signature)=
    )
    (?!\*{3})([^\s"'&,;<>\\)}\]]{6,})
    """
)
_USERINFO = re.compile(r"(?<=://)[^\s/@:\"']*:[^\s/@\"']+(?=@)")


def mask(text: str) -> str:
    """Return the text without anything that looks like a key: ``sk-…``, ``Bearer …``, ``?key=…``, ``user:pw@``.

    For words of a provider or a driver, where a key may stand that this process never held.
    """
    text = _KEYS.sub(lambda found: (found.group(1) or found.group(2)) + STARS, text)
    text = _LABELLED.sub(lambda found: found.group(1) + STARS, text)
    return _USERINFO.sub(STARS, text)
