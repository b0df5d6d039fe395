"""The law of sent and stored values: a value comes back as it was, or it is refused."""

from __future__ import annotations

from dataclasses import make_dataclass
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardbus.errors import Rejection, SchemaError
from shardbus.wire.rejections import decode_rejection, encode_rejection
from shardbus.wire.schema import Method, decoder, method
from shardbus.wire.stored_state import StateCodec
from tests.unit.wire.declared_values import PLAIN, declared, typed_values

slowly = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)


def handler_of(declared_type: Any) -> Method:
    """A handler that takes and returns a value of this type."""

    def give_back(self: object, value: object) -> object: ...

    give_back.__annotations__ = {"value": declared_type, "return": declared_type}
    return method("give_back", give_back)


def sent(m: Method, value: object) -> object:
    """The value as the handler gets it."""
    payload = m.encode((value,), {})
    (value_read,) = m.decoders[payload[0]](payload)
    return value_read


def codec_of(declared_type: Any, default: object) -> StateCodec:
    """The states with a field of this type."""
    from dataclasses import field

    cls = make_dataclass(
        "Stated", [("value", declared_type, field(default_factory=lambda: default))]
    )
    return StateCodec("stated", cls, decoder(cls))


def same(value: object, other: object) -> bool:
    """True for equal values of one class."""
    return value == other and type(value) is type(other)


@slowly
@given(typed_values())
def test_arguments_and_answers_arrive_as_they_were_sent(pair: tuple[Any, Any]) -> None:
    declared_type, value = pair
    m = handler_of(declared_type)
    assert same(sent(m, value), value)
    assert same(m.decode_result(m.encode_result(value)), value)


@slowly
@given(typed_values())
def test_a_state_is_loaded_as_it_was_saved(pair: tuple[Any, Any]) -> None:
    declared_type, value = pair
    codec = codec_of(declared_type, value)
    state = codec.cls()
    assert same(codec.read("7", codec.write(state)).value, value)
    assert same(codec.read("7", codec.write(state)), state)


@slowly
@given(typed_values())
def test_a_rejection_arrives_with_its_fields(pair: tuple[Any, Any]) -> None:
    declared_type, value = pair
    cls: Any = make_dataclass("Refused", [("value", declared_type)], bases=(Rejection,))
    rejection: Any = decode_rejection(*encode_rejection(cls(value)))
    assert type(rejection) is cls
    assert same(rejection.value, value)


@slowly
@given(declared(), declared(), st.data())
def test_a_state_with_a_value_of_another_type_is_refused_or_equal(
    first: tuple[Any, Any], other: tuple[Any, Any], data: st.DataObject
) -> None:
    codec = codec_of(first[0], data.draw(first[1]))
    state: Any = codec.cls()
    state.value = value = data.draw(other[1])
    try:
        value_read = codec.read("7", codec.write(state)).value
    except SchemaError:
        return
    assert value_read == (list(value) if type(value_read) is list else value)


@slowly
@given(declared(), declared(), st.data())
def test_an_argument_of_another_type_is_refused_or_has_the_declared_class(
    first: tuple[Any, Any], other: tuple[Any, Any], data: st.DataObject
) -> None:
    declared_type, example = first[0], data.draw(first[1])
    try:
        value_read = sent(handler_of(declared_type), data.draw(other[1]))
    except Exception:  # of the sender, or of the receiver
        return
    assert type(value_read) is type(example) or not isinstance(declared_type, type)


@slowly
@given(PLAIN)
def test_values_without_a_type_arrive_as_they_were_sent(value: object) -> None:
    m = handler_of(object)
    assert same(sent(m, value), value)
    assert same(m.decode_result(m.encode_result(value)), value)
