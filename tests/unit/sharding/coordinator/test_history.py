"""What a coordinator can say of the past of its shards."""

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
    Desk,
    ack,
    move,
    ready,
)

Seen = list[tuple[NodeId | None, NodeId | None, str, int]]


def seen(desk: Desk, shard: str = "1") -> Seen:
    """From, to, why and fence."""
    found = desk.coordinator.history.of(shard)
    assert all(change.epoch == desk.coordinator.epoch for change in found)
    return [(c.source, c.target, c.why, c.fence) for c in found]


def stops(desk: Desk, home: Home) -> None:
    desk.tell(ev.MessageReceived(home.node, msg.ShardStopped(home.node, (home,))))


def test_N13_the_first_home_and_a_move_for_the_balance() -> None:
    desk = Desk(live=(A,))
    home = move(desk)
    assert seen(desk, home.shard) == [(None, A, "asked", home.fence)]
    began = desk.now
    desk.now += 2.0
    ack(desk, A, home)
    ack(desk, B, home)
    stops(desk, home)
    assert len(seen(desk, home.shard)) == 1, "it is told once it is durable"
    desk.now += 1.0
    desk.written()
    assert seen(desk, home.shard)[1:] == [(A, B, "rebalance", FENCE + 2)]
    change = desk.coordinator.history.of(home.shard)[-1]
    assert (change.at, change.seconds) == (desk.now, desk.now - began)


def test_N13_a_lost_node_is_why_its_shards_moved_even_in_the_middle_of_a_handoff() -> None:
    desk = Desk(live=(A,))
    moving = move(desk)
    [other] = [h for h in desk.coordinator.table.homes.values() if h.shard != moving.shard]
    desk.now += 1.0
    desk.tell(ev.MembersChanged((B,)))
    desk.now += 0.5
    desk.written()
    assert seen(desk, moving.shard)[1:] == [(A, B, "node_gone", FENCE + 2)]
    assert seen(desk, other.shard)[1:] == [(A, B, "node_gone", FENCE + 3)]
    assert desk.coordinator.history.of(other.shard)[-1].seconds == 0.5


def test_N13_who_leaves_is_drained() -> None:
    desk = ready()
    home = desk.home("1")
    desk.tell(ev.MessageReceived(A, msg.GracefulShutdownRequest(A)))
    ack(desk, A, home)
    ack(desk, B, home)
    stops(desk, home)
    desk.written()
    assert seen(desk)[1:] == [(A, B, "drain", FENCE + 1)]


def test_N13_a_shard_that_stops_runs_nowhere_until_somebody_asks() -> None:
    desk = ready()
    home = desk.home("1")
    stops(desk, home)
    desk.written()
    home = desk.home("1")
    desk.tell(ev.StopShards(("1",)))
    ack(desk, A, home)
    ack(desk, B, home)
    stops(desk, home)
    desk.written()
    assert seen(desk) == [
        (None, A, "asked", FENCE),
        (A, None, "ended", 0),
        (None, A, "asked", FENCE + 1),
        (A, None, "stop", 0),
    ]
    assert sum(desk.coordinator.history.moved) == 0, "nothing has moved"


def test_N13_what_a_region_reports_to_a_new_coordinator() -> None:
    desk = Desk(stored=StoredTable(4, LAYOUT, {"1": (A, 5)}))
    desk.register(A)
    desk.tell(
        ev.MessageReceived(B, msg.Register(B, False, LAYOUT, (Home("1", B, 9), Home("2", B, 8))))
    )
    desk.written()
    assert seen(desk) == [(A, B, "reported", 9)]
    assert seen(desk, "2") == [(None, B, "reported", 8)]


def test_a_node_that_died_during_the_write_got_nothing() -> None:
    desk = ready()
    desk.ask(A, "1", "2")
    desk.tell(ev.MembersChanged((A,)))
    desk.written()
    desk.written()
    assert seen(desk) == [(None, A, "asked", FENCE)]
    assert seen(desk, "2") == [(None, A, "asked", FENCE + 2)]


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
    wanted = [0] * (len(BUCKETS) + 1)
    wanted[place] = 1
    assert history.moved == wanted
    assert history.moved_seconds == pytest.approx(seconds)


def test_a_word_about_an_earlier_home_does_not_count_for_a_later_one() -> None:
    history = ShardHistory()
    early, late = Home("1", A, 1), Home("1", B, 2)
    history.leaves(early, "rebalance", 1.0)
    history.leaves(late, "drain", 2.0)
    history.leaves(late, "rebalance", 3.0)
    history.record("1", late, None, 1, 4.0, reported=False)
    assert [(c.source, c.why, c.seconds) for c in history.of("1")] == [(B, "drain", 2.0)]
