"""What a person reads who has no key yet (at most six lines, which end in a way to an answer), or who reached a limit."""

from __future__ import annotations

import contextlib
import importlib.util
import shlex
from collections.abc import Iterator

from llmbroker.errors import LimitReachedError, LLMBrokerError, MissingKeyError, NoLLMAvailableError
from llmbroker.faces.cli.codes import NoKeyError


@contextlib.contextmanager
def explained(source: str | None = None, scope: str | None = None) -> Iterator[None]:
    """Turn the absence of every key into the message that helps; with the user's own ``source`` it names that list's keys.

    A limit that is reached gets a note with the command that shows it.
    """
    try:
        yield
    except LimitReachedError as error:
        error.add_note(limits_line(error, source, scope))
        raise
    except NoLLMAvailableError as error:
        if error.reason not in ("no_keys", "empty_pool"):
            raise
        missing = f"llmbroker: {error}\nllmbroker models --source {source} says which model lacks its key."
        text = no_key_text() if source is None else missing
        raise NoKeyError(text) from error
    except MissingKeyError as error:
        raise NoKeyError(f"llmbroker: {error}\nllmbroker env lists the keys that would help.") from error


def limits_line(error: LLMBrokerError, source: str | None, scope: str | None) -> str:
    """Return which command shows the limit that was reached; "" where none was."""
    if not isinstance(error, LimitReachedError):
        return ""
    options = "".join(f" --{name} {shlex.quote(value)}" for name, value in (("source", source), ("scope", scope)) if value)
    return f"llmbroker limits{options} shows what is left and when it opens."


def no_key_text() -> str:
    """Return the message: what was looked for and where, the fastest key, the command, the way without a key."""
    from llmbroker.catalog import load_catalog

    catalog = load_catalog()
    refs = list(dict.fromkeys(config.api_key_ref for config in catalog.pool if config.api_key_ref))
    lines = [
        "llmbroker: no key was found, so no model can answer.",
        f"Looked for {', '.join(refs)} in the environment, .env and the stored keys.",
    ]
    fastest = next((catalog.keys[ref] for ref in refs if ref in catalog.keys and catalog.keys[ref].url), None)
    if fastest is not None:
        lines += [
            f"Fastest: {fastest.help} {fastest.url}",
            f"Then: export {fastest.ref}=...   (or: llmbroker keys set {fastest.ref})",
        ]
    if importlib.util.find_spec("xllamacpp") is None:
        lines.append("Without a key: pip install xllamacpp (the extra llmbroker[local]), then llmbroker demo, or ask again.")
    else:
        lines.append("Without a key: llmbroker demo, or llmbroker ask -m local ...: a small model in this process answers.")
    return "\n".join(lines)
