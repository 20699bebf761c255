"""``llm_config``: who is asked, with which key, with which parameters; what is refused before a key leaves."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
from tests.research.conftest import Face

from llmbroker import InvalidRequestError, MissingKeyError, llm_config
from llmbroker.testing import Replay

LITERAL = "sk-very-secret-key-1234"


def sent(face: Face) -> dict[str, Any]:
    return json.loads(face.port.requests[-1].body)


# -- who -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "found"), [("OpenAI", "openai"), (" Anthropic ", "anthropic"), ("GROQ", "groq"), ("grok", "xai")]
)
def test_capitals_and_usual_other_names_do_not_matter(given: str, found: str) -> None:
    assert llm_config(given, "m").provider == found


@pytest.mark.parametrize("provider", ["opneai", "anthropic2", ""])
def test_an_unknown_provider_without_address_is_refused_before_a_key_leaves(provider: str) -> None:
    with pytest.raises(InvalidRequestError):
        llm_config(provider, "m", api_key=LITERAL)


def test_a_server_of_ones_own_needs_only_its_address(face: Face) -> None:
    face.answers("hello")
    config = llm_config("mylab", "m", base_url="http://lab.example/v1/chat/completions")
    assert str(face.call_llm(config, "hi")) == "hello"
    assert face.port.requests[0].url == "http://lab.example/v1/chat/completions"
    assert "authorization" not in face.port.requests[0].headers


def test_the_key_of_a_vendor_is_not_sent_to_another_host_unasked(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", LITERAL)
    config = llm_config("openai", "m", base_url="https://elsewhere.example/v1")
    with pytest.raises(MissingKeyError, match="api_key='OPENAI_API_KEY'"):
        face.call_llm(config, "hi")
    face.answers("hello")
    face.call_llm(llm_config("openai", "m", base_url="https://elsewhere.example/v1", api_key="OPENAI_API_KEY"), "hi")
    assert face.port.requests[0].headers["authorization"] == f"Bearer {LITERAL}"


@pytest.mark.parametrize("model", ["", " ", None, 3])
def test_a_model_has_a_name(model: Any) -> None:
    with pytest.raises(InvalidRequestError, match="model"):
        llm_config("openai", model)


def test_the_full_address_of_an_endpoint_has_another_name_here() -> None:
    with pytest.raises(InvalidRequestError, match="base_url"):
        llm_config("openai", "m", api_url="https://x.example/v1/chat/completions")


# -- keys ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "variable"),
    [
        (None, "OPENAI_API_KEY"),
        (None, "OPENAI_KEY"),
        ("MY_LAB_KEY", "MY_LAB_KEY"),
        ("env:my_lab_key", "my_lab_key"),
        (["MISSING_ONE", "SECOND_ONE"], "SECOND_ONE"),
    ],
)
def test_a_key_is_a_reference_that_is_read_at_the_call(
    face: Face, monkeypatch: pytest.MonkeyPatch, given: Any, variable: str
) -> None:
    config = llm_config("openai", "m", api_key=given)
    monkeypatch.setenv(variable, "first-value")
    face.answers("a", "b").call_llm(config, "hi")
    monkeypatch.setenv(variable, "second-value")
    face.call_llm(config, "hi")
    assert [r.headers["authorization"] for r in face.port.requests] == ["Bearer first-value", "Bearer second-value"]


def test_a_key_may_stand_in_a_file_beside_the_program(face: Face) -> None:
    Path(".env").write_text("OPENAI_API_KEY=from-the-file\n")
    face.answers("a").call_llm(llm_config("openai", "m"), "hi")
    assert face.port.requests[0].headers["authorization"] == "Bearer from-the-file"


@pytest.mark.parametrize("given", [None, "NOT_SET_ANYWHERE", ["NOT_SET", "NOR_THIS"]])
def test_a_missing_key_is_an_error_of_the_call_that_names_the_variable(face: Face, given: Any) -> None:
    config = llm_config("openai", "m", api_key=given)
    with pytest.raises(MissingKeyError, match=r"OPENAI_API_KEY|NOT_SET") as caught:
        face.call_llm(config, "hi")
    assert caught.value.kind == "authentication"
    assert face.port.requests == []


def test_an_empty_key_means_the_usual_variables_and_says_so(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "usual")
    with pytest.warns(UserWarning, match="api_key is empty"):
        config = llm_config("openai", "m", api_key="")
    face.answers("a").call_llm(config, "hi")
    assert face.port.requests[0].headers["authorization"] == "Bearer usual"


@pytest.mark.parametrize("given", [float("nan"), 3, [], [""], ["sk-literal in a list"]])
def test_what_is_no_key_is_refused_without_being_shown(given: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        llm_config("openai", "m", api_key=given)
    assert "sk-literal" not in str(caught.value)


def test_a_literal_key_works_and_is_shown_and_stored_nowhere(face: Face, config: Any) -> None:
    face.answers("a").call_llm(config, "hi")
    assert face.port.requests[0].headers["authorization"] == f"Bearer {LITERAL}"
    shown = [
        repr(config),
        str(config),
        repr(vars(type(config))),
        repr(config._key),
        repr(config.params),
        str(copy.copy(config)),
    ]
    assert LITERAL not in "".join(shown)
    assert LITERAL.encode() not in pickle.dumps(config)
    with pytest.raises(MissingKeyError):
        face.call_llm(pickle.loads(pickle.dumps(config)), "hi")


@pytest.mark.parametrize(
    ("key", "more"),
    [
        (LITERAL, {"temperature": "hot"}),
        (LITERAL, {"provider": "opneai"}),
        (LITERAL, {"base_url": "no address"}),
        (LITERAL + " \n x", {}),
        ([LITERAL, "OTHER_KEY"], {}),
    ],
)
def test_no_frame_of_ours_holds_a_key_when_an_error_is_shown_with_its_variables(key: Any, more: dict[str, Any]) -> None:
    with pytest.raises(Exception) as caught:
        llm_config(**{"provider": "openai", "model": "m", "api_key": key, **more})
    frames = [entry.frame for entry in caught.traceback if "llmbroker/research" in str(entry.path).replace("\\", "/")]
    ours = [frame for frame in frames if "tests" not in str(frame.code.path)]
    assert ours
    assert LITERAL not in "".join(repr(frame.f_locals) for frame in ours)


def test_a_reference_survives_pickling(monkeypatch: pytest.MonkeyPatch) -> None:
    config = llm_config("groq", "m", api_key="LAB_KEY", temperature=0.5)
    again = pickle.loads(pickle.dumps(config))
    assert again == config and repr(again) == repr(config)


def test_a_key_in_capitals_that_is_no_variable_is_a_key() -> None:
    assert "AKIA" not in repr(llm_config("openai", "m", api_key="AKIAIOSFODNN7EXAMPLE"))


# -- parameters ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "hot"),
        ("temperature", float("nan")),
        ("max_tokens", 3.5),
        ("max_tokens", "many"),
        ("seed", True),
        ("top_p", [1]),
    ],
)
def test_a_number_that_is_none_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        llm_config("openai", "m", **{name: value})


@pytest.mark.parametrize(
    ("provider", "model", "params", "left_out"),
    [
        ("openai", "gpt-4o-mini", {"top_k": 5, "temperature": 1}, ("top_k",)),
        ("openai", "gpt-4o-mini", {"thinking_budget": 500, "include_thoughts": True}, ("thinking_budget", "include_thoughts")),
        (
            "anthropic",
            "claude-haiku-4-5",
            {"seed": 3, "frequency_penalty": 0.5, "max_tokens": 32_000},
            ("seed", "frequency_penalty"),
        ),
        ("gemini", "gemini-2.5-flash", {"repetition_penalty": 1.2, "top_k": 3}, ("repetition_penalty",)),
        ("zhipu", "glm-4.5", {"presence_penalty": 0.5, "top_k": 3}, ("presence_penalty",)),
        ("alibaba", "qwen-plus", {"thinking_budget": 500}, ()),
        ("together", "m", {"top_k": 3, "repetition_penalty": 1.1}, ()),
    ],
)
def test_what_a_model_cannot_take_is_left_out_with_one_note(
    provider: str, model: str, params: dict[str, Any], left_out: tuple[str, ...]
) -> None:
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        config = llm_config(provider, model, **params)
        llm_config(provider, model, **params)
    assert config.left_out == left_out
    assert len(notes) == (1 if left_out else 0)
    assert all(name in str(notes[0].message) for name in left_out)


def test_no_change_keeps_everything_as_it_was_written(face: Face) -> None:
    face.answers("a")
    config = llm_config("openai", "m", api_key=LITERAL, no_change=True, top_k=5, max_tokens=9, stop_sequences=["x"])
    face.call_llm(config, "hi")
    assert {name: sent(face)[name] for name in ("top_k", "max_tokens", "stop_sequences")} == {
        "top_k": 5,
        "max_tokens": 9,
        "stop_sequences": ["x"],
    }
    assert config.left_out == ()


@pytest.mark.parametrize("provider", ["anthropic", "gemini"])
def test_no_change_reaches_every_dialect(provider: str) -> None:
    face = Face("blocking").answers("a", dialect=provider)
    face.call_llm(llm_config(provider, "m", api_key=LITERAL, no_change=True, repetition_penalty=1.2), "hi")
    assert "1.2" in json.dumps(sent(face))


def test_stop_sequences_is_stop_where_the_dialect_says_stop(face: Face) -> None:
    face.answers("a").call_llm(llm_config("groq", "m", api_key=LITERAL, stop_sequences=["x"]), "hi")
    assert sent(face)["stop"] == ["x"]


def test_transport_words_never_reach_a_body(face: Face) -> None:
    config = llm_config(
        "openai", "m", api_key=LITERAL, timeout=3, cache=True, headers={"x-study": "7"}, price={"input": 1, "output": 1}
    )
    face.answers("a").call_llm(config, "hi")
    assert set(sent(face)) == {"model", "messages"}
    assert face.port.requests[0].headers["x-study"] == "7"


def test_a_renamed_limit_is_learnt_once_for_all_configs_of_a_model(face: Face) -> None:
    """A server that wants max_completion_tokens says so once; a sweep does not pay for it again."""
    from tests.research.conftest import refused

    refusal = refused(
        400,
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        param="max_tokens",
        code="unsupported_parameter",
    )
    face.answers(refusal, "a", "b")
    config = llm_config("lab", f"renamed-{face.name}", base_url="http://lab.example/v1", max_tokens=5)
    face.call_llm(config, "hi")
    face.call_llm(config.replace(temperature=0.5), "hi")
    assert len(face.port.requests) == 3
    assert sent(face)["max_completion_tokens"] == 5 and "max_tokens" not in sent(face)


def test_caches_are_marked_where_the_provider_wants_marks() -> None:
    face = Face("blocking").answers("a", dialect="anthropic")
    config = llm_config("anthropic", "claude-haiku-4-5", api_key=LITERAL, cache=True)
    face.call_llm(config, [("system", "Long instructions."), ("user", "hi")])
    assert sent(face)["system"][0]["cache_control"] == {"type": "ephemeral"}


# -- replace -------------------------------------------------------------------------------------------------------------


def test_a_replaced_provider_brings_its_own_address_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "of-groq")
    face = Face("blocking").answers("a")
    config = llm_config("openai", "m", api_key=LITERAL, temperature=0.3)
    face.call_llm(config.replace(provider="groq", model="other"), "hi")
    request = face.port.requests[0]
    assert "groq.com" in request.url and request.headers["authorization"] == "Bearer of-groq"
    assert sent(face)["model"] == "other" and sent(face)["temperature"] == 0.3


def test_configs_are_equal_by_what_they_say() -> None:
    assert llm_config("openai", "m", temperature=0) == llm_config("OpenAI", "m", temperature=0)
    assert llm_config("openai", "m", temperature=0) != llm_config("openai", "m", temperature=1)


def test_the_local_model_is_a_provider_like_any_other() -> None:
    config = llm_config("local", "smollm2-135m-instruct", max_tokens=5)
    assert config.deployment().base_url == "local:"


def test_nothing_is_sent_by_making_a_config(port: Replay) -> None:
    llm_config("ollama", "m")
    assert port.requests == []
