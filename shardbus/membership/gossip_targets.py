"""Whom to gossip to.

A round picks one node. While the cluster has not converged, nodes that are not known to have this
version are preferred with probability 0.8: late in the spreading of news a uniform choice would
mostly hit nodes that have it. In a large cluster a few stragglers would then be flooded by
everybody, so above 400 nodes the probability falls linearly, down to a tenth at three times that
size.

Nobody gossips with nodes that it cannot reach: heartbeats go on, and find them again. Where that is
not enough, some rounds can be followed by one to an unreachable node or to a seed, the likelier the
more of them there are (S3.26, S3.27); it is off by default.

News does not wait for the round: it goes to a few nodes at once, those first that have not seen it.

Source: S1.36-S1.38, S3.25-S3.29, D.1, D.2; T.U2.
"""

from __future__ import annotations

import random
from collections.abc import Container, Sequence

from shardbus.ids import NodeId


def different_view_probability(probability: float, reduce_above: int, nodes: int) -> float:
    """The probability of preferring a node that has not seen this version, in a cluster of so many
    nodes."""
    excess = (nodes - reduce_above) / (2 * reduce_above)
    return probability * (1.0 - 0.9 * min(1.0, max(0.0, excess)))


def round_target(
    live: Sequence[NodeId], seen: Container[NodeId], probability: float, rng: random.Random
) -> NodeId | None:
    """The partner of this round among `live` nodes, or None if there is none."""
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
    """Whom else to gossip with after a round with `partner`, so that islands find each other:
    perhaps an unreachable node, and perhaps a seed unless the partner was one. `factor` scales both
    probabilities; 0 is never."""
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
    """Up to `fanout` nodes that are not known to have the news."""
    unseen = [node for node in live if node not in seen]
    return rng.sample(unseen, min(fanout, len(unseen)))


def is_speedy(seen: int, nodes: int) -> bool:
    """True if fewer than half of the nodes have this version: rounds are then three times as
    frequent."""
    return 2 * seen < nodes
