"""Diagnostics: which versions of the state the other nodes have, as seen by this node. For
operators who ask why the cluster does not converge.

Each exchange carries the sender's version. Compared with the version here, it is the same, older,
newer or concurrent; it is unknown if none was received yet. The last version received may be
outdated. The protocol itself relies on `seen` and `waiting_for` only.

Source: S3.13, S3.14, S3.32; docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from shardbus.ids import NodeId
from shardbus.membership.gossip import Gossip
from shardbus.membership.reachability import Flag
from shardbus.membership.trials import BrokenLink
from shardbus.membership.vector_clock import Order, VectorClock
from shardbus.membership.vitals import Vitals

RELATIONS = {
    Order.SAME: "same",
    Order.BEFORE: "newer",
    Order.AFTER: "older",
    Order.CONCURRENT: "concurrent",
}
"""The other version's relation to ours, by the relation of ours to it."""


EMPTY: Mapping[NodeId, tuple[Vitals, float]] = {}


class Overview(msgspec.Struct, frozen=True):
    """One node's copy of the state in short. Nodes are in address order."""

    version: str = ""
    """A short hash of the version. Two nodes with the same hash have the same version."""
    seen: tuple[NodeId, ...] = ()
    """The nodes that have this version."""
    waiting_for: tuple[NodeId, ...] = ()
    """The nodes that prevent convergence."""
    versions: Mapping[NodeId, str] = msgspec.field(default_factory=dict)
    """Each other member's version relative to this one: same, older, newer, concurrent or
    unknown."""
    records: tuple[tuple[NodeId, NodeId, Flag], ...] = ()
    """Each observer, the subject that it cannot reach, and its flag."""
    tombstones: int = 0
    phis: Mapping[NodeId, float] = msgspec.field(default_factory=dict)
    """The failure detector's suspicion (phi) of each node that this node watches."""
    vitals: Mapping[NodeId, tuple[Vitals, float]] = msgspec.field(default_factory=dict)
    """The vitals of this node and of the nodes that it watches, with their ages in seconds."""
    broken: tuple[BrokenLink, ...] = ()
    """While this node joins: the ways to and from other nodes that it waits for."""


def diagnose(
    gossip: Gossip,
    me: NodeId,
    last_versions: Mapping[NodeId, VectorClock],
    phis: Mapping[NodeId, float],
    vitals: Mapping[NodeId, tuple[Vitals, float]] = EMPTY,
    broken: tuple[BrokenLink, ...] = (),
) -> Overview:
    """Build the overview of this copy. `last_versions`: the last version received from each
    node."""

    def relation_of(node: NodeId) -> str:
        if node not in last_versions:
            return "unknown"
        return RELATIONS[gossip.clock.compare(last_versions[node].without(gossip.tombstones))]

    return Overview(
        version=version_of(gossip),
        seen=tuple(sorted(gossip.seen)),
        waiting_for=tuple(gossip.waiting_for()),
        versions={node: relation_of(node) for node in gossip.members if node != me},
        records=tuple(gossip.records()),
        tombstones=len(gossip.tombstones),
        phis=dict(phis),
        vitals=dict(vitals),
        broken=broken,
    )


def version_of(gossip: Gossip) -> str:
    """Return the version's short name: 16 hexadecimal digits, the same in every process."""
    counters = " ".join(f"{node}={n}" for node, n in sorted(gossip.clock.counters.items()))
    removed = " ".join(map(str, sorted(gossip.tombstones)))
    return blake2b(f"{counters} / {removed}".encode(), digest_size=8).hexdigest()
