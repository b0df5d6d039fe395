"""What must hold of every copy of the state, at all times.

Machines are audited after every step in tests and simulations; nothing here runs in production.

Source: S1.8, S1.64; I8.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardbus.ids import NodeId
from shardbus.membership.gossip import Gossip
from shardbus.membership.member import WORKING


def broken_rules(gossip: Gossip, me: NodeId, watched: Iterable[NodeId]) -> list[str]:
    """The rules that this copy breaks."""
    members = gossip.members
    known = [*gossip.clock.counters, *gossip.seen, *gossip.reachability.rows]
    records = gossip.reachability.records()
    known += [subject for _, subject, _ in records]
    rules = {
        "members are in address order": list(members) == sorted(members),
        "no member has a tombstone": not any(node in gossip.tombstones for node in members),
        "only members leave traces": all(node in members for node in known),
        "nobody flags itself": all(observer != subject for observer, subject, _ in records),
        "whoever was up has a number": all(
            m.up_number for m in members.values() if m.status in WORKING
        ),
        "a member has seen its own state": me not in members or me in gossip.seen,
        "only members are watched": all(node in members for node in watched),
    }
    return [rule for rule, holds in rules.items() if not holds]
