"""What a run would ask, to be looked at before anything is sent."""

from __future__ import annotations

from typing import Any

from llmbroker.messages import History, Text, User
from llmbroker.research.frames import Rows
from llmbroker.research.rows import Options, Prepared


def llm_preview(
    rows: Any, config: Any = None, messages: Any = None, *, system: str | None = None, max_chars: int = 500
) -> Rows:
    """Return what each row would ask, as text, and what is wrong with those that cannot be asked. Nothing is sent.

    Args:
        rows: as of ``call_llm_par``.
        config: as of ``call_llm_par``.
        messages: as of ``call_llm_par``.
        system: as of ``call_llm_par``.
        max_chars: characters of a preview.

    Returns:
        A row each: ``ok``, ``problem``, ``preview``, ``characters``, ``attachments``.

    Raises:
        InvalidRequestError: the arguments or the columns mean nothing.
    """
    prepared = Prepared(rows, config, messages, system, Options())
    out = Rows()
    for record in prepared.table.records:
        try:
            history = History(prepared.ask_of(record).messages)
        except Exception as error:  # noqa: BLE001 - a user's own function may raise anything: that is what the preview shows
            out.append({"ok": False, "problem": str(error) or repr(error), "preview": None, "characters": 0, "attachments": 0})
            continue
        spoken = [message for block in history.blocks for message in _spoken(block)]
        text = "\n".join(f"[{role}] {said}" for role, said, _ in spoken)
        empty = not any(said.strip() for role, said, _ in spoken if role == "user")
        out.append(
            {
                "ok": not empty,
                "problem": "The user's text is empty." if empty else None,
                "preview": text if len(text) <= max_chars else text[: max_chars - 3] + "...",
                "characters": history.characters,
                "attachments": sum(count for _, _, count in spoken),
            }
        )
    return out


def _spoken(block: Any) -> list[tuple[str, str, int]]:
    out = [] if block.assistant is None else [("assistant", block.assistant.text, 0)]
    out += [("tool", result.text, 0) for result in block.results]
    return out + [(message.role, message.text, _attached(message)) for message in block.users]


def _attached(message: User) -> int:
    return sum(not isinstance(part, Text) for part in message.parts)
