"""What the package root plugs in: a room near the ground uses one above it, and loads it when it is first used."""

from __future__ import annotations

import subprocess
import sys

import llmbroker
from llmbroker import plugs


def test_the_room_of_the_loop_is_loaded_when_it_is_first_used_and_by_whatever_way_the_broker_came() -> None:
    code = """
import sys
from llmbroker.broker import Broker
from tests.broker.worlds import World, ladder, ok
broker = Broker(pool=ladder("a"), io=World(a=ok()).port, journal=False)
broker.chat("hi")
assert "llmbroker.loop" not in sys.modules, "a broker alone loads no loop"
loop = broker.run("hi")
list(loop)
print(loop.reply.text)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "hello", done.stderr


def test_what_is_plugged_in_is_what_users_have() -> None:
    assert plugs.loops().stream_tool_loop is llmbroker.stream_tool_loop
    assert plugs.loops().astream_tool_loop is llmbroker.astream_tool_loop
