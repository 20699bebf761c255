"""Messages: what a user hands in, checked once, and the neutral view that every dialect encodes.

The public shape is OpenAI's: dicts with ``role`` and ``content`` (a string or parts), ``tool_calls`` on assistant messages,
``tool_call_id`` on results. ``History`` is a list of those dicts that also keeps the canonical view, block by block.

A *block* is an assistant message with the results of its calls and the user messages that follow, up to the next assistant
message (the first block has no assistant message). Inside a block everything is repaired: each call has exactly one result, in
the model's order; ids are unique in the whole history; names and arguments are such that any provider takes them. A block never
changes once the next one has begun, so that a dialect can encode it once and reuse the bytes: a loop's step costs the same at
step 1,000 as at step 10.
"""

from __future__ import annotations

from llmbroker.messages.history import MEDIA, ROLES, Encoded, History, Turn, encode_blocks, encode_pieces
from llmbroker.messages.mend import repair, validate
from llmbroker.messages.parts import (
    CALL_KEYS,
    EMPTY_RESULT,
    INTERRUPTED,
    JSON,
    Assistant,
    Audio,
    Block,
    Call,
    File,
    Image,
    Part,
    Result,
    Role,
    Text,
    User,
    check_text,
    object_text,
    read_calls,
    read_parts,
    wire_name,
)
from llmbroker.messages.plain import plain, shown

__all__ = [
    "CALL_KEYS",
    "EMPTY_RESULT",
    "INTERRUPTED",
    "JSON",
    "MEDIA",
    "ROLES",
    "Assistant",
    "Audio",
    "Block",
    "Call",
    "Encoded",
    "File",
    "History",
    "Image",
    "Part",
    "Result",
    "Role",
    "Text",
    "Turn",
    "User",
    "check_text",
    "encode_blocks",
    "encode_pieces",
    "object_text",
    "plain",
    "read_calls",
    "read_parts",
    "repair",
    "shown",
    "validate",
    "wire_name",
]
