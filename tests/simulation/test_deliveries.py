"""Deliveries in whole nodes over seeds: effects happen once, and planted faults are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shardbus.deliveries.record import DeliveryRecord, ReceiverDecision
from shardbus.entities.carrying import CarriedStates
from shardbus.entities.deliveries import EntityDeliveries
from shardbus.entities.entity_sends import EntitySends
from shardbus.simulation.nodes.options import draw_node_options
from shardbus.simulation.nodes.run import NodeRun

Patch = pytest.MonkeyPatch


def run(seed: int, handoff: str = "buffer", kill_at: str = "") -> tuple[int, str]:
    """Return how many deliveries were confirmed, 1 if no node has survived, and the report of a
    violation."""
    load = draw_node_options(
        seed,
        nodes=4,
        seconds=12.0,
        density="thin",
        handoff=handoff,
        kill_at=kill_at,
        deliveries=True,
    )
    made = NodeRun(load)
    outcome = made.run()
    confirmed = sum(made.application.effects.confirmed.values())
    confirmed = confirmed or int(outcome.survivors == 0)
    return confirmed, "" if outcome.broken is None else outcome.report()


def test_the_command_replays_a_run_with_deliveries() -> None:
    assert draw_node_options(3, deliveries=True).command().endswith("--deliveries")
    assert not draw_node_options(3).deliveries


def long(seed: int, handoff: str, kill_at: str) -> Any:
    return pytest.param(seed, handoff, kill_at, marks=pytest.mark.long)


def soak(seed: int, handoff: str, kill_at: str) -> Any:
    return pytest.param(seed, handoff, kill_at, marks=pytest.mark.soak)


@pytest.mark.parametrize(
    ("seed", "handoff", "kill_at"),
    [
        (0, "buffer", ""),
        (100, "ordered", "any"),
        *(long(seed, "buffer", "") for seed in range(1, 3)),
        *(long(seed, "ordered", "any") for seed in range(101, 103)),
        *(long(seed, "drop", "any") for seed in range(200, 202)),
        *(long(seed, "forward", "any") for seed in range(300, 302)),
        *(soak(seed, "buffer", "") for seed in range(3, 10)),
        *(soak(seed, "ordered", "any") for seed in range(103, 110)),
        *(soak(seed, "drop", "any") for seed in range(202, 210)),
        *(soak(seed, "forward", "any") for seed in range(302, 310)),
    ],
)
def test_effects_happen_once_and_in_order(seed: int, handoff: str, kill_at: str) -> None:
    confirmed, broken = run(seed, handoff, kill_at)
    assert broken == ""
    assert confirmed > 0


def confirms_before_the_save(patch: Patch) -> None:
    async def careless(self: EntityDeliveries, entity: object) -> None:
        return None

    patch.setattr(EntityDeliveries, "_save", careless)


def takes_every_delivery_for_new(patch: Patch) -> None:
    patch.setattr(DeliveryRecord, "decide", lambda self, number: ReceiverDecision.HANDLE)


def sees_no_gap(patch: Patch) -> None:
    decide = DeliveryRecord.decide

    def blind(self: DeliveryRecord, number: object) -> ReceiverDecision:
        decision = decide(self, number)  # type: ignore[arg-type]
        return ReceiverDecision.HANDLE if decision is ReceiverDecision.GAP else decision

    patch.setattr(DeliveryRecord, "decide", blind)


def sends_before_the_save(patch: Patch) -> None:
    deliver = EntityDeliveries.deliver

    def hasty(self: EntityDeliveries, activation: object, *rest: object) -> None:
        deliver(self, activation, *rest)  # type: ignore[arg-type]
        record = activation.shard.records[activation.key]  # type: ignore[attr-defined]
        assert self.sends is not None
        self.sends.saved(activation, record, record.last, None)  # type: ignore[arg-type]

    patch.setattr(EntityDeliveries, "deliver", hasty)


def forgets_what_is_pending(patch: Patch) -> None:
    patch.setattr(EntitySends, "loaded", lambda self, who, record, data: record.pending.clear())


FAULTS = (
    confirms_before_the_save,
    takes_every_delivery_for_new,
    sees_no_gap,
    sends_before_the_save,
    forgets_what_is_pending,
)


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
    fault(monkeypatch)
    assert any(run(seed)[1] for seed in range(12))


@pytest.mark.long
def test_a_record_that_is_not_carried_is_found(monkeypatch: Patch) -> None:
    frozen = CarriedStates._frozen

    def forgets(self: CarriedStates, activation: object, entity: object) -> object:
        activation.shard.records.pop(activation.key, None)  # type: ignore[attr-defined]
        return frozen(self, activation, entity)  # type: ignore[arg-type]

    monkeypatch.setattr(CarriedStates, "_frozen", forgets)
    assert any(run(seed, "ordered", "any")[1] for seed in range(100, 112))
