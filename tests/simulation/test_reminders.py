"""Whole nodes whose entities set reminders, over seeds: none lost, none early, none twice at one
home, whatever happens to nodes, store and clocks."""

from __future__ import annotations

import time
from itertools import count
from typing import Any

import pytest

from shardbus.sharding.coordinator.ledger import Ledger
from shardbus.simulation.nodes.options import draw_node_options
from shardbus.simulation.nodes.run import NodeRun
from shardbus.simulation.nodes.stores import StoreServer
from tests.markers import long_only, soak_only
from tests.records import replace

CALM: dict[str, Any] = {"nodes": 3, "seconds": 20.0, "density": "thin"}


def run(seed: int, *, store: str = "", **options: Any) -> tuple[NodeRun, str]:
    load = draw_node_options(seed, **{**CALM, **options})
    made = NodeRun(replace(load, store=store or load.store), reminds=True)
    outcome = made.run()
    return made, "" if outcome.broken is None else outcome.report()


@pytest.mark.parametrize("seed", [*range(3), *long_only(*range(3, 5)), *soak_only(*range(5, 30))])
def test_each_reminder_is_called_when_it_is_due(seed: int) -> None:
    made, broken = run(seed)
    assert broken == ""
    assert made.application.reminders is not None
    assert made.application.reminders.called > 0 or seed > 2  # the few of a run may be forgotten


@pytest.mark.long
def test_a_paused_node_is_not_drained_behind_the_end_of_the_faults() -> None:
    """The other one left, and waited for homes that no node took."""
    assert run(3017, seconds=10.0, handoff="drop", kill_at="any")[1] == ""


@pytest.mark.long
def test_a_survivor_that_is_weakly_up_may_stay_so_below_the_least_number() -> None:
    assert run(3404, seconds=10.0)[1] == ""


@pytest.mark.long
def test_a_shard_that_the_other_side_of_a_split_had_restarts_under_a_new_fence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its old fence is found at once, and without that check by the reminders that never end."""
    split: dict[str, Any] = {"seconds": 10.0, "handoff": "drop"}
    assert run(3622, **split)[1] == ""
    monkeypatch.setattr(Ledger, "_last_fence", lambda *_: 0)
    assert "under fence 100000000 after 200000001" in run(3622, **split)[1]
    monkeypatch.setattr(StoreServer, "record_homes", lambda *_: None)
    assert "was not called" in run(3622, **split)[1]


@pytest.mark.long
def test_a_node_joins_though_a_member_that_tried_it_was_replaced() -> None:
    """It asked the former process at that address for ever, and no other one."""
    assert run(50328, seconds=10.0)[1] == ""


def test_a_run_is_a_function_of_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the runs before it in the process nor the clocks of the machine count."""
    alone, _ = run(43, seconds=5.0, store="failing")
    run(33, seconds=2.0, store="failing")
    hours = count(0, 3600)
    for clock in ("clock_gettime", "monotonic", "time"):
        monkeypatch.setattr(time, clock, lambda *_: float(next(hours)))
    again, _ = run(43, seconds=5.0, store="failing")
    assert again.world.trace.digest == alone.world.trace.digest
    assert again.world.events == alone.world.events
