"""Signatures that tools are made of, each with argument values to try; pydantic is the oracle of what they mean."""

# No postponed annotations here: some of the types stand inside of functions. A module of its own has them postponed.
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import pathlib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, NotRequired

import annotated_types as at
import msgspec
import pydantic
from typing_extensions import TypedDict

from llmbroker.tools import ToolContext


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(enum.Enum):
    A = 1
    B = "b"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass
class Line:
    a: Point
    b: Point
    color: Color = Color.RED


@dataclasses.dataclass
class Bounded:
    n: Annotated[int, at.Ge(0)]


class Movie(TypedDict):
    name: str
    year: NotRequired[int]


class Pair(NamedTuple):
    left: int
    right: str = "r"


class Struct(msgspec.Struct):
    a: int
    b: list[str] = []


class User(pydantic.BaseModel):
    name: str
    age: int = 3


class Order(pydantic.BaseModel):
    user: User
    items: list[str] = pydantic.Field(min_length=1, max_length=3)

    @pydantic.field_validator("items")
    @classmethod
    def no_empty(cls, value: list[str]) -> list[str]:
        if "" in value:
            raise ValueError("an item has no name")
        return value


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    barks: bool


class Node(pydantic.BaseModel):
    value: int
    children: list["Node"] = []


def f_str(a: str): ...
def f_int(a: int): ...
def f_float(a: float): ...
def f_bool(a: bool): ...
def f_none(a: None): ...
def f_any(a: Any): ...
def f_untyped(a): ...
def f_two(a: int, b: str): ...
def f_default(a: int = 3): ...
def f_default_none(a: int | None = None): ...
def f_optional_needed(a: str | None): ...
def f_union_bar(a: int | None): ...
def f_union(a: int | str): ...
def f_union_list(a: int | list[int]): ...
def f_list(a: list): ...
def f_list_int(a: list[int]): ...
def f_list_list(a: list[list[float]]): ...
def f_dict(a: dict): ...
def f_dict_int(a: dict[str, int]): ...
def f_dict_list(a: dict[str, list[int]]): ...
def f_int_keys(a: dict[int, str]): ...
def f_sequence(a: Sequence[int]): ...
def f_mapping(a: Mapping[str, int]): ...
def f_tuple(a: tuple[int, str]): ...
def f_tuple_any(a: tuple[int, ...]): ...
def f_set(a: set[int]): ...
def f_frozenset(a: frozenset[str]): ...
def f_literal(a: Literal["x", "y"]): ...
def f_literal_int(a: Literal[1, 2]): ...
def f_literal_mixed(a: Literal[1, "a", None]): ...
def f_literal_default(a: Literal["x", "y"] = "x"): ...
def f_enum(a: Color): ...
def f_int_enum(a: Level): ...
def f_mixed_enum(a: Mixed): ...
def f_enum_list(a: list[Color]): ...
def f_date(a: dt.date): ...
def f_datetime(a: dt.datetime): ...
def f_uuid(a: uuid.UUID): ...
def f_decimal(a: decimal.Decimal): ...
def f_path(a: pathlib.Path): ...
def f_gt(a: Annotated[int, at.Gt(0)]): ...
def f_range(a: Annotated[int, at.Ge(1), at.Le(5)]): ...
def f_length(a: Annotated[str, at.MinLen(2), at.MaxLen(4)]): ...
def f_items(a: Annotated[list[int], at.Len(1, 2)]): ...
def f_multiple(a: Annotated[int, at.MultipleOf(3)]): ...
def f_field(a: Annotated[int, pydantic.Field(ge=1, description="how many")]): ...
def f_field_pattern(a: Annotated[str, pydantic.Field(pattern="^a+$")]): ...
def f_inner_bounds(a: list[Annotated[int, at.Ge(0)]]): ...
def f_optional_bounds(a: Annotated[int, at.Ge(0)] | None = None): ...
def f_validator(a: Annotated[int, pydantic.AfterValidator(lambda n: n + 1)]): ...
def f_dataclass(a: Point): ...
def f_nested_dataclass(a: Line): ...
def f_bounded_dataclass(a: Bounded): ...
def f_dataclass_list(a: list[Point]): ...
def f_optional_dataclass(a: Point | None = None): ...
def f_two_dataclasses(a: Point | Bounded): ...
def f_typeddict(a: Movie): ...
def f_namedtuple(a: Pair): ...
def f_model(a: User): ...
def f_model_default(a: User = User(name="n")): ...  # noqa: B008 - a default that is a model
def f_nested_model(a: Order): ...
def f_model_list(a: list[User]): ...
def f_model_dict(a: dict[str, User]): ...
def f_tagged(a: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]): ...
def f_recursive(a: Node): ...
def f_two_models(a: User, b: Order): ...
def f_keyword_only(*, a: int, b: str = "b"): ...
def f_positional_only(a: int, b: str, /): ...
def f_star(a: int, *rest: int): ...
def f_kwargs(a: int, **more: int): ...
def f_everything(a: int, /, b: str, *rest: float, c: bool = True, **more: str): ...
def f_bytes_out(a: str) -> bytes: ...
def f_email_like(a: Annotated[str, "the address"]): ...


class Thing:
    def method(self, a: int) -> int:
        return a

    @classmethod
    def of(cls, a: int) -> int:
        return a

    @staticmethod
    def still(a: int) -> int:
        return a

    def __call__(self, a: int) -> int:
        return a


class AsyncThing:
    async def __call__(self, a: int) -> int:
        return a


async def f_async(a: int) -> int:
    return a


@functools.wraps(f_two)
def f_wrapped(*args: Any, **kwargs: Any) -> Any:
    return f_two(*args, **kwargs)


_INTS = [1, 0, -1, 7, "3", 3.0, 3.5, "x", None, True, [], {}]
_WORDS = ["x", "red", "", "aaa", 3, None, [], {}]
_LISTS = [[], [1], [1, 2], [1, "x"], ["1"], [[1.5]], [None], "x", {}, 1, [1, 2, 3], ["x", "y"], ["red"]]
_DICTS = [{}, {"x": 1}, {"x": 1, "y": 2}, {"x": "no"}, {"1": "one"}, {"x": [1]}, [], 3, "x"]
_POINTS = [{"a": {"x": 1}, "b": {"x": 2, "y": 3}}, {"n": 3}, {"n": -3}, {"name": "n"}, {"name": "n", "year": 3}]
_MODELS = [
    {"name": "n", "age": 1}, {"name": "n", "age": "old"}, {"age": 1}, {"user": {"name": "n"}, "items": ["i"]},
    {"user": {"name": "n"}, "items": []}, {"user": {"name": "n"}, "items": [""]}, {"user": {}, "items": ["i"]},
    {"kind": "cat", "lives": 9}, {"kind": "dog", "barks": True}, {"kind": "cow"}, {"value": 1},
    {"value": 1, "children": [{"value": 2}]}, {"value": 1, "children": [{}]}, {"u": {"name": "n"}},
]  # fmt: skip
_TIMES = [
    "2026-01-31", "2026-02-31", "2026-01-31T10:00:00Z", "2026-01-31T10:00:00", "12345678-1234-5678-1234-567812345678", "1.50",
]  # fmt: skip
VALUES: list[Any] = [
    *_INTS, *_WORDS, *_LISTS, *_DICTS, *_POINTS, *_MODELS, *_TIMES,
    [{"x": 1}], [{"name": "n"}], "y", "blue", "b", 2, 5, 6, 1.5, "true", False, "aa", "abcde", [1, "s"],
]  # fmt: skip

ONE_ARGUMENT: list[Callable[..., Any]] = [
    f_str, f_int, f_float, f_bool, f_none, f_any, f_untyped, f_default, f_default_none, f_optional_needed, f_union_bar, f_union,
    f_union_list, f_list, f_list_int, f_list_list, f_dict, f_dict_int, f_dict_list, f_int_keys, f_sequence, f_mapping, f_tuple,
    f_tuple_any, f_set, f_frozenset, f_literal, f_literal_int, f_literal_mixed, f_literal_default, f_enum, f_int_enum,
    f_mixed_enum, f_enum_list, f_date, f_datetime, f_uuid, f_decimal, f_path, f_gt, f_range, f_length, f_items, f_multiple,
    f_field, f_field_pattern, f_inner_bounds, f_optional_bounds, f_validator, f_dataclass, f_nested_dataclass,
    f_bounded_dataclass, f_dataclass_list, f_optional_dataclass, f_two_dataclasses, f_typeddict, f_namedtuple, f_model,
    f_model_default, f_nested_model, f_model_list, f_model_dict, f_tagged, f_recursive, f_bytes_out, f_email_like, f_async,
]  # fmt: skip


def with_context(a: int, ctx: ToolContext) -> str:
    return f"{ctx.tool} {a}"


def with_bare_context(a, ctx):
    return f"{ctx.tool} {a}"


def iterates(a: Iterable[int]) -> int:
    return sum(a)
