"""Tools at work: side by side, in order, stopped, and of every callable kind."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.loop.scripted import WEATHER, AsyncScripted, Face, Scripted, calls, declare, results, says

from llmbroker.loop import Transcript, arun_tool_loop, run_tool_loop
from llmbroker.messages import validate

NUMBER = [declare("f", {"n": {"type": "integer"}}, ["n"])]


def numbers(count: int) -> Any:
    return calls(*(("f", f'{{"n": {n}}}') for n in range(count)))


# -- kinds of callables ----------------------------------------------------------------------------------------------------


def plain(city: str) -> str:
    return f"in {city}"


async def awaited(city: str) -> str:
    await asyncio.sleep(0)
    return f"in {city}"


class Called:
    def __call__(self, city: str) -> str:
        return f"in {city}"

    def method(self, city: str) -> str:
        return f"in {city}"

    async def later(self, city: str) -> str:
        return await awaited(city)

    @classmethod
    def made(cls, city: str) -> str:
        return f"in {city}"

    @staticmethod
    def free(city: str) -> str:
        return f"in {city}"


class AwaitedCalled:
    async def __call__(self, city: str) -> str:
        return await awaited(city)


def decorated(fn: Any) -> Any:
    @functools.wraps(fn)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return inner


class InCity(str):
    def __new__(cls, city: str) -> InCity:
        return super().__new__(cls, f"in {city}")


@pytest.mark.parametrize(
    "tool",
    [
        plain,
        awaited,
        lambda city: f"in {city}",
        lambda city: awaited(city),
        functools.partial(lambda word, city: f"{word} {city}", "in"),
        functools.partial(awaited),
        functools.partial(AwaitedCalled()),
        Called(),
        Called().method,
        Called().later,
        Called.made,
        Called.free,
        AwaitedCalled(),
        AwaitedCalled().__call__,
        decorated(plain),
        decorated(awaited),
        InCity,
        functools.lru_cache(plain),
    ],
    ids=range(18),
)
def test_G26_every_callable_kind_is_called_and_awaited(loop: Face, tool: Any) -> None:
    reply = loop.run([calls(("get_weather", '{"city": "Rome"}')), says()], dispatch={"get_weather": tool})
    assert results(reply.messages) == ["in Rome"]


def test_B19_a_function_that_takes_its_argument_by_position_only_fails_with_words(loop: Face) -> None:
    def positional(city: str, /) -> str:
        return city

    reply = loop.run([calls(("get_weather", '{"city": "Rome"}')), says()], dispatch={"get_weather": positional})
    assert results(reply.messages)[0].startswith("Tool get_weather failed: ")


def test_a_result_whose_str_fails_is_a_failure_of_the_tool(loop: Face) -> None:
    class Broken:
        def __str__(self) -> str:
            raise ValueError("no words")

    reply = loop.run([calls(("get_weather", '{"city": "Rome"}')), says()], dispatch={"get_weather": lambda city: Broken()})
    assert results(reply.messages) == ["Tool get_weather failed: no words"]


@pytest.mark.parametrize(
    "error", [StopIteration("end"), StopAsyncIteration(), ExceptionGroup("many", [ValueError("one")]), MemoryError()]
)
def test_every_ordinary_exception_of_a_tool_becomes_a_result(loop: Face, error: Exception) -> None:
    def tool(city: str) -> str:
        raise error

    reply = loop.run([calls(("get_weather", '{"city": "Rome"}')), says()], dispatch={"get_weather": tool})
    assert results(reply.messages)[0].startswith("Tool get_weather failed: ")


def test_G18_long_results_and_long_errors_lose_their_middle(loop: Face) -> None:
    def tool(city: str) -> str:
        if city == "bad":
            raise ValueError("e" * 5000)
        return "r" * 5000

    turn = calls(("get_weather", '{"city": "good"}'), ("get_weather", '{"city": "bad"}'))
    reply = loop.run([turn, says()], dispatch={"get_weather": tool}, result_limit=500)
    for text in results(reply.messages):
        assert len(text) <= 500 and "characters are left out here" in text
    assert results(reply.messages)[1].startswith("Tool get_weather failed: eee")
    reply = loop.run([turn, says()], dispatch={"get_weather": tool}, result_limit=None)
    assert [len(text) for text in results(reply.messages)] == [5000, 5025]


# -- side by side ----------------------------------------------------------------------------------------------------------


def test_G1_calls_of_one_turn_run_side_by_side(loop: Face) -> None:
    together = threading.Barrier(3, timeout=10)

    def tool(n: int) -> int:
        together.wait()
        return n

    reply = loop.run([numbers(3), says()], tools=NUMBER, dispatch={"f": tool})
    assert results(reply.messages) == ["0", "1", "2"]


def test_async_tools_of_one_turn_run_side_by_side(loop: Face) -> None:
    arrived: list[int] = []

    async def tool(n: int) -> int:
        arrived.append(n)
        while len(arrived) < 3:
            await asyncio.sleep(0.001)
        return n

    reply = loop.run([numbers(3), says()], tools=NUMBER, dispatch={"f": tool})
    assert results(reply.messages) == ["0", "1", "2"]


def test_E8_results_stand_in_the_models_order_however_the_tools_end(loop: Face) -> None:
    done = [threading.Event() for _ in range(4)]

    def tool(n: int) -> int:
        if n < 3:
            assert done[n + 1].wait(10)
        done[n].set()
        return n

    reply = loop.run([numbers(4), says()], tools=NUMBER, dispatch={"f": tool})
    assert results(reply.messages) == ["0", "1", "2", "3"]
    assert [row.arguments for row in reply.tool_history] == [f'{{"n": {n}}}' for n in range(4)]


@pytest.mark.parametrize("cap", [1, 2, 5])
def test_the_number_of_tools_that_run_at_once_is_capped(loop: Face, cap: int) -> None:
    lock, running, most = threading.Lock(), [0], [0]

    def tool(n: int) -> int:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        threading.Event().wait(0.002)
        with lock:
            running[0] -= 1
        return n

    reply = loop.run([numbers(20), says()], tools=NUMBER, dispatch={"f": tool}, max_concurrency=cap)
    assert results(reply.messages) == [str(n) for n in range(20)]
    assert most[0] <= cap


def test_one_failing_call_leaves_its_siblings_alone(loop: Face) -> None:
    reply = loop.run([numbers(3), says()], tools=NUMBER, dispatch={"f": lambda n: 6 // (n - 1)})
    assert results(reply.messages) == ["-6", "Tool f failed: integer division or modulo by zero", "6"]


def test_a_single_call_of_the_plain_loop_runs_in_the_thread_that_called() -> None:
    seen: list[Any] = []
    run_tool_loop(
        Scripted(numbers(1), says()), "q", tools=NUMBER, dispatch={"f": lambda n: seen.append(threading.current_thread())}
    )
    assert seen == [threading.current_thread()]


def test_plain_tools_of_the_awaited_loop_leave_the_event_loop_free() -> None:
    async def main() -> None:
        free = threading.Event()
        asyncio.get_running_loop().call_later(0.01, free.set)
        reply = await arun_tool_loop(
            AsyncScripted(numbers(1), says()), "q", tools=NUMBER, dispatch={"f": lambda n: free.wait(10)}
        )
        assert results(reply.messages) == ["True"]

    asyncio.run(main())


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nothing")


@pytest.mark.parametrize("count", [1, 3])
def test_G2_context_variables_of_the_caller_are_seen_by_tools(loop: Face, count: int) -> None:
    async def later(n: int) -> str:
        await asyncio.sleep(0)
        return VARIABLE.get()

    token = VARIABLE.set("here")
    try:
        for tool in (lambda n: VARIABLE.get(), later):
            reply = loop.run([numbers(count), says()], tools=NUMBER, dispatch={"f": tool})
            assert results(reply.messages) == ["here"] * count
    finally:
        VARIABLE.reset(token)


def test_G10_the_plain_loop_works_inside_a_running_event_loop_with_async_tools() -> None:
    async def tool(n: int) -> int:
        await asyncio.sleep(0)
        return n

    async def main() -> Any:
        return run_tool_loop(Scripted(numbers(2), says("ok")), "q", tools=NUMBER, dispatch={"f": tool})

    assert asyncio.run(main()).text == "ok"
    assert run_tool_loop(Scripted(numbers(2), says("ok")), "q", tools=NUMBER, dispatch={"f": tool}).text == "ok"


def test_many_loops_in_many_threads_do_not_meet() -> None:
    def one(n: int) -> list[str]:
        reply = run_tool_loop(Scripted(numbers(3), says()), "q", tools=NUMBER, dispatch={"f": lambda n: n})
        return results(reply.messages)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(40))) == [["0", "1", "2"]] * 40


def test_many_loops_on_one_event_loop_do_not_meet() -> None:
    async def main() -> list[Any]:
        return await asyncio.gather(
            *(
                arun_tool_loop(AsyncScripted(numbers(3), says()), "q", tools=NUMBER, dispatch={"f": lambda n: n})
                for _ in range(40)
            )
        )

    assert [results(reply.messages) for reply in asyncio.run(main())] == [["0", "1", "2"]] * 40


# -- stopped ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("count", [1, 3])
def test_G5_an_interrupt_in_a_tool_leaves_with_a_history_that_goes_on(
    loop: Face, kind: type[BaseException], count: int
) -> None:
    finished = threading.Barrier(count, timeout=10) if count > 1 else None

    def tool(n: int) -> int:
        if n == count - 1:
            if finished:
                threading.Event().wait(0.05)
            raise kind
        return n

    error = loop.fail(kind, [numbers(count)], tools=NUMBER, dispatch={"f": tool})
    assert results(error.messages) == [str(n) for n in range(count - 1)]
    assert len(error.tool_history) == count - 1
    reply = loop.run([says("on")], error.messages, tools=NUMBER, dispatch={"f": lambda n: f"again {n}"})
    assert results(reply.messages) == [*(str(n) for n in range(count - 1)), f"again {count - 1}"]
    assert validate(reply.messages) == []


@pytest.mark.parametrize("count", [1, 3])
def test_a_cancelled_loop_leaves_at_once_and_its_history_goes_on(count: int) -> None:
    transcript = Transcript()

    async def tool(n: int) -> int:
        if n == 0 and count > 1:
            return n
        await asyncio.sleep(60)
        return n

    async def main() -> set[Any]:
        task = asyncio.ensure_future(
            arun_tool_loop(AsyncScripted(numbers(count)), "q", tools=NUMBER, dispatch={"f": tool}, transcript=transcript)
        )
        await asyncio.sleep(0.02)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(main()) == set()
    assert results(transcript.messages) == ["0"] * (count > 1)
    reply = run_tool_loop(Scripted(says()), transcript.messages, tools=NUMBER, dispatch={"f": lambda n: "again"})
    assert results(reply.messages) == ["0"] * (count > 1) + ["again"] * (count - (count > 1))


@pytest.mark.parametrize("turned", [None, ValueError("not now")])
@pytest.mark.parametrize("count", [1, 2])
def test_G6_G22_a_tool_that_swallows_the_cancellation_does_not_keep_the_loop_alive(turned: Any, count: int) -> None:
    caller = AsyncScripted(numbers(count), says())

    async def tool(n: int) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if turned:
                raise turned from None
        return "swallowed"

    async def main() -> None:
        task = asyncio.ensure_future(arun_tool_loop(caller, "q", tools=NUMBER, dispatch={"f": tool}))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert len(caller.sent) == 1


def test_a_timeout_around_the_loop_ends_it() -> None:
    async def tool(n: int) -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await arun_tool_loop(AsyncScripted(numbers(2)), "q", tools=NUMBER, dispatch={"f": tool})
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


@pytest.mark.parametrize("count", [1, 2])
def test_a_cancellation_inside_a_tool_is_the_tools_failure(loop: Face, count: int) -> None:
    async def tool(n: int) -> None:
        inner = asyncio.ensure_future(asyncio.sleep(60))
        inner.cancel()
        await inner

    reply = loop.run([numbers(count), says("on")], tools=NUMBER, dispatch={"f": tool})
    assert results(reply.messages) == ["Tool f failed: the function was cancelled from within"] * count


def test_a_timeout_inside_a_tool_is_the_tools_failure(loop: Face) -> None:
    async def tool(n: int) -> None:
        async with asyncio.timeout(0):
            await asyncio.sleep(60)

    reply = loop.run([numbers(1), says("on")], tools=NUMBER, dispatch={"f": tool})
    assert results(reply.messages) == ["Tool f failed: TimeoutError"]


def test_a_loop_inside_a_tool_is_a_loop_of_its_own(loop: Face) -> None:
    def tool(city: str) -> str:
        return str(run_tool_loop(Scripted(numbers(2), says("inner")), "q", tools=NUMBER, dispatch={"f": lambda n: n}))

    reply = loop.run([calls(("get_weather", '{"city": "x"}')), says("outer")], tools=WEATHER, dispatch={"get_weather": tool})
    assert results(reply.messages) == ["inner"] and reply.text == "outer"
