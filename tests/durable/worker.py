"""A worker for the tests: ``python worker.py URL LOG``; its tools note each call in a file before and after."""

import os
import sys
import time

import llmbroker
from llmbroker.durable import Queue
from llmbroker.testing import ScriptedModel, made_reply

STEPS = 6


def said(asked):
    done = len(asked.results) // 2
    if done >= STEPS:
        return made_reply("all done")
    return made_reply("", [("safe", {"n": done}), ("once", {"n": done})])


def queue_of(url, log_path):
    queue = Queue(url, look_every=0.2, per_worker=4)

    def note(words):
        log = os.open(log_path, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        os.write(log, f"{words}\n".encode())
        os.close(log)

    @queue.agent("count")
    def count():
        def run_of(ctx):
            return ctx.messages[0]["content"]

        @llmbroker.tool(safe_to_repeat=True)
        def safe(n: int, ctx: llmbroker.ToolContext) -> str:
            note(f"+{run_of(ctx)} safe {n}")
            time.sleep(0.02)
            note(f"-{run_of(ctx)} safe {n}")
            return f"safe {n}"

        @llmbroker.tool
        def once(n: int, ctx: llmbroker.ToolContext) -> str:
            note(f"+{run_of(ctx)} once {n}")
            time.sleep(0.02)
            note(f"-{run_of(ctx)} once {n}")
            return f"once {n}"

        port = ScriptedModel(said, forever=True).port()
        client = llmbroker.DirectClient(base_url="http://scripted.example/v1", model="m", io=port)
        return {"caller": client, "tools": [safe, once], "max_steps": STEPS + 1}

    @queue.agent("ask")
    def ask():
        @llmbroker.tool(approval=True)
        def risky(n: int) -> str:
            return f"did {n}"

        def answer(asked):
            return made_reply("fine") if asked.results else made_reply("", [("risky", {"n": 1})])

        port = ScriptedModel(answer, forever=True).port()
        client = llmbroker.DirectClient(base_url="http://scripted.example/v1", model="m", io=port)
        return {"caller": client, "tools": [risky]}

    return queue


if "QUEUE_URL" in os.environ:
    queue = queue_of(os.environ["QUEUE_URL"], os.environ["QUEUE_LOG"])

if __name__ == "__main__":
    queue_of(sys.argv[1], sys.argv[2]).work()
