"""Embeddings in batches, in every dialect that has them."""

from __future__ import annotations

import json
import math
from typing import Any

import pandas
import pytest
from tests.research.conftest import Face, refused

from llmbroker import (
    AuthError,
    ConnectionFailedError,
    InvalidProviderResponseError,
    InvalidRequestError,
    ServerError,
    llm_config,
)
from llmbroker.testing import Answer
from llmbroker.wire import HTTPRequest


def vector(text: str) -> list[float]:
    return [float(len(text)), 0.5]


def openai(request: HTTPRequest) -> Answer:
    texts = json.loads(request.body)["input"]
    data = [{"index": at, "embedding": vector(text)} for at, text in enumerate(texts)]
    return Answer(body={"data": data[::-1], "usage": {"prompt_tokens": 3, "total_tokens": 3}})


def gemini(request: HTTPRequest) -> Answer:
    texts = [item["content"]["parts"][0]["text"] for item in json.loads(request.body)["requests"]]
    return Answer(body={"embeddings": [{"values": vector(text)} for text in texts]})


def ollama(request: HTTPRequest) -> Answer:
    texts = json.loads(request.body)["input"]
    return Answer(body={"embeddings": [vector(text) for text in texts], "prompt_eval_count": 7})


CASES = [
    ("openai", "text-embedding-3-small", openai, "https://api.openai.com/v1/embeddings"),
    ("voyage", "voyage-3", openai, "https://api.voyageai.com/v1/embeddings"),
    ("mistral", "mistral-embed", openai, "https://api.mistral.ai/v1/embeddings"),
    ("gemini", "gemini-embedding-001", gemini,
     "https://generativelanguage.googleapis.com/v1beta/models/gemini-embedding-001:batchEmbedContents"),
    ("ollama", "nomic-embed-text", ollama, "http://localhost:11434/api/embed"),
]  # fmt: skip


@pytest.mark.parametrize(("provider", "model", "server", "url"), CASES, ids=[case[0] for case in CASES])
def test_each_text_gets_its_vector_in_order(face: Face, provider: str, model: str, server: Any, url: str) -> None:
    face.port.on(None, server, times=None)
    config = llm_config(provider, model, api_key="k" * 20, temperature=0.5, max_tokens=9, dimensions=2)
    texts = ["x" * n for n in range(1, 8)]
    out = face.get_batched_embeddings(texts, config, batch_size=3)
    assert out == [vector(text) for text in texts] and out.dimension == 2
    assert len(face.port.requests) == 3 and face.port.requests[0].url == url
    sent = face.port.requests[0].body.decode()
    assert "temperature" not in sent and "max_tokens" not in sent and "imension" in sent
    if provider == "openai":
        assert out.usage.input_tokens == 9 and out.cost == pytest.approx(9 * 0.02 / 1e6)


def test_names_follow_their_texts_into_a_frame(face: Face) -> None:
    face.port.on(None, openai, times=None)
    config = llm_config("voyage", "voyage-3", api_key="k" * 20, embedding=False)
    for texts in ({"one": "a", "two": "bb"}, pandas.Series(["a", "bb"], index=["one", "two"])):
        frame = face.get_batched_embeddings(texts, config).to_pandas()
        assert list(frame.columns) == ["v1", "v2"] and list(frame.index) == ["one", "two"] and frame.loc["two", "v1"] == 2


def test_gemini_is_never_sent_more_than_a_hundred_texts(face: Face) -> None:
    face.port.on(None, gemini, times=None)
    config = llm_config("gemini", "gemini-embedding-001", api_key="k" * 20, task_type="SEMANTIC_SIMILARITY")
    assert len(face.get_batched_embeddings(["a"] * 250, config, batch_size=250)) == 250
    assert [len(json.loads(r.body)["requests"]) for r in face.port.requests] == [100, 100, 50]
    assert json.loads(face.port.requests[0].body)["requests"][0]["taskType"] == "SEMANTIC_SIMILARITY"


def embedder() -> Any:
    return llm_config("openai", "text-embedding-3-small", api_key="k" * 20)


def failing(word: str, answer: Answer) -> Any:
    return lambda request: answer if word in request.body.decode() else openai(request)


def test_a_batch_that_fails_for_good_leaves_gaps_and_one_warning(face: Face) -> None:
    face.port.on(None, failing("bad", refused(503)), times=None)
    with pytest.warns(UserWarning, match="1 of 3 texts"):
        out = face.get_batched_embeddings(["a", "bad", "c"], embedder(), batch_size=1, tries=2)
    assert out[1] is None and set(out.failures) == {1} and out[0] == vector("a")
    assert math.isnan(out.to_numpy()[1][0]) and out.to_numpy()[2][0] == 1


def test_the_first_batch_does_not_fix_the_dimension(face: Face) -> None:
    face.port.on(None, failing("bad", refused(503)), times=None)
    with pytest.warns(UserWarning):
        assert face.get_batched_embeddings(["bad", "c"], embedder(), batch_size=1, tries=1).to_pandas().shape == (2, 2)


@pytest.mark.parametrize(
    ("answer", "error"),
    [(refused(401, code="invalid_api_key"), AuthError), (Answer(fault="refuse"), ConnectionFailedError)],
)
def test_what_another_batch_cannot_mend_is_raised(face: Face, answer: Answer, error: type[Exception]) -> None:
    face.port.on(None, failing("bad", answer), times=None)
    with pytest.raises(error):
        face.get_batched_embeddings(["a", "bad"], embedder(), batch_size=1, tries=1)


def test_all_batches_failing_is_an_error(face: Face) -> None:
    face.port.on(None, refused(503), times=None)
    with pytest.raises(ServerError):
        face.get_batched_embeddings(["a", "b"], embedder(), batch_size=1, tries=2)


@pytest.mark.parametrize(
    "body", [{"data": []}, {"data": [{"embedding": [1]}, {"embedding": [1, 2]}]}, {"x": 1}, {"data": [{}, {}]}]
)
def test_vectors_that_do_not_belong_to_the_texts_are_no_answer(face: Face, body: Any) -> None:
    face.port.on(None, Answer(body=body), times=None)
    with pytest.raises(InvalidProviderResponseError):
        face.get_batched_embeddings(["a", "b"], embedder(), tries=1)


def test_no_texts_need_no_request(face: Face) -> None:
    assert face.get_batched_embeddings([], embedder()) == []


@pytest.mark.parametrize(("texts", "size"), [(["a", None], 5), (["a"], 0), ([3], 5)])
def test_what_is_no_text_is_refused(face: Face, texts: Any, size: int) -> None:
    with pytest.raises(InvalidRequestError):
        face.get_batched_embeddings(texts, embedder(), size)


def test_a_dialect_without_embeddings_says_so(face: Face) -> None:
    with pytest.raises(InvalidRequestError, match="no embeddings"):
        face.get_batched_embeddings(["a"], llm_config("anthropic", "m", api_key="k" * 20, embedding=True))
