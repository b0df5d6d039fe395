"""Unclean exits: which nodes ended without order, and when. A lost message may have been with them.

An exit begins when another node may first have given the node up, or when its process ended, if
that was earlier. It is over when every member has noticed it. A message that was not under way
between the two is not lost with that node.

Source: docs/simulation.md; N.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from shardbus.ids import NodeId
from shardbus.membership.events import LEFT
from shardbus.membership.member import Status
from shardbus.simulation.membership.checks import Violation
from shardbus.simulation.membership.process import Process
from shardbus.simulation.membership.run import CHECK_EVERY_S

if TYPE_CHECKING:
    from shardbus.simulation.nodes.world import NodeWorld, SimNode

ENDS_WITHIN_S = 2.0
"""Seconds for which a process may go on after it received its removal."""


@dataclass(slots=True)
class NodeExit:
    """The end of one node. `over_at`: when all members had noticed it."""

    since: float
    over_at: float = inf


class UncleanExits:
    """The exits of a run."""

    def __init__(self, world: NodeWorld) -> None:
        self._world = world
        self._ends: dict[NodeId, NodeExit] = {}
        self._removed_at: dict[SimNode, float] = {}

    def check_exits(self) -> None:
        """Record new exits, and check that removed nodes end. Call it at most `CHECK_EVERY_S`
        apart.

        Raises:
            Violation: a removed node does not end.
        """
        now = self._world.now
        self._check_removed_nodes(now)
        for process in self._world.running():
            for node in _declared_dead(process):
                self._ends.setdefault(node, NodeExit(now - CHECK_EVERY_S))
        for sim_node in self._world.all_nodes():
            if sim_node.ended_at is not None and not sim_node.end_noticed:
                end = self._ends.setdefault(sim_node.process.id, NodeExit(sim_node.ended_at))
                end.since = min(end.since, sim_node.ended_at)
                if not self._still_a_member(sim_node.process.id):
                    sim_node.end_noticed, end.over_at = True, now

    def _check_removed_nodes(self, now: float) -> None:
        """Check that removed nodes end: others have their shards by now."""
        for sim_node in self._world.sim_nodes.values():
            removed = sim_node.process.stopped not in ("", LEFT)
            if not removed or sim_node.ended_at is not None or now < sim_node.loop.paused_until:
                self._removed_at.pop(sim_node, None)
            elif now - self._removed_at.setdefault(sim_node, now) > ENDS_WITHIN_S:
                raise Violation("ends", f"{sim_node.name} still runs, though it has been removed")

    def explains(self, since: float, until: float) -> bool:
        """True if a message that was under way in that time may have been lost with an exit."""
        badly = (r.process.id for r in self._world.all_nodes() if r.ended_badly)
        ends = (self._ends[node] for node in badly if node in self._ends)
        return any(end.since <= until and since <= end.over_at for end in ends)

    def _still_a_member(self, node: NodeId) -> bool:
        living = (p for p in self._world.running() if p.member)
        members = (p.machine.view.member(node) for p in living)
        return any(m is not None and m.status is not Status.DOWN for m in members)


def _declared_dead(process: Process) -> Iterator[NodeId]:
    """Return the nodes that this machine holds for dead, or will."""
    gossip = process.machine.gossip
    yield from gossip.tombstones
    for node, member in gossip.members.items():
        if member.status is Status.DOWN:
            yield node
