"""The journal writes, reads, rates and counts."""

from __future__ import annotations

from pathlib import Path

from llmbroker.exchange import Usage
from llmbroker.journal import Call, Journal, open_store, utc


def test_a_row_that_was_recorded_is_read_back_equal(tmp_path: Path) -> None:
    journal = Journal(open_store(tmp_path / "broker.db"))
    call = Call(ts=utc(1.5), llm_name="a", status="ok", usage=Usage(3, 4, total_tokens=7), cost=0.25, currency="USD")
    journal.record(call)
    (back,) = journal.calls()
    assert (back.id, back.ts, back.usage, back.cost) == (call.id, call.ts, call.usage, 0.25)
    journal.close()
