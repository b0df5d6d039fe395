"""How the number of instances follows the nodes."""

from __future__ import annotations

from typing import Any

import pytest

from shardbus.ids import NodeId
from shardbus.sharding.coordinator.instance_rows import (
    FALLS_AFTER_S,
    RISES_AFTER_S,
    SHRINK_AFTER_S,
    InstanceRows,
)
from shardbus.sharding.instances import Instances, TypeLoad
from shardbus.sharding.messages import ShardLoads

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


def test_a_successor_takes_no_N_from_the_table_that_only_nodes_had_called_for() -> None:
    rows = InstanceRows(Instances(survive=lambda n: (n - 1) // 2))
    rows.load(["17~1", "17~2", "17~3"])
    assert not rows.update(2, 0.0)
    assert rows.update(2, SHRINK_AFTER_S)
    assert rows.count == 1


def by_load(per_instance: float = 100.0, most: int = 9) -> InstanceRows:
    rows = InstanceRows(Instances(per_instance=per_instance, most=most))
    assert rows.update(5, 0.0)
    assert rows.count == 1
    return rows


def test_S3_49_N_rises_after_a_while_of_load_and_falls_after_a_longer_one() -> None:
    rows = by_load()
    rows.by_load.loads = {A: TypeLoad(150.0), B: TypeLoad(100.0)}
    assert not rows.update(5, 10.0)
    assert rows.deadline() == 10.0 + RISES_AFTER_S
    assert not rows.update(5, 10.0 + RISES_AFTER_S - 0.1)
    assert rows.update(5, 10.0 + RISES_AFTER_S)
    assert (rows.count, rows.deadline()) == (3, None)
    rows.by_load.loads = {A: TypeLoad(149.0)}  # less than half of 300
    assert not rows.update(5, 100.0)
    assert rows.deadline() == 100.0 + FALLS_AFTER_S
    assert not rows.update(5, 100.0 + FALLS_AFTER_S)  # now fewer are due, as after a node's end
    assert rows.update(5, 100.0 + FALLS_AFTER_S + SHRINK_AFTER_S)
    assert rows.count == 2


def test_a_gust_of_load_changes_nothing_in_either_direction() -> None:
    rows = by_load()
    for at in range(0, 1000, 20):
        rows.by_load.loads = {A: TypeLoad(500.0 if at % 40 else 90.0)}
        assert not rows.update(5, float(at))
    assert rows.count == 1
    rows.by_load.count = 3
    rows.update(5, 1000.0)
    assert rows.count == 3
    for at in range(1000, 3000, 200):
        rows.by_load.loads = {A: TypeLoad(10.0 if at % 400 else 160.0)}
        assert not rows.update(5, float(at))
    assert rows.count == 3


def test_a_load_between_half_and_all_of_what_is_enough_keeps_N() -> None:
    for load in (150.0, 200.0, 300.0):
        rows = by_load()
        rows.by_load.count = 3
        rows.update(5, 0.0)
        rows.by_load.loads = {A: TypeLoad(load)}
        for at in (1.0, 400.0, 2000.0):
            assert not rows.update(5, at)
        assert rows.count == 3


def test_the_load_counts_up_to_the_nodes_and_the_most() -> None:
    for nodes, most, expected in ((5, 9, 5), (5, 4, 4), (2, 9, 2)):
        rows = by_load(most=most)
        rows.by_load.loads = {A: TypeLoad(10_000.0)}
        rows.update(nodes, 0.0)
        rows.update(nodes, RISES_AFTER_S)
        rows.update(nodes, RISES_AFTER_S + SHRINK_AFTER_S)
        assert rows.count == expected


def test_the_load_of_a_node_that_is_gone_does_not_count() -> None:
    rows = by_load()
    rows.by_load.loads = {A: TypeLoad(250.0), B: TypeLoad(90.0)}
    rows.by_load.forget_others([B])
    rows.update(5, 0.0)
    assert rows.deadline() is None


@pytest.mark.parametrize(
    ("report", "load"),
    [
        (ShardLoads(A, {"1~1": 70.0, "1~2": 30.0}), TypeLoad(100.0, None, None)),
        (ShardLoads(A, {"1~1": 0.7}, "time", 0.5, 250.0, 0.7), TypeLoad(250.0, 0.7, None)),
        (
            ShardLoads(A, {"1~1": 9.0}, "memory", 1.0, 0.0, waiting=4.0, expected=50.0),
            TypeLoad(0.0, None, 4.0, 50.0),
        ),
    ],
    ids=["an older node", "handlers", "memory"],
)
def test_N_follows_the_type_whatever_the_unit_of_the_balance(
    report: ShardLoads, load: TypeLoad
) -> None:
    rows = by_load()
    rows.by_load.record(report)
    assert rows.by_load.loads == {A: load}


EACH = Instances(per_instance=100.0, busy_per_instance=0.5, waiting_per_instance=20.0)


@pytest.mark.parametrize(
    ("at_a", "at_b", "count"),
    [
        (TypeLoad(50.0, 0.2, 9.0), TypeLoad(50.0, 0.3, 11.0), 1),  # as much as one is enough for
        (TypeLoad(150.0), TypeLoad(100.0), 3),
        (TypeLoad(1.0, 0.8), TypeLoad(1.0, 0.8), 4),
        (TypeLoad(1.0, 0.0, 60.0), TypeLoad(1.0, 0.0, 60.0), 6),
        (TypeLoad(expected=450.0), TypeLoad(expected=300.0), 5),  # the highest, not the sum
        (TypeLoad(100.0, expected=150.0), TypeLoad(100.0), 2),  # messages beyond it count
        (TypeLoad(250.0, 0.7, 70.0), TypeLoad(), 4),  # of all figures the highest
        (TypeLoad(150.0, None, None), TypeLoad(100.0, 1.0, None), 3),  # the known figures of both
    ],
)
def test_S3_49_N_follows_messages_handlers_mailboxes_and_what_is_expected(
    at_a: TypeLoad, at_b: TypeLoad, count: int
) -> None:
    rows = InstanceRows(EACH)
    rows.by_load.loads = {A: at_a, B: at_b}
    rows.update(9, 0.0)
    rows.update(9, RISES_AFTER_S)
    assert rows.count == count


@pytest.mark.parametrize("limit", ["busy_per_instance", "waiting_per_instance"])
def test_S3_49_each_figure_rises_and_falls_as_late_as_messages_do(limit: str) -> None:
    limits: dict[str, Any] = {limit: 10.0}
    rows = InstanceRows(Instances(**limits))
    rows.update(9, 0.0)
    rows.by_load.loads = {A: TypeLoad(busy=25.0, waiting=25.0)}
    assert not rows.update(9, 1.0)
    assert rows.deadline() == 1.0 + RISES_AFTER_S
    assert rows.update(9, 1.0 + RISES_AFTER_S)
    assert rows.count == 3
    rows.by_load.loads = {A: TypeLoad(busy=14.0, waiting=14.0)}
    assert not rows.update(9, 100.0)
    assert rows.deadline() == 100.0 + FALLS_AFTER_S


def test_N_does_not_fall_while_a_node_leaves_out_what_matters() -> None:
    for lacking in (TypeLoad(1.0, busy=None), TypeLoad(1.0, waiting=None)):
        rows = InstanceRows(EACH)
        rows.load(["17~4"])
        rows.by_load.loads = {A: lacking, B: TypeLoad(1.0)}
        rows.update(9, 0.0)
        assert rows.by_load.deadline() is None
        rows.by_load.forget_others([B])
        rows.update(9, 0.0)
        assert rows.by_load.deadline() == FALLS_AFTER_S
    rows = by_load()  # where only messages matter, they are enough
    rows.by_load.count = 4
    rows.by_load.loads = {A: TypeLoad(1.0, None, None)}
    rows.update(9, 0.0)
    assert rows.by_load.deadline() == FALLS_AFTER_S


def test_a_successor_keeps_the_instances_that_the_load_called_for() -> None:
    rows = InstanceRows(Instances(per_instance=100.0))
    rows.load(["17~1", "17~2", "17~3"])
    rows.by_load.loads = {A: TypeLoad(250.0)}
    for at in (0.0, 15.0, 60.0, 1000.0):
        assert not rows.update(5, at)
    assert rows.count == 3
