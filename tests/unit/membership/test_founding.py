"""The store's claim: who may found, and for how long a grant counts."""

from __future__ import annotations

import pytest

from shardbus.config.settings import ClusterSettings
from shardbus.ids import Address, NodeId
from shardbus.membership import events as ev
from shardbus.membership.cluster import ClusterMembership
from shardbus.membership.founding import FOUNDING, FoundingClaim, owner_of
from shardbus.membership.gossip import Gossip
from shardbus.membership.joining import Joiner, JoinStep
from shardbus.membership.member import Member
from shardbus.membership.messages import PROTOCOL, Greeting
from shardbus.membership.view import RivalCluster
from tests.unit.membership.membership_net import Net

SETTINGS = ClusterSettings()
ME = NodeId("10.0.0.1", 7355, 77)
B, C = Address("10.0.0.2", 7355), Address("10.0.0.3", 7355)
GREETING = Greeting("shop", PROTOCOL, {})
LASTS = SETTINGS.founding_claim


def claim() -> FoundingClaim:
    made = FoundingClaim(ME, SETTINGS)
    made.start()
    return made


def joiner(**settings: int) -> Joiner:
    own = ClusterSettings(**settings)
    made = Joiner(Member(ME, 7356), GREETING, (), own, discovers=True)
    made.start(0.0)
    return made


def test_without_discovery_nothing_is_asked() -> None:
    assert FoundingClaim(ME, SETTINGS).ask(Gossip(), 0.0) is None


def test_B144_a_node_that_may_not_found_asks_only_as_a_member() -> None:
    mine = FoundingClaim(ME, ClusterSettings(new_cluster=False))
    mine.start()
    assert mine.ask(Gossip(), 100.0) is None
    founder = NodeId("10.0.0.9", 7355, 5)
    gossip = Gossip().with_members(founder, Member(founder, 7356), Member(ME, 7356))
    asked = mine.ask(gossip.with_epoch(founder, FOUNDING, 5), 200.0)
    assert asked is not None
    assert asked.owner == owner_of(5)


@pytest.mark.parametrize("may", [True, False])
def test_B144_a_first_seed_that_may_not_found_waits_for_a_cluster(may: bool) -> None:
    own = ClusterSettings(new_cluster=may)
    first = Joiner(Member(ME, 7356), GREETING, (ME.address, B), own)
    first.start(0.0)
    answer = first.on_nack(NodeId(*B, 8), 0.1)
    assert (answer.step is JoinStep.FOUND_CLUSTER) is may


def test_a_grant_founds_for_half_of_its_time_counted_from_the_request() -> None:
    mine = claim()
    asked = mine.ask(Gossip(), 100.0)
    assert asked == ev.AcquireLease(FOUNDING, owner_of(mine.own_number), LASTS)
    mine.on_result(True)
    assert mine.founds(100.0 + LASTS / 2 - 0.1)
    assert not mine.founds(100.0 + LASTS / 2)


def test_a_late_answer_is_not_taken_for_that_to_a_later_request() -> None:
    mine = claim()
    mine.ask(Gossip(), 100.0)
    assert mine.ask(Gossip(), 200.0) is None
    mine.on_result(True)
    assert not mine.founds(200.0)


def test_a_refusal_or_no_answer_founds_nothing() -> None:
    for answer in (False, None):
        mine = claim()
        mine.ask(Gossip(), 0.0)
        mine.on_result(answer)
        assert not mine.founds(0.1)


def test_members_renew_under_the_number_of_their_cluster() -> None:
    mine, founder = claim(), NodeId("10.0.0.9", 7355, 5)
    gossip = Gossip().with_members(founder, Member(founder, 7356), Member(ME, 7356))
    assert mine.ask(gossip, 0.0) is None
    gossip = gossip.with_epoch(founder, FOUNDING, 5)
    asked = mine.ask(gossip, LASTS)
    assert asked is not None
    assert asked.owner == owner_of(5)
    mine.on_result(True)
    assert mine.valid(LASTS + LASTS - 0.1)
    assert not mine.founds(LASTS + 0.1), "the claim is the cluster's, and it exists"
    assert mine.deadline() == LASTS * 1.25


# ---- contacts


def test_no_node_founds_before_it_has_looked() -> None:
    made = joiner()
    assert not made.may_found(60.0)
    made.on_contacts((), 60.0)
    assert made.may_found(60.0)


def test_every_contact_must_say_that_it_is_in_no_cluster() -> None:
    made = joiner()
    progress = made.on_contacts((B, C, ME.address), 0.0)
    assert {sent.to for sent in progress.send} == {B, C}
    made.on_nack(NodeId(*B, 1), 0.1)
    assert not made.may_found(0.2)
    made.on_nack(NodeId(*C, 1), 0.1)
    assert made.may_found(0.2)


def test_a_contact_that_is_silent_for_long_is_in_nobodys_way() -> None:
    made = joiner()
    made.on_contacts((B,), 0.0)
    assert not made.may_found(LASTS - 0.1)
    assert made.may_found(LASTS)


def test_a_node_founds_only_among_enough_contacts() -> None:
    made = joiner(required_contacts=2)
    made.on_contacts((), 0.0)
    assert not made.may_found(0.0)
    made.on_contacts((B,), 1.0)
    made.on_nack(NodeId(*B, 1), 1.1)
    assert made.may_found(1.2)


def test_many_contacts_are_asked_in_turn() -> None:
    made = joiner()
    contacts = tuple(Address(f"10.0.1.{n}", 7355) for n in range(50))
    asked: list[object] = []
    sent = made.on_contacts(contacts, 0.0).send
    for n in range(1, 4):
        assert len(sent) == 20
        asked += [one.to for one in sent]
        sent = made.tick(float(n)).send
    assert set(asked) == set(contacts)


# ---- the machine


def test_a_cluster_that_loses_its_claim_reports_the_other() -> None:
    net = Net(3)
    for name in ("n1", "n2"):
        net.discover(net.add(name))
    net.until(lambda: net.agreed(["n1", "n2"]), 30)
    net.leases.forget()
    net.leases.acquire(FOUNDING, "another", 60.0, net.now)
    net.run(20.0)
    assert any(isinstance(one, RivalCluster) for one in net.nodes["n1"].notices)
    assert net.agreed(["n1", "n2"])


def test_a_statically_founded_cluster_gets_a_number_from_its_leader() -> None:
    net = Net(4)
    first = net.join("n1")
    net.discover(net.add("n2"))
    net.deliver(net.nodes["n2"], ev.ContactsFound((first.id.address,)))
    net.until(lambda: net.agreed(["n1", "n2"]), 30)
    assert FOUNDING not in first.machine.gossip.epochs
    net.kill("n1", silent=True)
    net.run(60.0)
    lone: ClusterMembership = net.nodes["n2"].machine
    if not lone.stopped:
        assert lone.gossip.epochs.get(FOUNDING)
