"""The audit log: one JSON line for each attempt, with the identity of the request, its parameters, versions and usage.

``llm_log_enable`` watches every call of this process; ``llm_export`` writes the same lines from a run file. Without messages a
line holds only what stands in a list of names (identity, parameters by the names below, counts), never a text that somebody
wrote. A log that cannot be written breaks no call: it is counted, said once, and shown by ``llm_log_status``.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from llmbroker.credentials import mask
from llmbroker.errors import ConfigurationError, InvalidRequestError, LLMBrokerError
from llmbroker.research import watch
from llmbroker.research.config import ModelConfig, llm_config
from llmbroker.research.frames import Rows
from llmbroker.research.hashing import _params, config_facts, llm_request_hash
from llmbroker.research.outcome import Outcome
from llmbroker.research.prompts import read_messages
from llmbroker.research.response import tokens
from llmbroker.research.runfile import RunFile
from llmbroker.research.watch import VERSION

JSON: TypeAlias = dict[str, Any]
SCHEMA = "1"
SAFE = frozenset(
    {
        "temperature", "top_p", "top_k", "max_tokens", "frequency_penalty", "presence_penalty", "repetition_penalty", "seed",
        "n", "logprobs", "top_logprobs", "reasoning_effort", "thinking_budget", "include_thoughts", "parallel_tool_calls",
        "service_tier", "verbosity", "store", "dimensions",
    }
)  # fmt: skip
"""Parameters that hold no text of the user's: the only ones in a log without messages."""
LONGEST_DATA = 4096


class _Log:
    def __init__(self, path: Path, include_messages: bool) -> None:
        self.path = path
        self.include_messages = include_messages
        self.written = 0
        self.failed = 0
        self._lock = threading.Lock()

    def __call__(self, event: watch.Event) -> None:
        line = msgspec.json.encode(record(event, include_messages=self.include_messages)) + b"\n"
        try:
            with self._lock, self.path.open("ab") as file:
                file.write(line)
        except OSError:
            self.failed += 1
            raise
        self.written += 1


_current: list[_Log] = []


def llm_log_enable(path: str | os.PathLike[str] = "llm_log.jsonl", include_messages: bool = True) -> None:
    """Write a line for every attempt of this process from now on, behind what the file holds already.

    Args:
        path: the file.
        include_messages: whether what was said is in it; without, a line bears no text of yours or of the model's.

    Raises:
        ConfigurationError: the file cannot be written; then the log stays as it was.
    """
    target = Path(path)
    try:
        with target.open("ab"):
            pass
    except OSError as error:
        raise ConfigurationError(f"The log {target} cannot be written: {error.strerror or error}.") from None
    llm_log_disable()
    log = _Log(target, include_messages)
    _current.append(log)
    watch.ALWAYS.append(log)


def llm_log_disable() -> None:
    """Write no more lines."""
    for log in _current:
        watch.ALWAYS.remove(log)
    _current.clear()


def llm_log_status() -> JSON:
    """Return whether a log is written, where, how many lines were and how many could not be."""
    if not _current:
        return {"active": False, "path": None, "written": 0, "failed": 0}
    (log,) = _current
    return {"active": True, "path": str(log.path), "written": log.written, "failed": log.failed}


# -- lines -----------------------------------------------------------------------------------------------------------------


def record(event: watch.Event, *, include_messages: bool) -> JSON:
    """Return the line of an attempt."""
    config, request, response, error = event.config, event.request, event.response, event.error
    facts = config_facts(config)
    tools = [tool.get("function", tool) for tool in request.tools] if request.tools is not None else None
    identity: JSON = {
        "provider": facts.get("provider"), "model": facts.get("model"), "params": facts.get("params"), "tools": tools,
        "response_format": request.response_format,
    }  # fmt: skip
    params = facts.get("params") or {}
    line: JSON = {
        **_head(event.started, "stream" if request.stream else "call"),
        "status": "ok" if error is None else "error",
        "attempt": event.attempt,
        "provider": facts.get("provider") or (response.provider if response is not None else None),
        "model": facts.get("model") or (response.llm_name if response is not None else None),
        "base_url": facts.get("base_url"),
        "parameters": params if include_messages else {name: v for name, v in params.items() if name in SAFE},
        "left_out": list(config.left_out) if isinstance(config, ModelConfig) else [],
        "request_hash": llm_request_hash(None, request.history, **identity),
        "duration": event.duration,
    }
    if include_messages:
        line["request"] = {
            "messages": _without_data(list(request.history)),
            "tools": tools,
            "response_format": request.response_format,
        }
    if response is not None:
        line |= {
            "model_version": response.model, "response_id": response.id, "finish_reason": response.finish_reason,
            "usage": dict(tokens(response).items()), "cost": response.cost,
        }  # fmt: skip
        if include_messages:
            line |= {"text": response.text, "reasoning": response.reasoning, "tool_calls": response.tool_calls}
    if error is not None:
        line["error"] = _error(error, include_messages)
    return line


def _head(started: float | None, kind: str) -> JSON:
    when = datetime.fromtimestamp(started, UTC).isoformat(timespec="milliseconds") if started is not None else None
    return {"ts": when, "schema_version": SCHEMA, "llmbroker_version": VERSION, "kind": kind}


def _error(error: BaseException, include_messages: bool) -> JSON:
    """Return what went wrong; a provider's words may repeat the prompt, so they belong to the messages."""
    out: JSON = {"class": type(error).__name__, "kind": getattr(error, "kind", "unknown")}
    if isinstance(error, LLMBrokerError):
        out |= {"status": error.status, "code": error.code, "request_id": error.request_id}
    if include_messages:
        out["message"] = mask(str(error))
    return out


def _without_data(value: Any) -> Any:
    """Return messages with long inline data replaced by its length and digest."""
    if isinstance(value, Mapping):
        return {key: _without_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_data(item) for item in value]
    if isinstance(value, str) and len(value) > LONGEST_DATA and (value.startswith("data:") or " " not in value[:LONGEST_DATA]):
        import hashlib

        return f"[{len(value)} characters, sha256 {hashlib.sha256(value.encode()).hexdigest()}]"
    return value


# -- from a run file, and back -----------------------------------------------------------------------------------------------


def llm_export(run_file: str | os.PathLike[str], path: str | os.PathLike[str], *, include_messages: bool = True) -> int:
    """Write a line for every finished row of a run file, results that later ones replaced included; return how many.

    Args:
        run_file: the run file.
        path: the JSON-lines file, written anew.
        include_messages: as of ``llm_log_enable``.

    Raises:
        ConfigurationError: the run file cannot be read.
    """
    count = 0
    with RunFile(run_file, reading=True) as run, Path(path).open("wb") as file:
        for asked, outcome in run.outcomes(superseded=True):
            file.write(msgspec.json.encode(row_record(asked, outcome, include_messages=include_messages)) + b"\n")
            count += 1
    return count


def row_record(asked: JSON, outcome: Outcome, *, include_messages: bool) -> JSON:
    """Return the line of a finished row."""
    facts = asked.get("config") or {}
    params = _params(facts.get("params") or {})
    messages = asked.get("messages")
    tools = [tool.get("function", tool) for tool in asked.get("tools") or ()] or None
    form = asked.get("response_format")
    kept = outcome.request_hash or asked.get("request_hash")
    if kept is None and not (isinstance(messages, dict) and "sha256" in messages):
        kept = llm_request_hash(
            None, messages, provider=facts.get("provider"), model=facts.get("model"), params=params, tools=tools,
            response_format=form,
        )  # fmt: skip
    line: JSON = {
        **_head(outcome.created_at, "row"),
        "status": "ok" if outcome.success else "error",
        "attempt": outcome.attempts,
        "provider": facts.get("provider"),
        "model": facts.get("model"),
        "base_url": facts.get("base_url"),
        "parameters": params if include_messages else {name: v for name, v in params.items() if name in SAFE},
        "request_hash": kept,
        "duration": outcome.duration,
        "model_version": outcome.model_version,
        "response_id": outcome.response_id,
        "finish_reason": outcome.finish_reason,
        "usage": {
            "sent": outcome.sent_tokens, "rec": outcome.rec_tokens, "total": outcome.total_tokens,
            "reasoning": outcome.reasoning_tokens, "cached": outcome.cached_tokens,
        },
        "cost": outcome.cost,
    }  # fmt: skip
    if include_messages:
        digest = isinstance(messages, dict) and messages.get("sha256")
        said: JSON = {"sha256": digest} if digest else {"messages": _without_data(messages)}
        line["request"] = {**said, "tools": tools, "response_format": form}
        line["text"] = outcome.response_text
    if outcome.error_kind is not None:
        line["error"] = {"kind": outcome.error_kind, "status": outcome.status_code, "code": outcome.error_code}
        if include_messages:
            line["error"]["message"] = outcome.error_message
    return line


def llm_log_read(path: str | os.PathLike[str]) -> Rows:
    """Return the lines of a log as rows.

    Raises:
        ConfigurationError: there is no such file, or it is empty.
        InvalidRequestError: a line is no JSON object; the text says which.
    """
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise ConfigurationError(f"The log {path} cannot be read: {error.strerror or error}.") from None
    rows = Rows(_parsed(lines, path))
    if not rows:
        raise ConfigurationError(f"The log {path} is empty.")
    return rows


def _parsed(lines: Iterable[bytes], path: Any) -> Iterator[JSON]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise InvalidRequestError(f"Line {number} of {path} is no JSON: {error}.", argument="path") from None
        if not isinstance(value, dict):
            raise InvalidRequestError(f"Line {number} of {path} is no JSON object.", argument="path")
        yield value


def llm_request_from_log(line: Mapping[str, Any]) -> tuple[ModelConfig, Any]:
    """Return (config, messages) of a line, to ask the same again.

    Raises:
        InvalidRequestError: the line holds no messages, or inline data that was replaced by its digest.
    """
    request = line.get("request")
    if not isinstance(request, Mapping) or "messages" not in request:
        raise InvalidRequestError(
            "The line holds no messages: they were left out, or are too long to be kept.", argument="line"
        )
    if "characters, sha256 " in json.dumps(request["messages"]):
        raise InvalidRequestError("The line's attachments were replaced by their digests.", argument="line")
    config = llm_config(
        line["provider"], line["model"], base_url=line.get("base_url"), response_format=request.get("response_format"),
        **dict(line.get("parameters") or {}),
    )  # fmt: skip
    return config, read_messages(request["messages"])
