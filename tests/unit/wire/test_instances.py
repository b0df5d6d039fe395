"""Many objects at once are the same objects as one by one, and unreadable bytes are refused."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from shardbus.wire.instances import reader_of_many
from shardbus.wire.schema import decoder, encode_value, message_readers, method


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass
class Reading:
    sensor: str
    at: float
    tags: list[str] = field(default_factory=lambda: ["new"])
    where: Point | None = None
    level: Annotated[int, msgspec.Meta(ge=0)] = 1


@dataclass
class Single:
    value: int


@dataclass(slots=True)
class Slotted:
    a: int
    b: str = "b"


@dataclass(frozen=True)
class Frozen:
    a: int
    b: str = "b"


@dataclass(kw_only=True)
class Named:
    a: int = 1
    b: str


@dataclass
class Counted:
    a: int
    b: int
    sum: int = field(init=False, default=0)


@dataclass
class Checked:
    a: int
    b: int

    def __post_init__(self) -> None:
        if self.a > self.b:
            raise ValueError("a is above b")


@dataclass
class Own:
    a: int
    b: int

    def __init__(self, a: int, b: int) -> None:
        raise AssertionError("made of values, not by this")


@dataclass
class Watched:
    a: int
    b: int

    def __setattr__(self, name: str, value: Any) -> None:
        raise AssertionError("made of values, not by this")


@dataclass
class Longer(Point):
    z: int = 5


class Renamed(Longer):
    """No dataclass by its own decorator."""


class Late(Point):
    """Its `__init__` does not know its text."""

    def __post_init__(self) -> None:
        self.y += 1


@dataclass
class Tree:
    value: int
    below: list[Tree] = field(default_factory=list)


class Order(BaseModel):
    item: str


CASES: list[tuple[type, list[dict[str, Any]]]] = [
    (Point, [{"x": 1}, {"y": 2, "x": 1}, {"x": 1, "more": [1, {"a": 2}]}]),
    (
        Reading,
        [{"sensor": "s", "at": 1}, {"sensor": "s", "at": 1.5, "where": {"x": 1}, "tags": []}],
    ),
    (Single, [{"value": 1}]),
    (Slotted, [{"a": 1}, {"b": "x", "a": 2}]),
    (Frozen, [{"a": 1}, {"b": "x", "a": 2}]),
    (Named, [{"b": "x"}, {"a": 2, "b": "x"}]),
    (Counted, [{"a": 1, "b": 2}, {"a": 1, "b": 2, "sum": 3}]),
    (Checked, [{"a": 1, "b": 2}]),
    (Own, [{"a": 1, "b": 2}]),
    (Watched, [{"a": 1, "b": 2}]),
    (Longer, [{"x": 1}, {"z": 1, "x": 2, "y": 3}]),
    (Renamed, [{"x": 1}]),
    (Late, [{"x": 1}]),
    (Tree, [{"value": 1, "below": [{"value": 2}]}]),
]
BROKEN: list[tuple[type, dict[str, Any]]] = [
    (Point, {}),
    (Point, {"x": "one"}),
    (Point, {"x": 1, "y": None}),
    (Reading, {"sensor": "s", "at": 1, "level": -1}),
    (Reading, {"sensor": "s", "at": 1, "where": {"y": 1}}),
    (Single, {"value": b""}),
    (Slotted, {"a": 1.5}),
    (Checked, {"a": 3, "b": 2}),
]


def contents(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in fields(value)}


@pytest.mark.parametrize(("cls", "bodies"), CASES)
@pytest.mark.parametrize("argument", [True, False])
def test_many_are_the_same_as_one_by_one(
    cls: type, bodies: list[dict[str, Any]], argument: bool
) -> None:
    payloads = [encode_value((body,) if argument else body) for body in bodies] * 2
    read_one = decoder(tuple[cls] if argument else cls)  # type: ignore[valid-type]
    expected = [read_one(p)[0] if argument else read_one(p) for p in payloads]
    read_all = reader_of_many(cls, decoder, argument=argument)
    assert read_all is not None
    values = read_all(payloads)
    assert [type(value) for value in values] == [cls] * len(payloads)
    assert [contents(value) for value in values] == [contents(value) for value in expected]
    assert len({id(value) for value in values}) == len(payloads)
    assert read_all([]) == []


@pytest.mark.parametrize(("cls", "body"), BROKEN)
def test_one_that_cannot_be_read_is_refused_in_the_same_words(
    cls: type, body: dict[str, Any]
) -> None:
    read_all = reader_of_many(cls, decoder, argument=True)
    assert read_all is not None
    payload = encode_value((body,))
    with pytest.raises(msgspec.ValidationError) as alone:
        decoder(tuple[cls])(payload)  # type: ignore[valid-type]
    with pytest.raises(msgspec.ValidationError) as among:
        read_all([payload])
    assert str(among.value) == str(alone.value)


@pytest.mark.parametrize("payload", [b"", b"\x91", b"\x90", b"\xc1", msgpack.packb([{}, {}])])
def test_noise_is_refused(payload: bytes) -> None:
    read_all = reader_of_many(Point, decoder, argument=True)
    assert read_all is not None
    good = encode_value((Point(1),))
    with pytest.raises((msgspec.MsgspecError, ValueError)):
        read_all([good, payload, good])


def test_defaults_are_made_for_each() -> None:
    read_all = reader_of_many(Reading, decoder, argument=False)
    assert read_all is not None
    first, second = read_all([msgpack.packb({"sensor": "s", "at": 1.0})] * 2)
    first.tags.append("old")
    assert second.tags == ["new"]


@given(
    st.lists(
        st.builds(
            Reading,
            st.text(max_size=5),
            st.floats(allow_nan=False),
            st.lists(st.text(max_size=3), max_size=3),
            st.none() | st.builds(Point, st.integers(-9, 9), st.integers(-9, 9)),
            st.integers(0, 2**63),
        ),
        max_size=5,
    )
)
def test_what_is_sent_arrives(readings: list[Reading]) -> None:
    read_all = reader_of_many(Reading, decoder, argument=True)
    assert read_all is not None
    values = read_all([encode_value((reading,)) for reading in readings])
    assert [asdict(reading) for reading in values] == [asdict(reading) for reading in readings]


def test_only_dataclasses_are_read_so() -> None:
    for other in (int, bytes, Any, list[Point], Point | None, Order, dict[str, int]):
        assert reader_of_many(other, decoder, argument=True) is None


def test_which_methods_have_a_reader() -> None:
    def put(self: object, point: Point) -> None: ...
    def optional(self: object, point: Point = Point(1)) -> None: ...  # noqa: B008
    def two(self: object, point: Point, by: int) -> None: ...
    def plain(self: object, x: int) -> None: ...

    def receive(self: object, message: Point | Order | str) -> None: ...

    assert [method("m", f).read_all is not None for f in (put, optional, two, plain)] == [
        True,
        False,
        False,
        False,
    ]
    assert set(message_readers(receive, [Single, Order])) == {":Point", ":Single"}
