"""Random walls in a virtual network, under every strategy: never two survivors, and a cluster that
agrees with itself."""

from __future__ import annotations

import random

import pytest

from shardbus.config.settings import ClusterSettings, DowningSettings
from shardbus.membership import events as ev
from shardbus.membership import view as seen
from shardbus.membership.downing.split import DowningOutcome
from shardbus.membership.member import Status
from shardbus.membership.view import HandlingSuspended
from shardbus.simulation.membership.network import CutLink
from tests.records import replace
from tests.unit.membership.membership_net import Net, half_asleep_behind_a_wall
from tests.unit.membership.test_cluster import stir

STRATEGIES = {
    "keep-majority": DowningSettings(),
    "static-quorum": DowningSettings(strategy="static-quorum", static_quorum_size=3),
    "keep-oldest": DowningSettings(strategy="keep-oldest"),
    "keep-oldest, alone too": DowningSettings(strategy="keep-oldest", down_if_alone=False),
    "down-all": DowningSettings(strategy="down-all"),
    "lease-majority": DowningSettings(strategy="lease-majority"),
    "with a margin": DowningSettings(down_removal_margin=3.0),
    "lease and margin": DowningSettings(strategy="lease-majority", down_removal_margin=3.0),
}


def world(name: str, seed: int, loss: float = 0.0) -> Net:
    return Net(seed, replace(ClusterSettings(), downing=STRATEGIES[name]), loss=loss)


def check_that_at_most_one_side_stays(name: str, seed: int) -> None:
    """A wall into two or three parts, at any moment of joins and leaves, of either kind, with or
    without a store."""
    dice = random.Random(f"{name} {seed}")
    net = world(name, seed)
    stir(net, dice)
    parts = dice.choice([2, 2, 3])
    side = {name: dice.randrange(parts) for name in net.nodes}
    net.store_up = dice.random() < 0.8
    sides = [[name for name in side if side[name] == part] for part in range(parts)]
    net.partition(*sides, rejecting=dice.random() < 0.5)
    net.run(45)
    members = [node for node in net.running() if node.machine.view.members]
    assert len({side[node.name] for node in members}) <= 1, f"seed {seed}: {net.picture()}"
    assert net.agreed([n.name for n in members]) or len(members) < len(net.running())


@pytest.mark.parametrize("name", STRATEGIES)
def test_at_most_one_side_stays(name: str) -> None:
    check_that_at_most_one_side_stays(name, 0)


@pytest.mark.long
@pytest.mark.parametrize("name", STRATEGIES)
def test_at_most_one_side_stays_for_more_seeds(name: str) -> None:
    for seed in range(1, 3):
        check_that_at_most_one_side_stays(name, seed)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", STRATEGIES)
def test_at_most_one_side_stays_for_many_seeds(name: str) -> None:
    for seed in range(1000, 1300):
        check_that_at_most_one_side_stays(name, seed)


@pytest.mark.parametrize(
    ("name", "few", "survivors"),
    [
        ("keep-majority", 2, "many"),
        ("static-quorum", 2, "many"),
        ("keep-oldest", 2, "few"),
        ("keep-oldest", 1, "many"),
        ("keep-oldest, alone too", 1, "few"),
        ("down-all", 2, ""),
        ("lease-majority", 2, "many"),
        ("with a margin", 2, "many"),
        ("lease and margin", 2, "many"),
    ],
)
@pytest.mark.parametrize("rejecting", [False, True])
def test_who_stays_of_five(name: str, few: int, survivors: str, rejecting: bool) -> None:
    """The oldest is the first of the few."""
    net = world(name, 3)
    names = [node.name for node in net.start(5)]
    net.run(3)
    sides = {"few": names[:few], "many": names[few:], "": []}
    net.partition(sides["few"], sides["many"], rejecting=rejecting)
    net.run(40)
    assert net.agreed(sides[survivors])
    assert sorted(n.name for n in net.nodes.values() if n.stopped == "downed") == sorted(
        set(names) - set(sides[survivors])
    )


@pytest.mark.parametrize("pause", [0.01, 0.03, 0.1, 1.0])
def test_a_wall_that_rejects_and_grows_does_not_take_one_after_the_other(pause: float) -> None:
    """The few have the leader, and see one of the many after the other refuse; yet the others still
    reach it."""
    net = world("keep-majority", 12)
    few, many = ["n01", "n02"], ["n03", "n04", "n05"]
    net.start(5)
    net.run(3)
    for node in many:
        for other in few:
            net.wall_up(CutLink(frozenset({node, other}), rejecting=True))
        net.run(pause)
    net.run(40)
    assert net.agreed(many), net.picture()


@pytest.mark.parametrize("name", ["static-quorum", "keep-oldest", "lease-majority"])
def test_a_death_is_found_as_quickly_as_ever(name: str) -> None:
    net = world(name, 4)
    net.start(5)
    net.run(3)
    net.kill("n05")
    net.until(lambda: net.agreed(["n01", "n02", "n03", "n04"]), 2.0)


@pytest.mark.parametrize("name", STRATEGIES)
def test_TC47_one_bad_link_costs_one_node(name: str) -> None:
    net = world(name, 6)
    nodes = net.start(5)
    net.run(5)
    net.cut_links = [{"n02", "n03"}, {"n02", "n04"}]
    net.run(40)
    assert net.agreed(["n01", "n03", "n04", "n05"])
    assert nodes[1].stopped == "downed"


def test_a_decision_is_a_notice_with_its_reason() -> None:
    net = world("static-quorum", 7)
    nodes = net.start(3)
    net.run(3)
    net.partition(["n01"], ["n02", "n03"])
    net.run(40)
    assert [n.name for n in net.running()] == []
    decided = {}
    for node in nodes:
        decisions = [n.decision for n in node.notices if isinstance(n, seen.DowningDecided)]
        decided[node.name] = [(d.outcome, d.reason[:11]) for d in decisions]
    lost = [(DowningOutcome.DOWN_OURSELVES, "no quorum: ")]
    assert decided["n01"] == lost
    # Of two nodes the first to decide may have downed the other.
    assert lost in (decided["n02"], decided["n03"])
    assert [] in (decided["n02"], decided["n03"]) or decided["n02"] == decided["n03"]


def test_auto_down_makes_two_clusters() -> None:
    net = Net(8, replace(ClusterSettings(), downing=DowningSettings(unsafe_auto_down_after=10.0)))
    net.start(4)
    net.run(3)
    net.partition(["n01", "n02"], ["n03", "n04"])
    net.run(40)
    views = {
        n.name: [host for host, status in n.view if status == Status.UP.value]
        for n in net.running()
    }
    assert views["n01"] == views["n02"] == ["n01", "n02"]
    assert views["n03"] == views["n04"] == ["n03", "n04"]


@pytest.mark.parametrize("strategy", ["keep-majority", "lease-majority"])
def test_who_wakes_late_behind_a_wall_finds_the_lease_of_the_decision_taken(strategy: str) -> None:
    net = half_asleep_behind_a_wall(strategy)
    net.run(120)
    assert net.agreed(["n01", "n02"]), net.picture()


def test_who_wakes_late_does_not_decide_by_the_first_thing_it_hears() -> None:
    net = world("keep-majority", 9)
    nodes = net.start(3)
    net.run(3)
    net.kill("n03", silent=True)
    net.until(lambda: bool(nodes[0].machine.view.unreachable), 15)
    late = net.now + 60.0
    effects = nodes[0].machine.handle(ev.RecordEpochs({"counter": 1}), late)
    assert effects
    notices = [e.event for e in effects if isinstance(e, ev.Notice)]
    assert [type(event) for event in notices] == [HandlingSuspended]
    nodes[0].machine.tick(late)
    assert nodes[0].machine.gossip.down() == {}
