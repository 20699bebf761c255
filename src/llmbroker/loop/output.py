"""The final answer of a loop in a form: a type's JSON schema, asked for after the last tool and checked here.

Not every provider takes tools and a form in one request, so the loop runs without one until the model answers in text. If that
text holds a value of the form, it is the answer; else one more request, without tools, asks for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from llmbroker.errors import InvalidRequestError
from llmbroker.messages import plain, shown
from llmbroker.tools import Wrong, check_value, shape_of
from llmbroker.tools.exact import decode
from llmbroker.tools.types import Unsuited

JSON: TypeAlias = dict[str, Any]
_FENCE = re.compile(r"```[\w+-]*[ \t]*\r?\n(.*?)```", re.DOTALL)
TRIES = 3
"""Requests for the form before the last problem is raised."""


class Output:
    """A form of the final answer.

    Args:
        kind: a dataclass, TypedDict, pydantic model or other type, or a JSON schema.

    Raises:
        InvalidRequestError: it has no JSON schema.
    """

    def __init__(self, kind: Any) -> None:
        self._convert: Any = None
        if isinstance(kind, (str, bytes)):
            # Python would take a text for the name of a type, to be looked up where nothing is known about it.
            raise InvalidRequestError(f"output is a type or a JSON schema, not {shown(kind)}.", argument="output")
        if isinstance(kind, Mapping):
            schema: JSON = plain(kind, "output")
        else:
            try:
                shape = shape_of(kind)
            except Unsuited as error:
                raise InvalidRequestError(f"output: {error}.", argument="output") from None
            except Exception as error:  # what is no type at all fails in ways of its own
                raise InvalidRequestError(
                    f"output is a type or a JSON schema, not {shown(kind)}.", argument="output"
                ) from error
            schema, self._convert = shape.schema, shape.convert
        self.wrapped = not _is_object(schema)
        if self.wrapped:
            # Providers take objects only.
            defs = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
            schema = {"type": "object", "properties": {"value": schema}, "required": ["value"], **defs}
        self.schema = schema

    @property
    def wire(self) -> JSON:
        """The ``response_format`` of a request."""
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": self.schema}}

    def read(self, text: str) -> tuple[Any, str | None]:
        """Return (value, None), or (None, why the text holds none)."""
        problem = "the answer holds no JSON."
        for piece in (text.strip(), *(found.strip() for found in reversed(_FENCE.findall(text)))):
            try:
                value = decode(piece)
            except (ValueError, RecursionError):
                continue
            made, problems = check_value(value, self.schema)
            if problems:
                problem = "\n".join(problems)
                continue
            if self.wrapped:
                made = made["value"]
            try:
                return (made if self._convert is None else self._convert(made)), None
            except Wrong as wrong:
                problem = str(wrong)
        return None, problem

    def request(self, problem: str | None) -> str:
        """Return what the model is told."""
        why = f"Your answer does not have the form that is wanted: {problem[:1000]}\n" if problem else ""
        return (
            f"{why}Give your final answer as one JSON value that fits this schema, and nothing else:\n{json.dumps(self.schema)}"
        )


def _is_object(schema: JSON) -> bool:
    if schema.get("type") == "object":
        return True
    ref = schema.get("$ref")
    target = schema.get("$defs", {}).get(ref.rsplit("/", 1)[-1]) if isinstance(ref, str) else None
    return isinstance(target, Mapping) and target.get("type") == "object"
