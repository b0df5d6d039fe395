"""Declared types: refusals at the declaration, and refusals at the sending."""

from __future__ import annotations

import datetime as dt
import sys
import uuid
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from decimal import Decimal
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypedDict, TypeVar

import attrs
import msgspec
import pytest
from pydantic import BaseModel, Field
from pydantic.dataclasses import dataclass as checked_dataclass

from shardbus.errors import ConfigError, SchemaError
from shardbus.wire.misfit import Misfit
from shardbus.wire.nesting import NESTING_MAX
from shardbus.wire.proofs import proof_of
from shardbus.wire.schema import (
    Method,
    encode_arguments,
    message_decoders,
    message_readers,
    method,
)
from shardbus.wire.shapes import shape_of
from shardbus.wire.values import pack_whole
from tests.unit.wire.declared_values import Colour, Item, Level, Line, LongLine, Word

ERRORS = (ValueError, KeyError, SystemExit, GeneratorExit, StopIteration)


def handler_of(declared_type: Any) -> Method:
    def give_back(self: object, value: object) -> object: ...

    give_back.__annotations__ = {"value": declared_type, "return": declared_type}
    return method("give_back", give_back)


def refused(declared_type: Any, value: object, why: str) -> None:
    """Check that a value is refused as an argument and as an answer."""
    m = handler_of(declared_type)
    for encode in (lambda: m.encode((value,), {}), lambda: m.encode_result(value)):
        with pytest.raises(SchemaError, match=why):
            encode()


def taken(declared_type: Any, value: object) -> None:
    """Check that a value arrives as an argument and as an answer."""
    m = handler_of(declared_type)
    payload = m.encode((value,), {})
    assert m.decoders[payload[0]](payload) == (value,)
    assert m.decode_result(m.encode_result(value)) == value


class Row:
    """Reads and writes a field elsewhere, as the columns of a database do."""

    def __get__(self, instance: object, owner: type) -> Any:
        return 5 if instance is None else vars(instance)["row"]

    def __set__(self, instance: object, value: object) -> None:
        vars(instance)["row"] = value


@dataclass
class Elsewhere:
    n: int = Row()  # type: ignore[assignment]


@dataclass
class Starting:
    n: int
    start: InitVar[int] = 3


@dataclass
class Mapped:
    __mapper__: ClassVar[object] = object()
    n: int = 1


@attrs.define
class Private:
    n: int
    _hidden: int = 3


@checked_dataclass
class Defaulted:
    n: int = Field(3, gt=0)


@pytest.mark.parametrize(
    ("declared_type", "why"),
    [
        (Elsewhere, "does not hold its field n, which is a Row"),
        (Starting, "InitVar"),
        (Mapped, "Mapped is a row of a database"),
        (Private, "has the private attribute _hidden"),
        (Defaulted, "a default of pydantic's in its field n"),
        (list[Private], r"value\[\.\.\.\] cannot be a message type"),
        (dict[Line, int], "value key cannot be a message type: it is not hashable"),
        (set[list[int]], "not hashable"),
        (Line | LongLine, "more than one dataclass"),
        (Line | dict[str, int], "more than one dict-like"),
        (str | dt.date, "more than one str-like"),
        (str | uuid.UUID, "more than one str-like"),
        (list[int] | tuple[int, ...], "more than one array-like"),
        (Item | int, "custom type"),
        (Callable, "does not travel"),
    ],
)
def test_what_cannot_come_back_is_refused_where_it_is_declared(
    declared_type: Any, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        handler_of(declared_type)


class Size(TypedDict):
    n: int


class Spot(NamedTuple):
    x: int
    lines: list[Line]


class Tagged(msgspec.Struct, tag=True):
    lines: list[Line] = []


class OtherTagged(msgspec.Struct, tag=True):
    n: int = 1


@pytest.mark.parametrize(
    ("declared_type", "value", "why"),
    [
        (Line, LongLine(), "is a LongLine, not a Line, so that its own fields would be lost"),
        (Line, {"name": "x"}, "is a dict, not a Line"),
        (list[Line], [Line(), LongLine()], r"\[1\]: is a LongLine"),
        (dict[str, Line], {"a": LongLine()}, r"\.a: is a LongLine"),
        (tuple[int, Line], (1, LongLine()), r"\[1\]: is a LongLine"),
        (Line | None, LongLine(), "is a LongLine, not a Line"),
        (Tagged | OtherTagged, Tagged([LongLine()]), r"\.lines\[0\]: is a LongLine"),
        (Spot, Spot(1, [LongLine()]), r"\.lines\[0\]: is a LongLine"),
        (Spot, (1, []), "is a tuple, not a Spot"),
        (Size, {"n": 1, "more": 2}, "has the key more, which Size does not have"),
        (list[int], {1, 2}, "is a set, not a list"),
        (set[int], [1, 1], "is a list, not a set"),
        (tuple[int, ...], [1], "is a list, not a tuple"),
        (dict[str, int], Line(), "is a Line, not a dict"),
        (dict[str, Any], {"a": {1}}, r"\.a: is a set, which does not arrive as such"),
        (dict[str, Any], {"a": [Word.YES]}, r"\.a\[0\]: is a Word"),
        (list[object], [Level.LOW], r"\[0\]: is a Level"),
        (Item, Line(), "is a Line, not a Item"),
    ],
)
def test_a_value_that_would_arrive_as_another_is_refused(
    declared_type: Any, value: object, why: str
) -> None:
    refused(declared_type, value, why)


@pytest.mark.parametrize(
    ("declared_type", "value"),
    [
        (Line | None, None),
        (Tagged | OtherTagged | None, OtherTagged(3)),
        (dict[str, int] | list[int] | None, [1]),
        (dict[str, Any] | list[Line], [Line("a")]),
        (Decimal | int, Decimal(1)),
        (dt.datetime | int, dt.datetime(2026, 1, 2, tzinfo=dt.UTC)),
        (Literal["a", 3], 3),
        (dict[Colour, set[Level]], {Colour.RED: {Level.LOW}}),
        (dict[str, int], dict.fromkeys("ab", 1)),
        (Item, Item(itemName="tea")),
    ],
)
def test_a_value_of_the_declared_type_arrives(declared_type: Any, value: object) -> None:
    taken(declared_type, value)


def test_a_field_without_a_value_is_not_left_out() -> None:
    @dataclass
    class Late:
        n: int
        made: int = field(init=False)
        tags: list[int] = field(default_factory=list)
        key: str = field(default_factory=lambda: "new")

    late = Late(1)
    refused(Late, late, "has no value in its field made")
    late.made = 4
    taken(Late, late)
    del late.key
    refused(Late, late, "has no value in its field key")
    late.key = "k"
    del late.tags
    refused(Late, late, "has no value in its field tags")

    class Unset(msgspec.Struct):
        n: int = 1

    unset = Unset()
    del unset.n
    refused(Unset, unset, "'n' is unset")


def test_a_class_that_changes_what_it_reads_is_refused_when_it_does() -> None:
    @dataclass
    class Growing:
        n: int

        def __post_init__(self) -> None:
            self.n = abs(self.n) + (self.n > 5)

    taken(Growing, Growing(4))
    refused(Growing, Growing(8), r"\.n: would come back as 10")
    refused(list[Growing], [Growing(4), Growing(8)], r"\[1\]\.n: would come back as 10")


# msgspec looks for attributes in a way whose errors Python reports aside, from 3.14 on.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("error", ERRORS)
def test_whatever_a_class_raises_is_a_schema_error(error: type[BaseException]) -> None:
    @dataclass
    class Refusing:
        n: int = 1

        def __post_init__(self) -> None:
            if self.n < 0:
                raise error("negative")

    broken = Refusing()
    taken(Refusing, broken)
    broken.n = -1
    refused(Refusing, broken, "cannot be read by Refusing: .*negative")
    m = handler_of(Refusing)
    payload = handler_of(dict[str, int]).encode(({"n": -1},), {})
    with pytest.raises((SchemaError, msgspec.ValidationError), match="negative"):
        m.decoders[payload[0]](payload)

    @dataclass
    class Hiding:
        n: int = 1

        def __getattribute__(self, name: str) -> Any:
            if name == "n":
                raise error("hidden")
            return object.__getattribute__(self, name)

    refused(Hiding, Hiding(), "cannot be read by Hiding: .*(hidden|StopIteration)")

    class Zone(dt.tzinfo):
        def utcoffset(self, when: object) -> Any:
            raise error("nowhere")

    refused(dt.datetime, dt.datetime(2026, 1, 2, tzinfo=Zone()), "nowhere")
    refused(object, [dt.datetime(2026, 1, 2, tzinfo=Zone())], "nowhere")

    class Never:
        def __eq__(self, other: object) -> bool:
            raise error("never equal")

    refused(object, [Never()], "is a Never")


def test_a_class_is_not_asked_whether_it_is_equal() -> None:
    @dataclass(eq=False)
    class Odd:
        n: int = 1

        def __post_init__(self) -> None: ...

        def __eq__(self, other: object) -> bool:
            raise ValueError("never")

    m = handler_of(Odd)
    payload = m.encode((Odd(3),), {})
    (value_read,) = m.decoders[payload[0]](payload)
    assert value_read.n == 3


@dataclass
class Tree:
    kids: list[Tree] = field(default_factory=list)


class ModelTree(BaseModel):
    kids: list[ModelTree] = []


def grown(cls: Any, depth: int) -> Any:
    tree = cls()
    for _ in range(depth):
        tree = cls(kids=[tree])
    return tree


@pytest.mark.parametrize("cls", [Tree, ModelTree])
def test_nesting_has_one_bound(cls: Any) -> None:
    """A tree has two levels for each generation."""
    deepest = NESTING_MAX // 2 - 1
    taken(cls, grown(cls, deepest))
    refused(cls, grown(cls, deepest + 1), f"nested more than {NESTING_MAX} levels deep")


def test_a_sender_that_knows_a_name_alone_sends_whole_objects() -> None:
    encode_arguments(({"a": [Line()]}, {uuid.UUID(int=1)}, Decimal(1), Item()))
    with pytest.raises(SchemaError, match="Mapped is a row of a database"):
        encode_arguments(([{"a": Mapped()}],))
    with pytest.raises(SchemaError, match="LongLine, not a Line"):
        encode_arguments((Tagged([LongLine()]),))
    deep: list[Any] = []
    deep.append(deep)
    with pytest.raises(SchemaError, match="nested too deep"):
        encode_arguments(deep)  # type: ignore[arg-type]


def test_what_nests_and_what_runs_code_is_known_when_it_is_declared() -> None:
    assert not shape_of("it", dict[str, list[Line]]).nests
    assert not shape_of("it", Line | None).runs_code
    for declared_type in (Any, list, dict[str, Any], Tree, list[ModelTree]):
        assert shape_of("it", declared_type).nests
    assert shape_of("it", dict[str, Item]).runs_code
    assert shape_of("it", int).check is None
    assert shape_of("it", int | str | None).check is None


def test_a_misfit_names_a_place_of_bounded_length() -> None:
    misfit = Misfit("is odd")
    for _ in range(999):
        misfit = misfit.within("[0]")
    assert len(str(misfit)) < 300


T = TypeVar("T")


@dataclass
class Page(Generic[T]):
    rows: list[T]


@dataclass
class PageOfCode(Generic[T]):
    rows: list[T]

    def __post_init__(self) -> None:
        self.rows = list(self.rows)


@attrs.define
class AttrsPage(Generic[T]):
    rows: list[T]


class StructPage(msgspec.Struct, Generic[T]):
    rows: list[T]


class TuplePage(NamedTuple, Generic[T]):
    rows: list[T]


GENERIC: list[Any] = [Page, PageOfCode, AttrsPage, StructPage, TuplePage]


@pytest.mark.parametrize("cls", GENERIC)
def test_a_generic_class_with_its_argument_travels_as_the_class(cls: Any) -> None:
    taken(cls[int], cls([1]))
    taken(cls[Line], cls([Line("x")]))
    taken(list[cls[int]] | None, [cls([1])])
    refused(cls[Line], cls([LongLine()]), r"\.rows\[0\]: is a LongLine, not a Line")
    refused(cls[int], Line(), f"is a Line, not a {cls.__name__}")


@pytest.mark.parametrize("cls", GENERIC)
def test_the_argument_of_a_generic_class_decides_the_arriving_type(cls: Any) -> None:
    m = handler_of(cls[int])
    payload = handler_of(cls[str] if cls is PageOfCode else cls[int]).encode((cls(["a"]),), {})
    with pytest.raises(msgspec.ValidationError, match="Expected `int`, got `str`"):
        m.decoders[payload[0]](payload)


def test_a_generic_class_is_a_member_of_a_union_by_its_class() -> None:
    taken(TaggedPage[int] | Tagged, TaggedPage([1]))
    refused(TaggedPage[int] | Tagged, Line(), "is a Line, not a TaggedPage or Tagged")
    with pytest.raises(ConfigError, match="more than one dataclass"):
        handler_of(Page[int] | Page[str])


class TaggedPage(msgspec.Struct, Generic[T], tag=True):
    rows: list[T]


@pytest.mark.parametrize("cls", [Page, AttrsPage, StructPage])
def test_the_state_of_a_generic_class_needs_no_reading_back(cls: Any) -> None:
    proof = proof_of(cls[int])
    assert proof is not None
    assert proof(cls([1]))
    assert not proof(cls(["a"]))


def receiver(declared: Any) -> dict[str, Any]:
    def receive(self: object, message: Any) -> None: ...

    receive.__annotations__["message"] = declared
    assert message_readers(receive, ()).keys() <= message_decoders(receive, ()).keys()
    return message_decoders(receive, (Page,))


def test_receive_takes_a_generic_class_under_the_name_of_the_class() -> None:
    decoders = receiver(Page[int] | StructPage[str])
    assert sorted(decoders) == [":Page", ":StructPage"]
    assert decoders[":Page"](pack_whole(Page([1]))) == Page([1])
    with pytest.raises(msgspec.ValidationError, match="Expected `int`, got `str`"):
        decoders[":Page"](pack_whole(Page(["a"])))


def test_receive_with_two_arguments_of_one_generic_class_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"a .*Page\[int\] or a .*Page\[str\], which look the same"
    ):
        receiver(Page[int] | Page[str])


def _without_end(*args: Any, **options: Any) -> None:
    _without_end()


def test_an_alias_that_contains_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {"Tree": int}
    if sys.version_info >= (3, 12):
        exec("type Tree = dict[str, Tree] | int", names)
    else:  # such an alias cannot be written, so the decoder does as it would
        monkeypatch.setattr(msgspec.msgpack, "Decoder", _without_end)
    with pytest.raises(ConfigError, match="handler put: tree cannot be a message type: an alias"):
        shape_of("handler put: tree", names["Tree"])
