"""Founding a store anew: which rows and epochs it has, and when nothing is lost."""

from __future__ import annotations

import pytest

from shardbus.bounds import EPOCH_MAX
from shardbus.replication.messages import ZERO, Ballot, Row
from shardbus.replication.moves import PlaceRecord, RingDisk
from shardbus.replication.refounding import (
    EPOCHS_SKIPPED,
    IDENTITY_KEY,
    Difference,
    differences,
    merge_rows,
    remains,
    rename,
    reopen_reminders,
    shown_key,
    skip_epochs,
)
from shardbus.replication.registers import Registers
from shardbus.replication.ring import NO_RING, ReplicaRing, RingMember, first_ring, next_ring
from shardbus.replication.values import (
    PARTITIONS,
    ListValue,
    RemindersValue,
    StateValue,
    TableValue,
    Value,
    lease_key,
    list_key,
    state_key,
    table_key,
)
from shardbus.store.ring_reading import buckets_to_read, lasting

MEMBERS = tuple(RingMember(disk, address=f"10.0.0.{disk}:7357") for disk in (1, 2, 3))
RING = first_ring(MEMBERS, 3)
EVERY = frozenset(range(PARTITIONS))
LISTED = ListValue(9 << 32, frozenset())
TABLE = TableValue(7, "blake2b/4", 1, 0, {})


def ballot(fence: int, k: int = 1) -> Ballot:
    return Ballot(fence, 0, 5, k)


def row(fence: int, value: Value, k: int = 1, promise: int | None = None) -> Row:
    return Row(max(ballot(fence, k), ballot(promise or fence, k)), ballot(fence, k), value)


def holding(**rows: Row) -> Registers:
    registers = Registers()
    for key, each in rows.items():
        registers.merge(key, each, 0.0)
    return registers


def of(rows: dict[str, Row]) -> Registers:
    return holding(**rows)


def test_rows_of_all_disks_merge() -> None:
    first = of({"s\x1fa\x1f1": row(1, StateValue(1, b"old")), "s\x1fa\x1f2": row(1, None)})
    other = of({"s\x1fa\x1f1": row(1, StateValue(2, b"new"), k=2)})
    for order in ([first, other], [other, first]):
        merged = Registers()
        merge_rows(merged, order)
        assert merged.row("s\x1fa\x1f1").value == StateValue(2, b"new")
        assert merged.rows.keys() == first.rows.keys()


@pytest.mark.parametrize(
    ("rows", "epoch"),
    [
        ({table_key("cart"): row(7, TABLE)}, 7),
        ({table_key("cart"): row(7, TABLE, promise=9)}, 9),
        ({table_key("cart"): row(7, TABLE), state_key("cart", "a"): row(8 << 32 | 3, None)}, 8),
        ({table_key("cart"): row(7, TABLE), list_key("cart", "0"): row(0, LISTED)}, 9),
        ({state_key("cart", "a"): row(4 << 32, StateValue(1, b"x"), promise=5 << 32)}, 5),
    ],
)  # fmt: skip
def test_the_next_epoch_is_above_all_that_may_have_been_claimed(
    rows: dict[str, Row], epoch: int
) -> None:
    registers = of(rows)
    assert skip_epochs(registers, 99) == {"cart": epoch + EPOCHS_SKIPPED}
    after = registers.row(table_key("cart"))
    assert isinstance(after.value, TableValue)
    assert after.value.epoch == epoch + EPOCHS_SKIPPED
    assert after.ballot.fence == after.promise.fence == epoch + EPOCHS_SKIPPED


def test_a_restored_store_has_another_name() -> None:
    registers = of({IDENTITY_KEY: Row(Ballot(0, 9, 1, 1), Ballot(0, 0, 1, 1), "former")})
    rename(registers, "fresh", 99)
    assert registers.row(IDENTITY_KEY).value == "fresh"


def test_reminders_that_a_list_does_not_name_are_found_again() -> None:
    """A backup has the state of a later moment than the list; another list is alone later."""
    late, early = RemindersValue("7", 50, b"r"), RemindersValue("7", 40, b"q")
    listed = ListValue(3, frozenset({"x"}), {"b": 60, "c": 40})
    registers = of(
        {
            state_key("cart", "a"): row(3, StateValue(1, None, reminders=late)),
            state_key("cart", "b"): row(3, StateValue(1, b"x")),
            state_key("cart", "c"): row(3, StateValue(1, None, reminders=early)),
            state_key("cart", "d"): row(3, StateValue(1, None, reminders=late._replace(shard="8"))),
            list_key("cart", "7"): row(3, listed, promise=4),
            list_key("cart", "9"): row(3, ListValue(3, frozenset({"x"}))),
        }
    )
    assert reopen_reminders(registers, 99) == 2
    after = registers.row(list_key("cart", "7"))
    assert isinstance(after.value, ListValue)
    assert after.value[:3] == (3, frozenset({"x"}), {"c": 40})
    assert after.value.open.keys() == {"a", "b"}
    assert after.ballot > Ballot(4, 0, 1, 1)
    other = registers.row(list_key("cart", "8")).value
    assert isinstance(other, ListValue)
    assert other.open.keys() == {"d"}
    assert reopen_reminders(registers, 100) == 0


def test_a_damaged_epoch_is_not_followed() -> None:
    registers = of({table_key("cart"): row(EPOCH_MAX, TABLE._replace(epoch=EPOCH_MAX))})
    assert skip_epochs(registers, 99) == {}


def disk(number: int, ring: ReplicaRing, voting: frozenset[int] = EVERY) -> RingDisk:
    made = RingDisk(number)
    made.replay(PlaceRecord(ring, voting, voting, voting))
    return made


def test_nothing_is_lost_while_a_majority_that_votes_is_left() -> None:
    later = next_ring(RING, (*MEMBERS[:2], RingMember(4, address="10.0.0.4:7357")))
    both = remains([disk(1, RING), disk(2, RING)], ())
    assert (both.suffices, both.lost) == (True, MEMBERS[2:])
    alone = remains([disk(1, RING)], ())
    assert (alone.suffices, alone.lost) == (False, MEMBERS[1:])
    assert not remains([disk(1, RING), disk(2, RING)], [2]).suffices, "one is spoiled"
    assert not remains([disk(1, RING), disk(2, later)], ()).suffices, "of two rings"
    assert not remains([disk(1, later), disk(4, later, frozenset())], ()).suffices, "unmerged"
    assert remains([disk(1, later), disk(4, later)], ()).suffices


def test_disks_of_two_stores_and_blank_ones_are_refused() -> None:
    other = first_ring((RingMember(8), RingMember(9)), 2)
    with pytest.raises(ValueError, match="two stores"):
        remains([disk(1, RING), disk(8, other)], ())
    with pytest.raises(ValueError, match="no disk"):
        remains([RingDisk(5)], ())
    assert RingDisk(5).ring == NO_RING


def test_differences_name_the_disk_that_is_behind() -> None:
    key, other = state_key("cart", "a"), lease_key("x")
    old, new = row(1, StateValue(1, b"o")), row(1, StateValue(2, b"n"), k=2)
    disks = {1: of({key: new}), 2: of({key: old}), 3: of({key: new, other: row(0, None)})}
    behind = list(differences(disks))
    assert Difference(key, 2, 1) in behind
    assert {(each.key, each.disk) for each in behind} == {(other, 1), (other, 2), (key, 2)}
    spoiled = of({key: new._replace(value=StateValue(2, b"?"))})
    assert list(differences({1: of({key: new}), 2: spoiled})) == [Difference(key, 2, 1, True)]
    promised = of({key: Row(ballot(9), ZERO, None)})
    assert list(differences({1: promised, 2: Registers()})) == [], "a promise is no row"
    assert shown_key(key) == "state cart/a"


def test_only_a_difference_that_stays_counts() -> None:
    old, new, newer = (row(1, StateValue(k, b"v"), k=k) for k in (1, 2, 3))
    before = {1: {"k": new}, 2: {"k": old}, 3: {"k": new}}
    assert [each.disk for each in lasting(before, before)] == [2]
    assert lasting(before, before | {2: {"k": new}}) == []
    assert [each.disk for each in lasting(before, {1: {"k": newer}, 2: {"k": old}})] == [2]
    assert [each.disk for each in lasting({1: {"k": new}, 2: {}}, {1: {"k": new}, 2: {}})] == [2]
    spoiled = {1: {"k": new}, 2: {"k": new._replace(value=None)}}
    assert [each.contradicts for each in lasting(spoiled, spoiled)] == [True]


def test_a_bucket_is_read_from_each_disk_unless_they_agree() -> None:
    digests = {7: (0, 5, 5, 0), 8: (0, 5, 6, 1)}
    assert buckets_to_read(2, digests) == [(33, (7,)), (34, (7, 8)), (35, (7, 8))]
