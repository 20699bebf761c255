"""What a docstring says: the words before its sections, and one text for each argument (Google, NumPy and Sphinx style)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

_SECTION = re.compile(
    r"(args|arguments|parameters|params|other parameters|keyword args|keyword arguments|returns?|yields?|raises|attributes|"
    r"examples?|notes?|references|see also|warnings?|warns|todo)\s*:?\s*",
    re.IGNORECASE,
)
_ARGUMENTS = ("args", "arguments", "param", "keyword", "other param")
_GOOGLE = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:\s*(.*)")
_NUMPY = re.compile(r"\*{0,2}(\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?")
_SPHINX = re.compile(r":(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*?\s)?\*{0,2}(\w+)\s*:\s*(.*)")
_FIELD = re.compile(r":(\w+)[^:]*:")


def docwords(fn: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the description of a function, and what is said about each of its arguments."""
    text = inspect.getdoc(fn) or ""
    if not text:
        return "", {}
    lines = text.splitlines()
    told: dict[str, str] = {}
    head: list[str] = []
    at = 0
    while at < len(lines):
        name, style = _section(lines, at)
        if _FIELD.match(lines[at]):
            at = _sphinx(lines, at, told)
        elif style is None:
            head.append(lines[at])
            at += 1
        else:
            start = at + (2 if style == "numpy" else 1)
            at = _section_end(lines, start, style)
            if name.startswith(_ARGUMENTS):
                (_numpy if style == "numpy" else _google)(lines[start:at], told)
    return "\n".join(head).strip(), told


def _section(lines: list[str], at: int) -> tuple[str, str | None]:
    """Return the name and style of the section that begins in this line, or no style."""
    line = lines[at]
    found = _SECTION.fullmatch(line)
    if found is None:
        return "", None
    after = lines[at + 1] if at + 1 < len(lines) else ""
    if after and not after.strip("-=") and len(after) >= 3:
        return found[1].lower(), "numpy"
    if line.rstrip().endswith(":") and (after.startswith((" ", "\t")) or not after.strip()):
        return found[1].lower(), "google"
    return "", None


def _section_end(lines: list[str], at: int, style: str) -> int:
    while at < len(lines):
        line = lines[at]
        if style == "google" and line.strip() and not line.startswith((" ", "\t")):
            break
        if _section(lines, at)[1] is not None or _FIELD.match(line):
            break
        at += 1
    return at


def _google(lines: list[str], told: dict[str, str]) -> None:
    indent, last = -1, ""
    for line in lines:
        if not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        found = _GOOGLE.fullmatch(line.strip()) if indent in (-1, depth) else None
        if found:
            indent, last = depth, found[1]
            told[last] = found[2].strip()
        elif last:
            told[last] = f"{told[last]} {line.strip()}".strip()


def _numpy(lines: list[str], told: dict[str, str]) -> None:
    names: list[str] = []
    for line in lines:
        if not line.strip():
            continue
        found = None if line.startswith((" ", "\t")) else _NUMPY.fullmatch(line.strip())
        if found:
            names = [name.strip().lstrip("*") for name in found[1].split(",")]
            told.update(dict.fromkeys(names, ""))
        else:
            told.update({name: f"{told[name]} {line.strip()}".strip() for name in names})


def _sphinx(lines: list[str], at: int, told: dict[str, str]) -> int:
    found = _SPHINX.match(lines[at])
    words = [found[2].strip()] if found else []
    at += 1
    while at < len(lines) and lines[at].startswith((" ", "\t")):
        words.append(lines[at].strip())
        at += 1
    if found:
        told[found[1]] = " ".join(words).strip()
    return at
