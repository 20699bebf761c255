"""BFCL's multi-turn tasks with a scripted model that plays the ground truth: do the loop's calls lead to the same state?

Usage: bfcl_multi.py [--limit N] [--dialects openai-chat,...] [--least N]

The tasks come with Python classes (a file system, a travel agency, a car, ...), 4 x 200 conversations, 4,625 calls. Each
class is made twice. On one instance the ground truth is called directly; the methods of the other are handed to
``run_tool_loop`` as tools (made of their signatures and docstrings), and a scripted model asks for the same calls, one a
step, turn by turn, in each dialect in turn. Afterwards all public attributes must be equal. A call that the loop refuses is
counted.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import inspect
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from bfcl import tasks

import llmbroker
from llmbroker.testing import ScriptedModel, made_reply

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
DIALECTS = ("openai-chat", "openai-responses", "anthropic", "gemini", "ollama")


def instances(task: dict[str, Any], long_context: bool) -> dict[str, Any]:
    """Return the task's objects by class name, in their first state."""
    from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING, STATELESS_CLASSES

    made = {}
    for name in task["involved_classes"]:
        one = getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[name]), name)()
        if name not in STATELESS_CLASSES:
            one._load_scenario(copy.deepcopy(task["initial_config"].get(name, {})), long_context=long_context)
        made[name] = one
    return made


def methods(objects: dict[str, Any]) -> dict[str, Any]:
    """Return the public methods by name; of two of one name the later class's, as BFCL does."""
    found = {}
    for one in objects.values():
        found.update({n: m for n, m in inspect.getmembers(one, inspect.ismethod) if not n.startswith("_")})
    return found


def call_of(text: str, known: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return name and keyword arguments of a call written in Python."""
    node = ast.parse(text, mode="eval").body
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Name)
    names = list(inspect.signature(known[node.func.id]).parameters)
    arguments = {name: ast.literal_eval(value) for name, value in zip(names, node.args, strict=False)}
    arguments.update({str(word.arg): ast.literal_eval(word.value) for word in node.keywords})
    return node.func.id, arguments


def state(objects: dict[str, Any]) -> dict[str, Any]:
    """Return all public attributes."""
    return {f"{name}.{key}": value for name, one in objects.items() for key, value in vars(one).items() if key[0] != "_"}


def rows(data: Path, limit: int | None) -> Iterator[tuple[str, dict[str, Any], list[list[str]]]]:
    """Yield category, task and ground truth."""
    for category in CATEGORIES:
        name = f"BFCL_v4_multi_turn_{category}.json"
        truths = {row["id"]: row["ground_truth"] for row in map(json.loads, (data / "possible_answer" / name).open())}
        for task in itertools.islice(map(json.loads, (data / name).open()), limit):
            yield category, task, truths[task["id"]]


def play(
    task: dict[str, Any], truth: list[list[str]], long_context: bool, dialect: str, open_tools: bool
) -> tuple[int, list[str], bool]:
    """Return how many calls ran, the loop's refusals, and whether both states are equal."""
    direct, looped = instances(task, long_context), instances(task, long_context)
    known = methods(direct)
    given = {"parameters": {"type": "object", "additionalProperties": True}} if open_tools else {}
    tools = [llmbroker.tool(method, **given) for method in methods(looped).values()]
    count, refused, messages = 0, [], []
    for turn in truth:
        calls = [call_of(text, known) for text in turn]
        for name, arguments in calls:
            with contextlib.suppress(Exception):  # what a call does is the task's affair: both instances meet it
                known[name](**copy.deepcopy(arguments))
        steps = [made_reply("", [one]) for one in calls]
        model = ScriptedModel(*steps, made_reply("Done."))
        client = llmbroker.DirectClient(base_url="http://scripted.example/v1", model="m", dialect=dialect, io=model.port())
        talk = [*messages, {"role": "user", "content": "Go on."}]
        reply = llmbroker.run_tool_loop(client, talk, tools=tools, max_steps=len(calls) + 1)
        model.check()
        messages = reply.messages
        count += sum(row.duration is not None for row in reply.tool_history)
        refused += [f"{task['id']} {row.name}: {row.error}" for row in reply.tool_history if row.duration is None]
    return count, refused, state(direct) == state(looped)


def main() -> int:
    """Play all; print the sums."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=int, default=None, help="tasks of each category")
    parser.add_argument("--dialects", default=",".join(DIALECTS))
    parser.add_argument("--least", type=int, default=4625)
    how = parser.parse_args()
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "mpmath"], check=True)
    data = tasks()
    sys.path.insert(0, str(data.parent.parent))
    worst = 0
    for open_tools in (False, True):
        dialects = itertools.cycle(how.dialects.split(","))
        ran = wanted = equal = tried = 0
        refused: list[str] = []
        for category, task, truth in rows(data, how.limit):
            count, more, same = play(task, truth, category == "long_context", next(dialects), open_tools)
            ran, wanted, tried, equal = ran + count, wanted + sum(map(len, truth)), tried + 1, equal + same
            refused += more
        kind = "names only" if open_tools else "as the signatures say"
        print(f"tools declared {kind}: {ran} of {wanted} calls ran; final states equal in {equal} of {tried} conversations")
        for line in refused[:20]:
            print("  refused:", line)
        worst = ran if equal == tried else 0
    return 0 if worst >= (how.least if how.limit is None else 1) else 1


if __name__ == "__main__":
    sys.exit(main())
