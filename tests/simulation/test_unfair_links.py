"""Unfair links: the effect of each kind of trouble, that its rules can fail, and seeds that
hold."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from shardbus.membership import events as ev
from shardbus.membership.failure.confirmed_death import ProbeOutcome
from shardbus.simulation.membership.checks import Violation
from shardbus.simulation.membership.fairness import (
    SUSPENDED_MAX_S,
    Fairness,
)
from shardbus.simulation.membership.network import Channel, SimPubSub
from shardbus.simulation.membership.options import Options, draw
from shardbus.simulation.membership.process import Process
from shardbus.simulation.membership.run import simulate
from shardbus.simulation.membership.troubles import (
    ACCUSATIONS,
    KINDS,
    LINKS,
    WALLS,
    NodeTrouble,
    draw_troubles,
    names_of,
)
from shardbus.simulation.membership.world import EVENT_S, World
from tests.records import replace

EVERY = tuple(channel.value for channel in Channel)


def trouble(kind: str, *others: str, **more: Any) -> NodeTrouble:
    """A trouble of n4 that begins after ten seconds and lasts for a minute."""
    channels = EVERY if kind in WALLS else ()
    return NodeTrouble(kind, "n4", others or ("n1", "n2", "n3"), 10.0, 60.0, channels, **more)


def walled(*troubles: NodeTrouble) -> SimPubSub:
    network = SimPubSub(Random(0))
    for trouble in troubles:
        wall = trouble.wall()
        assert wall is not None
        network.walls.append(wall)
    return network


# ---- walls


@pytest.mark.parametrize(
    ("kind", "to_others", "to_n4"),
    [("mute", True, False), ("deaf", False, True)],
)
def test_data_are_lost_in_one_direction_and_connections_stand(
    kind: str, to_others: bool, to_n4: bool
) -> None:
    network = walled(trouble(kind))
    for channel in (Channel.MESSAGES, Channel.GOSSIP):
        for opener in ("n4", "n1"):
            assert network.walled("n4", "n1", channel, opener) is to_others
            assert network.walled("n1", "n4", channel, opener) is to_n4
        assert not network.severed("n4", "n1", channel)
        assert not network.severed("n1", "n4", channel)
    assert network.severed("n4", "n1", Channel.PROBES)
    assert network.severed("n1", "n4", Channel.PROBES)
    assert not network.walled("n1", "n2", Channel.GOSSIP, "n2")


@pytest.mark.parametrize(("kind", "opener"), [("cannot-connect", "n4"), ("cannot-accept", "n1")])
def test_connections_of_one_end_are_dead_in_both_directions(kind: str, opener: str) -> None:
    network = walled(trouble(kind))
    other = "n1" if opener == "n4" else "n4"
    for channel in Channel:
        assert network.severed(opener, other, channel)
        assert not network.severed(other, opener, channel)
        for a, b in (("n4", "n1"), ("n1", "n4")):
            assert network.walled(a, b, channel, opener)
            assert not network.walled(a, b, channel, other)
        assert not network.severed("n2", "n3", channel)


def test_a_wall_concerns_its_channels_only() -> None:
    network = walled(replace(trouble("mute"), channels=("gossip",)))
    assert network.walled("n4", "n1", Channel.GOSSIP, "n1")
    assert not network.walled("n4", "n1", Channel.MESSAGES, "n4")
    assert not network.severed("n4", "n1", Channel.PROBES)


def test_only_a_rejecting_wall_refuses() -> None:
    refusing = trouble("cannot-connect", rejecting=True)
    assert walled(refusing).rejects("n4", "n1", Channel.PROBES)
    assert not walled(refusing).rejects("n1", "n4", Channel.PROBES)
    assert not walled(trouble("cannot-connect")).rejects("n4", "n1", Channel.PROBES)


# ---- the world


@pytest.fixture
def world() -> World:
    """Four nodes that are members of one cluster."""
    world = World(7)
    for name in names_of(4):
        world.enter(world.add(name), *(["n1"] if name != "n1" else []))
    world.run(15.0)
    up = dict.fromkeys(names_of(4), "up")
    assert [view_of(world.nodes[name]) for name in names_of(4)] == [up] * 4
    return world


def view_of(process: Process) -> dict[str, str]:
    return dict(process.view)


def heard_by(world: World, name: str, seconds: float = 3.0) -> set[str]:
    """The nodes whose gossip arrives at this one."""
    heard: set[str] = set()
    deliver = world.deliver

    def listen(process: Process, event: ev.Event) -> None:
        if process.name == name and isinstance(event, ev.PubSubReceived):
            heard.add(event.sender.host)
        deliver(process, event)

    world.deliver = listen  # type: ignore[method-assign]
    world.run(seconds)
    world.deliver = deliver  # type: ignore[method-assign]
    return heard


@pytest.mark.parametrize(
    ("kind", "n4_hears", "n1_hears_n4"),
    [
        ("mute", True, False),
        ("deaf", False, True),
        ("cannot-connect", False, True),
        ("cannot-accept", True, False),
    ],
)
def test_gossip_passes_or_not(world: World, kind: str, n4_hears: bool, n1_hears_n4: bool) -> None:
    """A node connects to those that it hears: who cannot connect hears nothing."""
    wall = trouble(kind).wall()
    assert wall is not None
    world.wall_up(wall)
    assert heard_by(world, "n4") == ({"n1", "n2", "n3"} if n4_hears else set())
    assert ("n4" in heard_by(world, "n1")) is n1_hears_n4


@pytest.mark.parametrize("kind", ["cannot-connect", "cannot-accept"])
def test_a_node_joins_by_connections_of_its_own(kind: str) -> None:
    world = World(8)
    world.enter(world.add("n1"))
    world.run(3.0)
    wall = replace(trouble(kind, "n1"), channels=("messages",)).wall()
    assert wall is not None
    world.wall_up(wall)
    newcomer = world.add("n4")
    world.enter(newcomer, "n1")
    world.run(8.0)
    assert newcomer.member is (kind == "cannot-accept")


def test_probes_of_one_end_are_refused(world: World) -> None:
    wall = trouble("cannot-connect", rejecting=True).wall()
    assert wall is not None
    world.wall_up(wall)
    outcomes: list[tuple[str, ProbeOutcome]] = []
    deliver = world.deliver

    def listen(process: Process, event: ev.Event) -> None:
        if isinstance(event, ev.ProbeResult):
            outcomes.append((process.name, event.outcome))
        deliver(process, event)

    world.deliver = listen  # type: ignore[method-assign]
    for name, other in (("n4", "n1"), ("n1", "n4")):
        world._probe(world.nodes[name], world.nodes[other].id)
    world.run(0.1)
    assert outcomes[:2] == [("n4", ProbeOutcome.REFUSED), ("n1", ProbeOutcome.ALIVE)]


def test_a_slow_process_handles_its_events_one_after_the_other() -> None:
    world = World(9)
    process = world.add("n1")
    world.enter(process)
    world.run(2.0)
    world.slow_down("n1", 1000.0)
    handled: list[float] = []
    world.hooks.on_step = lambda process: handled.append(world.now)
    for number in range(5):
        world.deliver(process, ev.SetMeta("a", b"%d" % number))
    world.run(20 * 1000 * EVENT_S)
    assert process.machine.gossip.meta["a"].data == b"4"
    gaps = [later - earlier for earlier, later in pairwise(handled)]
    assert min(gaps) >= 1000 * EVENT_S - 1e-9
    world.slow_down("n1", 1.0)
    world.deliver(process, ev.SetMeta("a", b"at once"))
    assert process.machine.gossip.meta["a"].data == b"at once"


def test_a_store_is_lost_by_one_node_alone(world: World) -> None:
    world.lose_store("n2")
    leases = world.leases
    assert leases.acquire("a", "one", 9.0, world.now, by="n2") is None
    assert leases.acquire("a", "two", 9.0, world.now, by="n1") is True
    world.lose_store("n2", lost=False)
    assert leases.acquire("a", "one", 9.0, world.now, by="n2") is False


# ---- drawn troubles


@pytest.mark.parametrize("nodes", range(1, 10))
def test_healthy_nodes_are_a_majority_and_no_fault_of_theirs_explains_the_broken_links(
    nodes: int,
) -> None:
    kinds = set()
    for seed in range(200):
        drawn = draw(seed, nodes, links="unfair")
        healthy = set(names_of(nodes)) - drawn.excused
        assert 2 * len(healthy) > nodes
        for trouble in drawn.troubles:
            kinds.add(trouble.kind)
            assert trouble.culprit not in trouble.others
            assert trouble.pair or len(healthy & set(trouble.others)) > len(drawn.excused)
        assert drawn.strategy != "keep-oldest" or "n1" not in drawn.excused
        assert not drawn.gentle or not drawn.troubles
    assert kinds == (set(KINDS) if nodes > 2 else set())


def test_a_run_is_described_as_it_is_replayed() -> None:
    drawn = draw(3, 5, links="unfair")
    assert "--links unfair" in drawn.command()
    json.dumps(asdict(drawn))
    first = drawn.troubles[0]
    assert str(first).startswith(f"{first.culprit} {first.kind}")
    assert set(LINKS) == {"fair", "unfair"}
    assert draw_troubles(Random(1), 2, 60.0) == ()


# ---- the rules


def judged(
    *troubles: NodeTrouble, strategy: str = "keep-majority", rejoins: bool = False
) -> Options:
    """A run of four nodes in which nothing happens but these troubles."""
    return Options(
        5, 4, 60.0, strategy=strategy, links="unfair", troubles=troubles, rejoins=rejoins
    )


def raised_by(fairness: Fairness, process: Process) -> str:
    try:
        fairness.after(process)
    except Violation as violation:
        return violation.rule
    return ""


@pytest.mark.parametrize(
    ("name", "reason", "rule"),
    [("n1", "downed", "stays"), ("n1", "left", ""), ("n4", "downed", "")],
)
def test_only_who_has_a_trouble_may_be_downed(
    world: World, name: str, reason: str, rule: str
) -> None:
    fairness = Fairness(world, judged(trouble("deaf")))
    world.nodes[name].stopped = reason
    assert raised_by(fairness, world.nodes[name]) == rule


def test_where_every_loss_downs_all_nothing_is_said_of_who_stays(world: World) -> None:
    fairness = Fairness(world, judged(trouble("deaf"), strategy="down-all"))
    world.nodes["n1"].stopped = "downed"
    assert raised_by(fairness, world.nodes["n1"]) == ""


def test_a_healthy_node_is_suspended_for_a_moment_only(world: World) -> None:
    fairness = Fairness(world, judged(trouble("deaf")))
    for name, rule in (("n1", "suspended"), ("n4", "")):
        process = world.nodes[name]
        process.confirmed_until = world.now
        assert raised_by(fairness, process) == ""
        world.now += SUSPENDED_MAX_S / 2
        assert raised_by(fairness, process) == ""
        process.confirmed_until = world.now + SUSPENDED_MAX_S
        assert raised_by(fairness, process) == ""
        world.now += 0.6 * SUSPENDED_MAX_S
        process.confirmed_until = world.now
        assert raised_by(fairness, process) == ""
        world.now += SUSPENDED_MAX_S + 0.01
        assert raised_by(fairness, process) == rule


def test_of_a_pair_at_most_one_end_is_downed(world: World) -> None:
    pair = trouble("deaf", "n2")
    for rejoins, rule in ((False, "only"), (True, "")):
        fairness = Fairness(world, judged(pair, rejoins=rejoins))
        world.nodes["n4"].stopped, world.nodes["n2"].stopped = "downed", ""
        assert raised_by(fairness, world.nodes["n4"]) == ""
        world.nodes["n2"].stopped = "downed"
        assert raised_by(fairness, world.nodes["n2"]) == rule


def rule_of(options: Options) -> str:
    broken = simulate(options).broken
    return "" if broken is None else broken.rule


@pytest.mark.parametrize("kind", [*WALLS, *ACCUSATIONS])
def test_a_culprit_must_go(kind: str) -> None:
    """Where no node ever decides, the rule is broken."""
    assert rule_of(judged(trouble(kind), strategy="none")) == "goes"


def test_a_culprit_with_a_flapping_wall_may_stay() -> None:
    flapping = replace(trouble("deaf", flaps_s=5.0), channels=("gossip",))
    assert rule_of(judged(flapping, strategy="none")) == ""


def test_no_process_comes_up_that_reaches_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The walls let everything through here, so the new process joins."""
    monkeypatch.setattr(SimPubSub, "walled", lambda *_, **__: False)
    monkeypatch.setattr(SimPubSub, "severed", lambda *_, **__: False)
    restarted = replace(trouble("restarts"), begins=15.0, lasts=9.0, restarts=1)
    for channel, rule in (("gossip", "joins"), ("probes", "")):
        deaf = replace(trouble("deaf"), channels=(channel,), lasts=25.0)
        assert rule_of(judged(deaf, restarted)) == rule
