"""The choice of gossip partners.

A round picks one partner. While the cluster has not converged, the round prefers, with probability
0.8, nodes that are not known to have this version: late in the spreading of a change, a uniform
choice would mostly hit nodes that have it already. In a large cluster all nodes would then flood
the last few that lack it. So above 400 nodes the probability falls linearly, to a tenth of itself
at three times that size.

A node does not gossip with nodes it cannot reach: heartbeats to them continue, and detect when they
are back. With `gossip_partition_breaker` above 0, some rounds are followed by one to an unreachable
node or to a seed. The probability grows with the number of such nodes (S3.26, S3.27). The default
is 0, which is off.

Changes do not wait for the next round: they go at once to a few nodes that have not seen them.

Source: S1.36-S1.38, S3.25-S3.29.
"""

from __future__ import annotations

import random
from collections.abc import Container, Sequence

from shardbus.ids import NodeId


def different_view_probability(probability: float, reduce_above: int, nodes: int) -> float:
    """Return the probability of preferring a node that has not seen this version, in a cluster of
    `nodes` nodes."""
    excess = (nodes - reduce_above) / (2 * reduce_above)
    return probability * (1.0 - 0.9 * min(1.0, max(0.0, excess)))


def round_target(
    live: Sequence[NodeId], seen: Container[NodeId], probability: float, rng: random.Random
) -> NodeId | None:
    """Return the partner of this round among the `live` nodes, or None if there are none."""
    if not live:
        return None
    unseen = [node for node in live if node not in seen]
    if unseen and rng.random() < probability:
        return rng.choice(unseen)
    return rng.choice(live)


def breaker_targets(
    live: Sequence[NodeId],
    unreachable: Sequence[NodeId],
    seeds: Sequence[NodeId],
    partner: NodeId | None,
    factor: float,
    rng: random.Random,
) -> list[NodeId]:
    """Return further partners after a round with `partner`, so that separated islands find each
    other: an unreachable node with some probability, and a seed with some probability unless the
    partner was one. `factor` scales both probabilities; 0 returns none."""
    chosen = []
    if unreachable and rng.random() < factor * len(unreachable) / (len(live) + 1):
        chosen.append(rng.choice(unreachable))
    if seeds and (partner not in seeds or len(live) < len(seeds)):
        others = len(live) + len(unreachable)
        if rng.random() < factor * min(1.0, len(seeds) / max(1, others)):
            chosen.append(rng.choice(seeds))
    return [node for node in dict.fromkeys(chosen) if node != partner]


def news_targets(
    live: Sequence[NodeId], seen: Container[NodeId], fanout: int, rng: random.Random
) -> list[NodeId]:
    """Return up to `fanout` nodes that are not known to have the change."""
    unseen = [node for node in live if node not in seen]
    return rng.sample(unseen, min(fanout, len(unseen)))


def is_speedy(seen: int, nodes: int) -> bool:
    """True if fewer than half of the nodes have this version. Rounds are then three times as
    frequent."""
    return 2 * seen < nodes
