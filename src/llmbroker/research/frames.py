"""Rows in, columns out: lists of dicts, (config, messages) pairs, frames of pandas, polars and others (through narwhals).

Nothing of the user's is overwritten: a column whose name is taken gets ``.1``, with a warning.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llmbroker.errors import ConfigurationError, InvalidRequestError, missing_package
from llmbroker.messages import History
from llmbroker.research.config import ModelConfig
from llmbroker.research.prompts import is_conversation
from llmbroker.research.response import Response

_FRAMES = ("pandas", "polars", "pyarrow", "modin", "cudf")
_FIELD = re.compile(r"\{([^{}\s]+)\}")


class Rows(list[dict[str, Any]]):
    """A list of rows, each a dict; ``to_pandas()`` and ``to_polars()`` make frames of it."""

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame. Needs pandas.

        Raises:
            ConfigurationError: it is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise missing_package("pandas", "'llmbroker[frames]'") from None

        return pandas.DataFrame(self)

    def to_polars(self) -> Any:
        """Return a polars DataFrame. Needs polars.

        Raises:
            ConfigurationError: it is not installed.
        """
        try:
            import polars
        except ImportError:
            raise missing_package("polars", "polars") from None

        return polars.DataFrame(self, infer_schema_length=None)


class Table:
    """The user's rows: ``records`` to read, ``with_columns`` to give back."""

    def __init__(self, records: list[dict[str, Any]], names: list[str], frame: Any = None) -> None:
        self.records = records
        self.names = names
        self._frame = frame

    def free_name(self, name: str, taken: set[str]) -> str:
        """Return the name, or the first of ``name.1``, ``name.2`` that is free."""
        if name not in taken:
            return name
        number = next(n for n in range(1, sys.maxsize) if f"{name}.{n}" not in taken)
        return f"{name}.{number}"

    def with_columns(self, columns: Mapping[str, list[Any]]) -> Any:
        """Return the rows as they came, with these columns behind the user's."""
        taken = set(self.names)
        named: dict[str, list[Any]] = {}
        renamed = []
        for name, values in columns.items():
            free = self.free_name(name, taken)
            if free != name:
                renamed.append(f"{name} -> {free}")
            taken.add(free)
            named[free] = values
        if renamed:
            warnings.warn(f"Columns of these names were there already: {', '.join(renamed)}.", UserWarning, stacklevel=4)
        if self._frame is None:
            return Rows(
                {**record, **{name: values[at] for name, values in named.items()}} for at, record in enumerate(self.records)
            )
        import narwhals

        frame = self._frame
        made = [_series(narwhals, name, values, frame) for name, values in named.items()]
        return frame.with_columns(*made).to_native()


def _series(narwhals: Any, name: str, values: list[Any], frame: Any) -> Any:
    """Return a column of the frame's own library; counts stay whole numbers where some are missing."""
    kinds = {type(value) for value in values if value is not None}
    dtype = None
    if kinds == {int} and None in values and frame.implementation.is_pandas():
        import pandas

        return narwhals.from_native(pandas.Series(values, dtype="Int64", name=name), series_only=True)
    if kinds <= {str}:
        dtype = narwhals.String
    elif kinds == {int}:
        dtype = narwhals.Int64
    elif kinds == {int, float} or kinds == {float}:
        dtype = narwhals.Float64
        values = [None if value is None else float(value) for value in values]
    elif kinds <= {dict, list, bool, *_OBJECTS} and kinds - {bool}:
        dtype = narwhals.Object if kinds - {dict, list} else None
    return narwhals.new_series(name, values, dtype, backend=frame.implementation)


_OBJECTS = (Response,)


def read_rows(rows: Any) -> Table:
    """Return the rows of a frame, of a list of dicts or of (config, messages) pairs.

    Raises:
        InvalidRequestError: it is none of these.
        ConfigurationError: it is a frame and narwhals is not installed.
    """
    module = type(rows).__module__.partition(".")[0]
    if module in _FRAMES or hasattr(rows, "__narwhals_dataframe__"):
        try:
            import narwhals
        except ImportError:
            raise ConfigurationError(
                "Frames are read through narwhals.", hint="pip install 'llmbroker[frames]', or hand in a list of dicts."
            ) from None
        frame = narwhals.from_native(rows, eager_only=True)
        return Table(list(frame.iter_rows(named=True)), list(frame.columns), frame)
    if isinstance(rows, (str, bytes, Mapping)) or not isinstance(rows, Sequence):
        rows = _listed(rows)
    records = [_record(row, index) for index, row in enumerate(rows)]
    names = list(dict.fromkeys(name for record in records for name in record))
    return Table(records, names)


def _listed(rows: Any) -> list[Any]:
    if isinstance(rows, (str, bytes, Mapping)) or not hasattr(rows, "__iter__"):
        raise InvalidRequestError(
            f"rows is a frame, a list of dicts, or of (config, messages) pairs, not {type(rows).__name__}.", argument="rows"
        )
    return list(rows)


def _record(row: Any, index: int) -> dict[str, Any]:
    if isinstance(row, Mapping):
        return {str(name): value for name, value in row.items()}
    if isinstance(row, (tuple, list)) and len(row) == 2 and (isinstance(row[0], ModelConfig) or hasattr(row[0], "_io")):
        return {"config": row[0], "messages": row[1]}
    raise InvalidRequestError(
        f"rows[{index}] is neither a dict nor a pair (config, messages) but {type(row).__name__}.", argument=f"rows[{index}]"
    )


# -- a row's question ------------------------------------------------------------------------------------------------------


def fill(template: Any, record: Mapping[str, Any]) -> Any:
    """Return a text, or messages, with ``{column}`` replaced by the row's value; other braces stay as they are."""
    if isinstance(template, str):
        return _FIELD.sub(lambda found: str(record[found[1]]) if found[1] in record else found[0], template)
    if isinstance(template, Mapping):
        return {key: value if key == "role" else fill(value, record) for key, value in template.items()}
    if isinstance(template, tuple) and len(template) == 2:
        return (template[0], fill(template[1], record))
    if isinstance(template, (list, tuple)):
        return [fill(item, record) for item in template]
    return template


def question_of(messages: Any, names: Sequence[str], system: Any) -> Callable[[Mapping[str, Any]], Any]:
    """Return the function from a row to its messages.

    Args:
        messages: None (the column ``messages``, else ``prompt``), a column's name, a template, a function of the row.
        names: the columns.
        system: a template for a system message before them, or None.

    Raises:
        InvalidRequestError: there is no such column.
    """
    if messages is None:
        messages = next((name for name in ("messages", "prompt") if name in names), None)
        if messages is None and names:
            raise InvalidRequestError(
                "The rows have no column 'messages' or 'prompt': give messages= (a column, or a template like '{text}').",
                argument="messages",
            )
        if messages is None:
            return lambda record: None
    ask: Callable[[Mapping[str, Any]], Any]
    if callable(messages):
        ask = messages
    elif isinstance(messages, str) and messages in names:
        column = messages
        ask = lambda record: record[column]  # noqa: E731
    elif is_conversation(messages):
        template = messages
        ask = lambda record: fill(template, record)  # noqa: E731
    else:
        raise InvalidRequestError(
            "messages is a column's name, a template, messages, or a function of the row.", argument="messages"
        )
    if system is None:
        return ask
    return lambda record: _with_system(ask(record), fill(system, record))


def _with_system(messages: Any, system: str) -> Any:
    first = {"role": "system", "content": system}
    if isinstance(messages, str):
        return [first, {"role": "user", "content": messages}]
    if isinstance(messages, Mapping) and "role" not in messages:
        return [("system", system), *messages.items()]
    if isinstance(messages, Mapping):
        return [first, messages]
    if isinstance(messages, History):
        return [first, *messages]
    return [first, *messages] if all(isinstance(m, Mapping) for m in messages) else [("system", system), *messages]
