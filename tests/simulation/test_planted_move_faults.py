"""Defects of moves planted into whole nodes, one at a time: the simulator finds each, and by which
rule. docs/simulation.md lists them.

Instances are in `test_instances`, tables that are not passed on in `test_table_gossip`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from shardbus.simulation.nodes.options import NodeOptions, draw_node_options
from shardbus.simulation.nodes.run import simulate_nodes
from tests.records import replace
from tests.simulation import move_defects as defects
from tests.simulation.test_move_kills import in_good_order, kills_come_a_turn_late

SEEDS = 40
Patch = pytest.MonkeyPatch


@dataclass(frozen=True, slots=True)
class PlantedInMoves:
    """A defect, the rules that find it, and the kind of runs that expose it."""

    seed: int
    """The first seed to try: it found the defect when this list was last brought up to date."""
    plant: Callable[[Patch], None]
    rules: tuple[str, ...]
    mode: str = "ordered"
    homes: str = "ask"
    kills: bool = False
    late: bool = False
    """Kills come one turn late: some races need it."""
    like: dict[str, Any] = field(default_factory=dict)

    def load(self, seed: int) -> NodeOptions:
        """The run of this seed in which it is sought."""
        if self.kills:
            drawn = draw_node_options(
                seed, 4, 5.0, None, "thin", None, self.mode, self.homes, kill_at="any"
            )
        else:
            drawn = replace(in_good_order(seed, self.mode), homes=self.homes)
        return replace(drawn, **self.like)


PLANTED = (
    PlantedInMoves(1, defects.a_new_home_starts_before_the_old_one_has_stopped, ("I1", "place")),
    PlantedInMoves(394, defects.a_new_home_keeps_no_direct_message, ("I2",), kills=True),
    PlantedInMoves(
        372,
        defects.a_shard_whose_old_home_died_after_its_report_waits_for_switch,
        ("I9", "I11"),
        kills=True,
        late=True,
    ),
    PlantedInMoves(0, defects.what_a_mode_drops_is_not_counted, ("I3", "account"), "drop"),
    PlantedInMoves(0, defects.acknowledgements_are_lost_and_awaited_for_ever, ("I9", "I11")),
    PlantedInMoves(0, defects.what_is_carried_is_what_was_carried_first, ("carry",)),
    PlantedInMoves(
        0,
        defects.homes_travel_by_gossip_before_they_are_stored,
        ("ahead",),
        homes="gossip",
        like={"store": "slow"},
    ),
    PlantedInMoves(
        0, defects.a_region_keeps_any_number_of_messages, ("bound",), like={"buffer_size": 5}
    ),
)


def name_of(planted: PlantedInMoves) -> str:
    return planted.plant.__name__


@pytest.mark.long
@pytest.mark.parametrize("planted", PLANTED, ids=name_of)
def test_a_planted_defect_of_moves_is_found(planted: PlantedInMoves, monkeypatch: Patch) -> None:
    """The known seed comes first. Without the defect that run is sound."""
    planted.plant(monkeypatch)
    if planted.late:
        kills_come_a_turn_late(monkeypatch)
    for seed in (planted.seed, *range(SEEDS)):
        broken = simulate_nodes(planted.load(seed)).broken
        if broken is not None:
            break
    else:
        pytest.fail("no seed finds it")
    assert broken.rule in planted.rules, (seed, broken.rule, broken.detail)
    print(f"found by seed {seed}; {planted.seed} is known")
    monkeypatch.undo()
    if planted.late:
        kills_come_a_turn_late(monkeypatch)
    sound = simulate_nodes(planted.load(seed))
    assert sound.broken is None, sound.report()
