"""The ring of observers: which nodes watch which.

All nodes form a ring, ordered by a hash of their names. The order is the same on every node, and
neighbours are unrelated to racks and address ranges. Each node watches the next `monitored_by`
nodes of the ring. Unreachable nodes among them are watched in addition to that number, so that a
crash of many nodes does not leave the live ones unwatched.

A pair of *neighbours* is watched whatever is unreachable: one of the two is among the next nodes
of the other. So a pair of neighbours without a flag is a link that works, as far as a node can see.
In a cluster of at most `monitored_by` + 1 nodes all pairs are neighbours.

Source: S1.19-S1.22, S3.15, B.5.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from hashlib import sha1

from shardbus.ids import NodeId


@lru_cache(maxsize=20_000)
def ring_hash(node: NodeId) -> int:
    """Return the node's place in the ring. Stable across processes and versions."""
    digest = sha1(str(node).encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "big")


def watched(
    me: NodeId, nodes: Iterable[NodeId], unreachable: Iterable[NodeId], monitored_by: int
) -> list[NodeId]:
    """Return the nodes that `me` watches: the next nodes of the ring, until `monitored_by`
    reachable ones are among them."""
    ring = sorted((ring_hash(node), node) for node in {*nodes, me})
    start = bisect_left(ring, (ring_hash(me), me))
    skip = frozenset(unreachable)
    chosen: list[NodeId] = []
    reachable = 0
    for step in range(1, len(ring)):
        if reachable == monitored_by:
            break
        node = ring[(start + step) % len(ring)][1]
        chosen.append(node)
        reachable += node not in skip
    return chosen


def neighbours(nodes: Collection[NodeId], monitored_by: int) -> Mapping[NodeId, list[NodeId]]:
    """Return, for each node, the nodes that it watches or that watch it in any case."""
    if len(nodes) <= monitored_by + 1:
        return {node: [other for other in nodes if other != node] for node in nodes}
    ring = [node for _, node in sorted((ring_hash(node), node) for node in nodes)]
    count = len(ring)
    steps = [step for step in range(-monitored_by, monitored_by + 1) if step]
    return {
        node: list(dict.fromkeys(ring[(at + step) % count] for step in steps))
        for at, node in enumerate(ring)
    }
