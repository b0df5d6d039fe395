"""The notes of machines, for people."""

from __future__ import annotations

import logging

import pytest

from shardbus.ids import Address, NodeId
from shardbus.membership import view
from shardbus.membership.member import Member
from shardbus.node.event_log import event_fields, level_of, note_fields, remark, sentence
from shardbus.sharding.events import Note


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        ("too_few_shards", logging.WARNING),
        ("too_many_shards", logging.WARNING),
        ("lease_lost", logging.WARNING),
        ("strategy_failed", logging.WARNING),
        ("rows_dropped", logging.WARNING),
        ("rebalance", logging.INFO),
        ("lease_refused", logging.INFO),
        ("shard_freed", logging.DEBUG),
    ],
)
def test_what_needs_somebody_is_a_warning(kind: str, level: int) -> None:
    assert level_of(Note(kind)) == level


def test_a_note_is_told_in_words() -> None:
    assert remark(Note("too_few_shards", "2 shards")) == "too few shards 2 shards"
    assert remark(Note("rows_dropped", "shard 7", 5)) == "rows dropped 5: shard 7"
    assert remark(Note("succession", "this node leads")) == "this node leads"


def test_B62_a_note_has_what_it_concerns_as_fields() -> None:
    seen = note_fields(Note("rebalance", "3 moves"), "cart", 4)
    assert seen == {"event": "rebalance", "entity_type": "cart", "epoch": 4}
    hot = note_fields(Note("hot_shard", "shard 7 gets 80% of all", shard="7"), "cart", 4)
    assert (hot["shard"], hot["epoch"]) == ("7", 4)
    claimed = note_fields(Note("epoch_claimed", "5", epoch=5), "cart", 4)
    assert claimed["epoch"] == 5
    assert note_fields(Note("state_set", entity_id="c-1"), "cart", 4)["entity_id"] == "c-1"


NODE = NodeId("n1", 7355, 1)
MEMBER = Member(NODE, 7356)


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        (view.MemberUp(MEMBER), {"event": "member_up", "member": str(NODE)}),
        (
            view.UnreachableMember(MEMBER, True),
            {"event": "unreachable_member", "member": str(NODE)},
        ),
        (view.NodeStarved(NODE, 2.0), {"event": "node_starved", "member": str(NODE)}),
        (view.LeaderChanged(None), {"event": "leader_changed"}),
        (
            view.RoleLeaderChanged("web", NODE),
            {"event": "role_leader_changed", "member": str(NODE), "role": "web"},
        ),
    ],
)
def test_B62_an_event_of_membership_has_a_name_of_its_own(
    event: view.DomainEvent, fields: dict[str, object]
) -> None:
    assert event_fields(event) == fields


THERE = Address("10.9.9.9", 7355)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (view.RivalCluster((THERE,)), f"another cluster writes this store: {THERE}; it has the"),
        (view.RivalCluster(), "another cluster writes this store: its addresses are not known; "),
        (view.RivalCluster((THERE,), gone=True), "this cluster has the store's claim again"),
        (view.FoundingWaits("waits for the claim"), "this node waits for the claim"),
        (
            view.OtherClustersChanged((view.OtherCluster(THERE, NODE, "", True),)),
            f"ANOTHER CLUSTER of this name exists: these nodes are in it: {THERE} (it is {NODE},"
            f" which is no member here); another cluster writes this store: {THERE}. ",
        ),
    ],
)
def test_another_cluster_on_the_store_is_named_with_its_addresses(
    event: view.DomainEvent, text: str
) -> None:
    assert sentence(event).startswith(text)
