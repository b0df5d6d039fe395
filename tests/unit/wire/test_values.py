"""Pydantic models as bytes: the arriving value is the sender's value in memory, or nothing is
sent."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from enum import IntEnum
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
import pytest
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    RootModel,
    SecretStr,
    computed_field,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.alias_generators import to_camel

from shardbus.errors import SchemaError
from shardbus.wire.misfit import Misfit
from shardbus.wire.schema import decoder, encode_value
from shardbus.wire.values import pack_sent, pack_whole
from tests.unit.wire.declared_values import Word

T = TypeVar("T")


class Address(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)
    street_name: str = ""
    zip_code: str | None = None


class Spoken(Address):
    """Dumps itself by its aliases, as earlier builds have stored it."""

    model_config = ConfigDict(serialize_by_alias=True, extra="forbid")


class Twins(BaseModel):
    """Two fields have one alias."""

    model_config = ConfigDict(serialize_by_alias=True)
    a: int = Field(1, alias="x")
    b: int = Field(2, alias="x")


class Taken(BaseModel):
    """The alias of a field is the name of another."""

    model_config = ConfigDict(serialize_by_alias=True)
    a: int = Field(1, alias="b")
    b: int = 2


class Paths(BaseModel):
    a: int = Field(validation_alias=AliasChoices("x", AliasPath("y", 0)), serialization_alias="z")
    home: Address = Address()


class Swapped(BaseModel):
    """The alias of each field is the name of the other."""

    a: int = Field(1, alias="b")
    b: int = Field(2, alias="a")


class Forbids(BaseModel):
    model_config = ConfigDict(extra="forbid")
    n: int = 1

    @computed_field
    def twice(self) -> int:
        return 2 * self.n


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    n: int = 1
    at: dt.datetime | None = None
    price: Decimal = Decimal(0)
    tags: set[str] = set()
    data: bytes = b""
    homes: list[Address] = []


class Serialized(BaseModel):
    at: dt.datetime = dt.datetime(2026, 1, 2)
    hidden: int = Field(4, exclude=True)

    @field_serializer("at")
    def _at(self, at: dt.datetime) -> str:
        return "another day"

    @model_serializer
    def _all(self) -> str:
        return "something else"


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    age: int = 1


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    age: int = 1


class Owner(BaseModel):
    pet: Annotated[Dog | Cat, Field(discriminator="kind")]
    others: list[Dog | Cat] = []


class Box(BaseModel, Generic[T]):
    value: T


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    n: int = 1


class Remembering(BaseModel):
    n: int = 1
    _seen: list[int] = PrivateAttr(default_factory=list)
    _twice: int = PrivateAttr(0)

    def model_post_init(self, context: Any, /) -> None:
        self._twice = 2 * self.n


class Growing(BaseModel):
    n: int = 1

    @field_validator("n")
    @classmethod
    def _n(cls, n: int) -> int:
        return n + 1 if n > 5 else n


class Raising(BaseModel):
    n: int = 1

    @model_validator(mode="after")
    def _n(self) -> Raising:
        if self.n < 0:
            raise SystemExit("negative")
        return self

    @computed_field(repr=False)
    def never(self) -> int:
        raise KeyboardInterrupt


class Anything(BaseModel):
    value: Any = None
    text: str = ""
    secret: SecretStr | None = None
    either: Decimal | str = ""


def arrived(model: BaseModel, pack: Any = pack_sent) -> Any:
    return decoder(type(model))(pack(model))


MODELS: list[BaseModel] = [
    Address(streetName="Main St", zipCode="12345"),
    Spoken(streetName="Main St"),
    Paths(x=1, home=Address(streetName="Elm St")),
    Swapped(b=7, a=7),
    Forbids(n=7),
    Strict(
        n=7,
        at=dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
        price=Decimal("1.10"),
        tags={"a", "b"},
        data=b"\xff",
        homes=[Address(streetName="x")],
    ),
    Serialized(hidden=9),
    Owner(pet=Cat(), others=[Cat(), Dog(age=3)]),
    Box[int](value=3),
    Box[list[Dog]](value=[Dog()]),
    Open(n=2, more=[1, {"a": 2}]),
    Remembering(n=4),
    Growing(n=5),
    Raising(n=5),
    RootModel[dict[str, Dog]]({"a": Dog()}),
    Anything(value=[1, "a", {"b": None}]),
    Anything(text=Word.YES),
]


@pytest.mark.parametrize("pack", [pack_sent, pack_whole])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_a_model_arrives_as_it_was(model: BaseModel, pack: Any) -> None:
    model_read = arrived(model, pack)
    assert model_read == model
    assert type(model_read) is type(model)
    assert repr(model_read) == repr(model) or isinstance(model, Strict)  # a set has no order


def refused() -> Iterator[tuple[BaseModel, str]]:
    """Models that would arrive as others, and why."""
    yield Growing(n=8), "n: would come back as 10"
    yield Swapped(b=7, a=8), "a: would come back as 8"
    seen = Remembering()
    seen._seen.append(1)
    yield seen, "_seen: has 1 element, 0 would come back"
    unchecked = Address()
    unchecked.zip_code = 5  # type: ignore[assignment]
    yield unchecked, "a Address cannot travel"
    assigned = Forbids()
    assigned.n = "5"  # type: ignore[assignment]
    yield assigned, "n: is a str and would come back as a int"
    raising = Raising()
    raising.n = -1
    yield raising, "SystemExit: negative"
    yield Owner.model_construct(others=[]), "has no value in its field pet"
    yield Box(value=Decimal(1)), "value: is a Decimal and would come back as a str"
    yield Open(more={1}), "more: is a set and would come back as a list"
    yield Anything(value=Word.YES), "value: is a Word and would come back as a str"
    yield Anything(value=[Address()]), "is a Address and would come back as a dict"
    yield Anything(either=Decimal(1)), "either: is a Decimal and would come back as a str"
    yield Anything(secret=SecretStr("s")), "a SecretStr cannot travel"


@pytest.mark.parametrize(("model", "why"), [*refused()], ids=lambda given: type(given).__name__)
def test_a_model_that_would_arrive_as_another_is_refused(model: BaseModel, why: str) -> None:
    for pack in (pack_sent, pack_whole):
        with pytest.raises(Misfit, match=why):
            pack(model)
        with pytest.raises(Misfit, match=why):
            pack({"a": [model]})
    with pytest.raises(SchemaError, match=why):
        encode_value(model)


def test_arguments_keep_which_fields_were_set_and_answers_have_all() -> None:
    """`model_dump(exclude_unset=True)` tells a change from a field that stays as it is."""
    change = Address(zipCode=None)
    assert arrived(change).model_fields_set == {"zip_code"}
    assert arrived(Strict(n=1)).model_fields_set == {"n"}
    plain = msgspec.msgpack.decode(pack_whole(Address()))
    assert plain == {"street_name": "", "zip_code": None}
    filled = Strict()
    filled.tags.add("a")
    assert arrived(filled) == filled


@pytest.mark.parametrize(
    ("cls", "plain", "expected"),
    [
        (Address, {"street_name": "a", "zip_code": "1"}, Address(streetName="a", zipCode="1")),
        (Address, {"streetName": "a", "zipCode": "1"}, Address(streetName="a", zipCode="1")),
        (Spoken, {"streetName": "a"}, Spoken(streetName="a")),
        (Spoken, {"street_name": "a"}, Spoken(streetName="a")),
        (Forbids, {"n": 3, "twice": 6}, Forbids(n=3)),
        (
            Strict,
            {"n": 3, "price": "1.10", "tags": ["x"]},
            Strict(n=3, price=Decimal("1.10"), tags={"x"}),
        ),
        (Paths, {"a": 3, "home": {"streetName": "x"}}, Paths(x=3, home=Address(streetName="x"))),
    ],
)
def test_earlier_builds_and_callers_by_name_are_read(cls: Any, plain: Any, expected: Any) -> None:
    assert decoder(cls)(encode_value(plain)) == expected


def test_a_model_that_dumps_itself_by_aliases_is_sent_so_for_earlier_builds() -> None:
    spoken = Spoken(streetName="a")
    assert msgspec.msgpack.decode(pack_sent(spoken)) == {"streetName": "a"}
    assert Spoken.model_validate(msgspec.msgpack.decode(pack_whole(spoken))) == spoken


def test_a_model_whose_aliases_clash_is_sent_by_the_names_of_its_fields() -> None:
    twins, taken = Twins(), Taken()
    twins.a, twins.b = 3, 4
    taken.a = 3
    for value, plain in [(twins, {"a": 3, "b": 4}), (taken, {"a": 3})]:
        assert msgspec.msgpack.decode(pack_sent(value)) == plain
        assert arrived(value) == value


@pytest.mark.parametrize(
    ("cls", "plain"),
    [(Strict, {"n": "3"}), (Strict, {"tags": [1]}), (Forbids, {"m": 1}), (Raising, {"n": -1})],
)
def test_a_model_checks_what_arrives(cls: Any, plain: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        decoder(cls)(encode_value(plain))


class Level(IntEnum):
    LOW = 1


class Open(BaseModel):
    """The types of its values are open."""

    model_config = ConfigDict(extra="allow")
    any: Any = None
    items: list = []  # type: ignore[type-arg]
    rows: dict = {}  # type: ignore[type-arg]
    either: list[int] | tuple[int, ...] = []
    level: Level | int | None = None
    pair: tuple[int, ...] | None = None


@pytest.mark.parametrize(
    ("sent", "place"),
    [
        (Open(any=(1,)), "any: is a tuple"),
        (Open(items=[(1,)]), r"items\[0\]: is a tuple"),
        (Open(rows={"k": (1,)}), "rows.k: is a tuple"),
        (Open(either=(1,)), "either: is a tuple"),
        (Open(more=(1,)), "more: is a tuple"),  # type: ignore[call-arg]
        (Open(level=Level.LOW), "level: is a Level"),
    ],
)
def test_a_value_of_an_open_type_that_would_come_back_as_another_is_refused(
    sent: Open, place: str
) -> None:
    for pack in (pack_sent, pack_whole):
        with pytest.raises(Misfit, match=place):
            pack(sent)


def test_a_value_of_an_open_type_that_comes_back_travels() -> None:
    sent = Open(any=[1], items=[{"a": 1.5}], either=[1], level=3, pair=(1, 2))
    assert decoder(Open)(pack_sent(sent)) == sent
