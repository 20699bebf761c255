"""The drawing of a replay: good answers against latency, and the differences to the best fixed model. Needs matplotlib."""

from __future__ import annotations

import os
from typing import Any

from llmbroker.errors import ConfigurationError
from llmbroker.replaying.result import Replayed


def draw(result: Replayed, path: str | os.PathLike[str]) -> None:
    """Draw into a file; its ending says in which format.

    Raises:
        ConfigurationError: matplotlib is not installed, there is nothing to draw, or the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigurationError(
            "A drawing needs matplotlib, which is not installed.", hint="pip install 'llmbroker[plot]', or leave --plot out."
        ) from None
    shown = [policy for policy in result.policies if policy.good is not None]
    if not shown:
        raise ConfigurationError("There is nothing to draw: no policy could be judged.")
    figure = Figure(figsize=(11, 0.5 * len(shown) + 1.8), layout="constrained")
    FigureCanvasAgg(figure)
    names = [policy.name if policy.model in (None, policy.name) else f"{policy.name}: {policy.model}" for policy in shown]
    panels = [
        ("good answers a request, %", [policy.good for policy in shown], 100.0),
        ("seconds until an answer, median", [policy.p50 for policy in shown], 1.0),
        (f"good answers more than always {result.best}, points", [policy.against.get("good") for policy in shown], 100.0),
    ]
    axes = figure.subplots(1, len(panels), sharey=True)
    for axis, (title, figures, scale) in zip(axes, panels, strict=True):
        _panel(axis, title, figures, scale)
    axes[0].set_yticks(range(len(shown)), names)
    axes[0].invert_yaxis()
    axes[-1].axvline(0.0, color="0.6", linewidth=0.8)
    figure.suptitle(f"{result.judged} requests, 95 % intervals: {result.verdict.replace('_', ' ')}", fontsize=11)
    try:
        # No date in the file: the same journal gives the same drawing.
        metadata = {"Date": None} if os.fspath(path).lower().endswith(".svg") else {}
        figure.savefig(path, metadata=metadata)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"The drawing cannot be written to {os.fspath(path)}: {error}") from error


def _panel(axis: Any, title: str, figures: Any, scale: float) -> None:
    axis.set_xlabel(title, fontsize=9)
    axis.grid(axis="x", color="0.9")
    for at, figure in enumerate(figures):
        if figure is not None:
            axis.plot([scale * figure.low, scale * figure.high], [at, at], color="tab:blue", linewidth=2)
            axis.plot([scale * figure.value], [at], "o", color="tab:blue")
