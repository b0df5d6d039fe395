"""One place in splits and after pauses, in whole simulated nodes: the count of the rule, and the
effects of splits, stopped processes, blocked loops and suspended machines.

A failing seed prints the command that replays it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from shardbus.config.settings import ClusterSettings
from shardbus.simulation.membership.checks import Violation
from shardbus.simulation.membership.network import CutLink, partition
from shardbus.simulation.membership.options import Options
from shardbus.simulation.nodes.application import PLAIN, SimApplication
from shardbus.simulation.nodes.checker import DeliveryChecker
from shardbus.simulation.nodes.options import NodeOptions, draw_node_options
from shardbus.simulation.nodes.places import OnePlace
from shardbus.simulation.nodes.run import simulate_nodes
from shardbus.simulation.nodes.splits import SHAPES, Splits, links_between
from shardbus.simulation.nodes.world import NodeWorld
from shardbus.simulation.timeline import ProcessClock, Timeline
from shardbus.simulation.virtual_loop import VirtualLoop
from tests.markers import soak_only
from tests.records import replace

CALM: dict[str, Any] = {
    "store": "sound", "stops": 0, "sleeps": 0, "rolls": 0, "downs": 0, "services": 0, "pairs": 0,
    "cuts": 0, "hangs": 0, "room": 0, "rebalances": 0, "hurried": False, "failing_starts": 0.0,
    "clients": 3, "every_s": 0.1,
}  # fmt: skip
PEACE: dict[str, Any] = {
    "partitions": 0, "one_ways": 0, "cut_links": 0, "swizzles": 0, "kills": 0, "vanishes": 0,
    "leaves": 0, "joins": 0, "bounces": 0, "pauses": 0, "loss": 0.0, "duplication": 0.0,
    "reordering": 0.0, "store": "sound", "rejecting": False, "role": "", "margin_s": 0.0,
    "min_members": 1, "drift": 0.01,
}  # fmt: skip
"""Only the test causes events. Clocks run up to 1 % too fast or too slow."""

SPLITS = {"splits": 2, "split_s": 40.0}
LINGERING = {"splits": 3, "split_s": 20.0, "waits_s": 3.0, "thinks": 0.02}
STOPS = {"freezes": 3, "stop_s": 60.0}
BLOCKS = {"blocks": 3, "stop_s": 60.0}
SUSPENDS = {"suspends": 3, "stop_s": 60.0}

Patch = pytest.MonkeyPatch


def long(seed: int, like: dict[str, Any]) -> Any:
    """A run that `make test` leaves to `make test-long`."""
    return pytest.param(seed, like, marks=pytest.mark.long)


QUICK = [(1, SPLITS)]
LONG = [
    long(10, SPLITS),
    long(2, STOPS),
    long(9, SUSPENDS),
    *(pytest.param(seed, STOPS, marks=pytest.mark.soak) for seed in (4, 9)),
]
"""Each of these seeds breaks the rule where no node suspends."""


def load_of(
    seed: int, like: dict[str, Any], strategy: str = "keep-majority", seconds: float = 45.0
) -> NodeOptions:
    """A run of five nodes with these faults only."""
    drawn = draw_node_options(seed, 5, seconds, strategy, "thin", splits=False)
    faults = replace(drawn.faults, **PEACE)
    return replace(drawn, faults=faults, **{**CALM, "entities": 6, **like})


# ---- runs


@pytest.mark.parametrize(
    ("seed", "like"),
    [*QUICK, *LONG, long(1, LINGERING), long(1, BLOCKS)],
)
def test_no_entity_is_handled_in_two_places(seed: int, like: dict[str, Any]) -> None:
    """Without suspension most of these seeds break the rule: see below."""
    outcome = simulate_nodes(load_of(seed, like))
    assert outcome.broken is None, outcome.report()


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, *soak_only(1, 2)])
@pytest.mark.parametrize("strategy", ["static-quorum", "keep-oldest", "lease-majority", "down-all"])
def test_no_entity_is_handled_in_two_places_under_any_strategy(strategy: str, seed: int) -> None:
    load = load_of(seed, {"splits": 2, "split_s": 40.0, "freezes": 1, "stop_s": 40.0}, strategy)
    quorum = 3 if strategy == "static-quorum" else 0
    outcome = simulate_nodes(replace(load, faults=replace(load.faults, quorum=quorum)))
    assert outcome.broken is None, outcome.report()


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_no_entity_is_handled_in_two_places_for_hundreds_of_seeds() -> None:
    for seed in range(20_000, 20_300):
        outcome = simulate_nodes(draw_node_options(seed, splits=True))
        assert outcome.broken is None, outcome.report()


@pytest.mark.long
@pytest.mark.parametrize(("seed", "like"), [*QUICK, *LONG])
def test_without_suspension_entities_are_handled_in_two_places(
    seed: int, like: dict[str, Any], monkeypatch: Patch
) -> None:
    """The rule can fail: known seeds break it where no node suspends."""
    monkeypatch.setattr(ClusterSettings, "suspends", property(lambda self: False))
    for tried in (seed, *range(20)):
        broken = simulate_nodes(load_of(tried, like)).broken
        if broken is not None:
            assert broken.rule == "place", (tried, broken.rule, broken.detail)
            return
    pytest.fail("no seed finds it")


def test_a_suspended_node_resumes_after_the_heal(world: NodeWorld) -> None:
    """A split that heals before any side has decided: both sides suspend, and go on."""
    gates = [sim_node.node.gate for sim_node in world.sim_nodes.values()]
    assert not any(gate.is_shut() for gate in gates)
    wall = partition(["n1"], ["n2"])
    world.wall_up(wall)
    world.run(world.settings.contact_lifetime + 1.5)
    assert all(gate.is_shut() for gate in gates)
    world.wall_down(wall)
    world.run(5.0)
    assert not any(gate.is_shut() for gate in gates)
    assert [len(process.view) for process in world.nodes.values()] == [2, 2]


# ---- the rule


class Activated:
    """An activation, as the rule sees one."""

    entity_type, key = PLAIN, "e1"

    def __init__(self, node: str, fence: int) -> None:
        self.node, self.fence = node, fence

    def _of(self) -> Activated:
        return self


@pytest.fixture
def world() -> Iterator[NodeWorld]:
    """Two nodes that are one cluster."""
    load = NodeOptions(Options(seed=1, nodes=2), shards=4)
    application = SimApplication(load)
    world = NodeWorld("x", ClusterSettings(), load.sharding(), application.bus.types)
    application.checker = DeliveryChecker(world)
    world.enter(world.add("n1"))
    world.enter(world.add("n2"), "n1")
    world.run(5.0)
    yield world
    world.close()


@pytest.fixture
def places(world: NodeWorld) -> OnePlace:
    return OnePlace(world, Violation)


def activations(world: NodeWorld) -> tuple[Any, Any]:
    """An activation on the first node, and its successor on the second."""
    first, second = (str(world.nodes[name].id) for name in ("n1", "n2"))
    return Activated(first, 1), Activated(second, 2)


def test_a_successor_may_handle_when_the_former_one_is_idle(
    world: NodeWorld, places: OnePlace
) -> None:
    former, latest = activations(world)
    for activation in (former, former, latest, latest):
        with places.handler(activation):
            places.begins(activation)


def test_a_former_activation_handles_nothing_more(world: NodeWorld, places: OnePlace) -> None:
    former, latest = activations(world)
    places.begins(former)
    places.begins(latest)
    with pytest.raises(Violation, match=r"place: .* begins to handle a message at n1:"):
        places.begins(former)


def test_a_lower_fence_is_a_former_activation(world: NodeWorld, places: OnePlace) -> None:
    former, latest = activations(world)
    places.begins(latest)
    with pytest.raises(Violation, match="begins to handle"):
        places.begins(former)


def test_a_handler_that_waits_is_handling(world: NodeWorld, places: OnePlace) -> None:
    former, latest = activations(world)
    places.handler(former).__enter__()
    with pytest.raises(Violation, match="is in a handler at n1:"):
        places.begins(latest)


def test_a_handler_in_a_paused_process_is_judged_when_it_continues(
    world: NodeWorld, places: OnePlace
) -> None:
    former, latest = activations(world)
    handler = places.handler(former)
    handler.__enter__()
    world.pause("n1", 20.0)
    world.run(10.0)
    places.begins(latest)
    with pytest.raises(Violation, match="continues a handler at n1:"):
        handler.__exit__(None, None, None)


@pytest.mark.parametrize("obeys", [True, False])
def test_a_handler_that_is_being_cancelled_is_judged_when_it_continues(
    world: NodeWorld, places: OnePlace, obeys: bool
) -> None:
    """It was cut off while its node was suspended, and the node goes on at this very instant."""
    former, latest = activations(world)

    async def handle() -> None:
        with places.handler(former, asyncio.current_task()):
            try:
                await asyncio.sleep(1.0)
            except asyncio.CancelledError:
                if obeys:
                    raise

    async def succeed() -> None:
        task = asyncio.create_task(handle())
        await asyncio.sleep(0)
        task.cancel()
        places.begins(latest)
        await task

    with pytest.raises(asyncio.CancelledError if obeys else Violation) as raised:
        asyncio.run(succeed())
    assert obeys or "continues a handler at n1:" in str(raised.value)


@pytest.mark.parametrize("error", [GeneratorExit, ValueError])
def test_a_handler_that_is_ended_handles_nothing(
    world: NodeWorld, places: OnePlace, error: type[BaseException]
) -> None:
    former, latest = activations(world)
    handler = places.handler(former)
    handler.__enter__()
    world.pause("n1", 20.0)
    world.run(10.0)
    places.begins(latest)
    handler.__exit__(error, None, None)
    with places.handler(latest):
        places.begins(latest)


def test_a_handler_of_a_dead_process_is_over(world: NodeWorld, places: OnePlace) -> None:
    former, latest = activations(world)
    places.handler(former).__enter__()
    world.kill("n1")
    places.begins(latest)


@pytest.mark.parametrize("cause", ["lied", "twice", "rejected", "downed"])
def test_what_no_node_can_prevent_is_excused(
    world: NodeWorld, places: OnePlace, cause: str
) -> None:
    former, latest = activations(world)
    places.begins(latest)
    world.store.lied = cause == "lied"
    world.leases.twice = cause == "twice"
    world.network.rejected = cause == "rejected"
    if cause == "downed":
        world.downed_by_operators[former.node] = None
    places.begins(former)
    places.begins(latest)


# ---- clocks


def test_a_suspended_machine_has_no_monotonic_time() -> None:
    clock = ProcessClock(1.01)
    before = clock.monotonic(10.0)
    clock.stand_still(10.0)
    assert clock.monotonic(30.0) == before
    clock.go_on(40.0)
    assert clock.monotonic(41.0) == pytest.approx(before + 1.01)
    assert clock.boot_time(41.0) - clock.boot_time(10.0) == pytest.approx(31 * 1.01)


def test_a_timer_waits_for_the_clock_of_a_suspended_machine() -> None:
    timeline, rang = Timeline(0.0), []
    clock = ProcessClock()
    loop = VirtualLoop(timeline, lambda context: None, clock)  # type: ignore[abstract]
    loop.call_later(5.0, lambda: rang.append((timeline.now, loop.time())))
    timeline.run(1.0)
    clock.stand_still(timeline.now)
    timeline.run(10.0)
    assert rang == []
    clock.go_on(timeline.now)
    timeline.run(10.0)
    assert rang == [pytest.approx((15.0, 5.0), abs=0.01)]


def test_the_timers_of_a_suspended_machine_wait_and_its_membership_does_not(
    world: NodeWorld,
) -> None:
    process, loop = world.nodes["n2"], world.sim_nodes["n2"].loop
    before, began = loop.time(), process.clock(world.now)
    world.suspend_machine("n2", 60.0)
    world.run(30.0)
    assert loop.time() == before
    world.run(30.1)
    assert loop.time() == pytest.approx(before + 0.1, abs=0.01)
    assert process.clock(world.now) == pytest.approx(began + 60.1)


def test_a_blocked_loop_gives_up_its_coordinators_and_then_its_node(world: NodeWorld) -> None:
    settings = world.settings
    process, age = world.nodes["n1"], lambda: world.nodes["n1"].machine.gossip.members
    number = age()[process.id].up_number
    world.block("n1", 100.0)
    world.run(settings.coordinator_stall + 1.0)
    assert age()[process.id].up_number > number
    world.run(settings.app_stall_timeout)
    assert process.stopped == "downed"
    assert not world.sim_nodes["n1"].executes


# ---- splits


@pytest.mark.parametrize("shape", SHAPES)
def test_a_split_has_nodes_and_clients_on_each_side(shape: str) -> None:
    load = NodeOptions(Options(seed=3, nodes=5), clients=3)
    application = SimApplication(load)
    world = NodeWorld("x", ClusterSettings(), load.sharding(), application.bus.types)
    splits = Splits(world, load, lambda action: action())
    splits._dice = Random(7)
    names = [f"n{number}" for number in range(1, 6)]
    sides = splits._sides(shape, names, ["c1", "c2", "c3"])
    assert sorted(name for side in sides for name in side) == ["c1", "c2", "c3", *names]
    assert len(sides) == (3 if shape == "three" else 2)
    for side in sides:
        assert {name[0] for name in side} == {"n", "c"}
    world.close()


def test_links_between_sides_leave_a_bridge() -> None:
    walls = links_between([["n1", "c1"], ["n2"]])
    assert walls == [CutLink(frozenset(("n1", "n2"))), CutLink(frozenset(("c1", "n2")))]


def test_a_run_with_splits_is_replayed_by_its_command() -> None:
    drawn = draw_node_options(3, splits=True)
    assert drawn.command().endswith(" --splits")
    assert drawn == draw_node_options(3, splits=True)
    assert {draw_node_options(seed).splits > 0 for seed in range(20)} == {True, False}
    assert draw_node_options(3, splits=False).splits == 0
