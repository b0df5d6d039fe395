"""The record of the cluster that holds the claim: who belongs to it, and whether it can live."""

from __future__ import annotations

import pytest

from shardbus.ids import Address, NodeId
from shardbus.membership.claim_record import (
    CONTACTS_MAX,
    MEMBERS_MAX,
    SHOWN,
    ClaimRecord,
    named,
    record_of,
)
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import Member, Status

A, B, C = (Address(f"10.0.0.{n}", 7355) for n in (1, 2, 3))


@pytest.mark.parametrize(
    ("addresses", "meets"), [((A,), True), ((C,), True), ((), False), ((Address("d", 1), B), False)]
)
def test_a_node_belongs_by_any_common_address(addresses: tuple[Address, ...], meets: bool) -> None:
    assert ClaimRecord(1, 1, 1, (A,), (C,)).meets(addresses) is meets


@pytest.mark.parametrize(
    ("elsewhere", "complete", "ended"),
    [((A, B, C), True, True), ((A,), True, False), ((A, B), False, False)],
)
def test_a_cluster_has_ended_if_new_processes_are_at_all_of_its_addresses(
    elsewhere: tuple[Address, ...], complete: bool, ended: bool
) -> None:
    assert ClaimRecord(1, 1, 1, (A, B), (C,), complete).has_ended(elsewhere) is ended


def gossip_of(count: int) -> Gossip:
    nodes = [NodeId(f"n{n:04}", 7355, n + 1) for n in range(count)]
    return Gossip().with_members(nodes[0], *(Member(node, 7356) for node in nodes))


def test_the_record_has_a_bound_and_says_if_it_leaves_members_out() -> None:
    addresses = tuple(Address(f"k{n}", 1) for n in range(2 * CONTACTS_MAX))
    whole = record_of(gossip_of(MEMBERS_MAX), 1, 1, 1, addresses)
    assert (len(whole.members), len(whole.contacts), whole.complete) == (
        MEMBERS_MAX,
        CONTACTS_MAX,
        True,
    )
    more = record_of(gossip_of(MEMBERS_MAX + 1), 1, 1, 1, ())
    assert (len(more.members), more.complete) == (MEMBERS_MAX, False)


def test_a_downed_member_is_none_of_the_record() -> None:
    gossip = gossip_of(2)
    first, second = gossip.members.values()
    gossip = gossip.with_members(first.node, second.moved(Status.DOWN))
    assert record_of(gossip, 1, 1, 1, ()).members == (first.node.address,)


def test_few_addresses_are_named_and_many_are_counted() -> None:
    addresses = [Address(f"n{n}", 1) for n in range(SHOWN + 2)]
    assert named(addresses[:2]) == "n0:1, n1:1"
    assert named(addresses).endswith("n4:1 and 2 more")
    assert named(()) == "its addresses are not known"
