"""Types that a handler may declare, of every kind that the documentation names, each with values of
it: the material of the laws in this folder."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from decimal import Decimal
from itertools import count
from typing import Annotated, Any, Literal, NamedTuple, Optional, TypedDict

import attrs
import msgspec
from hypothesis import strategies as st
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, RootModel, create_model
from pydantic.alias_generators import to_camel
from pydantic.errors import PydanticUserError

Declared = tuple[Any, st.SearchStrategy[Any]]
"""A type and its values."""


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(enum.StrEnum):
    YES = "yes"
    NO = "no"


class Rights(enum.IntFlag):
    READ = 1
    WRITE = 2


class Pair(NamedTuple):
    left: int
    right: str = "x"


class Options(TypedDict, total=False):
    size: int
    colour: Colour


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
zones = st.sampled_from([dt.UTC, dt.timezone(dt.timedelta(hours=5, minutes=30))])
moments = st.datetimes(timezones=zones)
naive = st.datetimes()

SCALARS: list[Declared] = [
    (type(None), st.none()),
    (bool, st.booleans()),
    (int, st.integers(-(2**63), 2**64 - 1)),
    (float, st.floats(allow_nan=False)),
    (str, texts),
    (bytes, st.binary(max_size=6)),
    (dt.datetime, moments | naive),
    (dt.date, st.dates()),
    (dt.time, st.times()),
    (dt.timedelta, st.timedeltas(dt.timedelta(-9999), dt.timedelta(9999))),
    (uuid.UUID, st.uuids()),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False, places=2)),
    (Colour, st.sampled_from(Colour)),
    (Level, st.sampled_from(Level)),
    (Word, st.sampled_from(Word)),
    (Rights, st.integers(0, 3).map(Rights)),
    (Literal["a", 3], st.sampled_from(["a", 3])),
    (Annotated[int, msgspec.Meta(ge=0)], st.integers(0, 9)),
    (Pair, st.builds(Pair, st.integers(0, 9), texts)),
    (
        Options,
        st.fixed_dictionaries(
            {}, optional={"size": st.integers(0, 9), "colour": st.sampled_from(Colour)}
        ),
    ),
]
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | texts | st.binary(max_size=4) | moments,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | st.integers(0, 3), inner),
    max_leaves=6,
)
HASHABLE = [pair for pair in SCALARS if pair[0] not in (Options, float)]
_numbers = count()


def _name() -> str:
    return f"Made{next(_numbers)}"


def _listed(draw: st.DrawFn, inner: Declared) -> Declared:
    return list[inner[0]], st.lists(inner[1], max_size=3)  # type: ignore[name-defined]


def _rowed(draw: st.DrawFn, inner: Declared) -> Declared:
    return tuple[inner[0], ...], st.lists(inner[1], max_size=3).map(tuple)  # type: ignore[name-defined]


def _paired(draw: st.DrawFn, inner: Declared) -> Declared:
    return tuple[inner[0], int], st.tuples(inner[1], st.integers(0, 9))  # type: ignore[name-defined]


def _keyed(draw: st.DrawFn, inner: Declared) -> Declared:
    return dict[str, inner[0]], st.dictionaries(texts, inner[1], max_size=3)  # type: ignore[name-defined]


def _maybe(draw: st.DrawFn, inner: Declared) -> Declared:
    return Optional[inner[0]], st.none() | inner[1]  # noqa: UP045 (made at run time)


def _dataclass(draw: st.DrawFn, inner: Declared) -> Declared:
    options: list[dict[str, bool]] = [
        {},
        {"slots": True},
        {"frozen": True},
        {"kw_only": True},
        {"eq": True, "order": True},
    ]
    made = make_dataclass(
        _name(),
        [
            ("x", inner[0]),
            ("_private", int, 0),
            ("made", list[int], field(default_factory=list, init=False)),
        ],
        **draw(st.sampled_from(options)),
    )
    return made, inner[1].map(lambda x: made(x=x, _private=7))


def _inherited(draw: st.DrawFn, inner: Declared) -> Declared:
    base = make_dataclass(_name(), [("first", str, "a")])
    made = make_dataclass(_name(), [("x", inner[0], None)], bases=(base,))
    return made, inner[1].map(lambda x: made("b", x))


def _struct(draw: st.DrawFn, inner: Declared) -> Declared:
    options: list[dict[str, Any]] = [
        {},
        {"rename": "camel"},
        {"tag": True},
        {"array_like": True, "forbid_unknown_fields": True},
        {"omit_defaults": True, "kw_only": True},
        {"frozen": True},
    ]
    made = msgspec.defstruct(
        _name(), [("the_x", inner[0]), ("_own", int, 3)], **draw(st.sampled_from(options))
    )
    return made, inner[1].map(lambda x: made(the_x=x, _own=5))


def _attrs(draw: st.DrawFn, inner: Declared) -> Declared:
    made = attrs.make_class(
        _name(),
        {
            "x": attrs.field(type=inner[0], alias="ex"),
            "n": attrs.field(type=int, default=3, converter=int),
            "late": attrs.field(type=int, default=4, init=False),
        },
        slots=draw(st.booleans()),
    )
    return made, inner[1].map(lambda x: made(ex=x))


def _model(draw: st.DrawFn, inner: Declared) -> Declared:
    ways: list[tuple[dict[str, Any], Any]] = [
        ({}, ...),
        ({"alias_generator": to_camel}, ...),
        ({"alias_generator": to_camel, "serialize_by_alias": True, "extra": "forbid"}, ...),
        ({}, Field(validation_alias=AliasChoices("in", "inner"), serialization_alias="out")),
        ({"strict": True}, ...),
        ({"extra": "forbid", "frozen": True}, Field(alias="the-x", exclude=True)),
        ({"extra": "allow", "populate_by_name": True}, Field(alias="x")),
    ]
    config, x = draw(st.sampled_from(ways))
    fields: dict[str, Any] = {"the_x": (inner[0], x), "tags": (set[str], set())}
    try:
        made = create_model(_name(), __config__=ConfigDict(**config), **fields)
    except PydanticUserError:
        return inner  # models cannot hold Structs, attrs classes and some TypedDicts
    return made, inner[1].map(
        lambda x: made.model_validate({"the_x": x, "tags": {"a"}}, by_name=True)
    )


def _root(draw: st.DrawFn, inner: Declared) -> Declared:
    try:
        made: Any = RootModel[list[inner[0]]]  # type: ignore[name-defined]
    except PydanticUserError:
        return inner
    return made, st.lists(inner[1], max_size=2).map(made)


AROUND: list[Callable[[st.DrawFn, Declared], Declared]] = [
    *(
        _listed,
        _rowed,
        _paired,
        _keyed,
        _maybe,
        _dataclass,
        _inherited,
        _struct,
        _attrs,
        _model,
        _root,
    )
]


@st.composite
def declared(draw: st.DrawFn) -> Declared:
    """A type of any kind, up to three around each other."""
    pair = draw(st.sampled_from(SCALARS))
    if draw(st.booleans()) and pair in HASHABLE:
        kind: Any = draw(st.sampled_from((set, frozenset)))
        pair = (kind[pair[0]], draw(st.just(st.lists(pair[1], max_size=3).map(kind))))
    for _ in range(draw(st.integers(0, 3))):
        pair = draw(st.sampled_from(AROUND))(draw, pair)
    return pair


@st.composite
def typed_values(draw: st.DrawFn) -> tuple[Any, Any]:
    """A type and a value of it."""
    declared_type, values = draw(declared())
    return declared_type, draw(values)


@dataclass
class Line:
    name: str = ""
    pieces: int = 1


@dataclass
class LongLine(Line):
    note: str = "a note"


class Item(BaseModel):
    item_name: str = Field("", alias="itemName")
