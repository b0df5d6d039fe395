"""Splits of a cluster whose store is inside it: the side with the store stays, and at most one."""

from __future__ import annotations

import json
import random
from dataclasses import asdict

import pytest

from shardbus.config.settings import ClusterSettings, DowningSettings
from shardbus.membership.downing.electorate import MEMBERS, VoterSet, electorate_of
from shardbus.simulation.membership.options import draw, with_replicas
from shardbus.simulation.membership.replicas import SimRing
from shardbus.simulation.membership.run import simulate
from shardbus.simulation.membership.world import place_of
from tests.markers import long_only, soak_only
from tests.records import replace
from tests.simulation.test_seeds import run_cli
from tests.unit.membership.membership_net import Net
from tests.unit.membership.test_cluster import stir

STRATEGIES = {
    "keep-majority": DowningSettings(),
    "static-quorum": DowningSettings(strategy="static-quorum", static_quorum_size=3),
}


def cluster_of(
    nodes: int,
    hosts: list[str],
    *,
    seed: int = 1,
    strategy: str = "keep-majority",
    spares: tuple[str, ...] = (),
    repair_after: float = 0.0,
) -> tuple[Net, SimRing]:
    """Nodes that are Up, some with replicas, which agree on who votes."""
    net = Net(seed, replace(ClusterSettings(), downing=STRATEGIES[strategy]))
    ring = SimRing(net, hosts, (*hosts, *spares), repair_after)
    names = [f"n{i:02}" for i in range(1, nodes + 1)]
    net.join(names[0], replica=names[0] in hosts)
    for name in names[1:]:
        net.join(name, names[0], replica=name in (*hosts, *spares))
    net.until(lambda: net.agreed(names), 30)
    net.run(10)
    return net, ring


def stays(net: Net, *sides: list[str], rejecting: bool = False, seconds: float = 60.0) -> list[str]:
    """The names that are left after this split."""
    net.partition(*sides, rejecting=rejecting)
    net.run(seconds)
    return sorted(node.name for node in net.running() if node.machine.view.members)


FEW, MANY = ["n01", "n02"], ["n03", "n04", "n05"]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("rejecting", [False, True])
def test_two_nodes_with_two_of_three_replicas_stay_against_three(
    strategy: str, rejecting: bool
) -> None:
    """The majority of the members would stay without a store."""
    net, ring = cluster_of(5, ["n01", "n02", "n03"], strategy=strategy)
    assert stays(net, FEW, MANY, rejecting=rejecting) == FEW
    assert net.agreed(FEW)
    assert all(map(ring.reached_by, FEW))
    assert not any(map(ring.reached_by, MANY))


@pytest.mark.parametrize(
    ("hosts", "sides", "left"),
    [
        (["n01"], [["n01"], ["n02", "n03", "n04"]], ["n01"]),
        (["n01", "n02", "w1"], [["n01", "w1"], ["n02", "n03", "n04"]], ["n01"]),
        (["n01", "n02", "w1"], [["n01"], ["n02", "n03", "n04", "w1"]], ["n02", "n03", "n04"]),
        (["n01", "n02", "n03", "w1", "w2"], [["n01", "n02"], ["n03", "w1", "w2"]], ["n03"]),
        (["w1", "w2", "w3"], [["n01", "n02", "w1"], ["n03", "w2", "w3"]], ["n01", "n02"]),
        (["n01", "n02"], [["n01"], ["n02", "n03"]], ["n02", "n03"]),
    ],
)
def test_who_stays_by_the_replicas(
    hosts: list[str], sides: list[list[str]], left: list[str]
) -> None:
    """Witnesses make the lease decide, which is in the store; with witnesses alone, or where no
    side's store can answer, the members decide."""
    nodes = max(int(name[1:]) for side in sides for name in side if name[0] == "n")
    net, _ = cluster_of(nodes, hosts)
    assert stays(net, *sides) == left


def test_after_a_change_of_the_ring_the_new_replicas_vote() -> None:
    net, ring = cluster_of(5, ["n01", "n02", "n03"])
    names = [*FEW, *MANY]
    for name in ("n04", "n05"):
        net.kill(name)
        net.until(lambda: net.agreed([n for n in names if net.nodes[n].alive]), 30)
        net.join(name, "n01", replica=True)
        net.until(lambda: net.agreed([n for n in names if net.nodes[n].alive]), 30)
    ring.change(["n02", "n03", "n04"])
    ring.change(["n03", "n04", "n05"])
    net.run(15)
    for node in net.running():
        places = tuple(place_of(name) for name in MANY)
        assert electorate_of(node.machine.gossip) == (VoterSet(3, places),)
    assert stays(net, FEW, MANY) == MANY


def test_a_ring_repairs_itself_and_the_spares_vote() -> None:
    net, ring = cluster_of(6, ["n01", "n02", "n03"], spares=("n04", "n05"), repair_after=6.0)
    left = [f"n0{i}" for i in range(1, 7)]
    for name, spare in (("n01", "n04"), ("n02", "n05")):
        net.kill(name)
        left.remove(name)
        net.run(5)
        assert name in ring.hosts, "not for long enough"
        net.run(3)
        assert name not in ring.hosts
        assert spare in ring.hosts
        net.until(lambda: net.agreed(left), 60)
        net.run(10)
    assert ring.repairs == 2
    places = tuple(place_of(name) for name in MANY)
    assert [electorate_of(node.machine.gossip)[-1] for node in net.running()] == [
        VoterSet(3, places)
    ] * 4
    assert stays(net, ["n03", "n04"], ["n05", "n06"]) == ["n03", "n04"]


@pytest.mark.parametrize(
    ("sides", "repairs"),
    [
        ((["n01", "n04"], ["n02", "n05"], ["n03"]), 0),
        ((["n01", "n02"], ["n03", "n04", "n05"]), 0),
        ((["n01", "n02", "n04"], ["n03", "n05"]), 1),
    ],
    ids=["no majority", "no spare", "a majority and a spare"],
)
def test_a_majority_that_misses_a_replica_replaces_it(
    sides: tuple[list[str], ...], repairs: int
) -> None:
    net, ring = cluster_of(5, ["n01", "n02", "n03"], spares=("n04",), repair_after=1.0)
    net.partition(*sides)
    net.run(3)
    assert ring.repairs == repairs


def test_a_replica_that_another_one_sees_stays() -> None:
    net, ring = cluster_of(5, ["n01", "n02", "n03"], spares=("n04",), repair_after=1.0)
    net.cut_links = [("n01", "n03")]
    net.run(3)
    assert ring.repairs == 0


def test_a_restarted_node_votes_by_its_place() -> None:
    net, _ = cluster_of(5, ["n01", "n02", "n03"])
    net.kill("n02")
    net.until(lambda: net.agreed(["n01", *MANY]), 30)
    net.join("n02", "n01", replica=True)
    net.until(lambda: net.agreed([*FEW, *MANY]), 30)
    net.run(10)
    assert stays(net, FEW, MANY) == FEW


def test_replicas_that_are_lost_one_after_the_other_end_no_node() -> None:
    """Nor do machines that vanish: the members decide once no side can have a store."""
    net, _ = cluster_of(6, ["n01", "n02", "n03"])
    left = [f"n0{i}" for i in range(1, 7)]
    for name, silent in (("n01", False), ("n02", True), ("n03", True)):
        net.kill(name, silent=silent)
        left.remove(name)
        net.until(lambda: net.agreed(left), 60)


def test_without_a_store_in_the_cluster_nothing_is_written() -> None:
    net = Net(1)
    net.start(3)
    net.run(10)
    for node in net.running():
        assert node.machine.gossip.meta == {}
        assert electorate_of(node.machine.gossip) == MEMBERS


def test_the_replay_command_gives_the_same_run() -> None:
    options = with_replicas(draw(23, seconds=5.0))
    again = run_cli("7", *options.command().split()[2:], "--json")
    assert again.returncode == 0, again.stderr
    row = json.loads(again.stdout)
    assert row["digest"] == simulate(options).digest
    assert row["options"] == json.loads(json.dumps(asdict(options)))


@pytest.mark.parametrize("other", ["--sharding", "--strategy=keep-majority", "--links=unfair"])
def test_replicas_are_refused_with_what_they_exclude(other: str) -> None:
    refused = run_cli("0", "--replicas", "--seed", "1", other)
    assert refused.returncode == 2
    assert "not with" in refused.stderr


# -- seeds -------------------------------------------------------------------------------------


def check_that_one_side_stays_at_most(strategy: str, seed: int) -> None:
    """A wall of either kind into two or three parts, at any moment of joins, leaves and changes of
    the ring."""
    dice = random.Random(f"voters {strategy} {seed}")
    net = Net(seed, replace(ClusterSettings(), downing=STRATEGIES[strategy]))
    hosts = [f"n{i:02}" for i in range(1, 6)] + ["w1"]
    ring = SimRing(net, dice.sample(hosts, dice.choice((1, 3, 3, 5))))
    join = net.join
    net.join = lambda name, *seeds, **more: join(  # type: ignore[method-assign]
        name, *seeds, replica=name in hosts, **more
    )
    stir(net, dice)
    for _ in range(dice.randrange(4)):
        ring.change(dice.sample(hosts, dice.choice((1, 3, 3, 5))))
        net.run(dice.uniform(0.0, 1.5))
    parts = dice.choice((2, 2, 3))
    side = {name: dice.randrange(parts) for name in (*net.nodes, "w1")}
    sides = [[name for name in side if side[name] == part] for part in range(parts)]
    net.partition(*sides, rejecting=dice.random() < 0.5)
    net.run(45)
    members = [node for node in net.running() if node.machine.view.members]
    assert len({side[node.name] for node in members}) <= 1, f"seed {seed}: {net.picture()}"


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "seeds", [range(4), *long_only(range(4, 30)), *soak_only(range(1000, 1300))], ids=str
)
def test_at_most_one_side_stays_while_rings_change(strategy: str, seeds: range) -> None:
    for seed in seeds:
        check_that_one_side_stays_at_most(strategy, seed)


@pytest.mark.parametrize(
    "seeds", [range(800, 803), *long_only(range(803, 830)), *soak_only(range(830, 1300))], ids=str
)
def test_seeds_with_replicas_break_no_rule(seeds: range) -> None:
    for seed in seeds:
        outcome = simulate(with_replicas(draw(seed)))
        assert outcome.broken is None, outcome.report()
