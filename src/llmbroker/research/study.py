"""A run over many rows, as one flow: workers take rows one after another, ask, and write down what came before they go on.

Theory of operation
-------------------
A ``Study`` knows its rows and how each becomes a question. ``run`` starts workers; each takes the next row that has no result
yet, makes the question, lets it pass its ``_RowGate`` (budget, pace, the run file's note that a request leaves) for every
request that it takes, and keeps the outcome: in memory for the caller, and in the run file at once. A row that fails is an
outcome like any other. What ends a run before its end (Ctrl-C, a full disk) leaves every finished row in the file.

A row is known by a digest of what is asked; equal rows are told apart by their number among their equals.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from llmbroker.errors import InvalidRequestError, LLMBrokerError
from llmbroker.exchange import Request
from llmbroker.io import Port, gather
from llmbroker.providers.base import Deployment
from llmbroker.research.calls import Ask, call
from llmbroker.research.hashing import config_facts, llm_request_hash
from llmbroker.research.outcome import Outcome, answered, failed
from llmbroker.research.pacing import Lanes
from llmbroker.research.progress import Silent
from llmbroker.research.purse import BudgetEnd, Purse
from llmbroker.research.response import Response
from llmbroker.research.runfile import RunFile
from llmbroker.research.tags import llm_parse_tags
from llmbroker.research.tool_loop import Plan, call_tools

LONGEST_KEPT = 65_536
"""Bytes of a question that the run file keeps as it is; of longer ones it keeps the digest."""

AskOf = Callable[[Mapping[str, Any]], Ask]


class Study:
    """One run over rows.

    Args:
        records: the rows. ask_of: makes the question of a row.
        groups: places of rows by who is asked: each group has workers of its own, so that none waits for another's provider.
        plan: tools, or None. tags: names of tags to read, or None.
        lanes, purse, file, progress: pace, budget, run file (or None), what shows the progress.
        again: kinds of results that are asked for once more. hashes: give every row its request hash.
        keep: keep the responses themselves.

    Attributes:
        outcomes: by row, None where it was not asked.
        responses: by row, where they are kept.
    """

    def __init__(
        self, records: Sequence[Mapping[str, Any]], ask_of: AskOf, *, groups: Sequence[Sequence[int]], plan: Plan | None,
        tags: tuple[str, ...] | None, lanes: Lanes, purse: Purse, file: RunFile | None, progress: Silent,
        again: frozenset[str], hashes: bool, keep: bool,
    ) -> None:  # fmt: skip
        self.records = records
        self.ask_of = ask_of
        self.groups = groups
        self.plan = plan
        self.tags = tags
        self.lanes = lanes
        self.purse = purse
        self.file = file
        self.progress = progress
        self.again = again
        self.hashes = hashes
        self.outcomes: list[Outcome | None] = [None] * len(records)
        self.responses: dict[int, Response] | None = {} if keep else None
        self.resumed = 0
        self.done = 0
        self.unpriced = 0
        self.failures: dict[str, int] = {}
        self._known = file.results() if file is not None else {}
        self._equal: dict[bytes, int] = {}
        self._next = [0] * len(groups)
        self._lock = threading.Lock()
        self._extra = self._extras()

    def _extras(self) -> dict[str, Any]:
        """Return what belongs to every question beside config and messages."""
        out: dict[str, Any] = {}
        if self.plan is not None:
            out["tools"] = list(self.plan.declared)
            out["max_rounds"] = self.plan.max_rounds
        return out

    # -- rows --------------------------------------------------------------------------------------------------------------

    def key_of(self, ask: Ask) -> tuple[bytes, bytes]:
        """Return the row's key and what was asked, as JSON. Each call counts one more of its equals."""
        asked: dict[str, Any] = {"config": config_facts(ask.config), "messages": ask.messages, **self._extra}
        if ask.form is not None:
            asked["response_format"] = ask.form.wire
        try:
            text = msgspec.json.encode(asked, order="deterministic")
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequestError(f"The messages cannot be written as JSON: {error}.", argument="messages") from None
        digest = hashlib.sha256(text).digest()[:20]
        with self._lock:
            number = self._equal.get(digest, 0)
            self._equal[digest] = number + 1
        if len(text) > LONGEST_KEPT:
            asked["request_hash"] = llm_request_hash(ask.config, ask.messages, **self._identity(ask))
            asked["messages"] = {"sha256": hashlib.sha256(text).hexdigest()}
            text = msgspec.json.encode(asked)
        return (digest if number == 0 else digest + number.to_bytes(4, "big")), text

    def _take(self, group: int) -> int | None:
        """Return the place of the next row of a group, or None."""
        with self._lock:
            at, places = self._next[group], self.groups[group]
            if at >= len(places):
                return None
            self._next[group] = at + 1
            return places[at]

    def _recall(self, key: bytes) -> Outcome | None:
        """Return the result that the run file has, unless it is asked for again."""
        kind = self._known.get(key)
        if kind is None or self.file is None or kind == "budget":
            return None
        if kind in self.again or ("failed" in self.again and kind not in ("ok", "truncated", "invalid")):
            return None
        return self.file.outcome(key)

    # -- the flow ----------------------------------------------------------------------------------------------------------

    async def run(self, port: Port, workers: int) -> None:
        """Ask all rows, with so many workers for each group."""
        self.progress.begin(len(self.records), 0)
        try:
            flows = [
                self._work(port, group)
                for group, places in enumerate(self.groups)
                for _ in range(max(1, min(workers, len(places))))
            ]
            for ended in await gather(port, flows):
                if isinstance(ended, BaseException):
                    raise ended
        finally:
            self.progress.update(port.now(), self._facts(), force=True)
            self.progress.end()

    async def _work(self, port: Port, group: int) -> None:
        while (at := self._take(group)) is not None:
            record = self.records[at]
            try:
                ask = self.ask_of(record)
                key, asked = self.key_of(ask)
            except Exception as error:  # noqa: BLE001 - a user's own function may raise anything: that row cannot be asked
                outcome = failed(error, 0, spent=None, config=record.get("config"))
                if not isinstance(error, LLMBrokerError):
                    outcome.error_kind, outcome.error_message = "parameter", f"The row's question cannot be made: {error!r}"
                self._keep(at, outcome)
                continue
            known = self._recall(key)
            if known is not None:
                self.resumed += 1
                self._keep(at, known, new=False)
                continue
            outcome = await self._ask(port, at, ask, key)
            if self.hashes and outcome.request_hash is None:
                outcome.request_hash = llm_request_hash(ask.config, ask.messages, **self._identity(ask))
            if self.file is not None and (outcome.error_kind != "budget" or outcome.attempts):
                await self.file.finished(port, key, outcome, asked)
            self._keep(at, outcome)
            self.progress.update(port.now(), self._facts())

    def _identity(self, ask: Ask) -> dict[str, Any]:
        return {
            "tools": self._extra.get("tools"),
            "response_format": ask.form.wire if ask.form is not None else None,
        }

    async def _ask(self, port: Port, at: int, ask: Ask, key: bytes) -> Outcome:
        gate = ask.gate = _RowGate(self, key, self.lanes)
        try:
            response = await (call(port, ask) if self.plan is None else call_tools(port, ask, self.plan))
        except BudgetEnd:
            out = Outcome(success=None, error_kind="budget", attempts=ask.attempts, cost=gate.spent)
            out.error_message = f"Not asked: max_cost={self.purse.max_cost} does not suffice for one more request."
            return out
        except Exception as error:  # noqa: BLE001 - a failed row is a row
            return failed(error, ask.attempts, spent=gate.spent, config=ask.config)
        outcome = answered(response, ask.attempts, spent=gate.spent)
        if ask.form is not None:
            outcome.structured_ok = response.problem is None
            outcome.structured_error = response.problem
            outcome.structured_data = _plain(response.parsed)
        if self.tags is not None:
            outcome.tags = llm_parse_tags(response.text, self.tags)
        if self.responses is not None:
            self.responses[at] = response
        return outcome

    def _keep(self, at: int, outcome: Outcome, *, new: bool = True) -> None:
        self.outcomes[at] = outcome
        self.done += 1
        if outcome.success is False:
            kind = outcome.kind
            self.failures[kind] = self.failures.get(kind, 0) + 1
        if new and outcome.success and outcome.cost is None:
            self.unpriced += 1

    def _facts(self) -> dict[str, Any]:
        return {
            "done": self.done, "spent": self.purse.spent, "unpriced": self.unpriced, "running": self.lanes.running,
            "failed": self.failures,
        }  # fmt: skip


def _plain(value: Any) -> Any:
    """Return a value as JSON holds it."""
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) else msgspec.to_builtins(value)


class _RowGate:
    """What every request of one row passes."""

    __slots__ = ("_characters", "_config", "_estimate", "_key", "_lane", "_left_at", "_reserved", "_study", "lanes", "spent")

    def __init__(self, study: Study, key: bytes, lanes: Lanes) -> None:
        self._study = study
        self._key = key
        self.lanes = lanes
        self.spent: float | None = None
        self._lane: Any = None
        self._left_at = self._reserved = self._estimate = 0.0
        self._characters = 0
        self._config: Any = None

    async def enter(self, port: Port, config: Any, deployment: Deployment | None, request: Request) -> None:
        """Wait for budget and pace; note in the run file that a request leaves."""
        study = self._study
        self._config = config
        self._characters = request.history.characters
        if request.tools is not None:
            self._characters += sum(len(str(spec.parameters)) + len(spec.description) for spec in request.tools.specs)
        self._reserved = await study.purse.reserve(port, config, self._characters)
        self._estimate = self._characters / 4 + 8
        if deployment is not None:
            who = deployment.provider.id
            here = deployment.base_url == "local:"
            self._lane = self.lanes.of((who, deployment.base_url, deployment.key), who, here=here)
        else:
            self._lane = self.lanes.of(id(config), "broker")
        try:
            self._left_at = await self._lane.enter(port, self._estimate)
            try:
                if study.file is not None:
                    await study.file.sending(port, self._key, port.time())
            except BaseException:
                self._lane.give_back()
                raise
        except BaseException:
            study.purse.pay(self._reserved, 0.0, None, None, 0)
            raise

    def leave(self, port: Port, response: Response | None, error: BaseException | None) -> None:
        """Pay, and let the next one go."""
        usage = response.usage if response is not None else None
        cost = response.cost if response is not None else None
        if cost is not None:
            self.spent = cost if self.spent is None else self.spent + cost
        took = usage.total_tokens if usage is not None and usage.total_tokens is not None else self._estimate
        self._study.purse.pay(self._reserved, cost, error, usage, self._characters)
        self._lane.leave(port.now(), self._left_at, error, took - self._estimate)
