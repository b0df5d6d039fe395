"""Replicated values: their laws, for values that any disks have made in any order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.replication.kinds import (
    KINDS,
    AnyKind,
    Counter,
    Flag,
    GrowSet,
    Map,
    MultiMap,
    PNCounter,
    Register,
    Set,
)
from shardbus.replication.versions import (
    AMOUNT_MAX,
    COUNTER,
    NOTHING,
    Addition,
    DataChange,
    DataValue,
    NotTaken,
    bytes_of,
    clock_of,
    covers,
    events_in,
    joined,
    joined_clock,
    number_of,
    taken,
)

DISKS = 3


@dataclass
class Disks:
    """Values of one key on several disks. A change is made of a value that any disk has, and taken
    by any disk."""

    values: list[DataValue] = field(default_factory=lambda: [NOTHING] * DISKS)
    counters: list[int] = field(default_factory=lambda: [0] * DISKS)

    def take(self, disk: int, change: DataChange) -> DataValue:
        step = taken(self.values[disk], disk + 1, self.counters[disk], change)
        assert not isinstance(step, NotTaken)
        self.values[disk], self.counters[disk] = step
        return step[0]

    def merge(self, disk: int, value: DataValue) -> None:
        self.values[disk] = joined(self.values[disk], value)
        highest = max((counter for _, counter in value.clock), default=0)
        self.counters[disk] = max(self.counters[disk], highest)


CHANGES: dict[type[AnyKind], list[Callable[[AnyKind], object]]] = {
    Register: [lambda v: v.set(1), lambda v: v.set("b"), lambda v: v.set([None])],
    Counter: [lambda v: v.add(), lambda v: v.add(3)],
    PNCounter: [lambda v: v.add(2), lambda v: v.subtract(3)],
    GrowSet: [lambda v: v.add(1), lambda v: v.add(2, "x")],
    Set: [lambda v: v.add(1), lambda v: v.add(2), lambda v: v.remove(1), lambda v: v.remove(1, 2)],
    Map: [lambda v: v.set("a", 1), lambda v: v.set("b", 2), lambda v: v.remove("a")],
    MultiMap: [
        lambda v: v.add("a", 1),
        lambda v: v.add("a", 2).add("b", 1),
        lambda v: v.remove("a", 1),
        lambda v: v.remove("b"),
    ],
    Flag: [lambda v: v.enable(), lambda v: v.disable()],
}  # type: ignore[assignment]


@st.composite
def histories(draw: st.DrawFn) -> tuple[type[AnyKind], list[DataValue], Disks]:
    """A kind, all values that any disk had, and the disks at the end."""
    kind = draw(st.sampled_from(list(CHANGES)))
    disks, seen = Disks(), [NOTHING]
    number = st.integers(0, DISKS - 1)
    for time in range(draw(st.integers(1, 12))):
        disk = draw(number)
        match draw(st.sampled_from(("change", "change", "merge", "delete"))):
            case "change":
                read = disks.values[draw(number)]
                view = kind(read)
                draw(st.sampled_from(CHANGES[kind]))(view)
                if (change := view.changes.change()) is not None:
                    seen.append(disks.take(disk, change._replace(time=time)))
            case "merge":
                disks.merge(disk, draw(st.sampled_from(seen)))
                seen.append(disks.values[disk])
            case _:
                read = disks.values[draw(number)]
                seen.append(disks.take(disk, DataChange("", seen=read.clock)))
    return kind, seen, disks


@given(histories(), st.data())
def test_merging_is_commutative_associative_and_idempotent(
    history: tuple[type[AnyKind], list[DataValue], Disks], data: st.DataObject
) -> None:
    _, seen, _ = history
    a, b, c = (data.draw(st.sampled_from(seen)) for _ in range(3))
    assert joined(a, a) == a
    assert joined(a, b) == joined(b, a)
    assert joined(joined(a, b), c) == joined(a, joined(b, c))
    assert joined(joined(a, b), b) == joined(a, b)


@given(histories())
def test_a_clock_that_covers_another_is_of_a_value_with_the_others_changes(
    history: tuple[type[AnyKind], list[DataValue], Disks],
) -> None:
    _, seen, _ = history
    for value in seen:
        for other in seen:
            if value.clock == other.clock:
                assert value == other
            elif covers(value.clock, other.clock):
                assert joined(value, other) == value
                assert events_in(value.clock) > events_in(other.clock)


@given(histories())
def test_every_write_moves_the_value_on(
    history: tuple[type[AnyKind], list[DataValue], Disks],
) -> None:
    kind, _, disks = history
    view = kind(disks.values[0])
    CHANGES[kind][0](view)
    change = view.changes.change()
    if change is not None:
        before = disks.values[1]
        after = disks.take(1, change)
        assert covers(after.clock, before.clock)
        assert not covers(before.clock, after.clock)


@given(
    st.lists(st.tuples(st.integers(0, DISKS - 1), st.integers(0, 9)), max_size=9),
    st.permutations(range(DISKS)),
)
def test_changes_at_the_same_time_are_all_kept(
    adds: list[tuple[int, int]], order: list[int]
) -> None:
    for kind, expected in ((GrowSet, {n for _, n in adds}), (Counter, sum(n for _, n in adds))):
        disks = Disks()
        for disk, number in adds:
            change = kind(disks.values[disk]).add(number).changes.change()
            if change is not None:
                disks.take(disk, change)
        merged = NOTHING
        for disk in order:
            merged = joined(merged, disks.values[disk])
        assert kind(merged).value == expected


def stamped(kind: AnyKind, value: DataValue, disk: int, time: int = 0) -> DataValue:
    """The value after a change that the disk takes."""
    change = kind.changes.change()
    assert change is not None
    highest = max((counter for _, counter in value.clock), default=0)
    step = taken(value, disk, highest, change._replace(time=time))
    assert not isinstance(step, NotTaken)
    return step[0]


def test_an_addition_wins_over_a_removal_that_has_not_seen_it() -> None:
    first = stamped(Set().add("a"), NOTHING, 1)
    removed = stamped(Set(first).remove("a"), first, 1)
    again = stamped(Set(first).add("a"), first, 2)
    assert Set(joined(removed, again)).value == {"a"}
    assert Set(joined(removed, first)).value == Set(joined(first, removed)).value == set()


def test_enabling_wins_over_disabling_at_the_same_time() -> None:
    on = stamped(Flag().enable(), NOTHING, 1)
    off, still = stamped(Flag(on).disable(), on, 1), stamped(Flag(on).enable(), on, 2)
    assert Flag(joined(off, still)).value is True
    assert Flag(joined(off, on)).value is False


def test_a_removal_takes_along_dots_that_its_disk_has_not_seen() -> None:
    first = stamped(Set().add("a"), NOTHING, 1)
    removed = stamped(Set(first).remove("a"), NOTHING, 2)
    assert Set(joined(removed, first)).value == set()


def test_a_put_after_a_version_covers_its_clock() -> None:
    first = stamped(Register().set("old"), NOTHING, 1)
    change = Register().set("new").changes.change()
    assert change is not None
    step = taken(NOTHING, 2, 0, change._replace(seen=first.clock))
    assert not isinstance(step, NotTaken)
    merged = joined(step[0], first)
    assert (Register(merged).value, Register(merged).conflicts) == ("new", ())


def test_the_later_put_is_shown_first_though_its_clock_is_behind() -> None:
    first = stamped(Register().set("a"), NOTHING, 1, time=1000)
    later = stamped(Register(first).set("b"), first, 2, time=5)
    assert later.dots[0].amount == 1001
    other = stamped(Register(first).set("c"), first, 3, time=1005)
    merged = Register(joined(later, other))
    assert (merged.value, merged.conflicts) == ("c", ("b",))


def test_a_disk_has_one_dot_of_a_counter() -> None:
    value = NOTHING
    for _ in range(5):
        value = stamped(Counter(value).add(2), value, 1)
    value = stamped(Counter(value).add(1), value, 2)
    assert [(dot.disk, dot.amount) for dot in value.dots] == [(1, 10), (2, 1)]
    assert Counter(value).value == 11
    both = stamped(PNCounter().add(3).subtract(5), NOTHING, 1)
    assert PNCounter(both).value == -2
    assert len(both.dots) == 1


@pytest.mark.parametrize(
    ("value", "change", "refusal"),
    [
        (stamped(Counter().add(1), NOTHING, 1), DataChange("r", (Addition(data=b"\x01"),)), "kind"),
        (stamped(Counter().add(AMOUNT_MAX), NOTHING, 1), DataChange("c", (Addition(amount=1),)),
         "range"),
        (NOTHING, DataChange("r", (Addition(data=b"x" * 100),), limit=100), "size"),
    ],
)  # fmt: skip
def test_a_write_that_does_not_fit_is_refused(
    value: DataValue, change: DataChange, refusal: str
) -> None:
    step = taken(value, 1, 9, change)
    assert isinstance(step, NotTaken)
    assert step.reason == refusal


def test_a_value_above_the_limit_may_shrink() -> None:
    value = stamped(Set().add("x" * 50, "y" * 50), NOTHING, 1)
    change = Set(value).remove("x" * 50).changes.change()
    assert change is not None
    assert not isinstance(taken(value, 1, 9, change._replace(limit=80)), NotTaken)


def test_kinds_that_were_created_at_the_same_time_stay_and_a_deletion_drops_them() -> None:
    number, text = stamped(Counter().add(4), NOTHING, 1), stamped(Register().set("x"), NOTHING, 2)
    both = joined(number, text)
    assert Counter(both).value == 4
    assert Register(both).value == "x"
    step = taken(both, 3, 9, DataChange("", seen=both.clock))
    assert not isinstance(step, NotTaken)
    assert step[0].dots == ()


def test_clocks_are_compared_by_disk() -> None:
    clock, other = clock_of([(1, 3), (2, 1), (1, 2)]), clock_of([(1, 1), (2, 4)])
    assert clock == ((1, 3), (2, 1))
    assert not covers(clock, other)
    assert not covers(other, clock)
    assert joined_clock(clock, other) == ((1, 3), (2, 4))
    assert covers(joined_clock(clock, other), clock)
    assert number_of(clock) != number_of(other)
    assert 0 <= number_of(clock) < 2**63
    assert covers(clock, ())


def test_every_kind_has_a_letter_and_bytes() -> None:
    assert set(KINDS) == set("rcpgsmuf")
    assert bytes_of(NOTHING) == 0
    assert bytes_of(stamped(Register().set("x" * 100), NOTHING, 1)) > 100
    assert KINDS[COUNTER] is Counter
