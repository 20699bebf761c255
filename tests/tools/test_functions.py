"""Tools made of functions: what pydantic says about a signature is what the loop makes of it."""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import Callable
from typing import Any

import annotated_types
import jsonschema
import msgspec
import pydantic
import pytest
from tests.tools import signatures as s

import llmbroker
from llmbroker.errors import InvalidRequestError
from llmbroker.tools import FunctionTool, Toolbox, ToolContext, Wrong, read_arguments, tool
from llmbroker.tools.docwords import docwords

MISS = object()


def ours(made: FunctionTool, arguments: Any) -> Any:
    """Return what the function would be called with, or the problem as text behind ``MISS``."""
    read = read_arguments(json.dumps(arguments), made.schema)
    if read.value is None:
        return MISS, read.problem
    try:
        args, kwargs = made.bind(dict(read.value))
    except Wrong as wrong:
        return MISS, str(wrong)
    return args, kwargs


def oracle(fn: Callable[..., Any], *, strict: bool) -> Any:
    hint = Any if fn is s.f_untyped else fn.__annotations__["a"]
    return pydantic.TypeAdapter(hint, config=None), strict


def judged(adapter: Any, value: Any, strict: bool) -> Any:
    try:
        return adapter.validate_json(json.dumps(value), strict=strict)
    except pydantic.ValidationError:
        return MISS


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, (tuple, range)) else value


@pytest.mark.parametrize("fn", s.ONE_ARGUMENT, ids=lambda fn: fn.__name__)
def test_what_pydantic_takes_strictly_is_taken_and_what_it_refuses_altogether_is_refused(fn: Callable[..., Any]) -> None:
    made = tool(fn)
    adapter, _ = oracle(fn, strict=True)
    stated = jsonschema.Draft202012Validator(adapter.json_schema())
    for value in s.VALUES:
        args, kwargs = ours(made, {"a": value})
        strictly, loosely = judged(adapter, value, True), judged(adapter, value, False)
        if strictly is not MISS:
            if isinstance(value, bool) and not stated.is_valid(value):
                continue  # Python's True is 1 to a Literal; to JSON Schema, pydantic's own included, it is not
            if args is MISS and ": not known." in kwargs:
                continue  # pydantic drops what it does not know; the loop tells the model, which may have meant another name
            assert args is not MISS, f"{value!r} is refused: {kwargs}"
            assert plain(kwargs["a"]) == plain(strictly), f"{value!r} became {kwargs['a']!r}"
        elif args is not MISS and kwargs != {} and loosely is MISS:
            assert lossless(value, kwargs["a"]), f"{value!r} became {kwargs['a']!r}; pydantic refuses it"


def lossless(given: Any, made: Any) -> bool:
    """Whether a value that pydantic refuses was only written otherwise: JSON within a string, one wrapper more or less."""
    builtin = msgspec.to_builtins(made, enc_hook=lambda o: o.model_dump(mode="json") if hasattr(o, "model_dump") else str(o))
    texts = {json.dumps(builtin), str(builtin), json.dumps({"a": builtin})}
    if isinstance(given, dict) and len(given) == 1:
        return lossless(next(iter(given.values())), made) or bool(builtin == given)
    return str(given).strip() in texts or given == builtin


def normal(schema: Any, root: Any) -> Any:
    """Return a schema without titles and references, in one spelling."""
    if isinstance(schema, list):
        return [normal(item, root) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return {"ref": name} if f'"{schema["$ref"]}"' in json.dumps(root["$defs"][name]) else normal(root["$defs"][name], root)
    out = {key: normal(value, root) for key, value in schema.items() if key not in ("title", "$defs", "default", "uniqueItems")}
    if isinstance(out.get("properties"), dict):
        out["properties"] = {key: normal(value, root) for key, value in schema["properties"].items()}
    return out


# Where both are right in different words: msgspec's formats, its tuples, pydantic's additional alternatives.
OTHER_WORDS = {
    "f_literal_mixed", "f_literal", "f_enum", "f_int_enum", "f_enum_list", "f_nested_dataclass", "f_decimal", "f_datetime",
    "f_typeddict", "f_tuple",
    "f_namedtuple", "f_int_keys", "f_untyped", "f_dict_int", "f_dict_list", "f_mapping", "f_dict", "f_tagged", "f_model_dict",
    "f_list", "f_any", "f_frozenset", "f_email_like",
}  # fmt: skip


@pytest.mark.parametrize("fn", [f for f in s.ONE_ARGUMENT if f.__name__ not in OTHER_WORDS], ids=lambda fn: fn.__name__)
def test_the_schema_is_the_one_that_pydantic_writes(fn: Callable[..., Any]) -> None:
    made = tool(fn).schema
    expected = oracle(fn, strict=True)[0].json_schema()
    assert normal(made["properties"]["a"], made) == normal(expected, expected)
    assert made.get("required", []) == ([] if fn.__defaults__ else ["a"])


@pytest.mark.parametrize("fn", s.ONE_ARGUMENT, ids=lambda fn: fn.__name__)
def test_a_schema_says_no_less_than_pydantic_does(fn: Callable[..., Any]) -> None:
    made = tool(fn).schema
    jsonschema.Draft202012Validator.check_schema(made)
    validator = jsonschema.Draft202012Validator(made)
    adapter = oracle(fn, strict=True)[0]
    stated = jsonschema.Draft202012Validator(adapter.json_schema())
    taken = [v for v in s.VALUES if judged(adapter, v, True) is not MISS and stated.is_valid(v)]
    refused = [v for v in taken if not validator.is_valid({"a": v})]
    assert refused == []


def test_at_least_sixty_signatures_are_tried() -> None:
    assert len(s.ONE_ARGUMENT) >= 60


@pytest.mark.parametrize(
    ("fn", "arguments", "expected"),
    [
        (s.f_two, {"a": 1, "b": "x"}, ([], {"a": 1, "b": "x"})),
        (s.f_wrapped, {"a": 1, "b": "x"}, ([], {"a": 1, "b": "x"})),
        (s.f_keyword_only, {"a": 1}, ([], {"a": 1})),
        (s.f_positional_only, {"a": "1", "b": "x"}, ([1, "x"], {})),
        (s.f_star, {"a": 1, "rest": [2, 3]}, ([1, 2, 3], {})),
        (s.f_star, {"a": 1}, ([1], {})),
        (s.f_kwargs, {"a": 1, "z": 2}, ([], {"a": 1, "z": 2})),
        (s.f_everything, {"a": 1, "b": "b", "rest": [1.5], "c": False, "z": "t"}, ([1, "b", 1.5], {"c": False, "z": "t"})),
        (s.f_two_models, {"a": {"name": "n"}, "b": {"user": {"name": "m"}, "items": ["i"]}},
         ([], {"a": s.User(name="n"), "b": s.Order(user=s.User(name="m"), items=["i"])})),
        (s.Thing().method, {"a": 1}, ([], {"a": 1})),
        (s.Thing.of, {"a": 1}, ([], {"a": 1})),
        (s.Thing.still, {"a": 1}, ([], {"a": 1})),
        (s.Thing(), {"a": 1}, ([], {"a": 1})),
        (s.AsyncThing(), {"a": 1}, ([], {"a": 1})),
        (functools.partial(s.f_two, b="set"), {"a": 1}, ([], {"a": 1})),
        (lambda a: a, {"a": 1}, ([], {"a": 1})),
    ],
)  # fmt: skip
def test_any_callable_is_bound_as_python_would(fn: Any, arguments: Any, expected: Any) -> None:
    assert ours(tool(fn, name="t"), arguments) == expected


@pytest.mark.parametrize("fn", [s.with_context, s.with_bare_context])
def test_the_context_is_hidden_from_the_model(fn: Any) -> None:
    made = tool(fn)
    assert list(made.schema["properties"]) == ["a"]
    assert made.signature.context == "ctx"


def test_a_model_that_invents_the_hidden_argument_is_refused() -> None:
    assert "ctx: not known" in ours(tool(s.with_context), {"a": 1, "ctx": {}})[1]


def test_problems_name_the_path_and_what_came() -> None:
    problem = ours(tool(s.f_nested_model), {"a": {"user": {"name": "n"}, "items": [""]}})[1]
    assert "a.items: Value error, an item has no name" in problem
    assert "a: " in ours(tool(s.f_date), {"a": "2026-02-31"})[1]
    assert "2026-02-31" in ours(tool(s.f_date), {"a": "2026-02-31"})[1]


def test_two_models_of_one_name_keep_their_own_definitions() -> None:
    def other() -> type:
        class Node(pydantic.BaseModel):
            label: str
            inner: list[Node] = []

        Node.model_rebuild(_types_namespace={"Node": Node})
        return Node

    def both(a: Any, b: Any) -> None: ...

    both.__annotations__ = {"a": s.Node, "b": other()}
    made = tool(both)
    assert ours(made, {"a": {"value": 1, "children": [{"value": 2}]}, "b": {"label": "x", "inner": [{"label": "y"}]}})[0] == []
    assert ours(made, {"a": {"value": 1}, "b": {"label": "x", "inner": [{"value": 1}]}})[0] is MISS


# -- words -------------------------------------------------------------------------------------------------------------------


def google(city: str, days: int = 1) -> str:
    """Tell the weather.

    Long words.

    Args:
        city (str): where, with its
            country
        days: how many: at most ten

    Returns:
        str: words
    """
    return city + str(days)


def numpy(city: str, days: int = 1) -> str:
    """Tell the weather.

    Long words.

    Parameters
    ----------
    city : str
        where, with its
        country
    days : int, optional
        how many: at most ten

    Returns
    -------
    str
        words
    """
    return city + str(days)


def sphinx(city: str, days: int = 1) -> str:
    """Tell the weather.

    Long words.

    :param str city: where, with its
        country
    :param days: how many: at most ten
    :type days: int
    :returns: words
    """
    return city + str(days)


@pytest.mark.parametrize("fn", [google, numpy, sphinx])
def test_docstrings_of_every_style_describe_tool_and_arguments(fn: Any) -> None:
    made = tool(fn)
    assert made.description == "Tell the weather.\n\nLong words."
    assert made.schema["properties"]["city"]["description"] == "where, with its country"
    assert made.schema["properties"]["days"] == {"type": "integer", "default": 1, "description": "how many: at most ten"}
    assert made.schema["required"] == ["city"]


def test_a_docstring_without_sections_is_the_description() -> None:
    assert docwords(lambda: None) == ("", {})
    assert docwords(test_the_context_is_hidden_from_the_model) == ("", {})


def test_what_is_said_wins_over_what_is_read() -> None:
    @tool(name="weather.now", description="Now.", parameters={"type": "object", "properties": {"q": {"type": "string"}}})
    def weather(q: Any) -> str:
        return str(q)

    assert weather.declaration["function"] == {
        "name": "weather.now", "description": "Now.", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}
    }  # fmt: skip
    assert weather("x") == "x"


def test_a_tool_in_a_class_binds_like_a_method() -> None:
    class Counter:
        def __init__(self) -> None:
            self.n = 0

        @tool(timeout=3)
        def add(self, by: int, ctx: ToolContext) -> int:
            """Add."""
            self.n += by
            return self.n

    counter = Counter()
    assert counter.add.schema["properties"] == {"by": {"type": "integer"}}
    assert counter.add.rules.timeout == 3
    assert counter.add(2, ToolContext()) == 2


def test_postponed_types_of_an_enclosing_function_are_found_where_the_function_uses_them() -> None:
    class Mode(enum.Enum):
        A = "a"

    def run(mode: Mode) -> bool:
        return mode is Mode.A

    assert tool(run).schema["properties"]["mode"]["enum"] == ["a"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tool(3), "A tool is a function"),
        (lambda: tool(s.f_int, timeout=0), "timeout is a number of seconds above 0"),
        (lambda: tool(s.f_int, retries=-1), "retries is a whole number"),
        (lambda: tool(s.f_int, colour="red"), "colour"),
        (lambda: tool(s.f_int, external=True, retries=1), "external tool"),
        (lambda: tool(s.f_int, result_limit=0), "result_limit"),
        (lambda: tool(s.f_int, parameters={"type": "array"}), "JSON schema of type object"),
        (lambda: Toolbox([s.f_int, s.f_int], None), "Two tools have the name 'f_int'"),
        (lambda: Toolbox([s.f_int], {"f_int": s.f_int}), "is a function of tools= already"),
        (lambda: Toolbox([3], None), "A tool is a function or a mapping"),
    ],
)
def test_what_means_nothing_is_refused_before_anything_is_sent(make: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        make()


@pytest.mark.parametrize("hint", [Callable[[], int], type("Opaque", (), {}), annotated_types])
def test_a_type_that_json_cannot_carry_is_named(hint: Any) -> None:
    def odd(a: Any) -> None: ...

    odd.__annotations__ = {"a": hint}
    with pytest.raises(InvalidRequestError, match="argument a of the tool odd"):
        tool(odd)


def test_tools_of_the_researcher_stand_beside_functions() -> None:
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    box = Toolbox([llmbroker.llm_tool(add, name="plus"), add, s.f_str], None)
    assert [spec.declared for spec in box.declared.specs] == ["plus", "add", "f_str"]  # type: ignore[union-attr]


def test_plain_signatures_do_not_load_pydantic() -> None:
    import subprocess
    import sys

    code = (
        "import sys, dataclasses, enum, datetime\nfrom typing import *\nfrom llmbroker.tools import tool\n"
        "@dataclasses.dataclass\nclass D:\n x: int\n"
        "def f(a: int, b: Literal['x'], c: list[D], d: Optional[datetime.date] = None): ...\n"
        "tool(f); assert 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
