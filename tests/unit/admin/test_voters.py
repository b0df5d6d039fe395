"""Who votes about a split, as operators see it."""

from __future__ import annotations

from shardbus.admin.voters import voters_row
from shardbus.config.settings import ClusterSettings, DowningSettings, Settings, StoreSettings
from shardbus.ids import NodeId
from shardbus.membership.downing.electorate import VoterSet
from shardbus.membership.member import FEATURES, REPLICA, VITALS, Member
from shardbus.membership.view import MembershipView
from tests.records import replace

A, B, C = (NodeId(host, 7355, 1) for host in "abc")
SETTINGS = replace(Settings(), store=StoreSettings(url="cluster://a:7357,b:7357,c:7357"))


def view(*features: tuple[str, ...], electorate: tuple[VoterSet | None, ...]) -> MembershipView:
    members = [Member(n, 7356, features=f) for n, f in zip((A, B, C), features, strict=False)]
    return MembershipView(A, tuple(members), electorate=electorate)


def test_the_replicas_are_shown_with_their_nodes() -> None:
    seen = view(
        (*FEATURES, REPLICA + "a:7357"),
        FEATURES,
        electorate=(None, VoterSet(4, ("a:7357", "b:7357"), 1)),
    )
    assert voters_row(SETTINGS, seen) == {
        "count": "replicas",
        "why": None,
        "ring": 4,
        "replicas": [
            {"address": "a:7357", "nodes": [str(A)]},
            {"address": "b:7357", "nodes": []},
        ],
        "without_node": 1,
        "changing": True,
    }


def test_where_members_vote_the_reason_is_shown() -> None:
    own = (*FEATURES, REPLICA + "a:7357")
    for features, why in (
        ((own, (VITALS,)), f"their version counts members: {B}"),
        ((FEATURES, FEATURES), "no member's node has a replica of the store"),
        (
            (own, FEATURES),
            "the leader has not written the voters yet, or no member's replica is in the ring",
        ),
    ):
        row = voters_row(SETTINGS, view(*features, electorate=(None,)))
        assert row is not None
        assert (row["count"], row["why"], row["replicas"]) == ("members", why, [])


def test_no_replica_votes_with_another_store_or_strategy() -> None:
    seen = view(FEATURES, electorate=(None,))
    redis = replace(SETTINGS, store=StoreSettings(url="redis://h/0"))
    oldest = ClusterSettings(downing=DowningSettings(strategy="keep-oldest"))
    assert voters_row(redis, seen) is None
    assert voters_row(replace(SETTINGS, cluster=oldest), seen) is None
    assert voters_row(SETTINGS, None) is None
