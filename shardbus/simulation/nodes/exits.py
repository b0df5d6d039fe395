"""Who ended in disorder, and when: what a lost letter may have been lost with.

An end begins when somebody may first have given the node up, or when its process was no more, if
that was earlier. It is over when every member knows of it. What was not under way between the two
is not lost with that node.

Source: docs/simulation.md; N.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from shardbus.ids import NodeId
from shardbus.membership.member import Status
from shardbus.node.shutdown import LEFT
from shardbus.simulation.membership.checks import Violation
from shardbus.simulation.membership.process import Process
from shardbus.simulation.membership.run import LOOK_EVERY

if TYPE_CHECKING:
    from shardbus.simulation.nodes.world import NodeWorld, SimNode

ENDS_WITHIN_S = 2.0
"""So long a process goes on at most that has been told of its removal."""


@dataclass(slots=True)
class NodeExit:
    """The end of one node. `over_at`: everybody knew."""

    since: float
    over_at: float = inf


class UncleanExits:
    """See the module."""

    def __init__(self, fleet: NodeWorld) -> None:
        self._fleet = fleet
        self._ends: dict[NodeId, NodeExit] = {}
        self._told: dict[SimNode, float] = {}

    def look(self) -> None:
        """At most `LOOK_EVERY` apart: who is given up, of whose end does somebody not know, and who
        goes on in spite of it?

        Raises:
            Violation: somebody who was removed does not end.
        """
        now = self._fleet.now
        self._look_for_ghosts(now)
        for process in self._fleet.running():
            for node in _given_up(process):
                self._ends.setdefault(node, NodeExit(now - LOOK_EVERY))
        for resident in self._fleet.everybody():
            if resident.ended_at is not None and not resident.known:
                end = self._ends.setdefault(resident.process.id, NodeExit(resident.ended_at))
                end.since = min(end.since, resident.ended_at)
                if not self._missed(resident.process.id):
                    resident.known, end.over_at = True, now

    def _look_for_ghosts(self, now: float) -> None:
        """Whatever a node was doing: once it is removed, others have its shards."""
        for resident in self._fleet.residents.values():
            removed = resident.process.stopped not in ("", LEFT)
            if not removed or resident.ended_at is not None or now < resident.loop.paused_until:
                self._told.pop(resident, None)
            elif now - self._told.setdefault(resident, now) > ENDS_WITHIN_S:
                raise Violation("ends", f"{resident.name} goes on, though it has been removed")

    def explain(self, since: float, until: float) -> bool:
        """Whether something that was under way in that time may have been lost with somebody."""
        badly = (r.process.id for r in self._fleet.everybody() if r.ended_badly)
        ends = (self._ends[node] for node in badly if node in self._ends)
        return any(end.since <= until and since <= end.over_at for end in ends)

    def _missed(self, node: NodeId) -> bool:
        living = (p for p in self._fleet.running() if p.member)
        members = (p.machine.view.member(node) for p in living)
        return any(m is not None and m.status is not Status.DOWN for m in members)


def _given_up(process: Process) -> Iterator[NodeId]:
    """Whom its machine takes for gone, or will."""
    gossip = process.machine.gossip
    yield from gossip.tombstones
    for node, member in gossip.members.items():
        if member.status is Status.DOWN:
            yield node
