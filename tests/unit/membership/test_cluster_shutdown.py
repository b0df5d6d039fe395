"""The whole cluster stops, and members are removed by force."""

from __future__ import annotations

import pytest

from shardbus.config.settings import ClusterSettings
from shardbus.membership import events as ev
from shardbus.membership import view as seen
from shardbus.membership.downing.split import DowningOutcome, survey
from shardbus.membership.downing.strategies import keep_majority
from shardbus.membership.leader import act_on_convergence, promote_weakly
from shardbus.membership.member import Status
from shardbus.membership.messages import GossipState
from shardbus.membership.reachability import Flag, ObserverRow, Reachability
from tests.records import replace
from tests.unit.membership.membership_net import Net
from tests.unit.membership.test_gossip import A, B, C, D, member, state

J, W, U, PREPARING, READY, L, X, DOWN, _ = Status
SOON = 3.0
LEAVING_TOO = 6.0
FAR = 1e6


def prepare(net: Net, name: str) -> None:
    net.deliver(net.nodes[name], ev.PrepareForShutdown())


def everybody_left(net: Net) -> bool:
    return all(node.stopped == "left" for node in net.by_id.values())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": PREPARING, "b": U}, {"a": PREPARING, "b": PREPARING}),
        ({"a": PREPARING, "b": J}, {"a": PREPARING, "b": PREPARING}),
        ({"a": PREPARING, "b": W}, {"a": PREPARING, "b": PREPARING}),
        ({"a": PREPARING, "b": PREPARING}, {"a": READY, "b": READY}),
        ({"a": PREPARING, "b": READY}, {"a": READY, "b": READY}),
        ({"a": PREPARING, "b": L}, {"a": READY, "b": X}),
        ({"a": PREPARING, "b": X}, {"a": READY}),
        ({"a": READY, "b": READY}, {"a": READY, "b": READY}),
        ({"a": READY, "b": J}, {"a": READY, "b": PREPARING}),
    ],
)
def test_the_leaders_pass_while_the_cluster_stops(
    before: dict[str, Status], after: dict[str, Status]
) -> None:
    result = act_on_convergence(state(**before), A, False, 1.0)
    assert {n.host: m.status for n, m in result.members.items()} == after


def test_who_comes_late_gets_its_age_on_the_way_out() -> None:
    copy = replace(state(), members={A: member(A, PREPARING, 4), B: member(B, J, 0)})
    assert act_on_convergence(copy, A, True, 1.0).members[B].up_number == 5


def test_nobody_becomes_weakly_up_any_more() -> None:
    copy = state(a=PREPARING, b=J)
    assert promote_weakly(copy, A) is copy


@pytest.mark.parametrize(
    ("lost", "converged"), [(PREPARING, False), (READY, True), (X, True), (U, False)]
)
def test_B12_an_unreachable_member_that_is_ready_does_not_block(
    lost: Status, converged: bool
) -> None:
    copy = state("ab", a=READY, b=READY, c=lost)
    rows = {A: ObserverRow(1, {C: Flag.TERMINATED})}
    assert replace(copy, reachability=Reachability(rows)).converged() is converged


def test_a_ready_member_that_is_reachable_must_have_seen_the_version() -> None:
    assert state("ab", a=READY, b=READY, c=READY).waiting_for() == [C]


def test_preparing_members_vote_as_if_they_were_up_and_ready_ones_decide_nothing() -> None:
    rows = Reachability({A: ObserverRow(1, {C: Flag.UNREACHABLE})})
    preparing = state("ab", a=PREPARING, b=PREPARING, c=PREPARING)
    decision = keep_majority(survey(replace(preparing, reachability=rows), A))
    assert (decision.outcome, decision.down) == (DowningOutcome.DOWN_OTHERS, (C,))
    ready = state("ab", a=READY, b=READY, c=READY)
    assert (
        keep_majority(survey(replace(ready, reachability=rows), A)).outcome
        is DowningOutcome.NOTHING
    )


@pytest.mark.parametrize("n", [1, 2, 3, 7])
@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_TC7_the_whole_cluster_stops_and_nobody_is_downed(n: int, loss: float) -> None:
    net = Net(n, loss=loss)
    net.start(n)
    prepare(net, f"n{n:02}")
    net.until(lambda: everybody_left(net), SOON if not loss else 10 * SOON)
    notices = [notice for node in net.by_id.values() for notice in node.notices]
    assert not any(isinstance(notice, seen.MemberDowned) for notice in notices)
    assert any(isinstance(notice, seen.MemberReadyForShutdown) for notice in notices)


def test_TC7_nobody_joins_a_cluster_that_stops() -> None:
    net = Net(2)
    net.start(2)
    net.stops_within_s = FAR
    prepare(net, "n01")
    net.run(1)
    late = net.join("n03", "n01", "n02")
    net.run(1)
    assert late.stopped.endswith("the whole cluster is shutting down")
    assert [status for _, status in net.nodes["n01"].view] == ["ready_for_shutdown"] * 2


def test_TC7_members_may_still_leave() -> None:
    net = Net(3)
    net.start(3)
    net.stops_within_s = FAR
    prepare(net, "n01")
    net.run(1)
    leaver = net.nodes["n03"]
    net.deliver(net.nodes["n02"], ev.Leave(leaver.id))
    net.run(1)
    assert leaver.stopped == ""  # somebody else's wish does not end a process that is about to end
    net.deliver(leaver, ev.Leave(leaver.id))
    assert leaver.stopped == "left"


def test_the_oldest_stays_the_oldest_while_the_cluster_stops() -> None:
    net = Net(4)
    net.start(3)
    net.stops_within_s = FAR
    oldest = net.nodes["n02"].machine.view.oldest()
    prepare(net, "n02")
    net.run(1)
    view = net.nodes["n02"].machine.view
    assert view.stopping
    assert view.oldest().node == oldest.node


def test_a_join_at_the_same_moment_stops_too() -> None:
    net = Net(5)
    net.start(3)
    net.join("n04", "n02")
    prepare(net, "n03")
    net.until(lambda: everybody_left(net) or bool(net.nodes["n04"].stopped), LEAVING_TOO)
    net.until(lambda: not net.running(), LEAVING_TOO)


def test_a_node_that_dies_meanwhile_does_not_keep_the_others() -> None:
    net = Net(6)
    net.start(3)
    prepare(net, "n01")
    net.kill("n03")
    net.until(lambda: not net.running(), 4 * SOON)
    assert {net.nodes[name].stopped for name in ("n01", "n02")} == {"left"}


def test_without_a_member_that_is_up_there_is_nothing_to_stop() -> None:
    net = Net(7, replace(ClusterSettings(), min_members=2))
    node = net.join("n01")
    net.run(2)
    prepare(net, "n01")
    assert node.refused == ["no member is up"]


# -- removal by force ----------------------------------------------------------------------------


def test_S3_41_a_member_is_removed_on_the_spot_though_the_cluster_cannot_agree() -> None:
    settings = ClusterSettings()
    net = Net(8, replace(settings, downing=replace(settings.downing, strategy="none")))
    nodes = net.start(4)
    net.kill("n04", silent=True)
    net.kill("n03", silent=True)
    net.run(30)
    assert not nodes[0].machine.view.converged
    net.deliver(nodes[0], ev.Remove(nodes[3].id))
    assert nodes[3].id not in nodes[0].machine.gossip.members
    net.until(lambda: nodes[3].id in nodes[1].machine.gossip.tombstones, SOON)
    assert nodes[2].id in nodes[1].machine.gossip.members


def test_who_is_removed_and_lives_learns_it_and_ends() -> None:
    net = Net(9)
    nodes = net.start(3)
    net.deliver(nodes[0], ev.Remove(nodes[2].id))
    net.until(lambda: nodes[2].stopped == ev.KEPT_DOWN, SOON)
    net.until(lambda: net.agreed(["n01", "n02"]), SOON)


def test_who_is_removed_learns_it_while_the_others_do_not_reach_each_other() -> None:
    net = Net(11)
    first, second, third = net.start(3)
    members = {n: m for n, m in first.machine.gossip.members.items() if n != third.id}
    rows = {
        first.id: ObserverRow(9, {second.id: Flag.UNREACHABLE}),
        second.id: ObserverRow(9, {first.id: Flag.UNREACHABLE}),
    }
    copy = replace(
        first.machine.gossip,
        members=members,
        seen=frozenset(members),
        reachability=Reachability(rows),
        tombstones={third.id: 0.0},
    )
    third.machine.handle(ev.PubSubReceived(first.id, GossipState(third.id, copy)), net.now)
    assert third.machine.stopped == ev.DOWNED
    assert third.machine.view.members == tuple(members.values())


def test_a_node_does_not_remove_itself_nor_a_stranger() -> None:
    net = Net(10)
    node = net.start(1)[0]
    net.deliver(node, ev.Remove(node.id))
    net.deliver(node, ev.Remove(D))
    assert node.refused == ["a node cannot remove itself", f"{D} is no member"]
    assert node.view == [("n01", "up")]
