"""The face for plain code: ``Broker``. Every method is a thin skin over a flow that is driven in the caller's thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, Unpack

from llmbroker.broker.caller import CHAT_OPTIONS, Caller, ChatOptions, given
from llmbroker.broker.direct import MeteredDirectClient
from llmbroker.broker.engine import request_of
from llmbroker.broker.loops import LoopStream, loops
from llmbroker.broker.replies import PooledReply
from llmbroker.broker.states import Snapshot
from llmbroker.broker.streams import PooledStream
from llmbroker.catalog import Limit, LLMConfig
from llmbroker.client import DirectClient
from llmbroker.errors import unexpected
from llmbroker.io import Port
from llmbroker.journal import Call, Stats
from llmbroker.preference import Prefer


class Broker(Caller):
    """A pool of models behind one ``chat``: the best one that is free answers, and every attempt is written down.

    Args:
        source: nothing (packaged free models, keys from the environment and ``.env``, journal in llmbroker's own folder), a
            TOML model list, or a database (``broker.db``, ``sqlite:///...``) with model list, stored keys and journal.
        pool: the models, in code; replaces the source's list.
        direct: aliases and models that are called by name and never pooled.
        secrets: a mapping from references to values, a callable ``(ref, scope)``, or an object with ``resolve(ref, scope)``.
        journal: None (as the source says), a path, an address, or False.
        home: llmbroker's own folder, else ``LLMBROKER_HOME``, else the platform's.
        io: another port (a scripted one in tests).
        shared_keys: whether a user (``for_scope``) without a key of his own may use the one that all share.
        prefer: what calls prefer that do not say so themselves: "quality" (also by default), "speed", "cost", or weights
            like ``{"quality": 1, "cost": 2}``.
        limits: what may be spent; replaces the source's list (``[[limits]]``).

    Raises:
        ConfigurationError: a source cannot be used.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | None = None,
        *,
        pool: Sequence[LLMConfig] | None = None,
        direct: Sequence[str | LLMConfig] = (),
        secrets: Any = None,
        journal: Any = None,
        home: str | os.PathLike[str] | None = None,
        io: Port | None = None,
        shared_keys: bool = True,
        prefer: Prefer = None,
        limits: Sequence[Limit] | None = None,
    ) -> None:
        port = io
        if port is None:
            from llmbroker.transports.blocking import BlockingIO

            port = BlockingIO()
        self._begin(
            source,
            port,
            io is None,
            pool=pool,
            direct=direct,
            secrets=secrets,
            journal=journal,
            home=home,
            shared_keys=shared_keys,
            prefer=prefer,
            limits=limits,
            rate=lambda score, *, call_id, scope: self._rate(score, call_id=call_id, trace_id=None, scope=scope),
        )

    def ask(self, prompt: str, **options: Unpack[ChatOptions]) -> PooledReply:
        """Send one user message and return the reply; options and errors as of ``chat``."""
        if strange := unexpected(f"{type(self).__name__}.ask", options, CHAT_OPTIONS):
            raise strange
        return self.chat(prompt, **options)

    def chat(
        self,
        messages: Any,
        *,
        tools: Sequence[Any] | None = None,
        tool_choice: Any = None,
        response_format: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        operation: str | None = None,
        trace_id: str | None = None,
        wait: float | None = None,
        fastest_of: int | None = None,
        prefer: Prefer = None,
    ) -> PooledReply:
        """Return the reply of the best model that is free.

        Args:
            messages: a string, or OpenAI-style dicts.
            tools: OpenAI-style tool declarations.
            tool_choice: auto, none, required, or a tool's name.
            response_format: ``{"type": "json_object"}`` or a ``json_schema`` mapping.
            params: further parameters (temperature, max_tokens, ...).
            operation: what this is for; ratings count for each operation apart.
            trace_id: groups the rows of one piece of work.
            wait: seconds for queue, attempts and answer together; 0 does not queue; None: 10 minutes.
            fastest_of: so many models at once, the first answer counts.
            prefer: "quality", "speed" or "cost", or weights of them; None: as the broker was told to.

        Raises:
            InvalidRequestError: an argument is wrong; nothing was sent.
            BadRequestError: the provider refused the request itself.
            NoLLMAvailableError: nobody answered; ``reason``, ``retry_at``, ``attempts`` and the text say why.
        """
        request = request_of(None, messages, tools, tool_choice, response_format, params, stream=False)
        options = given(operation=operation, trace_id=trace_id, wait=wait, fastest_of=fastest_of, prefer=prefer)
        return self._io.drive(self._engine.chat(request, params, self._scope, options))  # type: ignore[no-any-return]

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Any = None,
        tools: Sequence[Any] | None = None,
        tool_choice: Any = None,
        response_format: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        operation: str | None = None,
        trace_id: str | None = None,
        wait: float | None = None,
        fastest_of: int | None = None,
        prefer: Prefer = None,
    ) -> PooledStream:
        """Return the answer as it is made; arguments as of ``chat``, errors while it is read.

        Raises:
            StreamInterruptedError, LLMTimeoutError: while it is read, after the first piece, with the text so far.
        """
        request = request_of(prompt, messages, tools, tool_choice, response_format, params, stream=True)
        options = given(operation=operation, trace_id=trace_id, wait=wait, fastest_of=fastest_of, prefer=prefer)
        return PooledStream(self._io, self._engine.source(request, params, self._scope, options))

    def run(
        self,
        messages: Any,
        *,
        tools: Sequence[Any] | None = None,
        dispatch: Mapping[str, Callable[..., Any]] | None = None,
        max_steps: int = 8,
        max_repeats: int | None = None,
        max_concurrency: int = 8,
        result_limit: int | None = 100_000,
        keep_tool_choice: bool = False,
        transcript: Any = None,
        budget: Any = None,
        approve: Any = None,
        answers: Sequence[Any] | None = None,
        stop_when: Any = None,
        prepare_step: Any = None,
        output: Any = None,
        compaction: Any = None,
        tool_choice: Any = None,
        response_format: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        operation: str | None = None,
        trace_id: str | None = None,
        wait: float | None = None,
        fastest_of: int | None = None,
        prefer: Prefer = None,
    ) -> LoopStream:
        """Run a tool loop and see what happens: iterate the result for events; afterwards ``reply`` is the reply.

        The arguments up to ``compaction`` are those of ``llmbroker.run_tool_loop``, the others those of ``chat``, for every
        model call of the loop: a scoped broker runs it as its user, with rows of that scope, and ``trace_id`` groups them.
        Leaving early stops everything.

        Raises:
            InvalidRequestError: an argument is wrong; nothing was sent.
            LLMBrokerError: while it is read, what ``run_tool_loop`` raises, with everything that happened.
        """
        chat = given(
            tool_choice=tool_choice, response_format=response_format, params=params, operation=operation, trace_id=trace_id,
            wait=wait, fastest_of=fastest_of, prefer=prefer,
        )  # fmt: skip
        return loops().stream_tool_loop(
            self, messages, tools=tools, dispatch=dispatch, max_steps=max_steps, max_repeats=max_repeats,
            max_concurrency=max_concurrency, result_limit=result_limit, keep_tool_choice=keep_tool_choice,
            transcript=transcript, budget=budget, approve=approve, answers=answers, stop_when=stop_when,
            prepare_step=prepare_step, output=output, compaction=compaction, **chat,
        )  # fmt: skip

    def direct(self, alias: str | None = None, *, name: str | None = None) -> DirectClient:
        """Return a client of one model that you choose: no failover, no row; limits hold for it, too; errors reach you.

        Args:
            alias: of the catalog or of ``direct=``.
            name: of one exact model.

        Raises:
            UnknownModelError, PoolModelError: nobody bears it, or a member of the pool does.
            MissingKeyError: it needs a key and there is none.
        """
        config = self._engine.direct_config(alias, name)
        deployment = self._io.drive(self._engine.direct_deployment(config, self._scope))
        turnstile = self._engine.turnstile(config, deployment, self._scope)
        return DirectClient.over(self._io, deployment) if turnstile is None else MeteredDirectClient.through(turnstile)

    def record_quality(self, score: float, *, call_id: str | None = None, trace_id: str | None = None) -> None:
        """Rate a call, 0 (useless) to 1 (perfect): by its id, or the most recent successful one of a trace.

        Raises:
            InvalidRequestError: the score is no number from 0 to 1, or not exactly one id is given.
            UnknownCallError: the journal has no such call (in this scope).
        """
        self._rate(score, call_id=call_id, trace_id=trace_id, scope=self._scope)

    def _rate(self, score: float, *, call_id: str | None, trace_id: str | None, scope: str | None) -> None:
        self._engine.rate(score, call_id=call_id, trace_id=trace_id, scope=scope)

    def calls(
        self,
        *,
        limit: int = 100,
        since: datetime | None = None,
        operation: str | None = None,
        trace_id: str | None = None,
        call_id: str | None = None,
        scope: str | None = None,
        status: str | Sequence[str] | None = None,
        llm_name: str | Sequence[str] | None = None,
        cursor: str | None = None,
    ) -> list[Call]:
        """Return rows of the journal, one an attempt, the newest first; a scoped caller sees its own.

        At most ``limit`` of those that match everything given; ``since`` is an aware time, ``status`` and ``llm_name`` may be
        several; ``cursor``, of the last row of a page, goes on with the next.
        """
        filters = given(
            since=since, operation=operation, trace_id=trace_id, call_id=call_id, scope=scope, status=status, llm_name=llm_name
        )
        return self._engine.calls(limit=limit, cursor=cursor, **self._filters(filters))

    def stats(
        self,
        *,
        by: str = "llm_name",
        since: datetime | None = None,
        operation: str | None = None,
        trace_id: str | None = None,
        scope: str | None = None,
        status: str | Sequence[str] | None = None,
        llm_name: str | Sequence[str] | None = None,
    ) -> dict[str, Stats]:
        """Return counts, tokens, cost, latencies and quality by model, or by provider, operation, scope, status, day, all."""
        filters = given(since=since, operation=operation, trace_id=trace_id, scope=scope, status=status, llm_name=llm_name)
        return self._engine.stats(by=by, **self._filters(filters))

    def snapshot(self) -> Snapshot:
        """Return how each model is now: available or not, why, and until when; and how the journal is."""
        return self._io.drive(self._engine.snapshot(self._scope))

    def disable_llm(self, name: str) -> None:
        """Switch a model of the pool off; raises UnknownModelError if there is none of that name."""
        self._whole_pool("disable_llm")
        self._engine.switch(name, True)

    def enable_llm(self, name: str) -> None:
        """Switch a model of the pool on again."""
        self._whole_pool("enable_llm")
        self._engine.switch(name, False)

    def close(self) -> None:
        """Close connections and the journal; a port that was handed in stays open for its owner. May be called twice."""
        if self._scope is None:
            self._engine.close()
            if self._owns_io:
                self._io.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close."""
        self.close()
