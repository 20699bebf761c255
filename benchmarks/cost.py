"""CPU of a call, a tool loop, a stream, in units of a bare httpx POST, measured in turn in fresh processes.

Usage: cost.py SHARED [CASE ...]. SHARED/bench/ratio.py measures one case; the bounds below are the project's budget.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# case: (reference, the most that it may cost)
BUDGET = {
    "ours-direct": ("httpx", 0.6),
    "ours-adirect": ("httpx", 0.8),
    "ours-direct-loop": ("httpx", 1.3),
    "ours-pool": ("httpx", 1.0),
    "ours-apool": ("httpx", 1.0),
    "ours-loop": ("httpx", 2.0),
    "ours-aloop": ("httpx", 2.5),
    "ours-stream": ("httpx-stream", 1.0),
    "ours-pool-stream": ("httpx-stream", 1.0),
}


def main(shared: str, *cases: str) -> int:
    ratio = Path(shared) / "bench" / "ratio.py"
    over = []
    for case in cases or BUDGET:
        reference, most = BUDGET[case]
        done = subprocess.run([sys.executable, str(ratio), "--ref", reference, "--max", str(most), case], check=False)
        if done.returncode:
            over.append(f"{case} (at most {most})")
    print("over budget, or not measured: " + ", ".join(over) if over else "all within budget")
    return len(over)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
