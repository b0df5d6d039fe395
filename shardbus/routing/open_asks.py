"""How busy the homes of instances are, as far as one sender knows: its open asks, and how long its
answers took.

The router `least-busy` compares two instances by their *cost*: the estimated time to an answer of
the home, times the sender's open asks there plus one. Open asks alone do not show a slow node to a
sender that has few of them: each answer would be awaited before the next ask, and all nodes have
none open. The estimate alone reacts late to a node that has stopped to answer; the open asks grow
at once.

The estimate is a mean of the times of answers, in which a time counts the less the older it is
(`HALF_LIFE_S`), and the less the more answers came since (`SAMPLES`). It fades while no answer
comes, so that a node that was slow gets an ask from time to time, and is used again once it is
quick. A node that never answered has the lowest estimate: it is tried next, and its open asks bound
how often.

An ask that fails counts only if it took longer than the estimate: a refusal at once makes no node
look quick.

Source: docs/partitions.md; Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing"
(2001).
"""

from __future__ import annotations

from typing import Any

from shardbus.ids import NodeId

HALF_LIFE_S = 5.0
"""An answer that is older by this counts half."""
SAMPLES = 50
"""An answer changes the estimate by at least one part in this number of the difference; the first
ones by more, so that a slow start of an entity is soon forgotten."""
LEAST_S = 1e-4
"""The lowest estimate, of a node without answers: below it open asks alone decide."""
NODES_MAX = 4096
"""Nodes with an estimate. Above, all are forgotten: ids of nodes that left stay until then."""


class OpenAsks:
    """The open asks of one sender and the answers' times. The caller supplies the time in s."""

    def __init__(self) -> None:
        self.by_wire_id: dict[str, int] = {}
        self.by_node: dict[NodeId, int] = {}
        self._estimates: dict[NodeId, tuple[float, float, int]] = {}
        """By node: the estimate in s, when it was made, and of how many answers, to `SAMPLES`."""

    def opened(self, wire_id: str, node: NodeId | None) -> None:
        """Count an ask to an instance at a home; None if it has none yet."""
        self.by_wire_id[wire_id] = self.by_wire_id.get(wire_id, 0) + 1
        if node is not None:
            self.by_node[node] = self.by_node.get(node, 0) + 1

    def closed(
        self, wire_id: str, node: NodeId | None, took: float, now: float, *, failed: bool
    ) -> None:
        """Count an ask no more; it took that many seconds."""
        _less(self.by_wire_id, wire_id)
        if node is None:
            return
        _less(self.by_node, node)
        estimate, at, samples = self._estimates.get(node, (0.0, now, 0))
        if failed and took <= estimate:
            return
        if len(self._estimates) >= NODES_MAX and node not in self._estimates:
            self._estimates.clear()
        samples = min(samples + 1, SAMPLES)
        gain = max(1.0 - _weight(now - at), 1.0 / samples)
        self._estimates[node] = (estimate + gain * (took - estimate), now, samples)

    def cost(self, wire_id: str, node: NodeId | None, now: float) -> float:
        """Return the cost of one more ask to an instance, in s. Asks to the entity itself count
        twice: they wait for each other."""
        open_asks = self.by_wire_id.get(wire_id, 0)
        if node is None:
            return (1 + open_asks) * LEAST_S
        estimate, at, _ = self._estimates.get(node, (0.0, now, 0))
        lasting = max(estimate * _weight(now - at), LEAST_S)
        return (1 + open_asks + self.by_node.get(node, 0)) * lasting


def _weight(age: float) -> float:
    """Return how much an answer of this age in s counts."""
    return float(0.5 ** (max(age, 0.0) / HALF_LIFE_S))


def _less(counts: dict[Any, int], key: object) -> None:
    left = counts[key] - 1
    if left:
        counts[key] = left
    else:
        del counts[key]
