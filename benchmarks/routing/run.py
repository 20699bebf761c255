"""Measure the broker's routing in the simulator and print it beside the peer, the oracle and what is required.

    python benchmarks/routing/run.py SHARED [--seeds 20] [--first 0] [--profiles all|a,b] [--adapter ours] [--python PATH]

SHARED is the folder with ``routing/``: simulator, recorded workload, results of the peers. It is copied to a temporary folder,
this folder's adapters and worlds are put beside the others, and the profiles run side by side, one process a core. Needs gcc
(the simulator's clock is a preloaded library). The adapter of the peer package wants the interpreter of an environment of its
own: ``--adapter llmbroker --python peer/bin/python``.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REQUIRED = {
    "burst4_w45": 92.0,
    "burst4_w25": 81.0,
    "burst4_w10": 54.0,
    "paced5s_w25": 97.0,
    "storm16_w25": 47.0,
    "outage_best_w25": 76.0,
    "hang_best_w25": 75.0,
}
"""Good answers, percent of all requests."""
OTHERS = (
    *("burst4_w25_spent", "deadkey_w25", "hang_groq_w25", "ratings_w45", "storm40_w25", "dies_midway_w25", "spent_w10"),
    *("all_hang_w25", "all_down_w25", "best_slow_w25", "flaps_w25", "hang_both_w45", "rated_reversed", "rated_listed"),
)
MEDIAN, WASTED = 1.3, 1.5
"""The median latency may be so many times the oracle's, wasted attempts so many times the peer's; refusals as the peer's."""

Rows = dict[tuple[str, str], list[dict[str, float]]]


def copied(shared: Path, to: Path) -> Path:
    """Copy the simulator, add the adapters of this folder."""
    folder = to / "routing"
    shutil.copytree(shared / "routing", folder)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for adapter in Path(__file__).parent.glob("ours*.py"):
        shutil.copy(adapter, folder / "adapters")
    shutil.copy(Path(__file__).parent / "worlds.py", folder)
    return folder


def _env(folder: Path) -> dict[str, str]:
    """The simulator builds its clock in the temporary folder: let that be ours, so that no two runs build over each other."""
    return {**os.environ, "TMPDIR": str(folder)}


def simulate(folder: Path, options: argparse.Namespace, profile: str) -> list[dict[str, float]]:
    """Run one profile and return a row for each seed."""
    out = folder / f"out-{profile}.jsonl"
    command = [options.python, str(folder / "worlds.py"), "--adapter", options.adapter, "--profiles", profile]
    command += ["--seeds", str(options.seeds), "--first", str(options.first), "--out", str(out)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=_env(folder), timeout=40 + 12 * options.seeds
    )
    if done.returncode or not out.exists():
        raise SystemExit(f"{profile} failed:\n{done.stderr[-3000:]}")
    return [json.loads(line) for line in out.read_text().splitlines()]


def known(folder: Path, seeds: range) -> Rows:
    """Return the recorded rows of the peers and oracles for these seeds; all of theirs where they have none of these."""
    rows: Rows = collections.defaultdict(list)
    for path in sorted((folder / "results").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            rows[row["profile"], row["adapter"]].append(row)
    return {key: [row for row in found if row["seed"] in seeds] or found for key, found in rows.items()}


def mean(rows: list[dict[str, float]] | None, field: str) -> float:
    """Return the mean of a column; NaN without rows."""
    values = [row[field] for row in rows or () if row[field] == row[field]]
    return statistics.fmean(values) if values else float("nan")


def table(ours: dict[str, list[dict[str, float]]], others: Rows) -> str:
    """Return the table: what was reached beside what is required."""
    lines = [
        "| profile | good % | required | oracle_state | peer | answered % | p50 s | at most | p95 s | 429s | peer "
        "| wasted | at most | fair |",
        "|" + "---|" * 14,
    ]
    for profile, rows in ours.items():
        oracle, peer = others.get((profile, "oracle_state")), others.get((profile, "llmbroker"))
        good, required = mean(rows, "good"), REQUIRED.get(profile, float("nan"))
        spread = statistics.stdev(row["good"] for row in rows) / len(rows) ** 0.5 if len(rows) > 1 else 0.0
        p50, p50_most = mean(rows, "p50"), MEDIAN * mean(oracle, "p50")
        wasted, wasted_most = mean(rows, "wasted"), WASTED * mean(peer, "wasted")
        refused, refused_most = mean(rows, "r429"), mean(peer, "r429")
        cells = [
            profile,
            f"{good:.1f} ± {spread:.1f}{_mark(good < required)}",
            f"{required:.0f}",
            f"{mean(oracle, 'good'):.1f}",
            f"{mean(peer, 'good'):.1f}",
            f"{mean(rows, 'answered'):.1f}",
            f"{p50:.2f}{_mark(p50 > p50_most)}",
            f"{p50_most:.2f}",
            f"{mean(rows, 'p95'):.1f}",
            f"{refused:.1f}{_mark(refused > refused_most)}",
            f"{refused_most:.1f}",
            f"{wasted:.1f}{_mark(wasted > wasted_most)}",
            f"{wasted_most:.1f}",
            f"{mean(rows, 'jain'):.3f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _mark(missed: bool) -> str:
    return " (!)" if missed else ""


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shared", type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--profiles", default=",".join(REQUIRED))
    parser.add_argument("--adapter", default="ours")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has the adapter's package")
    parser.add_argument("--out", type=Path, help="keep the rows here, one JSON object a line")
    options = parser.parse_args()
    profiles = [*REQUIRED, *OTHERS] if options.profiles == "all" else options.profiles.split(",")
    with tempfile.TemporaryDirectory() as temporary:
        folder = copied(options.shared, Path(temporary))
        subprocess.run(
            [sys.executable, str(folder / "sim.py"), "--help"], env=_env(folder), stdout=subprocess.DEVNULL, check=True
        )
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            runs = pool.map(lambda one: simulate(folder, options, one), profiles)
            ours = dict(zip(profiles, runs, strict=True))
        print(table(ours, known(folder, range(options.first, options.first + options.seeds))))
    if options.out:
        options.out.write_text("".join(json.dumps(row) + "\n" for rows in ours.values() for row in rows))


if __name__ == "__main__":
    main()
