"""The nodes that the cluster has lost: which, when, and by whose decision.

A member that leaves is not lost. One that was downed is, and so is one that was removed while it
was unreachable. Each member notes it by itself; the page asks all of them, for only the node that
has decided knows the reason.

    a strategy decides, or an operator ──> the reason is kept, on that node
    the member is down, or removed ──────> it is lost

Source: docs/how-to/operate.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from shardbus.ids import NodeId

KEPT = 20


class LostNode(NamedTuple):
    """A node that was lost, at a time of the loop. `why` is empty if another node has decided."""

    node: NodeId
    at: float
    why: str


class LostNodes:
    """The last `KEPT` nodes that this node has seen lost, oldest first."""

    def __init__(self) -> None:
        self._lost: dict[NodeId, LostNode] = {}
        self._reasons: dict[NodeId, str] = {}

    def __iter__(self) -> Iterator[LostNode]:
        return iter(tuple(self._lost.values()))

    def decided(self, nodes: Iterable[NodeId], why: str) -> None:
        """Note why this node declares members dead."""
        for node in nodes:
            self._reasons.pop(node, None)
            self._reasons[node] = why
            if node in self._lost:
                self._lost[node] = self._lost[node]._replace(why=why)
            if len(self._reasons) > KEPT:
                del self._reasons[next(iter(self._reasons))]

    def gone(self, node: NodeId, now: float) -> None:
        """Note a member that is down, or was removed while it was unreachable."""
        if node not in self._lost:
            self._lost[node] = LostNode(node, now, self._reasons.get(node, ""))
            if len(self._lost) > KEPT:
                del self._lost[next(iter(self._lost))]
