"""Moves: acknowledgements of other hand-offs, late regions, and the bound on moves in flight."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from shardbus.config.settings import ShardingSettings
from shardbus.ids import NodeId
from shardbus.sharding import messages as msg
from shardbus.sharding.allocation.strategies import Move
from shardbus.sharding.coordinator.handoff import HandoffPhase, HandoffPurpose
from shardbus.sharding.coordinator.moves import REST_DOUBLINGS, SLOW_S, Moves
from shardbus.sharding.coordinator.outbox import Outbox
from shardbus.sharding.messages import Home
from shardbus.sharding.table import ShardTable

A, B, C = (NodeId(name, 1, 1) for name in "abc")
SETTINGS = ShardingSettings(begin_handoff_timeout=1.0, handoff_timeout=60.0, rebalance_interval=8.0)


class Everywhere:
    """A strategy that moves one shard from A to each other candidate."""

    def allocate(self, *_: object) -> dict[str, NodeId]:
        return {}

    def rebalance(
        self, table: ShardTable, candidates: Collection[NodeId], in_flight: Mapping[str, Move]
    ) -> list[Move]:
        return [Move(f"to {node.host}", A, node) for node in candidates if node != A]


def moves(settings: ShardingSettings = SETTINGS) -> tuple[Moves, Outbox]:
    outbox = Outbox(A)
    return Moves(outbox, settings), outbox


def sent(outbox: Outbox) -> list[tuple[NodeId, str]]:
    return [(send.to, type(send.message).__name__) for send in outbox.drain(1)]


def plan(made: Moves, candidates: list[NodeId], now: float = 0.0) -> None:
    made.plan(made.question(ShardTable(1, "x"), candidates, now)(Everywhere()))


def targets(made: Moves, now: float) -> set[NodeId]:
    """The nodes to which a plan made now moves something."""
    plan(made, [A, B, C], now)
    return {move.target for move in made.take_ready([A, B, C], [])}


@pytest.mark.parametrize("fence", [5, 10])
def test_an_acknowledgement_for_another_fence_does_not_count(fence: int) -> None:
    made, outbox = moves()
    made.begin(Home("1", A, 9), HandoffPurpose.REBALANCE, B, (A, B), 0.0)
    sent(outbox)
    for node in (A, B):
        made.on_ack(Home("1", A, fence), node, 0.5)
    assert made.handoffs["1"].phase is HandoffPhase.BEGIN
    assert sent(outbox) == []
    for node in (A, B):
        made.on_ack(Home("1", A, 9), node, 0.5)
    assert sent(outbox) == [(A, "HandOff")]


def test_a_stop_at_another_home_ends_no_hand_off() -> None:
    made, _ = moves()
    made.begin(Home("1", A, 9), HandoffPurpose.REBALANCE, B, (A, B), 0.0)
    assert made.on_stopped(Home("1", A, 5)) is None
    assert made.on_stopped(Home("1", B, 9)) is None
    assert made.on_stopped(Home("1", A, 9)) is not None


def late(made: Moves, now: float) -> float:
    """A hand-off for which B acknowledges only after the deadline; returns that time."""
    home = Home("1", A, 9)
    made.begin(home, HandoffPurpose.REBALANCE, C, (A, B), now)
    made.on_ack(home, A, now)
    due = made.deadline()
    assert due is not None
    made.tick(due)
    made.on_ack(home, B, due)
    made.on_stopped(home)
    return due


def test_plans_leave_a_late_region_out_though_it_acknowledges_afterwards() -> None:
    made, _ = moves()
    assert targets(made, 0.0) == {B, C}
    now = late(made, 0.0)
    assert targets(made, now) == {C}
    assert targets(made, now + SETTINGS.rebalance_interval - 0.1) == {C}
    assert targets(made, now + SETTINGS.rebalance_interval) == {B, C}


def test_the_pause_of_a_late_region_doubles_up_to_a_bound() -> None:
    made, _ = moves()
    now, pauses = 0.0, []
    for _ in range(REST_DOUBLINGS + 2):
        start = late(made, now)
        pauses.append(next(p for p in range(10_000) if targets(made, start + p) == {B, C}))
        now = start + pauses[-1]
    rest = SETTINGS.rebalance_interval
    doubled = [rest * 2**times for times in range(REST_DOUBLINGS + 1)]
    assert pauses == [*doubled, doubled[-1]]


def test_a_region_that_acknowledges_in_time_is_planned_for_again() -> None:
    made, _ = moves()
    now = late(made, 0.0)
    home = Home("2", A, 20)
    made.begin(home, HandoffPurpose.REBALANCE, C, (A, B), now)
    made.on_ack(home, B, now + 0.5)
    assert targets(made, now + 0.5) == {B, C}


def test_the_bound_counts_moves_that_have_left_and_have_no_home_yet() -> None:
    made, _ = moves(ShardingSettings(max_moves_in_flight=1))
    plan(made, [A, B], 0.0)
    assert made.take_ready([A, B], [Move("9", A, C)]) == []
    assert made.take_ready([A, B], []) == [Move("to b", A, B)]


def test_a_planned_move_of_a_shard_that_begins_to_move_is_dropped() -> None:
    made, _ = moves()
    plan(made, [A, B, C], 0.0)
    made.drop_planned("to b")
    assert made.take_ready([A, B, C], []) == [Move("to c", A, C)]


def test_a_shard_that_moves_already_is_not_planned_for() -> None:
    made, _ = moves()
    made.begin(Home("to b", A, 9), HandoffPurpose.STOP, None, (A,), 0.0)
    plan(made, [A, B, C], 0.0)
    assert made.planned == 1


def test_a_planned_move_to_a_node_that_is_no_candidate_is_dropped() -> None:
    made, _ = moves()
    plan(made, [A, B, C], 0.0)
    assert made.take_ready([A, C], []) == [Move("to c", A, C)]
    assert made.planned == 0


def test_the_death_of_the_last_region_waited_for_starts_the_stop() -> None:
    made, outbox = moves()
    made.begin(Home("1", A, 9), HandoffPurpose.REBALANCE, C, (A, B), 0.0)
    sent(outbox)
    made.on_ack(Home("1", A, 9), A, 0.1)
    assert made.on_nodes_gone({B: None}, 0.2) == []
    assert sent(outbox) == [(A, "HandOff")]


def test_an_owner_that_does_not_stop_is_asked_again_after_each_deadline() -> None:
    made, outbox = moves()
    home = Home("1", A, 9)
    made.begin(home, HandoffPurpose.STOP, None, (), 0.0)
    assert sent(outbox) == [(A, "HandOff")]
    for times in (1, 2):
        made.tick(times * SETTINGS.handoff_timeout)
        assert sent(outbox) == [(A, "HandOff")]
        assert made.handoffs["1"].overdue == times
    assert [note.kind for note in made.notes] == ["handoff_overdue"] * 2


def test_a_slow_move_holds_back_no_shard_that_leaves() -> None:
    made, _ = moves(ShardingSettings(max_moves_in_flight=1))
    shards = dict.fromkeys("123")
    assert made.may_leave(shards, (), 0.0) == ["1"]
    made.begin(Home("1", A, 1), HandoffPurpose.DRAIN, None, (A,), 0.0)
    assert made.may_leave(shards, (), SLOW_S * 0.9) == []
    assert made.may_leave(shards, (), SLOW_S) == ["2", "3"]


def test_what_leaves_is_bounded_with_what_moves_and_what_has_no_durable_home() -> None:
    made, _ = moves(ShardingSettings(max_moves_in_flight=4))
    made.begin(Home("5", A, 1), HandoffPurpose.DRAIN, None, (A,), 0.0)
    made.begin(Home("elsewhere", B, 1), HandoffPurpose.DRAIN, None, (A,), 0.0)
    shards = dict.fromkeys("123456")
    assert made.may_leave(shards, ("1", "1", "5", "elsewhere"), 0.0) == ["2", "3"]
    assert made.may_leave(shards, shards, 0.0) == []


def test_the_messages_of_a_hand_off_name_its_home() -> None:
    made, outbox = moves()
    home = Home("1", A, 9)
    made.begin(home, HandoffPurpose.DRAIN, None, (B,), 0.0)
    [begin] = outbox.drain(4)
    assert (begin.to, begin.message) == (B, msg.BeginHandOff(4, (home,)))
