"""Proofs: the classes of the values show that a state comes back, without reading it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardbus.wire.proofs import proof_of
from shardbus.wire.schema import decoder
from shardbus.wire.values import pack_whole
from tests.unit.wire.declared_values import Item, Level, Line, LongLine, Word, declared


@dataclass
class Cart:
    name: str = ""
    cents: int | None = 0
    tags: list[str] = field(default_factory=list)
    lines: dict[str, Line] = field(default_factory=dict)
    places: set[int] = field(default_factory=set)
    rows: tuple[float, ...] = ()


def test_a_state_of_plain_classes_is_proven() -> None:
    proven = proof_of(Cart)
    assert proven is not None
    cart = Cart("a", None, ["x"], {"a": Line()}, {1}, (1.5,))
    assert proven(cart)
    assert proven(cart)  # by the classes that were seen
    wrong: dict[str, list[Any]] = {
        "name": [None, 5, Word.YES],
        "cents": [7 / 2, "5", True, Level.LOW],
        "tags": [["x", 1], ("x",), [Word.YES], {"x"}],
        "lines": [{"a": LongLine()}, {1: Line()}, {"a": Line(1)}, {"a": {}}],  # type: ignore[arg-type]
        "places": [{"x"}, [1], frozenset({1})],
        "rows": [(1,), [1.5]],
    }
    for name, values in wrong.items():
        for value in values:
            other = Cart("a", None, ["x"], {"a": Line()}, {1}, (1.5,))
            setattr(other, name, value)
            assert not proven(other), (name, value)
    del cart.name
    assert not proven(Line())
    assert not proven(LongLine())


def test_what_depends_on_more_than_classes_has_no_proof() -> None:
    @dataclass
    class Checked:
        n: int = 1

        def __post_init__(self) -> None: ...

    @dataclass
    class Tree:
        kids: list[Any] = field(default_factory=list)

    bounded = Annotated[int, msgspec.Meta(ge=0)]
    for declared_type in (
        Checked,
        Tree,
        bounded,
        dict[str, bounded],
        Item,
        list[Item],
        Level,
        Any,
        object,
    ):
        assert proof_of(declared_type) is None


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(declared(), st.data())
def test_a_proven_value_comes_back_as_it_is(pair: tuple[Any, Any], data: st.DataObject) -> None:
    declared_type, values = pair
    proven = proof_of(declared_type)
    value = data.draw(values | st.integers(0, 1) | st.lists(st.just("a"), max_size=1))
    if proven is not None and proven(value):
        decoded = decoder(declared_type)(pack_whole(value))
        assert decoded == value
        assert type(decoded) is type(value)
