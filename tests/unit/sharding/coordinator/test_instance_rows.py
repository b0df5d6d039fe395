"""How the number of instances follows the nodes."""

from __future__ import annotations

from shardbus.ids import NodeId
from shardbus.sharding.coordinator.instance_rows import SHRINK_AFTER_S, InstanceRows
from shardbus.sharding.instances import Instances

A, B = NodeId("10.0.0.1", 1, 1), NodeId("10.0.0.2", 1, 2)


def test_N_grows_at_once_and_shrinks_late() -> None:
    rows = InstanceRows(Instances(exact=3))
    assert [rows.update(n, 0.0) for n in (1, 2, 3, 4)] == [True, True, True, False]
    assert (rows.count, rows.deadline()) == (3, None)
    assert not rows.update(2, 5.0)
    assert rows.deadline() == 5.0 + SHRINK_AFTER_S
    assert not rows.update(3, 6.0)  # the node is back
    assert rows.deadline() is None
    assert not rows.update(2, 20.0)
    assert not rows.update(2, 20.0 + SHRINK_AFTER_S - 0.1)
    assert rows.update(2, 20.0 + SHRINK_AFTER_S)
    assert (rows.count, rows.deadline()) == (2, None)


def test_unknown_nodes_change_nothing_and_set_no_deadline() -> None:
    rows = InstanceRows(Instances(exact=3))
    rows.update(3, 0.0)
    rows.update(2, 1.0)
    assert not rows.update(0, 99.0)
    assert (rows.count, rows.deadline()) == (3, None)


def test_a_successor_takes_N_from_the_table() -> None:
    rows = InstanceRows(Instances(exact=3))
    rows.load(["17~1", "17~2", "4~3"])
    assert rows.count == 3
    assert [rows.exists(row) for row in ("17", "17~1", "17~3", "17~4")] == [
        False, True, True, False
    ]  # fmt: skip
    assert rows.siblings("17~2") == ["17~1", "17~2", "17~3"]


def test_each_region_learns_N_once_and_again_when_it_changes_or_registers() -> None:
    rows = InstanceRows(Instances(exact=2))
    rows.update(1, 0.0)
    assert rows.to_inform([A]) == [A]
    assert rows.to_inform([A, B]) == [B]
    rows.update(2, 0.0)
    assert rows.to_inform([A, B]) == [A, B]
    assert rows.to_inform([A, B]) == []
    rows.forget(A)
    assert rows.to_inform([A, B]) == [A]
