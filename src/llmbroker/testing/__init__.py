"""For users' tests: replies as bytes of any dialect, on the replay port (``llmbroker.transports.replay``)."""

from llmbroker.testing.wires import content_type, made_reply, stream, whole
from llmbroker.transports.replay import Answer, Exchange, Replay, sse

__all__ = ["Answer", "Exchange", "Replay", "content_type", "made_reply", "sse", "stream", "whole"]
