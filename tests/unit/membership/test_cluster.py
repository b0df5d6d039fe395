"""Whole clusters on a virtual clock: joining, leaving, dying, splitting."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from shardbus.config.settings import ClusterSettings, DowningSettings
from shardbus.ids import NodeId
from shardbus.membership import events as ev
from shardbus.membership import view as seen
from shardbus.membership.admission import cookie_of
from shardbus.membership.cluster import ClusterMembership
from shardbus.membership.downing.split_lease import LEASE_ANSWER_S
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import Member, Status
from shardbus.membership.messages import (
    PROTOCOL,
    GossipSeen,
    GossipState,
    Greeting,
    Heartbeat,
    HeartbeatReply,
    Join,
)
from tests.markers import long_only
from tests.records import replace
from tests.unit.membership.membership_net import Net, Node, content, cut_off_at_the_decision
from tests.unit.membership.test_gossip import DOWN, A, B, C, D, E, U, X, state

DEFAULTS = ClusterSettings()
BLUNT = replace(DEFAULTS, confirmed_death=False)
GREETING = Greeting("test", PROTOCOL, {})
AT_ONCE = 1.0
"""Seconds of virtual time that news may take; more would mean that it waited for some timer."""
DETECTION = 8.0
DECISION = DETECTION + DEFAULTS.downing.stable_after + 2.0


def leave(net: Net, node: Node) -> None:
    net.deliver(node, ev.Leave(node.id))


def stir(net: Net, dice: random.Random) -> None:
    """Two to seven nodes, and up to two joins and leaves that may still be under way."""
    net.start(dice.randint(2, 7))
    net.run(dice.choice([0.1, 3.0]))
    names = [node.name for node in net.running()]
    for i in range(dice.randint(0, 2)):
        if dice.random() < 0.5:
            net.join(f"x{i}", dice.choice(names))
        else:
            leave(net, net.nodes[dice.choice(names)])
        net.run(dice.choice([0.0, 0.005, 0.02, 0.1]))


# -- joining -----------------------------------------------------------------------------------


def test_TC37_a_node_alone_is_up_at_once() -> None:
    net = Net(1)
    node = net.join("n1")
    assert node.view == [("n1", "up")]
    assert node.machine.view.oldest() == node.machine.view.members[0]
    assert node.machine.view.leader == node.id


@pytest.mark.parametrize("n", [2, 3, 10])
def test_TC32_nodes_join_at_once(n: int) -> None:
    net = Net(n)
    names = [f"n{i:02}" for i in range(n)]
    net.join(names[0])
    for i, name in enumerate(names[1:], 2):
        net.join(name, names[0])
        net.until(lambda i=i: net.agreed(names[:i]), AT_ONCE)
    ages = [[m.up_number for m in node.machine.view.members] for node in net.running()]
    assert ages == [list(range(1, n + 1))] * n


def test_TC10_many_join_at_the_same_time() -> None:
    net = Net(5)
    names = [f"n{i:02}" for i in range(10)]
    for name in names:
        net.join(name, names[0], names[1])
    net.until(lambda: net.agreed(names), 3 * AT_ONCE)


def test_TC16_a_cold_start_makes_one_cluster_of_the_first_seed() -> None:
    net = Net(3)
    for name in ("n3", "n2", "n1"):
        net.join(name, "n1", "n2", "n3")
    net.until(lambda: net.agreed(["n1", "n2", "n3"]), AT_ONCE)
    assert net.nodes["n1"].machine.view.oldest().node.host == "n1"


def test_the_first_seed_waits_for_silent_seeds_and_others_wait_for_it() -> None:
    net = Net(4)
    net.join("n2", "n1", "n2", "n3")
    net.run(20)
    assert net.nodes["n2"].view == []
    net.join("n1", "n1", "n2", "n3")
    net.until(lambda: net.agreed(["n1", "n2"]), 1 + DEFAULTS.seed_node_timeout)


def test_TC34_a_restarted_first_seed_joins_the_living() -> None:
    net = Net(4)
    for name in ("n1", "n2", "n3"):
        net.join(name, "n1", "n2", "n3")
    net.until(lambda: net.agreed(["n1", "n2", "n3"]), AT_ONCE)
    net.kill("n1")
    net.join("n1", "n1", "n2", "n3")
    net.until(lambda: net.agreed(["n1", "n2", "n3"]), AT_ONCE)
    assert net.nodes["n1"].machine.view.oldest().node.host == "n2"


def test_TC25_nobody_is_up_before_enough_have_joined() -> None:
    needy = replace(DEFAULTS, min_members=3, role_min_members={"db": 1})
    net = Net(6, needy)
    net.join("n1")
    net.join("n2", "n1")
    net.join("n3", "n1")
    net.run(5)
    assert {s for node in net.running() for _, s in node.view} == {"joining"}
    net.join("n4", "n1", roles=("db",))
    net.until(lambda: net.agreed(["n1", "n2", "n3", "n4"]), AT_ONCE)


@pytest.mark.parametrize(
    ("cluster", "fingerprint", "both"),
    [
        ("prod", {"shards": "100"}, ("'prod'", "'test'")),
        ("test", {"shards": "50"}, ("'50'", "'100'")),
    ],
)
def test_TU12_disagreement_is_refused_with_both_values(
    cluster: str, fingerprint: dict[str, str], both: tuple[str, str]
) -> None:
    net = Net(7)
    net.join("n1", fingerprint={"shards": "100"})
    node = net.join("n2", "n1", cluster=cluster, fingerprint=fingerprint)
    net.until(lambda: bool(node.stopped), AT_ONCE)
    assert node.stopped.startswith("join failed: ")
    assert all(value in node.stopped for value in both)
    assert net.nodes["n1"].view == [("n1", "up")]


def test_TU12_a_setting_that_one_side_does_not_know_is_no_disagreement() -> None:
    net = Net(7)
    net.join("n1", fingerprint={"a": "1", "old": "1"})
    net.join("n2", "n1", fingerprint={"a": "1", "new": "1"})
    net.until(lambda: net.agreed(["n1", "n2"]), AT_ONCE)


def test_TU13_who_finds_nobody_gives_up_visibly() -> None:
    net = Net(8, replace(DEFAULTS, shutdown_after_unsuccessful_join=12.0))
    node = net.join("n2", "n1", "n2")
    net.run(13)
    assert node.stopped == "join failed: no seed took this node in within 12 s; tried n1:7355"


def test_a_removed_incarnation_is_refused() -> None:
    net = Net(9)
    net.start(2)
    gone = net.nodes["n02"]
    leave(net, gone)
    net.until(lambda: net.agreed(["n01"]), AT_ONCE)
    net.run(1)
    zombie = net.add("n02")
    me = zombie.machine.me
    first = net.nodes["n01"].machine
    assert first.handle(ev.PubSubReceived(gone.id, Heartbeat(1, 1.0)), net.now)[-1:] != []
    answers = first.handle(ev.PubSubReceived(gone.id, Heartbeat(2, 2.0)), net.now)
    messages = [e.message for e in answers if isinstance(e, ev.Publish)]
    assert any(isinstance(m, GossipState) and gone.id in m.gossip.tombstones for m in messages)
    assert me not in first.gossip.members


# -- leaving -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 7])
@pytest.mark.parametrize("who", [0, -1])
def test_TC21_leaving_is_quick_for_the_leader_and_for_the_last(n: int, who: int) -> None:
    net = Net(n + who)
    nodes = net.start(n)
    leave(net, nodes[who])
    names = [node.name for node in nodes if node is not nodes[who]]
    net.until(lambda: nodes[who].stopped == "left" and net.agreed(names), AT_ONCE)
    assert all(node.id != nodes[who].id for node in net.running())


def test_all_may_leave_at_once() -> None:
    net = Net(3)
    nodes = net.start(5)
    for node in nodes:
        leave(net, node)
    net.until(lambda: not net.running(), 5)
    assert {node.stopped for node in nodes} == {"left"}


def test_the_oldest_moves_on_when_it_begins_to_leave() -> None:
    net = Net(3)
    nodes = net.start(3)
    by_age = sorted(nodes[0].machine.view.members, key=lambda m: m.up_number)
    assert by_age[0].node == nodes[0].id
    effects = nodes[0].machine.handle(ev.Leave(nodes[0].id), net.now)
    views = [e.view for e in effects if isinstance(e, ev.ViewChanged)]
    assert views[0].status is Status.LEAVING
    assert views[0].oldest() == by_age[1]


def test_a_node_that_dies_while_leaving_does_not_block() -> None:
    net = Net(3)
    nodes = net.start(3)
    leave(net, nodes[1])
    net.kill("n02")
    net.until(lambda: net.agreed(["n01", "n03"]), AT_ONCE)


def test_TU10_a_joining_node_may_leave() -> None:
    net = Net(3, replace(DEFAULTS, min_members=4))
    net.join("n1")
    for name in ("n2", "n3"):
        net.join(name, "n1")
    net.run(1)
    assert {status for node in net.running() for _, status in node.view} == {"joining"}
    leave(net, net.nodes["n3"])
    net.until(lambda: net.nodes["n3"].stopped == "left", AT_ONCE)
    net.until(lambda: net.agreed(["n1", "n2"], Status.JOINING), AT_ONCE)


def test_TU10_a_node_that_has_not_joined_yet_may_leave() -> None:
    net = Net(3)
    node = net.join("n2", "n1", "n2")
    net.run(1)
    leave(net, node)
    assert node.stopped == "left"


# -- dying -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 5, 10])
@pytest.mark.parametrize("victim", [0, -1])
def test_a_killed_node_is_removed_at_once(n: int, victim: int) -> None:
    net = Net(10 * n + victim)
    nodes = net.start(n)
    names = [node.name for node in nodes if node is not nodes[victim]]
    net.run(3)
    net.kill(nodes[victim].name)
    net.until(lambda: net.agreed(names), AT_ONCE)


def test_TC20_survivors_of_survivors_stay() -> None:
    net = Net(4)
    net.start(4)
    for i, victim in enumerate(("n01", "n02", "n03"), 2):
        net.kill(victim)
        net.until(lambda i=i: net.agreed([f"n{j:02}" for j in range(i, 5)]), AT_ONCE)


def test_TC5_a_machine_that_vanishes_is_found_by_its_silence() -> None:
    net = Net(11)
    net.start(3)
    net.run(20)
    net.kill("n02", silent=True)
    took = net.until(lambda: bool(net.nodes["n01"].machine.view.unreachable), DETECTION)
    assert took > DEFAULTS.failure_detector.acceptable_heartbeat_pause
    assert net.nodes["n01"].machine.view.terminated == ()
    net.until(lambda: net.agreed(["n01", "n03"]), DECISION)


def test_without_confirmed_death_silence_decides() -> None:
    net = Net(11, BLUNT)
    net.start(3)
    net.run(20)
    net.kill("n02")
    net.run(2)
    assert len(net.nodes["n01"].view) == 3
    net.until(lambda: net.agreed(["n01", "n03"]), DECISION)


def test_TC13_a_node_that_never_answered_is_found_too() -> None:
    net = Net(12)
    net.start(2)
    net.join("n03", "n01")
    net.until(lambda: len(net.nodes["n02"].view) == 3, AT_ONCE)
    net.kill("n03", silent=True)
    net.until(lambda: net.agreed(["n01", "n02"]), DECISION)


def test_TC36_the_new_incarnation_downs_the_old() -> None:
    net = Net(13, replace(BLUNT, downing=DowningSettings(strategy="none")))
    net.start(3)
    net.kill("n02")
    net.run(1)
    net.join("n02", "n01")
    net.until(lambda: net.agreed(["n01", "n02", "n03"]), AT_ONCE)
    assert net.nodes["n01"].machine.view.member(net.nodes["n02"].id) is not None


@pytest.mark.parametrize(
    ("fate", "stays"), [("lives", True), ("sleeps", True), ("vanished", True), ("died", False)]
)
def test_a_late_join_in_the_name_of_a_member_is_believed_only_if_that_is_gone(
    fate: str, stays: bool
) -> None:
    net = Net(13, BLUNT)
    first, second = net.start(2)
    if fate == "sleeps":
        net.pause("n02", 2 * AT_ONCE)
    elif fate != "lives":
        net.kill("n02", silent=fate == "vanished")
    late = Member(NodeId("n02", second.id.port, 999), 1)
    join = Join(GREETING, late, cookie_of(b"n01", late.node))
    net.deliver(first, ev.ControlReceived(late.node, join))
    net.run(1.5 * AT_ONCE)
    view = first.machine.view
    assert (view.member(second.id) is not None, view.member(late.node) is None) == (stays, stays)
    assert second.stopped == ""


@pytest.mark.parametrize("doubted_before", [0.0, 0.8])
def test_a_late_join_that_was_not_believed_is_forgotten(doubted_before: float) -> None:
    """Also if a heartbeat ends a doubt that was there already, before its next probe."""
    net = Net(13)
    first, second, _ = net.start(3)
    if doubted_before:
        net.deliver(first, ev.PeerDisconnected(second.id))
        net.run(doubted_before)
    late = Member(NodeId("n02", second.id.port, 999), 1)
    join = Join(GREETING, late, cookie_of(b"n01", late.node))
    net.deliver(first, ev.ControlReceived(late.node, join))
    net.run(3 * AT_ONCE)
    assert second.running
    net.kill("n02")
    net.run(AT_ONCE)
    assert [name for name, _ in first.view] == ["n01", "n03"]


@pytest.mark.parametrize(("fate", "stays"), [("sleeps", True), ("vanished", False)])
def test_a_member_that_is_flagged_and_cannot_be_reached_gives_way(fate: str, stays: bool) -> None:
    """One that sleeps still holds its address, so that no other process can have it."""
    net = Net(13, replace(BLUNT, downing=DowningSettings(strategy="none")))
    first, second, _ = net.start(3)
    if fate == "sleeps":
        net.pause("n02", 60.0)
    else:
        net.kill("n02", silent=True)
    net.until(lambda: bool(first.machine.view.unreachable), DETECTION)
    late = Member(NodeId("n02", second.id.port, 999), 1)
    join = Join(GREETING, late, cookie_of(b"n01", late.node))
    net.deliver(first, ev.ControlReceived(late.node, join))
    net.run(1.5 * AT_ONCE)
    view = first.machine.view
    assert (view.member(second.id) is not None, view.member(late.node) is None) == (stays, stays)


def test_TC12_a_paused_node_accuses_nobody_and_learns_its_fate() -> None:
    net = Net(14)
    nodes = net.start(3)
    net.run(5)
    net.pause("n01", 3.0)
    net.run(40)
    assert net.agreed(["n01", "n02", "n03"])
    net.pause("n01", 60.0)
    net.until(lambda: "n01" not in [h for h, _ in nodes[1].view], DECISION)
    net.run(60)
    assert nodes[0].stopped == "downed"
    assert not any(isinstance(n, seen.DowningDecided) for n in nodes[0].notices)
    assert any(isinstance(n, seen.SelfStarved) for n in nodes[0].notices)
    assert net.agreed(["n02", "n03"])


def test_TC4_a_node_declared_down_stops_and_is_removed() -> None:
    net = Net(15)
    nodes = net.start(3)
    net.deliver(nodes[2], ev.Down(nodes[0].id))
    net.until(lambda: nodes[0].stopped == "downed" and net.agreed(["n02", "n03"]), AT_ONCE)
    net.deliver(nodes[2], ev.Down(nodes[0].id))
    assert nodes[2].refused == [f"{nodes[0].id} is no member"]


@pytest.mark.parametrize("asleep", [False, True])
@pytest.mark.parametrize("for_good", [False, True])
def test_S3_42_a_node_that_an_operator_downed_learns_it_though_it_slept(
    asleep: bool, for_good: bool
) -> None:
    net = Net(17)
    nodes = net.start(3)
    if asleep:
        net.pause("n01", 60.0)
    net.deliver(nodes[2], ev.Down(nodes[0].id, for_good=for_good))
    net.until(lambda: nodes[0].id in nodes[1].machine.gossip.tombstones, DECISION)
    net.until(lambda: bool(nodes[0].stopped), 70.0)
    assert nodes[0].stopped == (ev.KEPT_DOWN if for_good else ev.DOWNED)


def test_S3_42_a_node_that_rejoins_never_founds_a_cluster() -> None:
    """The members that it knew may be behind a wall, in a cluster of their own."""
    net = Net(18)
    nodes = net.start(3)
    net.partition(["n01"], ["n02", "n03"])
    net.until(lambda: nodes[0].stopped == ev.DOWNED, 2 * DECISION)
    net.kill("n01")
    again = net.add("n01")
    net.enter(again, "n01", "n02", "n03", founds=False)
    net.run(120)
    assert not again.member
    net.heal()
    net.until(lambda: net.agreed(["n01", "n02", "n03"]), DECISION)


def test_TC29_tombstones_are_forgotten_after_their_time() -> None:
    net = Net(16, replace(DEFAULTS, prune_tombstones_after=60.0))
    nodes = net.start(3)
    leave(net, nodes[2])
    net.until(lambda: net.agreed(["n01", "n02"]), AT_ONCE)
    net.run(55)
    assert nodes[2].id in nodes[0].machine.gossip.tombstones
    net.run(10)
    assert [dict(n.machine.gossip.tombstones) for n in net.running()] == [{}, {}]
    assert net.agreed(["n01", "n02"])


# -- splitting ---------------------------------------------------------------------------------


@pytest.mark.parametrize("rejecting", [False, True])
@pytest.mark.parametrize(("n", "minority"), [(3, 1), (5, 2), (7, 3)])
def test_TC38_the_majority_stays_and_the_minority_goes(
    n: int, minority: int, rejecting: bool
) -> None:
    net = Net(n)
    names = [node.name for node in net.start(n)]
    net.run(3)
    few, many = names[:minority], names[minority:]
    net.partition(few, many, rejecting=rejecting)
    net.run(DECISION)
    assert net.agreed(many)
    assert {net.nodes[name].stopped for name in few} == {"downed"}


@pytest.mark.parametrize("rejecting", [False, True])
@pytest.mark.parametrize("store_up", [True, False])
def test_TC38_an_equal_split_is_decided_by_the_lease(rejecting: bool, store_up: bool) -> None:
    for seed in range(2):
        net = Net(seed)
        nodes = net.start(4)
        net.run(3)
        net.store_up = store_up
        net.partition(["n01", "n04"], ["n02", "n03"], rejecting=rejecting)
        net.run(DECISION if store_up else DECISION + 2 * LEASE_ANSWER_S)
        alive = [node.name for node in net.running()]
        assert alive in ([["n01", "n04"], ["n02", "n03"]] if store_up else [[]])
        assert net.agreed(alive)
        assert {n.stopped for n in nodes if n.name not in alive} == {"downed"}


def test_TC41_a_short_split_heals_without_a_loss() -> None:
    net = Net(20)
    net.start(5)
    net.run(5)
    net.partition(["n01", "n02"], ["n03", "n04", "n05"])
    net.run(7)
    assert net.nodes["n05"].machine.view.unreachable
    net.heal()
    net.until(lambda: not any(node.machine.view.unreachable for node in net.running()), DETECTION)
    net.run(30)
    assert net.agreed(["n01", "n02", "n03", "n04", "n05"])


def test_TC23_during_a_split_nodes_become_weakly_up_and_up_after_it() -> None:
    net = Net(21, replace(DEFAULTS, downing=DowningSettings(strategy="none")))
    net.start(3)
    net.run(3)
    net.partition(["n01", "n02", "n04"], ["n03"])
    net.until(lambda: bool(net.nodes["n01"].machine.view.unreachable), DETECTION)
    net.join("n04", "n01")
    net.until(lambda: ("n04", "weakly_up") in net.nodes["n02"].view, 15)
    net.run(20)
    assert ("n04", "weakly_up") in net.nodes["n02"].view
    net.heal()
    net.until(lambda: net.agreed(["n01", "n02", "n03", "n04"]), DETECTION)


def test_who_is_down_and_may_not_know_it_counts_on_the_other_side() -> None:
    net = cut_off_at_the_decision()
    net.until(lambda: net.nodes["n01"].stopped == "downed", DECISION)
    net.until(lambda: net.agreed(["n02", "n03", "n04"]), 2 * DECISION)


def test_S1_49_weakly_up_can_be_turned_off() -> None:
    net = Net(12, replace(DEFAULTS, allow_weakly_up_members=0.0, confirmed_death=False))
    net.start(3)
    net.partition(["n01", "n02", "n04"], ["n03"])
    net.until(lambda: bool(net.nodes["n01"].machine.view.unreachable), DETECTION)
    net.run(0.5)
    net.join("n04", "n01")
    net.until(lambda: net.nodes["n01"].view[-1] == ("n04", "joining"), AT_ONCE)
    statuses = set()
    while ("n03", "up") in net.nodes["n01"].view:
        statuses.add(dict(net.nodes["n01"].view)["n04"])
        net.step()
    assert statuses == {"joining"}
    net.until(lambda: net.agreed(["n01", "n02", "n04"]), DECISION)


def test_S3_17_B17_the_leader_looks_though_nobody_gossips() -> None:
    """Its own timer finds events that no message brings: here that the patience with a split is
    over."""
    net = Net(13, replace(DEFAULTS, downing=DowningSettings(strategy="none")))
    net.start(2)
    net.kill("n02", silent=True)
    net.until(lambda: bool(net.nodes["n01"].machine.view.unreachable), DETECTION)
    net.join("n03", "n01")
    net.until(lambda: dict(net.nodes["n01"].view).get("n03") == "weakly_up", 20)


def test_one_bad_link_costs_one_node_and_bad_cables_only_their_owner() -> None:
    net = Net(22)
    nodes = net.start(5)
    net.run(5)
    net.cut_links = [{"n02", "n03"}, {"n02", "n04"}]
    net.until(lambda: net.agreed(["n01", "n03", "n04", "n05"]), 2 * DECISION)
    assert nodes[1].stopped == "downed"


def test_epochs_spread() -> None:
    net = Net(23)
    nodes = net.start(4)
    net.deliver(nodes[3], ev.RecordEpochs({"counter": 7}))
    net.deliver(nodes[2], ev.RecordEpochs({"counter": 6}))
    net.until(lambda: all(n.machine.view.epochs.get("counter") == 7 for n in nodes), AT_ONCE)


def test_stale_and_foreign_gossip_is_dropped_and_counted() -> None:
    net = Net(24)
    nodes = net.start(2)
    machine, sender = nodes[0].machine, nodes[1].id
    state = nodes[1].machine.gossip.flip_tombstones(net.now)
    stranger = NodeId("x", 1, 1)
    cases = [
        (ev.PubSubReceived(sender, GossipState(machine.me, state), 2.5), "gossip waited too long"),
        (ev.PubSubReceived(sender, GossipState(stranger, state)), "gossip for another node"),
        (ev.PubSubReceived(stranger, GossipState(machine.me, state)), "from no member"),
    ]
    before = content(machine.gossip)
    for event, reason in cases:
        assert ev.MessageDropped(event.sender, reason) in machine.handle(event, net.now)
    assert content(machine.gossip) == before


@pytest.mark.parametrize("removed", [False, True])
def test_old_gossip_still_tells_a_node_that_it_is_out(removed: bool) -> None:
    net = Net(24)
    first, second, _ = net.start(3)
    gossip_of = second.machine.gossip
    state = gossip_of.with_members(second.id, gossip_of.members[first.id].moved(Status.DOWN))
    if removed:
        state = state.without_members(second.id, (first.id,), net.now)
    first.machine.handle(ev.PubSubReceived(second.id, GossipState(first.id, state), 60.0), net.now)
    assert first.machine.stopped == "downed"


def test_TU8_a_reply_brings_back_number_and_time_of_the_heartbeat() -> None:
    first, second = Net(24).start(2)
    effects = first.machine.handle(ev.PubSubReceived(second.id, Heartbeat(17, 4.25)), 200.0)
    [reply] = [e.message for e in effects if isinstance(e, ev.Publish) and e.to == second.id]
    assert isinstance(reply, HeartbeatReply)
    assert (reply.sequence, reply.sent_at) == (17, 4.25)


def test_TC32_a_member_does_not_join_again() -> None:
    net = Net(24)
    first, _ = net.start(2)
    before = first.machine.gossip
    net.deliver(first, ev.JoinSelf())
    net.enter(first, "n02")
    assert first.refused == ["this node has joined already"] * 2
    assert first.machine.gossip is before


def test_TC40_in_a_healthy_network_nobody_is_ever_suspected() -> None:
    net = Net(24)
    nodes = net.start(5)
    net.run(300)
    assert not any(isinstance(n, seen.UnreachableMember) for node in nodes for n in node.notices)
    assert net.agreed([node.name for node in nodes])


def test_nothing_comes_after_stopped() -> None:
    net = Net(25)
    nodes = net.start(2)
    leave(net, nodes[1])
    net.until(lambda: nodes[1].stopped == "left", AT_ONCE)
    machine = nodes[1].machine
    assert machine.handle(ev.JoinSelf(), net.now) == []
    assert machine.tick(net.now) == []
    assert machine.deadline() is None


def test_TC24_notices_tell_the_story() -> None:
    net = Net(26)
    nodes = net.start(2)
    net.join("n03", "n01")
    net.until(lambda: net.agreed(["n01", "n02", "n03"]), AT_ONCE)
    net.kill("n03")
    net.until(lambda: net.agreed(["n01", "n02"]), AT_ONCE)
    story = [
        type(n).__name__
        for n in nodes[0].notices
        if not isinstance(n, seen.ConvergenceChanged)
        and getattr(getattr(n, "member", None), "node", NodeId("n03", 0, 0)).host == "n03"
    ]
    assert story[-6:] == [
        "MemberJoined",
        "MemberUp",
        "UnreachableMember",
        "DowningDecided",
        "MemberDowned",
        "MemberRemoved",
    ]


# -- chance ------------------------------------------------------------------------------------


def live(net: Net, steps: int) -> None:
    """Random joins, leaves, deaths and pauses; nobody dies before the last death is digested."""
    fresh = len(net.nodes)
    for _ in range(steps):
        names = [node.name for node in net.running()]
        fate = net.rng.choice(["join", "leave", "kill", "vanish", "pause"])
        name = net.rng.choice(names)
        if len(names) < 3 or (fate != "pause" and not net.agreed(names)):
            fate = "join"
        match fate:
            case "join":
                fresh += 1
                net.join(f"n{fresh:02}", *net.rng.sample(names, min(2, len(names))))
            case "leave":
                leave(net, net.nodes[name])
            case "pause":
                net.pause(name, net.rng.uniform(0.1, 3.0))
            case _:
                net.kill(name, silent=fate == "vanish")
        net.run(net.rng.choice([0.1, 2.0, 20.0]))


def check_that_views_agree_in_the_end(seed: int) -> None:
    dice = random.Random(seed)
    net = Net(seed, loss=dice.choice([0.0, 0.05, 0.15]))
    net.start(dice.randint(2, 6))
    live(net, 5)
    net.network.loss = 0.0
    net.run(30)
    running = net.running()
    assert running, f"seed {seed}: {net.picture()}"
    assert net.agreed([node.name for node in running]), f"seed {seed}: {net.picture()}"
    assert all(content(n.machine.gossip) == content(running[0].machine.gossip) for n in running)


@pytest.mark.parametrize("seed", [*range(4), *long_only(*range(4, 12))])
def test_whatever_happens_views_agree_in_the_end(seed: int) -> None:
    check_that_views_agree_in_the_end(seed)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_whatever_happens_for_many_seeds() -> None:
    for seed in range(1000, 2000):
        check_that_views_agree_in_the_end(seed)


def check_that_a_split_has_at_most_one_survivor(seed: int) -> None:
    """A wall anywhere, at any moment of joins and leaves, of either kind, with or without a
    store."""
    dice = random.Random(seed)
    net = Net(seed)
    stir(net, dice)
    side = {name: dice.randint(0, 1) for name in net.nodes}
    net.store_up = dice.random() < 0.8
    halves = [[name for name in side if side[name] == half] for half in (0, 1)]
    net.partition(*halves, rejecting=dice.random() < 0.5)
    net.run(40)
    members = [node for node in net.running() if node.machine.view.members]
    assert len({side[node.name] for node in members}) <= 1, f"seed {seed}: {net.picture()}"
    assert net.agreed([node.name for node in members]) or len(members) < len(net.running())


@pytest.mark.parametrize("seed", [*range(190, 195), *long_only(*range(195, 205))])
def test_a_split_has_at_most_one_survivor(seed: int) -> None:
    check_that_a_split_has_at_most_one_survivor(seed)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_split_has_at_most_one_survivor_for_many_seeds() -> None:
    for seed in range(1000, 3000):
        check_that_a_split_has_at_most_one_survivor(seed)


REPLAY = """
from tests.unit.membership.membership_net import Net
net = Net(99, loss=0.2)
net.start(4)
net.kill("n02")
net.run(5)
print(net.trace.digest, net.events)
"""


def test_the_same_seed_gives_the_same_trace_in_another_process() -> None:
    root = Path(__file__).parents[3]
    outputs = set()
    for hash_seed in ("0", "1", "4242"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        env["PYTHONPATH"] = os.pathsep.join([str(root), str(root / "tests" / "unit")])
        run = subprocess.run(
            [sys.executable, "-c", REPLAY], env=env, capture_output=True, text=True, check=True
        )
        outputs.add(run.stdout)
    assert len(outputs) == 1


def test_a_member_needs_no_services() -> None:
    member = Member(NodeId("a", 1, 1), 2)
    assert member.status is Status.JOINING
    assert member.has_role("")
    assert not member.has_role("db")


# -- the end of one node -------------------------------------------------------------------------


def machine_at(node: NodeId, gossip: Gossip) -> ClusterMembership:
    """The machine of that node, with that state."""
    machine = ClusterMembership(gossip.members[node], "shop", DEFAULTS, {}, random.Random(1))
    machine._enter(gossip.with_seen(node), 0.0)
    return machine


def test_B14_who_finds_itself_down_tells_a_few_others() -> None:
    """Else they would hear of it from nobody, if the reporter dies."""
    machine = machine_at(A, state("bcde", a=U, b=U, c=U, d=U, e=U))
    effects = machine.handle(ev.Down(A), 1.0)
    published = [
        e for e in effects if isinstance(e, ev.Publish) and isinstance(e.message, GossipState)
    ]
    assert ev.Stopped("downed") in effects
    assert {e.to for e in published} == {B, C, D, E}
    for effect in published:
        assert isinstance(effect.message, GossipState)
        assert effect.message.gossip.members[A].status is DOWN


def test_S153_who_is_exiting_goes_on_until_everybody_knows() -> None:
    """Else the leader would wait for one that is gone, or take it for dead."""
    machine = machine_at(A, state("a", a=X, b=U, c=U))
    machine.tick(0.5)
    assert machine.stopped == ""
    machine.handle(ev.PubSubReceived(B, GossipSeen(machine.gossip.clock), 0.0), 0.6)
    assert machine.stopped == ""
    machine.handle(ev.PubSubReceived(C, GossipSeen(machine.gossip.clock), 0.0), 0.7)
    assert machine.stopped == "left"


# -- input of the detector, and dropped messages -----------------------------------------------


def test_S1_39_gossip_that_waited_for_too_long_in_this_process_is_dropped() -> None:
    net = Net(1)
    first, second = net.start(2)
    newer = second.machine.gossip.with_epoch(second.id, "counter", 7).flip_tombstones(net.now)
    stale = ev.PubSubReceived(
        second.id, GossipState(first.id, newer), DEFAULTS.gossip_time_to_live + 0.1
    )
    fresh = replace(stale, waited=DEFAULTS.gossip_time_to_live)
    before = first.machine.gossip
    effects = first.machine.handle(stale, net.now)
    assert effects == [ev.MessageDropped(second.id, "gossip waited too long")]
    assert first.machine.gossip is before
    first.machine.handle(fresh, net.now)
    assert first.machine.gossip.epochs["counter"] == 7


def test_requests_are_no_sign_of_life_for_the_detector() -> None:
    """S1.23. The second node sends heartbeats, and answers none: it may hear nothing."""
    net = Net(1, replace(BLUNT, failure_detector=replace(DEFAULTS.failure_detector)))
    first, second = net.start(2)
    net.run(5.0)
    now, machine = net.now, first.machine
    end = now + 10.0
    while now < end:
        now = max(now, machine.deadline() or end)
        machine.tick(now)
        machine.handle(ev.PubSubReceived(second.id, Heartbeat(1, now)), now)
    assert second.id in machine.view.unreachable


def test_gossip_is_a_sign_of_life_for_the_detector() -> None:
    """Heartbeats of the second node are lost, its gossip arrives: it stays reachable. It is flagged
    once gossip stops too."""
    net = Net(1, replace(BLUNT, failure_detector=replace(DEFAULTS.failure_detector)))
    first, second = net.start(2)
    net.run(5.0)
    now = net.now
    machine = first.machine
    clock = machine.gossip.clock

    def silent_for(seconds: float, *, gossip: bool) -> bool:
        """Whether the node is flagged in that time. It never answers a heartbeat."""
        nonlocal now
        end = now + seconds
        while now < end:
            now = max(now, machine.deadline() or end)
            machine.tick(now)
            if gossip:
                machine.handle(ev.PubSubReceived(second.id, GossipSeen(clock)), now)
        return second.id in machine.view.unreachable

    assert not silent_for(30.0, gossip=True)
    assert silent_for(10.0, gossip=False)
