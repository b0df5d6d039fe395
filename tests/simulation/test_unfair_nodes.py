"""Unfair links between whole nodes: healthy ones answer each other, and a rule sees it if not."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from shardbus.errors import StoreUnavailable
from shardbus.simulation.membership.options import ROLE
from shardbus.simulation.membership.troubles import NodeTrouble
from shardbus.simulation.nodes.application import ON_ROLE
from shardbus.simulation.nodes.network import SimConnection
from shardbus.simulation.nodes.options import NodeOptions, draw_node_options
from shardbus.simulation.nodes.run import NodeRun
from shardbus.simulation.nodes.stores import SimStore
from shardbus.simulation.timeline import Timeline
from shardbus.simulation.virtual_loop import TURN_S, VirtualLoop
from tests.records import replace


def calm(seed: int, *troubles: NodeTrouble, seconds: float = 30.0) -> NodeOptions:
    """A run of four nodes with these troubles only."""
    drawn = draw_node_options(seed, 4, seconds, "keep-majority", "thin", links="unfair")
    faults = replace(drawn.faults, troubles=troubles, loss=0.0)
    return replace(drawn, faults=faults, types=0, every_s=0.1)


def trouble(kind: str, *channels: str, **more: Any) -> NodeTrouble:
    return NodeTrouble(kind, "n4", ("n1", "n2", "n3"), 10.0, 20.0, channels, **more)


def run_of(load: NodeOptions) -> tuple[NodeRun, str]:
    run = NodeRun(load)
    broken = run.run().broken
    return run, "" if broken is None else f"{broken.rule}: {broken.detail}"


@pytest.mark.long
def test_a_run_without_troubles_breaks_nothing_and_a_type_lives_on_its_nodes() -> None:
    run, broken = run_of(calm(1))
    assert broken == ""
    on_role = {
        name for name, sim in run.world.sim_nodes.items() if ROLE in sim.node.settings.node.roles
    }
    assert on_role == {"n1", "n3"}
    assert {
        name for name, sim in run.world.sim_nodes.items() if sim.node.regions[ON_ROLE].hosts
    } == on_role


def test_an_ask_that_is_lost_between_healthy_nodes_breaks_a_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the trouble on no frame passes between n1 and n2, which have none."""
    arrive = SimConnection._arrive

    def lossy(self: SimConnection, queue: Any) -> None:
        if {"n1", "n2"} != set(self.ends) or self._exchange.timeline.now < 115.0:
            arrive(self, queue)

    monkeypatch.setattr(SimConnection, "_arrive", lossy)
    _, broken = run_of(calm(2, trouble("deaf", "probes")))
    assert broken.startswith("goes on: ")


def test_many_types_of_which_most_get_no_message() -> None:
    load = replace(calm(3, seconds=12.0), types=30)
    run, broken = run_of(load)
    assert broken == ""
    assert len(run.application.bus.types) == 34


def test_a_slow_process_turns_slowly() -> None:
    timeline = Timeline(0.0)
    loop = VirtualLoop(timeline, lambda context: None)  # type: ignore[abstract]
    turns: list[float] = []

    def turn() -> None:
        turns.append(timeline.now)
        if len(turns) < 5:
            loop.call_soon(turn)

    loop.slow = 1000.0
    loop.call_soon(turn)
    timeline.run(1.0)
    assert [round(later - earlier, 6) for earlier, later in pairwise(turns)] == [1000 * TURN_S] * 4


def test_a_shard_without_a_home_breaks_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """n4 is restarted, and no coordinator can write a home from then on."""
    write = SimStore.write_homes

    async def refuse(self: SimStore, *what: Any) -> None:
        if self._server.timeline.now > 115.0:
            raise StoreUnavailable("no home is written")
        await write(self, *what)

    monkeypatch.setattr(SimStore, "write_homes", refuse)
    restarted = replace(trouble("restarts"), begins=16.0, lasts=1.0, restarts=1)
    _, broken = run_of(calm(4, restarted, seconds=45.0))
    assert broken.startswith("homes: ")
