"""Who votes about a split, for operators: the replicas of a store inside the cluster, or the
members.

Source: docs/downing.md.
"""

from __future__ import annotations

from shardbus.config.replicas import is_replicated
from shardbus.config.settings import Settings
from shardbus.http.page import Json
from shardbus.membership.downing.electorate import counts_voters
from shardbus.membership.member import VOTERS
from shardbus.membership.view import MembershipView


def voters_row(settings: Settings, view: MembershipView | None) -> Json | None:
    """Return who votes, None if the settings let no replica vote."""
    downing = settings.cluster.downing
    if view is None or not is_replicated(settings.store.url) or not counts_voters(downing):
        return None
    nodes: dict[str, list[str]] = {}
    for member in view.members:
        nodes.setdefault(member.replica, []).append(str(member.node))
    newest, changes = view.electorate[-1], len(view.electorate) > 1
    places = newest.places if newest is not None else ()
    return {
        "count": "members" if newest is None else "replicas",
        "why": _why_members(view) if newest is None else None,
        "ring": newest.ring if newest is not None else None,
        "replicas": [{"address": place, "nodes": nodes.get(place, [])} for place in places],
        "without_node": newest.strangers if newest is not None else 0,
        "changing": changes,
    }


def _why_members(view: MembershipView) -> str:
    """Return why the members vote, though the store is inside the cluster."""
    former = [str(m.node) for m in view.members if VOTERS not in m.features]
    if former:
        return f"their version counts members: {', '.join(former)}"
    if not any(member.replica for member in view.members):
        return "no member's node has a replica of the store"
    return "the leader has not written the voters yet, or no member's replica is in the ring"
