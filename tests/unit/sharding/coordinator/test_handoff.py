"""A hand-off against its own diagram."""

from __future__ import annotations

from itertools import product

import pytest

from shardbus.ids import NodeId
from shardbus.sharding.coordinator import handoff as module
from shardbus.sharding.coordinator.handoff import (
    TRANSITIONS,
    Handoff,
    HandoffPhase,
    HandoffPurpose,
    HandoffTrigger,
)
from shardbus.sharding.messages import Home
from tests.unit.transition_tables import check_drawing, check_step

A, B, C = (NodeId("n", port, port) for port in (1, 2, 3))


def handoff(phase: HandoffPhase = HandoffPhase.BEGIN) -> Handoff:
    handoff_ = Handoff.begin(Home("1", A, 7), HandoffPurpose.REBALANCE, B, [A, B, C])
    handoff_.phase = phase
    return handoff_


@pytest.mark.parametrize(("phase", "trigger"), list(product(HandoffPhase, HandoffTrigger)))
def test_every_trigger_in_every_phase(phase: HandoffPhase, trigger: HandoffTrigger) -> None:
    machine = handoff(phase)
    check_step(TRANSITIONS, lambda: machine.phase, machine.advance, trigger)


def test_the_diagram_names_every_phase_and_trigger() -> None:
    check_drawing(module, HandoffPhase, HandoffTrigger)


def test_freed_is_the_end_and_can_be_reached_from_everywhere() -> None:
    assert not any(phase is HandoffPhase.FREED for phase, _ in TRANSITIONS)
    for phase in (HandoffPhase.BEGIN, HandoffPhase.STOPPING):
        assert TRANSITIONS[phase, HandoffTrigger.STOPPED] is HandoffPhase.FREED
        assert TRANSITIONS[phase, HandoffTrigger.OWNER_GONE] is HandoffPhase.FREED


def test_the_last_acknowledgement_counts_once() -> None:
    machine = handoff()
    assert [machine.on_ack(node) for node in (A, A, B, C, C)] == [False, False, False, True, False]


def test_an_acknowledgement_after_the_deadline_moves_nothing() -> None:
    machine = handoff()
    machine.advance(HandoffTrigger.DEADLINE)
    assert list(machine.unacked) == [A, B, C], "these are the late ones"
    assert not any([machine.on_ack(A), machine.on_ack(B), machine.on_ack(C)])


def test_only_the_deadline_of_stopping_is_counted_as_overdue() -> None:
    machine = handoff()
    machine.advance(HandoffTrigger.DEADLINE)
    assert machine.overdue == 0
    machine.advance(HandoffTrigger.DEADLINE)
    machine.advance(HandoffTrigger.DEADLINE)
    assert machine.overdue == 2
