"""Threads, forks, loops, interrupts, cancellations: one client serves them all, and a call broken off leaves nothing."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
from tests.transports.server import Link, Server, chunked

from llmbroker import AsyncDirectClient, DirectClient, arun_tool_loop, run_tool_loop
from llmbroker.errors import ConnectionFailedError, LLMBrokerError, LLMTimeoutError
from llmbroker.messages import repair, validate
from llmbroker.testing import content_type, made_reply, stream, whole
from llmbroker.transports.replay import Answer, Replay

JSON = dict[str, Any]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}} for name in ("f", "g")
]


def echo(link: Link) -> None:
    """A model that says the last message back; asked for tools, it calls both once."""
    while (asked := link.ask()) is not None:
        body = json.loads(asked.body)
        last = body["messages"][-1]
        calls = [("f", {}), ("g", {})] if body.get("tools") and last["role"] == "user" else []
        reply = made_reply("" if calls else last["content"], calls)
        if body.get("stream"):
            head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type('openai-chat', stream=True)}\r\n"
            link.say(head.encode() + b"transfer-encoding: chunked\r\n\r\n" + chunked(*stream(reply, "openai-chat")))
        else:
            link.answer(whole(reply, "openai-chat"), headers="content-type: application/json\r\n")


def address(server: Server) -> JSON:
    return {"base_url": server.url("/v1"), "model": "m"}


def test_many_threads_share_one_client_and_each_gets_its_own_answer() -> None:
    with Server(echo) as server, DirectClient(**address(server)) as client:

        def calls(thread: int) -> None:
            for number in range(100):
                said = f"{thread}:{number}"
                if number % 10:
                    assert client.ask(said).text == said
                else:
                    assert "".join(client.stream(said)) == said

        with ThreadPoolExecutor(32) as pool:
            list(pool.map(calls, range(32)))
        assert len(server.asked) == 3200


def test_one_async_client_serves_several_loops_in_turn_and_at_once() -> None:
    with Server(echo) as server:
        client = AsyncDirectClient(**address(server))

        async def calls(name: str) -> None:
            texts = await asyncio.gather(*(client.ask(f"{name}:{number}") for number in range(20)))
            assert [reply.text for reply in texts] == [f"{name}:{number}" for number in range(20)]

        for turn in range(3):
            asyncio.run(calls(f"turn {turn}"))
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda name: asyncio.run(calls(name)), [f"thread {n}" for n in range(4)]))
        asyncio.run(client.close())


def test_a_client_works_after_it_was_closed() -> None:
    with Server(echo) as server:
        client = DirectClient(**address(server))
        for _ in range(2):
            assert client.ask("again").text == "again"
            client.close()
        client.close()

        async def awaited() -> None:
            other = AsyncDirectClient(**address(server))
            for _ in range(2):
                assert (await other.ask("again")).text == "again"
                await other.close()
            await other.close()

        asyncio.run(awaited())


async def test_a_plain_client_and_a_plain_loop_work_inside_a_running_loop() -> None:
    with Server(echo) as server, DirectClient(**address(server)) as client:

        async def g() -> str:
            await asyncio.sleep(0)
            return "g"

        assert client.ask("here").text == "here"
        reply = run_tool_loop(client, "hi", tools=TOOLS, dispatch={"f": lambda: "f", "g": g})
        assert reply.text == "g"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_uses_the_same_client() -> None:
    with Server(echo) as server:
        plain, awaited = DirectClient(**address(server)), AsyncDirectClient(**address(server))
        assert plain.ask("parent").text == "parent"
        assert asyncio.run(awaited.ask("parent")).text == "parent"
        child = os.fork()
        if child == 0:
            try:
                good = plain.ask("child").text == "child" and asyncio.run(awaited.ask("child")).text == "child"
                reply = run_tool_loop(plain, "hi", tools=TOOLS, dispatch={"f": lambda: "f", "g": lambda: "g"})
                os._exit(0 if good and reply.text == "g" else 1)
            except BaseException:  # noqa: BLE001 - the parent sees the code
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert plain.ask("parent").text == "parent"
        plain.close()
        asyncio.run(awaited.close())


def valid(messages: list[JSON]) -> None:
    """See that a conversation can be sent, or handed back to the loop."""
    faults = validate(messages)
    assert all("has no result" in fault for fault in faults), faults
    assert validate(repair(messages)) == []


def test_ctrl_c_in_the_middle_of_parallel_tools_leaves_a_history_and_no_thread() -> None:
    threads, fds = threading.active_count(), psutil.Process().num_fds()
    begun, over = threading.Barrier(3), threading.Event()

    def slow() -> str:
        begun.wait(10)
        over.wait(0.3)
        return "slow"

    def interrupt() -> None:
        begun.wait(10)
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    with Server(echo) as server, DirectClient(**address(server)) as client:
        presser = threading.Thread(target=interrupt)
        presser.start()
        with pytest.raises(KeyboardInterrupt) as caught:
            run_tool_loop(client, "hi", tools=TOOLS, dispatch={"f": slow, "g": slow})
        presser.join()
        over.set()
        messages = caught.value.messages  # type: ignore[attr-defined]
        valid(messages)
        assert [message["role"] for message in messages[:2]] == ["user", "assistant"]
        done = run_tool_loop(client, messages, tools=TOOLS, dispatch={"f": lambda: "f", "g": lambda: "g"})
        assert done.text in ("g", "slow")
        valid(done.messages)
    deadline = time.time() + 10
    while (threading.active_count() > threads or psutil.Process().num_fds() > fds) and time.time() < deadline:
        gc.collect()
        time.sleep(0.02)
    assert (threading.active_count(), psutil.Process().num_fds()) <= (threads, fds)


class Broken:
    """An awaitable that throws a cancellation into a coroutine at its n-th wait."""

    def __init__(self, flow: Coroutine[Any, Any, Any], at: int) -> None:
        self.flow = flow
        self.left = at

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self.flow.__await__()
        value: Any = None
        while True:
            try:
                waited = steps.send(value)
                while self.left == 0:
                    self.left -= 1
                    waited = steps.throw(asyncio.CancelledError())
            except StopIteration as stop:
                return stop.value
            self.left -= 1
            value = yield waited


def scripted() -> Replay:
    headers = {"content-type": "application/json"}
    both = Answer(headers=headers, body=whole(made_reply("", [("f", {}), ("g", {})]), "openai-chat"), delay=0.1)
    done = Answer(headers=headers, body=whole(made_reply("done"), "openai-chat"), delay=0.1)
    return (
        Replay()
        .on(lambda request: json.loads(request.body)["messages"][-1]["role"] == "user", both, times=None)
        .on(None, done, times=None)
    )


@pytest.mark.parametrize("how", ["at each wait of the flow", "at each round of the loop"])
def test_a_loop_that_is_cancelled_at_any_moment_leaves_nothing_and_goes_on(how: str) -> None:
    broken = 0
    for at in [*range(60), *range(60, 4000, 20)]:
        port = scripted()
        ran: list[str] = []

        async def f() -> str:
            await port.sleep(0.05)  # noqa: B023
            ran.append("f")  # noqa: B023
            return "f"

        def g() -> str:
            ran.append("g")  # noqa: B023
            return "g"

        async def main() -> bool:
            client = AsyncDirectClient(base_url="https://a.example/v1", model="m", io=port)  # noqa: B023
            flow = arun_tool_loop(client, "hi", tools=TOOLS, dispatch={"f": f, "g": g})
            try:
                if how.startswith("at each wait"):
                    reply = await Broken(flow, at)  # noqa: B023
                else:
                    task = asyncio.create_task(flow)
                    for _ in range(at):  # noqa: B023
                        await asyncio.sleep(0)
                    task.cancel()
                    reply = await task
            except asyncio.CancelledError as error:
                messages = getattr(error, "messages", None)
                if messages is None:
                    assert at == 0  # noqa: B023 - it never began
                    messages = [{"role": "user", "content": "hi"}]
                valid(messages)
                assert len(asyncio.all_tasks()) == 1
                assert port.open_streams == 0  # noqa: B023
                reply = await arun_tool_loop(client, messages, tools=TOOLS, dispatch={"f": f, "g": g})
                assert reply.text == "done"
                valid(reply.messages)
                answered = [m["content"] for m in reply.messages if m["role"] == "tool"]
                assert answered == ["f", "g"]
                return True
            assert reply.text == "done"
            return False

        if not asyncio.run(main()):
            break
        broken += 1
        port.check()
    else:
        raise AssertionError("the loop never came to its end")
    assert broken > 3


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_loop_over_sockets_that_is_cancelled_at_any_moment_leaves_no_socket(host: str) -> None:
    with Server(echo) as server:

        async def main() -> None:
            before = 0
            for at in [*range(40), *range(40, 400, 15)]:
                async with AsyncDirectClient(base_url=server.url("/v1", host=host), model="m") as client:
                    flow = arun_tool_loop(client, "hi", tools=TOOLS, dispatch={"f": lambda: "f", "g": lambda: "g"})
                    task = asyncio.create_task(flow)
                    for _ in range(at):
                        await asyncio.sleep(0)
                    task.cancel()
                    try:
                        await task
                    except asyncio.CancelledError as error:
                        valid(getattr(error, "messages", [{"role": "user", "content": "hi"}]))
                    assert len(asyncio.all_tasks()) == 1
                for _ in range(300):
                    if not before or psutil.Process().num_fds() <= before:
                        break
                    await asyncio.sleep(0.01)
                before = before or psutil.Process().num_fds()
                assert psutil.Process().num_fds() <= before + 1, at

        asyncio.run(main())


def held(link: Link) -> None:
    """Read a request, say nothing, wait for the client to leave."""
    link.ask()
    link.until_closed()


Break = Callable[[JSON], Any]


def deadline(how: JSON) -> None:
    with pytest.raises(LLMTimeoutError):
        DirectClient(**how).ask("hi", timeout=0.05)


def awaited_deadline(how: JSON) -> None:
    async def run() -> None:
        with pytest.raises(LLMTimeoutError):
            await AsyncDirectClient(**how).ask("hi", timeout=0.05)

    asyncio.run(run())


def outer_deadline(how: JSON) -> None:
    async def run() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(AsyncDirectClient(**how).ask("hi"), 0.05)

    asyncio.run(run())


def pressed(how: JSON) -> None:
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        DirectClient(**how).ask("hi")
    timer.join()


@pytest.mark.parametrize("broken", [deadline, awaited_deadline, outer_deadline, pressed])
def test_the_server_sees_at_once_that_its_caller_left(broken: Break) -> None:
    with Server(held) as server:
        broken(address(server))
        assert server.left.wait(2)


def test_a_server_that_dies_in_the_middle_is_a_typed_error_for_every_thread() -> None:
    def dies(link: Link) -> None:
        link.ask()
        link.reset()

    with Server(dies) as server, DirectClient(**address(server)) as client:

        def call(_: int) -> LLMBrokerError:
            with pytest.raises(ConnectionFailedError) as caught:
                client.ask("hi")
            return caught.value

        with ThreadPoolExecutor(16) as pool:
            errors = list(pool.map(call, range(64)))
        assert len({id(error) for error in errors}) == 64
        assert all(error.model == "m" for error in errors)
