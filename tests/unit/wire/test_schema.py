"""Handlers and messages as the wire sees them: a value arrives as its declared type, and a type
that cannot travel is refused at its declaration, with its place."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Optional

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from shardbus.errors import ConfigError, SchemaError
from shardbus.wire.schema import (
    Method,
    check_type,
    decode_value,
    decoder,
    encode_value,
    form_of,
    is_message_class,
    message_decoders,
    method,
    unreadable,
)


@dataclass
class Point:
    x: int
    y: int = 0


class Move(msgspec.Struct):
    to: Point
    by: list[str] = []


class Order(BaseModel):
    item: str
    count: int = 1


def call(m: Method, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """The arguments of a handler that is called so on the other side."""
    payload = m.encode(args, kwargs)
    return tuple(m.decoders[payload[0]](payload))


# Plain values

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)


@given(PLAIN)
def test_plain_values_are_read_back(value: object) -> None:
    assert decode_value(encode_value(value)) == value
    assert msgpack.unpackb(encode_value(value)) == value


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, object(), threading.Lock(), {1, object()}])
def test_what_cannot_travel_is_refused(value: object) -> None:
    with pytest.raises(SchemaError, match="cannot send this"):
        encode_value(value)


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(SchemaError):
        encode_value(loop)


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", b"\x91", b"\xa1\xff", b"\xc0\xc0", b"\x91" * 9999]
)
def test_noise_is_no_message(payload: bytes) -> None:
    with pytest.raises(SchemaError, match="not a message"):
        decode_value(payload)


# Handlers


def test_arguments_defaults_and_names() -> None:
    def add(self: object, amount: int, note: str = "none", *, _: None = None) -> int: ...

    with pytest.raises(ConfigError, match="parameter _ must be positional"):
        method("add", add)

    def put(self: object, amount: int, note: str = "none", at: Point = Point(1)) -> int: ...  # noqa: B008

    m = method("put", put)
    assert call(m, 3) == (3,)
    assert call(m, 3, "x") == (3, "x")
    assert call(m, 3, at=Point(4, 5)) == (3, "none", Point(4, 5))
    assert call(m, note="n", amount=1) == (1, "n", Point(1))
    assert m.encode((3,), {}) == msgpack.packb([3])
    assert m.decode_result(b"\x05") == 5


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"amount": 2}), ((1,), {"other": 2})]
)
def test_a_call_that_does_not_fit_is_a_type_error(args: Any, kwargs: Any) -> None:
    def add(self: object, amount: int, note: str = "") -> None: ...

    with pytest.raises(TypeError):
        method("add", add).encode(args, kwargs)


def test_no_arguments() -> None:
    def reset(self: object) -> None: ...

    m = method("reset", reset)
    assert m.encode((), {}) == b"\x90"
    assert call(m) == ()
    assert m.decode_result(b"\xc0") is None


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (msgpack.packb([]), "takes 1 to 2 arguments"),
        (msgpack.packb([1, "a", 2]), "takes 1 to 2 arguments"),
        (msgpack.packb(["x"]), r"Expected `int`, got `str` - at `\$\[0\]`"),
        (msgpack.packb([1, 2]), r"at `\$\[1\]`"),
        (msgpack.packb({}), "takes 1 to 2 arguments"),
        (b"", "takes 1 to 2 arguments"),
    ],
)
def test_the_receiver_says_what_does_not_fit(payload: bytes, text: str) -> None:
    def add(self: object, amount: int, note: str = "") -> None: ...

    m = method("add", add)
    with pytest.raises(Exception) as raised:  # noqa: PT011
        m.decoders[payload[0]](payload)
    with pytest.raises(SchemaError, match=text):
        raise unreadable("add", m.decoders, payload, raised.value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (int, 2**63),
        (float, 1.5),
        (str, "é"),
        (bytes, b"\xff"),
        (bool, True),
        (list[int], [1, 2]),
        (tuple[int, str], (1, "a")),
        (dict, {("a", (1, None)): 2}),
        (dict[Any, int], {("a", 1): 2}),
        (dict[Any, Any], {(1,): {(2,): 3}}),
        (tuple[int, ...], (1, 2, 3)),
        (dict[str, list[Point]], {"a": [Point(1, 2)]}),
        (Optional[int], None),  # noqa: UP045
        (int | str, "x"),
        (Point, Point(1, 2)),
        (Move, Move(Point(1, 2), ["a"])),
        (Order, Order(item="tea", count=2)),
        (list[Order], [Order(item="tea")]),
        (Any, {"a": [1, None]}),
        (object, [b"x"]),
        (list[object], [1, "a", None]),
        (dict[str, object], {"a": [1]}),
        (Point | None, Point(3)),
    ],
)
def test_every_declared_type_arrives_as_itself(declared: Any, value: object) -> None:
    def handle(self: object, given: object) -> object: ...

    handle.__annotations__ = {"given": declared, "return": declared}
    m = method("handle", handle)
    [got] = call(m, value)
    assert got == value
    assert type(got) is type(value)
    assert m.decode_result(encode_value(value)) == value


class Opaque:
    pass


@dataclass
class Holder:
    inner: list[dict[str, Opaque]] = field(default_factory=list)


@pytest.mark.parametrize(
    ("declared", "path"),
    [
        (Opaque, "handler put: thing cannot be a message type: Opaque"),
        (list[Opaque], r"thing\[\.\.\.\] cannot"),
        (dict[str, Opaque], r"thing\[\.\.\.\] cannot"),
        (tuple[int, Opaque], r"thing\[1\] cannot"),
        (Opaque | None, "thing cannot"),
        (Holder, r"thing\.inner\[\.\.\.\]\[\.\.\.\] cannot"),
        (Point | Holder, "thing"),
        (threading.Lock, "thing"),
    ],
)
def test_a_declaration_that_cannot_travel_names_its_place(declared: Any, path: str) -> None:
    def put(self: object, thing: object) -> None: ...

    put.__annotations__ = {"thing": declared}
    with pytest.raises(ConfigError, match=path):
        method("put", put)


def test_an_unknown_annotation_is_named() -> None:
    def put(self: object, thing: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigError, match=r"put: an annotation is not known.*Nowhere"):
        method("put", put)


def many(self: object, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p) -> None: ...  # type: ignore[no-untyped-def]  # noqa: E741
def star(self: object, *values: int) -> None: ...
def named(self: object, *, value: int) -> None: ...
def answers(self: object) -> Opaque: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (many, "16 parameters, at most 15"),
        (star, "parameter values must be positional"),
        (named, "parameter value must be positional"),
        (answers, "return cannot be a message type"),
    ],
)
def test_signatures_that_cannot_travel(function: Callable[..., Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        method(function.__name__, function)


# Messages of `receive`


def test_the_method_of_a_message() -> None:
    for plain in (None, True, 1, 1.5, "a", b"b", [1], (1,), {"a": 1}):
        assert form_of(plain).method == ""
    assert form_of(Point(1)).method == ":Point"
    assert form_of(Move(Point(1))).method == ":Move"
    assert form_of(Order(item="tea")).method == ":Order"
    with pytest.raises(SchemaError, match="a Opaque cannot travel"):
        form_of(Opaque())


def test_message_classes() -> None:
    assert [is_message_class(c) for c in (Point, Move, Order)] == [True] * 3
    assert [is_message_class(c) for c in (int, Opaque, Point(1), None)] == [False] * 4


def test_receive_takes_what_it_declares() -> None:
    def anything(self: object, message: object) -> None: ...
    def points(self: object, message: Point) -> None: ...
    def either(self: object, message: Point | Order | str) -> None: ...
    def numbers(self: object, message: int) -> None: ...
    def classes(self: object, message: Point | Move) -> None: ...
    def several(self: object, message: list[Point]) -> None: ...

    assert set(message_decoders(None, ())) == set()
    assert set(message_decoders(anything, [Move])) == {"", ":Move"}
    assert set(message_decoders(points, [])) == {"", ":Point"}
    assert set(message_decoders(either, [Move])) == {"", ":Point", ":Order", ":Move"}
    read = message_decoders(either, [])
    assert read[":Point"](encode_value(Point(1, 2))) == Point(1, 2)
    assert read[":Order"](encode_value(Order(item="tea"))) == Order(item="tea")
    assert read[""](encode_value("text")) == "text"
    assert message_decoders(numbers, [])[""](b"\x05") == 5
    assert message_decoders(points, [])[""](msgpack.packb({"x": 1})) == Point(1)
    assert set(message_decoders(classes, [])) == {":Point", ":Move"}
    assert set(message_decoders(several, [])) == {""}
    assert message_decoders(several, [])[""](msgpack.packb([{"x": 1}])) == [Point(1)]
    with pytest.raises(msgspec.ValidationError):
        message_decoders(numbers, [])[""](encode_value("five"))


def test_a_message_that_breaks_its_own_rules_is_refused_by_the_receiver() -> None:
    read = decoder(Order)
    with pytest.raises(Exception, match="valid integer"):
        read(msgpack.packb({"item": "tea", "count": "many"}))


def test_check_type_takes_recursive_types() -> None:
    check_type("message Tree", Tree)
    tree = Tree(1, [Tree(2, [])])
    assert decoder(Tree)(encode_value(tree)) == tree


@dataclass
class Tree:
    value: int
    below: list[Tree]


@dataclass
class Interrupting:
    """Code of it runs where it is sent, and a signal comes then."""

    n: int = 0

    def __post_init__(self) -> None:
        if self.n:
            signal.raise_signal(signal.SIGUSR1)


def test_an_interrupt_while_a_value_is_sent_is_no_error_of_the_value() -> None:
    def put(self: object, value: Interrupting) -> None: ...

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    sent = method("put", put)
    value = Interrupting()
    value.n = 1
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            sent.encode((value,), {})
        with pytest.raises(KeyboardInterrupt):
            sent.pack((value,))
    finally:
        signal.signal(signal.SIGUSR1, before)
