"""Whole nodes whose entities set reminders, over seeds: none lost, none early, none twice at one
home, whatever happens to nodes, store and clocks."""

from __future__ import annotations

from typing import Any

import pytest

from shardbus.simulation.nodes.options import draw_node_options
from shardbus.simulation.nodes.run import NodeRun
from tests.markers import long_only

CALM: dict[str, Any] = {"nodes": 3, "seconds": 20.0, "density": "thin"}


def run(seed: int, **options: Any) -> tuple[NodeRun, str]:
    made = NodeRun(draw_node_options(seed, **{**CALM, **options}), reminds=True)
    outcome = made.run()
    return made, "" if outcome.broken is None else outcome.report()


@pytest.mark.parametrize("seed", [*range(3), *long_only(*range(3, 15))])
def test_each_reminder_is_called_when_it_is_due(seed: int) -> None:
    made, broken = run(seed)
    assert broken == ""
    assert made.application.reminders is not None
    assert made.application.reminders.called > 0 or seed > 2  # the few of a run may be forgotten
