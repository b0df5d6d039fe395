"""The members through which a downed node joins again.

A node that downed itself in a split knows members that it could not reach; one that others have
downed knows those that did. Any of them may be in the cluster that it rejoins. If all were downed,
no cluster is left that could take it: then it does not rejoin. Its process ends, and the seeds of
its settings decide what happens when a supervisor starts it again.

Source: S3.42.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardbus.membership.gossip import ON_THE_WAY_OUT
from shardbus.membership.member import age_order
from shardbus.membership.view import MembershipView

CONTACTS_MAX = 100
"""Members that a node asks, at most: the oldest ones."""


def contacts(view: MembershipView | None, seeds: Sequence[str]) -> tuple[str, ...]:
    """Return the addresses, HOST:PORT, of the members that may take a node in, and of its seeds.
    Empty if no member may.

    Args:
        view: the last view of the node that was downed.
        seeds: the seeds of its settings.
    """
    if view is None:
        return ()
    live = [m for m in view.members if m.status not in ON_THE_WAY_OUT and m.node != view.me]
    if not live:
        return ()
    oldest = sorted(live, key=age_order)[:CONTACTS_MAX]
    return tuple(dict.fromkeys([*(str(member.node.address) for member in oldest), *seeds]))
