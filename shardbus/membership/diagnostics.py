"""What one node knows of who knows what: for people who ask why the cluster does not converge.

A node hears other nodes' versions in every exchange. Compared with its own, each is the same,
older, newer, or concurrent, and unknown if nothing was heard yet. What was heard last may be old
news; `seen` and `waiting_for` are what the protocol itself goes by.

Source: S3.13, S3.14, S3.32; docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from shardbus.ids import NodeId
from shardbus.membership.gossip import Gossip
from shardbus.membership.reachability import Flag
from shardbus.membership.vector_clock import Order, VectorClock

WORDS = {
    Order.SAME: "same",
    Order.BEFORE: "newer",
    Order.AFTER: "older",
    Order.CONCURRENT: "concurrent",
}
"""How the other's version stands to ours, by how ours stands to the other's."""


@dataclass(frozen=True, slots=True)
class Overview:
    """One node's copy of the state in short. Nodes are in address order."""

    version: str = ""
    """A short hash of the version: two nodes that show the same one have the same."""
    seen: tuple[NodeId, ...] = ()
    """Who has this version."""
    waiting_for: tuple[NodeId, ...] = ()
    """Who stands between this version and convergence."""
    versions: Mapping[NodeId, str] = field(default_factory=dict)
    """How every other member's version stands to this one: same, older, newer, concurrent or
    unknown."""
    records: tuple[tuple[NodeId, NodeId, Flag], ...] = ()
    """Who (observer) cannot reach whom (subject)."""
    tombstones: int = 0
    phis: Mapping[NodeId, float] = field(default_factory=dict)
    """The failure detector's suspicion of every node that this one watches."""


def overview_of(
    gossip: Gossip, me: NodeId, heard: Mapping[NodeId, VectorClock], phis: Mapping[NodeId, float]
) -> Overview:
    """The overview of this copy. `heard`: the last version heard of each node."""

    def standing(node: NodeId) -> str:
        if node not in heard:
            return "unknown"
        return WORDS[gossip.clock.compare(heard[node].without(gossip.tombstones))]

    return Overview(
        version=version_of(gossip),
        seen=tuple(sorted(gossip.seen)),
        waiting_for=tuple(gossip.waiting_for()),
        versions={node: standing(node) for node in gossip.members if node != me},
        records=tuple(gossip.records()),
        tombstones=len(gossip.tombstones),
        phis=dict(phis),
    )


def version_of(gossip: Gossip) -> str:
    """The version's short name: 16 hexadecimal digits, the same in every process."""
    counters = " ".join(f"{node}={n}" for node, n in sorted(gossip.clock.counters.items()))
    removed = " ".join(map(str, sorted(gossip.tombstones)))
    return blake2b(f"{counters} / {removed}".encode(), digest_size=8).hexdigest()
