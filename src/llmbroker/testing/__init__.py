"""For users' tests: a scripted model, faults by name, a server of both, recordings; on the replay port or on a real socket."""

from llmbroker.testing.faults import FAULTS, Fault
from llmbroker.testing.model import Asked, ScriptedModel
from llmbroker.testing.record import record, replay
from llmbroker.testing.wires import content_type, made_reply, stream, whole
from llmbroker.transports.replay import Answer, Exchange, Replay, UnexpectedRequest, sse

__all__ = [
    "FAULTS",
    "Answer",
    "Asked",
    "Exchange",
    "Fault",
    "Replay",
    "ScriptedModel",
    "UnexpectedRequest",
    "content_type",
    "made_reply",
    "record",
    "replay",
    "sse",
    "stream",
    "whole",
]
