"""Quarantine: a member that answers heartbeats, and does not get messages that must arrive."""

from __future__ import annotations

import pytest

from shardbus.config.settings import ClusterSettings
from shardbus.ids import NodeId
from shardbus.membership import events as ev
from shardbus.membership import view as seen
from shardbus.membership.downing.split import survey
from shardbus.membership.member import Status
from shardbus.membership.reachability import Flag, Reachability
from tests.records import replace
from tests.unit.membership.membership_net import Net
from tests.unit.membership.test_gossip import A, B, C, D, state

OK, UN, BAD, GONE = Flag
UP = Status.UP
DECIDED = 8.0


@pytest.mark.parametrize(
    ("marks", "flag"),
    [
        ([BAD], BAD),
        ([UN, BAD], BAD),
        ([BAD, OK], BAD),
        ([BAD, UN], BAD),
        ([BAD, GONE], GONE),
        ([GONE, BAD], GONE),
    ],
)
def test_S1_25_quarantine_is_final(marks: list[Flag], flag: Flag) -> None:
    table = Reachability()
    for mark in marks:
        table = table.marked(A, B, mark)
    assert table.flag(A, B) is flag


@pytest.mark.parametrize(
    ("marks", "broken"),
    [
        ([(A, B, BAD)], (B,)),
        ([(B, A, BAD)], (A,)),
        ([(A, B, BAD), (B, A, BAD)], (B,)),
        ([(A, B, BAD), (B, A, UN)], (B,)),
        ([(B, A, BAD), (A, B, UN)], (A,)),
        ([(A, C, BAD), (B, C, BAD)], (C,)),
        ([(A, B, BAD), (B, A, BAD), (C, B, BAD)], (B,)),
        ([(C, A, BAD), (C, B, BAD)], (C,)),
        ([(B, A, BAD), (B, C, UN)], (B,)),
    ],
)
def test_TC12_an_accusation_is_a_bad_link_and_its_direction_breaks_ties_only(
    marks: list[tuple[NodeId, NodeId, Flag]], broken: tuple[NodeId, ...]
) -> None:
    table = Reachability()
    for observer, subject, flag in marks:
        table = table.marked(observer, subject, flag)
    copy = replace(state("abc", a=UP, b=UP, c=UP), reachability=table)
    assert survey(copy, A).broken == broken


@pytest.mark.parametrize(
    ("marks", "flags"),
    [
        ([(C, UN), (B, BAD), (C, OK)], {}),
        ([(B, BAD), (C, UN), (C, OK)], {}),
        ([(B, BAD), (C, OK)], {B: BAD}),  # nothing was wrong with the other link
        ([(B, BAD), (C, GONE), (C, OK)], {B: BAD, C: GONE}),
        ([(B, BAD), (C, BAD), (B, OK)], {B: BAD, C: BAD}),
        ([(C, UN), (B, GONE), (C, OK)], {B: GONE}),
    ],
)
def test_who_reaches_a_member_again_takes_back_whom_it_has_accused(
    marks: list[tuple[NodeId, Flag]], flags: dict[NodeId, Flag]
) -> None:
    """It may have been at fault itself: the one accusation that it had made would be left."""
    table = Reachability().marked(D, B, BAD)
    for subject, mark in marks:
        table = table.marked(A, subject, mark)
    assert table.rows[A].flags == flags
    assert table.flag(D, B) is BAD


def test_S1_25_a_quarantined_member_is_downed_learns_it_and_may_start_anew() -> None:
    net = Net(1)
    nodes = net.start(3)
    net.deliver(nodes[0], ev.Quarantine(nodes[1].id))
    net.until(lambda: nodes[1].stopped == "downed", DECIDED)
    story = [type(notice) for notice in nodes[2].notices]
    assert seen.QuarantinedMember in story
    net.until(lambda: net.agreed(["n01", "n03"]), 1.0)
    net.join("n02", "n01")
    net.until(lambda: net.agreed(["n01", "n02", "n03"]), 1.0)


def test_TC38_a_quarantined_member_stays_so_however_well_it_answers() -> None:
    settings = ClusterSettings()
    settings = replace(settings, downing=replace(settings.downing, strategy="none"))
    net = Net(2, settings)
    nodes = net.start(3)
    net.deliver(nodes[0], ev.Quarantine(nodes[1].id))
    net.run(60)
    for node in nodes:
        assert node.machine.view.quarantined == (nodes[1].id,)
        assert not node.machine.view.converged
    net.deliver(nodes[2], ev.Down(nodes[1].id))
    net.until(lambda: net.agreed(["n01", "n03"]), 1.0)


def test_TC12_the_normal_end_of_another_quarantines_nobody() -> None:
    net = Net(3)
    nodes = net.start(3)
    net.deliver(nodes[0], ev.Leave(nodes[0].id))
    net.until(lambda: net.agreed(["n02", "n03"]), 2.0)
    net.run(30)
    assert net.agreed(["n02", "n03"])


def test_nobody_quarantines_itself_or_a_stranger() -> None:
    net = Net(4)
    node = net.start(1)[0]
    before = node.machine.gossip
    net.deliver(node, ev.Quarantine(node.id))
    net.deliver(node, ev.Quarantine(C))
    assert node.machine.gossip is before


def test_gossip_still_reaches_who_is_quarantined() -> None:
    """It must receive its fate, also in a cluster of two."""
    net = Net(5)
    nodes = net.start(2)
    net.deliver(nodes[0], ev.Quarantine(nodes[1].id))
    net.until(lambda: nodes[1].stopped == "downed", DECIDED)
    net.until(lambda: nodes[0].view == [("n01", "up")], 1.0)
