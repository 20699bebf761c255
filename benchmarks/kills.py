"""kill -9 at any moment: every reply that a caller held has its row, and the journal opens again.

Usage: kills.py [KILLS]. A forked child asks a scripted model as fast as it can and says the id of each reply that it holds; it
is killed after a random while. Then the journal must have a row for every id that was said.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import llmbroker
from llmbroker.transports import Answer, Replay

ANSWER = Answer(
    body={
        "id": "c",
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Paris"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
    }
)
POOL = [llmbroker.LLMConfig(name="m", model="m", base_url="http://127.0.0.1:9/v1", api_key_ref="")]


def scripted() -> Replay:
    return Replay(record=False).on(None, ANSWER, times=None)


def child(db: str, pipe: int) -> None:
    """Ask until killed; say the id of each reply."""
    broker = llmbroker.Broker(db, pool=POOL, io=scripted())
    while True:
        os.write(pipe, f"{broker.ask('?').call_id}\n".encode())


def one(db: str, seconds: float) -> list[str]:
    """Run a child, kill it after a while, return the ids that it said."""
    mine, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(mine)
        try:
            child(db, theirs)
        finally:
            os._exit(1)
    os.close(theirs)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    said = b""
    while part := os.read(mine, 65536):
        said += part
    os.close(mine)
    _, status = os.waitpid(pid, 0)
    if os.WTERMSIG(status) != signal.SIGKILL:
        raise SystemExit("the child ended by itself")
    return [line for line in said.decode().split("\n")[:-1] if line]


def main(kills: int) -> int:
    dice = random.Random(1)
    held = lost = 0
    with tempfile.TemporaryDirectory() as folder:
        db = str(Path(folder) / "broker.db")
        with llmbroker.Broker(db, pool=POOL, io=scripted()) as broker:
            broker.ask("?")  # everything is imported before the first fork
        for _ in range(kills):
            said = one(db, dice.uniform(0.005, 0.1))
            with llmbroker.Broker(db, pool=POOL) as broker:
                missing = [call for call in said if not broker.calls(limit=1, call_id=call)]
            held += len(said)
            lost += len(missing)
    print(f"{kills} kills, {held} replies held, {lost} without a row")
    return 1 if lost or not held else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
