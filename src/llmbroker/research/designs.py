"""Rows for common designs: one question to many models, a parameter through its values, everything crossed, several draws."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from llmbroker.errors import InvalidRequestError
from llmbroker.io import Port
from llmbroker.research.calls import checked_target
from llmbroker.research.config import ModelConfig
from llmbroker.research.frames import Rows, read_rows
from llmbroker.research.outcome import BASE
from llmbroker.research.prompts import is_conversation
from llmbroker.research.rows import Prepared, _options, arun, run


def prompts_of(messages: Any) -> list[Any]:
    """Return the questions of a broadcast: a conversation (pairs, messages, a mapping of roles) is one, its roles are kept.

    Raises:
        InvalidRequestError: it is neither a conversation nor a list of questions.
    """
    if is_conversation(messages):
        return [messages]
    if isinstance(messages, Sequence) and not isinstance(messages, (bytes, bytearray)):
        return list(messages)
    to_list = getattr(messages, "to_list", None) or getattr(messages, "tolist", None)
    if callable(to_list):
        return list(to_list())
    raise InvalidRequestError(f"messages is a list of questions, not {type(messages).__name__}.", argument="messages")


def _broadcast(config: Any, messages: Any, options: dict[str, Any]) -> Prepared:
    checked_target(config)
    rows = Rows({"messages": question} for question in prompts_of(messages))
    return Prepared(rows, config, "messages" if rows else None, options.pop("system", None), _options(options))


def call_llm_broadcast(config: Any, messages: Any, *, io: Port | None = None, **options: Any) -> Any:
    """Ask one model many questions; a row each.

    Args:
        config: a config or broker.
        messages: a list of questions: texts, or conversations. One conversation alone (pairs of role and text) is one question.
        io: another port.
        **options: as of ``call_llm_par``.
    """
    return run(_broadcast(config, messages, options), io)


async def acall_llm_broadcast(config: Any, messages: Any, *, io: Port | None = None, **options: Any) -> Any:
    """Await what ``call_llm_broadcast`` does."""
    return await arun(_broadcast(config, messages, options), io)


def _sweep(config: Any, name: str, values: Sequence[Any], messages: Any, options: dict[str, Any]) -> Prepared:
    if not isinstance(config, ModelConfig):
        raise InvalidRequestError("A sweep needs a config: a broker's parameters are not swept.", argument="config")
    column = f"swept_{name}" if name in BASE else name
    rows = Rows({column: value, "config": config.replace(**{name: value}), "messages": messages} for value in values)
    return Prepared(rows, None, "messages" if rows else None, options.pop("system", None), _options(options))


def call_llm_sweep(
    base_config: ModelConfig,
    param_name: str,
    param_values: Sequence[Any],
    messages: Any,
    *,
    io: Port | None = None,
    **options: Any,
) -> Any:
    """Ask one question with each value of a parameter; a row each.

    Args:
        base_config: the config whose parameter is changed.
        param_name: a parameter (``temperature``), or ``model`` or ``provider``, which really change who is asked (their column
            is ``swept_model``, as the results have a column ``model`` already).
        param_values: its values.
        messages: the question.
        io: another port.
        **options: as of ``call_llm_par``.
    """
    return run(_sweep(base_config, param_name, param_values, messages, options), io)


async def acall_llm_sweep(
    base_config: ModelConfig,
    param_name: str,
    param_values: Sequence[Any],
    messages: Any,
    *,
    io: Port | None = None,
    **options: Any,
) -> Any:
    """Await what ``call_llm_sweep`` does."""
    return await arun(_sweep(base_config, param_name, param_values, messages, options), io)


def _compare(configs: Any, messages: Any, options: dict[str, Any]) -> Prepared:
    named = configs.items() if isinstance(configs, Mapping) else ((_label(config), config) for config in configs)
    rows = Rows({"config_label": label, "config": config, "messages": messages} for label, config in named)
    return Prepared(rows, None, "messages" if rows else None, options.pop("system", None), _options(options))


def call_llm_compare(configs_list: Any, messages: Any, *, io: Port | None = None, **options: Any) -> Any:
    """Ask several models the same question; a row each.

    Args:
        configs_list: a list of configs, or a mapping of labels to them.
        messages: the question.
        io: another port.
        **options: as of ``call_llm_par``.
    """
    return run(_compare(configs_list, messages, options), io)


async def acall_llm_compare(configs_list: Any, messages: Any, *, io: Port | None = None, **options: Any) -> Any:
    """Await what ``call_llm_compare`` does."""
    return await arun(_compare(configs_list, messages, options), io)


def build_factorial_experiments(
    configs: Any,
    user_prompts: Sequence[str],
    system_prompts: Sequence[str] | None = None,
    repetitions: int = 1,
    *,
    config_labels: Sequence[str] | None = None,
    user_prompt_labels: Sequence[str] | None = None,
    system_prompt_labels: Sequence[str] | None = None,
) -> Rows:
    """Return rows for ``call_llm_par`` in which everything is crossed with everything.

    Args:
        configs: a list of configs, or a mapping of labels to them.
        user_prompts: what is asked.
        system_prompts: what is said before, or None.
        repetitions: how often each combination is asked.
        config_labels: names for the configs.
        user_prompt_labels: names for the prompts.
        system_prompt_labels: names for the system prompts.

    Raises:
        InvalidRequestError: a list of labels has another length than what it names.
    """
    if isinstance(configs, Mapping):
        config_labels, configs = list(configs), list(configs.values())
    elif isinstance(configs, ModelConfig):
        configs = [configs]
    prompts = [user_prompts] if isinstance(user_prompts, str) else list(user_prompts)
    systems: list[str | None] = [None]
    if system_prompts is not None:
        systems = [system_prompts] if isinstance(system_prompts, str) else list(system_prompts)
    named = (
        _labelled(configs, config_labels, "config_labels", _label),
        _labelled(prompts, user_prompt_labels, "user_prompt_labels", str),
        _labelled(systems, system_prompt_labels, "system_prompt_labels", lambda text: text),
        [(number, number) for number in range(1, repetitions + 1)],
    )
    rows = Rows()
    for (config_label, config), (prompt_label, prompt), (system_label, system), (_, number) in itertools.product(*named):
        said = prompt if system is None else [("system", system), ("user", prompt)]
        rows.append(
            {
                "config_label": config_label, "user_prompt_label": prompt_label, "system_prompt_label": system_label,
                "repetition": number, "config": config, "messages": said,
            }
        )  # fmt: skip
    return rows


def _label(config: Any) -> str:
    return f"{config.provider}/{config.model}" if isinstance(config, ModelConfig) else type(config).__name__


def _labelled(values: Sequence[Any], labels: Sequence[str] | None, argument: str, usual: Any) -> list[tuple[Any, Any]]:
    if labels is None:
        return [(usual(value), value) for value in values]
    if len(labels) != len(values):
        raise InvalidRequestError(f"{argument} has {len(labels)} names for {len(values)} values.", argument=argument)
    return list(zip(labels, values, strict=True))


def llm_replicate(
    rows: Any,
    config: Any,
    messages: Any = None,
    *,
    times: int = 3,
    output: str = "draw",
    io: Port | None = None,
    **options: Any,
) -> Any:
    """Ask each row's question several times; return the rows with a column for each draw, None where it failed.

    Args:
        rows: as of ``call_llm_par``, or a list of texts.
        config: a config or broker.
        messages: as of ``call_llm_par``.
        times: draws of each row, at least 2.
        output: the columns are ``<output>_1``, ``<output>_2``, and so on; ``<output>_1_error`` says why there is none.
        io: another port.
        **options: as of ``call_llm_par``; ``run_file`` keeps each draw.

    Raises:
        InvalidRequestError: fewer than two draws, or as ``call_llm_par``.
    """
    table, prepared = _replicated(rows, config, messages, times, options)
    return _drawn(table, run(prepared, io), times, output)


async def allm_replicate(
    rows: Any,
    config: Any,
    messages: Any = None,
    *,
    times: int = 3,
    output: str = "draw",
    io: Port | None = None,
    **options: Any,
) -> Any:
    """Await what ``llm_replicate`` does."""
    table, prepared = _replicated(rows, config, messages, times, options)
    return _drawn(table, await arun(prepared, io), times, output)


def _replicated(rows: Any, config: Any, messages: Any, times: Any, options: dict[str, Any]) -> tuple[Any, Prepared]:
    if isinstance(times, bool) or not isinstance(times, int) or times < 2:
        raise InvalidRequestError(f"times is a whole number of at least 2, not {times!r}.", argument="times")
    if isinstance(rows, (list, tuple)) and rows and all(isinstance(row, str) for row in rows):
        rows = [{"prompt": row} for row in rows]
    table = read_rows(rows)
    many = [record for record in table.records for _ in range(times)]
    return table, Prepared(many, config, messages, options.pop("system", None), _options(options))


def _drawn(table: Any, results: Any, times: int, output: str) -> Any:
    if not isinstance(results, Rows):
        return results
    text = next(name for name in results[0] if name.startswith("response_text")) if results else "response_text"
    taken = set(table.names)
    text = table.free_name("response_text", taken) if results else text
    error, ok = table.free_name("error_message", taken), table.free_name("success", taken)
    columns: dict[str, list[Any]] = {}
    for draw in range(times):
        mine = results[draw::times]
        columns[f"{output}_{draw + 1}"] = [row[text] if row[ok] else None for row in mine]
        failures = [row[error] for row in mine]
        if any(failures):
            columns[f"{output}_{draw + 1}_error"] = failures
    return table.with_columns(columns)
