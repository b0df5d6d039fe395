"""The lists of the page "Define entities": the types that travel, their types on arrival, and the
types that do not. They name every kind of type that the code knows."""

from __future__ import annotations

import collections
import collections.abc as abc
import datetime as dt
import enum
import ipaddress
import pathlib
import re
import typing
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import attrs
import msgspec
import msgspec.inspect as m
import pydantic
import pytest

from shardbus.errors import ConfigError
from shardbus.wire.shapes import shape_of
from shardbus.wire.values import from_wire, pack_whole

PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "how-to" / "define-entities.md"
KINDS_WITHOUT_A_ROW = {"Type", "Metadata", "CollectionType", "FrozenDictType"}
"""Bases, the additions of `Annotated`, and a dict that no supported Python has."""


@dataclass
class Point:
    x: int = 1


class Record(msgspec.Struct):
    x: int = 1


@attrs.define
class Sample:
    x: int = 1


class Pair(typing.NamedTuple):
    x: int = 1


class Options(typing.TypedDict, total=False):
    x: int


class Model(pydantic.BaseModel):
    x: int = 1


class Names(pydantic.RootModel[list[str]]):
    pass


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    YES = "yes"


class Right(enum.Flag):
    READ = 1


class Mode(enum.IntFlag):
    READ = 1


class Weight(enum.Enum):
    LIGHT = 1.5


Number = typing.NewType("Number", int)
T = typing.TypeVar("T")
SOON = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
KEY = uuid.UUID(int=7)
EXT = msgspec.msgpack.Ext(5, b"x")

TRAVEL: dict[str, tuple[Any, Any, Any]] = {
    "None": (None, None, None),
    "bool": (bool, True, True),
    "int": (int, 2**64 - 1, 2**64 - 1),
    "float": (float, 1.5, 1.5),
    "str": (str, "a", "a"),
    "bytes": (bytes, b"a", b"a"),
    "bytearray": (bytearray, bytearray(b"a"), bytearray(b"a")),
    "memoryview": (memoryview, memoryview(b"a"), memoryview(b"a")),
    "list": (list[int], [1], [1]),
    "tuple": (tuple[tuple[int, str], ...], ((1, "a"),), ((1, "a"),)),
    "set": (set[int], {1}, {1}),
    "frozenset": (frozenset[int], frozenset({1}), frozenset({1})),
    "dict": (dict[int, str], {1: "a"}, {1: "a"}),
    "Sequence": (abc.Sequence[int], (1,), [1]),
    "MutableSequence": (abc.MutableSequence[int], [1], [1]),
    "Collection": (abc.Collection[int], (1,), [1]),
    "Set": (abc.Set[int], frozenset({1}), {1}),
    "MutableSet": (abc.MutableSet[int], {1}, {1}),
    "Mapping": (abc.Mapping[str, int], {"a": 1}, {"a": 1}),
    "MutableMapping": (abc.MutableMapping[str, int], {"a": 1}, {"a": 1}),
    "datetime": (dt.datetime, SOON.astimezone(dt.timezone(dt.timedelta(hours=2))), SOON),
    "date": (dt.date, SOON.date(), SOON.date()),
    "time": (dt.time, dt.time(3), dt.time(3)),
    "timedelta": (dt.timedelta, dt.timedelta(1), dt.timedelta(1)),
    "UUID": (uuid.UUID, KEY, KEY),
    "Decimal": (Decimal, Decimal("1.50"), Decimal("1.50")),
    "Enum": (Colour, Colour.RED, Colour.RED),
    "IntEnum": (Level, Level.LOW, Level.LOW),
    "StrEnum": (Word, Word.YES, Word.YES),
    "Flag": (Right, Right.READ, Right.READ),
    "IntFlag": (Mode, Mode.READ, Mode.READ),
    "Literal": (typing.Literal["a", 1, None], 1, 1),
    "dataclass": (Point, Point(2), Point(2)),
    "msgspec.Struct": (Record, Record(2), Record(2)),
    "attrs.define": (Sample, Sample(2), Sample(2)),
    "NamedTuple": (Pair, Pair(2), Pair(2)),
    "TypedDict": (Options, {"x": 2}, {"x": 2}),
    "pydantic.BaseModel": (Model, Model(x=2), Model(x=2)),
    "RootModel": (Names, Names(["a"]), Names(["a"])),
    "Union": (int | str | Point, Point(2), Point(2)),
    "Optional": (Point | None, None, None),
    "Annotated": (typing.Annotated[int, msgspec.Meta(ge=1)], 1, 1),
    "NewType": (Number, 1, 1),
    "TypeVar": (T, 1, 1),
    "msgspec.Raw": (msgspec.Raw, msgspec.Raw(b"\x01"), msgspec.Raw(b"\x01")),
    "msgspec.msgpack.Ext": (msgspec.msgpack.Ext, EXT, EXT),
    "Any": (Any, {"a": [1]}, {"a": [1]}),
    "object": (object, {"a": [1]}, {"a": [1]}),
}
"""By the name on the page: an annotation, a value, and the arriving value."""

STAY: dict[str, Any] = {
    "complex": complex,
    "Fraction": Fraction,
    "Path": pathlib.Path,
    "IPv4Address": ipaddress.IPv4Address,
    "range": range,
    "deque": collections.deque,
    "OrderedDict": collections.OrderedDict,
    "defaultdict": collections.defaultdict,
    "Counter": collections.Counter,
    "Iterable": abc.Iterable[int],
    "Iterator": abc.Iterator[int],
    "Callable": abc.Callable[[], int],
    "type": type,
    "Pattern": re.Pattern,
}


def section() -> str:
    text = PAGE.read_text(encoding="utf-8").partition("## Declare the values of a message\n")[2]
    return text.partition("```python")[0]


def test_the_page_names_what_travels() -> None:
    rows = re.findall(r"^\| (.+?) \| .+ \|$", section(), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert named == list(TRAVEL)


def test_the_page_names_what_does_not() -> None:
    listed = section().partition("These do not: ")[2].partition("exceptions")[0]
    assert re.findall(r"`([^`]+)`", listed) == list(STAY)


@pytest.mark.parametrize("name", TRAVEL)
def test_it_arrives_as_the_page_says(name: str) -> None:
    declared, value, arrives = TRAVEL[name]
    shape = shape_of("it", declared)
    if shape.check is not None:
        shape.check(value)
    read = msgspec.msgpack.Decoder(declared, dec_hook=from_wire).decode(pack_whole(value))
    assert read == arrives
    assert type(read) is type(arrives)


@pytest.mark.parametrize("declared", [*STAY.values(), Weight, ValueError, int | Weight])
def test_it_is_refused_where_it_is_declared(declared: Any) -> None:
    with pytest.raises(ConfigError, match="cannot be a message type"):
        shape_of("it", declared)


def test_every_kind_of_type_is_named() -> None:
    seen = {kind for declared, _, _ in TRAVEL.values() for kind in kinds(m.type_info(declared))}
    names = {kind.__name__ for kind in subclasses(m.Type)}
    assert names - seen - KINDS_WITHOUT_A_ROW == set()


def kinds(info: Any) -> Iterator[str]:
    """The kinds of a type and of the types within it."""
    yield type(info).__name__
    for field in getattr(type(info), "__struct_fields__", ()):
        inner = getattr(info, field)
        for part in inner if isinstance(inner, tuple) else (inner,):
            if isinstance(part, m.Type):
                yield from kinds(part)


def subclasses(kind: type) -> Iterator[type]:
    for inner in kind.__subclasses__():
        yield inner
        yield from subclasses(inner)
