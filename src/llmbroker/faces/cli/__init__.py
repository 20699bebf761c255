"""The command line: ``llmbroker COMMAND``.

This file finds the command and loads its room, and only that: ``--help`` and ``calls`` start without the broker, a provider or
an HTTP stack. What goes wrong becomes one line on stderr and an exit code; ``LLMBROKER_DEBUG=1`` shows the traceback too.
The exit codes are in ``codes``.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from llmbroker.errors import LLMBrokerError
from llmbroker.faces.cli.codes import FAILED, INTERRUPTED, NO_KEY, PIPE_CLOSED, USAGE, NoKeyError, code_of

COMMANDS: dict[str, tuple[str, str]] = {
    "ask": ("ask", "ask one question; the answer streams to stdout"),
    "chat": ("chat", "talk with a model; Ctrl-C stops an answer, Ctrl-D ends"),
    "demo": ("demo", "a real model on this machine answers with a tool: no key, no service"),
    "models": ("models", "the models of the pool: which could answer now, and why not"),
    "env": ("keys", "the keys that would help, as lines for a .env file, and where to get each"),
    "keys": ("keys", "stored keys: set, list, remove; which key would be used"),
    "calls": ("journal", "what was called, the newest first"),
    "stats": ("journal", "counts, tokens, cost, latency and quality by model"),
    "journal": ("upkeep", "delete old rows of the journal, or copy the whole of it"),
    "replay": ("replay", "the journal played against other policies: was routing worth it?"),
    "snapshot": ("models", "how each model of the pool is now, and until when"),
    "limits": ("limits", "what may be spent: used, left, and when it begins anew"),
    "catalog": ("models", "the packaged facts about models: free pool and aliases"),
    "doctor": ("doctor", "check keys, journal, model store and versions"),
    "paths": ("doctor", "where llmbroker keeps its files"),
    "worker": ("work", "take durable runs from a queue and work on them"),
    "submit": ("work", "put a durable run into a queue and wait for its answer"),
    "completion": ("completion", "print the completion script of a shell: bash, zsh or fish"),
}
"""Command to the module of this package that has it, and its line in the help."""


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and leave with the code for wrong usage."""
        self.exit(USAGE, f"llmbroker: {message}. See: {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _silence_stdout()
        return PIPE_CLOSED
    except KeyboardInterrupt:
        print("llmbroker: interrupted.", file=sys.stderr)
        return INTERRUPTED
    except NoKeyError as error:
        _debug()
        print(error, file=sys.stderr)
        return NO_KEY
    except LLMBrokerError as error:
        _debug()
        print("\n".join([f"llmbroker: {one_line(error)}", *getattr(error, "__notes__", ())]), file=sys.stderr)
        return code_of(error)
    except Exception as error:  # noqa: BLE001 - no traceback reaches a user who did not ask for one
        _debug()
        print(
            f"llmbroker: a fault in llmbroker itself: {type(error).__name__}: {one_line(error)} "
            "(LLMBROKER_DEBUG=1 shows where).",
            file=sys.stderr,
        )
        return FAILED


def one_line(error: BaseException) -> str:
    """Return an error's text on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def _debug() -> None:
    if os.environ.get("LLMBROKER_DEBUG", "") not in ("", "0"):
        import traceback

        traceback.print_exc()


def _silence_stdout() -> None:
    """Point stdout nowhere, so that the interpreter's last flush finds no closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str]) -> int:
    name = arguments[0] if arguments else ""
    if name in COMMANDS:
        given = parser_of(name).parse_args(arguments[1:])
        return int(getattr(_room(name), name)(given))
    return _top(name)


def _room(name: str) -> ModuleType:
    return importlib.import_module(f"llmbroker.faces.cli.{COMMANDS[name][0]}")


def parser_of(name: str) -> Parser:
    """Return the parser of one command; only its own room is loaded."""
    room = _room(name)
    parser = Parser(prog=f"llmbroker {name}", description=room.HELP[name], formatter_class=argparse.RawTextHelpFormatter)
    getattr(room, f"{name}_arguments")(parser)
    return parser


def _top(name: str) -> int:
    if name in ("", "-h", "--help", "help"):
        print(help_text())
        return 0 if name else USAGE
    if name in ("-V", "--version", "version"):
        from llmbroker import __version__

        print(f"llmbroker {__version__}")
        return 0
    import difflib

    near = difflib.get_close_matches(name, COMMANDS, n=1)
    meant = f" Did you mean {near[0]}?" if near else ""
    print(f"llmbroker: there is no command {name!r}.{meant} See: llmbroker --help", file=sys.stderr)
    return USAGE


def help_text() -> str:
    """Return the first page of help."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {words}" for name, (_, words) in COMMANDS.items()]
    return "\n".join([
        "Usage: llmbroker COMMAND [OPTIONS]",
        "",
        "One broker between you and language models. With any key in the environment: llmbroker ask 'Hello'.",
        "With no key at all: llmbroker demo.",
        "",
        "Commands:",
        *lines,
        "",
        "llmbroker COMMAND --help says more. --version prints the version.",
    ])  # fmt: skip
