"""``llmbroker ask``: one question, from the arguments, from files, from a pipe; the answer streams to stdout, alone.

All else (notes, usage, tool steps) goes to stderr, so that the answer can be piped on.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from llmbroker.errors import InvalidRequestError, LLMBrokerError
from llmbroker.faces.cli.codes import INCOMPLETE
from llmbroker.faces.cli.input import attachments, from_stdin, prompt_of, system_of
from llmbroker.faces.cli.kept import joined, keep, last_messages
from llmbroker.faces.cli.output import money, note, print_json, usage_line
from llmbroker.faces.cli.patience import patience
from llmbroker.faces.cli.target import Target, add_target_arguments, open_target

HELP = {
    "ask": "Ask one question. The pool's best free model answers, or the one that -m names.\n\n"
    "  llmbroker ask 'Why is the sky blue?'\n"
    "  git diff | llmbroker ask 'Write a commit message'\n"
    "  llmbroker ask -c 'And at night?'\n"
    "  llmbroker ask -m opus 'Hello'\n"
    "  llmbroker ask --base-url http://127.0.0.1:8080/v1 -m qwen3 'Hello'\n"
    "  llmbroker ask -T weather:get_weather 'What is the weather in Paris?'"
}


def ask_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("text", nargs="*", metavar="TEXT", help="the question; - reads it from stdin")
    add_target_arguments(parser)
    parser.add_argument(
        "-c", "--continue", dest="go_on", action="store_true",
        help="go on with the last conversation; -s replaces its system message, the model is chosen anew",
    )  # fmt: skip
    parser.add_argument("--no-keep", action="store_true", help="do not keep this conversation for -c")
    parser.add_argument("-s", "--system", metavar="TEXT", help="the system message; @file reads it from a file")
    parser.add_argument("-f", "--file", action="append", default=[], metavar="PATH", help="a text file, added to the question")
    parser.add_argument("-a", "--attach", action="append", default=[], metavar="PATH", help="an image")
    parser.add_argument("--no-stdin", action="store_true", help="do not read stdin, though it is no terminal")
    tools = parser.add_argument_group("tools")
    tools.add_argument(
        "-T", "--tool", action="append", default=[], metavar="MODULE:FUNCTION", help="a function that it may call"
    )
    tools.add_argument("--max-steps", type=int, default=8, metavar="N", help="model calls at most (8)")
    tools.add_argument("--approve", action="store_true", help="ask before each tool call")
    tools.add_argument("--show-tools", action="store_true", help="show each call and its result on stderr")
    answer = parser.add_argument_group("answer")
    answer.add_argument("--schema", metavar="PATH", help="a JSON schema that the answer must obey")
    answer.add_argument("-x", "--extract", action="store_true", help="print only the first fenced code block")
    answer.add_argument("--json", action="store_true", help="print one JSON object with text, usage, model and finish reason")
    answer.add_argument("--jsonl", action="store_true", help="print each event of the stream as a line of JSON")
    answer.add_argument("--no-stream", action="store_true", help="print the answer when it is whole")
    answer.add_argument("-u", "--usage", action="store_true", help="show tokens, model and cost on stderr")


def ask(arguments: argparse.Namespace) -> int:
    """Ask, print the answer, return the exit code."""
    text = prompt_of(arguments.text, arguments.file, from_stdin(arguments.text, wanted=not arguments.no_stdin))
    if not text.strip() and not arguments.attach:
        raise InvalidRequestError("There is no question. Give it as text, by --file, or through a pipe.", argument="text")
    asked = {"role": "user", "content": attachments(text, arguments.attach)}
    messages = joined(last_messages() if arguments.go_on else [], system_of(arguments.system), asked)
    schema = _schema(arguments.schema)
    from llmbroker.faces.cli.nokey import explained

    with explained(arguments.source, arguments.scope), open_target(arguments) as target, patience(target.caller):
        if arguments.tool:
            reply = _with_tools(target, messages, arguments)
        elif arguments.json or arguments.extract or arguments.no_stream or schema is not None:
            reply = target.caller.chat(messages, response_format=schema, **target.options)
        else:
            return _streamed(target, messages, arguments)
        if not arguments.tool:
            _keep(messages, reply, arguments)
        return _whole(target, reply, arguments)


def _keep(messages: list[dict[str, Any]], reply: Any, arguments: argparse.Namespace) -> None:
    """Keep what was said for the next ``ask -c``; an answer without text was none."""
    if reply is not None and reply.text and not arguments.no_keep:
        keep([*messages, {"role": "assistant", "content": reply.text}])


# -- tools ---------------------------------------------------------------------------------------------------------------


def _with_tools(target: Target, messages: list[dict[str, Any]], arguments: argparse.Namespace) -> Any:
    from llmbroker.faces.cli.functions import load
    from llmbroker.loop import run_tool_loop

    said: dict[str, Any] = {}
    reply = run_tool_loop(
        target.caller,
        messages,
        tools=load(arguments.tool, approve=arguments.approve, show=arguments.show_tools),
        max_steps=arguments.max_steps,
        max_concurrency=1 if arguments.approve else 8,
        transcript=said,
        **target.options,
    )
    if said.get("messages") and not arguments.no_keep:
        keep(said["messages"])
    return reply


# -- answers -------------------------------------------------------------------------------------------------------------


def _streamed(target: Target, messages: list[dict[str, Any]], arguments: argparse.Namespace) -> int:
    stream = target.caller.stream(messages=messages, **target.options)
    last = "\n"
    try:
        if arguments.jsonl:
            for event in stream.events():
                _print_event(event)
        else:
            for piece in stream:
                last = piece[-1:]
                sys.stdout.write(piece)
                sys.stdout.flush()
    except (LLMBrokerError, KeyboardInterrupt):
        if last != "\n":
            sys.stdout.write("\n")
            sys.stdout.flush()
        raise
    finally:
        stream.close()
    if last != "\n":
        sys.stdout.write("\n")
    _keep(messages, stream.reply, arguments)
    return _closing(target, stream.reply, arguments)


def _print_event(event: Any) -> None:
    import msgspec

    print(msgspec.json.encode(event).decode(), flush=True)


def _whole(target: Target, reply: Any, arguments: argparse.Namespace) -> int:
    if arguments.json:
        print_json(_as_data(reply))
    elif arguments.extract:
        block = first_block(reply.text)
        if block is None:
            note("There is no fenced code block in the answer; this is all of it.")
        print(reply.text if block is None else block)
    else:
        print(reply.text)
    return _closing(target, reply, arguments)


def _as_data(reply: Any) -> dict[str, Any]:
    names = ("text", "llm_name", "model", "finish_reason", "usage", "reasoning", "refusal", "call_id", "tool_history")
    return {name: getattr(reply, name, None) for name in names if getattr(reply, name, None) is not None}


def first_block(text: str) -> str | None:
    """Return what stands in the first fenced code block of an answer, or None."""
    lines = text.splitlines()
    start = next((at for at, line in enumerate(lines) if line.lstrip().startswith("```")), None)
    if start is None:
        return None
    stop = next((at for at in range(start + 1, len(lines)) if lines[at].strip() == "```"), len(lines))
    return "\n".join(lines[start + 1 : stop])


_INCOMPLETE = {
    "length": "The answer was cut at the token limit; --param max_tokens=N raises it.",
    "content_filter": "The provider's filter stopped the answer.",
    "refusal": "The model refused to answer.",
    "error": "The provider reported an error at the end of the answer.",
    "unknown": "The provider did not say whether the answer is complete.",
}


def _closing(target: Target, reply: Any, arguments: argparse.Namespace) -> int:
    """Say on stderr what concerns the answer; return the exit code."""
    if arguments.usage and reply is not None:
        name = getattr(reply, "llm_name", None) or reply.model or target.name
        note(f"{name}: {usage_line(reply.usage)}, cost {_cost(target, reply)}, {_tries(reply)}")
    problem = _INCOMPLETE.get(reply.finish_reason) if reply is not None else "The answer has no end."
    if problem:
        note(f"llmbroker: {problem}")
        return INCOMPLETE
    if arguments.schema and not _is_json(reply.text):
        note("llmbroker: the answer is not the JSON that --schema asked for.")
        return INCOMPLETE
    return 0


def _cost(target: Target, reply: Any) -> str:
    call_id = getattr(reply, "call_id", None)
    if call_id is None:
        return "unknown"
    rows = target.caller.calls(call_id=call_id, limit=1)
    return money(rows[0].cost, rows[0].currency) if rows else "unknown"


def _tries(reply: Any) -> str:
    count = len(getattr(reply, "attempts", None) or (None,))
    return f"{count} attempt" + ("s" if count > 1 else "")


def _schema(path: str | None) -> dict[str, Any] | None:
    if path is None:
        return None
    import msgspec

    try:
        schema = msgspec.json.decode(Path(path).expanduser().read_bytes())
    except OSError as error:
        raise InvalidRequestError(f"The schema {path!r} cannot be read: {error.strerror}.", argument="--schema") from None
    except msgspec.DecodeError as error:
        raise InvalidRequestError(f"The schema {path!r} is not JSON: {error}.", argument="--schema") from None
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def _is_json(text: str) -> bool:
    import msgspec

    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True
