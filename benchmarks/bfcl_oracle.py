"""BFCL's single-turn tasks with a scripted provider that plays the accepted answer: is what the loop executes what was asked?

Usage: bfcl_oracle.py [--dialects openai-chat,...] [--ways whole,stream] [--corrupt] [--limit N]

Each task runs through ``run_tool_loop`` in each dialect, whole and streamed; the executed calls are judged by BFCL's own
``ast_checker``. ``--corrupt`` damages the arguments in each way that the argument ladder repairs. The tasks are in the wheel
of bfcl-eval, downloaded without its dependencies.

Some accepted answers break the schema that their own task declares (a word outside the enum, an unknown or a missing argument).
The loop rightly refuses those, so the tools are declared twice: ``open`` declares the names only and must reach BFCL's own
figure; ``strict`` declares the schemas as they are, and every call that the loop refuses there must be one that the library
``jsonschema`` refuses too.
"""

from __future__ import annotations

import argparse
import collections
import json
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import jsonschema
from bfcl import tasks

import llmbroker
from llmbroker.exchange import ToolSet
from llmbroker.testing import Answer, Replay, content_type, made_reply, stream, whole

CATEGORIES = (
    "simple_python", "multiple", "parallel", "parallel_multiple",
    "live_simple", "live_multiple", "live_parallel", "live_parallel_multiple",
)  # fmt: skip
DIALECTS = ("openai-chat", "openai-responses", "anthropic", "gemini", "ollama")
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None, "list": "array"}

CORRUPTIONS: dict[str, Callable[[str], str]] = {
    "fenced": lambda text: f"```json\n{text}\n```",
    "byte order mark": lambda text: "\ufeff" + text,
    "double encoded": json.dumps,
    "trailing comma": lambda text: text[:-1] + ",}" if len(text) > 2 else text,
    "single quotes": lambda text: repr(json.loads(text)) if "'" not in text and "\\" not in text else text,
    "prose around": lambda text: f"  {text}  \n",
}


def checker(data: Path) -> Callable[..., Any]:
    """Return BFCL's ast_checker, with its table of models (which pulls in every vendor's SDK) replaced by an empty one."""
    root = data.parent.parent
    sys.path.insert(0, str(root))
    stub = types.ModuleType("bfcl_eval.constants.model_config")
    model = types.SimpleNamespace(underscore_to_dot=False)
    stub.MODEL_CONFIG_MAPPING = collections.defaultdict(lambda: model)  # type: ignore[attr-defined]
    sys.modules["bfcl_eval.constants.model_config"] = stub
    from bfcl_eval.constants.enums import Language
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker

    def check(task: dict[str, Any], calls: list[dict[str, Any]], truth: Any, category: str) -> bool:
        return bool(ast_checker(task["function"], calls, truth, Language.PYTHON, category, "m")["valid"])

    return check


def schema(node: Any) -> Any:
    """Return BFCL's schema as JSON schema."""
    if isinstance(node, list):
        return [schema(item) for item in node]
    if not isinstance(node, dict):
        return node
    out = {}
    for key, value in node.items():
        if key == "type" and isinstance(value, str):
            named = TYPES.get(value, value)
            if named:
                out[key] = named
        elif key == "properties" and isinstance(value, dict):
            out[key] = {name: schema(inner) for name, inner in value.items()}
        elif key in ("items", "additionalProperties", "parameters"):
            out[key] = schema(value)
        elif key not in ("optional", "default", "format"):
            out[key] = value
    return out


def first(value: Any, *, needed: bool = False) -> Any:
    """Return the first accepted value; "" where the parameter may be left out and the answer leaves it out."""
    chosen = value
    if isinstance(value, list):
        said = [v for v in value if v != ""]
        chosen = said[0] if said and (needed or value[0] != "") else ""
    if isinstance(chosen, dict):
        return {k: first(v) for k, v in chosen.items() if first(v) != ""}
    if isinstance(chosen, list):
        return [{k: first(v) for k, v in item.items() if first(v) != ""} if isinstance(item, dict) else item for item in chosen]
    return chosen


def answer_of(task: dict[str, Any], truth: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the calls of the accepted answer."""
    for call in truth:
        ((name, params),) = call.items()
        (declared,) = [f for f in task["function"] if f["name"] == name][:1]
        needed = set(declared["parameters"].get("required") or ())
        values = {key: first(value, needed=key in needed) for key, value in params.items()}
        yield name, {key: value for key, value in values.items() if value != "" or key in needed}


class Streamed:
    """A client whose ``chat`` streams: the loop's calls arrive in pieces."""

    def __init__(self, client: llmbroker.DirectClient) -> None:
        self._client = client

    def chat(self, messages: Any, **how: Any) -> Any:
        """Stream the answer and return the whole."""
        answer = self._client.stream(messages=messages, **how)
        for _ in answer.events():
            pass
        return answer.reply


def opened(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that knows the names only."""
    return {"type": "object", "properties": {key: {} for key in parameters.get("properties", {})}, "additionalProperties": True}


def closed(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the schema as the loop reads it: names that are not listed are not allowed."""
    made = dict(parameters)
    if "properties" in made:
        made.setdefault("additionalProperties", False)
        made["properties"] = {name: closed(p) if isinstance(p, dict) else p for name, p in made["properties"].items()}
    if isinstance(made.get("items"), dict):
        made["items"] = closed(made["items"])
    return made


def run(
    task: dict[str, Any], truth: Any, dialect: str, streamed: bool, corrupt: Callable[[str], str] | None, strict: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the calls that the loop executed, and the disagreements with jsonschema (strict tools only)."""
    answers = list(answer_of(task, truth))
    played = [(name, json.dumps(args, ensure_ascii=False)) for name, args in answers]
    declared = {f["name"]: schema(f)["parameters"] for f in task["function"]}
    tools = [
        {
            "type": "function",
            "function": {
                **schema(f),
                "name": f["name"],
                "parameters": declared[f["name"]] if strict else opened(declared[f["name"]]),
            },
        }
        for f in task["function"]
    ]
    renamed = {spec.declared: spec.name for spec in ToolSet(tools).specs}
    calls = [(renamed.get(name, name), corrupt(text) if corrupt else text) for name, text in played]
    turns = [made_reply(calls=calls), made_reply("Done.")]
    how = {"content-type": content_type(dialect, stream=streamed)}
    port = Replay()
    for turn in turns:
        port.on(None, Answer(headers=how, body=stream(turn, dialect) if streamed else whole(turn, dialect)))
    client = llmbroker.DirectClient(base_url="http://scripted.example/v1", model="m", dialect=dialect, io=port)
    executed: list[dict[str, Any]] = []

    def tool(name: str) -> Callable[..., str]:
        def call(**arguments: Any) -> str:
            executed.append({name: arguments})
            return "ok"

        return call

    dispatch = {f["name"]: tool(f["name"]) for f in task["function"]}
    messages = [{**m, "content": m["content"] or " "} for m in task["question"][0]]
    reply = llmbroker.run_tool_loop(
        Streamed(client) if streamed else client, messages, tools=tools, dispatch=dispatch, max_concurrency=1
    )
    odd = []
    if strict:
        for row, (name, arguments) in zip(reply.tool_history, answers, strict=True):
            valid = jsonschema.Draft202012Validator(closed(declared[name])).is_valid(arguments)
            if valid and row["error"]:
                odd.append(f"{task['id']}: refused, yet valid: {row['result'][:200]}")
            if not valid and not row["error"] and not row["repaired"]:
                odd.append(f"{task['id']}: executed as it was, yet not valid")
    return executed, odd


def main() -> int:
    """Run the tasks; print right of all for each dialect and way."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dialects", default=",".join(DIALECTS))
    parser.add_argument("--ways", default="whole,stream")
    parser.add_argument("--corrupt", action="store_true")
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--least", type=int, default=2343)
    how = parser.parse_args()
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "tree-sitter==0.21.3", "mpmath", "pydantic"], check=True)
    data = tasks()
    check = checker(data)
    rows = []
    for category in CATEGORIES:
        truths = {}
        for line in (data / "possible_answer" / f"BFCL_v4_{category}.json").open():
            answer = json.loads(line)
            truths[answer["id"]] = answer["ground_truth"]
        with (data / f"BFCL_v4_{category}.json").open() as lines:
            rows += [(category, task, truths[task["id"]]) for task in map(json.loads, lines)][: how.limit]
    worst, odd = len(rows), []
    damages: dict[str, Callable[[str], str] | None] = {"": None, **(CORRUPTIONS if how.corrupt else {})}
    for dialect in how.dialects.split(","):
        for way in how.ways.split(","):
            for damage, corrupt in damages.items():
                if damage and (dialect in ("gemini", "ollama") or (dialect == "anthropic" and way == "whole")):
                    continue  # arguments travel as objects there: they cannot be damaged this way
                for strict in (False, True):
                    right, wrong = 0, []
                    for category, task, truth in rows:
                        calls, more = run(task, truth, dialect, way == "stream", corrupt, strict)
                        good = check(task, calls, truth, category)
                        right += good
                        odd += more
                        if not good:
                            wrong.append(task["id"])
                    kind = "strict" if strict else "open"
                    print(
                        f"{dialect} {way} {damage or 'as it is'} {kind}: {right} of {len(rows)}; not: {wrong[:9]}", flush=True
                    )
                    if not strict:
                        worst = min(worst, right)
    print(f"worst open: {worst}; disagreements with jsonschema: {len(odd)} {odd[:5]}")
    return 0 if (how.limit or worst >= how.least) and not odd else 1


if __name__ == "__main__":
    sys.exit(main())
