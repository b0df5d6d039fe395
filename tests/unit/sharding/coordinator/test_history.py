"""The history of shards: changes, reasons and durations."""

from __future__ import annotations

import pytest

from shardbus.ids import NodeId
from shardbus.sharding import events as ev
from shardbus.sharding import messages as msg
from shardbus.sharding.coordinator.history import BUCKETS, CHANGES_MAX, SHARDS_MAX, ShardHistory
from shardbus.sharding.messages import Home
from shardbus.store.protocol import StoredTable
from tests.unit.sharding.coordinator.test_coordinator import (
    FENCE,
    LAYOUT,
    A,
    B,
    C,
    CoordinatorDriver,
    ack,
    move,
    ready,
    started,
)

Seen = list[tuple[NodeId | None, NodeId | None, str, int]]


def seen(driver: CoordinatorDriver, shard: str = "1") -> Seen:
    """From, to, why and fence."""
    history = driver.coordinator.history.of(shard)
    assert all(change.epoch == driver.coordinator.epoch for change in history)
    return [(c.source, c.target, c.why, c.fence) for c in history]


def stops(driver: CoordinatorDriver, home: Home) -> None:
    driver.handle(ev.MessageReceived(home.node, msg.ShardStopped(home.node, (home,))))


def test_N13_the_first_home_and_a_move_for_the_balance() -> None:
    driver = CoordinatorDriver(live=(A,))
    home = move(driver)
    assert seen(driver, home.shard) == [(None, A, "asked", home.fence)]
    began = driver.now
    driver.now += 2.0
    assert driver.coordinator.unsettled_since(home.shard) == began
    ack(driver, A, home)
    ack(driver, B, home)
    stops(driver, home)
    assert len(seen(driver, home.shard)) == 1, "it is recorded once it is durable"
    driver.now += 1.0
    driver.persisted()
    assert seen(driver, home.shard)[1:] == [(A, B, "rebalance", FENCE + 2)]
    change = driver.coordinator.history.of(home.shard)[-1]
    assert (change.at, change.seconds) == (driver.now, driver.now - began)
    assert driver.coordinator.unsettled_since(home.shard) == driver.now, "it starts at B"
    started(driver, B)
    assert driver.coordinator.unsettled_since(home.shard) is None


def test_N13_the_death_of_a_node_is_the_reason_even_during_a_handoff() -> None:
    driver = CoordinatorDriver(live=(A,))
    moving = move(driver)
    [other] = [h for h in driver.coordinator.table.homes.values() if h.shard != moving.shard]
    driver.now += 1.0
    driver.handle(ev.MembersChanged((B,)))
    driver.now += 0.5
    driver.persisted()
    assert seen(driver, moving.shard)[1:] == [(A, B, "node_gone", FENCE + 2)]
    assert seen(driver, other.shard)[1:] == [(A, B, "node_gone", FENCE + 3)]
    assert driver.coordinator.history.of(other.shard)[-1].seconds == 0.5
    assert driver.coordinator.history.freed(A) == (2, 2)
    assert driver.coordinator.history.freed(B) == (0, 0)


def test_N13_the_reason_for_a_leaving_node_is_drain() -> None:
    driver = ready()
    home = driver.home("1")
    driver.handle(ev.MessageReceived(A, msg.GracefulShutdownRequest(A)))
    ack(driver, A, home)
    ack(driver, B, home)
    stops(driver, home)
    driver.persisted()
    assert seen(driver)[1:] == [(A, B, "drain", FENCE + 1)]


def test_N13_a_stopped_shard_runs_nowhere_until_the_next_request() -> None:
    driver = ready()
    home = driver.home("1")
    stops(driver, home)
    driver.persisted()
    home = driver.home("1")
    driver.handle(ev.StopShards(("1",)))
    ack(driver, A, home)
    ack(driver, B, home)
    stops(driver, home)
    driver.persisted()
    assert seen(driver) == [
        (None, A, "asked", FENCE),
        (A, None, "ended", 0),
        (None, A, "asked", FENCE + 1),
        (A, None, "stop", 0),
    ]
    assert sum(driver.coordinator.history.moved) == 0, "nothing has moved"


def test_N13_what_a_region_reports_to_a_new_coordinator() -> None:
    driver = CoordinatorDriver(stored=StoredTable(4, LAYOUT, {"1": (A, 5)}))
    last = 4 << 32  # of the former epoch
    driver.register(A)
    driver.handle(
        ev.MessageReceived(B, msg.Register(B, False, LAYOUT, (Home("1", B, 9), Home("2", B, last))))
    )
    driver.persisted()
    assert seen(driver) == [(A, B, "reported", 9)]
    assert seen(driver, "2") == [(None, B, "reported", last)]


def test_a_node_that_died_during_the_write_is_not_in_the_history() -> None:
    driver = ready()
    driver.ask(A, "1", "2")
    driver.handle(ev.MembersChanged((A,)))
    driver.persisted()
    driver.persisted()
    assert seen(driver) == [(None, A, "asked", FENCE)]
    assert seen(driver, "2") == [(None, A, "asked", FENCE + 2)]


# The bounds


def changes(history: ShardHistory, shard: str, count: int) -> None:
    for number in range(count):
        home = Home(shard, A, number + 1)
        history.leaves(home, "rebalance", float(number))
        history.record(shard, home, Home(shard, B, number + 2), 1, number + 0.1, reported=False)


def test_only_the_last_changes_of_a_shard_are_kept() -> None:
    history = ShardHistory()
    changes(history, "1", CHANGES_MAX + 3)
    assert [change.fence for change in history.of("1")] == [n + 5 for n in range(CHANGES_MAX)]
    assert sum(history.moved) == CHANGES_MAX + 3


def test_only_the_shards_that_changed_last_are_kept() -> None:
    history = ShardHistory()
    for number in range(SHARDS_MAX):
        changes(history, str(number), 1)
    changes(history, "0", 1)
    changes(history, "new", 1)
    assert len(history.of("0")) == 2
    assert history.of("1") == ()
    assert len(history.of("new")) == 1


@pytest.mark.parametrize(
    ("seconds", "place"), [(0.0, 0), (0.005, 0), (0.0051, 1), (60.0, -2), (61.0, -1)]
)
def test_B150_moves_are_counted_by_how_long_they_took(seconds: float, place: int) -> None:
    history = ShardHistory()
    history.leaves(Home("1", A, 1), "drain", 0.0)
    history.record("1", None, Home("1", C, 2), 1, seconds, reported=False)
    counts = [0] * (len(BUCKETS) + 1)
    counts[place] = 1
    assert history.moved == counts
    assert history.moved_seconds == pytest.approx(seconds)


def test_a_reason_for_an_earlier_home_does_not_count_for_a_later_one() -> None:
    history = ShardHistory()
    early, late = Home("1", A, 1), Home("1", B, 2)
    history.leaves(early, "rebalance", 1.0)
    history.leaves(late, "drain", 2.0)
    history.leaves(late, "rebalance", 3.0)
    history.record("1", late, None, 1, 4.0, reported=False)
    assert [(c.source, c.why, c.seconds) for c in history.of("1")] == [(B, "drain", 2.0)]


def test_the_recent_changes_of_all_shards_are_in_the_order_of_their_times() -> None:
    history = ShardHistory()
    for at, shard in enumerate(("1", "2", "1", "3", "2"), 1):
        history.record(shard, None, Home(shard, A, at), 1, float(at), reported=False)
    assert [(shard, c.at) for shard, c in history.recent(4)] == [
        ("2", 5.0),
        ("3", 4.0),
        ("1", 3.0),
        ("2", 2.0),
    ]
    assert history.recent(0) == []
