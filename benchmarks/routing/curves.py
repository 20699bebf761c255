"""Draw how ratings are followed, as light SVG: the share of the truly best model among each 20 calls.

python benchmarks/routing/curves.py OURS.jsonl PEER.jsonl [--to docs]

The rows are those that ``run.py --out`` keeps of the rated profiles of ``worlds.py``. Prints the regret of both.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

STEP, WIDTH, HEIGHT, LEFT, TOP = 20, 640, 220, 44, 26
LINES = (("this package", "#1a6fb0", ""), ("the peer", "#b0531a", ' stroke-dasharray="5 4"'))


def shares(rows: list[dict[str, list[int]]]) -> list[float]:
    """Return for each block of calls the share of those that the best model answered."""
    calls = len(rows[0]["hits"])
    return [statistics.fmean(hit for row in rows for hit in row["hits"][at : at + STEP]) for at in range(0, calls, STEP)]


def picture(title: str, lines: list[list[float]]) -> str:
    """Return an SVG with a line for each series of shares."""
    right, bottom = WIDTH - 12, HEIGHT - 34
    wide, high = right - LEFT, bottom - TOP
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/><text x="{LEFT}" y="16" font-weight="bold">{title}</text>',
    ]
    for share in (0.0, 0.5, 1.0):
        y = bottom - share * high
        out.append(f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#ddd"/><text x="6" y="{y + 4:.1f}">{100 * share:.0f} %</text>')
    out += [f'<text x="{LEFT + wide * at / 400 - 8:.0f}" y="{bottom + 16}">{at}</text>' for at in range(0, 401, 100)]
    out.append(f'<path d="M{LEFT + wide / 2:.0f} {TOP}V{bottom}" stroke="#999" stroke-dasharray="2 3"/>')
    for place, (series, (name, colour, dash)) in enumerate(zip(lines, LINES, strict=True)):
        points = " ".join(
            f"{LEFT + wide * (at + 0.5) / len(series):.1f},{bottom - share * high:.1f}" for at, share in enumerate(series)
        )
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        out.append(f'<text x="{LEFT + 150 * place}" y="{HEIGHT - 4}" fill="{colour}">{name}</text>')
    out.append(f'<text x="{right - 62}" y="{HEIGHT - 4}">rated calls</text></svg>')
    return "\n".join(out) + "\n"


def main() -> None:
    """Draw what both did."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path, nargs=2)
    parser.add_argument("--to", type=Path, default=Path("docs"))
    options = parser.parse_args()
    both = [[json.loads(line) for line in path.read_text().splitlines()] for path in options.rows]
    for profile, title in (
        ("rated_reversed", "Ratings reverse the list's order; after 200 calls they agree with it"),
        ("rated_listed", "Ratings agree with the list's order; after 200 calls they reverse it"),
        ("rated_alike", "Qualities 0.60 to 0.75; after 200 calls the other way round"),
    ):
        rows = [[row for row in one if row["profile"] == profile] for one in both]
        regrets = " ".join(f"{statistics.fmean(row['regret'] for row in one):.3f}" for one in rows)
        print(f"{profile}: regret a call, ours and the peer's: {regrets}")
        if profile != "rated_alike":
            (options.to / f"routing-{profile.removeprefix('rated_')}.svg").write_text(picture(title, [shares(r) for r in rows]))


if __name__ == "__main__":
    main()
