"""Function-calling tasks (BFCL) through the tool loop over a small model inside this process, its calls held by a grammar.

Usage: bfcl_local.py SHARED [--show] [CATEGORY[:N[:OFFSET]] ...]. Model, tasks and judgement are those of ``bfcl.py``: the
judging functions are taken out of SHARED/bench/bfcl_loop.py as they stand there. ``--show`` tells every task.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from bfcl import CACHE, tasks

import llmbroker

DEFAULT = ("simple_python:100", "multiple:100", "parallel:100")
PARAMS = {"temperature": 0, "max_tokens": 400}


class _SecondRoundError(Exception):
    """Only the first round counts."""


class _Once:
    """A client whose second call ends the loop."""

    def __init__(self, client: llmbroker.DirectClient) -> None:
        self._client = client
        self._asked = False

    def chat(self, messages: Any, **how: Any) -> Any:
        """Answer once."""
        if self._asked:
            raise _SecondRoundError
        self._asked = True
        return self._client.chat(messages, **how)


def judgement(script: Path) -> dict[str, Callable[..., Any]]:
    """Return the functions of the script that declare the tools (``fix``) and judge the calls (``ok``), without running it."""
    tree = ast.parse(script.read_text())
    kept = [
        node
        for node in tree.body
        if isinstance(node, ast.Import | ast.FunctionDef)
        or (isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "TYPES")
    ]
    names: dict[str, Any] = {}
    exec(compile(ast.Module(kept, type_ignores=[]), str(script), "exec"), names)
    return names


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of JSON lines."""
    with path.open(encoding="utf-8") as rows:
        return [json.loads(row) for row in rows]


def executed(client: llmbroker.DirectClient, task: dict[str, Any], fix: Callable[[Any], Any]) -> list[tuple[str, Any]]:
    """Return the calls that the loop executed in its first round."""
    calls: list[tuple[str, Any]] = []

    def tool(name: str) -> Callable[..., str]:
        def call(**arguments: Any) -> str:
            calls.append((name, arguments))
            return "ok"

        return call

    tools = [{"type": "function", "function": {**fix(f), "name": f["name"].replace(".", "_")}} for f in task["function"]]
    dispatch = {one["function"]["name"]: tool(one["function"]["name"]) for one in tools}
    try:
        llmbroker.run_tool_loop(_Once(client), task["question"][0], tools=tools, dispatch=dispatch, params=PARAMS)
    except _SecondRoundError:
        pass
    return calls


def run(client: llmbroker.DirectClient, data: Path, category: str, judge: dict[str, Callable[..., Any]], show: bool) -> None:
    """Run one category and print its figures."""
    name, _, span = category.partition(":")
    count, _, offset = span.partition(":")
    rows = lines(data / f"BFCL_v4_{name}.json")[int(offset or 0) :][: int(count or 100)]
    truths = {row["id"]: row["ground_truth"] for row in lines(data / "possible_answer" / f"BFCL_v4_{name}.json")}
    right = none = errors = number = 0
    begun = time.monotonic()
    for task in rows:
        calls: list[tuple[str, Any]] = []
        try:
            calls = executed(client, task, judge["fix"])
        except llmbroker.LLMBrokerError as error:
            errors += 1
            print(f"{task['id']}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
        truth = truths[task["id"]]
        good = judge["ok"](calls, truth)
        right, none, number = right + good, none + (not calls), number + (len(calls) == len(truth))
        if show:
            told = f"{task['question'][0][-1]['content']}\n  calls {json.dumps(calls)}\n  truth {json.dumps(truth)}"
            print(f"{task['id']}: {'right' if good else told}", flush=True)
    figures = {"category": name, "n": len(rows), "right": right, "number_right": number, "no_call": none, "errors": errors}
    print(json.dumps({**figures, "s": round(time.monotonic() - begun)}), flush=True)


def main(shared: str, *arguments: str) -> int:
    """Run the categories."""
    bench = Path(shared) / "bench"
    made = subprocess.run(
        [sys.executable, str(bench / "small_model.py"), str(CACHE)], capture_output=True, text=True, check=True
    )
    client = llmbroker.DirectClient(provider="local", model=made.stdout.strip().splitlines()[-1], timeout=600)
    judge = judgement(bench / "bfcl_loop.py")
    for category in [word for word in arguments if word != "--show"] or DEFAULT:
        run(client, tasks(), category, judge, "--show" in arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
