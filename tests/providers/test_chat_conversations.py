"""Linked conversations: the request made from the canonical history is what the recorded client sent and the server took.

Both sides are brought to one spelling by the rules below; each rule is a difference that the server cannot tell, or a decision,
and is counted. What is left must be equal.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.providers import chat_oracle
from tests.providers.test_chat_traffic import EMPTY, NAMES, Record, at, read, records

from llmbroker.errors import InvalidRequestError
from llmbroker.exchange import make_request

pytestmark = pytest.mark.traffic
JSON = dict[str, Any]
OWN = {"model", "messages", "tools", "tool_choice", "response_format", "stream", "stream_options"}

# Requests in a vendor's own shape that is not OpenAI's; our canonical history refuses them by name before anything is sent.
FOREIGN = {
    "document_url": "Mistral's own document part; a file part is written so on the way out",
    "thinking": "Mistral's thinking part in a history; reasoning is not replayed there",
    "input_audio": "Mistral's bare string of sound",
    "A tool needs type 'function'": "OpenAI's custom tool",
}


def requests(name: str) -> Iterator[Record]:
    for record in records(name):
        request = record["request"]
        if request and isinstance(request["body"], dict) and record["response"]["status"] < 400:
            yield record


def ours(record: Record, messages: list[JSON]) -> JSON:
    """Return the body that we send for what this client asked."""
    body, deployment = record["request"]["body"], at(record)
    request = make_request(
        messages,
        tools=body.get("tools"),
        choice=_choice(body.get("tool_choice")),
        response_format=body.get("response_format"),
        params={key: value for key, value in body.items() if key not in OWN},
        stream=bool(body.get("stream")),
    )
    made: JSON = json.loads(deployment.dialect.encode(request, deployment).body)
    return made


def _choice(choice: Any) -> Any:
    return choice["name"] if isinstance(choice, dict) and "function" not in choice else choice


# -- the rules: (name, why, function on one body) --------------------------------------------------------------------------


def drop_nulls(body: JSON) -> None:
    """A null, an empty list of tools and stream false say what their absence says."""
    for key in [key for key, value in body.items() if value is None or (key, value) in (("stream", False), ("tools", []))]:
        del body[key]


def one_model_place(body: JSON) -> None:
    """Azure takes the model from the address; naming it in the body too is harmless."""
    body.pop("model", None)


def one_name_of_limit(body: JSON) -> None:
    """max_tokens and max_completion_tokens are one parameter; each row has the name its vendor documents."""
    if "max_completion_tokens" in body:
        body["max_tokens"] = body.pop("max_completion_tokens")


def no_usage_switch(body: JSON) -> None:
    """We ask for usage in streams wherever the server can give it."""
    body.pop("stream_options", None)


def no_parallel_without_tools(body: JSON) -> None:
    """parallel_tool_calls is legal only beside tools."""
    if "tools" not in body:
        body.pop("parallel_tool_calls", None)


def one_tool_choice(body: JSON) -> None:
    """auto is the default; any is Mistral's word for required; a named choice has one shape in this dialect."""
    choice = body.get("tool_choice")
    if choice in ("auto", "any"):
        body["tool_choice"] = {"auto": None, "any": "required"}[choice]
    elif isinstance(choice, dict):
        body["tool_choice"] = (choice.get("function") or choice)["name"]
    if body.get("tool_choice") is None:
        body.pop("tool_choice", None)


def full_tools(body: JSON) -> None:
    """An empty description is none; a tool's type is function; the lifetime of a cache mark is the default one."""
    for tool in body.get("tools") or ():
        tool["type"] = "function"
        if not tool["function"].get("description"):
            tool["function"].pop("description", None)
        if "cache_control" in tool:
            tool["cache_control"] = {"type": "ephemeral"}


def plain_content(body: JSON) -> None:
    """A list of one text is that text; beside calls null, "", [] and absence are no content; the lifetime of marks is cut."""
    for message in body["messages"]:
        content = message.get("content")
        if isinstance(content, list):
            for part in content:
                for key in [key for key, value in part.items() if value is None]:
                    del part[key]
                if "cache_control" in part:
                    part["cache_control"] = {"type": "ephemeral"}
                if isinstance(part.get("image_url"), str):
                    part["image_url"] = {"url": part["image_url"]}
            if len(content) == 1 and set(content[0]) == {"type", "text"}:
                message["content"] = content[0]["text"]
            elif message["role"] == "assistant" and all(set(part) == {"type", "text"} for part in content):
                message["content"] = "".join(part["text"] for part in content)
        if not message.get("content"):
            message["content"] = ""


def bare_messages(body: JSON) -> None:
    """Names on results, prefix false, empty lists and nulls say nothing that the server reads."""
    for message in body["messages"]:
        if message["role"] == "tool":
            message.pop("name", None)
        for key in ("name", "tool_calls", "annotations", "refusal", "prefix"):
            if not message.get(key):
                message.pop(key, None)
        for call in message.get("tool_calls") or ():
            call.pop("index", None)


def no_reasoning(body: JSON) -> None:
    """Reasoning goes back as the row's policy says (never, in the loop, always), with tests of its own."""
    for message in body["messages"]:
        for key in ("reasoning_content", "reasoning", "reasoning_details", "extra_content", "thought_signature"):
            message.pop(key, None)


def numbered_ids(body: JSON) -> None:
    """Ids pair calls with results; only which belong together counts. A result without one belongs to the next open call."""
    seen: dict[str, int] = {}
    waiting: list[int] = []
    for message in body["messages"]:
        for call in message.get("tool_calls") or ():
            call["id"] = seen[call.get("id") or f"#{len(seen)}"] = len(seen)
            waiting.append(call["id"])
        if message["role"] == "tool":
            given = message.get("tool_call_id")
            message["tool_call_id"] = seen[given] if given in seen else waiting[0]
            waiting.remove(message["tool_call_id"])


def equal_arguments(body: JSON) -> None:
    """Arguments are JSON text: spaces do not count, and null or nothing is the empty object."""
    for message in body["messages"]:
        for call in message.get("tool_calls") or ():
            text = call["function"].get("arguments")
            call["function"]["arguments"] = {} if text in (None, "", "null") else json.loads(text)
            call["type"] = "function"


RULES: tuple[Callable[[JSON], None], ...] = (
    drop_nulls,
    one_model_place,
    one_name_of_limit,
    no_usage_switch,
    no_parallel_without_tools,
    one_tool_choice,
    full_tools,
    plain_content,
    bare_messages,
    no_reasoning,
    numbered_ids,
    equal_arguments,
)

EXCEPTED = {
    "ollama/crmne-ruby_llm__chat_string_tool_results_ollama_qwen3": (
        "a picture inside a tool message, which the dialect does not have: ours follows in a user message"
    ),
    "groq/pydantic-pydantic-ai__test_groq-test_tool_use_failed_error-2": (
        "the client writes reasoning into the content, in tags; ours goes back in its field"
    ),
    "openai/crewAIInc-crewAI__agents-TestMaxUsageCountWithNativeToolCalling": (
        "the client throws away all calls of a turn but the first; ours answers each"
    ),
    "openai/crewAIInc-crewAI__tools-test_max_usage_count_is_respected": "as above",
    "openrouter/simonw-llm__test_tools_streaming-test_tools_streaming_variant": (
        "the client makes two assistant messages of one turn"
    ),
}
"""Records, by the beginning of their id, that stay different, and why."""


def excepted(record: Record) -> bool:
    return record["id"].startswith(tuple(EXCEPTED))


def compared(mine: JSON, theirs: JSON, used: Counter[str]) -> dict[str, Any]:
    """Return what differs after the rules; count each rule that was needed."""
    mine, theirs = copy.deepcopy(mine), copy.deepcopy(theirs)
    for rule in RULES:
        before = mine == theirs
        kept = copy.deepcopy(theirs)
        rule(mine)
        rule(theirs)
        if not before and kept != theirs:
            used[rule.__name__] += 1
    return {key: (mine.get(key), theirs.get(key)) for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key)}


@pytest.mark.parametrize("name", NAMES)
def test_what_a_client_sent_is_what_we_send_for_its_messages(name: str) -> None:
    used: Counter[str] = Counter()
    wrong = {}
    for record in requests(name):
        body = record["request"]["body"]
        try:
            made = ours(record, body["messages"])
        except InvalidRequestError as error:
            assert any(word in str(error) for word in FOREIGN), record["id"]
            continue
        found = compared(made, body, used)
        if found and not excepted(record):
            wrong[record["id"]] = found
    assert wrong == {}


def pairs(name: str) -> Iterator[tuple[Record, Record]]:
    """Yield neighbouring turns of one conversation where the second goes on from the first."""
    before: Record | None = None
    for record in requests(name):
        if before is not None and record.get("conversation") and record.get("conversation") == before.get("conversation"):
            old, new = before["request"]["body"]["messages"], record["request"]["body"]["messages"]
            if len(new) > len(old) and new[: len(old)] == old and new[len(old)]["role"] == "assistant":
                yield before, record
        before = record


def test_the_next_request_of_every_linked_conversation_follows_from_our_reply(capsys: pytest.CaptureFixture[str]) -> None:
    counts: Counter[str] = Counter()
    used: Counter[str] = Counter()
    wrong = {}
    for name in NAMES:
        for first, second in pairs(name):
            counts["pairs"] += 1
            if chat_oracle.is_error(first) or first["id"] in EMPTY:
                counts["the first turn is an error"] += 1
                continue
            old, new = first["request"]["body"]["messages"], second["request"]["body"]["messages"]
            reply = read(first)
            history = [*old, reply.message, *new[len(old) + 1 :]]
            if _ids(reply.message) != _ids(new[len(old)]):
                _rename(history, len(old), new[len(old)])
                counts["ids made by us or the client"] += 1
            try:
                made = ours(second, history)
            except InvalidRequestError as error:
                assert any(word in str(error) for word in FOREIGN)
                counts["parts in a vendor's own shape"] += 1
                continue
            found = compared(made, second["request"]["body"], used)
            if found and excepted(second):
                counts["excepted"] += 1
            elif found:
                wrong[second["id"]] = found
            else:
                counts["equal"] += 1
    with capsys.disabled():
        print(f"\nopenai-chat, linked turns: {dict(counts)}\n  rules needed: {dict(used)}")
    assert wrong == {}
    assert counts["equal"] > 200


def _ids(message: JSON) -> list[Any]:
    return [call.get("id") for call in message.get("tool_calls") or ()]


def _rename(history: list[JSON], at_index: int, theirs: JSON) -> None:
    """Give our message the ids that the recorded client gave its own, so that the results that follow pair with it."""
    mine = copy.deepcopy(history[at_index])
    for call, other in zip(mine.get("tool_calls") or (), theirs.get("tool_calls") or (), strict=False):
        call["id"] = other.get("id")
    history[at_index] = mine
