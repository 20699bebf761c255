"""CPU of ``import llmbroker`` beside ``import httpx``, and memory with a client made; medians of fresh processes in turn."""

from __future__ import annotations

import statistics
import subprocess
import sys

ROUNDS = 11
CASES = {
    "import httpx": "import httpx",
    "import llmbroker": "import llmbroker",
    "a direct client": "import llmbroker; c = llmbroker.DirectClient(base_url='http://127.0.0.1:9/v1', model='m')",
    "an async direct client": "import llmbroker; c = llmbroker.AsyncDirectClient(base_url='http://127.0.0.1:9/v1', model='m')",
}
MEASURE = """
import resource, time
before = time.process_time()
{code}
print(time.process_time() - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def measure(code: str) -> tuple[float, float]:
    done = subprocess.run([sys.executable, "-c", MEASURE.format(code=code)], capture_output=True, text=True, check=True)
    seconds, megabytes = done.stdout.split()
    return float(seconds), float(megabytes)


def main() -> None:
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
    for _ in range(ROUNDS):
        for name, code in CASES.items():
            runs[name].append(measure(code))
    unit = statistics.median(seconds for seconds, _ in runs["import httpx"])
    for name, pairs in runs.items():
        seconds = statistics.median(s for s, _ in pairs)
        megabytes = statistics.median(m for _, m in pairs)
        print(f"{name:24} {seconds * 1000:7.1f} ms CPU   {seconds / unit:5.2f} x import httpx   {megabytes:6.1f} MB")


if __name__ == "__main__":
    main()
