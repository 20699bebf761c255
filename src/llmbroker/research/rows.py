"""``call_llm_par`` and its kin: many rows at once, one line a row in and out, failures as rows, a run file that survives.

Here the arguments become a ``Study`` and its outcomes become columns; the flow itself is in ``study``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from llmbroker.errors import InvalidRequestError
from llmbroker.io import Port
from llmbroker.journal import utc
from llmbroker.research import calls
from llmbroker.research.calls import Ask, checked_target, checked_tries
from llmbroker.research.config import ModelConfig
from llmbroker.research.estimate import Estimate, estimate
from llmbroker.research.frames import Table, question_of, read_rows
from llmbroker.research.outcome import BASE, STRUCTURED, TOOLS, Outcome
from llmbroker.research.pacing import MOST, Lanes
from llmbroker.research.progress import Silent, shown
from llmbroker.research.purse import Purse, checked_max_cost
from llmbroker.research.runfile import RunFile
from llmbroker.research.structured import form_of
from llmbroker.research.study import Study
from llmbroker.research.tags import checked_tags, typed
from llmbroker.research.tool_loop import Plan
from llmbroker.research.watch import journal_watcher

KINDS = frozenset(
    {
        "failed", "parameter", "authentication", "billing", "rate_limit", "server", "unknown", "filter", "empty", "truncated",
        "invalid",
    }
)  # fmt: skip
"""What ``retry=`` may name."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How a run over rows is made; ``call_llm_par`` says what each means."""

    response_format: Any = None
    reask: int = 0
    tags: Any = None
    tries: int = 10
    wait_seconds: float = 2
    backoff_factor: float | None = None
    timeout: float | None = None
    max_workers: int | None = None
    limits: Any = None
    progress: bool | None = None
    run_file: Any = None
    retry: Any = ()
    dry_run: bool = False
    max_cost: float | None = None
    journal: Any = None
    request_hash: bool = False
    keep_responses: bool = False
    plan: Plan | None = None


class Prepared:
    """A run whose arguments are checked: its rows, and how each becomes a question."""

    def __init__(self, rows: Any, config: Any, messages: Any, system: Any, options: Options) -> None:
        self.options = options
        self.table = read_rows(rows)
        self.tags = None if options.tags is None else checked_tags(options.tags)
        self.backoff = 120 ** (1 / options.tries) if options.backoff_factor is None else options.backoff_factor
        checked_tries(options.tries, options.wait_seconds, self.backoff)
        self.most = _workers(options.max_workers)
        self.again = _kinds(options.retry)
        self.max_cost = checked_max_cost(options.max_cost)
        self.form = None if options.response_format is None else form_of(options.response_format)
        self.watchers = journal_watcher(options.journal)
        self.lanes = Lanes(options.limits, self.most)
        self.configs = _configs(self.table, config)
        if self.max_cost is not None:
            _need_prices(self.configs)
        question = question_of(messages, self.table.names, system)
        has_column = config is None
        self.forms = {
            id(c): form_of(c.response_format) for c in self.configs if getattr(c, "response_format", None) is not None
        }

        def ask_of(record: Mapping[str, Any]) -> Ask:
            who = record["config"] if has_column else config
            form = self.form if self.form is not None else self.forms.get(id(who))
            return Ask(
                who, question(record), response_format=form, reask=options.reask, timeout=options.timeout,
                tries=options.tries, wait_seconds=options.wait_seconds, backoff_factor=self.backoff, watchers=self.watchers,
            )  # fmt: skip

        self.ask_of = ask_of
        self.groups = _groups(self.table, config)

    @property
    def structured(self) -> bool:
        """Whether a form is asked for in any row."""
        return self.form is not None or bool(self.forms)

    def study(self, file: RunFile | None, progress: Silent) -> Study:
        """Return the run."""
        options = self.options
        return Study(
            self.table.records, self.ask_of, groups=self.groups, plan=options.plan, tags=self.tags, lanes=self.lanes,
            purse=Purse(self.max_cost, file.spent() if file is not None else 0.0), file=file, progress=progress,
            again=self.again, hashes=options.request_hash, keep=options.keep_responses,
        )  # fmt: skip

    def port_of_broker(self, *, awaited: bool) -> Port | None:
        """Return the port of the broker that is asked, or None where configs are asked."""
        brokers = [config for config in self.configs if not isinstance(config, ModelConfig)]
        if not brokers:
            return None
        port = calls.async_port(brokers[0], None) if awaited else calls.blocking_port(brokers[0], None)
        for other in brokers[1:]:
            (calls.async_port if awaited else calls.blocking_port)(other, None)
        return port

    def result(self, study: Study) -> Any:
        """Return the user's rows with the columns of the outcomes."""
        return self.table.with_columns(columns_of(study, structured=self.structured, tags=self.tags))


def columns_of(study: Study, *, structured: bool, tags: tuple[str, ...] | None) -> dict[str, list[Any]]:
    """Return the columns that are added to the user's."""
    outcomes = [outcome or Outcome(success=None) for outcome in study.outcomes]
    names = [*BASE, *(STRUCTURED if structured else ()), *(TOOLS if study.plan is not None else ())]
    if study.hashes:
        names.append("request_hash")
    columns: dict[str, list[Any]] = {name: [getattr(outcome, name) for outcome in outcomes] for name in names}
    columns["created_at"] = [None if at is None else utc(at) for at in columns["created_at"]]
    if tags is not None:
        columns["tags_ok"] = [outcome.tags is not None and len(outcome.tags) == len(tags) for outcome in outcomes]
        for tag in tags:
            columns[tag] = typed([(outcome.tags or {}).get(tag) for outcome in outcomes])
    if study.responses is not None:
        columns["response"] = [study.responses.get(at) for at in range(len(outcomes))]
    return columns


def _workers(given: Any) -> int:
    if given is None:
        return MOST
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise InvalidRequestError(f"max_workers is a whole number of at least 1, not {given!r}.", argument="max_workers")
    return given


def _kinds(retry: Any) -> frozenset[str]:
    kinds = frozenset({retry} if isinstance(retry, str) else retry or ())
    unknown = sorted(kinds - KINDS)
    if unknown:
        raise InvalidRequestError(
            f"retry knows {', '.join(sorted(KINDS))}; not {', '.join(map(str, unknown))}.", argument="retry"
        )
    return kinds


def _configs(table: Table, config: Any) -> list[Any]:
    """Return the different configs of a run.

    Raises:
        InvalidRequestError: there is none, or a row holds something else.
    """
    if config is not None:
        checked_target(config)
        return [_answering(config)]
    if table.records and "config" not in table.names:
        raise InvalidRequestError("Give config=, or rows with a column 'config'.", argument="config")
    found: dict[int, Any] = {}
    for index, record in enumerate(table.records):
        given = record.get("config")
        if id(given) not in found:
            if not isinstance(given, ModelConfig) and not hasattr(given, "_io"):
                raise InvalidRequestError(
                    f"rows[{index}] has no config in its column 'config' but {type(given).__name__}.",
                    argument=f"rows[{index}].config",
                )
            found[id(given)] = _answering(given)
    return list(found.values())


def _groups(table: Table, config: Any) -> list[list[int]]:
    """Return the places of rows by who is asked."""
    if config is not None:
        return [list(range(len(table.records)))] if table.records else []
    found: dict[Any, list[int]] = {}
    for at, record in enumerate(table.records):
        who = record["config"]
        found.setdefault((who.provider, who.base_url) if isinstance(who, ModelConfig) else id(who), []).append(at)
    return list(found.values())


def _answering(config: Any) -> Any:
    if getattr(config, "embedding", False):
        raise InvalidRequestError(
            f"{config.model} makes vectors, not answers: use get_batched_embeddings, or embedding=False.", argument="config"
        )
    return config


def _need_prices(configs: Sequence[Any]) -> None:
    for config in configs:
        if not isinstance(config, ModelConfig):
            raise InvalidRequestError(
                "max_cost needs configs: what a broker's pool costs is not known before.", argument="max_cost"
            )
        if config.rates(utc(0)) is None:
            raise InvalidRequestError(
                f"max_cost needs a price, and none is known for {config.model} of {config.provider}: give "
                "llm_config(..., price={'input': ..., 'output': ...}), in US dollars per million tokens.",
                argument="max_cost",
            )


# -- the two ways to run -----------------------------------------------------------------------------------------------------


@contextmanager
def _begun(prepared: Prepared) -> Iterator[Study]:
    """Open the run file for as long as the study runs."""
    options = prepared.options
    file = None if options.run_file is None else RunFile(options.run_file)
    try:
        yield prepared.study(file, Silent() if options.dry_run else shown(options.progress))
    finally:
        if file is not None:
            file.close()


def run(prepared: Prepared, io: Port | None) -> Any:
    """Run from plain code; return the rows, or the estimate of a dry run."""
    with _begun(prepared) as study:
        if prepared.options.dry_run:
            return estimate(study)
        port = io or prepared.port_of_broker(awaited=False)
        if port is not None:
            port.drive(study.run(port, min(prepared.most, 64) if io is None else prepared.most))
        else:
            from llmbroker.transports import own_loop

            own_loop.run(_over_own_port(study, prepared.most))
        return prepared.result(study)


async def arun(prepared: Prepared, io: Port | None) -> Any:
    """Do what ``run`` does, awaited."""
    with _begun(prepared) as study:
        if prepared.options.dry_run:
            return estimate(study)
        port = io or prepared.port_of_broker(awaited=True)
        if port is not None:
            await study.run(port, prepared.most)
        else:
            await _over_own_port(study, prepared.most)
        return prepared.result(study)


async def _over_own_port(study: Study, workers: int) -> None:
    from llmbroker.transports.aio import AsyncIO

    port = AsyncIO(pool=workers)
    try:
        await study.run(port, workers)
    finally:
        await port.aclose()


# -- verbs -------------------------------------------------------------------------------------------------------------------


def call_llm_par(
    rows: Any,
    config: Any = None,
    messages: Any = None,
    *,
    system: str | None = None,
    response_format: Any = None,
    reask: int = 0,
    tags: Sequence[str] | None = None,
    tries: int = 10,
    wait_seconds: float = 2,
    backoff_factor: float | None = None,
    timeout: float | None = None,
    max_workers: int | None = None,
    limits: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    run_file: Any = None,
    retry: str | Iterable[str] = (),
    dry_run: bool = False,
    max_cost: float | None = None,
    journal: Any = None,
    request_hash: bool = False,
    keep_responses: bool = False,
    io: Port | None = None,
) -> Any:
    """Ask once for each row, many at a time; return the rows with columns for text, tokens, cost and what went wrong.

    A row that fails is a row with ``success`` False and its error in columns, never an exception.

    Args:
        rows: a frame (pandas, polars), a list of dicts, or of (config, messages) pairs.
        config: for all rows; None: the column ``config``.
        messages: a template with ``{column}`` in it, messages with such templates, a column's name, or a function of the row;
            None: the column ``messages`` or ``prompt``.
        system: a template for a system message.
        response_format: the form of the answers, as of ``llm_config``: columns ``structured_ok``, ``structured_data``.
        reask: how often a model is asked again when its answer does not have that form.
        tags: names of tags to read from the answers, a column each.
        tries: requests of a row at most; only rate limits, outages and broken connections are tried again.
        wait_seconds: as of ``call_llm_robust``.
        backoff_factor: None: such that the pauses grow to four minutes.
        timeout: seconds of one attempt.
        max_workers: requests at once at most, for each provider; None: 256. How many it really are follows what it bears.
        limits: ``{"requests": 500, "tokens": 200_000, "concurrency": 20}`` (a minute), or such by provider.
        progress: a bar with spend, rate and failures; None: where standard error is a terminal.
        run_file: a path: each finished row is in it at once; a later run with the same rows goes on from there.
        retry: kinds of results in the run file that are asked for again: ``failed`` for all, or ``rate_limit``, ``server``,
            ``truncated``, ``invalid``, ``filter``, ``empty``, ``parameter``, ``authentication``, ``billing``.
        dry_run: send nothing; return an ``Estimate`` of calls, tokens and cost.
        max_cost: US dollars; no request leaves that might pass them, earlier runs of the run file included.
        journal: as of ``call_llm``.
        request_hash: add each row's ``llm_request_hash``.
        keep_responses: add the responses themselves as a column (memory!).
        io: another port.

    Returns:
        The same kind of rows with these columns behind the user's; a list of dicts has ``to_pandas()``.

    Raises:
        InvalidRequestError: the arguments or the columns mean nothing; nothing was sent.
        ConfigurationError: the run file is in use or cannot be written.
    """
    options = Options(
        response_format=response_format, reask=reask, tags=tags, tries=tries, wait_seconds=wait_seconds,
        backoff_factor=backoff_factor, timeout=timeout, max_workers=max_workers, limits=limits, progress=progress,
        run_file=run_file, retry=retry, dry_run=dry_run, max_cost=max_cost, journal=journal, request_hash=request_hash,
        keep_responses=keep_responses,
    )  # fmt: skip
    return run(Prepared(rows, config, messages, system, options), io)


async def acall_llm_par(
    rows: Any,
    config: Any = None,
    messages: Any = None,
    *,
    system: str | None = None,
    response_format: Any = None,
    reask: int = 0,
    tags: Sequence[str] | None = None,
    tries: int = 10,
    wait_seconds: float = 2,
    backoff_factor: float | None = None,
    timeout: float | None = None,
    max_workers: int | None = None,
    limits: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    run_file: Any = None,
    retry: str | Iterable[str] = (),
    dry_run: bool = False,
    max_cost: float | None = None,
    journal: Any = None,
    request_hash: bool = False,
    keep_responses: bool = False,
    io: Port | None = None,
) -> Any:
    """Await what ``call_llm_par`` does."""
    options = Options(
        response_format=response_format, reask=reask, tags=tags, tries=tries, wait_seconds=wait_seconds,
        backoff_factor=backoff_factor, timeout=timeout, max_workers=max_workers, limits=limits, progress=progress,
        run_file=run_file, retry=retry, dry_run=dry_run, max_cost=max_cost, journal=journal, request_hash=request_hash,
        keep_responses=keep_responses,
    )  # fmt: skip
    return await arun(Prepared(rows, config, messages, system, options), io)


def _options(given: dict[str, Any]) -> Options:
    unknown = sorted(set(given) - (set(Options.__struct_fields__) - {"plan"}))
    if unknown:
        raise TypeError(f"unknown arguments: {', '.join(unknown)}")
    return Options(**given)


def call_llm_tools_par(
    rows: Any,
    config: Any = None,
    messages: Any = None,
    tools: Any = None,
    *,
    max_rounds: int = 8,
    max_tool_calls: float = math.inf,
    system: str | None = None,
    io: Port | None = None,
    **options: Any,
) -> Any:
    """Run the tool loop once for each row; columns as of ``call_llm_par``, and model_calls, tool_calls, tool_history.

    Tokens and cost are those of the whole loop. ``rows``, ``config``, ``messages`` and the options are those of
    ``call_llm_par``, ``tools``, ``max_rounds`` and ``max_tool_calls`` those of ``call_llm_tools``.

    Raises:
        InvalidRequestError: the arguments or the columns mean nothing; nothing was sent.
    """
    made = msgspec.structs.replace(_options(options), plan=Plan(tools, max_rounds, max_tool_calls, False))
    return run(Prepared(rows, config, messages, system, made), io)


async def acall_llm_tools_par(
    rows: Any,
    config: Any = None,
    messages: Any = None,
    tools: Any = None,
    *,
    max_rounds: int = 8,
    max_tool_calls: float = math.inf,
    system: str | None = None,
    io: Port | None = None,
    **options: Any,
) -> Any:
    """Await what ``call_llm_tools_par`` does."""
    made = msgspec.structs.replace(_options(options), plan=Plan(tools, max_rounds, max_tool_calls, False))
    return await arun(Prepared(rows, config, messages, system, made), io)


__all__ = ["Estimate", "acall_llm_par", "acall_llm_tools_par", "call_llm_par", "call_llm_tools_par"]
