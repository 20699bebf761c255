"""``llmbroker demo``: a model that runs in this process answers a question with a tool. No key, no service.

The tool's result is made up; everything else is what any program does: a broker, the tool loop, the journal. Each step is shown
as it happens, and the exit code says whether it worked: the tool was called for Paris, and the answer holds what it said.
"""

from __future__ import annotations

import argparse
import sys
import uuid
from typing import Any

from llmbroker.faces.cli.codes import FAILED
from llmbroker.faces.cli.output import local_time, note, print_table, seconds, usage_line
from llmbroker.transports.model_store import DEFAULT, ModelUnavailableError, is_ready, model_path

HELP = {
    "demo": "A model in this process answers a question with a tool, step by step: no key, no service.\n"
    "The first run fetches the model (98 MB). The exit code says whether it worked."
}
QUESTION = "What is the weather in Paris?"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Current weather in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def get_weather(city: str) -> str:
    """Return the weather of a city; made up, so that the demo needs no service."""
    return f"It is 20°C in {city}"


def demo_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("-m", "--model", metavar="PATH", default=DEFAULT.name, help="the path of another .gguf file")


def demo(arguments: argparse.Namespace) -> int:
    """Run the demo; 0 if it worked."""
    if not _prepared(arguments.model):
        return FAILED
    import llmbroker

    trace = f"demo-{uuid.uuid4().hex[:8]}"
    config = llmbroker.LLMConfig(name="embedded", provider="local", model=arguments.model, api_key_ref="")
    ran: list[str] = []

    def watched(city: str) -> str:
        result = get_weather(city)
        ran.append(city)
        print(f'    tool: get_weather(city="{city}") -> {result}', flush=True)
        return result

    print(f"Question: {QUESTION}", flush=True)
    with llmbroker.Broker(pool=[config]) as broker:
        reply = llmbroker.run_tool_loop(
            _Shown(broker), QUESTION, tools=TOOLS, dispatch={"get_weather": watched}, operation="demo", trace_id=trace
        )
        print(f"Answer: {reply.text}")
        print(f"Usage of the last call: {usage_line(reply.usage)}")
        print("\nThe journal has a row for each call:")
        _show_rows(broker.calls(trace_id=trace))
    works = "Paris" in ran and "20" in reply.text and "paris" in reply.text.lower()
    print(f'\n{"It works" if works else "It does not work"}: get_weather ran for {", ".join(ran) or "nothing"}, and the answer '
          f'{"holds" if works else "should hold"} 20 and Paris.')  # fmt: skip
    return 0 if works else FAILED


def _prepared(model: str) -> bool:
    """Whether engine and model are there; fetch the model if need be, and say what is missing."""
    import importlib.util

    if importlib.util.find_spec("xllamacpp") is None:
        note("llmbroker: the demo runs a model in this process; the package for that is missing.")
        note("Install it with: pip install xllamacpp (the extra llmbroker[local])")
        return False
    if model == DEFAULT.name and not is_ready():
        note(f"Fetching the model once: {DEFAULT.title} ...")
    try:
        path = model_path(model)
    except ModelUnavailableError as error:
        note(f"llmbroker: {error}")
        return False
    print(f"Model: {path}", flush=True)
    return True


class _Shown:
    """A caller for the loop that shows each step of the one it wraps."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self._step = 0

    def chat(self, messages: Any, **parameters: Any) -> Any:
        """Call the model and show what it wants."""
        self._step += 1
        print(f"  step {self._step}: the model reads {len(messages)} message(s) ...", flush=True)
        reply = self._broker.chat(messages, **parameters)
        for call in reply.tool_calls or ():
            print(f"    it calls {call['function']['name']} with {call['function']['arguments']}", flush=True)
        if not reply.tool_calls:
            print("    it answers", flush=True)
        sys.stdout.flush()
        return reply


def _show_rows(rows: list[Any]) -> None:
    columns = ("time", "model", "status", "in", "out", "latency", "id")
    shown = [
        (local_time(row.ts), row.llm_name, row.status, row.usage.input_tokens if row.usage else None,
         row.usage.output_tokens if row.usage else None, seconds(row.latency_ms), row.id)
        for row in rows
    ]  # fmt: skip
    print_table(columns, shown, right=("in", "out", "latency"), empty="(no rows: the journal cannot be read)")
