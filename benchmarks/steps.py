"""CPU of one step of a tool loop, plain and with all that can be asked for; the scripted model's own share is in every row.

Usage: steps.py [STEPS]. Each kind runs three times over the replay port, a fresh loop of 300 steps each; the best counts.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import llmbroker
from llmbroker.testing import ScriptedModel, made_reply


def add(a: int, b: int) -> str:
    return str(a + b)


NUMBER = {"type": "integer"}
PARAMETERS = {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]}
DECLARED = [{"type": "function", "function": {"name": "add", "description": "", "parameters": PARAMETERS}}]


def measured(steps: int, run: Callable[[Any], Any]) -> float:
    """Return microseconds of CPU a step."""
    best = float("inf")
    for _ in range(3):
        turns = [made_reply("", [("add", {"a": n, "b": 1})]) for n in range(steps)]
        model = ScriptedModel(*turns, made_reply("The end."))
        client = llmbroker.DirectClient(base_url="http://scripted.example/v1", model="m", io=model.port())
        began = time.process_time()
        run(client)
        best = min(best, time.process_time() - began)
        model.check()
    return best / steps * 1e6


def main(steps: int = 300) -> None:
    """Print a table."""
    how: dict[str, Any] = {"max_steps": steps + 1}
    budget = llmbroker.Budget(steps=steps + 5, tokens=10**9, seconds=3600)
    with tempfile.TemporaryDirectory() as folder:
        runs, names = llmbroker.Runs(f"{folder}/runs.db"), iter(range(1000))
        kinds: dict[str, Callable[[Any], Any]] = {
            "declared tool": lambda c: llmbroker.run_tool_loop(c, "Hi", tools=DECLARED, dispatch={"add": add}, **how),
            "function tool": lambda c: llmbroker.run_tool_loop(c, "Hi", tools=[add], **how),
            "with a budget": lambda c: llmbroker.run_tool_loop(c, "Hi", tools=[add], budget=budget, **how),
            "streamed": lambda c: list(llmbroker.stream_tool_loop(c, "Hi", tools=[add], **how)),
            "durable": lambda c: runs.run(c, "Hi", run_id=str(next(names)), tools=[add], **how),
            "all three": lambda c: list(runs.stream(c, "Hi", run_id=str(next(names)), tools=[add], budget=budget, **how)),
        }
        for name, run in kinds.items():
            print(f"{name:14} {measured(steps, run):6.0f} us a step")
        runs.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
