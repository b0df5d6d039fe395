"""Whether the mailboxes of a shard that stops are settled, without a look at all of them."""

from __future__ import annotations

from random import Random
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from shardbus.entities.activation import Shard
from shardbus.entities.mailbox_table import EntityMailbox, MailboxTable


class Machine:
    """A mailbox that is stopped, and settled some time after that."""

    looks = 0

    def __init__(self) -> None:
        self.stopping = self.settled = False
        self.stops = 0

    @property
    def is_settled(self) -> bool:
        Machine.looks += 1
        return self.settled


def shard(name: str) -> Shard:
    return Shard(name, 7, cast("Any", None))


def mailbox(key: str, hosted: Shard) -> EntityMailbox:
    return EntityMailbox(key, hosted, cast("Any", Machine()))


def machine(box: EntityMailbox) -> Machine:
    return cast("Machine", box.machine)


@given(st.integers(0, 2**32), st.integers(0, 8))
def test_a_shard_is_settled_once_each_of_its_mailboxes_was_stopped_and_is_settled(
    seed: int, count: int
) -> None:
    dice, table, stopped = Random(seed), MailboxTable(), list[EntityMailbox]()
    one, other = shard("1"), shard("2")
    boxes = [mailbox(f"e{n}", one) for n in range(count)]
    for box in [*boxes, mailbox("x", other)]:
        table.add(box)

    def stop(box: EntityMailbox) -> None:
        machine(box).stopping = True
        machine(box).stops += 1
        machine(box).settled = dice.random() < 0.3
        stopped.append(box)
        if dice.random() < 0.2:  # it was empty
            table.remove(box)
            box.closed = True

    for _ in range(30):
        settled = table.settles(one, stop)
        here = [box for box in boxes if not box.closed]
        assert settled == all(machine(b).settled for b in here if machine(b).stops)
        assert not settled or all(machine(b).stops for b in here)
        assert table.of(one) == here
        if here and dice.random() < 0.7:
            machine(dice.choice(here)).settled = True
        if dice.random() < 0.2:
            boxes.append(mailbox(f"e{len(boxes)}", one))
            table.add(boxes[-1])
        if here and dice.random() < 0.1:
            table.remove(gone := dice.choice(here))
            gone.closed = True
    for box in boxes:
        machine(box).settled = True
    while not table.settles(one, stop):
        for box in boxes:
            machine(box).settled = True
    assert all(machine(box).stops == 1 for box in boxes if not box.closed)
    assert [box.key for box in table.of(other)] == ["x"]
    assert machine(table.of(other)[0]).stops == 0


def test_the_looks_grow_with_the_mailboxes_and_not_with_their_square() -> None:
    table, hosted, count = MailboxTable(), shard("1"), 200
    boxes = [mailbox(f"e{n}", hosted) for n in range(count)]
    for box in boxes:
        table.add(box)
    Machine.looks = 0

    def stop(box: EntityMailbox) -> None:
        machine(box).stopping = True

    for box in boxes:
        assert not table.settles(hosted, stop)
        machine(box).settled = True
    assert table.settles(hosted, stop)
    assert Machine.looks <= 3 * count


def test_a_mailbox_that_gives_way_to_a_later_one_of_its_entity_removes_itself_alone() -> None:
    table, former, later = MailboxTable(), shard("1"), shard("1")
    first, second = mailbox("e", former), mailbox("e", later)
    table.add(first)
    table.remove(first)
    table.add(second)
    table.remove(first)
    assert table.by_key == {"e": second}
    assert (table.of(former), table.of(later)) == ([], [second])
    table.clear()
    assert (table.by_key, table.of(later)) == ({}, [])
