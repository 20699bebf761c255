"""``llmbroker chat``: a conversation at the terminal. Ctrl-C stops the answer and keeps the conversation; Ctrl-D ends it."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import Any

from llmbroker.errors import InvalidRequestError, LLMBrokerError
from llmbroker.faces.cli.input import system_of
from llmbroker.faces.cli.nokey import explained, limits_line
from llmbroker.faces.cli.output import money, note, usage_line
from llmbroker.faces.cli.target import Target, add_target_arguments, open_target
from llmbroker.files import replace

COMMANDS = {
    "/exit": "end (also Ctrl-D)",
    "/new": "begin a new conversation",
    "/usage": "tokens of the last answer",
    "/cost": "what this conversation has cost so far",
    "/explain": "why this model answered",
    "/rate N": "rate the last answer, 0 to 5",
    "/save PATH": "write the conversation as JSON",
    "/help": "this list",
    '"""': "begin and end a text of several lines",
}
HELP = {"chat": "Talk with a model. Ctrl-C stops an answer and keeps the conversation, Ctrl-D ends it.\n\n" + "\n".join(
    f"  {name:<11} {words}" for name, words in COMMANDS.items()
)}  # fmt: skip


def chat_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_target_arguments(parser)
    parser.add_argument("-s", "--system", metavar="TEXT", help="the system message; @file reads it from a file")


def chat(arguments: argparse.Namespace) -> int:
    """Talk until the person ends it."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise InvalidRequestError("chat wants a terminal; for a pipe there is llmbroker ask.", argument="stdin")
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - editing and history of input()
    with explained(arguments.source, arguments.scope), open_target(arguments) as target:
        talk = _Talk(target, system_of(arguments.system), arguments)
        note(f"Talking with {target.name}. /help lists the commands, Ctrl-D ends.")
        while True:
            text = _read()
            if text is None:
                print()
                return 0
            if not text.strip():
                continue
            if text.startswith("/"):
                if not talk.command(text):
                    return 0
            else:
                talk.say(text)


def _read() -> str | None:
    """Return what the person typed, "" where Ctrl-C took it back, None at the end."""
    try:
        line = input("> ")
        if not line.lstrip().startswith('"""'):
            return line
        lines = [line.lstrip()[3:]]
        while True:
            more = input(". ")
            if more.rstrip().endswith('"""'):
                lines.append(more.rstrip()[:-3])
                return "\n".join(lines).strip("\n")
            lines.append(more)
    except EOFError:
        return None
    except UnicodeDecodeError:
        note("llmbroker: that was not UTF-8; nothing was sent.")
        return ""
    except KeyboardInterrupt:
        print()
        return ""


class _Talk:
    """The conversation so far."""

    def __init__(self, target: Target, system: list[dict[str, Any]], given: argparse.Namespace) -> None:
        self._target = target
        self._system = system
        self._given = given
        self._messages: list[dict[str, Any]] = list(system)
        self._reply: Any = None
        self._ids: list[str] = []

    def say(self, text: str) -> None:
        """Ask, show the answer as it comes, keep both. A stopped answer is kept as far as it came."""
        asked = {"role": "user", "content": text}
        stream: Any = None
        pieces: list[str] = []
        try:
            stream = self._target.caller.stream(messages=[*self._messages, asked], **self._target.options)
            for piece in stream:
                pieces.append(piece)
                sys.stdout.write(piece)
                sys.stdout.flush()
        except KeyboardInterrupt:
            note("\n(stopped)")
        except LLMBrokerError as error:
            if not pieces and not self._reply:
                raise
            note(f"\nllmbroker: {error}")
            if line := limits_line(error, self._given.source, self._given.scope):
                note(line)
        finally:
            if stream is not None:
                stream.close()
        print()
        answer = "".join(pieces)
        if answer:
            self._messages += [asked, {"role": "assistant", "content": answer}]
        if stream is not None and stream.reply is not None:
            self._reply = stream.reply
            if getattr(stream.reply, "call_id", None):
                self._ids.append(stream.reply.call_id)
            if stream.reply.finish_reason == "length":
                note("(cut at the token limit)")

    def command(self, text: str) -> bool:
        """Do what a line that begins with / says; False ends the conversation."""
        name, _, rest = text.strip().partition(" ")
        if name in ("/exit", "/quit", "/bye"):
            return False
        actions = {
            "/new": self._new, "/usage": self._usage, "/cost": self._cost, "/explain": self._explain, "/rate": self._rate,
            "/save": self._save, "/help": self._help,
        }  # fmt: skip
        action = actions.get(name)
        if action is None:
            note(f"There is no {name}; /help lists the commands.")
            return True
        try:
            action(rest.strip())
        except (LLMBrokerError, OSError) as error:
            note(f"llmbroker: {error}")
        return True

    def _new(self, _: str) -> None:
        self._messages = list(self._system)
        self._reply = None
        note("A new conversation.")

    def _help(self, _: str) -> None:
        for name, words in COMMANDS.items():
            note(f"  {name:<11} {words}")

    def _usage(self, _: str) -> None:
        note(usage_line(self._reply.usage) if self._reply is not None else "There is no answer yet.")

    def _cost(self, _: str) -> None:
        if not self._ids:
            note("Nothing with a journal row was called yet; calls of one chosen model write none.")
            return
        rows = [row for call_id in self._ids for row in self._target.caller.calls(call_id=call_id, limit=1)]
        known = [row.cost for row in rows if row.cost is not None]
        unpriced = len(self._ids) - len(known)
        note(
            money(sum(known) if known else None) + (f", and {unpriced} answer(s) of unknown cost" if known and unpriced else "")
        )

    def _explain(self, _: str) -> None:
        explain = getattr(self._reply, "explain", None)
        note(str(explain()) if explain is not None else "The model was chosen by you.")

    def _rate(self, rest: str) -> None:
        rate = getattr(self._reply, "record_quality", None)
        if rate is None:
            note("Only answers of the pool can be rated.")
        elif not rest.isdigit() or int(rest) > 5:
            note("Write /rate 0 (useless) to /rate 5 (perfect).")
        else:
            rate(int(rest) / 5)
            note("Rated.")

    def _save(self, rest: str) -> None:
        if not rest:
            note("Write /save PATH.")
            return
        import msgspec

        replace(Path(rest).expanduser(), msgspec.json.format(msgspec.json.encode(self._messages), indent=2))
        note(f"Saved {len(self._messages)} message(s) to {rest}.")
