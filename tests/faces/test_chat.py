"""``llmbroker chat`` at a terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.faces.processes import Served


@pytest.mark.skipif(sys.platform == "win32", reason="terminals of POSIX")
@pytest.mark.parametrize(("errors", "why"), [("surrogateescape", b"lone surrogate"), ("strict", b"not UTF-8")])
def test_a_conversation_remembers_and_can_be_stopped(
    errors: str, why: bytes, served: Served, models: str, tmp_path: Path
) -> None:
    import pty

    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "llmbroker", "chat", "--source", models, "-s", "Be kind."],
        stdin=slave, stdout=slave, stderr=subprocess.STDOUT, close_fds=True, start_new_session=True,
        env={**os.environ, "PYTHONIOENCODING": f"utf-8:{errors}"},
    )  # fmt: skip
    os.close(slave)
    seen = bytearray()

    def until(text: bytes, start: int = 0) -> None:
        deadline = time.monotonic() + 30
        while text not in seen[start:]:
            assert time.monotonic() < deadline, bytes(seen)
            seen.extend(os.read(master, 4096))

    def say(line: str) -> int:
        at = len(seen)
        os.write(master, line.encode() + b"\n")
        return at

    until(b"> ")
    first = say("First")
    until(b"Hello there.", first)
    until(b"> ", seen.index(b"Hello there.", first))  # the prompt may have come in the same read
    served.text, served.pause = "a long answer that goes on and on", 1.0
    until(b"a long", say("Second"))
    process.send_signal(signal.SIGINT)
    until(b"(stopped)")
    served.text, served.pause = "Third answer.", 0.0
    until(b"Third answer.", say("Third"))
    at = len(seen)
    os.write(master, b"half a \xff character\n")  # and the conversation goes on
    until(why, at)
    until(b"Saved", say(f"/save {tmp_path / 'talk.json'}"))
    say("/exit")
    assert process.wait(20) == 0
    os.close(master)
    roles = [message["role"] for message in json.loads((tmp_path / "talk.json").read_text())]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user", "assistant"]
    assert served.requests[-1]["messages"][1] == {"role": "user", "content": "First"}
