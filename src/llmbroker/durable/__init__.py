"""Runs that survive: in one process on the journal's database (``runs``), over many machines on PostgreSQL (``queue``)."""

from llmbroker.durable.queue import Queue
from llmbroker.durable.runs import Runs, RunState

__all__ = ["Queue", "RunState", "Runs"]
