"""Defects planted into whole nodes, one at a time: the simulator finds each, and by which rule.

The runs draw their faults as always; where a defect can only do harm among certain ones, these are
made frequent. docs/simulation.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from shardbus.simulation.nodes.options import NodeOptions, draw_node_options
from shardbus.simulation.nodes.run import simulate_nodes
from tests.markers import long_only, soak_only
from tests.records import replace
from tests.simulation import sharding_defects as defects

SEEDS = 60
SECONDS = 12.0
Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Planted:
    """A defect, the rules that find it, and the kind of runs that expose it."""

    seed: int
    """The first seed to try: it found the defect when this list was last brought up to date."""
    plant: Callable[[Patch], None]
    rules: tuple[str, ...]
    like: dict[str, Any] = field(default_factory=dict)
    """Of the load."""
    faults: dict[str, Any] = field(default_factory=dict)
    """Of the faults of membership."""
    density: str | None = None
    seconds: float = SECONDS
    splits: bool = False

    def load(self, seed: int) -> NodeOptions:
        """The run of this seed in which it is sought."""
        drawn = draw_node_options(
            seed, seconds=self.seconds, density=self.density, splits=self.splits
        )
        return replace(drawn, faults=replace(drawn.faults, **self.faults), **self.like)


WALLS = {"partitions": 2, "cut_links": 2, "wall_s": 20.0}
SLEEPS = {
    "nodes": 5, "pauses": 4, "pause_s": 40.0, "strategy": "keep-majority", "swizzles": 0,
    "partitions": 0, "one_ways": 0, "vanishes": 0, "kills": 0, "bounces": 0,
}  # fmt: skip
REFUSALS = {
    "rejecting": True, "partitions": 2, "cut_links": 2, "wall_s": 6.0, "loss": 0.0, "kills": 0,
    "vanishes": 0, "leaves": 0,
}  # fmt: skip
SPLITS = {
    "nodes": 5, "partitions": 2, "cut_links": 2, "wall_s": 25.0, "strategy": "keep-majority",
    "pauses": 0, "swizzles": 0,
}  # fmt: skip
STOPPED = {"stops": 8, "hurried": False, "store": "sound", "sleeps": 0}
HURRY = {"hurried": True, "room": 0}

PLANTED = (
    Planted(13, defects.a_home_is_left_without_a_flush, ("I2",), {"stops": 3}),
    Planted(0, defects.what_waits_is_dropped_when_a_home_is_known, ("I3", "account"), {}),
    Planted(
        7, defects.homes_are_told_before_they_are_stored, ("I1", "I6", "I11"), {"store": "failing"}
    ),
    Planted(
        4, defects.a_shard_is_down_before_its_entities_are, ("I1", "I2", "I3", "I11"), {"stops": 3}
    ),
    Planted(4, defects.duplicates_are_taken, ("I2",), {"cuts": 12}),
    Planted(6, defects.nothing_is_sent_again, ("I2", "I3", "I11"), {"cuts": 12}),
    Planted(5, defects.a_message_passes_a_large_one_for_the_same_entity, ("I2",), {"every_s": 0.1}),
    Planted(2, defects.an_entity_starts_before_it_is_remembered, ("I11",), {}),
    Planted(2, defects.a_handoff_is_forgotten_like_a_passivation, ("I11",), {"stops": 3}),
    Planted(5, defects.an_unreachable_node_is_taken_for_dead, ("I1", "I2", "I11"), {}),
    Planted(0, defects.an_epoch_is_granted_again, ("I6",), {"stops": 3}),
    Planted(
        2,
        defects.an_old_coordinator_is_obeyed,
        ("I1", "I2", "I6", "I11"),
        faults={"pauses": 3, "pause_s": 12.0, **WALLS},
    ),
    Planted(
        6,
        defects.a_load_does_not_raise_the_fence,
        ("I1", "I11"),
        {"every_s": 0.1, "store": "slow", "clients": 2},
        SLEEPS,
        density="thin",
        seconds=45.0,
    ),
    Planted(
        2,
        defects.whoever_refuses_once_is_dead_for_ever,
        ("I3", "I11"),
        {"clients": 2, "sleeps": 0},
        REFUSALS,
        density="thin",
    ),
    Planted(12, defects.a_downed_node_goes_on_leaving, ("ends",)),
    Planted(
        4,
        defects.messages_of_a_starting_entity_are_dropped_at_a_handoff,
        ("I3", "account"),
        {"stops": 3, "failing_starts": 0.4},
    ),
    Planted(
        6,
        defects.a_full_socket_is_tried_once,
        ("I3", "I9", "I11"),
        {"cuts": 12, "room": 2, "hurried": False},
    ),
    Planted(
        2,
        defects.a_report_of_an_older_home_wins,
        ("I1", "I2", "I11"),
        {"stops": 3, "rolls": 3, "rebalances": 3, "slow_starts": 0.5, **HURRY},
    ),
)

COSTLY = (
    Planted(
        165,
        defects.a_home_told_while_the_shard_stops_is_kept,
        ("I3", "I11"),
        {"stops": 3, "slow_starts": 0.5},
    ),
    Planted(1, defects.a_lost_flush_counts_as_echoed, ("I2",), STOPPED, SPLITS, "dense", 30.0),
    Planted(
        1, defects.what_comes_back_goes_behind_what_waits, ("I2",), STOPPED, SPLITS, "dense", 30.0
    ),
)
"""Their runs are long, or few seeds find them."""

RARE = (
    Planted(
        32,
        defects.a_link_to_a_former_process_is_closed_and_nobody_told,
        ("I2", "I3", "I11"),
        {"hangs": 12, "clients": 2},
        {"bounces": 3},
    ),
)
"""Their moment comes seldom: they are sought for longer."""


def found(planted: Planted, seeds: Iterable[int], patch: Patch) -> int:
    """Find the defect; return the seed of the first run that breaks."""
    planted.plant(patch)
    for seed in seeds:
        broken = simulate_nodes(planted.load(seed)).broken
        if broken is not None:
            assert broken.rule in planted.rules, (seed, broken.rule, broken.detail)
            print(f"found by seed {seed}; {planted.seed} is known")
            return seed
    pytest.fail("no seed finds it")


def sought(planted: Planted, seeds: Iterable[int], patch: Patch) -> None:
    """Find the defect in the first run that breaks; without the defect that run is sound."""
    seed = found(planted, seeds, patch)
    patch.undo()
    sound = simulate_nodes(planted.load(seed))
    assert sound.broken is None, sound.report()


def name_of(planted: Planted) -> str:
    return planted.plant.__name__


SLOW = {
    "a_full_socket_is_tried_once",
    "whoever_refuses_once_is_dead_for_ever",
    "duplicates_are_taken",
    "a_load_does_not_raise_the_fence",
    "a_downed_node_goes_on_leaving",
    "messages_of_a_starting_entity_are_dropped_at_a_handoff",
    "nothing_is_sent_again",
    "a_handoff_is_forgotten_like_a_passivation",
    "an_entity_starts_before_it_is_remembered",
    "what_waits_is_dropped_when_a_home_is_known",
    "a_report_of_an_older_home_wins",
    "homes_are_told_before_they_are_stored",
    "a_home_is_left_without_a_flush",
    "a_shard_is_down_before_its_entities_are",
}
"""Defects that take seconds to find: `make test-long` finds them, in the runs that it compares."""


@pytest.mark.parametrize(
    "planted", [fault for fault in PLANTED if name_of(fault) not in SLOW], ids=name_of
)
def test_a_planted_defect_is_found(planted: Planted, monkeypatch: Patch) -> None:
    """The known seed comes first. Where the code has changed so much that another history follows
    from it, the others are tried."""
    found(planted, (planted.seed, *range(SEEDS)), monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize(
    "planted", [fault for fault in PLANTED if name_of(fault) in SLOW], ids=name_of
)
def test_without_its_defect_a_run_that_finds_it_is_sound(
    planted: Planted, monkeypatch: Patch
) -> None:
    sought(planted, (planted.seed, *range(SEEDS)), monkeypatch)


@pytest.mark.parametrize("planted", [*long_only(COSTLY[0]), *soak_only(*COSTLY[1:])], ids=name_of)
def test_a_costly_planted_defect_is_found(planted: Planted, monkeypatch: Patch) -> None:
    sought(planted, (planted.seed, *range(4 * SEEDS)), monkeypatch)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("planted", PLANTED, ids=name_of)
def test_a_planted_defect_is_found_by_another_seed(planted: Planted, monkeypatch: Patch) -> None:
    sought(planted, (seed for seed in range(1000) if seed != planted.seed), monkeypatch)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("planted", RARE, ids=name_of)
def test_a_rare_planted_defect_is_found(planted: Planted, monkeypatch: Patch) -> None:
    sought(planted, range(1000), monkeypatch)
