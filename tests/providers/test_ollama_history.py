"""Linked Ollama conversations: what we would send next equals what the recorded client sent and the server took.

Equal means equal after these differences of spelling, which the server reads alike: names and ids on results left out or sent,
call ids, types and indexes left out or sent, empty lists and empty text left out.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from tests.conftest import traffic
from tests.providers.vendor_wires import body_bytes, deployment, is_stream, streamed, whole

from llmbroker.exchange import make_request
from llmbroker.messages import History
from llmbroker.providers.ollama import DIALECT

pytestmark = pytest.mark.traffic
AT = deployment(DIALECT, "m", auth="none", base_url="http://localhost:11434")
JSON = dict[str, Any]


def conversations() -> list[list[JSON]]:
    linked: dict[str, list[JSON]] = {}
    for record in traffic("ollama"):
        if record["api"] == "ollama" and record.get("conversation") and "messages" in (record["request"] or {}).get("body", {}):
            linked.setdefault(record["conversation"], []).append(record)
    return [sorted(turns, key=lambda record: record["turn"]) for turns in linked.values()]


def ours(messages: list[JSON]) -> list[JSON]:
    """Write the server's messages in OpenAI's shape; ids are made where there are none."""
    out: list[JSON] = []
    waiting: list[str] = []
    for at, message in enumerate(messages):
        made: JSON = {"role": message["role"], "content": message.get("content") or ""}
        if message["role"] == "assistant":
            calls = [
                {
                    "id": call.get("id") or f"call{at:03d}{n:02d}",
                    "type": "function",
                    "function": {"name": call["function"]["name"], "arguments": json.dumps(call["function"]["arguments"])},
                }
                for n, call in enumerate(message.get("tool_calls") or ())
            ]
            waiting = [call["id"] for call in calls]
            made |= {"tool_calls": calls} if calls else {}
            made |= {"reasoning_content": message["thinking"]} if message.get("thinking") else {}
        elif message["role"] == "tool":
            made["tool_call_id"] = waiting.pop(0) if waiting else ""
        elif message.get("images"):
            pictures = [
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}} for data in message["images"]
            ]
            made["content"] = [{"type": "text", "text": message["content"]}, *pictures]
        out.append(made)
    return out


def normal(messages: list[JSON], *, thinking: bool) -> list[JSON]:
    out = []
    for message in messages:
        plain = {"role": message["role"], "content": message.get("content") or ""}
        if message.get("tool_calls"):
            plain["tool_calls"] = [
                {"name": call["function"]["name"], "arguments": call["function"]["arguments"]} for call in message["tool_calls"]
            ]
        if message.get("images"):
            plain["images"] = message["images"]
        if thinking and message.get("thinking"):
            plain["thinking"] = message["thinking"]
        out.append(plain)
    return out


def test_the_next_request_of_every_linked_conversation_equals_the_recorded_one() -> None:
    counts: Counter[str] = Counter()
    for turns in conversations():
        for before, record in pairwise(turns):
            known, now = before["request"]["body"]["messages"], record["request"]["body"]["messages"]
            if normal(now[: len(known)], thinking=False) != normal(known, thinking=False):
                counts["the client rewrote what it had sent before"] += 1
                continue
            raw = body_bytes(before)
            reply = streamed([raw], AT) if is_stream(before) else whole(raw, AT)
            added = [message for message in now[len(known) :] if message["role"] != "assistant"]
            ids = [call["id"] for call in reply.tool_calls or ()]
            results = [{**made, "tool_call_id": ids.pop(0)} if made["role"] == "tool" and ids else made for made in ours(added)]
            history = [*ours(known), reply.message, *results]
            body = json.loads(DIALECT.encode(make_request(History(history)), AT).body)
            sends_thoughts = any(message.get("thinking") for message in now)
            mine, theirs = (normal(m, thinking=sends_thoughts) for m in (body["messages"], now))
            if "</think>" in reply.text and not reply.reasoning and mine != theirs:
                # Nothing opened this block; in a stream it is text before anybody can know.
                counts["the client takes a block that was never opened for thoughts"] += 1
                continue
            assert mine == theirs, record["id"]
            counts[
                "equal" if sends_thoughts or not reply.reasoning else "equal but for the thoughts, which the client left out"
            ] += 1
    print("ollama, linked:", dict(counts))
    assert counts["equal"]
