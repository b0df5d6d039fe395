"""Many seeds of store objects on disks: every history has an order, and no lease two holders.

python -m shardbus.simulation.replication.run states 0 1000
"""

from __future__ import annotations

import pytest

from shardbus.simulation.replication.histories import KINDS
from shardbus.simulation.replication.linearizability import HistoryEntry, linearizable
from shardbus.simulation.replication.run import simulate_replication
from tests.markers import long_only, soak_only


def check(kind: str, seeds: range) -> None:
    for seed in seeds:
        outcome = simulate_replication(kind, seed)
        assert not outcome.broken, outcome.report()


@pytest.mark.parametrize("seeds", [range(12), *long_only(range(12, 25)), *soak_only(range(25, 50))])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_breaks(kind: str, seeds: range) -> None:
    check(kind, seeds)


@pytest.mark.parametrize(
    "seeds", [range(15), *long_only(range(15, 60)), *soak_only(range(60, 600))]
)
@pytest.mark.parametrize("kind", KINDS)
def test_spares_take_the_places_of_lost_disks(kind: str, seeds: range) -> None:
    repairs = 0
    for seed in seeds:
        outcome = simulate_replication(kind, seed, disks=3, spares=2)
        assert not outcome.broken, outcome.report()
        repairs += outcome.outcomes["repairs"]
    assert repairs


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_breaks_in_many_runs(kind: str) -> None:
    check(kind, range(140, 1140))


def test_a_seed_is_one_history() -> None:
    assert simulate_replication("states", 7).report() == simulate_replication("states", 7).report()


def put(name: str, begun: float, ended: float, value: int, *, must: bool = True) -> HistoryEntry:
    return HistoryEntry(name, begun, lambda _: value, ended, must)


def got(begun: float, ended: float, value: int) -> HistoryEntry:
    return HistoryEntry("get", begun, lambda s: s if s == value else None, ended, must=True)


@pytest.mark.parametrize(
    ("history", "verdict"),
    [
        ([put("a", 0, 1, 1), got(2, 3, 1)], True),
        ([put("a", 0, 1, 1), got(2, 3, 0)], False),
        ([put("a", 0, 5, 1), got(1, 2, 1), got(3, 4, 0)], False),
        ([put("a", 0, 5, 1), got(1, 2, 0), got(3, 4, 1)], True),
        ([put("a", 0, float("inf"), 1, must=False), got(1, 2, 0), got(8, 9, 1)], True),
        ([put("a", 0, 1, 1, must=False), got(2, 3, 0)], True),
        ([put("a", 0, 1, 1, must=False), got(2, 3, 0), got(4, 5, 1)], False),
    ],
)
def test_a_history_is_judged(history: list[HistoryEntry], verdict: bool) -> None:
    assert linearizable(history, 0) is verdict
