"""Requests of generateContent: our words in Google's, and one history valid for it whatever it holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.providers.vendor_wires import KEY, deployment

from llmbroker.errors import BadRequestError, InvalidRequestError
from llmbroker.exchange import make_request
from llmbroker.messages import History
from llmbroker.providers import params as params_module
from llmbroker.providers.base import Deployment, Mend
from llmbroker.providers.gemini import DIALECT, OPENING, PLACEHOLDER
from llmbroker.providers.gemini_params import openapi_schema, version

JSON = dict[str, Any]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "f", "description": "Does f.", "parameters": SCHEMA}}
BASE = "https://generativelanguage.googleapis.com/v1beta"


@pytest.fixture(autouse=True)
def _nothing_said() -> Iterator[None]:
    params_module._said.clear()
    yield
    params_module._said.clear()


def at(model: str = "gemini-2.5-flash", **row: Any) -> Deployment:
    return deployment(DIALECT, model, base_url=row.pop("base_url", BASE), auth="x-goog-api-key", **row)


def body(messages: Any = "Hi", where: Deployment | None = None, **arguments: Any) -> JSON:
    made: JSON = json.loads(DIALECT.encode(make_request(messages, **arguments), where or at()).body)
    return made


def turn(calls: dict[str, str], **more: Any) -> JSON:
    made = [{"id": key, "type": "function", "function": {"name": name, "arguments": '{"a":1}'}} for key, name in calls.items()]
    return {"role": "assistant", "content": None, "tool_calls": made, **more}


def result(key: str, content: Any = "ok", **more: Any) -> JSON:
    return {"role": "tool", "tool_call_id": key, "content": content, **more}


def user(content: Any = "Hi") -> JSON:
    return {"role": "user", "content": content}


def words(text: str, role: str = "user") -> JSON:
    return {"role": role, "parts": [{"text": text}]}


# -- the envelope ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "stream", "path"),
    [
        ("gemini-2.5-flash", False, "/models/gemini-2.5-flash:generateContent"),
        ("gemini-2.5-flash", True, "/models/gemini-2.5-flash:streamGenerateContent?alt=sse"),
        ("models/gemini-2.5-flash", False, "/models/gemini-2.5-flash:generateContent"),
        ("tunedModels/mine", False, "/tunedModels/mine:generateContent"),
    ],
)
def test_the_model_stands_in_the_address_and_the_key_in_a_header(model: str, stream: bool, path: str) -> None:
    http = DIALECT.encode(make_request("Hi", stream=stream), at(model))
    assert http.url == BASE + path
    assert http.headers["x-goog-api-key"] == KEY
    assert KEY not in http.url
    assert json.loads(http.body) == {"contents": [words("Hi")]}


def test_on_vertex_the_base_url_is_the_publisher_s() -> None:
    base = "https://us-central1-aiplatform.googleapis.com/v1/projects/p/locations/us-central1/publishers/google"
    assert DIALECT.encode(make_request("Hi"), at(base_url=base)).url == f"{base}/models/gemini-2.5-flash:generateContent"


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ("gemini-1.5-pro", (1, 5)),
        ("gemini-2.5-flash-lite-preview-06-17", (2, 5)),
        ("models/gemini-3-pro-preview", (3, 0)),
        ("gemini-3.5-flash", (3, 5)),
        ("gemini-flash-latest", (99, 0)),
    ],
)
def test_a_model_s_name_states_its_version(model: str, known: tuple[int, int]) -> None:
    assert version(model) == known


# -- parameters ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "params", "config"),
    [
        ("gemini-2.5-flash", {"max_tokens": 5}, {"maxOutputTokens": 5}),
        ("gemini-2.5-flash", {"max_completion_tokens": 5}, {"maxOutputTokens": 5}),
        ("gemini-2.5-flash", {"temperature": 0, "top_p": 0.5, "top_k": 3}, {"temperature": 0, "topP": 0.5, "topK": 3}),
        ("gemini-2.5-flash", {"stop": "END"}, {"stopSequences": ["END"]}),
        ("gemini-2.5-flash", {"stop": list("abcdefg")}, {"stopSequences": list("abcde")}),
        ("gemini-2.5-flash", {"seed": 7, "n": 2}, {"seed": 7, "candidateCount": 2}),
        ("gemini-2.5-flash", {"presence_penalty": 1, "frequency_penalty": 2}, {"presencePenalty": 1, "frequencyPenalty": 2}),
        ("gemini-2.5-flash", {"logprobs": True}, {"responseLogprobs": True}),
        ("gemini-2.5-flash", {"top_logprobs": 3}, {"responseLogprobs": True, "logprobs": 3}),
        ("gemini-2.5-flash", {"logprobs": False}, None),
        ("gemini-2.5-flash", {"modalities": ["text", "image"]}, {"responseModalities": ["TEXT", "IMAGE"]}),
        ("gemini-2.5-flash", {"reasoning_effort": "low"}, {"thinkingConfig": {"thinkingBudget": 1024}}),
        ("gemini-2.5-flash", {"reasoning_effort": "none"}, {"thinkingConfig": {"thinkingBudget": 0}}),
        ("gemini-3-flash-preview", {"reasoning_effort": "low"}, {"thinkingConfig": {"thinkingLevel": "low"}}),
        ("gemini-3-flash-preview", {"thinking_budget": 9}, {"thinkingConfig": {"thinkingBudget": 9}}),
        ("gemini-flash-latest", {"reasoning_effort": "high"}, {"thinkingConfig": {"thinkingBudget": 24576}}),
        ("gemini-2.5-flash", {"include_thoughts": True}, {"thinkingConfig": {"includeThoughts": True}}),
        ("gemini-2.5-flash", {"topK": 2, "mediaResolution": "LOW"}, {"topK": 2, "mediaResolution": "LOW"}),
        ("gemini-2.5-flash", {"generationConfig": {"topK": 2}, "top_k": 1}, {"topK": 2}),
        ("gemini-2.5-flash", {"user": "u", "logit_bias": {}, "parallel_tool_calls": False}, None),
    ],
)
def test_parameters_become_generation_config(model: str, params: JSON, config: JSON | None) -> None:
    made = body(where=at(model), params=params)
    assert made.pop("generationConfig", None) == config
    assert made == {"contents": [words("Hi")]}


def test_what_stands_beside_the_generation_config_passes_under_both_spellings() -> None:
    safety = [{"category": "HARM_CATEGORY_HATE_SPEECH", "threshold": "BLOCK_NONE"}]
    made = body(
        params={"safety_settings": safety, "cachedContent": "cachedContents/1", "labels": {"a": "b"}, "service_tier": "flex"}
    )
    assert made["safetySettings"] == safety
    assert (made["cachedContent"], made["labels"], made["serviceTier"]) == ("cachedContents/1", {"a": "b"}, "flex")


def test_a_parameter_that_json_cannot_carry_is_named() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        body(params={"labels": {object()}})
    assert caught.value.argument == "params['labels']"


# -- tools -----------------------------------------------------------------------------------------------------------------


def test_tools_are_declared_with_their_json_schema() -> None:
    assert body(tools=[TOOL])["tools"] == [
        {"functionDeclarations": [{"name": "f", "description": "Does f.", "parametersJsonSchema": SCHEMA}]}
    ]


def test_old_models_get_the_openapi_subset() -> None:
    made = body(where=at("gemini-1.5-flash"), tools=[TOOL])["tools"][0]["functionDeclarations"][0]
    assert made["parameters"] == SCHEMA


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, None),
        ("auto", {"mode": "AUTO"}),
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        ("f", {"mode": "ANY", "allowedFunctionNames": ["f"]}),
    ],
)
def test_a_tool_choice_becomes(choice: str | None, expected: JSON | None) -> None:
    made = body(tools=[TOOL], choice=choice).get("toolConfig")
    assert made == (None if expected is None else {"functionCallingConfig": expected})


def test_a_choice_stands_beside_what_the_caller_says_about_tools() -> None:
    made = body(tools=[TOOL], choice="auto", params={"toolConfig": {"includeServerSideToolInvocations": True}})
    assert made["toolConfig"] == {"includeServerSideToolInvocations": True, "functionCallingConfig": {"mode": "AUTO"}}


def test_a_schema_becomes_the_openapi_subset_and_the_caller_s_stays() -> None:
    given: JSON = {
        "$schema": "x",
        "type": "object",
        "additionalProperties": False,
        "$defs": {"P": {"type": "object", "properties": {"next": {"$ref": "#/$defs/P"}, "k": {"const": 3}}}},
        "properties": {
            "a": {"type": ["string", "null"], "format": "email"},
            "b": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "c": {"$ref": "#/$defs/P", "description": "p"},
            "d": {"type": ["string", "integer"]},
            "e": {"enum": [1, 2]},
            "f": {"type": "array", "items": {"type": "string", "format": "date-time"}},
        },
    }
    before = json.dumps(given)
    assert openapi_schema(given) == {
        "type": "object",
        "properties": {
            "a": {"type": "string", "nullable": True},
            "b": {"type": "integer", "nullable": True},
            "c": {
                "type": "object",
                "description": "p",
                "properties": {"next": {"type": "object"}, "k": {"enum": ["3"], "type": "string"}},
            },
            "d": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            "e": {"enum": ["1", "2"], "type": "string"},
            "f": {"type": "array", "items": {"type": "string", "format": "date-time"}},
        },
    }
    assert json.dumps(given) == before


# -- a response format -----------------------------------------------------------------------------------------------------

FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}


def test_structured_output_takes_the_json_schema() -> None:
    assert body(response_format=FORMAT)["generationConfig"] == {
        "responseMimeType": "application/json",
        "responseJsonSchema": SCHEMA,
    }
    assert body(response_format={"type": "json_object"})["generationConfig"] == {"responseMimeType": "application/json"}
    assert "responseSchema" in body(where=at("gemini-1.5-pro"), response_format=FORMAT)["generationConfig"]


def test_tools_and_a_json_answer_go_together_only_from_3_on_before_words_ask_for_it() -> None:
    assert "responseJsonSchema" in body(where=at("gemini-3-pro"), tools=[TOOL], response_format=FORMAT)["generationConfig"]
    made = body([{"role": "system", "content": "Be brief."}, user()], tools=[TOOL], response_format=FORMAT)
    assert "generationConfig" not in made
    assert '"city"' in made["systemInstruction"]["parts"][0]["text"]
    assert made["systemInstruction"]["parts"][1] == {"text": "Be brief."}


# -- the history -----------------------------------------------------------------------------------------------------------


def test_system_messages_are_the_system_instruction_wherever_they_stand() -> None:
    made = body(
        [
            {"role": "system", "content": "A"},
            user(),
            {"role": "assistant", "content": "Yes"},
            {"role": "system", "content": "B"},
        ]
    )
    assert made["systemInstruction"] == {"parts": [{"text": "A"}, {"text": "B"}]}
    assert made["contents"] == [words("Hi"), words("Yes", "model")]


def test_all_results_of_a_turn_stand_in_one_content_in_the_model_s_order() -> None:
    made = body([user(), turn({"a": "f", "b": "g"}), result("b", "2"), result("a", "1"), user("And?")])["contents"]
    assert made[1]["parts"] == [{"functionCall": {"name": name, "args": {"a": 1}}} for name in ("f", "g")]
    assert made[2] == {
        "role": "user",
        "parts": [
            {"functionResponse": {"name": "f", "response": {"result": "1"}}},
            {"functionResponse": {"name": "g", "response": {"result": "2"}}},
        ],
    }
    assert made[3] == words("And?")


@pytest.mark.parametrize(
    ("content", "more", "response"),
    [
        ("warm", {}, {"result": "warm"}),
        ('{"t": 1.50}', {}, {"result": {"t": 1.5}}),
        ("[]", {}, {"result": []}),
        ("{broken", {}, {"result": "{broken"}),
        ("", {}, {"result": "(no output)"}),
        ("boom", {"is_error": True}, {"error": "boom"}),
    ],
)
def test_a_result_is_an_object_under_result_or_error(content: str, more: JSON, response: JSON) -> None:
    made = body([user(), turn({"a": "f"}), result("a", content, **more)])["contents"][-1]
    assert made["parts"][0]["functionResponse"]["response"] == response


def test_media_of_a_result_stand_in_it_from_3_on_and_beside_it_before() -> None:
    parts = [{"type": "text", "text": "Here"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]
    history = [user(), turn({"a": "f"}), result("a", parts), user("And?")]
    image = {"inlineData": {"mimeType": "image/png", "data": "aGk="}}
    new = body(history, at("gemini-3-pro"))["contents"]
    assert new[2]["parts"][0]["functionResponse"]["parts"] == [image]
    old = body(history, at("gemini-2.5-pro"))["contents"]
    assert old[2]["parts"] == [{"functionResponse": {"name": "f", "response": {"result": "Here"}}}]
    assert old[3] == {"role": "user", "parts": [image, {"text": "And?"}]}


def test_media_in_all_forms() -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": "https://x.test/a.webp?x=1"}},
        {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "mp3"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERg=="}},
        {"type": "file", "file": {"file_id": "https://host/v1beta/files/1", "format": "video/mp4"}},
        {"type": "image_url", "image_url": {"url": "gs://bucket/a"}},
    ]
    assert body([user(parts)])["contents"][0]["parts"] == [
        {"fileData": {"mimeType": "image/webp", "fileUri": "https://x.test/a.webp?x=1"}},
        {"inlineData": {"mimeType": "audio/mp3", "data": "aGk="}},
        {"inlineData": {"mimeType": "application/pdf", "data": "JVBERg=="}},
        {"fileData": {"mimeType": "video/mp4", "fileUri": "https://host/v1beta/files/1"}},
        {"fileData": {"mimeType": "image/jpeg", "fileUri": "gs://bucket/a"}},
    ]


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([turn({"a": "f"}), result("a")], id="a call first"),
        pytest.param([{"role": "system", "content": "Say hello."}], id="a system message alone"),
        pytest.param([user("")], id="a user who says nothing"),
    ],
)
def test_the_user_always_begins(messages: list[JSON]) -> None:
    assert body(messages)["contents"][0] == words(OPENING)


# -- signatures go back ----------------------------------------------------------------------------------------------------


def signed(*items: JSON, dialect: str = "gemini", calls: tuple[str, ...] = ("a", "b"), **more: Any) -> JSON:
    return turn(dict.fromkeys(calls, "f"), provider_data={"dialect": dialect, "items": list(items)}, **more)


def part(**more: Any) -> JSON:
    return {"functionCall": {"name": "f", "args": {"a": 1}, **more.pop("call", {})}, **more}


def test_parts_go_back_as_they_came_each_signature_on_its_own_part() -> None:
    items = [{"text": "Hm", "thought": True}, part(thoughtSignature="c2ln"), part()]
    made = body([user(), signed(*items), result("a"), result("b")], at("gemini-3-pro"))["contents"]
    assert made[1] == {"role": "model", "parts": items}
    assert len(made) == 3


def test_an_id_that_the_provider_gave_is_echoed_and_none_is_made_up_for_it() -> None:
    items = [part(call={"id": "a"}), part()]
    made = body([user(), signed(*items), result("a"), result("b")])["contents"]
    assert [item["functionCall"].get("id") for item in made[1]["parts"]] == ["a", None]
    assert [item["functionResponse"].get("id") for item in made[2]["parts"]] == ["a", None]


def test_an_id_that_was_used_before_is_a_new_one_in_call_and_response() -> None:
    again = [signed(part(call={"id": "a"}), calls=("a",)), result("a")]
    made = body([user(), *again, *again])["contents"]
    ids = [item["functionCall"]["id"] for content in made for item in content["parts"] if "functionCall" in item]
    answers = [item["functionResponse"]["id"] for content in made for item in content["parts"] if "functionResponse" in item]
    assert ids == answers
    assert len(set(ids)) == 2


@pytest.mark.parametrize(
    ("model", "placed"), [("gemini-3-pro", True), ("gemini-flash-latest", True), ("gemini-2.5-pro", False)]
)
def test_a_foreign_turn_gets_the_documented_placeholder_on_its_first_call(model: str, placed: bool) -> None:
    foreign = [user(), turn({"a": "f", "b": "g"}), result("a"), result("b"), turn({"c": "f"}), result("c")]
    made = body(foreign, at(model))["contents"]
    signatures = [item.get("thoughtSignature") for content in made for item in content["parts"] if "functionCall" in item]
    assert signatures == ([PLACEHOLDER, None, PLACEHOLDER] if placed else [None, None, None])


def test_a_signature_from_the_openai_compatible_face_is_used() -> None:
    message = turn({"a": "f"})
    message["tool_calls"][0]["extra_content"] = {"google": {"thought_signature": "c2ln"}}
    made = body([user(), message, result("a")], at("gemini-3-pro"))["contents"][1]["parts"][0]
    assert made["thoughtSignature"] == "c2ln"


def test_parts_of_another_dialect_stay_out() -> None:
    made = body([user(), signed({"type": "thinking"}, dialect="anthropic"), result("a"), result("b")])["contents"][1]["parts"]
    assert made == [part(), part()]


def test_a_turn_that_was_changed_is_made_anew() -> None:
    message = signed({"text": "Old", "thoughtSignature": "c2ln"}, calls=())
    message["content"] = "New"
    assert body([user(), message])["contents"][1] == words("New", "model")


# -- mends -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "dropped"),
    [
        ("Thinking level is not supported for this model.", {"thinkingLevel"}),
        (
            "Budget 0 is invalid. This model only works in thinking mode.",
            {"reasoning_effort", "thinking_budget", "include_thoughts"},
        ),
        ("Function calling with a response mime type: 'application/json' is unsupported", {"response_format.tools"}),
        ("JSON mode is not enabled for models/gemini-2.5-flash-image", {"response_format"}),
        ("Invalid JSON payload received. Unknown name \"parametersJsonSchema\" at 'tools[0]'", {"parametersJsonSchema"}),
        ("Invalid JSON payload received. Unknown name \"responseJsonSchema\" at 'generation_config'", {"responseJsonSchema"}),
        ("Developer instruction is not enabled for models/gemma-3-27b-it", {"systemInstruction"}),
        ("Penalty is not enabled for models/gemini-2.0-flash-lite", {"presence_penalty", "frequency_penalty"}),
        ("Logprobs is not enabled for models/gemini-2.5-flash", {"logprobs", "top_logprobs"}),
        ("Multiple candidates is not enabled for this model", {"n"}),
    ],
)
def test_a_refusal_that_names_a_parameter_is_mended_once(said: str, dropped: set[str]) -> None:
    where, error = at(), BadRequestError("no", detail=said)
    given = {"reasoning_effort": "low", "presence_penalty": 1, "logprobs": True, "n": 2}
    request = make_request("Hi", params=given, tools=[TOOL], response_format=FORMAT)
    found = DIALECT.mend(error, request, where)  # type: ignore[misc]
    assert found is not None
    assert found.drop == dropped
    if "systemInstruction" not in dropped:
        assert DIALECT.mend(error, make_request("Hi"), where) is None  # type: ignore[misc]
    where.mended = found
    assert DIALECT.mend(error, request, where) is None  # type: ignore[misc]


def test_a_wrong_value_stays_the_caller_s_error() -> None:
    said = "Unable to submit request because it has a temperature value of 1000 but the supported range is from 0 to 2."
    assert DIALECT.mend(BadRequestError("no", detail=said), make_request("Hi", params={"temperature": 1000}), at()) is None  # type: ignore[misc]


@pytest.mark.parametrize(
    ("drop", "arguments", "check"),
    [
        ("systemInstruction", {}, lambda made: made["contents"] == [words("Be brief."), words("Hi")]),
        ("parametersJsonSchema", {"tools": [TOOL]}, lambda made: "parameters" in made["tools"][0]["functionDeclarations"][0]),
        ("responseJsonSchema", {"response_format": FORMAT}, lambda made: "responseSchema" in made["generationConfig"]),
        ("response_format", {"response_format": FORMAT}, lambda made: "generationConfig" not in made),
        ("tool_choice", {"tools": [TOOL], "choice": "f"}, lambda made: "toolConfig" not in made),
        (
            "thinkingLevel",
            {"params": {"reasoning_effort": "low"}},
            lambda made: made["generationConfig"]["thinkingConfig"] == {"thinkingBudget": 1024},
        ),
    ],
)
def test_what_a_deployment_taught_is_left_out_from_then_on(drop: str, arguments: JSON, check: Any) -> None:
    where = at("gemini-3-pro")
    where.mended = Mend(drop=frozenset({drop}))
    assert check(body([{"role": "system", "content": "Be brief."}, user()], where, **arguments))


def test_the_model_list_names_what_generates_content() -> None:
    listed = {
        "models": [
            {"name": "models/gemini-2.5-flash", "supportedGenerationMethods": ["generateContent", "countTokens"]},
            {"name": "models/text-embedding-004", "supportedGenerationMethods": ["embedContent"]},
            {"name": "models/gemini-3-pro"},
        ]
    }
    assert DIALECT.decode_models(listed) == ["gemini-2.5-flash", "gemini-3-pro"]


# -- any history -----------------------------------------------------------------------------------------------------------

MESSAGES = st.one_of(
    st.builds(lambda text: {"role": "system", "content": text}, st.text(max_size=3)),
    st.builds(user, st.text(max_size=3)),
    st.builds(lambda text: {"role": "assistant", "content": text}, st.text(max_size=3)),
    st.builds(lambda keys: turn(dict.fromkeys(keys, "f")), st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, unique=True)),
    st.builds(result, st.sampled_from(["a", "b", "c"]), st.text(max_size=3)),
)


@given(st.lists(MESSAGES, min_size=1, max_size=12))
def test_any_history_is_one_that_the_api_takes(messages: list[JSON]) -> None:
    contents = body(messages, at("gemini-3-pro"))["contents"]
    assert contents[0]["role"] == "user"
    assert all({a["role"], b["role"]} != {"model"} for a, b in pairwise(contents))
    waiting = 0
    for content in contents:
        assert content["parts"]
        calls = [item for item in content["parts"] if "functionCall" in item]
        responses = [item for item in content["parts"] if "functionResponse" in item]
        if waiting:
            assert len(responses) == len(content["parts"]) == waiting
        else:
            assert not responses
        waiting = len(calls)
        assert not calls or "thoughtSignature" in calls[0]
    assert not waiting


@given(st.lists(MESSAGES, min_size=2, max_size=10))
def test_a_history_that_grew_step_by_step_gives_the_same_bytes_as_one_made_at_once(messages: list[JSON]) -> None:
    grown = History(messages[:1])
    where = at()
    for message in messages[1:]:
        DIALECT.encode(make_request(grown), where)
        grown.append(message)
    assert DIALECT.encode(make_request(grown), where).body == DIALECT.encode(make_request(History(messages)), where).body
