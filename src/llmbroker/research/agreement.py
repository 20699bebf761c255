"""Agreement of several codings of the same things: majorities by row, and Krippendorff's alpha.

Alpha is one minus the observed disagreement over the disagreement that chance would give, both counted in the matrix of
coincidences, so that missing codings cost nothing but themselves. Source: K. Krippendorff, "Computing Krippendorff's
Alpha-Reliability" (2011), whose worked examples are the tests.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import msgspec

from llmbroker.errors import InvalidRequestError
from llmbroker.research.frames import Rows, read_rows

METRICS = ("nominal", "ordinal", "interval", "ratio")


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How far codings agree.

    Attributes:
        by_row: for each row: majority (None on a tie), share, n_distinct, unanimous, tie, n_missing.
        alpha: Krippendorff's alpha; None where nothing can be estimated.
        pairwise: the mean over pairs of coders of the share of rows on which they agree, or None.
        rows: rows. paired: rows with at least two codings. codings: codings that are there. missing: those that are not.
        metric: how far apart two values count.
    """

    by_row: Rows
    alpha: float | None
    pairwise: float | None
    rows: int
    paired: int
    codings: int
    missing: int
    metric: str

    def __repr__(self) -> str:
        """Say it in a line."""
        alpha = "not estimable" if self.alpha is None else f"{self.alpha:.3f}"
        return f"Agreement(alpha={alpha} ({self.metric}), rows={self.rows}, paired={self.paired}, missing={self.missing})"


def llm_agreement(
    data: Any,
    cols: Sequence[str] | None = None,
    *,
    prefix: str | None = None,
    metric: str = "nominal",
    levels: Sequence[Any] | None = None,
    normalize: bool = True,
) -> Agreement:
    """Return how far the columns of a frame agree, row by row and as Krippendorff's alpha.

    Args:
        data: a frame or a list of dicts, a row for each thing, a column for each coder or draw; or a list of lists.
        cols: the columns.
        prefix: or what their names begin with (``draw_``); columns that end in ``_error`` do not count.
        metric: ``nominal``, ``ordinal``, ``interval`` or ``ratio``.
        levels: the order of labels, for ``ordinal`` and the others where the labels are no numbers.
        normalize: compare texts without capitals and blanks around them.

    Raises:
        InvalidRequestError: no such columns, or labels whose order is not known.
    """
    if metric not in METRICS:
        raise InvalidRequestError(f"metric is one of {', '.join(METRICS)}, not {metric!r}.", argument="metric")
    table = _cells(data, cols, prefix)
    units = [[_cleaned(cell, normalize) for cell in row] for row in table]
    value_of = _scale(units, metric, levels, normalize)
    return Agreement(
        by_row=Rows(_row(unit) for unit in units),
        alpha=_alpha([[value_of(cell) for cell in unit if cell is not None] for unit in units], metric),
        pairwise=_pairwise(units),
        rows=len(units),
        paired=sum(sum(cell is not None for cell in unit) > 1 for unit in units),
        codings=sum(cell is not None for unit in units for cell in unit),
        missing=sum(cell is None for unit in units for cell in unit),
        metric=metric,
    )


def _cells(data: Any, cols: Sequence[str] | None, prefix: str | None) -> list[list[Any]]:
    if isinstance(data, (list, tuple)) and data and all(isinstance(row, (list, tuple)) for row in data):
        return [list(row) for row in data]
    table = read_rows(data)
    if cols is None:
        start = "draw_" if prefix is None else prefix
        cols = [name for name in table.names if name.startswith(start) and not name.endswith("_error")]
    missing = [name for name in cols if name not in table.names]
    if missing or len(cols) < 2:
        why = f"there is no column {missing[0]}" if missing else f"{len(cols)} were found"
        raise InvalidRequestError(f"Agreement needs at least two columns; {why}.", argument="cols")
    return [[record.get(name) for name in cols] for record in table.records]


def _cleaned(cell: Any, normalize: bool) -> Any:
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return None
    if type(cell).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(cell, str):
        text = cell.strip().casefold() if normalize else cell
        return text if text.strip() else None
    return cell


def _scale(units: list[list[Any]], metric: str, levels: Sequence[Any] | None, normalize: bool) -> Callable[[Any], Any]:
    """Return the function from a coding to the value that is compared."""
    if levels is not None:
        places = {_cleaned(level, normalize): float(place) for place, level in enumerate(levels, 1)}
        unknown = sorted({str(cell) for unit in units for cell in unit if cell is not None and cell not in places})
        if unknown:
            raise InvalidRequestError(f"levels does not name {', '.join(unknown[:5])}.", argument="levels")
        return lambda cell: places[cell]
    if metric == "nominal":
        return lambda cell: cell
    if any(_number(cell) is None for unit in units for cell in unit if cell is not None):
        raise InvalidRequestError(
            f"The labels are no numbers, so their order is not known: give levels= for metric={metric!r}.", argument="levels"
        )
    return _number


def _number(cell: Any) -> float | None:
    try:
        value = float(cell)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _row(unit: list[Any]) -> dict[str, Any]:
    known = [cell for cell in unit if cell is not None]
    counts = Counter(known).most_common()
    tie = len(counts) > 1 and counts[0][1] == counts[1][1]
    return {
        "majority": None if not counts or tie else counts[0][0],
        "share": counts[0][1] / len(known) if counts else None,
        "n_distinct": len(counts),
        "unanimous": len(counts) == 1 if known else None,
        "tie": tie,
        "n_missing": len(unit) - len(known),
    }


def _pairwise(units: list[list[Any]]) -> float | None:
    width = max((len(unit) for unit in units), default=0)
    shares = []
    for one in range(width):
        for other in range(one + 1, width):
            both = [(u[one], u[other]) for u in units if len(u) > other and u[one] is not None and u[other] is not None]
            if both:
                shares.append(sum(a == b for a, b in both) / len(both))
    return sum(shares) / len(shares) if shares else None


def _alpha(units: list[list[Hashable]], metric: str) -> float | None:
    """Return alpha from the matrix of coincidences; None where there are no two codings of one thing."""
    coincidences: Counter[tuple[Any, Any]] = Counter()
    for unit in units:
        if len(unit) < 2:
            continue
        counts = Counter(unit)
        for a, n in counts.items():
            for b, m in counts.items():
                coincidences[a, b] += n * (m - (a == b)) / (len(unit) - 1)  # type: ignore[assignment]
    totals: Counter[Any] = Counter()
    for (a, _), n in coincidences.items():
        totals[a] += n
    total = sum(totals.values())
    if total <= 1:
        return None
    distance = _distance(totals, metric)
    observed = sum(n * distance(a, b) for (a, b), n in coincidences.items())
    expected = sum(n * m * distance(a, b) for a, n in totals.items() for b, m in totals.items()) / (total - 1)
    if expected == 0:
        return 1.0  # one value everywhere: no disagreement is possible, and there is none
    return 1.0 - observed / expected


def _distance(totals: Counter[Any], metric: str) -> Callable[[Any, Any], float]:
    if metric == "nominal":
        return lambda a, b: float(a != b)
    if metric == "interval":
        return lambda a, b: float((a - b) ** 2)
    if metric == "ratio":
        return lambda a, b: 0.0 if a == b else float(((a - b) / (a + b)) ** 2)
    ranks = sorted(totals)
    below: dict[Any, float] = {}
    so_far = 0.0
    for value in ranks:
        below[value] = so_far + totals[value] / 2
        so_far += totals[value]
    return lambda a, b: float((below[a] - below[b]) ** 2)
