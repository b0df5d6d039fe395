"""The shard table: every event, every guard, and a dumb reference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.errors import LocalProtocolError
from shardbus.ids import NodeId
from shardbus.sharding.messages import Home
from shardbus.sharding.table import (
    ProxyRegistered,
    ProxyTerminated,
    RegionRegistered,
    RegionTerminated,
    ShardHomeAllocated,
    ShardHomeDeallocated,
    ShardTable,
    TableEvent,
)

A, B, C = (NodeId("n", port, port) for port in (1, 2, 3))


def table(*events: TableEvent) -> ShardTable:
    return ShardTable(1, "crc32/8").updated_all(events)


AT_A = table(RegionRegistered(A), ShardHomeAllocated(Home("1", A, 7)))


def test_a_dead_region_loses_its_homes() -> None:
    after = AT_A.updated(RegionRegistered(B)).updated(RegionTerminated(A))
    assert not after.homes
    assert list(after.regions) == [B]
    assert AT_A.homes["1"] == Home("1", A, 7), "the old value is unchanged"


def test_a_shard_moves_by_leaving_and_arriving() -> None:
    after = AT_A.updated_all(
        [RegionRegistered(B), ShardHomeDeallocated("1"), ShardHomeAllocated(Home("1", B, 8))]
    )
    assert list(after.shards_at(B)) == ["1"]
    assert not after.shards_at(A)
    assert list(AT_A.shards_at(A)) == ["1"]


IMPOSSIBLE: list[tuple[ShardTable, TableEvent, str]] = [
    (AT_A, RegionRegistered(A), "is registered already"),
    (table(ProxyRegistered(A)), RegionRegistered(A), "registered as a proxy"),
    (AT_A, RegionTerminated(B), "is not registered"),
    (table(ProxyRegistered(A)), ProxyRegistered(A), "is registered already"),
    (AT_A, ProxyRegistered(A), "registered as a region"),
    (AT_A, ProxyTerminated(B), "is not registered"),
    (AT_A, ShardHomeAllocated(Home("1", A, 8)), f"lives at {A} already"),
    (AT_A, ShardHomeAllocated(Home("2", B, 8)), "is not registered"),
    (AT_A, ShardHomeAllocated(Home("2", A, 0)), "is not positive"),
    (AT_A, ShardHomeDeallocated("2"), "has no home"),
]


@pytest.mark.parametrize(("before", "event", "why"), IMPOSSIBLE)
def test_impossible_events_are_refused_and_named(
    before: ShardTable, event: TableEvent, why: str
) -> None:
    with pytest.raises(LocalProtocolError, match="impossible change of the shard table") as error:
        before.updated(event)
    assert why in str(error.value)
    before.check()


def test_fences_grow_over_shards_and_over_epochs() -> None:
    assert ShardTable(3, "x").next_fence == 3 << 32
    assert AT_A.next_fence == 1 << 32
    later = AT_A.updated(ShardHomeAllocated(Home("2", A, (9 << 32) + 5)))
    assert later.next_fence == (9 << 32) + 6, "the store forgot the epoch, a region remembered"
    assert later.updated(ShardHomeDeallocated("2")).next_fence == (9 << 32) + 6


def test_a_batch_keeps_the_order_of_allocation() -> None:
    homes = [ShardHomeAllocated(Home(str(i), A, i + 1)) for i in range(1000)]
    full = table(RegionRegistered(A), *homes)
    full.check()
    assert len(full.shards_at(A)) == 1000
    assert list(full.shards_at(A)) == [str(i) for i in range(1000)]


EVENTS: list[Callable[[NodeId, str, int], TableEvent]] = [
    lambda node, shard, fence: RegionRegistered(node),
    lambda node, shard, fence: RegionTerminated(node),
    lambda node, shard, fence: ProxyRegistered(node),
    lambda node, shard, fence: ProxyTerminated(node),
    lambda node, shard, fence: ShardHomeAllocated(Home(shard, node, fence)),
    lambda node, shard, fence: ShardHomeDeallocated(shard),
]
SOME_EVENTS = st.lists(
    st.builds(
        lambda make, node, shard, fence: make(node, shard, fence),
        st.sampled_from(EVENTS),
        st.sampled_from([A, B, C]),
        st.sampled_from("12345"),
        st.integers(1, 99),
    ),
    max_size=40,
)


@given(SOME_EVENTS)
def test_in_one_batch_or_one_by_one_is_the_same(events: list[TableEvent]) -> None:
    possible: list[TableEvent] = []
    one_by_one = ShardTable(1, "x")
    for event in events:
        try:
            one_by_one = one_by_one.updated(event)
        except LocalProtocolError:
            continue
        possible.append(event)
        one_by_one.check()
    assert ShardTable(1, "x").updated_all(possible) == one_by_one
