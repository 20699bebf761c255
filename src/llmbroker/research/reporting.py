"""What a study used, what failed, and a paragraph for its methods section; from rows, a frame, or a run file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from llmbroker.errors import InvalidRequestError
from llmbroker.journal import utc
from llmbroker.research.frames import Rows, read_rows
from llmbroker.research.outcome import BASE
from llmbroker.research.runfile import RunFile
from llmbroker.research.watch import VERSION


class Usages(msgspec.Struct, frozen=True, kw_only=True):
    """What a study used. Sums add what is known; ``unknown_tokens`` and ``unpriced`` say for how many answers it is not.

    Attributes:
        rows, ok, failed, not_asked: rows, by what became of them.
        truncated, filtered: answers that were cut at the limit, or refused.
        requests: attempts, retries included. lost: of a run file: requests on their way when a run was killed.
        sent, rec, total, reasoning, cached: tokens, None where nothing is known.
        unknown_tokens: answers without token counts.
        cost: US dollars of the answers whose price is known, None where none is.
        unpriced: answers without a cost.
        seconds: the sum of the answers' durations.
        by_model: rows and cost for each model.
    """

    rows: int
    ok: int
    failed: int
    not_asked: int
    truncated: int
    filtered: int
    requests: int
    lost: int = 0
    sent: int | None = None
    rec: int | None = None
    total: int | None = None
    reasoning: int | None = None
    cached: int | None = None
    unknown_tokens: int = 0
    cost: float | None = None
    unpriced: int = 0
    seconds: float | None = None
    by_model: dict[str, dict[str, Any]] = {}

    @property
    def ok_rate(self) -> float | None:
        """The share of the asked rows that were answered."""
        asked = self.ok + self.failed
        return self.ok / asked if asked else None


def outcomes_of(data: Any) -> tuple[list[dict[str, Any]], int]:
    """Return the columns of this room, row by row, under their plain names; and the requests that a run file lost.

    Raises:
        InvalidRequestError: it holds no results, or two sets of them.
    """
    if isinstance(data, (str, os.PathLike)):
        with RunFile(data, reading=True) as run:
            rows = [{name: getattr(outcome, name) for name in BASE} for _, outcome in run.outcomes()]
            return rows, run.counts()["lost"]
    table = read_rows(data)
    names = _names(table.names)
    return [{name: _value(record.get(column)) for name, column in names.items()} for record in table.records], 0


def _names(columns: Sequence[str]) -> dict[str, str]:
    """Return our names to the columns that bear them: a user's own column pushed ours to ``.1``."""
    names = {}
    for name in BASE:
        renamed = [column for column in columns if column.startswith(f"{name}.") and column[len(name) + 1 :].isdigit()]
        if len(renamed) > 1:
            raise InvalidRequestError(f"The rows hold results of several runs: {', '.join(renamed)}.", argument="data")
        if renamed:
            names[name] = renamed[0]
        elif name in columns:
            names[name] = name
    if "response_text" not in names or "success" not in names:
        raise InvalidRequestError("These rows hold no results of call_llm_par.", argument="data")
    return names


def _value(value: Any) -> Any:
    """Return None for what frames write where nothing is."""
    return None if value is None or value != value or type(value).__name__ in ("NAType", "NaTType") else value


def llm_usage(data: Any, *, price_table: Any = None) -> Usages:
    """Return what a study used.

    Args:
        data: what ``call_llm_par`` returned, or the path of a run file.
        price_table: rows with ``model``, ``input``, ``output`` and maybe ``cached``, US dollars per million tokens, that win
            over the costs in the rows.

    Raises:
        InvalidRequestError: there are no results in it.
    """
    rows, lost = outcomes_of(data)
    prices = _prices(price_table)
    costs = [_cost(row, prices) if prices else row["cost"] for row in rows]
    answered = [row for row in rows if row["success"]]
    by_model: dict[str, dict[str, Any]] = {}
    for row, cost in zip(rows, costs, strict=True):
        if row["success"] is None:
            continue
        entry = by_model.setdefault(str(row["model"]), {"rows": 0, "ok": 0, "cost": None})
        entry["rows"] += 1
        entry["ok"] += bool(row["success"])
        entry["cost"] = cost if entry["cost"] is None else entry["cost"] + (cost or 0.0)
    known = [cost for cost in costs if cost is not None]
    return Usages(
        rows=len(rows),
        ok=len(answered),
        failed=sum(row["success"] is False or row["success"] == 0 for row in rows),
        not_asked=sum(row["success"] is None for row in rows),
        truncated=sum(row["finish_reason"] == "length" for row in rows),
        filtered=sum(row["error_kind"] == "filter" for row in rows),
        requests=int(sum(row["attempts"] or 0 for row in rows)),
        lost=lost,
        **{name: _sum(row[f"{name}_tokens"] for row in rows) for name in ("sent", "rec", "total", "reasoning", "cached")},
        unknown_tokens=sum(row["total_tokens"] is None for row in answered),
        cost=sum(known) if known else None,
        unpriced=sum(cost is None and bool(row["success"]) for row, cost in zip(rows, costs, strict=True)),
        seconds=_sum(row["duration"] for row in rows),
        by_model=by_model,
    )


def _sum(values: Any) -> Any:
    known = [value for value in values if value is not None]
    total = sum(known) if known else None
    return int(total) if total is not None and all(float(value).is_integer() for value in known) else total


def _prices(table: Any) -> dict[str, Mapping[str, Any]]:
    if table is None:
        return {}
    return {str(record["model"]): record for record in read_rows(table).records}


def _cost(row: Mapping[str, Any], prices: Mapping[str, Mapping[str, Any]]) -> float | None:
    price = prices.get(str(row["model"]))
    if price is None or row["sent_tokens"] is None or row["rec_tokens"] is None:
        return None
    cached = min(row["cached_tokens"] or 0, row["sent_tokens"])
    rate = price.get("cached")
    fresh = row["sent_tokens"] - cached
    paid = fresh * price["input"] + cached * (price["input"] if rate is None else rate) + row["rec_tokens"] * price["output"]
    return float(paid) / 1_000_000


def llm_failures(data: Any, *, include: str = "all") -> Rows:
    """Return the rows that failed or were cut: row, error_kind, status_code, error_code, bad_param, error_message.

    Args:
        data: as of ``llm_usage``.
        include: ``failed``, ``truncated`` or ``all``.

    Raises:
        InvalidRequestError: there are no results in it.
    """
    if include not in ("all", "failed", "truncated"):
        raise InvalidRequestError(f"include is all, failed or truncated, not {include!r}.", argument="include")
    names = ("success", "finish_reason", "error_kind", "status_code", "error_code", "bad_param", "error_message", "response_id")
    out = Rows()
    for at, row in enumerate(outcomes_of(data)[0]):
        failed = not row["success"]
        cut = row["finish_reason"] == "length"
        if (include != "truncated" and failed) or (include != "failed" and cut):
            out.append({"row": at, **{name: row.get(name) for name in names}})
    return out


def report(data: Any, *, config: Any = None) -> str:
    """Return a paragraph for the methods section: models and versions, settings, calls, failures, tokens, cost.

    Args:
        data: as of ``llm_usage``.
        config: a config, or several, whose parameters are named.

    Raises:
        InvalidRequestError: there are no results in it.
    """
    rows, _ = outcomes_of(data)
    used = llm_usage(data)
    asked = [row for row in rows if row["success"] is not None]
    models = Counter((row["provider"], row["model"], row["model_version"]) for row in asked if row["success"])
    named = [
        f"{model}"
        + (f" (served as {version})" if version and version != model else "")
        + (f" by {provider}" if provider else "")
        for provider, model, version in sorted(models, key=str)
    ]
    parts = [
        f"Responses were collected with llmbroker {VERSION} from {_list(named) or 'no model that answered'}"
        + _between([row["created_at"] for row in asked])
        + "."
    ]
    settings = _settings(config)
    if settings:
        parts.append(settings)
    parts.append(_calls(used, rows))
    if used.total is not None:
        unknown = f"; {used.unknown_tokens} answers came without counts" if used.unknown_tokens else ""
        reasoning = f", {used.reasoning:,} of the latter reasoning" if used.reasoning else ""
        parts.append(f"Models read {used.sent or 0:,} and produced {used.rec or 0:,} tokens{reasoning}{unknown}.")
    if used.cost is not None:
        unpriced = f", without {used.unpriced} answers whose price is not known" if used.unpriced else ""
        parts.append(f"The calls cost US$ {used.cost:.4f}{unpriced}.")
    return " ".join(parts)


def _calls(used: Usages, rows: list[dict[str, Any]]) -> str:
    kinds = Counter(str(row["error_kind"]) for row in rows if row["success"] is not None and not row["success"])
    failed = f"{used.failed} failed ({', '.join(f'{n} {kind}' for kind, n in kinds.most_common())})" if kinds else "none failed"
    text = f"Of {used.ok + used.failed} rows, {used.ok} were answered and {failed}, in {used.requests} requests"
    if used.truncated:
        text += f"; {used.truncated} answers were cut at the token limit"
    if used.not_asked:
        text += f"; {used.not_asked} rows were not asked"
    if used.lost:
        text += f"; {used.lost} further requests were on their way when a run was interrupted"
    return text + "."


def _between(moments: Sequence[Any]) -> str:
    days = sorted(str(day)[:10] if not isinstance(day, (int, float)) else _day(day) for day in moments if day is not None)
    if not days:
        return ""
    return f" on {days[0]}" if days[0] == days[-1] else f" between {days[0]} and {days[-1]}"


def _day(seconds: float) -> str:
    return utc(seconds).date().isoformat()


def _settings(config: Any) -> str:
    configs = [] if config is None else list(config) if isinstance(config, (list, tuple)) else [config]
    told = []
    for one in configs:
        params = ", ".join(f"{name} = {value}" for name, value in one.params.items()) or "the provider's defaults"
        left = f" ({', '.join(one.left_out)} not taken by the model)" if one.left_out else ""
        told.append(f"{one.model}: {params}{left}" if len(configs) > 1 else f"{params}{left}")
    return f"Settings were {'; '.join(told)}." if told else ""


def _list(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + f" and {items[-1]}" if items else ""
