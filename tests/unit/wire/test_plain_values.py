"""Values without a declared type: plain ones arrive, and nothing else is sent."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given

from shardbus.errors import SchemaError
from shardbus.wire.misfit import Misfit
from shardbus.wire.nesting import NESTING_MAX
from shardbus.wire.plain_values import check_plain
from shardbus.wire.schema import decode_value, encode_message
from tests.unit.wire.declared_values import PLAIN, Colour, Item, Level, Line, Pair, Rights, Word


class Text(str):
    __slots__ = ()


class Real(float):
    """As numpy.float64 is one."""


NOT_PLAIN: list[Any] = [
    {1},
    frozenset({1}),
    dt.datetime(2026, 1, 2),
    dt.date(2026, 1, 2),
    dt.timedelta(1),
    Decimal("1.10"),
    uuid.UUID(int=1),
    Colour.RED,
    Level.LOW,
    Word.YES,
    Rights.READ,
    Text("x"),
    Real(1.5),
    Line(),
    Item(),
    Pair(1),
    defaultdict(int, a=1),
    OrderedDict(a=1),
    Counter("a"),
    deque([1]),
    bytearray(b"x"),
    object(),
    SimpleNamespace(a=1),
    1j,
    ...,
    iter([1]),
]


@given(PLAIN)
def test_plain_values_are_taken_and_arrive(value: object) -> None:
    check_plain(value)
    assert decode_value(encode_message([value])) == [value]


@pytest.mark.parametrize("value", NOT_PLAIN, ids=lambda value: type(value).__name__)
def test_everything_else_is_refused_wherever_it_stands(value: Any) -> None:
    name = type(value).__name__
    for place, within in (
        ("", value),
        (r"\[1\]: ", [1, value]),
        (r"a: ", {"b": 1, "a": value}),
        (r"\[0\]\.a\[2\]: ", [{"a": [1, "<", value]}]),
    ):
        with pytest.raises(Misfit, match=place + "is a.*" + name):
            check_plain(within)
    with pytest.raises(SchemaError, match=re.escape(name)):
        encode_message([value])
    if type(value).__hash__ is not None and not isinstance(value, dt.timedelta):
        for keyed in ({value: 1}, [{value: 1}]):
            with pytest.raises(Misfit, match="has a key"):
                check_plain(keyed)


def test_a_time_arrives_as_the_same_moment_in_utc() -> None:
    when = dt.datetime(2026, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    moment = decode_value(encode_message([when]))
    assert moment == [when]
    assert moment[0].tzinfo == dt.UTC


def test_a_tuple_arrives_as_a_key_only() -> None:
    """Elsewhere it would arrive as a list, to which it is not equal."""
    assert decode_value(encode_message({(1, 2): 3})) == {(1, 2): 3}
    for value in ((1, 2), [(1, 2)], {"a": [1, ()]}):
        with pytest.raises(SchemaError, match="is a tuple, which does not arrive as such"):
            encode_message(value)


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        ({1}, "annotate it with its class"),
        (Decimal(1), "annotate it with its class"),
        (Fraction(1), "does not travel: send its plain form"),
        (Text("a"), "does not travel: send its plain form"),
        (complex(1), "does not travel: send its plain form"),
    ],
)
def test_an_annotation_is_the_remedy_only_for_a_class_that_can_be_declared(
    value: object, remedy: str
) -> None:
    with pytest.raises(SchemaError, match=remedy):
        encode_message([value])


def test_a_value_that_holds_itself_or_nests_deeper_is_refused() -> None:
    value: Any = 0
    for _ in range(NESTING_MAX):
        value = [value]
    check_plain(value)
    encode_message(value)
    loop: list[Any] = []
    loop.append({"a": loop})
    for deep in ([value], {"a": value}, loop, {(1, (2,)): value, "a": [value]}):
        with pytest.raises(Misfit, match=f"more than {NESTING_MAX} levels"):
            check_plain(deep)
        with pytest.raises(SchemaError, match=f"more than {NESTING_MAX} levels"):
            encode_message(deep)
