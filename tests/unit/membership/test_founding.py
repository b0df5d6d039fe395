"""The store's claim: who may found, and for how long a grant counts."""

from __future__ import annotations

from itertools import pairwise

import pytest

from shardbus.config.settings import ClusterSettings
from shardbus.ids import Address, NodeId
from shardbus.membership import events as ev
from shardbus.membership.claim_record import ClaimRecord
from shardbus.membership.cluster import ClusterMembership
from shardbus.membership.founding import (
    FOUNDING,
    LAPSED_PART,
    LOOK_LASTS,
    ClaimFinding,
    FoundingClaim,
    owner_of,
)
from shardbus.membership.gossip import Gossip
from shardbus.membership.joining import Joiner, JoinStep
from shardbus.membership.member import Member, Status
from shardbus.membership.messages import PROTOCOL, Greeting
from shardbus.membership.reachability import Flag
from shardbus.membership.view import FoundingWaits, RivalCluster
from tests.records import replace
from tests.unit.membership.membership_net import Net, Node

SETTINGS = ClusterSettings()
ME = NodeId("10.0.0.1", 7355, 77)
B, C = Address("10.0.0.2", 7355), Address("10.0.0.3", 7355)
D = Address("10.0.0.4", 7355)
GREETING = Greeting("shop", PROTOCOL, {})
LASTS = SETTINGS.founding_claim
LAPSED = LASTS * LAPSED_PART


def claim() -> FoundingClaim:
    made = FoundingClaim(ME, SETTINGS)
    made.start()
    return made


def joiner(**settings: int) -> Joiner:
    settings_ = ClusterSettings(**settings)
    made = Joiner(Member(ME, 7356), GREETING, (), settings_, discovers=True)
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
    ask = mine.ask(gossip.with_epoch(founder, FOUNDING, 5), 200.0)
    assert ask is not None
    assert ask.owner == owner_of(5)


@pytest.mark.parametrize("may", [True, False])
def test_B144_a_first_seed_that_may_not_found_waits_for_a_cluster(may: bool) -> None:
    settings = ClusterSettings(new_cluster=may)
    first = Joiner(Member(ME, 7356), GREETING, (ME.address, B), settings)
    first.start(0.0)
    answer = first.on_nack(NodeId(*B, 8), 0.1)
    assert (answer.step is JoinStep.FOUND_CLUSTER) is may


def test_a_grant_founds_for_half_of_its_time_counted_from_the_request() -> None:
    mine = claim()
    ask = mine.ask(Gossip(), 100.0)
    assert ask == ev.AcquireLease(FOUNDING, owner_of(mine.own_number), LASTS)
    mine.on_result(True, 1, 0.0)
    assert mine.founds(100.0 + LASTS / 2 - 0.1)
    assert not mine.founds(100.0 + LASTS / 2)


def test_a_late_answer_is_not_taken_for_that_to_a_later_request() -> None:
    mine = claim()
    mine.ask(Gossip(), 100.0)
    assert mine.ask(Gossip(), 200.0) is None
    mine.on_result(True, 1, 0.0)
    assert not mine.founds(200.0)


def test_a_refusal_or_no_answer_founds_nothing() -> None:
    for answer in (False, None):
        mine = claim()
        mine.ask(Gossip(), 0.0)
        mine.on_result(answer, 0, 0.0)
        assert not mine.founds(0.1)


def test_members_renew_under_the_number_of_their_cluster() -> None:
    mine, founder = claim(), NodeId("10.0.0.9", 7355, 5)
    gossip = Gossip().with_members(founder, Member(founder, 7356), Member(ME, 7356))
    assert mine.ask(gossip, 0.0) is None
    gossip = gossip.with_epoch(founder, FOUNDING, 5)
    ask = mine.ask(gossip, LASTS)
    assert ask is not None
    assert ask.owner == owner_of(5)
    mine.on_result(True, 1, LASTS)
    assert mine.valid(LASTS + LASTS - 0.1)
    assert not mine.founds(LASTS + 0.1), "the claim is the cluster's, and it exists"
    assert mine.deadline() == LASTS * 1.25


def members(count: int) -> Gossip:
    """The state of a cluster of this number of members, and `ME` behind them."""
    others = [NodeId(f"10.0.0.{9 - n}", 7355, n) for n in range(count)]
    gossip = Gossip().with_members(ME, *(Member(n, 7356) for n in (*others, ME)))
    gossip = gossip.with_members(ME, *(m.moved(Status.UP) for m in gossip.members.values()))
    return gossip.with_epoch(ME, FOUNDING, 5)


@pytest.mark.parametrize(("before", "renews"), [(4, True), (5, False)])
def test_of_many_members_the_first_renew_often_and_the_others_seldom(
    before: int, renews: bool
) -> None:
    last = NodeId("10.0.0.99", 7355, 77)
    mine = FoundingClaim(last, SETTINGS)
    mine.start()
    others = [NodeId(f"10.0.0.1{n}", 7355, n) for n in range(before)]
    gossip = Gossip().with_members(last, *(Member(n, 7356) for n in (*others, last)))
    gossip = gossip.with_epoch(last, FOUNDING, 5)
    assert mine.ask(gossip, 0.0), "a new member writes itself into the record"
    mine.on_result(True, 1, 0.0)
    mine.write(gossip)
    assert (mine.ask(gossip, LASTS / 4) is not None) is renews
    assert renews or mine.ask(gossip, LASTS), "or a claim that lapsed would be found by none"


def test_members_out_of_reach_renew_nothing_so_others_do() -> None:
    last = NodeId("10.0.0.99", 7355, 77)
    mine = FoundingClaim(last, SETTINGS)
    mine.start()
    others = [NodeId(f"10.0.0.1{n}", 7355, n) for n in range(5)]
    gossip = Gossip().with_members(last, *(Member(n, 7356) for n in (*others, last)))
    gossip = gossip.with_epoch(last, FOUNDING, 5)
    mine.ask(gossip, 0.0)
    mine.on_result(True, 1, 0.0)
    mine.write(gossip)
    apart = gossip.with_flag(last, others[0], Flag.UNREACHABLE)
    assert mine.ask(gossip, LASTS / 4) is None
    assert mine.ask(apart, LASTS / 2)


# ---- the record


def refused(
    seeds: tuple[Address, ...] = (), *, discovers: bool = False, joins_any: bool = False
) -> FoundingClaim:
    """A node that has requested the claim at 100, and did not get it."""
    mine = FoundingClaim(ME, SETTINGS)
    mine.start(seeds, discovers=discovers, joins_any=joins_any)
    mine.ask(Gossip(), 100.0)
    mine.on_result(False, 0, 100.0)
    return mine


def theirs(beat: int = 1, *contacts: Address) -> ClaimRecord:
    return ClaimRecord(5, 3, beat, (B, C), contacts)


def test_a_node_of_another_cluster_is_refused_once_that_one_shows_life() -> None:
    mine = refused()
    assert mine.on_record(theirs(), (), 100.1) == ClaimFinding(), "it may be dead"
    outcome = mine.on_record(theirs(2), (), 102.0)
    assert f"another cluster writes this store: {B}, {C}" in outcome.refusal
    assert not outcome.contacts


def test_a_claim_that_outlives_its_time_shows_life_without_a_record_that_changes() -> None:
    mine = refused()
    assert not mine.on_record(theirs(), (), 100.0).refusal
    assert not mine.on_record(theirs(), (), 100.0 + LAPSED - 0.1).refusal
    assert mine.on_record(theirs(), (), 100.0 + LAPSED).refusal


def test_a_claim_without_a_record_is_waited_for_and_then_refuses() -> None:
    mine = refused()
    assert not mine.on_record(None, (), 100.0).refusal
    outcome = mine.on_record(None, (), 100.0 + LAPSED)
    assert "its addresses are not known" in outcome.refusal


def test_another_cluster_that_takes_the_claim_meanwhile_is_judged_anew() -> None:
    mine = refused()
    mine.on_record(theirs(), (), 100.0)
    another = ClaimRecord(6, 4, 1, (B,))
    assert not mine.on_record(another, (), 100.0 + LAPSED).refusal
    assert mine.on_record(another, (), 100.0 + 2 * LAPSED).refusal


@pytest.mark.parametrize(
    ("seeds", "contacts", "belongs"),
    [
        ((ME.address, B), (), True),
        ((), (ME.address,), True),
        ((Address("10.0.0.8", 7355),), (Address("10.0.0.8", 7355),), True),
        ((ME.address, Address("10.0.0.8", 7355)), (), False),
    ],
    ids=["a seed is a member", "it was a member or a seed", "a common seed", "nothing in common"],
)
def test_a_node_belongs_to_a_cluster_by_a_common_address(
    seeds: tuple[Address, ...], contacts: tuple[Address, ...], belongs: bool
) -> None:
    mine = refused(seeds)
    mine.on_record(theirs(1, *contacts), (), 100.1)
    outcome = mine.on_record(theirs(2, *contacts), (), 102.0)
    assert outcome.contacts == ((B, C) if belongs else ())
    assert bool(outcome.refusal) is not belongs
    assert outcome.free is None, "it lives"


def test_a_node_by_the_store_joins_whatever_cluster_has_it() -> None:
    mine = refused(discovers=True, joins_any=True)
    assert mine.on_record(theirs(), (), 100.1).contacts == (B, C)


def test_discovered_contacts_may_yet_show_the_cluster_so_the_node_waits() -> None:
    mine = refused(discovers=True)
    mine.on_record(theirs(), (), 100.1)
    assert mine.on_record(theirs(2), (), 102.0) == ClaimFinding()
    wait = mine.report_wait(103.0)
    assert wait is not None
    assert wait.reason.startswith("founds no cluster: another cluster writes this store: ")


def test_the_claim_of_a_cluster_whose_every_address_has_a_new_process_is_freed() -> None:
    record = ClaimRecord(5, 3, 1, (ME.address, B))
    mine = refused((ME.address, B))
    assert mine.on_record(record, (), 100.1).free is None, "nothing is known of the other"
    assert mine.on_record(record, (B,), 100.2).free == ev.FreeClaim(record)


def test_a_record_that_leaves_members_out_proves_no_end() -> None:
    record = ClaimRecord(5, 3, 1, (ME.address,), complete=False)
    assert refused((ME.address,)).on_record(record, (), 100.1).free is None


def test_a_claim_of_a_cluster_that_lives_is_never_freed() -> None:
    record = ClaimRecord(5, 3, 1, (ME.address, B))
    mine = refused((ME.address, B))
    mine.on_record(record, (), 100.1)
    assert mine.on_record(replace(record, beat=2), (B,), 100.2).free is None


def test_the_wait_is_reported_after_a_moment_and_then_less_and_less_often() -> None:
    mine = refused((ME.address, B))
    mine.on_record(theirs(), (), 100.1)
    assert mine.report_wait(100.2) is None, "nodes that start together wait for less"
    waits = [at for at in range(101, 220) if mine.report_wait(float(at))]
    assert waits[0] == 103
    gaps = [b - a for a, b in pairwise(waits)]
    assert gaps == sorted(gaps)
    assert gaps[-1] <= 60


def test_the_record_names_members_in_the_order_of_leaders_and_who_belongs_to_them() -> None:
    mine = claim()
    mine.start((B, C), discovers=False)
    gossip = members(2)
    mine.on_members(gossip, 0.0)
    first, second = mine.write(gossip).record, mine.write(gossip).record
    assert first.members == tuple(sorted(node.address for node in gossip.members))
    assert {B, C} <= {*first.members, *first.contacts}
    assert first.beat != second.beat
    left = mine.write(members(0)).record
    assert set(first.members) <= {*left.members, *left.contacts}, "a former member belongs to it"


# ---- a node that rejoins


KNOWN = (ME.address, B, C)


@pytest.mark.parametrize(
    ("record", "elsewhere", "permits"),
    [
        (None, (), True),
        (ClaimRecord(5, 3, 1, KNOWN), (B, C), True),
        (ClaimRecord(5, 3, 1, (ME.address,)), (), True),
        (ClaimRecord(5, 3, 1, KNOWN), (B,), False),
        (ClaimRecord(5, 3, 1, (*KNOWN, D)), (B, C), False),
        (ClaimRecord(5, 3, 1, (D,), KNOWN), (B, C), False),
        (ClaimRecord(5, 3, 1, KNOWN, complete=False), (B, C), False),
    ],
    ids=[
        "no record",
        "each member has a new process",
        "only this node was left",
        "a member is silent",
        "a member that it never knew",
        "only members that it never knew",
        "members are left out",
    ],
)
def test_a_node_that_rejoins_founds_only_if_the_record_names_no_member_elsewhere(
    record: ClaimRecord | None, elsewhere: tuple[Address, ...], permits: bool
) -> None:
    mine = FoundingClaim(ME, SETTINGS)
    mine.start(KNOWN, discovers=False, rejoins=True)
    assert not mine.permits(elsewhere, 100.0), "it has not looked"
    mine.on_record(record, elsewhere, 100.0)
    assert mine.permits(elsewhere, 100.0) is permits
    assert not mine.permits(elsewhere, 100.0 + LOOK_LASTS), "the record may be another now"


def test_a_store_that_does_not_answer_shows_a_node_that_rejoins_nothing() -> None:
    mine = FoundingClaim(ME, SETTINGS)
    mine.start(KNOWN, discovers=False, rejoins=True)
    mine.on_record(theirs(), (B, C), 100.0)
    assert mine.permits((B, C), 100.1)
    mine.on_record(None, (B, C), 100.2, answered=False)
    assert not mine.permits((B, C), 100.3)


def test_a_node_that_rejoins_frees_no_claim() -> None:
    """The claim of a cluster that lives is renewed, whoever its members are."""
    mine = FoundingClaim(ME, SETTINGS)
    mine.start(KNOWN, discovers=False, rejoins=True)
    assert mine.on_record(theirs(), (B, C), 100.0) == ClaimFinding((B, C))


def test_the_record_is_in_the_way_of_no_other_node() -> None:
    assert refused((ME.address, B)).permits((), 100.0)


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
    addresses: list[object] = []
    sent = made.on_contacts(contacts, 0.0).send
    for n in range(1, 4):
        assert len(sent) == 20
        addresses += [question.to for question in sent]
        sent = made.tick(float(n)).send
    assert set(addresses) == set(contacts)


# ---- the machine


def test_a_cluster_that_loses_its_claim_reports_the_other() -> None:
    net = Net(3)
    for name in ("n1", "n2"):
        net.discover(net.add(name))
    net.until(lambda: net.agreed(["n1", "n2"]), 30)
    net.leases.forget()
    net.leases.acquire(FOUNDING, "another", 60.0, net.now)
    net.run(20.0)
    notices = [notice for notice in net.nodes["n1"].notices if isinstance(notice, RivalCluster)]
    assert notices[0] == RivalCluster(), "nothing says where the other is"
    there = (B, C)
    net.leases.record = ClaimRecord(7, 2, 1, there)
    net.run(5.0)
    notices = [notice for notice in net.nodes["n1"].notices if isinstance(notice, RivalCluster)]
    assert notices[-1] == RivalCluster(there)
    net.leases.forget()
    net.run(5.0)
    notices = [notice for notice in net.nodes["n1"].notices if isinstance(notice, RivalCluster)]
    assert notices[-1] == RivalCluster(there, gone=True)
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


# ---- clusters with seeds, over the network of the simulator


def claiming(seed: int = 5) -> Net:
    net = Net(seed)
    net.leases.claims = True
    return net


def test_a_second_cluster_with_seeds_of_its_own_is_refused_with_the_addresses() -> None:
    net = claiming()
    for name in ("n1", "n2"):
        net.join(name, "n1", "n2")
    net.until(lambda: net.agreed(["n1", "n2"]), 30)
    staging = net.join("s1", "s1", "s2")
    net.until(lambda: bool(staging.stopped), 10)
    assert "another cluster writes this store: n1:7355, n2:7355" in staging.stopped
    assert staging.refused
    assert net.agreed(["n1", "n2"])


def test_a_node_without_seeds_is_refused_too() -> None:
    net = claiming()
    net.join("n1")
    net.until(lambda: net.agreed(["n1"]), 30)
    staging = net.join("s1")
    net.until(lambda: bool(staging.stopped), 10)
    assert "another cluster writes this store: n1:7355" in staging.stopped


@pytest.mark.parametrize("seeds", [("n1", "n2"), ("n2", "n1")])
def test_both_seeds_restart_and_join_the_cluster_that_lives(seeds: tuple[str, str]) -> None:
    net = claiming()
    names = ["n1", "n2", "n3", "n4"]
    for name in names:
        net.join(name, *seeds)
    net.until(lambda: net.agreed(names), 30)
    for name in ("n1", "n2"):
        net.kill(name)
    net.run(4.0)
    for name in ("n1", "n2"):
        net.join(name, *seeds)
    net.until(lambda: net.agreed(names), 28)
    numbers = {p.machine.gossip.epochs[FOUNDING] for p in net.running()}
    assert len(numbers) == 1


def test_a_node_whose_seeds_are_all_gone_finds_the_members_in_the_store() -> None:
    net = claiming()
    names = ["n1", "n2", "n3", "n4", "n5"]
    for name in names:
        net.join(name, "n1", "n2")
    net.until(lambda: net.agreed(names), 30)
    net.kill("n1")
    net.kill("n2")
    net.until(lambda: net.agreed(["n3", "n4", "n5"]), 30)
    net.join("n6", "n1", "n2")
    net.until(lambda: net.agreed(["n3", "n4", "n5", "n6"]), 20)


def test_a_founder_without_seeds_that_restarts_joins_those_who_joined_it() -> None:
    net = claiming()
    net.join("n1")
    net.join("n2", "n1")
    net.until(lambda: net.agreed(["n1", "n2"]), 30)
    net.kill("n1")
    net.until(lambda: net.agreed(["n2"]), 30)
    net.join("n1")
    net.until(lambda: net.agreed(["n1", "n2"]), 20)


def test_a_cluster_killed_whole_starts_again_at_once_if_all_addresses_answer() -> None:
    net = claiming()
    names = ["n1", "n2", "n3"]
    for name in names:
        net.join(name, "n1", "n2")
    net.until(lambda: net.agreed(names), 30)
    for name in names:
        net.kill(name)
    for name in names:
        net.join(name, "n1", "n2")
    net.until(lambda: net.agreed(names), 8)


def test_a_cluster_killed_whole_starts_again_within_the_life_of_the_claim_if_one_is_missing() -> (
    None
):
    net = claiming()
    names = ["n1", "n2", "n3"]
    for name in names:
        net.join(name, "n1", "n2")
    net.until(lambda: net.agreed(names), 30)
    net.run(2.0)
    for name in names:
        net.kill(name)
    for name in ("n1", "n2"):
        net.join(name, "n1", "n2")
    net.until(lambda: net.agreed(["n1", "n2"]), 20)
    notices = [notice for notice in net.nodes["n1"].notices if isinstance(notice, FoundingWaits)]
    assert "waits for the store's claim, which this cluster had" in notices[0].reason


def test_one_node_alone_that_was_killed_starts_again_at_once() -> None:
    net = claiming()
    net.join("n1", "n1")
    net.until(lambda: net.agreed(["n1"]), 10)
    net.kill("n1")
    net.join("n1", "n1")
    net.until(lambda: net.agreed(["n1"]), 3)


def test_a_store_that_forgets_the_claim_lets_the_members_get_it_again() -> None:
    net = claiming()
    for name in ("n1", "n2"):
        net.join(name, "n1", "n2")
    net.until(lambda: net.agreed(["n1", "n2"]), 30)
    net.leases.forget()
    for name in ("n1", "n2"):
        net.deliver(net.nodes[name], ev.CheckClaim())
    net.run(1.0)
    staging = net.join("s1")
    net.until(lambda: bool(staging.stopped), 10)
    assert net.agreed(["n1", "n2"])


def test_without_a_store_that_answers_no_seed_founds() -> None:
    net = claiming()
    net.store_up = False
    net.join("n1", "n1", "n2")
    net.run(30.0)
    assert not net.nodes["n1"].member
    net.store_up = True
    net.until(lambda: net.agreed(["n1"]), 10)


# ---- rejoining where the others have restarted, over the network of the simulator

TRIO = ("n1", "n2", "n3")


def first_seed_downed(net: Net) -> Net:
    """The first seed of the trio is cut off, downed and dead."""
    for name in TRIO:
        net.join(name, *TRIO)
    net.until(lambda: net.agreed(TRIO), 30)
    first = net.nodes["n1"]
    net.partition(["n1"], TRIO[1:])
    net.until(lambda: bool(first.stopped), 60)
    net.kill("n1")
    return net


def rejoin(net: Net, name: str = "n1", *, founder: str = "n1") -> Node:
    """The node rejoins through the trio."""
    node = net.add(name)
    net.enter(node, *TRIO, founds=False, founder=founder)
    return node


def numbers(net: Net) -> set[int]:
    """The clusters of the members."""
    return {p.machine.gossip.epochs[FOUNDING] for p in net.running() if p.member}


def test_S3_42_the_first_seed_founds_anew_once_all_that_it_knew_are_in_no_cluster() -> None:
    """By the claim of the former cluster, which has to lapse or to be freed."""
    net = first_seed_downed(claiming())
    again = rejoin(net)
    for name in ("n2", "n3"):
        net.kill(name)
    net.heal()
    net.run(5.0)
    assert not again.member, "they are silent"
    for name in ("n2", "n3"):
        net.join(name, *TRIO)
    net.until(lambda: net.agreed(TRIO), 40)
    assert len(numbers(net)) == 1


def test_S3_42_nodes_that_all_rejoin_form_a_cluster_again() -> None:
    net = first_seed_downed(claiming())
    for name in ("n2", "n3"):
        net.kill(name)
    net.heal()
    for name in ("n3", "n2", "n1"):
        rejoin(net, name)
    net.until(lambda: net.agreed(TRIO), 40)
    assert len(numbers(net)) == 1


@pytest.mark.parametrize("founder", ["", "n2"])
def test_S3_42_only_the_first_seed_founds_anew(founder: str) -> None:
    net = first_seed_downed(claiming())
    for name in ("n2", "n3"):
        net.kill(name)
    net.heal()
    for name in ("n1", "n3"):
        rejoin(net, name, founder=founder)
    net.join("n2", *TRIO)
    net.run(60.0)
    assert not numbers(net)


def test_S3_42_behind_a_wall_it_founds_nothing_though_one_of_the_others_has_restarted() -> None:
    """The node that has restarted is in no cluster, and the other one lives in one."""
    net = first_seed_downed(claiming())
    before = numbers(net)
    net.kill("n2")
    net.heal()
    net.partition(["n1", "n2"], ["n3"])
    again, second = rejoin(net), net.join("n2", *TRIO)
    net.run(120.0)
    assert not again.member
    assert not second.member
    assert numbers(net) == before or net.nodes["n3"].stopped


def test_S3_42_members_that_it_never_knew_are_in_its_way() -> None:
    """They joined after it was downed, and have the claim. All that it knew have restarted."""
    net = first_seed_downed(claiming())
    net.heal()
    for name in ("n4", "n5"):
        net.join(name, *TRIO)
    net.until(lambda: net.agreed(["n2", "n3", "n4", "n5"]), 30)
    before = numbers(net)
    for name in ("n2", "n3"):
        net.kill(name)
        left = [name for name in ("n2", "n3", "n4", "n5") if net.nodes[name].alive]
        net.until(lambda: net.agreed(left), 60)  # noqa: B023  (it is called in the loop)
    net.partition(["n1", "n2", "n3"], ["n4", "n5"])
    again = rejoin(net)
    for name in ("n2", "n3"):
        net.join(name, *TRIO)
    net.run(60.0)
    assert not again.member
    assert numbers(net) == before
    net.heal()
    net.until(lambda: net.agreed(["n1", "n2", "n3", "n4", "n5"]), 60)
    assert numbers(net) == before


def test_S3_42_while_the_store_is_away_it_founds_nothing() -> None:
    net = first_seed_downed(claiming())
    for name in ("n2", "n3"):
        net.kill(name)
    net.heal()
    net.store_up = False
    again = rejoin(net)
    for name in ("n2", "n3"):
        net.join(name, *TRIO)
    net.run(60.0)
    assert not again.member
    net.store_up = True
    net.until(lambda: net.agreed(TRIO), 40)
    assert len(numbers(net)) == 1
