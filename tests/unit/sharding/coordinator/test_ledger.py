"""The ledger: reported homes around the death, the shutdown and the restart of their node, and
after a split."""

from __future__ import annotations

import pytest

from shardbus.ids import NodeId
from shardbus.sharding.allocation.distinct import DistinctRows
from shardbus.sharding.allocation.strategies import AllocationStrategy, LeastShard
from shardbus.sharding.coordinator.ledger import ANY_HOME, Ledger, Place, WantedHome, no_hosts
from shardbus.sharding.messages import Home
from shardbus.sharding.table import ShardTable

A, B, C = (NodeId(name, 1, 1) for name in "abc")
EPOCH = 3
REPORTED = Home("1", B, 70)


def ledger(*nodes: NodeId) -> Ledger:
    made = Ledger(ShardTable(0, "crc32/8"))
    made.load(EPOCH, {})
    for node in nodes:
        made.register(node, 0.0, proxy=False)
    return made


def by(strategy: AllocationStrategy) -> Place:
    return lambda homeless: homeless.place(strategy, {})


def adopting() -> Ledger:
    """B reported a home that the table does not have."""
    made = ledger(A, B)
    assert made.reconcile(B, [REPORTED]).adopted == [REPORTED]
    return made


def hosts(avoid: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    return (A,)


def test_an_adopted_home_is_written_and_not_settled_before() -> None:
    made = adopting()
    assert made.home_of("1") is None
    writing = made.plan(by(LeastShard()), no_hosts)
    assert writing is not None
    assert writing.homes == {"1": REPORTED}
    assert made.apply_write(1.0) == [REPORTED]
    assert made.home_of("1") == REPORTED
    assert made.adopted == {}


def test_an_adopted_home_on_a_dead_node_is_dropped_and_its_shard_wanted() -> None:
    made = adopting()
    made.remove_nodes([B], 1.0)
    assert made.adopted == {}
    assert made.wanted_homes == {"1": ANY_HOME}
    writing = made.plan(by(LeastShard()), hosts)
    assert writing is not None
    assert [home and home.node for home in writing.homes.values()] == [A]


def test_an_adopted_home_of_a_living_node_survives_the_death_of_another() -> None:
    made = adopting()
    made.remove_nodes([A], 1.0)
    assert made.adopted == {"1": REPORTED}
    assert made.wanted_homes == {}


def test_a_shard_whose_older_home_is_in_the_table_is_not_wanted_when_the_adopter_dies() -> None:
    made = ledger(A, B)
    made.want("1")
    made.plan(by(LeastShard()), hosts)
    [old] = made.apply_write(0.0)
    newer = Home("1", B, old.fence + 5)
    assert made.reconcile(B, [newer]).losers == [old]
    made.remove_nodes([B], 1.0)
    assert made.wanted_homes == {}
    assert made.home_of("1") == old


def test_a_node_that_becomes_a_proxy_during_the_write_of_its_home_loses_it() -> None:
    made = adopting()
    assert made.plan(by(LeastShard()), no_hosts) is not None
    made.register(B, 1.0, proxy=True)
    assert made.apply_write(2.0) == []
    assert made.wanted_homes == {"1": ANY_HOME}
    assert made.table.homes == {}


@pytest.mark.parametrize("written", [False, True])
def test_a_node_with_an_adopted_home_hosts_something(written: bool) -> None:
    made = adopting()
    if written:
        made.plan(by(LeastShard()), no_hosts)
    assert not made.hosts_nothing(B)
    assert made.hosts_nothing(A)


def test_a_node_that_gets_a_home_by_the_write_under_way_hosts_something() -> None:
    made = ledger(A, B)
    made.want("1", WantedHome(target=A))
    made.plan(by(LeastShard()), hosts)
    assert made.table.shards_at(A) == {}
    assert not made.hosts_nothing(A)
    assert made.hosts_nothing(B)


def test_fences_are_above_those_adopted_in_the_same_write() -> None:
    made = ledger(A, B)
    high = Home("2", B, 99 << 32)
    made.reconcile(B, [high])
    made.want("1")
    writing = made.plan(by(LeastShard()), hosts)
    assert writing is not None
    assert writing.homes == {"2": high, "1": Home("1", A, high.fence + 1)}


# A side of a split reports homes that the other side has granted anew since


def taken_over(rows: dict[str, tuple[NodeId, int]]) -> Ledger:
    """A ledger of epoch 6 on A and B, whose former coordinator, of epoch 5, is gone with node C."""
    made = Ledger(ShardTable(0, "crc32/8"))
    made.load(6, rows, 5)
    for node in (A, B):
        made.register(node, 0.0, proxy=False)
    made.remove_nodes([node for node in made.table.regions if node == C], 0.0)
    return made


@pytest.mark.parametrize(
    ("row", "reported", "renewed"),
    [
        (5 << 32, (4 << 32) + 3, True),
        (5 << 32, 5 << 32, False),
        ((3 << 32) + 1, 4 << 32, False),
        (None, (4 << 32) + 3, True),  # the former coordinator has removed the row
        (None, 5 << 32, False),
        (None, 6 << 32, False),
    ],
)
def test_a_home_below_the_last_fence_of_its_shard_counts_under_a_new_one(
    row: int | None, reported: int, renewed: bool
) -> None:
    made = taken_over({} if row is None else {"3": (C, row)})
    home = Home("3", B, reported)
    found = made.reconcile(B, [home])
    assert found.adopted == ([] if renewed else [home])
    assert [(new.shard, new.node, new.fence >> 32) for new in found.renewed] == (
        [("3", B, 6)] if renewed else []
    )
    assert made.reconcile(B, [home]).renewed == []
    writing = made.plan(by(LeastShard()), hosts)
    assert writing is not None
    assert writing.homes == {"3": found.renewed[0] if renewed else home}
    assert made.apply_write(1.0) == [writing.homes["3"]]
    assert made.wanted_homes == {}


def test_a_store_that_lost_its_table_has_no_last_fences() -> None:
    made = Ledger(ShardTable(0, "crc32/8"))
    made.load(6, {}, 0)
    made.register(B, 0.0, proxy=False)
    assert made.reconcile(B, [REPORTED]).adopted == [REPORTED]


def test_the_last_fence_of_a_shard_stands_after_its_row_is_removed() -> None:
    made = taken_over({"3": (A, 5 << 32)})
    made.want("4")
    made.plan(by(LeastShard()), hosts)
    [home] = made.apply_write(1.0)
    for former in (home, Home("3", A, 5 << 32)):
        made.free(former, "drain", 1.0)
    assert made.plan(by(LeastShard()), hosts) is not None
    assert made.apply_write(1.0) == []
    late = [Home("3", B, (4 << 32) + 3), Home("4", B, home.fence - 1)]
    assert [new.shard for new in made.reconcile(B, late).renewed] == ["3", "4"]


def test_of_two_outdated_homes_one_is_renewed_and_the_other_ends() -> None:
    made = taken_over({"3": (C, 5 << 32)})
    [renewed] = made.reconcile(A, [Home("3", A, 3 << 32)]).renewed
    other = Home("3", B, 4 << 32)
    assert made.reconcile(B, [other]).losers == [other]
    assert made.adopted == {"3": renewed}


def test_fences_of_a_write_that_came_to_nothing_are_not_used_again() -> None:
    made = ledger(A, B)
    made.want("1")
    first = made.plan(by(LeastShard()), hosts)
    assert first is not None
    made.remove_nodes([A], 1.0)
    assert made.apply_write(1.0) == []
    made.register(A, 1.0, proxy=False)
    second = made.plan(by(LeastShard()), hosts)
    assert second is not None
    fences = [write.homes["1"].fence for write in (first, second) if write.homes["1"] is not None]
    assert fences[0] < fences[1]


def test_a_row_goes_to_a_node_to_avoid_if_every_other_one_hosts_a_sibling() -> None:
    """A region that is late to acknowledge a hand-off is avoided if there are others. Of a row,
    nodes with another instance are no others."""
    made = ledger(A, B)
    made.rows = True
    strategy = DistinctRows(LeastShard())
    made.want("7~1", WantedHome(target=A))
    writing = made.plan(by(strategy), lambda avoid: (A, B))
    assert writing is not None
    made.apply_write(1.0)
    made.want("7~2", WantedHome(avoid=(B,)))
    made.want("8~1", WantedHome(avoid=(B,)))
    writing = made.plan(by(strategy), lambda avoid: (A,) if avoid else (A, B))
    assert writing is not None
    nodes = {row: home.node for row, home in writing.homes.items() if home is not None}
    assert nodes == {"7~2": B, "8~1": A}
