"""Bounds that msgspec does not know are refused where they are declared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Generic, NewType, TypeVar

import annotated_types as at
import attrs
import msgspec
import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    StringConstraints,
    field_validator,
    validate_call,
)
from pydantic.dataclasses import dataclass as checked_dataclass

from shardbus import ConfigError, Entity, EventSourced, ShardBus, event, handler
from shardbus.wire.schema import check_type, method

T = TypeVar("T")
Cents = NewType("Cents", PositiveInt)


@dataclass
class Payment:
    cents: Annotated[int, at.Gt(0)] = 1
    next: Payment | None = None


class Name(msgspec.Struct):
    text: Annotated[str, at.Len(1, 3)]


@attrs.define
class Seats:
    count: Annotated[int, at.Interval(ge=1, le=9)]


@dataclass
class Page(Generic[T]):
    first: T


@checked_dataclass
class Validated:
    text: str

    @field_validator("text")
    @classmethod
    def is_short(cls, text: str) -> str:
        return text


@checked_dataclass(config=ConfigDict(str_max_length=3))
class Short:
    text: str


@dataclass
class Total:
    cents: int = 0


@checked_dataclass
class Unbounded:
    text: str


class Model(BaseModel):
    cents: PositiveInt


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        (Payment, r"x\.cents .* Gt\(gt=0\); write msgspec\.Meta\(gt=0\)"),
        (list[Payment], r"x\.cents .* Gt"),
        (Name, r"x\.text .*write msgspec\.Meta\(min_length=1\)"),
        (Seats, r"x\.count .*write msgspec\.Meta\(ge=1\)"),
        (Page[Annotated[int, at.MultipleOf(5)]], r"write msgspec\.Meta\(multiple_of=5\)"),
        (dict[str, PositiveInt] | None, "nothing would check Gt"),
        (Cents, "nothing would check Gt"),
        (Annotated[int, Field(lt=3)], r"write msgspec\.Meta\(lt=3\)"),
        (Annotated[float, Field(allow_inf_nan=False)], "use msgspec.Meta, or a field of"),
        (Annotated[str, StringConstraints(pattern="a")], "use msgspec.Meta, or a field of"),
        (Annotated[int, at.Predicate(bool)], "or check it in the handler"),
        (Annotated[int, AfterValidator(abs)], "nothing would check AfterValidator"),
        (Validated, "Validated is a dataclass of pydantic with validators"),
        (Short, "make it a pydantic.BaseModel"),
    ],
)
def test_a_bound_that_nothing_checks_is_refused(declared: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check_type("x", declared)


@pytest.mark.parametrize(
    "declared",
    [
        Model,
        Unbounded,
        Page[int],
        Annotated[int, "cents"],
        Annotated[int, at.doc("cents"), Field(description="cents", strict=True)],
        Annotated[int, at.Gt(0), msgspec.Meta(gt=0)],
    ],
)
def test_an_annotation_without_a_bound_or_with_one_that_is_checked_is_taken(declared: Any) -> None:
    check_type("x", declared)


def test_parameters_answers_states_and_events_have_checked_bounds_only() -> None:
    bus = ShardBus("shop")

    def takes(self: object, cents: Annotated[int, at.Gt(0)]) -> None: ...
    def answers(self: object) -> Annotated[int, at.Gt(0)]: ...  # type: ignore[empty-body]
    def defaults(self: object, cents: int = Field(gt=0)) -> None: ...

    class Till(Entity):
        state: Payment

        @handler
        def pay(self) -> None: ...

    class Account(EventSourced):
        state: Total

        @event
        def paid(self, payment: Payment) -> Total:
            raise NotImplementedError

        @handler
        def pay(self) -> None: ...

    for function in (takes, answers, defaults):
        with pytest.raises(ConfigError, match=r"msgspec\.Meta"):
            method(function.__name__, function)
    for cls in (Till, Account):
        with pytest.raises(ConfigError, match=r"msgspec\.Meta\(gt=0\)"):
            bus.entity("account")(cls)


def test_a_handler_that_pydantic_validates_checks_its_own_bounds() -> None:
    @validate_call
    def pay(self: Any, cents: Annotated[int, Field(gt=0)]) -> int:
        return cents

    assert method("pay", pay).count == 1


def test_the_remedy_is_checked_where_the_message_arrives() -> None:
    def pay(self: object, cents: Annotated[int, msgspec.Meta(gt=0)]) -> None: ...

    form = method("pay", pay)
    payload = form.encode((0,), {})
    with pytest.raises(msgspec.ValidationError, match=">= 1"):
        form.decoders[payload[0]](payload)
