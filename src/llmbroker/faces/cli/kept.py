"""The last conversation of ``llmbroker ask``: one file in llmbroker's own folder, readable by its owner alone.

It is written when an answer came, over the one before, so that ``ask -c`` can go on. ``--no-keep`` writes none.
``Conversation.load`` reads it, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmbroker.errors import InvalidRequestError
from llmbroker.faces.cli.output import note
from llmbroker.files import replace
from llmbroker.transports.model_store import data_home

FILE_NAME = "last-conversation.json"


def kept_path() -> Path:
    """Return where the last conversation is kept, whether there is one or not."""
    return data_home() / FILE_NAME


def last_messages() -> list[dict[str, Any]]:
    """Return the last conversation.

    Raises:
        InvalidRequestError: there is none, or it cannot be read.
    """
    from llmbroker.conversation import Conversation

    path = kept_path()
    try:
        return Conversation.load(path).messages
    except FileNotFoundError:
        raise InvalidRequestError(
            "There is no conversation to go on with: ask a question first, without -c.", argument="--continue"
        ) from None
    except (OSError, InvalidRequestError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequestError(f"The last conversation ({path}) cannot be read: {why}", argument="--continue") from None


def keep(messages: list[dict[str, Any]]) -> None:
    """Keep a conversation in place of the last one; where that fails the answer is still the answer."""
    import msgspec  # not Conversation: the loop behind it would be loaded for a few bytes

    path = kept_path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace(path, msgspec.json.encode({"format": 1, "messages": messages, "paused": None}))
    except (OSError, UnicodeEncodeError) as error:
        note(f"llmbroker: the conversation is not kept, so -c cannot go on with it: {error}")


def joined(before: list[dict[str, Any]], system: list[dict[str, Any]], asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of the next question: a system message that is given now takes the place of the one before."""
    if system:
        before = [message for message in before if message.get("role") != "system"]
    return [*system, *before, asked]
