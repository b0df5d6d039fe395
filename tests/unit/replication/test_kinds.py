"""The kinds of replicated values, as an application changes them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.errors import ConfigError
from shardbus.replication.kinds import (
    AnyKind,
    Counter,
    Flag,
    GrowSet,
    Map,
    MultiMap,
    PNCounter,
    Register,
    Set,
    versioned,
)
from shardbus.replication.versions import NOTHING, DataValue, NotTaken, taken

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
elements = st.recursive(
    st.none() | st.integers(-100, 100) | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: st.tuples(inner, inner),
    max_leaves=4,
)


def stored(kind: AnyKind) -> DataValue:
    change = kind.changes.change()
    assert change is not None
    step = taken(NOTHING, 1, 0, change)
    assert not isinstance(step, NotTaken)
    return step[0]


@given(plain)
def test_a_register_returns_what_was_put(value: Any) -> None:
    shown = versioned(stored(Register().set(value)))
    assert shown is not None
    assert repr(shown.data) == repr(value)  # NaN is not equal to itself
    assert shown.kind == "register"


@given(st.lists(st.tuples(st.booleans(), elements), max_size=12))
def test_a_set_is_as_a_set_of_python(steps: list[tuple[bool, Any]]) -> None:
    value, model = NOTHING, set[Any]()
    for counter, (adds, element) in enumerate(steps):
        view = Set(value)
        (view.add if adds else view.remove)(element)
        (model.add if adds else model.discard)(element)
        assert view.value == model
        if (change := view.changes.change()) is not None:
            step = taken(value, 1, counter, change)
            assert not isinstance(step, NotTaken)
            value = step[0]
        assert Set(value).value == model


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abc"), st.integers(0, 3)), max_size=12))
def test_maps_are_as_dicts_of_python(steps: list[tuple[bool, str, int]]) -> None:
    fields, sets = dict[str, int](), dict[str, set[int]]()
    single, many = NOTHING, NOTHING
    for counter, (adds, name, number) in enumerate(steps):
        if adds:
            fields[name] = number
            sets.setdefault(name, set()).add(number)
            views: tuple[AnyKind, AnyKind] = (
                Map(single).set(name, number),
                MultiMap(many).add(name, number),
            )
        else:
            fields.pop(name, None)
            sets.pop(name, None)
            views = Map(single).remove(name), MultiMap(many).remove(name)
        values = []
        for value, view in zip((single, many), views, strict=True):
            change = view.changes.change()
            step = (value, 0) if change is None else taken(value, 1, counter, change)
            assert not isinstance(step, NotTaken)
            values.append(step[0])
        single, many = values
        assert Map(single).value == fields
        assert MultiMap(many).value == {n: frozenset(s) for n, s in sets.items()}


def test_changes_show_in_the_value_before_they_are_written() -> None:
    assert Counter().add(2).add(3).value == 5
    assert PNCounter().add(2).subtract(3).value == -1
    assert GrowSet().add(1).add(1, 2).value == {1, 2}
    assert Register().set(1).set(2).value == 2
    assert Register().value is None
    assert Map().set("a", 1).set("a", 2).value == {"a": 2}
    assert MultiMap().add("a", 1, 2).remove("a", 1).value == {"a": {2}}
    assert Flag().enable().value is True
    assert Flag().enable().disable().value is False


def test_nothing_is_written_if_nothing_changes() -> None:
    there = stored(GrowSet().add(1))
    assert GrowSet(there).add(1).changes.change() is None
    assert Set().remove(1).changes.change() is None
    assert Map().remove("a").changes.change() is None
    assert Flag().disable().changes.change() is None


def test_an_addition_alone_carries_no_value_and_a_removal_does() -> None:
    there = stored(Set().add("a"))
    added, removed = Set(there).add("b").changes.change(), Set(there).remove("a").changes.change()
    assert added is not None
    assert removed is not None
    assert added.base is None
    assert removed.base == there


@pytest.mark.parametrize(
    "value",
    [{1, 2}, (1, 2), 2**64, UUID(int=1), object(), datetime(2026, 1, 1), {"a": (1,)}, "\ud800"],
)
def test_a_value_that_would_not_be_read_as_it_is_is_refused(value: object) -> None:
    with pytest.raises(ConfigError):
        Register().set(value)
    with pytest.raises(ConfigError):
        Map().set("a", value)


def nested(depth: int, wrap: Any) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = wrap(value)
    return value


def test_what_nests_too_deep_is_refused() -> None:
    Register().set(nested(128, lambda inner: [inner]))
    Set().add(nested(128, lambda inner: (inner,)))
    for depth in (129, 3_000):
        with pytest.raises(ConfigError):
            Register().set(nested(depth, lambda inner: [inner]))
        with pytest.raises(ConfigError):
            Set().add(nested(depth, lambda inner: (inner,)))


def test_an_aware_datetime_is_a_value() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert Register(stored(Register().set(moment))).value == moment


@pytest.mark.parametrize(
    ("local", "fold", "moment"),
    [
        (datetime(2026, 7, 1, 2, 30), 0, datetime(2026, 7, 1, 0, 30, tzinfo=UTC)),
        (datetime(2026, 10, 25, 2, 30), 0, datetime(2026, 10, 25, 0, 30, tzinfo=UTC)),
        (datetime(2026, 10, 25, 2, 30), 1, datetime(2026, 10, 25, 1, 30, tzinfo=UTC)),
        (datetime(2026, 3, 29, 2, 30), 0, datetime(2026, 3, 29, 1, 30, tzinfo=UTC)),
        (datetime(2026, 3, 29, 2, 30), 1, datetime(2026, 3, 29, 0, 30, tzinfo=UTC)),
    ],
    ids=["summer", "first of two", "second of two", "missing", "missing, other fold"],
)
def test_an_aware_datetime_is_stored_as_its_moment(
    local: datetime, fold: int, moment: datetime
) -> None:
    at = local.replace(tzinfo=ZoneInfo("Europe/Berlin"), fold=fold)
    assert Register(stored(Register().set(at))).value == moment
    assert Map(stored(Map().set("a", {"b": [at]}))).value == {"a": {"b": [moment]}}


@pytest.mark.parametrize(
    "name", ["a\ud800", "\udfff", 1, None, b"a"], ids=["half", "other half", "int", "None", "bytes"]
)
def test_a_name_that_cannot_be_sent_is_refused(name: Any) -> None:
    for refuse in (
        lambda: Map().set(name, 1),
        lambda: Map().remove(name),
        lambda: MultiMap().add(name, 1),
        lambda: MultiMap().remove(name),
    ):
        with pytest.raises(ConfigError):
            refuse()


def test_a_name_of_a_class_of_texts_is_written_as_a_plain_one() -> None:
    name = type("Name", (str,), {})("a")
    for value in (stored(Map().set(name, 1)), stored(MultiMap().add(name, 1))):
        assert [type(dot.name) for dot in value.dots] == [str]


@pytest.mark.parametrize("element", [[1], {"a": 1}, (1, [2]), 2**70, object()])
def test_an_element_that_is_not_plain_is_refused(element: Any) -> None:
    for refuse in (Set().add, GrowSet().add, Set().remove):
        with pytest.raises(ConfigError):
            refuse(element)
    with pytest.raises(ConfigError):
        MultiMap().add("a", element)


@pytest.mark.parametrize("amount", [-1, 1.5, True, "1", 2**63])
def test_an_amount_is_a_whole_number(amount: Any) -> None:
    with pytest.raises(ConfigError):
        Counter().add(amount)
    with pytest.raises(ConfigError):
        PNCounter().subtract(amount)


def test_a_field_has_a_name() -> None:
    with pytest.raises(ConfigError):
        Map().set(1, 2)  # type: ignore[arg-type]


def test_a_kind_of_a_later_release_is_shown_without_its_content() -> None:
    [dot] = stored(Counter().add(1)).dots
    shown = versioned(DataValue(((1, 1),), (dot._replace(kind="z"),)))
    assert shown is not None
    assert (shown.kind, shown.data) == ("z", None)
    assert versioned(NOTHING) is None
