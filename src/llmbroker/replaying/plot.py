"""Drawings of figures with their intervals. Needs matplotlib."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeAlias

from llmbroker.errors import ConfigurationError
from llmbroker.replaying.measure import Figure

Panel: TypeAlias = tuple[str, Sequence[Figure | None], float]
"""A title, a figure for each name, and what figures are multiplied by."""


def draw(path: str | os.PathLike[str], title: str, names: Sequence[str], panels: Sequence[Panel]) -> None:
    """Draw panels side by side into a file; its ending says in which format. The last panel has a line at 0.

    Raises:
        ConfigurationError: matplotlib is not installed, there is nothing to draw, or the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Sheet
    except ImportError:
        raise ConfigurationError(
            "A drawing needs matplotlib, which is not installed.", hint="pip install 'llmbroker[plot]', or leave --plot out."
        ) from None
    if not names:
        raise ConfigurationError("There is nothing to draw: no policy could be judged.")
    sheet = Sheet(figsize=(11, 0.5 * len(names) + 1.8), layout="constrained")
    FigureCanvasAgg(sheet)
    axes = sheet.subplots(1, len(panels), sharey=True)
    for axis, panel in zip(axes, panels, strict=True):
        _panel(axis, *panel)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    axes[-1].axvline(0.0, color="0.6", linewidth=0.8)
    sheet.suptitle(title, fontsize=11)
    try:
        # No date in the file: the same journal gives the same drawing.
        metadata = {"Date": None} if os.fspath(path).lower().endswith(".svg") else {}
        sheet.savefig(path, metadata=metadata)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"The drawing cannot be written to {os.fspath(path)}: {error}") from error


def _panel(axis: Any, title: str, figures: Sequence[Figure | None], scale: float) -> None:
    axis.set_xlabel(title, fontsize=9)
    axis.grid(axis="x", color="0.9")
    for at, figure in enumerate(figures):
        if figure is not None:
            axis.plot([scale * figure.low, scale * figure.high], [at, at], color="tab:blue", linewidth=2)
            axis.plot([scale * figure.value], [at], "o", color="tab:blue")
