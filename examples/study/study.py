"""An example study: do two prompts code forty reviews alike, and as people do? On the model of this machine, without a key.

    pip install 'llmbroker[local,frames,study]'
    python examples/study/study.py

It writes ``output.txt`` and ``plot.svg`` beside itself. A second run finds every answer in the run file ``study.db``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
from pathlib import Path
from typing import Literal

import pandas as pd
from pydantic import BaseModel

import llmbroker as lb

HERE = Path(__file__).resolve().parent
PROMPTS = {
    "plain": "Is this review positive or negative? Review: {text}",
    "examples": (
        "Is this review positive or negative?\n"
        "Review: I loved it. -> positive\n"
        "Review: It was awful. -> negative\n"
        "Review: {text} ->"
    ),
}
HOSTED = [{"model": "smollm2-135m-instruct", "input": 0.05, "output": 0.20}]  # US dollars per million tokens


class Code(BaseModel):
    """What is said about a review."""

    sentiment: Literal["positive", "negative"]


def study(folder: Path) -> pd.DataFrame:
    reviews = pd.read_csv(HERE / "reviews.csv")
    config = lb.llm_config(
        "local",
        "smollm2-135m-instruct",
        temperature=0,
        max_tokens=40,
        response_format=Code,
    )
    run_file = folder / "study.db"

    print("What it will take")
    for name, prompt in PROMPTS.items():
        print(f"  {name:9}", lb.call_llm_par(reviews, config, prompt, run_file=run_file, dry_run=True))

    coded = reviews
    for name, prompt in PROMPTS.items():
        answers = lb.call_llm_par(reviews, config, prompt, run_file=run_file, max_workers=4)
        coded = coded.assign(**{name: [(data or {}).get("sentiment") for data in answers["structured_data"]]})
    warmer = config.replace(temperature=0.8)
    draws = lb.llm_replicate(reviews, warmer, PROMPTS["plain"], times=3, run_file=run_file, max_workers=4)
    drawn = pd.DataFrame({name: draws[name].map(sentiment) for name in ("draw_1", "draw_2", "draw_3")})

    print("\nAgreement (Krippendorff's alpha, nominal)")
    print("  the two prompts       ", lb.llm_agreement(coded, ["plain", "examples"]))
    print("  plain and people      ", lb.llm_agreement(coded, ["plain", "gold"]))
    print("  examples and people   ", lb.llm_agreement(coded, ["examples", "gold"]))
    print("  three draws, plain    ", lb.llm_agreement(drawn))

    print("\nRight answers")
    for name in PROMPTS:
        print(f"  {name:9} {(coded[name] == coded['gold']).sum()} of {len(coded)}")

    used = lb.llm_usage(run_file, price_table=HOSTED)
    print(f"\nWhat it took\n  {used.requests} requests, {used.sent:,} tokens in, {used.rec:,} out, {used.failed} failed")
    print(f"  on this machine: nothing; hosted at $0.05 and $0.20 per million tokens: ${used.cost:.5f}")
    print("\nFor the methods section\n  " + lb.report(run_file, config=[config, warmer]))
    print(f"\n{lb.llm_export(run_file, folder / 'audit.jsonl')} lines of audit.jsonl, the first request's identity:")
    print("  " + lb.llm_log_read(folder / "audit.jsonl")[0]["request_hash"])
    return coded


def sentiment(answer: str | None) -> str | None:
    found = lb.llm_parse_structured(answer or "", Code)
    return found.sentiment if found is not None else None


def plot(coded: pd.DataFrame, file: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    shares = pd.DataFrame(
        {
            name: [(coded.loc[coded["gold"] == gold, name] == "positive").mean() for gold in ("positive", "negative")]
            for name in PROMPTS
        },
        index=["positive reviews", "negative reviews"],
    )
    axes = shares.plot.bar(rot=0, figsize=(6, 3.2), color=["#4c72b0", "#dd8452"], ylim=(0, 1.05))
    axes.set_ylabel('share coded "positive"')
    axes.set_title("Forty reviews, two prompts, one small model")
    plt.tight_layout()
    plt.savefig(file, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=HERE, help="where output.txt, plot.svg, study.db and audit.jsonl go")
    folder: Path = parser.parse_args().folder
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        coded = study(folder)
    (folder / "output.txt").write_text(written.getvalue(), encoding="utf-8")
    plot(coded, folder / "plot.svg")
    print(written.getvalue())


if __name__ == "__main__":
    main()
