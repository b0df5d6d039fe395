"""Rejections as bytes: the same class with its fields, or a plain one; never any other class."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, make_dataclass
from typing import Any

import pytest

from shardbus import ConfigError, Rejection, RequestError, SchemaError
from shardbus.wire.batch import REJECTION_BYTES_MAX
from shardbus.wire.rejections import (
    NAME_MAX,
    check_rejection,
    decode_rejection,
    encode_rejection,
    plain_rejection,
)
from shardbus.wire.schema import encode_value

HERE = __name__


@dataclass
class Line:
    sku: str
    amount: int = 1


@dataclass
class OutOfStock(Rejection):
    left: int
    lines: list[Line] = field(default_factory=list)
    note: str = "none"


@dataclass(frozen=True, slots=True)
class FrozenSolid(Rejection):
    data: bytes


@dataclass
class Shadowing(Rejection):
    """Has fields with the names of every rejection's fields."""

    message: str
    type: str  # type: ignore[assignment]
    hint: str = "ask again"


@dataclass
class Careful(Rejection):
    amount: int
    twice: int = field(init=False)

    def __post_init__(self) -> None:
        if self.amount < 0:
            raise ValueError("negative")
        self.twice = 2 * self.amount


class Worded(Rejection):
    """Is no dataclass: only its text travels."""


class Counted(Rejection):
    """Is no dataclass and has a constructor of its own: it cannot be made again."""

    def __init__(self, n: int) -> None:
        super().__init__(f"{n} of them")


def travelled(error: Rejection) -> Rejection:
    """The error as another process that knows its class receives it."""
    return decode_rejection(*encode_rejection(error))


@pytest.mark.parametrize(
    "error",
    [
        OutOfStock(3),
        OutOfStock(3, [Line("a", 2), Line("b")], "soon"),
        FrozenSolid(b"\x00\xff"),
        Shadowing("m", "t"),
        Careful(4),
    ],
    ids=lambda error: repr(error),
)
def test_a_dataclass_arrives_as_itself_with_its_fields(error: Any) -> None:
    arrived = travelled(error)
    assert type(arrived) is type(error)
    assert arrived == error
    assert isinstance(arrived, RequestError)
    assert not arrived.definite
    with pytest.raises(type(error)):
        raise arrived


def test_the_text_is_made_of_the_fields_unless_the_class_has_one() -> None:
    assert str(OutOfStock(3)) == OutOfStock(3).message == "left=3, lines=[], note='none'"
    assert OutOfStock(3).type == "OutOfStock"
    assert str(Shadowing("sold out", "t")) == "t: sold out"
    assert str(Worded("sold out")) == "sold out"
    assert str(Worded()) == ""
    with pytest.raises(AttributeError, match="no attribute 'leftover'"):
        _ = OutOfStock(3).leftover  # type: ignore[attr-defined]


def test_a_class_without_fields_arrives_with_its_text() -> None:
    arrived = travelled(Worded("sold out"))
    assert (type(arrived), arrived.message) == (Worded, "sold out")
    counted = travelled(Counted(3))
    assert (type(counted), counted.type, counted.message) == (Rejection, "Counted", "3 of them")
    plain = travelled(Rejection("no", type="Custom"))
    assert (type(plain), plain.type, plain.message) == (Rejection, "Custom", "no")
    assert travelled(Rejection("no")).type == "Rejection"


def test_where_the_class_is_not_known_it_is_a_rejection_with_type_and_message() -> None:
    arrived = decode_rejection("shop.stock:Elsewhere.Gone", "left=3", encode_value({"left": 3}))
    assert type(arrived) is Rejection
    assert (arrived.type, arrived.message) == ("Gone", "left=3")
    assert str(arrived) == "Gone: left=3"
    assert str(decode_rejection("m:Gone", "", b"")) == "Gone"


def test_what_is_passed_on_loses_nothing() -> None:
    name, text, payload = encode_rejection(OutOfStock(3))
    for passed_on in (plain_rejection(name, text, payload), decode_rejection("m:New", "t", b"raw")):
        wire = encode_rejection(passed_on)
        assert wire == (
            (name, text, payload) if passed_on.type == "OutOfStock" else ("m:New", "t", b"raw")
        )


def test_a_module_with_another_name_is_no_obstacle_while_the_class_is_the_only_one() -> None:
    payload = encode_value({"data": b"x"})
    assert decode_rejection("__main__:FrozenSolid", "", payload) == FrozenSolid(b"x")

    twin: Any = make_dataclass("Twin", [("n", int)], bases=(Rejection,))
    other: Any = make_dataclass("Twin", [("n", int)], bases=(Rejection,))
    twin.__module__, other.__module__ = "one", "two"
    n = encode_value({"n": 1})
    assert type(decode_rejection("one:Twin", "", n)) is twin
    assert type(decode_rejection("two:Twin", "", n)) is other
    assert type(decode_rejection("three:Twin", "", n)) is Rejection


def test_a_class_that_is_defined_again_replaces_the_first() -> None:
    made: list[Any] = []
    for _ in range(2):
        made.append(make_dataclass("Again", [("n", int)], bases=(Rejection,)))
        made[-1].__module__ = "notebook"
    assert type(decode_rejection("notebook:Again", "", encode_value({"n": 1}))) is made[1]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        encode_value(None),
        encode_value([3]),
        encode_value({}),
        encode_value({"left": "three"}),
        encode_value({"left": 3, "lines": [{"sku": 4}]}),
    ],
)
def test_fields_that_do_not_fit_make_a_plain_rejection(payload: bytes) -> None:
    arrived = decode_rejection(f"{HERE}:OutOfStock", "left=3", payload)
    assert type(arrived) is Rejection
    assert (arrived.type, arrived.message) == ("OutOfStock", "left=3")


def test_a_class_that_refuses_its_fields_makes_a_plain_rejection() -> None:
    arrived = decode_rejection(f"{HERE}:Careful", "t", encode_value({"amount": -1}))
    assert type(arrived) is Rejection


def test_fields_of_another_version_are_ignored_or_get_their_defaults() -> None:
    payload = encode_value({"left": 3, "colour": "red"})
    assert decode_rejection(f"{HERE}:OutOfStock", "", payload) == OutOfStock(3)
    first, two = (decode_rejection(f"{HERE}:OutOfStock", "", payload) for _ in range(2))
    assert isinstance(first, OutOfStock)
    assert isinstance(two, OutOfStock)
    assert first.lines is not two.lines


@pytest.mark.parametrize(
    "name",
    [
        "shardbus.errors:EntityFailed",
        "shardbus.errors:Rejection",
        "builtins:SystemExit",
        "os:system",
        f"{HERE}:Line",
        "",
        ":",
        ".",
        "a:b:c.d.",
    ],
)
def test_a_name_never_calls_anything_but_a_subclass(name: str) -> None:
    assert type(decode_rejection(name, "t", encode_value({"left": 3, "sku": "a"}))) is Rejection


def test_a_rejection_that_cannot_be_sent_is_a_schema_error() -> None:
    with pytest.raises(SchemaError, match="rejection OutOfStock cannot be sent"):
        encode_rejection(OutOfStock(object()))  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="OutOfStock is too large"):
        encode_rejection(OutOfStock(3, note="x" * REJECTION_BYTES_MAX))
    long: Any = make_dataclass("Long", [], bases=(Rejection,))
    long.__qualname__ = "L" * NAME_MAX
    with pytest.raises(SchemaError, match="too large"):
        encode_rejection(long())

    @dataclass
    class Wordless(Rejection):
        def __str__(self) -> str:
            raise ValueError("no words")

    with pytest.raises(SchemaError, match="no words"):
        encode_rejection(Wordless())


def test_a_registered_rejection_is_checked_when_it_is_decorated() -> None:
    check_rejection(OutOfStock)
    with pytest.raises(ConfigError, match="Worded is not a dataclass"):
        check_rejection(Worded)

    @dataclass
    class Odd(Rejection):
        what: dict[str, list[complex]]

    with pytest.raises(ConfigError, match=r"rejection Odd\.what"):
        check_rejection(Odd)

    @dataclass
    class Unknown(Rejection):
        what: Missing  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigError, match="Unknown: an annotation is not known"):
        check_rejection(Unknown)
    arrived = decode_rejection(f"{HERE}:{Unknown.__qualname__}", "t", encode_value({"what": 1}))
    assert type(arrived) is Rejection


def test_a_rejection_that_would_arrive_as_another_is_a_schema_error() -> None:
    @dataclass
    class Changed(Rejection):
        n: int = 1
        late: int = field(init=False, default=3)

    @dataclass
    class Twice(Rejection):
        n: int

        def __post_init__(self) -> None:
            self.n *= 2

    @dataclass
    class LongLine(Line):
        note: str = "lost"

    @dataclass
    class Plain(Rejection):
        what: object = None

    assert travelled(Changed(4)) == Changed(4)
    late = Changed()
    late.late = 5
    wrong: list[tuple[Rejection, str]] = [
        (late, r"late: would come back as 3"),
        (Twice(1), r"n: would come back as 4"),
        (OutOfStock("3"), "left"),  # type: ignore[arg-type]
        (OutOfStock(3, [LongLine("a")]), r"lines\[0\]: is a LongLine"),
        (OutOfStock(3, {Line}), "lines: is a set"),  # type: ignore[arg-type]
        (Plain({1}), "what: is a set"),
        (Plain(uuid.UUID(int=1)), "what: is a UUID"),
    ]
    for error, why in wrong:
        with pytest.raises(
            SchemaError, match=f"rejection {type(error).__name__} cannot be sent.*{why}"
        ):
            encode_rejection(error)


def test_a_rejection_may_not_say_that_it_is_definite() -> None:
    @dataclass
    class Field(Rejection):
        definite: bool

    @dataclass
    class Attribute(Rejection):
        pass

    Attribute.definite = True
    for cls in (Field, Attribute):
        with pytest.raises(ConfigError, match="`definite` of its own"):
            check_rejection(cls)
