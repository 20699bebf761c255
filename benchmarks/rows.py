"""Rows a second: ``call_llm_par`` beside a pool of 8 threads over the openai client, against one provider of this machine.

    python benchmarks/rows.py [ROWS] [MILLISECONDS]

The provider is a process of its own and takes 50 ms for each answer. Both sides ask the same questions, one after the other,
three times in turn; ours with and without a run file. Printed are the medians. Needs openai.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
SERVER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from tests.research.provider import Provider
with Provider(delay=float(sys.argv[2]), faults=False) as provider:
    print(provider.url, flush=True)
    sys.stdin.read()
"""
OURS = """
import json, resource, sys, time
from llmbroker.research import call_llm_par, llm_config
url, count, file = sys.argv[1], int(sys.argv[2]), sys.argv[3] or None
config = llm_config("lab", "local", base_url=url, price={"input": 1, "output": 2})
rows = [{"prompt": f"Question {n}"} for n in range(count)]
call_llm_par(rows[:20], config, progress=False)
began = time.perf_counter()
out = call_llm_par(rows, config, progress=False, run_file=file)
seconds = time.perf_counter() - began
assert all(row["success"] for row in out)
print(json.dumps([count / seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""
THEIRS = """
import json, resource, sys, time
from concurrent.futures import ThreadPoolExecutor
import openai
url, count = sys.argv[1], int(sys.argv[2])
client = openai.OpenAI(base_url=url, api_key="none")
def one(n):
    asked = [{"role": "user", "content": f"Question {n}"}]
    return client.chat.completions.create(model="local", messages=asked).choices[0].message.content
with ThreadPoolExecutor(8) as pool:
    list(pool.map(one, range(20)))
    began = time.perf_counter()
    out = list(pool.map(one, range(count)))
    seconds = time.perf_counter() - began
assert all(text.startswith("Answer") for text in out)
print(json.dumps([count / seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


@contextlib.contextmanager
def provider(delay: float) -> Iterator[str]:
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(CHECKOUT), str(delay)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        yield server.stdout.readline().strip()
    finally:
        server.communicate()


def measured(code: str, *arguments: str) -> list[float]:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    made: list[float] = json.loads(done.stdout.splitlines()[-1])
    return made


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    delay = float(sys.argv[2]) / 1000 if len(sys.argv) > 2 else 0.05
    few = str(min(count, 800))
    rates: dict[str, list[list[float]]] = {"openai, 8 threads": [], "call_llm_par": [], "call_llm_par, run file": []}
    with provider(delay) as url, tempfile.TemporaryDirectory() as folder:
        for turn in range(3):
            rates["openai, 8 threads"].append(measured(THEIRS, url, few))
            rates["call_llm_par"].append(measured(OURS, url, str(count), ""))
            rates["call_llm_par, run file"].append(measured(OURS, url, str(count), f"{folder}/{turn}.db"))
    base = statistics.median(rate for rate, _ in rates["openai, 8 threads"])
    for name, runs in rates.items():
        rate, memory = (statistics.median(values) for values in zip(*runs, strict=True))
        print(f"{name:24} {rate:8.0f} rows/s  {rate / base:5.1f} x  {memory:4.0f} MB")
    print(f"provider: {delay * 1000:.0f} ms; rows: {count:,} (openai: {few}); load {_load()}")


def _load() -> str:
    try:
        return Path("/proc/loadavg").read_text().split()[0]
    except OSError:
        return "unknown"


if __name__ == "__main__":
    main()
