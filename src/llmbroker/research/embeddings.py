"""Embeddings in batches: texts in, one vector a text out, in order, whatever failed on the way."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from llmbroker.errors import ConnectionFailedError, InvalidRequestError, LLMBrokerError, LLMTimeoutError, missing_package
from llmbroker.exchange import Usage
from llmbroker.io import Port, gather
from llmbroker.journal import utc
from llmbroker.providers import embeddings as codec
from llmbroker.research import calls
from llmbroker.research.calls import TRANSIENT, checked_tries, pause_after
from llmbroker.research.config import LONGEST, ModelConfig

WORKERS = 8


class Embeddings(list[list[float] | None]):
    """Vectors in the order of the texts; None where a batch failed for good.

    Attributes:
        names: names of the texts, or None.
        usage: tokens of all batches together, or None.
        cost: US dollars, or None where the price is not known.
        failures: the error of each text without a vector, by its place.
    """

    names: list[str] | None = None
    usage: Usage | None = None
    cost: float | None = None
    failures: dict[int, LLMBrokerError]

    def __init__(self, vectors: Sequence[list[float] | None] = ()) -> None:
        super().__init__(vectors)
        self.failures = {}

    @property
    def dimension(self) -> int | None:
        """Numbers of a vector, or None where there is none."""
        return next((len(vector) for vector in self if vector is not None), None)

    def to_pandas(self) -> Any:
        """Return a DataFrame with columns v1, v2, ...; missing vectors are rows of NaN. Needs pandas.

        Raises:
            ConfigurationError: it is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise missing_package("pandas", "'llmbroker[frames]'") from None

        columns = [f"v{number}" for number in range(1, (self.dimension or 0) + 1)]
        return pandas.DataFrame([v if v is not None else [float("nan")] * len(columns) for v in self], self.names, columns)

    def to_numpy(self) -> Any:
        """Return a matrix; missing vectors are rows of NaN. Needs numpy."""
        return self.to_pandas().to_numpy()


class _Batches:
    """One run over batches."""

    def __init__(self, config: ModelConfig, texts: list[str], size: int, tries: int, wait: float, factor: float) -> None:
        self.config = config
        self.texts = texts
        self.tries = tries
        self.wait_seconds = wait
        self.backoff_factor = factor
        self.size = min(size, codec.most_texts(config.deployment()))
        self.out = Embeddings([None] * len(texts))
        self.usages: list[Usage | None] = []

    async def run(self, port: Port, workers: int) -> Embeddings:
        """Ask for all batches; raise what time does not mend, and what made every batch fail."""
        starts = range(0, len(self.texts), self.size)
        results = await gather(port, [self._batch(port, at) for at in starts], workers)
        for result in results:
            if isinstance(result, BaseException) and not _passing(result):
                raise result
        failed = [(at, result) for at, result in zip(starts, results, strict=True) if isinstance(result, LLMBrokerError)]
        if failed and len(failed) == len(results):
            raise failed[0][1]
        for at, error in failed:
            self.out.failures.update(dict.fromkeys(range(at, min(at + self.size, len(self.texts))), error))
        if failed:
            warnings.warn(
                f"{len(self.out.failures)} of {len(self.texts)} texts have no embedding: {failed[0][1]}",
                UserWarning,
                stacklevel=2,
            )
        self._sum(port.time())
        return self.out

    def _sum(self, now: float) -> None:
        known = [usage for usage in self.usages if usage is not None and usage.input_tokens is not None]
        if known and len(known) == len(self.usages):
            total = sum(usage.input_tokens or 0 for usage in known)
            self.out.usage = Usage(input_tokens=total, output_tokens=0, total_tokens=total)
            self.out.cost = self.config.cost(self.out.usage, utc(now))

    async def _batch(self, port: Port, at: int) -> None:
        texts = self.texts[at : at + self.size]
        failed = 0
        while True:
            try:
                vectors = await self._once(port, texts)
            except LLMBrokerError as error:
                failed += 1
                seconds = pause_after(error, self, failed)
                if seconds is None:
                    raise
            else:
                self.out[at : at + len(texts)] = vectors
                return
            await port.sleep(seconds)

    async def _once(self, port: Port, texts: list[str]) -> list[list[float]]:
        deployment = self.config.deployment()
        request = codec.encode(texts, deployment, self.config.params)
        try:
            http = await port.send(request, port.now() + (self.config.timeout or LONGEST))
        except (ConnectionFailedError, LLMTimeoutError) as error:
            error.provider, error.model = deployment.provider.id, deployment.model
            raise
        vectors, usage = codec.decode(http, deployment, len(texts))
        self.usages.append(usage)
        return vectors


def _passing(error: BaseException) -> bool:
    """Whether another day might bring an answer: then the other batches count."""
    return isinstance(error, LLMBrokerError) and error.kind in TRANSIENT and not isinstance(error, ConnectionFailedError)


def _prepared(texts: Any, config: Any, batch_size: int, tries: int, wait: float, factor: float) -> tuple[_Batches, Any]:
    if not isinstance(config, ModelConfig):
        raise InvalidRequestError("config is what llm_config returns.", argument="config")
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise InvalidRequestError(f"batch_size is a whole number of at least 1, not {batch_size!r}.", argument="batch_size")
    checked_tries(tries, wait, factor)
    names = None
    if isinstance(texts, Mapping):
        names, texts = [str(name) for name in texts], list(texts.values())
    elif isinstance(texts, str):
        texts = [texts]
    elif hasattr(texts, "index") and hasattr(texts, "to_list"):
        names, texts = [str(name) for name in texts.index], texts.to_list()
    listed = list(texts)
    wrong = next((at for at, text in enumerate(listed) if not isinstance(text, str)), None)
    if wrong is not None:
        raise InvalidRequestError(f"texts[{wrong}] is {type(listed[wrong]).__name__}, not text.", argument=f"texts[{wrong}]")
    batches = _Batches(config, listed, batch_size, tries, wait, factor)
    batches.out.names = names
    return batches, names


def get_batched_embeddings(
    texts: Any,
    embed_config: ModelConfig,
    batch_size: int = 50,
    tries: int = 5,
    wait_seconds: float = 2,
    backoff_factor: float = 3,
    *,
    max_workers: int = WORKERS,
    io: Port | None = None,
) -> Embeddings:
    """Return a vector for each text.

    Args:
        texts: a list of texts, a mapping of names to texts, or a pandas Series (its index names them).
        embed_config: ``llm_config(..., embedding=True)``; parameters of answers are left out.
        batch_size: texts in one request; never more than the provider takes.
        tries: requests of one batch at most.
        wait_seconds: as of ``call_llm_robust``.
        backoff_factor: as of ``call_llm_robust``.
        max_workers: batches at once.
        io: another port.

    Raises:
        InvalidRequestError, MissingKeyError: nothing was sent.
        LLMBrokerError: what time does not mend, or what made every batch fail. If only some fail in the end, their texts have
            no vector (``failures`` says why), with one warning.
    """
    batches, _ = _prepared(texts, embed_config, batch_size, tries, wait_seconds, backoff_factor)
    port = calls.blocking_port(embed_config, io)
    return port.drive(batches.run(port, max_workers)) if batches.texts else batches.out


async def aget_batched_embeddings(
    texts: Any,
    embed_config: ModelConfig,
    batch_size: int = 50,
    tries: int = 5,
    wait_seconds: float = 2,
    backoff_factor: float = 3,
    *,
    max_workers: int = WORKERS,
    io: Port | None = None,
) -> Embeddings:
    """Await what ``get_batched_embeddings`` does."""
    batches, _ = _prepared(texts, embed_config, batch_size, tries, wait_seconds, backoff_factor)
    return await batches.run(calls.async_port(embed_config, io), max_workers) if batches.texts else batches.out
