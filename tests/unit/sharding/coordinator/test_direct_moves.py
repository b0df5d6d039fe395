"""The coordinator's side of a direct move, against its own diagram, and in single steps."""

from __future__ import annotations

from itertools import product

import pytest

from shardbus.config.settings import ShardingSettings
from shardbus.ids import NodeId
from shardbus.sharding import messages as msg
from shardbus.sharding.coordinator import direct_moves as module
from shardbus.sharding.coordinator.direct_moves import (
    SETTLE_S,
    TRANSITIONS,
    DirectMove,
    DirectMoves,
    DirectPhase,
    DirectTrigger,
)
from shardbus.sharding.coordinator.ledger import Ledger
from shardbus.sharding.intents import INTENT_MARK, split_intents
from shardbus.sharding.messages import Home, ShardMove
from shardbus.sharding.table import ShardTable
from tests.records import replace
from tests.unit.transition_tables import check_drawing, check_step

A, B, C = (NodeId("n", port, port) for port in (1, 2, 3))
OLD = Home("17", A, 1 << 32)
EPOCH = 1


class Bench:
    """Direct moves over a ledger, whose writes succeed at once."""

    def __init__(self, rows: dict[str, tuple[NodeId, int]] | None = None) -> None:
        self.live = {A, B, C}
        self.ledger = Ledger(ShardTable(0, "crc32/100"))
        self.intents = self.ledger.load(EPOCH, rows or {"17": (A, OLD.fence)})
        for node in (A, B, C):
            self.ledger.register(node, 0.0, proxy=False)
        settings = replace(ShardingSettings(), handoff="ordered")
        self.proxies: set[NodeId] = set()
        live, proxy = self.live.__contains__, self.proxies.__contains__
        self.moves = DirectMoves(self.ledger, settings, live, proxy)

    def begin(self) -> ShardMove:
        self.moves.begin(OLD, B, "rebalance", (A, B, C), 0.0)
        return self.moves.moves["17"].move

    def write(self, now: float = 0.0) -> dict[str, tuple[NodeId, int] | None]:
        """Write the due rows; return the rows."""
        writing = self.ledger.plan(None, lambda avoid: ())  # type: ignore[arg-type]
        assert writing is not None
        rows = writing.stored()
        self.moves.on_written(writing.intents, self.ledger.apply_write(now), now)
        return rows

    def sent(self) -> list[tuple[NodeId, type]]:
        sends = self.moves.drain(EPOCH, lambda node: True)
        return [(send.to, type(send.message)) for send in sends]


@pytest.mark.parametrize(("phase", "trigger"), list(product(DirectPhase, DirectTrigger)))
def test_every_trigger_in_every_phase(phase: DirectPhase, trigger: DirectTrigger) -> None:
    move = DirectMove(ShardMove(OLD, Home("17", B, 9)), "ordered", "rebalance", (), 0.0, phase)
    check_step(TRANSITIONS, lambda: move.phase, move.advance, trigger)


def test_the_diagram_names_every_phase_and_trigger() -> None:
    check_drawing(module, DirectPhase, DirectTrigger)


def test_the_six_steps_and_what_is_written_and_sent_in_each() -> None:
    bench = Bench()
    move = bench.begin()
    assert bench.sent() == [], "nothing is sent before the intent is durable"
    assert bench.write() == {INTENT_MARK + "17": (B, move.new.fence)}
    assert bench.sent() == [(A, msg.BeginMove)]
    assert bench.ledger.table.homes["17"] == OLD
    assert bench.moves.on_moved(A, move)
    assert bench.sent() == [], "no sender learns of the new home before it is durable"
    assert bench.write() == {"17": (B, move.new.fence), INTENT_MARK + "17": None}
    assert bench.sent() == [(node, msg.HomesMoved) for node in (A, B, C)]
    assert bench.moves.home_of("17") == move.new
    assert "17" in bench.moves
    bench.moves.on_complete(B, move)
    assert "17" not in bench.moves
    bench.moves.check()


def test_only_the_old_home_reports_a_move_and_only_the_new_one_its_end() -> None:
    bench = Bench()
    move = bench.begin()
    bench.write()
    assert not bench.moves.on_moved(B, move)
    assert bench.moves.moves["17"].phase is DirectPhase.MOVING
    bench.moves.on_moved(A, move)
    bench.write()
    bench.moves.on_complete(A, move)
    assert "17" in bench.moves


def test_an_end_that_is_reported_before_the_home_is_durable_counts() -> None:
    bench = Bench()
    move = bench.begin()
    bench.write()
    bench.moves.on_moved(A, move)
    bench.moves.on_complete(B, move)
    bench.write()
    assert "17" not in bench.moves
    assert bench.sent()[-1] == (C, msg.HomesMoved)


def test_a_refused_move_removes_its_intent_and_the_next_one_is_not_direct() -> None:
    bench = Bench()
    move = bench.begin()
    bench.write()
    bench.moves.on_refused(A, move)
    assert "17" not in bench.moves
    assert bench.write() == {INTENT_MARK + "17": None}
    assert [bench.moves.takes("17") for _ in range(2)] == [False, False]
    bench.moves.forget_refusal("17")
    assert bench.moves.takes("17")


def test_the_new_home_gets_the_shard_of_an_old_home_that_died() -> None:
    bench = Bench()
    move = bench.begin()
    bench.write()
    bench.live.discard(A)
    assert bench.moves.on_nodes_gone({A: None}) == ([], [])
    bench.ledger.remove_nodes([A], 1.0)
    bench.moves.reassert()
    assert bench.write() == {"17": (B, move.new.fence), INTENT_MARK + "17": None}
    assert bench.ledger.table.homes["17"] == move.new
    assert "17" not in bench.moves, "the new home may not know of the move: it reports no end"


def test_a_move_to_a_node_that_died_waits_for_the_old_home() -> None:
    bench = Bench()
    bench.begin()
    bench.write()
    assert bench.moves.on_nodes_gone({B: None}) == ([], [])
    assert bench.moves.moves["17"].phase is DirectPhase.MOVING


@pytest.mark.parametrize("died", [True, False])
def test_a_shard_handed_to_a_node_that_died_or_became_a_proxy_runs_nowhere(died: bool) -> None:
    bench = Bench()
    move = bench.begin()
    bench.write()
    bench.moves.on_moved(A, move)
    bench.live.difference_update({B} if died else ())
    bench.proxies.update(() if died else {B})
    homeless, alone = bench.moves.on_nodes_gone({B: None} if died else {})
    assert ([homeless_one.move for homeless_one in homeless], alone) == ([move], [])
    assert "17" not in bench.moves
    assert bench.ledger.adopted == {}


def test_a_new_home_whose_old_home_died_before_it_was_done_is_asked_to_host() -> None:
    bench = Bench()
    move = bench.begin()
    bench.write()
    bench.moves.on_moved(A, move)
    bench.write()
    bench.live.discard(A)
    assert bench.moves.on_nodes_gone({A: None}) == ([], [move.new])
    assert "17" not in bench.moves


def test_no_shard_is_hosted_where_both_homes_died() -> None:
    bench = Bench()
    move = bench.begin()
    bench.write()
    bench.moves.on_moved(A, move)
    bench.write()
    bench.live -= {A, B}
    assert bench.moves.on_nodes_gone({A: None, B: None}) == ([], [])
    assert "17" not in bench.moves


def test_a_silent_old_home_is_asked_again_and_a_silent_new_one_to_host() -> None:
    bench = Bench()
    move = bench.begin()
    bench.write()
    bench.sent()
    assert bench.moves.tick(1000.0) == []
    assert bench.sent() == [(A, msg.BeginMove)]
    assert [note.kind for note in bench.moves.notes] == ["handoff_overdue"]
    bench.moves.on_moved(A, move)
    bench.write(now=1000.0)
    assert bench.moves.tick(1000.0 + SETTLE_S) == [move.new]
    assert "17" not in bench.moves


def test_a_new_coordinator_finds_the_intent_and_asks_the_old_home_once_it_registers() -> None:
    fence = OLD.fence + 5
    bench = Bench({"17": (A, OLD.fence), INTENT_MARK + "17": (B, fence)})
    assert bench.intents == {"17": Home("17", B, fence)}
    bench.moves.recover(bench.intents, 0.0)
    assert bench.sent() == []
    bench.moves.on_registered(A, (A, B))
    bench.moves.on_registered(A, (A, B))
    assert bench.sent() == [(A, msg.BeginMove)]
    assert bench.ledger.take_fence() > fence, "its fence is not drawn again"


def test_a_new_home_that_runs_the_shard_already_counts_as_moved() -> None:
    bench = Bench({"17": (A, OLD.fence), INTENT_MARK + "17": (B, OLD.fence + 5)})
    bench.moves.recover(bench.intents, 0.0)
    assert bench.moves.on_reported(Home("17", B, OLD.fence + 5))
    assert bench.write()["17"] == (B, OLD.fence + 5)


def test_an_intent_without_a_former_home_is_removed() -> None:
    bench = Bench({INTENT_MARK + "17": (B, OLD.fence + 5)})
    bench.moves.recover(bench.intents, 0.0)
    assert bench.write() == {INTENT_MARK + "17": None}


def test_rows_of_intents_are_no_homes() -> None:
    homes, intents = split_intents({"1": (A, 1), INTENT_MARK + "1": (B, 2)})
    assert homes == {"1": (A, 1)}
    assert intents == {"1": Home("1", B, 2)}
