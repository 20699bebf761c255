"""Linked conversations: what we would send next equals what the recorded client sent and the provider took.

The history is ours: the first request's messages in OpenAI's shape, then for each turn the message of our own reading of the
reply, then what the client added (results, words of the user). Equal means equal after these differences of spelling, which
the API reads alike: a string for one text part, neighbours of one role, null fields, ``is_error: false``, the trivial caller,
cache marks.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import dropwhile, pairwise
from typing import Any

import pytest
from tests.conftest import traffic
from tests.providers.vendor_wires import body_bytes, deployment, is_stream, streamed, whole

from llmbroker.exchange import make_request
from llmbroker.messages import History
from llmbroker.providers.anthropic import DIALECT

pytestmark = pytest.mark.traffic
AT = deployment(DIALECT, "claude-sonnet-4-5")
JSON = dict[str, Any]

EXCEPTED = {
    "anthropic/tidyverse-ellmer__anthropic-tool-image-3": "the client left an empty thinking block out",
    "anthropic/tidyverse-ellmer__anthropic-tool-3": "the client left an empty thinking block out",
    "anthropic/crewAIInc-crewAI__agents-TestAnthropicNativeToolCalling.test_anthropic_parallel_native_tool_calling"
    "_test_agent_kickoff-1": "the client left the text beside the calls out",
    "anthropic/simonw-llm-anthropic__test_anthropic-test_tools-1": "the client added a text of one space",
}


def conversations() -> list[list[JSON]]:
    linked: dict[str, list[JSON]] = {}
    for name in ("anthropic", "azure", "vertex"):
        for record in traffic(name):
            if record["api"] == "anthropic-messages" and record.get("conversation"):
                linked.setdefault(record["conversation"], []).append(record)
    return [sorted(turns, key=lambda record: record["turn"]) for turns in linked.values()]


def blocks(content: Any) -> list[JSON]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def part(block: JSON) -> JSON:
    if block["type"] == "image":
        source = block["source"]
        return {"type": "image_url", "image_url": {"url": f"data:{source['media_type']};base64,{source['data']}"}}
    assert block["type"] == "text"
    return {"type": "text", "text": block["text"]}


def ours(messages: list[JSON]) -> list[JSON]:
    """Write the API's messages in OpenAI's shape; an assistant's blocks go along as provider data."""
    out: list[JSON] = []
    for message in messages:
        content = blocks(message["content"])
        if message["role"] == "assistant":
            calls = [
                {"id": b["id"], "type": "function", "function": {"name": b["name"], "arguments": json.dumps(b["input"])}}
                for b in content
                if b["type"] == "tool_use"
            ]
            text = "".join(block["text"] for block in content if block["type"] == "text")
            made: JSON = {"role": "assistant", "content": text or None}
            kept = {"dialect": "anthropic", "items": content}
            out.append({**made, **({"tool_calls": calls} if calls else {}), "provider_data": kept})
            continue
        for block in content:
            if block["type"] == "tool_result":
                said = block["content"] if isinstance(block["content"], str) else [part(inner) for inner in block["content"]]
                result = {"role": "tool", "tool_call_id": block["tool_use_id"], "content": said}
                out.append({**result, "is_error": True} if block.get("is_error") else result)
        parts = [part(block) for block in content if block["type"] != "tool_result"]
        out += [{"role": "user", "content": parts}] if parts else []
    return out


TRIVIAL = [("is_error", False), ("caller", {"type": "direct"})]


def normal(messages: list[JSON]) -> list[JSON]:
    out: list[JSON] = []
    for message in messages:
        content = []
        for block in blocks(message["content"]):
            plain = {k: v for k, v in block.items() if v is not None and k != "cache_control" and (k, v) not in TRIVIAL}
            if plain["type"] == "tool_result":
                plain["content"] = [{k: v for k, v in b.items() if k != "cache_control"} for b in blocks(plain["content"])]
            content.append(plain)
        if out and out[-1]["role"] == message["role"]:
            out[-1]["content"] += content
        else:
            out.append({"role": message["role"], "content": content})
    return out


def sent(history: list[JSON]) -> list[JSON]:
    body = DIALECT.encode(make_request(History(json.loads(json.dumps(history)))), AT).body
    return normal(json.loads(body)["messages"])


def test_the_next_request_of_every_linked_conversation_equals_the_recorded_one() -> None:
    counts: Counter[str] = Counter()
    for turns in conversations():
        history = ours(turns[0]["request"]["body"]["messages"])
        assert sent(history) == normal(turns[0]["request"]["body"]["messages"]), turns[0]["id"]
        for before, record in pairwise(turns):
            counts["compared"] += 1
            known, now = before["request"]["body"]["messages"], record["request"]["body"]["messages"]
            raw = body_bytes(before)
            reply = streamed([raw], AT) if is_stream(before) else whole(raw, AT)
            added = list(dropwhile(lambda message: message["role"] == "assistant", now[len(known) :]))
            history = [*history, reply.message, *ours(added)]
            if record["id"] in EXCEPTED:
                assert sent(history) != normal(now)
                counts[EXCEPTED[record["id"]]] += 1
                history = ours(now)
            else:
                assert sent(history) == normal(now), record["id"]
                counts["equal"] += 1
    assert counts == {"compared": 37, "equal": 33, **Counter(EXCEPTED.values())}


def test_a_history_in_our_own_shape_alone_encodes_to_the_same_calls_results_and_text() -> None:
    """Without the provider's items (another provider's turn), everything but thinking and server tools is still there."""
    kinds = ("text", "tool_use", "tool_result", "image")
    for turns in conversations():
        messages = turns[-1]["request"]["body"]["messages"]
        foreign = [{key: value for key, value in message.items() if key != "provider_data"} for message in ours(messages)]
        recorded = [[b for b in m["content"] if b["type"] in kinds] for m in normal(messages)]
        made = [m["content"] for m in sent(foreign)]

        def told(content: list[list[JSON]]) -> list[Any]:
            found = [block for message in content for block in message]
            text = "".join(block["text"] for block in found if block["type"] == "text").replace(" ", "")
            return [text, *({k: v for k, v in b.items() if k != "caller"} for b in found if b["type"] != "text")]

        assert told(made) == told(recorded), turns[-1]["id"]
