"""CPU of one step of a tool loop, plain and with all that can be asked for: one model call, one tool.

Usage: steps.py [STEPS]. Each kind runs five times over the replay port, a fresh loop of 300 steps each; the best counts. The
answers are bytes that were made before; the port's own share is in every row, and stands alone in the first.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import llmbroker
from llmbroker.testing import Answer, Replay, content_type, made_reply, stream, whole


def add(a: int, b: int) -> str:
    return str(a + b)


NUMBER = {"type": "integer"}
PARAMETERS = {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]}
DECLARED = [{"type": "function", "function": {"name": "add", "description": "", "parameters": PARAMETERS}}]


def answers(steps: int, streamed: bool) -> list[Answer]:
    """Return what the model says: so many calls, then an answer."""
    turns = [made_reply("", [("add", {"a": n, "b": 1})]) for n in range(steps)]
    how = {"content-type": content_type("openai-chat", stream=streamed)}
    made = [stream(t, "openai-chat") if streamed else [whole(t, "openai-chat")] for t in (*turns, made_reply("The end."))]
    return [Answer(headers=how, body=body) for body in made]


def measured(steps: int, run: Callable[[Any], Any], streamed: bool = False) -> float:
    """Return microseconds of CPU a step."""
    best = float("inf")
    for _ in range(5):
        said = iter(answers(steps, streamed))
        port = Replay(record=False).on(None, lambda _, said=said: next(said), times=None)
        client = llmbroker.DirectClient(base_url="http://scripted.example/v1", model="m", io=port)
        began = time.process_time()
        run(client)
        best = min(best, time.process_time() - began)
    return best / steps * 1e6


def calls_alone(client: Any, steps: int) -> None:
    """Ask as often as the loop does, with a history of one message: what a step costs below the loop."""
    for _ in range(steps + 1):
        client.chat("Hi", tools=DECLARED)


def main(steps: int = 300) -> None:
    """Print a table."""
    how: dict[str, Any] = {"max_steps": steps + 1}
    budget = llmbroker.Budget(steps=steps + 5, tokens=10**9, seconds=3600)
    with tempfile.TemporaryDirectory() as folder:
        runs, names = llmbroker.Runs(f"{folder}/runs.db"), iter(range(1000))
        kinds: dict[str, Callable[[Any], Any]] = {
            "call alone": lambda c: calls_alone(c, steps),
            "declared tool": lambda c: llmbroker.run_tool_loop(c, "Hi", tools=DECLARED, dispatch={"add": add}, **how),
            "function tool": lambda c: llmbroker.run_tool_loop(c, "Hi", tools=[add], **how),
            "with a budget": lambda c: llmbroker.run_tool_loop(c, "Hi", tools=[add], budget=budget, **how),
            "streamed": lambda c: list(llmbroker.stream_tool_loop(c, "Hi", tools=[add], **how)),
            "durable": lambda c: runs.run(c, "Hi", run_id=str(next(names)), tools=[add], **how),
            "all three": lambda c: list(runs.stream(c, "Hi", run_id=str(next(names)), tools=[add], budget=budget, **how)),
        }
        for name, run in kinds.items():
            print(f"{name:14} {measured(steps, run, name in ('streamed', 'all three')):6.0f} us a step")
        runs.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
