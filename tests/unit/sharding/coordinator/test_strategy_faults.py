"""The faults of a strategy: when they are noted, and the operator's view of them."""

from __future__ import annotations

from itertools import pairwise

from shardbus.sharding.allocation.checked import StrategyFault
from shardbus.sharding.coordinator import strategy_faults
from shardbus.sharding.coordinator.strategy_faults import AGAIN_S, KEPT_S, KINDS_MAX, StrategyFaults

RAISED = StrategyFault("allocate", "raised ValueError", ": no")


def test_a_fault_is_noted_once_and_then_at_growing_intervals() -> None:
    faults = StrategyFaults("Own")
    noted = {}
    for second in range(1000):
        for note in faults.add(RAISED, float(second)):
            noted[second] = note.detail
    assert list(noted) == [0, 10, 30, 70, 150, 310, 630]
    assert noted[0] == "Own.allocate raised ValueError: no"
    assert noted[10] == "Own.allocate raised ValueError: no (10 times)"
    assert noted[30] == "Own.allocate raised ValueError: no (20 times)"


def test_another_kind_of_fault_is_noted_at_once_and_another_text_is_not() -> None:
    faults = StrategyFaults("Own")
    assert faults.add(RAISED, 0.0)
    assert not faults.add(RAISED._replace(detail=": other"), 1.0)
    assert faults.add(StrategyFault("rebalance", "raised ValueError", ": no"), 1.0)
    assert faults.add(StrategyFault("allocate", "raised KeyError"), 1.0)
    [(method, what), *_] = faults.shown(5.0)
    assert method == "Own.allocate"
    assert what == "raised ValueError: other (2 times, the last 4 s ago)"


def test_a_strategy_that_works_again_is_not_shown_for_ever() -> None:
    faults = StrategyFaults("Own")
    faults.add(RAISED, 0.0)
    assert faults.shown(KEPT_S)
    assert faults.shown(KEPT_S + 1) == []
    assert faults.add(RAISED, KEPT_S + 1), "new again"


def test_the_kinds_are_bounded() -> None:
    faults = StrategyFaults("Own")
    for number in range(3 * KINDS_MAX):
        faults.add(StrategyFault("allocate", f"raised E{number}"), 0.0)
    assert len(faults.shown(0.0)) == KINDS_MAX


def test_the_interval_is_bounded() -> None:
    faults = StrategyFaults("Own")
    noted = [s for s in range(0, 200_000, 100) if faults.add(RAISED, float(s))]
    gaps = [b - a for a, b in pairwise(noted)]
    assert max(gaps) <= strategy_faults.AGAIN_MAX_S + 100
    assert gaps[0] >= AGAIN_S
