"""Trials: the examination of a node that requests to join, and the answer."""

from __future__ import annotations

import pytest

from shardbus.ids import Address, NodeId
from shardbus.membership.events import Effect, Probe, SendControl, Subscribe, Unsubscribe
from shardbus.membership.failure.confirmed_death import ProbeOutcome
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import Member, Status
from shardbus.membership.messages import Trial, TrialResult
from shardbus.membership.reachability import Flag
from shardbus.membership.trials import (
    BEYOND_MAX,
    EXAMINED_MAX,
    HEARD_S,
    KEEP_S,
    NOT_HEARD,
    NOT_TRIED,
    WHY,
    BrokenLink,
    Examinations,
    Trials,
    beyond,
)
from tests.unit.membership.membership_net import Net
from tests.unit.membership.test_gossip import A, B, C, state

J, W, U, _, _, L, X, DOWN, _ = Status
NEW = NodeId("n", 7355, 7)
NEWCOMER = Member(NEW, 7356)
TRIAL = Trial(NEWCOMER, 1)


class Examiner:
    """The examinations of A, which is a member with B."""

    def __init__(self) -> None:
        self.gossip, self.tried = state(a=U, b=U), set[NodeId]()
        self.machine = Examinations(A, self.tried)

    def trial(self, now: float = 1.0, of: Trial = TRIAL) -> list[Effect]:
        return self.machine.on_trial(self.gossip, of, now)

    def probed(self, outcome: ProbeOutcome, now: float = 1.0) -> list[Effect]:
        return self.machine.on_probe(self.gossip, NEW, outcome, now)

    def heard(self, now: float) -> list[Effect]:
        return self.machine.on_heard(self.gossip, NEW, now)


def result(messages: str, gossip: str) -> SendControl:
    return SendControl(NEW, TrialResult(messages, gossip, (B.address,)))


def test_gossip_is_listened_to_only_once_the_process_has_answered_at_its_address() -> None:
    examiner = Examiner()
    assert examiner.trial() == [Probe(NEW)]
    assert examiner.trial(1.1) == []
    assert examiner.probed(ProbeOutcome.OPEN) == [result(WHY[ProbeOutcome.OPEN], NOT_TRIED)]
    assert examiner.trial(1.5) == [Probe(NEW), result(WHY[ProbeOutcome.OPEN], NOT_TRIED)]
    alive = examiner.probed(ProbeOutcome.ALIVE)
    assert alive == [Subscribe(NEWCOMER), result("", NOT_HEARD)]
    assert examiner.tried == {NEW}
    assert examiner.heard(2.0) == [result("", "")]
    assert examiner.heard(2.1) == []
    assert examiner.trial(2.5) == [result("", "")]
    assert examiner.trial(2.0 + 2 * HEARD_S) == [result("", NOT_HEARD)]


@pytest.mark.parametrize("outcome", [o for o in ProbeOutcome if o is not ProbeOutcome.ALIVE])
def test_every_other_outcome_of_the_probe_has_a_reason(outcome: ProbeOutcome) -> None:
    examiner = Examiner()
    examiner.trial()
    [answer] = examiner.probed(outcome)
    assert isinstance(answer, SendControl)
    assert isinstance(answer.message, TrialResult)
    assert answer.message.messages
    assert examiner.tried == set()


def test_a_node_that_asks_no_more_is_forgotten() -> None:
    examiner = Examiner()
    examiner.trial(1.0)
    examiner.probed(ProbeOutcome.ALIVE)
    assert examiner.machine.deadline() == 1.0 + KEEP_S
    assert examiner.machine.tick(examiner.gossip, 0.9 + KEEP_S) == []
    assert examiner.machine.tick(examiner.gossip, 1.0 + KEEP_S) == [Unsubscribe(NEW)]
    assert examiner.tried == set()
    assert examiner.machine.deadline() is None
    assert examiner.heard(20.0) == []


def test_a_node_that_has_become_a_member_is_listened_to_further() -> None:
    examiner = Examiner()
    examiner.trial(1.0)
    examiner.probed(ProbeOutcome.ALIVE)
    member = examiner.gossip.with_members(A, NEWCOMER)
    assert examiner.machine.tick(member, 1.0 + KEEP_S) == []


def test_a_member_that_has_missed_its_welcome_is_answered_when_it_asks_again() -> None:
    examiner = Examiner()
    examiner.trial(1.0)
    examiner.gossip = examiner.gossip.with_members(A, NEWCOMER)
    assert examiner.probed(ProbeOutcome.ALIVE) == []
    assert examiner.heard(1.5) == []
    assert examiner.trial(2.0) == [result("", "")]


def test_the_nodes_under_examination_are_bounded() -> None:
    examiner = Examiner()
    for uid in range(EXAMINED_MAX):
        assert examiner.trial(of=Trial(Member(NodeId("x", 1, uid), 2)))
    assert examiner.trial() == []


@pytest.mark.parametrize("status", list(Status)[:8])
def test_only_members_that_work_are_named(status: Status) -> None:
    works = status in (U, Status.PREPARING_FOR_SHUTDOWN, Status.READY_FOR_SHUTDOWN)
    gossip = state(a=U).with_members(A, Member(B, 1, status=status))
    assert beyond(gossip, A, NEW) == ((B.address,) if works else ())


def test_no_member_is_named_that_does_not_answer_or_is_the_newcomer_before() -> None:
    gossip = state(a=U, b=U, c=U)
    assert beyond(gossip.with_flag(A, B, Flag.UNREACHABLE), A, NEW) == (C.address,)
    assert beyond(gossip, A, B._replace(uid=99)) == (C.address,)
    crowd = gossip
    for i in range(9):
        crowd = crowd.with_members(A, Member(NodeId("m", 1 + i, i), 1, status=U))
    assert len(beyond(crowd, A, NEW)) == BEYOND_MAX
    assert beyond(crowd, A, NEW) != beyond(crowd, A, NEW._replace(uid=8))


def test_a_broken_link_names_host_port_and_channel() -> None:
    link = BrokenLink(Address("10.0.0.4", 7356), "gossip", "nothing has come yet")
    assert link.describe() == "10.0.0.4:7356 (gossip): nothing has come yet"
    theirs = BrokenLink(Address("::1", 7355), "messages", "connection refused", A.address)
    assert theirs.describe() == (
        f"{A.address} does not reach this node at [::1]:7355 (messages): connection refused"
    )


# In a cluster


def test_a_node_that_one_member_alone_does_not_reach_is_no_member() -> None:
    """A wall between it and all members but the seed: the others are not disturbed."""
    net = Net(1)
    net.start(4)
    net.cut_links = [("n09", name) for name in ("n02", "n03", "n04")]
    late = net.join("n09", "n01")
    began = net.now
    while net.now < began + 30.0:
        net.step()
    assert not late.member
    assert net.agreed([*(f"n0{i}" for i in range(1, 5)), "n09"]) is False
    assert all("n09" not in str(p.view) for p in net.running() if p is not late)
    assert [str(link.address) for link in late.machine.overview(0.0).broken]
    net.heal()
    names = [process.name for process in net.running()]
    net.until(lambda: net.agreed(names), 30.0)


def test_a_trial_leaves_no_trace() -> None:
    net = Net(2)
    net.start(3)
    net.join("n09", "n01")
    names = [process.name for process in net.running()]
    net.until(lambda: net.agreed(names), 30.0)
    began = net.now
    while net.now < began + 2 * KEEP_S:
        net.step()
    assert [process.machine.tried for process in net.running()] == [set()] * 4


def test_a_state_is_empty_before_a_member() -> None:
    assert beyond(Gossip(), A, NEW) == ()


def test_a_process_that_has_taken_the_address_of_an_examiner_over_tries_the_node() -> None:
    """Else the node asks the former process for ever, and never joins."""
    tried = set[NodeId]()
    trials = Trials(NEWCOMER, tried)
    trials.add(A, A.address, Address("a", 7356), 1, 0.0)
    trials.on_result(A, TrialResult("", "", (B.address,)), 1.0)
    assert trials.beyond(1.0) == [B.address]
    trials.add(B, B.address, Address("b", 7356), 2, 1.0)
    trials.on_result(B, TrialResult("", "", (A.address,)), 2.0)
    assert trials.beyond(2.0) == []
    trials.on_result(A, TrialResult("", "", (B.address,)), 9.0)
    assert trials.beyond(2.0 + HEARD_S) == [B.address]  # B has ended
    again = NodeId(B.host, B.port, B.uid + 1)
    effects = trials.add(again, B.address, Address("b", 7356), 3, 9.0)
    assert Unsubscribe(B) in effects
    assert tried == {A, again}
    assert trials.beyond(9.0) == []
    trials.on_result(again, TrialResult("", "", (A.address,)), 9.5)
    for node in (A, again):
        trials.on_reply(node, 9.5)
    assert trials.passed(9.5)
